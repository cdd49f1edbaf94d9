#ifndef BPS_TESTS_GPU_FAKE_FAKE_H
#define BPS_TESTS_GPU_FAKE_FAKE_H
/* A libcuda.so.1 that needs no GPU, to test programs that call the driver. The calls of this fake
 * have real effects. Device memory is a memfd, and a process that receives its descriptor can map
 * it. A stream is a thread that runs the queued work in order. If the next work is a wait, the
 * thread waits until the word in memory reaches the given value.
 *
 * The fake is stricter than a GPU. A misuse ends the process with one line on stderr that starts
 * with "fake cuda:". Examples of misuses:
 * - use of an address that is not mapped, or that the GPU has no access to
 * - use of a stream in a context that did not create the stream
 * - a free of memory that queued work uses
 * - a second free of the same memory.
 * Errors that a correct program may meet at run time are returned as codes, as the driver does.
 *
 * Device addresses are reserved, but the host cannot access them, as with a GPU. The bytes are at
 * other addresses (fake_area.at).
 *
 * One lock protects all tables. Streams copy bytes and wait for other ranks without the lock.
 * During this time, the areas that the work uses cannot be freed, because their counts `in_use` are
 * not zero. */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/queue.h>

#define FAKE_GPUS_MAX 16
#define FAKE_GRAIN    (2ull << 20)
#define FAKE_EXPORT   __attribute__((visibility("default")))
#define FAKE_HANG     (-1)

struct fake_ctx {
	unsigned magic;
	int dev; /* the GPU's number in this program */
	unsigned refs;
	CUstream default_stream;
};

/* Physical memory that cuMemCreate, cuMemAlloc or an import has made. */
struct fake_handle {
	LIST_ENTRY(fake_handle) entry;
	uint64_t id;
	int fd;
	size_t bytes;
	int dev;
	/* Number of references to the handle: the sum of user_refs, the number of mappings, and 1
	 * if an area of kind AREA_ALLOC or AREA_IPC has the handle. */
	unsigned refs;
	unsigned user_refs; /* number of references that the program holds */
	bool is_exportable;
};

enum area_kind { AREA_RESERVED, AREA_ALLOC, AREA_IPC, AREA_PINNED };

struct fake_map { /* a handle that is mapped into reserved addresses */
	LIST_ENTRY(fake_map) entry;
	size_t offset, bytes;
	struct fake_handle *handle;
	uint64_t access; /* bit i: GPU number i of this program may access the mapping */
	uint64_t buffer_id;
};

/* A range of device addresses that is reserved or mapped. */
struct fake_area {
	LIST_ENTRY(fake_area) entry;
	enum area_kind kind;
	CUdeviceptr addr;
	size_t bytes;
	char *at;                   /* host address of the bytes of the area */
	LIST_HEAD(, fake_map) maps; /* only for AREA_RESERVED */
	struct fake_handle *handle; /* only for AREA_ALLOC and AREA_IPC */
	struct fake_ctx *ctx;       /* the context that made the area; NULL for AREA_RESERVED */
	uint64_t buffer_id;
	unsigned in_use; /* number of queued pieces of work that use the area */
};

struct fake_marker { /* a point in a stream's work */
	unsigned refs;
	bool is_reached;
};

enum work_kind { WORK_COPY, WORK_SET, WORK_WRITE, WORK_WAIT, WORK_MARK, WORK_AFTER, WORK_CALL };

struct fake_work {
	STAILQ_ENTRY(fake_work) entry;
	enum work_kind kind;
	struct fake_area *area[2]; /* areas that stay alive until the work has run; NULL: none */
	char *dst;
	const char *src;
	size_t bytes;
	uint64_t value;
	struct fake_marker *marker;
	void (*fn)(void *);
	void *arg;
};

struct CUstream_st {
	LIST_ENTRY(CUstream_st) entry;
	struct fake_ctx *ctx;
	unsigned number;
	bool is_closed, is_launching;
	uint64_t queued, done, settle_at;
	STAILQ_HEAD(, fake_work) work;
	pthread_cond_t wake;
};

