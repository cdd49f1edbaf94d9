/* The round protocol at the server: what each message does to slots and seats (S1-S6), and what is owed to
 * whom. Nothing here waits: what cannot be sent now stays owed and is sent when there is credit. */
#include "bps-server/core_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/crc32c.h"
#include "common/log.h"

static const struct {
	const char *name;
	unsigned next; /* bit per enum slot_state */
} slot_states[] = {
	[SLOT_EMPTY] = {"empty", 1u << SLOT_OPEN},
	[SLOT_OPEN] = {"open",
		1u << SLOT_SUMMING | 1u << SLOT_DONATING | 1u << SLOT_OPEN | 1u << SLOT_EMPTY},
	[SLOT_SUMMING] = {"summing", 1u << SLOT_DONE | 1u << SLOT_EMPTY},
	[SLOT_DONATING] = {"donating", 1u << SLOT_DONE | 1u << SLOT_EMPTY},
	[SLOT_DONE] = {"done", 1u << SLOT_OPEN | 1u << SLOT_EMPTY},
};

void slot_set_state(struct srv_core *core, struct slot *slot, enum slot_state state)
{
	assert(slot_states[slot->state].next >> state & 1);
	log_trace("slot %s to %s: job=%u tensor=%u part=%u round=%llu",
		slot_states[slot->state].name, slot_states[state].name, slot->part->job->id,
		slot->part->tensor, slot->part->index, (unsigned long long)slot->round);
	if (slot->state == SLOT_DONATING)
		TAILQ_REMOVE(&core->donating, slot, waiting);
	if (state == SLOT_DONATING)
		TAILQ_INSERT_TAIL(&core->donating, slot, waiting);
	slot->state = state;
}

void seat_set_state(struct seat *seat, enum seat_state state)
{
	static const unsigned next[] = {
		[SEAT_IDLE] = 1u << SEAT_WANT_READ | 1u << SEAT_STAGED,
		[SEAT_WANT_READ] = 1u << SEAT_READING | 1u << SEAT_IDLE,
		[SEAT_READING] = 1u << SEAT_STAGED | 1u << SEAT_IDLE,
		[SEAT_STAGED] = 1u << SEAT_IDLE,
	};

	assert(next[seat->state] >> state & 1);
	seat->state = state;
}

/* ---- what is owed ---- */

void seat_owe(struct srv_core *core, struct seat *seat, enum owe what, uint64_t round)
{
	struct peer *peer = seat->peer;

	if (!peer)
		return; /* it asks again on its next connection */
	if (what == OWE_HAVE_OK)
		seat->have_round = round;
	if (what == OWE_BAD_CRC || what == OWE_AGAIN)
		seat->retry_round = round;
	if (!seat->owes)
		TAILQ_INSERT_TAIL(&peer->owing, seat, owing);
	seat->owes |= (uint8_t)what;
	rounds_flush(core, peer);
}

static void seat_forgive(struct seat *seat)
{
	if (seat->owes)
		TAILQ_REMOVE(&seat->peer->owing, seat, owing);
	seat->owes = 0;
}

static struct wire_msg message_to(const struct seat *seat, enum wire_type type, uint64_t round)
{
	const struct part *part = seat->part;

	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = part->pgen,
		.round = round,
		.job = part->job->id,
		.tensor = part->tensor,
		.part = part->index,
		.member = seat->member,
		.segment = WIRE_NO_SEGMENT};
}

static void offered_clear(struct slot *slot, struct seat *seat)
{
	uint8_t bit = (uint8_t)(1u << (slot - slot->part->slots));

	if (seat->offered & bit) {
		seat->offered &= (uint8_t)~bit;
		slot->n_offered--;
	}
}

