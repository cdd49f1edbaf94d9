/* Connections of the shared-memory transport: open and accept connections, do the handshake,
 * send pings, and close connections. Messages and reads are in shm_io.c, segments in shm_seg.c.
 * Thread: the data thread. */
#include "common/transport/shm/shm_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/log.h"
#include "common/os/memfd.h"

void shm_socket_path(
	const struct shm_config *cfg, uint64_t instance, unsigned thread, char *ret, size_t room)
{
	snprintf(ret, room, "%s/%016lx.%u", cfg->dir, (unsigned long)instance, thread);
}

/* Make a connection in state `state` on this socket. Returns NULL, and closes the socket, when no
 * slot, memory or descriptor is left. */
static struct shm_conn *shm_conn_create(struct shm_xport *x, int sock, enum conn_state state)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
	struct shm_conn *c = NULL;
	struct ucred cred = {.uid = (uid_t)-1};
	socklen_t n = sizeof(cred);
	unsigned slot = 0;

	while (slot < SHM_CONNS_MAX && x->conns[slot])
		slot++;
	if (slot < SHM_CONNS_MAX)
		c = calloc(1, sizeof(*c));
	ev.data.u32 = slot;
	if (!c || epoll_ctl(x->base.epoll_fd, EPOLL_CTL_ADD, sock, &ev)) {
		close(sock);
		free(c);
		return NULL;
	}
	getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &n);
	c->base.pub.x = &x->base.pub;
	c->base.pub.is_same_host = true;
	c->side = state == CONN_CONNECTING ? SHM_AGENT : SHM_SERVER;
	c->base.slot = (uint16_t)slot;
	c->sock = sock;
	c->uid = cred.uid;
	peer_conn_begin(&c->base, state, "handshake begins");
	peer_reads_init(&c->reads, 0);
	x->conns[slot] = c;
	x->base.n_conns++;
	return c;
}

/* Remove c from the table. The memory stays until the next poll, because callers still have a
 * pointer to it. */
static void shm_conn_remove(struct shm_conn *c)
{
	struct shm_xport *x = shm_xport_of_conn(c);

	x->conns[c->base.slot] = NULL;
	x->base.n_conns--;
	TAILQ_INSERT_TAIL(&x->gone, c, gone);
}

