/* Applies each message to the slots and seats of its partition (S1-S3). The job's rule decides when
 * a round is complete. All functions run on the data thread that owns the core. */
#include "bps-server/core/rounds.h"

#include <assert.h>
#include <string.h>

#include "bps-server/core/completion.h"
#include "bps-server/core/job.h"
#include "bps-server/core/owed.h"
#include "bps-server/core/reads.h"
#include "bps-server/core/retired.h"
#include "bps-server/core/round_rule.h"
#include "bps-server/core/slots.h"
#include "bps-server/core/values.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/data/crc32c.h"

static void peer_close_on_protocol_error(
	struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m, const char *what)
{
	core->stats.protocol_errors++;
	log_rated(LOG_WARN,
		"closing the connection of an agent that broke the protocol: %s: agent=%u type=%s "
		"job=%u tensor=%u part=%u round=%llu member=%u",
		what, peer->conn->peer_id, wire_type_name(m->type), m->job, m->tensor, m->part,
		(unsigned long long)m->round, m->member);
	xport_close(peer->conn, what);
}

/* Check that all members have received the same result of the previous round (A6). CONTRIB carries
 * the crc of that result. If the crcs of two members differ, the job fails, and this function
 * returns false. */
static bool slot_prev_crc_is_consistent(
	struct srv_core *core, struct slot *slot, const struct seat *seat, const struct wire_msg *m)
{
	struct srv_part *part = slot->part;
	const struct slot *prev = part_slot_of_round(part, m->round - 1);
	uint32_t echo = m->contrib.crc_prev, want = echo;
	const struct srv_job_member *me, *other;

	/* The crc is 0 if the member got the result over the same-host path, which sends no crc. */
	if (m->round == 1 || !echo)
		return true;
	if (prev->state == SLOT_DONE && prev->round == m->round - 1)
		want = prev->crc;
	else if (slot->crc_prev_known)
		want = slot->crc_prev;
	if (!want)
		want = echo;
	if (!slot->crc_prev_known)
		slot->crc_prev_from = seat->member;
	slot->crc_prev_known = true;
	slot->crc_prev = want;
	if (want == echo)
		return true;
	me = &part->job->members[seat->member];
	other = &part->job->members[slot->crc_prev_from];
	srv_job_fail(core, part->job, BPS_EDIVERGED,
		"tensor %u partition %u: member %u (agent %u, host %s) has a result of round "
		"%llu that differs from %s%s (crc %08x against %08x): memory is corrupt or the "
		"program has a bug, so restart the job from a checkpoint",
		part->tensor, part->index, seat->member, me->agent, me->host,
		(unsigned long long)m->round - 1,
		me == other ? "what was summed" : "the one on host ",
		me == other ? "" : other->host, echo, want);
	return false;
}

static bool contrib_is_valid(
	const struct srv_part *part, const struct seat *seat, const struct wire_msg *m)
{
	/* the decoder has checked that a contribution of no worker is inline and has no bytes */
	return op_is_valid_for_dtype(m->contrib.op, part_dtype(part)) &&
	       m->contrib.workers <= part->job->members[seat->member].workers &&
	       (!m->contrib.workers ||
		       (m->len == part->bytes &&
			       (m->len <= WIRE_INLINE_MAX) == !!(m->flags & WIRE_INLINE)));
}

static bool slot_op_is_consistent(
	struct srv_core *core, struct slot *slot, const struct wire_msg *m)
{
	if (!slot->op_known) {
		slot->op_known = true;
		slot->op = m->contrib.op;
	}
	if (slot->op == m->contrib.op)
		return true;
	srv_job_fail(core, slot->part->job, BPS_EMISMATCH,
		"round %llu of tensor %u: member %u (agent %u) submitted operation %s, but others "
		"submitted %s",
		(unsigned long long)m->round, m->tensor, m->member,
		slot->part->job->members[m->member].agent, op_name(m->contrib.op),
		op_name(slot->op));
	return false;
}

static void contrib_inline(
	struct srv_core *core, struct slot *slot, struct seat *seat, const struct wire_msg *m)
{
	bool is_early;

	if (!seat->peer->conn->is_same_host && crc32c(0, m->payload, m->len) != m->crc) {
		core->stats.crc_errors++;
		seat->bad_crc = m->crc;
		seat_queue_message(seat, OWE_BAD_CRC, m->round);
		return;
	}
	seat->buf = staging_acquire_buffer(core, slot, seat->member, m->len, &is_early);
	if (!seat->buf) {
		seat_queue_message(seat, OWE_AGAIN, m->round);
		return;
	}
	memcpy(seat->buf->mem, m->payload, m->len);
	core->reports->contribution_read(core, seat);
}

/* Use a contribution from this host in place, without a copy. The contribution's bytes do not
 * change before the member gets this round's result (B6). Returns false if the contribution must be
 * read and checked. In a job that may shrink, every contribution must be read: a removed member may
 * still accept a result after the remaining members have overwritten their inputs. */
