#ifndef BPS_H
#define BPS_H
/* libbpsclient: hand tensors to this machine's bps-agent and get them back summed over all workers
 * of the job. C99 and C++98; depends on libc alone. See bpsclient(3).
 *
 * A job is a named run of `size` workers. Each worker declares its tensors by name (the same names,
 * types and counts everywhere, in any order), writes its values into the tensor's input buffer and
 * calls push_pull; the reduced values appear in the tensor's output buffer at every worker, the
 * same bytes everywhere.
 *
 * Buffers: you may write to bps_input() whenever no push_pull of that tensor is in flight.
 * bps_output() of a completed round is read-only. It does not change until you submit the tensor's
 * round after the next one. One push_pull per tensor may be in flight; a second one is BPS_EBUSY.
 *
 * Threads: any thread may call any function. Two threads must not operate on the same tensor at
 * once. After fork() the child's calls fail with BPS_EFORKED; the parent is not disturbed.
 *
 * Errors: negative, -errno for system causes or one of enum bps_error. bps_strerror() names the
 * code. bps_last_error() is the whole sentence about the calling thread's last failure: what
 * failed, who is missing since when, and what to do. Each wait has a time-out. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_API __attribute__((visibility("default")))
#define BPS_ABI 2

struct bps;        /* a worker's place in a job */
struct bps_tensor; /* a declared tensor; lives as long as its struct bps */

/* Element types, numbered like NCCL's. */
enum bps_dtype {
	BPS_I8 = 0,
	BPS_U8 = 1,
	BPS_I32 = 2,
	BPS_I64 = 4,
	BPS_F16 = 6,
	BPS_F32 = 7,
	BPS_F64 = 8,
	BPS_BF16 = 9
};

/* Reductions. Sums and products of integers wrap. AVG divides the sum by the number of workers. Of
 * integers it is the floor of the exact mean, which never wraps; bps_push_pull(3) has its cost. MIN
 * and MAX propagate NaN. f16 and bf16 are accumulated in f32. */
enum bps_op { BPS_SUM = 0, BPS_PROD = 1, BPS_MAX = 2, BPS_MIN = 3, BPS_AVG = 4 };

enum bps_code {
	/* the time-out passed; the sentence names the missing workers */
	BPS_ETIMEDOUT = -10001,
	BPS_EBUSY = -10002,          /* a push_pull of this tensor is in flight */
	BPS_EMISMATCH = -10003,      /* workers disagree about a tensor, an operation or the job */
	BPS_ENOSERVER = -10004,      /* no server can be reached; wait again */
	BPS_ENOSCHED = -10005,       /* the scheduler cannot be reached */
	BPS_ENOAGENT = -10006,       /* this machine's agent cannot be reached */
	BPS_EWORKER_LOST = -10007,   /* another worker died */
	BPS_EAGENT_LOST = -10008,    /* another machine died */
	BPS_EEVICTED = -10009,       /* the other machines continued without this one */
	BPS_EINPUT_CHANGED = -10010, /* an input buffer was written to while in flight */
	BPS_EDIVERGED = -10011,      /* workers hold different results of one round */
	BPS_EQUOTA = -10012,         /* a quota is exhausted; the sentence has limit and use */
	BPS_EPROTO = -10013,         /* the peer violated the protocol */
	BPS_EVERSION = -10014,       /* library and agent are not compatible */
	BPS_EAUTH = -10015,          /* the job has another token (BPS_JOB_TOKEN) */
	BPS_ENOTFOUND = -10016,
	BPS_EDUP = -10017, /* this rank is already taken */
	BPS_ECLOSED = -10018,
	BPS_EFORKED = -10019,
	BPS_ENOTDURABLE = -10020,
	BPS_EJOB_FAILED = -10021,
	BPS_EROUND_LOST = -10022,
	BPS_EDRAINED = -10023, /* this machine takes no new jobs (bpsctl drain) */
	BPS_EDEVICE = -10024,  /* a GPU, or the process that drives it for the job, failed */
	BPS_EISOLATED = -10025 /* no message from scheduler and servers; wait again */
};

