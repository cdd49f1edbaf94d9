#ifndef BPS_SERVER_CORE_ROUNDS_H
#define BPS_SERVER_CORE_ROUNDS_H
/* Applies each message of a member to the slots and seats of its partition (S1-S3). */
#include "bps-server/core/core_impl.h"

/* The callback message of struct xport_events; ctx is the core. Invalid bytes at worst close the
 * connection of the peer or fail its job. */
void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m);
#endif
