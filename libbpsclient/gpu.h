#ifndef BPSCLIENT_GPU_H
#define BPSCLIENT_GPU_H
/* Inside of the library: device memory that trainer and executor share, and the counters that order
 * their work (common/local/gpu_slot.h). A tensor in it goes through the agent like any other; only
 * its bytes do not.
 *
 *   gpu.c        bps_gpu_...        gpu_cuda.c   the process's own CUDA driver
 *   gpu_link.c   the socket, requests, regions, the watcher     gpu_host.c   plain memory
 *
 * The watcher is a thread that waits for agent or executor to go away, and then lets go every
 * stream that waits for a sum. It calls nothing of CUDA and nothing of the caller's.
 *
 * Locks: `lock` serialises requests and the list of regions; after the locks in client.h. */
#include <pthread.h>
#include <stdatomic.h>

#include "libbpsclient/bps.h"

#include "common/local/gpu_slot.h"
#include "common/local/local.h"

struct client_gpu;

/* A place where device memory and streams come from. One for the whole process, without state but
 * what it loads once. */
struct client_gpu_driver {
	const char *name; /* of the executor's back-end that it goes with */
	/* The GPU that the calling thread uses. Errors: BPS_EDEVICE with a sentence: no CUDA
	 * here. */
	int (*uuid)(struct client_gpu *g, uint8_t ret[GPU_UUID_BYTES], struct err_text *err);
	/* The counter page: let streams reach it. unpin is the end of it. */
	int (*pin)(struct client_gpu *g, struct err_text *err);
	void (*unpin)(struct client_gpu *g);
	/* Map memory of the executor's. *ret_handle is for unmap. Owns: fds stay the caller's. */
	int (*map)(struct client_gpu *g, const struct gpu_memory *m, const int *fds, unsigned n_fds,
		void **ret_ptr, void **ret_handle, struct err_text *err);
	void (*unmap)(struct client_gpu *g, void *ptr, uint64_t bytes, void *handle);
	/* Describe memory of the trainer's own for the executor; handle: room for 64 bytes, to
	 * which ret->handle may point. Returns the number of descriptors, the caller's. */
	int (*share)(struct client_gpu *g, const void *ptr, uint64_t bytes, struct gpu_memory *ret,
		char *handle, int *fds, unsigned max, struct err_text *err);
	/* Queue on stream: counter := value, behind all before it; wait until counter >= value. */
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
	void *handle; /* of the driver */
};

struct client_gpu {
	const struct client_gpu_driver *driver;
	int sock, agent_sock; /* agent_sock: the session's */
	uint8_t uuid[GPU_UUID_BYTES];
	char route[GPU_WORD_MAX + 1];
	struct gpu_slot *slots;
	uint64_t page_bytes;
	uint32_t n_slots;
	uint64_t page_addr; /* as streams know it */
	void *ctx;          /* CUDA's, of the thread that opened it */
	pthread_mutex_t lock;
	uint32_t seq;
	struct client_gpu_region *regions;
	pthread_t watcher;
	bool has_watcher;
	int stop_fd;
	_Atomic int failure; /* partner: the watcher stores it, behind the sentence */
	/* It is gone and has not said why: perhaps the agent does. The watcher stores it before the
	 * failure, and who has read the failure takes it. */
	atomic_bool is_unexplained;
	struct err_text failure_text;
};

extern const struct client_gpu_driver client_gpu_driver_host, client_gpu_driver_cuda;

/* gpu.c */
/* A stream has a sum before the agent has told the host of it: wait for the agent's word about all
 * rounds that streams have, so that a program which has waited for its stream alone finds nothing
 * in flight; until deadline_ns, which is timeout_ms after the call's start. region: of tensors
 * there; 0: of all. Errors: as bps_wait, with the thread's sentence. Thread: any. */
int gpu_await_agent(struct bps *b, uint32_t region, uint64_t deadline_ns, uint32_t timeout_ms);

/* gpu_link.c */
/* sock: to the executor, taken; say HELLO, wait until deadline_ns, which is timeout_ms after the
 * call's start, map the page, start the watcher. Errors: with a sentence; nothing is left. */
int gpu_link_open(int sock, int agent_sock, const uint8_t *uuid, uint64_t deadline_ns,
	uint32_t timeout_ms, struct client_gpu **ret, struct err_text *err);
/* Streams that wait for a sum are let go, and what the GPU's streams hold is done before memory and
 * counters go. NULL is allowed. */
void gpu_link_close(struct client_gpu *g);
/* Memory on the GPU: the executor's, mapped here; memory of the caller's, mapped there; the end of
 * either. Owns: *ret is the caller's until gpu_link_release; imported memory stays the caller's and
 * where it is until then.
 * Errors: those of bps_gpu(3), with a sentence. Thread: any. */
int gpu_link_alloc(struct client_gpu *g, uint64_t bytes, uint32_t timeout_ms, void **ret,
	struct err_text *err);
int gpu_link_import(
	struct client_gpu *g, void *ptr, uint64_t bytes, uint32_t timeout_ms, struct err_text *err);
int gpu_link_release(struct client_gpu *g, void *ptr, uint32_t timeout_ms, struct err_text *err);
/* Which region holds [ptr, ptr + bytes)? False: none. */
bool gpu_link_find(struct client_gpu *g, const void *ptr, uint64_t bytes, uint32_t *ret_region,
	uint64_t *ret_offset);
/* Its failure's code and sentence, or 0. */
int gpu_link_failure(struct client_gpu *g, struct err_text *ret);
#endif
