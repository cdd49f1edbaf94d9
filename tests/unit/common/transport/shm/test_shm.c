/* The transport through shared memory: ring, handshake, messages, reads and the end of
 * connections. Both ends run in one process with separate mappings. They share one thread, except
 * in two tests that run the server in its own thread. Peers that must die are forked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/os/memfd.h"
#include "common/transport/shm/shm.h"
#include "common/transport/shm/shm_impl.h"

#define SERVER_ID       7
#define SERVER_INSTANCE 0x5e5e5e01u
#define CLIENT_ID       3
#define CLIENT_INSTANCE 0xc1c1c101u
#define THREAD          1
#define MS              UINT64_C(1000000)
#define DEADLINE_MS     5000
#define SEG_BYTES       ((size_t)2 << 20)

static uint8_t the_key[32] = "the key of exactly this pair....";

struct shm_node {
	struct shm_counters counters;
	struct xport *x;
	struct xconn *conn;
	unsigned n_up, n_down, n_messages, n_writable, n_read_done, n_read_failed;
	uint32_t peer_id;
	uint64_t peer_instance;
	char why[200];
	bool is_known;
	void (*on_message)(struct shm_node *n, struct xconn *c, const struct wire_msg *m);
	bool is_wrong;
	uint64_t next_round;
	uint8_t *mem; /* the node's own segment */
	uint16_t seg;
};

struct shm_rig {
	char dir[32];
	int *listen_fds; /* array for the field listen_fds of struct shm_config */
	struct shm_node server, client;
};

static void on_up(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance)
{
	struct shm_node *n = ctx;

	n->n_up++;
	n->conn = c;
	n->peer_id = peer_id;
	n->peer_instance = peer_instance;
}

static void on_down(void *ctx, struct xconn *c, const char *why)
{
	struct shm_node *n = ctx;

	n->n_down++;
	if (n->conn == c)
		n->conn = NULL;
	snprintf(n->why, sizeof(n->why), "%s", why);
}

static void on_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct shm_node *n = ctx;

	n->n_messages++;
	if (n->on_message)
		n->on_message(n, c, m);
}

static void on_read_done(void *ctx, struct xport_read *r, int status)
{
	struct shm_node *n = ctx;

	(void)r;
	n->n_read_done++;
	n->n_read_failed += status != 0;
}

static void on_writable(void *ctx, struct xconn *c)
{
	struct shm_node *n = ctx;

	(void)c;
	n->n_writable++;
}

static const struct xport_events events = {
	.up = on_up,
	.down = on_down,
	.message = on_message,
	.read_done = on_read_done,
	.writable = on_writable,
};

static int key_of(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key)
{
	const struct shm_node *n = ctx;

	if (!n->is_known || peer_id != CLIENT_ID || peer_instance != CLIENT_INSTANCE)
		return BPS_ENOTFOUND;
	memcpy(ret_key, the_key, sizeof(the_key));
	return 0;
}

