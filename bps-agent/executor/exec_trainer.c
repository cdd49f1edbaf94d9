/* Trainers of the executor: their sockets, the GPU memory that they request or share, and their
 * counter pages. Rounds are in engine.c. Thread: the executor's. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bps-agent/executor/exec.h"
#include "common/base/log.h"
#include "common/os/memfd.h"

#define PAGE 4096u

_Static_assert(GPU_MEMORY_VERSION == DEVICE_DESC_VERSION && GPU_MEMORY_FD == (int)DEVICE_DESC_FD &&
		       GPU_MEMORY_IPC == (int)DEVICE_DESC_IPC &&
		       GPU_MEMORY_HOST == (int)DEVICE_DESC_HOST &&
		       GPU_UUID_BYTES == DEVICE_UUID_BYTES,
	"devices and messages describe memory in the same way");

static void exec_trainer_close_second(struct exec_trainer *t)
{
	if (t->second >= 0)
		close(t->second);
	t->second = -1;
}

/* In state MEETING, undo the HELLO of a trainer whose bps_gpu_open has timed out. The trainer may
 * call bps_gpu_open again and send another HELLO. */
static void exec_trainer_undo_hello(struct exec_trainer *t)
{
	if (t->slots)
		munmap(t->slots, t->page_bytes);
	if (t->page_fd >= 0)
		close(t->page_fd);
	t->slots = NULL;
	t->page_fd = t->gpu = -1;
	t->has_hello = false;
}

/* Disconnect the trainer. In RUNNING, the trainer's memory stays until exec_trainer_free, because
 * queued work may use the memory. */
static void exec_trainer_disconnect(struct exec *x, uint32_t worker)
{
	struct exec_trainer *t = &x->trainers[worker];

	if (t->sock < 0)
		return;
	exec_trainer_close_second(t);
	close(t->sock);
	t->sock = -1;
	if (x->engine)
		engine_member_gone(x->engine, worker);
	else if (x->state == EXEC_MEETING)
		exec_trainer_undo_hello(t);
}

static void send_to_trainer(
	struct exec *x, uint32_t worker, struct local_msg *m, const int *fds, unsigned n)
{
	struct exec_trainer *t = &x->trainers[worker];
	int rc = t->sock >= 0 ? local_send(t->sock, m, fds, n, 0) : 0;

	if (rc < 0) {
		log_rated(LOG_WARN,
			"disconnecting a trainer that does not accept a message: pid=%u type=%s "
			"err=%s",
			t->pid, local_type_name(m->type), err_str(rc));
		exec_trainer_disconnect(x, worker);
	}
}

/* Keep sock, which is one of the trainer's two sockets, and close the other socket. If HELLO has
 * arrived on the closed socket, undo the HELLO. */
static void exec_trainer_keep_socket(struct exec_trainer *t, int sock)
{
	if (sock != t->sock) {
		t->second = t->sock;
		t->sock = sock;
		exec_trainer_undo_hello(t);
	}
	exec_trainer_close_second(t);
}

/* Close `sock`, one of the trainer's two sockets, because `sock` cannot be used any more. Keep the
 * other socket. */
static void exec_trainer_drop_socket(struct exec_trainer *t, int sock)
{
	exec_trainer_keep_socket(t, sock == t->sock ? t->second : t->sock);
}

