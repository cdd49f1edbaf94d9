#ifndef BPS_SERVER_CORE_RETIRED_H
#define BPS_SERVER_CORE_RETIRED_H
/* Retired results: results that were replaced in their slots, but may still be read (B3). */
#include "bps-server/core/core_impl.h"

/* Take the result out of the slot. The result's buffer is kept as long as a member may read it. */
void retired_add_slot_result(struct srv_core *core, struct slot *slot);
/* Take a result of the partition out of use. Its buffer is kept as long as a reader is left. Add
 * the readers with retired_add_reader, at most n_readers, then call retired_begin. NULL: out of
 * memory; the buffer is lost. */
struct retired_result *retired_new(
	struct srv_core *core, const struct srv_part *part, struct buf *buf, unsigned n_readers);
/* Add a reader. peer NULL: the member is not connected, so it cannot read. round: the member's
 * round to which the result is the answer. */
void retired_add_reader(struct retired_result *l, struct srv_peer *peer, uint64_t round);
void retired_begin(struct srv_core *core, struct retired_result *l);
/* Release the retired results that the peer will not read any more, according to its message m. */
void retired_acknowledged(struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m);
/* Handle the loss of the peer's connection: release the retired results that the peer may have been
 * reading. */
void retired_peer_down(struct srv_core *core, const struct srv_peer *peer);
#endif