static void node_open(struct shm_rig *r, struct shm_node *n, uint32_t ping_ms, uint32_t dead_ms)
{
	bool is_server = n == &r->server;
	struct shm_config cfg = {.dir = r->dir,
		.is_listener = is_server,
		.listen_fds = is_server ? r->listen_fds : NULL,
		.my_id = is_server ? SERVER_ID : CLIENT_ID,
		.my_instance = is_server ? SERVER_INSTANCE : CLIENT_INSTANCE,
		.connect_timeout_ms = 200,
		.ping_ms = ping_ms,
		.dead_ms = dead_ms,
		.key_fn = key_of,
		.key_ctx = n,
		.counters = &n->counters};
	struct err_text err = {""};
	int fd;

	n->is_known = true;
	if (shm_xport_new(&cfg, is_server ? THREAD : 0, &events, n, &n->x, &err))
		fail_msg("%s", err.s);
	assert_int_equal(memfd_create_sealed("test", SEG_BYTES, MEMFD_FIXED_SIZE, &fd), 0);
	n->mem = mmap(NULL, SEG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(n->mem, MAP_FAILED);
	assert_int_equal(n->x->ops->seg_add(n->x, n->mem, SEG_BYTES, &n->seg), 0);
	assert_int_equal(n->x->ops->seg_share(n->x, n->seg, fd), 0);
	close(fd);
}

static void node_close(struct shm_node *n)
{
	xport_free(n->x);
	n->x = NULL;
	if (n->mem)
		munmap(n->mem, SEG_BYTES);
	n->mem = NULL;
}

static void rig_open(struct shm_rig *r)
{
	*r = (struct shm_rig){.dir = "/tmp/bps-shm-XXXXXX"};
	assert_non_null(mkdtemp(r->dir));
	node_open(r, &r->server, 0, 0);
	node_open(r, &r->client, 0, 0);
}

static void rig_close(struct shm_rig *r)
{
	node_close(&r->client);
	node_close(&r->server);
	assert_int_equal(rmdir(r->dir), 0); /* rmdir fails if files are left in the folder */
}

static int turn(struct shm_node *n)
{
	return n->x ? n->x->ops->poll(n->x, clock_now_ns()) : 0;
}

/* Drive both ends until *count is at least `want`. Sleep when both ends allow it. */
static void drive(struct shm_rig *r, const unsigned *count, unsigned want)
{
	uint64_t end = clock_now_ns() + DEADLINE_MS * MS;

	while (*count < want) {
		struct pollfd p[2] = {{.fd = -1}, {.fd = -1}};
		bool may = !turn(&r->client) && !turn(&r->server);

		if (*count >= want)
			return;
		if (clock_now_ns() > end)
			fail_msg("not within %d ms", DEADLINE_MS);
		for (unsigned i = 0; i < 2; i++) {
			struct xport *x = i ? r->server.x : r->client.x;

			if (!x)
				continue;
			may = x->ops->may_sleep(x) && may;
			p[i] = (struct pollfd){.fd = x->ops->fd(x), .events = POLLIN};
		}
		if (may)
			poll(p, 2, 20);
	}
}

static int dial(struct shm_rig *r, const void *key)
{
	return r->client.x->ops->connect(
		r->client.x, "", 0, THREAD, SERVER_ID, SERVER_INSTANCE, key, NULL, &r->client.conn);
}

static void rig_connect(struct shm_rig *r)
{
	rig_open(r);
	assert_int_equal(dial(r, the_key), 0);
	drive(r, &r->client.n_up, 1);
	drive(r, &r->server.n_up, 1);
}

static struct wire_msg contrib(uint64_t round, uint32_t len, const void *payload)
{
	return (struct wire_msg){.type = WIRE_CONTRIB,
		.flags = payload ? WIRE_INLINE : 0,
		.pgen = 1,
		.round = round,
		.len = len,
		.segment = payload ? WIRE_NO_SEGMENT : 0,
		.contrib.workers = 1,
		.payload = payload};
}

/* ---- the ring ---- */

struct shm_ring_rig {
	struct ring_shared s;
	uint8_t *bytes;
	struct ring_end tx, rx;
};

static void ring_open(struct shm_ring_rig *r)
{
	memset(&r->s, 0, sizeof(r->s));
	r->bytes = calloc(1, RING_BYTES);
	assert_non_null(r->bytes);
	ring_init(&r->tx, &r->s, r->bytes);
	ring_init(&r->rx, &r->s, r->bytes);
}

static void entries_are_intact_even_across_the_wrap(void **state)
{
	static uint8_t in[16 * 1024], out[16 * 1024];
	struct shm_ring_rig r;
	uint64_t put = 0, got = 0;

	(void)state;
	ring_open(&r);
	while (got < 1000) {
		size_t n = 8 + put % 2000 * 8;

		memset(in, (int)(put % 251), n);
		if (put < 1000 && ring_put(&r.tx, in, n) == 0) {
			put++;
			continue;
		}
		n = 8 + got % 2000 * 8;
		memset(in, (int)(got % 251), n);
		assert_int_equal(ring_get(&r.rx, out, sizeof(out)), n);
		assert_memory_equal(in, out, n);
		ring_release_consumed(&r.rx);
		got++;
	}
	assert_int_equal(ring_get(&r.rx, out, sizeof(out)), 0);
	free(r.bytes);
}

static void producer_without_room_is_woken_when_there_is_some(void **state)
{
	static uint8_t e[1024];
	struct shm_ring_rig r;

	(void)state;
	ring_open(&r);
	while (ring_put(&r.tx, e, sizeof(e)) == 0)
		;
	assert_int_equal(ring_put(&r.tx, e, sizeof(e)), -EAGAIN);
	assert_false(ring_has_room(&r.tx, sizeof(e)));
	assert_false(ring_want_room(&r.tx));
	while (ring_get(&r.rx, e, sizeof(e)) > 0)
		;
	assert_true(ring_release_consumed(&r.rx));
	assert_false(ring_release_consumed(&r.rx)); /* only the first call requests a wake-up */
	assert_true(ring_want_room(&r.tx));
	assert_int_equal(ring_put(&r.tx, e, sizeof(e)), 0);
	free(r.bytes);
}

static void consumer_sleeps_only_when_nothing_has_come_in(void **state)
{
	uint64_t e = 1;
	struct shm_ring_rig r;

	(void)state;
	ring_open(&r);
	assert_true(ring_may_sleep(&r.rx));
	assert_int_equal(ring_put(&r.tx, &e, 8), 0);
	assert_true(ring_must_wake(&r.tx));
	assert_false(ring_must_wake(&r.tx)); /* only the first call requests a wake-up */
	assert_false(ring_may_sleep(&r.rx));
	ring_clear_sleeping(&r.rx);
	assert_int_equal(ring_put(&r.tx, &e, 8), 0);
	assert_false(ring_must_wake(&r.tx));
	free(r.bytes);
}

static void put_length(struct shm_ring_rig *r, uint64_t len, uint64_t tail)
{
	ring_init(&r->rx, &r->s, r->bytes);
	memcpy(r->bytes, &len, sizeof(len));
	atomic_store(&r->s.tail, tail);
}

static void invalid_content_of_a_ring_is_refused(void **state)
{
	uint64_t e[4] = {0};
	struct shm_ring_rig r;

	(void)state;
	ring_open(&r);
	put_length(&r, 8, RING_BYTES + 8); /* the length exceeds the size of the ring */
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, 8, 15);
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, 0, 8);
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, 12, 24);
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, 16, 16); /* the length exceeds the bytes that were written */
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, UINT64_MAX - 7, 64);
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, 40, 48); /* the length exceeds the receiver's buffer */
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	put_length(&r, 16, 24);
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), 16);
	atomic_store(&r.s.tail, 16); /* the tail moves to an earlier position */
	assert_int_equal(ring_get(&r.rx, e, sizeof(e)), BPS_EPROTO);
	free(r.bytes);

	ring_open(&r);
	atomic_store(&r.s.head, 8); /* the head states that more was read than was written */
	while ((e[0] = (uint64_t)ring_put(&r.tx, e, sizeof(e))) == 0)
		;
	atomic_store(&r.s.head, UINT64_MAX);
	assert_int_equal(ring_put(&r.tx, e, sizeof(e)), BPS_EPROTO);
	free(r.bytes);
}

