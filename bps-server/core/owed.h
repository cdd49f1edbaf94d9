#ifndef BPS_SERVER_CORE_OWED_H
#define BPS_SERVER_CORE_OWED_H
/* What members are owed, and sending it. */
#include "bps-server/core/core_impl.h"

/* Owe the member, if it is connected, a message: sent at once or when there is credit. */
void seat_owe(struct seat *seat, enum owe what, uint64_t round);
/* Nothing is owed to it any more. */
void seat_drop_owed(struct seat *seat);
/* Send what the peer is owed, as far as its credit goes. */
void peer_send_owed(struct srv_peer *peer);
#endif
