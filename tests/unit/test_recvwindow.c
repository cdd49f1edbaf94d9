/* The receive window of a data thread's sockets. */
#include "common/recvwindow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define FAST   1000
#define MIDDLE 4000
#define LONG   14000

/* Samples of rtt_us until the window changes, at most `most`; 0: it did not. */
static unsigned until_change(struct recv_window *w, uint32_t rtt_us, unsigned most)
{
	int before = w->bytes;

	for (unsigned i = 1; i <= most; i++) {
		if (recv_window_measured(w, rtt_us)) {
			assert_int_not_equal(w->bytes, before);
			return i;
		}
		assert_int_equal(w->bytes, before);
	}
	return 0;
}

static void queue_of_middle_length_changes_nothing(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
	assert_int_equal(until_change(&w, MIDDLE, 100000), 0);
}

static void long_queue_halves_it_down_to_the_least(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	assert_int_equal(until_change(&w, LONG, 1000), 8);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX / 2);
	assert_int_equal(until_change(&w, LONG, 1000), 8);
	assert_int_equal(w.bytes, RECV_WINDOW_MIN);
	assert_int_equal(until_change(&w, LONG, 100000), 0);
}

static void one_short_sample_starts_the_count_of_long_ones_anew(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(until_change(&w, LONG, 7), 0);
		assert_int_equal(until_change(&w, MIDDLE, 1), 0);
	}
}

static void fast_link_gives_back_what_was_taken(void **state)
{
	struct recv_window w;

	(void)state;
	recv_window_init(&w);
	until_change(&w, LONG, 8);
	until_change(&w, LONG, 8);
	assert_int_equal(until_change(&w, FAST, 1000), 32);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX / 2);
	assert_int_equal(until_change(&w, FAST, 1000), 32);
	assert_int_equal(w.bytes, RECV_WINDOW_MAX);
}

/* And takes it back, and waits twice as long each time. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queue_of_middle_length_changes_nothing),
		cmocka_unit_test(long_queue_halves_it_down_to_the_least),
		cmocka_unit_test(one_short_sample_starts_the_count_of_long_ones_anew),
		cmocka_unit_test(fast_link_gives_back_what_was_taken),
		cmocka_unit_test(kernel_chooses_on_a_fast_link_until_its_queue_is_long),
		cmocka_unit_test(kernel_that_refuses_is_not_asked_again_soon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
