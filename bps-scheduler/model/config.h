#ifndef BPS_SCHEDULER_MODEL_CONFIG_H
#define BPS_SCHEDULER_MODEL_CONFIG_H
/* Settings and limits of the scheduler's core, and its environment: the functions through which it
 * acts on the outside. */
#include <stdint.h>

#include "bps-scheduler/model/state.h"
#include "common/wire/ctlmsg.h"

#define SCHED_MEMBERS_MAX      65536
#define SCHED_JOBS_MAX         4096   /* forming and running */
#define SCHED_TENSORS_MAX      100000 /* per job */
#define SCHED_TENSOR_BYTES_MAX (UINT64_C(1) << 40)
#define SCHED_PROBES_MAX       1024
#define SCHED_STATUS_PROBES    64 /* probes for the status at a time */
#define SCHED_DETAILS_MAX      8  /* tensors that a status probe asks about */

struct sched_config {
	const char *cluster; /* shown to users; must outlive the core */
	uint32_t beat_ms;
	uint32_t server_dead_ms; /* silence after which a server is declared dead */
	uint32_t agent_dead_ms;
	uint32_t server_window_ms; /* time for a server to return after its connection closed */
	/* A server is slow if it takes longer than this from the last contribution to the sum. 0:
	 * disabled. */
	uint32_t server_slow_ms;
	/* the same for an agent; longer, because losing an agent ends jobs */
	uint32_t agent_window_ms;
	uint32_t probe_ms; /* time for agents to answer a PROBE */
	uint32_t hello_ms; /* time for a new connection to send HELLO */
	/* A worker is stalled when others have waited for it for this long. Probes start at half of
	 * it. */
	uint32_t stall_ms;
	uint32_t forming_ms; /* report a job that waits for workers for longer than this */
	/* Quotas. 0: only SCHED_JOBS_MAX and SCHED_TENSORS_MAX apply. */
	uint32_t user_jobs, job_tensors;
	uint32_t job_share, user_share; /* percent of the servers' memory */
	/* I12: percent of the servers' memory that is left to users with little */
	uint32_t small_reserve;
	/* Relates the core's clock to other clocks, for durable end times (mute.h). */
	/* boot of the machine from which the core's clock counts */
	uint8_t boot_id[STATE_ID_BYTES];
	int64_t unix_offset_s; /* wall clock minus the core's clock, at the start */
};

struct sched_probe; /* see core.h */

/* An event for users. Reported when it is decided, which may be before the view is durable. No
 * decision depends on it. */
enum sched_event_kind {
	EVENT_SCHEDULER,
	EVENT_VIEW,
	EVENT_MEMBER,
	EVENT_JOB,
	EVENT_PARTITIONS,
	EVENT_STEER,
	EVENT_HEALTH,
	EVENT_KINDS
};
struct sched_event {
	enum sched_event_kind kind;
	uint64_t view;
	const char *text; /* one sentence; owned by the core, valid during the call */
};
#define SCHED_EVENT_BYTES 256

struct sched_env {
	void *ctx;
	/* Queue msg on a connection. The memory that it points to belongs to the core. Must not
	 * call the core. If the connection breaks, report that later with sched_conn_closed. */
	void (*send)(void *ctx, uint32_t conn, const struct ctl_msg *msg);
	/* Close conn after the queued messages were sent. The core has forgotten the connection: no
	 * later event may name it. */
	void (*drop)(void *ctx, uint32_t conn, const char *why);
	/* Make the record durable before returning. Returns 0 or an error. After an error the core
	 * offers the changes again later, together with newer ones. */
	int (*persist)(void *ctx, const struct state_record *rec);
	void (*random)(void *ctx, void *ret, size_t n_bytes);
	/* Derive the key for tickets between two instances. The result depends only on secret and
	 * the other arguments. */
	void (*pair_key)(void *ctx, const uint8_t secret[STATE_SECRET_BYTES],
		uint64_t agent_instance, uint64_t server_instance, uint8_t ret_key[CTL_KEY_BYTES]);
	/* Receives the answer to sched_probe_start. May be NULL if that is not used. Must not call
	 * the core. */
	void (*probe_done)(void *ctx, uint64_t token, const struct sched_probe *p);
	/* May be NULL. Must not call the core. */
	void (*event)(void *ctx, const struct sched_event *e);
};

#endif
