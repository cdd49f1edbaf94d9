/* Reads the contributions that members offered (B1, B5). Each connection has a queue of reads,
 * sorted by priority, and a limit (window) of the bytes that are being read. All connections share
 * the staging memory. The data of a read is stored in staging memory and is used only if the crc is
 * right. All functions run on the data thread that owns the core. */
#include "bps-server/core/reads.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-server/core/owed.h"
#include "bps-server/core/slots.h"
#include "common/base/failpoint.h"

#define seat_of_node(n)  ((struct seat *)((char *)(n)-offsetof(struct seat, read_node)))
#define fetch_of_read(r) ((struct fetch *)((char *)(r)-offsetof(struct fetch, rd)))

static void peer_mark_ready_to_read(struct srv_core *core, struct srv_peer *peer)
{
	if (peer->is_ready || !peer->want.n)
		return;
	peer->is_ready = true;
	TAILQ_INSERT_TAIL(&core->ready, peer, ready);
}

static void seat_enqueue_read(struct srv_core *core, struct seat *seat)
{
	seat->read_node.key = heap_key(seat->offer.priority, core->read_seq++);
	heap_push(&seat->peer->want, &seat->read_node);
	peer_mark_ready_to_read(core, seat->peer);
}

void reads_queue_contribution(struct srv_core *core, struct seat *seat)
{
	seat_set_state(seat, SEAT_WANT_READ);
	seat_enqueue_read(core, seat);
	reads_start_queued(core);
}

void reads_cancel_contribution(struct srv_core *core, struct seat *seat)
{
	if (seat->state == SEAT_WANT_READ && seat->is_parked)
		TAILQ_REMOVE(&core->parked, seat, parked);
	else if (seat->state == SEAT_WANT_READ)
		heap_remove(&seat->peer->want, &seat->read_node);
	else if (seat->state == SEAT_READING)
		fetch_detach_from_owner(seat->fetch);
	seat->is_parked = false;
	seat->fetch = NULL;
	if (seat->state == SEAT_WANT_READ || seat->state == SEAT_READING)
		seat_set_state(seat, SEAT_IDLE);
}

void reads_unpark_seat(struct srv_core *core, struct seat *seat)
{
	TAILQ_REMOVE(&core->parked, seat, parked);
	seat->is_parked = false;
	seat_enqueue_read(core, seat);
}

static void reads_park_seat(struct srv_core *core, struct seat *seat)
{
	heap_remove(&seat->peer->want, &seat->read_node);
	seat->is_parked = true;
	TAILQ_INSERT_TAIL(&core->parked, seat, parked);
}

static void staging_report_exhausted(struct srv_core *core)
{
	core->is_starved = true;
	core->reports->staging_exhausted(core);
}

/* Get staging memory for bytes that leave it without waiting for other members. */
static struct buf *staging_acquire_passing(struct srv_core *core, size_t bytes)
{
	struct buf *buf = pool_get(core->staging, bytes);

	if (!buf)
		buf = pool_get(core->early, bytes);
	if (!buf)
		staging_report_exhausted(core);
	return buf;
}

struct buf *staging_acquire_buffer(struct srv_core *core, const struct slot *slot, uint16_t member,
	size_t bytes, bool *ret_is_early)
{
	bool is_early = part_is_ordered(slot->part) && member != slot->next_in_order;
	struct buf *buf =
		is_early ? pool_get(core->early, bytes) : staging_acquire_passing(core, bytes);

	*ret_is_early = is_early && !buf;
	return buf;
}

void staging_release_buffer(struct srv_core *core, struct buf *buf)
{
	bool is_early = pool_of_buffer(buf) == core->early;

	pool_put(pool_of_buffer(buf), buf);
	core->is_starved = false;
	while (is_early && !TAILQ_EMPTY(&core->parked))
		reads_unpark_seat(core, TAILQ_FIRST(&core->parked));
}

static struct fetch *fetch_new(struct srv_core *core)
{
	struct fetch *f = TAILQ_FIRST(&core->free_fetches);

	if (f)
		TAILQ_REMOVE(&core->free_fetches, f, link);
	else
		f = malloc(sizeof(*f));
	if (!f)
		return NULL;
	*f = (struct fetch){0};
	TAILQ_INSERT_TAIL(&core->fetches, f, link);
	return f;
}

static void fetch_free(struct srv_core *core, struct fetch *f)
{
	TAILQ_REMOVE(&core->fetches, f, link);
	TAILQ_INSERT_HEAD(&core->free_fetches, f, link);
}

void fetch_detach_from_owner(struct fetch *f)
{
	f->seat = NULL;
	f->slot = NULL;
}

/* Start the read of an offer's `len` bytes into `buf`. The new fetch then owns `buf`. */
static int fetch_start_offer_read(struct srv_core *core, struct srv_peer *peer,
	const struct offer *offer, uint32_t len, struct buf *buf, struct fetch **ret)
{
	struct fetch *f = fetch_new(core);
	int rc;

	FAILPOINT(SERVER_READ_START);
	if (!f)
		return -ENOMEM;
	f->buf = buf;
	f->peer = peer;
	f->round = offer->round;
	f->crc = offer->crc;
	f->rd = (struct xport_read){.conn = peer->conn,
		.dst = buf->mem,
		.own_segment = buf->segment,
		.segment = offer->segment,
		.len = len,
		.offset = offer->offset};
	rc = xport_read(&f->rd);
	if (rc < 0) {
		fetch_free(core, f);
		return rc;
	}
	peer->reading_bytes += len;
	*ret = f;
	return 0;
}

