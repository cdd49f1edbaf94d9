/* The trainer's connection to the executor, which is the process that drives the job's GPUs. This
 * file has the requests, the regions of memory and the watcher thread. The watcher thread releases
 * streams after a failure. Submissions and waits are in gpu.c. Threads: any thread may call the
 * functions, which take `lock` where needed. The watcher thread takes `lock` too. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "libbpsclient/gpu.h"

/* Longest sleep of the watcher in milliseconds. The end of a connection, or a write to `stop_fd`,
 * wakes the watcher earlier. */
#define WATCH_MS 10000

/* Record a failure, unless one is recorded already. The caller holds the lock. */
static void gpu_link_record_failure(struct client_gpu *g, int code, const char *text)
{
	if (atomic_load_explicit(&g->failure, memory_order_relaxed))
		return;
	err_set(&g->failure_text, code, "%s", text);
	atomic_store_explicit(&g->failure, code, memory_order_release);
}

int gpu_link_failure(struct client_gpu *g, struct err_text *ret)
{
	int code = atomic_load_explicit(&g->failure, memory_order_acquire);

	if (code)
		/* gpu_link_record_failure writes failure_text once, before it stores the code in
		 * g->failure. So a thread that has read the code needs no lock to read
		 * failure_text. */
		*ret = g->failure_text;
	return code;
}

/* Receive one frame. If its message is GPU_FAILED, record the failure that the executor reports.
 * Returns 1, or an error with a sentence in err. */
static int gpu_link_receive_frame(
	struct client_gpu *g, struct local_frame *a, uint32_t timeout_ms, struct err_text *err)
{
	int rc = local_recv(g->sock, a, timeout_ms, err);

	if (rc <= 0)
		/* local_frame_free closes the descriptors of a malformed frame */
		local_frame_free(a);
	if (rc == -ETIMEDOUT || rc == -EAGAIN)
		return err_set(
			err, BPS_ETIMEDOUT, "the executor of this job's GPUs does not answer");
	if (rc <= 0)
		return err_set(err, BPS_EDEVICE, "the executor of this job's GPUs has ended");
	if (a->msg.type == GPU_FAILED)
		gpu_link_record_failure(g, local_code_from_wire(a->msg.gpu_text.code, BPS_EDEVICE),
			a->msg.gpu_text.text);
	return 1;
}

/* Send m and receive the answer to m in *a, which the caller frees. Drops all frames before the
 * answer. The caller holds the lock. Errors: BPS_ETIMEDOUT, BPS_EDEVICE, or the error with which
 * the connection has failed; err gets a sentence. */
static int gpu_link_request_answer(struct client_gpu *g, struct local_msg *m, const int *fds,
	unsigned n_fds, uint16_t type, uint32_t timeout_ms, struct local_frame *a,
	struct err_text *err)
{
	uint64_t deadline_ns = clock_deadline(timeout_ms);
	int rc;

	m->seq = ++g->seq;
	rc = local_send(g->sock, m, fds, n_fds, timeout_ms);
	while (rc == 0 || rc == 1) {
		rc = gpu_link_receive_frame(g, a, clock_ms_until_deadline(deadline_ns), err);
		if (rc < 0)
			break;
		if (a->msg.type == type && a->msg.seq == m->seq)
			return 0;
		local_frame_free(a);
	}
	if (gpu_link_failure(g, err))
		return atomic_load_explicit(&g->failure, memory_order_relaxed);
	return rc == -EPIPE || rc == -ECONNRESET
		       ? err_set(err, BPS_EDEVICE, "the executor of this job's GPUs has ended")
		       : rc;
}

/* ---- watcher ---- */

static void gpu_link_poison_slots(struct client_gpu *g)
{
	for (uint32_t i = 0; i < g->n_slots; i++)
		gpu_slot_poison(&g->slots[i]);
}

/* Read the executor's remaining messages, and record the failure. One of the messages may report
 * why the executor ended. */
static void read_last_words(struct client_gpu *g)
{
	struct err_text err;
	struct local_frame a;

	pthread_mutex_lock(&g->lock);
	while (gpu_link_receive_frame(g, &a, 0, &err) > 0)
		local_frame_free(&a);
	if (!atomic_load_explicit(&g->failure, memory_order_relaxed))
		atomic_store_explicit(&g->is_unexplained, true, memory_order_relaxed);
	gpu_link_record_failure(g, BPS_EDEVICE,
		"the executor of this job's GPUs has ended (was bps-agent or its child killed?)");
	pthread_mutex_unlock(&g->lock);
}