static bool contrib_borrow(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	struct xconn *c = seat->peer->conn;

	if (!c->is_same_host || seat->part->job->flags & JOB_SHRINK ||
		c->x->ops->borrow(c, m->segment, m->offset, m->len, &seat->loan))
		return false;
	core->reports->contribution_read(core, seat);
	return true;
}

/* Count a contribution whose bytes are not needed, because the result exists or a member will
 * donate it. */
static void contrib_count_without_bytes(struct srv_core *core, struct slot *slot, struct seat *seat)
{
	slot_add_contributed(slot, seat->member);
	if (slot->state != SLOT_OPEN)
		seat->late_round = slot->round;
	if (slot->state == SLOT_DONE)
		seat_queue_message(seat, OWE_RESULT, slot->round);
	slot_check_complete(core, slot);
}

static void seat_take_offer(
	struct srv_core *core, struct slot *slot, struct seat *seat, const struct wire_msg *m)
{
	if (seat->state != SEAT_IDLE)
		core->stats.duplicates++;
	if (seat->state == SEAT_WANT_READ)
		/* the queued offer may be in another segment than this offer */
		reads_cancel_contribution(core, seat);
	seat->offer = (struct offer){.round = m->round,
		.offset = m->offset,
		.arrived_ns = seat->offer.round == m->round ? seat->offer.arrived_ns : core->now_ns,
		.crc = m->crc,
		.workers = m->contrib.workers,
		.segment = m->segment,
		.priority = m->priority};
	if (seat->state == SEAT_READING || seat->state == SEAT_STAGED)
		return;
	if (!m->contrib.workers && seat->part->value)
		value_add_nothing(seat);
	else if (!m->contrib.workers)
		slot_record_abstention(core, slot, seat);
	else if (m->flags & WIRE_INLINE)
		contrib_inline(core, slot, seat, m);
	else if (!contrib_borrow(core, seat, m))
		reads_queue_contribution(core, seat);
}

/* Handle a delta for a value (V1 to V3). */
static void on_delta_message(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	switch (value_judge_delta(seat, m->round)) {
	case VALUE_TAKE:
		break;
	case VALUE_IGNORE:
		core->stats.duplicates++;
		return;
	case VALUE_AGAIN:
		seat_queue_message(seat, OWE_AGAIN, m->round);
		return;
	case VALUE_INVALID:
		peer_close_on_protocol_error(core, seat->peer, m, "the round is out of order");
		return;
	}
	if (m->contrib.op != OP_SUM)
		srv_job_fail(core, seat->part->job, BPS_EMISMATCH,
			"round %llu of tensor %u: member %u (agent %u) submitted operation %s to a "
			"value, which takes only %s",
			(unsigned long long)m->round, m->tensor, m->member,
			seat->part->job->members[m->member].agent, op_name(m->contrib.op),
			op_name(OP_SUM));
	else if (seat->state != SEAT_IDLE && !m->contrib.workers)
		peer_close_on_protocol_error(
			core, seat->peer, m, "it abstains from a round to which it contributes");
	else
		seat_take_offer(core, &seat->part->slots[0], seat, m);
}

static void on_contrib_message(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	struct srv_part *part = seat->part;
	struct slot *slot = NULL;

	if (!contrib_is_valid(part, seat, m)) {
		peer_close_on_protocol_error(
			core, seat->peer, m, "the contribution does not fit its partition");
		return;
	}
	if (part->value) {
		on_delta_message(core, seat, m);
		return;
	}
	switch (part->job->rule->accept(core, seat, m->round, &slot)) {
	case ROUND_ACCEPTED:
		break;
	case ROUND_OVER:
		core->stats.duplicates++;
		return;
	case ROUND_EARLY:
		seat_queue_message(seat, OWE_AGAIN, m->round);
		return;
	case ROUND_INVALID:
		peer_close_on_protocol_error(core, seat->peer, m, "the round is out of order");
		return;
	}
	if (member_set_has(&slot->contributed, seat->member)) {
		core->stats.duplicates++;
		if (slot->state == SLOT_DONE)
			seat_queue_message(seat, OWE_RESULT, m->round);
		return;
	}
	if (!slot_op_is_consistent(core, slot, m) ||
		!slot_prev_crc_is_consistent(core, slot, seat, m))
		return;
	/* the server sends the result to this member with the priority of the contribution */
	seat->offer.priority = m->priority;
	if (slot->n_has || slot->state != SLOT_OPEN) {
		contrib_count_without_bytes(core, slot, seat);
		return;
	}
	assert(seat->state == SEAT_IDLE || seat->offer.round == m->round);
	if (seat->state != SEAT_IDLE && !m->contrib.workers) {
		peer_close_on_protocol_error(
			core, seat->peer, m, "it abstains from a round to which it contributes");
		return;
	}
	if (seat->offer.round != m->round)
		arrivals_offer(&slot->arrivals, seat->member, part->n_live, core->now_ns);
	seat_take_offer(core, slot, seat, m);
}

