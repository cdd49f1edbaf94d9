/* Tests of the exact bytes that the transport over TCP sockets sends. Releases that work together
 * must agree on these bytes. A release that changes the bytes must also change the version of
 * tickets (common/wire/ticket.c). test_wire.c tests the messages inside the frames. */
#include "tests/unit/tcp_peer.h"
/* hex.h uses assertions of cmocka.h, which tcp_peer.h includes. So tcp_peer.h must come first. */
#include "tests/unit/hex.h"

#define LEN 5

/* Expect that exactly these bytes are next on a lane. */
static void expect(struct raw_conn *p, enum tcp_lane_kind lane, const char *hex)
{
	uint8_t want[256], got[256];
	size_t n = hex_parse(hex, want, sizeof(want));

	raw_recv(p, lane, got, n);
	assert_memory_equal(got, want, n);
}

static void say(const struct raw_conn *p, enum tcp_lane_kind lane, const char *hex)
{
	uint8_t bytes[256];

	raw_send(p, lane, bytes, hex_parse(hex, bytes, sizeof(bytes)));
}

static void expect_message(struct raw_conn *p, const struct wire_msg *m)
{
	uint8_t want[TCP_FRAME_MAX], got[TCP_FRAME_MAX];
	size_t n = wire_encode(m, want);

	raw_recv(p, LANE_MESSAGES, got, n);
	assert_memory_equal(got, want, n);
}

/* Make memory that is offered as segment 1. The test does not use segment 0. */
static struct mem memory(struct net_rig *r)
{
	struct mem first = mem_new(&r->server, 4096, 0), m = mem_new(&r->server, 4096, 0);

	mem_free(&first);
	assert_int_equal(m.seg, 1);
	memcpy(m.p + 0x123, "\x11\x22\x33\x44\x55", LEN);
	return m;
}

static void message(void **state)
{
	const struct wire_msg m = {.type = WIRE_PONG};
	struct net_rig r;
	struct raw_conn p;

	(void)state;
	net_rig_open(&r);
	p = raw_up(&r);
	assert_int_equal(xport_send(r.server.conn, &m), 0);
	expect(&p, LANE_MESSAGES, "01 00 0000 40000000 0000000000000000");
	expect_message(&p, &m);
	raw_close(&p);
	net_rig_close(&r);
}

static void offer_with_its_bytes(void **state)
{
	struct wire_msg m = {.type = WIRE_RESULT, .segment = 1, .offset = 0x123, .len = LEN};
	struct net_rig r;
	struct raw_conn p;
	struct mem from;

	(void)state;
	net_rig_open(&r);
	from = memory(&r);
	p = raw_up(&r);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(xport_send_eager(r.server.conn, &m, true), 0);
	for (unsigned i = 0; i < 2; i++) {
		expect(&p, LANE_MESSAGES,
			"05 00 0100 05000000 2301000000000000  01 00 0000 58000000 "
			"0000000000000000");
		expect_message(&p, &m);
	}
	expect(&p, LANE_BULK,
		"05 00 0000 05000000 0000000000000000  1122334455  03 00 0000 05000000 "
		"0000000000000000");
	expect(&p, LANE_BULK,
		"05 00 0000 05000000 0100000000000000  1122334455  03 00 0000 05000000 "
		"0100000000000000");
	raw_close(&p);
	net_rig_close(&r);
	mem_free(&from);
}

static void request_and_answer(void **state)
{
	struct net_rig r;
	struct raw_conn p;
	struct mem to;
	struct xport_read rd;

	(void)state;
	net_rig_open(&r);
	to = memory(&r);
	p = raw_up(&r);
	rd = (struct xport_read){.conn = r.server.conn,
		.dst = to.p,
		.own_segment = to.seg,
		.segment = 0x203,
		.offset = 0x1122334455,
		.len = LEN};
	assert_int_equal(xport_read(&rd), 0);
	expect(&p, LANE_MESSAGES, "02 00 0302 05000000 5544332211000000");
	say(&p, LANE_BULK,
		"04 00 0000 05000000 5544332211000000  a1a2a3a4a5  03 00 0000 05000000 "
		"5544332211000000");
	RUN(&r, r.server.n_read_done == 1);
	assert_int_equal(r.server.n_read_failed, 0);
	assert_memory_equal(to.p, "\xa1\xa2\xa3\xa4\xa5", LEN);
	/* Above, the peer answered a read that the server had requested. Now the peer requests
	 * bytes of an existing segment, and then bytes of a segment that does not exist. The server
	 * answers the second request with zeros. */
	say(&p, LANE_MESSAGES,
		"02 00 0100 05000000 2301000000000000  02 00 0200 02000000 0000000000000000");
	expect(&p, LANE_BULK,
		"04 00 0000 05000000 2301000000000000  1122334455  03 00 0000 05000000 "
		"2301000000000000");
	expect(&p, LANE_BULK,
		"04 00 0000 02000000 0000000000000000  0000  03 01 0000 02000000 0000000000000000");
	raw_close(&p);
	net_rig_close(&r);
	mem_free(&to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(message),
		cmocka_unit_test(offer_with_its_bytes),
		cmocka_unit_test(request_and_answer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
