/* The parts of the transport over libfabric that other transports do not have: handshake, credits,
 * cookies, names of memory. test_net.c covers what all network transports share. One thread drives
 * both ends. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/transport/fabric/fabric.h"
#include "common/transport/fabric/fabric_impl.h"
#include "common/transport/fabric/fabric_socket.h"
#include "tests/unit/net_rig.h"

static struct fabric *fabric_of(const struct net_node *n)
{
	return (struct fabric *)n->f;
}

static void node_open_hint(struct net_node *n, const struct net_config *cfg, int hint)
{
	struct err_text err = {""};

	net_node_begin(n);
	if (fabric_open_mr(cfg, hint, rig_key_of, n, &n->f, &err))
		fail_msg("%s", err.s);
	net_node_attach(n);
}

static void rig_open_hint(struct net_rig *r, int hint)
{
	struct net_config cfg = config_of(true);

	r->third = NULL;
	node_open_hint(&r->server, &cfg, hint);
	cfg = config_of(false);
	node_open_hint(&r->client, &cfg, hint);
}

/* ---- connecting ---- */

static void peer_without_the_key_is_rejected(void **state)
{
	struct net_rig r;
	struct fabric_cm_event ev = {.kind = CM_CONNECTED};
	struct fabric_conn *c;

	(void)state;
	net_rig_open(&r);
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
	c = (struct fabric_conn *)r.client.conn;
	ev.fid = &c->ep->fid;
	ev.data_bytes = PROOF_BYTES;
	fabric_conn_cm_event((struct fabric_xport *)r.client.x, &ev);
	assert_int_equal(c->base.state, CONN_DOOMED);
	fabric_poll(r.client.x, clock_now_ns());
	assert_int_equal(r.client.n_up, 0);
	assert_int_equal(r.client.n_down, 1);
	net_rig_close(&r);
}

/* Connect with arbitrary parameter bytes. Returns 0 or the positive error code. */
static int raw_connect(struct net_node *from, uint16_t port, const void *param, size_t n_bytes)
{
	const struct fabric_xport *x = (const struct fabric_xport *)from->x;
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = inet_addr(rig_address())};
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_err_entry e = {0};
	uint8_t room[sizeof(struct fi_eq_cm_entry) + 256];
	struct fi_info *info = fi_dupinfo(fabric_of(from)->info);
	struct fid_eq *eq;
	struct fid_ep *ep;
	uint32_t event;
	int rc = 0;

	/* libfabric's provider "verbs" resolves the route in fi_endpoint. So set the destination
	 * address before that call. */
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

static void only_fresh_and_genuine_tickets_are_accepted(void **state)
{
	struct ticket t = a_ticket(9);
	uint8_t b[TICKET_BYTES + 200];
	struct net_rig r;
	pthread_t th;
	uint16_t port;

	(void)state;
	net_rig_open(&r);
	port = net_port(r.server.f);
	pthread_create(&th, NULL, serve, &r.server);
	memset(b, 0, sizeof(b));
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), 0);
	/* the same ticket a second time */
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	t = a_ticket(10);
	ticket_seal(&t, the_key, b);
	b[14] ^= 1; /* one byte is changed */
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	b[14] ^= 1;
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES - 1), ECONNREFUSED);
	assert_int_equal(raw_connect(&r.client, port, NULL, 0), ECONNREFUSED);
	b[4]++; /* another version */
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	b[4]--;
	/* b is longer than a ticket, but b starts with a valid ticket */
	if (rig_is_tcp())
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
	t = a_ticket(14); /* a valid ticket of a connection that does not exist */
	t.channel = CHANNEL_SECOND;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	atomic_store(&r.server.stop, true);
	pthread_join(th, NULL);
	/* No refused peer got as far as a first message. */
	assert_int_equal(r.server.n_up, 0);
	net_rig_close(&r);
}