static int send_result(struct seat *seat)
{
	struct slot *slot = NULL;
	struct wire_msg m;
	int rc;

	for (unsigned i = 0; i < 2; i++) {
		struct slot *s = &seat->part->slots[i];

		if (s->state == SLOT_DONE && member_set_has(&s->contributed, seat->member) &&
			!member_set_has(&s->has, seat->member))
			slot = s;
	}
	if (!slot)
		return 0; /* it said meanwhile that it has it */
	m = message_to(seat, WIRE_RESULT, slot->round);
	m.len = seat->part->bytes;
	m.crc = slot->crc;
	m.result.workers = slot->workers;
	m.result.n_members = seat->part->n_seats;
	m.result.contributors = slot->contributors;
	if (m.len <= WIRE_INLINE_MAX) {
		m.flags = WIRE_INLINE;
		m.payload = slot->result->mem;
		return xport_send(seat->peer->conn, &m);
	}
	m.segment = slot->result->segment;
	m.offset = slot->result->offset;
	rc = xport_send(seat->peer->conn, &m);
	if (rc == 0 && !(seat->offered >> (slot - seat->part->slots) & 1)) {
		seat->offered |= (uint8_t)(1u << (slot - seat->part->slots));
		slot->n_offered++;
	}
	return rc;
}

static int send_owed(struct seat *seat, enum owe what)
{
	struct wire_msg m;

	switch (what) {
	case OWE_RESULT:
		return send_result(seat);
	case OWE_HAVE_OK:
		m = message_to(seat, WIRE_HAVE_OK, seat->have_round);
		break;
	case OWE_DONATE_REQ:
		for (unsigned i = 0; i < 2; i++) {
			const struct slot *s = &seat->part->slots[i];

			if (s->state != SLOT_DONATING || s->donor != seat->member)
				continue;
			m = message_to(seat, WIRE_DONATE_REQ, s->round);
			return xport_send(seat->peer->conn, &m);
		}
		return 0;
	case OWE_BAD_CRC:
		m = message_to(seat, WIRE_BAD_CRC, seat->retry_round);
		m.crc = seat->bad_crc;
		break;
	case OWE_AGAIN:
		m = message_to(seat, WIRE_AGAIN, seat->retry_round);
		break;
	default:
		return 0;
	}
	return xport_send(seat->peer->conn, &m);
}

void rounds_flush(struct srv_core *core, struct peer *peer)
{
	struct seat *seat;

	(void)core;
	while (!peer->is_stuck && (seat = TAILQ_FIRST(&peer->owing))) {
		for (unsigned what = 1; what <= OWE_AGAIN; what <<= 1) {
			if (!(seat->owes & what))
				continue;
			if (send_owed(seat, (enum owe)what) == -EAGAIN) {
				peer->is_stuck = true;
				return;
			}
			seat->owes &= (uint8_t)~what;
		}
		TAILQ_REMOVE(&peer->owing, seat, owing);
	}
}

/* ---- slots ---- */

/* peer reads it no more; nobody left: the buffer is free. */
static void limbo_release(struct srv_core *core, struct limbo *l, const struct peer *peer)
{
	for (unsigned i = 0; i < l->n_peers; i++)
		if (l->peers[i] == peer)
			l->peers[i--] = l->peers[--l->n_peers];
	if (l->n_peers)
		return;
	TAILQ_REMOVE(&core->limbo, l, link);
	pool_put(core->sums, l->buf);
	core->stats.limbo--;
	free(l);
}

/* Results offered from this slot may still be read: whoever was offered them keeps the buffer alive. */
static void limbo_add(struct srv_core *core, struct slot *slot)
{
	struct part *part = slot->part;
	struct limbo *l = malloc(sizeof(*l) + slot->n_offered * sizeof(l->peers[0]));
	unsigned bit = (unsigned)(slot - part->slots);

	if (!l) {
		/* Without the note nobody may ever reuse the buffer: leaking it is the safe choice. */
		log_error("out of memory: %u bytes of sums memory are lost", part->bytes);
		slot->result = NULL;
		return;
	}
	*l = (struct limbo){.buf = slot->result,
		.pgen = part->pgen,
		.round = slot->round,
		.job = part->job->id,
		.tensor = part->tensor,
		.part = part->index};
	for (unsigned i = 0; i < part->n_seats; i++) {
		struct seat *seat = &part->seats[i];

		if (!(seat->offered >> bit & 1))
			continue;
		if (seat->peer)
			l->peers[l->n_peers++] = seat->peer;
		offered_clear(slot, seat);
	}
	slot->result = NULL;
	TAILQ_INSERT_TAIL(&core->limbo, l, link);
	core->stats.limbo++;
	limbo_release(core, l, NULL);
}

