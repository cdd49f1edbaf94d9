#ifndef BPS_AGENT_CORE_CORE_H
#define BPS_AGENT_CORE_CORE_H
/* The agent's core moves every partition of every tensor of the jobs on this machine through its
 * rounds. The core is a state machine without clock, threads or sockets. The simulator runs the
 * same code. Rules A1-A11, B2, B4, B6: docs/reference/faults.md. Thread: the thread of the xport.
 *
 * The rounds of a tensor run one after another. A round starts when all local workers have
 * submitted the round. After the start, each partition has its own state. Partitions of higher
 * priority are sent first:
 *
 *   IDLE --round starts--> READY --window, credit--> SENT --RESULT offered--> OFFERED --> FETCHING
 *     ^                      ^                        | \                        |           |
 *     |                      `-- new pgen, reconnect, +--`-- AGAIN: WAITING -----+-----------'
 *     |                          time-out, bad crc    `--RESULT inline--> IDLE
 *     |                                                FETCHING --sum read--> IDLE
 *     `--- all partitions IDLE: the round is done
 *
 * A READY partition waits in the queue of its connection. A connection that is ahead of other
 * connections may have to wait for them (lockstep.c). A job may have at most job_inflight_bytes in
 * flight. At that limit, the job's READY partitions move to the queue job->parked, so that
 * partitions of other jobs can be sent. Each sum that arrives may move partitions back to their
 * connections' queues.
 *
 * The local sum and the crc of a READY partition are computed just before it is sent. Until then, a
 * more urgent partition can be sent first. A job with one member needs no server: its READY
 * partitions are summed into the output.
 *
 * A tensor may be in the memory of the workers' devices (GPUs). Then a READY partition first waits
 * until the executor has copied its bytes to the inputs (is_staging: the partition is in no queue).
 * When all sums of the round are in host memory, the round waits until the executor has copied the
 * sums to the devices. The messages to servers are the same.
 *
 * A tensor has an in-slot per local worker, and two out-slots (index round & 1). A tensor with
 * several in-slots also has a staging buffer for their sum. The contribution stays unchanged until
 * the round is done (A1). Result r stays in its out-slot until result r + 2 replaces it (A2).
 *
 * The core uses the round numbers of the trainers. A border is a barrier at which workers joined
 * the job. In messages, rounds are counted from the latest border: the first round after this
 * border has the number 1, because the new workers have done no rounds before. All members cross
 * the border between the same two rounds. Each partition crosses the border with its new pgen.
 *
 * Restart. A process may end at any instruction. The next process has the same memory (buffers and
 * struct agt_kept_part), and submits again what each worker had submitted. In this memory, `landed`
 * is the last round whose sum is complete in the partition's out-slot. The table shows how a
 * partition continues if its round r was in flight:
 *
 *   landed  out[r & 1]    messages                       why no other state is needed
 *   r - 1   anything      CONTRIB(r), later HAVE(r - 1)  inputs do not change until all of r has
 *                                                        landed, so the same bytes are sent again;
 *                                                        the server keeps r until CONTRIB(r + 1),
 *                                                        and offers it again
 *   r       the sum of r  HAVE(r), DONATE(r) on request  no peer may receive another sum of r (I2)
 *
 * K1  `landed` is set to r only after the sum of r was read and checked, and after its crc, workers
 *     and contributors were stored. Before `landed` is r, no message may imply that the sum is
 *     here. HAVE(r), CONTRIB(r + 1) and the end of the round at the trainers would imply this.
 * K2  The slot r & 1 of the outputs, crc, workers and contributors is written for r only when
 *     `landed` is r - 1. The other slot must stay unchanged: a donation of r - 1 needs it, and so
 *     does CONTRIB(r), which carries the crc of r - 1.
 * K3  Let c be the tensor's last complete round: the smallest value of `landed` among its
 *     partitions. For each partition, `landed` is c or c + 1. The value c + 1 is possible only if
 *     all workers have submitted round c + 1.
 * K4  Placement (pgen) does not survive a restart: the scheduler sends it again. A server accepts
 *     the messages of a partition under the pgen that the server has. The agent's next process
 *     opens new connections. Messages to the previous process do not arrive on the new connections
 *     (A4).
 * K6  Even if all partitions of a device tensor have landed in the same round, it is possible that
 *     some sums are not on the devices. So the next process starts that round again. The round is
 *     complete when agt_tensor_unstaged is called in the next process. A call in the previous
 *     process does not count. Starting and completing that round again needs no messages to
 *     servers. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/histogram.h"
#include "common/transport/xport.h"
#include "common/wire/ctlmsg.h"
#include "common/wire/wire.h"

struct agt_core;
struct agt_job;
struct agt_tensor;
struct round_record;

/* A piece of memory that servers may read. segment: id of the transport's segment that contains
 * mem. offset: position of mem in that segment, in bytes. */
