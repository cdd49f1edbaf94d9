/* Shared-memory transport. Each data thread has one struct shm_xport. This file creates and frees
 * that object, polls it, and listens for connections. Connections, messages and segments are in
 * shm_conn.c, shm_io.c and shm_seg.c. Thread: the data thread. */
#include "common/transport/shm/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/transport/shm/shm_impl.h"

/* Epoll data of the listening socket; other values are slots of connections */
#define LISTENER  UINT32_MAX
#define BACKLOG   64
#define SOCK_MODE 0660

/* ---- the poll loop ---- */

static void shm_free_gone_conns(struct shm_xport *x)
{
	struct shm_conn *c;

	while ((c = TAILQ_FIRST(&x->gone))) {
		TAILQ_REMOVE(&x->gone, c, gone);
		free(c);
	}
}

static void shm_xport_poll_sockets(struct shm_xport *x)
{
	struct epoll_event ev[16];
	int n = epoll_wait(x->base.epoll_fd, ev, 16, 0);
	bool has_guests = false;

	x->looked_ns = x->base.now_ns;
	for (int i = 0; i < n; i++) {
		if (ev[i].data.u32 == LISTENER)
			has_guests = true;
		/* The connection of the event may have ended, and a new connection may now use the
		 * slot of the ended connection. The event does no harm to the new connection,
		 * because the new socket has no data. */
		else if (x->conns[ev[i].data.u32])
			shm_conn_socket(x->conns[ev[i].data.u32], ev[i].events);
	}
	peer_close_doomed(&x->base);
	/* Accept new connections only now, because the connections that ended above have made room
	 * for them. */
	if (has_guests)
		shm_accept_waiting(x);
}

static void shm_disarm_wakeups(struct shm_xport *x)
{
	for (unsigned i = 0; i < SHM_CONNS_MAX; i++)
		if (x->conns[i] && x->conns[i]->base.state == CONN_UP)
			ring_clear_sleeping(&x->conns[i]->rx);
	x->is_armed = false;
}

static int shm_poll(struct xport *xp, uint64_t now_ns)
{
	struct shm_xport *x = (struct shm_xport *)xp;
	bool must_look = x->is_armed || now_ns - x->looked_ns > SHM_LOOK_NS;
	int n = 0;

	x->base.now_ns = now_ns;
	shm_free_gone_conns(x);
	if (x->is_armed)
		shm_disarm_wakeups(x);
	if (must_look && (x->base.n_conns || x->listen_fd >= 0))
		shm_xport_poll_sockets(x);
	for (unsigned i = 0, left = x->base.n_conns; left && i < SHM_CONNS_MAX; i++) {
		struct shm_conn *c = x->conns[i];

		if (!c)
			continue;
		left--;
		if (c->base.state == CONN_UP)
			n += shm_conn_run_turn(c);
	}
	if (now_ns >= x->base.next_deadline_ns)
		shm_tick_all_conns(x);
	return n + peer_close_doomed(&x->base);
}

static bool conn_may_sleep(struct shm_conn *c)
{
	/* Set the flag `sleeps` before the flag `wants` (ring_want_room). So a peer that sees
	 * `wants` also sees `sleeps`, and wakes this side. */
	bool may = ring_may_sleep(&c->rx);

	if (c->has_want && !c->is_sock_full && ring_want_room(&c->tx))
		return false;
	return may && !c->reads.n;
}

static int shm_may_sleep(struct xport *xp)
{
	struct shm_xport *x = (struct shm_xport *)xp;
	int may = TAILQ_EMPTY(&x->base.doomed);

	x->is_armed = true;
	for (unsigned i = 0, left = x->base.n_conns; left && i < SHM_CONNS_MAX; i++) {
		if (!x->conns[i])
			continue;
		left--;
		if (x->conns[i]->base.state == CONN_UP)
			may &= conn_may_sleep(x->conns[i]);
	}
	return may;
}

/* ---- setup and end ---- */

