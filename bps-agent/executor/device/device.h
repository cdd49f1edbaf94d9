#ifndef BPS_AGENT_EXECUTOR_DEVICE_DEVICE_H
#define BPS_AGENT_EXECUTOR_DEVICE_DEVICE_H
/* The GPUs of one machine, as the executor's engine sees them: memory that other processes can map,
 * queues of copies that run in order, counters in host memory that queues write and wait on, and
 * cliques of GPUs that reduce among themselves. This interface has no tensors, rounds or network,
 * and no type of CUDA or NCCL.
 *
 * The implementation is a table (struct device_ops): bps-agent/device/host* is plain memory and
 * threads (the product mode for CPU tensors), fake* runs in virtual time for tests of the engine,
 * cuda* is the CUDA driver and NCCL.
 *
 *   memory   alloc / import / pin --> in use --> drop      drop only when no queue uses it any more
 *   queue    queue_open / queue_wrap --> copy, post, collectives --> queue_close
 *   clique   clique_open --> OPENING --clique_poll 0--> READY <--> LAUNCHING (poll says -EAGAIN)
 *                    any --DEVICE_PEER--> FAILED --clique_abort--> ABORTED;   then clique_close
 *
 * Promises:
 *   - No call waits for a GPU, another process or another rank. All work is queued; its end is seen
 *     in a counter that a later post writes, or by queue_poll. (Calls that allocate, map, pin or
 *     open may take milliseconds in the driver.)
 *   - Work of one queue runs in the order of the calls; different queues run in parallel. A counter
 *     written by post is seen by the host only after the bytes of all copies before it in that
 *     queue are visible to the host.
 *   - open and probe make no context on any GPU: it costs memory from the first call that names it.
 *   - The end of a process removes no memory: memory of alloc lives until the last process unmaps
 *     it.
 *
 * Thread: all calls on a device and on what belongs to it come from one thread at a time (the
 * executor's); probe from any. No call runs a callback.
 *
 * Errors: 0 or a count is success; otherwise one of enum device_error. After each of them except
 * DEVICE_AGAIN, the device's `why` holds the text. DEVICE_LOST is sticky: from then on all
 * functions except those that free return DEVICE_LOST, and the process must end. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/data/dtype.h"

enum device_error {
	DEVICE_AGAIN = -EAGAIN, /* not yet: call again; this is no failure */
	DEVICE_NODEV = -ENODEV, /* no driver, no such GPU, GPU not usable now */
	/* Not supported by this GPU, driver or back-end: use another way. */
	DEVICE_UNSUP = -EOPNOTSUPP,
	/* no device memory, address space or pinned memory; may be temporary */
	DEVICE_NOMEM = -ENOMEM,
	DEVICE_ARG = -EINVAL,           /* invalid arguments of the caller; no effect */
	DEVICE_PEER = -ECONNABORTED,    /* a member of the clique failed: abort the clique */
	DEVICE_LOST = -ENOTRECOVERABLE, /* sticky: no call works any more in this process */
};

enum device_cap {
	DEVICE_CAP_VMM_FD = 1,     /* alloc can be shared as file descriptors */
	DEVICE_CAP_LEGACY_IPC = 2, /* import takes legacy handles (same user id only) */
	DEVICE_CAP_MEMOP64 = 4,    /* post works */
	DEVICE_CAP_CLIQUE = 16,    /* cliques work */
	DEVICE_CAP_PLAIN = 32,     /* plain host memory: a process that maps it needs no driver */
};

/* How two GPUs reach each other's memory. */
enum device_link {
	DEVICE_LINK_NONE = 0, /* through host memory only */
	DEVICE_LINK_PCI = 1,
	DEVICE_LINK_NVLINK = 2,
};

#define DEVICE_UUID_BYTES 16
#define DEVICE_ID_BYTES   128 /* of a clique's id */
#define DEVICE_GPUS_MAX   64
#define DEVICE_FDS_MAX    253  /* of one description: the limit of one SCM_RIGHTS message */
#define DEVICE_HOST       (-1) /* the "gpu" of pinned host memory */

/* A GPU (or MIG instance). Its index in gpus() is the `gpu` of all calls, for the life of the
 * device; between processes only the uuid names it. */
struct device_gpu {
	uint8_t uuid[DEVICE_UUID_BYTES];
	char pci[16];   /* "0000:3b:00.0", as in sysfs; empty when it has none */
	char name[64];  /* for display */
	int32_t numa;   /* node of its host memory, -1 unknown */
	uint32_t caps;  /* enum device_cap */
	uint64_t bytes; /* total size of its memory */
};