/* Return whether the process that listened on this socket has ended. */
static bool socket_path_is_dead(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool is_refused;

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s", path);
	is_refused = fd >= 0 && connect(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0 &&
		     errno == ECONNREFUSED;
	if (fd >= 0)
		close(fd);
	return is_refused;
}

int shm_unlink_dead_sockets(const char *dir)
{
	char path[SHM_PATH_BYTES];
	unsigned long instance;
	unsigned thread;
	struct dirent *e;
	DIR *d;

	if (access(dir, W_OK | X_OK) < 0 || !(d = opendir(dir)))
		return -1;
	while ((e = readdir(d))) {
		if (sscanf(e->d_name, "%16lx.%2u", &instance, &thread) != 2)
			continue;
		snprintf(path, sizeof(path), "%s/%016lx.%u", dir, instance, thread);
		if (socket_path_is_dead(path))
			unlink(path);
	}
	closedir(d);
	return 0;
}

bool shm_peer_is_on_host(const struct shm_config *cfg, uint64_t peer_instance, uint16_t thread)
{
	char path[SHM_PATH_BYTES];

	shm_socket_path(cfg, peer_instance, thread, path, sizeof(path));
	return access(path, F_OK) == 0;
}

int shm_connect(struct xport *xp, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn)
{
	struct shm_xport *x = (struct shm_xport *)xp;
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct shm_conn *c;
	int fd, rc;

	(void)addr;
	(void)port;
	shm_socket_path(&x->cfg, peer_instance, thread, sun.sun_path, sizeof(sun.sun_path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	c = shm_conn_create(x, fd, CONN_CONNECTING);
	if (!c)
		return -EMFILE;
	peer_conn_set_peer(&c->base, thread, peer_id, peer_instance, key, user);
	c->base.nonce = ticket_random64();
	*ret_conn = &c->base.pub;
	return 0;
}

/* Check the number of connections without a ticket against two limits: one for all users, and one
 * for the user `uid`. Returns whether neither is exceeded. The limit per user keeps one user from
 * blocking all other users. */
static bool shm_stranger_may_connect(const struct shm_xport *x, uid_t uid)
{
	unsigned n = 0, of_user = 0;

	for (unsigned i = 0; i < SHM_CONNS_MAX; i++) {
		const struct shm_conn *c = x->conns[i];

		if (!c || c->base.state != CONN_ACCEPTING)
			continue;
		n++;
		of_user += c->uid == uid;
	}
	return n <= SHM_STRANGERS && of_user <= SHM_PER_USER;
}

static void shm_accept_socket(struct shm_xport *x, int fd)
{
	struct shm_challenge ch = {.magic = SHM_MAGIC, .version = SHM_VERSION};
	struct shm_conn *c = shm_conn_create(x, fd, CONN_ACCEPTING);

	if (!c)
		return;
	if (!shm_stranger_may_connect(x, c->uid)) {
		log_rated(LOG_WARN,
			"refused a same-host connection, because too many connections have not "
			"sent a ticket yet: uid=%u",
			(unsigned)c->uid);
		shm_conn_tear_down(&c->base.pub, "too many connections have not sent a ticket yet");
		return;
	}
	c->base.nonce = ch.nonce = ticket_random64();
	if (send(c->sock, &ch, sizeof(ch), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(ch))
		shm_conn_tear_down(&c->base.pub, "cannot send the challenge");
}

void shm_accept_waiting(struct shm_xport *x)
{
	int fd;

	for (unsigned i = 0; i < SHM_STRANGERS; i++) {
		fd = accept4(x->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			return;
		shm_accept_socket(x, fd);
	}
}

/* ---- handshake ---- */

static void shm_conn_come_up(struct shm_conn *c, void *area)
{
	struct shm_xport *x = shm_xport_of_conn(c);
	uint8_t *rings = (uint8_t *)area + SHM_PAGE;
	enum shm_side peer = c->side == SHM_AGENT ? SHM_SERVER : SHM_AGENT;

	c->page = area;
	ring_init(&c->tx, &c->page->dir[c->side], rings + c->side * (size_t)RING_BYTES);
	ring_init(&c->rx, &c->page->dir[peer], rings + peer * (size_t)RING_BYTES);
	OPENSSL_cleanse(c->base.key, sizeof(c->base.key));
	peer_conn_come_up(&c->base);
	shm_mark_all_segments(c);
	atomic_fetch_add_explicit(&x->cfg.counters->connections, 1, memory_order_relaxed);
	x->base.pub.ev->up(
		x->base.pub.ctx, &c->base.pub, c->base.pub.peer_id, c->base.pub.peer_instance);
}

/* Receive one message of the handshake and at most one descriptor. *ret_fd gets the descriptor, or
 * -1 if the message has none. Returns the length of the message, or 0 if no message has arrived
 * yet. On failure, marks the connection as failed and returns BPS_EPROTO. */
static ssize_t handshake_recv(struct shm_conn *c, void *buf, size_t room, int *ret_fd)
{
	ssize_t n = shm_recv_fd(c->sock, buf, room, ret_fd);

	if (n == -EAGAIN)
		return 0;
	if (n > 0)
		return n;
	if (*ret_fd >= 0)
		close(*ret_fd);
	*ret_fd = -1;
	peer_conn_doom(&c->base, n == 0 ? "refused by the peer" : "malformed handshake");
	return BPS_EPROTO;
}

static void shm_send_hello(struct shm_conn *c, uint64_t challenge)
{
	struct shm_xport *x = shm_xport_of_conn(c);
	struct ticket t = {.thread = c->base.peer_thread,
		.channel = TICKET_SAME_HOST,
		.peer_id = x->cfg.my_id,
		.credits = TICKET_NO_CREDITS,
		.instance = x->cfg.my_instance,
		.nonce = challenge};
	struct shm_hello hello = {.nonce = c->base.nonce};

	ticket_seal(&t, c->base.key, hello.ticket);
	if (send(c->sock, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(hello))
		peer_conn_doom(&c->base, "cannot send the ticket: %s", strerror(errno));
}

static void take_challenge(struct shm_conn *c, const struct shm_challenge *ch)
{
	if (ch->version == SHM_VERSION)
		shm_send_hello(c, ch->nonce);
	else
		peer_conn_doom(&c->base,
			"the peer uses version %u of the protocol within one host, but this "
			"release uses version %u: install the same release at both ends",
			ch->version, SHM_VERSION);
}

static void shm_apply_welcome(struct shm_conn *c, const struct shm_welcome *w, int fd)
{
	struct proof p;
	void *area;

	if (peer_conn_check_proof(&c->base, CHANNEL_FIRST, w->proof, sizeof(w->proof), &p)) {
		close(fd);
		shm_counter_add(&shm_xport_of_conn(c)->cfg.counters->refused, 1);
		peer_conn_doom(&c->base, "the peer could not prove its identity");
		return;
	}
	area = shm_map_sealed_fd(fd, SHM_AREA_BYTES, PROT_READ | PROT_WRITE, MAP_POPULATE);
	if (area)
		shm_conn_come_up(c, area);
	else
		peer_conn_doom(
			&c->base, "the peer's shared memory is not sealed, or cannot be mapped");
}

/* Handshake of the connecting side: receive first the challenge, then the welcome. */
static void connecting_socket(struct shm_conn *c)
{
	union {
		struct shm_challenge ch;
		struct shm_welcome w;
	} u;
	ssize_t n;
	int fd;

	while (c->base.state == CONN_CONNECTING &&
		(n = handshake_recv(c, &u, sizeof(u), &fd)) > 0) {
		if (n == sizeof(u.ch) && fd < 0 && u.ch.magic == SHM_MAGIC && !c->is_challenged) {
			/* Accept one challenge only, so that the peer cannot keep this thread
			 * busy */
			c->is_challenged = true;
			take_challenge(c, &u.ch);
		} else if (n == sizeof(u.w) && fd >= 0) {
			shm_apply_welcome(c, &u.w, fd); /* shm_apply_welcome owns fd now */
		} else {
			if (fd >= 0)
				close(fd);
			peer_conn_doom(&c->base, "malformed handshake");
		}
	}
}

/* Check the hello of a connecting agent. If the hello is valid, writes the shared key to ret_key
 * and returns NULL. Otherwise returns the reason for refusing the hello, which is in `text` if it
 * names a version. */
static const char *shm_check_hello(struct shm_conn *c, const struct shm_hello *hello,
	struct ticket *t, void *ret_key, struct err_text *text)
{
	const struct shm_xport *x = shm_xport_of_conn(c);
	int rc = ticket_parse(hello->ticket, sizeof(hello->ticket), t);

	if (rc == BPS_EVERSION) {
		ticket_explain_version(t->version, text);
		return text->s;
	}
	if (rc || t->channel != TICKET_SAME_HOST)
		return "malformed ticket";
	if (t->nonce != c->base.nonce || t->thread != x->base.thread)
		return "the ticket belongs to another connection";
	if (x->cfg.key_fn(x->cfg.key_ctx, t->peer_id, t->instance, ret_key))
		return "the peer is unknown, or a newer process has replaced it";
	return ticket_verify(hello->ticket, ret_key) ? "wrong key" : NULL;
}

/* Make the shared memory of the rings, and allocate all its pages now.
 * Errors: -errno. */
static int shm_create_ring_area(int *ret_fd, void **ret_area)
{
	int fd, rc = memfd_create_sealed("bps-rings", SHM_AREA_BYTES, MEMFD_FIXED_SIZE, &fd);
	void *area;

	if (rc < 0)
		return rc;
	rc = -posix_fallocate(fd, 0, SHM_AREA_BYTES);
	area = rc ? MAP_FAILED
		  : mmap(NULL, SHM_AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			    fd, 0);
	if (area == MAP_FAILED) {
		rc = rc ? rc : -errno;
		close(fd);
		return rc;
	}
	*ret_fd = fd;
	*ret_area = area;
	return 0;
}

static void shm_send_welcome(struct shm_conn *c, const struct shm_hello *hello, const void *key)
{
	const struct shm_xport *x = shm_xport_of_conn(c);
	struct proof p = {.instance = x->cfg.my_instance,
		.peer_id = x->cfg.my_id,
		.credits = TICKET_NO_CREDITS};
	struct shm_welcome w = {{0}};
	void *area = NULL;
	int fd = -1, rc = shm_create_ring_area(&fd, &area);

	if (rc < 0) {
		peer_conn_doom(&c->base, "cannot make shared memory: %s", strerror(-rc));
		return;
	}
	proof_seal(&p, hello->nonce, key, w.proof);
	rc = shm_send_fd(c->sock, &w, sizeof(w), fd);
	close(fd);
	if (rc < 0) {
		munmap(area, SHM_AREA_BYTES);
		peer_conn_doom(
			&c->base, "cannot send the shared memory to the peer: %s", strerror(-rc));
		return;
	}
	shm_conn_come_up(c, area);
}

static void accepting_socket(struct shm_conn *c)
{
	struct shm_hello hello = {.nonce = 0};
	struct ticket t = {0};
	uint8_t key[TICKET_KEY_BYTES];
	struct err_text text;
	const char *why;
	int fd;
	ssize_t n = handshake_recv(c, &hello, sizeof(hello), &fd);

	if (n <= 0)
		return;
	if (fd >= 0)
		close(fd);
	why = n == sizeof(hello) && fd < 0 ? shm_check_hello(c, &hello, &t, key, &text)
					   : "malformed ticket";
	if (why) {
		shm_counter_add(&shm_xport_of_conn(c)->cfg.counters->refused, 1);
		log_rated(LOG_WARN, "refused a same-host connection: %s uid=%u peer=%u", why,
			(unsigned)c->uid, t.peer_id);
		peer_conn_doom(&c->base, "%s", why);
		return;
	}
	c->base.pub.peer_id = t.peer_id;
	c->base.pub.peer_instance = t.instance;
	shm_send_welcome(c, &hello, key);
	OPENSSL_cleanse(key, sizeof(key));
}

/* Receive the wake-ups in the socket. A message with a memfd stays in the socket until a SEG_ADD
 * message in the ring names the memfd's segment. shm_receive_memfd then receives the memfd. */
static void shm_drain_wakeups(struct shm_conn *c)
{
	struct shm_note note;
	ssize_t n;

	while ((n = recv(c->sock, &note, sizeof(note), MSG_PEEK | MSG_DONTWAIT)) > 0) {
		if (n != sizeof(note) || (note.type != SHM_WAKE && note.type != SHM_SEGMENT)) {
			shm_protocol_error(c, "an unknown notification");
			return;
		}
		if (note.type == SHM_SEGMENT ||
			recv(c->sock, &note, sizeof(note), MSG_DONTWAIT) < 0)
			return;
	}
	if (n == 0 || errno != EAGAIN)
		peer_conn_doom(&c->base, "closed by the peer");
}

void shm_conn_socket(struct shm_conn *c, uint32_t events)
{
	/* Check for a closed socket by the epoll events, not only by recv. A message with a memfd
	 * may stay in the socket forever. recv would then never reach the end of the stream. */
	if (c->base.state == CONN_UP && events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))
		peer_conn_doom(&c->base, "closed by the peer");
	else if (c->base.state == CONN_UP)
		shm_drain_wakeups(c);
	else if (c->base.state == CONN_CONNECTING)
		connecting_socket(c);
	else if (c->base.state == CONN_ACCEPTING)
		accepting_socket(c);
}

/* ---- down ---- */

void shm_protocol_error(struct shm_conn *c, const char *what)
{
	shm_counter_add(&shm_xport_of_conn(c)->cfg.counters->protocol_errors, 1);
	peer_conn_broke_protocol(&c->base, what);
}

void shm_conn_tear_down(struct xconn *conn, const char *why)
{
	struct shm_conn *c = (struct shm_conn *)conn;
	struct shm_xport *x = shm_xport_of_conn(c);

	if (c->base.state == CONN_GONE)
		return; /* second call of this function, from a callback of the first call */
	peer_conn_set_state(&c->base, CONN_GONE, why);
	if (c->page) {
		/* After this store, this process may overwrite memory that it had offered. The
		 * peer's shm_map_is_intact checks the stored value. */
		atomic_exchange_explicit(&c->page->is_over[c->side], 1, memory_order_acq_rel);
		atomic_fetch_sub_explicit(&x->cfg.counters->connections, 1, memory_order_relaxed);
	}
	close(c->sock);
	shm_conn_cancel_reads(c);
	if (c->base.is_told)
		x->base.pub.ev->down(x->base.pub.ctx, &c->base.pub, why);
	shm_maps_drop(c);
	if (c->page)
		munmap(c->page, SHM_AREA_BYTES);
	c->page = NULL;
	OPENSSL_cleanse(c->base.key, sizeof(c->base.key));
	shm_conn_remove(c);
}

/* ---- time ---- */

void shm_tick_all_conns(struct shm_xport *x)
{
	const struct wire_msg ping = {.type = WIRE_PING};

	x->base.next_deadline_ns = UINT64_MAX;
	for (unsigned i = 0; i < SHM_CONNS_MAX; i++) {
		struct shm_conn *c = x->conns[i];

		if (!c)
			continue;
		if (peer_conn_tick(&c->base))
			/* If the ring has no room, the ping is not sent. The peer then has unread
			 * messages, which have the same effect as a ping */
			shm_put_message(c, &ping);
		if (c->base.state == CONN_UP && c->is_sock_full)
			peer_xport_lower_deadline(&x->base, c->sock_retry_ns);
	}
}
