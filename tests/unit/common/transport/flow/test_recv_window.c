/* The receive window of a data thread's sockets, which is chosen from measured round trips. */
#include "common/transport/flow/recv_window.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define FAST   1000
#define BUSY   1900
#define SLOW   2100
#define TARDY  5100
#define MIDDLE 23000
#define LONG   42000

/* Add samples of rtt_us until the window changes, but no more than `most` samples. Return the
 * number of added samples, or 0 if the window did not change. */
static unsigned until_change(struct recv_window *w, uint32_t rtt_us, unsigned most)
{
	int before = w->bytes;

	for (unsigned i = 1; i <= most; i++) {
		bool was_paced = w->is_paced, was_quick = w->is_quick;
		bool has_changed = recv_window_add_rtt_sample(w, rtt_us);

		assert_int_equal(has_changed,
			w->bytes != before || w->is_paced != was_paced || w->is_quick != was_quick);
		if (w->bytes != before)
			return i;
	}
	return 0;
}

/* Return whether a sample leaves both the window and the pacing unchanged. */
static bool stays(struct recv_window *w, uint32_t rtt_us)
{
	struct recv_window before = *w;

	recv_window_add_rtt_sample(w, rtt_us);
	return w->bytes == before.bytes && w->is_paced == before.is_paced;
}

static void queue_of_middle_length_changes_nothing(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	assert_int_equal(until_change(&w, MIDDLE, 100000), 0);
}

static void connections_share_the_window_equally(void **state)
{
	static const struct {
		unsigned n;
		int want;
	} cases[] = {{0, RECV_WINDOW_MAX}, {1, RECV_WINDOW_MAX}, {8, RECV_WINDOW_MAX},
		{9, 224 << 10}, {16, 224 << 10}, {17, 96 << 10}, {32, 96 << 10},
		{33, RECV_WINDOW_MIN}, {1024, RECV_WINDOW_MIN}, {UINT32_MAX, RECV_WINDOW_MIN},
		{3, RECV_WINDOW_MAX}};
	struct recv_window w;
	int before = RECV_WINDOW_MAX;

	(void)state;
	recv_window_init(&w);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool has_changed = recv_window_shared(&w, cases[i].n);

		assert_int_equal(w.bytes, cases[i].want);
		assert_int_equal(has_changed, w.bytes != before);
		before = w.bytes;
		assert_int_equal(until_change(&w, LONG, 100), 0);
	}
}

static void share_counts_once_the_kernel_does_not_choose(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	recv_window_shared(&w, 16);
	assert_int_equal(until_change(&w, FAST, 1000), 32);
	assert_int_equal(w.bytes, 0);
	assert_false(recv_window_shared(&w, 4));
	assert_int_equal(w.bytes, 0);
	assert_int_equal(until_change(&w, LONG, 1000), 8);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
}

/* If a peer is gone, a connection to this peer is opened and lost repeatedly. These changes must
 * not restart the count of fast samples. */
static void reconnections_do_not_restart_the_count(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	for (unsigned i = 0; i < 31; i++) {
		assert_true(stays(&w, FAST));
		assert_true(recv_window_shared(&w, i & 1 ? 8 : 9));
	}
	assert_true(recv_window_add_rtt_sample(&w, FAST));
	assert_int_equal(w.bytes, 0);
}

static void one_short_sample_restarts_the_count_of_long_ones(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	until_change(&w, FAST, 1000);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(until_change(&w, LONG, 7), 0);
		assert_int_equal(until_change(&w, MIDDLE, 1), 0);
	}
}

/* After a series of fast samples, the kernel chooses the window. When round trips become long, the
 * window gets the size RECV_WINDOW_MAX again. Each return to this size doubles the number of fast
 * samples after which the kernel chooses the window again. This number is at most 32 << 10. */