enum device_desc_kind {
	DEVICE_DESC_FD = 1,   /* device memory: n_fds handles of chunk_bytes each, in order */
	DEVICE_DESC_IPC = 2,  /* legacy handle in blob, no descriptor */
	DEVICE_DESC_HOST = 3, /* one memfd (back-end host) */
};
#define DEVICE_DESC_VERSION 1

/* Description of memory for another process of this machine, sent with its file descriptors. Fixed
 * layout, host byte order. Check a received one with device_desc_check first. */
struct device_desc {
	uint16_t version;
	uint16_t kind; /* enum device_desc_kind */
	uint32_t n_fds;
	uint8_t uuid[DEVICE_UUID_BYTES]; /* GPU that holds the memory */
	uint64_t bytes;                  /* usable bytes from offset on */
	uint64_t chunk_bytes; /* bytes behind each descriptor; of the whole allocation for IPC */
	uint64_t offset;      /* of the first usable byte in the mapped handles */
	/* a different number when the same address holds other memory; 0 unknown */
	uint64_t buffer_id;
	uint8_t blob[64]; /* IPC handle */
};

/* Check a description that another process sent, with the number of its descriptors: version, kind,
 * sizes without overflow, bytes inside the mapped handles. Errors: DEVICE_ARG with the text in err.
 * Thread: any. */
int device_desc_check(const struct device_desc *d, unsigned n_fds, struct err_text *err);

struct device;
struct device_mem;
struct device_queue;
struct device_clique;

/* A local member's part of a collective, in its clique's order of local members. */
struct device_piece {
	struct device_mem *mem;     /* on the member's GPU */
	uint64_t offset;            /* bytes */
	struct device_queue *queue; /* of the member's GPU; the collective is queued there */
};

struct device_ops {
	const char *name; /* "host", "fake", "cuda" */

	/* Return how many GPUs this process could use. Makes no context; needs no device. Errors:
	 * DEVICE_NODEV with the cause in why (may be NULL): no driver, driver too old, no device,
	 * ... Thread: any. */
	int (*probe)(struct err_text *why);

	/* Open the machine's GPUs for a job (its name is for logs and debuggers). Makes no context.
	 * Owns: the caller, *ret_dev; close frees it. close comes after all objects of the device
	 * were dropped or closed, and accepts NULL. */
	int (*open)(const char *job, struct device **ret_dev, struct err_text *why);
	void (*close)(struct device *dev);

	/* Describe up to max GPUs; returns their total number, 1..DEVICE_GPUS_MAX. */
	int (*gpus)(struct device *dev, struct device_gpu *ret_gpus, int max);
	/* Return how GPU a reads the memory of GPU b: enum device_link, or an error. */
	int (*peer)(struct device *dev, int a, int b);

	/* Allocate zeroed shareable memory on a GPU, usable by it and by the GPUs also[0..n_also).
	 * bytes is rounded up (to 2 MiB on today's GPUs) and returned in mem->bytes. Errors:
	 * DEVICE_NOMEM, DEVICE_UNSUP no shareable memory or no access for one of `also`. */
	int (*alloc)(struct device *dev, int gpu, uint64_t bytes, const int *also, int n_also,
		struct device_mem **ret_mem);
	/* Describe memory of alloc to other processes; fds takes up to max descriptors. Returns
	 * their number. Owns: the caller, the descriptors (they keep the memory alive too). Errors:
	 * DEVICE_ARG more than max, DEVICE_UNSUP imported or pinned memory. */
	int (*share)(struct device_mem *mem, struct device_desc *ret_desc, int *fds, int max);
	/* Map memory that another process shared, for use by `gpu`. GPUs that can reach `gpu` may
	 * also copy from and to it. desc was checked. mem->bytes is desc->bytes, offset 0 is the
	 * first usable byte. Owns: fds stay the caller's; they can be closed at once. Errors:
	 * DEVICE_ARG not such a handle, DEVICE_UNSUP another user's legacy handle, this process's
	 * own, or one of a GPU that this one does not reach. */
	int (*import)(struct device *dev, int gpu, const struct device_desc *desc, const int *fds,
		int n_fds, struct device_mem **ret_mem);
	/* Let all GPUs reach [host, host + bytes) of this process: staging memory, counter pages.
	 * host is page-aligned, bytes a multiple of the page size. Owns: the mapping stays the
	 * caller's and lives until drop. */
	int (*pin)(struct device *dev, void *host, uint64_t bytes, struct device_mem **ret_mem);
	/* Return the address of the memory for `gpu`; 0 if it has none. DEVICE_HOST: the host
	 * address, which only pinned memory (and all of back-end host) has. */
	uint64_t (*addr)(struct device_mem *mem, int gpu);
	/* Unmap and free. No queued work may use it any more. NULL is allowed. */
	void (*drop)(struct device_mem *mem);

