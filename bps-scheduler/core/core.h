#ifndef BPS_SCHEDULER_CORE_CORE_H
#define BPS_SCHEDULER_CORE_CORE_H
/* The scheduler's core makes all decisions: which members (servers and agents) are alive, which
 * workers form a job, whether all agents have declared a tensor, and which server sums which
 * partition. The core is a state machine without I/O, clock or threads. The caller passes in the
 * events of connections and the time. Messages and durable records go out through struct sched_env.
 * The daemon, the unit tests and the simulator run this same code. A core must always be used by
 * the same thread. A core is cheap to create and to free.
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
 * Transactions. An event changes the objects in memory. At the end of the event, all changed
 * objects get one new view (a version number of the state). The core writes them to the state log
 * as one record, and only then sends the changes to the members. While the record cannot be
 * written, the core sends only BEAT and refusals. Members and jobs see no view change, and no
 * member is declared dead. New members and workers are refused with BPS_ENOTDURABLE. If a known
 * member returns during this time, the core closes the member's connection, so that the member
 * tries again. The core retries the write on every beat.
 *
 * After HELLO, the scheduler sends these messages to the member, in this order:
 * - WELCOME.
 * - PEERS with the live agents for a server, or the live servers for an agent, if there are any.
 * - JOB and PLAN for each running job. An agent receives only the jobs of its workers. A server
 *   receives all jobs, but only the partitions that are placed on this server.
 * - JOB_END for each job that ended recently. An agent receives only the jobs of its workers.
 * - PEERS without peers, which marks the end.
 * Then the member drops all jobs and partitions that these messages did not name. In this way a
 * server also drops the partitions that moved away while it counted as dead.
 *
 * After each WELCOME, a member repeats these messages, because the scheduler may have restarted:
 * - JOIN for every attached worker for which no JOB has arrived. The message is the same as the
 *   first JOIN. If a rank has been assigned since then, the message does not contain this rank,
 *   because a restarted scheduler may assign another rank. The agent needs the rank to handle JOB.
 *   Therefore the scheduler sends JOB after the new JOINED, even if it has sent JOB before.
 * - DECLARE for every tensor without an answer.
 * - WORKER FINISHED and WORKER LOST for jobs that have not ended.
 * All of these messages are idempotent. JOB_END answers a message about an unknown job.
 *
 * A restarted agent (new instance, same name) stays a member of its running jobs, and their
 * partitions keep their pgen (the view in which they were placed). The old pgen is safe, because
 * the agent's contributions are in memory that outlives its process. If the agent has lost a
 * worker, the agent sends WORKER LOST. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/model/config.h"
#include "common/base/error.h"

struct sched_core;

/* Set the defaults. Heartbeats are sent every 500 ms. A server is dead after 3 s of silence, and
 * has 1 s to return after its connection closed. An agent is dead after 5 s of silence, and has 5 s
 * to return after its connection closed. Agents must answer a probe within 1 s. */
void sched_config_default(struct sched_config *cfg);

/* Create a core without state. cfg and env are copied. */
struct sched_core *sched_new(const struct sched_config *cfg, const struct sched_env *env);
void sched_free(struct sched_core *c);

/* Apply a record of a previous process. May be called any number of times before sched_start.
 * Errors: -EINVAL if the record contradicts itself or earlier records; err names the object. */
int sched_restore(struct sched_core *c, const struct state_record *rec, struct err_text *err);

/* Begin a new term, which is larger than all previous terms and durable when this function returns.
 * Each member of the restored state must connect within twice the larger of server_dead_ms and
 * agent_dead_ms. Otherwise the core declares the member dead. Errors: the errors of env.persist.
 * After an error the core has not started. */
int sched_start(struct sched_core *c, uint64_t now_ns);

/* Apply the times and the quotas in cfg: the silence after which members are dead, the windows, and
 * the delays after which jobs and servers appear in the status as slow or stalled. A change does
 * not move the end of a window that has begun. Jobs and tensors that already exceed the quotas
 * stay. The name, the clock and the beat interval do not change, so the caller must keep
 * server_dead_ms and agent_dead_ms well above the beat interval. */
void sched_reconfigure(struct sched_core *c, const struct sched_config *cfg, uint64_t now_ns);

/* Report a new connection. The caller chooses the connection's number `conn`. No other open
 * connection may have this number. */
void sched_conn_open(struct sched_core *c, uint32_t conn, uint64_t now_ns);
/* Record that the peer of an open connection has proven its identity with the cluster's master key.
 * The status then shows a warning, because each member should have a key of its own. */
void sched_conn_note_master(struct sched_core *c, uint32_t conn);
/* Handle a decoded message. The caller still owns msg after the call. Messages from connections
 * that the core has dropped are ignored. */
void sched_receive_message(
	struct sched_core *c, uint32_t conn, const struct ctl_msg *msg, uint64_t now_ns);
void sched_conn_closed(struct sched_core *c, uint32_t conn, uint64_t now_ns);