static void *gpu_link_watcher_main(void *arg)
{
	struct client_gpu *g = arg;
	struct pollfd p[] = {{.fd = g->sock, .events = POLLRDHUP},
		{.fd = g->agent_sock, .events = POLLRDHUP}, {.fd = g->stop_fd, .events = POLLIN}};

	do {
		if (poll(p, 3, WATCH_MS) < 0)
			p[0].revents = p[1].revents = p[2].revents = 0;
		if (p[2].revents)
			return NULL;
	} while (!p[0].revents && !p[1].revents);
	/* Release the streams before taking the lock, because a thread that holds the lock may wait
	 * for a stream. */
	gpu_link_poison_slots(g);
	read_last_words(g);
	return NULL;
}

static int gpu_link_start_watcher(struct client_gpu *g, struct err_text *err)
{
	sigset_t all, old;
	int rc;

	g->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (g->stop_fd < 0)
		return err_set(err, -errno,
			"cannot create an eventfd for the thread that watches the executor: %s",
			err_str(-errno));
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&g->watcher, NULL, gpu_link_watcher_main, g);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	g->has_watcher = rc == 0;
	return rc ? err_set(err, -rc, "cannot start the thread that watches the executor: %s",
			    err_str(-rc))
		  : 0;
}

static void gpu_link_stop_watcher(struct client_gpu *g)
{
	uint64_t one = 1;

	if (!g->has_watcher)
		return;
	(void)!write(g->stop_fd, &one, sizeof(one));
	pthread_join(g->watcher, NULL);
	g->has_watcher = false;
}

/* ---- open ---- */

static int gpu_link_map_counter_page(
	struct client_gpu *g, const struct local_frame *a, struct err_text *err)
{
	const struct gpu_welcome *w = &a->msg.gpu_welcome;
	struct stat st;
	void *p;

	if (a->n_fds != 1 || fstat(a->fds[0], &st) < 0 || !w->bytes ||
		(uint64_t)st.st_size < w->bytes || w->n_slots > w->bytes / GPU_SLOT_BYTES ||
		w->uuid.bytes != GPU_UUID_BYTES || !local_is_sealed(a->fds[0]))
		return err_set(err, BPS_EPROTO, "the executor's counter page is invalid");
	p = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fds[0], 0);
	if (p == MAP_FAILED)
		return err_set(err, -errno, "cannot map the counter page: %s", err_str(-errno));
	g->slots = p;
	g->page_bytes = w->bytes;
	g->n_slots = w->n_slots;
	memcpy(g->uuid, w->uuid.data, GPU_UUID_BYTES);
	snprintf(g->route, sizeof(g->route), "%s", w->route);
	return 0;
}

/* Choose the driver for the kind of memory that the executor uses. */
static int gpu_link_choose_driver(struct client_gpu *g, const char *backend, bool has_cuda,
	const struct err_text *why_not, struct err_text *err)
{
	if (!strcmp(backend, client_gpu_driver_host.name))
		g->driver = &client_gpu_driver_host;
	else if (has_cuda)
		g->driver = &client_gpu_driver_cuda;
	else
		return err_set(err, BPS_EDEVICE, "%s", why_not->s);
	return 0;
}

static int gpu_link_handshake(struct client_gpu *g, const uint8_t *uuid, uint64_t deadline_ns,
	uint32_t timeout_ms, struct err_text *err)
{
	struct local_msg m = {.type = GPU_HELLO};
	struct err_text why_not = {""};
	uint8_t own[GPU_UUID_BYTES];
	bool has_cuda = client_gpu_driver_cuda.uuid(g, own, &why_not) == 0;
	struct local_frame a;
	int rc;

	if (!uuid && has_cuda)
		uuid = own;
	m.gpu_hello = (struct gpu_hello){.abi = LOCAL_ABI,
		.version = BPS_VERSION,
		.uuid = {uuid, uuid ? GPU_UUID_BYTES : 0}};
	rc = gpu_link_request_answer(
		g, &m, NULL, 0, GPU_WELCOME, clock_ms_until_deadline(deadline_ns), &a, err);
	if (rc == BPS_ETIMEDOUT)
		return err_set(err, rc,
			"the GPUs of this machine were not ready for all workers of this machine "
			"within %u ms",
			timeout_ms);
	if (rc < 0)
		return rc;
	if (a.msg.gpu_welcome.code)
		rc = err_set(err, local_code_from_wire(a.msg.gpu_welcome.code, BPS_EDEVICE), "%s",
			has_cuda ? a.msg.gpu_welcome.text : why_not.s);
	if (rc == 0)
		rc = gpu_link_choose_driver(g, a.msg.gpu_welcome.backend, has_cuda, &why_not, err);
	if (rc == 0)
		rc = gpu_link_map_counter_page(g, &a, err);
	local_frame_free(&a);
	return rc;
}