struct agt_mem {
	void *mem;
	uint64_t offset;
	uint16_t segment;
};

/* State of a partition that must survive a restart: see K1-K3 above. A new partition has zeros. */
struct agt_kept_part {
	_Atomic uint64_t landed; /* last round whose sum is complete in its out-slot */
	/* last round whose local sum is in the staging memory, see rule B6 */
	_Atomic uint64_t summed;
	/* crc and number of workers, for each of the last two sums; the index is round & 1 */
	uint32_t result_crc[2], workers[2];
	/* whether each of these sums did not wait for this machine (WIRE_LATE) */
	uint32_t is_late[2];
	/* version of the value in each of the last two answers; 0: a sum (V3) */
	uint64_t version[2];
	/* border: the view of the last barrier at which workers joined the job. base: the last
	 * local round before that barrier. All members have completed round `base`. Messages give
	 * round `base` + 1 the number 1. The core writes base first, then border. */
	uint64_t base, border;
	struct member_set contributors[2];
};

/* Default of lead_bytes. One server may have a partition of a tensor while another server has none,
 * so connections progress unevenly. With a lead of 0, connections wait for each other because of
 * this unevenness alone. These waits take 3 % of a round of ResNet-50. With a much larger lead,
 * connections with few bytes finish too early. 64 KiB is a short lead: a fast link sends 64 KiB in
 * less time than one system call takes. */
#define AGT_LEAD_BYTES (UINT64_C(64) << 10)
/* Default of turn_bytes. With several contributions per turn, one system call sends all of them.
 * Their bytes are then still in the cache, because their CRCs were computed just before. If a turn
 * sent everything that is ready, the system call would come later and delay the first
 * contribution. */
#define AGT_TURN_BYTES (UINT64_C(512) << 10)

/* Minimum sizes for copies that bypass the CPU's caches. If a result comes from a server on this
 * host, its copy bypasses the caches under three conditions. The tensor is in host memory. The
 * job's tensors have at least AGT_MUCH_BYTES in total. The result has at least AGT_MUCH_PART_BYTES.
 * In a job of this size, the first sums of a step would leave the caches before the end of the step
 * anyway. Jobs with 16 MiB of tensors and jobs with 64 MiB of tensors were measured. Smaller jobs
 * were not measured (docs/explanation/performance.md, point 15). */
#define AGT_MUCH_BYTES      (UINT64_C(16) << 20)
#define AGT_MUCH_PART_BYTES (UINT32_C(32) << 10)

struct agt_config {
	/* limit of contributions in flight to one server thread, in bytes; SIZE_MAX: no limit */
	size_t window_bytes;
	/* limit of each job's contributions in flight, in bytes; 0: no limit */
	uint64_t job_inflight_bytes;
	/* a message is sent again if no answer arrives within this time */
	uint64_t retry_ns;
	/* delay between the answer AGAIN and the next attempt to send the message */
	uint64_t again_ns;
	/* Number of bytes by which a connection may be ahead of the connection with the least
	 * progress (lockstep.c). If ahead_bytes of struct xport is larger, it replaces
	 * lead_bytes. */
	uint64_t lead_bytes;
	/* bytes of contributions that one call of agt_core_run_queued_work sends; 0: one
	 * contribution */
	uint64_t turn_bytes;
};

