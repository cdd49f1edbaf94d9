/* Handles, reservations, mappings and pinned memory of the fake driver. */
#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/control.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "fake-gpu-"

#define NOTHING (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static void *map(size_t bytes, int prot, int flags, int fd, void *where)
{
	void *p = mmap(where, bytes, prot, flags, fd, 0);

	if (p == MAP_FAILED)
		fake_misuse("no addresses for %zu bytes", bytes);
	return p;
}

static bool is_room(size_t bytes)
{
	void *p = mmap(NULL, 2 * bytes, PROT_NONE, NOTHING, -1, 0);

	return p != MAP_FAILED && !munmap(p, 2 * bytes);
}

/* Fill new memory with garbage, as if another process had left it. */
static void soil(int fd, size_t bytes)
{
	char dirt[4096];

	memset(dirt, 0xd1, sizeof(dirt));
	if (pwrite(fd, dirt, sizeof(dirt), 0) < 0 ||
		pwrite(fd, dirt, sizeof(dirt), (off_t)(bytes - sizeof(dirt))) < 0)
		fake_misuse("cannot write to memory");
}

/* Make a memfd. The name of the memfd contains the GPU's number in the machine. So any process that
 * gets the descriptor can read the number from the name. */
int fake_memfd(size_t bytes, int dev)
{
	char name[32];
	int fd;

	snprintf(name, sizeof(name), NAME "%d", fake.gpu[dev]);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		fake_misuse("no memory of %zu bytes", bytes);
	soil(fd, bytes);
	return fd;
}

int fake_memfd_dev(int fd, size_t *ret_bytes)
{
	char path[32], name[64] = "";
	struct stat st;
	int gpu;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, name, sizeof(name) - 1) < 0 || fstat(fd, &st) != 0 ||
		sscanf(name, "/memfd:" NAME "%d", &gpu) != 1)
		return -1;
	*ret_bytes = (size_t)st.st_size;
	for (int i = 0; i < fake.n_gpus; i++)
		if (fake.gpu[i] == gpu)
			return i;
	return -1;
}

struct fake_handle *fake_handle_new(int fd, size_t bytes, int dev)
{
	struct fake_handle *h = fake_alloc(sizeof(*h));

	*h = (struct fake_handle){
		.id = ++fake.last_id, .fd = fd, .bytes = bytes, .dev = dev, .refs = 1};
	LIST_INSERT_HEAD(&fake.handles, h, entry);
	return h;
}

void fake_handle_unref(struct fake_handle *h)
{
	if (--h->refs)
		return;
	LIST_REMOVE(h, entry);
	close(h->fd);
	free(h);
}

static struct fake_handle *handle_of(CUmemGenericAllocationHandle id, const char *name)
{
	struct fake_handle *h;

	LIST_FOREACH (h, &fake.handles, entry)
		if (h->id == id && h->user_refs)
			return h;
	fake_misuse("%s: handle %llu does not live", name, id);
}

/* Reserve addresses that the host cannot access. The memory of handle h has the contents of the
 * area. If h is NULL, the area has no memory yet. */
struct fake_area *fake_area_new(enum area_kind kind, size_t bytes, struct fake_handle *h)
{
	struct fake_area *a = fake_alloc(sizeof(*a));

	a->kind = kind;
	a->bytes = bytes;
	a->buffer_id = ++fake.last_id;
	a->addr = (CUdeviceptr)map(bytes, PROT_NONE, NOTHING, -1, NULL);
	if (h)
		a->at = map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, NULL);
	else if (kind == AREA_RESERVED)
		a->at = map(bytes, PROT_NONE, NOTHING, -1, NULL);
	a->handle = h;
	LIST_INSERT_HEAD(&fake.areas, a, entry);
	return a;
}

void fake_area_free(struct fake_area *a)
{
	if (a->in_use)
		fake_misuse("memory at %#llx is freed while %u pieces of work use it", a->addr,
			a->in_use);
	munmap((void *)(uintptr_t)a->addr, a->bytes);
	if (a->kind != AREA_PINNED)
		munmap(a->at, a->bytes);
	LIST_REMOVE(a, entry);
	if (a->handle)
		fake_handle_unref(a->handle);
	free(a);
}