static void kernel_chooses_on_a_fast_link_until_its_queue_is_long(void **state)
{
	struct recv_window w;
	unsigned want = 32;

	(void)state;
	recv_window_init(&w);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(until_change(&w, FAST, 1u << 20), want);
		assert_int_equal(w.bytes, 0);
		assert_int_equal(until_change(&w, MIDDLE, 1000), 0);
		assert_int_equal(until_change(&w, LONG, 1000), 8);
		assert_int_equal(w.bytes, RECV_WINDOW_MAX);
		if (i < 10)
			want *= 2;
	}
	assert_int_equal(want, 32 << 10);
}

static void more_bytes_may_wait_while_round_trips_are_short(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	assert_false(w.is_quick);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned k = 0; k < 31; k++)
			assert_false(recv_window_add_rtt_sample(&w, BUSY));
		assert_false(recv_window_add_rtt_sample(&w, TARDY));
		for (unsigned k = 0; k < 31; k++)
			assert_false(recv_window_add_rtt_sample(&w, BUSY));
		assert_true(recv_window_add_rtt_sample(&w, BUSY));
		assert_true(w.is_quick);
		for (unsigned k = 0; k < 3; k++)
			assert_false(recv_window_add_rtt_sample(&w, TARDY));
		assert_true(w.is_quick);
		assert_true(recv_window_add_rtt_sample(&w, TARDY));
		assert_false(w.is_quick);
	}
	/* After 32 round trips of SLOW, is_quick is still set. After 64 round trips of SLOW,
	 * is_quick is cleared and sends are paced. */
	for (unsigned k = 0; k < 32; k++)
		recv_window_add_rtt_sample(&w, SLOW);
	assert_true(w.is_quick);
	for (unsigned k = 32; k < 64; k++)
		recv_window_add_rtt_sample(&w, SLOW);
	assert_true(w.is_paced);
	assert_false(w.is_quick);
	for (unsigned k = 0; k < 100; k++)
		assert_false(recv_window_add_rtt_sample(&w, BUSY));
	assert_int_equal(until_change(&w, FAST, 1000), 32);
	assert_true(w.is_quick);
}

static void pauses_do_not_hide_that_round_trips_are_short(void **state)
{
	struct recv_window w;
	uint64_t now_ns = 1;

	(void)state;
	recv_window_init(&w);
	/* The rate is 1 Gbit/s. Even on a slow link, round trips are short while the link is not
	 * full. So short round trips at this rate do not show that the link is fast. */
	for (unsigned k = 0; k < 1000; k++)
		assert_false(recv_window_bounded(&w, FAST, now_ns += 8400000));
	/* Between pauses the rate is 4 Gbit/s, but every seventh sample follows a pause. */
	for (unsigned k = 0; k < 1000; k++)
		assert_false(recv_window_bounded(&w, FAST, now_ns += k % 7 ? 2100000 : 40000000));
	/* A TARDY sample between FAST samples starts the count of FAST samples again. */
	for (unsigned k = 0; k < 1000; k++)
		assert_false(recv_window_bounded(&w, k % 7 ? FAST : TARDY, now_ns += 2100000));
	for (unsigned run = 0; run < 8; run++) {
		for (unsigned k = 0; k < 24; k++)
			assert_false(recv_window_bounded(&w, FAST, now_ns += 2100000));
		if (run % 2)
			assert_false(recv_window_bounded(&w, TARDY, now_ns));
		else
			assert_false(recv_window_add_rtt_sample(&w, TARDY));
	}
	for (unsigned k = 0; k < 32; k++)
		assert_false(
			recv_window_bounded(&w, TARDY - 200, now_ns += k % 8 ? 2100000 : 25000000));
	assert_true(recv_window_bounded(&w, TARDY - 200, now_ns += 2100000));
	assert_true(w.is_quick);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	/* Nine fast samples of recv_window_bounded reset the count of tardy samples. So four more
	 * tardy samples are needed to clear is_quick. */
	for (unsigned k = 0; k < 3; k++)
		assert_false(recv_window_add_rtt_sample(&w, TARDY));
	for (unsigned k = 0; k < 9; k++)
		assert_false(recv_window_bounded(&w, FAST, now_ns));
	for (unsigned k = 0; k < 3; k++)
		assert_false(recv_window_add_rtt_sample(&w, TARDY));
	assert_true(recv_window_add_rtt_sample(&w, TARDY));
	assert_false(w.is_quick);
}

