/* The two channels of a connection over libfabric's provider tcp: what each carries, and when bytes
 * on it wake the thread. One thread drives both ends. */
#include <netinet/in.h>
#include <linux/tcp.h>
#include <sys/socket.h>

#include "tests/unit/fabric_pair.h"

/* A thread that has called its owner must poll again before it sleeps. */
static void poll_that_calls_the_owner_does_something(void **state)
{
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 1000);
	RUN(&p.r, fabric_poll(p.r.server.x, clock_now_ns()) == 0);
	fabric_conn_of(&p.r.server)->has_want = true;
	fabric_io_touch(fabric_conn_of(&p.r.server));
	assert_true(fabric_poll(p.r.server.x, clock_now_ns()) > 0);
	assert_int_equal(p.r.server.n_writable, 1);
	fabric_pair_close(&p);
}

/* The peer sends a message before it has opened the second channel. */
static void message_before_the_second_channel_ends_the_connection(void **state)
{
	struct wire_msg m = {.type = WIRE_PING};
	struct offer_pair p;
	struct fabric_conn *c;

	(void)state;
	fabric_pair_open(&p, 1000);
	RUN(&p.r, p.r.server.conn);
	c = fabric_conn_of(&p.r.server);
	c->ep = NULL;
	c->base.state = CONN_ACCEPTING;
	assert_int_equal(fabric_io_put_message(fabric_conn_of(&p.r.client), &m, 1), 0);
	RUN(&p.r, p.r.client.n_down == 1);
	assert_int_equal(protocol_errors(&p.r.server), 1);
	fabric_pair_close(&p);
}

/* Return how many bytes must arrive on a channel before the kernel wakes the thread. */
static int lowat_of(const struct net_node *n, enum channel channel)
{
	int lowat = 0;
	socklen_t len = sizeof(lowat);

	assert_int_equal(
		getsockopt(fabric_conn_of(n)->fds[channel], SOL_SOCKET, SO_RCVLOWAT, &lowat, &len),
		0);
	return lowat;
}

/* A thread that waits for many bytes sleeps until many have arrived. The last bytes always wake
 * it. */
static void wakes_are_few_while_many_bytes_are_expected(void **state)
{
	struct offer_pair p;
	struct xport_read rd;

	(void)state;
	fabric_pair_open(&p, READ_MAX);
	if (fabric_conn_of(&p.r.client)->fds[CHANNEL_FIRST] < 0) {
		fabric_pair_close(&p);
		skip();
	}
	RUN(&p.r, fabric_seg_find(fabric_conn_of(&p.r.server), p.t->to.seg));
	assert_int_equal(lowat_of(&p.r.server, CHANNEL_SECOND), 1);
	rd = read_of(&p.r.server, &p.from, &p.t->to, 0, READ_MAX);
	assert_int_equal(xport_read(&rd), 0);
	fabric_poll(p.r.server.x, clock_now_ns());
	assert_in_range(lowat_of(&p.r.server, CHANNEL_SECOND), 48 << 10, READ_WINDOW_FIRST / 2);
	RUN(&p.r, p.r.server.n_read_done == 1);
	assert_int_equal(p.r.server.read_status, 0);
	assert_memory_equal(p.from.p, p.t->to.p, READ_MAX);
	fabric_poll(p.r.server.x, clock_now_ns());
	assert_int_equal(lowat_of(&p.r.server, CHANNEL_SECOND), 1);
	fabric_pair_close(&p);
}

/* A read of the client changes SO_RCVLOWAT on neither channel: messages arrive on the first, and
 * requests of the server on the second. A side that reads must wake for them. */
static void read_of_the_connecting_side_leaves_lowat_at_one(void **state)
{
	struct offer_pair p;
	struct xport_read rd;

	(void)state;
	fabric_pair_open(&p, READ_MAX);
	NEED_EAGER(&p);
	if (fabric_conn_of(&p.r.client)->fds[CHANNEL_FIRST] < 0) {
		fabric_pair_close(&p);
		skip();
	}
	RUN(&p.r, fabric_seg_find(fabric_conn_of(&p.r.client), p.from.seg));
	rd = read_of(&p.r.client, &p.t->to, &p.from, 0, READ_MAX);
	assert_int_equal(xport_read(&rd), 0);
	fabric_poll(p.r.client.x, clock_now_ns());
	assert_int_equal(lowat_of(&p.r.client, CHANNEL_FIRST), 1);
	assert_int_equal(lowat_of(&p.r.client, CHANNEL_SECOND), 1);
	RUN(&p.r, p.r.client.n_read_done == 1);
	assert_memory_equal(p.t->to.p, p.from.p, READ_MAX);
	fabric_pair_close(&p);
}

