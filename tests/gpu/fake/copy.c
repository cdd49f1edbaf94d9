/* Copies and fills of the fake driver. A blocking copy runs inside the call that requests the copy.
 * The other copies, and all fills, are queued on a stream, which runs them later. */
#include "tests/gpu/fake/fake.h"

#include <string.h>

/* The source or the destination of a copy: device memory at an address, or pinned host memory. */
struct copy_end {
	struct fake_area *area;
	char *at;
};

static struct copy_end device_end(CUdeviceptr addr, size_t bytes, int dev)
{
	struct copy_end e = {.area = fake_device(addr, bytes, dev)};

	if (e.area->kind == AREA_PINNED)
		fake_misuse("pinned memory is copied as device memory");
	e.at = e.area->at + (addr - e.area->addr);
	return e;
}

static struct copy_end host_end(const void *p, size_t bytes)
{
	struct copy_end e = {.area = fake_pinned(p, bytes)};

	if (!e.area)
		fake_misuse("an asynchronous copy of %zu bytes that are not pinned", bytes);
	e.at = e.area->at + ((const char *)p - e.area->at);
	return e;
}

static CUresult queue_copy(CUstream s, struct copy_end dst, struct copy_end src, size_t bytes)
{
	struct fake_work *w = fake_work_new(WORK_COPY);

	w->area[0] = dst.area;
	w->area[1] = src.area;
	w->dst = dst.at;
	w->src = src.at;
	w->bytes = bytes;
	fake_queue(s, w);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync(
	CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", dst, bytes);
	CUstream s;

	if (r)
		return r;
	s = fake_stream(stream);
	return queue_copy(s, device_end(dst, bytes, s->ctx->dev), host_end(src, bytes), bytes);
}

/* Copy rows to device memory. The rows must be adjacent at both ends. */
FAKE_EXPORT CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream stream)
{
	size_t bytes = c->WidthInBytes * c->Height;
	CUresult r = fake_enter(__func__, "%#llx %zu", c->dstDevice, bytes);
	CUstream s;

	if (r)
		return r;
	if (c->srcMemoryType != CU_MEMORYTYPE_HOST || c->dstMemoryType != CU_MEMORYTYPE_DEVICE ||
		c->srcPitch != c->WidthInBytes || c->dstPitch != c->WidthInBytes ||
		c->srcXInBytes || c->srcY || c->dstXInBytes || c->dstY)
		fake_misuse("a copy of rows that are not adjacent, or not from the host to a GPU");
	s = fake_stream(stream);
	return queue_copy(s, device_end(c->dstDevice, bytes, s->ctx->dev),
		host_end(c->srcHost, bytes), bytes);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync(
	void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", src, bytes);
	CUstream s;

	if (r)
		return r;
	s = fake_stream(stream);
	return queue_copy(s, host_end(dst, bytes), device_end(src, bytes, s->ctx->dev), bytes);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync(
	CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	CUresult r = fake_enter(__func__, "%#llx %#llx %zu", dst, src, bytes);
	CUstream s;

	if (r)
		return r;
	s = fake_stream(stream);
	return queue_copy(
		s, device_end(dst, bytes, s->ctx->dev), device_end(src, bytes, s->ctx->dev), bytes);
}

static int context_dev(CUcontext ctx)
{
	struct fake_ctx *c = (struct fake_ctx *)(void *)ctx;

	if (c < fake.ctx || c >= fake.ctx + fake.n_gpus || !c->refs)
		fake_misuse("a copy names context %p, which does not live", (void *)ctx);
	return c->dev;
}

/* Copy between GPUs. dst must be in the GPU of dst_ctx, and src in the GPU of src_ctx. */
FAKE_EXPORT CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
	CUcontext src_ctx, size_t bytes, CUstream stream)
{
	CUresult r = fake_enter(__func__, "%#llx %#llx %zu", dst, src, bytes);
	CUstream s;

	if (r)
		return r;
	s = fake_stream(stream);
	return queue_copy(s, device_end(dst, bytes, context_dev(dst_ctx)),
		device_end(src, bytes, context_dev(src_ctx)), bytes);
}

/* Wait until the work that is queued on the default stream has ended, because a blocking copy runs
 * after that work. Return the host address of the device address addr. The host side of a blocking
 * copy may be any memory, so the callers do not check it. */
static char *after_default(CUdeviceptr addr, size_t bytes)
{
	CUstream s = fake_stream(NULL);
	struct fake_area *a = fake_device(addr, bytes, s->ctx->dev);
	uint64_t upto = s->queued;

	while (s->done < upto && !fake.sticky)
		pthread_cond_wait(&fake.progress, &fake.lock);
	return a->at + (addr - a->addr);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", dst, bytes);

	if (r)
		return r;
	memcpy(after_default(dst, bytes), src, bytes);
	return fake_leave((CUresult)fake.sticky);
}

FAKE_EXPORT CUresult CUDAAPI cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", src, bytes);

	if (r)
		return r;
	memcpy(dst, after_default(src, bytes), bytes);
	return fake_leave((CUresult)fake.sticky);
}

FAKE_EXPORT CUresult CUDAAPI cuMemsetD8Async(
	CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", dst, bytes);
	struct fake_work *w;
	struct copy_end e;
	CUstream s;

	if (r)
		return r;
	s = fake_stream(stream);
	e = device_end(dst, bytes, s->ctx->dev);
	w = fake_work_new(WORK_SET);
	w->area[0] = e.area;
	w->dst = e.at;
	w->bytes = bytes;
	w->value = value;
	fake_queue(s, w);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemsetD8(CUdeviceptr dst, unsigned char value, size_t bytes)
{
	return cuMemsetD8Async(dst, value, bytes, NULL);
}
