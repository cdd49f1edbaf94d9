/* The CUDA back-end in one process, over the fake driver, which ends the process at each misuse.
 * Queued work starts after random delays, so that a missing order between queues is detected. */
#include "bps-agent/executor/device/cuda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/gpu/cuda/rig.h"
#include "tests/gpu/cuda/two.h"
#include "tests/gpu/fake/control.h"

static const struct device_ops *const ops = &device_cuda;

static void probe_and_open_make_no_context(void **state)
{
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	struct err_text why = {""};
	struct fakecuda_live live;
	struct device *dev;

	(void)state;
	assert_int_equal(ops->probe(&why), 8);
	assert_int_equal(ops->open("job", &dev, &why), 0);
	assert_int_equal(ops->gpus(dev, gpus, DEVICE_GPUS_MAX), 8);
	fakecuda_live(&live);
	assert_int_equal(live.contexts, 0);
	ops->close(dev);
	ops->close(NULL);
	assert_int_equal(fakecuda_calls("cuDevicePrimaryCtxRetain"), 0);
}

static void only_gpus_that_are_used_get_a_context(void **state)
{
	unsigned char *host = cuda_rig_host_memory(RIG_MIB);
	struct device_mem *early, *late;
	struct device_queue *q;
	struct fakecuda_live live;
	struct device *dev;

	(void)state;
	assert_int_equal(ops->open("job", &dev, NULL), 0);
	assert_int_equal(ops->pin(dev, host, RIG_PAGE, &early), 0);
	fakecuda_live(&live);
	assert_int_equal(live.contexts, 0);
	assert_int_equal(ops->queue_open(dev, 3, 0, &q), 0);
	assert_int_equal(ops->pin(dev, host + RIG_PAGE, RIG_PAGE, &late), 0);
	assert_int_equal(ops->post(q, early, 8, 1), 0);
	assert_int_equal(ops->post(q, late, 8, 2), 0);
	cuda_rig_drain(q);
	assert_int_equal(cuda_rig_counter(host + 8), 1);
	assert_int_equal(cuda_rig_counter(host + RIG_PAGE + 8), 2);
	fakecuda_live(&live);
	assert_int_equal(live.contexts, 1);
	assert_int_equal(live.pinned, 2);
	ops->queue_close(q);
	ops->drop(early);
	ops->drop(late);
	ops->close(dev);
	munmap(host, RIG_MIB);
	cuda_rig_nothing_lives();
	assert_string_equal(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

static void gpus_are_described_and_found_by_uuid(void **state)
{
	uint8_t uuid[DEVICE_UUID_BYTES] = "fake-gpu-uuid--C";
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	struct device *dev;

	(void)state;
	assert_int_equal(ops->open("job", &dev, NULL), 0);
	assert_int_equal(ops->gpus(dev, gpus, 3), 8);
	assert_string_equal(gpus[2].name, "Fake GPU 2");
	assert_string_equal(gpus[2].pci, "0000:1c:00.0");
	assert_memory_equal(gpus[2].uuid, uuid, sizeof(uuid));
	assert_int_equal(gpus[1].numa, 1);
	assert_int_equal(gpus[0].bytes >> 30, 16);
	assert_int_equal(gpus[0].caps,
		DEVICE_CAP_VMM_FD | DEVICE_CAP_LEGACY_IPC | DEVICE_CAP_MEMOP64 | DEVICE_CAP_CLIQUE);
	assert_int_equal(device_find_gpu_by_uuid(dev, uuid), 2);
	uuid[0] = 0;
	assert_int_equal(device_find_gpu_by_uuid(dev, uuid), DEVICE_NODEV);
	assert_int_equal(ops->peer(dev, 0, 3), DEVICE_LINK_NVLINK);
	assert_int_equal(ops->peer(dev, 3, 3), DEVICE_ARG);
	assert_int_equal(ops->peer(dev, 0, 8), DEVICE_ARG);
	ops->close(dev);
}

static void memory_begins_as_zeros_and_is_rounded_up(void **state)
{
	unsigned char bytes[64], zeros[64] = {0};
	struct device_mem *mem;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(ops->alloc(r.dev, 1, 5 * RIG_MIB + 1, NULL, 0, &mem), 0);
	assert_int_equal(mem->bytes, 6 * RIG_MIB);
	assert_int_equal(mem->gpu, 1);
	fakecuda_peek(ops->addr(mem, 1) + mem->bytes - sizeof(bytes), bytes, sizeof(bytes));
	assert_memory_equal(bytes, zeros, sizeof(bytes));
	assert_int_equal(ops->addr(mem, 0), 0);
	assert_int_equal(ops->addr(mem, DEVICE_HOST), 0);
	assert_int_equal(ops->addr(r.pinned, DEVICE_HOST), (uintptr_t)r.host);
	ops->drop(mem);
	cuda_rig_close(&r);
}

/* Copy bytes from the host to GPU 0, to GPU 1 and back, on two queues. Each copy waits for the
 * previous copy. */
static void bytes_survive_a_journey_over_two_gpus(void **state)
{
	const int also[] = {1};
	struct device_queue *q1;
	struct device_mem *near, *far;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(ops->alloc(r.dev, 0, RIG_MIB, also, 1, &near), 0);
	assert_int_equal(ops->alloc(r.dev, 1, RIG_MIB, NULL, 0, &far), 0);
	assert_int_equal(ops->queue_open(r.dev, 1, 1, &q1), 0);
	for (unsigned round = 1; round <= 8; round++) {
		for (unsigned i = 0; i < RIG_MIB; i++)
			r.host[i] = (unsigned char)(i * 7 + i / 251 + round);
		memset(r.host + 2 * RIG_MIB, 0, RIG_MIB);
		assert_int_equal(ops->copy(r.q, near, 8, r.pinned, 0, RIG_MIB - 8), 0);
		cuda_rig_drain(r.q);
		assert_int_equal(ops->copy(q1, far, 0, near, 8, RIG_MIB - 8), 0);
		assert_int_equal(ops->copy(q1, r.pinned, 2 * RIG_MIB, far, 0, RIG_MIB - 8), 0);
		cuda_rig_drain(q1);
		assert_memory_equal(r.host, r.host + 2 * RIG_MIB, RIG_MIB - 8);
	}
	ops->queue_close(q1);
	ops->drop(far);
	ops->drop(near);
	cuda_rig_close(&r);
}

static void a_counter_is_written_after_the_copies_before_it(void **state)
{
	unsigned char *count, want[RIG_PAGE];
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	count = r.host + 3 * RIG_MIB;
	for (uint64_t round = 1; round <= 50; round++) {
		memset(want, (int)round, sizeof(want));
		memcpy(r.host, want, sizeof(want));
		assert_int_equal(ops->copy(r.q, r.mem, 0, r.pinned, 0, RIG_PAGE), 0);
		assert_int_equal(ops->copy(r.q, r.pinned, RIG_MIB, r.mem, 0, RIG_PAGE), 0);
		assert_int_equal(ops->post(r.q, r.pinned, 3 * RIG_MIB, round), 0);
		cuda_rig_await(count, round);
		assert_int_equal(cuda_rig_counter(count), round);
		assert_memory_equal(r.host + RIG_MIB, want, RIG_PAGE);
	}
	cuda_rig_close(&r);
}

/* The driver sends small copies of one row through the compute engine, so small copies have two. */
static void small_copies_to_a_gpu_have_two_rows(void **state)
{
	const struct {
		uint64_t bytes;
		bool has_rows;
	} copies[] = {{1, false}, {2, true}, {40, true}, {41, false}, {4096, true}, {32766, true},
		{32768, false}};
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
		uint64_t n = copies[i].bytes, rows = fakecuda_calls("cuMemcpy2DAsync");
		uint64_t flat;
		unsigned char seen[32768 + 8];

		for (uint64_t k = 0; k < sizeof(seen); k++)
			r.host[k] = (unsigned char)(k * 7 + i + 1);
		memset(r.host + RIG_MIB, 0xee, sizeof(seen));
		assert_int_equal(ops->copy(r.q, r.mem, 0, r.pinned, RIG_MIB, sizeof(seen)), 0);
		cuda_rig_drain(r.q);
		flat = fakecuda_calls("cuMemcpyHtoDAsync");
		assert_int_equal(ops->copy(r.q, r.mem, 8, r.pinned, 3, n), 0);
		cuda_rig_drain(r.q);
		assert_int_equal(fakecuda_calls("cuMemcpy2DAsync") - rows, copies[i].has_rows);
		assert_int_equal(fakecuda_calls("cuMemcpyHtoDAsync") - flat, !copies[i].has_rows);
		fakecuda_peek(ops->addr(r.mem, 0), seen, sizeof(seen));
		assert_memory_equal(seen + 8, r.host + 3, n);
		assert_int_equal(seen[7], 0xee);
		if (n + 8 < sizeof(seen))
			assert_int_equal(seen[n + 8], 0xee);
	}
	cuda_rig_close(&r);
}

static void what_cannot_be_queued_is_refused_with_a_reason(void **state)
{
	struct device_mem *other, *mem;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(ops->alloc(r.dev, 1, RIG_MIB, NULL, 0, &other), 0);
	assert_int_equal(ops->copy(r.q, r.mem, RIG_BYTES - 1, r.pinned, 0, 2), DEVICE_ARG);
	cuda_rig_said(&r, "exceeds the memory");
	assert_int_equal(ops->copy(r.q, r.mem, 0, r.pinned, UINT64_MAX, 2), DEVICE_ARG);
	assert_int_equal(ops->copy(r.q, r.mem, 0, r.pinned, 0, 0), DEVICE_ARG);
	assert_int_equal(ops->copy(r.q, other, 0, r.pinned, 0, 2), DEVICE_UNSUP);
	cuda_rig_said(&r, "cannot reach");
	assert_int_equal(ops->copy(r.q, r.pinned, 0, r.pinned, RIG_PAGE, 2), DEVICE_UNSUP);
	assert_int_equal(ops->post(r.q, r.pinned, 4, 1), DEVICE_ARG);
	cuda_rig_said(&r, "offset of a counter");
	assert_int_equal(ops->post(r.q, r.pinned, RIG_BYTES, 1), DEVICE_ARG);
	assert_int_equal(ops->post(r.q, r.mem, 0, 1), DEVICE_ARG);
	assert_int_equal(ops->pin(r.dev, r.host + 1, RIG_PAGE, &mem), DEVICE_ARG);
	assert_int_equal(ops->pin(r.dev, r.host, RIG_PAGE, &mem), DEVICE_ARG);
	cuda_rig_said(&r, "cannot pin");
	assert_int_equal(ops->alloc(r.dev, 8, RIG_MIB, NULL, 0, &mem), DEVICE_ARG);
	assert_int_equal(ops->alloc(r.dev, 0, 0, NULL, 0, &mem), DEVICE_ARG);
	assert_int_equal(ops->alloc(r.dev, 0, UINT64_MAX, NULL, 0, &mem), DEVICE_ARG);
	ops->drop(other);
	ops->drop(NULL);
	ops->queue_close(NULL);
	cuda_rig_close(&r);
}

/* Call every operation of the back-end once, and free everything. The two queues run at the same
 * time, so they use different parts of the memory. */
static void scenario(const struct device_ops *o, unsigned char *host)
{
	const int also[] = {1};
	struct device_mem *mem = NULL, *pinned = NULL, *imported = NULL;
	struct device_queue *q = NULL, *q1 = NULL;
	struct device_desc desc;
	struct device *dev;
	int fd = -1;

	if (o->open("job", &dev, NULL))
		return;
	if (!o->alloc(dev, 0, RIG_MIB, also, 1, &mem) && o->share(mem, &desc, &fd, 1) == 1 &&
		!o->import(dev, 2, &desc, &fd, 1, &imported) &&
		!o->pin(dev, host, RIG_BYTES, &pinned) && !o->queue_open(dev, 0, 1, &q) &&
		!o->queue_open(dev, 2, -1, &q1) && !o->copy(q, mem, 0, pinned, 0, RIG_PAGE) &&
		!o->copy(q, mem, 0, pinned, 0, RIG_MIB / 2) &&
		!o->copy(q1, pinned, 2 * RIG_MIB, imported, RIG_MIB / 2, RIG_PAGE) &&
		!o->copy(q, mem, RIG_PAGE, mem, 0, RIG_PAGE) && !o->post(q1, pinned, RIG_MIB, 5))
		cuda_rig_await(host + RIG_MIB, 5);
	for (int i = 0; i < 2; i++)
		while ((i ? q1 : q) && o->queue_poll(i ? q1 : q) == DEVICE_AGAIN)
			;
	o->queue_close(q);
	o->queue_close(q1);
	o->drop(imported);
	o->drop(pinned);
	o->drop(mem);
	if (fd >= 0)
		close(fd);
	o->close(dev);
}

/* Driver functions that may fail, because they make an object, queue work or query the device. A
 * function that frees a resource or waits for work fails only if the device is lost. */
static const char *const may_fail[] = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount",
	"cuDeviceGet", "cuDeviceGetUuid", "cuDeviceTotalMem", "cuDeviceGetName",
	"cuDevicePrimaryCtxRetain", "cuMemGetAllocationGranularity", "cuMemCreate",
	"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async",
	"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemHostRegister",
	"cuMemHostGetDevicePointer", "cuStreamCreateWithPriority", "cuMemcpyHtoDAsync",
	"cuMemcpy2DAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuStreamWriteValue64",
	"cuPointerGetAttribute", "cuDeviceGetPCIBusId", "cuDeviceGetAttribute"};