/* ---- handshake ---- */

static void right_key_brings_both_sides_up_with_identities(void **state)
{
	struct shm_rig r;

	(void)state;
	rig_connect(&r);
	assert_int_equal(r.client.peer_id, SERVER_ID);
	assert_int_equal(r.client.peer_instance, SERVER_INSTANCE);
	assert_int_equal(r.server.peer_id, CLIENT_ID);
	assert_int_equal(r.server.peer_instance, CLIENT_INSTANCE);
	assert_true(r.client.conn->is_same_host && r.server.conn->is_same_host);
	xport_close(r.client.conn, "done");
	drive(&r, &r.server.n_down, 1);
	assert_int_equal(r.client.n_down, 1);
	assert_int_equal(r.client.counters.connections, 0);
	rig_close(&r);
}

static void server_is_found_before_its_thread_runs(void **state)
{
	struct shm_rig r = {.dir = "/tmp/bps-shm-XXXXXX"};
	int fds[THREAD + 1] = {-1, -1};
	struct shm_config cfg = {.dir = r.dir, .my_instance = SERVER_INSTANCE, .listen_fds = fds};
	struct err_text err;

	(void)state;
	assert_non_null(mkdtemp(r.dir));
	fds[THREAD] = shm_listen(&cfg, THREAD, &err);
	assert_true(fds[THREAD] >= 0);
	node_open(&r, &r.client, 1000, 4000);
	assert_int_equal(dial(&r, the_key), 0);
	r.listen_fds = fds;
	node_open(&r, &r.server, 1000, 4000);
	assert_int_equal(fds[THREAD], -1);
	drive(&r, &r.client.n_up, 1);
	rig_close(&r);
}

static void wrong_key_is_refused(void **state)
{
	struct shm_rig r;

	(void)state;
	rig_open(&r);
	assert_int_equal(dial(&r, "the key of some quite other pair"), 0);
	drive(&r, &r.client.n_down, 1);
	assert_int_equal(r.client.n_up + r.server.n_up + r.server.n_down, 0);
	assert_int_equal(r.server.counters.refused, 1);
	rig_close(&r);
}

static void forgotten_instance_is_refused(void **state)
{
	struct shm_rig r;

	(void)state;
	rig_open(&r);
	r.server.is_known = false;
	assert_int_equal(dial(&r, the_key), 0);
	drive(&r, &r.client.n_down, 1);
	assert_int_equal(r.client.n_up + r.server.n_up, 0);
	rig_close(&r);
}

static struct sockaddr_un server_addr(const struct shm_rig *r)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};

	snprintf(sun.sun_path, sizeof(sun.sun_path), "%s/%016lx.%u", r->dir,
		(unsigned long)SERVER_INSTANCE, THREAD);
	return sun;
}

/* Remove the socket of the fake server, and then the folder r->dir. */
static void remove_fake(const struct shm_rig *r)
{
	struct sockaddr_un sun = server_addr(r);

	unlink(sun.sun_path);
	assert_int_equal(rmdir(r->dir), 0);
}

