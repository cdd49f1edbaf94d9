#ifndef BPSCLIENT_CLIENT_H
#define BPSCLIENT_CLIENT_H
/* Internals of the library: the handle of one worker in a job, and its tensors.
 *
 *   open.c     joins and leaves the job   suspend.c  leaves the job, and joins again
 *   declare.c  declares tensors           tensor.c   submits tensors
 *   wait.c     waits for rounds           barrier.c  waits for all workers
 *   workers.c  lists the workers          average.c  averages integers
 *
 * Locks, in the order of taking: declare_mutex (the table of tensors), ring_mutex (submissions;
 * held briefly), the session's lock. collect_mutex allows one collective at a time.
 *
 * A push_pull of a tensor is a round. The tensor's `round` is the last submitted one; only the
 * thread that operates on the tensor uses it. entry->done_round, in shared memory, is the last
 * round that the agent has finished. A round is in flight while done_round < round. When a round
 * fails, the agent sets the entry's status, and the tensor stays failed. An average of integers has
 * a second, wider tensor, its companion (average.h). tensor_is_done and tensor_get_failure_code
 * check the companion's entry too.
 *
 * A job of one worker (is_single) has no session: bps_push_pull itself computes the result
 * (single_worker.c). */
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "libbpsclient/bps.h"

#include "common/local/local.h"
#include "common/wire/ctlmsg.h"
#include "libbpsclient/options.h"
#include "libbpsclient/base/trace_plan.h"
#include "libbpsclient/session.h"

#define CLIENT_BUCKETS     1024
#define CLIENT_WORKERS_MAX 65536
/* Users must not give tensors a name that begins with CLIENT_RESERVED. Tensors of collectives have
 * names that begin with CLIENT_NAME_PREFIX: their rounds wait for all machines, even in a job that
 * does not wait for late machines (BPS_BACKUP). The names of companions begin with
 * AVERAGE_PREFIX (average.h). */
#define CLIENT_RESERVED    "__bps"
#define CLIENT_NAME_PREFIX CTL_OWN_TENSORS

/* The tensor that is declared first gets this priority, the next one a smaller one, and so on. */
#define CLIENT_PRIORITY_MAX 65535

struct average;

struct bps_tensor {
	struct bps *b;
	struct bps_tensor *next; /* next tensor in the same bucket of b->buckets */
	char *name;
	struct tensor_shape shape;
	uint16_t auto_priority;
	/* Set while check_group_may_submit examines a group, to find a tensor that occurs twice in
	 * the group; guarded by ring_mutex */
	bool is_marked;
	size_t bytes;

	/* Entry of the tensor in shared memory; NULL until the agent has accepted the
	 * declaration */
	struct local_entry *entry;
	uint32_t idx;
	void *in;
	const void *out[2];
	/* region of device memory that holds the tensor; 0: host memory. region_offset: the
	 * tensor's offset in the region */
	uint32_t region;
	uint64_t region_offset;
	/* The region is released, or about to be released; guarded by ring_mutex */
	bool is_released;
	uint64_t round;
	void *copy_dst; /* destination of a copy of the result, or NULL */
	/* Only for a tensor of a collective: all bytes of the input from this offset on are zero */
	size_t n_filled;

	/* State of the tensor's companion (average.h), and the companion's results. Allocated by
	 * the first average of integers. */
	struct average *average;
	/* For a companion: the tensor whose averages the companion carries; else NULL */
	struct bps_tensor *owner;

	struct local_entry own_entry;
	void *own_slots;
};

struct bps {
	struct client_options options;
	int32_t rank, size, local_rank, local_size;
	/* Page that the kernel fills with zeros in a forked child (MADV_WIPEONFORK), so 0 means
	 * that this process is the child. The check of the page costs no system call, and also
	 * detects clone(). */
	uint32_t *is_ours;
	pid_t pid; /* id of this process, if the kernel lacks MADV_WIPEONFORK; else 0 */
	bool is_single;
	struct session session;
	uint64_t barrier; /* number of the last barrier that this worker has passed */
	bool is_new;
	bool is_suspended;
	/* True from the time when the worker enters a barrier until it has passed the barrier.
	 * While this field is true, the library rejects the worker's submissions. Guarded by
	 * ring_mutex. */
	bool is_at_barrier;
	int32_t root;
	struct trace_plan trace;

	struct client_gpu *gpu; /* connection to the executor; NULL until bps_gpu_open */

	pthread_mutex_t declare_mutex;
	struct bps_tensor *buckets[CLIENT_BUCKETS];
	uint32_t n_declared;

	pthread_mutex_t ring_mutex;
	/* Number of completed rounds in a job of one worker; guarded by ring_mutex */
	uint64_t n_done;
	pthread_mutex_t collect_mutex;
};

/* Check the handle at the start of every call. Returns 0 or an error: -EINVAL if b is NULL;
 * BPS_EFORKED if this process is a forked child; BPS_ECLOSED if the job is suspended.
 * client_check_own accepts a suspended job. */
int client_check_is_open(const struct bps *b);
int client_check_own(const struct bps *b);
/* Write the trace that environment variables request (base/trace_plan.h), unless that has happened.
 * A failure is a warning. */
void trace_write_planned(struct bps *b);
/* Join the job of b->options, and set rank, size and the other fields that depend on the job. No
 * other thread may use b yet. Errors: those of bps_open. */
int client_join_job(struct bps *b);
/* Check that no tensor is in flight. Errors: BPS_EBUSY. Sets bps_last_error. */
int client_check_idle(struct bps *b);
/* Declare n tensors of b again, in the job that b has just joined. Errors: those of bps_declare. */
int tensor_redeclare(struct bps *b, struct bps_tensor **tensors, size_t n);

