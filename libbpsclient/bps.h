#ifndef BPS_H
#define BPS_H
/* libbpsclient: the library of a training process. The library passes tensors to the bps-agent of
 * this machine and receives their sums over all workers of the job. The language is C99 or C++98.
 * The library depends on libc alone. See bpsclient(3).
 *
 * A job is a named run of `size` workers. Each worker declares its tensors by name: the same names,
 * types and counts at every worker, in any order. Then the worker writes its values into a tensor's
 * input buffer and calls push_pull. The reduced values then appear in the tensor's output buffer,
 * with the same bytes at every worker. Each push_pull of a tensor is one round of that tensor.
 *
 * Buffers: the caller may write to bps_input() while no push_pull of that tensor is in flight.
 * bps_output() of a completed round is read-only. The result of round n changes only when the
 * caller submits round n + 2. One push_pull per tensor may be in flight; a second push_pull returns
 * BPS_EBUSY.
 *
 * Threads: any thread may call any function. Two threads must not operate on the same tensor at
 * once. After fork() the child's calls fail with BPS_EFORKED; the parent is not disturbed.
 *
 * Errors: functions return 0 or a count, or a negative code: -errno for system causes, else one of
 * enum bps_code. bps_strerror() names the code. bps_last_error() returns the whole sentence about
 * the calling thread's last failure: what failed, which workers are missing since when, and what to
 * do. Each wait has a time-out. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_API __attribute__((visibility("default")))
#define BPS_ABI 4

struct bps;        /* one worker's handle of its job */
struct bps_tensor; /* a declared tensor; valid as long as its struct bps */

/* Element types, numbered like NCCL's. */
enum bps_dtype {
	BPS_I8 = 0,
	BPS_U8 = 1,
	BPS_I32 = 2,
	BPS_I64 = 4,
	BPS_F16 = 6,
	BPS_F32 = 7,
	BPS_F64 = 8,
	BPS_BF16 = 9,
	/* Block types, for fewer bytes on the network. An element is a block of 256, 64 or 1024
	 * values: a scale, and 8, 4 or 1 bits for each value. bps_fill_at_f32 encodes f32 values,
	 * and bps_read_at_f32 decodes them; bps_fill_f32(3) has the layout. Only SUM and AVG,
	 * and only tensors in host memory. */
	BPS_Q8 = 32,
	BPS_Q4 = 33,
	BPS_SIGN = 34
};
/* Return the number of elements of a tensor of n_values values: n_values, or for block types the
 * number of blocks. 0: dtype is unknown. */
BPS_API uint64_t bps_blocks(enum bps_dtype dtype, uint64_t n_values);

/* Reductions. Sums and products of integers wrap. AVG divides the sum by the number of workers. For
 * integers, AVG returns the floor of the exact mean, and does not wrap; bps_push_pull(3) states the
 * cost of this average. MIN and MAX propagate NaN. f16, bf16 and block types are accumulated in
 * f32. BAND, BOR and BXOR are bitwise operations on integers in host memory. */
enum bps_op {
	BPS_SUM = 0,
	BPS_PROD = 1,
	BPS_MAX = 2,
	BPS_MIN = 3,
	BPS_AVG = 4,
	BPS_BAND = 5,
	BPS_BOR = 6,
	BPS_BXOR = 7
};

