/* Queues of the CUDA back-end: each is a stream. All work is checked before it is queued, because a
 * bad address that the GPU detects would end the process. While a clique launches a collective on a
 * stream, no other work may be queued on the stream. During the launch, the driver may report an
 * idle stream although the collective has not run. Thread: the executor's. */
#include "bps-agent/executor/device/cuda_impl.h"

#include <stdlib.h>

/* Copies to a GPU of at least this size have one row. Measured with driver 580.159.04: copies of up
 * to 16 KiB in one row go through the compute engine, copies of 32 KiB go to a copy engine. */
#define TWO_ROWS_BYTES (32u << 10)

/* Make the queue's context current. Returns 0 if the queue accepts work, or an error such as
 * DEVICE_AGAIN. */
static int cuda_queue_enter(struct cuda_queue *q)
{
	int rc = cuda_enter_context(q->base.dev, q->base.gpu);

	return rc ? rc : cuda_clique_launched(q);
}

/* Convert a priority of device.h to a priority of the driver. In the driver, a smaller number is
 * more urgent. */
static int driver_priority(int priority)
{
	int least = 0, greatest = 0;

	if (cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS)
		return 0;
	return priority > 0 ? greatest : priority < 0 ? least : (least + greatest) / 2;
}

int cuda_queue_open(struct device *dev, int gpu, int priority, struct device_queue **ret_queue)
{
	struct cuda_queue *q;
	int rc = cuda_enter_context(dev, gpu);

	if (rc)
		return rc;
	q = calloc(1, sizeof(*q));
	if (!q)
		return cuda_refuse(dev, DEVICE_NOMEM, "out of memory for a queue");
	q->base = (struct device_queue){dev, gpu};
	rc = cuda_check_result(dev,
		cuStreamCreateWithPriority(
			&q->stream, CU_STREAM_NON_BLOCKING, driver_priority(priority)),
		"cannot create a stream");
	if (rc) {
		cuda_queue_close(&q->base);
		return rc;
	}
	*ret_queue = &q->base;
	return 0;
}

void cuda_queue_close(struct device_queue *queue)
{
	struct cuda_queue *q = (struct cuda_queue *)queue;

	if (!q)
		return;
	if (q->clique)
		LIST_REMOVE(q, entry);
	if (q->stream && !cuda_enter_context(queue->dev, queue->gpu))
		cuda_check_result(
			queue->dev, cuStreamDestroy(q->stream), "cannot destroy a stream");
	free(q);
}

int cuda_queue_poll(struct device_queue *queue)
{
	struct cuda_queue *q = (struct cuda_queue *)queue;
	int rc = cuda_queue_enter(q);

	return rc ? rc
		  : cuda_check_result(queue->dev, cuStreamQuery(q->stream), "work on a GPU failed");
}

/* Return true if this GPU's context cannot use the memory. Memory of a legacy handle can be used
 * only in the context of the GPU that has imported the handle. */
static bool cuda_mem_is_foreign(const struct device_mem *mem, int gpu)
{
	return ((const struct cuda_mem *)mem)->kind == CUDA_MEM_IPC && mem->gpu != gpu;
}

static int cuda_queue_peer_copy(struct cuda_queue *q, struct device_mem *dst, uint64_t dst_offset,
	struct device_mem *src, uint64_t src_offset, uint64_t bytes)
{
	struct cuda_gpu *gpus = cuda_device_of_base(dst->dev)->gpu;
	CUdeviceptr to = ((struct cuda_mem *)dst)->addr, from = ((struct cuda_mem *)src)->addr;

	if (dst->gpu == DEVICE_HOST || src->gpu == DEVICE_HOST)
		return cuda_refuse(dst->dev, DEVICE_UNSUP,
			"memory that another GPU has imported by a legacy handle cannot be copied "
			"to the host");
	return cuda_check_result(dst->dev,
		cuMemcpyPeerAsync(to + dst_offset, gpus[dst->gpu].ctx, from + src_offset,
			gpus[src->gpu].ctx, bytes, q->stream),
		"cannot queue a copy between GPUs");
}

