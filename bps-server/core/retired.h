#ifndef BPS_SERVER_CORE_RETIRED_H
#define BPS_SERVER_CORE_RETIRED_H
/* Results that are replaced in their slots, but may still be read (B3). */
#include "bps-server/core/core_impl.h"

/* Replace the slot's result; members that were offered it keep its buffer alive. */
void retired_add(struct srv_core *core, struct slot *slot);
/* Release the results of an older placement that the message acknowledges. */
void retired_acknowledged(struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m);
/* Release the results that the peer was reading: its connection is lost. */
void retired_peer_down(struct srv_core *core, const struct srv_peer *peer);
#endif
