#ifndef BPS_AGENT_MODEL_CONTROL_H
#define BPS_AGENT_MODEL_CONTROL_H
/* Settings that the control thread passes to the data thread, and figures that the data thread
 * returns. Settings and figures are copied by value. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/core.h"
#include "bps-agent/core/round_record.h"
#include "bps-agent/io/io_threads.h"
#include "bps-agent/quota/quota.h"
#include "common/transport/net.h"

struct fdstore;
struct shm_config;

/* Settings that may change while the agent runs. */
struct agent_limits {
	struct quota_limits quotas;
	/* largest number of tensors of a trainer; a change applies only to trainers that connect
	 * after the change */
	uint32_t max_tensors;
	/* Limit of bytes in flight to one server thread: the value for window_bytes of struct
	 * agt_config. The limit for each job, job_inflight_bytes, is in `quotas`. */
	size_t window_bytes;
	/* trainers get an error after this time without a server, or never if the time is 0 */
	uint64_t stranded_ns;
};

/* Settings of the executor for GPUs. */
struct gpu_config {
	const char *program; /* path of the executor's program; "": no GPUs are used */
	const char *route;   /* "auto", or the name of a route */
	const char *sysfs;
};

struct agent_config {
	uint32_t id; /* agent id, assigned by the scheduler */
	uint64_t instance;
	/* nonblocking listening socket for trainers (SOCK_SEQPACKET); the caller closes it after
	 * agent_free */
	int listen_fd;
	/* Network cards and I/O threads. With one of each, the data thread does all work itself.
	 * The caller keeps io.cards and io.same_host until after agent_free. io.same_host is NULL
	 * if no memory is shared with servers of this host. */
	struct io_config io;
	struct agent_limits limits;
	const char *name;       /* name of this agent */
	const char *host;       /* name of this machine */
	struct agt_config core; /* window_bytes and job_inflight_bytes are set from `limits` */
	const char *scheduler;  /* the scheduler's address as text, for answers to trainers */
	/* Set if the service manager keeps descriptors for the next process. Trainers then stay
	 * connected when this process ends. */
	bool can_hand_over;
	/* descriptors that the previous process left with the service manager; only agent_new uses
	 * them */
	struct fdstore *inherited;
	struct gpu_config gpu;
};

#define AGENT_STEP_JOBS 16
/* Where the time of a job's steps went on this machine: totals, in ns. */
struct agent_job_steps {
	uint32_t id;
	char name[CTL_JOB_NAME_MAX + 1];
	uint64_t computing_ns, phase_ns[N_PHASES];
};

/* Figures for the status and the metrics. */
struct agent_figures {
	struct io_figures io; /* without I/O threads: zeros */
	struct agt_stats core;
	/* servers to which data connections were lost, for the heartbeat */
	struct ctl_beat_link links[CTL_BEAT_LINKS_MAX];
	uint32_t n_links;
	uint32_t trainers, jobs, executors;
	struct agent_job_steps steps[AGENT_STEP_JOBS]; /* of the oldest jobs */
	uint32_t n_step_jobs;
	uint64_t shared_bytes, beat_ns, executor_failures;
	uint64_t data_busy_ns; /* dataloop_busy_ns of the data thread */
	/* error code that trainers get while no server can sum, or 0 if a server can sum */
	int stranded;
};

/* Return the number of bytes of messages and contributions sent over the network since the start. A
 * repeated offer of a contribution is not counted again. `core` and `net` hold current figures of
 * the core and of the network transport. */
static inline uint64_t agent_sent_bytes(const struct agt_stats *core, const struct net_stats *net)
{
	return net->tx_bytes + core->offered_bytes;
}
#endif
