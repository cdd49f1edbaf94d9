#ifndef BPS_COMMON_LOCAL_LOCAL_GPU_H
#define BPS_COMMON_LOCAL_LOCAL_GPU_H
/* Messages about device memory, in the frames of local.h (which includes this): between a trainer
 * and its job's executor (bps-agent-cuda), and between the agent and the executor. Frequent events
 * use counters (gpu_slot.h) and rings (ring_pair.h).
 *
 *   trainer                     agent                        executor
 *      DEVICE ------------------->  START, the first time ------>
 *                                   <----------------------- READY
 *      <---- DEVICE_AT + socket --- TRAINER + the other end --->
 *      HELLO -----------------------------------------------> when all local ranks have sent it:
 *                                   <----------------------- ROUTE
 *      <------------------------------------------------- WELCOME + counter page
 *      ALLOC, IMPORT + handles ------------------------------->
 *      <---------------------------------------- REGION [+ handles]
 *      DECLARE {region, offset} ->  ARENA + memfd -------------> */
#include <stdint.h>

#include "common/wire/codec.h"

#define GPU_UUID_BYTES   16
#define GPU_HANDLE_BYTES 64
#define LOCAL_GPUS_MAX   64 /* limit per machine */
#define GPU_WORD_MAX     31 /* names of back-ends and routes */
#define GPU_PATH_MAX     255
#define GPU_NODES_BYTES  (LOCAL_GPUS_MAX * sizeof(uint16_t))
#define GPU_PIPE_FD      3 /* descriptor of the executor's socket to its agent, at its start */

enum { /* continue the numbers of enum local_type */
	GPU_TYPE_FIRST = 32,
	GPU_HELLO = GPU_TYPE_FIRST, /* trainer */
	GPU_WELCOME,                /* executor; + counter page, or code and text */
	GPU_ALLOC,   /* trainer: make memory on my GPU; answered by REGION + handles */
	GPU_IMPORT,  /* trainer; + handles: use memory of mine; answered by REGION */
	GPU_REGION,  /* executor */
	GPU_RELEASE, /* trainer; answered by RELEASED */
	GPU_RELEASED,
	GPU_FAILED,  /* executor to all: the job cannot continue */
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
	struct blob uuid; /* GPU assigned to the trainer */
	uint32_t n_slots;
	uint64_t bytes; /* size of the page */
};
struct gpu_alloc {
	uint64_t bytes;
};
/* Version of memory that can be mapped elsewhere, as in the executor's struct device_desc. */
#define GPU_MEMORY_VERSION 1
enum { GPU_MEMORY_FD = 1, GPU_MEMORY_IPC, GPU_MEMORY_HOST }; /* kinds of memory */
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
	struct gpu_memory *memory; /* one entry, for ALLOC; the descriptors come with it */
	uint32_t n_memory;
};
struct gpu_import {
	struct gpu_memory *memory; /* one entry */
	uint32_t n_memory;
};
struct gpu_release { /* also RELEASED, where code is the result */
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
	const char *route; /* requested route; "auto" */
	const char *sysfs; /* sysfs root to read the bus topology from; "": the default */
};
struct gpu_trainer {
	uint32_t worker, pid;
};
struct gpu_route {
	const char *route;
	uint32_t n_inputs;
	/* NUMA node plus 1 where host memory should lie, 0: any. */
	uint32_t sum_node;
	struct blob input_nodes; /* node of each input, a u16 */
};
struct gpu_arena {
	uint32_t id;
	uint64_t bytes;
};

/* Layouts of all types, from GPU_TYPE_FIRST on. */
struct local_row {
	const char *name;
	struct layout layout;
};
extern const struct local_row gpu_rows[GPU_TYPE_END - GPU_TYPE_FIRST];
#endif