static void no_byte_of_a_ticket_may_be_wrong_or_missing(void **state)
{
	struct ticket t = a_ticket(9);
	uint8_t b[TICKET_BYTES], other[TICKET_KEY_BYTES];
	struct net_rig r;
	pthread_t th;
	uint16_t port;
	uint64_t n_tried = 0;

	(void)state;
	net_rig_open(&r);
	port = net_port(r.server.f);
	pthread_create(&th, NULL, serve, &r.server);
	ticket_seal(&t, the_key, b);
	for (size_t i = 0; i < TICKET_BYTES; i++, n_tried += 2) {
		b[i] ^= 0x10;
		assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
		b[i] ^= 0x10;
		assert_int_equal(raw_connect(&r.client, port, b, i), ECONNREFUSED);
	}
	/* The server refuses two more tickets of this agent. The first is sealed with the key of
	 * another server. The second has the instance of a later process of this server. */
	memcpy(other, the_key, sizeof(other));
	other[0] ^= 1;
	ticket_seal(&t, other, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	t.instance++;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), ECONNREFUSED);
	assert_int_equal(refused(&r.server), n_tried + 2);
	/* The refused attempts have not used up the valid ticket. */
	t.instance--;
	ticket_seal(&t, the_key, b);
	assert_int_equal(raw_connect(&r.client, port, b, TICKET_BYTES), 0);
	atomic_store(&r.server.stop, true);
	pthread_join(th, NULL);
	assert_int_equal(r.server.n_up, 0);
	net_rig_close(&r);
}

static void connection_ends_with_either_channel(void **state)
{
	(void)state;
	for (unsigned channel = 0; channel < N_CHANNELS; channel++) {
		struct fabric_conn *c;
		struct net_rig r;

		net_rig_open(&r);
		rig_connect(&r);
		c = (struct fabric_conn *)r.client.conn;
		assert_int_equal(fi_shutdown(c->eps[channel], 0), 0);
		RUN(&r, r.client.n_down == 1 && r.server.n_down == 1);
		net_rig_close(&r);
	}
}

static void connections_beyond_the_limit_are_refused(void **state)
{
	struct rlimit before, many;
	struct err_text err;
	struct net_node second = {0};
	struct net_rig r;
	uint32_t limit;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	many = before;
	many.rlim_cur = before.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &many), 0);
	net_rig_open(&r);
	limit = fabric_of(&r.server)->gates.conns_max;
	/* The test's process needs descriptors for both ends of each channel. */
	if (many.rlim_max < 2 * N_CHANNELS * limit + 100)
		goto out;
	assert_int_equal(net_xport_new(r.client.f, 1, &rig_events, &second, &second.x, &err), 0);
	for (unsigned i = 0; i < limit; i++) {
		assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), 0);
		if (i % 32 == 31)
			RUN(&r, r.server.n_up == i + 1);
	}
	assert_int_equal(dial(&r.client, net_port(r.server.f), the_key), -EMFILE);
	r.third = &second;
	assert_int_equal(dial(&second, net_port(r.server.f), the_key), 0);
	RUN(&r, second.n_down == 1);
	assert_non_null(strstr(second.why, "no room"));
	/* The existing connections still work. */
	r.server.on_message = echo;
	for (unsigned i = 0; i < limit; i++)
		assert_int_equal(
			send_round(&((struct fabric_xport *)r.client.x)->conns[i]->base.pub, i + 1),
			0);
	RUN(&r, r.client.n_messages == limit);
	assert_int_equal(r.client.n_down + r.server.n_down, 0);
	xport_free(second.x);
out:
	net_rig_close(&r);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void silent_strangers_are_not_even_accepted(void **state)
{
	struct net_rig r;
	unsigned before;
	int fds[20];

	(void)state;
	if (!rig_is_tcp())
		skip();
	net_rig_open(&r);
	before = count_fds();
	for (unsigned i = 0; i < 20; i++)
		fds[i] = stranger(net_port(r.server.f), NULL, 0);
	/* When rig_connect returns, the server has processed a later connection request. So the
	 * server has also processed the 20 earlier requests. */
	rig_connect(&r);
	assert_in_range(count_fds(), before + 20, before + 20 + 2 * N_CHANNELS);
	for (unsigned i = 0; i < 20; i++)
		close(fds[i]);
	net_rig_close(&r);
}

