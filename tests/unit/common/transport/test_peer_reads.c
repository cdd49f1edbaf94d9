/* The reads of a connection: their number, their order, and the window that limits their bytes. */
#include "common/transport/peer_reads.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SLOW_NS (READ_SLOW_NS + 1)

static unsigned n_ended, n_cancelled;

static void on_read_done(void *ctx, struct xport_read *r, int status)
{
	(void)ctx;
	(void)r;
	n_ended++;
	n_cancelled += status == -ECANCELED;
}

static const struct xport_events events = {.read_done = on_read_done};
static const struct xport xport = {.ev = &events};

/* Request the next piece, and let it arrive after took_ns. Returns whether the read is whole. */
static bool move_piece(struct peer_reads *p, uint64_t took_ns)
{
	struct peer_read *rd;
	uint32_t len = peer_reads_next_piece(p, &rd);

	assert_true(len > 0);
	peer_reads_requested(p, rd, len);
	return peer_reads_arrived(p, rd, len, took_ns);
}

static void reads_leave_the_queue_with_their_last_piece(void **state)
{
	struct xport_read r[2] = {{.len = READ_WINDOW_FIRST}, {.len = 1000}};
	struct peer_reads p = {.n = 0};
	struct peer_read *rd;

	(void)state;
	peer_reads_init(&p, READ_WINDOW_MIN);
	for (unsigned i = 0; i < 2; i++)
		peer_reads_enqueue(&p, peer_reads_start(&p, &r[i]));
	assert_int_equal(peer_reads_next_piece(&p, &rd), READ_WINDOW_FIRST / 2);
	assert_false(move_piece(&p, READ_SLOW_NS));
	assert_int_equal(p.n_queued, 2);
	assert_true(move_piece(&p, READ_SLOW_NS));
	assert_int_equal(p.n_queued, 1);
	assert_int_equal(peer_reads_next_piece(&p, &rd), 1000);
	assert_ptr_equal(rd->r, &r[1]);
	assert_true(move_piece(&p, READ_SLOW_NS));
	assert_int_equal(peer_reads_next_piece(&p, &rd), 0);
	assert_int_equal(p.n, 2);
}

static void window_without_room_holds_the_next_piece_back(void **state)
{
	struct xport_read r = {.len = 4 * READ_WINDOW_FIRST};
	struct peer_reads p = {.n = 0};
	struct peer_read *rd;
	uint32_t len;

	(void)state;
	peer_reads_init(&p, READ_WINDOW_MIN);
	peer_reads_enqueue(&p, peer_reads_start(&p, &r));
	while ((len = peer_reads_next_piece(&p, &rd)))
		peer_reads_requested(&p, rd, len);
	assert_int_equal(p.window.bytes, READ_WINDOW_FIRST);
	assert_false(peer_reads_arrived(&p, p.all, READ_WINDOW_FIRST / 2, READ_SLOW_NS));
	assert_true(peer_reads_next_piece(&p, &rd) > 0);
}

static void every_read_ends_once(void **state)
{
	struct xport_read r[READS_MAX + 1] = {{.len = 1000}};
	struct peer_reads p = {.n = 0};

	(void)state;
	n_ended = n_cancelled = 0;
	peer_reads_init(&p, READ_WINDOW_MIN);
	for (unsigned i = 0; i < READS_MAX; i++)
		peer_reads_enqueue(&p, peer_reads_start(&p, &r[i]));
	assert_null(peer_reads_start(&p, &r[READS_MAX]));
	peer_reads_dequeue(&p, &p.all[3]);
	peer_reads_finish(&p, &p.all[3], &xport, 0);
	assert_ptr_equal(peer_reads_start(&p, &r[READS_MAX]), &p.all[3]);
	peer_reads_cancel(&p, &xport);
	assert_int_equal(n_ended, READS_MAX + 1);
	assert_int_equal(n_cancelled, READS_MAX);
	assert_int_equal(p.n + p.n_queued + p.window.bytes + p.used, 0);
}

static void window_follows_the_time_that_reads_take(void **state)
{
	struct xport_read r = {.len = UINT32_MAX};
	struct peer_reads p = {.n = 0};
	uint32_t before;

	(void)state;
	peer_reads_init(&p, READ_WINDOW_MIN);
	peer_reads_enqueue(&p, peer_reads_start(&p, &r));
	move_piece(&p, (READ_FAST_NS + READ_SLOW_NS) / 2);
	assert_int_equal(p.window.limit, READ_WINDOW_FIRST);
	for (unsigned i = 0; i < 100; i++)
		move_piece(&p, SLOW_NS);
	assert_in_range(p.window.limit, READ_WINDOW_MIN, READ_WINDOW_MIN * 8 / 7 + 1);
	before = p.window.limit;
	peer_reads_dequeue(&p, p.all); /* no read is queued, so no larger window is needed */
	p.window.bytes = 1000;
	peer_reads_arrived(&p, p.all, 1000, 1);
	assert_int_equal(p.window.limit, before);
	peer_reads_enqueue(&p, p.all);
	for (unsigned i = 0; i < 100; i++)
		move_piece(&p, 1);
	assert_in_range(p.window.limit, READ_WINDOW_MAX * 7 / 8, READ_WINDOW_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_leave_the_queue_with_their_last_piece),
		cmocka_unit_test(window_without_room_holds_the_next_piece_back),
		cmocka_unit_test(every_read_ends_once),
		cmocka_unit_test(window_follows_the_time_that_reads_take),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
