#ifndef BPS_SERVER_CORE_ROUNDS_H
#define BPS_SERVER_CORE_ROUNDS_H
/* Applies each message of a member to the slots and seats of the message's partition (S1-S3). */
#include "bps-server/core/core_impl.h"

/* Handle a received message. The core sets the callback `message` of struct xport_events to this
 * function. ctx: the core. Invalid bytes at worst close the peer's connection or fail the peer's
 * job. */
void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m);
#endif