static void expect_congestion(const struct net_node *n, const char *name)
{
	const struct fabric_conn *c = (const struct fabric_conn *)n->conn;

	for (unsigned i = 0; i < N_CHANNELS; i++) {
		char now[CONGESTION_NAME_MAX + 1] = "";
		socklen_t len = sizeof(now) - 1;
		int fd = fabric_socket_of(fabric_of(n), c->eps[i]);

		assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &len), 0);
		assert_string_equal(now, name);
	}
}

static void congestion_control_is_set_where_sockets_are_shown(void **state)
{
	struct net_config cfg = config_of(true);
	struct net_rig r = {.third = NULL};
	char name[CONGESTION_NAME_MAX + 1];
	struct net *f = NULL;
	struct err_text err;

	(void)state;
	if (!rig_is_tcp())
		skip();
	cfg.congestion = "reno";
	if (FI_VERSION_LT(fi_version(), FI_VERSION(2, 2))) {
		assert_int_equal(net_open(&cfg, rig_key_of, NULL, &f, &err), -EINVAL);
		assert_non_null(strstr(err.s, "'reno' needs libfabric 2.2"));
		return;
	}
	assert_int_equal(congestion_find("reno", name, &err), 0);
	net_node_open(&r.server, &cfg);
	cfg = config_of(false);
	cfg.congestion = "reno";
	net_node_open(&r.client, &cfg);
	rig_connect(&r);
	expect_congestion(&r.client, "reno");
	expect_congestion(&r.server, "reno");
	net_rig_close(&r);
}

/* ---- messages ---- */

static void message_with_a_foreign_cookie_is_dropped_and_counted(void **state)
{
	struct net_rig r;
	struct fabric_conn *c;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	c = (struct fabric_conn *)r.client.conn;
	c->tx_cookie ^= UINT64_C(1) << 40;
	assert_int_equal(send_round(r.client.conn, 1), 0);
	RUN(&r, protocol_errors(&r.server) == 1);
	assert_int_equal(r.server.n_messages, 0);
	net_rig_close(&r);
}

static void malformed_message_closes_its_connection(void **state)
{
	struct net_rig r;
	struct fabric_conn *c;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	assert_int_equal(send_round(r.client.conn, 1), 0);
	c = (struct fabric_conn *)r.client.conn;
	assert_non_null(c->open);
	c->open->data[1] ^= 0x40; /* another version of the protocol */
	RUN(&r, r.server.n_down == 1 && r.client.n_down == 1);
	assert_non_null(strstr(r.server.why, "protocol"));
	assert_int_equal(protocol_errors(&r.server), 1);
	assert_int_equal(r.server.n_messages, 0);
	net_rig_close(&r);
}

static void more_sends_than_granted_close_the_connection(void **state)
{
	struct net_rig r;
	struct fabric_conn *c;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	c = (struct fabric_conn *)r.server.conn;
	c->rx_allow = 0;
	assert_int_equal(send_round(r.client.conn, 1), 0);
	RUN(&r, r.server.n_down == 1);
	assert_int_equal(protocol_errors(&r.server), 1);
	net_rig_close(&r);
}

/* ---- reads ---- */

static bool has_segment(const struct net_node *n, uint16_t seg)
{
	return n->conn && fabric_seg_find((const struct fabric_conn *)n->conn, seg);
}

static void reads_work_with_addresses_and_keys_of_the_provider(void **state)
{
	struct net_rig r;

	(void)state;
	if (!rig_is_tcp())
		skip();
	rig_open_hint(&r, FABRIC_MR_BASIC);
	assert_true(fabric_of(&r.client)->mr_mode & FI_MR_VIRT_ADDR);
	assert_true(fabric_of(&r.client)->mr_mode & FI_MR_PROV_KEY);
	read_both_ways(&r);
}

static void reads_beyond_the_window_or_the_segment_are_refused(void **state)
{
	struct xport_read reads[READS_MAX + 1], bad;
	struct mem from, to;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.client, 1 << 20, 5);
	to = mem_new(&r.server, 1 << 20, 0);
	rig_connect(&r);
	RUN(&r, has_segment(&r.server, from.seg));
	/* Until both channels are open, reads are queued. Without eager bytes, only
	 * READ_WINDOW_QUEUE of them are accepted. So wait for the channels. */
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
	net_rig_close(&r);
	mem_free(&from);
	mem_free(&to);
}

