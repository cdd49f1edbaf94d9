/* Partitions of values: deltas, snapshots, answers, and the beginning under a new pgen. Messages
 * come from rounds.c. Reads and the donation of the newest version use the seats and the first slot
 * of the partition. All functions run on the data thread that owns the core. */
#include "bps-server/core/values.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-server/core/completion.h"
#include "bps-server/core/job.h"
#include "bps-server/core/owed.h"
#include "bps-server/core/reads.h"
#include "bps-server/core/retired.h"
#include "bps-server/core/slots.h"
#include "common/base/failpoint.h"
#include "common/data/crc32c.h"

static struct value_member *value_member_of(const struct seat *seat)
{
	return &seat->part->value->members[seat->member];
}

static struct slot *value_slot(const struct srv_value *v)
{
	return &v->part->slots[0];
}

static bool value_is_live(const struct srv_value *v)
{
	return v->part->slots[0].state == SLOT_DONE;
}

static void value_unqueue_work(struct srv_value *v)
{
	if (v->is_queued)
		TAILQ_REMOVE(&v->core->values, v, link);
	v->is_queued = false;
}

int value_new(struct srv_core *core, struct srv_part *part)
{
	struct srv_value *v = calloc(1, sizeof(*v) + part->n_seats * sizeof(v->members[0]));

	if (!v)
		return -ENOMEM;
	v->core = core;
	v->part = part;
	TAILQ_INIT(&v->staged);
	part->value = v;
	for (unsigned i = 0; i < 2; i++) {
		v->snapshots[i].buf = pool_get(core->sums, part->bytes);
		if (!v->snapshots[i].buf)
			return BPS_EQUOTA;
	}
	return 0;
}

/* ---- answers ---- */

/* Return the last round whose deltas of all members are in the value. */
static uint64_t value_round_of_slowest(const struct srv_value *v)
{
	uint64_t least = UINT64_MAX;

	for (unsigned i = 0; i < v->part->n_seats; i++)
		if (member_set_has(&v->part->live, i) && v->members[i].applied < least)
			least = v->members[i].applied;
	return least;
}

/* Return whether the member's answer need not wait for other members. In the first round the value
 * is the sum of all contributions, whatever the bound is. */
static bool member_is_owed(const struct srv_value *v, const struct value_member *m, uint64_t least)
{
	uint64_t stale = v->part->job->tensors[v->part->tensor].shape.stale, need = 1;

	if (!m->asked || m->asked > m->applied)
		return false;
	if (stale != STALE_UNBOUNDED && m->asked > stale)
		need = m->asked - stale;
	return least >= need;
}

/* Request a snapshot if a member is owed its answer. */
static void value_check_owed(struct srv_value *v)
{
	uint64_t least = value_round_of_slowest(v);

	for (unsigned i = 0; !v->wants_snapshot && i < v->part->n_seats; i++)
		v->wants_snapshot = member_is_owed(v, &v->members[i], least);
	if (v->wants_snapshot)
		value_queue_work(v);
}

/* Return a snapshot that may be written, or NULL. */
static struct value_snapshot *value_free_snapshot(struct srv_value *v)
{
	for (unsigned i = 0; i < 2; i++) {
		struct value_snapshot *s = &v->snapshots[i];

		if (s->n_holders)
			continue;
		if (!s->buf)
			s->buf = pool_get(v->core->sums, v->part->bytes);
		if (!s->buf)
			srv_job_fail(v->core, v->part->job, BPS_EQUOTA,
				"server %u: memory for sums is exhausted by results that are "
				"still being read; raise the server's sums-memory",
				v->core->cfg.server_id);
		return s->buf ? s : NULL;
	}
	return NULL;
}

/* Copy the value, and queue the copy for all members that are owed their answers. */
static size_t value_take_snapshot(struct srv_value *v, struct value_snapshot *s)
{
	struct srv_part *part = v->part;
	uint64_t least = value_round_of_slowest(v);

	FAILPOINT(SERVER_RESULT_DONE);
	v->wants_snapshot = false;
	memcpy(s->buf->mem, value_slot(v)->result->mem, part->bytes);
	s->crc = crc32c(0, s->buf->mem, part->bytes);
	s->version = v->version;
	memset(&s->odd, 0, sizeof(s->odd));
	for (unsigned i = 0; i < part->n_seats; i++)
		if (v->members[i].applied & 1)
			member_set_add(&s->odd, i);
	v->core->stats.rounds++;
	for (unsigned i = 0; i < part->n_seats; i++) {
		struct value_member *m = &v->members[i];

		if (!member_is_owed(v, m, least))
			continue;
		member_release_answer(v, m);
		m->snapshot = (uint8_t)(s - v->snapshots + 1);
		m->answer_round = m->asked;
		m->asked = 0;
		s->n_holders++;
		seat_queue_message(&part->seats[i], OWE_RESULT, m->answer_round);
	}
	return part->bytes;
}