/* Samples that may contain pauses can show that a link is fast, but not that it is slow. */
static void kernel_chooses_the_window_of_a_fast_link_with_pauses(void **state)
{
	struct recv_window w;
	uint64_t now_ns = 1;
	unsigned n = 1;

	(void)state;
	recv_window_init(&w);
	/* Every fifth sample is not fast. */
	for (unsigned k = 0; k < 1000; k++)
		recv_window_bounded(&w, k % 5 ? FAST : BUSY, now_ns += 2100000);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	recv_window_init(&w);
	while (w.bytes && n < 100) {
		recv_window_bounded(&w, FAST, now_ns += 2100000);
		n++;
	}
	assert_in_range(n, 33, 48);
	assert_true(w.is_quick);
	for (unsigned k = 0; k < 100; k++)
		assert_false(recv_window_bounded(&w, TARDY, now_ns += 2100000));
	assert_int_equal(w.bytes, 0);
}

static void slow_link_is_paced_until_it_is_fast(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	for (unsigned i = 0; i < 100; i++) {
		for (unsigned k = 0; k < 63; k++)
			assert_true(stays(&w, SLOW));
		assert_true(stays(&w, BUSY));
	}
	for (unsigned k = 0; k < 63; k++)
		assert_true(stays(&w, SLOW));
	assert_false(w.is_paced);
	assert_true(recv_window_add_rtt_sample(&w, SLOW));
	assert_true(w.is_paced);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	for (unsigned k = 0; k < 100; k++)
		assert_true(stays(&w, SLOW));
	assert_int_equal(until_change(&w, FAST, 1000), 32);
	assert_int_equal(w.bytes, 0);
	assert_false(w.is_paced);
	/* While the kernel chooses the window, queues build up. So SLOW round trips do not prove
	 * that the link is slow. */
	for (unsigned k = 0; k < 1000; k++)
		assert_true(stays(&w, SLOW));
	assert_int_equal(until_change(&w, LONG, 1000), 8);
	for (unsigned k = 0; k < 63; k++)
		assert_true(stays(&w, SLOW));
	assert_true(recv_window_add_rtt_sample(&w, SLOW));
}

static void kernel_that_refuses_is_not_asked_again_soon(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	assert_int_equal(until_change(&w, FAST, 1000), 32);
	recv_window_refused(&w);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	assert_int_equal(until_change(&w, FAST, (32 << 10) - 1), 0);
	assert_int_equal(until_change(&w, FAST, 1), 1);
}

/* ---- the average that the kernel reports ---- */

#define MS UINT64_C(1000000)

/* A connection, and the average round trip that the kernel reports for it. The function stream()
 * adds a sample for each window of bytes, and wait_for_more() adds a sample for a pause. */
struct source {
	struct recv_rtt rtt;
	uint64_t now_ns;
	double average_us;
};

static void sample(struct source *s, double us)
{
	s->average_us += (us - s->average_us) / 8;
}

static void wait_for_more(struct source *s, uint64_t pause_us)
{
	s->now_ns += pause_us * 1000;
	recv_rtt_heard(&s->rtt, s->now_ns);
	sample(s, (double)pause_us);
}

/* Simulate the arrival of n_windows windows of bytes. Each window takes `us` microseconds to
 * arrive. Return the longest average round trip that recv_rtt_measured accepted, or 0 if it
 * accepted none. */
static uint32_t stream(struct source *s, uint32_t us, unsigned n_windows)
{
	uint32_t longest = 0;

	for (unsigned i = 0; i < n_windows; i++) {
		for (unsigned k = 0; k < 2; k++) {
			uint32_t average = (uint32_t)s->average_us;

			s->now_ns += us * UINT64_C(500);
			recv_rtt_heard(&s->rtt, s->now_ns);
			if (recv_rtt_measured(&s->rtt, average, s->now_ns) && average > longest)
				longest = average;
		}
		sample(s, us);
	}
	return longest;
}

