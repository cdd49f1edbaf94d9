/* The functions of net_rig.h: nodes with their counters, the loop that runs them, raw sockets, and
 * memory for reads. */
#include "tests/unit/net_rig.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/data/crc32c.h"

const uint8_t the_key[32] = "the key of exactly this pair....";
const char *rig_provider = "sockets";
int rig_watched_fd = -1;

static void on_up(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance)
{
	struct net_node *n = ctx;

	n->n_up++;
	n->conn = c;
	n->peer_id = peer_id;
	n->peer_instance = peer_instance;
}

static void on_down(void *ctx, struct xconn *c, const char *why)
{
	struct net_node *n = ctx;

	n->n_down++;
	n->down_ns = clock_now_ns();
	if (n->conn == c)
		n->conn = NULL;
	snprintf(n->why, sizeof(n->why), "%s", why);
}

static void on_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct net_node *n = ctx;

	n->n_messages++;
	if (n->on_message)
		n->on_message(n, c, m);
}

static void on_read_done(void *ctx, struct xport_read *r, int status)
{
	struct net_node *n = ctx;

	n->n_read_done++;
	n->n_read_failed += status != 0;
	n->downs_at_read = n->n_down;
	n->read_status = status;
	if (n->on_read_done)
		n->on_read_done(n, r, status);
}

static void on_writable(void *ctx, struct xconn *c)
{
	struct net_node *n = ctx;

	n->n_writable++;
	if (n->on_writable)
		n->on_writable(n, c);
}

const struct xport_events rig_events = {
	.up = on_up,
	.down = on_down,
	.message = on_message,
	.read_done = on_read_done,
	.writable = on_writable,
};

int rig_key_of(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key)
{
	const struct net_node *n = ctx;

	if (!n->is_known || peer_id != CLIENT_ID || peer_instance != CLIENT_INSTANCE)
		return BPS_ENOTFOUND;
	memcpy(ret_key, the_key, sizeof(the_key));
	return 0;
}

bool rig_is_tcp(void)
{
	return !strstr(rig_provider, "verbs");
}

static const char *from_env(const char *name, const char *otherwise)
{
	const char *s = getenv(name);

	return s ? s : otherwise;
}

void rig_use(const char *provider)
{
	rig_provider = from_env("BPS_TEST_PROVIDER", provider);
}

const char *rig_address(void)
{
	return from_env("BPS_TEST_ADDRESS", "127.0.0.1");
}

struct net_config config_of(bool is_server)
{
	return (struct net_config){.provider = rig_provider,
		.bind_addr = rig_address(),
		.is_listener = is_server,
		.my_id = is_server ? SERVER_ID : CLIENT_ID,
		.my_instance = is_server ? SERVER_INSTANCE : CLIENT_INSTANCE,
		.connect_timeout_ms = rig_is_tcp() ? 0 : DEADLINE_MS};
}

static int node_sleep_ms(struct net_node *n, uint64_t now_ns, uint64_t until_ns)
{
	uint64_t at = n->x->ops->next_deadline(n->x);

	if (at > until_ns)
		at = until_ns;
	return at <= now_ns ? 0 : (int)((at - now_ns) / MS + 1);
}

/* Run each node once. Sleep if no node did any work and all nodes may sleep. */
void turn(struct net_node **n, unsigned n_nodes, uint64_t until_ns)
{
	struct pollfd p[4];
	uint64_t now_ns = clock_now_ns();
	int timeout_ms = INT32_MAX, done = 0;

	for (unsigned i = 0; i < n_nodes; i++)
		done += n[i]->x->ops->poll(n[i]->x, now_ns);
	for (unsigned i = 0; i < n_nodes && !done; i++) {
		int ms = node_sleep_ms(n[i], now_ns, until_ns);

		done = !n[i]->x->ops->may_sleep(n[i]->x);
		timeout_ms = ms < timeout_ms ? ms : timeout_ms;
		p[i] = (struct pollfd){.fd = n[i]->x->ops->fd(n[i]->x), .events = POLLIN};
	}
	p[n_nodes] = (struct pollfd){.fd = rig_watched_fd, .events = POLLIN};
	if (!done)
		poll(p, n_nodes + 1, timeout_ms);
}

void net_node_begin(struct net_node *n)
{
	memset(n, 0, sizeof(*n));
	n->is_known = true;
}

void net_node_attach(struct net_node *n)
{
	struct err_text err = {""};

	if (net_xport_new(n->f, 0, &rig_events, n, &n->x, &err))
		fail_msg("%s", err.s);
}

void net_node_open(struct net_node *n, const struct net_config *cfg)
{
	struct err_text err = {""};

	net_node_begin(n);
	if (net_open(cfg, rig_key_of, n, &n->f, &err))
		fail_msg("%s", err.s);
	net_node_attach(n);
}

void net_node_close(struct net_node *n)
{
	xport_free(n->x);
	net_close(n->f);
}

static void open_both(struct net_rig *r, struct net_config *server, struct net_config *client)
{
	r->third = NULL;
	net_node_open(&r->server, server);
	net_node_open(&r->client, client);
}

void net_rig_open(struct net_rig *r)
{
	struct net_config server = config_of(true), client = config_of(false);

	open_both(r, &server, &client);
}

