#ifndef BPS_AGENT_EXECUTOR_DEVICE_DEVICE_H
#define BPS_AGENT_EXECUTOR_DEVICE_DEVICE_H
/* Interface through which the executor's engine uses the GPUs of one machine. A GPU has memory that
 * other processes can map, and queues that run copies in order. Queues also write counters in host
 * memory. Cliques are groups of GPUs that do collectives (NCCL communicators). This interface has
 * no tensors, rounds or network, and no types of CUDA or NCCL.
 *
 * The implementation is a table (struct device_ops). The files cuda* use the CUDA driver and NCCL.
 * Tests have two other implementations: tests/host_executor/ emulates GPUs with plain memory and
 * threads, and the tests of the engine have one that runs in virtual time.
 *
 *   memory   alloc / import / pin --> in use --> drop      drop only when no queue uses it any more
 *   queue    queue_open --> copy, post, collectives --> queue_close
 *   clique   clique_open --> OPENING --clique_poll 0--> READY <--> LAUNCHING (poll: -EAGAIN)
 *                    any --DEVICE_PEER--> FAILED --clique_abort--> ABORTED;   then clique_close
 *
 * Promises:
 *   - No call waits for a GPU, another process or another rank. All work is queued. The caller
 *     detects the end of work by a counter that a later `post` writes, or by queue_poll. Calls that
 *     allocate, map, pin or open may take milliseconds in the driver.
 *   - Work of one queue runs in the order of the calls. Different queues run in parallel. When the
 *     host reads a counter value that `post` has written, the bytes of all earlier copies of that
 *     queue are visible, too.
 *   - The functions `open` and `probe` create no context on a GPU, because a context takes memory
 *     of the GPU. The first call that names a GPU creates the GPU's context.
 *   - Memory that `alloc` has allocated exists until the last process unmaps the memory, even if
 *     the process that called `alloc` has ended.
 *
 * Thread: the executor's, for all calls on a device and its objects; any thread for `probe`. No
 * call runs a callback.
 *
 * Errors: functions return 0 or a count, or one of enum device_error. After an error other than
 * DEVICE_AGAIN, the device's `why` has the text. DEVICE_LOST is final: all later calls return
 * DEVICE_LOST, except calls that free memory or objects. The process must end. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/data/dtype.h"

enum device_error {
	/* not a failure: the call is not possible yet, so call again later */
	DEVICE_AGAIN = -EAGAIN,
	/* there is no driver or no such GPU, or the GPU is not usable now */
	DEVICE_NODEV = -ENODEV,
	/* not supported by this GPU, driver or back-end */
	DEVICE_UNSUP = -EOPNOTSUPP,
	/* there is no device memory, address space or pinned memory left; may be temporary */
	DEVICE_NOMEM = -ENOMEM,
	/* the caller's arguments are invalid; the call has no effect */
	DEVICE_ARG = -EINVAL,
	/* a member of the clique failed; the caller must abort the clique */
	DEVICE_PEER = -ECONNABORTED,
	DEVICE_LOST = -ENOTRECOVERABLE, /* no call on the device works any more in this process */
};

enum device_cap {
	/* memory that `alloc` has allocated can be shared as file descriptors */
	DEVICE_CAP_VMM_FD = 1,
	/* `import` accepts legacy handles, but only from processes with the same user id */
	DEVICE_CAP_LEGACY_IPC = 2,
	DEVICE_CAP_MEMOP64 = 4, /* queues can write counters (`post`) */
	DEVICE_CAP_CLIQUE = 16, /* the GPU can be a member of a clique */
	/* the device's memory is plain host memory, so a process can map it without a driver */
	DEVICE_CAP_PLAIN = 32,
};

/* Ways in which a GPU accesses the memory of another GPU. */
enum device_link {
	DEVICE_LINK_NONE = 0, /* no direct access, so copies go through host memory */
	DEVICE_LINK_PCI = 1,
	DEVICE_LINK_NVLINK = 2,
};

