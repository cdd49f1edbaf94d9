#ifndef BPS_SERVER_CORE_OWED_H
#define BPS_SERVER_CORE_OWED_H
/* Messages that wait to be sent to members. */
#include "bps-server/core/core_impl.h"

/* Queue a message for the seat's member. The message is sent at once, or when there is credit
 * (permission to send). No effect if the member is not connected. */
void seat_owe(struct seat *seat, enum owe what, uint64_t round);
/* Drop all messages that wait for the member. */
void seat_drop_owed(struct seat *seat);
/* Send the messages that wait for the peer, as many as its credit allows. */
void peer_send_owed(struct srv_peer *peer);
#endif
