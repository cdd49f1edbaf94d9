#ifndef BPS_AGENT_CORE_CORE_H
#define BPS_AGENT_CORE_CORE_H
/* The agent's core: the way of every partition of every tensor of the jobs on this machine. A state
 * machine without clock, threads or sockets; the simulator runs this same code. Rules A1-A8, B2,
 * B4: docs/reference/faults.md. One thread: that of the xport.
 *
 * A tensor goes round by round. A round starts when all local workers have submitted it; each
 * partition then goes its own way, in order of priority:
 *
 *   IDLE --round starts--> READY --window and credit--> SENT --RESULT offered--> OFFERED --> FETCHING --> IDLE
 *     ^                      ^                           | \                        |           |
 *     |                      `-- new pgen, reconnect, ---+--`-- AGAIN: WAITING -----+-----------'
 *     |                          time-out, bad crc       `--RESULT inline--> IDLE
 *     `--- all partitions IDLE: the round is done
 *
 * READY waits in the queue of its connection, which may be held while others are behind it (lockstep.c),
 * or parked with its job while that has as much under
 * way as it may (job_inflight_bytes): then partitions of other jobs go on, and what comes in
 * unparks. READY does the local sum and the crc at the last moment, so what overtakes, overtakes on
 * the network. A job with one member needs no server: READY sums straight into the output.
 *
 * A tensor may lie on the workers' devices. Then a READY partition first waits until somebody else
 * has brought its bytes to the inputs (is_staging: it is in no queue), and the round, when all its
 * sums are in, until they are on the devices. Towards the servers nothing differs.
 *
 * Buffers of a tensor: an in-slot per local worker, a staging buffer when there are several (their
 * sum), two out-slots (round & 1). The contribution stays untouched until the round is done (A1),
 * result r until result r + 2 lands (A2).
 *
 * Rounds are numbered by the trainers here; on the wire they count from 1 anew since the job's last
 * border, when workers joined who have done none. All members cross it between the same two rounds,
 * each partition with the pgen of the border.
 *
 * Restart. A process may end at any instruction; its successor has the same memory (buffers and
 * struct agt_kept_part), knows from its shell what each worker has submitted, and makes a core that
 * goes on. What it needs to know of a partition, of which round r may be under way:
 *
 *   landed  out[r & 1]    what it says                     why nothing else is needed
 *   r - 1   anything      CONTRIB(r), later HAVE(r - 1)    inputs are untouched until all of r has landed, so
 *                                                          the same bytes go again; the server has r until
 *                                                          CONTRIB(r + 1), and offers it again
 *   r       the sum of r  HAVE(r), donates it              nobody may be told another sum of r (I2)
 *
 * K1  landed = r is stored after the sum of r was read and checked, and after its crc, workers and
 *     contributors; before it is stored nothing was said that lets anybody believe it (HAVE(r),
 *     CONTRIB(r + 1), the end of the round at the trainers).
 * K2  A slot of the out-slots, crc, workers and contributors is written for r only when landed is
 *     r - 1: what donation of r - 1 and the echo in CONTRIB(r) need is in the other slot.
 * K3  The tensor's last complete round is the least landed of its partitions, and each of them has
 *     that one or the next: the next only while all workers have submitted it.
 * K4  Placement (pgen) is not kept: the scheduler tells it anew, and the servers take a partition's
 *     messages under the pgen that they have. A new instance has new connections, so nothing that
 *     its predecessor was sent reaches it (A4).
 * K6  Of a device tensor whose partitions all landed in one round, that one may not be on the
 *     devices yet: it is begun once more, and is complete when agt_tensor_unstaged is said, again or
 *     for the first time. Nothing of it goes over the network. */
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

/* A piece of memory that a peer may read. */
struct agt_mem {
	void *mem;
	uint64_t offset;
	uint16_t segment;
};

/* What is known of a partition and must outlive the process: see K1-K3 above. Zero at first. */
struct agt_kept_part {
	_Atomic uint64_t landed;            /* last round whose sum is in its out-slot */
	_Atomic uint64_t summed;            /* last round whose local sum is in staging: see B6 */
	uint32_t result_crc[2], workers[2]; /* of the last two sums (round & 1) */
	/* Rounds up to base are over for all members since the border (a view), from which on the
	 * wire counts from 1 anew. border is written last. */
	uint64_t base, border;
	struct member_set contributors[2];
};

/* Of some tensors a server has one partition, of others none: without any lead that alone makes
 * connections wait (3 % of a round of ResNet-50), with more the small shares are through too early.
 * On a fast link what it takes at a time passes in less. */
#define AGT_LEAD_BYTES (UINT64_C(64) << 10)
/* One call of the kernel carries several contributions, and their bytes are in the cache from the
 * CRC on. With all that is there the first one would leave late. */