int gpu_link_open(int sock, int agent_sock, const uint8_t *uuid, uint64_t deadline_ns,
	uint32_t timeout_ms, struct client_gpu **ret, struct err_text *err)
{
	struct client_gpu *g = calloc(1, sizeof(*g));
	int rc;

	if (!g) {
		close(sock);
		return err_set(err, -ENOMEM, "out of memory");
	}
	g->sock = sock;
	g->agent_sock = agent_sock;
	g->stop_fd = -1;
	pthread_mutex_init(&g->lock, NULL);
	rc = gpu_link_handshake(g, uuid, deadline_ns, timeout_ms, err);
	if (rc == 0) {
		rc = g->driver->pin(g, err);
		if (rc < 0)
			g->driver = NULL;
	}
	if (rc == 0)
		rc = gpu_link_start_watcher(g, err);
	if (rc < 0) {
		gpu_link_close(g);
		return rc;
	}
	*ret = g;
	return 0;
}

static void gpu_region_destroy(struct client_gpu *g, struct client_gpu_region *r)
{
	if (!r->is_import && g->driver)
		g->driver->unmap(g, r->ptr, r->bytes, r->handle);
	free(r);
}

void gpu_link_close(struct client_gpu *g)
{
	struct client_gpu_region *r;

	if (!g)
		return;
	gpu_link_stop_watcher(g);
	if (g->driver && g->slots) {
		/* After the shutdown, the executor closes its end of the connection too. The
		 * executor keeps the trainer's memory as long as queued work may use it. */
		shutdown(g->sock, SHUT_RDWR);
		gpu_link_poison_slots(g);
		g->driver->settle(g);
	}
	while ((r = g->regions)) {
		g->regions = r->next;
		gpu_region_destroy(g, r);
	}
	if (g->driver && g->slots)
		g->driver->unpin(g);
	if (g->slots)
		munmap(g->slots, g->page_bytes);
	if (g->stop_fd >= 0)
		close(g->stop_fd);
	close(g->sock);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

/* ---- regions ---- */

static int gpu_link_add_region(struct client_gpu *g, uint32_t id, void *ptr, uint64_t bytes,
	bool is_import, void *handle, struct err_text *err)
{
	struct client_gpu_region *r = malloc(sizeof(*r));

	if (!r)
		return err_set(err, -ENOMEM, "out of memory");
	*r = (struct client_gpu_region){g->regions, id, ptr, bytes, is_import, handle};
	g->regions = r;
	return 0;
}

static int gpu_link_map_allocation(struct client_gpu *g, const struct local_frame *a,
	uint64_t bytes, void **ret, struct err_text *err)
{
	const struct gpu_region *m = &a->msg.gpu_region;
	void *ptr = NULL, *handle = NULL;
	int rc;

	if (m->code)
		return err_set(err, local_code_from_wire(m->code, BPS_EDEVICE),
			"the executor cannot allocate %llu bytes of device memory: %s",
			(unsigned long long)bytes, m->text);
	if (m->n_memory != 1 || m->memory->bytes < bytes)
		return err_set(err, BPS_EPROTO, "the executor sent less memory than was requested");
	rc = g->driver->map(g, m->memory, a->fds, a->n_fds, &ptr, &handle, err);
	if (rc < 0)
		return rc;
	rc = gpu_link_add_region(g, m->region, ptr, m->memory->bytes, false, handle, err);
	if (rc < 0)
		g->driver->unmap(g, ptr, m->memory->bytes, handle);
	else
		*ret = ptr;
	return rc;
}

int gpu_link_alloc(
	struct client_gpu *g, uint64_t bytes, uint32_t timeout_ms, void **ret, struct err_text *err)
{
	struct local_msg m = {.type = GPU_ALLOC, .gpu_alloc = {.bytes = bytes}};
	struct local_frame a;
	int rc;

	pthread_mutex_lock(&g->lock);
	rc = gpu_link_request_answer(g, &m, NULL, 0, GPU_REGION, timeout_ms, &a, err);
	if (rc == 0) {
		rc = gpu_link_map_allocation(g, &a, bytes, ret, err);
		local_frame_free(&a);
	}
	pthread_mutex_unlock(&g->lock);
	return rc;
}

static int gpu_link_request_import(
	struct client_gpu *g, void *ptr, uint64_t bytes, uint32_t timeout_ms, struct err_text *err)
{
	struct local_msg m = {.type = GPU_IMPORT};
	char handle[GPU_HANDLE_BYTES];
	struct gpu_memory memory;
	struct local_frame a;
	int fds[LOCAL_FDS_MAX], n, rc;

	n = g->driver->share(g, ptr, bytes, &memory, handle, fds, LOCAL_FDS_MAX, err);
	if (n < 0)
		return n;
	m.gpu_import = (struct gpu_import){&memory, 1};
	rc = gpu_link_request_answer(g, &m, fds, (unsigned)n, GPU_REGION, timeout_ms, &a, err);
	for (int i = 0; i < n; i++)
		close(fds[i]);
	if (rc < 0)
		return rc;
	if (a.msg.gpu_region.code)
		rc = err_set(err, local_code_from_wire(a.msg.gpu_region.code, BPS_EDEVICE),
			"the executor cannot use this memory: %s", a.msg.gpu_region.text);
	else
		rc = gpu_link_add_region(g, a.msg.gpu_region.region, ptr, bytes, true, NULL, err);
	local_frame_free(&a);
	return rc;
}

int gpu_link_import(
	struct client_gpu *g, void *ptr, uint64_t bytes, uint32_t timeout_ms, struct err_text *err)
{
	int rc;

	pthread_mutex_lock(&g->lock);
	rc = gpu_link_request_import(g, ptr, bytes, timeout_ms, err);
	pthread_mutex_unlock(&g->lock);
	return rc;
}

static int gpu_link_release_region(struct client_gpu *g, struct client_gpu_region **at,
	uint32_t timeout_ms, struct err_text *err)
{
	struct client_gpu_region *r = *at;
	struct local_msg m = {.type = GPU_RELEASE, .gpu_release = {.region = r->id}};
	struct local_frame a = {0};
	int rc = gpu_link_request_answer(g, &m, NULL, 0, GPU_RELEASED, timeout_ms, &a, err);

	if (rc < 0)
		return rc;
	/* ENOENT: the executor has already released the region, for an earlier request whose answer
	 * came too late. */
	if (a.msg.gpu_release.code && a.msg.gpu_release.code != ENOENT)
		rc = err_set(err, local_code_from_wire(a.msg.gpu_release.code, BPS_EDEVICE),
			"the executor cannot release this memory: %s", a.msg.gpu_release.text);
	local_frame_free(&a);
	if (rc < 0)
		return rc;
	*at = r->next;
	if (!r->is_import)
		g->driver->settle(g);
	gpu_region_destroy(g, r);
	return 0;
}

int gpu_link_release(struct client_gpu *g, void *ptr, uint32_t timeout_ms, struct err_text *err)
{
	struct client_gpu_region **at;
	int rc;

	pthread_mutex_lock(&g->lock);
	for (at = &g->regions; *at && (*at)->ptr != ptr;)
		at = &(*at)->next;
	rc = *at ? gpu_link_release_region(g, at, timeout_ms, err)
		 : err_set(err, -EINVAL,
			   "%p was neither returned by bps_gpu_alloc nor passed to bps_gpu_import",
			   ptr);
	pthread_mutex_unlock(&g->lock);
	return rc;
}

bool gpu_link_find_region(struct client_gpu *g, const void *ptr, uint64_t bytes,
	uint32_t *ret_region, uint64_t *ret_offset)
{
	const struct client_gpu_region *r;
	uintptr_t at = (uintptr_t)ptr;

	pthread_mutex_lock(&g->lock);
	for (r = g->regions; r; r = r->next) {
		uintptr_t base = (uintptr_t)r->ptr;

		if (at < base || at - base > r->bytes || bytes > r->bytes - (at - base))
			continue;
		*ret_region = r->id;
		*ret_offset = at - base;
		break;
	}
	pthread_mutex_unlock(&g->lock);
	return r != NULL;
}
