/* The head of a path probe: golden bytes, and each wrong byte. */
#include "common/wire/path_probe.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void head_has_the_golden_bytes_and_no_other(void **state)
{
	static const uint8_t golden[48] = {'B', 'P', 'S', 'P', 'A', 'T', 'H'};
	uint8_t head[PATH_PROBE_HEAD_BYTES];

	(void)state;
	path_probe_head(head);
	assert_int_equal(sizeof(head), sizeof(golden));
	assert_memory_equal(head, golden, sizeof(golden));
	for (size_t i = 0; i < sizeof(head); i++) {
		assert_true(path_probe_is_head(head));
		head[i] ^= 1;
		assert_false(path_probe_is_head(head));
		head[i] ^= 1;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(head_has_the_golden_bytes_and_no_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