void slot_clear(struct srv_core *core, struct slot *slot)
{
	sums_discard(core, slot);
	if (slot->fetch)
		fetch_detach(slot->fetch);
	slot->fetch = NULL;
	slot->wants_fetch = false;
	if (slot->n_offered)
		limbo_add(core, slot);
	if (slot->state != SLOT_EMPTY)
		slot_set_state(core, slot, SLOT_EMPTY);
	memset(&slot->contributed, 0, sizeof(slot->contributed));
	memset(&slot->has, 0, sizeof(slot->has));
	memset(&slot->contributors, 0, sizeof(slot->contributors));
	slot->n_contributed = slot->n_has = slot->n_spoken = 0;
	slot->workers = 0;
	slot->op_known = slot->crc_prev_known = false;
	slot->round = 0;
}

void seat_clear(struct srv_core *core, struct seat *seat)
{
	seat_forgive(seat);
	reads_forget(core, seat);
	assert(seat->state == SEAT_IDLE);
	seat->offered = 0;
	seat->peer = NULL;
}

/* What a round is to the slot that it belongs to: its own or the next one there (S3), long over, or so far
 * ahead of the others as no honest peer can be. */
enum place { PLACE_HERE, PLACE_OVER, PLACE_AHEAD };

static enum place slot_place(struct part *part, uint64_t r)
{
	const struct slot *slot = part_slot(part, r);
	bool is_over = slot->state == SLOT_DONE || (slot->state == SLOT_OPEN && slot->n_has > 0 &&
							   slot->n_spoken == slot->n_has);

	if (slot->state == SLOT_EMPTY || slot->round == r)
		return PLACE_HERE;
	if (slot->round > r)
		return PLACE_OVER;
	return slot->round == r - 2 && is_over ? PLACE_HERE : PLACE_AHEAD;
}

/* May that member have the result of round r? Not while it is being made, unless it said so before. */
static bool can_have(struct part *part, const struct seat *seat, uint64_t r)
{
	const struct slot *slot = part_slot(part, r);

	return slot->round != r || (slot->state != SLOT_SUMMING && slot->state != SLOT_DONATING) ||
	       member_set_has(&slot->has, seat->member);
}

/* The slot of a round that is PLACE_HERE, opened if it was free. */
static struct slot *slot_for(struct srv_core *core, struct part *part, uint64_t r)
{
	struct slot *slot = part_slot(part, r);

	if (slot->state != SLOT_EMPTY && slot->round == r)
		return slot;
	if (slot->state != SLOT_EMPTY)
		slot_clear(core, slot);
	slot->round = r;
	slot_set_state(core, slot, SLOT_OPEN);
	return slot;
}

void *slot_result(struct srv_core *core, struct slot *slot)
{
	if (!slot->result) /* the last one is in limbo */
		slot->result = pool_get(core->sums, slot->part->bytes);
	if (!slot->result)
		srv_job_fail(core, slot->part->job, BPS_EQUOTA,
			"server %u: memory for sums is exhausted by results that are still being "
			"read; "
			"raise sums-memory",
			core->cfg.server_id);
	return slot->result ? slot->result->mem : NULL;
}

void slot_done(struct srv_core *core, struct slot *slot)
{
	struct part *part = slot->part;

	slot_set_state(core, slot, SLOT_DONE);
	core->stats.rounds++;
	for (unsigned i = 0; i < part->n_seats; i++)
		if (member_set_has(&slot->contributed, i) && !member_set_has(&slot->has, i))
			seat_owe(core, &part->seats[i], OWE_RESULT, slot->round);
}

static struct peer *peer_of(struct srv_core *core, uint32_t agent)
{
	struct peer *peer;

	TAILQ_FOREACH(peer, &core->peers, link)
	if (peer->conn->peer_id == agent)
		return peer;
	return NULL;
}

