#ifndef BPS_SERVER_CORE_CORE_H
#define BPS_SERVER_CORE_CORE_H
/* The server's core: sums the partitions that one data thread owns, round by round. In each round
 * of a partition, every member of the job (an agent) offers a contribution. The server reads the
 * contributions, sums them, and offers the result to all members.
 *
 * The core is a state machine without clock, threads or sockets. Messages and finished reads arrive
 * as events of the transport. The core sends messages and starts reads through the transport. The
 * core sums in slices, when its owner calls srv_core_sum_slice. The simulator runs the same code.
 * docs/reference/faults.md defines the rules S1-S6, B1, B3 and B5. All calls must come from one
 * thread.
 *
 * A partition has two slots, and a seat for each member. Round r uses slot r & 1.
 *
 *   slot:  EMPTY --CONTRIB/HAVE--> OPEN --rule is met------> SUMMING --> DONE --> (round + 2) OPEN
 *                                   |                                     ^
 *                                   `--(*)-----------------> DONATING----'    a new pgen: all EMPTY
 *
 *   (*) Every member has sent CONTRIB or HAVE. Some members, but not all, have the result.
 *
 *   seat:  IDLE --offer--> WANT_READ --staging and window free--> READING --crc right--> STAGED
 *          STAGED --added--> IDLE      (a small contribution arrives inline and is STAGED at once)
 *
 * A member counts as having contributed (set C) only when its contribution is STAGED, so an
 * interrupted read has no effect. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bps-server/core/arrivals.h"
#include "common/data/pool.h"
#include "common/transport/xport.h"
#include "common/wire/ctlmsg.h"

struct srv_core;

struct srv_config {
	uint32_t server_id;
	uint64_t instance;
	uint16_t thread;
	size_t sums_bytes;    /* memory for sums: results and accumulators */
	size_t staging_bytes; /* memory for contributions until they are added to a sum */
	/* size of one allocation; sums and staging memory consist of such allocations */
	size_t segment_bytes;
	/* limit for the total size of the running reads from one agent */
	size_t peer_window_bytes;
	/* If a member that was asked for a result (a donor) has not answered for this time, request
	 * the result again, from the next donor. */
	uint64_t retry_ns;
};

struct srv_env {
	void *ctx;
	/* Allocate memory that peers may read (common/data/pool.h). The caller of srv_core_new
	 * frees the memory after srv_core_free. */
	pool_segment_fn segment;
	/* Return the present time. Called at the end of each sum, because a slice of a sum may take
	 * most of a turn. NULL: use the time of the turn. */
	uint64_t (*clock_ns)(void);
	/* Report to the scheduler that the job cannot continue. code: negative error code. */
	void (*fail)(void *ctx, uint32_t job, int code, const char *text);
};

/* Counters that have a metric of their own: X(field of struct srv_stats, metric, help). */
#define SRV_COUNTERS(X)                                                                            \
	X(contributions, "bps_server_contributions_total", "contributions accepted")               \
	X(abstentions, "bps_server_abstentions_total",                                             \
		"contributions of machines whose workers all abstained")                           \
	X(duplicates, "bps_server_duplicates_total", "messages that repeated an earlier message")  \
	X(donations, "bps_server_donations_total", "results donated by agents")                    \
	X(late, "bps_server_late_total", "contributions for which the round did not wait")         \
	X(crc_errors, "bps_server_crc_errors_total", "payloads with a wrong crc")

/* Counters for the status screen and the metrics. */
struct srv_stats {
#define X(field, metric, help) uint64_t field;
	SRV_COUNTERS(X)
#undef X
	uint64_t rounds, fenced_old, fenced_new, protocol_errors, bytes_summed;
	size_t sums_used, staging_used;
	uint32_t parts, retired;
	/* moving mean of the time from a round's last contribution to its complete sum */
	uint64_t sum_ns;
	uint64_t offered_bytes; /* bytes of results that were offered to agents for reading */
	struct histogram wait;  /* for each complete round: time from first to last contribution */
};

/* Create a core. cfg and env are copied. Errors: -ENOMEM. */
int srv_core_new(const struct srv_config *cfg, const struct srv_env *env, struct srv_core **ret);
/* Free the core. The caller must close all connections of the core first. core: may be NULL. */
void srv_core_free(struct srv_core *core);

/* Event callbacks for the thread's xport. The core must be the `ctx` of the xport. */
extern const struct xport_events srv_core_events;

/* Apply a message from the scheduler: JOB (a job and its members), PLAN (which server sums which
 * partition) or JOB_END. The JOB of a job must be applied before its PLAN. If a plan needs more
 * memory than is left, the core fails the job with BPS_EQUOTA through env->fail. The caller still
 * owns the messages. srv_core_apply_job returns BPS_EPROTO if the job has too many members, or
 * -ENOMEM. If srv_core_apply_job fails for a job that the core does not have yet, the core does not
 * create the job. */
int srv_core_apply_job(struct srv_core *core, const struct ctl_job *job);
void srv_core_apply_plan(struct srv_core *core, const struct ctl_plan *plan);
void srv_core_job_end(struct srv_core *core, uint32_t job);
/* Return the time at which the last message arrived from the agent's process with this instance.
 * Returns 0 if that process has no connection. */
uint64_t srv_core_heard_ns(const struct srv_core *core, uint32_t agent, uint64_t instance);

/* Close the connection to an agent that the scheduler reports as gone. An agent is gone if it is
 * dead or if its key is revoked. */
void srv_core_agent_gone(struct srv_core *core, uint32_t agent);

/* Begin or end a resynchronization. After a reconnect the scheduler sends its complete state again.
 * The messages JOB and PLAN that arrive between the two calls name the jobs and partitions that
 * remain. At the end the core frees all other jobs and partitions, because they have ended or moved
 * away. */
void srv_core_resync_begin(struct srv_core *core);
void srv_core_resync_end(struct srv_core *core);

/* Sum about SRV_SLICE_BYTES of operands. Returns true if there is more to sum. */
#ifndef SRV_SLICE_BYTES /* the simulator defines a smaller slice */
#define SRV_SLICE_BYTES (2u << 20)
#endif
bool srv_core_sum_slice(struct srv_core *core);

/* Set the core's time and handle the deadlines that have passed. Must be called before each batch
 * of events. Returns the next deadline; UINT64_MAX: there is none. */
uint64_t srv_core_run_deadlines(struct srv_core *core, uint64_t now_ns);

/* Change the limit for the total size of the running reads from one agent. Reads that are already
 * running are not affected. */
void srv_core_set_peer_window(struct srv_core *core, size_t bytes);

/* Return the current counters. Only the core's own thread may call this function. */
void srv_core_stats(const struct srv_core *core, struct srv_stats *ret);

/* Fill in the arrival figures of the jobs: which members contribute last, and how late. Only the
 * core's own thread may call this function, and only a few times a second, because the cost is
 * O(members). */
void srv_core_arrivals(struct srv_core *core, struct arrivals_figures *ret);
#endif
