/* Tests of device memory that two processes share, with the fake driver. The tests check exact
 * bytes in both directions, kill processes, and send malicious messages. The second process is a
 * child of the test. */
#include <cuda.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/gpu/cuda/rig.h"
#include "tests/gpu/cuda/share_ptr.h"
#include "tests/gpu/cuda/two.h"
#include "tests/gpu/fake/control.h"

#define BYTES (3u * RIG_MIB)
#define CHUNK (2u * RIG_MIB)

static const struct device_ops *const ops = &device_cuda;

static unsigned char byte(unsigned i, unsigned salt)
{
	return (unsigned char)(i * 31 + i / 4093 + salt);
}

static void fill_host(unsigned char *p, unsigned bytes, unsigned salt)
{
	for (unsigned i = 0; i < bytes; i++)
		p[i] = byte(i, salt);
}

/* Return the index of the first byte that differs from the pattern of `salt`, or `bytes` if all
 * bytes match. */
static unsigned host_differs(const unsigned char *p, unsigned bytes, unsigned salt)
{
	unsigned i = 0;

	while (i < bytes && p[i] == byte(i, salt))
		i++;
	return i;
}

static void fill(uint64_t addr, unsigned bytes, unsigned salt)
{
	unsigned char *p = malloc(bytes);

	assert_non_null(p);
	fill_host(p, bytes, salt);
	fakecuda_poke(addr, p, bytes);
	free(p);
}

static unsigned differs(uint64_t addr, unsigned bytes, unsigned salt)
{
	unsigned char *p = malloc(bytes);
	unsigned i;

	assert_non_null(p);
	fakecuda_peek(addr, p, bytes);
	i = host_differs(p, bytes, salt);
	free(p);
	return i;
}

static void close_fds(struct two_message *m)
{
	for (int i = 0; i < m->n_fds; i++)
		close(m->fds[i]);
}

static void say(int fd, uint64_t word)
{
	struct two_message m = {.word = word};

	assert_true(two_send(fd, &m));
}

static uint64_t hear(int fd)
{
	struct two_message m;

	assert_true(two_receive(fd, &m));
	assert_int_equal(m.n_fds, 0);
	return m.word;
}

/* Copy the bytes of `mem` to the given GPU, overwrite `mem` with zeros, and copy the bytes back.
 * All copies use a queue of the given GPU. */
static void copy_over(struct device *dev, int gpu, struct device_mem *mem)
{
	struct device_mem *far, *zeros;
	struct device_queue *q;

	assert_int_equal(ops->queue_open(dev, gpu, 0, &q), 0);
	assert_int_equal(ops->alloc(dev, gpu, BYTES, NULL, 0, &far), 0);
	assert_int_equal(ops->alloc(dev, gpu, BYTES, NULL, 0, &zeros), 0);
	assert_int_equal(ops->copy(q, far, 0, mem, 0, BYTES), 0);
	assert_int_equal(ops->copy(q, mem, 0, zeros, 0, BYTES), 0);
	assert_int_equal(ops->copy(q, mem, 0, far, 0, BYTES), 0);
	cuda_rig_drain(q);
	ops->queue_close(q);
	ops->drop(far);
	ops->drop(zeros);
}

/* The child process runs this function. The function imports the memory for GPU `gpu`, and lets the
 * GPU copy the memory's bytes. It checks the copy, and then overwrites the bytes in the memory. */
static int importer(int gpu)
{
	unsigned char *host = cuda_rig_host_memory(RIG_BYTES);
	struct device_queue *q;
	struct device_mem *mem, *pinned;
	struct two_message m;
	struct device *dev;

	assert_true(two_receive(TWO_FD, &m));
	assert_int_equal(ops->open("importer", &dev, NULL), 0);
	assert_int_equal(ops->import(dev, gpu, &m.desc, m.fds, m.n_fds, &mem), 0);
	close_fds(&m);
	assert_int_equal(mem->bytes, BYTES);
	assert_int_equal(ops->pin(dev, host, RIG_BYTES, &pinned), 0);
	assert_int_equal(ops->queue_open(dev, gpu, 0, &q), 0);
	assert_int_equal(ops->copy(q, pinned, 0, mem, 0, BYTES), 0);
	cuda_rig_drain(q);
	assert_int_equal(host_differs(host, BYTES, 1), BYTES);
	fill_host(host, BYTES, 2);
	assert_int_equal(ops->copy(q, mem, 0, pinned, 0, BYTES), 0);
	cuda_rig_drain(q);
	copy_over(dev, gpu == 3 ? 2 : 3, mem);
	say(TWO_FD, 1);
	hear(TWO_FD); /* wait until the parent has checked the bytes */
	ops->queue_close(q);
	ops->drop(mem);
	ops->drop(pinned);
	ops->close(dev);
	munmap(host, RIG_BYTES);
	cuda_rig_nothing_lives();
	return 0;
}