static bool socket_is_hung_up(int sock)
{
	struct pollfd p = {.fd = sock, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0;
}

bool exec_trainer_waits(struct exec *x, uint32_t worker)
{
	struct exec_trainer *t = &x->trainers[worker];

	if (t->sock >= 0 && socket_is_hung_up(t->sock)) {
		if (t->second >= 0)
			exec_trainer_drop_socket(t, t->sock);
		else
			exec_trainer_disconnect(x, worker);
	}
	return t->has_hello;
}

void exec_trainers_met(struct exec *x)
{
	for (uint32_t w = 0; w < x->n_workers; w++)
		exec_trainer_close_second(&x->trainers[w]);
}

void exec_trainer_add(struct exec *x, uint32_t worker, uint32_t pid, int sock)
{
	struct exec_trainer *t = worker < x->n_workers ? &x->trainers[worker] : NULL;

	/* A trainer can have two sockets, for one of two reasons.
	 * (a) The agent was restarted, and the old agent process did not record that it had sent
	 * the trainer a socket. The new agent process then sends another socket. The trainer uses
	 * the socket that arrives first.
	 * (b) The trainer has closed its old socket and requested a new one, but the executor has
	 * not detected yet that the old socket is closed. */
	if (t && t->second >= 0 && socket_is_hung_up(t->second))
		exec_trainer_drop_socket(t, t->second);
	if (t && t->second >= 0 && socket_is_hung_up(t->sock))
		exec_trainer_drop_socket(t, t->sock);
	if (!t || (t->has_hello && x->state != EXEC_MEETING) || t->second >= 0) {
		close(sock);
		return;
	}
	if (t->sock >= 0)
		t->second = sock;
	else
		t->sock = sock;
	t->pid = pid;
}

/* ---- counter page ---- */

static int exec_trainer_make_page(struct exec *x, struct exec_trainer *t, struct err_text *err)
{
	uint64_t bytes = (uint64_t)x->n_slots * GPU_SLOT_BYTES;
	int rc;

	t->page_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
	rc = memfd_create_sealed(
		"bps-counters", t->page_bytes, MEMFD_FIXED_SIZE | F_SEAL_SEAL, &t->page_fd);
	if (rc)
		return err_set(err, rc, "cannot make a counter page: %s", strerror(-rc));
	t->slots = mmap(NULL, t->page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->page_fd, 0);
	if (t->slots != MAP_FAILED)
		return 0;
	t->slots = NULL;
	return err_set(err, -errno, "cannot map a counter page: %s", strerror(errno));
}

/* ---- HELLO ---- */

/* Find the trainer's GPU by the uuid in its HELLO. If HELLO names no GPU, worker w gets the GPU
 * with index w modulo the number of GPUs. Errors: a negative code, and err gets the text. */
static int exec_trainer_choose_gpu(
	struct exec *x, uint32_t worker, const struct gpu_hello *h, struct err_text *err)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	int n = x->ops->gpus(x->dev, gpus, DEVICE_GPUS_MAX);

	if (n <= 0)
		return err_set(err, BPS_EDEVICE, "the executor finds no GPU: %s", x->dev->why.s);
	if (!h->uuid.bytes && !(gpus[0].caps & DEVICE_CAP_PLAIN))
		return err_set(err, BPS_EDEVICE, "the trainer has not named its GPU");
	if (!h->uuid.bytes)
		t->gpu = (int)worker % n;
	else if (h->uuid.bytes == GPU_UUID_BYTES)
		t->gpu = device_find_gpu_by_uuid(x->dev, h->uuid.data);
	else
		t->gpu = -1;
	if (t->gpu < 0)
		return err_set(err, BPS_EDEVICE,
			"the GPU of local rank %u is not among the %d GPUs that bps-agent can use "
			"(is the GPU hidden from bps-agent?)",
			worker, n);
	memcpy(t->uuid, gpus[t->gpu].uuid, GPU_UUID_BYTES);
	return 0;
}

static void exec_trainer_refuse_hello(
	struct exec *x, uint32_t worker, uint32_t seq, int rc, const char *text)
{
	struct local_msg m = {.type = GPU_WELCOME, .seq = seq};
	uint8_t none[GPU_UUID_BYTES] = {0};

	m.gpu_welcome = (struct gpu_welcome){.code = (uint32_t)-rc,
		.text = text,
		.backend = x->ops->name,
		.route = "",
		.uuid = {none, sizeof(none)}};
	send_to_trainer(x, worker, &m, NULL, 0);
}

