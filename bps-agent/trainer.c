/* One trainer: its socket, its control page, its ring. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "bps-agent/agent.h"
#include "common/clock.h"
#include "common/log.h"

/* A connection must say HELLO within this time. */
#define GREETING_MS 5000
/* Messages that are thrown away at the end; its socket holds fewer. */
#define DRAIN_MAX 4096
/* How often whoever closes is interrupted: no trainer makes lingering sockets much faster. */
#define HURRY_NS     50000
#define HURRY_SIGNAL SIGUSR2

#ifndef sigev_notify_thread_id /* before glibc 2.40 */
#define sigev_notify_thread_id _sigev_un._tid
#endif
/* Submissions taken from one ring before the others have their turn. */
#define RING_BATCH 256
/* Open because of one trainer, but for arenas: socket, eventfd, pidfd. */
#define TRAINER_FDS 3

static const struct {
	const char *name;
	unsigned next;
} states[] = {
	[TRAINER_GREETING] = {"greeting", 1u << TRAINER_JOINING},
	[TRAINER_JOINING] = {"joining", 1u << TRAINER_ATTACHED | 1u << TRAINER_OVER},
	[TRAINER_ATTACHED] = {"attached", 1u << TRAINER_FINISHING | 1u << TRAINER_OVER},
	[TRAINER_FINISHING] = {"finishing", 1u << TRAINER_OVER},
	[TRAINER_OVER] = {"over", 0},
	[TRAINER_GONE] = {"gone", 0},
};

void trainer_set_state(struct trainer *t, enum trainer_state state)
{
	if (state != TRAINER_GONE && !(states[t->state].next >> state & 1)) {
		log_error("trainer cannot go from %s to %s: pid=%d", states[t->state].name,
			states[state].name, (int)t->pid);
		return;
	}
	log_debug("trainer %s to %s: pid=%d job=%s rank=%d", states[t->state].name,
		states[state].name, (int)t->pid, t->job ? t->job->name : "-", (int)t->rank);
	t->state = state;
}

/* ---- closing ---- */

struct closing {
	uv_work_t work;
	int sock; /* shut down */
};

/* What a trainer has sent and nobody has read would reset its side, and it would not read why it is
 * dropped. */
static void drain(int sock)
{
	char c;

	for (unsigned i = 0; i < DRAIN_MAX && recv(sock, &c, sizeof(c), MSG_DONTWAIT) > 0; i++)
		;
}

static void on_hurry(int sig)
{
	(void)sig; /* to have come is all that it does */
}

/* From now on this thread is interrupted all the time: a socket that lingers gives up then.
 * Otherwise a handful of them would keep all threads that close for as long as their sender likes,
 * while the sockets of everybody else stay open behind them, and the agent could not end. */
static bool hurry_begin(timer_t *ret)
{
	struct sigaction act = {.sa_handler = on_hurry};
	struct sigevent ev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = HURRY_SIGNAL};
	struct itimerspec every = {.it_value.tv_nsec = HURRY_NS, .it_interval.tv_nsec = HURRY_NS};
	sigset_t set;

	ev.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	sigemptyset(&set);
	sigaddset(&set, HURRY_SIGNAL);
	if (sigaction(HURRY_SIGNAL, &act, NULL) < 0 || timer_create(CLOCK_MONOTONIC, &ev, ret) < 0)
		return false;
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	timer_settime(*ret, 0, &every, NULL);
	return true;
}