enum bps_code {
	/* the time-out passed; bps_last_error() names the missing workers */
	BPS_ETIMEDOUT = -10001,
	BPS_EBUSY = -10002,     /* a push_pull of this tensor is in flight */
	BPS_EMISMATCH = -10003, /* workers disagree about a tensor, an operation or the job */
	BPS_ENOSERVER = -10004, /* no server can be reached; call bps_wait again */
	BPS_ENOSCHED = -10005,  /* the scheduler cannot be reached */
	BPS_ENOAGENT = -10006,  /* this machine's agent cannot be reached */
	/* another worker died, or closed the job while others waited for it */
	BPS_EWORKER_LOST = -10007,
	BPS_EAGENT_LOST = -10008, /* another machine died */
	BPS_EEVICTED = -10009,    /* the job's other machines continued without this one */
	/* An input buffer was written to while its push_pull was in flight */
	BPS_EINPUT_CHANGED = -10010,
	BPS_EDIVERGED = -10011, /* workers have different results of one round */
	BPS_EQUOTA = -10012,    /* a quota is exhausted; bps_last_error() states the limit */
	BPS_EPROTO = -10013,    /* the peer violated the protocol */
	BPS_EVERSION = -10014,  /* library and agent are not compatible */
	BPS_EAUTH = -10015,     /* the worker's token (BPS_JOB_TOKEN) differs from the job's */
	BPS_ENOTFOUND = -10016,
	BPS_EDUP = -10017, /* another worker of the job has this rank */
	BPS_ECLOSED = -10018,
	BPS_EFORKED = -10019,
	BPS_ENOTDURABLE = -10020,
	BPS_EJOB_FAILED = -10021,
	BPS_EROUND_LOST = -10022,
	BPS_EDRAINED = -10023, /* this machine takes no new jobs (bpsctl drain) */
	BPS_EDEVICE = -10024,  /* a GPU, or the process that drives it for the job, failed */
	BPS_EISOLATED = -10025 /* scheduler and servers do not answer; call bps_wait again */
};

/* Options of bps_open. First call bps_options_init, then set the options that must differ from the
 * environment. An option that keeps its initial value (-1, 0 or NULL) is taken from the
 * environment. Where a comment names several environment variables, the first variable that is set
 * is used. bpsclient(3) lists all variables. */
struct bps_options {
	uint32_t abi; /* BPS_ABI, set by bps_options_init */
	/* Name of the job. NULL: the value from the environment (BPS_JOB, TORCHELASTIC_RUN_ID,
	 * SLURM_JOB_ID, ...). */
	const char *job;
	/* Path of the agent's socket. NULL: the value of BPS_AGENT_SOCKET; if it is not set,
	 * /run/bps/agent.sock. */
	const char *agent_socket;
	/* Rank of the worker. -1: the value from the environment (BPS_RANK, RANK, SLURM_PROCID,
	 * OMPI_COMM_WORLD_RANK, ...); if there is none, the scheduler assigns a rank. */
	int32_t rank;
	/* Number of workers. -1: the value from the environment (BPS_SIZE, WORLD_SIZE, ...); if
	 * there is none, 1. */
	int32_t size;
	int32_t local_rank; /* -1: the value from the environment */
	int32_t local_size; /* -1: the value from the environment */
	/* Default time-out in milliseconds, for calls whose argument timeout_ms is 0. If this
	 * option is 0, the default is the value of BPS_TIMEOUT. If BPS_TIMEOUT is not set, the
	 * default is 600,000. */
	uint32_t timeout_ms;
	/* Time in milliseconds that bps_open waits for all workers. 0: the value of
	 * BPS_OPEN_TIMEOUT; if it is not set, the option timeout_ms. */
	uint32_t open_timeout_ms;
	/* 1: equal inputs give bit-identical results in every run. -1: the value of
	 * BPS_DETERMINISTIC; if it is not set, 0. */
	int32_t deterministic;
	/* Requested partition size in bytes. 0: the value of BPS_PARTITION_BYTES; if it is not set,
	 * the scheduler chooses the size. */
	uint32_t part_bytes;
	/* Reaction to the loss of a machine, or of one of the machine's workers (enum bps_loss):
	 * the job ends, or continues without that machine. -1: the value of BPS_ON_AGENT_LOSS
	 * ("abort" or "shrink"); if it is not set, "abort". */
	int32_t on_agent_loss;
	/* Number of machines that a round need not wait for if they are late. -1: the value of
	 * BPS_BACKUP; if it is not set, 0. */
	int32_t backup;
	/* Time in milliseconds that a round still waits for late machines after all required
	 * machines have contributed. 0: the value of BPS_BACKUP_GRACE; if it is not set, 20. */
	uint32_t backup_grace_ms;
	/* 1: more machines may join while the job runs, and the job can also shrink. The option
	 * `size` is then the number of workers at the start. -1: the value of BPS_ELASTIC; if it is
	 * not set, 0. */
	int32_t elastic;
	/* Largest number of workers of an elastic job. -1: the value of BPS_MAX_SIZE; if it is not
	 * set, `size`. */
	int32_t max_size;
};
enum bps_loss { BPS_LOSS_ABORT = 0, BPS_LOSS_SHRINK = 1 };

