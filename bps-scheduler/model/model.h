#ifndef BPS_SCHEDULER_MODEL_MODEL_H
#define BPS_SCHEDULER_MODEL_MODEL_H
/* Includes all headers of the model, and defines struct sched_core, which holds all objects of the
 * scheduler. The functions of the model find, change and send these objects. The code for status
 * and operators' commands only reads the model. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/change.h"
#include "bps-scheduler/model/config.h"
#include "bps-scheduler/model/conn.h"
#include "bps-scheduler/model/env.h"
#include "bps-scheduler/model/find.h"
#include "bps-scheduler/model/job.h"
#include "bps-scheduler/model/machine.h"
#include "bps-scheduler/model/member.h"
#include "bps-scheduler/model/mute.h"
#include "bps-scheduler/model/send.h"
#include "bps-scheduler/model/tensor.h"
#include "common/base/duration.h"
#include "common/wire/wire.h"

#define NS_PER_S     UINT64_C(1000000000)
#define CONN_BUCKETS 64
#define ENDED_MAX    64
#define STATE_BIT(s) (1u << (s)) /* the bit of state s in a bitmap of states */

/* Determines when updates take place. An update computes, from measurements, the speeds that
 * placement uses (placement/speed.h). */
struct sched_nic_speeds {
	/* Whenever a member process reports its first measurement, this field is set to the present
	 * time. 0: no member has reported a measurement yet. */
	uint64_t first_ns;
	uint64_t taken_ns; /* time of the last update; 0: none yet */
	uint64_t count;    /* number of updates since the scheduler's start */
	/* An update is due: since the last update, the measured speed of a member has changed at
	 * least by the factor SPEED_STEP. */
	bool is_due;
	uint64_t since_ns; /* time at which `is_due` was set */
};

enum sched_quota {
	QUOTA_USER_JOBS,
	QUOTA_JOB_TENSORS,
	QUOTA_USER_SHARE,
	QUOTA_JOB_SHARE,
	QUOTA_SMALL_RESERVE,
	SCHED_QUOTAS
};

struct sched_core {
	struct sched_config cfg;
	struct sched_env env;
	uint8_t cluster_id[STATE_ID_BYTES], secret[STATE_SECRET_BYTES];
	bool is_restored, is_started;
	uint32_t term;
	uint64_t view;      /* newest view that is durable */
	uint64_t kept_view; /* view of the state that was restored at the scheduler's start */
	/* Time of the first HELLO that reported a view that this scheduler has lost. Such a HELLO
	 * shows that the restored state is outdated. 0: no HELLO reported a lost view. */
	uint64_t behind_ns;
	uint64_t tx_view; /* view of the open transaction; 0: none is open */
	bool is_undurable;
	/* all connected members are silent, so this host may be cut off (isolation.c) */
	bool is_isolated;
	/* Time at which is_isolated was last true; 0: is_isolated was never true. The silence of a
	 * member is measured from its last message or from isolated_ns, whichever is later. */
	uint64_t isolated_ns;
	uint32_t next_job, job_id_limit;
	uint64_t now_ns; /* time of the present event */
	uint64_t due_ns, beat_ns, grace_ns, retry_ns, started_ns;
	struct sched_nic_speeds speeds;
	uint64_t progress_ns; /* when the progress of all jobs was last computed */
	uint64_t stalls_ns;   /* when to check next whether jobs make progress (core/stalls.h) */
	uint64_t balance_ns;  /* when to check next for planned moves; 0: no check is due */
	uint64_t gathered_ns; /* when a server last joined or returned */
	uint64_t n_planned;   /* number of planned moves made since the scheduler's start */
	uint64_t changes;     /* number of transactions made durable since the scheduler's start */
	struct sched_conn *conns[CONN_BUCKETS];
	uint32_t n_silent;             /* number of connections that have not sent HELLO */
	struct sched_member **members; /* all members, indexed by member id; [0] is unused */
	uint32_t n_members, members_room;
	char **hosts;
	uint32_t n_hosts, hosts_room;
	struct sched_job *jobs;  /* list of the forming and running jobs, newest first */
	struct sched_job *ended; /* list of the ended jobs, newest first */
	uint32_t n_jobs, n_ended;
	/* number of requests that each quota has refused since the scheduler's start */
	uint64_t refused[SCHED_QUOTAS];
	struct sched_mute mutes[MUTES_MAX];
	uint32_t n_mutes;
	bool has_new_mutes; /* the open transaction changed the mutes */
	struct sched_member *dirty_members;
	struct sched_job *dirty_jobs;
	struct sched_probe *probes;
	uint32_t n_probes, probe_seq;
};
#endif
