#ifndef BPS_AGENT_FIGURES_H
#define BPS_AGENT_FIGURES_H
/* Metrics of the agent's data thread, its cards and its jobs. Thread: the control thread. */
#include "bps-agent/model/control.h"

struct evbuffer;

/* Append the figures as metrics. net: figures of the network transport. */
void agent_figures_write_metrics(
	const struct agent_figures *f, const struct net_stats *net, struct evbuffer *out);
#endif