struct CUevent_st {
	LIST_ENTRY(CUevent_st) entry;
	struct fake_ctx *ctx;
	struct fake_marker *marker; /* the point at which the event was recorded last */
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t progress; /* signalled whenever a piece of work has run */
	bool is_init;
	int pid;
	int n_gpus;
	int gpu[FAKE_GPUS_MAX]; /* for each visible GPU, its number in the machine */
	int links;              /* links between GPUs: 0 none, 1 PCIe, 2 NVLink */
	struct fake_ctx ctx[FAKE_GPUS_MAX];
	LIST_HEAD(, fake_handle) handles;
	LIST_HEAD(, fake_area) areas;
	LIST_HEAD(, CUstream_st) streams;
	LIST_HEAD(, CUevent_st) events;
	unsigned live_communicators;
	uint64_t last_id;
	int sticky;
	/* Number of times that the set of injected faults was replaced. Calls and work that hang
	 * because of FAKE_HANG continue when this number changes. */
	unsigned epoch;
	int trace_fd; /* 0: none */
	unsigned delay_us;
};
extern struct fake fake;

/* Report a misuse on stderr and abort (core.c). */
void fake_misuse(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Return zeroed memory. Ends the process if no memory is available. */
static inline void *fake_alloc(size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		abort();
	return p;
}
/* Begin a call of the driver: take the lock, count and trace the call, and check for an injected
 * fault. Returns 0 if the call can continue, and then holds the lock. Otherwise releases the lock,
 * and returns the error code that the call must return. */
CUresult fake_enter(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* End a call of the driver: release the lock and return r. */
CUresult fake_leave(CUresult r);
void fake_trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Return the code of the fault that is injected into the next call of the function `name`.
 * Returns 0 if there is none. Call with the lock held. */
int fake_fault(const char *name);
bool fake_is_sticky(int code);
/* Return the current context. It is a misuse to have no current context. Call these two functions
 * with the lock held. */
struct fake_ctx *fake_current(void);
int fake_dev(CUdevice dev);

/* The functions from here to fake_memfd_dev are in memory.c. Call them with the lock held. */
/* Return the area that contains [addr, addr + bytes), a range that GPU dev is about to use. It is a
 * misuse if the range is not mapped, or if dev has no access. */
struct fake_area *fake_device(CUdeviceptr addr, size_t bytes, int dev);
/* Return the area that contains addr, or NULL. */
struct fake_area *fake_find(CUdeviceptr addr);
struct fake_map *fake_find_map(struct fake_area *a, CUdeviceptr addr);
/* Return the area of pinned memory that contains the range of `bytes` bytes at host address `p`.
 * Returns NULL if the range is not pinned. */
struct fake_area *fake_pinned(const void *p, size_t bytes);
struct fake_area *fake_area_new(enum area_kind kind, size_t bytes, struct fake_handle *h);
void fake_area_free(struct fake_area *a);
struct fake_handle *fake_handle_new(int fd, size_t bytes, int dev);
void fake_handle_unref(struct fake_handle *h);
/* Make a memfd of `bytes` bytes for the memory of GPU dev. The name of the memfd contains the
 * number of the GPU in the machine. */
int fake_memfd(size_t bytes, int dev);
/* Return the GPU that the memfd `fd` belongs to. Returns -1 if `fd` is no memfd of fake_memfd, or
 * if the GPU is not visible. *ret_bytes: size of the memfd. */
int fake_memfd_dev(int fd, size_t *ret_bytes);

/* Functions of stream.c; call them with the lock held. */
struct fake_work *fake_work_new(enum work_kind kind);
void fake_queue(CUstream stream, struct fake_work *w);
CUstream fake_stream(CUstream stream);

/* The functions from here on are for the fake NCCL.
 * - fakecuda_stream_call queues a call of `fn` on a stream. The areas at the two addresses `addr`
 *   (0: no area) cannot be freed until the call has run.
 * - fakecuda_stream_bytes returns the host address of the bytes at a device address.
 * - fakecuda_stream_launching starts or ends a time in which only NCCL may use a stream. */
FAKE_EXPORT void fakecuda_stream_call(CUstream stream, void (*fn)(void *), void *arg,
	const CUdeviceptr addr[2], const size_t bytes[2]);
FAKE_EXPORT char *fakecuda_stream_bytes(CUstream stream, CUdeviceptr addr, size_t bytes);
FAKE_EXPORT void fakecuda_stream_launching(CUstream stream, bool is_launching);
FAKE_EXPORT int fakecuda_nccl_enter(const char *name);
FAKE_EXPORT void fakecuda_nccl_live(int difference);
FAKE_EXPORT int fakecuda_current_gpu(void);
FAKE_EXPORT int fakecuda_stream_gpu(CUstream stream);
FAKE_EXPORT int fakecuda_sticky(void);
FAKE_EXPORT void fakecuda_nccl_misuse(const char *what) __attribute__((noreturn));
#endif
