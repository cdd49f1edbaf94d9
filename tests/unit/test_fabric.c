#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "common/fabric.h"
#include "common/fabric_impl.h"

/* Provider tcp on loopback, any port; BPS_TEST_PROVIDER and BPS_TEST_ADDRESS name others
 * (tests/qemu). Most tests drive both ends from one thread, asleep whenever both may be; some use
 * threads or forked peers. A forked peer is started before this process opens its side. */

#define SERVER_ID       7
#define SERVER_INSTANCE 0x5e5e5e01u
#define CLIENT_ID       3
#define CLIENT_INSTANCE 0xc1c1c101u
#define MS              UINT64_C(1000000)
#define DEADLINE_MS     (is_tcp() ? 5000 : 60000) /* elsewhere on an emulated machine */
#define BASIC_HINT      -1
#define USUAL_HINT      (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)

static const char *from_env(const char *name, const char *otherwise)
{
	const char *s = getenv(name);

	return s ? s : otherwise;
}

static const char *provider(void)
{
	return from_env("BPS_TEST_PROVIDER", "tcp");
}

static const char *address(void)
{
	return from_env("BPS_TEST_ADDRESS", "127.0.0.1");
}

/* What is about TCP itself, and what no other provider can be made to do. */
static bool is_tcp(void)
{
	return strcmp(provider(), "tcp") == 0;
}

static const uint8_t the_key[32] = "the key of exactly this pair....";

struct node {
	struct net *f;
	struct xport *x;
	struct xconn *conn; /* the last that came up, or was connected */
	unsigned n_up, n_down, n_messages, n_writable, n_read_done, n_read_failed;
	uint32_t peer_id;
	uint64_t peer_instance;
	char why[200];
	uint64_t down_ns;
	_Atomic bool is_known; /* what its key function answers */
	void (*on_message)(struct node *n, struct xconn *c, const struct wire_msg *m);
	void (*on_writable)(struct node *n, struct xconn *c);
	uint64_t next_round;
	bool is_wrong;
	unsigned downs_at_read; /* n_down seen by the last read_done */
	atomic_bool stop;
};

struct rig {
	struct node server, client;
	struct node *third; /* when there is one */
};

static void on_up(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance)
{
	struct node *n = ctx;

	n->n_up++;
	n->conn = c;
	n->peer_id = peer_id;
	n->peer_instance = peer_instance;
}

static void on_down(void *ctx, struct xconn *c, const char *why)
{
	struct node *n = ctx;

	n->n_down++;
	n->down_ns = clock_now_ns();
	if (n->conn == c)
		n->conn = NULL;
	snprintf(n->why, sizeof(n->why), "%s", why);
}

static void on_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct node *n = ctx;

	n->n_messages++;
	if (n->on_message)
		n->on_message(n, c, m);
}

static void on_read_done(void *ctx, struct xport_read *r, int status)
{
	struct node *n = ctx;

	r->impl = NULL;
	n->n_read_done++;
	n->n_read_failed += status != 0;
	n->downs_at_read = n->n_down;
}

static void on_writable(void *ctx, struct xconn *c)
{
	struct node *n = ctx;

	n->n_writable++;
	if (n->on_writable)
		n->on_writable(n, c);
}

static const struct xport_events events = {
	.up = on_up,
	.down = on_down,
	.message = on_message,
	.read_done = on_read_done,
	.writable = on_writable,
};

static struct fabric *fabric_of(const struct node *n)
{
	return (struct fabric *)n->f;
}

static int key_of(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key)
{
	const struct node *n = ctx;

	if (!n->is_known || peer_id != CLIENT_ID || peer_instance != CLIENT_INSTANCE)
		return BPS_ENOTFOUND;
	memcpy(ret_key, the_key, sizeof(the_key));
	return 0;
}

static struct net_config config_of(bool is_server)
{
	return (struct net_config){.provider = provider(),
		.bind_addr = address(),
		.is_listener = is_server,
		.my_id = is_server ? SERVER_ID : CLIENT_ID,
		.my_instance = is_server ? SERVER_INSTANCE : CLIENT_INSTANCE,
		.connect_timeout_ms = is_tcp() ? 0 : DEADLINE_MS};
}

static void node_open(struct node *n, const struct net_config *cfg, int hint)
{
	struct err_text err = {""};
	int rc;

	memset(n, 0, sizeof(*n));
	n->is_known = true;
	rc = fabric_open_mr(cfg, hint == BASIC_HINT ? FI_MR_BASIC : hint, key_of, n, &n->f, &err);
	if (!rc)
		rc = net_xport_new(n->f, 0, &events, n, &n->x, &err);
	if (rc)
		fail_msg("%s", err.s);
}

static void node_close(struct node *n)
{
	fabric_xport_free(n->x);
	net_close(n->f);
}

static void rig_open_hint(struct rig *r, int hint)
{
	struct net_config cfg = config_of(true);

	r->third = NULL;
	node_open(&r->server, &cfg, hint);
	cfg = config_of(false);
	node_open(&r->client, &cfg, hint);
}

static void rig_open(struct rig *r)
{
	rig_open_hint(r, USUAL_HINT);
}

static void rig_close(struct rig *r)
{
	node_close(&r->client);
	node_close(&r->server);
}

static int node_sleep_ms(struct node *n, uint64_t now_ns, uint64_t until_ns)
{
	uint64_t at = fabric_next_deadline(n->x);

	if (at > until_ns)
		at = until_ns;
	return at <= now_ns ? 0 : (int)((at - now_ns) / MS + 1);
}

/* One turn of both ends; sleeps when nothing is there and both may. */
static void turn(struct node **n, unsigned n_nodes, uint64_t until_ns)
{
	struct pollfd p[4];
	uint64_t now_ns = clock_now_ns();
	int timeout_ms = INT32_MAX, done = 0;

	for (unsigned i = 0; i < n_nodes; i++)
		done += fabric_poll(n[i]->x, now_ns);
	for (unsigned i = 0; i < n_nodes && !done; i++) {
		int ms = node_sleep_ms(n[i], now_ns, until_ns);

		done = !fabric_may_sleep(n[i]->x);
		timeout_ms = ms < timeout_ms ? ms : timeout_ms;
		p[i] = (struct pollfd){.fd = fabric_fd(n[i]->x), .events = POLLIN};
	}
	if (!done)
		poll(p, n_nodes, timeout_ms);
}