/* Queue a copy to a GPU. The driver sends a small copy of one row through the compute engine. This
 * copy then waits for a time slice of this process: 2.4 ms on an H200 whose trainer is computing
 * (docs/results/gpu.md). A copy engine makes all larger copies, and all copies of two rows. So a
 * small copy is queued as two rows, if its size is even. In the only measurement, a round of 4 KiB
 * on an idle GPU took 218 us instead of 62 us with two rows, for a reason that is not known. */
static CUresult cuda_queue_copy_to_gpu(
	CUdeviceptr to, const char *from, uint64_t bytes, CUstream stream)
{
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = from,
		.srcPitch = bytes / 2,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = to,
		.dstPitch = bytes / 2,
		.WidthInBytes = bytes / 2,
		.Height = 2};

	if (bytes >= TWO_ROWS_BYTES || bytes % 2)
		return cuMemcpyHtoDAsync(to, from, bytes, stream);
	return cuMemcpy2DAsync(&rows, stream);
}

int cuda_queue_copy(struct device_queue *queue, struct device_mem *dst, uint64_t dst_offset,
	struct device_mem *src, uint64_t src_offset, uint64_t bytes)
{
	struct cuda_queue *q = (struct cuda_queue *)queue;
	uint64_t to = cuda_memory_address(dst, queue->gpu),
		 from = cuda_memory_address(src, queue->gpu);
	char *to_host = ((struct cuda_mem *)dst)->host, *from_host = ((struct cuda_mem *)src)->host;
	struct device *dev = queue->dev;
	CUresult r;
	int rc = cuda_queue_enter(q);

	if (rc)
		return rc;
	if (!bytes || !device_mem_holds(dst, dst_offset, bytes) ||
		!device_mem_holds(src, src_offset, bytes))
		return cuda_refuse(
			dev, DEVICE_ARG, "a copy exceeds the memory of its source or destination");
	if (cuda_mem_is_foreign(dst, queue->gpu) || cuda_mem_is_foreign(src, queue->gpu))
		return cuda_queue_peer_copy(q, dst, dst_offset, src, src_offset, bytes);
	if (!to || !from || (to_host && from_host))
		return cuda_refuse(dev, DEVICE_UNSUP,
			"GPU %d cannot reach both source and destination of a copy", queue->gpu);
	if (to_host)
		r = cuMemcpyDtoHAsync(to_host + dst_offset, from + src_offset, bytes, q->stream);
	else if (from_host)
		r = cuda_queue_copy_to_gpu(
			to + dst_offset, from_host + src_offset, bytes, q->stream);
	else
		r = cuMemcpyDtoDAsync(to + dst_offset, from + src_offset, bytes, q->stream);
	return cuda_check_result(dev, r, "cannot queue a copy");
}

/* Queue the write of a counter. With the default flags, the driver puts a system-wide memory fence
 * before the write. A host that sees the new value also sees the copies queued before the write. */
int cuda_queue_counter_write(
	struct device_queue *queue, struct device_mem *page, uint64_t offset, uint64_t value)
{
	struct cuda_queue *q = (struct cuda_queue *)queue;
	struct device *dev = queue->dev;
	uint64_t addr;
	int rc = cuda_queue_enter(q);

	if (rc)
		return rc;
	if (page->gpu != DEVICE_HOST || offset % 8 || !device_mem_holds(page, offset, 8))
		return cuda_refuse(dev, DEVICE_ARG,
			"offset %llu of pinned memory is not a valid offset of a counter",
			(unsigned long long)offset);
	if (!(cuda_device_of_base(dev)->gpu[queue->gpu].info.caps & DEVICE_CAP_MEMOP64))
		return cuda_refuse(dev, DEVICE_UNSUP,
			"GPU %d does not support 64-bit memory operations of streams", queue->gpu);
	addr = cuda_memory_address(page, queue->gpu);
	if (!addr)
		return cuda_device_of_base(dev)->is_lost ? DEVICE_LOST : DEVICE_UNSUP;
	return cuda_check_result(dev,
		cuStreamWriteValue64(
			q->stream, addr + offset, value, CU_STREAM_WRITE_VALUE_DEFAULT),
		"cannot queue the write of a counter");
}