static void donation_start(struct srv_core *core, struct slot *slot)
{
	struct seat *seat = &slot->part->seats[slot->donor];
	struct buf *buf;

	if (!slot->wants_fetch || slot->fetch || !seat->peer)
		return;
	buf = staging_acquire_passing(core, slot->part->bytes);
	if (!buf)
		return;
	if (fetch_start_offer_read(
		    core, seat->peer, &slot->donation, slot->part->bytes, buf, &slot->fetch) < 0) {
		staging_release_buffer(core, buf); /* the retry timer repeats the request */
		return;
	}
	slot->fetch->slot = slot;
	slot->wants_fetch = false;
}

/* Start the most urgent read of a peer. Returns false if no further read of this peer can start
 * now. */
static bool peer_start_read(struct srv_core *core, struct srv_peer *peer)
{
	struct heap_node *node = heap_min(&peer->want);
	struct seat *seat = node ? seat_of_node(node) : NULL;
	uint32_t len = seat ? seat->part->bytes : 0;
	struct buf *buf;
	bool is_early;
	int rc;

	if (!seat ||
		(peer->reading_bytes && peer->reading_bytes + len > core->cfg.peer_window_bytes))
		return false;
	buf = staging_acquire_buffer(core, part_slot_of_round(seat->part, seat->offer.round),
		seat->member, len, &is_early);
	if (is_early) {
		reads_park_seat(core, seat);
		return true;
	}
	if (!buf)
		return false;
	rc = fetch_start_offer_read(core, peer, &seat->offer, len, buf, &seat->fetch);
	if (rc < 0) {
		pool_put(pool_of_buffer(buf), buf);
		if (rc == -EAGAIN)
			return false;
		/* the offer is invalid, or the connection is being closed */
		reads_cancel_contribution(core, seat);
		return true;
	}
	seat->fetch->seat = seat;
	heap_remove(&peer->want, node);
	seat_set_state(seat, SEAT_READING);
	return true;
}

/* Return whether a read waits for staging memory that a running read or a queued sum will free. */
static bool is_waiting_for_staging(const struct srv_core *core)
{
	return core->is_starved && (!TAILQ_EMPTY(&core->fetches) || !TAILQ_EMPTY(&core->work) ||
					   !TAILQ_EMPTY(&core->values));
}

void reads_start_queued(struct srv_core *core)
{
	struct slot *slot;
	struct srv_peer *peer;

	if (core->is_pumping)
		return;
	core->is_pumping = true;
	TAILQ_FOREACH (slot, &core->donating, waiting)
		donation_start(core, slot);
	while (!core->is_starved && (peer = TAILQ_FIRST(&core->ready))) {
		TAILQ_REMOVE(&core->ready, peer, ready);
		peer->is_ready = false;
		if (peer_start_read(core, peer) || core->is_starved)
			peer_mark_ready_to_read(core, peer);
	}
	if (!is_waiting_for_staging(core))
		core->is_starved = false;
	core->is_pumping = false;
}

static void seat_read_done(struct srv_core *core, struct fetch *f, int status)
{
	struct seat *seat = f->seat;
	int rc = FAILPOINT(SERVER_READ_DONE);

	seat->fetch = NULL;
	status = rc < 0 ? rc : status;
	if (status == 0 && xport_read_crc(&f->rd) == f->crc) {
		seat->buf = f->buf;
		f->buf = NULL;
		core->reports->contribution_read(core, seat);
		return;
	}
	seat_set_state(seat, SEAT_IDLE);
	if (status == 0) {
		core->stats.crc_errors++;
		seat->bad_crc = f->crc;
		seat_queue_message(seat, OWE_BAD_CRC, f->round);
	} else if (seat->peer && seat->peer != f->peer) {
		/* the connection of the read was lost, and the member has offered the contribution
		 * again on a newer connection */
		reads_queue_contribution(core, seat);
	}
}

static void donation_read_done(struct srv_core *core, struct fetch *f, int status)
{
	struct slot *slot = f->slot;

	slot->fetch = NULL;
	if (status == 0 && xport_read_crc(&f->rd) == f->crc && slot_get_result_memory(core, slot)) {
		memcpy(slot->result->mem, f->buf->mem, f->rd.len);
		slot->crc = f->crc;
		slot->has_crc = true;
		core->reports->result_ready(core, slot);
		return;
	}
	if (status == 0)
		core->stats.crc_errors++;
	core->reports->donation_failed(core, slot);
}

void on_peer_read_done(void *ctx, struct xport_read *rd, int status)
{
	struct srv_core *core = ctx;
	struct fetch *f = fetch_of_read(rd);

	f->peer->reading_bytes -= rd->len;
	if (f->seat)
		seat_read_done(core, f, status);
	else if (f->slot)
		donation_read_done(core, f, status);
	if (f->buf)
		staging_release_buffer(core, f->buf);
	peer_mark_ready_to_read(core, f->peer);
	fetch_free(core, f);
	reads_start_queued(core);
}
