/* Tests of the choice of the number of I/O threads, and of the warning that there are too few. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bps-agent/io/io_threads.h"
#include "bps-agent/io_count.h"

#define S UINT64_C(1000000000)

static void agent_takes_a_thread_for_each_15_gbit(void **state)
{
	(void)state;
	assert_int_equal(count_io_threads(10000, false, 64), 1);
	assert_int_equal(count_io_threads(15000, false, 64), 1);
	assert_int_equal(count_io_threads(25000, false, 64), 2);
	assert_int_equal(count_io_threads(100000, false, 64), 7);
	assert_int_equal(count_io_threads(400000, false, 256), IO_THREADS_MAX);
}

static void verbs_need_a_thread_for_each_100_gbit(void **state)
{
	(void)state;
	assert_int_equal(count_io_threads(100000, true, 64), 1);
	assert_int_equal(count_io_threads(400000, true, 64), 4);
}

static void agent_leaves_three_quarters_of_the_processors(void **state)
{
	(void)state;
	assert_int_equal(count_io_threads(100000, false, 16), 4);
	assert_int_equal(count_io_threads(100000, false, 8), 2);
	assert_int_equal(count_io_threads(100000, false, 4), 1);
	assert_int_equal(count_io_threads(100000, false, 1), 1);
}

static void unknown_speed_gives_one_thread(void **state)
{
	(void)state;
	assert_int_equal(count_io_threads(0, false, 256), 1);
}

static void full_threads_beside_idle_processors_are_too_few(void **state)
{
	const struct busy_look from = {.at_ns = S, .busy_ns = S, .idle_ns = S};
	struct busy_look to = {.at_ns = 11 * S, .busy_ns = 10 * S + S / 2, .idle_ns = 81 * S};
	unsigned percent;

	(void)state;
	assert_int_equal(busy_more_threads(&from, &to, 1, 16, &percent), 2);
	assert_int_equal(percent, 95);
	assert_int_equal(busy_more_threads(&from, &to, 2, 16, &percent), 0);
	assert_int_equal(percent, 47);
	to.busy_ns = 20 * S + S / 2;
	assert_int_equal(busy_more_threads(&from, &to, 2, 16, &percent), 4);
	assert_int_equal(percent, 97);
}

static void more_threads_do_not_help_without_idle_processors(void **state)
{
	const struct busy_look from = {.at_ns = S, .busy_ns = S, .idle_ns = S};
	const struct busy_look first = {.at_ns = S};
	struct busy_look to = {.at_ns = 11 * S, .busy_ns = 11 * S, .idle_ns = 20 * S};
	unsigned percent;

	(void)state;
	assert_int_equal(busy_more_threads(&from, &to, 1, 16, &percent), 0);
	to.idle_ns = 81 * S;
	assert_int_equal(busy_more_threads(&from, &to, 1, 16, &percent), 2);
	/* a quarter of the processors */
	assert_int_equal(busy_more_threads(&from, &to, 1, 4, &percent), 0);
	assert_int_equal(busy_more_threads(&first, &to, 1, 16, &percent), 0);
}

static void idle_time_of_this_machine_grows(void **state)
{
	uint64_t idle_ns = busy_read_idle_ns();

	(void)state;
	assert_true(idle_ns > 0);
	assert_true(busy_read_idle_ns() >= idle_ns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agent_takes_a_thread_for_each_15_gbit),
		cmocka_unit_test(verbs_need_a_thread_for_each_100_gbit),
		cmocka_unit_test(agent_leaves_three_quarters_of_the_processors),
		cmocka_unit_test(unknown_speed_gives_one_thread),
		cmocka_unit_test(full_threads_beside_idle_processors_are_too_few),
		cmocka_unit_test(more_threads_do_not_help_without_idle_processors),
		cmocka_unit_test(idle_time_of_this_machine_grows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
