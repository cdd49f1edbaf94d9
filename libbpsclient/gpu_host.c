/* Keeps tensors in plain memory instead of device memory, if the executor emulates GPUs
 * (tests/host_executor/). There are no streams. A write is done at once, and a wait blocks the
 * caller.
 * Thread: the caller's. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/clock.h"
#include "libbpsclient/gpu.h"

/* Nanoseconds between two checks of a counter. A waiter polls the counter, because the executor
 * does not wake waiters. */
#define LOOK_NS 50000

static int host_report_no_device_uuid(
	struct client_gpu *g, uint8_t ret[GPU_UUID_BYTES], struct err_text *err)
{
	(void)g;
	(void)ret;
	return err_set(err, BPS_EDEVICE,
		"there are no GPUs: plain memory takes the place of device memory");
}

static int host_pin_counter_page(struct client_gpu *g, struct err_text *err)
{
	(void)err;
	g->page_addr = (uint64_t)(uintptr_t)g->slots;
	return 0;
}

static void host_unpin_counter_page(struct client_gpu *g)
{
	(void)g;
}

static int host_map_executor_memory(struct client_gpu *g, const struct gpu_memory *m,
	const int *fds, unsigned n_fds, void **ret_ptr, void **ret_handle, struct err_text *err)
{
	struct stat st;
	void *p;

	(void)g;
	if (m->kind != GPU_MEMORY_HOST || n_fds != 1 || fstat(fds[0], &st) < 0 ||
		(uint64_t)st.st_size < m->bytes || m->offset || !local_is_sealed(fds[0]))
		return err_set(err, BPS_EPROTO, "the executor sent memory that cannot be mapped");
	p = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	if (p == MAP_FAILED)
		return err_set(err, -errno, "cannot map device memory: %s", err_str(-errno));
	*ret_ptr = p;
	*ret_handle = NULL;
	return 0;
}

static void host_unmap_executor_memory(
	struct client_gpu *g, void *ptr, uint64_t bytes, void *handle)
{
	(void)g;
	(void)handle;
	munmap(ptr, bytes);
}

static int host_reject_memory_sharing(struct client_gpu *g, const void *ptr, uint64_t bytes,
	struct gpu_memory *ret, char *handle, int *fds, unsigned max, struct err_text *err)
{
	(void)g;
	(void)ptr;
	(void)bytes;
	(void)ret;
	(void)handle;
	(void)fds;
	(void)max;
	return err_set(err, -EOPNOTSUPP,
		"this process's plain memory cannot be shared with the executor: copy the values "
		"into memory from bps_gpu_alloc");
}

static int host_write_counter(struct client_gpu *g, void *stream, _Atomic uint64_t *counter,
	uint64_t value, struct err_text *err)
{
	(void)g;
	if (stream)
		return err_set(err, -EINVAL,
			"this agent uses plain memory instead of GPUs, so there are no streams: "
			"pass NULL");
	/* Release: pairs with the executor's load of the counter, after which the executor reads
	 * the tensor's values. */
	atomic_store_explicit(counter, value, memory_order_release);
	return 0;
}

static int host_wait_for_counter(struct client_gpu *g, void *stream, _Atomic uint64_t *counter,
	uint64_t value, uint64_t deadline_ns, struct err_text *err)
{
	const struct timespec look = {.tv_nsec = LOOK_NS};

	(void)g;
	if (stream)
		return err_set(err, -EINVAL,
			"this agent uses plain memory instead of GPUs, so there are no streams: "
			"pass NULL");
	while (!gpu_slot_reached(atomic_load_explicit(counter, memory_order_acquire), value)) {
		if (clock_now_ns() > deadline_ns)
			return err_set(err, BPS_ETIMEDOUT,
				"round %llu did not complete before the time-out",
				(unsigned long long)value);
		nanosleep(&look, NULL);
	}
	return 0;
}

static void host_wait_for_queued_work(struct client_gpu *g)
{
	(void)g; /* no work is queued, because writes are done at once */
}

const struct client_gpu_driver client_gpu_driver_host = {
	.name = "host",
	.uuid = host_report_no_device_uuid,
	.pin = host_pin_counter_page,
	.unpin = host_unpin_counter_page,
	.map = host_map_executor_memory,
	.unmap = host_unmap_executor_memory,
	.share = host_reject_memory_sharing,
	.write = host_write_counter,
	.wait = host_wait_for_counter,
	.settle = host_wait_for_queued_work,
};
