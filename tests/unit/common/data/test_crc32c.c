/* Compares crc32c with published values and with a bit-by-bit loop. The two implementations of
 * crc32c are compared with each other at each length and alignment at which either of them changes
 * its method. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/data/crc32c.h"

#define CHECK_VALUE 0xe3069283u /* the CRC of "123456789" */

static void fill(unsigned char *p, size_t n_bytes)
{
	uint64_t x = 88172645463325252u; /* xorshift64, Marsaglia 2003 */

	for (size_t i = 0; i < n_bytes; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p[i] = (unsigned char)(x >> 32);
	}
}

static uint32_t crc_by_bits(const unsigned char *p, size_t n_bytes)
{
	uint32_t c = 0xffffffff;

	for (size_t i = 0; i < n_bytes; i++) {
		c ^= p[i];
		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? c >> 1 ^ 0x82f63b78 : c >> 1;
	}
	return ~c;
}

static void *portable_check_value(void *ret_crc)
{
	*(uint32_t *)ret_crc = crc32c_portable(0, "123456789", 9);
	return NULL;
}

/* Run this test first, because other tests would build the tables before the threads do. */
static void threads_that_meet_at_first_use_agree(void **state)
{
	pthread_t threads[4];
	uint32_t crcs[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, portable_check_value, &crcs[i]), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(crcs[i], CHECK_VALUE);
	}
}

/* The published values come from RFC 3720, appendix B.4. CHECK_VALUE comes from the CRC
 * catalogues. */
static void published_values_come_out(void **state)
{
	static const unsigned char read10[48] = {[0] = 0x01,
		0xc0,
		[16] = 0x14,
		[22] = 0x04,
		[27] = 0x14,
		[31] = 0x18,
		[32] = 0x28,
		[40] = 0x02};
	unsigned char buf[32];

	(void)state;
	assert_int_equal(crc32c(0, "123456789", 9), CHECK_VALUE);
	memset(buf, 0, sizeof(buf));
	assert_int_equal(crc32c(0, buf, sizeof(buf)), 0x8a9136aa);
	memset(buf, 0xff, sizeof(buf));
	assert_int_equal(crc32c(0, buf, sizeof(buf)), 0x62a8ab43);
	for (unsigned i = 0; i < sizeof(buf); i++)
		buf[i] = (unsigned char)i;
	assert_int_equal(crc32c(0, buf, sizeof(buf)), 0x46dd794e);
	for (unsigned i = 0; i < sizeof(buf); i++)
		buf[i] = (unsigned char)(31 - i);
	assert_int_equal(crc32c(0, buf, sizeof(buf)), 0x113fdb5c);
	assert_int_equal(crc32c(0, read10, sizeof(read10)), 0xd9963a56);
}

static void nothing_appended_changes_nothing(void **state)
{
	(void)state;
	assert_int_equal(crc32c(0, "", 0), 0);
	assert_int_equal(crc32c(CHECK_VALUE, "", 0), CHECK_VALUE);
	assert_int_equal(crc32c_portable(CHECK_VALUE, "", 0), CHECK_VALUE);
}

/* The lengths include those at which crc32c changes its method. For 768 bytes or more, crc32c_sse42
 * computes three interleaved streams of 256 bytes each. For 12,288 bytes or more, each stream has
 * 4,096 bytes. */
static void both_implementations_agree_with_a_bit_loop_at_every_length(void **state)
{
	static const size_t longer[] = {
		1535, 1536, 1537, 12287, 12288, 12289, 12295, 13063, 24583, 100003};
	unsigned char *buf = malloc(100003 + 8);

	(void)state;
	assert_non_null(buf);
	fill(buf, 100003 + 8);
	for (size_t n = 0; n < 800; n++) {
		const unsigned char *p = buf + n % 8;
		uint32_t want = crc_by_bits(p, n);

		assert_int_equal(crc32c(0, p, n), want);
		assert_int_equal(crc32c_portable(0, p, n), want);
	}
	for (size_t i = 0; i < sizeof(longer) / sizeof(longer[0]); i++) {
		for (size_t align = 0; align < 8; align++) {
			uint32_t want = crc_by_bits(buf + align, longer[i]);

			assert_int_equal(crc32c(0, buf + align, longer[i]), want);
			assert_int_equal(crc32c_portable(0, buf + align, longer[i]), want);
		}
	}
	free(buf);
}

/* If n is 1,024 or more, crc32c passes the first n - n % 64 bytes to crc32c_wide. crc32c_sse42 then
 * continues the crc over the remaining bytes. */
static void wide_implementation_agrees_around_its_shortest_lengths(void **state)
{
	unsigned char buf[1344 + 64];

	(void)state;
	fill(buf, sizeof(buf));
	for (size_t n = 960; n <= 1344; n++) {
		for (size_t align = 0; align < 64; align++) {
			uint32_t before = (uint32_t)(n * align * 2654435761u);

			assert_int_equal(crc32c(before, buf + align, n),
				crc32c_portable(before, buf + align, n));
		}
	}
}

static void pieces_give_the_crc_of_the_whole(void **state)
{
	unsigned char buf[13000];
	uint32_t whole;

	(void)state;
	fill(buf, sizeof(buf));
	whole = crc32c(0, buf, sizeof(buf));
	for (size_t cut = 0; cut <= sizeof(buf); cut += 61) {
		uint32_t first = crc32c(0, buf, cut);

		assert_int_equal(crc32c(first, buf + cut, sizeof(buf) - cut), whole);
		assert_int_equal(crc32c_portable(first, buf + cut, sizeof(buf) - cut), whole);
	}
}

static void one_flipped_bit_is_seen(void **state)
{
	unsigned char buf[3 * 4096 + 3 * 256 + 15];
	uint32_t whole;

	(void)state;
	fill(buf, sizeof(buf));
	whole = crc32c(0, buf, sizeof(buf));
	for (size_t bit = 0; bit < 8 * sizeof(buf); bit += 101) {
		buf[bit / 8] ^= (unsigned char)(1u << bit % 8);
		assert_int_not_equal(crc32c(0, buf, sizeof(buf)), whole);
		buf[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_that_meet_at_first_use_agree),
		cmocka_unit_test(published_values_come_out),
		cmocka_unit_test(nothing_appended_changes_nothing),
		cmocka_unit_test(both_implementations_agree_with_a_bit_loop_at_every_length),
		cmocka_unit_test(wide_implementation_agrees_around_its_shortest_lengths),
		cmocka_unit_test(pieces_give_the_crc_of_the_whole),
		cmocka_unit_test(one_flipped_bit_is_seen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