/* Run both ends until cond; false after ms. */
#define RUN_MS(r, cond, ms)                                                                        \
	({                                                                                         \
		struct node *all_[] = {&(r)->server, &(r)->client, (r)->third};                    \
		uint64_t until_ = clock_now_ns() + (uint64_t)(ms)*MS;                              \
		while (!(cond) && clock_now_ns() < until_)                                         \
			turn(all_, all_[2] ? 3 : 2, until_);                                       \
		(cond);                                                                            \
	})
#define RUN(r, cond) assert_true(RUN_MS(r, cond, DEADLINE_MS))
#define RUN_ONE(n, cond, ms)                                                                       \
	({                                                                                         \
		struct node *one_[] = {n};                                                         \
		uint64_t until_ = clock_now_ns() + (uint64_t)(ms)*MS;                              \
		while (!(cond) && clock_now_ns() < until_)                                         \
			turn(one_, 1, until_);                                                     \
		(cond);                                                                            \
	})

static int dial(struct node *n, uint16_t port, const uint8_t *key)
{
	return n->x->ops->connect(
		n->x, address(), port, 0, SERVER_ID, SERVER_INSTANCE, key, n, &n->conn);
}

static void rig_connect(struct rig *r)
{
	assert_int_equal(dial(&r->client, net_port(r->server.f), the_key), 0);
	RUN(r, r->client.n_up == 1 && r->server.n_up == 1);
}

static uint64_t protocol_errors(const struct node *n)
{
	struct net_stats s;

	net_stats(n->f, &s);
	return s.protocol_errors;
}

static uint64_t refused(const struct node *n)
{
	struct net_stats s;

	net_stats(n->f, &s);
	return s.refused_tickets;
}

static struct wire_msg inline_message(uint64_t round, const void *payload, uint32_t len)
{
	return (struct wire_msg){.type = WIRE_CONTRIB,
		.flags = WIRE_INLINE,
		.round = round,
		.len = len,
		.crc = crc32c(0, payload, len),
		.contrib.workers = 1,
		.payload = payload};
}

static void fill(uint8_t *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

static int send_round(struct xconn *c, uint64_t round)
{
	struct wire_msg m = inline_message(round, "12345678", 8);

	return xport_send(c, &m);
}

/* ---- connecting ---- */

static void right_key_brings_both_sides_up_with_identities(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	assert_int_equal(r.server.peer_id, CLIENT_ID);
	assert_int_equal(r.server.peer_instance, CLIENT_INSTANCE);
	assert_null(r.server.conn->user);
	assert_int_equal(r.client.peer_id, SERVER_ID);
	assert_int_equal(r.client.peer_instance, SERVER_INSTANCE);
	assert_ptr_equal(r.client.conn->user, &r.client);
	xport_close(r.client.conn, "test");
	assert_int_equal(r.client.n_down, 1);
	RUN(&r, r.server.n_down == 1);
	assert_int_equal(r.server.n_messages, 0);
	rig_close(&r);
}

static void wrong_key_is_refused(void **state)
{
	uint8_t key[32];
	struct rig r;

	(void)state;
	rig_open(&r);
	memcpy(key, the_key, 32);
	key[31] ^= 1;
	assert_int_equal(dial(&r.client, net_port(r.server.f), key), 0);
	RUN(&r, r.client.n_down == 1);
	assert_non_null(strstr(r.client.why, "ticket"));
	assert_int_equal(r.client.n_up + r.server.n_up, 0);
	assert_int_equal(refused(&r.server), 1);
	rig_close(&r);
}

static void ticket_of_a_forgotten_instance_is_refused(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	xport_close(r.client.conn, "test");
	r.server.is_known = false;
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_down == 2);
	assert_int_equal(r.server.n_up, 1);
	assert_int_equal(refused(&r.server), 1);
	rig_close(&r);
}

static void peer_without_the_key_is_not_believed(void **state)
{
	struct rig r;
	struct cm_event ev = {.kind = CM_CONNECTED};
	struct fabric_conn *c;

	(void)state;
	rig_open(&r);
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	c = (struct fabric_conn *)r.client.conn;
	ev.fid = &c->ep->fid;
	ev.data_bytes = PROOF_BYTES;
	conn_cm_event((struct fabric_xport *)r.client.x, &ev);
	assert_int_equal(c->state, CONN_DOOMED);
	fabric_poll(r.client.x, clock_now_ns());
	assert_int_equal(r.client.n_up, 0);
	assert_int_equal(r.client.n_down, 1);
	rig_close(&r);
}

static void another_instance_of_the_peer_is_not_taken_for_it(void **state)
{
	struct net_config cfg = config_of(true);
	struct rig r = {.third = NULL};

	(void)state;
	cfg.my_instance++;
	node_open(&r.server, &cfg, USUAL_HINT);
	cfg = config_of(false);
	node_open(&r.client, &cfg, USUAL_HINT);
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_down == 1);
	assert_non_null(strstr(r.client.why, "prove"));
	assert_int_equal(r.client.n_up + r.server.n_up, 0);
	rig_close(&r);
}

/* Connect with any parameter bytes. Returns 0, or the positive error. */
static int raw_connect(struct node *from, uint16_t port, const void *param, size_t n_bytes)
{
	const struct fabric_xport *x = (const struct fabric_xport *)from->x;
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = inet_addr(address())};
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_err_entry e = {0};
	uint8_t room[sizeof(struct fi_eq_cm_entry) + 256];
	struct fi_info *info = fi_dupinfo(fabric_of(from)->info);
	struct fid_eq *eq;
	struct fid_ep *ep;
	uint32_t event;
	int rc = 0;

	/* Provider verbs looks for the way when the endpoint is made. */
	free(info->dest_addr);
	info->dest_addr = memcpy(malloc(sizeof(sa)), &sa, sizeof(sa));
	info->dest_addrlen = sizeof(sa);
	assert_int_equal(fi_eq_open(fabric_of(from)->fabric, &attr, &eq, NULL), 0);
	assert_int_equal(fi_endpoint(x->domain, info, &ep, NULL), 0);
	fi_freeinfo(info);
	assert_int_equal(fi_ep_bind(ep, &eq->fid, 0), 0);
	assert_int_equal(fi_ep_bind(ep, &x->cq->fid, FI_TRANSMIT | FI_RECV), 0);
	assert_int_equal(fi_ep_bind(ep, &x->srx->fid, 0), 0);
	assert_int_equal(fi_enable(ep), 0);
	assert_int_equal(fi_connect(ep, &sa, param, n_bytes), 0);
	if (fi_eq_sread(eq, &event, room, sizeof(room), DEADLINE_MS, 0) == -FI_EAVAIL) {
		assert_true(fi_eq_readerr(eq, &e, 0) > 0);
		rc = e.err;
	} else {
		assert_int_equal(event, FI_CONNECTED);
	}
	fi_close(&ep->fid);
	fi_close(&eq->fid);
	return rc;
}