static void on_have_message(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	if (!seat->part->value && seat->part->job->rule->record_result(core, seat, m->round))
		seat_queue_message(seat, OWE_HAVE_OK, m->round);
	else
		peer_close_on_protocol_error(core, seat->peer, m, "the round is out of order");
}

static void on_hold_message(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	if (!seat->part->value || !value_take_hold(seat, m->round, m->hold.version))
		peer_close_on_protocol_error(core, seat->peer, m, "the round is out of order");
}

static void on_donate_message(struct srv_core *core, struct seat *seat, const struct wire_msg *m)
{
	struct slot *slot = seat->part->value ? &seat->part->slots[0]
					      : part_slot_of_round(seat->part, m->round);

	if (slot->state != SLOT_DONATING || slot->round != m->round ||
		!member_set_has(&slot->has, seat->member) || slot->fetch) {
		core->stats.duplicates++;
		return;
	}
	if (m->len != (seat->part->owner == NO_OWNER ? seat->part->bytes : 0) ||
		m->result.n_members != seat->part->n_seats ||
		(seat->part->value && m->result.version != seat->part->value->held_version)) {
		peer_close_on_protocol_error(
			core, seat->peer, m, "the donation does not fit its partition");
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
		reads_start_queued(core);
		return;
	}
	if (crc32c(0, m->payload, m->len) != m->crc || !slot_get_result_memory(core, slot)) {
		core->stats.crc_errors++;
		return; /* the retry timer repeats the request */
	}
	if (m->len) /* else the owner keeps the bytes */
		memcpy(slot->result->mem, m->payload, m->len);
	slot->crc = m->crc;
	slot->has_crc = true;
	core->reports->result_ready(core, slot);
}

static void on_got_message(struct seat *seat, const struct wire_msg *m)
{
	struct slot *slot = part_slot_of_round(seat->part, m->round);

	if (seat->part->value)
		value_take_got(seat, m->round);
	else if (slot->state != SLOT_EMPTY && slot->round == m->round)
		slot_clear_seat_offer(slot, seat);
}

/* Answer AGAIN to a message whose partition this server does not have, or whose pgen is newer than
 * the server's. The reason may be that the scheduler's plan has not arrived yet. */
static void peer_send_again_reply(struct srv_peer *peer, const struct wire_msg *m)
{
	struct wire_msg r = wire_make_answer(m, WIRE_AGAIN);

	if (m->type == WIRE_CONTRIB || m->type == WIRE_HAVE || m->type == WIRE_HOLD)
		xport_send(peer->conn, &r); /* if the send fails, the agent's own timer retries */
}

static struct seat *seat_find_for_sender(struct srv_core *core, struct srv_peer *peer,
	struct srv_part *part, const struct wire_msg *m)
{
	struct seat *seat;

	if (m->member >= part->n_seats || !member_set_has(&part->live, m->member) ||
		part->job->members[m->member].agent != peer->conn->peer_id) {
		peer_close_on_protocol_error(core, peer, m, "the agent is not a member of the job");
		return NULL;
	}
	seat = &part->seats[m->member];
	if (!seat->peer)
		seat->peer = peer;
	if (seat->peer != peer) {
		peer_close_on_protocol_error(core, peer, m, "the agent has a second connection");
		return NULL;
	}
	return seat;
}

static void peer_dispatch_message(
	struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m)
{
	struct srv_job *job = srv_job_find(core, m->job);
	struct srv_part *part = job ? srv_part_find(job, m->tensor, m->part) : NULL;
	struct seat *seat;

	if (!part || m->pgen > part->pgen) {
		core->stats.fenced_new++;
		peer_send_again_reply(peer, m);
		return;
	}
	if (m->pgen < part->pgen) {
		core->stats.fenced_old++;
		return;
	}
	seat = seat_find_for_sender(core, peer, part, m);
	if (!seat || (job->has_failed && m->type != WIRE_GOT))
		return;
	switch (m->type) {
	case WIRE_CONTRIB:
		if (!FAILPOINT(SERVER_CONTRIB_RECEIVED))
			on_contrib_message(core, seat, m);
		break;
	case WIRE_HAVE:
		if (!FAILPOINT(SERVER_HAVE_RECEIVED))
			on_have_message(core, seat, m);
		break;
	case WIRE_HOLD:
		if (!FAILPOINT(SERVER_HAVE_RECEIVED))
			on_hold_message(core, seat, m);
		break;
	case WIRE_DONATE:
		if (!FAILPOINT(SERVER_DONATE_RECEIVED))
			on_donate_message(core, seat, m);
		break;
	case WIRE_GOT:
		FAILPOINT(SERVER_GOT_RECEIVED);
		on_got_message(seat, m);
		break;
	default:
		peer_close_on_protocol_error(core, peer, m, "the message is not for a server");
	}
}

void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct srv_core *core = ctx;
	struct srv_peer *peer = c->user;

	if (!peer)
		return;
	retired_acknowledged(core, peer, m);
	peer_dispatch_message(core, peer, m);
	reads_start_queued(core); /* the message may have freed staging memory */
}
