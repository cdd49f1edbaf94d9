/* Measures the cost of TCP itself on this machine. The parent makes all sockets before it starts
 * the processes. Each process waits at a barrier in shared memory, exchanges the payload, and
 * stores its CPU seconds in the shared memory. */
#include "tests/bench/probe/probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEADER 64

struct shared {
	pthread_barrier_t barrier;
	double cpu_s[2 * PROBE_MEMBERS_MAX], start_s[2 * PROBE_MEMBERS_MAX],
		end_s[2 * PROBE_MEMBERS_MAX];
};

struct probe_raw {
	unsigned n, k;
	size_t bytes, part; /* bytes: size of each server's share of a tensor */
	uint64_t rounds;
	struct shared *shared;
	/* fds[i][j]: the two ends of the connection between agent i and server j. [0] is the
	 * agent's socket, and [1] is the server's socket. */
	int fds[PROBE_MEMBERS_MAX][PROBE_MEMBERS_MAX][2];
};

/* A direction of a connection. It carries rounds * bytes of payload, with a header before each
 * part. */
struct way {
	unsigned char *mem;
	unsigned char header[HEADER];
	/* at: position in this round's payload. header_at: position in the header of the current
	 * part. */
	size_t at, header_at;
	uint64_t rounds; /* rounds that are left */
};

struct probe_link {
	int fd;
	struct way out, in;
	bool is_watching_out;
};

static size_t part_left(const struct probe_raw *raw, const struct way *w)
{
	size_t end = (w->at / raw->part + 1) * raw->part;

	return (end < raw->bytes ? end : raw->bytes) - w->at;
}

static void advance(const struct probe_raw *raw, struct way *w, size_t n)
{
	size_t head = HEADER - w->header_at;

	if (n < head) {
		w->header_at += n;
		return;
	}
	w->header_at = HEADER;
	n -= head;
	w->at += n;
	if (w->at % raw->part && w->at < raw->bytes)
		return;
	if (n > 0)
		w->header_at = 0;
	if (w->at < raw->bytes)
		return;
	w->at = 0;
	w->rounds--;
}

static size_t vector(const struct probe_raw *raw, struct way *w, struct iovec *iov)
{
	iov[0] = (struct iovec){w->header + w->header_at, HEADER - w->header_at};
	iov[1] = (struct iovec){w->mem + w->at, part_left(raw, w)};
	return iov[0].iov_len + iov[1].iov_len;
}

static bool would_block(ssize_t n)
{
	if (n < 0 && errno != EAGAIN && errno != EINTR)
		probe_fail("socket: %s", strerror(errno));
	if (n == 0)
		probe_fail("socket: closed early");
	return n < 0;
}

/* Send at most one part per call, so that no connection starves the others. Returns false when the
 * socket is full. */
static bool send_some(const struct probe_raw *raw, struct probe_link *l)
{
	struct iovec iov[2];
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	size_t want = vector(raw, &l->out, iov);
	ssize_t n = sendmsg(l->fd, &msg, MSG_NOSIGNAL);

	if (would_block(n))
		return false;
	advance(raw, &l->out, (size_t)n);
	return (size_t)n == want;
}

/* Receive a part's header and payload in one call. Such a call is possible because the receiver
 * knows the length of each part in advance. */
static void receive_some(const struct probe_raw *raw, struct probe_link *l)
{
	struct iovec iov[2];
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n;

	vector(raw, &l->in, iov);
	n = recvmsg(l->fd, &msg, 0);
	if (!would_block(n))
		advance(raw, &l->in, (size_t)n);
}

static void watch(int ep, struct probe_link *l, int how, bool out)
{
	struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = l};

	if (epoll_ctl(ep, how, l->fd, &e) < 0)
		probe_fail("epoll_ctl: %s", strerror(errno));
	l->is_watching_out = out;
}

static void stream(const struct probe_raw *raw, struct probe_link *links, unsigned n_links)
{
	int ep = epoll_create1(0);
	struct epoll_event events[PROBE_MEMBERS_MAX];
	unsigned busy = n_links;

	for (unsigned i = 0; i < n_links; i++)
		watch(ep, &links[i], EPOLL_CTL_ADD, true);
	while (busy > 0) {
		int n = epoll_wait(ep, events, PROBE_MEMBERS_MAX, -1);

		for (int i = 0; i < n; i++) {
			struct probe_link *l = events[i].data.ptr;

			if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && l->in.rounds)
				receive_some(raw, l);
			if (events[i].events & EPOLLOUT && l->out.rounds)
				send_some(raw, l);
			if (!l->out.rounds && l->is_watching_out)
				watch(ep, l, EPOLL_CTL_MOD, false);
			if (!l->out.rounds && !l->in.rounds) {
				epoll_ctl(ep, EPOLL_CTL_DEL, l->fd, NULL);
				busy--;
			}
		}
	}
	close(ep);
}