static void *serve(void *arg)
{
	struct node *n = arg, *one[] = {n};

	while (!atomic_load(&n->stop))
		turn(one, 1, clock_now_ns() + 20 * MS);
	return NULL;
}

static struct ticket a_ticket(uint64_t count)
{
	return (struct ticket){.thread = 0,
		.peer_id = CLIENT_ID,
		.credits = 64,
		.instance = CLIENT_INSTANCE,
		.nonce = count << 32};
}

static void only_fresh_and_genuine_tickets_are_accepted(void **state)
{
	struct ticket t = a_ticket(9);
	uint8_t b[TICKET_BYTES + 200];
	struct rig r;
	pthread_t th;
	uint16_t port;

	(void)state;
	rig_open(&r);
	port = net_port(r.server.f);
	pthread_create(&th, NULL, serve, &r.server);
	memset(b, 0, sizeof(b));
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), 0);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED); /* replay */
	t = a_ticket(10);
	ticket_seal(&t, the_key, b);
	b[14] ^= 1; /* forged */
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	b[14] ^= 1;
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES - 1), ECONNREFUSED);
	assert_int_equal(raw_connect(&r.client, port, NULL, 0), ECONNREFUSED);
	b[4]++; /* version */
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	b[4]--;
	if (is_tcp()) /* oversized but genuine */
		assert_int_equal(raw_connect(&r.client, port, b, sizeof(b)), 0);
	t = a_ticket(11);
	t.thread = 5;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	t = a_ticket(12);
	t.channel = N_CHANNELS;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	assert_int_equal(refused(&r.server), 7);
	t = a_ticket(14); /* good, but of a connection that nobody began */
	t.channel = CHANNEL_OF_ACCEPTING;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	atomic_store(&r.server.stop, true);
	pthread_join(th, NULL);
	/* None of them sent a first message. */
	assert_int_equal(r.server.n_up, 0);
	rig_close(&r);
}

static void no_byte_of_a_ticket_may_be_wrong_or_missing(void **state)
{
	struct ticket t = a_ticket(9);
	uint8_t b[TICKET_BYTES], other[TICKET_KEY_BYTES];
	struct rig r;
	pthread_t th;
	uint16_t port;
	uint64_t n_tried = 0;

	(void)state;
	rig_open(&r);
	port = net_port(r.server.f);
	pthread_create(&th, NULL, serve, &r.server);
	ticket_seal(&t, the_key, b);
	for (size_t i = 0; i < TICKET_BYTES; i++, n_tried += 2) {
		b[i] ^= 0x10;
		assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
		b[i] ^= 0x10;
		assert_int_equal(raw_connect(&r.client, port, b, i), ECONNREFUSED);
	}
	/* Of the same agent, for another server or for its successor here. */
	memcpy(other, the_key, sizeof(other));
	other[0] ^= 1;
	ticket_seal(&t, other, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	t.instance++;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	assert_int_equal(refused(&r.server), n_tried + 2);
	/* None of these tries spoilt the good one. */
	t.instance--;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), 0);
	atomic_store(&r.server.stop, true);
	pthread_join(th, NULL);
	assert_int_equal(r.server.n_up, 0);
	rig_close(&r);
}

static void each_connect_count_passes_once_within_the_window(void **state)
{
	struct replay *p = calloc(1, sizeof(*p));
	struct ticket t;

	(void)state;
	for (uint64_t i = 100; i < 140; i += 2) {
		t = a_ticket(i);
		assert_int_equal(replay_check(p, &t), 0);
	}
	for (uint64_t i = 100; i < 140; i++) {
		t = a_ticket(i);
		assert_int_equal(replay_check(p, &t), i % 2 ? 0 : BPS_EAUTH);
		assert_int_equal(replay_check(p, &t), BPS_EAUTH);
	}
	t = a_ticket(500);
	assert_int_equal(replay_check(p, &t), 0);
	t = a_ticket(500 - REPLAY_WINDOW_BITS);
	assert_int_equal(replay_check(p, &t), BPS_EAUTH);
	t = a_ticket(500 - REPLAY_WINDOW_BITS + 1);
	assert_int_equal(replay_check(p, &t), 0);
	t.instance++;
	assert_int_equal(replay_check(p, &t), 0);
	t = a_ticket(500);
	t.nonce |= 0x70000; /* another fabric of that instance */
	assert_int_equal(replay_check(p, &t), 0);
	assert_int_equal(replay_check(p, &t), BPS_EAUTH);
	free(p);
}

static void connection_ends_with_either_channel(void **state)
{
	(void)state;
	for (unsigned channel = 0; channel < N_CHANNELS; channel++) {
		struct fabric_conn *c;
		struct rig r;

		rig_open(&r);
		rig_connect(&r);
		c = (struct fabric_conn *)r.client.conn;
		assert_int_equal(fi_shutdown(c->eps[channel], 0), 0);
		RUN(&r, r.client.n_down == 1 && r.server.n_down == 1);
		rig_close(&r);
	}
}

static void connect_to_a_silent_listener_times_out(void **state)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct net_config cfg = config_of(false);
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct node n;

	(void)state;
	if (!is_tcp())
		skip();
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	cfg.connect_timeout_ms = 60;
	node_open(&n, &cfg, USUAL_HINT);
	assert_int_equal(dial(&n, ntohs(sa.sin_port), the_key), 0);
	assert_true(RUN_ONE(&n, n.n_down == 1, 1000));
	assert_non_null(strstr(n.why, "60 ms"));
	close(fd);
	assert_int_equal(dial(&n, ntohs(sa.sin_port), the_key), 0);
	assert_true(RUN_ONE(&n, n.n_down == 2, 1000));
	assert_non_null(strstr(n.why, "refused"));
	node_close(&n);
}

static void connections_beyond_the_limit_are_refused(void **state)
{
	struct net_config cfg = config_of(true);
	struct err_text err;
	struct node second = {0};
	struct rig r = {.third = NULL};

	(void)state;
	cfg.credits = 4;
	node_open(&r.server, &cfg, USUAL_HINT);
	cfg = config_of(false);
	cfg.credits = 4;
	node_open(&r.client, &cfg, USUAL_HINT);
	assert_int_equal(net_xport_new(r.client.f, 1, &events, &second, &second.x, &err), 0);
	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++) {
		assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
		if (i % 32 == 31)
			RUN(&r, r.server.n_up == i + 1);
	}
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), -EMFILE);
	r.third = &second;
	assert_int_equal(dial(&second, net_port(r.server.f), the_key), 0);
	RUN(&r, second.n_down == 1);
	assert_non_null(strstr(second.why, "no room"));
	fabric_xport_free(second.x);
	rig_close(&r);
}

