/* Slots and seats: their states, what is owed to whom, and who may still read a result (S4-S6, B3).
 * Nothing here waits: what cannot be sent now stays owed and is sent when the transport is writable. */
#include "bps-server/core/core_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/data/crc32c.h"
#include "common/base/log.h"

#define SUM_MEAN_OF 8 /* sums, roughly */

struct slot *part_slot(struct srv_part *part, uint64_t round)
{
	return &part->slots[round & 1];
}

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
	if (slot->is_cutting)
		TAILQ_REMOVE(&core->cutting, slot, cutting);
	slot->is_cutting = false;
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

/* Results take their time to leave: the most urgent one first. */
static void owe_offer(struct seat *seat)
{
	struct srv_peer *peer = seat->peer;

	if (heap_has(&seat->result))
		return;
	seat->result.key = heap_key(seat->offer.priority, peer->result_seq++);
	heap_push(&peer->results, &seat->result);
}

void seat_owe(struct seat *seat, enum owe what, uint64_t round)
{
	struct srv_peer *peer = seat->peer;

	if (!peer)
		return; /* it asks again on its next connection */
	if (what == OWE_HAVE_OK)
		seat->have_round = round;
	if (what == OWE_BAD_CRC || what == OWE_AGAIN)
		seat->retry_round = round;
	if (what == OWE_RESULT && seat->part->bytes > WIRE_INLINE_MAX) {
		owe_offer(seat);
	} else {
		if (!seat->owes)
			TAILQ_INSERT_TAIL(&peer->owing, seat, owing);
		seat->owes |= (uint8_t)what;
	}
	peer_send_owed(peer);
}

static void seat_drop_owed(struct seat *seat)
{
	if (seat->owes)
		TAILQ_REMOVE(&seat->peer->owing, seat, owing);
	seat->owes = 0;
	if (heap_has(&seat->result))
		heap_remove(&seat->peer->results, &seat->result);
}

static struct wire_msg message_to(const struct seat *seat, enum wire_type type, uint64_t round)
{
	const struct srv_part *part = seat->part;

	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = part->pgen,
		.round = round,
		.job = part->job->id,
		.tensor = part->tensor,
		.part = part->index,
		.member = seat->member,
		.segment = WIRE_NO_SEGMENT};
}

void slot_unoffer(struct slot *slot, struct seat *seat)
{
	uint8_t bit = (uint8_t)(1u << (slot - slot->part->slots));

	if (seat->offered & bit) {
		seat->offered &= (uint8_t)~bit;
		slot->n_offered--;
	}
}