static void nothing_leaks_whichever_call_of_the_driver_fails(void **state)
{
	unsigned char *host = cuda_rig_host_memory(RIG_BYTES);
	unsigned fds = two_count_fds(), walked = 0;
	char fault[80];

	(void)state;
	for (size_t i = 0; i < sizeof(may_fail) / sizeof(may_fail[0]); i++) {
		uint64_t calls = fakecuda_calls(may_fail[i]), n;

		memset(host, 0, RIG_BYTES);
		scenario(ops, host);
		calls = fakecuda_calls(may_fail[i]) - calls;
		if (!calls)
			fail_msg("%s is not called", may_fail[i]);
		for (n = 1; n <= calls && n <= 12; n++, walked++) {
			snprintf(fault, sizeof(fault), "%s:%u=2", may_fail[i], (unsigned)n);
			fakecuda_faults(fault);
			memset(host, 0, RIG_BYTES);
			scenario(ops, host);
			fakecuda_faults(NULL);
			cuda_rig_nothing_lives();
			assert_int_equal(two_count_fds(), fds);
		}
	}
	assert_true(walked > 40);
	munmap(host, RIG_BYTES);
}

static void errors_have_their_meaning_and_their_number(void **state)
{
	static const struct {
		const char *fault, *word;
		int rc;
	} cases[] = {
		{"cuMemCreate:1=2", "(2)", DEVICE_NOMEM},
		{"cuMemCreate:1=801", "(801)", DEVICE_UNSUP},
		{"cuMemSetAccess:1=217", "cannot access", DEVICE_UNSUP},
		{"cuMemMap:1=1", "(1)", DEVICE_ARG},
		{"cuMemAddressReserve:1=46", "exclusive", DEVICE_NODEV},
	};
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct device_mem *mem;

		fakecuda_faults(cases[i].fault);
		assert_int_equal(ops->alloc(r.dev, 0, RIG_MIB, NULL, 0, &mem), cases[i].rc);
		cuda_rig_said(&r, cases[i].word);
	}
	fakecuda_faults(NULL);
	cuda_rig_close(&r);
}

