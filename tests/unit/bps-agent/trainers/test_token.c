/* The proof of a job token is compared with bytes that Python's hmac module computed. */
#include "bps-agent/trainers/token.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/hex.h"

static uint8_t bytes[CTL_TOKEN_BYTES];
static const struct blob token = {bytes, sizeof(bytes)};

static void assert_proof(const char *job, const char *hex)
{
	uint8_t got[CTL_TOKEN_BYTES], want[CTL_TOKEN_BYTES];

	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(hex_parse(hex, want, sizeof(want)), sizeof(want));
	assert_int_equal(token_compute_proof(&token, job, got), 0);
	assert_memory_equal(got, want, sizeof(want));
}

static void proof_is_the_mac_of_the_jobs_name_under_the_token(void **state)
{
	(void)state;
	assert_proof("mnist", "aacd55ec895ad7ddbc4090a1e1ebbfa3b69647394d289499cc768ad08227cea3");
	assert_proof("mnist2", "e1e3da20958f3fac51085844a93699d56a499daecd413a5495ec4d055a728c82");
}

static void token_of_another_length_has_no_proof(void **state)
{
	struct blob shorter = {bytes, sizeof(bytes) - 1}, none = {NULL, 0};
	uint8_t got[CTL_TOKEN_BYTES];

	(void)state;
	assert_int_equal(token_compute_proof(&shorter, "mnist", got), -EINVAL);
	assert_int_equal(token_compute_proof(&none, "mnist", got), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(proof_is_the_mac_of_the_jobs_name_under_the_token),
		cmocka_unit_test(token_of_another_length_has_no_proof),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