static struct source source_of(uint32_t us)
{
	struct source s = {.now_ns = MS, .average_us = us};

	stream(&s, us, 100);
	return s;
}

static void pauses_are_not_taken_for_a_long_queue(void **state)
{
	static const uint32_t pauses_us[] = {5000, 20000, 100000, 1000000, 10000000, 4000000000};

	(void)state;
	for (unsigned i = 0; i < sizeof(pauses_us) / sizeof(pauses_us[0]); i++) {
		struct source s = source_of(200);

		for (unsigned step = 0; step < 20; step++) {
			wait_for_more(&s, pauses_us[i]);
			assert_true(stream(&s, 200, 5 + step * 20) <= 2 * FAST);
		}
	}
}

static void many_short_pauses_are_not_taken_for_a_long_queue(void **state)
{
	struct source s = source_of(200);

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		wait_for_more(&s, 15000);
		assert_true(stream(&s, 200, 1) < LONG / 2);
	}
}

static void long_queue_is_seen_in_spite_of_pauses(void **state)
{
	struct source s = source_of(LONG);
	uint32_t seen = 0;

	(void)state;
	for (unsigned step = 0; step < 10; step++) {
		wait_for_more(&s, 1000000);
		seen = stream(&s, LONG, 40); /* 40 windows take 1.68 s */
		assert_true(seen >= LONG);
	}
}

static void queue_that_grows_long_is_seen(void **state)
{
	struct source s = source_of(1000);

	(void)state;
	assert_in_range(stream(&s, LONG, 40), LONG * 9 / 10, LONG);
}

/* The owner of a transport that learns only of whole operations records when operations begin after
 * a time without any. A time between two arrivals is no pause then. */
static void time_between_arrivals_of_one_stream_is_no_pause(void **state)
{
	struct source s = source_of(1000);

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		s.now_ns += SLOW * UINT64_C(2000);
		recv_rtt_flowed(&s.rtt, s.now_ns);
		assert_true(recv_rtt_measured(&s.rtt, SLOW, s.now_ns));
	}
	wait_for_more(&s, 100000);
	assert_false(recv_rtt_measured(&s.rtt, SLOW, s.now_ns));
}

static void link_may_be_quick_only_while_it_is_fast(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	w.is_quick_if_fast = true;
	assert_int_equal(until_change(&w, SLOW, 60), 0);
	assert_false(w.is_quick);
	assert_true(until_change(&w, FAST, 100) > 0);
	assert_int_equal(w.bytes, 0);
	assert_true(w.is_quick);
	assert_true(until_change(&w, LONG, 100) > 0);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	assert_false(w.is_quick);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queue_of_middle_length_changes_nothing),
		cmocka_unit_test(connections_share_the_window_equally),
		cmocka_unit_test(share_counts_once_the_kernel_does_not_choose),
		cmocka_unit_test(reconnections_do_not_restart_the_count),
		cmocka_unit_test(one_short_sample_restarts_the_count_of_long_ones),
		cmocka_unit_test(kernel_chooses_on_a_fast_link_until_its_queue_is_long),
		cmocka_unit_test(more_bytes_may_wait_while_round_trips_are_short),
		cmocka_unit_test(pauses_do_not_hide_that_round_trips_are_short),
		cmocka_unit_test(kernel_chooses_the_window_of_a_fast_link_with_pauses),
		cmocka_unit_test(slow_link_is_paced_until_it_is_fast),
		cmocka_unit_test(kernel_that_refuses_is_not_asked_again_soon),
		cmocka_unit_test(pauses_are_not_taken_for_a_long_queue),
		cmocka_unit_test(many_short_pauses_are_not_taken_for_a_long_queue),
		cmocka_unit_test(long_queue_is_seen_in_spite_of_pauses),
		cmocka_unit_test(queue_that_grows_long_is_seen),
		cmocka_unit_test(time_between_arrivals_of_one_stream_is_no_pause),
		cmocka_unit_test(link_may_be_quick_only_while_it_is_fast),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
