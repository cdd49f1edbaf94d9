#ifndef BPS_SCHEDULER_CORE_CORE_H
#define BPS_SCHEDULER_CORE_CORE_H
/* The scheduler's decisions: members and their liveness, jobs, agreement on tensors, placement,
 * views. A state machine without I/O, clock or threads: connections' events and the time come
 * in, messages and durable records go out through struct sched_env. The daemon, the unit tests
 * and the simulator run this same code. One thread; a core is cheap to make and to free.
 *
 *   member   EXPECTED -----------grace over------------.       (EXPECTED: from the state log)
 *                |        ,---------silence------------.|
 *              HELLO      |                            vv
 *                `-----> UP --closed--> SUSPECT --> DOWN       (SUSPECT: until its window is over)
 *                        ^^----HELLO-------'         |
 *                        `-----------HELLO-----------'
 *   job      FORMING --all ranks joined--> RUNNING --all finished, or a loss, or FAIL--> ENDED
 *   tensor   COLLECTING --all agents declared--> READY --placed, durable--> PLACED;  or FAILED
 *
 * Transactions. An event changes the objects in memory; at its end everything that changed gets
 * one new view, is made durable as one record and only then sent. While the record cannot be
 * written nothing is sent but BEAT and refusals: members and jobs see no view change, nobody is
 * declared dead, new members and workers are answered BPS_ENOTDURABLE, members that come back
 * are dropped (they try again), and the write is tried again on every beat.
 *
 * What a member gets after its HELLO: WELCOME; PEERS with all counterparts, if there are any;
 * for each job that concerns it JOB and PLAN (an agent: its jobs; a server: all jobs, and the
 * runs that it has); JOB_END for jobs of its that ended of late; and, as the mark of the end, a
 * PEERS with no peers. It drops whatever was not named before that mark. That is also how a
 * server learns what moved away while it was taken for dead.
 *
 * What a member repeats after each WELCOME, since the scheduler may have restarted: JOIN of
 * every attached worker whose JOB has not come (as it was first sent: an assigned rank may have
 * changed, so JOB means nothing before the new JOINED, which it follows), DECLARE of every
 * tensor without an answer, WORKER FINISHED and LOST of jobs that have not ended, WHY. All of
 * these are idempotent. A message about a job that is not known is answered by JOB_END.
 *
 * A restarted agent (new instance, same name) stays a member of its running jobs and changes no
 * pgen: its contributions are in memory that outlives it. If it has lost a worker, it says so
 * (WORKER LOST). */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/config.h"
#include "common/base/error.h"

struct sched_core;

/* Beats of 500 ms, servers dead after 3 s, agents after 5 s, windows 1 s and 5 s, probes 1 s. */
void sched_config_default(struct sched_config *cfg);

/* A core without state. cfg is copied, env is copied. */
struct sched_core *sched_new(const struct sched_config *cfg, const struct sched_env *env);
void sched_free(struct sched_core *c);

/* Apply a record of an earlier life; any number of times, before sched_start.
 * Errors: -EINVAL the record contradicts itself or those before it; err says where. */
int sched_restore(struct sched_core *c, const struct state_record *rec, struct err_text *err);

/* Begin a term: one larger than ever before, durable when this returns. Members of the restored
 * state have twice the dead time to come back. Errors: what persist returned; the core has not
 * started. */
int sched_start(struct sched_core *c, uint64_t now_ns);

/* Change the dead times and windows to those of cfg; windows that have begun stay as they are. The
 * beats stay as they were, so that the caller keeps the dead times well above them. */
void sched_set_times(struct sched_core *c, const struct sched_config *cfg, uint64_t now_ns);

/* Change the quotas to those of cfg; what is beyond them already stays. */
void sched_set_quotas(struct sched_core *c, const struct sched_config *cfg);

/* The shell chose conn for a new connection; no live connection has that number. */
void sched_conn_open(struct sched_core *c, uint32_t conn, uint64_t now_ns);
/* A decoded message came; msg stays the caller's. Messages of connections that the core dropped
 * are ignored. */
