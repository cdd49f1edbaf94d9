#ifndef BPS_AGENT_MODEL_AGENT_H
#define BPS_AGENT_MODEL_AGENT_H
/* The data thread: its loop, its core, and all trainers, jobs and executors. */
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
	int spare_fd; /* closed to refuse a trainer when no other descriptor is left */
	struct dataloop *loop;
	struct net *net; /* the node's; outlives the agent */
	struct xport *x;
	struct agt_core *core;
	struct member *member;
	uv_poll_t listen_poll;
	const struct trainer_events *trainer_events;
	TAILQ_HEAD(, trainer) trainers;
	uint32_t n_trainers;
	TAILQ_HEAD(, job) jobs;
	const struct executor_ops *executor_ops;
	TAILQ_HEAD(, executor_link) executors;
	uint64_t executor_failures;
	uint32_t next_seq;
	uint64_t next_number;
	STAILQ_HEAD(, unsent_fd) unsent; /* not accepted by the service manager yet */
	uint64_t unsent_since_ns, unsent_due_ns;
	uint64_t why_due_ns; /* of the oldest open question to the scheduler, 0: none is open */
	bool has_dirty;
	struct known_server *servers; /* their last states, to detect changes */
	uint32_t n_servers;
	uint64_t stats_at_ns;
	/* Time of the last message of the scheduler, and time when a server last existed. */
	uint64_t heard_ns, server_ns;
	int stranded; /* as in struct agent_figures */
	struct quota *quota;
	struct memory_thread *memory_thread;
	pthread_mutex_t lock; /* protects figures and quota_view, which the control thread reads */
	struct agent_figures figures, seen_figures; /* seen_figures: the control thread's copy */
	struct quota_view quota_view, seen_quotas;  /* the same */
};
#endif