BPS_API void bps_options_init(struct bps_options *opt);

/* Connect to the agent and join the job. Returns when all workers have joined. If opt is NULL, all
 * options come from the environment. A job of one worker needs no agent, no server and no
 * scheduler. Errors: BPS_ENOAGENT, BPS_ETIMEDOUT (bps_last_error names the missing ranks),
 * BPS_EDUP, BPS_EMISMATCH, BPS_EAUTH, BPS_EQUOTA, BPS_EVERSION, -EINVAL. */
BPS_API int bps_open(const struct bps_options *opt, struct bps **ret);

/* Leave the job. Waits until every worker has called bps_close, so that no worker's last result is
 * lost. timeout_ms: longest wait; 0: the default. Frees everything, also when the call returns an
 * error. b may be NULL. Errors: those of bps_wait. */
BPS_API int bps_close(struct bps *b, uint32_t timeout_ms);
/* Leave the job without waiting. The job then fails at the other workers, or continues without this
 * machine (on_agent_loss). If this worker has already left the job by bps_suspend, the call does
 * not affect the other workers. */
BPS_API void bps_abort(struct bps *b);

/* Suspend and resume. bps_suspend leaves the job as bps_close does, but keeps the handle and the
 * declarations. bps_resume then joins a job of the same name and declares all tensors again. rank:
 * the worker's rank in the new job; -1: the scheduler assigns a rank. size: number of workers of
 * the new job. Handles of tensors stay valid, but their buffers get other addresses and their
 * rounds count from 1. Between the two calls, servers may be added or removed. A worker that
 * leaves the job for good calls bps_close; a new worker calls bps_open. bps_suspend abandons
 * rounds in flight. Errors: those of bps_open; BPS_ETIMEDOUT if not all workers have left: call
 * bps_suspend again. */
BPS_API int bps_suspend(struct bps *b, uint32_t timeout_ms);
BPS_API int bps_resume(struct bps *b, int32_t rank, int32_t size);

BPS_API int bps_rank(const struct bps *b);
BPS_API int bps_size(const struct bps *b);
BPS_API int bps_local_rank(const struct bps *b);
BPS_API int bps_local_size(const struct bps *b);

/* The use that a round of a tensor makes of the contributions. */
enum bps_mode {
	BPS_MODE_SUM = 0, /* reduces them: each round has a result of its own */
	/* Servers keep a value, to which they add each contribution (a delta) when it arrives. The
	 * result of a worker's round is the value of that moment, with the worker's delta in it. In
	 * the first round all workers wait for each other; to set the value, one worker submits it
	 * and the others abstain. Later a worker waits only for those that are more than `stale`
	 * rounds behind. bps_abstain reads the value. Only f32 and f64, only BPS_SUM, only in host
	 * memory, and not with the options deterministic, backup and elastic. See
	 * bps_declare(3). */
	BPS_MODE_VALUE = 1
};
/* The workers that get the result of a round. */
enum bps_owner {
	BPS_OWNER_ALL = 0, /* every worker gets all of it */
	/* Reduce-scatter: the result is cut into bps_size equal shards, and the worker of rank r
	 * gets only shard r (bps_shard). Each machine receives only the shards of its workers.
	 * n_values must be a multiple of bps_size, for block types also of the block's number of
	 * values times bps_size. Only BPS_MODE_SUM, only in host memory, and not in jobs that go on
	 * without a machine: with the options elastic, backup or on_agent_loss=shrink. */
	BPS_OWNER_SHARDS = 1
};
#define BPS_STALE_UNBOUNDED UINT32_MAX /* after the first round no worker waits for another one */
/* Declare a tensor of n_values (>= 1) values. Returns before the other workers have declared the
 * tensor. If the declarations of the workers differ, the tensor's first push_pull fails, and
 * bps_last_error names two workers and their declarations. If this worker has declared the name
 * before, returns the same tensor, provided that type, count and digest agree. name: 1 to 255 bytes
 * that do not begin with "__bps". Errors: -EINVAL, BPS_EMISMATCH (this worker has declared the name
 * with another type, count or digest), BPS_EQUOTA. */
