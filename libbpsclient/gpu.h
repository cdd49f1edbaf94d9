#ifndef BPSCLIENT_GPU_H
#define BPSCLIENT_GPU_H
/* Internals of the library: device memory that trainer and executor share, and the counters that
 * order their work (common/local/gpu_slot.h). A tensor in device memory goes through the agent like
 * any other, except for its bytes.
 *
 *   gpu.c        bps_gpu_...        gpu_cuda.c   the process's own CUDA driver
 *   gpu_link.c   the socket, requests, regions, the watcher     gpu_host.c   plain memory
 *
 * The watcher is a thread that waits for the agent or executor to close its connection. It then
 * releases every stream that waits for a sum. It calls neither CUDA nor the caller's code.
 *
 * Locks: `lock` serialises requests and the list of regions. It comes after the locks in
 * client.h. */
#include <pthread.h>
#include <stdatomic.h>

#include "libbpsclient/bps.h"

#include "common/local/gpu_slot.h"
#include "common/local/local.h"

struct client_gpu;

/* A source of device memory and streams. One for the whole process; its only state is what it loads
 * once. */
struct client_gpu_driver {
	const char *name; /* name of the executor's back-end that it works with */
	/* Return the GPU that the calling thread uses. Errors: BPS_EDEVICE with a sentence: no CUDA
	 * here. */
	int (*uuid)(struct client_gpu *g, uint8_t ret[GPU_UUID_BYTES], struct err_text *err);
	/* Make the counter page accessible to streams. unpin reverses it. */
	int (*pin)(struct client_gpu *g, struct err_text *err);
	void (*unpin)(struct client_gpu *g);
	/* Map memory of the executor. *ret_handle is for unmap. Owns: fds stay the caller's. */
	int (*map)(struct client_gpu *g, const struct gpu_memory *m, const int *fds, unsigned n_fds,
		void **ret_ptr, void **ret_handle, struct err_text *err);
	void (*unmap)(struct client_gpu *g, void *ptr, uint64_t bytes, void *handle);
	/* Describe the trainer's own memory for the executor. handle: room for 64 bytes, to which
	 * ret->handle may point. Returns the number of descriptors, which the caller owns. */
	int (*share)(struct client_gpu *g, const void *ptr, uint64_t bytes, struct gpu_memory *ret,
		char *handle, int *fds, unsigned max, struct err_text *err);
	/* Queue on stream, after all earlier work: set counter to value (write); wait until counter
	 * >= value (wait). */
	int (*write)(struct client_gpu *g, void *stream, _Atomic uint64_t *counter, uint64_t value,
		struct err_text *err);
	int (*wait)(struct client_gpu *g, void *stream, _Atomic uint64_t *counter, uint64_t value,
		uint64_t deadline_ns, struct err_text *err);
	/* Wait until the GPU has done what its streams hold. */
	void (*settle)(struct client_gpu *g);
};

struct client_gpu_region {
	struct client_gpu_region *next;
	uint32_t id;
	char *ptr;
	uint64_t bytes;
	bool is_import;
	void *handle; /* used by the driver */
};

struct client_gpu {
	const struct client_gpu_driver *driver;
	int sock, agent_sock; /* agent_sock: owned by the session */
	uint8_t uuid[GPU_UUID_BYTES];
	char route[GPU_WORD_MAX + 1];
	struct gpu_slot *slots;
	uint64_t page_bytes;
	uint32_t n_slots;
	uint64_t page_addr; /* address of the page for streams */
	void *ctx;          /* CUDA context of the thread that opened it */
	pthread_mutex_t lock;
	uint32_t seq;
	struct client_gpu_region *regions;
	pthread_t watcher;
	bool has_watcher;
	int stop_fd;
	_Atomic int failure; /* partner: the watcher stores it, after the sentence */
	/* The executor has ended without a reason; the agent may know one. The watcher stores this
	 * before the failure. The thread that reads the failure resets it. */
	atomic_bool is_unexplained;
	struct err_text failure_text;
};

extern const struct client_gpu_driver client_gpu_driver_host, client_gpu_driver_cuda;

/* gpu.c */
/* Wait for the agent's report of all rounds whose sums the streams have already. Otherwise a
 * program that has only waited for its stream would find rounds in flight. Ends at deadline_ns,
 * which is timeout_ms after the call's start. region: of tensors there; 0: of all. Errors: as
 * bps_wait, with the thread's sentence. Thread: any. */
int gpu_await_agent(struct bps *b, uint32_t region, uint64_t deadline_ns, uint32_t timeout_ms);

/* gpu_link.c */
/* Connect to the executor: send HELLO on sock, wait until deadline_ns (timeout_ms after the call's
 * start), map the page, and start the watcher. Takes ownership of sock. Errors: with a sentence;
 * everything is freed. */
int gpu_link_open(int sock, int agent_sock, const uint8_t *uuid, uint64_t deadline_ns,
	uint32_t timeout_ms, struct client_gpu **ret, struct err_text *err);
/* Close the connection. Streams that wait for a sum are released. The GPU finishes the work of its
 * streams before memory and counters are freed. g may be NULL. */
void gpu_link_close(struct client_gpu *g);
/* Manage memory on the GPU: alloc maps the executor's memory here, import maps the caller's memory
 * there, release ends either. Owns: *ret is the caller's until gpu_link_release. Imported memory
 * stays the caller's and must not move until then. Errors: those of bps_gpu(3), with a sentence.
 * Thread: any. */
int gpu_link_alloc(struct client_gpu *g, uint64_t bytes, uint32_t timeout_ms, void **ret,
	struct err_text *err);
int gpu_link_import(
	struct client_gpu *g, void *ptr, uint64_t bytes, uint32_t timeout_ms, struct err_text *err);
int gpu_link_release(struct client_gpu *g, void *ptr, uint32_t timeout_ms, struct err_text *err);
/* Find the region that holds [ptr, ptr + bytes). False: none. */
bool gpu_link_find(struct client_gpu *g, const void *ptr, uint64_t bytes, uint32_t *ret_region,
	uint64_t *ret_offset);
/* Return the code and sentence of the connection's failure, or 0. */
int gpu_link_failure(struct client_gpu *g, struct err_text *ret);
#endif