static int raw_socket(const struct shm_rig *r, bool is_listener)
{
	struct sockaddr_un sun = server_addr(r);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	if (is_listener) {
		assert_int_equal(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
		assert_int_equal(listen(fd, 4), 0);
	} else {
		assert_int_equal(connect(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	}
	return fd;
}

static void server_without_the_key_is_rejected(void **state)
{
	struct shm_challenge ch = {.magic = SHM_MAGIC, .version = SHM_VERSION, .nonce = 5};
	struct shm_hello hello;
	struct shm_welcome w = {{0}};
	struct shm_rig r;
	int lfd, fd, area;

	(void)state;
	rig_open(&r);
	node_close(&r.server);
	lfd = raw_socket(&r, true);
	assert_int_equal(dial(&r, the_key), 0);
	fd = accept(lfd, NULL, NULL);
	assert_int_equal(send(fd, &ch, sizeof(ch), 0), sizeof(ch));
	turn(&r.client);
	r.client.x->ops->may_sleep(r.client.x);
	turn(&r.client);
	assert_int_equal(recv(fd, &hello, sizeof(hello), 0), sizeof(hello));
	assert_int_equal(memfd_create_sealed("fake", SHM_AREA_BYTES, MEMFD_FIXED_SIZE, &area), 0);
	assert_int_equal(shm_send_fd(fd, &w, sizeof(w), area), 0);
	drive(&r, &r.client.n_down, 1);
	assert_int_equal(r.client.n_up, 0);
	assert_non_null(strstr(r.client.why, "could not prove"));
	close(area);
	close(fd);
	close(lfd);
	node_close(&r.client);
	remove_fake(&r);
}

static void server_of_another_version_is_rejected_with_both_versions(void **state)
{
	struct shm_challenge ch = {.magic = SHM_MAGIC, .version = SHM_VERSION + 76};
	struct shm_rig r;
	int lfd, fd;

	(void)state;
	rig_open(&r);
	node_close(&r.server);
	lfd = raw_socket(&r, true);
	assert_int_equal(dial(&r, the_key), 0);
	fd = accept(lfd, NULL, NULL);
	assert_int_equal(send(fd, &ch, sizeof(ch), 0), sizeof(ch));
	drive(&r, &r.client.n_down, 1);
	assert_int_equal(r.client.n_up, 0);
	assert_non_null(strstr(r.client.why, "the peer uses version 77"));
	assert_non_null(strstr(r.client.why, "this release uses version 1"));
	close(fd);
	close(lfd);
	node_close(&r.client);
	remove_fake(&r);
}

static void ticket_of_another_challenge_is_refused(void **state)
{
	struct ticket t = {.thread = THREAD,
		.channel = TICKET_SAME_HOST,
		.peer_id = CLIENT_ID,
		.credits = 64,
		.instance = CLIENT_INSTANCE};
	struct shm_challenge ch;
	struct shm_hello hello = {.nonce = 1};
	struct shm_rig r;
	int fd;

	(void)state;
	rig_open(&r);
	for (unsigned i = 0; i < 4; i++) {
		fd = raw_socket(&r, false);
		turn(&r.server);
		r.server.x->ops->may_sleep(r.server.x);
		turn(&r.server);
		assert_int_equal(recv(fd, &ch, sizeof(ch), 0), sizeof(ch));
		/* Send an invalid ticket. Ticket 0 has an old nonce, ticket 1 is for a network
		 * connection, ticket 2 has a changed byte, and ticket 3 has another version. */
		t.nonce = i == 0 ? ch.nonce - 1 : ch.nonce;
		t.channel = i == 1 ? CHANNEL_FIRST : TICKET_SAME_HOST;
		ticket_seal(&t, the_key, hello.ticket);
		if (i == 2)
			hello.ticket[3] ^= 1;
		if (i == 3)
			hello.ticket[4]++;
		assert_int_equal(send(fd, &hello, sizeof(hello), 0), sizeof(hello));
		r.server.x->ops->may_sleep(r.server.x);
		turn(&r.server);
		assert_int_equal(recv(fd, &ch, sizeof(ch), 0), 0);
		assert_int_equal(r.server.counters.refused, i + 1);
		close(fd);
	}
	assert_int_equal(r.server.n_up, 0);
	rig_close(&r);
}

static void strangers_take_no_place_of_others(void **state)
{
	struct shm_rig r;
	int fds[SHM_CONNS_MAX + 8];

	(void)state;
	rig_open(&r);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
		fds[i] = raw_socket(&r, false);
		r.server.x->ops->may_sleep(r.server.x);
		turn(&r.server);
	}
	assert_int_equal(((struct shm_xport *)r.server.x)->base.n_conns, SHM_PER_USER);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		close(fds[i]);
	for (uint64_t end = clock_now_ns() + DEADLINE_MS * MS;
		((struct shm_xport *)r.server.x)->base.n_conns && clock_now_ns() < end;)
		turn(&r.server);
	assert_int_equal(dial(&r, the_key), 0);
	drive(&r, &r.client.n_up, 1);
	rig_close(&r);
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* Send n bytes with two descriptors. A receive buffer for one descriptor has room for two, because
 * the buffer's size is rounded up. */
static void send_with_two(int sock, void *bytes, size_t n, int fd)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} u = {.h = {.cmsg_level = SOL_SOCKET,
		       .cmsg_type = SCM_RIGHTS,
		       .cmsg_len = CMSG_LEN(2 * sizeof(int))}};
	struct iovec iov = {bytes, n};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};

	memcpy(CMSG_DATA(&u.h), (int[]){fd, fd}, 2 * sizeof(int));
	assert_int_equal(sendmsg(sock, &m, 0), n);
}

static void descriptors_of_a_stranger_are_closed(void **state)
{
	struct shm_hello hello = {.nonce = 1};
	struct shm_rig r;
	unsigned before;
	int fd;

	(void)state;
	rig_open(&r);
	before = open_descriptors();
	for (unsigned i = 0; i < 5; i++) {
		fd = raw_socket(&r, false);
		turn(&r.server);
		r.server.x->ops->may_sleep(r.server.x);
		turn(&r.server);
		send_with_two(fd, &hello, i % 2 ? 0 : sizeof(hello), fd);
		r.server.x->ops->may_sleep(r.server.x);
		turn(&r.server);
		close(fd);
	}
	assert_int_equal(r.server.counters.refused, 3);
	assert_int_equal(open_descriptors(), before);
	rig_close(&r);
}

static void listener_that_sends_descriptors_with_its_challenge_is_left(void **state)
{
	uint8_t junk[SHM_PAGE] = {0};
	struct shm_rig r;
	unsigned before;
	int lfd, fd;

	(void)state;
	rig_open(&r);
	node_close(&r.server);
	lfd = raw_socket(&r, true);
	before = open_descriptors();
	assert_int_equal(dial(&r, the_key), 0);
	fd = accept(lfd, NULL, NULL);
	send_with_two(fd, junk, 8, fd);
	drive(&r, &r.client.n_down, 1);
	assert_non_null(strstr(r.client.why, "malformed handshake"));
	close(fd);
	turn(&r.client);
	assert_int_equal(open_descriptors(), before);
	close(lfd);
	node_close(&r.client);
	remove_fake(&r);
}