static void open_with_least_credit(struct rig *r)
{
	struct net_config cfg = config_of(true);

	cfg.credits = TICKET_CREDITS_MIN;
	node_open(&r->server, &cfg, USUAL_HINT);
	cfg = config_of(false);
	cfg.credits = TICKET_CREDITS_MIN;
	node_open(&r->client, &cfg, USUAL_HINT);
}

/* Counts of tickets are a fabric's, so between those of one connection lie all that it began
 * meanwhile. */
static void crowd_of_connections_that_begin_at_once_all_come_up(void **state)
{
	struct rig r = {.third = NULL};

	(void)state;
	open_with_least_credit(&r);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_up + r.client.n_down == 100 && r.server.n_up == r.client.n_up);
	assert_int_equal(r.client.n_down, 0);
	assert_int_equal(refused(&r.server), 0);
	rig_close(&r);
}

static unsigned count_fds(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static int stranger(uint16_t port, const void *data, size_t n_bytes)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	if (n_bytes)
		assert_int_equal(send(fd, data, n_bytes, MSG_NOSIGNAL), n_bytes);
	return fd;
}

static void silent_strangers_are_not_even_accepted(void **state)
{
	struct rig r;
	unsigned before;
	int fds[20];

	(void)state;
	if (!is_tcp())
		skip();
	rig_open(&r);
	before = count_fds();
	for (unsigned i = 0; i < 20; i++)
		fds[i] = stranger(net_port(r.server.f), NULL, 0);
	/* A connect behind them in the queue has been dealt with. */
	rig_connect(&r);
	assert_in_range(count_fds(), before + 20, before + 20 + 2 * N_CHANNELS);
	for (unsigned i = 0; i < 20; i++)
		close(fds[i]);
	rig_close(&r);
}

static void strangers_that_hang_up_leave_no_descriptor(void **state)
{
	/* Nothing, a part of a handshake's head, a head that announces more than comes,
	 * nonsense. */
	static const uint8_t half[32] = {2, 1, 0, 200}, noise[64] = {0xff, 0xff};
	static const struct {
		const void *data;
		size_t n_bytes;
	} kinds[] = {{NULL, 0}, {half, 3}, {half, sizeof(half)}, {noise, sizeof(noise)}};
	struct rig r;
	unsigned before;
	int fds[40];

	(void)state;
	if (!is_tcp())
		skip();
	rig_open(&r);
	rig_connect(&r);
	before = count_fds();
	for (unsigned i = 0; i < 40; i++)
		fds[i] = stranger(net_port(r.server.f), kinds[i % 4].data, kinds[i % 4].n_bytes);
	for (unsigned i = 0; i < 40; i++)
		close(fds[i]);
	/* Behind them in the queue, so that all were accepted. */
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_up == 2 && r.server.n_up == 2);
	RUN(&r, count_fds() <= before + 2 * N_CHANNELS);
	rig_close(&r);
}

static void idle_connection_wakes_nobody(void **state)
{
	struct pollfd p[2] = {{.events = POLLIN}, {.events = POLLIN}};
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	assert_false(RUN_MS(&r, r.client.n_down, 20));
	p[0].fd = fabric_fd(r.server.x);
	p[1].fd = fabric_fd(r.client.x);
	assert_int_equal(poll(p, 2, 100), 0);
	/* Only the handshake's deadline may still be there, to find nothing to do. */
	assert_true(fabric_next_deadline(r.server.x) > clock_now_ns() + 1000 * MS);
	assert_true(fabric_next_deadline(r.client.x) > clock_now_ns() + 1000 * MS);
	rig_close(&r);
}

static void close_and_redial(struct node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)m;
	n->on_message = NULL;
	xport_close(c, "from its callback");
	xport_close(c, "twice");
	n->is_wrong |= xport_send(c, m) != -ENOTCONN;
	n->is_wrong |= dial(n, (uint16_t)n->next_round, the_key) != 0;
}

/* The new connection takes the slot of the one whose receive is being worked on. */
static void connection_may_be_closed_from_its_own_callback(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	r.client.on_message = close_and_redial;
	r.client.next_round = net_port(r.server.f);
	for (unsigned i = 1; i <= 10; i++) {
		assert_int_equal(send_round(r.server.conn, i), 0);
		if (i > 5) /* flush, so that receives are waiting besides messages of one */
			fabric_may_sleep(r.server.x);
	}
	RUN(&r, r.client.n_up == 2 && r.server.n_up == 2 && r.server.n_down == 1);
	assert_int_equal(r.client.n_messages, 1);
	assert_int_equal(r.client.n_down, 1);
	assert_string_equal(r.client.why, "from its callback");
	assert_false(r.client.is_wrong);
	assert_int_equal(send_round(r.server.conn, 1), 0);
	RUN(&r, r.client.n_messages == 2);
	assert_int_equal(protocol_errors(&r.client) + protocol_errors(&r.server), 0);
	rig_close(&r);
}

static void freeing_a_data_thread_takes_its_connections_down(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	fabric_xport_free(r.server.x);
	assert_int_equal(r.server.n_down, 1);
	assert_true(RUN_ONE(&r.client, r.client.n_down == 1, DEADLINE_MS));
	r.server.x = NULL;
	/* Nobody is there for this thread number now. */
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	assert_true(RUN_ONE(&r.client, r.client.n_down == 2, DEADLINE_MS));
	assert_int_equal(refused(&r.server), 1);
	rig_close(&r);
}

/* ---- messages ---- */

static void echo(struct node *n, struct xconn *c, const struct wire_msg *m)
{
	n->is_wrong |= crc32c(0, m->payload, m->len) != m->crc;
	n->is_wrong |= xport_send(c, m) != 0;
}

static void check_crc(struct node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)c;
	n->is_wrong |= crc32c(0, m->payload, m->len) != m->crc || m->round != n->n_messages;
}

static void thousand_messages_of_all_sizes_come_back_intact(void **state)
{
	static uint8_t data[WIRE_INLINE_MAX];
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	fill(data, sizeof(data), 1);
	r.server.on_message = echo;
	r.client.on_message = check_crc;
	for (uint32_t i = 1; i <= 1000; i++) {
		struct wire_msg m = inline_message(i, data, 1 + (i * 7919u) % WIRE_INLINE_MAX);

		if (i == 1000)
			m = inline_message(i, data, WIRE_INLINE_MAX);
		assert_int_equal(xport_send(r.client.conn, &m), 0);
		RUN(&r, r.client.n_messages == i);
	}
	assert_false(r.server.is_wrong || r.client.is_wrong);
	rig_close(&r);
}

