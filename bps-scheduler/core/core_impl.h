#ifndef BPS_SCHEDULER_CORE_CORE_IMPL_H
#define BPS_SCHEDULER_CORE_CORE_IMPL_H
/* Inside of the scheduler's core: its objects, for the files that make it up and, to read only, for
 * status.c and steer.c:
 *   core.c     events, connections, time, life
 *   members.c  members: how they come, are missed and go
 *   commit.c   the end of an event: what changed is made durable and told
 *   job.c      jobs and their workers
 *   elastic.c  machines that leave a running job, or join it, and barriers
 *   tensor.c   tensors: declared, compared, numbered
 *   place_apply.c  which server has which partition
 *   drain.c    members that are to get nothing new
 *   balance.c  partitions that move without need: away from such, towards new servers
 *   plan.c     telling members of a job
 *   admission.c    who may join a job, and quotas
 *   why_stuck.c      probes
 *   progress.c     how fast it all goes
 *   speed.c    how fast the members' network cards are
 *   mute.c     problems that nobody wants to see
 *   record.c   the state as records, and back
 *   check.c    invariants
 * Out of memory ends the process: all state that matters is durable, the data path
 * does not need the scheduler, and every table here is bounded. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/core/mute.h"
#include "bps-scheduler/core/progress.h"
#include "bps-scheduler/placement/place.h"
#include "bps-scheduler/placement/speed.h"
#include "common/wire/wire.h"

#define NS_PER_MS    UINT64_C(1000000)
#define NS_PER_S     UINT64_C(1000000000)
#define CONN_BUCKETS 64
#define ENDED_MAX    64
#define SERVER_ANY   0 /* ids start at 1 */
#define JOB_ID_BLOCK 1024
#define STATE_BIT(s) (1u << (s)) /* of a set of states */

struct sched_member;
struct sched_job;

struct sched_conn {
	uint32_t id;
	struct sched_member *member; /* NULL before HELLO */
	bool is_known;               /* its HELLO named a member that was there already */
	uint64_t deadline_ns;        /* for HELLO */
	struct sched_conn *next;
};

enum member_state { MEMBER_EXPECTED, MEMBER_UP, MEMBER_SUSPECT, MEMBER_DOWN, MEMBER_STATES };

struct sched_member {
	uint32_t id;
	enum role role;
	enum member_state state;
	bool is_dirty; /* in c->dirty_members: to be persisted and told */
	bool needs_sync;
	char *name, *host, *addr, *version;
	uint32_t host_idx; /* in c->hosts */
	uint32_t pid;
	uint16_t port, threads;
	uint64_t nic_mbps, quota_bytes, instance;
	uint64_t former_instance; /* that this one replaced while it was live; 0: none */
	struct sched_conn *conn;
	uint64_t heard_ns;    /* last message */
	uint64_t deadline_ns; /* EXPECTED, SUSPECT: dead then */
	uint64_t since_ns;    /* of the state */
	uint64_t moved_ns;    /* progress changed */
	/* Agent, rule C4: when a server last heard it, and when they were last asked; 0: never. */
	uint64_t seen_ns, asked_ns;
	bool is_drained;                /* durable: gets nothing new, see drain.h */
	bool is_leaving;                /* server: this instance is about to end */
	bool has_left;                  /* is_leaving: it was told LEFT */
	char *drain_reason, *drain_who; /* when is_drained */
	bool is_behind; /* agent: something of its jobs could not be told to it, or it may not be */
	char why_down[64];
	struct ctl_beat beat; /* last one, without its lists */
	struct sched_server_report
		*reports; /* what it told of jobs then; room for CTL_BEAT_JOBS_MAX */
	uint32_t n_reports;
	struct sched_traffic rate;
	struct sched_nic_speed speed;
	struct sched_sum_delay sums; /* server */
	uint64_t last_rounds;        /* of the beat before */
	uint64_t tx_seq;
	uint64_t *thread_bytes; /* server: [threads], all jobs */
	uint64_t scaled_bytes;  /* server: sum over jobs of members x bytes */
	uint32_t restart_count;
	struct sched_member *next_dirty;
};

/* GONE: its machine has left the running job. */
enum worker_state { WORKER_ABSENT, WORKER_ATTACHED, WORKER_DONE, WORKER_GONE };
struct sched_worker {
	enum worker_state state;
	uint32_t agent, pid, seq;
	bool is_fresh;    /* let in with this transaction: JOINED is to be sent */
	uint64_t barrier; /* at which it waits, or the last one at which it did */
};