static void on_gpu_hello_message(struct exec *x, uint32_t worker, const struct local_msg *m)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct err_text err = {""};
	int rc;

	if (t->has_hello) {
		exec_trainer_disconnect(x, worker);
		return;
	}
	if (m->gpu_hello.abi != LOCAL_ABI)
		rc = err_set(&err, BPS_EVERSION,
			"libbpsclient %s uses protocol version %u, but bps-agent-%s %s uses "
			"version %u: install both from one release",
			m->gpu_hello.version, m->gpu_hello.abi, x->ops->name, BPS_VERSION,
			LOCAL_ABI);
	else
		rc = exec_trainer_choose_gpu(x, worker, &m->gpu_hello, &err);
	if (rc == 0)
		rc = exec_trainer_make_page(x, t, &err);
	/* Only this trainer's HELLO has failed. The trainer may send HELLO again and name another
	 * GPU. */
	if (rc == BPS_EDEVICE) {
		exec_trainer_refuse_hello(x, worker, m->seq, rc, err.s);
		return;
	}
	if (rc < 0) {
		exec_fail(x, rc, err.s);
		return;
	}
	t->has_hello = true;
	t->hello_seq = m->seq;
}

void exec_welcome_trainers(struct exec *x)
{
	for (uint32_t w = 0; w < x->n_workers; w++) {
		struct exec_trainer *t = &x->trainers[w];
		struct local_msg m = {.type = GPU_WELCOME, .seq = t->hello_seq};

		m.gpu_welcome = (struct gpu_welcome){.text = "",
			.backend = x->ops->name,
			.route = x->choice.route.name,
			.uuid = {t->uuid, GPU_UUID_BYTES},
			.n_slots = x->n_slots,
			.bytes = t->page_bytes};
		send_to_trainer(x, w, &m, &t->page_fd, 1);
		close(t->page_fd);
		t->page_fd = -1;
	}
}

/* ---- regions ---- */

static struct exec_region *exec_trainer_find_region(const struct exec_trainer *t, uint32_t id)
{
	struct exec_region *r;

	TAILQ_FOREACH (r, &t->regions, link)
		if (r->id == id)
			return r;
	return NULL;
}

struct device_mem *exec_region_memory(const struct exec *x, uint32_t worker, uint32_t region)
{
	const struct exec_region *r = exec_trainer_find_region(&x->trainers[worker], region);

	return r ? r->mem : NULL;
}

static int exec_trainer_add_region(struct exec_trainer *t, struct device_mem *mem, uint32_t *ret_id)
{
	struct exec_region *r = malloc(sizeof(*r));

	if (!r)
		return -ENOMEM;
	*r = (struct exec_region){.id = ++t->next_region, .mem = mem};
	TAILQ_INSERT_TAIL(&t->regions, r, link);
	t->n_regions++;
	*ret_id = r->id;
	return 0;
}

static void exec_answer_region_request(
	struct exec *x, uint32_t worker, uint32_t seq, int rc, const char *text, uint32_t id)
{
	struct local_msg m = {.type = GPU_REGION, .seq = seq};

	m.gpu_region = (struct gpu_region){
		.code = rc < 0 ? (uint32_t)-rc : 0, .text = rc < 0 ? text : "", .region = id};
	send_to_trainer(x, worker, &m, NULL, 0);
}

/* List the other GPUs of the job that can copy into the memory of this trainer's GPU. Returns their
 * number. */
static int exec_list_peer_gpus(const struct exec *x, const struct exec_trainer *t, int *ret)
{
	int n = 0;

	for (uint32_t w = 0; w < x->n_workers; w++) {
		int gpu = x->trainers[w].gpu;
		bool is_new = gpu != t->gpu;

		for (int i = 0; i < n; i++)
			is_new &= ret[i] != gpu;
		if (is_new && x->ops->peer(x->dev, gpu, t->gpu) > DEVICE_LINK_NONE)
			ret[n++] = gpu;
	}
	return n;
}

