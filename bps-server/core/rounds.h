#ifndef BPS_SERVER_CORE_ROUNDS_H
#define BPS_SERVER_CORE_ROUNDS_H
/* Applies each message of a member to the slots and seats of its partition (S1-S3). */
#include "bps-server/core/core_impl.h"

/* Handle a received message: this function is the core's `message` in struct xport_events. ctx: the
 * core. Invalid bytes at worst close the peer's connection or fail the peer's job. */
void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m);
#endif
