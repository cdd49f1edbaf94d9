/* Tests of the load at which I/O threads begin to run (bps-agent/io/io_load.c). Nothing runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bps-agent/io/io_impl.h"

static void thread_that_works_for_most_of_the_time_is_under_load(void **state)
{
	unsigned n_busy = 0;

	(void)state;
	assert_false(io_load_is_high(1000, 690, 690, &n_busy));
	assert_true(io_load_is_high(1000, 700, 700, &n_busy));
	assert_true(io_load_is_high(1000, 700, 350, &n_busy));
	assert_false(io_load_is_high(1000, 500, 500, &n_busy));
	assert_int_equal(n_busy, 0);
}

/* The kernel has run other programs in the middle of the work. */
static void preemption_is_no_load_unless_it_goes_on(void **state)
{
	unsigned n_busy = 0;

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 4; i++)
			assert_false(io_load_is_high(1000, 900, 100, &n_busy));
		assert_false(io_load_is_high(1000, 600, 600, &n_busy));
	}
	for (unsigned i = 0; i < 4; i++)
		assert_false(io_load_is_high(1000, 900, 100, &n_busy));
	assert_true(io_load_is_high(1000, 900, 100, &n_busy));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thread_that_works_for_most_of_the_time_is_under_load),
		cmocka_unit_test(preemption_is_no_load_unless_it_goes_on),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
