#ifndef BPS_AGENT_MODEL_CONTROL_H
#define BPS_AGENT_MODEL_CONTROL_H
/* Values that the control thread passes to the data thread, and figures that it gets back. Plain
 * values. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "bps-agent/quota/quota.h"
#include "common/transport/net.h"

struct fdstore;
struct shm_config;

/* Settings that may change while the agent runs. */
struct agent_limits {
	struct quota_limits quotas;
	uint32_t max_tensors; /* per trainer that connects from now on */
	size_t window_bytes;  /* see struct agt_config; the job's bytes in flight are a quota */
	uint64_t stranded_ns; /* time without servers until trainers are notified; 0: never */
};

/* Settings of the executor for GPUs. */
struct gpu_config {
	const char *backend; /* "cuda", "host"; "": no GPUs are used */
	const char *program; /* its path */
	const char *route;   /* "auto", or the name of a route */
	const char *sysfs;
};

struct agent_config {
	uint32_t id; /* assigned by the scheduler */
	uint64_t instance;
	/* SOCK_SEQPACKET, listening, nonblocking; the caller closes it after agent_free */
	int listen_fd;
	uint32_t spin_us;
	const struct shm_config *same_host; /* NULL: off; outlives the agent */
	struct agent_limits limits;
	const char *host;       /* this machine, for messages */
	struct agt_config core; /* its window is that of the limits */
	const char *scheduler;  /* its address, for messages */
	/* The service manager keeps descriptors: leave trainers connected at the end. */
	bool can_hand_over;
	struct fdstore *inherited; /* descriptors from before a restart; used by agent_new only */
	struct gpu_config gpu;
};

/* Figures for the status screen and the metrics. */
struct agent_figures {
	struct agt_stats core;
	uint32_t trainers, jobs, executors;
	uint64_t shared_bytes, beat_ns, executor_failures;
	int stranded; /* code that is reported to trainers, 0: none */
};

/* Return the bytes sent over the network since the start: messages, and contributions when they are
 * first offered. core, net: recent figures. */
static inline uint64_t agent_sent_bytes(const struct agt_stats *core, const struct net_stats *net)
{
	return net->tx_bytes + core->offered_bytes;
}
#endif