/* Check that every function that does not free a resource returns LOST without a call of the
 * driver. */
static void assert_all_lost(struct cuda_rig *r)
{
	struct device_queue *q;
	struct device_clique *c;
	struct device_mem *mem;
	struct device_desc desc;
	int fd, gpus[] = {0, 1};
	uint8_t id[DEVICE_ID_BYTES] = {0};

	assert_int_equal(ops->alloc(r->dev, 0, RIG_MIB, NULL, 0, &mem), DEVICE_LOST);
	assert_int_equal(ops->share(r->mem, &desc, &fd, 1), DEVICE_LOST);
	assert_int_equal(ops->import(r->dev, 0, &desc, &fd, 1, &mem), DEVICE_LOST);
	assert_int_equal(ops->pin(r->dev, r->host, RIG_PAGE, &mem), DEVICE_LOST);
	assert_int_equal(ops->queue_open(r->dev, 0, 0, &q), DEVICE_LOST);
	assert_int_equal(ops->queue_poll(r->q), DEVICE_LOST);
	assert_int_equal(ops->copy(r->q, r->mem, 0, r->pinned, 0, 8), DEVICE_LOST);
	assert_int_equal(ops->post(r->q, r->pinned, 0, 1), DEVICE_LOST);
	assert_int_equal(ops->peer(r->dev, 0, 1), DEVICE_LOST);
	assert_int_equal(ops->clique_id(r->dev, id), DEVICE_LOST);
	assert_int_equal(ops->clique_open(r->dev, id, 2, gpus, gpus, 2, &c), DEVICE_LOST);
}

