/* Keeps the results of an older placement while members may still read these results (B3). The
 * buffer of a result is kept until each member that was offered the result has acknowledged it or
 * lost its connection. */
#include "bps-server/core/retired.h"

#include <stdlib.h>

#include "bps-server/core/slots.h"
#include "common/base/log.h"

/* Free the buffer of the result if no reader is left. */
static void retired_free_if_unread(struct srv_core *core, struct retired_result *l)
{
	if (l->n_readers)
		return;
	TAILQ_REMOVE(&core->retired, l, link);
	pool_put(core->sums, l->buf);
	core->stats.retired--;
	free(l);
}

struct retired_result *retired_new(
	struct srv_core *core, const struct srv_part *part, struct buf *buf, unsigned n_readers)
{
	struct retired_result *l = malloc(sizeof(*l) + n_readers * sizeof(l->readers[0]));

	if (!l) {
		/* Without this record the buffer can never be reused safely, so leak the buffer. */
		log_error("out of memory: cannot record a result that may still be read, so %u "
			  "bytes of memory for sums are lost until this server restarts",
			part->bytes);
		return NULL;
	}
	*l = (struct retired_result){.buf = buf,
		.pgen = part->pgen,
		.job = part->job->id,
		.tensor = part->tensor,
		.part = part->index};
	TAILQ_INSERT_TAIL(&core->retired, l, link);
	core->stats.retired++;
	return l;
}

void retired_add_reader(struct retired_result *l, struct srv_peer *peer, uint64_t round)
{
	if (peer)
		l->readers[l->n_readers++] = (struct retired_reader){peer, round};
}

void retired_begin(struct srv_core *core, struct retired_result *l)
{
	retired_free_if_unread(core, l);
}

void retired_add_slot_result(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;
	struct retired_result *l = retired_new(core, part, slot->result, slot->n_offered);
	unsigned bit = (unsigned)(slot - part->slots);

	slot->result = NULL;
	for (unsigned i = 0; i < part->n_seats; i++) {
		struct seat *seat = &part->seats[i];

		if (!(seat->offered >> bit & 1))
			continue;
		if (l)
			retired_add_reader(l, seat->peer, slot->round);
		slot_clear_seat_offer(slot, seat);
	}
	if (l)
		retired_begin(core, l);
}

/* Return whether the message implies that its sender will not read the result l, or has finished
 * reading it. round: the sender's round to which l is the answer. */
static bool is_acknowledged_by(
	const struct wire_msg *m, const struct retired_result *l, uint64_t round)
{
	if (m->type == WIRE_GOT)
		return l->pgen == m->pgen && round == m->round;
	return l->pgen <= m->pgen &&
	       (((m->type == WIRE_HAVE || m->type == WIRE_HOLD) && round <= m->round) ||
		       (m->type == WIRE_CONTRIB && round < m->round) ||
		       (m->type == WIRE_HOLD && l->pgen < m->pgen));
}

void retired_acknowledged(struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m)
{
	struct retired_result *l, *next;

	for (l = TAILQ_FIRST(&core->retired); l; l = next) {
		next = TAILQ_NEXT(l, link);
		if (l->job != m->job || l->tensor != m->tensor || l->part != m->part)
			continue;
		for (unsigned i = 0; i < l->n_readers; i++)
			if (l->readers[i].peer == peer &&
				is_acknowledged_by(m, l, l->readers[i].round))
				l->readers[i--] = l->readers[--l->n_readers];
		retired_free_if_unread(core, l);
	}
}

void retired_peer_down(struct srv_core *core, const struct srv_peer *peer)
{
	struct retired_result *l, *next;

	for (l = TAILQ_FIRST(&core->retired); l; l = next) {
		next = TAILQ_NEXT(l, link);
		for (unsigned i = 0; i < l->n_readers; i++)
			if (l->readers[i].peer == peer)
				l->readers[i--] = l->readers[--l->n_readers];
		retired_free_if_unread(core, l);
	}
}