static struct gpu_memory gpu_memory_of_desc(const struct device_desc *d)
{
	return (struct gpu_memory){.version = d->version,
		.kind = d->kind,
		.uuid = {d->uuid, sizeof(d->uuid)},
		.bytes = d->bytes,
		.chunk_bytes = d->chunk_bytes,
		.offset = d->offset,
		.buffer_id = d->buffer_id,
		.handle = {d->blob, sizeof(d->blob)}};
}

static int exec_trainer_alloc_region(struct exec *x, struct exec_trainer *t, uint64_t bytes,
	uint32_t *ret_id, struct device_desc *desc, int *fds)
{
	int also[DEVICE_GPUS_MAX], n_also = exec_list_peer_gpus(x, t, also), n, rc;
	struct device_mem *mem;

	rc = x->ops->alloc(x->dev, t->gpu, bytes, also, n_also, &mem);
	if (rc < 0)
		return rc;
	n = x->ops->share(mem, desc, fds, LOCAL_FDS_MAX);
	if (n >= 0)
		rc = exec_trainer_add_region(t, mem, ret_id);
	if (n >= 0 && rc == 0)
		return n;
	for (int i = 0; i < n; i++)
		close(fds[i]);
	x->ops->drop(mem);
	return n < 0 ? n : rc;
}

static void on_gpu_alloc_message(struct exec *x, uint32_t worker, const struct local_msg *in)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct local_msg m = {.type = GPU_REGION, .seq = in->seq};
	struct gpu_memory memory;
	struct device_desc desc;
	int fds[LOCAL_FDS_MAX], n = -EMFILE;
	uint32_t id = 0;

	if (t->n_regions < EXEC_REGIONS_MAX)
		n = exec_trainer_alloc_region(x, t, in->gpu_alloc.bytes, &id, &desc, fds);
	if (n < 0) {
		exec_answer_region_request(x, worker, in->seq, n,
			n == -EMFILE ? "the trainer has too many regions of GPU memory"
				     : x->dev->why.s,
			0);
		return;
	}
	memory = gpu_memory_of_desc(&desc);
	m.gpu_region =
		(struct gpu_region){.text = "", .region = id, .memory = &memory, .n_memory = 1};
	send_to_trainer(x, worker, &m, fds, (unsigned)n);
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

static int desc_of_gpu_import(
	const struct gpu_import *m, unsigned n_fds, struct device_desc *ret, struct err_text *err)
{
	const struct gpu_memory *g = m->memory;

	if (m->n_memory != 1 || g->uuid.bytes != GPU_UUID_BYTES ||
		g->handle.bytes > sizeof(ret->blob))
		return err_set(err, -EINVAL, "the description of GPU memory is missing or invalid");
	*ret = (struct device_desc){.version = g->version,
		.kind = g->kind,
		.n_fds = n_fds,
		.bytes = g->bytes,
		.chunk_bytes = g->chunk_bytes,
		.offset = g->offset,
		.buffer_id = g->buffer_id};
	memcpy(ret->uuid, g->uuid.data, GPU_UUID_BYTES);
	memcpy(ret->blob, g->handle.data, g->handle.bytes);
	return device_desc_check(ret, n_fds, err);
}

static void on_gpu_import_message(
	struct exec *x, uint32_t worker, const struct local_msg *m, const int *fds, unsigned n_fds)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct err_text err = {"the trainer has too many regions of GPU memory"};
	struct device_mem *mem = NULL;
	struct device_desc desc;
	uint32_t id = 0;
	int rc = -EMFILE;

	if (t->n_regions < EXEC_REGIONS_MAX)
		rc = desc_of_gpu_import(&m->gpu_import, n_fds, &desc, &err);
	if (rc == 0) {
		rc = x->ops->import(x->dev, t->gpu, &desc, fds, (int)n_fds, &mem);
		if (rc < 0)
			err = x->dev->why;
	}
	if (rc == 0) {
		rc = exec_trainer_add_region(t, mem, &id);
		if (rc < 0)
			x->ops->drop(mem);
	}
	exec_answer_region_request(x, worker, m->seq, rc, err.s, id);
}