#define DEVICE_UUID_BYTES 16
#define DEVICE_ID_BYTES   128 /* size of a clique's id in bytes */
#define DEVICE_GPUS_MAX   64
/* Maximum number of file descriptors with which one piece of memory is shared. One SCM_RIGHTS
 * message cannot carry more. */
#define DEVICE_FDS_MAX 253
#define DEVICE_HOST    (-1) /* value of `gpu` for pinned host memory */

/* A GPU or MIG instance. The GPU's index in the result of gpus() is the argument `gpu` of all calls
 * on this device. Other processes may count GPUs differently, so use the uuid to name a GPU to
 * another process. */
struct device_gpu {
	uint8_t uuid[DEVICE_UUID_BYTES];
	char pci[16];   /* PCI address such as "0000:3b:00.0", as in sysfs; "": there is none */
	char name[64];  /* name for display */
	int32_t numa;   /* NUMA node that is nearest to the GPU; -1: not known */
	uint32_t caps;  /* what the GPU can do: bits of enum device_cap */
	uint64_t bytes; /* total size of the GPU's memory */
};

enum device_desc_kind {
	DEVICE_DESC_FD = 1, /* device memory: n_fds handles of chunk_bytes each, in order */
	/* device memory: a legacy IPC handle in the field `blob`, no descriptor */
	DEVICE_DESC_IPC = 2,
	DEVICE_DESC_HOST = 3, /* memory of the back-end "host": one memfd */
};
#define DEVICE_DESC_VERSION 1

/* Description of memory that a process shares with another process of this machine. The other
 * process also gets the file descriptors. The layout is fixed, in host byte order. Call
 * device_desc_check before using a received description. */
struct device_desc {
	uint16_t version;
	uint16_t kind; /* enum device_desc_kind */
	uint32_t n_fds;
	uint8_t uuid[DEVICE_UUID_BYTES]; /* GPU that holds the memory */
	uint64_t bytes;                  /* number of usable bytes; the first is at `offset` */
	/* bytes of memory per descriptor; for DEVICE_DESC_IPC: bytes of the whole allocation */
	uint64_t chunk_bytes;
	uint64_t offset; /* offset of the first usable byte in the mapped memory */
	/* unique number of the allocation, which shows whether an address was reused; 0: not
	 * known */
	uint64_t buffer_id;
	uint8_t blob[64]; /* IPC handle */
};

/* Check a description that another process has sent together with n_fds descriptors. The function
 * checks the version, the kind and the number of descriptors. The function also checks that the
 * sizes do not overflow, and that the usable bytes are within the mapped memory. Errors:
 * DEVICE_ARG, with the text in err. Thread: any. */
int device_desc_check(const struct device_desc *d, unsigned n_fds, struct err_text *err);

struct device;
struct device_mem;
struct device_queue;
struct device_clique;

/* A local member's part of a collective. Arrays of pieces are in the clique's order of local
 * members. */
struct device_piece {
	struct device_mem *mem; /* memory on the member's GPU */
	uint64_t offset;        /* offset in mem, in bytes */
	/* the collective is added to this queue, which belongs to the member's GPU */
	struct device_queue *queue;
};

struct device_ops {
	const char *name; /* name of the back-end, for example "host" or "cuda" */

	/* Return how many GPUs this process could use. Creates no context, and needs no open
	 * device. `why` may be NULL. Errors: DEVICE_NODEV, with the cause in `why`, for example
	 * no driver, a driver that is too old, or no GPU. Thread: any. */
	int (*probe)(struct err_text *why);

	/* Open the machine's GPUs for a job. job: the job's name, for logs and debuggers. Creates
	 * no context. The caller owns *ret_dev, and frees it with the function `close`. Before that
	 * call, all objects of the device must have been dropped or closed. `close` accepts
	 * NULL. */
	int (*open)(const char *job, struct device **ret_dev, struct err_text *why);
	void (*close)(struct device *dev);

	/* Describe up to `max` GPUs. Returns the number of all GPUs, from 1 to DEVICE_GPUS_MAX. */
	int (*gpus)(struct device *dev, struct device_gpu *ret_gpus, int max);
	/* Return how GPU `a` reads the memory of GPU `b`, as an enum device_link, or an error. */
	int (*peer)(struct device *dev, int a, int b);

