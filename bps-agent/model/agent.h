#ifndef BPS_AGENT_MODEL_AGENT_H
#define BPS_AGENT_MODEL_AGENT_H
/* State of the agent's data thread: its event loop, its core (bps-agent/core/core.h), and all
 * trainers, jobs and executors. Thread: the data thread, unless a comment names another thread. */
#include <pthread.h>
#include <sys/queue.h>
#include <uv.h>

#include "bps-agent/memory/memory_thread.h"
#include "bps-agent/model/control.h"
#include "bps-agent/model/executor_link.h"
#include "bps-agent/model/job.h"
#include "bps-agent/model/tensor.h"
#include "bps-agent/model/trainer.h"
#include "common/control/member.h"
#include "common/datapath/datapath.h"
#include "common/loop/dataloop.h"

struct known_server {
	uint32_t id;
	uint8_t state;
	uint64_t instance;
};

struct agent {
	struct agent_config cfg;
	/* Reserve descriptor. When the process has no free descriptor, the agent closes spare_fd.
	 * Then the agent can accept a trainer's connection in order to refuse the trainer. */
	int spare_fd;
	struct dataloop *loop;
	struct xport *x;
	struct agt_core *core;
	struct member *member;
	uv_poll_t listen_poll;
	const struct trainer_events *trainer_events;
	uint64_t leavers_ns; /* when to look again for workers that have left too early */
	TAILQ_HEAD(, trainer) trainers;
	uint32_t n_trainers;
	TAILQ_HEAD(, job) jobs;
	const struct executor_ops *executor_ops;
	TAILQ_HEAD(, executor_link) executors;
	uint64_t executor_failures;
	uint32_t next_seq;
	uint64_t next_number;
	/* descriptors that the service manager has not accepted yet */
	STAILQ_HEAD(, unsent_fd) unsent;
	uint64_t unsent_since_ns, unsent_due_ns;
	/* deadline of the oldest WHY message that the scheduler has not answered, or 0 if all WHY
	 * messages are answered */
	uint64_t why_due_ns;
	bool has_dirty;
	struct known_server *servers; /* the last known state of each server, to detect changes */
	uint32_t n_servers;
	uint64_t stats_at_ns;
	/* `heard_ns` is the time at which the scheduler or any server last sent something.
	 * `server_ns` is the time at which a server last had the state PEER_UP. */
	uint64_t heard_ns, server_ns;
	/* error code that trainers get while no server can sum; 0 while a server can sum */
	int stranded;
	struct quota *quota;
	struct memory_thread *memory_thread;
	/* Task that does nothing; libuv starts its pool for it */
	uv_work_t first_task;
	/* protects `figures` and `quota_view`, which the control thread reads */
	pthread_mutex_t lock;
	/* `seen_figures` is the control thread's own copy of `figures` */
	struct agent_figures figures, seen_figures;
	/* `seen_quotas` is the control thread's own copy of `quota_view` */
	struct quota_view quota_view, seen_quotas;
};
#endif