BPS_API int bps_declare(struct bps *b, const char *name, enum bps_dtype dtype, uint64_t n_values,
	struct bps_tensor **ret);
/* A declaration for bps_declare_group. Set all its bytes to zero first, because later releases
 * append fields. Then set `size` and the fields that the tensor needs. */
struct bps_decl {
	size_t size; /* sizeof(struct bps_decl) */
	const char *name;
	enum bps_dtype dtype;
	uint64_t n_values;
	/* Digest of what the worker stores in the tensor, for example of the names and sizes of the
	 * gradients in a bucket. 0: the worker gives no digest. Digests are compared as types and
	 * counts are. */
	uint64_t digest;
	/* Fields for BPS_MODE_VALUE. Workers must agree on both. stale: number of rounds by which a
	 * worker may be behind without being waited for, or BPS_STALE_UNBOUNDED; 0: none. */
	enum bps_mode mode;
	uint32_t stale;
	enum bps_owner owner; /* workers must agree on it */
	uint32_t reserved;    /* 0; the place of a field of a later release */
};
/* Declare n tensors in one request to the agent. All of them have the same `size`. Writes n handles
 * to ret. Errors: those of bps_declare; -EINVAL if a `size` is wrong. */
BPS_API int bps_declare_group(
	struct bps *b, const struct bps_decl *decls, size_t n, struct bps_tensor **ret);

/* Return the input buffer: bps_blocks(bps_dtype(t), bps_count(t)) elements, 64-byte aligned, in
 * memory shared with the agent. bps_push_pull does not copy the values. */
BPS_API void *bps_input(struct bps_tensor *t);
/* Return the result of the last completed round; NULL before the first round is complete. Of a
 * tensor in shards, only the values of bps_shard are the result; the others are undefined. This
 * also holds for bps_outputs and bps_results. */
BPS_API const void *bps_output(const struct bps_tensor *t);
/* Get the addresses of the tensor's two result buffers. The addresses are constant until
 * bps_suspend or bps_close. The result of round n (bps_tensor_info) is in ret[n & 1]. So the
 * address of the next result is available before the next round is complete. An average of integers
 * is not in these buffers: only bps_output returns it. Errors: -EINVAL if the tensor lies in device
 * memory; BPS_ECLOSED. */
BPS_API int bps_outputs(const struct bps_tensor *t, const void *ret[2]);
/* bps_results: a second, copy-on-write mapping of a tensor's two result buffers. The caller may
 * write to this mapping, and no other process sees the writes. The mapping stays valid after
 * bps_suspend and bps_close. After either call, the caller may pass the bps_results only to
 * bps_results_unmap.
 *
 * bps_results_map makes the mapping. Owns: the caller calls bps_results_unmap. Errors: -EOPNOTSUPP
 * if the job has one worker or the tensor lies in device memory; -ENOMEM; BPS_ECLOSED.
 *
 * bps_results_last sets *ret to the result of the last completed round. The result is valid until
 * the second push_pull after that round. If the caller has written to the buffer of this result,
 * bps_results_last first discards those writes. Returns 1 if it has found such writes, else 0.
 * Errors: -EINVAL if no round is complete, or if the result is an average of integers;
 * BPS_ECLOSED. */
struct bps_results;
BPS_API int bps_results_map(const struct bps_tensor *t, struct bps_results **ret);
BPS_API int bps_results_last(struct bps_results *r, void **ret);
BPS_API void bps_results_unmap(struct bps_results *r);
/* bps_write copies n_bytes bytes to the tensor's input. bps_read copies n_bytes bytes from the
 * tensor's output. The bytes begin at byte `at` of the input or output. If the tensor is large,
 * both calls bypass the CPU caches. bps_write does so because another process reads the input next.
 * Errors of both calls: -EINVAL if the bytes do not lie in the tensor, or if the tensor lies in
 * device memory. Errors of bps_write: BPS_EBUSY if a round is in flight, or the error with which
 * the job has failed. Errors of bps_read: -EINVAL if no round is complete, or if the bytes are not
 * in this worker's shard. */