static void shm_free(struct xport *xp)
{
	struct shm_xport *x = (struct shm_xport *)xp;

	for (unsigned i = 0; i < SHM_CONNS_MAX; i++)
		if (x->conns[i])
			shm_conn_tear_down(&x->conns[i]->base.pub, "this process shuts down");
	shm_free_gone_conns(x);
	shm_segs_free(x);
	if (x->listen_fd >= 0) {
		close(x->listen_fd);
		unlink(x->path);
	}
	if (x->base.epoll_fd >= 0)
		close(x->base.epoll_fd);
	free(x);
}

static const struct xport_ops shm_ops = {
	.connect = shm_connect,
	.send = shm_send,
	.read = shm_start_read,
	.close = shm_conn_tear_down,
	.seg_add = shm_seg_add,
	.seg_del = shm_seg_del,
	.seg_share = shm_seg_share,
	.borrow = shm_borrow,
	.heard_ns = peer_last_received_ns,
	.poll = shm_poll,
	.may_sleep = shm_may_sleep,
	.fd = peer_xport_poll_fd,
	.next_deadline = peer_next_deadline,
	.free = shm_free,
};

int shm_listen(const struct shm_config *cfg, unsigned thread, struct err_text *err)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;

	if (fd < 0)
		return err_set(err, -errno, "cannot make a socket: %s", strerror(errno));
	shm_socket_path(cfg, cfg->my_instance, thread, sun.sun_path, sizeof(sun.sun_path));
	if (bind(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0) {
		rc = err_set(
			err, -errno, "cannot make a socket in '%s': %s", cfg->dir, strerror(errno));
		close(fd);
		return rc;
	}
	if (chmod(sun.sun_path, SOCK_MODE) < 0 || listen(fd, BACKLOG) < 0) {
		rc = err_set(
			err, -errno, "cannot listen on '%s': %s", sun.sun_path, strerror(errno));
		close(fd);
		unlink(sun.sun_path);
		return rc;
	}
	return fd;
}

void shm_unlisten(const struct shm_config *cfg, unsigned n)
{
	char path[SHM_PATH_BYTES];

	for (unsigned i = 0; cfg->listen_fds && i < n; i++) {
		if (cfg->listen_fds[i] < 0)
			continue;
		close(cfg->listen_fds[i]);
		cfg->listen_fds[i] = -1;
		shm_socket_path(cfg, cfg->my_instance, i, path, sizeof(path));
		unlink(path);
	}
}

static int shm_start_listening(struct shm_xport *x, struct err_text *err)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u32 = LISTENER};
	int *made = x->cfg.listen_fds ? &x->cfg.listen_fds[x->base.thread] : NULL;
	int fd = made && *made >= 0 ? *made : shm_listen(&x->cfg, x->base.thread, err);

	if (fd < 0)
		return fd;
	if (made)
		*made = -1;
	x->listen_fd = fd;
	shm_socket_path(&x->cfg, x->cfg.my_instance, x->base.thread, x->path, sizeof(x->path));
	if (epoll_ctl(x->base.epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return err_set(err, -errno, "cannot watch '%s': %s", x->path, strerror(errno));
	return 0;
}

int shm_xport_new(const struct shm_config *cfg, unsigned thread, const struct xport_events *ev,
	void *ctx, struct xport **ret, struct err_text *err)
{
	struct shm_xport *x = calloc(1, sizeof(*x));
	int rc = -ENOMEM;

	if (!x)
		return err_set(err, rc, "out of memory");
	peer_xport_init(&x->base, &shm_ops, ev, ctx, thread,
		(struct peer_times){cfg->connect_timeout_ms, cfg->ping_ms, cfg->dead_ms});
	x->cfg = *cfg;
	x->listen_fd = -1;
	TAILQ_INIT(&x->gone);
	x->base.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	x->segs = calloc(SHM_SEGS_MAX, sizeof(*x->segs));
	if (x->base.epoll_fd < 0 || !x->segs) {
		err_set(err, rc, "no memory or descriptors left");
		goto fail;
	}
	for (unsigned i = 0; i < SHM_SEGS_MAX; i++)
		x->segs[i].fd = -1;
	if (cfg->is_listener && (rc = shm_start_listening(x, err)) < 0)
		goto fail;
	*ret = &x->base.pub;
	return 0;
fail:
	shm_free(&x->base.pub);
	return rc;
}
