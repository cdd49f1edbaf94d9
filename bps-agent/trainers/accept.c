/* Accepts trainers at the listening socket, and looks up the names of their users. Messages from
 * trainers are read in trainer.c. Thread: the data thread, except user_lookup_read_name, which runs
 * on a thread of libuv's pool. */
#include "bps-agent/trainers/accept.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bps-agent/trainers/slow_close.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/clock.h"
#include "common/base/log.h"

static void trainer_refuse_socket(struct agent *a, int sock, const char *text)
{
	struct local_msg m = {.type = LOCAL_WELCOME};

	m.welcome.code = (uint32_t)-BPS_EQUOTA;
	m.welcome.text = text;
	log_rated(LOG_WARN, "trainer refused: %s", text);
	if (local_send(sock, &m, NULL, 0, 0) < 0)
		log_debug("cannot send the refusal to a trainer");
	slow_close_socket(a, sock);
}

/* Refuse a client when the process has no free descriptor. Closing the spare descriptor makes room
 * to accept and refuse the client. Otherwise the client would stay in the queue, and the
 * listening socket would stay readable. */
static void accept_and_refuse_one(struct agent *a)
{
	int sock;

	if (a->spare_fd >= 0)
		close(a->spare_fd);
	sock = accept4(a->cfg.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (sock >= 0)
		trainer_refuse_socket(
			a, sock, "this bps-agent has no descriptor left; raise LimitNOFILE");
	a->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* ---- names of users ---- */

struct user_lookup {
	uv_work_t work;
	struct agent *agent;
	uid_t uid;
	char name[QUOTA_NAME_BYTES];
};

static void user_lookup_read_name(uv_work_t *w)
{
	struct user_lookup *n = w->data;
	struct passwd pw, *found = NULL;
	char buf[4096];

	if (getpwuid_r(n->uid, &pw, buf, sizeof(buf), &found) == 0 && found)
		snprintf(n->name, sizeof(n->name), "%s", pw.pw_name);
}

static void on_user_lookup_done(uv_work_t *w, int status)
{
	struct user_lookup *n = w->data;
	struct quota_account *user =
		status == 0 ? quota_get_user_account(n->agent->quota, n->uid) : NULL;

	if (user)
		quota_set_name(user, n->name);
	quota_account_release(user);
	free(n);
}

/* Look up the user's name on another thread, because the user database may be remote. */
void trainer_name_user(struct agent *a, struct quota_account *user, uid_t uid)
{
	struct user_lookup *n = quota_is_named(user) ? NULL : calloc(1, sizeof(*n));

	if (!n)
		return;
	n->work.data = n;
	n->agent = a;
	n->uid = uid;
	if (uv_queue_work(
		    dataloop_uv(a->loop), &n->work, user_lookup_read_name, on_user_lookup_done) < 0)
		free(n);
}

void trainer_register(struct agent *a, struct quota_account *user, const struct ucred *cred,
	int sock, int pidfd, uint64_t number, struct trainer *t)
{
	*t = (struct trainer){.agent = a,
		.number = number,
		.user = user,
		.sock = sock,
		.efd = -1,
		.pidfd = pidfd,
		.pid = cred->pid,
		.uid = cred->uid,
		.rank = CTL_NO_ID,
		.quiet_since_ns = clock_now_ns()};
	TAILQ_INSERT_TAIL(&a->trainers, t, link);
	a->n_trainers++;
	trainer_start_watching(t);
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
		accept_and_refuse_one(a);
		return;
	}
	if (sock < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_rated(LOG_WARN, "cannot accept a trainer: %s", strerror(errno));
		return;
	}
	t = calloc(1, sizeof(*t));
	if (t && getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
		user = quota_get_user_account(a->quota, cred.uid);
	if (!user) {
		log_rated(LOG_WARN,
			"cannot accept a trainer: out of memory, or its user is not known");
		free(t);
		close(sock);
		return;
	}
	trainer_name_user(a, user, cred.uid);
	if (quota_take_fds(user, QUOTA_TRAINERS, 1, TRAINER_FDS, &err) < 0) {
		trainer_refuse_socket(a, sock, err.s);
		quota_account_release(user);
		free(t);
		return;
	}
	trainer_register(a, user, &cred, sock, (int)syscall(SYS_pidfd_open, cred.pid, 0),
		a->next_number++, t);
}