static void two_descriptors_for_a_segment_close_the_connection_and_both(void **state)
{
	struct shm_note note = {.type = SHM_SEGMENT, .segment = 9, .bytes = 65536};
	const struct wire_msg add = {.type = WIRE_SEG_ADD, .segment = 9, .seg.bytes = 65536};
	struct shm_rig r;
	unsigned before;
	int fd;

	(void)state;
	rig_connect(&r);
	assert_int_equal(memfd_create_sealed("seg", 65536, MEMFD_FIXED_SIZE, &fd), 0);
	before = open_descriptors();
	send_with_two(((struct shm_conn *)r.client.conn)->sock, &note, sizeof(note), fd);
	assert_int_equal(shm_put_message((struct shm_conn *)r.client.conn, &add), 0);
	drive(&r, &r.server.n_down, 1);
	drive(&r, &r.client.n_down, 1);
	/* the descriptors of both ends of the connection are closed */
	assert_int_equal(open_descriptors(), before - 2);
	close(fd);
	rig_close(&r);
}

static void silent_listener_times_out(void **state)
{
	struct shm_rig r;
	int lfd;

	(void)state;
	rig_open(&r);
	node_close(&r.server);
	lfd = raw_socket(&r, true);
	assert_int_equal(dial(&r, the_key), 0);
	drive(&r, &r.client.n_down, 1);
	assert_non_null(strstr(r.client.why, "handshake was not complete"));
	close(lfd);
	node_close(&r.client);
	remove_fake(&r);
}

/* Run until each end has mapped the segment of the other end. */
static void know_segments(struct shm_rig *r)
{
	uint64_t end = clock_now_ns() + DEADLINE_MS * MS;

	while (!((struct shm_conn *)r->server.conn)->maps[r->client.seg] ||
		!((struct shm_conn *)r->client.conn)->maps[r->server.seg]) {
		turn(&r->client);
		turn(&r->server);
		assert_true(clock_now_ns() < end);
	}
}

/* ---- messages ---- */

static void check_message(struct shm_node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)c;
	n->is_wrong |= m->round != ++n->next_round;
	for (uint32_t i = 0; m->payload && i < m->len; i++)
		n->is_wrong |= ((const uint8_t *)m->payload)[i] != (uint8_t)(m->round + i);
}

static void messages_of_all_sizes_arrive_intact_and_in_order(void **state)
{
	static uint8_t payload[WIRE_INLINE_MAX];
	struct shm_rig r;
	unsigned n_refused = 0;

	(void)state;
	rig_connect(&r);
	r.server.on_message = check_message;
	for (uint64_t round = 1; round <= 500; round++) {
		uint32_t len = (uint32_t)(1 + round * 8191 % WIRE_INLINE_MAX);
		struct wire_msg m = contrib(round, len, payload);

		for (uint32_t i = 0; i < len; i++)
			payload[i] = (uint8_t)(round + i);
		while (xport_send(r.client.conn, &m) == -EAGAIN) {
			n_refused++;
			drive(&r, &r.client.n_writable, n_refused);
		}
	}
	drive(&r, &r.server.n_messages, 500);
	assert_false(r.server.is_wrong);
	assert_true(n_refused > 0);
	rig_close(&r);
}

#define PINGS 3000

static void send_back(struct shm_node *n, struct xconn *c, const struct wire_msg *m)
{
	struct wire_msg back = contrib(m->round + 1, 100000, NULL);

	/* The server, whose peer is the client, replies to every message. So the server sends the
	 * last message. */
	if (n->n_messages < PINGS || n->peer_id == CLIENT_ID)
		n->is_wrong |= xport_send(c, &back) != 0;
}

/* Run a node. Sleep when the node allows it, so that each message has to wake this thread. */
static void *turn_and_sleep(void *arg)
{
	struct shm_node *n = arg;

	while (n->n_messages < PINGS && !n->is_wrong) {
		struct pollfd p = {.fd = n->x->ops->fd(n->x), .events = POLLIN};

		if (turn(n) || !n->x->ops->may_sleep(n->x))
			continue;
		n->is_wrong |= poll(&p, 1, DEADLINE_MS) == 0; /* 0: no wake-up arrived in time */
	}
	return NULL;
}

static void sleeping_threads_wake_each_other(void **state)
{
	struct wire_msg first = contrib(1, 100000, NULL);
	struct shm_rig r;
	pthread_t th;

	(void)state;
	rig_connect(&r);
	know_segments(&r);
	r.server.on_message = r.client.on_message = send_back;
	assert_int_equal(pthread_create(&th, NULL, turn_and_sleep, &r.server), 0);
	xport_send(r.client.conn, &first);
	turn_and_sleep(&r.client);
	pthread_join(th, NULL);
	assert_false(r.client.is_wrong || r.server.is_wrong);
	rig_close(&r);
}

#define FLOOD 20000

static void count_to_flood(struct shm_node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)c;
	n->is_wrong |= m->round != ++n->next_round;
}