	/* Open a queue on a GPU. Where the GPU supports it, priority > 0 runs before 0, < 0
	 * after. */
	int (*queue_open)(
		struct device *dev, int gpu, int priority, struct device_queue **ret_queue);
	/* Free the queue; NULL is allowed. Queued work still runs: poll until it is idle first. */
	void (*queue_close)(struct device_queue *q);
	/* 0: all queued work has run; DEVICE_AGAIN: not yet; DEVICE_LOST: some failed. */
	int (*queue_poll)(struct device_queue *q);

	/* Queue a copy of bytes (> 0) between two memories, at most one of them pinned. Errors:
	 * DEVICE_ARG out of bounds, DEVICE_UNSUP out of reach of the queue's GPU. */
	int (*copy)(struct device_queue *q, struct device_mem *dst, uint64_t dst_offset,
		struct device_mem *src, uint64_t src_offset, uint64_t bytes);
	/* Queue a write of value to the 64-bit counter at offset (a multiple of 8) of pinned
	 * memory, after all earlier work. Pairs with an acquire load by the host. */
	int (*post)(
		struct device_queue *q, struct device_mem *page, uint64_t offset, uint64_t value);

	/* Make the id of a clique: one process makes it, all members open with it. */
	int (*clique_id)(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES]);
	/* Start to join n_local members, on the GPUs gpu[i] with rank[i], into a clique of n_ranks
	 * (>= 2; one GPU needs none). Returns at once; clique_poll reports when it can be used,
	 * however long another process takes to join. Errors: DEVICE_UNSUP no NCCL, too old, or two
	 * members on one GPU. */
	int (*clique_open)(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
		const int *gpu, const int *rank, int n_local, struct device_clique **ret_clique);
	/* 0 READY; DEVICE_AGAIN opening or launching; DEVICE_PEER abort: a member failed. */
	int (*clique_poll)(struct device_clique *c);
	/* Queue a collective on the pieces' queues. All members call it in the same order, each
	 * when clique_poll returns 0. Launching may take a while. Meanwhile clique_poll and all
	 * work for these queues return DEVICE_AGAIN, and the queues count as busy. op is sum, prod,
	 * max or min; nothing is divided.
	 *
	 * In place: a piece of reduce_scatter and all_gather has n_ranks blocks of count_per_rank
	 * elements; rank r's sum arrives in, or leaves from, block r. The other blocks are
	 * undefined after reduce_scatter. Keep blocks a multiple of 256 bytes. reduce: root's piece
	 * holds the result, the others' are unchanged. broadcast: root's piece goes to all. root is
	 * a rank. */
	int (*reduce_scatter)(struct device_clique *c, const struct device_piece *pieces,
		uint64_t count_per_rank, enum dtype dtype, enum op op);
	int (*all_gather)(struct device_clique *c, const struct device_piece *pieces,
		uint64_t count_per_rank, enum dtype dtype);
	int (*reduce)(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
		enum dtype dtype, enum op op, int root);
	int (*broadcast)(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
		enum dtype dtype, int root);
	/* Combine the collectives between begin and end into one launch. begin and end pair up on
	 * one thread, with only collectives of this clique between them. */
	int (*group_begin)(struct device_clique *c);
	int (*group_end)(struct device_clique *c);
	/* Abort all running and waiting work of the clique, on all local members. Takes bounded
	 * time even if a member never joins. Its queues become idle. Only clique_close may
	 * follow. */
	void (*clique_abort)(struct device_clique *c);
	/* Leave in order, with no work queued; NULL is allowed. Waits up to 2 s for the other
	 * members to leave too, then aborts. Aborts at once a clique that is not READY. */
	void (*clique_close)(struct device_clique *c);
};

/* First member of each implementation's object; callers may read the fields. */
struct device {
	const struct device_ops *ops;
	struct err_text why; /* of the last call that failed, except with DEVICE_AGAIN */
};
struct device_mem {
	struct device *dev;
	uint64_t bytes; /* usable */
	int gpu;        /* where it lies (alloc) or was mapped for (import); DEVICE_HOST: pinned */
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

/* Return the index of the GPU with that uuid, or DEVICE_NODEV. */
int device_find(struct device *dev, const uint8_t uuid[DEVICE_UUID_BYTES]);
/* Return the error's name for logs: "AGAIN", "LOST", ...; "?" for another number. */
const char *device_error_name(int code);
#endif