void sched_message(struct sched_core *c, uint32_t conn, const struct ctl_msg *msg, uint64_t now_ns);
void sched_conn_closed(struct sched_core *c, uint32_t conn, uint64_t now_ns);

/* A member that is not connected may not come back (its key is revoked): it is dead at once, also
 * where servers still hear it; while the record cannot be written, after its time. Nothing when it
 * is connected, unknown or dead. */
void sched_expel(struct sched_core *c, enum role role, const char *name, uint64_t now_ns);

/* Call sched_tick at sched_next_deadline (UINT64_MAX: nothing to wait for), which changes with
 * every event. A tick that comes late by more than 100 ms moves the deadlines of all members by
 * as much. */
uint64_t sched_next_deadline(const struct sched_core *c);
void sched_tick(struct sched_core *c, uint64_t now_ns);

/* Number of this start; before sched_start that of the last one. */
uint32_t sched_term(const struct sched_core *c);
/* The last durable view. */
uint64_t sched_view(const struct sched_core *c);
/* False: the state cannot be written, and nothing changes until it can be. */
bool sched_is_durable(const struct sched_core *c);

/* Everything as one record, valid during fn. */
int sched_snapshot(const struct sched_core *c, int (*fn)(void *ctx, const struct state_record *rec),
	void *ctx);

/* Ask all agents of a running job for their workers' progress, then those that answered for the
 * tensors that calls wait for longest; env.probe_done is called once, later, with the same token:
 * within probe_ms and a quarter of it. Errors: BPS_ENOTFOUND no such job is running, BPS_EBUSY too
 * many probes. */
int sched_probe_start(struct sched_core *c, uint32_t job, uint64_t token, uint64_t now_ns);

/* End a job that forms or runs, with BPS_EJOB_FAILED and this text for its workers.
 * Errors: BPS_ENOTFOUND; BPS_ENOTDURABLE, with the job as it was, or, when the disk fails only now,
 * about to end. */
int sched_job_kill(struct sched_core *c, uint32_t job, const char *text, uint64_t now_ns);

/* Mute a problem's code, or end that (mute.h). Durable when it returns 0.
 * Errors: as mute_set and mute_clear; BPS_ENOTDURABLE, or what persist returned: the change holds,
 * and the record is offered again. */
int sched_mute(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who, uint64_t now_ns);
int sched_unmute(struct sched_core *c, const char *code, uint64_t now_ns);

/* Drain a member, or end that (drain.h). Durable when it returns 0. ret_text: what follows from it,
 * or why not. Errors: as drain_set and drain_clear; BPS_ENOTDURABLE, or what persist returned: the
 * change holds, and the record is offered again. */
int sched_drain(struct sched_core *c, const char *target, const char *reason, const char *who,
	uint64_t now_ns, struct err_text *ret_text);
int sched_undrain(
	struct sched_core *c, const char *target, uint64_t now_ns, struct err_text *ret_text);

struct sched_probe_worker {
	struct ctl_report_worker w;
	uint32_t agent; /* id */
};
struct sched_probe {
	uint32_t seq;
	uint32_t job;
	uint32_t tensor;
	uint64_t round;
	uint32_t asker; /* agent, 0: sched_probe_start, or the core */
	bool is_own;    /* of the core: a job stands still (stalls.h) */
	uint32_t asker_seq;
	uint64_t token;
	uint64_t deadline_ns;
	uint32_t bound_ms;  /* from the question to then */
	uint32_t n_members; /* of the job */
	uint32_t n_open;    /* asked and not answered yet */
	bool *has_answered; /* [n_members] */
	char **texts;       /* [n_members], NULL or the agent's text */
	struct sched_probe_worker *workers;
	uint32_t n_workers;
	/* Of the status: the questions about one tensor each that follow. */
	struct sched_probe *parent;  /* of such a question */
	struct sched_probe *details; /* answered ones, w.submitted is set in their workers */
	uint32_t n_details_open;
	struct sched_probe *next;
};
#endif
