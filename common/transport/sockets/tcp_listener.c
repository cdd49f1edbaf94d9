#include "common/transport/sockets/tcp_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/addr.h"
#include "common/base/log.h"

#define LISTEN_BACKLOG 1024
/* The kernel keeps a connection to itself until it has brought something, or so long. */
#define DEFER_ACCEPT_S 3
/* What the kernel gave us and does not show a ticket within this time is closed. */
#define STRANGER_NS     UINT64_C(2000000000)
#define LOOK_MS         500
#define NO_FD_US        5000
#define USER_TIMEOUT_MS 10000
#define ACCEPT_BATCH    64

static int set_int(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) ? -errno : 0;
}

int tcp_tune(const struct tcp_net *net, int fd)
{
	int rc = set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	int not_set = congestion_set(fd, net->congestion);

	if (not_set) /* it was allowed when we began */
		log_rated(LOG_WARN,
			"a data connection keeps the system's congestion control: '%s': %s",
			net->congestion, strerror(-not_set));
	/* Pings notice a dead peer long before; this ends what the kernel still tries to deliver. */
	return rc ? rc : set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS);
}

void tcp_turn_away(int fd, const char *word)
{
	char out[REFUSED_BYTES] = {0};

	memcpy(out, word, strlen(word));
	if (send(fd, out, sizeof(out), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		log_debug("cannot say why a data connection is refused: %s", strerror(errno));
	close(fd);
}

/* To the data thread, which may go away only while nobody holds the lock. */
static const char *hand_over(struct tcp_net *net, const struct tcp_guest *g)
{
	struct net_thread *t;
	bool ok;

	pthread_mutex_lock(&net->base.lock);
	t = net_find_thread(&net->base, g->ticket.thread);
	ok = t && handover_queue_push(&t->queue, g, TCP_QUEUE_MAX);
	pthread_mutex_unlock(&net->base.lock);
	return ok ? NULL : t ? REFUSED_BUSY : REFUSED_TICKET;
}

static void decide(struct tcp_net *net, const struct stranger *s)
{
	struct tcp_guest g = {.fd = s->fd};
	const char *why = net_check_ticket(&net->base, s->ticket, TICKET_BYTES, &g.ticket, g.key);
	const char *word = why ? net_refuse(&net->base, &g.ticket, why) : hand_over(net, &g);

	if (word && !why)
		net_refuse(&net->base, &g.ticket, "no such data thread, or it is behind");
	if (word)
		tcp_turn_away(s->fd, word);
	OPENSSL_cleanse(&g, sizeof(g));
}

static void forget(struct stranger *s)
{
	s->fd = -1;
}

static void show_out(struct tcp_net *net, struct stranger *s)
{
	close(s->fd);
	forget(s);
	atomic_fetch_add_explicit(&net->base.silent, 1, memory_order_relaxed);
	log_rated(LOG_WARN, "strangers on the data port showed no ticket, closed: count=%lu",
		(unsigned long)atomic_load_explicit(&net->base.silent, memory_order_relaxed));
}

/* Some of the ticket is here, or the end. */
static void hear(struct tcp_net *net, struct stranger *s)
{
	ssize_t n = recv(s->fd, s->ticket + s->n, TICKET_BYTES - s->n, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	if (n <= 0) {
		close(s->fd);
		forget(s);
		return;
	}
	s->n += (unsigned)n;
	if (s->n < TICKET_BYTES)
		return;
	epoll_ctl(net->door.epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
	decide(net, s);
	forget(s);
}

/* Room for one more: whoever has said least for longest makes it. */
static struct stranger *make_room(struct tcp_net *net)
{
	struct stranger *oldest = &net->door.strangers[0];

	for (unsigned i = 0; i < TCP_STRANGERS; i++) {
		struct stranger *s = &net->door.strangers[i];

		if (s->fd < 0)
			return s;
		if (s->since_ns < oldest->since_ns)
			oldest = s;
	}
	show_out(net, oldest);
	return oldest;
}

static void greet(struct tcp_net *net, int fd)
{
	struct stranger *s = make_room(net);
	struct epoll_event ev = {
		.events = EPOLLIN, .data.u32 = (uint32_t)(s - net->door.strangers)};

	*s = (struct stranger){.fd = fd, .since_ns = clock_now_ns()};
	if (tcp_tune(net, fd) || epoll_ctl(net->door.epoll_fd, EPOLL_CTL_ADD, fd, &ev)) {
		close(fd);
		forget(s);
		return;
	}
	hear(net, s); /* the ticket came with the connection, as a rule */
}

static void answer_door(struct tcp_net *net)
{
	for (unsigned i = 0; i < ACCEPT_BATCH; i++) {
		int fd = accept4(net->door.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0) {
			greet(net, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			log_rated(LOG_ERROR, "cannot take data connections: %s; raise LimitNOFILE",
				strerror(errno));
			usleep(NO_FD_US); /* the listener stays readable: do not spin on it */
		}
		return;
	}
}

static void sweep(struct tcp_net *net)
{
	uint64_t now = clock_now_ns();

	for (unsigned i = 0; i < TCP_STRANGERS; i++) {
		struct stranger *s = &net->door.strangers[i];

		if (s->fd >= 0 && now - s->since_ns > STRANGER_NS)
			show_out(net, s);
	}
}

/* In epoll data: no stranger's place. */
enum { THE_LISTENER = TCP_STRANGERS, THE_STOP };

static void *door_main(void *arg)
{
	struct tcp_net *net = arg;
	struct epoll_event ev[16];
	bool must_stop = false;

	pthread_setname_np(pthread_self(), "bps-connect");
	while (!must_stop) {
		int n = epoll_wait(net->door.epoll_fd, ev, 16, LOOK_MS);

		for (int i = 0; i < n; i++) {
			uint32_t who = ev[i].data.u32;

			if (who == THE_STOP)
				must_stop = true;
			else if (who == THE_LISTENER)
				answer_door(net);
			else if (net->door.strangers[who].fd >= 0)
				hear(net, &net->door.strangers[who]);
		}
		sweep(net);
	}
	return NULL;
}

static int watch(struct door *d, int fd, uint32_t who)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = who};

	return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int listen_on(struct tcp_net *net)
{
	socklen_t len = sizeof(struct sockaddr_storage);
	struct sockaddr_storage ss;
	int fd = socket(
		net->bind_addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	int rc;

	if (fd < 0)
		return -errno;
	net->door.listen_fd = fd;
	rc = set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (!rc)
		rc = set_int(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, DEFER_ACCEPT_S);
	/* Those that are accepted have it from the start: a BBR would leave them paced. */
	congestion_set(fd, net->congestion);
	if (!rc && bind(fd, (struct sockaddr *)&net->bind_addr, net->bind_len))
		rc = -errno;
	if (!rc && listen(fd, LISTEN_BACKLOG))
		rc = -errno;
	if (!rc && getsockname(fd, (struct sockaddr *)&ss, &len))
		rc = -errno;
	if (!rc)
		net->base.port = sockaddr_port((struct sockaddr *)&ss);
	return rc;
}

int door_open(struct tcp_net *net, struct err_text *err)
{
	struct door *d = &net->door;
	int rc = listen_on(net);

	if (rc)
		return err_set(err, rc, "cannot listen for data on %s port %u: %s%s",
			net->base.cfg.bind_addr, net->base.cfg.port, strerror(-rc),
			addr_bind_hint(rc));
	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	d->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = d->epoll_fd < 0 || d->stop_fd < 0 ? -errno : watch(d, d->listen_fd, THE_LISTENER);
	if (!rc)
		rc = watch(d, d->stop_fd, THE_STOP);
	if (!rc)
		rc = -pthread_create(&d->thread, NULL, door_main, net);
	d->has_thread = !rc;
	if (rc)
		return err_set(err, rc, "cannot start the connection thread: %s", strerror(-rc));
	return 0;
}

void door_close(struct tcp_net *net)
{
	struct door *d = &net->door;
	uint64_t one = 1;

	if (d->has_thread) {
		if (write(d->stop_fd, &one, sizeof(one)) != sizeof(one))
			log_error("cannot stop the connection thread: %s", strerror(errno));
		pthread_join(d->thread, NULL);
	}
	for (unsigned i = 0; i < TCP_STRANGERS; i++)
		if (d->strangers[i].fd >= 0)
			close(d->strangers[i].fd);
	if (d->listen_fd >= 0)
		close(d->listen_fd);
	if (d->epoll_fd >= 0)
		close(d->epoll_fd);
	if (d->stop_fd >= 0)
		close(d->stop_fd);
}