/* Declare a member dead because its key is revoked, even if servers still receive data from it.
 * If the state cannot be written at this time, the core declares the member dead later. It does so
 * when the member's time to return is over and the state can be written. The call has no effect if
 * the member is connected, unknown or already dead. */
void sched_expel(struct sched_core *c, enum role role, const char *name, uint64_t now_ns);

/* Call sched_tick at the time that sched_next_deadline returns. Every event may change that time.
 * UINT64_MAX means that there is no deadline. If sched_tick is called more than 100 ms late, this
 * process was delayed. The function then moves the deadlines of all members by the delay. */
uint64_t sched_next_deadline(const struct sched_core *c);
void sched_tick(struct sched_core *c, uint64_t now_ns);

/* Return the term, which is the number of this start of the scheduler. Before sched_start, this is
 * the term of the previous start. */
uint32_t sched_current_term(const struct sched_core *c);
/* Return the newest view that is durable. */
uint64_t sched_current_view(const struct sched_core *c);
/* Return false while the state cannot be written to the disk. During that time members and jobs do
 * not change. */
bool sched_is_durable(const struct sched_core *c);

/* Pass the whole state to fn as one record, which is valid only while fn runs. Returns the result
 * of fn. */
int sched_snapshot(const struct sched_core *c, int (*fn)(void *ctx, const struct state_record *rec),
	void *ctx);

/* Start a probe for the status. First ask all agents of a running job for their workers' progress.
 * Then ask about the tensors for which calls have waited longest. Only agents that have answered
 * the first question get the second question. The core calls env.probe_done exactly once with this
 * token, within 1.25 * probe_ms after this function. Errors:
 *   BPS_ENOTFOUND: no job with this id is running
 *   BPS_EBUSY:     too many probes are under way */
int sched_probe_start(struct sched_core *c, uint32_t job, uint64_t token, uint64_t now_ns);

/* End a job that forms or runs. Its workers get BPS_EJOB_FAILED and this text. Errors:
 *   BPS_ENOTFOUND:           there is no job with this id
 *   BPS_ENOTDURABLE:         the state cannot be written, and the job is unchanged
 *   an error of env.persist: the job ends when the state can be written again */
int sched_job_kill(struct sched_core *c, uint32_t job, const char *text, uint64_t now_ns);

/* Mute a problem's code, or remove the mute (mute.h). The change is durable when the function
 * returns 0. Errors: the errors of mute_set or mute_clear; BPS_ENOTDURABLE, also for an order that
 * may repeat one which is not written yet; the errors of env.persist. After BPS_ENOTDURABLE or an
 * error of env.persist, the change is in effect, and the core writes it when the state can be
 * written again. */
int sched_mute(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who, uint64_t now_ns);
int sched_unmute(struct sched_core *c, const char *code, uint64_t now_ns);

/* Drain a member, or undrain it (drain.h). The change is durable when the function returns 0.
 * ret_text gets the consequences, or the reason of the error. sched_undrain returns 0 if the member
 * is not drained, and ret_text has this answer. Errors: the errors of drain_set_member or
 * drain_find_member; BPS_ENOTDURABLE, also for an order that repeats one which is not written yet;
 * the errors of env.persist. After BPS_ENOTDURABLE or an error of env.persist, the change is in
 * effect, and the core writes it when the state can be written again. */
int sched_drain(struct sched_core *c, const char *target, const char *reason, const char *who,
	uint64_t now_ns, struct err_text *ret_text);
int sched_undrain(
	struct sched_core *c, const char *target, uint64_t now_ns, struct err_text *ret_text);

struct sched_probe_worker {
	struct ctl_report_worker w;
	uint32_t agent; /* id of the worker's agent */
};
struct sched_probe {
	uint32_t seq;
	uint32_t job;
	uint32_t tensor;
	uint64_t round;
	/* agent whose WHY message started the probe; 0 if sched_probe_start or the core itself
	 * started it */
	uint32_t asker;
	/* the core started the probe itself, because the job makes no progress (stalls.h) */
	bool is_own;
	uint32_t asker_seq;
	uint64_t token;
	uint64_t deadline_ns;
	uint32_t bound_ms;  /* longest duration of the probe, in milliseconds */
	uint32_t n_members; /* number of the job's members, including those that are gone */
	uint32_t n_open;    /* number of agents that have not answered yet */
	bool *has_answered; /* indexed by member number: whether the agent has answered */
	/* indexed by member number: a text about the state of the agent's network, or NULL */
	char **texts;
	struct ctl_steps *steps; /* indexed by member number: where the time of steps went */
	struct sched_probe_worker *workers;
	uint32_t n_workers;
	/* Fields for the second step of a status probe. The second step consists of further probes,
	 * each for one tensor. */
	/* if this is a probe of the second step, the status probe that started it; else NULL */
	struct sched_probe *parent;
	/* Finished probes of the second step. In the workers of these probes, the field w.submitted
	 * is valid. In the workers of a probe of the first step, this field is not valid, because
	 * the first step asks about no tensor. */
	struct sched_probe *details;
	uint32_t n_details_open;
	struct sched_probe *next;
};
#endif
