#ifndef BPS_COMMON_LOCAL_LOCAL_GPU_H
#define BPS_COMMON_LOCAL_LOCAL_GPU_H
/* Messages about device memory, of the same frames as local.h (which includes this): between a
 * trainer and its job's executor (bps-agent-cuda), and between the agent and the executor. What is
 * hot goes through counters (gpu_slot.h) and rings (ring_pair.h).
 *
 *   trainer                     agent                        executor
 *      DEVICE ------------------->  START, at its first time --->
 *                                   <----------------------- READY
 *      <---- DEVICE_AT + socket --- TRAINER + the other end --->
 *      HELLO ------------------------------------------------->  when all local ranks have said it:
 *                                   <----------------------- ROUTE
 *      <------------------------------------------------- WELCOME + counter page
 *      ALLOC, IMPORT + handles ------------------------------->
 *      <---------------------------------------- REGION [+ handles]
 *      DECLARE {region, offset} ->  ARENA + memfd ------------->
 */
#include <stdint.h>

#include "common/wire/codec.h"

#define GPU_UUID_BYTES   16
#define GPU_HANDLE_BYTES 64
#define LOCAL_GPUS_MAX   64 /* of one machine */
#define GPU_WORD_MAX     31 /* names of back-ends and routes */
#define GPU_PATH_MAX     255
#define GPU_NODES_BYTES  (LOCAL_GPUS_MAX * sizeof(uint16_t))
#define GPU_PIPE_FD      3 /* the executor's socket to its agent, when it is started */

enum { /* go on in enum local_type */
	GPU_TYPE_FIRST = 32,
	GPU_HELLO = GPU_TYPE_FIRST, /* trainer */
	GPU_WELCOME,                /* executor; + counter page, or code and text */
	GPU_ALLOC,   /* trainer: make memory on my GPU; answered by REGION + handles */
	GPU_IMPORT,  /* trainer; + handles: use memory of mine; answered by REGION */
	GPU_REGION,  /* executor */
	GPU_RELEASE, /* trainer; answered by RELEASED */
	GPU_RELEASED,
	GPU_FAILED,  /* executor to all: nothing goes on */
	GPU_START,   /* agent; + pipe's memfd, eventfd of the executor, eventfd of the agent */
	GPU_READY,   /* executor; or code and text, then it ends */
	GPU_TRAINER, /* agent; + socket */
	GPU_ROUTE,   /* executor */
	GPU_ARENA,   /* agent; + memfd: staging memory */
	GPU_END,     /* agent: the job is over */
	GPU_TYPE_END
};

struct gpu_hello {
	uint16_t abi;
	const char *version;
	struct blob uuid; /* of the trainer's GPU, 16 bytes; empty: any */
};
struct gpu_welcome {
	uint32_t code;
	const char *text;
	const char *backend; /* "cuda", "host" */
	const char *route;
	struct blob uuid; /* of the GPU that it was given */
	uint32_t n_slots;
	uint64_t bytes; /* of the page */
};
struct gpu_alloc {
	uint64_t bytes;
};
/* Memory that can be mapped elsewhere; the executor's struct device_desc. */
#define GPU_MEMORY_VERSION 1
enum { GPU_MEMORY_FD = 1, GPU_MEMORY_IPC, GPU_MEMORY_HOST }; /* its kinds */
struct gpu_memory {
	uint16_t version, kind;
	struct blob uuid;
	uint64_t bytes, chunk_bytes, offset, buffer_id;
	struct blob handle;
};
struct gpu_region {
	uint32_t code;
	const char *text;
	uint32_t region;           /* its number, from 1 */
	struct gpu_memory *memory; /* one, of an ALLOC; the descriptors come along */
	uint32_t n_memory;
};
struct gpu_import {
	struct gpu_memory *memory; /* one */
	uint32_t n_memory;
};
struct gpu_release { /* and RELEASED, where code says what became of it */
	uint32_t code;
	const char *text;
	uint32_t region;
};
struct gpu_text { /* READY, FAILED, END */
	uint32_t code;
	const char *text;
};
struct gpu_start {
	uint16_t abi;
	const char *version;
	const char *job;
	uint32_t n_workers, n_slots;
	const char *route; /* wanted; "auto" */
	const char *sysfs; /* where to find what lies on which bus; "": as usual */
};
struct gpu_trainer {
	uint32_t worker, pid;
};
struct gpu_route {
	const char *route;
	uint32_t n_inputs;
	/* Where host memory is to lie: NUMA nodes plus 1, 0: anywhere. */
	uint32_t sum_node;
	struct blob input_nodes; /* of each, a u16 */
};
struct gpu_arena {
	uint32_t id;
	uint64_t bytes;
};

/* The layouts of all types, from GPU_TYPE_FIRST on. */
struct local_row {
	const char *name;
	struct layout layout;
};
extern const struct local_row gpu_rows[GPU_TYPE_END - GPU_TYPE_FIRST];
#endif
