#ifndef BPSCLIENT_GPU_H
#define BPSCLIENT_GPU_H
/* Internals of the library: tensors in the memory of GPUs. The trainer (this process) shares the
 * memory of its tensors with the executor, the process that drives the job's GPUs on this machine.
 * The trainer and the executor also share a page of counters, with which they order their work
 * (common/local/gpu_slot.h). The trainer submits a tensor in device memory to the agent like any
 * other tensor, but the executor moves the tensor's values.
 *
 *   gpu.c        bps_gpu_...        gpu_cuda.c   the process's own CUDA driver
 *   gpu_link.c   the socket, requests, regions, the watcher     gpu_host.c   plain memory
 *
 * The watcher is a thread that waits for the agent or the executor to close its connection. The
 * watcher then releases every stream that waits for a sum, because no sum will come. The watcher
 * calls neither CUDA nor the caller's code.
 *
 * Locks: `lock` serialises requests and protects the list of regions. `lock` is taken after the
 * locks in client.h. */
#include <pthread.h>
#include <stdatomic.h>

#include "libbpsclient/bps.h"

#include "common/local/gpu_slot.h"
#include "common/local/local.h"

struct client_gpu;

/* The driver for one kind of device memory and streams: CUDA, or plain memory as a replacement. The
 * whole process has one driver for each kind. The driver has no state except the library functions
 * that it looks up once. */
struct client_gpu_driver {
	const char *name; /* name of the executor's back-end for this kind of memory */
	/* Return the GPU that the calling thread uses. Errors: BPS_EDEVICE if CUDA is not
	 * available in this process; err then explains the error. */
	int (*uuid)(struct client_gpu *g, uint8_t ret[GPU_UUID_BYTES], struct err_text *err);
	/* Make the counter page accessible to the GPU. `unpin` reverses `pin`. */
	int (*pin)(struct client_gpu *g, struct err_text *err);
	void (*unpin)(struct client_gpu *g);
	/* Map memory of the executor into this process. *ret_handle: value that the caller must
	 * pass to `unmap`. Owns: the caller keeps fds. */
	int (*map)(struct client_gpu *g, const struct gpu_memory *m, const int *fds, unsigned n_fds,
		void **ret_ptr, void **ret_handle, struct err_text *err);
	void (*unmap)(struct client_gpu *g, void *ptr, uint64_t bytes, void *handle);
	/* Describe the trainer's own memory, so that the executor can map it. handle: a buffer of
	 * 64 bytes, to which ret->handle may point. Writes descriptors to fds, and returns their
	 * count. Owns: the caller closes the descriptors. */
	int (*share)(struct client_gpu *g, const void *ptr, uint64_t bytes, struct gpu_memory *ret,
		char *handle, int *fds, unsigned max, struct err_text *err);
	/* Append an operation to the work of the stream. write: set the counter to value. wait: let
	 * later work wait until the counter is >= value. */
	int (*write)(struct client_gpu *g, void *stream, _Atomic uint64_t *counter, uint64_t value,
		struct err_text *err);
	int (*wait)(struct client_gpu *g, void *stream, _Atomic uint64_t *counter, uint64_t value,
		uint64_t deadline_ns, struct err_text *err);
	/* Wait until the GPU has done all work that is queued on streams. */
	void (*settle)(struct client_gpu *g);
};

struct client_gpu_region {
	struct client_gpu_region *next;
	uint32_t id;
	char *ptr;
	uint64_t bytes;
	bool is_import;
	void *handle; /* handle of the mapping, private to the driver */
};

struct client_gpu {
	const struct client_gpu_driver *driver;
	int sock, agent_sock; /* agent_sock: the session's socket, which the session closes */
	uint8_t uuid[GPU_UUID_BYTES];
	char route[GPU_WORD_MAX + 1];
	struct gpu_slot *slots;
	uint64_t page_bytes;
	uint32_t n_slots;
	uint64_t page_addr; /* address at which the GPU accesses the counter page */
	void *ctx;          /* CUDA context of the thread that called bps_gpu_open */
	pthread_mutex_t lock;
	uint32_t seq;
	struct client_gpu_region *regions;
	pthread_t watcher;
	bool has_watcher;
	int stop_fd;
	_Atomic int failure; /* code of the first failure, or 0; set after failure_text is set */
	/* The executor has ended without reporting a reason, but the agent may report a reason.
	 * This flag is set before `failure`. The thread that reads the failure resets this flag,
	 * and waits for the agent's report. */
	atomic_bool is_unexplained;
	struct err_text failure_text;
};

extern const struct client_gpu_driver client_gpu_driver_host, client_gpu_driver_cuda;

/* gpu.c */
/* Wait until the agent has reported all rounds whose sums have already reached the streams. Without
 * this wait, a program that has only waited for its stream would find rounds in flight. The wait
 * ends at deadline_ns, which is timeout_ms after the call's start. region: id of the region whose
 * tensors the call waits for; 0: the call waits for the tensors of all regions. Errors: those of
 * bps_wait. Sets bps_last_error. Thread: any. */
int gpu_await_agent(struct bps *b, uint32_t region, uint64_t deadline_ns, uint32_t timeout_ms);

/* gpu_link.c */
/* Connect to the executor: send HELLO on sock, wait for the answer until deadline_ns (timeout_ms
 * after the call's start), map the counter page, and start the watcher. Owns: the function takes
 * over sock, even when it fails. On an error, the function frees everything, and err explains the
 * error. */
int gpu_link_open(int sock, int agent_sock, const uint8_t *uuid, uint64_t deadline_ns,
	uint32_t timeout_ms, struct client_gpu **ret, struct err_text *err);
/* Close the connection, and release the streams that wait for a sum. Waits until the GPU has done
 * all work that is queued on streams. Then frees the memory of gpu_link_alloc and the counters. g
 * may be NULL. */
void gpu_link_close(struct client_gpu *g);
/* Manage memory on the GPU. gpu_link_alloc makes the executor allocate memory, and maps the memory
 * into this process. gpu_link_import makes the executor map the caller's memory. gpu_link_release
 * releases allocated memory, or ends the import. Owns: g owns *ret, which the caller may use until
 * gpu_link_release. The caller keeps imported memory, and must not free it before gpu_link_release.
 * Errors: those of bps_gpu(3); err then explains the error. Thread: any. */
int gpu_link_alloc(struct client_gpu *g, uint64_t bytes, uint32_t timeout_ms, void **ret,
	struct err_text *err);
int gpu_link_import(
	struct client_gpu *g, void *ptr, uint64_t bytes, uint32_t timeout_ms, struct err_text *err);
int gpu_link_release(struct client_gpu *g, void *ptr, uint32_t timeout_ms, struct err_text *err);
/* Find the region that holds [ptr, ptr + bytes). Returns false if no region does. */
bool gpu_link_find_region(struct client_gpu *g, const void *ptr, uint64_t bytes,
	uint32_t *ret_region, uint64_t *ret_offset);
/* Return the code of the connection's failure, and write the sentence about the failure to *ret.
 * Returns 0 if the connection has not failed. */
int gpu_link_failure(struct client_gpu *g, struct err_text *ret);
#endif
