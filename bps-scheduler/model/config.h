#ifndef BPS_SCHEDULER_MODEL_CONFIG_H
#define BPS_SCHEDULER_MODEL_CONFIG_H
/* Settings and limits of the scheduler's core (core/core.h), and struct sched_env: the callbacks
 * through which the core sends messages, stores its state and reports events. */
#include <stdint.h>

#include "bps-scheduler/model/state.h"
#include "common/wire/ctlmsg.h"

#define SCHED_MEMBERS_MAX 65536
/* largest number of jobs that form or run; ended jobs do not count */
#define SCHED_JOBS_MAX         4096
#define SCHED_TENSORS_MAX      100000 /* largest number of tensors per job */
#define SCHED_TENSOR_BYTES_MAX (UINT64_C(1) << 40)
#define SCHED_PROBES_MAX       1024
/* largest number of probes that run at the same time for status requests */
#define SCHED_STATUS_PROBES 64
/* largest number of tensors about which one status probe asks in detail */
#define SCHED_DETAILS_MAX 8

struct sched_config {
	/* name of the cluster, shown to users; the string must outlive the core */
	const char *cluster;
	uint32_t beat_ms;
	uint32_t server_dead_ms; /* silence after which a server is declared dead */
	uint32_t agent_dead_ms;
	/* time within which a server may return after its connection closed */
	uint32_t server_window_ms;
	/* The status reports a server as slow if the server needs more than this time to complete a
	 * round's sum. The time starts when the server receives the round's last contribution. 0:
	 * the status reports no server as slow. */
	uint32_t server_slow_ms;
	/* Time within which an agent may return after its connection closed. The default is longer
	 * than for a server, because the loss of an agent ends jobs. */
	uint32_t agent_window_ms;
	uint32_t probe_ms; /* time within which agents must answer a PROBE */
	uint32_t hello_ms; /* time within which a new connection must send HELLO */
	/* A worker counts as stalled when other workers have waited for it for this time. Probes of
	 * the job's agents start after half of this time. */
	uint32_t stall_ms;
	/* the status reports a job that waits longer than this for its workers to join */
	uint32_t forming_ms;
	/* Quotas: jobs per user and tensors per job. 0: no limit other than SCHED_JOBS_MAX and
	 * SCHED_TENSORS_MAX. */
	uint32_t user_jobs, job_tensors;
	/* largest part of the servers' memory that a job or a user may use, in percent; 0: no
	 * limit */
	uint32_t job_share, user_share;
	/* Size of the reserve for users whose tensors need little memory, in percent of the
	 * servers' memory (rule I12 of docs/reference/faults.md). */
	uint32_t small_reserve;
	/* boot_id and unix_offset_s relate the core's clock to the wall clock, because times in the
	 * state log must stay valid after a reboot (mute.h). */
	/* id of this machine's present boot; the core's clock counts from that boot */
	uint8_t boot_id[STATE_ID_BYTES];
	/* seconds of the wall clock minus seconds of the core's clock, taken at the scheduler's
	 * start */
	int64_t unix_offset_s;
};

struct sched_probe; /* defined in core.h */

/* An event for users, which the command `bpsctl events` shows. The core reports a change as soon as
 * it is decided, which may be before the change is on disk. The core never acts on an event. */
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
	/* text of the event, one sentence; the core owns the text, which is valid only during the
	 * call */
	const char *text;
};
#define SCHED_EVENT_BYTES 256

struct sched_env {
	void *ctx;
	/* Queue msg on a connection. The memory behind the pointers in msg belongs to the core and
	 * is valid only during the call. The callback must not call the core. If the connection
	 * breaks, call sched_conn_closed later. */
	void (*send)(void *ctx, uint32_t conn, const struct ctl_msg *msg);
	/* Close conn after the queued messages were sent. The core has already freed its record of
	 * conn, so do not report later events of conn to the core. */
	void (*drop)(void *ctx, uint32_t conn, const char *why);
	/* Write the record to the disk before returning. Returns 0 or an error. After an error the
	 * core calls persist again later. The later record contains the changes of this record and
	 * all newer changes. */
	int (*persist)(void *ctx, const struct state_record *rec);
	void (*random)(void *ctx, void *ret, size_t n_bytes);
	/* Derive the key with which the agent process proves its identity to the server process.
	 * Equal arguments give equal keys. */
	void (*pair_key)(void *ctx, const uint8_t secret[STATE_SECRET_BYTES],
		uint64_t agent_instance, uint64_t server_instance, uint8_t ret_key[CTL_KEY_BYTES]);
	/* Called with the answer to sched_probe_start. May be NULL if sched_probe_start is never
	 * called. Must not call the core. */
	void (*probe_done)(void *ctx, uint64_t token, const struct sched_probe *p);
	/* Called for each event. May be NULL. Must not call the core. */
	void (*event)(void *ctx, const struct sched_event *e);
};

#endif