static void check_order(struct node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)c;
	n->is_wrong |= m->round != ++n->next_round;
}

static void small_messages_share_sends_and_stay_in_order(void **state)
{
	struct rig r;
	uint64_t sent = 0, want = 100000;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	r.server.on_message = check_order;
	while (sent < want) {
		unsigned writable = r.client.n_writable;

		while (send_round(r.client.conn, sent + 1) == 0)
			sent++;
		/* 62 sends of 16 KiB hold about 180 messages each, one credit is kept. */
		assert_true(sent > 60 * 180);
		RUN(&r, r.client.n_writable > writable);
	}
	RUN(&r, r.server.n_messages == sent);
	assert_false(r.server.is_wrong);
	rig_close(&r);
}

static void refused_send_becomes_writable_when_the_peer_works(void **state)
{
	struct rig r;
	unsigned sent = 0;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	while (send_round(r.client.conn, sent + 1) == 0)
		sent++;
	/* The server does not run: sends complete locally, but no credit comes. */
	assert_false(RUN_ONE(&r.client, r.client.n_writable, 50));
	assert_int_equal(send_round(r.client.conn, sent + 1), -EAGAIN);
	RUN(&r, r.client.n_writable == 1);
	assert_int_equal(send_round(r.client.conn, sent + 1), 0);
	RUN(&r, r.server.n_messages == sent + 1);
	rig_close(&r);
}

static void flood(struct node *n, struct xconn *c)
{
	while (n->next_round < 20000 && send_round(c, n->next_round + 1) == 0)
		n->next_round++;
}

static void count_order(struct node *n, struct xconn *c, const struct wire_msg *m)
{
	n->is_wrong |= m->round != n->n_messages;
	if (n->next_round < 20000)
		flood(n, c);
}

/* Four credits, both sides sending all they can, no slack anywhere: nobody may starve. */
static void both_directions_flow_with_the_least_credit(void **state)
{
	struct rig r = {.third = NULL};

	(void)state;
	open_with_least_credit(&r);
	rig_connect(&r);
	r.server.on_message = r.client.on_message = count_order;
	r.server.on_writable = r.client.on_writable = flood;
	flood(&r.server, r.server.conn);
	flood(&r.client, r.client.conn);
	RUN(&r, r.server.n_messages == 20000 && r.client.n_messages == 20000);
	assert_false(r.server.is_wrong || r.client.is_wrong);
	assert_int_equal(protocol_errors(&r.server) + protocol_errors(&r.client), 0);
	rig_close(&r);
}

static void message_with_a_foreign_cookie_is_dropped_and_counted(void **state)
{
	struct rig r;
	struct fabric_conn *c;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	c = (struct fabric_conn *)r.client.conn;
	c->tx_cookie ^= UINT64_C(1) << 40;
	assert_int_equal(send_round(r.client.conn, 1), 0);
	RUN(&r, protocol_errors(&r.server) == 1);
	assert_int_equal(r.server.n_messages, 0);
	rig_close(&r);
}

static void malformed_message_closes_its_connection(void **state)
{
	struct rig r;
	struct fabric_conn *c;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	assert_int_equal(send_round(r.client.conn, 1), 0);
	c = (struct fabric_conn *)r.client.conn;
	assert_non_null(c->open);
	c->open->data[1] ^= 0x40; /* version */
	RUN(&r, r.server.n_down == 1 && r.client.n_down == 1);
	assert_non_null(strstr(r.server.why, "protocol"));
	assert_int_equal(protocol_errors(&r.server), 1);
	assert_int_equal(r.server.n_messages, 0);
	rig_close(&r);
}

static void more_sends_than_granted_close_the_connection(void **state)
{
	struct rig r;
	struct fabric_conn *c;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	c = (struct fabric_conn *)r.server.conn;
	c->rx_allow = 0;
	assert_int_equal(send_round(r.client.conn, 1), 0);
	RUN(&r, r.server.n_down == 1);
	assert_int_equal(protocol_errors(&r.server), 1);
	rig_close(&r);
}

/* ---- reads ---- */

struct mem {
	uint8_t *p;
	size_t bytes;
	uint16_t seg;
};

static struct mem mem_new(struct node *n, size_t bytes, uint32_t seed)
{
	struct mem m = {.bytes = bytes};

	m.p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(m.p != MAP_FAILED);
	if (seed)
		fill(m.p, bytes, seed);
	assert_int_equal(n->x->ops->seg_add(n->x, m.p, bytes, &m.seg), 0);
	return m;
}

static bool has_segment(const struct node *n, uint16_t seg)
{
	return n->conn && seg_find((const struct fabric_conn *)n->conn, seg);
}

static struct xport_read read_of(const struct node *n, const struct mem *to, const struct mem *from,
	uint64_t offset, uint32_t len)
{
	return (struct xport_read){.conn = n->conn,
		.dst = to->p + offset,
		.own_segment = to->seg,
		.segment = from->seg,
		.offset = offset,
		.len = len};
}

#define READ_MAX (8u << 20)

static void read_both_ways(struct rig *r)
{
	static const uint32_t sizes[] = {1, 63, 4096, 65537, 1u << 20, READ_MAX - 5, READ_MAX};
	struct mem from_s, from_c, to_s, to_c;

	from_s = mem_new(&r->server, READ_MAX, 11);
	rig_connect(r);
	from_c = mem_new(&r->client, READ_MAX, 12);
	to_s = mem_new(&r->server, READ_MAX, 0);
	to_c = mem_new(&r->client, READ_MAX, 0);
	RUN(r, has_segment(&r->server, from_c.seg) && has_segment(&r->client, from_s.seg));
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t off = (READ_MAX - sizes[i]) / 2;
		struct xport_read a = read_of(&r->server, &to_s, &from_c, off, sizes[i]);
		struct xport_read b = read_of(&r->client, &to_c, &from_s, off, sizes[i]);

		assert_int_equal(xport_read(&a), 0);
		assert_int_equal(xport_read(&b), 0);
		RUN(r, r->server.n_read_done == i + 1 && r->client.n_read_done == i + 1);
		assert_memory_equal(to_s.p + off, from_c.p + off, sizes[i]);
		assert_memory_equal(to_c.p + off, from_s.p + off, sizes[i]);
	}
	assert_int_equal(r->server.n_read_failed + r->client.n_read_failed, 0);
	munmap(from_s.p, READ_MAX);
	munmap(from_c.p, READ_MAX);
	munmap(to_s.p, READ_MAX);
	munmap(to_c.p, READ_MAX);
	rig_close(r);
}