BPS_API int bps_write(struct bps_tensor *t, uint64_t at, const void *src, uint64_t n_bytes);
BPS_API int bps_read(const struct bps_tensor *t, uint64_t at, void *dst, uint64_t n_bytes);
/* Multiply the bps_count(t) values of src by scale, and write the products to the input of a tensor
 * of floats or blocks. Each exact product is rounded once, to the nearest value, ties to even.
 * Products for blocks are rounded to f32, and then encoded. Errors: BPS_EBUSY if a round is in
 * flight; -EINVAL if the tensor has integers or lies in device memory; the error with which the job
 * has failed. */
BPS_API int bps_fill_f32(struct bps_tensor *t, const float *src, float scale);
/* Multiply the output of a tensor of floats or blocks by scale, and write the products to dst. Each
 * product of an f64 tensor is rounded twice: to f64, then to f32. Errors: -EINVAL if the tensor has
 * integers, lies in device memory or is in shards (use bps_read_at_f32), or if no round is
 * complete. */
BPS_API int bps_read_f32(const struct bps_tensor *t, float *dst, float scale);
/* Do what bps_fill_f32 does for n_values values, which begin at value `first` of the tensor. For
 * blocks, `first` must be a multiple of the block's number of values. If n_values is not, the last
 * block that is written repeats its values, and the tensor's other values in that block are lost.
 *
 * residual: NULL, or for block types an array of n_values f32: the errors of the last round (error
 * feedback). The call then encodes p = src * scale + residual, and sets residual to p minus what
 * the block's reader gets. The residual of a block with an infinity or a NaN becomes 0. The array
 * belongs to the program, which saves it with a checkpoint. src and residual must not overlap.
 *
 * Errors: those of bps_fill_f32; -EINVAL if the values do not lie in the tensor, if `first` is
 * inside of a block, or if there is a residual for another type. After an error, neither the
 * tensor's input nor residual has changed. Source of error feedback: Karimireddy et al., ICML 2019.
 */
BPS_API int bps_fill_at_f32(struct bps_tensor *t, uint64_t first, const float *src,
	uint64_t n_values, float scale, float *residual);
/* Do what bps_read_f32 does for n_values values, which begin at value `first` of the tensor.
 * Errors: those of bps_read_f32; -EINVAL if the values do not lie in the tensor or in this worker's
 * shard, or if `first` is inside of a block. */
BPS_API int bps_read_at_f32(
	const struct bps_tensor *t, uint64_t first, float *dst, uint64_t n_values, float scale);
/* Get the part of the tensor's results that this worker gets: *n values, which begin at value
 * *first. This is the whole tensor, unless it is in shards (BPS_OWNER_SHARDS). Errors: -EINVAL if
 * an argument is NULL. */
BPS_API int bps_shard(const struct bps_tensor *t, uint64_t *first, uint64_t *n);
BPS_API uint64_t bps_count(const struct bps_tensor *t);
BPS_API enum bps_dtype bps_dtype(const struct bps_tensor *t);
BPS_API const char *bps_name(const struct bps_tensor *t);

/* Start a round: submit the values of bps_input(t) for reduction over all workers. Returns at once.
 * priority: tensors with a larger priority are sent first; among tensors of equal priority, the
 * earlier submission is sent first. With BPS_PRIORITY_AUTO, the default, the tensor that was
 * declared first is sent first. Errors: BPS_EBUSY if a round is in flight; BPS_ECLOSED; the error
 * with which the job has failed. */
#define BPS_PRIORITY_AUTO INT32_MIN
BPS_API int bps_push_pull(struct bps_tensor *t, enum bps_op op, int32_t priority);
/* Start a round like bps_push_pull, but with buffers of the caller. The call copies src to the
 * tensor's input before it returns. When bps_wait or bps_poll finds that the round is complete,
 * that call copies the result to dst. dst may be equal to src. If dst is NULL, the result is not
 * copied. For a tensor in shards, dst must be NULL. src must not be NULL. */
BPS_API int bps_push_pull_copy(
	struct bps_tensor *t, const void *src, void *dst, enum bps_op op, int32_t priority);
/* Submit n tensors and wake the agent once. After an error, none of them was submitted. */
BPS_API int bps_push_pull_group(
	struct bps_tensor *const *tensors, size_t n, enum bps_op op, int32_t priority);

