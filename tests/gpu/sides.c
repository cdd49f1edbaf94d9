/* A test with two processes (sides.h). Starts both sides as children, limits their time, and passes
 * words and descriptors between them. */
#include "tests/gpu/sides.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/gpu.h"

#define STRANGER_ID 65534 /* a user id without rights */
#define DATA_MAX    256

struct message {
	uint64_t word, n;
	uint8_t data[DATA_MAX];
};

#define DIE_NS UINT64_C(5000000000) /* time that a killed process may take to end */

enum end { END_OK, END_LATE, END_NEVER };

#define TOLD       1    /* exit status of a side that failed and has reported why */
#define LEFT_ALONE 2    /* exit status of a side that ends because the other side has ended */
#define SIDE_GONE  (-2) /* result of gpu_last when the other side has ended */

static bool fail_gone(void)
{
	return gpu_fail_as(SIDE_GONE, "the other process is gone");
}

bool side_is_there(struct gpu_side *s)
{
	struct pollfd p = {.fd = s->sock};

	return poll(&p, 1, 0) <= 0 || !(p.revents & (POLLHUP | POLLERR)) || fail_gone();
}

static bool wait_for(struct gpu_side *s, short what)
{
	uint64_t now = now_ns();
	struct pollfd p = {.fd = s->sock, .events = what};
	int ms = s->deadline_ns > now ? (int)((s->deadline_ns - now) / 1000000) + 1 : 0;

	if (poll(&p, 1, ms) > 0)
		return true;
	return gpu_fail("the other process does not answer");
}

bool side_send(struct gpu_side *s, uint64_t word, const void *data, size_t n, int fd)
{
	struct message m = {.word = word, .n = n};
	struct iovec iov = {&m, sizeof(m)};
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c = {.room = {0}};
	struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};

	if (n > sizeof(m.data))
		return gpu_fail("a message of %zu bytes is too long", n);
	if (n)
		memcpy(m.data, data, n);
	if (fd >= 0) {
		h.msg_control = c.room;
		h.msg_controllen = sizeof(c.room);
		c.h.cmsg_level = SOL_SOCKET;
		c.h.cmsg_type = SCM_RIGHTS;
		c.h.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&c.h), &fd, sizeof(fd));
	}
	if (sendmsg(s->sock, &h, MSG_NOSIGNAL) == (ssize_t)sizeof(m))
		return true;
	if (errno == EPIPE || errno == ECONNRESET)
		return fail_gone();
	return gpu_fail("cannot tell the other process: %s", strerror(errno));
}

bool side_recv(struct gpu_side *s, uint64_t *ret_word, void *data, size_t n, int *ret_fd)
{
	struct message m;
	struct iovec iov = {&m, sizeof(m)};
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	struct msghdr h = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = c.room,
		.msg_controllen = sizeof(c.room)};
	struct cmsghdr *first;

	if (!wait_for(s, POLLIN))
		return false;
	if (recvmsg(s->sock, &h, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(m) || m.n > sizeof(m.data) ||
		m.n < n)
		return fail_gone();
	first = CMSG_FIRSTHDR(&h);
	if (ret_fd)
		*ret_fd = -1;
	if (ret_fd && first)
		memcpy(ret_fd, CMSG_DATA(first), sizeof(*ret_fd));
	if (n)
		memcpy(data, m.data, n);
	*ret_word = m.word;
	return true;
}

bool side_tell(struct gpu_side *s, uint64_t word)
{
	return side_send(s, word, NULL, 0, -1);
}

bool side_await(struct gpu_side *s, uint64_t word)
{
	uint64_t got;

	if (!side_recv(s, &got, NULL, 0, NULL))
		return false;
	return got == word || gpu_fail("the other process says %llu instead of %llu",
				      (unsigned long long)got, (unsigned long long)word);
}