/* Receive messages so slowly that the ring fills up. Sleep between messages. */
static void *take_flood(void *arg)
{
	struct shm_node *n = arg;

	while (n->n_messages < FLOOD && !n->is_wrong) {
		struct pollfd p = {.fd = n->x->ops->fd(n->x), .events = POLLIN};

		if (!turn(n) && n->x->ops->may_sleep(n->x))
			n->is_wrong |= poll(&p, 1, DEADLINE_MS) == 0;
	}
	return NULL;
}

static void sender_without_room_sleeps_until_there_is_some(void **state)
{
	struct shm_rig r;
	pthread_t th;
	uint64_t round = 1;

	(void)state;
	rig_connect(&r);
	know_segments(&r);
	r.server.on_message = count_to_flood;
	while (round <= FLOOD && !r.client.is_wrong) {
		struct pollfd p = {.fd = r.client.x->ops->fd(r.client.x), .events = POLLIN};
		struct wire_msg m = contrib(round, 100000, NULL);
		unsigned n_writable = r.client.n_writable;

		if (xport_send(r.client.conn, &m) == 0) {
			round++;
			continue;
		}
		if (!n_writable) /* start the receiver when the ring is full for the first time */
			assert_int_equal(pthread_create(&th, NULL, take_flood, &r.server), 0);
		while (r.client.n_writable == n_writable && !r.client.is_wrong)
			if (!turn(&r.client) && r.client.n_writable == n_writable &&
				r.client.x->ops->may_sleep(r.client.x))
				r.client.is_wrong |= poll(&p, 1, DEADLINE_MS) == 0;
	}
	pthread_join(th, NULL);
	assert_false(r.client.is_wrong || r.server.is_wrong);
	assert_true(r.client.n_writable > 0);
	rig_close(&r);
}

static void malformed_message_closes_its_connection(void **state)
{
	uint64_t junk[16] = {0x1122334455667788};
	struct shm_rig r;
	struct shm_conn *c;

	(void)state;
	rig_connect(&r);
	c = (struct shm_conn *)r.client.conn;
	assert_int_equal(ring_put(&c->tx, junk, sizeof(junk)), 0);
	shm_send_wakeup(c);
	drive(&r, &r.server.n_down, 1);
	drive(&r, &r.client.n_down, 1);
	assert_int_equal(r.server.counters.protocol_errors, 1);
	rig_close(&r);
}

static void ring_of_a_hostile_peer_closes_its_connection(void **state)
{
	struct shm_rig r;
	struct shm_conn *c;

	(void)state;
	rig_connect(&r);
	c = (struct shm_conn *)r.client.conn;
	atomic_store(&c->tx.s->tail, UINT64_MAX - 7);
	shm_send_wakeup(c);
	drive(&r, &r.server.n_down, 1);
	assert_int_equal(r.server.counters.protocol_errors, 1);
	rig_close(&r);
}

/* ---- memory ---- */

static void reads_of_all_sizes_are_exact_both_ways(void **state)
{
	static const uint32_t sizes[] = {1, 63, 4097, 300000, SHM_COPY_SLICE + 1, SEG_BYTES / 2};
	struct shm_rig r;
	unsigned n = 0;

	(void)state;
	rig_connect(&r);
	know_segments(&r);
	for (size_t i = 0; i < SEG_BYTES / 2; i++) {
		r.server.mem[i] = (uint8_t)(i * 7 + i / 4096);
		r.client.mem[i] = (uint8_t)(i * 11 + i / 4096);
	}
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t at = (uint32_t)(i * 8), len = sizes[i] - (i == 5 ? at : 0);
		struct xport_read to_client = {.conn = r.client.conn,
			.dst = r.client.mem + SEG_BYTES / 2,
			.own_segment = r.client.seg,
			.segment = r.server.seg,
			.len = len,
			.offset = at};
		struct xport_read to_server = to_client;

		to_server.conn = r.server.conn;
		to_server.dst = r.server.mem + SEG_BYTES / 2;
		drive(&r, &r.client.n_read_done, n);
		assert_int_equal(xport_read(&to_client), 0);
		assert_int_equal(xport_read(&to_server), 0);
		n++;
		drive(&r, &r.client.n_read_done, n);
		drive(&r, &r.server.n_read_done, n);
		assert_memory_equal(r.client.mem + SEG_BYTES / 2, r.server.mem + at, len);
		assert_memory_equal(r.server.mem + SEG_BYTES / 2, r.client.mem + at, len);
	}
	assert_int_equal(r.client.n_read_failed + r.server.n_read_failed, 0);
	rig_close(&r);
}

static void offers_beyond_a_segment_are_refused(void **state)
{
	struct xport_loan loan = {0};
	struct shm_rig r;
	struct xport_read rd;

	(void)state;
	rig_connect(&r);
	rd = (struct xport_read){.conn = r.server.conn,
		.dst = r.server.mem,
		.segment = r.client.seg,
		.len = 16,
		.offset = SEG_BYTES - 8};
	know_segments(&r);
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	rd.offset = UINT64_MAX - 4;
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	rd.offset = 0;
	rd.segment = 9;
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	rd.segment = UINT16_MAX;
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	assert_int_equal(shm_borrow(r.server.conn, r.client.seg, SEG_BYTES, 1, &loan), BPS_EPROTO);
	assert_int_equal(shm_borrow(r.server.conn, r.client.seg, 0, 0, &loan), BPS_EPROTO);
	rig_close(&r);
}