	/* Allocate zeroed memory on the GPU `gpu`. The memory can be shared with other processes.
	 * The GPU `gpu` and the n_also GPUs in the array `also` can use the memory. `bytes` is
	 * rounded up (to 2 MiB on today's GPUs), and mem->bytes contains the rounded value. Errors:
	 * DEVICE_NOMEM; DEVICE_UNSUP if the GPU `gpu` cannot share its memory, or if a GPU in
	 * `also` cannot reach the memory. */
	int (*alloc)(struct device *dev, int gpu, uint64_t bytes, const int *also, int n_also,
		struct device_mem **ret_mem);
	/* Describe memory that `alloc` has allocated, so that other processes can import it. The
	 * function stores the file descriptors in fds, an array of `max` elements, and returns
	 * their number. The caller owns the file descriptors, which also keep the memory allocated.
	 * Errors: DEVICE_ARG if more than `max` file descriptors are needed, DEVICE_UNSUP if the
	 * memory is imported or pinned. */
	int (*share)(struct device_mem *mem, struct device_desc *ret_desc, int *fds, int max);
	/* Map memory that another process shared, for use by `gpu`. GPUs that can reach `gpu` may
	 * also copy from and to the memory. The caller must have checked the description `desc`.
	 * The function sets mem->bytes to desc->bytes, and offset 0 is the first usable byte. The
	 * caller still owns fds, and may close them after the call. Errors: DEVICE_ARG if the
	 * handle is invalid; DEVICE_UNSUP if the handle is a legacy handle from another user or
	 * from this process, or a legacy handle for memory of a GPU that `gpu` cannot reach. */
	int (*import)(struct device *dev, int gpu, const struct device_desc *desc, const int *fds,
		int n_fds, struct device_mem **ret_mem);
	/* Make [host, host + bytes) of this process usable by all GPUs, for staging memory and
	 * counter pages. The address `host` must be page-aligned, and `bytes` must be a multiple of
	 * the page size. The caller still owns the mapping, which must exist until `drop` is
	 * called. */
	int (*pin)(struct device *dev, void *host, uint64_t bytes, struct device_mem **ret_mem);
	/* Return the address at which `gpu` can use the memory, or 0 if the GPU cannot use the
	 * memory. If `gpu` is DEVICE_HOST, return the address in this process. Only pinned memory
	 * and memory of the back-end "host" have an address in this process. */
	uint64_t (*addr)(struct device_mem *mem, int gpu);
	/* Unmap and free the memory. Queued work must not use the memory any more. NULL is
	 * allowed. */
	void (*drop)(struct device_mem *mem);

	/* Open a queue on a GPU. If the GPU supports priorities, queues with a larger priority run
	 * first. */
	int (*queue_open)(
		struct device *dev, int gpu, int priority, struct device_queue **ret_queue);
	/* Free the queue. Before this call, call queue_poll until the queue is idle, because this
	 * call does not stop queued work. NULL is allowed. */
	void (*queue_close)(struct device_queue *q);
	/* Return 0 if all queued work has run, DEVICE_AGAIN if some work has not run yet,
	 * DEVICE_LOST if some work has failed. */
	int (*queue_poll)(struct device_queue *q);

	/* Queue a copy of `bytes` bytes (more than 0) between two pieces of memory. At most one of
	 * the two pieces is pinned. Errors: DEVICE_ARG if a range is out of bounds, DEVICE_UNSUP
	 * if the queue's GPU cannot reach one of the two pieces. */
	int (*copy)(struct device_queue *q, struct device_mem *dst, uint64_t dst_offset,
		struct device_mem *src, uint64_t src_offset, uint64_t bytes);
	/* Queue a write of `value` to a 64-bit counter in the pinned memory `page`. The write
	 * follows all earlier work of the queue, and pairs with an acquire load by the host.
	 * `offset` is the offset of the counter in the page, and a multiple of 8. */
	int (*post)(
		struct device_queue *q, struct device_mem *page, uint64_t offset, uint64_t value);