static void reads_of_all_sizes_are_exact_both_ways_at_once(void **state)
{
	struct rig r;

	(void)state;
	rig_open(&r);
	read_both_ways(&r);
}

static void reads_work_with_addresses_and_keys_of_the_provider(void **state)
{
	struct rig r;

	(void)state;
	if (!is_tcp())
		skip();
	rig_open_hint(&r, BASIC_HINT);
	assert_true(fabric_of(&r.client)->mr_mode & FI_MR_VIRT_ADDR);
	assert_true(fabric_of(&r.client)->mr_mode & FI_MR_PROV_KEY);
	read_both_ways(&r);
}

static void reads_beyond_the_window_or_the_segment_are_refused(void **state)
{
	struct xport_read reads[READS_MAX + 1], bad;
	struct mem from, to;
	struct rig r;

	(void)state;
	rig_open(&r);
	from = mem_new(&r.client, 1 << 20, 5);
	to = mem_new(&r.server, 1 << 20, 0);
	rig_connect(&r);
	RUN(&r, has_segment(&r.server, from.seg));
	/* Before its own channel stands, reads are queued, and few of them. */
	RUN(&r, ((const struct fabric_conn *)r.server.conn)->is_linked);
	for (unsigned i = 0; i <= READS_MAX; i++) {
		reads[i] = read_of(&r.server, &to, &from, i * 60000, 60000);
		assert_int_equal(xport_read(&reads[i]), i < READS_MAX ? 0 : -EAGAIN);
	}
	bad = read_of(&r.server, &to, &from, 0, 10);
	bad.offset = (1 << 20) - 9;
	assert_int_equal(xport_read(&bad), BPS_EPROTO);
	bad.offset = UINT64_MAX - 4;
	assert_int_equal(xport_read(&bad), BPS_EPROTO);
	bad = read_of(&r.server, &to, &from, 0, 10);
	bad.segment = 99;
	assert_int_equal(xport_read(&bad), BPS_EPROTO);
	bad = read_of(&r.server, &to, &from, (1 << 20) - 10, 10);
	bad.dst = to.p + (1 << 20) - 9;
	assert_int_equal(xport_read(&bad), -EINVAL);
	RUN(&r, r.server.n_read_done == READS_MAX);
	assert_int_equal(xport_read(&reads[READS_MAX]), 0);
	RUN(&r, r.server.n_read_done == READS_MAX + 1);
	assert_memory_equal(to.p, from.p, 60000u * (READS_MAX + 1));
	rig_close(&r);
	munmap(from.p, from.bytes);
	munmap(to.p, to.bytes);
}

static void withdrawn_segment_can_not_be_read(void **state)
{
	struct mem from, to;
	struct xport_read rd;
	struct rig r;

	(void)state;
	rig_open(&r);
	from = mem_new(&r.client, 65536, 5);
	to = mem_new(&r.server, 65536, 0);
	rig_connect(&r);
	RUN(&r, has_segment(&r.server, from.seg));
	rd = read_of(&r.server, &to, &from, 0, 65536);
	r.client.x->ops->seg_del(r.client.x, from.seg);
	RUN(&r, !has_segment(&r.server, from.seg));
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	assert_int_equal(r.server.n_down, 0);
	rig_close(&r);
	munmap(from.p, from.bytes);
	munmap(to.p, to.bytes);
}

static void check_segment(struct node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)m;
	n->is_wrong |= !seg_find((const struct fabric_conn *)c, (uint16_t)n->next_round);
}

static void segment_is_announced_before_a_message_that_names_it(void **state)
{
	struct rig r;
	struct mem from;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	from = mem_new(&r.client, 4096, 1);
	r.server.on_message = check_segment;
	r.server.next_round = from.seg;
	assert_int_equal(send_round(r.client.conn, 1), 0);
	RUN(&r, r.server.n_messages == 1);
	assert_false(r.server.is_wrong);
	rig_close(&r);
	munmap(from.p, from.bytes);
}

static void close_completes_reads_once_and_nothing_writes_later(void **state)
{
	struct xport_read reads[READ_WINDOW_QUEUE + 1];
	const unsigned n = READ_WINDOW_QUEUE;
	struct mem from, to;
	struct rig r;

	(void)state;
	rig_open(&r);
	from = mem_new(&r.client, (n + 1) * (size_t)READ_MAX, 9);
	to = mem_new(&r.server, (n + 1) * (size_t)READ_MAX, 0);
	rig_connect(&r);
	RUN(&r, has_segment(&r.server, from.seg));
	/* Each is longer than the window, so all are still queued. */
	for (unsigned i = 0; i <= n; i++) {
		reads[i] = read_of(&r.server, &to, &from, i * (uint64_t)READ_MAX, READ_MAX);
		assert_int_equal(xport_read(&reads[i]), i < n ? 0 : -EAGAIN);
	}
	/* Data is on its way, and the first read is not complete. */
	RUN(&r, to.p[100] == from.p[100] && to.p[101] == from.p[101]);
	assert_int_equal(r.server.n_read_done, 0);
	xport_close(r.server.conn, "test");
	assert_int_equal(r.server.n_read_done, n);
	assert_int_equal(r.server.n_read_failed, n);
	assert_int_equal(r.server.downs_at_read, 0);
	assert_int_equal(r.server.n_down, 1);
	memset(to.p, 0xee, to.bytes);
	RUN(&r, r.client.n_down == 1);
	assert_false(RUN_MS(&r, r.server.n_read_done > n, 20));
	for (size_t i = 0; i < to.bytes; i++)
		if (to.p[i] != 0xee)
			fail_msg("byte %zu was written after close", i);
	/* And the next connection is not confused by late completions. */
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_up == 2 && r.server.n_up == 2);
	RUN(&r, has_segment(&r.server, from.seg));
	reads[0].conn = r.server.conn;
	assert_int_equal(xport_read(&reads[0]), 0);
	RUN(&r, r.server.n_read_done == n + 1);
	assert_int_equal(r.server.n_read_failed, n);
	assert_memory_equal(to.p, from.p, reads[0].len);
	rig_close(&r);
	munmap(from.p, from.bytes);
	munmap(to.p, to.bytes);
}

