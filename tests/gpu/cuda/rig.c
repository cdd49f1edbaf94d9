#include "tests/gpu/cuda/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/gpu/fake/control.h"

#define LIMIT_NS (10 * UINT64_C(1000000000))

static const struct device_ops *const ops = &device_cuda;

uint64_t cuda_rig_deadline_ns(void)
{
	return clock_now_ns() + LIMIT_NS;
}

unsigned char *cuda_rig_host_memory(size_t bytes)
{
	int fd = memfd_create("staging", MFD_CLOEXEC);
	void *p;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(p, MAP_FAILED);
	close(fd);
	return p;
}

void cuda_rig_nothing_lives(void)
{
	struct fakecuda_live live, none;

	memset(&none, 0, sizeof(none));
	fakecuda_live(&live);
	assert_memory_equal(&live, &none, sizeof(none));
}

void cuda_rig_open(struct cuda_rig *r)
{
	struct err_text why;

	assert_int_equal(ops->open("job", &r->dev, &why), 0);
	assert_int_equal(ops->queue_open(r->dev, 0, 0, &r->q), 0);
	assert_int_equal(ops->alloc(r->dev, 0, RIG_BYTES, NULL, 0, &r->mem), 0);
	r->host = cuda_rig_host_memory(RIG_BYTES);
	assert_int_equal(ops->pin(r->dev, r->host, RIG_BYTES, &r->pinned), 0);
}

void cuda_rig_drain(struct device_queue *q)
{
	uint64_t deadline_ns = cuda_rig_deadline_ns();
	int rc;

	while ((rc = ops->queue_poll(q)) == DEVICE_AGAIN && clock_now_ns() < deadline_ns)
		;
	assert_int_equal(rc, 0);
}

void cuda_rig_close(struct cuda_rig *r)
{
	cuda_rig_drain(r->q);
	ops->queue_close(r->q);
	ops->drop(r->pinned);
	ops->drop(r->mem);
	ops->close(r->dev);
	munmap(r->host, RIG_BYTES);
	cuda_rig_nothing_lives();
}

void cuda_rig_said(const struct cuda_rig *r, const char *word)
{
	if (!strstr(r->dev->why.s, word))
		fail_msg("no '%s' in '%s'", word, r->dev->why.s);
}

uint64_t cuda_rig_counter(const unsigned char *at)
{
	return atomic_load_explicit(
		(const _Atomic uint64_t *)(const void *)at, memory_order_acquire);
}

void cuda_rig_await(const unsigned char *at, uint64_t value)
{
	uint64_t deadline_ns = cuda_rig_deadline_ns();

	while ((int64_t)(cuda_rig_counter(at) - value) < 0 && clock_now_ns() < deadline_ns)
		;
	assert_true((int64_t)(cuda_rig_counter(at) - value) >= 0);
}