static void hurry_end(timer_t timer)
{
	sigset_t set;

	timer_delete(timer);
	sigemptyset(&set);
	sigaddset(&set, HURRY_SIGNAL);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void close_it(uv_work_t *w)
{
	const struct closing *c = w->data;
	timer_t timer;
	bool is_hurried = hurry_begin(&timer);

	drain(c->sock);
	close(c->sock);
	if (is_hurried)
		hurry_end(timer);
}

static void free_closing(uv_work_t *w, int status)
{
	(void)status;
	free(w->data);
}

/* Close a trainer's socket. It can make that slow: the descriptors that it has sent go with it (a
 * TCP socket that lingers, a file system that answers late). So not on the loop's thread. */
static void close_socket(struct agent *a, int sock)
{
	struct closing *c = malloc(sizeof(*c));

	shutdown(sock, SHUT_RDWR); /* the other side sees it now */
	if (c) {
		c->sock = sock;
		c->work.data = c;
	}
	if (!c || uv_queue_work(dataloop_uv(a->loop), &c->work, close_it, free_closing) < 0) {
		free(c);
		close(sock);
	}
}

static void free_if_closed(struct trainer *t)
{
	if (t->n_handles)
		return;
	if (t->control)
		maker_drop(t->agent->maker,
			&(struct memory){.fd = -1, .mem = t->control, .bytes = t->control_bytes});
	if (t->efd >= 0)
		close(t->efd);
	if (t->pidfd >= 0)
		close(t->pidfd);
	close_socket(t->agent, t->sock);
	quota_give(t->user, QUOTA_MEMORY, t->control ? t->control_bytes : 0);
	quota_give(t->user, QUOTA_DESCRIPTORS, TRAINER_FDS);
	quota_put(t->user);
	declare_free(t);
	free(t->tensors);
	free(t);
}

static void on_closed(uv_handle_t *h)
{
	struct trainer *t = h->data;

	t->n_handles--;
	free_if_closed(t);
}

void trainer_keep(struct trainer *t)
{
	t->n_handles++;
}

void trainer_put(struct trainer *t)
{
	t->n_handles--;
	if (t->state == TRAINER_GONE)
		free_if_closed(t);
}

static void close_handle(uv_handle_t *h)
{
	if (h->data)
		uv_close(h, on_closed);
}

void trainer_drop(struct trainer *t, bool is_fault, const char *why)
{
	if (t->state == TRAINER_GONE)
		return;
	if (is_fault)
		log_rated(LOG_WARN,
			"trainer broke the rules, dropping it: pid=%d uid=%u job=%s rank=%d why=%s",
			(int)t->pid, (unsigned)t->uid, t->job ? t->job->name : "-", (int)t->rank,
			why);
	else
		log_debug("trainer left: pid=%d why=%s", (int)t->pid, why);
	if (t->job)
		job_detach(t, why);
	trainer_set_state(t, TRAINER_GONE);
	TAILQ_REMOVE(&t->agent->trainers, t, link);
	t->agent->n_trainers--;
	quota_give(t->user, QUOTA_TRAINERS, 1);
	t->n_handles++; /* keep it until all are on their way */
	close_handle((uv_handle_t *)&t->sock_poll);
	close_handle((uv_handle_t *)&t->efd_poll);
	close_handle((uv_handle_t *)&t->pid_poll);
	close_handle((uv_handle_t *)&t->greeting);
	close_handle((uv_handle_t *)&t->slowed);
	t->n_handles--;
	free_if_closed(t);
}

void trainer_send(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds)
{
	int rc;

	if (t->state == TRAINER_GONE)
		return;
	rc = local_send(t->sock, m, fds, n_fds, 0);
	/* Not dropped from here: the caller may be walking a list that it is on. Its socket will
	 * say so. */
	if (rc < 0) {
		log_rated(LOG_WARN, "trainer does not take a message: pid=%d type=%s err=%s",
			(int)t->pid, local_type_name(m->type), err_str(rc));
		shutdown(t->sock, SHUT_RDWR);
	}
}

/* ---- ring ---- */

bool trainer_poll_ring(struct trainer *t)
{
	struct local_sqe e;
	struct err_text err;
	bool any = false;

	if (!t->control)
		return false;
	for (unsigned i = 0; i < RING_BATCH; i++) {
		if (!local_sq_pop(t->control, t->sq_entries, &t->sq_head, &e))
			break;
		any = true;
		if (tensor_submit(t, &e, &err) < 0) {
			trainer_drop(t, true, err.s);
			break;
		}
	}
	return any;
}

bool trainer_may_sleep(struct trainer *t)
{
	return !t->control || local_sq_sleep(t->control, t->sq_entries, t->sq_head);
}

void trainer_awake(struct trainer *t)
{
	if (t->control)
		local_sq_awake(t->control);
}

void trainer_done(struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers)
{
	local_done(t->control, t->sq_entries, index, round, status, workers);
	t->completed++;
	t->is_dirty = true;
	t->agent->has_dirty = true;
}

void trainer_flush(struct agent *a)
{
	struct trainer *t;

	if (!a->has_dirty)
		return;
	a->has_dirty = false;
	TAILQ_FOREACH(t, &a->trainers, link)
	{
		if (!t->is_dirty)
			continue;
		t->is_dirty = false;
		local_done_wake(t->control);
	}
}

/* ---- socket ---- */

/* The trainer shares its flags and may have taken O_NONBLOCK away and the event too: only
 * RWF_NOWAIT does not block. */
static void on_eventfd(uv_poll_t *p, int status, int events)
{
	struct trainer *t = p->data;
	uint64_t n;
	struct iovec iov = {&n, sizeof(n)};

	(void)events;
	(void)status;
	if (preadv2(t->efd, &iov, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN)
		trainer_drop(t, false, strerror(errno)); /* it would be ready for ever */
}

/* ---- HELLO ---- */

/* One whose control page is being made. */
struct greeting {
	struct trainer *trainer;
	struct making making;
	struct local_msg m;
	void *mem; /* of m */
};

static void welcome(struct trainer *t, uint32_t seq, int fd, int rc, const struct err_text *err)
{
	struct local_msg reply = {.type = LOCAL_WELCOME, .seq = seq};

	reply.welcome.code = rc < 0 ? (uint32_t)-rc : 0;
	reply.welcome.text = err->s;
	trainer_send(t, &reply, (int[]){fd, t->efd}, rc < 0 ? 0 : 2);
	if (rc < 0) {
		trainer_drop(t, false, err->s);
		return;
	}
	uv_poll_init(dataloop_uv(t->agent->loop), &t->efd_poll, t->efd);
	t->efd_poll.data = t;
	t->n_handles++;
	uv_poll_start(&t->efd_poll, UV_READABLE, on_eventfd);
}

static void take_control(struct trainer *t, struct greeting *g)
{
	struct err_text *err = &g->making.err;
	int fd = g->making.memory.fd, rc;

	t->control = g->making.memory.mem;
	local_control_init(t->control, t->sq_entries, t->max_tensors);
	rc = job_attach(t, &g->m.hello, err);
	trainer_hold(t, false);
	welcome(t, g->m.seq, fd, rc, err);
	close(fd);
}

static void control_made(struct making *m)
{
	struct greeting *g = m->user;
	struct trainer *t = g->trainer;

	if (m->rc < 0 || t->state == TRAINER_GONE) {
		quota_give(t->user, QUOTA_MEMORY, m->bytes);
		if (m->rc == 0)
			maker_drop(t->agent->maker, &m->memory);
		else
			welcome(t, g->m.seq, -1, m->rc, &m->err);
	} else {
		take_control(t, g);
	}
	explicit_bzero((void *)(uintptr_t)g->m.hello.token.data, g->m.hello.token.bytes);
	free(g->mem);
	free(g);
	trainer_put(t);
}

/* Its control page is made elsewhere: zeroing takes a while, and who opens and closes all the time
 * shall slow down nobody else. Owns: takes *mem unless it fails. */
static int make_control(
	struct trainer *t, const struct local_msg *m, void **mem, struct err_text *err)
{
	uint32_t n = t->agent->cfg.limits.max_tensors;
	struct greeting *g;
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
	*g = (struct greeting){.trainer = t, .m = *m, .mem = *mem};
	g->making = (struct making){
		.name = "bps-control", .bytes = t->control_bytes, .done = control_made, .user = g};
	rc = quota_take(t->user, QUOTA_MEMORY, t->control_bytes, err);
	if (rc < 0) {
		free(g);
		return rc;
	}
	rc = maker_make(t->agent->maker, &g->making);
	if (rc < 0) {
		quota_give(t->user, QUOTA_MEMORY, t->control_bytes);
		free(g);
		return err_set(err, rc, "the agent stops");
	}
	*mem = NULL;
	trainer_keep(t);
	trainer_hold(t, true);
	return 0;
}

static void on_hello(struct trainer *t, const struct local_msg *m, void **mem)
{
	struct err_text err = {0};
	int rc;

	if (t->state != TRAINER_GREETING) {
		trainer_drop(t, true, "a second HELLO");
		return;
	}
	uv_timer_stop(&t->greeting);
	if (m->hello.abi != LOCAL_ABI)
		rc = err_set(&err, BPS_EVERSION,
			"libbpsclient %s speaks version %u, this bps-agent %s speaks %u: install "
			"both from one release",
			m->hello.version, m->hello.abi, BPS_VERSION, LOCAL_ABI);
	else
		rc = make_control(t, m, mem, &err);
	if (rc < 0) {
		explicit_bzero((void *)(uintptr_t)m->hello.token.data, m->hello.token.bytes);
		welcome(t, m->seq, -1, rc, &err);
	}
}

/* *mem: of m's strings; set to NULL when it is needed longer. */
static void on_message(struct trainer *t, const struct local_msg *m, void **mem)
{
	if (t->state == TRAINER_GREETING && m->type != LOCAL_HELLO) {
		trainer_drop(t, true, "no HELLO first");
		return;
	}
	switch (m->type) {
	case LOCAL_HELLO:
		on_hello(t, m, mem);
		break;
	case LOCAL_DECLARE:
		declare_begin(t, m->seq, &m->declare, mem);
		break;
	case LOCAL_WHY:
		why_ask(t, m->seq, &m->why);
		break;
	case LOCAL_FINISH:
		job_finish(t, m->seq);
		break;
	default:
		trainer_drop(t, true, "not a message for an agent");
	}
}

static void on_socket(uv_poll_t *p, int status, int events);

/* Watch its socket: for messages, unless it has to wait, and for its end. */
static void listen_to(struct trainer *t)
{
	bool is_deaf = t->is_slowed || t->is_held;

	uv_poll_start(&t->sock_poll, UV_DISCONNECT | (is_deaf ? 0 : UV_READABLE), on_socket);
}

void trainer_hold(struct trainer *t, bool is_held)
{
	t->is_held = is_held;
	if (t->state != TRAINER_GONE)
		listen_to(t);
}

static void on_slowed(uv_timer_t *timer)
{
	struct trainer *t = timer->data;

	t->is_slowed = false;
	t->has_waited = true;
	listen_to(t);
}

/* It will not stop: tell it why it is cut off. */
static void cut_off(struct trainer *t, const char *why)
{
	struct local_msg m = {
		.type = LOCAL_JOB, .job = {.code = (uint32_t)-BPS_EQUOTA, .text = why}};

	trainer_send(t, &m, NULL, 0);
	trainer_drop(t, true, why);
}

/* May the next message be read now? It stays in the socket meanwhile, so that who sends it waits,
 * not the agent. */
static bool has_turn(struct trainer *t)
{
	struct err_text err;
	int64_t wait_ns;

	if (t->has_waited) {
		t->has_waited = false;
		return true;
	}
	wait_ns = quota_request(t->user, &t->pace, clock_now_ns(), &err);
	if (wait_ns < 0) {
		cut_off(t, err.s);
	} else if (wait_ns > 0) {
		t->is_slowed = true;
		listen_to(t);
		uv_timer_start(&t->slowed, on_slowed, (uint64_t)wait_ns / 1000000 + 1, 0);
	}
	return wait_ns == 0;
}

/* Look at the next message and leave it. Descriptors in it stay there: once taken they would have
 * to be closed one by one, and a file system of the trainer's would be asked each time.
 * Returns 1, 0 when it is empty or the last, or -errno. */
static int peek(int sock, bool *ret_brings_fds)
{
	char c;
	struct iovec iov = {&c, sizeof(c)};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n = recvmsg(sock, &mh, MSG_PEEK | MSG_DONTWAIT);

	if (n < 0)
		return -errno;
	*ret_brings_fds = mh.msg_flags & MSG_CTRUNC;
	return (int)n;
}

static void on_socket(uv_poll_t *p, int status, int events)
{
	struct trainer *t = p->data;
	int fds[LOCAL_FDS_ROOM];
	unsigned n_fds = 0;
	struct local_msg m;
	struct err_text err = {0};
	bool brings_fds = false;
	void *mem = NULL;
	int rc, n;

	(void)status; /* whatever it is, the receive says it better */
	if (t->is_slowed || t->is_held) {
		if (events & UV_DISCONNECT)
			trainer_drop(t, false, "it closed its socket");
		return;
	}
	if (!has_turn(t))
		return;
	n = peek(t->sock, &brings_fds);
	if (n == -EAGAIN)
		return;
	if (brings_fds) {
		trainer_drop(t, true, "descriptors are not taken");
		return;
	}
	rc = local_recv(t->sock, &m, &mem, fds, &n_fds, 0, &err); /* what was seen, so none */
	if (rc == -EAGAIN)
		return;
	if (rc == 1) {
		on_message(t, &m, &mem);
		free(mem);
		return;
	}
	trainer_drop(t, rc == BPS_EPROTO,
		rc == 0  ? "it closed its socket"
		: *err.s ? err.s
			 : err_str(rc));
}

static void on_process_end(uv_poll_t *p, int status, int events)
{
	(void)status;
	(void)events;
	trainer_drop(p->data, false, "its process has ended");
}

static void on_greeting(uv_timer_t *timer)
{
	struct trainer *t = timer->data;

	trainer_drop(t, true, "no HELLO within 5 s");
}

static void refuse(struct agent *a, int sock, const char *text)
{
	struct local_msg m = {.type = LOCAL_WELCOME};

	m.welcome.code = (uint32_t)-BPS_EQUOTA;
	m.welcome.text = text;
	log_rated(LOG_WARN, "trainer refused: %s", text);
	if (local_send(sock, &m, NULL, 0, 0) < 0)
		log_debug("the refused trainer was not told");
	close_socket(a, sock);
}

/* No descriptor is left, and whoever waits keeps the listener ready: the spare one goes to refuse
 * him. */
static void turn_away(struct agent *a)
{
	int sock;

	if (a->spare_fd >= 0)
		close(a->spare_fd);
	sock = accept4(a->cfg.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (sock >= 0)
		refuse(a, sock, "this bps-agent has no descriptor left; raise LimitNOFILE");
	a->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int admit(struct quota_account *user, struct err_text *err)
{
	int rc = quota_take(user, QUOTA_TRAINERS, 1, err);

	if (rc < 0)
		return rc;
	rc = quota_take(user, QUOTA_DESCRIPTORS, TRAINER_FDS, err);
	if (rc < 0)
		quota_give(user, QUOTA_TRAINERS, 1);
	return rc;
}

/* ---- names of users ---- */

struct naming {
	uv_work_t work;
	struct agent *agent;
	uid_t uid;
	char name[QUOTA_NAME_BYTES];
};

static void look_up(uv_work_t *w)
{
	struct naming *n = w->data;
	struct passwd pw, *found = NULL;
	char buf[4096];

	if (getpwuid_r(n->uid, &pw, buf, sizeof(buf), &found) == 0 && found)
		snprintf(n->name, sizeof(n->name), "%s", pw.pw_name);
}

static void named(uv_work_t *w, int status)
{
	struct naming *n = w->data;
	struct quota_account *user = status == 0 ? quota_user(n->agent->quota, n->uid) : NULL;

	if (user)
		quota_set_name(user, n->name);
	quota_put(user);
	free(n);
}

/* The user database may be a network away: another thread asks it, once for each user. */
static void name_user(struct agent *a, struct quota_account *user, uid_t uid)
{
	struct naming *n = quota_is_named(user) ? NULL : calloc(1, sizeof(*n));

	if (!n)
		return;
	n->work.data = n;
	n->agent = a;
	n->uid = uid;
	if (uv_queue_work(dataloop_uv(a->loop), &n->work, look_up, named) < 0)
		free(n);
}

void trainer_accept(struct agent *a)
{
	int sock = accept4(a->cfg.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct ucred cred;
	socklen_t len = sizeof(cred);
	struct quota_account *user = NULL;
	struct err_text err;
	struct trainer *t;

	if (sock < 0 && (errno == EMFILE || errno == ENFILE)) {
		turn_away(a);
		return;
	}
	if (sock < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_rated(LOG_WARN, "cannot accept a trainer: %s", strerror(errno));
		return;
	}
	t = calloc(1, sizeof(*t));
	if (t && getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
		user = quota_user(a->quota, cred.uid);
	if (!user) {
		log_rated(LOG_WARN, "cannot take a trainer: out of memory or no credentials");
		free(t);
		close(sock);
		return;
	}
	name_user(a, user, cred.uid);
	if (admit(user, &err) < 0) {
		refuse(a, sock, err.s);
		quota_put(user);
		free(t);
		return;
	}
	*t = (struct trainer){.agent = a,
		.user = user,
		.sock = sock,
		.efd = -1,
		.pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0),
		.pid = cred.pid,
		.uid = cred.uid,
		.rank = CTL_NO_ID,
		.quiet_since_ns = clock_now_ns()};
	TAILQ_INSERT_TAIL(&a->trainers, t, link);
	a->n_trainers++;
	uv_timer_init(dataloop_uv(a->loop), &t->greeting);
	uv_poll_init(dataloop_uv(a->loop), &t->sock_poll, sock);
	uv_timer_init(dataloop_uv(a->loop), &t->slowed);
	t->sock_poll.data = t->greeting.data = t->slowed.data = t;
	t->n_handles = 3;
	uv_timer_start(&t->greeting, on_greeting, GREETING_MS, 0);
	if (t->pidfd >= 0 && uv_poll_init(dataloop_uv(a->loop), &t->pid_poll, t->pidfd) == 0) {
		t->pid_poll.data = t;
		t->n_handles++;
		uv_poll_start(&t->pid_poll, UV_READABLE, on_process_end);
	}
	listen_to(t);
}
