#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_IMPL_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_IMPL_H
/* Declarations that the files of the CUDA back-end share. */
#include <cuda.h>
#include <sys/queue.h>

#include "bps-agent/executor/device/cuda.h"

struct nccl; /* functions of the loaded NCCL, see cuda_nccl.h */

struct cuda_gpu {
	CUdevice dev;
	CUcontext ctx; /* context of the GPU; NULL until a call needs the context */
	struct device_gpu info;
};

struct cuda_device {
	struct device base;
	bool is_lost;
	char job[64];
	struct nccl *nccl; /* loaded NCCL; NULL before the first clique is opened */
	int n_gpus;
	struct cuda_gpu gpu[DEVICE_GPUS_MAX];
};

enum cuda_mem_kind { CUDA_MEM_ALLOC, CUDA_MEM_FDS, CUDA_MEM_IPC, CUDA_MEM_PIN };

struct cuda_mem {
	struct device_mem base;
	enum cuda_mem_kind kind;
	/* bit i: GPU i has access to the memory; for pinned memory, bit i instead means that
	 * pin_addr[i] is set */
	uint64_t reach;
	CUdeviceptr addr; /* device address of the first byte; not used for pinned memory */
	/* first address of the reserved range, or of the memory opened by a legacy IPC handle */
	CUdeviceptr map;
	uint64_t map_bytes; /* number of reserved bytes, starting at address `map` */
	/* number of mapped bytes, starting at address `map` */
	uint64_t mapped_bytes;
	/* handle of memory that cuda_alloc_memory has allocated; 0: none */
	CUmemGenericAllocationHandle handle;
	uint64_t buffer_id;
	/* Host memory to pin. If a GPU has a context, cuda_pin_host_memory pins the memory.
	 * Otherwise the first call of cuda_mem_pinned_address pins it. */
	char *host;
	bool is_pinned; /* the memory is pinned in the context of pin_gpu */
	int pin_gpu;
	CUdeviceptr pin_addr[DEVICE_GPUS_MAX];
};

struct cuda_clique;

struct cuda_queue {
	struct device_queue base;
	LIST_ENTRY(cuda_queue) entry; /* link in the list clique->launching */
	/* the clique that launches a collective on this queue; NULL: none */
	struct cuda_clique *clique;
	CUstream stream;
};

static inline struct cuda_device *cuda_device_of_base(struct device *dev)
{
	return (struct cuda_device *)dev;
}

/* cuda_error.c: convert a result of the driver to a device error. what: describes the failed call,
 * for the error text in `why`. cuda_check_result writes the text to dev->why, and marks the device
 * as lost after a sticky error. */
int cuda_convert_result(CUresult r, struct err_text *why, const char *what);
int cuda_check_result(struct device *dev, CUresult r, const char *what);
/* Report a failure that this back-end has detected. Set dev->why, and return the argument `code`.
 * cuda_refuse is a macro, because static analysis of a single file must know the returned value. */
#define cuda_refuse(dev, code, ...) ((void)err_set(&(dev)->why, code, __VA_ARGS__), (code))

/* cuda.c: make a GPU's context current. Creates the context if there is none. Errors:
 * DEVICE_LOST. */
int cuda_enter_context(struct device *dev, int gpu);
/* Return whether GPU a can use the memory of GPU b. */
bool cuda_gpu_can_reach(struct cuda_device *d, int a, int b);

/* cuda_mem.c, cuda_share.c, cuda_queue.c, cuda_clique.c: functions of the table device_cuda, see
 * device.h. */
int cuda_alloc_memory(struct device *dev, int gpu, uint64_t bytes, const int *also, int n_also,
	struct device_mem **ret_mem);
int cuda_pin_host_memory(
	struct device *dev, void *host, uint64_t bytes, struct device_mem **ret_mem);
uint64_t cuda_memory_address(struct device_mem *mem, int gpu);
void cuda_drop_memory(struct device_mem *mem);
struct cuda_mem *cuda_mem_new(struct device *dev, int gpu, enum cuda_mem_kind kind);
/* Reserve device addresses for n handles of `chunk` bytes each, map the handles, and let the GPUs
 * in m->reach access the memory. After a failure, the caller must call cuda_drop_memory, which
 * undoes the completed steps. */
int cuda_map_handles(struct cuda_mem *m, const CUmemGenericAllocationHandle *handles, unsigned n,
	uint64_t chunk);

int cuda_share_memory(struct device_mem *mem, struct device_desc *ret_desc, int *fds, int max);
/* cuda_export_handle returns a new file descriptor for the handle. cuda_describe_memory returns a
 * description whose n_fds and offset are not set. */
int cuda_export_handle(struct device *dev, CUmemGenericAllocationHandle handle);
struct device_desc cuda_describe_memory(
	struct device *dev, int gpu, enum device_desc_kind kind, uint64_t bytes, uint64_t chunk);
int cuda_import_memory(struct device *dev, int gpu, const struct device_desc *desc, const int *fds,
	int n_fds, struct device_mem **ret_mem);

int cuda_queue_open(struct device *dev, int gpu, int priority, struct device_queue **ret_queue);
void cuda_queue_close(struct device_queue *q);
int cuda_queue_poll(struct device_queue *q);
int cuda_queue_copy(struct device_queue *q, struct device_mem *dst, uint64_t dst_offset,
	struct device_mem *src, uint64_t src_offset, uint64_t bytes);
int cuda_queue_counter_write(
	struct device_queue *q, struct device_mem *page, uint64_t offset, uint64_t value);

/* Check whether work may be queued on q. Returns 0 if work may be queued, DEVICE_AGAIN while a
 * clique launches a collective on q, DEVICE_PEER if that clique has failed. */
int cuda_clique_launched(struct cuda_queue *q);
int cuda_clique_id(struct device *dev, uint8_t ret_id[DEVICE_ID_BYTES]);
int cuda_clique_open(struct device *dev, const uint8_t id[DEVICE_ID_BYTES], int n_ranks,
	const int *gpu, const int *rank, int n_local, struct device_clique **ret_clique);
int cuda_clique_poll(struct device_clique *c);
int cuda_reduce_scatter(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype, enum op op);
int cuda_all_gather(struct device_clique *c, const struct device_piece *pieces,
	uint64_t count_per_rank, enum dtype dtype);
int cuda_reduce(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, enum op op, int root);
int cuda_broadcast(struct device_clique *c, const struct device_piece *pieces, uint64_t count,
	enum dtype dtype, int root);
int cuda_group_begin(struct device_clique *c);
int cuda_group_end(struct device_clique *c);
void cuda_clique_abort(struct device_clique *c);
void cuda_clique_close(struct device_clique *c);
#endif