/* Fill the memory at addr, and share it with a child that has the given role. m describes the
 * memory, with m->n_fds descriptors or, if n_fds is 0, with a handle. */
static void share_with_importer(const char *role, struct two_message *m, uint64_t addr)
{
	struct two child = two_start(role);

	fill(addr, BYTES, 1);
	assert_true(two_send(child.fd, m));
	assert_int_equal(hear(child.fd), 1);
	assert_int_equal(differs(addr, BYTES, 2), BYTES);
	say(child.fd, 0);
	assert_int_equal(two_end(&child), 0);
}

static void an_arena_is_used_by_both_processes(void **state)
{
	struct two_message m = {.n_fds = 1};
	unsigned fds = two_count_fds();
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(ops->share(r.mem, &m.desc, m.fds, 0), DEVICE_ARG);
	assert_int_equal(ops->share(r.pinned, &m.desc, m.fds, 1), DEVICE_UNSUP);
	assert_int_equal(ops->share(r.mem, &m.desc, m.fds, 1), 1);
	assert_int_equal(m.desc.kind, DEVICE_DESC_FD);
	assert_int_equal(m.desc.bytes, RIG_BYTES);
	/* the importer gets only these bytes, not the rest of the allocation */
	m.desc.bytes = BYTES;
	share_with_importer("importer", &m, ops->addr(r.mem, 0));
	share_with_importer("importer on another gpu", &m, ops->addr(r.mem, 0));
	close_fds(&m);
	cuda_rig_close(&r);
	assert_int_equal(two_count_fds(), fds);
}

static void memory_of_cumemalloc_travels_as_a_legacy_handle(void **state)
{
	struct two_message m = {.n_fds = 0};
	struct device_mem *mem;
	CUdeviceptr addr;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(cuMemAlloc(&addr, BYTES + RIG_PAGE), CUDA_SUCCESS);
	assert_int_equal(share_ptr(r.dev, addr + 512, BYTES, &m.desc, m.fds, 0), 0);
	assert_int_equal(m.desc.kind, DEVICE_DESC_IPC);
	assert_int_equal(m.desc.offset, 512);
	assert_true(m.desc.buffer_id != 0);
	share_with_importer("importer", &m, addr + 512);
	assert_int_equal(ops->import(r.dev, 0, &m.desc, NULL, 0, &mem), DEVICE_UNSUP);
	cuda_rig_said(&r, "cannot open");
	assert_int_equal(share_ptr(r.dev, addr, RIG_BYTES + 1, &m.desc, m.fds, 0), DEVICE_ARG);
	cuMemFree(addr);
	assert_int_equal(share_ptr(r.dev, addr, BYTES, &m.desc, m.fds, 0), DEVICE_ARG);
	cuda_rig_close(&r);
}

/* The child runs this function. The import of the memory must fail, and no descriptor may stay
 * open. */
static int refuser(void)
{
	struct device_mem *mem;
	struct two_message m;
	struct device *dev;

	assert_true(two_receive(TWO_FD, &m));
	assert_int_equal(ops->open("refuser", &dev, NULL), 0);
	assert_int_equal(ops->import(dev, 0, &m.desc, m.fds, m.n_fds, &mem), DEVICE_ARG);
	if (!strstr(dev->why.s, "smaller than described"))
		fail_msg("%s", dev->why.s);
	ops->close(dev);
	cuda_rig_nothing_lives();
	return 0;
}

static void a_legacy_handle_of_less_than_it_says_is_refused(void **state)
{
	struct two_message m = {.n_fds = 0};
	struct two child = two_start("refuser");
	CUdeviceptr addr;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(cuMemAlloc(&addr, RIG_MIB), CUDA_SUCCESS);
	assert_int_equal(share_ptr(r.dev, addr, RIG_MIB, &m.desc, m.fds, 0), 0);
	m.desc.chunk_bytes *= 2;
	m.desc.bytes = m.desc.chunk_bytes;
	assert_true(two_send(child.fd, &m));
	assert_int_equal(two_end(&child), 0);
	cuMemFree(addr);
	cuda_rig_close(&r);
}

