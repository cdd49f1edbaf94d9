/* Test eager offers (xport_send_eager). In two tests, a sender offers memory, and offers the same
 * memory again before the bytes of the first offer have arrived. Another test makes a sender wait
 * for room. */
#include "common/data/crc32c.h"
#include "tests/unit/tcp_peer.h"

#define LEN 20000

static const struct wire_msg offer = {.type = WIRE_CONTRIB,
	.round = 1,
	.segment = 3,
	.offset = 4096,
	.len = LEN,
	.contrib.workers = 1};

static void say(const struct raw_conn *p, bool is_eager)
{
	const struct tcp_frame f = {.type = FRAME_EAGER, .segment = 3, .len = LEN, .offset = 4096};
	uint8_t bytes[sizeof(f) + 256];
	size_t n = 0;

	if (is_eager) {
		memcpy(bytes, &f, sizeof(f));
		n = sizeof(f);
	}
	n += put_message(bytes + n, &offer);
	raw_send(p, LANE_MESSAGES, bytes, n);
}

static void send_bytes(
	const struct raw_conn *p, enum tcp_frame_type type, uint64_t offset, uint32_t seed)
{
	const struct tcp_frame head = {.type = (uint8_t)type, .len = LEN, .offset = offset},
			       trailer = {.type = FRAME_BYTES, .len = LEN, .offset = offset};
	uint8_t bytes[sizeof(head) + LEN + sizeof(trailer)];

	memcpy(bytes, &head, sizeof(head));
	fill(bytes + sizeof(head), LEN, seed);
	memcpy(bytes + sizeof(head) + LEN, &trailer, sizeof(trailer));
	raw_send(p, LANE_BULK, bytes, sizeof(bytes));
}

/* Offer the same memory twice. The first offer is not read. The bytes of the first offer arrive
 * after the read of the second offer has begun. */
static void offer_twice(bool is_eager)
{
	uint8_t want[LEN];
	struct xport_read rd;
	struct tcp_frame asked;
	struct mem to;
	struct net_rig r;
	struct raw_conn p;

	net_rig_open(&r);
	to = mem_new(&r.server, LEN, 0);
	p = raw_up(&r);
	say(&p, true);
	say(&p, is_eager);
	RUN(&r, r.server.n_messages == 2);
	rd = (struct xport_read){.conn = r.server.conn,
		.dst = to.p,
		.own_segment = to.seg,
		.segment = 3,
		.offset = 4096,
		.len = LEN};
	assert_int_equal(xport_read(&rd), 0);
	send_bytes(&p, FRAME_EAGER, 0, 1);
	if (is_eager) {
		send_bytes(&p, FRAME_EAGER, 1, 2);
	} else {
		raw_recv(&p, LANE_MESSAGES, &asked, sizeof(asked));
		assert_int_equal(asked.type, FRAME_READ);
		send_bytes(&p, FRAME_ANSWER, 4096, 2);
	}
	RUN(&r, r.server.n_read_done == 1);
	assert_int_equal(r.server.n_read_failed, 0);
	fill(want, LEN, 2);
	assert_memory_equal(to.p, want, LEN);
	assert_int_equal(xport_read_crc(&rd), crc32c(0, want, LEN));
	raw_close(&p);
	net_rig_close(&r);
	mem_free(&to);
}

static void read_of_an_offer_does_not_take_bytes_of_an_earlier_one(void **state)
{
	(void)state;
	offer_twice(true);
}

static void read_of_an_offer_without_bytes_requests_them(void **state)
{
	(void)state;
	offer_twice(false);
}

static void patient_sender_is_notified_of_room_after_other_sends(void **state)
{
	struct wire_msg m = offer;
	struct xconn *c;
	struct mem from;
	struct net_rig r;

	(void)state;
	net_rig_open(&r);
	rig_connect(&r);
	c = r.client.conn;
	from = mem_new(&r.client, LEN, 1);
	m.segment = from.seg;
	m.offset = 0;
	for (unsigned i = 0; i < EAGER_OUT_MAX; i++)
		assert_int_equal(xport_send_eager(c, &m, false), 0);
	assert_int_equal(xport_send_eager(c, &m, true), -EAGAIN);
	/* the offer is sent without its bytes */
	assert_int_equal(xport_send_eager(c, &m, false), 0);
	RUN(&r, r.client.n_writable == 1 && r.server.n_messages == EAGER_OUT_MAX + 1);
	assert_int_equal(xport_send_eager(c, &m, true), 0);
	net_rig_close(&r);
	mem_free(&from);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_of_an_offer_does_not_take_bytes_of_an_earlier_one),
		cmocka_unit_test(patient_sender_is_notified_of_room_after_other_sends),
		cmocka_unit_test(read_of_an_offer_without_bytes_requests_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