static void withdrawn_segment_can_not_be_read(void **state)
{
	struct mem from, to;
	struct xport_read rd;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	from = mem_new(&r.client, 65536, 5);
	to = mem_new(&r.server, 65536, 0);
	rig_connect(&r);
	RUN(&r, has_segment(&r.server, from.seg));
	rd = read_of(&r.server, &to, &from, 0, 65536);
	r.client.x->ops->seg_del(r.client.x, from.seg);
	RUN(&r, !has_segment(&r.server, from.seg));
	assert_int_equal(xport_read(&rd), BPS_EPROTO);
	assert_int_equal(r.server.n_down, 0);
	net_rig_close(&r);
	mem_free(&from);
	mem_free(&to);
}

/* The memory is freed while the owner answers a read of it. The owner has sent the part of the
 * answer for which its socket had room. The read ends: with all bytes, or because the connection
 * ends. */
static void read_of_freed_memory_ends(void **state)
{
	const uint32_t len = 1 << 20;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct net_rig r;
		struct net_node *reader = i ? &r.client : &r.server;
		struct net_node *owner = i ? &r.server : &r.client;
		struct mem gone, copy, to;
		struct xport_read rd;

		rig_open_pinging(&r, 200, 800);
		rig_connect(&r);
		gone = mem_new(owner, len, 5);
		copy = mem_new(owner, len, 5);
		to = mem_new(reader, len, 0);
		RUN(&r, has_segment(reader, gone.seg));
		rd = read_of(reader, &to, &gone, 0, len);
		assert_int_equal(xport_read(&rd), 0);
		fabric_poll(reader->x, clock_now_ns());
		fabric_may_sleep(reader->x);
		for (unsigned k = 0; k < 100; k++) {
			fabric_poll(owner->x, clock_now_ns());
			fabric_may_sleep(owner->x);
		}
		owner->x->ops->seg_del(owner->x, gone.seg);
		mem_free(&gone);
		RUN(&r, reader->n_read_done == 1);
		if (reader->read_status == 0)
			assert_memory_equal(to.p, copy.p, len);
		net_rig_close(&r);
		mem_free(&copy);
		mem_free(&to);
	}
}

static void check_segment(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	(void)m;
	n->is_wrong |= !fabric_seg_find((const struct fabric_conn *)c, (uint16_t)n->next_round);
}

static void segment_is_announced_before_a_message_that_names_it(void **state)
{
	struct net_rig r;
	struct mem from;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	from = mem_new(&r.client, 4096, 1);
	r.server.on_message = check_segment;
	r.server.next_round = from.seg;
	assert_int_equal(send_round(r.client.conn, 1), 0);
	RUN(&r, r.server.n_messages == 1);
	assert_false(r.server.is_wrong);
	net_rig_close(&r);
	mem_free(&from);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peer_without_the_key_is_rejected),
		cmocka_unit_test(only_fresh_and_genuine_tickets_are_accepted),
		cmocka_unit_test(no_byte_of_a_ticket_may_be_wrong_or_missing),
		cmocka_unit_test(connection_ends_with_either_channel),
		cmocka_unit_test(connections_beyond_the_limit_are_refused),
		cmocka_unit_test(silent_strangers_are_not_even_accepted),
		cmocka_unit_test(congestion_control_is_set_where_sockets_are_shown),
		cmocka_unit_test(message_with_a_foreign_cookie_is_dropped_and_counted),
		cmocka_unit_test(malformed_message_closes_its_connection),
		cmocka_unit_test(more_sends_than_granted_close_the_connection),
		cmocka_unit_test(reads_work_with_addresses_and_keys_of_the_provider),
		cmocka_unit_test(reads_beyond_the_window_or_the_segment_are_refused),
		cmocka_unit_test(withdrawn_segment_can_not_be_read),
		cmocka_unit_test(read_of_freed_memory_ends),
		cmocka_unit_test(segment_is_announced_before_a_message_that_names_it),
	};

	rig_use("tcp");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