static struct wire_msg the_offer;

static void keep_offer(struct shm_node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)n;
	(void)c;
	the_offer = *m;
}

static void loan_is_the_peers_memory_and_outlives_the_connection(void **state)
{
	struct xport_loan loan = {0};
	struct wire_msg m = contrib(1, 100000, NULL);
	struct shm_rig r;

	(void)state;
	rig_connect(&r);
	r.server.on_message = keep_offer;
	m.segment = r.client.seg;
	m.offset = 4096;
	assert_int_equal(xport_send(r.client.conn, &m), 0);
	drive(&r, &r.server.n_messages, 1);
	assert_int_equal(shm_borrow(r.server.conn, the_offer.segment, the_offer.offset,
				 the_offer.len, &loan),
		0);
	/* the loan is the peer's memory itself, so a change of the peer's memory is visible in the
	 * loan */
	memset(r.client.mem + 4096, 0x5a, 100000);
	assert_int_equal(memcmp(loan.mem, r.client.mem + 4096, 100000), 0);
	node_close(&r.client);
	drive(&r, &r.server.n_down, 1);
	assert_int_equal(((const uint8_t *)loan.mem)[99999], 0x5a);
	xport_loan_end(&loan);
	assert_null(loan.mem);
	rig_close(&r);
}

static void withdrawn_segment_can_not_be_read(void **state)
{
	struct xport_read rd;
	struct shm_rig r;
	struct wire_msg m = contrib(1, 1000, NULL);

	(void)state;
	rig_connect(&r);
	m.segment = r.client.seg;
	assert_int_equal(xport_send(r.client.conn, &m), 0);
	drive(&r, &r.server.n_messages, 1);
	rd = (struct xport_read){
		.conn = r.server.conn, .dst = r.server.mem, .segment = r.client.seg, .len = 1000};
	r.client.x->ops->seg_del(r.client.x, r.client.seg);
	assert_int_equal(xport_send(r.client.conn, &m), 0);
	drive(&r, &r.server.n_messages, 2);
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	rig_close(&r);
}

/* The owner of offered memory may reuse the memory once the owner has closed the connection. A read
 * that completes after the close must fail. */
static void read_fails_when_the_owner_closes_meanwhile(void **state)
{
	struct xport_read rd;
	struct shm_rig r;
	struct wire_msg m = contrib(1, 1000, NULL);

	(void)state;
	rig_connect(&r);
	m.segment = r.server.seg;
	m.type = WIRE_GOT;
	assert_int_equal(xport_send(r.server.conn, &m), 0);
	drive(&r, &r.client.n_messages, 1);
	rd = (struct xport_read){.conn = r.client.conn,
		.dst = r.client.mem,
		.segment = r.server.seg,
		.len = SHM_COPY_SLICE + 8};
	assert_int_equal(xport_read(&rd), 0);
	turn(&r.client); /* the client copies the first part */
	assert_int_equal(r.client.n_read_done, 0);
	xport_close(r.server.conn, "test");
	turn(&r.client); /* the client copies the last part, and does not read the socket */
	assert_int_equal(r.client.n_read_done, 1);
	assert_int_equal(r.client.n_read_failed, 1);
	assert_int_equal(r.client.n_down, 1);
	rig_close(&r);
}

