#ifndef BPS_SERVER_CORE_ROUNDS_H
#define BPS_SERVER_CORE_ROUNDS_H
/* What each message of a member does to the slots and seats of its partition (S1-S3). */
#include "bps-server/core/core_impl.h"

/* xport_events.message; ctx is the core. Whatever the bytes say: at worst that peer is closed, or
 * its job fails. */
void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m);
#endif