void slot_ask_donor(struct srv_core *core, struct slot *slot)
{
	struct part *part = slot->part;

	slot->donor_deadline_ns = core->now_ns + core->cfg.retry_ns;
	TAILQ_REMOVE(&core->donating, slot, waiting);
	TAILQ_INSERT_TAIL(&core->donating, slot, waiting);
	if (slot->fetch)
		return; /* it is on its way; if its connection dies, we are told */
	slot->wants_fetch = false;
	for (unsigned k = 1; k <= part->n_seats; k++) {
		uint16_t i = (uint16_t)((slot->donor + k) % part->n_seats);
		struct seat *seat = &part->seats[i];

		if (!member_set_has(&slot->has, i))
			continue;
		if (!seat->peer) /* idle since it connected anew */
			seat->peer = peer_of(core, part->job->members[i].agent);
		if (!seat->peer)
			continue;
		slot->donor = i;
		seat_owe(core, seat, OWE_DONATE_REQ, slot->round);
		return;
	}
}

/* S4: has everybody spoken, and what follows? */
static void slot_check_complete(struct srv_core *core, struct slot *slot)
{
	struct part *part = slot->part;

	if (slot->state != SLOT_OPEN || slot->n_spoken < part->n_seats)
		return;
	if (slot->n_has == 0) {
		slot_set_state(core, slot, SLOT_SUMMING);
		sums_queue(core, slot);
	} else if (slot->n_has < part->n_seats) {
		core->stats.donations++;
		slot_set_state(core, slot, SLOT_DONATING);
		slot_ask_donor(core, slot);
	}
}

static void slot_contributed(struct slot *slot, unsigned member)
{
	if (member_set_has(&slot->contributed, member))
		return;
	member_set_add(&slot->contributed, member);
	slot->n_contributed++;
	if (!member_set_has(&slot->has, member))
		slot->n_spoken++;
}

/* Member has the result of slot->round. */
static void slot_has(struct srv_core *core, struct slot *slot, struct seat *seat)
{
	struct part *part = slot->part;

	offered_clear(slot, seat);
	if (member_set_has(&slot->has, seat->member))
		return;
	member_set_add(&slot->has, seat->member);
	slot->n_has++;
	if (!member_set_has(&slot->contributed, seat->member))
		slot->n_spoken++;
	if (slot->state != SLOT_OPEN)
		return;
	if (slot->n_has == 1) {
		/* Somebody has the result, so it must not be summed again: the contributions' bytes
		 * are needed no more, only who made them. */
		sums_discard(core, slot);
		for (unsigned i = 0; i < part->n_seats; i++) {
			struct seat *s = &part->seats[i];

			if (s->state != SEAT_IDLE && s->offer.round == slot->round) {
				reads_forget(core, s);
				slot_contributed(slot, i);
			}
		}
	}
	slot_check_complete(core, slot);
}

/* How many staged contributions follow those already added without a gap? */
static void count_in_order(struct slot *slot)
{
	struct seat *s = TAILQ_FIRST(&slot->staged);

	for (unsigned i = 0; s && i < slot->n_in_order; i++)
		s = TAILQ_NEXT(s, staged);
	for (; s && s->member == slot->n_folded + slot->n_in_order; s = TAILQ_NEXT(s, staged))
		slot->n_in_order++;
}

/* The contribution that is to be added next is early no more. */
static void call_next(struct srv_core *core, struct slot *slot)
{
	unsigned next = slot->n_folded + slot->n_in_order;
	struct seat *seat = next < slot->part->n_seats ? &slot->part->seats[next] : NULL;

	if (seat && seat->is_parked && seat->offer.round == slot->round)
		reads_unpark(core, seat);
}

void seat_staged(struct srv_core *core, struct seat *seat)
{
	struct slot *slot = part_slot(seat->part, seat->offer.round);
	struct seat *after = NULL;

	assert(slot->round == seat->offer.round && slot->state == SLOT_OPEN && slot->n_has == 0);
	seat_set_state(seat, SEAT_STAGED);
	if (part_is_ordered(seat->part)) {
		TAILQ_FOREACH_REVERSE(after, &slot->staged, seat_list, staged)
		if (after->member < seat->member)
			break;
	}
	if (after)
		TAILQ_INSERT_AFTER(&slot->staged, after, seat, staged);
	else if (part_is_ordered(seat->part))
		TAILQ_INSERT_HEAD(&slot->staged, seat, staged);
	else
		TAILQ_INSERT_TAIL(&slot->staged, seat, staged);
	slot->n_staged++;
	if (part_is_ordered(seat->part)) {
		count_in_order(slot);
		call_next(core, slot);
	}
	slot->workers += seat->offer.workers;
	member_set_add(&slot->contributors, seat->member);
	slot_contributed(slot, seat->member);
	core->stats.contributions++;
	if (!slot->is_holding) {
		slot->is_holding = true;
		TAILQ_INSERT_TAIL(&core->holding, slot, holding);
	}
	/* Starved: whoever waits for memory found nothing to add up then, but now there is. */
	if ((slot->n_staged > 2 * REDUCE_MAX_SRC || core->is_starved) && sums_can_fold(slot))
		sums_queue(core, slot);
	slot_check_complete(core, slot);
}