struct fake_area *fake_find(CUdeviceptr addr)
{
	struct fake_area *a;

	LIST_FOREACH (a, &fake.areas, entry)
		if (addr >= a->addr && addr - a->addr < a->bytes)
			return a;
	return NULL;
}

struct fake_map *fake_find_map(struct fake_area *a, CUdeviceptr addr)
{
	struct fake_map *m;

	LIST_FOREACH (m, &a->maps, entry)
		if (addr - a->addr >= m->offset && addr - a->addr - m->offset < m->bytes)
			return m;
	return NULL;
}

struct fake_area *fake_pinned(const void *p, size_t bytes)
{
	struct fake_area *a;
	const char *at = p;

	LIST_FOREACH (a, &fake.areas, entry)
		if (a->kind == AREA_PINNED && at >= a->at && at < a->at + a->bytes &&
			bytes <= a->bytes - (size_t)(at - a->at))
			return a;
	return NULL;
}

static void check_maps(struct fake_area *a, CUdeviceptr addr, size_t bytes, int dev)
{
	CUdeviceptr end = addr + bytes;

	while (addr < end) {
		struct fake_map *m = fake_find_map(a, addr);

		if (!m)
			fake_misuse("address %#llx is reserved and not mapped", addr);
		if (!(m->access >> dev & 1))
			fake_misuse("GPU %d has no access to address %#llx", dev, addr);
		addr = a->addr + m->offset + m->bytes;
	}
}

/* Check that the GPU `dev` may access the range, and return the range's area. Memory of cuMemAlloc
 * belongs to its own GPU alone, because the fake never enables peer access. */
struct fake_area *fake_device(CUdeviceptr addr, size_t bytes, int dev)
{
	struct fake_area *a = fake_find(addr);

	if (!a)
		fake_misuse("address %#llx is not mapped", addr);
	if (bytes > a->bytes - (addr - a->addr))
		fake_misuse("%zu bytes at %#llx reach beyond their mapping", bytes, addr);
	if (a->kind == AREA_RESERVED)
		check_maps(a, addr, bytes, dev);
	else if (a->kind != AREA_PINNED && a->ctx->dev != dev)
		fake_misuse("GPU %d has no access to address %#llx", dev, addr);
	return a;
}

