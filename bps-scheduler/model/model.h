#ifndef BPS_SCHEDULER_MODEL_MODEL_H
#define BPS_SCHEDULER_MODEL_MODEL_H
/* All of the model: the scheduler's objects, which a struct sched_core holds, and what finds, changes
 * and sends them. Status and the operators' verbs only read. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/change.h"
#include "bps-scheduler/model/config.h"
#include "bps-scheduler/model/conn.h"
#include "bps-scheduler/model/env.h"
#include "bps-scheduler/model/find.h"
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/member.h"
#include "bps-scheduler/model/mute.h"
#include "bps-scheduler/model/send.h"
#include "bps-scheduler/model/tensor.h"
#include "common/base/duration.h"
#include "common/wire/wire.h"

#define NS_PER_S     UINT64_C(1000000000)
#define CONN_BUCKETS 64
#define ENDED_MAX    64
#define STATE_BIT(s) (1u << (s)) /* of a set of states */

/* When measured speeds are taken over (placement/speed.h). */
struct sched_nic_speeds {
	uint64_t first_ns; /* when some member had its first measure last; 0: none has */
	uint64_t taken_ns; /* when they were taken over last */
	uint64_t count;    /* how often */
	bool is_due;       /* some measure is a step away, */
	uint64_t since_ns; /* since then */
};

enum sched_quota {
	QUOTA_USER_JOBS,
	QUOTA_JOB_TENSORS,
	QUOTA_USER_SHARE,
	QUOTA_JOB_SHARE,
	SCHED_QUOTAS
};

struct sched_core {
	struct sched_config cfg;
	struct sched_env env;
	uint8_t cluster_id[STATE_ID_BYTES], secret[STATE_SECRET_BYTES];
	bool is_restored, is_started;
	uint32_t term;
	uint64_t view;      /* durable */
	uint64_t kept_view; /* of the state that this start found */
	uint64_t behind_ns; /* when a member showed that this was not the last one; 0: none has */
	uint64_t tx_view;   /* 0, or the view of the open transaction */
	bool is_undurable;
	bool is_isolated;     /* no member is heard: isolation.c */
	uint64_t isolated_ns; /* when that was so last, 0: never; silence counts from then */
	uint32_t next_job, job_id_limit;
	uint64_t now_ns; /* of the present event */
	uint64_t due_ns, beat_ns, grace_ns, retry_ns, started_ns;
	struct sched_nic_speeds speeds;
	uint64_t progress_ns; /* when the jobs' pace was last looked at */
	uint64_t stalls_ns;   /* when the jobs are looked at next (core/stalls.h) */
	uint64_t balance_ns;  /* when planned moves are due; 0: none */
	uint64_t gathered_ns; /* when a server came or came back last */
	uint64_t n_planned;   /* partitions moved by plan, since the start */
	uint64_t changes;     /* transactions made durable */
	struct sched_conn *conns[CONN_BUCKETS];
	uint32_t n_silent;             /* connections before HELLO */
	struct sched_member **members; /* by id, [0] unused */
	uint32_t n_members, members_room;
	char **hosts;
	uint32_t n_hosts, hosts_room;
	struct sched_job *jobs;  /* forming and running, newest first */
	struct sched_job *ended; /* newest first */
	uint32_t n_jobs, n_ended;
	uint64_t refused[SCHED_QUOTAS]; /* since the start */
	struct sched_mute mutes[MUTES_MAX];
	uint32_t n_mutes;
	bool has_new_mutes; /* to be persisted */
	struct sched_member *dirty_members;
	struct sched_job *dirty_jobs;
	struct sched_probe *probes;
	uint32_t n_probes, probe_seq;
};
#endif