/* Take part in the tensor's next round without values: the round does not wait for this worker, and
 * its result has the values of the others only. The input is not sent, but stays in use until the
 * round is over. If all workers abstain, the result is zeros, for every operation. An average is
 * divided by the number of workers that gave values (bps_contributors). op and priority are those
 * of bps_push_pull; all workers use the same operation. Errors: those of bps_push_pull. */
BPS_API int bps_abstain(struct bps_tensor *t, enum bps_op op, int32_t priority);

/* Return whether the last submitted round is over. 1: the round is complete, or no round was
 * submitted. 0: the round is in flight. BPS_ENOSERVER and BPS_EISOLATED: the round is in flight,
 * but makes no progress now. Any other negative code: the round failed. */
BPS_API int bps_poll(struct bps_tensor *t);
/* Wait until the last submitted round is complete. timeout_ms: longest wait; 0: the default. After
 * BPS_ETIMEDOUT, BPS_ENOSERVER and BPS_EISOLATED the round is still in flight: the caller must not
 * write to the tensor's input, and may wait again. */
BPS_API int bps_wait(struct bps_tensor *t, uint32_t timeout_ms);
/* Wait as bps_wait does, but return -EINTR after a signal in this thread or after half a second.
 * After -EINTR the round is still in flight, and the caller may wait again. The function is for
 * languages that handle a signal only after a C function has returned. begun_ns: the caller sets
 * *begun_ns to 0 before the first call. The first call sets *begun_ns to the time at which the wait
 * began, so that timeout_ms limits all calls together. Errors: those of bps_wait; -EINTR; -EINVAL
 * if t or begun_ns is NULL. */
BPS_API int bps_wait_intr(struct bps_tensor *t, uint32_t timeout_ms, uint64_t *begun_ns);
BPS_API int bps_wait_group(struct bps_tensor *const *tensors, size_t n, uint32_t timeout_ms);
/* Wait until at least one of n tensors is done: its round is complete or has failed, or the tensor
 * has no round in flight. The wait lasts at most timeout_ms (0: the default). ret_idx, which has
 * room for n indices, gets the index of each tensor that is done. The indices are in the order in
 * which the tensors completed on this machine. Returns the number of these indices. Call bps_poll
 * for each listed tensor: bps_poll returns whether the round failed, and copies the result to the
 * dst of bps_push_pull_copy. Entries that are NULL are skipped; if all are NULL, returns 0. Errors:
 * those of bps_wait. After an error, ret_idx has no valid entries. */
BPS_API int bps_wait_some(
	struct bps_tensor *const *tensors, size_t n, uint32_t timeout_ms, size_t *ret_idx);
/* Return the number of workers whose values are in the last completed round. Partitions of a tensor
 * are summed separately. If the partitions have different numbers of workers, returns the smallest
 * number. Errors: -EINVAL if t is NULL. */
BPS_API int bps_contributors(const struct bps_tensor *t);
/* Details of the last completed round. If a machine was lost during the round, partitions may
 * differ in their number of contributors. An average divides each partition by the number of
 * workers that contributed to that partition. */
struct bps_info {
	uint64_t round; /* last completed round, 0: none */
	/* Smallest number of workers that contributed to a partition */
	uint32_t contributors;
	uint32_t contributors_most; /* largest number of workers that contributed to a partition */
	/* 1: the result lacks the values of this worker, because the worker abstained, or because
	 * one or more partitions were complete without its machine (backup machines); else 0 */
	int32_t is_mine_missing;
	/* 1: one or more partitions were being summed, or were complete, when this worker's machine
	 * took part in the round (backup machines); else 0. The other workers are ahead. */
	int32_t is_late;
};
BPS_API int bps_tensor_info(const struct bps_tensor *t, struct bps_info *ret);

/* A worker in the lists of bps_workers and bps_contributor_list. The lists have all workers of the
 * job by rank, including those that were lost since the job began. */
struct bps_worker {
	int32_t rank;
	int32_t is_lost;
	int32_t is_new; /* the worker joined at the last barrier that admitted new workers */
	/* set by bps_contributor_list. 1: one or more partitions of the last round lack this
	 * worker's values */
	int32_t is_missing;
	char host[64];
	char why[128]; /* reason why the worker was lost; "" if it was not lost */
};
/* Write up to n entries of the job's list of workers to ret. Returns the number of workers in the
 * whole list, which may be larger than n. *ret_view grows with every change of the list; ret_view
 * may be NULL. Errors: those of bps_wait. */
