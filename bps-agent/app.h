#ifndef BPS_AGENT_APP_H
#define BPS_AGENT_APP_H
/* The process bps-agent around its data thread. main.c reads the settings and starts the process,
 * and web.c serves HTTP. Thread: the control thread. */
#include <event2/event.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/agent.h"
#include "bps-agent/handover/cluster_identity.h"
#include "bps-agent/io_count.h"
#include "bps-agent/listen_socket.h"
#include "common/daemon/fdstore.h"
#include "common/daemon/httpd.h"
#include "common/daemon/node.h"

/* Number of data threads. One thread owns all trainers, rings and partitions. Its work per
 * partition is small; I/O threads can take the work per byte (io/io_threads.h). */
#define AGENT_THREADS 1

struct agent_opts {
	struct node_opts node;
	const char *socket, *group, *sysfs;
	unsigned gpu_strategy; /* enum strategy */
	bool keeps_trainers;
	int64_t io_threads;
	unsigned gpu;
	const char *gpu_program;
	char gpu_path[PATH_MAX];
	int64_t max_trainers, max_tensors, user_trainers, user_tensors, user_executors, job_tensors;
	int64_t user_descriptors, user_requests;
	uint64_t stranded_us;
	uint64_t window_bytes, max_bytes, user_bytes, job_bytes, job_inflight_bytes;
};

struct agent_app {
	/* must be the first field: on_member_refused and node_auth_changed convert its address to a
	 * struct agent_app */
	struct node node;
	struct agent_opts opts;
	struct gpu_probe *gpu_probe; /* NULL: no probe was started */
	struct agent *agent;         /* NULL until this agent's id is known */
	struct fdstore inherited;
	struct cluster_identity identity;
	/* timer that limits the wait for the scheduler's answer to LEAVE */
	struct event *stop;
	struct listen_socket listener;
	/* true if the setting keep-trainers is on and a service manager keeps descriptors for the
	 * next process */
	bool can_hand_over;
	char scheduler[ADDR_TEXT_BYTES];
	struct carrier_watch *carriers;      /* NULL: there is one network card */
	bool carriers_due;                   /* the data thread does not know of the last change */
	unsigned n_cpus, io_threads;         /* processors of this process; number of I/O threads */
	unsigned more_threads, busy_percent; /* of the last look, busy_more_threads */
	struct busy_look busy;               /* last look at how busy the threads are */
	struct ctl_beat_link beat_links[CTL_BEAT_LINKS_MAX]; /* list of the next heartbeat */
};

/* The pages of the agent. Their argument is the struct agent_app. */
extern const struct httpd_ops agent_web_ops;
#endif
