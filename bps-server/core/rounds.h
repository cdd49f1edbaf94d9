#ifndef BPS_SERVER_CORE_ROUNDS_H
#define BPS_SERVER_CORE_ROUNDS_H
/* What each message of a member does to the slots and seats of its partition (S1-S3). */
#include "bps-server/core/core_impl.h"

/* xport_events.message; ctx is the core. Bad bytes at worst close the peer or fail its job. */
void rounds_message(void *ctx, struct xconn *c, const struct wire_msg *m);
#endif