void value_take_got(struct seat *seat, uint64_t round)
{
	struct value_member *m = value_member_of(seat);

	if (m->snapshot && m->answer_round == round)
		member_release_answer(seat->part->value, m);
}

static void value_peer_down(struct srv_part *part, const struct srv_peer *peer)
{
	for (unsigned i = 0; part->value && i < part->n_seats; i++)
		if (part->seats[i].peer == peer) {
			member_release_answer(part->value, &part->value->members[i]);
			part->value->members[i].asked = 0;
		}
}

void values_peer_down(struct srv_core *core, const struct srv_peer *peer)
{
	struct srv_job *job;

	TAILQ_FOREACH (job, &core->jobs, link)
		for (uint32_t t = 0; t < job->n_tensors; t++)
			for (uint32_t i = 0; i < job->tensors[t].n_parts; i++)
				if (job->tensors[t].parts && job->tensors[t].parts[i])
					value_peer_down(job->tensors[t].parts[i], peer);
}

/* ---- deltas ---- */

/* Count the rounds whose last delta has just been added. With a staleness, members are in different
 * rounds, so no times of arrivals are recorded. */
static void value_count_rounds(struct srv_value *v)
{
	struct srv_part *part = v->part;
	uint64_t round = value_round_of_slowest(v), n = round - v->counted;

	if (round <= v->counted)
		return;
	arrivals_count_rounds(part->job->arrivals, n, round, n * part->n_live * part->bytes);
	v->counted = round;
}

static void seat_count_delta(struct seat *seat)
{
	struct srv_value *v = seat->part->value;
	struct value_member *m = value_member_of(seat);

	assert(seat->offer.round == m->applied + 1);
	m->applied = seat->offer.round;
	/* a member without a connection asks again when it has reconnected */
	m->asked = seat->peer ? m->applied : 0;
	v->version++;
	value_count_rounds(v);
	value_check_owed(v);
}

/* If members hold both snapshots while one waits for its answer, offer their answers to them again.
 * A member that has read its answer responds with GOT, because the first GOT may have been lost. */
static void value_repeat_offers(struct srv_value *v)
{
	for (unsigned i = 0; v->wants_snapshot && v->snapshots[0].n_holders &&
			     v->snapshots[1].n_holders && i < v->part->n_seats;
		i++)
		if (v->members[i].is_offered)
			seat_queue_message(
				&v->part->seats[i], OWE_RESULT, v->members[i].answer_round);
}

enum value_verdict value_judge_delta(struct seat *seat, uint64_t round)
{
	struct srv_value *v = seat->part->value;
	struct value_member *m = value_member_of(seat);

	if (!value_is_live(v))
		return VALUE_AGAIN;
	if (round > m->applied + 1)
		return VALUE_INVALID;
	/* the member has the answers to all rounds before this one */
	if (m->snapshot && m->answer_round < round)
		member_release_answer(v, m);
	if (round == m->applied + 1)
		return VALUE_TAKE;
	if (round == m->applied && m->snapshot) {
		seat_queue_message(seat, OWE_RESULT, round);
	} else if (round == m->applied) {
		m->asked = round;
		value_check_owed(v);
		value_repeat_offers(v);
	}
	return VALUE_IGNORE;
}

void value_add_nothing(struct seat *seat)
{
	seat->part->value->core->stats.abstentions++;
	seat_count_delta(seat);
}

void value_stage_delta(struct seat *seat)
{
	struct srv_value *v = seat->part->value;

	seat_set_state(seat, SEAT_STAGED);
	TAILQ_INSERT_TAIL(&v->staged, seat, staged);
	v->core->stats.contributions++;
	value_queue_work(v);
}

static void value_release_staged(struct srv_value *v, struct seat *seat)
{
	TAILQ_REMOVE(&v->staged, seat, staged);
	seat_set_state(seat, SEAT_IDLE);
	xport_loan_end(&seat->loan);
	if (seat->buf)
		staging_release_buffer(v->core, seat->buf);
	seat->buf = NULL;
}

static size_t value_add_delta(struct srv_value *v, struct seat *seat)
{
	struct srv_part *part = v->part;
	const void *src = seat->buf ? seat->buf->mem : seat->loan.mem;

	reduce_fold(value_slot(v)->result->mem, &src, 1, part->n_elems, part_dtype(part), OP_SUM,
		false);
	value_release_staged(v, seat);
	seat_count_delta(seat);
	return 2 * (size_t)part->bytes;
}

size_t values_work(struct srv_core *core)
{
	struct srv_value *v = TAILQ_FIRST(&core->values);
	struct value_snapshot *s = NULL;
	struct seat *seat;

	if (!v)
		return 0;
	seat = TAILQ_FIRST(&v->staged);
	if (!seat && v->wants_snapshot)
		s = value_free_snapshot(v);
	value_unqueue_work(v);
	if (v->part->job->has_failed || (!seat && !s))
		return 0;
	value_queue_work(v); /* behind the others; it may have more to do */
	return seat ? value_add_delta(v, seat) : value_take_snapshot(v, s);
}