BPS_API int bps_workers(struct bps *b, struct bps_worker *ret, size_t n, uint64_t *ret_view);
/* List the job's workers as bps_workers does. In addition, set the field is_missing of each worker:
 * 1 if one or more partitions of the tensor's last round lack the values of the worker's machine,
 * else 0. The tensor must not be in flight, and no other thread may use the tensor. */
BPS_API int bps_contributor_list(struct bps_tensor *t, struct bps_worker *ret, size_t n);

/* Network traffic of this machine's agent, summed over all jobs of the agent. Two kinds of bytes
 * are not counted: those that pass through memory shared with servers of this machine, and the
 * headers of TCP and lower layers. */
struct bps_traffic {
	/* Random id of the agent's process. After a restart, the agent has another id, and its
	 * counters of bytes start from 0 */
	uint64_t instance;
	/* Number of bytes sent: messages, and values to sum. The values are counted when the agent
	 * offers them to a server. */
	uint64_t sent_bytes;
	uint64_t received_bytes; /* number of bytes received: messages, and results of sums */
};
/* Get the agent's network traffic. The call also works after the job has failed. Errors:
 * BPS_ENOAGENT, BPS_ETIMEDOUT, BPS_ECLOSED while the handle is suspended, -EOPNOTSUPP if the agent
 * is of an older release. */
BPS_API int bps_traffic(struct bps *b, struct bps_traffic *ret);
/* Write a trace of the job's last rounds on this machine to the file `path`: JSON for Perfetto, for
 * chrome://tracing, and for joining with a trace of PyTorch's profiler. The trace has the rounds of
 * all workers of the machine that began at since_ns of CLOCK_MONOTONIC or later, at most the last
 * 16,384; 0: all of them. The call does not disturb rounds that are in flight. In a job of one
 * worker, which has no agent, the trace has no rounds. Errors: those of bps_traffic; the error of
 * open(2) or write(2) on the file. */
BPS_API int bps_trace(struct bps *b, const char *path, uint64_t since_ns);

/* Collectives on small host data, built on push_pull. All workers must call the same collectives in
 * the same order. A call blocks for at most timeout_ms (0: the default). bps_barrier returns when
 * all workers have called bps_barrier. */
BPS_API int bps_barrier(struct bps *b, uint32_t timeout_ms);
/* Copy the root's data to all workers. data: a buffer of n_bytes at every worker; the call
 * overwrites the buffer at all workers except the root. */
BPS_API int bps_broadcast(struct bps *b, void *data, size_t n_bytes, int root, uint32_t timeout_ms);
/* Collect src of all workers in dst, which has room for size * n_bytes. The bytes of worker r are
 * stored at offset r * n_bytes. */
BPS_API int bps_allgather(
	struct bps *b, const void *src, size_t n_bytes, void *dst, uint32_t timeout_ms);

/* Wait until every worker has called this function. The caller must have no round in flight. When
 * the call returns, all callers have the same state. At other times their states may differ, so a
 * checkpoint is valid only if it is taken right after this call. The barrier admits workers that
 * wait to join an elastic job. Returns the number of admitted workers, which is the same at all
 * workers. All workers, including the new ones, then make the same calls to pass on the state
 * (bps_broadcast from bps_root). After BPS_ETIMEDOUT, call this function again. Errors: BPS_EBUSY
 * if a round is in flight; those of bps_wait. */
BPS_API int bps_checkpoint_barrier(struct bps *b, uint32_t timeout_ms);
/* Return 1 if this worker joined while the job was running, and needs the state of the other
 * workers. */
BPS_API int bps_is_new(const struct bps *b);
/* Return the lowest rank among the old workers. Old workers are those that are still in the job,
 * and that joined before the last barrier that admitted new workers. */
BPS_API int bps_root(const struct bps *b);

