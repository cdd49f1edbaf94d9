#ifndef BPS_SERVER_CORE_READS_H
#define BPS_SERVER_CORE_READS_H
/* Reads contributions and donations from agents. Allocates the staging memory for their data
 * (B1, B5). */
#include "bps-server/core/core_impl.h"

/* Queue a read of the contribution that seat->offer describes. The seat must be IDLE and
 * connected. */
void reads_queue_contribution(struct srv_core *core, struct seat *seat);
/* Drop the seat's offer. A running read ends without effect. A STAGED seat stays STAGED. */
void reads_cancel_contribution(struct srv_core *core, struct seat *seat);
/* Queue a seat's read that was postponed (is_parked). */
void reads_unpark_seat(struct srv_core *core, struct seat *seat);
/* Start as many queued reads as the windows and the staging memory allow. */
void reads_start_queued(struct srv_core *core);
/* The callback read_done of struct xport_events; ctx is the core. */
void on_peer_read_done(void *ctx, struct xport_read *rd, int status);
/* Mark a running read as not needed: its data is discarded when the read ends. */
void fetch_detach_from_owner(struct fetch *f);
/* Get staging memory for a member's contribution. staging_release_buffer frees the memory. Returns
 * NULL if there is no memory for the contribution now.
 *
 * In a sum with a fixed order, a contribution is early if it cannot be added before another one
 * that has not arrived. That one may arrive late: its trainer may first wait for other tensors. So
 * early contributions have a pool of their own, of half of the staging memory. All other
 * contributions leave the staging memory after a read or a sum, so there is always memory for them
 * soon, in one piece.
 *
 * If *ret_is_early is true, the pool of early contributions has no room. Otherwise, a read or a sum
 * must free memory first. */
struct buf *staging_acquire_buffer(struct srv_core *core, const struct slot *slot, uint16_t member,
	size_t bytes, bool *ret_is_early);
void staging_release_buffer(struct srv_core *core, struct buf *buf);
#endif
