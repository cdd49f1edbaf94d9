#ifndef BPS_SERVER_CORE_RETIRED_H
#define BPS_SERVER_CORE_RETIRED_H
/* Results that are replaced in their slots, but may still be read (B3). */
#include "bps-server/core/core_impl.h"

/* Replace the slot's result; members that were offered it keep its buffer alive. */
void retired_add(struct srv_core *core, struct slot *slot);
/* A message may say that its sender reads a result of an older placement no more. */
void retired_acknowledged(struct srv_core *core, struct srv_peer *peer, const struct wire_msg *m);
/* The peer reads nothing any more. */
void retired_peer_down(struct srv_core *core, const struct srv_peer *peer);
#endif