/* Options of bps_open. Initialize them with bps_options_init and set those that differ. A zero or
 * NULL member is taken from the environment, from the first variable that is set. bpsclient(3) has
 * the table. */
struct bps_options {
	uint32_t abi;             /* BPS_ABI, set by bps_options_init */
	const char *job;          /* BPS_JOB, TORCHELASTIC_RUN_ID, SLURM_JOB_ID, ... */
	const char *agent_socket; /* BPS_AGENT_SOCKET, default /run/bps/agent.sock */
	/* -1: environment (BPS_RANK, RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, ...) or assigned */
	int32_t rank;
	int32_t size;             /* -1: environment (BPS_SIZE, WORLD_SIZE, ...), else 1 */
	int32_t local_rank;       /* -1: environment */
	int32_t local_size;       /* -1: environment */
	uint32_t timeout_ms;      /* for every wait that names none; BPS_TIMEOUT; 0: 600,000 */
	uint32_t open_timeout_ms; /* for all workers to arrive; BPS_OPEN_TIMEOUT; 0: timeout_ms */
	/* 1: the same bits from the same inputs, in every run; -1: BPS_DETERMINISTIC */
	int32_t deterministic;
	/* Requested partition size. 0: BPS_PARTITION_BYTES or the scheduler's choice. */
	uint32_t part_bytes;
	/* If a machine or one of its workers is lost: the job ends, or continues without them. -1:
	 * BPS_ON_AGENT_LOSS ("abort" or "shrink"), else abort. */
	int32_t on_agent_loss;
	/* A round may complete without this number of machines if they are late. -1: BPS_BACKUP,
	 * else 0. The grace is the time that the round waits for them after the last required
	 * machine. 0: BPS_BACKUP_GRACE, else 20. */
	int32_t backup;
	uint32_t backup_grace_ms;
	/* 1: more machines may join while the job runs, up to max_size workers in all; size is the
	 * number at the start. The job can shrink, too. -1: BPS_ELASTIC and BPS_MAX_SIZE, else 0
	 * and size. */
	int32_t elastic;
	int32_t max_size;
};
enum bps_loss { BPS_LOSS_ABORT = 0, BPS_LOSS_SHRINK = 1 };

BPS_API void bps_options_init(struct bps_options *opt);

/* Attach to the agent and join the job. Returns when all workers have joined. opt NULL: all options
 * from the environment. A job of one worker needs no agent, no server and no scheduler. Errors:
 * BPS_ENOAGENT, BPS_ETIMEDOUT (names the missing ranks), BPS_EDUP, BPS_EMISMATCH, BPS_EAUTH,
 * BPS_EQUOTA, BPS_EVERSION, -EINVAL. */
BPS_API int bps_open(const struct bps_options *opt, struct bps **ret);

/* Leave the job. Waits until every worker has called it (at most timeout_ms, 0: the default), so
 * that no worker's last result is lost. Frees everything in any case. Errors: as a wait. b may be
 * NULL. */
BPS_API int bps_close(struct bps *b, uint32_t timeout_ms);
/* Leave without waiting. The other workers' job fails unless all had finished. */
BPS_API void bps_abort(struct bps *b);

/* Suspend and resume. bps_suspend leaves the job as bps_close does, but keeps the handle and the
 * declarations. bps_resume then joins a job of the same name, as worker `rank` (-1: assigned) of
 * `size`, and declares everything again. Handles of tensors stay valid, their buffers change and
 * their rounds count from 1. In between, servers may come and go. Workers may stay away (bps_close)
 * or be new (bps_open). Rounds in flight are abandoned. Errors: BPS_ETIMEDOUT of bps_suspend: call
 * it again; as bps_open. */
BPS_API int bps_suspend(struct bps *b, uint32_t timeout_ms);
BPS_API int bps_resume(struct bps *b, int32_t rank, int32_t size);