/* Tensors in the memory of a GPU: see bps_gpu(3). A round of such a tensor begins when `stream` has
 * done all work that was queued before bps_gpu_push_pull. The result replaces the tensor's values.
 * To read the result, queue the reading work after bps_gpu_wait_stream, on the same stream. With
 * CUDA, bps_gpu_push_pull and bps_gpu_wait_stream return without waiting for the GPU. Up to 8
 * rounds of a tensor may be in flight; bps_wait and bps_poll refer to the last submitted round.
 * stream: a CUstream or cudaStream_t; NULL is the default stream. The library uses the CUDA library
 * that the process has loaded, and does not link a CUDA library.
 *
 * bps_gpu_open: either all workers of a machine call bps_gpu_open, or no worker calls it. The call
 * connects to the executor, the agent's process that drives the GPUs for this job. uuid: the 16
 * bytes that identify the GPU; NULL: the calling thread's current device. Errors: BPS_EDEVICE if
 * this process or the agent has no CUDA, or if CUDA failed; BPS_EQUOTA if the user's other jobs use
 * all executors that the user may have; BPS_ETIMEDOUT if not all workers of this machine have
 * called bps_gpu_open. The call may be repeated after an error. */
BPS_API int bps_gpu_open(struct bps *b, const unsigned char *uuid);
/* Allocate memory of this worker's GPU through the job's executor: n_bytes, zeroed, valid until
 * bps_close or bps_gpu_release. Errors: BPS_EDEVICE, -ENOMEM. */
BPS_API int bps_gpu_alloc(struct bps *b, uint64_t n_bytes, void **ret);
/* Allow tensors in device memory that the caller has allocated. The caller frees that memory, but
 * not before bps_close or bps_gpu_release. Errors: -EOPNOTSUPP if CUDA cannot share the memory,
 * for example CUDA managed memory or memory from a pool. */
BPS_API int bps_gpu_import(struct bps *b, void *ptr, uint64_t n_bytes);
/* Release memory that bps_gpu_alloc has allocated or bps_gpu_import has imported. Waits until the
 * GPU has done all work that is queued on the GPU's streams. Tensors in the memory cannot be
 * submitted any more, and their names stay in use. A round does not count as in flight if its
 * result has reached the stream. Errors: BPS_EBUSY if a tensor in the memory is in flight; -EINVAL
 * if ptr is not the start of memory that bps_gpu_alloc has allocated or bps_gpu_import has
 * imported; those of bps_wait. */
BPS_API int bps_gpu_release(struct bps *b, void *ptr);
/* Declare a tensor in device memory at ptr, like bps_declare. The tensor's values must lie within
 * one piece of memory that bps_gpu_alloc has allocated or bps_gpu_import has imported. */
BPS_API int bps_gpu_declare(struct bps *b, const char *name, enum bps_dtype dtype,
	uint64_t n_values, void *ptr, struct bps_tensor **ret);
/* Submit a tensor in device memory. Errors: BPS_EBUSY if 8 rounds are in flight; -EOPNOTSUPP for an
 * average of integers; BPS_EDEVICE; the error with which the job has failed. */
BPS_API int bps_gpu_push_pull(struct bps_tensor *t, enum bps_op op, int32_t priority, void *stream);
/* Make the stream wait for the last submitted round: work that is queued later begins only when the
 * round is complete or has failed. The next call on the tensor reports such a failure. */
BPS_API int bps_gpu_wait_stream(struct bps_tensor *t, void *stream);
/* Return the route by which this machine's GPUs sum ("copy", "ce", "rs_ag", ...); "" without
 * GPUs. */
BPS_API const char *bps_gpu_route(const struct bps *b);

BPS_API const char *bps_strerror(int code);
/* Return the sentence about this thread's last failed call; "" if no call failed. The string is
 * valid until the thread's next call. */
BPS_API const char *bps_last_error(void);
/* The worker, machine and tensor that the sentence of bps_last_error names, as fields that a
 * program can read. The fields describe this thread's last call, if that call failed. */
struct bps_failure {
	/* Rank of the worker that caused the failure; -1: no worker caused it, or the worker is not
	 * known */
	int32_t rank;
	/* Machine of the worker that caused the failure, or the machine that failed; "": the
	 * machine is not known */
	char host[64];
	char tensor[256]; /* tensor of the failed call; "": the call has no tensor */
};
BPS_API void bps_last_failure(struct bps_failure *ret);
BPS_API const char *bps_version(void);

#ifdef __cplusplus
}
#endif
#endif
