#ifndef BPS_SERVER_CORE_CORE_H
#define BPS_SERVER_CORE_CORE_H
/* The server's core: rounds of the partitions that one data thread owns. A state machine without
 * clock, threads or sockets. Messages and finished reads arrive as events of the transport.
 * Messages and reads leave through the transport. Sums are made in slices when the owner calls
 * srv_core_work. The simulator runs this same code. Rules S1-S6 and B1, B3, B5:
 * docs/reference/faults.md. One thread.
 *
 * A partition has two slots (round & 1) and a seat per member:
 *
 *   slot:  EMPTY --CONTRIB/HAVE--> OPEN --all contributed--> SUMMING --> DONE --> (round + 2) OPEN
 *                                   |                                     ^
 *                                   `--all sent, one HAS---> DONATING----'    a new pgen: all EMPTY
 *
 *   seat:  IDLE --offer--> WANT_READ --staging and window free--> READING --crc right--> STAGED
 *          STAGED --added--> IDLE      (a small contribution arrives inline and is STAGED at once)
 *
 * The C bit is set when a contribution is STAGED, so an interrupted read leaves no trace. */
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
	size_t sums_bytes;        /* memory for sums: results and accumulators */
	size_t staging_bytes;     /* memory for contributions until they are added to a sum */
	size_t segment_bytes;     /* granularity of both */
	size_t peer_window_bytes; /* contributions being read from one agent */
	/* when a donor has not answered for this time, ask it again, or another donor */
	uint64_t retry_ns;
};

struct srv_env {
	void *ctx;
	/* Memory that peers may read (common/data/pool.h). The function's owner frees it after
	 * srv_core_free. */
	pool_segment_fn segment;
	/* Report to the scheduler that the job cannot go on. code: negative error code. */
	void (*fail)(void *ctx, uint32_t job, int code, const char *text);
};

/* Counters for the status screen and the metrics. */
struct srv_stats {
	uint64_t rounds, contributions, duplicates, fenced_old, fenced_new, donations, crc_errors,
		protocol_errors, bytes_summed;
	uint64_t late; /* contributions that arrived after their round was complete */
	size_t sums_used, sums_high, staging_used, staging_high;
	uint32_t parts, retired;
	uint64_t sum_ns;        /* from the last contribution to the sum: mean of the last sums */
	uint64_t offered_bytes; /* of results that agents read */
	struct histogram wait;  /* time of complete rounds from the first to the last arrival */
};

/* cfg and env are copied. Errors: -ENOMEM. */
int srv_core_new(const struct srv_config *cfg, const struct srv_env *env, struct srv_core **ret);
/* All connections must be closed before. NULL is allowed. */
void srv_core_free(struct srv_core *core);

/* Events for the thread's xport, whose ctx is the core. */
extern const struct xport_events srv_core_events;

/* From the scheduler. A job must be known before its plan. A plan that needs more memory than is
 * left fails the job with BPS_EQUOTA through env->fail. msg and plan are lent.
 * Errors of srv_core_job: BPS_EPROTO too many members, -ENOMEM: the job is not known. */
int srv_core_job(struct srv_core *core, const struct ctl_job *job);
void srv_core_plan(struct srv_core *core, const struct ctl_plan *plan);
void srv_core_job_end(struct srv_core *core, uint32_t job);
/* Time of the last message from this instance of an agent; 0: no connection to it. */
uint64_t srv_core_heard_ns(const struct srv_core *core, uint32_t agent, uint64_t instance);

/* Close the connection to an agent that the scheduler reported as gone (dead, or key revoked). */
void srv_core_agent_gone(struct srv_core *core, uint32_t agent);

/* The scheduler sends its complete state again after a reconnect. Between begin and end come the
 * jobs and plans that hold. A partition that no plan named by then lives elsewhere, or its job is
 * over. */
void srv_core_resync_begin(struct srv_core *core);
void srv_core_resync_end(struct srv_core *core);

/* Sum for about SRV_SLICE_BYTES of operands; true when there is more to do. */
#ifndef SRV_SLICE_BYTES /* smaller in the simulator */
#define SRV_SLICE_BYTES (2u << 20)
#endif
bool srv_core_work(struct srv_core *core);

/* Set the time, before each batch of events, and run what is due. Returns the next deadline,
 * UINT64_MAX for none. */
uint64_t srv_core_tick(struct srv_core *core, uint64_t now_ns);

/* Change the limit of bytes that are read from one agent at a time. Running reads are not
 * affected. */
void srv_core_set_peer_window(struct srv_core *core, size_t bytes);

/* Return the current figures. Only the core's own thread calls it. */
void srv_core_stats(const struct srv_core *core, struct srv_stats *ret);

/* Return the current arrival figures. Only the core's own thread calls it, a few times a second:
 * O(members). */
void srv_core_arrivals(struct srv_core *core, struct arrivals_figures *ret);
#endif
