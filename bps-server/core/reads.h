#ifndef BPS_SERVER_CORE_READS_H
#define BPS_SERVER_CORE_READS_H
/* Fetching contributions and donations, and the staging memory for them (B1, B5). */
#include "bps-server/core/core_impl.h"

/* Read seat->offer when it is its turn; the seat was IDLE and is connected. */
void reads_want(struct srv_core *core, struct seat *seat);
/* Drop its offer; a running read ends without effect. A STAGED seat stays so. */
void reads_forget(struct srv_core *core, struct seat *seat);
/* The seat was parked and queues again. */
void reads_unpark(struct srv_core *core, struct seat *seat);
/* Start the reads that windows and staging allow. */
void reads_pump(struct srv_core *core);
/* xport_events.read_done; ctx is the core. */
void reads_done(void *ctx, struct xport_read *rd, int status);
/* Nobody waits for this read any more. */
void fetch_detach(struct fetch *f);
/* Staging for a member's contribution, back by staging_put. NULL: there is none (relief is under
 * way), or with *ret_is_early set the sum is ordered, memory is short, and others are before it. */
struct buf *staging_get(struct srv_core *core, const struct slot *slot, uint16_t member,
	size_t bytes, bool *ret_is_early);
void staging_put(struct srv_core *core, struct buf *buf);
#endif