static void memory_that_is_not_sealed_closes_the_connection(void **state)
{
	struct wire_msg m = contrib(1, 1000, NULL);
	int fd = memfd_create("open", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	struct shm_rig r;
	uint16_t seg;

	(void)state;
	rig_connect(&r);
	assert_int_equal(ftruncate(fd, 65536), 0);
	assert_int_equal(r.client.x->ops->seg_add(r.client.x, r.client.mem, 65536, &seg), 0);
	assert_int_equal(r.client.x->ops->seg_share(r.client.x, seg, fd), 0);
	close(fd);
	m.segment = seg;
	assert_int_equal(xport_send(r.client.conn, &m), 0);
	drive(&r, &r.server.n_down, 1);
	assert_int_equal(r.server.n_messages, 0);
	rig_close(&r);
}

static void memory_smaller_than_announced_closes_the_connection(void **state)
{
	struct wire_msg m = contrib(1, 1000, NULL);
	struct shm_rig r;
	uint16_t seg;
	int fd;

	(void)state;
	rig_connect(&r);
	assert_int_equal(memfd_create_sealed("small", 4096, MEMFD_FIXED_SIZE, &fd), 0);
	assert_int_equal(r.client.x->ops->seg_add(r.client.x, r.client.mem, 65536, &seg), 0);
	assert_int_equal(r.client.x->ops->seg_share(r.client.x, seg, fd), 0);
	close(fd);
	m.segment = seg;
	assert_int_equal(xport_send(r.client.conn, &m), 0);
	drive(&r, &r.server.n_down, 1);
	assert_int_equal(r.server.n_messages, 0);
	rig_close(&r);
}

/* ---- ends ---- */

/* Start a client in another process. It sends one message and then stays silent. */
static pid_t fork_client(struct shm_rig *r, uint32_t ping_ms, uint32_t dead_ms)
{
	struct wire_msg m;
	pid_t pid = fork();

	if (pid)
		return pid;
	node_open(r, &r->client, ping_ms, dead_ms);
	dial(r, the_key);
	while (!r->client.n_up)
		turn(&r->client);
	m = contrib(1, 100000, NULL);
	m.segment = r->client.seg;
	memset(r->client.mem, 0x77, 100000);
	xport_send(r->client.conn, &m);
	for (;;) {
		struct pollfd p = {.fd = r->client.x->ops->fd(r->client.x), .events = POLLIN};

		if (!turn(&r->client) && r->client.x->ops->may_sleep(r->client.x))
			poll(&p, 1, 10);
	}
}

static void loan_of_a_killed_peer_stays_readable(void **state)
{
	struct xport_loan loan = {0};
	uint64_t killed_ns;
	struct shm_rig r = {.dir = "/tmp/bps-shm-XXXXXX"};
	pid_t pid;

	(void)state;
	assert_non_null(mkdtemp(r.dir));
	node_open(&r, &r.server, 0, 0);
	pid = fork_client(&r, 0, 0);
	r.server.on_message = keep_offer;
	drive(&r, &r.server.n_messages, 1);
	assert_int_equal(shm_borrow(r.server.conn, the_offer.segment, the_offer.offset,
				 the_offer.len, &loan),
		0);
	killed_ns = clock_now_ns();
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	drive(&r, &r.server.n_down, 1);
	assert_true(clock_now_ns() - killed_ns < 1000 * MS);
	for (unsigned i = 0; i < 100000; i++)
		assert_int_equal(((const uint8_t *)loan.mem)[i], 0x77);
	xport_loan_end(&loan);
	node_close(&r.server);
	rmdir(r.dir);
}

static void stopped_peer_is_noticed_by_its_silence(void **state)
{
	struct shm_rig r = {.dir = "/tmp/bps-shm-XXXXXX"};
	pid_t pid;

	(void)state;
	assert_non_null(mkdtemp(r.dir));
	node_open(&r, &r.server, 20, 100);
	pid = fork_client(&r, 20, 5000);
	drive(&r, &r.server.n_messages, 1);
	kill(pid, SIGSTOP);
	drive(&r, &r.server.n_down, 1);
	assert_non_null(strstr(r.server.why, "no byte was received"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	node_close(&r.server);
	rmdir(r.dir);
}

static void quiet_connection_is_kept_alive_by_pings(void **state)
{
	struct shm_rig r = {.dir = "/tmp/bps-shm-XXXXXX"};
	uint64_t end;

	(void)state;
	assert_non_null(mkdtemp(r.dir));
	node_open(&r, &r.server, 10, 60);
	node_open(&r, &r.client, 10, 60);
	assert_int_equal(dial(&r, the_key), 0);
	drive(&r, &r.server.n_up, 1);
	for (end = clock_now_ns() + 200 * MS; clock_now_ns() < end;) {
		turn(&r.client);
		turn(&r.server);
	}
	assert_int_equal(r.client.n_down + r.server.n_down, 0);
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_intact_even_across_the_wrap),
		cmocka_unit_test(producer_without_room_is_woken_when_there_is_some),
		cmocka_unit_test(consumer_sleeps_only_when_nothing_has_come_in),
		cmocka_unit_test(invalid_content_of_a_ring_is_refused),
		cmocka_unit_test(right_key_brings_both_sides_up_with_identities),
		cmocka_unit_test(server_is_found_before_its_thread_runs),
		cmocka_unit_test(wrong_key_is_refused),
		cmocka_unit_test(forgotten_instance_is_refused),
		cmocka_unit_test(server_without_the_key_is_rejected),
		cmocka_unit_test(server_of_another_version_is_rejected_with_both_versions),
		cmocka_unit_test(ticket_of_another_challenge_is_refused),
		cmocka_unit_test(strangers_take_no_place_of_others),
		cmocka_unit_test(descriptors_of_a_stranger_are_closed),
		cmocka_unit_test(listener_that_sends_descriptors_with_its_challenge_is_left),
		cmocka_unit_test(two_descriptors_for_a_segment_close_the_connection_and_both),
		cmocka_unit_test(silent_listener_times_out),
		cmocka_unit_test(messages_of_all_sizes_arrive_intact_and_in_order),
		cmocka_unit_test(sleeping_threads_wake_each_other),
		cmocka_unit_test(sender_without_room_sleeps_until_there_is_some),
		cmocka_unit_test(malformed_message_closes_its_connection),
		cmocka_unit_test(ring_of_a_hostile_peer_closes_its_connection),
		cmocka_unit_test(reads_of_all_sizes_are_exact_both_ways),
		cmocka_unit_test(offers_beyond_a_segment_are_refused),
		cmocka_unit_test(loan_is_the_peers_memory_and_outlives_the_connection),
		cmocka_unit_test(withdrawn_segment_can_not_be_read),
		cmocka_unit_test(read_fails_when_the_owner_closes_meanwhile),
		cmocka_unit_test(memory_that_is_not_sealed_closes_the_connection),
		cmocka_unit_test(memory_smaller_than_announced_closes_the_connection),
		cmocka_unit_test(loan_of_a_killed_peer_stays_readable),
		cmocka_unit_test(stopped_peer_is_noticed_by_its_silence),
		cmocka_unit_test(quiet_connection_is_kept_alive_by_pings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
