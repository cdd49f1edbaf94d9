/* Serves HELLO: requests the trainer's control page, attaches the trainer to its job and answers.
 * Jobs are in job.c. Thread: the data thread. */
#include "bps-agent/trainers/hello.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bps-agent/handover/handover_write.h"
#include "bps-agent/trainers/job.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/failpoint.h"

/* Reset the trainer's eventfd. The trainer has the same open file and may clear O_NONBLOCK, so only
 * a read with RWF_NOWAIT is sure not to block. */
static void on_trainer_eventfd(uv_poll_t *p, int status, int events)
{
	struct trainer *t = p->data;
	uint64_t n;
	struct iovec iov = {&n, sizeof(n)};

	(void)events;
	(void)status;
	if (preadv2(t->efd, &iov, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN)
		/* disconnect, because otherwise the eventfd would stay readable, and the loop would
		 * never sleep */
		trainer_disconnect(t, false, strerror(errno));
}

/* A HELLO whose control page is being made. */
struct pending_hello {
	struct trainer *trainer;
	struct memory_request request;
	struct local_msg m;
	void *mem; /* memory that holds the strings of m */
};

void trainer_welcome(struct trainer *t, uint32_t seq, int control_fd)
{
	struct local_msg reply = {.type = LOCAL_WELCOME,
		.seq = seq,
		.welcome = {.text = "", .n_types = LOCAL_TYPE_END}};

	trainer_send_message(t, &reply, (int[]){control_fd, t->efd}, 2);
}

void trainer_listen_event(struct trainer *t)
{
	uv_poll_init(dataloop_uv(t->agent->loop), &t->efd_poll, t->efd);
	t->efd_poll.data = t;
	t->n_handles++;
	uv_poll_start(&t->efd_poll, UV_READABLE, on_trainer_eventfd);
}

static void trainer_refuse_hello(struct trainer *t, uint32_t seq, int rc, const char *why)
{
	struct local_msg reply = {
		.type = LOCAL_WELCOME, .seq = seq, .welcome = {.code = (uint32_t)-rc, .text = why}};

	trainer_send_message(t, &reply, NULL, 0);
	trainer_disconnect(t, false, why);
}

static void hello_attach_and_answer(struct trainer *t, struct pending_hello *g)
{
	struct err_text *err = &g->request.err;
	int fd = g->request.memory.fd, rc;

	t->control = g->request.memory.mem;
	local_control_init(t->control, t->sq_entries, t->max_tensors);
	rc = job_attach_trainer(t, &g->m.hello, err);
	if (rc == 0)
		rc = handover_write_trainer(t, g->m.seq, fd, err);
	if (rc == 0) {
		trainer_send_join(t);
		trainer_welcome(t, g->m.seq, fd);
		trainer_answered(t);
		trainer_listen_event(t);
	} else {
		trainer_refuse_hello(t, g->m.seq, rc, err->s);
	}
	trainer_set_held(t, false);
	close(fd);
}

static void on_control_page_made(struct memory_request *m)
{
	struct pending_hello *g = m->user;
	struct trainer *t = g->trainer;

	if (m->rc < 0 || t->state == TRAINER_GONE) {
		quota_give(t->user, QUOTA_MEMORY, m->bytes);
		if (m->rc == 0)
			memory_thread_drop(t->agent->memory_thread, &m->memory);
		/* After a cancellation, do not send an answer, because this agent process is about
		 * to end. The next agent process serves the trainer. */
		else if (m->rc != -ECANCELED)
			trainer_refuse_hello(t, g->m.seq, m->rc, m->err.s);
	} else {
		hello_attach_and_answer(t, g);
	}
	explicit_bzero((void *)(uintptr_t)g->m.hello.token.data, g->m.hello.token.bytes);
	free(g->mem);
	free(g);
	trainer_unref(t);
}

/* Request the trainer's control page from the memory thread. Zeroing the page takes time, and a
 * trainer that reconnects again and again must not delay other trainers. Owns: takes *mem, unless
 * the call fails. */
static int trainer_request_control(
	struct trainer *t, const struct local_msg *m, void **mem, struct err_text *err)
{
	uint32_t n = t->agent->cfg.limits.max_tensors;
	struct pending_hello *g;
	int rc;

	t->max_tensors = n;
	for (t->sq_entries = 1; t->sq_entries < n;)
		t->sq_entries *= 2;
	t->tensors = calloc(n, sizeof(struct tensor *));
	t->efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	g = malloc(sizeof(*g));
	if (!t->tensors || t->efd < 0 || !g) {
		free(g);
		return err_set(err, -ENOMEM, "the agent is out of memory or descriptors");
	}
	t->control_bytes = local_control_bytes(t->sq_entries, n);
	*g = (struct pending_hello){.trainer = t, .m = *m, .mem = *mem};
	g->request = (struct memory_request){.name = "bps-control",
		.bytes = t->control_bytes,
		.uid = t->uid,
		.done = on_control_page_made,
		.user = g};
	rc = quota_take(t->user, QUOTA_MEMORY, t->control_bytes, err);
	if (rc < 0) {
		free(g);
		return rc;
	}
	rc = memory_thread_make(t->agent->memory_thread, &g->request);
	if (rc < 0) {
		quota_give(t->user, QUOTA_MEMORY, t->control_bytes);
		free(g);
		return err_set(err, rc, "the agent is stopping");
	}
	*mem = NULL;
	trainer_ref(t);
	trainer_set_held(t, true);
	return 0;
}

void on_hello_of_trainer(struct trainer *t, const struct local_msg *m, void **mem)
{
	struct err_text err = {0};
	int rc;

	FAILPOINT(AGENT_TRAINER_HELLO);
	if (t->may_repeat_message && t->live)
		/* Ignore a HELLO that the previous process answered, or that this process answered
		 * when it restored the trainer. */
		return;
	if (t->state != TRAINER_GREETING) {
		trainer_disconnect(t, true, "the trainer sent HELLO twice");
		return;
	}
	uv_timer_stop(&t->greeting);
	handover_write_socket(t);
	if (m->hello.abi != LOCAL_ABI)
		rc = err_set(&err, BPS_EVERSION,
			"libbpsclient %s uses protocol version %u, but this bps-agent %s uses "
			"version %u: install both from one release",
			m->hello.version, m->hello.abi, BPS_VERSION, LOCAL_ABI);
	else
		rc = trainer_request_control(t, m, mem, &err);
	if (rc < 0) {
		explicit_bzero((void *)(uintptr_t)m->hello.token.data, m->hello.token.bytes);
		trainer_refuse_hello(t, m->seq, rc, err.s);
	}
}