/* ---- messages ---- */

static void peer_error(
	struct srv_core *core, struct peer *peer, const struct wire_msg *m, const char *what)
{
	core->stats.protocol_errors++;
	log_rated(LOG_WARN,
		"peer broke the protocol, closing it: %s agent=%u type=%s job=%u tensor=%u part=%u "
		"round=%llu member=%u",
		what, peer->conn->peer_id, wire_type_name(m->type), m->job, m->tensor, m->part,
		(unsigned long long)m->round, m->member);
	xport_close(peer->conn, what);
}

/* A6: everybody must have been delivered the same bytes. */
static bool echo_agrees(
	struct srv_core *core, struct slot *slot, const struct seat *seat, const struct wire_msg *m)
{
	struct part *part = slot->part;
	const struct slot *prev = part_slot(part, m->round - 1);
	uint32_t want = m->contrib.crc_prev;
	uint32_t host;

	if (m->round == 1)
		return true;
	if (prev->state == SLOT_DONE && prev->round == m->round - 1)
		want = prev->crc;
	else if (slot->crc_prev_known)
		want = slot->crc_prev;
	slot->crc_prev_known = true;
	slot->crc_prev = want;
	if (want == m->contrib.crc_prev)
		return true;
	host = part->job->members[seat->member].agent;
	srv_job_fail(core, part->job, BPS_EDIVERGED,
		"tensor %u partition %u: member %u (agent %u) holds another result of round %llu "
		"than the "
		"others (crc %08x against %08x); memory corruption or a bug, restart from a "
		"checkpoint",
		part->tensor, part->index, seat->member, host, (unsigned long long)m->round - 1,
		m->contrib.crc_prev, want);
	return false;
}

static bool contrib_is_valid(
	const struct part *part, const struct seat *seat, const struct wire_msg *m)
{
	return m->len == part->bytes && m->contrib.op < OP_COUNT && m->contrib.codec == 0 &&
	       m->contrib.group == 0 &&
	       m->contrib.workers == part->job->members[seat->member].workers &&
	       (m->len <= WIRE_INLINE_MAX) == !!(m->flags & WIRE_INLINE);
}

static bool op_agrees(struct srv_core *core, struct slot *slot, const struct wire_msg *m)
{
	if (!slot->op_known) {
		slot->op_known = true;
		slot->op = m->contrib.op;
	}
	if (slot->op == m->contrib.op)
		return true;
	srv_job_fail(core, slot->part->job, BPS_EMISMATCH,
		"round %llu of tensor %u: member %u (agent %u) submitted op %s, others %s",
		(unsigned long long)m->round, m->tensor, m->member,
		slot->part->job->members[m->member].agent, op_name(m->contrib.op),
		op_name(slot->op));
	return false;
}

static void contrib_inline(
	struct srv_core *core, struct slot *slot, struct seat *seat, const struct wire_msg *m)
{
	bool is_early;

	if (crc32c(0, m->payload, m->len) != m->crc) {
		core->stats.crc_errors++;
		seat->bad_crc = m->crc;
		seat_owe(core, seat, OWE_BAD_CRC, m->round);
		return;
	}
	seat->buf = staging_get(core, slot, seat->member, m->len, &is_early);
	if (!seat->buf) {
		seat_owe(core, seat, OWE_AGAIN, m->round);
		return;
	}
	memcpy(seat->buf->mem, m->payload, m->len);
	seat_staged(core, seat);
}