/* Make a segment as a growing allocator does. The segment consists of n handles of the same size,
 * which are mapped at consecutive addresses. */
static CUdeviceptr grow_segment(int n, CUmemAllocationHandleType type)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = type,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
	CUmemAccessDesc access = {
		.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr addr;

	assert_int_equal(cuMemAddressReserve(&addr, (size_t)n * CHUNK, 0, 0, 0), CUDA_SUCCESS);
	for (int i = 0; i < n; i++) {
		assert_int_equal(cuMemCreate(&handle, CHUNK, &prop, 0), CUDA_SUCCESS);
		assert_int_equal(
			cuMemMap(addr + (size_t)i * CHUNK, CHUNK, 0, handle, 0), CUDA_SUCCESS);
		assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
	}
	assert_int_equal(cuMemSetAccess(addr, (size_t)n * CHUNK, &access, 1), CUDA_SUCCESS);
	return addr;
}

static void shrink_segment(CUdeviceptr addr, int n)
{
	assert_int_equal(cuMemUnmap(addr, (size_t)n * CHUNK), CUDA_SUCCESS);
	assert_int_equal(cuMemAddressFree(addr, (size_t)n * CHUNK), CUDA_SUCCESS);
}

static void a_growing_segment_travels_mapping_by_mapping(void **state)
{
	struct two_message m = {.n_fds = 3};
	unsigned fds = two_count_fds();
	CUdeviceptr addr;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	addr = grow_segment(4, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	/* The range starts inside the second mapping and ends inside the fourth mapping. */
	assert_int_equal(
		share_ptr(r.dev, addr + CHUNK + 1500000, BYTES, &m.desc, m.fds, 2), DEVICE_ARG);
	assert_int_equal(share_ptr(r.dev, addr + CHUNK + 1500000, BYTES, &m.desc, m.fds, 8), 3);
	assert_int_equal(m.desc.chunk_bytes, CHUNK);
	assert_int_equal(m.desc.offset, 1500000);
	share_with_importer("importer", &m, addr + CHUNK + 1500000);
	close_fds(&m);
	shrink_segment(addr, 4);
	cuda_rig_close(&r);
	assert_int_equal(two_count_fds(), fds);
}

static void memory_that_must_not_be_shared_is_not(void **state)
{
	struct two_message m;
	CUdeviceptr addr;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	addr = grow_segment(1, CU_MEM_HANDLE_TYPE_NONE);
	assert_int_equal(share_ptr(r.dev, addr, CHUNK, &m.desc, m.fds, 1), DEVICE_UNSUP);
	cuda_rig_said(&r, "forbids");
	assert_int_equal(
		share_ptr(r.dev, ops->addr(r.pinned, 0), 8, &m.desc, m.fds, 1), DEVICE_ARG);
	assert_int_equal(share_ptr(r.dev, 4096, 8, &m.desc, m.fds, 1), DEVICE_ARG);
	shrink_segment(addr, 1);
	cuda_rig_close(&r);
}

static void invalid_message_is_refused_and_leaves_nothing(void **state)
{
	struct two_message m = {.n_fds = 1};
	unsigned fds = two_count_fds();
	int pipes[2], one = -1;
	struct device_mem *mem;
	struct device_desc d;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_int_equal(ops->share(r.mem, &m.desc, m.fds, 1), 1);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(ops->import(r.dev, 0, &m.desc, &pipes[0], 1, &mem), DEVICE_ARG);
	cuda_rig_said(&r, "cannot import");
	assert_int_equal(ops->import(r.dev, 0, &m.desc, &one, 1, &mem), DEVICE_ARG);
	d = m.desc, d.chunk_bytes *= 2, d.bytes *= 2; /* a chunk larger than the handle */
	assert_int_equal(ops->import(r.dev, 0, &d, m.fds, 1, &mem), DEVICE_ARG);
	d = m.desc, d.chunk_bytes -= 1, d.bytes = 1; /* a chunk of a size that no GPU can map */
	assert_int_equal(ops->import(r.dev, 0, &d, m.fds, 1, &mem), DEVICE_ARG);
	/* The chunk is larger than the address space of a GPU. */
	d = m.desc, d.chunk_bytes = UINT64_C(1) << 60, d.bytes = 1;
	assert_int_equal(ops->import(r.dev, 0, &d, m.fds, 1, &mem), DEVICE_NOMEM);
	d = m.desc, d.kind = DEVICE_DESC_HOST;
	assert_int_equal(ops->import(r.dev, 0, &d, m.fds, 1, &mem), DEVICE_UNSUP);
	d = m.desc, d.kind = DEVICE_DESC_IPC, d.n_fds = 0; /* a handle of zeros */
	assert_int_equal(ops->import(r.dev, 0, &d, NULL, 0, &mem), DEVICE_ARG);
	assert_int_equal(ops->import(r.dev, 0, &m.desc, m.fds, 2, &mem), DEVICE_ARG);
	close(pipes[0]);
	close(pipes[1]);
	close_fds(&m);
	cuda_rig_close(&r);
	assert_int_equal(two_count_fds(), fds);
}

/* The child runs this function. It fills device memory, shares this memory, and waits until the
 * parent kills the child. */
static int exporter(void)
{
	struct two_message m = {.n_fds = 1};
	struct cuda_rig r;

	cuda_rig_open(&r);
	fill(ops->addr(r.mem, 0), RIG_BYTES, 5);
	assert_int_equal(ops->share(r.mem, &m.desc, m.fds, 1), 1);
	assert_true(two_send(TWO_FD, &m));
	hear(TWO_FD);
	return 1;
}

static void memory_outlives_a_killed_exporter(void **state)
{
	struct two child = two_start("exporter");
	unsigned fds = two_count_fds() - 1;
	struct device_mem *mem, *late;
	struct two_message m;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	assert_true(two_receive(child.fd, &m));
	assert_int_equal(ops->import(r.dev, 0, &m.desc, m.fds, m.n_fds, &mem), 0);
	assert_int_equal(ops->copy(r.q, r.pinned, 0, mem, 0, RIG_PAGE), 0);
	two_kill(&child);
	assert_int_equal(ops->copy(r.q, r.pinned, 0, mem, 0, RIG_BYTES), 0);
	cuda_rig_drain(r.q);
	assert_int_equal(host_differs(r.host, RIG_BYTES, 5), RIG_BYTES);
	assert_int_equal(ops->import(r.dev, 1, &m.desc, m.fds, m.n_fds, &late), 0);
	assert_int_equal(differs(ops->addr(late, 1), RIG_BYTES, 5), RIG_BYTES);
	close_fds(&m);
	ops->drop(late);
	ops->drop(mem);
	cuda_rig_close(&r);
	assert_int_equal(two_count_fds(), fds);
}

static void a_killed_importer_does_not_affect_the_exporter(void **state)
{
	struct two_message m = {.n_fds = 1};
	struct two child;
	struct cuda_rig r;

	(void)state;
	cuda_rig_open(&r);
	fill(ops->addr(r.mem, 0), BYTES, 1);
	assert_int_equal(ops->share(r.mem, &m.desc, m.fds, 1), 1);
	m.desc.bytes = BYTES;
	child = two_start("importer");
	assert_true(two_send(child.fd, &m));
	assert_int_equal(hear(child.fd), 1); /* the child has mapped and written the memory */
	two_kill(&child);
	assert_int_equal(differs(ops->addr(r.mem, 0), BYTES, 2), BYTES);
	assert_int_equal(ops->copy(r.q, r.pinned, 0, r.mem, 0, BYTES), 0);
	cuda_rig_drain(r.q);
	assert_int_equal(r.host[77777], byte(77777, 2));
	close_fds(&m);
	cuda_rig_close(&r);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_arena_is_used_by_both_processes),
		cmocka_unit_test(memory_of_cumemalloc_travels_as_a_legacy_handle),
		cmocka_unit_test(a_legacy_handle_of_less_than_it_says_is_refused),
		cmocka_unit_test(a_growing_segment_travels_mapping_by_mapping),
		cmocka_unit_test(memory_that_must_not_be_shared_is_not),
		cmocka_unit_test(invalid_message_is_refused_and_leaves_nothing),
		cmocka_unit_test(memory_outlives_a_killed_exporter),
		cmocka_unit_test(a_killed_importer_does_not_affect_the_exporter),
	};

	setenv("FAKE_CUDA_GPUS", "4", 1);
	setenv("FAKE_CUDA_DELAY_US", "100", 1);
	if (argc == 2 && !strcmp(argv[1], "importer"))
		return importer(0);
	if (argc == 2 && !strcmp(argv[1], "importer on another gpu"))
		return importer(3);
	if (argc == 2 && !strcmp(argv[1], "refuser"))
		return refuser();
	if (argc == 2 && !strcmp(argv[1], "exporter"))
		return exporter();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