/* Everybody was on this host when it was summed, now somebody is not. */
static void take_crc(struct slot *slot)
{
	slot->crc = crc32c(0, slot->result->mem, slot->part->bytes);
	slot->has_crc = true;
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
	if (FAILPOINT(SERVER_RESULT_BEFORE_SEND))
		return 0;
	if (!slot->has_crc && !seat->peer->conn->is_same_host)
		take_crc(slot);
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
	rc = xport_send_eager(seat->peer->conn, &m, true);
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
			if (FAILPOINT(SERVER_DONATION_ASK))
				return 0;
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

static struct seat *seat_of_result(struct heap_node *result)
{
	return (struct seat *)((char *)result - offsetof(struct seat, result));
}

void peer_send_owed(struct srv_peer *peer)
{
	struct heap_node *result;
	struct seat *seat;

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
	while (!peer->is_stuck && !peer->is_full && (result = heap_min(&peer->results))) {
		peer->is_full = send_result(seat_of_result(result)) == -EAGAIN;
		if (!peer->is_full)
			heap_remove(&peer->results, result);
	}
}

/* ---- results that may still be read ---- */

/* peer reads it no more; nobody left: the buffer is free. */
static void retired_release(
	struct srv_core *core, struct retired_result *l, const struct srv_peer *peer)
{
	for (unsigned i = 0; i < l->n_peers; i++)
		if (l->peers[i] == peer)
			l->peers[i--] = l->peers[--l->n_peers];
	if (l->n_peers)
		return;
	TAILQ_REMOVE(&core->retired, l, link);
	pool_put(core->sums, l->buf);
	core->stats.retired--;
	free(l);
}

/* Results offered from this slot may still be read: whoever was offered them keeps the buffer
 * alive. */
static void retired_add(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;
	struct retired_result *l = malloc(sizeof(*l) + slot->n_offered * sizeof(l->peers[0]));
	unsigned bit = (unsigned)(slot - part->slots);

	if (!l) {
		/* Without the note nobody may ever reuse the buffer: leaking it is the safe
		 * choice. */
		log_error("out of memory: %u bytes of sums memory are lost", part->bytes);
		slot->result = NULL;
		return;
	}
	*l = (struct retired_result){.buf = slot->result,
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
		slot_unoffer(slot, seat);
	}
	slot->result = NULL;
	TAILQ_INSERT_TAIL(&core->retired, l, link);
	core->stats.retired++;
	retired_release(core, l, NULL);
}

/* Does the message say that its sender will not read that result (any more)? */
static bool is_acknowledged_by(const struct wire_msg *m, const struct retired_result *l)
{
	if (l->job != m->job || l->tensor != m->tensor || l->part != m->part)
		return false;
	if (m->type == WIRE_GOT)
		return l->pgen == m->pgen && l->round == m->round;
	return l->pgen <= m->pgen && ((m->type == WIRE_HAVE && l->round <= m->round) ||
					     (m->type == WIRE_CONTRIB && l->round < m->round));
}

void retired_acknowledged(struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m)
{
	struct retired_result *l, *next;

	for (l = TAILQ_FIRST(&core->retired); l; l = next) {
		next = TAILQ_NEXT(l, link);
		if (is_acknowledged_by(m, l))
			retired_release(core, l, peer);
	}
}

/* ---- slots ---- */

void slot_clear(struct srv_core *core, struct slot *slot)
{
	sums_discard(core, slot);
	if (slot->fetch)
		fetch_detach(slot->fetch);
	slot->fetch = NULL;
	slot->wants_fetch = false;
	if (slot->n_offered)
		retired_add(core, slot);
	if (slot->state != SLOT_EMPTY)
		slot_set_state(core, slot, SLOT_EMPTY);
	memset(&slot->contributed, 0, sizeof(slot->contributed));
	memset(&slot->has, 0, sizeof(slot->has));
	memset(&slot->contributors, 0, sizeof(slot->contributors));
	slot->n_contributed = slot->n_has = slot->n_spoken = 0;
	slot->workers = 0;
	slot->op_known = slot->crc_prev_known = false;
	slot->arrivals = (struct arrivals_round){0};
	slot->round = 0;
}

void seat_clear(struct srv_core *core, struct seat *seat)
{
	seat_drop_owed(seat);
	reads_forget(core, seat);
	assert(seat->state == SEAT_IDLE);
	seat->offered = 0;
	seat->peer = NULL;
	seat->has_spoken = false;
	seat->has_round = 0;
}

void *slot_result(struct srv_core *core, struct slot *slot)
{
	if (!slot->result) /* the last one was retired */
		slot->result = pool_get(core->sums, slot->part->bytes);
	if (!slot->result)
		srv_job_fail(core, slot->part->job, BPS_EQUOTA,
			"server %u: memory for sums is exhausted by results that are still being "
			"read; raise sums-memory",
			core->cfg.server_id);
	return slot->result ? slot->result->mem : NULL;
}

void slot_swap_spent(struct slot *slot)
{
	struct srv_part *part = slot->part;
	struct slot *other = &part->slots[slot == part->slots];
	struct buf *spent = other->result;

	if (other->n_has != part->n_live || !spent || !slot->result)
		return;
	assert(!other->n_offered);
	other->result = slot->result;
	slot->result = spent;
}

static bool is_same_host(const struct srv_peer *peer)
{
	return peer && peer->conn->is_same_host;
}

void slot_done(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

	if (slot->state == SLOT_SUMMING)
		core->stats.sum_ns += (core->now_ns - slot->complete_ns) / SUM_MEAN_OF -
				      core->stats.sum_ns / SUM_MEAN_OF;
	FAILPOINT(SERVER_RESULT_DONE);
	slot_set_state(core, slot, SLOT_DONE);
	core->stats.rounds++;
	for (unsigned i = 0; i < part->n_seats; i++) {
		if (!member_set_has(&slot->contributed, i) || member_set_has(&slot->has, i))
			continue;
		if (part->bytes > WIRE_INLINE_MAX && !is_same_host(part->seats[i].peer))
			core->stats.offered_bytes += part->bytes;
		seat_owe(&part->seats[i], OWE_RESULT, slot->round);
	}
}

static struct srv_peer *peer_of(struct srv_core *core, uint32_t agent)
{
	struct srv_peer *peer;

	TAILQ_FOREACH (peer, &core->peers, link)
		if (peer->conn->peer_id == agent)
			return peer;
	return NULL;
}

void slot_ask_donor(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

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
		seat_owe(seat, OWE_DONATE_REQ, slot->round);
		return;
	}
}