static void on_contrib(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	struct part *part = seat->part;
	enum place here = slot_place(part, m->round);
	enum place before = m->round > 1 ? slot_place(part, m->round - 1) : PLACE_OVER;
	struct slot *slot;

	if (!contrib_is_valid(part, seat, m)) {
		peer_error(core, seat->peer, m, "contribution does not fit its partition");
		return;
	}
	if (here == PLACE_OVER) {
		core->stats.duplicates++;
		return;
	}
	if (here == PLACE_AHEAD || before == PLACE_AHEAD || !can_have(part, seat, m->round - 1)) {
		peer_error(core, seat->peer, m, "round out of order");
		return;
	}
	slot = slot_for(core, part, m->round);
	if (before == PLACE_HERE)
		slot_has(core, slot_for(core, part, m->round - 1), seat);
	if (member_set_has(&slot->contributed, seat->member)) {
		core->stats.duplicates++;
		if (slot->state == SLOT_DONE)
			seat_owe(core, seat, OWE_RESULT, m->round);
		return;
	}
	if (!op_agrees(core, slot, m) || !echo_agrees(core, slot, seat, m))
		return;
	if (slot->n_has || slot->state != SLOT_OPEN) {
		/* It will be donated, or is there already: the bytes are not needed. */
		slot_contributed(slot, seat->member);
		if (slot->state == SLOT_DONE)
			seat_owe(core, seat, OWE_RESULT, m->round);
		slot_check_complete(core, slot);
		return;
	}
	assert(seat->state == SEAT_IDLE || seat->offer.round == m->round);
	if (seat->state != SEAT_IDLE)
		core->stats.duplicates++;
	if (seat->state == SEAT_WANT_READ)
		reads_forget(core, seat); /* the newer offer may come from a newer segment */
	seat->offer = (struct offer){.round = m->round,
		.offset = m->offset,
		.crc = m->crc,
		.workers = m->contrib.workers,
		.segment = m->segment,
		.priority = m->priority};
	if (seat->state == SEAT_READING)
		return;
	if (m->flags & WIRE_INLINE)
		contrib_inline(core, slot, seat, m);
	else
		reads_want(core, seat);
}

static void on_have(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	enum place here = slot_place(seat->part, m->round);

	if (here == PLACE_AHEAD || !can_have(seat->part, seat, m->round)) {
		peer_error(core, seat->peer, m, "round out of order");
		return;
	}
	if (here == PLACE_HERE)
		slot_has(core, slot_for(core, seat->part, m->round), seat);
	seat_owe(core, seat, OWE_HAVE_OK, m->round);
}

static void on_donate(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	struct slot *slot = part_slot(seat->part, m->round);

	if (slot->state != SLOT_DONATING || slot->round != m->round ||
		!member_set_has(&slot->has, seat->member) || slot->fetch) {
		core->stats.duplicates++;
		return;
	}
	if (m->len != seat->part->bytes || m->result.n_members != seat->part->n_seats ||
		m->result.workers == 0) {
		peer_error(core, seat->peer, m, "donation does not fit its partition");
		return;
	}
	slot->donor = seat->member;
	slot->contributors = m->result.contributors;
	slot->workers = m->result.workers;
	slot->donation = (struct offer){.round = m->round,
		.offset = m->offset,
		.crc = m->crc,
		.workers = m->result.workers,
		.segment = m->segment};
	if (!(m->flags & WIRE_INLINE)) {
		slot->wants_fetch = true;
		reads_pump(core);
		return;
	}
	if (crc32c(0, m->payload, m->len) != m->crc || !slot_result(core, slot)) {
		core->stats.crc_errors++;
		return; /* the retry timer asks again */
	}
	memcpy(slot->result->mem, m->payload, m->len);
	slot->crc = m->crc;
	slot_done(core, slot);
}

static void on_got(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	struct slot *slot = part_slot(seat->part, m->round);

	(void)core;
	if (slot->state != SLOT_EMPTY && slot->round == m->round)
		offered_clear(slot, seat);
}

/* Does the message say that its sender will not read that result (any more)? */
static bool says_got(const struct wire_msg *m, const struct limbo *l)
{
	if (l->job != m->job || l->tensor != m->tensor || l->part != m->part)
		return false;
	if (m->type == WIRE_GOT)
		return l->pgen == m->pgen && l->round == m->round;
	return l->pgen <= m->pgen && ((m->type == WIRE_HAVE && l->round <= m->round) ||
					     (m->type == WIRE_CONTRIB && l->round < m->round));
}

