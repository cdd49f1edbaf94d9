#ifndef BPS_SERVER_CORE_OWED_H
#define BPS_SERVER_CORE_OWED_H
/* Messages that wait to be sent to members. */
#include "bps-server/core/core_impl.h"

/* Queue a message for the seat's member. The message is sent at once if the connection has credit
 * (permission to send). Without credit, the message waits until there is credit. Has no effect if
 * the member is not connected. */
void seat_queue_message(struct seat *seat, enum owe what, uint64_t round);
/* Drop all messages that wait for the member. */
void seat_drop_owed(struct seat *seat);
/* Send to the peer as many of its waiting messages as the peer's credit allows. */
void peer_send_owed(struct srv_peer *peer);
#endif