static void read_window_follows_the_time_that_reads_take(void **state)
{
	struct fabric_conn c = {.read_window = {.bytes = 1000000, .limit = READ_WINDOW_FIRST},
		.is_busy = true,
		.n_queued = 1,
		.n_rops = 1000};
	uint32_t before;

	(void)state;
	io_read_arrived(&c, 1000, (READ_FAST_NS + READ_SLOW_NS) / 2);
	assert_int_equal(c.read_window.limit, READ_WINDOW_FIRST);
	assert_int_equal(c.n_rops, 999);
	assert_int_equal(c.read_window.bytes, 999000);
	for (unsigned i = 0; i < 100; i++)
		io_read_arrived(&c, 1000, READ_SLOW_NS + 1);
	assert_in_range(c.read_window.limit, READ_WINDOW_MIN, READ_WINDOW_MIN * 8 / 7 + 1);
	before = c.read_window.limit;
	c.n_queued = 0; /* nothing waits for a wider one */
	io_read_arrived(&c, 1000, 1);
	assert_int_equal(c.read_window.limit, before);
	c.n_queued = 1;
	for (unsigned i = 0; i < 100; i++)
		io_read_arrived(&c, 1000, 1);
	assert_in_range(c.read_window.limit, READ_WINDOW_MAX * 7 / 8, READ_WINDOW_MAX);
}

/* ---- peers that die, hang or disturb ---- */

static pid_t fork_server(uint16_t *ret_port)
{
	struct net_config cfg = config_of(true);
	struct node n;
	int fds[2];
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		uint16_t port;

		alarm(20);
		node_open(&n, &cfg, USUAL_HINT);
		n.on_message = echo;
		port = net_port(n.f);
		if (write(fds[1], &port, sizeof(port)) != sizeof(port))
			_exit(1);
		serve(&n);
		_exit(0);
	}
	assert_int_equal(read(fds[0], ret_port, sizeof(*ret_port)), sizeof(*ret_port));
	close(fds[0]);
	close(fds[1]);
	return pid;
}

static void join_server(struct node *n, uint16_t port)
{
	assert_int_equal(dial(n, port, the_key), 0);
	assert_true(RUN_ONE(n, n->n_up == 1, DEADLINE_MS));
	n->on_message = check_crc;
	assert_int_equal(send_round(n->conn, 1), 0);
	assert_true(RUN_ONE(n, n->n_messages == 1, DEADLINE_MS));
}

static void killed_peer_is_noticed_within_100_ms(void **state)
{
	struct net_config cfg = config_of(false);
	uint64_t killed_ns;
	uint16_t port;
	pid_t pid;
	struct node n;

	(void)state;
	if (!is_tcp()) /* a forked process cannot use what verbs has opened in its parent */
		skip();
	pid = fork_server(&port);
	node_open(&n, &cfg, USUAL_HINT);
	join_server(&n, port);
	killed_ns = clock_now_ns();
	kill(pid, SIGKILL);
	assert_true(RUN_ONE(&n, n.n_down == 1, DEADLINE_MS));
	assert_in_range(n.down_ns - killed_ns, 0, 100 * MS);
	waitpid(pid, NULL, 0);
	node_close(&n);
}

static void stopped_peer_is_noticed_by_its_silence(void **state)
{
	struct net_config cfg = config_of(false);
	uint64_t stopped_ns;
	uint16_t port;
	pid_t pid;
	struct node n;

	(void)state;
	if (!is_tcp()) /* a forked process cannot use what verbs has opened in its parent */
		skip();
	pid = fork_server(&port);
	cfg.ping_ms = 50;
	cfg.dead_ms = 200;
	node_open(&n, &cfg, USUAL_HINT);
	join_server(&n, port);
	/* Quiet but alive: pings are answered. */
	assert_false(RUN_ONE(&n, n.n_down, 300));
	kill(pid, SIGSTOP);
	stopped_ns = clock_now_ns();
	assert_true(RUN_ONE(&n, n.n_down == 1, DEADLINE_MS));
	assert_in_range(n.down_ns - stopped_ns, 100 * MS, 300 * MS);
	assert_non_null(strstr(n.why, "no sign of life"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	node_close(&n);
}

/* As after a stop of this process: the peer had nothing to answer meanwhile. */
static void own_standstill_is_not_held_against_the_peer(void **state)
{
	struct net_config cfg = config_of(true);
	uint64_t later_ns = clock_now_ns() + 60000 * MS, until_ns;
	struct rig r = {.third = NULL};
	const struct fabric_conn *c;

	(void)state;
	node_open(&r.server, &cfg, USUAL_HINT);
	cfg = config_of(false);
	cfg.ping_ms = 50;
	cfg.dead_ms = 200;
	node_open(&r.client, &cfg, USUAL_HINT);
	rig_connect(&r);
	c = (const struct fabric_conn *)r.client.conn;
	until_ns = clock_now_ns() + DEADLINE_MS * MS;
	while (c->last_rx_ns < later_ns && clock_now_ns() < until_ns) {
		fabric_poll(r.client.x, later_ns);
		fabric_poll(r.server.x, clock_now_ns());
	}
	assert_int_equal(c->last_rx_ns, later_ns);
	assert_int_equal(r.client.n_down, 0);
	rig_close(&r);
}

static void strangers_on_the_port_do_not_disturb_a_stream(void **state)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	/* A handshake of the provider that announces 200 bytes and sends none. */
	uint8_t half[32] = {2, 1, 0, 200}, noise[4096];
	struct net_config cfg = config_of(true);
	uint64_t slowest_ns = 0;
	int fds[40];
	struct rig r = {.third = NULL};

	(void)state;
	if (!is_tcp())
		skip();
	node_open(&r.server, &cfg, USUAL_HINT);
	cfg = config_of(false);
	node_open(&r.client, &cfg, USUAL_HINT);
	rig_connect(&r);
	r.server.on_message = echo;
	r.client.on_message = check_crc;
	for (unsigned i = 0; i < 40; i++) {
		uint16_t port = net_port(r.server.f);

		fill(noise, sizeof(noise), i);
		if (i % 4 == 0)
			fds[i] = stranger(port, NULL, 0);
		else if (i % 4 == 1)
			fds[i] = stranger(port, http, sizeof(http) - 1);
		else if (i % 4 == 2)
			fds[i] = stranger(port, noise, sizeof(noise));
		else
			fds[i] = stranger(port, half, sizeof(half));
		for (unsigned k = 0; k < 10; k++) {
			uint64_t start_ns = clock_now_ns(), took_ns;
			unsigned next = r.client.n_messages + 1;

			assert_int_equal(send_round(r.client.conn, next), 0);
			RUN(&r, r.client.n_messages == next);
			took_ns = clock_now_ns() - start_ns;
			slowest_ns = took_ns > slowest_ns ? took_ns : slowest_ns;
		}
	}
	/* A stall of the handshakes would be 20 ms each, in its own thread. */
	assert_in_range(slowest_ns, 0, 500 * MS);
	assert_false(r.client.is_wrong || r.server.is_wrong);
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_up == 2 && r.server.n_up == 2);
	assert_int_equal(r.server.n_down + r.client.n_down, 0);
	for (unsigned i = 0; i < 40; i++)
		close(fds[i]);
	rig_close(&r);
}

