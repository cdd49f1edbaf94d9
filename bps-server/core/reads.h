#ifndef BPS_SERVER_CORE_READS_H
#define BPS_SERVER_CORE_READS_H
/* Fetching contributions and donations, and the staging memory for them (B1, B5). */
#include "bps-server/core/core_impl.h"

/* Queue the read of seat->offer. The seat was IDLE and is connected. */
void reads_want(struct srv_core *core, struct seat *seat);
/* Drop the seat's offer. A running read ends without effect. A STAGED seat stays STAGED. */
void reads_forget(struct srv_core *core, struct seat *seat);
/* Queue the read of a seat that was parked. */
void reads_unpark(struct srv_core *core, struct seat *seat);
/* Start the reads that windows and staging allow. */
void reads_pump(struct srv_core *core);
/* xport_events.read_done; ctx is the core. */
void reads_done(void *ctx, struct xport_read *rd, int status);
/* The result of this read is not needed any more. */
void fetch_detach(struct fetch *f);
/* Get staging for a member's contribution; staging_put returns it. NULL: there is none, and memory
 * is being freed. NULL with *ret_is_early set: the sum is ordered, memory is short, and other
 * contributions are added before this one. */
struct buf *staging_get(struct srv_core *core, const struct slot *slot, uint16_t member,
	size_t bytes, bool *ret_is_early);
void staging_put(struct srv_core *core, struct buf *buf);
#endif
