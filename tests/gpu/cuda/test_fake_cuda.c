/* The fake driver and the fake NCCL must detect misuse that would crash or hang on a GPU. Each case
 * runs in a child process, which must end with a line that names the misuse. The trace of the fakes
 * shows the order of events. */
#include <cuda.h>
#include <nccl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/gpu/cuda/rig.h"
#include "tests/gpu/cuda/two.h"
#include "tests/gpu/fake/control.h"

#define GRAIN (2u << 20)

static void ok(CUresult r)
{
	if (r != CUDA_SUCCESS) {
		fprintf(stderr, "unexpected error %d\n", (int)r);
		_Exit(1);
	}
}

static CUcontext use(int gpu)
{
	CUcontext ctx;

	ok(cuInit(0));
	ok(cuDevicePrimaryCtxRetain(&ctx, gpu));
	ok(cuCtxSetCurrent(ctx));
	return ctx;
}

static CUstream stream(void)
{
	CUstream s;

	ok(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static CUdeviceptr memory(void)
{
	CUdeviceptr addr;

	ok(cuMemAlloc(&addr, GRAIN));
	return addr;
}

static void *pinned(void)
{
	void *p = cuda_rig_host_memory(RIG_MIB);

	ok(cuMemHostRegister(
		p, RIG_MIB, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
	return p;
}

static CUmemGenericAllocationHandle handle(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemGenericAllocationHandle h;

	ok(cuMemCreate(&h, GRAIN, &prop, 0));
	return h;
}

static CUdeviceptr mapping(int reader)
{
	CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = reader},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr addr;

	ok(cuMemAddressReserve(&addr, GRAIN, 0, 0, 0));
	ok(cuMemMap(addr, GRAIN, 0, handle(), 0));
	ok(cuMemSetAccess(addr, GRAIN, &access, 1));
	return addr;
}

/* ---- misuses ---- */

static void second_free(void)
{
	CUdeviceptr addr;

	use(0);
	addr = memory();
	ok(cuMemFree(addr));
	cuMemFree(addr);
}

static void second_release(void)
{
	CUmemGenericAllocationHandle h;

	use(0);
	h = handle();
	ok(cuMemRelease(h));
	cuMemRelease(h);
}

static void free_in_use(void)
{
	CUstream s;
	CUdeviceptr addr;

	use(0);
	fakecuda_faults("work:1=hang");
	s = stream();
	addr = memory();
	ok(cuMemcpyDtoHAsync(pinned(), addr, 8, s));
	cuMemFree(addr);
}

static void copy_from_nowhere(void)
{
	use(0);
	cuMemcpyDtoHAsync(pinned(), 0x1000, 8, stream());
}

static void copy_beyond(void)
{
	use(0);
	cuMemcpyDtoHAsync(pinned(), memory() + GRAIN - 4, 8, stream());
}

static void copy_unpinned(void)
{
	char buffer[8];

	use(0);
	cuMemcpyDtoHAsync(buffer, memory(), 8, stream());
}

static void copy_without_access(void)
{
	use(0);
	cuMemcpyDtoHAsync(pinned(), mapping(1), 8, stream());
}

static void copy_of_another_gpu(void)
{
	CUdeviceptr addr;

	use(0);
	addr = memory();
	use(1);
	cuMemcpyDtoHAsync(pinned(), addr, 8, stream());
}

static void stream_of_another_context(void)
{
	CUstream s;

	use(0);
	s = stream();
	use(1);
	cuMemsetD8Async(memory(), 0, 8, s);
}

static void stream_after_its_end(void)
{
	CUstream s;

	use(0);
	s = stream();
	ok(cuStreamDestroy(s));
	cuStreamQuery(s);
}

static void no_context(void)
{
	CUstream s;

	ok(cuInit(0));
	cuStreamCreate(&s, 0);
}

static void context_with_leftovers(void)
{
	use(0);
	stream();
	cuDevicePrimaryCtxRelease(0);
}

static void part_of_a_mapping(void)
{
	CUdeviceptr addr;

	use(0);
	addr = mapping(0);
	cuMemUnmap(addr + GRAIN / 2, GRAIN / 2);
}

static void reservation_that_is_mapped(void)
{
	use(0);
	cuMemAddressFree(mapping(0), GRAIN);
}

static void child_of_a_fork(void)
{
	int status;
	pid_t pid;

	use(0);
	pid = fork();
	if (!pid) {
		memory();
		_Exit(0);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		abort();
}

static void blocking_communicator(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclComm_t comm;

	use(0);
	ncclGetUniqueId(&id);
	ncclGroupStart();
	ncclCommInitRankConfig(&comm, 2, id, 0, &config);
}

static void open_pair(ncclComm_t comm[2])
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclResult_t state;
	ncclUniqueId id;

	use(0);
	config.blocking = 0;
	ncclGetUniqueId(&id);
	ncclGroupStart();
	for (int i = 0; i < 2; i++) {
		use(i);
		ncclCommInitRankConfig(&comm[i], 2, id, i, &config);
	}
	ncclGroupEnd();
	for (int i = 0; i < 2; i++)
		do
			ncclCommGetAsyncError(comm[i], &state);
		while (state == ncclInProgress);
}

static void communicator_before_it_is_ready(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclComm_t comm;

	config.blocking = 0;
	use(0);
	ncclGetUniqueId(&id);
	ncclGroupStart();
	ncclCommInitRankConfig(&comm, 2, id, 0, &config);
	ncclGroupEnd();
	ncclGroupStart();
	ncclBroadcast((void *)(uintptr_t)memory(), NULL, 1, ncclInt, 0, comm, stream());
}

static void communicator_after_its_abort(void)
{
	ncclComm_t comm[2];

	open_pair(comm);
	ncclCommAbort(comm[1]);
	ncclCommAbort(comm[1]);
}

static void destruction_without_finalization(void)
{
	ncclComm_t comm[2];

	open_pair(comm);
	ncclCommDestroy(comm[0]);
}

/* Start a broadcast on both ranks, with count0 elements on rank 0 and count1 elements on rank 1. If
 * the counts differ, the ranks misuse NCCL. */
static void broadcast(ncclComm_t comm[2], size_t count0, size_t count1)
{
	ncclResult_t state;

	ncclGroupStart();
	for (int i = 0; i < 2; i++) {
		void *p;

		use(i);
		p = (void *)(uintptr_t)memory();
		ncclBroadcast(p, p, i ? count1 : count0, ncclInt, 0, comm[i], stream());
	}
	ncclGroupEnd();
	for (int i = 0; i < 2; i++)
		do
			ncclCommGetAsyncError(comm[i], &state);
		while (state == ncclInProgress);
}

static void ranks_that_differ(void)
{
	ncclComm_t comm[2];

	open_pair(comm);
	broadcast(comm, 8, 9);
	for (;;)
		pause(); /* wait, since the threads of the streams detect the misuse */
}

static void stream_while_a_group_launches(void)
{
	ncclComm_t comm[2];
	CUstream s;
	void *p;

	open_pair(comm);
	use(0);
	s = stream();
	p = (void *)(uintptr_t)memory();
	ncclGroupStart();
	ncclBroadcast(p, p, 8, ncclInt, 0, comm[0], s);
	ncclGroupEnd();
	cuMemsetD8Async((CUdeviceptr)p, 0, 8, s);
}

static const struct {
	const char *name, *line;
	void (*fn)(void);
} misuses[] = {
#define M(fn, line)                                                                                \
	{                                                                                          \
#fn, line, fn                                                                      \
	}
	M(second_free, "no allocation (any more)"),
	M(second_release, "does not live"),
	M(free_in_use, "work use it"),
	M(copy_from_nowhere, "not mapped"),
	M(copy_beyond, "beyond their mapping"),
	M(copy_unpinned, "not pinned"),
	M(copy_without_access, "GPU 0 has no access"),
	M(copy_of_another_gpu, "GPU 1 has no access"),
	M(stream_of_another_context, "in the context of GPU 1"),
	M(stream_after_its_end, "does not live"),
	M(no_context, "no context is current"),
	M(context_with_leftovers, "is released with stream"),
	M(part_of_a_mapping, "no whole mapping"),
	M(reservation_that_is_mapped, "one that is mapped"),
	M(child_of_a_fork, "in the child of a fork"),
	M(blocking_communicator, "not nonblocking"),
	M(communicator_before_it_is_ready, "not ready"),
	M(communicator_after_its_abort, "after its end"),
	M(destruction_without_finalization, "not finalized"),
	M(ranks_that_differ, "different collectives"),
	M(stream_while_a_group_launches, "while NCCL launches"),
#undef M
};
#define N_MISUSES (sizeof(misuses) / sizeof(misuses[0]))

static void every_misuse_ends_the_process_with_its_name(void **state)
{
	char out[4000], role[64];
	const char *env[] = {role, NULL};

	(void)state;
	for (size_t i = 0; i < N_MISUSES; i++) {
		int status;

		snprintf(role, sizeof(role), "TEST_MISUSE=%s", misuses[i].name);
		status = two_run("/proc/self/exe", env, out, sizeof(out));
		if (status == 0 || !strstr(out, "fake cuda: ") || !strstr(out, misuses[i].line))
			fail_msg("%s: status %d, '%s'", misuses[i].name, status, out);
	}
}

static int misuse(const char *name)
{
	if (!name)
		return 1;
	for (size_t i = 0; i < N_MISUSES; i++)
		if (!strcmp(misuses[i].name, name))
			misuses[i].fn();
	return 0;
}

/* ---- access by the host, which a GPU does not allow ---- */

/* Read GPU memory from the host. The read must kill this process, which is a child of the test. */
static int look(void)
{
	use(0);
	return *(volatile char *)(uintptr_t)memory();
}

static void the_host_cannot_look_at_device_memory(void **state)
{
	const char *env[] = {"TEST_LOOK=1", NULL};
	char out[8000];

	(void)state;
	assert_int_not_equal(two_run("/proc/self/exe", env, out, sizeof(out)), 0);
}

/* ---- trace ---- */

static int traced(void)
{
	struct cuda_rig r;

	cuda_rig_open(&r);
	device_cuda.copy(r.q, r.pinned, 0, r.mem, 0, 64);
	device_cuda.post(r.q, r.pinned, 64, 7);
	cuda_rig_await(r.host + 64, 7);
	cuda_rig_close(&r);
	return 0;
}

static void the_trace_shows_the_order(void **state)
{
	static const char *const order[] = {"cuInit", "cuDevicePrimaryCtxRetain", "cuMemCreate",
		"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemcpyDtoHAsync",
		"cuStreamWriteValue64", "cuStreamDestroy", "cuMemHostUnregister", "cuMemUnmap",
		"cuMemAddressFree", "cuMemRelease", "cuDevicePrimaryCtxRelease"};
	char setting[64], out[2000], *text, *at, *copy, *write;
	const char *env[] = {"TEST_TRACED=1", setting, NULL};
	int fd = memfd_create("trace", MFD_CLOEXEC);
	ssize_t n;

	(void)state;
	assert_true(fd >= 0);
	snprintf(setting, sizeof(setting), "FAKE_CUDA_TRACE=/proc/%d/fd/%d", (int)getpid(), fd);
	assert_int_equal(two_run("/proc/self/exe", env, out, sizeof(out)), 0);
	text = calloc(1, RIG_MIB);
	if (!text)
		abort();
	n = pread(fd, text, RIG_MIB - 1, 0);
	assert_true(n > 0);
	close(fd);
	at = text;
	for (size_t i = 0; at && i < sizeof(order) / sizeof(order[0]); i++) {
		at = strstr(at, order[i]);
		if (!at)
			fail_msg("no %s in its place", order[i]);
	}
	copy = strstr(text, ": copy 64");
	write = strstr(text, ": write 0 7");
	assert_non_null(copy);
	assert_true(copy < write);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_misuse_ends_the_process_with_its_name),
		cmocka_unit_test(the_host_cannot_look_at_device_memory),
		cmocka_unit_test(the_trace_shows_the_order),
	};

	setenv("FAKE_CUDA_GPUS", "2", 1);
	if (getenv("TEST_MISUSE"))
		return misuse(getenv("TEST_MISUSE"));
	if (getenv("TEST_LOOK"))
		return look();
	if (getenv("TEST_TRACED"))
		return traced();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