bool side_await_end(struct gpu_side *s)
{
	char byte;

	if (!wait_for(s, POLLIN))
		return false;
	return recv(s->sock, &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0 ||
	       gpu_fail("the other process still sends");
}

bool side_kill(struct gpu_side *s, pid_t pid)
{
	if (kill(pid, SIGKILL) < 0)
		return gpu_fail("cannot kill %d: %s", (int)pid, strerror(errno));
	return side_await_end(s);
}

/* ---- the parent ---- */

/* Let this process die when its parent dies. A change of the user clears this setting, so change
 * the user before the call. */
static bool die_with_parent(pid_t parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return gpu_fail("cannot ask to die with the parent: %s", strerror(errno));
	return getppid() == parent || gpu_fail("the parent is gone");
}

static bool become_stranger(pid_t parent)
{
	if (setresgid(STRANGER_ID, STRANGER_ID, STRANGER_ID) < 0 ||
		setresuid(STRANGER_ID, STRANGER_ID, STRANGER_ID) < 0)
		return gpu_fail("cannot become user %d: %s", STRANGER_ID, strerror(errno));
	return die_with_parent(parent);
}

static pid_t start(const struct gpu_pair *p, int sock, int other, bool is_right)
{
	struct gpu_side s = {.sock = sock,
		.item = p->item,
		.deadline_ns = now_ns() + p->limit_s * UINT64_C(1000000000)};
	pid_t parent = getpid(), pid = fork();
	bool is_ok;

	if (pid != 0)
		return pid;
	close(other);
	is_ok = die_with_parent(parent) &&
		(!is_right || !p->is_stranger || become_stranger(parent)) &&
		(is_right ? p->right(&s) : p->left(&s));
	if (!is_ok && gpu_last() != SIDE_GONE)
		answer_why(p->item, false);
	_exit(is_ok ? 0 : gpu_last() == SIDE_GONE ? LEFT_ALONE : TOLD);
}

/* Return whether the process ends before the deadline. */
static bool ends_until(pid_t pid, uint64_t deadline_ns, int *ret_status)
{
	while (waitpid(pid, ret_status, WNOHANG) == 0) {
		if (now_ns() > deadline_ns)
			return false;
		poll(NULL, 0, 5);
	}
	return true;
}

/* Wait for a child until the deadline. Kill the child if it has not ended by then. If the
 * kernel holds the child inside a driver call, the child does not die, and the parent stops
 * waiting. */
static enum end reap(pid_t pid, uint64_t deadline_ns, int *ret_status)
{
	*ret_status = 0;
	if (ends_until(pid, deadline_ns, ret_status))
		return END_OK;
	kill(pid, SIGKILL);
	return ends_until(pid, now_ns() + DIE_NS, ret_status) ? END_LATE : END_NEVER;
}

static bool is_fine(int status, bool dies)
{
	if (dies)
		return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool pair_start(const struct gpu_pair *p, pid_t pid[2])
{
	int sock[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock) < 0)
		return gpu_fail("no socket: %s", strerror(errno));
	pid[0] = start(p, sock[0], sock[1], false);
	pid[1] = pid[0] < 0 ? -1 : start(p, sock[1], sock[0], true);
	close(sock[0]);
	close(sock[1]);
	if (pid[1] >= 0)
		return true;
	if (pid[0] > 0)
		kill(pid[0], SIGKILL);
	return gpu_fail("cannot fork: %s", strerror(errno));
}

/* Print a sentence about how the sides ended, unless a side has printed one. */
static void tell_end(const struct gpu_pair *p, enum end worst, const int status[2])
{
	const int told = W_EXITCODE(TOLD, 0);

	if (worst == END_NEVER)
		gpu_fail("not ready after %u s, and alive after SIGKILL", p->limit_s);
	else if (worst == END_LATE)
		gpu_fail("not ready after %u s", p->limit_s);
	else if (status[0] == told || status[1] == told)
		return;
	else
		gpu_fail("the sides ended with status 0x%x and 0x%x", (unsigned)status[0],
			(unsigned)status[1]);
	answer_why(p->item, false);
}

bool pair_run(const struct gpu_pair *p)
{
	uint64_t deadline_ns = now_ns() + (p->limit_s + 2) * UINT64_C(1000000000);
	enum end end[2], worst;
	int status[2];
	pid_t pid[2];

	if (p->is_stranger && geteuid() != 0) {
		gpu_fail("only root can start a process of another user");
		answer_why(p->item, true);
		return true;
	}
	if (!pair_start(p, pid)) {
		answer_why(p->item, false);
		return false;
	}
	for (int i = 0; i < 2; i++)
		end[i] = reap(pid[i], deadline_ns, &status[i]);
	worst = end[0] > end[1] ? end[0] : end[1];
	if (worst == END_OK && is_fine(status[0], p->dies == SIDE_LEFT) &&
		is_fine(status[1], p->dies == SIDE_RIGHT))
		return true;
	tell_end(p, worst, status);
	return false;
}
