/* Queues and sends the messages for members: results, confirmations and requests. No function
 * blocks: a message without credit stays queued and is sent when the transport is writable. All
 * functions run on the data thread that owns the core. */
#include "bps-server/core/owed.h"

#include <errno.h>

#include "bps-server/core/slots.h"
#include "bps-server/core/value_state.h"
#include "common/base/failpoint.h"
#include "common/data/crc32c.h"

/* Queue an offer of a result; the most urgent result is sent first. */
static void seat_queue_result_offer(struct seat *seat)
{
	struct srv_peer *peer = seat->peer;

	if (heap_node_is_queued(&seat->result))
		return;
	seat->result.key = heap_key(seat->offer.priority, peer->result_seq++);
	heap_push(&peer->results, &seat->result);
}

void seat_queue_message(struct seat *seat, enum owe what, uint64_t round)
{
	struct srv_peer *peer = seat->peer;

	if (!peer)
		/* no connection: the agent sends its message again after it has reconnected */
		return;
	if (what == OWE_HAVE_OK)
		seat->have_round = round;
	if (what == OWE_BAD_CRC || what == OWE_AGAIN)
		seat->retry_round = round;
	if (what == OWE_RESULT && seat->part->bytes > WIRE_INLINE_MAX && seat_gets_bytes(seat)) {
		seat_queue_result_offer(seat);
	} else {
		if (!seat->owes)
			TAILQ_INSERT_TAIL(&peer->owing, seat, owing);
		seat->owes |= (uint8_t)what;
	}
	peer_send_owed(peer);
}

void seat_drop_owed(struct seat *seat)
{
	if (seat->owes)
		TAILQ_REMOVE(&seat->peer->owing, seat, owing);
	seat->owes = 0;
	if (heap_node_is_queued(&seat->result))
		heap_remove(&seat->peer->results, &seat->result);
}

static struct wire_msg message_build_for_seat(
	const struct seat *seat, enum wire_type type, uint64_t round)
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

/* Compute the missing crc of a result. When the round was summed, all members were on this host and
 * needed no crc. Now one of the members is on another host. */
static void slot_compute_result_crc(struct slot *slot)
{
	slot->crc = crc32c(0, slot->result->mem, slot->part->bytes);
	slot->has_crc = true;
}

/* Send the member's answer from a snapshot of the value. */
static int seat_send_answer(struct seat *seat)
{
	struct srv_value *v = seat->part->value;
	struct value_member *m = &v->members[seat->member];
	const struct value_snapshot *s = &v->snapshots[m->snapshot ? m->snapshot - 1 : 0];
	struct wire_msg r = message_build_for_seat(seat, WIRE_RESULT, m->answer_round);
	int rc;

	if (!m->snapshot || FAILPOINT(SERVER_RESULT_BEFORE_SEND))
		return 0; /* the member has reported meanwhile that it has the answer */
	r.len = seat->part->bytes;
	r.crc = s->crc;
	r.result.n_members = seat->part->n_seats;
	r.result.version = s->version;
	r.result.contributors = s->odd;
	for (unsigned i = 0; i < seat->part->n_seats; i++)
		if (member_set_has(&seat->part->live, i))
			r.result.workers += seat->part->job->members[i].workers;
	if (r.len <= WIRE_INLINE_MAX) {
		r.flags = WIRE_INLINE;
		r.payload = s->buf->mem;
		rc = xport_send(seat->peer->conn, &r);
		if (rc == 0)
			member_release_answer(v, m);
		return rc;
	}
	r.segment = s->buf->segment;
	r.offset = s->buf->offset;
	rc = xport_send_eager(seat->peer->conn, &r, true);
	if (rc == 0 && !m->is_offered && !seat->peer->conn->is_same_host)
		v->core->stats.offered_bytes += r.len;
	m->is_offered |= rc == 0;
	return rc;
}

/* Write the figures of the round into a RESULT for the seat's member. They stay 0, which is not
 * known, if the result is a donation, or if the sum did not wait for the member (T3). */
static void message_add_times(struct wire_msg *m, const struct slot *slot, const struct seat *seat)
{
	if (!slot->is_timed || seat->offer.round != slot->round || m->flags & WIRE_LATE)
		return;
	m->result.last = slot->last;
	m->result.wait_us = arrivals_known_us(slot->waited_until_ns - seat->offer.arrived_ns);
	m->result.sum_us = slot->sum_us;
}

static int seat_send_result(struct seat *seat)
{
	struct slot *slot = NULL;
	struct wire_msg m;
	int rc;

	if (seat->part->value)
		return seat_send_answer(seat);
	for (unsigned i = 0; i < 2; i++) {
		struct slot *s = &seat->part->slots[i];

		if (s->state == SLOT_DONE && member_set_has(&s->contributed, seat->member) &&
			!member_set_has(&s->has, seat->member) && slot_may_send_result(s, seat))
			slot = s;
	}
	if (!slot)
		return 0; /* the member has reported meanwhile that it has the result */
	if (FAILPOINT(SERVER_RESULT_BEFORE_SEND))
		return 0;
	if (!slot->has_crc && seat_gets_bytes(seat) && !seat->peer->conn->is_same_host)
		slot_compute_result_crc(slot);
	m = message_build_for_seat(seat, WIRE_RESULT, slot->round);
	m.len = seat_gets_bytes(seat) ? seat->part->bytes : 0;
	m.crc = seat_gets_bytes(seat) ? slot->crc : 0;
	m.result.workers = slot->workers;
	m.result.n_members = seat->part->n_seats;
	m.result.contributors = slot->contributors;
	m.flags = seat->late_round == slot->round ? WIRE_LATE : 0;
	message_add_times(&m, slot, seat);
	if (m.len <= WIRE_INLINE_MAX) {
		m.flags |= WIRE_INLINE;
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

static int seat_send_owed_message(struct seat *seat, enum owe what)
{
	struct wire_msg m;

	switch (what) {
	case OWE_RESULT:
		return seat_send_result(seat);
	case OWE_HAVE_OK:
		m = message_build_for_seat(seat, WIRE_HAVE_OK, seat->have_round);
		break;
	case OWE_DONATE_REQ:
		for (unsigned i = 0; i < 2; i++) {
			const struct slot *s = &seat->part->slots[i];

			if (s->state != SLOT_DONATING || s->donor != seat->member)
				continue;
			if (FAILPOINT(SERVER_DONATION_ASK))
				return 0;
			m = message_build_for_seat(seat, WIRE_DONATE_REQ, s->round);
			return xport_send(seat->peer->conn, &m);
		}
		return 0;
	case OWE_BAD_CRC:
		m = message_build_for_seat(seat, WIRE_BAD_CRC, seat->retry_round);
		m.crc = seat->bad_crc;
		break;
	case OWE_AGAIN:
		m = message_build_for_seat(seat, WIRE_AGAIN, seat->retry_round);
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
			if (seat_send_owed_message(seat, (enum owe)what) == -EAGAIN) {
				peer->is_stuck = true;
				return;
			}
			seat->owes &= (uint8_t)~what;
		}
		TAILQ_REMOVE(&peer->owing, seat, owing);
	}
	while (!peer->is_stuck && !peer->is_full && (result = heap_min(&peer->results))) {
		peer->is_full = seat_send_result(seat_of_result(result)) == -EAGAIN;
		if (!peer->is_full)
			heap_remove(&peer->results, result);
	}
}