	/* Create the id of a clique. One process creates the id, and all members pass the id to
	 * clique_open. */
	int (*clique_id)(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES]);
	/* Start to join n_local members into a clique of n_ranks ranks (at least 2). Local member i
	 * has GPU gpu[i] and rank rank[i]. Returns at once. The clique can be used when clique_poll
	 * returns 0, after all processes have joined. Errors: DEVICE_UNSUP if NCCL is missing or
	 * too old, or if two members are on one GPU. */
	int (*clique_open)(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
		const int *gpu, const int *rank, int n_local, struct device_clique **ret_clique);
	/* Return 0 if the clique is READY, DEVICE_AGAIN if the clique is opening or launching,
	 * DEVICE_PEER if a member has failed. After DEVICE_PEER, the clique must be aborted. */
	int (*clique_poll)(struct device_clique *c);
	/* The next functions queue a collective on the pieces' queues. All members must call these
	 * functions in the same order. A member may call one of these functions only when
	 * clique_poll returns 0. Launching may take a while. Until the collective is launched,
	 * clique_poll and all calls for these queues, queue_poll included, return DEVICE_AGAIN.
	 * `op` is sum, prod, max, min, or for floats avg, which divides by the number of ranks.
	 *
	 * All collectives work in place. A piece of reduce_scatter and all_gather has n_ranks
	 * blocks of count_per_rank elements. After reduce_scatter, block r of rank r's piece has
	 * the sum, and the other blocks of that piece are undefined. all_gather copies block r of
	 * rank r to all ranks. Blocks should be a multiple of 256 bytes. After reduce, the root's
	 * piece has the result, and the other pieces are unchanged. broadcast copies the root's
	 * piece to all ranks. The argument `root` is the root's rank. */
	int (*reduce_scatter)(struct device_clique *c, const struct device_piece *pieces,
		uint64_t count_per_rank, enum dtype dtype, enum op op);
	int (*all_gather)(struct device_clique *c, const struct device_piece *pieces,
		uint64_t count_per_rank, enum dtype dtype);
	int (*reduce)(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
		enum dtype dtype, enum op op, int root);
	int (*broadcast)(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
		enum dtype dtype, int root);
	/* Combine the collectives between group_begin and group_end into one launch. Between these
	 * two calls, only collectives of this clique may be called. */
	int (*group_begin)(struct device_clique *c);
	int (*group_end)(struct device_clique *c);
	/* Abort all running and waiting work of the clique, on all local members. Takes bounded
	 * time, even if a member never joins. The queues become idle. Afterwards only clique_close
	 * may be called. */
	void (*clique_abort)(struct device_clique *c);
	/* Leave and free the clique. When this function is called, no work of the clique may be
	 * queued. The function waits up to 2 s until all members have left. If some members have
	 * not left by then, the function aborts the clique. A clique that is not READY is aborted
	 * at once. NULL is allowed. */
	void (*clique_close)(struct device_clique *c);
};

/* Base structs: the first member of each implementation's struct. Callers may read the fields. */
struct device {
	const struct device_ops *ops;
	/* error text of the last call that failed with a code other than DEVICE_AGAIN */
	struct err_text why;
};
struct device_mem {
	struct device *dev;
	uint64_t bytes; /* usable bytes */
	/* GPU on which `alloc` has allocated the memory, or for which `import` has mapped the
	 * memory. DEVICE_HOST for pinned host memory. */
	int gpu;
};
static inline bool device_mem_holds(const struct device_mem *m, uint64_t offset, uint64_t bytes)
{
	return offset <= m->bytes && bytes <= m->bytes - offset;
}
struct device_queue {
	struct device *dev;
	int gpu;
};
struct device_clique {
	struct device *dev;
	int n_ranks, n_local;
};

/* Return the index of the GPU with this uuid, or DEVICE_NODEV if there is none. */
int device_find_gpu_by_uuid(struct device *dev, const uint8_t uuid[DEVICE_UUID_BYTES]);
/* Return the error's name for logs, for example "AGAIN" or "LOST". Returns "?" if `code` is not in
 * enum device_error. */
const char *device_error_name(int code);
#endif