static void limbo_heard(struct srv_core *core, struct peer *peer, const struct wire_msg *m)
{
	struct limbo *l, *next;

	for (l = TAILQ_FIRST(&core->limbo); l; l = next) {
		next = TAILQ_NEXT(l, link);
		if (says_got(m, l))
			limbo_release(core, l, peer);
	}
}

/* A partition that is not here, or not yet under that pgen: the plan may be on its way to us. */
static void reply_again(struct peer *peer, const struct wire_msg *m)
{
	struct wire_msg r = {.type = WIRE_AGAIN,
		.pgen = m->pgen,
		.round = m->round,
		.job = m->job,
		.tensor = m->tensor,
		.part = m->part,
		.member = m->member,
		.segment = WIRE_NO_SEGMENT};

	if (m->type == WIRE_CONTRIB || m->type == WIRE_HAVE)
		xport_send(peer->conn, &r); /* refused: the agent's own timer sends it again */
}

static struct seat *seat_of(
	struct srv_core *core, struct peer *peer, struct part *part, const struct wire_msg *m)
{
	struct seat *seat;

	if (m->member >= part->n_seats ||
		part->job->members[m->member].agent != peer->conn->peer_id) {
		peer_error(core, peer, m, "not a member of that job");
		return NULL;
	}
	seat = &part->seats[m->member];
	if (!seat->peer)
		seat->peer = peer;
	if (seat->peer != peer) {
		peer_error(core, peer, m, "a second connection of the same agent");
		return NULL;
	}
	return seat;
}

static void peer_message(struct srv_core *core, struct peer *peer, const struct wire_msg *m)
{
	struct job *job = srv_job_find(core, m->job);
	struct part *part = job ? srv_part_find(job, m->tensor, m->part) : NULL;
	struct seat *seat;

	if (!part || m->pgen > part->pgen) {
		core->stats.fenced_new++;
		reply_again(peer, m);
		return;
	}
	if (m->pgen < part->pgen) {
		core->stats.fenced_old++;
		return;
	}
	seat = seat_of(core, peer, part, m);
	if (!seat || job->has_failed)
		return;
	switch (m->type) {
	case WIRE_CONTRIB:
		on_contrib(core, seat, m);
		break;
	case WIRE_HAVE:
		on_have(core, seat, m);
		break;
	case WIRE_DONATE:
		on_donate(core, seat, m);
		break;
	case WIRE_GOT:
		on_got(core, seat, m);
		break;
	default:
		peer_error(core, peer, m, "not a message for a server");
	}
}

void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct srv_core *core = ctx;
	struct peer *peer = c->user;

	if (!peer)
		return;
	limbo_heard(core, peer, m);
	peer_message(core, peer, m);
	reads_pump(core); /* it may have set staging free */
}

static void part_peer_down(struct srv_core *core, struct part *part, struct peer *peer)
{
	for (unsigned i = 0; i < part->n_seats; i++) {
		struct seat *seat = &part->seats[i];

		if (seat->peer != peer)
			continue;
		seat_forgive(seat);
		if (seat->state == SEAT_WANT_READ)
			reads_forget(core, seat);
		for (unsigned k = 0; k < 2; k++)
			offered_clear(
				&part->slots[k], seat); /* closing the endpoint ended its reads */
		seat->peer = NULL;
	}
	for (unsigned k = 0; k < 2; k++) {
		struct slot *slot = &part->slots[k];

		if (slot->state == SLOT_DONATING && !slot->fetch && !part->seats[slot->donor].peer)
			slot_ask_donor(core, slot);
	}
}

void rounds_peer_down(struct srv_core *core, struct peer *peer)
{
	struct limbo *l, *next;
	struct job *job;

	TAILQ_FOREACH(job, &core->jobs, link)
	for (uint32_t t = 0; t < job->n_tensors; t++)
		for (uint32_t i = 0; i < job->tensors[t].n_parts; i++)
			if (job->tensors[t].parts && job->tensors[t].parts[i])
				part_peer_down(core, job->tensors[t].parts[i], peer);
	for (l = TAILQ_FIRST(&core->limbo); l; l = next) {
		next = TAILQ_NEXT(l, link);
		limbo_release(core, l, peer);
	}
}