#define AGT_TURN_BYTES (UINT64_C(512) << 10)

/* In a job with so many bytes of tensors, partitions of so many bytes are copied past the caches,
 * where they come from a server on this host: a step's first sums would be out of them at its end.
 * 16 and 64 MiB were measured (docs/explanation/performance.md, point 15), less was not. */
#define AGT_MUCH_BYTES      (UINT64_C(16) << 20)
#define AGT_MUCH_PART_BYTES (UINT32_C(32) << 10)

struct agt_config {
	size_t window_bytes; /* contributions under way to one server thread; SIZE_MAX: no limit */
	uint64_t job_inflight_bytes; /* contributions of one job under way; 0: no limit */
	uint64_t retry_ns;           /* what is not answered is sent again */
	uint64_t again_ns;           /* pause after AGAIN */
	/* How far a connection may be ahead of the last one (lockstep.c); at least ahead_bytes. */
	uint64_t lead_bytes;
	uint64_t turn_bytes; /* of contributions, offered by one agt_core_work; 0: one */
};

struct agt_env {
	void *ctx;
	/* Start connecting to a server's data thread; on the xport's up event xconn->user is
	 * `link`. The shell knows the address; it may be that the server is not known yet:
	 * -ENOTCONN, and agt_core_server_changed when it is. */
	int (*connect)(
		void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn);
	/* A round is complete (status 0) or failed. workers: contributors to the result. */
	void (*done)(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers);
	/* Of a device tensor: its next round has begun; have its bytes brought to the inputs, and
	 * say agt_part_staged for each partition. After a restart it may have begun in a former
	 * life, and be over on the devices: then unstage follows for what has landed. The callbacks
	 * may be NULL when there is none such. */
	void (*stage)(void *ctx, void *tensor_user, uint64_t round, uint8_t op, uint16_t priority);
	/* Of a device tensor: the sum of a partition lies in the round's output. */
	void (*unstage)(void *ctx, void *tensor_user, uint32_t part, uint64_t round);
	/* The job cannot go on: tell the scheduler. */
	void (*fail)(void *ctx, uint32_t job, int code, const char *text);
	/* Random number for reconnect jitter. */
	uint64_t (*random)(void *ctx);
	/* Where to keep what is known of a tensor's n_parts partitions, of which id and part_elems
	 * have just become known: zeroed memory, or that of the process before; valid until release
	 * of agt_job_free. NULL: out of memory. The callback may be NULL: nothing outlives the
	 * core. */
	struct agt_kept_part *(*keep)(
		void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts);
};

struct agt_stats {
	uint64_t rounds, pushed_bytes, pulled_bytes, repushes, stale, crc_errors, reconnects;
	uint64_t inflight_bytes;
	uint64_t offered_bytes; /* of contributions that servers read */
	/* Of a partition: from the contribution to the word that its sum is there, which others may
	 * hold up; and from there until the sum has been read. */
	struct histogram push, pull;
};

/* cfg and env are copied; x: NULL when agt_core_set_xport follows. Errors: -ENOMEM. */
int agt_core_new(const struct agt_config *cfg, const struct agt_env *env, struct xport *x,
	struct agt_core **ret);
/* All connections must be closed before. NULL is allowed. */
void agt_core_free(struct agt_core *core);
/* The core may be made before its xport. */
void agt_core_set_xport(struct agt_core *core, struct xport *x);

extern const struct xport_events agt_core_events; /* ctx: the core */

/* This machine's part in a complete job. my_member: index into msg->members; ranks[i] of that
 * member is worker i. Errors: -ENOMEM. */
int agt_job_new(
	struct agt_core *core, const struct ctl_job *msg, uint16_t my_member, struct agt_job **ret);
/* The members have changed: msg has a larger view. New pgens follow by agt_job_runs. */
void agt_job_members(struct agt_job *job, const struct ctl_job *msg);
/* Forget a job and its tensors; nothing is reported for rounds in flight. Reads that still run keep
 * their target: release(release_ctx) is called once none does (maybe at once). */
void agt_job_free(struct agt_job *job, void (*release)(void *ctx), void *release_ctx);
/* Every round in flight and every later one ends with code. */
void agt_job_fail(struct agt_job *job, int code);

/* A tensor, as declared locally; it may be submitted before its plan is known. in: one per local
 * worker; staging: may be NULL with one worker. All memory stays valid until release of
 * agt_job_free. user: for env->done.
 * Owns: the job has the tensor, and frees it with itself. Errors: -ENOMEM. */
int agt_tensor_new(struct agt_job *job, uint8_t dtype, uint64_t n_elems, const struct agt_mem *in,
	const struct agt_mem *staging, const struct agt_mem out[2], void *user,
	struct agt_tensor **ret);