/* Address of a tensor in device memory. region: a piece of memory that this process shares with the
 * executor, the process that drives the GPUs. */
struct tensor_place {
	uint32_t region;
	uint64_t offset;
};
struct tensor_decl {
	const char *name;
	struct tensor_shape shape;
};
/* Declare tensors of the user (bps_declare) or of the library itself. place: array of n places in
 * device memory, or NULL for tensors in host memory. ret: array for n pointers, written only if all
 * n declarations succeed. Owns: b keeps the tensors until bps_close. Errors: those of bps_declare.
 * Sets bps_last_error. */
int tensor_declare(struct bps *b, const struct tensor_decl *decls, const struct tensor_place *place,
	size_t n, struct bps_tensor **ret);
/* Check the name and the shape of a user's declaration. Errors: -EINVAL. Sets bps_last_error. */
int tensor_check_decl(const struct tensor_decl *d);
/* Check that ret is not NULL. Errors: -EINVAL. Sets bps_last_error. */
int tensor_check_ret(struct bps_tensor *const *ret);
/* Check that no tensor of a group is NULL, that all belong to one job, and that the job is open. n:
 * number of tensors, at least 1. what: name of the public function, for the error text. Errors:
 * -EINVAL and those of client_check_is_open. Sets bps_last_error. */
int tensor_check_group(struct bps_tensor *const *tensors, size_t n, const char *what);
/* Check that the caller may write to the tensor's input. While a round is in flight, the agent
 * reads the input. Servers may read the input even after the round has failed, until they are
 * notified of the failure (session.h). Errors: BPS_EBUSY, or the tensor's failure. Sets
 * bps_last_error. */
int tensor_may_fill(struct bps_tensor *t);
/* Check that this worker gets the bytes [at, at + n_bytes) of the tensor's results. what: name of
 * the caller's operation, for the error. Errors: -EINVAL. Sets bps_last_error. */
int tensor_check_shard(const struct bps_tensor *t, const char *what, uint64_t at, uint64_t n_bytes);
/* Check that a tensor in device memory may be submitted: fewer than `max` of its rounds are in
 * flight. The caller holds ring_mutex. Errors: BPS_EBUSY, -EAGAIN (the ring is full), or the
 * tensor's failure. Sets bps_last_error. */
int tensor_may_run_ahead(struct bps_tensor *t, uint64_t max);
/* Arguments of the submission of a round. */
struct submission {
	enum bps_op op;
	int32_t priority;
	bool abstains; /* the worker adds nothing to the round */
};
/* Start the tensor's next round: write a submission to the ring of submissions, which must have
 * room. The caller holds ring_mutex. */
void tensor_submit_next_round(struct bps_tensor *t, const struct submission *how);
/* Free a tensor that is not in flight. The caller has removed it from the table. */
void client_tensor_free(struct bps_tensor *t);
/* Submit n tensors of one job, for bps_push_pull_group. On an error, no tensor is submitted.
 * Errors: those of bps_push_pull. Sets bps_last_error. */
int client_submit_tensors(
	struct bps_tensor *const *tensors, size_t n, const struct submission *how);

/* Return whether the last submitted round is complete, or has failed. */
bool tensor_is_done(const struct bps_tensor *t);
/* Return the tensor whose round is not done yet: t, or the companion that carries its average. If
 * no round is in flight, returns t. */
struct bps_tensor *tensor_awaited(struct bps_tensor *t);
/* Return the code with which the tensor or its companion has failed; 0 if neither has failed. If
 * the code is not 0, *ret_failed is t, or the companion if only the companion has failed.
 * ret_failed may be NULL. */
int tensor_get_failure_code(const struct bps_tensor *t, const struct bps_tensor **ret_failed);
/* Set bps_last_error to the reason for the failure of the tensor or its session. Asks the agent for
 * the reason. Returns `code`. */
int tensor_explain(const struct bps_tensor *t, int code);
/* Set bps_last_error to a sentence about the round in flight. Returns BPS_EBUSY. */
int tensor_explain_busy(const struct bps_tensor *t);

/* Return whether the given submitted round of t is complete or has failed. Does not check the
 * tensor's companion. Any thread may call this. */
bool tensor_has_ended_round(const struct bps_tensor *t, uint64_t round);
/* Wait for the last submitted round and deliver its result, as bps_wait does. The wait ends at
 * deadline_ns, which the caller has computed from timeout_ms. Errors: those of bps_wait. Sets
 * bps_last_error. */
int tensor_wait_for_result(struct bps_tensor *t, uint64_t deadline_ns, uint32_t timeout_ms);
/* Wait until the submitted round `round` has ended. In contrast to tensor_wait_for_result, do not
 * deliver the result. Returns 0 also if the round has failed. Any thread may call this, even while
 * another thread submits. */
int tensor_wait_round(
	struct bps_tensor *t, uint64_t round, uint64_t deadline_ns, uint32_t timeout_ms);
/* Set bps_last_error to a sentence about a time-out. The sentence includes the agent's report of
 * what the round waits for. Returns BPS_ETIMEDOUT. */
int tensor_explain_timeout(const struct bps_tensor *t, uint64_t round, uint32_t timeout_ms);

/* Give t its buffers, in private memory, because the job has only one worker. Errors: -ENOMEM. */
int single_worker_declare(struct bps_tensor *t);
/* Complete the submitted round of t in a job that has only one worker: copy the input to the
 * result, or add it to the value. If the worker abstains, it adds nothing. */
void single_worker_submit(struct bps_tensor *t, bool abstains);
#endif