BPS_API int bps_rank(const struct bps *b);
BPS_API int bps_size(const struct bps *b);
BPS_API int bps_local_rank(const struct bps *b);
BPS_API int bps_local_size(const struct bps *b);

/* Declare a tensor of n_elems (>= 1) values. Returns at once. Agreement with the other workers is
 * checked later. A mismatch is the error of the tensor's first push_pull, which names both workers
 * and both declarations. The same name again gives the same tensor if type and count agree. name:
 * 1..255 bytes that do not begin with "__bps". Errors: -EINVAL, BPS_EMISMATCH (with this worker's
 * own earlier declaration), BPS_EQUOTA. */
BPS_API int bps_declare(struct bps *b, const char *name, enum bps_dtype dtype, uint64_t n_elems,
	struct bps_tensor **ret);
/* Declare several tensors in one round trip. ret: n tensors. */
struct bps_decl {
	const char *name;
	enum bps_dtype dtype;
	uint64_t n_elems;
};
BPS_API int bps_declare_group(
	struct bps *b, const struct bps_decl *decls, size_t n, struct bps_tensor **ret);

/* Return the input buffer: n_elems values, 64-byte aligned, in memory shared with the agent. The
 * values are not copied. */
BPS_API void *bps_input(struct bps_tensor *t);
/* Return the result of the last completed round; NULL before the first. */
BPS_API const void *bps_output(const struct bps_tensor *t);
/* Get the addresses of both results, which are constant until bps_suspend or bps_close: round n of
 * bps_tensor_info is in ret[n & 1]. So a view of the next result can be made before that round is
 * complete. An average of integers is elsewhere: only bps_output returns it. Errors: -EINVAL the
 * tensor lies in device memory; BPS_ECLOSED. */
BPS_API int bps_outputs(const struct bps_tensor *t, const void *ret[2]);
/* Write the bps_count(t) values of src times scale to the input of a tensor of floats. Each product
 * is exact before it is rounded, once, to nearest even. Errors: BPS_EBUSY; -EINVAL the tensor has
 * integers or lies in device memory; the job's failure. */
BPS_API int bps_fill_f32(struct bps_tensor *t, const float *src, float scale);
/* Write the output of a tensor of floats times scale to dst. Of f64 the product is rounded to f64
 * and to f32. Errors: -EINVAL likewise, or no round is complete. */
BPS_API int bps_read_f32(const struct bps_tensor *t, float *dst, float scale);
BPS_API uint64_t bps_count(const struct bps_tensor *t);
BPS_API enum bps_dtype bps_dtype(const struct bps_tensor *t);
BPS_API const char *bps_name(const struct bps_tensor *t);

/* Submit bps_input(t). Returns at once. priority: larger goes first; among equals, the earlier
 * submission goes first. By default (BPS_PRIORITY_AUTO) the tensor declared first goes first.
 * Errors: BPS_EBUSY, BPS_ECLOSED, or the job's failure. */
#define BPS_PRIORITY_AUTO INT32_MIN
BPS_API int bps_push_pull(struct bps_tensor *t, enum bps_op op, int32_t priority);
/* Push_pull between buffers of the caller. src is copied before the call returns. The bps_wait or
 * bps_poll that finds the round complete writes dst (may be src or NULL). */
BPS_API int bps_push_pull_copy(
	struct bps_tensor *t, const void *src, void *dst, enum bps_op op, int32_t priority);
/* Submit n tensors with one wake-up, all or none: after an error nothing was submitted. */
BPS_API int bps_push_pull_group(
	struct bps_tensor *const *tensors, size_t n, enum bps_op op, int32_t priority);

/* Return 1 if the round is complete (or none is in flight), 0 if it is in flight. Negative: it
 * failed, or it is still in flight (BPS_ENOSERVER, BPS_EISOLATED). */
BPS_API int bps_poll(struct bps_tensor *t);
/* Wait for the round, at most timeout_ms (0: the default). After BPS_ETIMEDOUT, BPS_ENOSERVER and
 * BPS_EISOLATED it is still in flight: do not write to its input. The caller may wait again. */
