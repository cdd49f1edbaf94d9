#ifndef BPSCLIENT_CLIENT_H
#define BPSCLIENT_CLIENT_H
/* Internals of the library: a worker's place in a job, and its tensors.
 *
 *   open.c     joins and leaves            tensor.c   declares and submits, wait.c waits
 *   barrier.c  barriers of all workers     workers.c  lists the workers
 *   average.c  averages of integers        suspend.c  leaves for a while
 *
 * Locks, in the order of taking: declare_mutex (the table of tensors), ring_mutex (submissions;
 * held briefly), the session's lock. collect_mutex allows one collective at a time.
 *
 * A tensor's round: `round` is the last submitted one and belongs to the thread that operates on
 * the tensor. entry->done_round is the agent's. In flight means done_round < round. A tensor whose
 * entry has a status has failed for good. The same holds for the companion that carries the values
 * of an average of integers (average.h): tensor_is_done and tensor_status look at both.
 *
 * A job of one worker (is_single) has no session; a submission completes within the call
 * (single_worker.c). */
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "libbpsclient/bps.h"

#include "common/local/local.h"
#include "common/wire/ctlmsg.h"
#include "libbpsclient/options.h"
#include "libbpsclient/session.h"

#define CLIENT_BUCKETS     1024
#define CLIENT_WORKERS_MAX 65536
/* Users' names must not begin with this. The names of collectives begin with CLIENT_NAME_PREFIX,
 * whose rounds wait for all machines. Those of averages do not (average.h). */
#define CLIENT_RESERVED    "__bps"
#define CLIENT_NAME_PREFIX CTL_OWN_TENSORS

struct average;

struct bps_tensor {
	struct bps *b;
	struct bps_tensor *next; /* in the list of its bucket */
	char *name;
	enum bps_dtype dtype;
	uint16_t auto_priority;
	bool is_marked; /* under ring_mutex: part of the group that is being checked */
	uint64_t n_elems;
	size_t bytes;

	struct local_entry *entry; /* NULL while it is being declared */
	uint32_t idx;
	void *in;
	const void *out[2];
	uint32_t region; /* the region of device memory that holds it, and the offset there */
	uint64_t region_offset;
	bool is_released; /* under ring_mutex: that region is released, or about to be */
	uint64_t round;
	void *copy_dst;  /* destination of the result, or NULL */
	size_t n_filled; /* of a collective: the input is zero from here on */

	struct average *average;  /* set by the first average of integers */
	struct bps_tensor *owner; /* the tensor whose averages this one carries, or NULL */

	struct local_entry own_entry;
	void *own_slots;
};

struct bps {
	struct client_options options;
	int32_t rank, size, local_rank, local_size;
	/* A page that the kernel zeroes in a forked child: the cheapest way to detect a fork. It
	 * covers clone() too. */
	uint32_t *is_ours;
	pid_t pid; /* checked instead if the kernel cannot zero the page; else 0 */
	bool is_single;
	struct session session;
	uint64_t barrier; /* the last barrier that it passed */
	bool is_new;
	bool is_suspended;
	bool is_at_barrier; /* under ring_mutex: submissions are refused */
	int32_t root;

	struct client_gpu *gpu; /* set by bps_gpu_open */

	pthread_mutex_t declare_mutex;
	struct bps_tensor *buckets[CLIENT_BUCKETS];
	uint32_t n_declared;

	pthread_mutex_t ring_mutex;
	uint64_t n_done; /* under ring_mutex: completions of a job of one worker */
	pthread_mutex_t collect_mutex;
};

/* Check the handle at the start of every call. Returns 0, -EINVAL for NULL, BPS_EFORKED, or
 * BPS_ECLOSED if it is suspended. client_check_own accepts a suspended job. */
int client_check(const struct bps *b);
int client_check_own(const struct bps *b);
/* Join the job of b->options. No other thread may have b. Errors: as bps_open. */
int client_join(struct bps *b);
/* Check that no tensor is in flight. Errors: BPS_EBUSY with the thread's sentence. */
int client_check_idle(struct bps *b);
/* Declare n tensors of b again in its new job. Errors: as bps_declare. */
int tensor_redeclare(struct bps *b, struct bps_tensor **tensors, size_t n);

