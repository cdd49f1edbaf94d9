/* First part of run A (a.h). Tests what the GPU and its driver can do, what a context costs, and
 * how processes share memory. Some tests use processes of different users, or kill the creator or
 * the importer of the memory. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/a.h"

#define MIB ((size_t)1 << 20)

/* ---- attributes ---- */

#define ANY (-2)

static const struct {
	const char *name;
	CUdevice_attribute attr;
	int must; /* value that the attribute must have; ANY: the attribute is only reported */
} attrs[] = {
	{"vmm", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
	{"posix_fd", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
	{"fabric", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, ANY},
	{"memops64", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
	{"wait_value_nor", CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, ANY},
	{"host_register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, ANY},
	{"same_host_pointer", CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, ANY},
	{"gpudirect_rdma", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, ANY},
	{"gpudirect_flush", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, ANY},
	{"gpudirect_order", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, ANY},
	{"dma_buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ANY},
	{"ipc_event", CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, ANY},
	{"numa", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, ANY},
	{"copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, ANY},
	{"sms", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ANY},
	{"compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
	{"major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ANY},
	{"minor", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, ANY},
};

/* Write all attributes as a list of `,"name":value`. ret_wrong: the attributes that do not have the
 * required value, or "". */
static void read_attrs(CUdevice dev, char *list, size_t size, char *ret_wrong, size_t wrong_size)
{
	*list = *ret_wrong = '\0';
	for (size_t i = 0; i < sizeof(attrs) / sizeof(attrs[0]); i++) {
		size_t used = strlen(list), wrong = strlen(ret_wrong);
		int v = gpu_attr(dev, attrs[i].attr);

		snprintf(list + used, size - used, ",\"%s\":%d", attrs[i].name, v);
		if (attrs[i].must != ANY && v != attrs[i].must)
			snprintf(ret_wrong + wrong, wrong_size - wrong, "%s%s is not %d",
				wrong ? ", " : "", attrs[i].name, attrs[i].must);
	}
}

static bool attributes_left(struct gpu_side *s)
{
	char list[768], wrong[256], name[128] = "", pci[32] = "", safe[128];
	int driver = 0, count = 0;
	size_t bytes = 0;
	CUdevice dev;

	if (!gpu_load() || !CU(cuDeviceGetCount, &count) || !CU(cuDriverGetVersion, &driver) ||
		!CU(cuDeviceGet, &dev, 0) || !CU(cuDeviceGetName, name, sizeof(name) - 1, dev) ||
		!CU(cuDeviceGetPCIBusId, pci, sizeof(pci) - 1, dev) ||
		!CU(cuDeviceTotalMem, &bytes, dev))
		return false;
	read_attrs(dev, list, sizeof(list), wrong, sizeof(wrong));
	snprintf(safe, sizeof(safe), "%s", json_safe(name));
	gpu_answer(s->item, !*wrong,
		"\"gpus\":%d,\"name\":\"%s\",\"pci\":\"%s\",\"driver\":%d,\"gib\":%.1f%s%s%s%s",
		count, safe, json_safe(pci), driver, (double)bytes / (1 << 30), list,
		*wrong ? ",\"why\":\"" : "", wrong, *wrong ? "\"" : "");
	return true;
}

static bool nothing(struct gpu_side *s)
{
	(void)s;
	return true;
}

/* ---- GPU memory that a context uses, measured by another process ---- */

static bool context_left(struct gpu_side *s)
{
	size_t before = 0, after = 0, total;
	uint64_t begin_ns, us;
	CUdevice dev;

	begin_ns = now_ns();
	if (!gpu_context(&dev) || !CU(cuMemGetInfo, &before, &total))
		return false;
	us = (now_ns() - begin_ns) / 1000;
	if (!side_tell(s, 1) || !side_await(s, 2) || !CU(cuMemGetInfo, &after, &total))
		return false;
	gpu_answer(s->item, true, "\"mib\":%.0f,\"first_ms\":%.0f",
		((double)before - (double)after) / (double)MIB, (double)us / 1e3);
	return side_tell(s, 3);
}

static bool context_right(struct gpu_side *s)
{
	CUstream stream;
	CUdevice dev;

	return side_await(s, 1) && gpu_context(&dev) && gpu_stream(&stream) && side_tell(s, 2) &&
	       side_await(s, 3);
}

/* ---- memory that the left side creates and shares by descriptor ---- */

#define SHARED_BYTES (64 * MIB)

static bool vmm_make(struct gpu_side *s, CUdevice *ret_dev, struct gpu_vmm *ret)
{
	uint64_t bytes, pid = (uint64_t)getpid();
	int fd;

	if (!gpu_context(ret_dev) || !gpu_vmm_new(*ret_dev, SHARED_BYTES, ret) ||
		!gpu_fill(ret->at, ret->bytes, 1) || !gpu_vmm_export(ret, &fd))
		return false;
	bytes = ret->bytes;
	if (!side_send(s, pid, &bytes, sizeof(bytes), fd))
		return false;
	close(fd);
	return true;
}

static bool vmm_take(struct gpu_side *s, CUdevice *ret_dev, struct gpu_vmm *ret, pid_t *ret_pid)
{
	uint64_t pid, bytes;
	bool is_ok;
	int fd;

	if (!gpu_context(ret_dev) || !side_recv(s, &pid, &bytes, sizeof(bytes), &fd))
		return false;
	is_ok = gpu_vmm_import(*ret_dev, fd, bytes, ret);
	close(fd);
	*ret_pid = (pid_t)pid;
	return is_ok && gpu_check(ret->at, ret->bytes, 1);
}

static bool vmm_maker(struct gpu_side *s)
{
	struct gpu_vmm m;
	CUdevice dev;

	return vmm_make(s, &dev, &m) && side_await(s, 2) && gpu_check(m.at, m.bytes, 2) &&
	       side_tell(s, 3);
}

static bool vmm_taker(struct gpu_side *s)
{
	struct gpu_vmm m;
	CUdevice dev;
	pid_t pid;

	if (!vmm_take(s, &dev, &m, &pid) || !gpu_fill(m.at, m.bytes, 2) || !side_tell(s, 2) ||
		!side_await(s, 3))
		return false;
	gpu_answer(s->item, true, "\"mib\":%zu", m.bytes / MIB);
	return true;
}

/* Measure the cost per handle when many handles are passed in one call, as for an arena of many
 * pieces. */
static bool vmm_pieces(struct gpu_side *s)
{
	enum { N = 64 };
	uint64_t begin_ns;
	struct gpu_vmm m[N];
	int fds[N];
	CUdevice dev;

	if (!gpu_context(&dev))
		return false;
	begin_ns = now_ns();
	for (unsigned i = 0; i < N; i++)
		if (!gpu_vmm_new(dev, 2 * MIB, &m[i]) || !gpu_vmm_export(&m[i], &fds[i]))
			return false;
	gpu_answer(s->item, true, "\"pieces\":%d,\"us_each\":%.0f", N,
		(double)(now_ns() - begin_ns) / 1e3 / N);
	return true;
}

/* ---- legacy handles ---- */

static bool legacy_left(struct gpu_side *s)
{
	CUipcMemHandle handle;
	CUdeviceptr at;
	CUdevice dev;

	return gpu_context(&dev) && CU(cuMemAlloc, &at, 4 * MIB) && gpu_fill(at, 4 * MIB, 5) &&
	       CU(cuIpcGetMemHandle, &handle, at) && side_send(s, 1, &handle, sizeof(handle), -1) &&
	       side_await(s, 2);
}

/* Legacy handles must work between processes of one user. CUDA's documents forbid their use between
 * two users, but a driver may allow it, so the item of two users only reports what happens. */
static bool legacy_right(struct gpu_side *s)
{
	bool is_same = geteuid() == getuid() && strcmp(s->item, "legacy_ipc") == 0, is_open;
	CUipcMemHandle handle;
	uint64_t word;
	CUdeviceptr at;
	CUdevice dev;

	if (!gpu_context(&dev) || !side_recv(s, &word, &handle, sizeof(handle), NULL))
		return false;
	is_open = CU(cuIpcOpenMemHandle, &at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (is_open && !gpu_check(at, 4 * MIB, 5))
		return false;
	if (is_open)
		gpu_answer(s->item, true, "\"opens\":true");
	else
		gpu_answer(s->item, !is_same, "\"opens\":false,\"error\":%d", gpu_last());
	return (!is_open || CU(cuIpcCloseMemHandle, at)) && side_tell(s, 2);
}

/* ---- kill -9 during use ---- */

#define SURVIVE_NS UINT64_C(1000000000)

/* Repeat the copy from the device to the host for span_ns nanoseconds. Count the copies in
 * *ret_n. */
static bool copy_for(CUdeviceptr at, size_t bytes, uint64_t span_ns, unsigned *ret_n)
{
	uint64_t end_ns = now_ns() + span_ns;
	CUstream stream;
	void *host;

	if (!gpu_stream(&stream) || !CU(cuMemHostAlloc, &host, bytes, 0))
		return false;
	do {
		if (!CU(cuMemcpyDtoHAsync, host, at, bytes, stream) ||
			!CU(cuStreamSynchronize, stream))
			return false;
		++*ret_n;
	} while (now_ns() < end_ns);
	return true;
}

/* Queue copies, and kill the other process while the copies run. */
static bool kill_during_copies(struct gpu_side *s, const struct gpu_vmm *m, pid_t pid)
{
	CUstream stream;
	void *host;

	if (!gpu_stream(&stream) || !CU(cuMemHostAlloc, &host, m->bytes, 0))
		return false;
	for (unsigned i = 0; i < 64; i++)
		if (!CU(cuMemcpyDtoHAsync, host, m->at, m->bytes, stream))
			return false;
	return side_kill(s, pid) && CU(cuStreamSynchronize, stream);
}

/* The creator of the memory dies. The importer must still be able to use the memory. */
static bool maker_dies_left(struct gpu_side *s)
{
	unsigned n = 0;
	struct gpu_vmm m;
	CUdevice dev;

	return vmm_make(s, &dev, &m) && copy_for(m.at, m.bytes, 60 * SURVIVE_NS, &n);
}

static bool maker_dies_right(struct gpu_side *s)
{
	unsigned n = 0;
	struct gpu_vmm m;
	CUdevice dev;
	pid_t pid;

	if (!vmm_take(s, &dev, &m, &pid) || !kill_during_copies(s, &m, pid) ||
		!gpu_check(m.at, m.bytes, 1) || !copy_for(m.at, m.bytes, SURVIVE_NS, &n) ||
		!gpu_fill(m.at, m.bytes, 9) || !gpu_check(m.at, m.bytes, 9))
		return false;
	gpu_answer(s->item, true, "\"copies_after\":%u", n);
	return true;
}

/* The importer dies while it copies. The creator must be able to continue. */
static bool importer_dies_left(struct gpu_side *s)
{
	unsigned n = 0;
	struct gpu_vmm m;
	uint64_t pid;
	CUdevice dev;

	if (!vmm_make(s, &dev, &m) || !side_recv(s, &pid, NULL, 0, NULL) ||
		!kill_during_copies(s, &m, (pid_t)pid) || !gpu_check(m.at, m.bytes, 1) ||
		!copy_for(m.at, m.bytes, SURVIVE_NS, &n))
		return false;
	gpu_answer(s->item, true, "\"copies_after\":%u", n);
	return true;
}

static bool importer_dies_right(struct gpu_side *s)
{
	unsigned n = 0;
	struct gpu_vmm m;
	CUdevice dev;
	pid_t pid;

	return vmm_take(s, &dev, &m, &pid) && side_tell(s, (uint64_t)getpid()) &&
	       copy_for(m.at, m.bytes, 60 * SURVIVE_NS, &n);
}

const struct gpu_pair a_share[] = {
	{"attributes", attributes_left, nothing, 30, SIDE_NONE, false},
	{"context", context_left, context_right, 60, SIDE_NONE, false},
	{"vmm", vmm_maker, vmm_taker, 60, SIDE_NONE, false},
	{"vmm_other_way", vmm_taker, vmm_maker, 60, SIDE_NONE, false},
	{"vmm_other_user", vmm_maker, vmm_taker, 60, SIDE_NONE, true},
	{"vmm_pieces", vmm_pieces, nothing, 60, SIDE_NONE, false},
	{"legacy_ipc", legacy_left, legacy_right, 60, SIDE_NONE, false},
	{"legacy_ipc_other_user", legacy_left, legacy_right, 60, SIDE_NONE, true},
	{"maker_killed", maker_dies_left, maker_dies_right, 60, SIDE_LEFT, false},
	{"importer_killed", importer_dies_left, importer_dies_right, 60, SIDE_RIGHT, false},
};
const size_t a_share_count = sizeof(a_share) / sizeof(a_share[0]);