/* S4: everybody; J7: once somebody has the result there is no other, and nobody is waited for. */
static bool has_spoken_enough(struct srv_core *core, struct slot *slot)
{
	const struct srv_part *part = slot->part;

	if (!part->job->backup)
		return slot->n_spoken == part->n_live;
	return slot->n_has || backup_is_complete(core, slot);
}

void slot_check_complete(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;

	if (slot->state != SLOT_OPEN || !has_spoken_enough(core, slot))
		return;
	if (slot->n_has == 0) {
		FAILPOINT(SERVER_SUM_START);
		slot_set_state(core, slot, SLOT_SUMMING);
		slot->complete_ns = core->now_ns;
		if (slot->arrivals.n == part->n_live)
			histogram_add(&core->stats.wait,
				slot->arrivals.last_ns - slot->arrivals.first_ns);
		arrivals_complete(part->job->arrivals, &slot->arrivals, slot->round,
			(uint64_t)part->n_live * part->bytes);
		sums_queue(core, slot);
	} else if (slot->n_has < slot->n_spoken) {
		core->stats.donations++;
		slot_set_state(core, slot, SLOT_DONATING);
		slot_ask_donor(core, slot);
	}
}

void slot_add_contributed(struct slot *slot, unsigned member)
{
	if (member_set_has(&slot->contributed, member))
		return;
	member_set_add(&slot->contributed, member);
	slot->n_contributed++;
	if (!member_set_has(&slot->has, member))
		slot->n_spoken++;
}

void slot_add_has(struct srv_core *core, struct slot *slot, struct seat *seat)
{
	struct srv_part *part = slot->part;

	slot_unoffer(slot, seat);
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
				slot_add_contributed(slot, i);
			}
		}
	}
	slot_check_complete(core, slot);
}

uint16_t part_nth_member(const struct srv_part *part, unsigned nth)
{
	uint16_t i = 0;

	if (part->n_live == part->n_seats)
		return nth < part->n_seats ? (uint16_t)nth : part->n_seats;
	for (; i < part->n_seats; i++)
		if (member_set_has(&part->live, i) && nth-- == 0)
			break;
	return i;
}

/* How many staged contributions follow those already added without a gap? */
static void count_in_order(struct slot *slot)
{
	struct seat *s = TAILQ_FIRST(&slot->staged);

	for (unsigned i = 0; s && i < slot->n_in_order; i++)
		s = TAILQ_NEXT(s, staged);
	for (; s && s->member == part_nth_member(slot->part, slot->n_folded + slot->n_in_order);
		s = TAILQ_NEXT(s, staged))
		slot->n_in_order++;
}

/* The contribution that is to be added next is early no more. */
static void call_next(struct srv_core *core, struct slot *slot)
{
	unsigned next = part_nth_member(slot->part, slot->n_folded + slot->n_in_order);
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
		TAILQ_FOREACH_REVERSE (after, &slot->staged, seat_list, staged)
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
	slot_add_contributed(slot, seat->member);
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

static void part_peer_down(struct srv_core *core, struct srv_part *part, struct srv_peer *peer)
{
	for (unsigned i = 0; i < part->n_seats; i++) {
		struct seat *seat = &part->seats[i];

		if (seat->peer != peer)
			continue;
		seat_drop_owed(seat);
		if (seat->state == SEAT_WANT_READ)
			reads_forget(core, seat);
		for (unsigned k = 0; k < 2; k++)
			slot_unoffer(
				&part->slots[k], seat); /* closing the endpoint ended its reads */
		seat->peer = NULL;
	}
	for (unsigned k = 0; k < 2; k++) {
		struct slot *slot = &part->slots[k];

		if (slot->state == SLOT_DONATING && !slot->fetch && !part->seats[slot->donor].peer)
			slot_ask_donor(core, slot);
	}
}

void slots_peer_down(struct srv_core *core, struct srv_peer *peer)
{
	struct retired_result *l, *next;
	struct srv_job *job;

	TAILQ_FOREACH (job, &core->jobs, link)
		for (uint32_t t = 0; t < job->n_tensors; t++)
			for (uint32_t i = 0; i < job->tensors[t].n_parts; i++)
				if (job->tensors[t].parts && job->tensors[t].parts[i])
					part_peer_down(core, job->tensors[t].parts[i], peer);
	for (l = TAILQ_FIRST(&core->retired); l; l = next) {
		next = TAILQ_NEXT(l, link);
		retired_release(core, l, peer);
	}
}
