#ifndef BPS_AGENT_MODEL_CONTROL_H
#define BPS_AGENT_MODEL_CONTROL_H
/* What the control thread gives to the data thread, and what it gets of it. Plain values. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "bps-agent/quota/quota.h"
#include "common/transport/net.h"

struct fdstore;
struct shm_config;

/* What may change while it runs. */
struct agent_limits {
	struct quota_limits quotas;
	uint32_t max_tensors; /* per trainer that connects from now on */
	size_t window_bytes;  /* see struct agt_config; the job's bytes in flight are a quota */
	uint64_t stranded_ns; /* without servers, before trainers are told; 0: never */
};

/* What drives GPUs. */
struct gpu_config {
	const char *backend; /* "cuda", "host"; "": nothing does */
	const char *program; /* its path */
	const char *route;   /* "auto", or which one */
	const char *sysfs;
};

struct agent_config {
	uint32_t id; /* told by the scheduler */
	uint64_t instance;
	/* SOCK_SEQPACKET, listening, nonblocking; the caller closes it after agent_free */
	int listen_fd;
	uint32_t spin_us;
	const struct shm_config *same_host; /* NULL: off; outlives the agent */
	struct agent_limits limits;
	const char *host;       /* this machine, for messages */
	struct agt_config core; /* its window is that of the limits */
	const char *scheduler;  /* its address, for messages */
	/* The service manager keeps descriptors: leave trainers as they are at the end. */
	bool can_hand_over;
	struct fdstore *inherited; /* descriptors from before a restart; for agent_new alone */
	struct gpu_config gpu;
};

/* For the status screen and the metrics. */
struct agent_figures {
	struct agt_stats core;
	uint32_t trainers, jobs, executors;
	uint64_t shared_bytes, beat_ns, executor_failures;
	int stranded; /* code: what trainers are told, 0: nothing */
};

/* Bytes sent over the network since it began: messages, and contributions when they are first
 * offered. core, net: of now, or of a moment ago. */
static inline uint64_t agent_sent_bytes(const struct agt_stats *core, const struct net_stats *net)
{
	return net->tx_bytes + core->offered_bytes;
}
#endif
