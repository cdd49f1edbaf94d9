/* Durations, written as a number with a unit. */
#include "common/base/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define H_MS   UINT64_C(3600000)
#define MAX_MS (90 * 24 * H_MS)

static void number_with_a_unit_is_a_span(void **state)
{
	(void)state;
	assert_int_equal(duration_parse_ms("4h", MAX_MS), 4 * H_MS);
	assert_int_equal(duration_parse_ms("30min", MAX_MS), H_MS / 2);
	assert_int_equal(duration_parse_ms("30m", MAX_MS), H_MS / 2);
	assert_int_equal(duration_parse_ms("90s", MAX_MS), 90000);
	assert_int_equal(duration_parse_ms("1ms", MAX_MS), 1);
	assert_int_equal(duration_parse_ms("90d", MAX_MS), MAX_MS);
}

static void span_above_the_maximum_is_refused(void **state)
{
	(void)state;
	assert_int_equal(duration_parse_ms("91d", MAX_MS), 0);
	assert_int_equal(duration_parse_ms("2161h", MAX_MS), 0);
	assert_int_equal(duration_parse_ms("18446744073709551617s", MAX_MS), 0);
}

static void other_text_is_refused(void **state)
{
	static const char *const wrong[] = {"", "h", "-4h", "4", "4h ", "0s", " 4h", "4 h", "4x"};

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(duration_parse_ms(wrong[i], MAX_MS), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(number_with_a_unit_is_a_span),
		cmocka_unit_test(span_above_the_maximum_is_refused),
		cmocka_unit_test(other_text_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