BPS_API int bps_wait(struct bps_tensor *t, uint32_t timeout_ms);
BPS_API int bps_wait_group(struct bps_tensor *const *tensors, size_t n, uint32_t timeout_ms);
/* Wait, at most timeout_ms, until the round of one or more of n tensors is complete or has failed.
 * Writes the indices of these tensors to ret_idx, which has room for n, in the order of their
 * completion on this machine, and returns how many there are. A tensor with nothing in flight is
 * one of them. bps_poll then returns the result of each, and writes its dst. Entries that are NULL
 * are skipped; returns 0 if all are. Errors: as bps_wait; then no tensor is complete. */
BPS_API int bps_wait_some(
	struct bps_tensor *const *tensors, size_t n, uint32_t timeout_ms, size_t *ret_idx);
/* Return the number of workers that contributed to the last completed round. If partitions differ,
 * the smallest number counts. Errors: -EINVAL t is NULL. */
BPS_API int bps_contributors(const struct bps_tensor *t);
/* Details of the last completed round. Partitions of one round differ if a machine was lost
 * meanwhile. An average is over the workers that contributed to its partition. */
struct bps_info {
	uint64_t round; /* last completed round, 0: none */
	/* workers that contributed to the partition that has the fewest */
	uint32_t contributors;
	uint32_t contributors_most; /* the same, for the partition that has the most */
};
BPS_API int bps_tensor_info(const struct bps_tensor *t, struct bps_info *ret);

/* The workers of the job by rank, including those that were lost since it began. */
struct bps_worker {
	int32_t rank;
	int32_t is_lost;
	int32_t is_new; /* it joined last, while the job was running */
	/* bps_contributor_list: missing from some partition of the last round */
	int32_t is_missing;
	char host[64];
	char why[128]; /* why it was lost; "" if it was not */
};
/* Write up to n workers to ret and return how many there are. *ret_view grows with every change;
 * ret_view may be NULL. Errors: as a wait. */
BPS_API int bps_workers(struct bps *b, struct bps_worker *ret, size_t n, uint64_t *ret_view);
/* Do bps_workers, and set is_missing. The tensor must be idle: not in flight, and not used by
 * another thread. */
BPS_API int bps_contributor_list(struct bps_tensor *t, struct bps_worker *ret, size_t n);

/* Network traffic of this machine's agent, for all of its jobs. Excludes memory shared with servers
 * of this machine, and headers of TCP and below. Errors: BPS_ENOAGENT, BPS_ETIMEDOUT, BPS_ECLOSED
 * while suspended, -EOPNOTSUPP an agent of an older release. Works also after the job has
 * failed. */
struct bps_traffic {
	uint64_t instance;       /* of the agent's process; a new process counts from 0 */
	uint64_t sent_bytes;     /* contributions, counted when they are offered, and messages */
	uint64_t received_bytes; /* sums and messages */
};
BPS_API int bps_traffic(struct bps *b, struct bps_traffic *ret);

/* Collectives on small host data, built on push_pull. All workers must call them in the same order.
 * They block for at most timeout_ms (0: the default). */
BPS_API int bps_barrier(struct bps *b, uint32_t timeout_ms);
/* data: n_bytes at every worker; overwritten with root's. */
BPS_API int bps_broadcast(struct bps *b, void *data, size_t n_bytes, int root, uint32_t timeout_ms);
/* dst: size * n_bytes. Worker r's src is stored at r * n_bytes. */
BPS_API int bps_allgather(
	struct bps *b, const void *src, size_t n_bytes, void *dst, uint32_t timeout_ms);

/* Wait until every worker is here with nothing in flight. Then all workers have the same state, so
 * a checkpoint is valid only after this call. The barrier lets in workers that wait to join an
 * elastic job. Returns how many were let in, the same number at all workers. All workers, including
 * the new ones, then make the same calls to pass on the state (bps_broadcast from bps_root). After
 * BPS_ETIMEDOUT call it again. Errors: BPS_EBUSY a round is in flight, and those of a wait. */
