/* Derived keys and MACs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "common/base/key.h"

/* Compute HKDF (RFC 5869) by two calls of HMAC: one for the extract step, with a zero salt, and one
 * for the only block of the expand step. */
static void derived_key_is_hkdf_of_label_and_context(void **state)
{
	static const uint8_t info[] = "label\0server:n1\x01";
	struct cluster_key zero = {{0}}, key = {{9, 8, 7}}, prk, derived, other;
	uint8_t want[KEY_MAC_BYTES];

	(void)state;
	assert_int_equal(key_compute_mac(&zero, key.b, KEY_BYTES, prk.b), 0);
	assert_int_equal(key_compute_mac(&prk, info, sizeof(info) - 1, want), 0);
	assert_int_equal(key_derive(&derived, &key, "label", "server:n1"), 0);
	assert_memory_equal(derived.b, want, KEY_BYTES);
	assert_int_equal(key_derive(&other, &key, "label", "server:n2"), 0);
	assert_false(key_bytes_equal(derived.b, other.b, KEY_BYTES));
	assert_int_equal(key_derive(&other, &key, "labe", "lserver:n1"), 0);
	assert_false(key_bytes_equal(derived.b, other.b, KEY_BYTES));
}

/* RFC 4231 has no 32-byte key, so this vector is the output of `openssl mac -digest SHA256 ...
 * HMAC`. */
static void mac_is_hmac_sha256(void **state)
{
	static const uint8_t want_start[] = {0x9d, 0xd7, 0x8f, 0xa3};
	struct cluster_key key;
	uint8_t mac[KEY_MAC_BYTES];

	(void)state;
	for (size_t i = 0; i < KEY_BYTES; i++)
		key.b[i] = (uint8_t)i;
	assert_int_equal(key_compute_mac(&key, "data", 4, mac), 0);
	assert_memory_equal(mac, want_start, sizeof(want_start));
}

static void random_keys_differ(void **state)
{
	struct cluster_key a, b;

	(void)state;
	assert_int_equal(key_generate_random(&a), 0);
	assert_int_equal(key_generate_random(&b), 0);
	assert_false(key_bytes_equal(a.b, b.b, KEY_BYTES));
	key_wipe(&a);
	key_wipe(NULL);
	for (size_t i = 0; i < KEY_BYTES; i++)
		assert_int_equal(a.b[i], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(derived_key_is_hkdf_of_label_and_context),
		cmocka_unit_test(mac_is_hmac_sha256),
		cmocka_unit_test(random_keys_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
