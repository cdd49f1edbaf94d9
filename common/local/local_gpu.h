#ifndef BPS_COMMON_LOCAL_LOCAL_GPU_H
#define BPS_COMMON_LOCAL_LOCAL_GPU_H
/* Messages about device memory, between a trainer and its job's executor (bps-agent-cuda), and
 * between the agent and the executor. The messages have the frame format of local.h, which includes
 * this header. Frequent events use counters (gpu_slot.h) and rings (ring_pair.h) instead of
 * messages.
 *
 *   trainer                     agent                        executor
 *      DEVICE ------------------->  START, the first time ------>
 *                                   <----------------------- READY
 *      <---- DEVICE_AT + socket --- TRAINER + peer socket ----->
 *      HELLO -----------------------------------------------> when all local ranks sent HELLO:
 *                                   <----------------------- ROUTE
 *      <------------------------------------------------- WELCOME + counter page
 *      ALLOC, IMPORT + handles ------------------------------->
 *      <---------------------------------------- REGION [+ handles]
 *      DECLARE {region, offset} ->  ARENA + memfd -------------> */
#include <stdint.h>

#include "common/wire/codec.h"

#define GPU_UUID_BYTES   16
#define GPU_HANDLE_BYTES 64
#define LOCAL_GPUS_MAX   64 /* largest number of GPUs of a machine */
#define GPU_WORD_MAX     31 /* largest length of the name of a back-end or route */
#define GPU_PATH_MAX     255
#define GPU_NODES_BYTES  (LOCAL_GPUS_MAX * sizeof(uint16_t))
/* Number of the descriptor of the executor's socket to the agent. When the executor starts, its
 * only other descriptors are stdin, stdout and stderr */
#define GPU_PIPE_FD 3

/* Types of messages. The numbers do not overlap the numbers of enum local_type. Each comment begins
 * with the sender and the receiver */
enum {
	GPU_TYPE_FIRST = 32,
	GPU_HELLO = GPU_TYPE_FIRST, /* trainer to executor: request to attach the trainer */
	/* Executor to trainer: answer to HELLO. The message carries the memfd of the counter page,
	 * or the code and text of an error */
	GPU_WELCOME,
	/* Trainer to executor: request to allocate memory on the trainer's GPU. The answer is
	 * REGION with handles */
	GPU_ALLOC,
	/* Trainer to executor: request to use memory of the trainer. The message carries the
	 * handles of that memory. The answer is REGION */
	GPU_IMPORT,
	GPU_REGION,  /* executor to trainer: answer to ALLOC (with handles) or to IMPORT */
	GPU_RELEASE, /* trainer to executor: release of an unused region; the answer is RELEASED */
	GPU_RELEASED,
	GPU_FAILED, /* executor to agent and all trainers: the job cannot continue */
	/* Agent to executor: request to start work. The message carries the memfd of the rings
	 * (ring_pair.h), the eventfd of the executor and the eventfd of the agent */
	GPU_START,
	/* Executor to agent: report that the executor has started (code 0), or that it ends because
	 * of an error. The fields `code` and `text` describe the error */
	GPU_READY,
	GPU_TRAINER, /* agent to executor: a new trainer, with the socket connected to it */
	GPU_ROUTE,   /* executor to agent: the route that the executor uses */
	GPU_ARENA,   /* agent to executor: more staging memory, with the memfd of that memory */
	GPU_END,     /* agent to executor: the job has ended */
	GPU_TYPE_END
};

struct gpu_hello {
	uint16_t abi;
	const char *version;
	struct blob uuid; /* UUID of the trainer's GPU, 16 bytes; empty: any GPU */
};
struct gpu_welcome {
	uint32_t code;
	const char *text;
	const char *backend; /* name of the executor's back-end, such as "cuda" or "host" */
	const char *route;
	struct blob uuid; /* UUID of the GPU that is assigned to the trainer */
	uint32_t n_slots;
	uint64_t bytes; /* size of the counter page */
};
struct gpu_alloc {
	uint64_t bytes;
};
/* Version of struct gpu_memory, equal to DEVICE_DESC_VERSION, the version of the executor's struct
 * device_desc. */
#define GPU_MEMORY_VERSION 1
/* Values of gpu_memory.kind. FD means device memory whose descriptors are sent with the message.
 * IPC means device memory that gpu_memory.handle identifies. HOST means memory of the back-end
 * "host", in one memfd */
enum { GPU_MEMORY_FD = 1, GPU_MEMORY_IPC, GPU_MEMORY_HOST };
struct gpu_memory {
	uint16_t version, kind;
	struct blob uuid;
	uint64_t bytes, chunk_bytes, offset, buffer_id;
	struct blob handle;
};
struct gpu_region {
	uint32_t code;
	const char *text;
	uint32_t region; /* number of the region, from 1 */
	/* Memory of the region. The answer to ALLOC has one entry, and carries the descriptors of
	 * that memory. The answer to IMPORT has no entry */
	struct gpu_memory *memory;
	uint32_t n_memory;
};
struct gpu_import {
	struct gpu_memory *memory; /* array of one entry */
	uint32_t n_memory;
};
/* Content of RELEASE and RELEASED. Only RELEASED has a result, in the fields `code` and `text` */
struct gpu_release {
	uint32_t code;
	const char *text;
	uint32_t region;
};
struct gpu_text { /* content of READY, FAILED and END */
	uint32_t code;
	const char *text;
};
struct gpu_start {
	uint16_t abi;
	const char *version;
	const char *job;
	uint32_t n_workers, n_slots;
	const char *route; /* requested route, or "auto" */
	const char *sysfs; /* sysfs root to read the bus topology from; "": the default */
};
struct gpu_trainer {
	uint32_t worker, pid;
};
struct gpu_route {
	const char *route;
	uint32_t n_inputs;
	/* NUMA node that should have the host memory for sums: 1 + the id of the node; 0: any
	 * node. */
	uint32_t sum_node;
	/* Array of u16, one for each input: 1 + the id of the input's NUMA node; 0: any node */
	struct blob input_nodes;
	struct blob input_workers; /* array of u16: number of workers behind each input */
};
struct gpu_arena {
	uint32_t id;
	uint64_t bytes;
};

/* Names and layouts of the message types from GPU_TYPE_FIRST on. */
struct local_row {
	const char *name;
	struct layout layout;
};
extern const struct local_row gpu_rows[GPU_TYPE_END - GPU_TYPE_FIRST];
#endif