/* Run lose_main in another process. The fault makes the device lost for the whole process, as with
 * a real GPU. */
static void lose(const char *fault)
{
	struct two lost = two_start(fault);

	assert_int_equal(two_end(&lost), 0);
}

static void after_a_sticky_error_everything_is_lost(void **state)
{
	(void)state;
	lose("lose:cuMemcpyDtoHAsync:1=700");
	lose("lose:work:3=700");
	lose("lose:cuStreamQuery:1=719");
	lose("lose:work:1=999");
}

static int lose_main(const char *fault)
{
	uint64_t deadline_ns = cuda_rig_deadline_ns(), calls;
	struct cuda_rig r;
	int rc = 0;

	cuda_rig_open(&r);
	cuda_rig_drain(r.q);
	fakecuda_faults(fault);
	while (!rc && clock_now_ns() < deadline_ns) {
		rc = ops->copy(r.q, r.pinned, 0, r.mem, 0, RIG_PAGE);
		if (!rc)
			rc = ops->queue_poll(r.q);
		if (rc == DEVICE_AGAIN)
			rc = 0;
	}
	assert_int_equal(rc, DEVICE_LOST);
	cuda_rig_said(&r, strstr(fault, "=") + 1);
	calls = fakecuda_calls("cuCtxSetCurrent");
	assert_all_lost(&r);
	ops->queue_close(r.q);
	ops->drop(r.pinned);
	ops->drop(r.mem);
	ops->close(r.dev);
	assert_int_equal(fakecuda_calls("cuCtxSetCurrent"), calls);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(probe_and_open_make_no_context),
		cmocka_unit_test(only_gpus_that_are_used_get_a_context),
		cmocka_unit_test(gpus_are_described_and_found_by_uuid),
		cmocka_unit_test(memory_begins_as_zeros_and_is_rounded_up),
		cmocka_unit_test(bytes_survive_a_journey_over_two_gpus),
		cmocka_unit_test(a_counter_is_written_after_the_copies_before_it),
		cmocka_unit_test(small_copies_to_a_gpu_have_two_rows),
		cmocka_unit_test(what_cannot_be_queued_is_refused_with_a_reason),
		cmocka_unit_test(nothing_leaks_whichever_call_of_the_driver_fails),
		cmocka_unit_test(errors_have_their_meaning_and_their_number),
		cmocka_unit_test(after_a_sticky_error_everything_is_lost),
	};

	setenv("FAKE_CUDA_GPUS", "8", 1);
	setenv("FAKE_CUDA_DELAY_US", "200", 1);
	if (argc == 2 && !strncmp(argv[1], "lose:", 5))
		return lose_main(argv[1] + 5);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
