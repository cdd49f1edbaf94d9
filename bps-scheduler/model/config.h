#ifndef BPS_SCHEDULER_MODEL_CONFIG_H
#define BPS_SCHEDULER_MODEL_CONFIG_H
/* Settings and limits of the scheduler's core, and its environment: the functions by which it acts
 * on the outside. */
#include <stdint.h>

#include "bps-scheduler/model/state.h"
#include "common/wire/ctlmsg.h"

#define SCHED_MEMBERS_MAX      65536
#define SCHED_JOBS_MAX         4096   /* forming and running */
#define SCHED_TENSORS_MAX      100000 /* of a job */
#define SCHED_TENSOR_BYTES_MAX (UINT64_C(1) << 40)
#define SCHED_PROBES_MAX       1024
#define SCHED_STATUS_PROBES    64 /* of them, for the status */
#define SCHED_DETAILS_MAX      8  /* tensors that a status probe asks about */

struct sched_config {
	const char *cluster; /* name for people; lives as long as the core */
	uint32_t beat_ms;
	uint32_t server_dead_ms; /* silence after which a server is declared dead */
	uint32_t agent_dead_ms;
	uint32_t server_window_ms; /* for a server to come back after its connection closed */
	/* A server is slow that takes longer from the last contribution to the sum; 0: none is. */
	uint32_t server_slow_ms;
	uint32_t agent_window_ms; /* longer: its loss ends jobs, a server's only moves partitions */
	uint32_t probe_ms;        /* agents' time to answer a PROBE */
	uint32_t hello_ms;        /* a connection's time to say HELLO */
	/* A worker that others have waited for so long is stalled; probes begin at half of it. */
	uint32_t stall_ms;
	uint32_t forming_ms; /* a job that waits for workers for longer is reported */
	/* Quotas; 0: none but SCHED_JOBS_MAX and SCHED_TENSORS_MAX. */
	uint32_t user_jobs, job_tensors;
	uint32_t job_share, user_share; /* percent of the servers' memory */
	/* What the core's clock means elsewhere, for what is durable and ends (mute.h). */
	uint8_t boot_id[STATE_ID_BYTES]; /* of the machine's boot that it counts from */
	int64_t unix_offset_s;           /* of the wall clock, at the start */
};

struct sched_probe; /* core.h */

/* An event for people. Reported when it is decided, which may be before the view is durable. Nothing
 * depends on it. */
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
	const char *text; /* one sentence; the core's, for the call */
};
#define SCHED_EVENT_BYTES 256

struct sched_env {
	void *ctx;
	/* Queue msg on a connection; what it points to is the core's. Must not call the core; if
	 * the connection breaks, say so later with sched_conn_closed. */
	void (*send)(void *ctx, uint32_t conn, const struct ctl_msg *msg);
	/* Close conn after what was sent. The core has forgotten it: no further event may name
	 * it. */
	void (*drop)(void *ctx, uint32_t conn, const char *why);
	/* Make the record durable before returning. 0, or an error: it is offered again later,
	 * with more. */
	int (*persist)(void *ctx, const struct state_record *rec);
	void (*random)(void *ctx, void *ret, size_t n_bytes);
	/* Key for tickets between two instances: a function of secret and these, the same at
	 * every call. */
	void (*pair_key)(void *ctx, const uint8_t secret[STATE_SECRET_BYTES],
		uint64_t agent_instance, uint64_t server_instance, uint8_t ret_key[CTL_KEY_BYTES]);
	/* The answer to sched_probe_start. May be NULL when that is not used. Must not call the
	 * core. */
	void (*probe_done)(void *ctx, uint64_t token, const struct sched_probe *p);
	/* May be NULL. Must not call the core. */
	void (*event)(void *ctx, const struct sched_event *e);
};

#endif