static void peer_that_does_not_read_slows_nobody_else(void **state)
{
	struct net_config cfg = config_of(false);
	struct xconn *lazy;
	struct node idle;
	struct rig r;

	(void)state;
	rig_open(&r);
	node_open(&idle, &cfg, USUAL_HINT);
	assert_int_equal(dial(&idle, net_port(r.server.f), the_key), 0);
	r.third = &idle;
	RUN(&r, idle.n_up == 1 && r.server.n_up == 1);
	r.third = NULL;
	lazy = r.server.conn;
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	RUN(&r, r.client.n_up == 1 && r.server.n_up == 2);
	while (send_round(lazy, 1) == 0)
		;
	r.server.on_message = echo;
	r.client.on_message = check_crc;
	for (unsigned i = 1; i <= 500; i++) {
		assert_int_equal(send_round(r.client.conn, i), 0);
		RUN(&r, r.client.n_messages == i);
	}
	assert_int_equal(send_round(lazy, 1), -EAGAIN);
	assert_false(r.server.is_wrong || r.client.is_wrong);
	rig_close(&r);
	node_close(&idle);
}

static void *pingpong(void *arg)
{
	struct node *n = arg, *one[] = {n};

	for (unsigned i = 1; i <= 500 && !n->is_wrong; i++) {
		uint64_t until_ns = clock_now_ns() + 2000 * MS;

		n->is_wrong |= send_round(n->conn, i) != 0;
		while (n->n_messages < i && clock_now_ns() < until_ns)
			turn(one, 1, until_ns);
		n->is_wrong |= n->n_messages < i;
	}
	return NULL;
}

static void sleeping_threads_wake_each_other(void **state)
{
	pthread_t server, client;
	struct rig r;

	(void)state;
	rig_open(&r);
	rig_connect(&r);
	r.server.on_message = echo;
	r.client.on_message = check_crc;
	pthread_create(&server, NULL, serve, &r.server);
	pthread_create(&client, NULL, pingpong, &r.client);
	pthread_join(client, NULL);
	atomic_store(&r.server.stop, true);
	pthread_join(server, NULL);
	assert_int_equal(r.client.n_messages, 500);
	assert_false(r.client.is_wrong || r.server.is_wrong);
	rig_close(&r);
}

static void opening_says_what_is_wrong(void **state)
{
	struct net_config cfg = config_of(true);
	struct net *f = NULL;
	struct err_text err;
	struct node n;

	(void)state;
	cfg.bind_addr = "203.0.113.9";
	assert_true(fabric_open(&cfg, key_of, NULL, &f, &err) < 0);
	assert_non_null(strstr(err.s, "203.0.113.9"));
	cfg = config_of(true);
	cfg.provider = "nosuch";
	assert_true(fabric_open(&cfg, key_of, NULL, &f, &err) < 0);
	assert_non_null(strstr(err.s, "nosuch"));
	cfg = config_of(true);
	node_open(&n, &cfg, USUAL_HINT);
	cfg.port = net_port(n.f);
	assert_true(fabric_open(&cfg, key_of, NULL, &f, &err) < 0);
	assert_non_null(strstr(err.s, "in use"));
	node_close(&n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(right_key_brings_both_sides_up_with_identities),
		cmocka_unit_test(wrong_key_is_refused),
		cmocka_unit_test(ticket_of_a_forgotten_instance_is_refused),
		cmocka_unit_test(peer_without_the_key_is_not_believed),
		cmocka_unit_test(another_instance_of_the_peer_is_not_taken_for_it),
		cmocka_unit_test(only_fresh_and_genuine_tickets_are_accepted),
		cmocka_unit_test(no_byte_of_a_ticket_may_be_wrong_or_missing),
		cmocka_unit_test(each_connect_count_passes_once_within_the_window),
		cmocka_unit_test(connection_ends_with_either_channel),
		cmocka_unit_test(connect_to_a_silent_listener_times_out),
		cmocka_unit_test(connections_beyond_the_limit_are_refused),
		cmocka_unit_test(crowd_of_connections_that_begin_at_once_all_come_up),
		cmocka_unit_test(silent_strangers_are_not_even_accepted),
		cmocka_unit_test(strangers_that_hang_up_leave_no_descriptor),
		cmocka_unit_test(idle_connection_wakes_nobody),
		cmocka_unit_test(connection_may_be_closed_from_its_own_callback),
		cmocka_unit_test(freeing_a_data_thread_takes_its_connections_down),
		cmocka_unit_test(thousand_messages_of_all_sizes_come_back_intact),
		cmocka_unit_test(small_messages_share_sends_and_stay_in_order),
		cmocka_unit_test(refused_send_becomes_writable_when_the_peer_works),
		cmocka_unit_test(both_directions_flow_with_the_least_credit),
		cmocka_unit_test(message_with_a_foreign_cookie_is_dropped_and_counted),
		cmocka_unit_test(malformed_message_closes_its_connection),
		cmocka_unit_test(more_sends_than_granted_close_the_connection),
		cmocka_unit_test(reads_of_all_sizes_are_exact_both_ways_at_once),
		cmocka_unit_test(reads_work_with_addresses_and_keys_of_the_provider),
		cmocka_unit_test(reads_beyond_the_window_or_the_segment_are_refused),
		cmocka_unit_test(withdrawn_segment_can_not_be_read),
		cmocka_unit_test(segment_is_announced_before_a_message_that_names_it),
		cmocka_unit_test(close_completes_reads_once_and_nothing_writes_later),
		cmocka_unit_test(read_window_follows_the_time_that_reads_take),
		cmocka_unit_test(killed_peer_is_noticed_within_100_ms),
		cmocka_unit_test(stopped_peer_is_noticed_by_its_silence),
		cmocka_unit_test(own_standstill_is_not_held_against_the_peer),
		cmocka_unit_test(strangers_on_the_port_do_not_disturb_a_stream),
		cmocka_unit_test(peer_that_does_not_read_slows_nobody_else),
		cmocka_unit_test(sleeping_threads_wake_each_other),
		cmocka_unit_test(opening_says_what_is_wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