BPS_API int bps_checkpoint_barrier(struct bps *b, uint32_t timeout_ms);
/* Return 1 if this worker joined while the job was running, and must get the others' state. */
BPS_API int bps_is_new(const struct bps *b);
/* Return the lowest rank that was present before the last workers joined. */
BPS_API int bps_root(const struct bps *b);

/* Tensors in the memory of a GPU: see bps_gpu(3). A push_pull of such a tensor is ordered by
 * streams. It begins when `stream` has done what was queued before. Its result replaces the values,
 * and is ready for work queued after bps_gpu_wait_stream. No call waits for a GPU. A round may be
 * submitted while earlier ones are in flight, up to 8. bps_wait and bps_poll refer to the last one.
 * stream: a CUstream or cudaStream_t, NULL is the default stream. The library uses the CUDA library
 * that the process has loaded. It does not link one itself.
 *
 * Open: either all workers of a machine call it, or none. uuid: 16 bytes of the GPU's; NULL: the
 * calling thread's current device. Errors: BPS_EDEVICE no CUDA here, none at the agent, or it does
 * not work; BPS_EQUOTA the user's other jobs have all executors; BPS_ETIMEDOUT not all workers of
 * this machine have called it. The call may be repeated after an error. */
BPS_API int bps_gpu_open(struct bps *b, const unsigned char *uuid);
/* Allocate memory of this worker's GPU through the job's executor: n_bytes, zeroed, valid until
 * bps_close or bps_gpu_release. Errors: BPS_EDEVICE, -ENOMEM. */
BPS_API int bps_gpu_alloc(struct bps *b, uint64_t n_bytes, void **ret);
/* Allow tensors in device memory of the caller. The caller keeps it, and it must outlive the job or
 * its bps_gpu_release. Errors: -EOPNOTSUPP it cannot be shared (from a pool, managed). */
BPS_API int bps_gpu_import(struct bps *b, void *ptr, uint64_t n_bytes);
/* Release the memory, after the GPU has done what its streams hold. Tensors in it cannot be
 * submitted any more, and their names stay in use. A round whose sum a stream has is not in flight.
 * Errors: BPS_EBUSY a tensor in it is in flight; -EINVAL it is no such memory; those of a wait. */
BPS_API int bps_gpu_release(struct bps *b, void *ptr);
/* Declare as bps_declare does, with the place of the values: inside one piece of such memory. */
BPS_API int bps_gpu_declare(struct bps *b, const char *name, enum bps_dtype dtype, uint64_t n_elems,
	void *ptr, struct bps_tensor **ret);
/* Errors: BPS_EBUSY 8 rounds are in flight; -EOPNOTSUPP an average of integers; BPS_EDEVICE; the
 * job's failure. */
BPS_API int bps_gpu_push_pull(struct bps_tensor *t, enum bps_op op, int32_t priority, void *stream);
/* Make the stream wait: work queued from now on runs when the last submitted round is done, or has
 * failed. The next call reports such a failure. */
BPS_API int bps_gpu_wait_stream(struct bps_tensor *t, void *stream);
/* Return how this machine's GPUs are summed ("copy", "ce", "rs_ag", ...); "" without GPUs. */
BPS_API const char *bps_gpu_route(const struct bps *b);

BPS_API const char *bps_strerror(int code);
/* Return the sentence of this thread's last failed call; "" if there was none. Valid until the
 * thread's next call. */
BPS_API const char *bps_last_error(void);
/* Worker, machine and tensor that the sentence of bps_last_error names, as fields for programs. The
 * fields are about this thread's last call, if it failed. */
struct bps_failure {
	int32_t rank;     /* the worker that caused the failure; -1: none, or it is not known */
	char host[64];    /* machine of that worker, or the machine that failed; "": not known */
	char tensor[256]; /* tensor of the call; "": none */
};
BPS_API void bps_last_failure(struct bps_failure *ret);
BPS_API const char *bps_version(void);

#ifdef __cplusplus
}
#endif
#endif
