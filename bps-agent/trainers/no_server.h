#ifndef BPS_AGENT_TRAINERS_NO_SERVER_H
#define BPS_AGENT_TRAINERS_NO_SERVER_H
/* Rounds that need servers while there are none. The data thread's. */
#include "bps-agent/model/agent.h"

/* Check whether a server can sum, and notify trainers that need one when none could for too long.
 * Returns when to be called again. */
uint64_t no_server_tick(struct agent *a, uint64_t now_ns);
#endif
