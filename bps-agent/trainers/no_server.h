#ifndef BPS_AGENT_TRAINERS_NO_SERVER_H
#define BPS_AGENT_TRAINERS_NO_SERVER_H
/* Rounds that need servers while there are none. The data thread's. */
#include "bps-agent/model/agent.h"

/* See whether anybody can sum; trainers of jobs that need it are told when nobody has been able to
 * for too long. Returns when to be called again. */
uint64_t no_server_tick(struct agent *a, uint64_t now_ns);
#endif