FAKE_EXPORT void fakecuda_peek(uint64_t addr, void *dst, uint64_t bytes)
{
	struct fake_area *a;

	pthread_mutex_lock(&fake.lock);
	a = fake_find(addr);
	if (!a || bytes > a->bytes - (addr - a->addr))
		fake_misuse("peek at %#llx", (unsigned long long)addr);
	memcpy(dst, a->at + (addr - a->addr), bytes);
	pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT void fakecuda_poke(uint64_t addr, const void *src, uint64_t bytes)
{
	struct fake_area *a;

	pthread_mutex_lock(&fake.lock);
	a = fake_find(addr);
	if (!a || bytes > a->bytes - (addr - a->addr))
		fake_misuse("poke at %#llx", (unsigned long long)addr);
	memcpy(a->at + (addr - a->addr), src, bytes);
	pthread_mutex_unlock(&fake.lock);
}

FAKE_EXPORT CUresult CUDAAPI cuMemGetAllocationGranularity(
	size_t *ret, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	CUresult r = fake_enter(__func__, "%d %d", prop->location.id, (int)option);

	if (r)
		return r;
	*ret = FAKE_GRAIN;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *ret, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult r = fake_enter(__func__, "%zu %d", size, prop->location.id);
	struct fake_handle *h;
	int dev;

	if (r)
		return r;
	if (!size || size % FAKE_GRAIN || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
		prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		fake_misuse("cuMemCreate of %zu bytes", size);
	dev = fake_dev(prop->location.id);
	h = fake_handle_new(fake_memfd(size, dev), size, dev);
	h->user_refs = 1;
	h->is_exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	*ret = h->id;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult r = fake_enter(__func__, "%llu", handle);
	struct fake_handle *h;

	if (r)
		return r;
	h = handle_of(handle, __func__);
	h->user_refs--;
	fake_handle_unref(h);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemExportToShareableHandle(void *ret,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
	unsigned long long flags)
{
	CUresult r = fake_enter(__func__, "%llu", handle);
	struct fake_handle *h;
	int fd;

	if (r)
		return r;
	h = handle_of(handle, __func__);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
		fake_misuse("export of type %d", (int)type);
	if (!h->is_exportable)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	fd = dup(h->fd);
	if (fd < 0)
		return fake_leave(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)ret = fd;
	return fake_leave(CUDA_SUCCESS);
}

/* Import memory by its descriptor. The importer can export the memory again if the memory was made
 * exportable. */
FAKE_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(
	CUmemGenericAllocationHandle *ret, void *os_handle, CUmemAllocationHandleType type)
{
	int fd = (int)(intptr_t)os_handle, dev;
	CUresult r = fake_enter(__func__, "%d", fd);
	struct fake_handle *h;
	size_t bytes;

	if (r)
		return r;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		fake_misuse("import of type %d", (int)type);
	dev = fake_memfd_dev(fd, &bytes);
	if (dev < 0)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return fake_leave(CUDA_ERROR_OPERATING_SYSTEM);
	h = fake_handle_new(fd, bytes, dev);
	h->user_refs = 1;
	h->is_exportable = true;
	*ret = h->id;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(
	CUmemGenericAllocationHandle *ret, void *addr)
{
	CUresult r = fake_enter(__func__, "%p", addr);
	struct fake_area *a;
	struct fake_map *m;

	if (r)
		return r;
	a = fake_find((CUdeviceptr)addr);
	m = a ? fake_find_map(a, (CUdeviceptr)addr) : NULL;
	if (!m)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	m->handle->refs++;
	m->handle->user_refs++;
	*ret = m->handle->id;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemAddressReserve(
	CUdeviceptr *ret, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
	CUresult r = fake_enter(__func__, "%zu", size);

	if (r)
		return r;
	if (!size || size % FAKE_GRAIN || align || addr || flags)
		fake_misuse("cuMemAddressReserve of %zu bytes", size);
	if (!is_room(size))
		return fake_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*ret = fake_area_new(AREA_RESERVED, size, NULL)->addr;
	return fake_leave(CUDA_SUCCESS);
}

static struct fake_area *reservation(CUdeviceptr addr, size_t size, const char *name)
{
	struct fake_area *a = fake_find(addr);

	if (!a || a->kind != AREA_RESERVED || size > a->bytes - (addr - a->addr))
		fake_misuse("%s: %zu bytes at %#llx are not reserved", name, size, addr);
	return a;
}

FAKE_EXPORT CUresult CUDAAPI cuMemAddressFree(CUdeviceptr addr, size_t size)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", addr, size);
	struct fake_area *a;

	if (r)
		return r;
	a = reservation(addr, size, __func__);
	if (a->addr != addr || a->bytes != size || !LIST_EMPTY(&a->maps))
		fake_misuse("part of a reservation, or one that is mapped, is freed");
	fake_area_free(a);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr addr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult r = fake_enter(__func__, "%#llx %zu %llu", addr, size, handle);
	struct fake_handle *h;
	struct fake_area *a;
	struct fake_map *m;

	if (r)
		return r;
	a = reservation(addr, size, __func__);
	h = handle_of(handle, __func__);
	if (offset || flags || size % FAKE_GRAIN || addr % 4096)
		fake_misuse("cuMemMap of %zu bytes at %zu", size, offset);
	if (size > h->bytes)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	for (CUdeviceptr p = addr; p < addr + size; p += FAKE_GRAIN)
		if (fake_find_map(a, p))
			fake_misuse("address %#llx is mapped twice", p);
	m = fake_alloc(sizeof(*m));
	*m = (struct fake_map){
		.offset = addr - a->addr, .bytes = size, .handle = h, .buffer_id = ++fake.last_id};
	h->refs++;
	map(size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, h->fd, a->at + m->offset);
	LIST_INSERT_HEAD(&a->maps, m, entry);
	return fake_leave(CUDA_SUCCESS);
}

/* Unmap a range. It must consist of whole mappings. */
FAKE_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr addr, size_t size)
{
	CUresult r = fake_enter(__func__, "%#llx %zu", addr, size);
	struct fake_area *a;

	if (r)
		return r;
	a = reservation(addr, size, __func__);
	if (a->in_use)
		fake_misuse("memory at %#llx is unmapped while %u pieces of work use it", addr,
			a->in_use);
	for (CUdeviceptr p = addr; p < addr + size;) {
		struct fake_map *m = fake_find_map(a, p);

		if (!m || a->addr + m->offset != p || m->bytes > addr + size - p)
			fake_misuse("cuMemUnmap: no whole mapping at %#llx", p);
		p += m->bytes;
		map(m->bytes, PROT_NONE, NOTHING | MAP_FIXED, -1, a->at + m->offset);
		LIST_REMOVE(m, entry);
		fake_handle_unref(m->handle);
		free(m);
	}
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemSetAccess(
	CUdeviceptr addr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	CUresult r = fake_enter(__func__, "%#llx %zu %zu", addr, size, count);
	struct fake_area *a;

	if (r)
		return r;
	a = reservation(addr, size, __func__);
	for (CUdeviceptr p = addr; p < addr + size;) {
		struct fake_map *m = fake_find_map(a, p);

		if (!m)
			fake_misuse("cuMemSetAccess: address %#llx is not mapped", p);
		for (size_t i = 0; i < count; i++) {
			int dev = fake_dev(desc[i].location.id);

			if (dev != m->handle->dev && !fake.links)
				return fake_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
			m->access |= UINT64_C(1) << dev;
		}
		p = a->addr + m->offset + m->bytes;
	}
	return fake_leave(CUDA_SUCCESS);
}

/* Return a duplicate of the memory's own descriptor, because the fake cannot make a dma-buf. */
FAKE_EXPORT CUresult CUDAAPI cuMemGetHandleForAddressRange(void *ret, CUdeviceptr addr, size_t size,
	CUmemRangeHandleType type, unsigned long long flags)
{
	CUresult r = fake_enter(__func__, "%#llx %zu %llu", addr, size, flags);
	struct fake_map *m;
	int fd;

	if (r)
		return r;
	if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || addr % 4096 || size % 4096)
		fake_misuse("a dma-buf of %zu bytes at %#llx", size, addr);
	m = fake_find_map(reservation(addr, size, __func__), addr);
	if (!m)
		fake_misuse("a dma-buf of addresses that are not mapped");
	fd = dup(m->handle->fd);
	if (fd < 0)
		return fake_leave(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)ret = fd;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
	CUresult r = fake_enter(__func__, "%zu %u", bytes, flags);
	struct fake_area *a;
	unsigned char probe;

	if (r)
		return r;
	if (!(flags & CU_MEMHOSTREGISTER_DEVICEMAP) || !(flags & CU_MEMHOSTREGISTER_PORTABLE))
		fake_misuse("host memory is registered without portable, devicemap");
	if (mincore((void *)((uintptr_t)p & ~4095ul), 1, &probe) != 0)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	LIST_FOREACH (a, &fake.areas, entry)
		if (a->kind == AREA_PINNED && (char *)p < a->at + a->bytes &&
			(char *)p + bytes > a->at)
			return fake_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	a = fake_area_new(AREA_PINNED, bytes, NULL);
	a->at = p;
	a->ctx = fake_current();
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *p)
{
	CUresult r = fake_enter(__func__, "%p", p);
	struct fake_area *a;

	if (r)
		return r;
	a = fake_pinned(p, 1);
	if (!a || a->at != p)
		fake_misuse("host memory that was not registered is unregistered");
	fake_area_free(a);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *ret, void *p, unsigned flags)
{
	CUresult r = fake_enter(__func__, "%p %u", p, flags);
	struct fake_area *a;

	if (r)
		return r;
	fake_current();
	a = fake_pinned(p, 1);
	if (!a)
		return fake_leave(CUDA_ERROR_INVALID_VALUE);
	*ret = a->addr + (CUdeviceptr)((char *)p - a->at);
	return fake_leave(CUDA_SUCCESS);
}
