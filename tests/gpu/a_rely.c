/* Second part of run A (a.h). The product relies on undocumented behaviour of the driver. The tests
 * check this behaviour: the attributes of addresses, adjacent mappings, and counters on the default
 * stream. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/a.h"

#define MIB        ((size_t)1 << 20)
#define PAGE_BYTES 4096
#define BYTES      (4 * MIB)
#define INSIDE     4096 /* offset in a mapping at which a tensor starts */

/* ---- attributes of an address, as the driver reports them ---- */

enum ask {
	TYPE,
	BUFFER_ID,
	RANGE_START,
	RANGE_SIZE,
	IS_LEGACY,
	IS_MAPPED,
	HANDLE_TYPES,
	MAP_SIZE,
	MAP_BASE,
	N_ASKS
};

static const struct {
	const char *name;
	CUpointer_attribute attr;
	/* the value is an address: report its distance from the start of the memory */
	bool is_address;
} asks[N_ASKS] = {
	[TYPE] = {"type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, false},
	[BUFFER_ID] = {"buffer_id", CU_POINTER_ATTRIBUTE_BUFFER_ID, false},
	[RANGE_START] = {"range_start", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, true},
	[RANGE_SIZE] = {"range_size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, false},
	[IS_LEGACY] = {"legacy", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, false},
	[IS_MAPPED] = {"mapped", CU_POINTER_ATTRIBUTE_MAPPED, false},
	[HANDLE_TYPES] = {"handle_types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, false},
	[MAP_SIZE] = {"mapping_size", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, false},
	[MAP_BASE] = {"mapping_base", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, true},
};

/* The driver's answers about an address. The driver may write fewer bytes than a value has. The
 * other bytes are zero. */
struct told {
	CUresult rc[N_ASKS];
	uint64_t value[N_ASKS];
};

static struct told ask(CUdeviceptr addr)
{
	struct told t = {0};

	for (unsigned i = 0; i < N_ASKS; i++) {
		t.rc[i] = cu.cuPointerGetAttribute
				  ? cu.cuPointerGetAttribute(&t.value[i], asks[i].attr, addr)
				  : CUDA_ERROR_NOT_FOUND;
		if (t.rc[i] != CUDA_SUCCESS)
			t.value[i] = 0; /* libbpsclient ignores most of these errors, and uses 0 */
	}
	return t;
}

/* Ways to share the memory with another process: by descriptor, by a legacy handle, or not at
 * all. */
enum way { BY_FD, BY_LEGACY, NOT_SHARED };

/* Return whether the driver's answers have the required values. Without these values, the product
 * could not share the memory by the method `way`. See bps-agent/executor/device/cuda_share.c and
 * libbpsclient/gpu_cuda.c. */
static bool is_expected(const struct told *t, CUdeviceptr at, enum way way)
{
	bool has_fd = t->value[HANDLE_TYPES] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

	if (t->value[TYPE] != CU_MEMORYTYPE_DEVICE)
		return false;
	if (way == BY_FD)
		return has_fd && !t->value[IS_LEGACY] && t->rc[BUFFER_ID] == CUDA_SUCCESS &&
		       t->value[MAP_BASE] == at && t->value[MAP_SIZE] == BYTES;
	return way == NOT_SHARED ||
	       (!has_fd && t->value[IS_LEGACY] && t->rc[BUFFER_ID] == CUDA_SUCCESS);
}

/* Make the driver calls that libbpsclient makes before it shares memory by the method `way`. The
 * memory starts at the address `at`. Return whether the calls succeed and find this memory. */
static bool can_follow(CUdeviceptr at, enum way way)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr base = 0;
	size_t size = 0;

	if (way == BY_FD)
		return CU(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)at) &&
		       CU(cuMemRelease, handle);
	if (way == BY_LEGACY)
		return CU(cuMemGetAddressRange, &base, &size, at + INSIDE) &&
		       ((base <= at && size - (at - base) >= BYTES) ||
			       gpu_fail("another allocation is found"));
	return true;
}

/* Write each answer as `,"name":value`. If the driver returned an error, the value is the error. */
static void list_answers(const struct told *t, CUdeviceptr at, char *list, size_t size)
{
	*list = '\0';
	for (unsigned i = 0; i < N_ASKS; i++) {
		size_t used = strlen(list);
		long long v = (long long)(t->value[i] - (asks[i].is_address ? at : 0));

		if (t->rc[i] != CUDA_SUCCESS)
			snprintf(list + used, size - used, ",\"%s\":\"error %d\"", asks[i].name,
				(int)t->rc[i]);
		else
			snprintf(list + used, size - used, ",\"%s\":%lld", asks[i].name, v);
	}
}

static void tell(struct gpu_side *s, const char *name, CUdeviceptr at, enum way way)
{
	struct told t = ask(at + INSIDE);
	const char *why = !is_expected(&t, at, way) ? "not what the product relies on"
			  : !can_follow(at, way)    ? json_safe(gpu_why())
						    : NULL;
	char item[64], list[768];

	list_answers(&t, at, list, sizeof(list));
	snprintf(item, sizeof(item), "%s_%s", s->item, name);
	gpu_answer(item, !why, "\"bytes\":%zu%s%s%s%s", BYTES, list, why ? ",\"why\":\"" : "",
		why ? why : "", why ? "\"" : "");
}

static bool own_memory(struct gpu_side *s, CUdevice dev, struct gpu_vmm *ret_one)
{
	CUmemGenericAllocationHandle handles[2];
	CUdeviceptr alloc, two;
	struct gpu_vmm m;

	if (!CU(cuMemAlloc, &alloc, BYTES) || !gpu_vmm_new(dev, BYTES, ret_one))
		return false;
	for (unsigned i = 0; i < 2; i++) {
		if (!gpu_vmm_create(dev, BYTES, &m))
			return false;
		handles[i] = m.handle;
	}
	if (!gpu_vmm_map(dev, handles, 2, BYTES, &two))
		return false;
	tell(s, "alloc", alloc, BY_LEGACY);
	tell(s, "vmm", ret_one->at, BY_FD);
	tell(s, "first", two, BY_FD);
	tell(s, "second", two + BYTES, BY_FD);
	return true;
}

static bool attributes_left(struct gpu_side *s)
{
	struct gpu_vmm m;
	CUdevice dev;
	int fd;

	return gpu_context(&dev) && own_memory(s, dev, &m) && gpu_vmm_export(&m, &fd) &&
	       side_send(s, 1, NULL, 0, fd) && side_await(s, 2);
}

static bool attributes_right(struct gpu_side *s)
{
	struct gpu_vmm m;
	uint64_t word;
	CUdevice dev;
	int fd;

	if (!gpu_context(&dev) || !side_recv(s, &word, NULL, 0, &fd) ||
		!gpu_vmm_import(dev, fd, BYTES, &m))
		return false;
	tell(s, "imported", m.at, NOT_SHARED);
	return side_tell(s, 2);
}

/* ---- two handles mapped side by side ---- */

static bool mappings_left(struct gpu_side *s)
{
	struct gpu_vmm m[2];
	CUdevice dev;
	int fd;

	if (!gpu_context(&dev))
		return false;
	for (unsigned i = 0; i < 2; i++) {
		if (!gpu_vmm_new(dev, BYTES, &m[i]) || !gpu_fill(m[i].at, BYTES, i + 1) ||
			!gpu_vmm_export(&m[i], &fd) || !side_send(s, 1, NULL, 0, fd))
			return false;
		close(fd);
	}
	return side_await(s, 2) && gpu_check(m[1].at, BYTES, 4) && side_tell(s, 3);
}

/* Check the bytes of both mappings, and a copy across their border. Then unmap both by one call. */
static bool mappings_use(CUdeviceptr at)
{
	return gpu_check(at, BYTES, 1) && gpu_check(at + BYTES, BYTES, 2) &&
	       gpu_fill(at, 2 * BYTES, 3) && gpu_check(at, 2 * BYTES, 3) &&
	       gpu_fill(at + BYTES, BYTES, 4) && CU(cuMemUnmap, at, 2 * BYTES) &&
	       CU(cuMemAddressFree, at, 2 * BYTES);
}

static bool mappings_right(struct gpu_side *s)
{
	CUmemGenericAllocationHandle handles[2];
	CUdeviceptr at;
	CUdevice dev;
	int fd;

	if (!gpu_context(&dev))
		return false;
	for (unsigned i = 0; i < 2; i++) {
		uint64_t word;

		if (!side_recv(s, &word, NULL, 0, &fd) || !gpu_vmm_take(fd, &handles[i]))
			return false;
		close(fd);
	}
	if (!gpu_vmm_map(dev, handles, 2, BYTES, &at) || !CU(cuMemRelease, handles[0]) ||
		!CU(cuMemRelease, handles[1]) || !mappings_use(at) || !side_tell(s, 2) ||
		!side_await(s, 3))
		return false;
	gpu_answer(s->item, true, "\"mib\":%zu", 2 * BYTES / MIB);
	return true;
}

/* ---- the default stream, from a second thread ---- */

struct rely_page {
	_Alignas(64) _Atomic uint64_t ask;
	_Alignas(64) _Atomic uint64_t done;
};

struct queuer {
	CUcontext ctx;
	CUdeviceptr page_at;
	bool is_ok;
};

/* Queue a wait and a write on the default stream. This function runs on a second thread, which the
 * first thread joins. */
static void *queue_on_default(void *arg)
{
	struct queuer *q = arg;

	q->is_ok =
		CU(cuCtxSetCurrent, q->ctx) &&
		CU(cuStreamWaitValue64, NULL, q->page_at + offsetof(struct rely_page, ask), 1,
			CU_STREAM_WAIT_VALUE_GEQ) &&
		CU(cuStreamWriteValue64, NULL, q->page_at + offsetof(struct rely_page, done), 1, 0);
	return NULL;
}

static bool default_stream_freed(struct gpu_side *s, struct rely_page *page)
{
	uint64_t begin_ns;

	/* The stream must still be waiting here. No event can show that a stream waits, so let some
	 * time pass. */
	usleep(10000);
	if (atomic_load_explicit(&page->done, memory_order_acquire) != 0)
		return gpu_fail("the stream did not wait");
	begin_ns = now_ns();
	/* The store pairs with the stream's wait for `ask`. The load below pairs with the stream's
	 * write to `done`. */
	atomic_store_explicit(&page->ask, 1, memory_order_release);
	while (atomic_load_explicit(&page->done, memory_order_acquire) == 0)
		if (now_ns() > s->deadline_ns)
			return gpu_fail("the default stream makes no progress");
	gpu_answer(s->item, true, "\"freed_us\":%.1f", (double)(now_ns() - begin_ns) / 1e3);
	return CU(cuStreamSynchronize, NULL);
}

static bool null_stream(struct gpu_side *s)
{
	struct queuer q = {0};
	pthread_t thread;
	struct rely_page *page;
	CUdevice dev;
	int fd;

	page = gpu_memfd(PAGE_BYTES, &fd);
	if (!page || !gpu_context(&dev) || !CU(cuCtxGetCurrent, &q.ctx) ||
		!gpu_pin(page, PAGE_BYTES, &q.page_at))
		return false;
	if (pthread_create(&thread, NULL, queue_on_default, &q) != 0)
		return gpu_fail("no thread");
	pthread_join(thread, NULL);
	return q.is_ok && default_stream_freed(s, page);
}

static bool nothing(struct gpu_side *s)
{
	(void)s;
	return true;
}

const struct gpu_pair a_rely[] = {
	{"pointer_attributes", attributes_left, attributes_right, 60, SIDE_NONE, false},
	{"two_mappings", mappings_left, mappings_right, 60, SIDE_NONE, false},
	{"null_stream", null_stream, nothing, 60, SIDE_NONE, false},
};
const size_t a_rely_count = sizeof(a_rely) / sizeof(a_rely[0]);