/* ---- a new pgen ---- */

static void value_confirm_holds(struct srv_value *v)
{
	for (unsigned i = 0; i < v->part->n_seats; i++)
		if (member_set_has(&v->part->live, i))
			seat_queue_message(&v->part->seats[i], OWE_HAVE_OK, v->members[i].answered);
}

/* Return the number of the member's deltas that are in the version `odd` of the value (V2). At most
 * one of its deltas is in there without an answer. */
static uint64_t member_count_applied(
	const struct value_member *m, const struct member_set *odd, unsigned member)
{
	return m->answered + (member_set_has(odd, member) != (m->answered & 1));
}

void value_begin_live(struct srv_core *core, struct slot *slot)
{
	struct srv_value *v = slot->part->value;

	v->version = v->held_version;
	for (unsigned i = 0; i < v->part->n_seats; i++)
		v->members[i].applied =
			member_count_applied(&v->members[i], &slot->contributors, i);
	v->counted = value_round_of_slowest(v);
	slot_set_state(core, slot, SLOT_DONE);
	value_confirm_holds(v);
}

/* All members have spoken. Request the newest version, or begin with zeros if there is none. */
static void value_end_gathering(struct srv_value *v)
{
	struct slot *slot = value_slot(v);

	if (!slot_get_result_memory(v->core, slot))
		return;
	if (!v->held_version) {
		memset(slot->result->mem, 0, v->part->bytes);
		slot_set_state(v->core, slot, SLOT_DONATING);
		value_begin_live(v->core, slot);
		return;
	}
	v->core->stats.donations++;
	slot_set_state(v->core, slot, SLOT_DONATING);
	slot_request_donation(v->core, slot);
}

bool value_take_hold(struct seat *seat, uint64_t round, uint64_t version)
{
	struct srv_value *v = seat->part->value;
	struct value_member *m = value_member_of(seat);
	struct slot *slot = value_slot(v);

	/* no correct member comes near the largest numbers, at which the next one would be 0 */
	if (!round != !version || round > UINT64_MAX / 2 || version > UINT64_MAX / 2)
		return false;
	if (value_is_live(v)) {
		if (round > m->applied)
			return false;
		if (m->answer_round <= round)
			member_release_answer(v, m);
		seat_queue_message(seat, OWE_HAVE_OK, round);
		return true;
	}
	if (m->has_spoken) {
		v->core->stats.duplicates++;
		return true;
	}
	m->has_spoken = true;
	m->answered = round;
	if (slot->state == SLOT_EMPTY)
		slot_set_state(v->core, slot, SLOT_OPEN);
	if (version > v->held_version) {
		v->held_version = version;
		memset(&slot->has, 0, sizeof(slot->has));
		member_set_add(&slot->has, seat->member);
		slot->round = round;
		slot->donor = seat->member;
	}
	if (++v->n_spoken == v->part->n_live)
		value_end_gathering(v);
	return true;
}

/* Keep a snapshot that may still be read as a retired result. */
static void value_retire_snapshot(struct srv_value *v, unsigned k)
{
	struct value_snapshot *s = &v->snapshots[k];
	struct retired_result *l = NULL;
	unsigned n_readers = 0;

	for (unsigned i = 0; i < v->part->n_seats; i++)
		n_readers += v->members[i].snapshot == k + 1 && v->members[i].is_offered;
	if (n_readers) {
		l = retired_new(v->core, v->part, s->buf, n_readers);
		s->buf = NULL;
	}
	for (unsigned i = 0; l && i < v->part->n_seats; i++)
		if (v->members[i].snapshot == k + 1 && v->members[i].is_offered)
			retired_add_reader(l, v->part->seats[i].peer, v->members[i].answer_round);
	if (l)
		retired_begin(v->core, l);
	s->n_holders = 0;
}

void value_reset_for_pgen(struct srv_part *part)
{
	struct srv_value *v = part->value;
	struct seat *seat;

	if (!v)
		return;
	while ((seat = TAILQ_FIRST(&v->staged)))
		value_release_staged(v, seat);
	for (unsigned k = 0; k < 2; k++)
		value_retire_snapshot(v, k);
	value_unqueue_work(v);
	v->wants_snapshot = false;
	v->version = v->held_version = 0;
	v->n_spoken = 0;
	memset(v->members, 0, part->n_seats * sizeof(v->members[0]));
}

void value_free(struct srv_part *part)
{
	struct srv_value *v = part->value;

	if (!v)
		return;
	for (unsigned k = 0; k < 2; k++)
		pool_put(v->core->sums, v->snapshots[k].buf);
	free(v);
	part->value = NULL;
}
