#ifndef BPS_AGENT_TRAINERS_NO_SERVER_H
#define BPS_AGENT_TRAINERS_NO_SERVER_H
/* Notifies trainers when their rounds need a server and no server is available. Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Check whether a server is available. If for longer than stranded_ns no server has been available,
 * notify the trainers whose jobs need a server. Returns the time at which the function must be
 * called again. */
uint64_t no_server_tick(struct agent *a, uint64_t now_ns);
#endif