/* Where a tensor lies in the executor's regions. */
struct tensor_place {
	uint32_t region;
	uint64_t offset;
};
/* Declare tensors, for bps_declare and for names of any prefix. place: of all n; NULL: in host
 * memory. ret: room for n, written only if all n succeed. Owns: b has the tensors until it closes.
 * Errors: as bps_declare, with the thread's sentence. */
int tensor_declare(struct bps *b, const struct bps_decl *decls, const struct tensor_place *place,
	size_t n, struct bps_tensor **ret);
/* Check that users may make this declaration. */
int tensor_check_decl(const struct bps_decl *d);
/* Check that ret can store the handles. Errors: -EINVAL, with the thread's sentence. */
int tensor_check_ret(struct bps_tensor *const *ret);
/* Check that all of n >= 1 tensors exist and belong to one open job. what: names the call in the
 * sentence. Errors: -EINVAL and those of client_check, with the thread's sentence. */
int tensor_check_group(struct bps_tensor *const *tensors, size_t n, const char *what);
/* Check that the tensor's input may be written. It may not while its round is in flight. It may not
 * after a failure either: others may not know of the failure and still sum the input (session.h).
 * Errors: BPS_EBUSY, or the tensor's failure; with the thread's sentence. */
int tensor_may_fill(struct bps_tensor *t);
/* Check that a tensor in device memory may be submitted with at most max rounds in flight.
 * ring_mutex is held. Errors: BPS_EBUSY, -EAGAIN, or the tensor's failure; with the thread's
 * sentence. */
int tensor_may_run_ahead(struct bps_tensor *t, uint64_t max);
/* Put the tensor's next round into the ring, which must have room. ring_mutex is held. */
void tensor_push(struct bps_tensor *t, enum bps_op op, int32_t priority);
/* Free a tensor, which must be in no bucket and not in flight. */
void tensor_free(struct bps_tensor *t);
/* Submit all n tensors of one b, or none, for bps_push_pull_group. Errors: as bps_push_pull, with
 * the thread's sentence. */
int client_submit(struct bps_tensor *const *tensors, size_t n, enum bps_op op, int32_t priority);

/* Return whether the last submitted round is complete (or failed). */
bool tensor_is_done(const struct bps_tensor *t);
/* Return the tensor whose round is awaited: t, or the companion that carries its average. Returns t
 * if none is awaited. */
struct bps_tensor *tensor_awaited(struct bps_tensor *t);
/* Return the code with which the tensor has failed for good, or 0. *ret_failed: t or its companion;
 * may be NULL. */
int tensor_status(const struct bps_tensor *t, const struct bps_tensor **ret_failed);
/* Set the sentence of a failed tensor or of the session behind it. Returns code. */
int tensor_explain(const struct bps_tensor *t, int code);
/* Set the sentence of a tensor whose round is in flight; returns BPS_EBUSY. */
int tensor_explain_busy(const struct bps_tensor *t);

/* Return whether a round up to the last submitted one is complete (or failed). Thread: any. */
bool tensor_has(const struct bps_tensor *t, uint64_t round);
/* Wait until deadline_ns, which is timeout_ms after the call's start. Errors: as bps_wait, with the
 * thread's sentence. */
int tensor_wait(struct bps_tensor *t, uint64_t deadline_ns, uint32_t timeout_ms);
/* Wait like tensor_wait for a round up to the last submitted one, without its result. Returns 0
 * also if the tensor has failed. Thread: any, even while another thread submits. */
int tensor_wait_round(
	struct bps_tensor *t, uint64_t round, uint64_t deadline_ns, uint32_t timeout_ms);
/* Set the sentence of a time-out: what the round waits for, as the agent reports it. Returns
 * BPS_ETIMEDOUT. */
int tensor_explain_timeout(const struct bps_tensor *t, uint64_t round, uint32_t timeout_ms);

/* Allocate slots in private memory. Errors: -ENOMEM. */
int single_worker_declare(struct bps_tensor *t);
/* Compute the sum over one worker: the input is the result. */
void single_worker_submit(struct bps_tensor *t);
#endif