struct agt_env {
	void *ctx;
	/* Start to connect to a data thread of a server. The callback looks up the address, and
	 * sets xconn->user to `link`. Errors: -ENOTCONN: the server is not known yet. When the
	 * server becomes known, the owner of the core must call agt_core_server_changed. */
	int (*connect)(
		void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn);
	/* Report that a round is complete (status 0) or has failed (a negative code). workers:
	 * number of workers whose values are in the result. */
	void (*done)(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
	/* Report where the time of a complete round went. Called before `done`. May be NULL. */
	void (*record)(void *ctx, void *tensor_user, const struct round_record *record);
	/* Report that a worker has submitted a round before all other workers of this machine.
	 * Returns whether a step of the job begins. May be NULL. */
	bool (*begun)(void *ctx, void *tensor_user, uint64_t round, uint64_t now_ns);
	/* Copy the bytes of a device tensor to the inputs, because its next round has started.
	 * After the copy, the executor calls agt_part_staged for each partition. After a restart,
	 * the core again starts the round that was in flight, even if the devices already have all
	 * sums of this round. The core then calls `unstage` for each partition whose sum has
	 * landed. The callbacks `stage` and `unstage` may be NULL when there are no device
	 * tensors. */
	void (*stage)(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
	/* Copy the sum of a device tensor's partition from the round's output to the devices. */
	void (*unstage)(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
	/* Report to the scheduler that the job cannot continue. */
	void (*fail)(void *ctx, uint32_t job, int code, const char *text);
	/* Return a random number. The core uses the number to spread the attempts to reconnect over
	 * time. */
	uint64_t (*random)(void *ctx);
	/* Return the memory that keeps the state of a tensor's n_parts partitions. Called when id
	 * and part_elems are known. The memory is zeroed, or comes from the previous process. The
	 * memory must stay valid until agt_job_free calls release. NULL: out of memory. env->keep
	 * may be NULL: then no state survives a restart. */
	struct agt_kept_part *(*keep)(
		void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts);
};

struct agt_stats {
	uint64_t rounds, pushed_bytes, pulled_bytes, repushes, stale, crc_errors, reconnects;
	uint64_t inflight_bytes;
	/* bytes of contributions offered to servers on other hosts; a repeated offer does not
	 * count */
	uint64_t offered_bytes;
	/* Times of a partition. push: starts when the contribution is sent, and ends when the sum
	 * is offered; other members may delay that offer. pull: starts when the sum is offered, and
	 * ends when the sum has been read. */
	struct histogram push, pull;
};

/* Create the core. cfg and env are copied. x: NULL if agt_core_set_xport is called later. Errors:
 * -ENOMEM. */
int agt_core_new(const struct agt_config *cfg, const struct agt_env *env, struct xport *x,
	struct agt_core **ret);
/* Free the core. All connections must have been closed. NULL is allowed. */
void agt_core_free(struct agt_core *core);
/* Set the xport of a core that was made with x = NULL. */
void agt_core_set_xport(struct agt_core *core, struct xport *x);

/* callbacks for the xport; their ctx is the core */
extern const struct xport_events agt_core_events;

/* Add a job that has formed. my_member: this agent's index in msg->members. The local worker with
 * index i has the rank msg->members[my_member].ranks[i].rank. Errors: -ENOMEM. */
int agt_job_new(
	struct agt_core *core, const struct ctl_job *msg, uint16_t my_member, struct agt_job **ret);
/* Update the job's members from msg. The view in msg must be larger than the job's view. The caller
 * then calls agt_job_apply_placement, which sets the new pgens. */
void agt_job_members(struct agt_job *job, const struct ctl_job *msg);
/* Free a job and its tensors. Rounds in flight are not reported, except those that have failed and
 * wait for a task (A10). Running reads and tasks still use the job's memory. So the function
 * release(release_ctx) is called when none runs any more. If none runs now, it is called before
 * agt_job_free returns. */
void agt_job_free(struct agt_job *job, void (*release)(void *ctx), void *release_ctx);
/* End every round in flight and every later round with the error `code`. */
void agt_job_fail(struct agt_job *job, int code);

/* Add a tensor in host memory. It may be submitted before its plan is known. in: one in-slot per
 * local worker. staging: memory for the sum of the in-slots; may be NULL with one worker. All
 * memory must stay valid until agt_job_free calls release. user: passed to env->done. The job owns
 * the tensor, and agt_job_free frees it. Errors: -ENOMEM. */
int agt_tensor_new(struct agt_job *job, const struct tensor_shape *shape, const struct agt_mem *in,
	const struct agt_mem *staging, const struct agt_mem out[2], void *user,
	struct agt_tensor **ret);
/* Add a tensor in the memory of the workers' devices. The executor copies values to n_in inputs in
 * host memory: each input is the sum of the values of in_workers[i] workers, or their mean
 * (op_takes_means). The sum of these inputs, or their weighted mean, is the contribution of all
 * local workers. The executor takes the result from the outputs. staging: memory for the
 * contribution; may be NULL with one input. A round is done when agt_tensor_unstaged has been
 * called. */
int agt_tensor_new_device(struct agt_job *job, const struct tensor_shape *shape,
	const struct agt_mem *in, const uint16_t *in_workers, uint32_t n_in,
	const struct agt_mem *staging, const struct agt_mem out[2], void *user,
	struct agt_tensor **ret);
/* Report that the executor has copied the partition's bytes of the round to the inputs. Errors:
 * -EINVAL: the core does not wait for these bytes. */
int agt_part_staged(struct agt_tensor *t, uint32_t part, uint64_t round);
/* Report that all sums of the round are on the devices. This ends the round. Errors: -EINVAL: some
 * sums of the round are not in their out-slots yet. */
int agt_tensor_unstaged(struct agt_tensor *t, uint64_t round);
/* Return the size of the tensor's partitions in bytes; the last partition may be smaller. 0: the
 * tensor has no plan yet. */
uint64_t agt_tensor_part_bytes(const struct agt_tensor *t);
/* Apply the scheduler's plan of the tensor: its id and the size of its partitions. If the tensor
 * already has a plan, the new plan is ignored. If env->keep returns memory from before a restart,
 * the tensor resumes after its last complete round. The core then counts that round as submitted by
 * all workers, and accepts submissions of the next round. Some partitions may already have their
 * sums of the next round.
 * Errors: BPS_EPROTO: the plan does not fit the tensor or contradicts the kept state. BPS_EQUOTA:
 * one partition is larger than the limit of a job's bytes in flight. -ENOMEM. */
int agt_tensor_plan(struct agt_tensor *t, const struct ctl_tensor *plan);
/* Fail the tensor t, but not its job. The tensor's rounds end with the error `code`. */
void agt_tensor_fail(struct agt_tensor *t, int code);
/* Place partitions on servers, as the scheduler's plan states. Each element of the array `runs`
 * names a range of partitions and their server. */
void agt_job_apply_placement(struct agt_job *job, const struct ctl_run *runs, uint32_t n_runs);

/* Submit the next round of tensor t for local worker `worker`. abstains: the worker takes part in
 * the round and adds nothing, so its input is not read; false for device tensors (W4). Errors:
 * BPS_EBUSY: `round` is not the worker's next round, or the tensor's previous round is not
 * complete. BPS_EMISMATCH: `op` differs from the operation that other local workers submitted for
 * this round. After a failure of the job or tensor, env->done reports the failure once for each
 * round that at least one local worker submits. If another local worker submits the same round
 * after this report, agt_tensor_submit returns the code of the failure. */
int agt_tensor_submit(struct agt_tensor *t, uint32_t worker, uint64_t round, uint8_t op,
	uint16_t priority, bool abstains);

/* The members whose values are in a tensor's last complete sum. */
struct agt_contributors {
	struct member_set members; /* members whose values are in all partitions */
	bool has_mine;             /* this member is one of them */
	/* the sum of at least one partition was being made, or was complete, when this member took
	 * part (jobs with backup machines) */
	bool is_late;
	/* smallest and largest number of workers whose values are in a partition */
	uint32_t least, most;
};
struct agt_contributors agt_tensor_contributors(const struct agt_tensor *t);
/* Return how many local rounds precede the round that has the number 1 in messages, see the field
 * `base` of struct agt_kept_part. */
uint64_t agt_tensor_base(const struct agt_tensor *t);
/* Return the number of the last complete round. */
uint64_t agt_tensor_round(const struct agt_tensor *t);
uint32_t agt_tensor_id(const struct agt_tensor *t);

/* Close the connections to the server and reconnect at once, because the server's address or
 * instance has changed. */
void agt_core_server_changed(struct agt_core *core, uint32_t server);
/* Return whether all links that carry partitions of the job are up. True for a job with one member.
 * ret_text lists the missing connections. If partitions are in job->parked, ret_text also contains
 * their number, even if the result is true. */
bool agt_job_describe_waits(const struct agt_job *job, char *ret_text, size_t text_bytes);

/* Return the time at which the given instance of a server last sent anything on a data connection.
 * A link is considered only if its latest connection, open or closed, was to this instance. Return
 * 0 if there is no such link. */
uint64_t agt_core_last_receive_ns(struct agt_core *core, uint32_t server, uint64_t instance);
/* Return whether any server is connected. */
bool agt_core_is_connected(const struct agt_core *core);

/* Reasons why a partition waits for its sum. */
enum agt_stall_kind {
	AGT_STALL_NOWHERE, /* the partition has no server */
	AGT_STALL_LINK,    /* the partition's server is not connected */
	/* the partition waits in its queue, for more urgent partitions or for the window */
	AGT_STALL_QUEUE,
	AGT_STALL_SENT,   /* the contribution was sent, but the server has not answered */
	AGT_STALL_READ,   /* the sum is offered or being read */
	AGT_STALL_DEVICE, /* the partition's bytes are not in the inputs yet */
};
struct agt_stall {
	enum agt_stall_kind kind;
	uint32_t part, n_parts, n_open; /* n_open: number of partitions that have no sum yet */
	uint32_t server;                /* server of the partition; 0: none */
	/* duration of the wait that `kind` describes, in ns; 0: not known */
	uint64_t ns;
};
/* Find the partition that has waited longest for its sum. Returns false if all partitions have
 * their sums, or if the job needs no server. The run time grows with the number of partitions. */
bool agt_tensor_find_stall(const struct agt_tensor *t, struct agt_stall *ret);

/* Do the work of one iteration of the loop: send contributions until their bytes reach the limit
 * turn_bytes, and sum one partition of a job that has only one member. Return whether more work is
 * waiting. */
bool agt_core_run_queued_work(struct agt_core *core);
/* Set the core's time and handle the timers that are due. Returns the next deadline, in ns. The
 * caller must call agt_core_run_timers before each batch of events. */
uint64_t agt_core_run_timers(struct agt_core *core, uint64_t now_ns);

/* Change the window (see struct agt_config). Contributions in flight are not affected. */
void agt_core_set_window(struct agt_core *core, size_t window_bytes);
/* Change the limit of each job's contributions in flight, in bytes; 0: no limit. Partitions in
 * job->parked return to the queues of their links if they fit into the new limit. */
void agt_core_set_job_inflight(struct agt_core *core, uint64_t bytes);
/* Return the bytes of the job's contributions whose sums have not arrived. */
uint64_t agt_job_inflight(const struct agt_job *job);

/* Write the current figures to *ret. Thread: the core's thread. */
void agt_core_stats(const struct agt_core *core, struct agt_stats *ret);
/* List the servers to which connections were lost, for the heartbeat. Returns the length of the
 * list. Thread: the core's thread. */
uint32_t agt_core_losses(const struct agt_core *core, uint64_t now_ns,
	struct ctl_beat_link ret[static CTL_BEAT_LINKS_MAX]);
#endif