/* Run an agent or a server. Agent i has memory for its tensor and two buffers for sums. A server
 * has memory for a contribution of each agent, and for one sum. */
static void child(const struct probe_raw *raw, unsigned me, bool is_agent)
{
	struct probe_link links[PROBE_MEMBERS_MAX] = {{0}};
	unsigned n = is_agent ? raw->k : raw->n, slot = is_agent ? me : raw->n + me;
	unsigned char *sum = is_agent ? NULL : probe_alloc(raw->bytes);
	double cpu;

	for (unsigned i = 0; i < n; i++) {
		struct probe_link *l = &links[i];

		l->fd = is_agent ? raw->fds[me][i][0] : raw->fds[i][me][1];
		fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK);
		l->out.mem = is_agent ? probe_alloc(raw->bytes) : sum;
		l->in.mem = probe_alloc(raw->bytes);
		l->out.rounds = l->in.rounds = raw->rounds;
	}
	pthread_barrier_wait(&raw->shared->barrier);
	cpu = probe_cpu_s();
	raw->shared->start_s[slot] = probe_now_s();
	stream(raw, links, n);
	raw->shared->end_s[slot] = probe_now_s();
	raw->shared->cpu_s[slot] = probe_cpu_s() - cpu;
	/* A process closes its sockets only when all processes have read everything. */
	pthread_barrier_wait(&raw->shared->barrier);
	_exit(0);
}

static void connect_pair(int *fds)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (struct sockaddr *)&a, n) < 0 || listen(listener, 1) < 0 ||
		getsockname(listener, (struct sockaddr *)&a, &n) < 0)
		probe_fail("listen: %s", strerror(errno));
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fds[0], (struct sockaddr *)&a, n) < 0)
		probe_fail("connect: %s", strerror(errno));
	fds[1] = accept(listener, NULL, NULL);
	if (fds[1] < 0)
		probe_fail("accept: %s", strerror(errno));
	for (int i = 0; i < 2; i++)
		setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	close(listener);
}

struct raw_result {
	double elapsed_s, cpu_s, moved_gb;
};

static struct raw_result run(struct probe_raw *raw)
{
	struct raw_result r = {0};
	double start = 0, end = 0;
	pthread_barrierattr_t attr;
	unsigned all = raw->n + raw->k;

	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&raw->shared->barrier, &attr, all);
	for (unsigned i = 0; i < raw->n; i++)
		for (unsigned j = 0; j < raw->k; j++)
			connect_pair(raw->fds[i][j]);
	for (unsigned i = 0; i < all; i++) {
		pid_t pid = fork();

		if (pid < 0)
			probe_fail("fork: %s", strerror(errno));
		if (pid == 0)
			child(raw, i < raw->n ? i : i - raw->n, i < raw->n);
	}
	for (unsigned i = 0; i < all; i++) {
		int status;

		if (wait(&status) < 0 || status)
			probe_fail("a process failed");
	}
	for (unsigned i = 0; i < raw->n; i++)
		for (unsigned j = 0; j < raw->k; j++) {
			close(raw->fds[i][j][0]);
			close(raw->fds[i][j][1]);
		}
	for (unsigned i = 0; i < all; i++) {
		r.cpu_s += raw->shared->cpu_s[i];
		if (!i || raw->shared->start_s[i] < start)
			start = raw->shared->start_s[i];
		if (raw->shared->end_s[i] > end)
			end = raw->shared->end_s[i];
	}
	r.elapsed_s = end - start;
	r.moved_gb = 2.0 * raw->n * raw->k * (double)raw->bytes * (double)raw->rounds / 1e9;
	return r;
}

void probe_raw(unsigned n, unsigned k, size_t bytes, size_t part, double seconds)
{
	struct probe_raw raw = {.n = n, .k = k, .bytes = bytes / k, .part = part, .rounds = 2};
	struct raw_result r;

	raw.shared = mmap(NULL, sizeof(*raw.shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (raw.shared == MAP_FAILED || !raw.bytes)
		probe_fail("no shared memory, or fewer bytes than servers");
	r = run(&raw); /* the first run only measures how long a round takes */
	raw.rounds = 2 + (uint64_t)(seconds / r.elapsed_s * 2);
	r = run(&raw);
	printf("{\"what\": \"raw\", \"agents\": %u, \"servers\": %u, \"bytes\": %zu, \"part\": "
	       "%zu, \"rounds\": %llu, \"elapsed_s\": %.6f, \"cpu_s_per_gb\": %.6f, \"gbs\": "
	       "%.4f}\n",
		n, k, bytes, part, (unsigned long long)raw.rounds, r.elapsed_s,
		r.cpu_s / r.moved_gb, r.moved_gb / r.elapsed_s);
}