/* Requests of the server arrive on the second channel, among its eager bytes, for which the client
 * sleeps until many have arrived. */
static void requests_among_eager_bytes_are_answered(void **state)
{
	const uint32_t len = 300000;
	const unsigned n_offers = 6;
	struct xport_read reads[2];
	struct offer_pair p;
	struct mem into;

	(void)state;
	fabric_pair_open(&p, n_offers * len);
	NEED_EAGER(&p);
	into = mem_new(&p.r.server, 2 * len, 0);
	fill(p.t->to.p, 2 * len, 3);
	p.r.client.on_message = hear_and_take;
	RUN(&p.r, fabric_seg_find(fabric_conn_of(&p.r.server), p.t->to.seg));
	for (unsigned i = 0; i < n_offers; i++) {
		/* The client's memory of the first two offers is read, not written. */
		if (i < 2) {
			reads[i] = read_of(&p.r.server, &into, &p.t->to, i * (uint64_t)len, len);
			assert_int_equal(xport_read(&reads[i]), 0);
			continue;
		}
		assert_int_equal(send_offer(&p.r.server, &p.from, i, i * (uint64_t)len, len), 0);
	}
	RUN(&p.r, p.r.server.n_read_done == 2 && p.r.client.n_read_done == n_offers - 2);
	assert_memory_equal(into.p, p.t->to.p, 2 * len);
	for (unsigned i = 0; i < n_offers - 2; i++)
		check_bytes(p.t, i, &p.from);
	assert_int_equal(p.r.server.n_read_failed + p.r.client.n_read_failed, 0);
	if (fabric_conn_of(&p.r.client)->fds[CHANNEL_SECOND] >= 0) {
		fabric_poll(p.r.client.x, clock_now_ns());
		assert_int_equal(lowat_of(&p.r.client, CHANNEL_SECOND), 1);
	}
	fabric_pair_close(&p);
	mem_free(&into);
}

/* Return how many TCP segments without data a node has sent on a channel. */
static uint32_t empty_segments(const struct net_node *n, enum channel channel)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	assert_int_equal(
		getsockopt(fabric_conn_of(n)->fds[channel], IPPROTO_TCP, TCP_INFO, &info, &len), 0);
	return info.tcpi_segs_out - info.tcpi_data_segs_out;
}

/* Let the client send messages, each of which the server sends back. */
static void exchange_messages(struct offer_pair *p, unsigned n_rounds)
{
	static const uint8_t payload[4096];

	for (unsigned i = 0; i < n_rounds; i++) {
		unsigned n_messages = p->r.client.n_messages + 1;
		struct wire_msg m = inline_message(n_messages, payload, sizeof(payload));

		assert_int_equal(xport_send(p->r.client.conn, &m), 0);
		RUN(&p->r, p->r.client.n_messages == n_messages);
	}
	assert_false(p->r.server.is_wrong);
}

/* TCP acknowledges a message together with the answer, without a segment of its own. A new
 * connection acknowledges its first messages at once, so these are not counted. */
static void answers_acknowledge_messages(void **state)
{
	const unsigned n_rounds = 100;
	uint32_t server[N_CHANNELS], client[N_CHANNELS];
	struct offer_pair p;

	(void)state;
	fabric_pair_open(&p, 1000);
	NEED_EAGER(&p);
	if (fabric_conn_of(&p.r.client)->fds[CHANNEL_FIRST] < 0) {
		fabric_pair_close(&p);
		skip();
	}
	p.r.server.on_message = echo;
	exchange_messages(&p, n_rounds);
	for (enum channel i = 0; i < N_CHANNELS; i++) {
		server[i] = empty_segments(&p.r.server, i);
		client[i] = empty_segments(&p.r.client, i);
	}
	exchange_messages(&p, n_rounds);
	for (enum channel i = 0; i < N_CHANNELS; i++) {
		assert_in_range(empty_segments(&p.r.server, i) - server[i], 0, n_rounds / 5);
		assert_in_range(empty_segments(&p.r.client, i) - client[i], 0, n_rounds / 5);
	}
	fabric_pair_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(poll_that_calls_the_owner_does_something),
		cmocka_unit_test(message_before_the_second_channel_ends_the_connection),
		cmocka_unit_test(wakes_are_few_while_many_bytes_are_expected),
		cmocka_unit_test(read_of_the_connecting_side_leaves_lowat_at_one),
		cmocka_unit_test(requests_among_eager_bytes_are_answered),
		cmocka_unit_test(answers_acknowledge_messages),
	};

	return cmocka_run_group_tests(tests, fabric_pair_use_tcp, NULL);
}
