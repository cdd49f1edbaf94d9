/* Keeps the results of an older placement while members may still read these results (B3). The
 * buffer of a result is kept until each member that was offered the result has acknowledged it or
 * lost its connection. */
#include "bps-server/core/retired.h"

#include <stdlib.h>

#include "bps-server/core/slots.h"
#include "common/base/log.h"

/* Remove the peer from the readers of the result, and free the buffer if no reader is left. */
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

void retired_add_slot_result(struct srv_core *core, struct slot *slot)
{
	struct srv_part *part = slot->part;
	struct retired_result *l = malloc(sizeof(*l) + slot->n_offered * sizeof(l->peers[0]));
	unsigned bit = (unsigned)(slot - part->slots);

	if (!l) {
		/* Without this record the buffer can never be reused safely, so leak the buffer. */
		log_error("out of memory: cannot record a result that may still be read, so %u "
			  "bytes of memory for sums are lost until this server restarts",
			part->bytes);
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
		slot_clear_seat_offer(slot, seat);
	}
	slot->result = NULL;
	TAILQ_INSERT_TAIL(&core->retired, l, link);
	core->stats.retired++;
	retired_release(core, l, NULL);
}

/* Return whether the message implies that its sender will not read the result l, or has finished
 * reading it. */
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

void retired_peer_down(struct srv_core *core, const struct srv_peer *peer)
{
	struct retired_result *l, *next;

	for (l = TAILQ_FIRST(&core->retired); l; l = next) {
		next = TAILQ_NEXT(l, link);
		retired_release(core, l, peer);
	}
}