/* The same for a tensor that lies on the workers' devices: somebody else brings their values to
 * n_in inputs, which together are all local workers' contribution, and takes the sum from the
 * outputs.
 * staging: may be NULL with one input. A round is done when agt_tensor_unstaged was said. */
int agt_tensor_new_device(struct agt_job *job, uint8_t dtype, uint64_t n_elems,
	const struct agt_mem *in, uint32_t n_in, const struct agt_mem *staging,
	const struct agt_mem out[2], void *user, struct agt_tensor **ret);
/* The partition's bytes of the staged round are in the inputs. Errors: -EINVAL not awaited. */
int agt_part_staged(struct agt_tensor *t, uint32_t part, uint64_t round);
/* All sums of the round are on the devices: it is done. Errors: -EINVAL they cannot be. */
int agt_tensor_unstaged(struct agt_tensor *t, uint64_t round);
/* Bytes of its partitions but the last; 0: not planned. */
uint64_t agt_tensor_part_bytes(const struct agt_tensor *t);
/* The scheduler's answer: id and partitions; a second one is ignored. When what env->keep gives is
 * of a former life, the tensor is where it was then: its last round is complete, all workers have
 * submitted that one, and may submit the next, of which some partitions may have landed.
 * Errors: BPS_EPROTO it is not about such a tensor, or contradicts what is kept; BPS_EQUOTA one
 * partition is more than a job may have under way; -ENOMEM. */
int agt_tensor_plan(struct agt_tensor *t, const struct ctl_tensor *plan);
/* This tensor alone is refused: its rounds end with code. */
void agt_tensor_fail(struct agt_tensor *t, int code);
/* Where partitions live (the runs of a plan). */
void agt_job_runs(struct agt_job *job, const struct ctl_run *runs, uint32_t n_runs);

/* Local worker `worker` submits its next round of t. Errors: BPS_EBUSY not in order, BPS_EMISMATCH
 * another op than the other local workers'. A failed job or tensor answers by done; to a worker
 * that comes after the others were told, by its code. */
int agt_submit(
	struct agt_tensor *t, uint32_t worker, uint64_t round, uint8_t op, uint16_t priority);

/* Who is behind t's last complete sum: the members behind all of its partitions, and the workers
 * behind the partition that has the fewest and the one that has the most. */
void agt_tensor_contributors(const struct agt_tensor *t, struct member_set *ret_members,
	uint32_t *ret_least, uint32_t *ret_most);
/* Local rounds that the wire does not count: see struct agt_kept_part. */
uint64_t agt_tensor_base(const struct agt_tensor *t);
/* The last complete round. */
uint64_t agt_tensor_round(const struct agt_tensor *t);
uint32_t agt_tensor_id(const struct agt_tensor *t);

/* A server's address or instance is new or gone: connect anew, at once. */
void agt_core_server_changed(struct agt_core *core, uint32_t server);
/* Is every server that this job needs connected? Writes what is missing. */
bool agt_job_network(const struct agt_job *job, char *ret_text, size_t text_bytes);

/* Is there a connection to any server? */
bool agt_core_is_connected(const struct agt_core *core);

/* Where the partition is that is not summed for the longest. Returns false when all are, or the job
 * needs no server. O(partitions). */
enum agt_stall_kind {
	AGT_STALL_NOWHERE, /* it has no server */
	AGT_STALL_LINK,    /* its server is not connected */
	AGT_STALL_QUEUE,   /* it waits for its turn or for window */
	AGT_STALL_SENT,    /* it was sent, and there is no answer */
	AGT_STALL_READ,    /* its sum is being read */
	AGT_STALL_DEVICE,  /* its bytes are not in the inputs yet */
};
struct agt_stall {
	enum agt_stall_kind kind;
	uint32_t part, n_parts, n_open; /* open: not summed */
	uint32_t server;                /* 0: none */
	uint64_t ns;                    /* for so long; 0: not known */
};
bool agt_tensor_stall(const struct agt_tensor *t, struct agt_stall *ret);

/* Push up to cfg.turn_bytes or one more; sum one partition locally. True: there is more to do. */
bool agt_core_work(struct agt_core *core);
/* The time, before each batch of events; also runs what is due. Returns the next deadline. */
uint64_t agt_core_tick(struct agt_core *core, uint64_t now_ns);

/* Change the window; what is under way stays so. */
void agt_core_set_window(struct agt_core *core, size_t window_bytes);
/* Change how many bytes a job may have under way, 0: any number; what waited for less goes. */
void agt_core_set_job_inflight(struct agt_core *core, uint64_t bytes);
/* Bytes that the job has pushed and whose sums are not in. */
uint64_t agt_job_inflight(const struct agt_job *job);

/* Figures of now, for the core's own thread. */
void agt_core_stats(const struct agt_core *core, struct agt_stats *ret);
#endif