struct sched_part {
	uint64_t pgen, instance;
	uint32_t server; /* CTL_NO_ID: none */
	uint32_t former; /* the server before this pgen, which has to hear of it; 0: none */
	uint16_t thread;
};

enum tensor_state { TENSOR_COLLECTING, TENSOR_READY, TENSOR_PLACED, TENSOR_FAILED, TENSOR_STATES };
struct sched_tensor {
	uint32_t id; /* CTL_NO_ID before READY */
	enum tensor_state state;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t part_elems, n_parts;
	struct sched_part *parts; /* NULL in jobs of one member */
	char *name, *fail_text;
	int fail_code;
	uint32_t first_rank; /* who declared it first */
	uint64_t since_ns;   /* then; 0: restored */
	uint32_t n_declared;
	uint64_t *declared; /* bits of members; NULL once placed or restored */
	struct sched_tensor *next_hash, *next_fresh;
};

enum job_state { JOB_FORMING, JOB_RUNNING, JOB_ENDED, JOB_STATES };
/* Keeps its number when it is gone: results of before name it. */
struct sched_job_member {
	uint32_t agent, n_ranks, low_rank;
	uint32_t local_size; /* that it will have in an elastic job */
	bool is_gone;
	bool is_untold;    /* it is gone, and does not know yet */
	bool is_owed_plan; /* it asked for one that is not durable yet */
	char *why;         /* it is gone */
	uint64_t since;    /* view */
};
/* A worker that waits to be let into a running job. */
struct sched_newcomer {
	uint32_t agent, pid, seq, asked_rank, local_size;
};
struct sched_job {
	uint32_t id, uid;
	enum job_state state;
	char *name;
	uint32_t size, flags, part_bytes;
	uint16_t backup; /* machines that a round need not wait for */
	uint32_t grace_ms;
	uint32_t max_size; /* 0: not elastic, and size holds */
	uint64_t barrier;  /* last one that all have passed */
	uint64_t border,
		border_barrier; /* of the last one at which workers were let in: its view */
	uint32_t n_at_barrier;  /* workers that wait at the next one */
	struct sched_newcomer *newcomers;
	uint32_t n_newcomers, newcomers_room;
	bool has_token;
	uint8_t token[CTL_TOKEN_BYTES]; /* its proof; see admission.c */
	uint64_t view;                  /* of its members */
	uint64_t formed, since_ns;
	struct sched_worker *workers; /* [n_room], rank is the index */
	uint32_t n_room, next_free_rank;
	uint32_t n_joined, n_gone; /* n_joined: without those that are gone */
	uint32_t n_done;           /* of n_joined */
	struct sched_job_member *members;
	uint32_t n_members, members_room;
	uint32_t n_left;               /* members that are gone */
	struct sched_tensor **buckets; /* [n_buckets], by name */
	uint32_t n_buckets, n_tensors;
	struct sched_tensor **placed; /* by id */
	uint32_t n_placed, placed_room;
	struct sched_tensor *fresh, **fresh_tail; /* READY, or PLACED in this transaction */
	uint64_t bytes;                           /* of READY and PLACED tensors */
	uint64_t claimed_bytes;                   /* of all but FAILED ones */
	uint64_t *loads;                          /* [n_loads], bytes by server id */
	uint32_t n_loads;
	uint32_t n_orphans; /* parts without server */
	struct sched_progress pace;
	uint32_t stalled_tensor; /* of the last event about a trainer that has stalled */
	uint64_t stalled_round;  /* 0: there was none */
	uint32_t code;
	char *end_text;
	bool is_dirty;   /* in c->dirty_jobs */
	bool is_changed; /* JOB or JOB_END is to be sent */
	bool has_moved;  /* parts of tensors that are not fresh */
	bool owes_plans; /* to some of its members */
	/* Planned moves (balance.h): */
	bool wants_balance;            /* servers have come since its partitions were placed */
	uint32_t batch;                /* partitions that move at a time; 0: none are moving */
	uint64_t moved_ns, moved_view; /* of the last of them */
	struct sched_job *next, *next_dirty;
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
	uint64_t view;    /* durable */
	uint64_t tx_view; /* 0, or the view of the open transaction */
	bool is_undurable;
	bool is_alone;     /* no member is heard: isolation.c */
	uint64_t alone_ns; /* when that was so last, 0: never; silence counts from then */
	uint32_t next_job, job_id_limit;
	uint64_t now_ns; /* of the present event */
	uint64_t due_ns, beat_ns, grace_ns, retry_ns, started_ns;
	struct sched_nic_speeds speeds;
	uint64_t pace_ns;     /* when the jobs' pace was last looked at */
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

/* core.c */
/* Zeroed memory, the caller's to free(); never NULL, see above. grow: of a table of *room
 * entries. */
void *sched_alloc(size_t n, size_t bytes);
void *sched_grow(void *p, uint32_t *room, uint32_t need, size_t bytes);
char *sched_dup(const char *s);
/* An event for people, by env.event. */
void sched_note(struct sched_core *c, enum sched_event_kind kind, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Something is due then; sched_next_deadline is no later. */
void sched_arm(struct sched_core *c, uint64_t at_ns);
/* Nothing when it is not connected: it is told everything when it is again. */
void sched_send(struct sched_core *c, const struct sched_member *m, const struct ctl_msg *msg);
/* Close this connection and forget it; a member keeps its state. */
void sched_conn_drop(struct sched_core *c, uint32_t id, const char *why);
/* A number that no job has had. CTL_NO_ID: the disk does not take the next block of them. */
uint32_t sched_job_id_take(struct sched_core *c);

/* members.c */
/* NULL: no such id. */
struct sched_member *sched_member(const struct sched_core *c, uint32_t id);
const char *sched_role_name(enum role role);
const char *sched_member_state_name(enum member_state s);
/* Make the connection that of the member in its first message, a new one or one that returns.
 * False: it was refused. Else the caller commits, then sends WELCOME or undoes it. */
bool sched_hello(struct sched_core *c, struct sched_conn *conn, const struct ctl_hello *h);
/* The state cannot be written. Until it can, the member must learn nothing of the new state. */
void sched_hello_undo(struct sched_core *c, struct sched_conn *conn);
/* sched_expel, within an event. */
void sched_member_expel(struct sched_core *c, enum role role, const char *name);
/* m, which is UP, has lost its connection; it has its window to come back. */
void sched_member_suspect(struct sched_core *c, struct sched_member *m, const char *why);
/* Close the connection of a member that broke the protocol; it may come back. */
void sched_kick(struct sched_core *c, struct sched_member *m, const char *why);
/* A server hears an agent that is silent here. */
void sched_seen(struct sched_core *c, const struct ctl_sight *s);
/* Silence after which it is dead. */
uint64_t sched_member_dead_ns(const struct sched_core *c, const struct sched_member *m);
/* Is it dead by now? Else arm for when it will be. */
void sched_member_check(struct sched_core *c, struct sched_member *m);
/* ---- isolation.c: before the members are checked ---- */
void isolation_tick(struct sched_core *c);
/* NULL is allowed. */
void sched_member_free(struct sched_member *m);
static inline bool sched_is_usable(const struct sched_member *m)
{
	return m->state != MEMBER_DOWN;
}
/* It is to be persisted and told with the transaction under way. */
void sched_member_dirty(struct sched_core *c, struct sched_member *m);
/* Does it get what is new? */
static inline bool sched_is_open(const struct sched_member *m)
{
	return sched_is_usable(m) && !m->is_drained && !m->is_leaving;
}

/* commit.c */
/* Something durable changes: the view that it will have, of the transaction under way. */
uint64_t sched_change(struct sched_core *c);
/* End of an event: give the changes a view, make them durable, tell. is_retry: the last write
 * failed, try again.
 * Errors: BPS_ENOTDURABLE or what the disk said: the changes stay, and nothing is told. */
int sched_commit(struct sched_core *c, bool is_retry);
/* Write what changed, by env.persist. Errors: what that answers. */
int sched_persist(struct sched_core *c);
/* WELCOME and everything that concerns m. */
void sched_send_sync(struct sched_core *c, struct sched_member *m);
/* Forget all but the ENDED_MAX jobs that ended last. */
void sched_trim_ended(struct sched_core *c);

/* job.c */
const char *sched_job_state_name(enum job_state s);
/* A job that has not ended, or NULL. */
struct sched_job *sched_job(const struct sched_core *c, uint32_t id);
struct sched_job *sched_job_any(const struct sched_core *c, uint32_t id); /* ended ones too */
/* Its number; CTL_NO_ID: not one, or gone. */
uint32_t sched_job_member(const struct sched_job *j, uint32_t agent);
/* Also of one that is gone. */
uint32_t sched_job_member_ever(const struct sched_job *j, uint32_t agent);
/* Of that agent's machine; "?" when there is no such agent. */
const char *sched_host_of(const struct sched_core *c, uint32_t agent);
/* It is to be persisted and told with the transaction under way. */
void sched_job_dirty(struct sched_core *c, struct sched_job *j);
/* On no list yet. name: copied. */
struct sched_job *sched_job_new(uint32_t id, uint32_t uid, const char *name, uint32_t size);
void sched_job_free(struct sched_core *c, struct sched_job *j);
/* m speaks of a job that does not run: say how it ended, or that nobody knows it. */
void sched_job_unknown(struct sched_core *c, const struct sched_member *m, uint32_t id);
/* Messages of a member; msg is lent. Nonsense closes its connection. */
void sched_join(struct sched_core *c, struct sched_member *m, const struct ctl_join *msg);
void sched_worker(struct sched_core *c, struct sched_member *m, const struct ctl_worker *msg);
void sched_fail(struct sched_core *c, struct sched_member *m, const struct ctl_fail *msg);
void sched_kill(struct sched_core *c, struct sched_job *j, const char *text);
/* An agent is dead, which ends its jobs or takes it out of them (sched_member_lost), or restarted:
 * then it joins its waiting workers again. */
void sched_agent_gone(struct sched_core *c, struct sched_member *m, bool is_dead);
/* Room for that rank is made. Lent until the next call. */
struct sched_worker *sched_worker_at(struct sched_job *j, uint32_t rank);
/* The entry of an agent, which has none. */
struct sched_job_member *sched_job_member_add(struct sched_job *j, uint32_t agent);
/* That rank, which nobody has, is at this agent now. seq: of its JOIN. */
void sched_job_attach(
	struct sched_job *j, uint32_t rank, uint32_t agent, uint32_t pid, uint32_t seq);

/* It is over; every member is told when that is durable. fmt: why, "" when all have finished. */
void sched_job_over(struct sched_core *c, struct sched_job *j, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* All its workers that are left have finished: it is over. */
void sched_job_check_done(struct sched_core *c, struct sched_job *j);

/* elastic.c */
/* Member i of a running job is lost, and cannot come back to it. The job is over, or goes on
 * without when it may. code: what is over ends with; fmt: why. */
void sched_member_lost(struct sched_core *c, struct sched_job *j, uint32_t i, int code,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* m speaks of a job that it has been put out of: say so, unless that is not durable yet. False: it
 * has not been. */
bool sched_send_evicted(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Rank `rank` of m, which is its, waits at barrier n. */
void sched_at_barrier(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	uint32_t rank, uint64_t n);
/* A worker wants to join j, which runs; it is let in at the next barrier. Errors: BPS_EDUP with a
 * sentence. */
int sched_newcomer(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const struct ctl_join *q, struct err_text *err);
/* The worker of m's JOIN seq has left. No effect when it does not wait: it has been let in, and is
 * lost as any other, or was never heard of. */
void sched_unjoin(struct sched_core *c, const struct sched_member *m, uint32_t seq);
/* Nobody of that agent waits any more; agent CTL_NO_ID: of any, and they are told that it is
 * over. */
void sched_newcomers_drop(struct sched_core *c, struct sched_job *j, uint32_t agent);
/* Tell m the ranks of its workers that this transaction lets in. */
void sched_send_joined(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* Load of j's partitions when it has n_members instead of `was`. */
void sched_job_rescale(struct sched_core *c, const struct sched_job *j, uint32_t was);
/* Ranks of j are below it. */
static inline uint32_t sched_rank_bound(const struct sched_job *j)
{
	return j->max_size > j->size ? j->max_size : j->size;
}
/* Put member i out of j; also when records are read. */
void sched_member_drop(struct sched_core *c, struct sched_job *j, uint32_t i, const char *why);

/* tensor.c */
/* That member is gone: what only it has not declared is complete. */
void sched_tensors_undeclare(struct sched_core *c, struct sched_job *j, uint32_t member);
void sched_declare(struct sched_core *c, struct sched_member *m, const struct ctl_declare *msg);
/* Owns: the job has t from now on. Its name is not there yet. */
void sched_tensor_add(struct sched_job *j, struct sched_tensor *t);
/* NULL: not declared. */
struct sched_tensor *sched_tensor_find(const struct sched_job *j, const char *name);
/* Give t, whose shape and part_elems are set, its number and its (unplaced) partitions. */
void sched_tensor_publish(struct sched_job *j, struct sched_tensor *t);
/* Forget all tensors of j, and their load on servers. */
void sched_job_drop_tensors(struct sched_core *c, struct sched_job *j);
/* The only writer of a part: keeps the loads of servers and threads. server: NULL for none. */
void sched_part_set(struct sched_core *c, struct sched_job *j, struct sched_tensor *t, uint32_t i,
	struct sched_member *server, uint16_t thread, uint64_t pgen);
uint64_t sched_part_bytes(const struct sched_tensor *t, uint32_t i);

/* place_apply.c */
/* A server is dead: its partitions go to others, or wait for one. */
void sched_server_gone(struct sched_core *c, struct sched_member *m);
/* It has a new instance: it keeps its partitions under a new pgen. */
void sched_server_restarted(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* It has another number of data threads: its partitions keep their pgens, on threads that there
 * are. */
void sched_server_rethread(struct sched_core *c, struct sched_member *m, uint16_t threads);
/* Other members: all partitions stay where they are and begin anew under a new pgen. */
void sched_job_refence(struct sched_core *c, struct sched_job *j);
/* Place the partitions that lost their last server, once there is one again. */
void sched_place_waiting(struct sched_core *c);
/* Number and place the tensors that all agents have declared since the last transaction. */
void sched_place_fresh(struct sched_core *c);
/* Give these partitions of j, which have none or are to leave theirs, other servers, under a new
 * pgen. Sorts w. */
struct sched_want {
	struct place_part part;
	struct sched_tensor *t;
	uint32_t i;
};
struct sched_wants {
	struct sched_want *v;
	uint32_t n, room;
};
void sched_want_add(struct sched_wants *w, struct sched_tensor *t, uint32_t i);
void sched_place(struct sched_core *c, struct sched_job *j, struct sched_wants *w);
/* What place.h wants to know of j: its machines, and its servers, which ret_servers names in the
 * same order; both allocated. */
void sched_place_fill(const struct sched_core *c, const struct sched_job *j, struct placement *ret,
	struct sched_member ***ret_servers);
void sched_place_fini(struct placement *p, struct sched_member **servers);

/* plan.c */
/* JOB, JOB_END of j to m. */
void sched_send_job(struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
void sched_send_job_end(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j);
/* PLAN for m: what this transaction placed or moved, or everything. */
void sched_send_plan(
	struct sched_core *c, const struct sched_member *m, struct sched_job *j, bool everything);
/* The next run of partitions of t from *at on: under pgen (0: any), on server (SERVER_ANY: any), or
 * taken from it under that pgen.
 * False: there is none. */
bool sched_run_next(const struct sched_tensor *t, uint32_t *at, uint64_t pgen, uint32_t server,
	struct ctl_run *ret);

/* admission.c */
/* The job that a JOIN means; *ret is NULL when there is none yet. Errors: BPS_EAUTH it is there,
 * and the token is wrong; with a sentence. */
int sched_job_for(const struct sched_core *c, const struct ctl_join *q, struct sched_job **ret,
	struct err_text *err);
/* May that user have one more job? Errors: BPS_EQUOTA with a sentence. */
int sched_admit_job(struct sched_core *c, uint32_t uid, struct err_text *err);
/* May the job have one more tensor of that size? Errors: BPS_EQUOTA with a sentence. */
int sched_admit_tensor(
	struct sched_core *c, const struct sched_job *j, uint64_t bytes, struct err_text *err);
/* What counts against the limits: jobs that have not ended, and bytes of their tensors on
 * servers. */
uint32_t sched_user_jobs(const struct sched_core *c, uint32_t uid);
uint64_t sched_job_claim(const struct sched_job *j);
uint64_t sched_user_claim(const struct sched_core *c, uint32_t uid);
/* Memory that the usable servers have for sums; 0: not known. */
uint64_t sched_servers_bytes(const struct sched_core *c);
uint64_t sched_share(uint64_t all_bytes, uint32_t percent);

/* why_stuck.c */
/* What holds j up beside its workers, as sentences; "" when nothing does. p: NULL, or who
 * answered. */
void sched_conditions(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, char ret[CTL_TEXT_MAX + 1]);
/* Messages of an agent; msg is lent. */
void sched_why(struct sched_core *c, struct sched_member *m, const struct ctl_why *msg);
void sched_report(struct sched_core *c, struct sched_member *m, const struct ctl_report *msg);
/* End the probes whose time is over. */
void sched_probe_tick(struct sched_core *c);
void sched_probe_free_all(struct sched_core *c);
#endif