static void on_gpu_release_message(struct exec *x, uint32_t worker, const struct local_msg *in)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct exec_region *r = exec_trainer_find_region(t, in->gpu_release.region);
	struct local_msg m = {.type = GPU_RELEASED, .seq = in->seq};
	int rc = r ? engine_cancel_tensors_of_memory(x->engine, r->mem) : -ENOENT;

	m.gpu_release = (struct gpu_release){.code = (uint32_t)-rc,
		.text = rc == -EBUSY ? "a tensor in the memory is in flight" : "",
		.region = in->gpu_release.region};
	if (rc == 0) {
		exec_entry_forget(x, r->mem);
		TAILQ_REMOVE(&t->regions, r, link);
		t->n_regions--;
		x->ops->drop(r->mem);
		free(r);
	}
	send_to_trainer(x, worker, &m, NULL, 0);
}

/* ---- socket ---- */

static void on_gpu_trainer_message(struct exec *x, uint32_t worker, int sock,
	const struct local_msg *m, const int *fds, unsigned n_fds)
{
	bool is_running = x->state == EXEC_RUNNING;

	/* the trainer uses the socket on which this message arrived, so keep this socket and close
	 * the trainer's other socket, if there is one */
	exec_trainer_keep_socket(&x->trainers[worker], sock);
	if (m->type == GPU_HELLO && x->state == EXEC_MEETING)
		on_gpu_hello_message(x, worker, m);
	else if (m->type == GPU_ALLOC && is_running)
		on_gpu_alloc_message(x, worker, m);
	else if (m->type == GPU_IMPORT && is_running)
		on_gpu_import_message(x, worker, m, fds, n_fds);
	else if (m->type == GPU_RELEASE && is_running)
		on_gpu_release_message(x, worker, m);
	else if (x->state != EXEC_ENDING)
		exec_trainer_disconnect(x, worker);
}

void exec_trainer_read(struct exec *x, uint32_t worker, int sock)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct err_text err = {""};
	struct local_frame f;
	int rc;

	/* The trainer has closed this socket. Keep the trainer's other socket, and ignore a HELLO
	 * that this socket may still contain. */
	if (t->second >= 0 && socket_is_hung_up(sock)) {
		exec_trainer_drop_socket(t, sock);
		return;
	}
	rc = local_recv(sock, &f, 0, &err);
	if (rc == 1)
		on_gpu_trainer_message(x, worker, sock, &f.msg, f.fds, f.n_fds);
	else if (rc != -EAGAIN && t->second >= 0)
		exec_trainer_drop_socket(t, sock);
	else if (rc != -EAGAIN)
		exec_trainer_disconnect(x, worker);
	if (rc == BPS_EPROTO)
		log_rated(LOG_WARN,
			"disconnecting a trainer that sent an invalid message: pid=%u why=%s",
			t->pid, err.s);
	local_frame_free(&f);
}

void exec_trainer_free(struct exec *x, uint32_t worker)
{
	struct exec_trainer *t = &x->trainers[worker];
	struct exec_region *r;

	while ((r = TAILQ_FIRST(&t->regions))) {
		TAILQ_REMOVE(&t->regions, r, link);
		x->ops->drop(r->mem);
		free(r);
	}
	if (t->slots)
		munmap(t->slots, t->page_bytes);
	exec_trainer_close_second(t);
	if (t->page_fd >= 0)
		close(t->page_fd);
	if (t->sock >= 0)
		close(t->sock);
	t->slots = NULL;
	t->page_fd = t->sock = -1;
}