void rig_open_pinging(struct net_rig *r, uint32_t ping_ms, uint32_t dead_ms)
{
	struct net_config server = config_of(true), client = config_of(false);

	server.ping_ms = client.ping_ms = ping_ms;
	server.dead_ms = client.dead_ms = dead_ms;
	open_both(r, &server, &client);
}

void rig_open_least_credit(struct net_rig *r)
{
	struct net_config server = config_of(true), client = config_of(false);

	server.credits = client.credits = TICKET_CREDITS_MIN;
	open_both(r, &server, &client);
}

void net_rig_close(struct net_rig *r)
{
	net_node_close(&r->client);
	net_node_close(&r->server);
}
int dial(struct net_node *n, uint16_t port, const uint8_t *key)
{
	return n->x->ops->connect(
		n->x, rig_address(), port, 0, SERVER_ID, SERVER_INSTANCE, key, n, &n->conn);
}

void rig_connect(struct net_rig *r)
{
	assert_int_equal(dial(&r->client, net_port(r->server.f), the_key), 0);
	RUN(r, r->client.n_up == 1 && r->server.n_up == 1);
}

uint64_t protocol_errors(const struct net_node *n)
{
	struct net_stats s;

	net_stats(n->f, &s);
	return s.protocol_errors;
}

uint64_t refused(const struct net_node *n)
{
	struct net_stats s;

	net_stats(n->f, &s);
	return s.refused_tickets;
}

struct wire_msg inline_message(uint64_t round, const void *payload, uint32_t len)
{
	return (struct wire_msg){.type = WIRE_CONTRIB,
		.flags = WIRE_INLINE,
		.round = round,
		.len = len,
		.crc = crc32c(0, payload, len),
		.contrib.workers = 1,
		.payload = payload};
}

void fill(uint8_t *p, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
}

int send_round(struct xconn *c, uint64_t round)
{
	struct wire_msg m = inline_message(round, "12345678", 8);

	return xport_send(c, &m);
}

void *serve(void *arg)
{
	struct net_node *n = arg, *one[] = {n};

	while (!atomic_load(&n->stop))
		turn(one, 1, clock_now_ns() + 20 * MS);
	return NULL;
}

struct ticket a_ticket(uint64_t count)
{
	return (struct ticket){.thread = 0,
		.peer_id = CLIENT_ID,
		.credits = 64,
		.instance = CLIENT_INSTANCE,
		.nonce = count << 32};
}

unsigned count_fds(void)
{
	unsigned n = 0;
	DIR *d = opendir("/proc/self/fd");

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

int stranger(uint16_t port, const void *data, size_t n_bytes)
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

void echo(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	n->is_wrong |= crc32c(0, m->payload, m->len) != m->crc;
	n->is_wrong |= xport_send(c, m) != 0;
}

void check_crc(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)c;
	n->is_wrong |= crc32c(0, m->payload, m->len) != m->crc || m->round != n->n_messages;
}

struct mem mem_new(struct net_node *n, size_t bytes, uint32_t seed)
{
	struct mem m = {.bytes = bytes};

	m.p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(m.p != MAP_FAILED);
	if (seed)
		fill(m.p, bytes, seed);
	assert_int_equal(n->x->ops->seg_add(n->x, m.p, bytes, &m.seg), 0);
	return m;
}

struct xport_read read_of(const struct net_node *n, const struct mem *to, const struct mem *from,
	uint64_t offset, uint32_t len)
{
	return (struct xport_read){.conn = n->conn,
		.dst = to->p + offset,
		.own_segment = to->seg,
		.segment = from->seg,
		.offset = offset,
		.is_past_caches = len > 4096, /* long reads are copied past the caches */
		.len = len};
}

void mem_free(struct mem *m)
{
	munmap(m->p, m->bytes);
}

void begin_read(struct net_rig *r, struct xport_read *rd)
{
	int rc = BPS_EPROTO;

	RUN(r, rc != BPS_EPROTO || (rc = xport_read(rd)) != BPS_EPROTO);
	assert_int_equal(rc, 0);
}

void read_both_ways(struct net_rig *r)
{
	static const uint32_t sizes[] = {1, 63, 4096, 65537, 1u << 20, READ_MAX - 5, READ_MAX};
	struct mem from_s, from_c, to_s, to_c;

	from_s = mem_new(&r->server, READ_MAX, 11);
	rig_connect(r);
	from_c = mem_new(&r->client, READ_MAX, 12);
	to_s = mem_new(&r->server, READ_MAX, 0);
	to_c = mem_new(&r->client, READ_MAX, 0);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t off = (READ_MAX - sizes[i]) / 2;
		struct xport_read a = read_of(&r->server, &to_s, &from_c, off, sizes[i]);
		struct xport_read b = read_of(&r->client, &to_c, &from_s, off, sizes[i]);

		begin_read(r, &a);
		begin_read(r, &b);
		RUN(r, r->server.n_read_done == i + 1 && r->client.n_read_done == i + 1);
		assert_memory_equal(to_s.p + off, from_c.p + off, sizes[i]);
		assert_memory_equal(to_c.p + off, from_s.p + off, sizes[i]);
	}
	assert_int_equal(r->server.n_read_failed + r->client.n_read_failed, 0);
	net_rig_close(r);
	mem_free(&from_s);
	mem_free(&from_c);
	mem_free(&to_s);
	mem_free(&to_c);
}
