/* Key files, derived keys and MACs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/key.h"

struct place {
	char dir[40];
	char path[64];
};

static int make_dir(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	strcpy(p->dir, "/tmp/bps-key-XXXXXX");
	if (!mkdtemp(p->dir))
		return -1;
	snprintf(p->path, sizeof(p->path), "%s/cluster.key", p->dir);
	*state = p;
	return 0;
}

static int drop_dir(void **state)
{
	struct place *p = *state;

	unlink(p->path);
	rmdir(p->dir);
	free(p);
	return 0;
}

static void write_key(const struct place *p, const void *bytes, size_t n, mode_t mode)
{
	FILE *f;

	unlink(p->path);
	f = fopen(p->path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(p->path, mode), 0);
}

static const char hex[] = "000102030405060708090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

static void assert_counting_key(const struct cluster_key *key)
{
	for (size_t i = 0; i < KEY_BYTES; i++)
		assert_int_equal(key->b[i], i);
}

static void raw_and_hex_files_give_the_same_key(void **state)
{
	struct place *p = *state;
	uint8_t raw[KEY_BYTES];
	struct cluster_key key;
	char text[KEY_HEX_BYTES];
	struct err_text err;

	for (size_t i = 0; i < KEY_BYTES; i++)
		raw[i] = (uint8_t)i;
	write_key(p, raw, sizeof(raw), 0400);
	assert_int_equal(key_load(&key, p->path, &err), 1);
	assert_counting_key(&key);
	write_key(p, hex, 65, 0600);
	memset(&key, 0, sizeof(key));
	assert_int_equal(key_load(&key, p->path, &err), 1);
	assert_counting_key(&key);
	write_key(p, hex, 64, 0400);
	assert_int_equal(key_load(&key, p->path, &err), 1);
	key_hex(&key, text);
	write_key(p, text, strlen(text), 0400);
	assert_int_equal(key_load(&key, p->path, &err), 1);
	assert_counting_key(&key);
}

static void assert_refused(const struct place *p, int rc, const char *part)
{
	struct cluster_key key = {{42}};
	struct err_text err = {""};

	assert_int_equal(key_load(&key, p->path, &err), rc);
	assert_int_equal(key.b[0], 42);
	assert_non_null(strstr(err.s, p->path));
	assert_non_null(strstr(err.s, part));
}

static void file_of_wrong_size_or_digits_is_refused(void **state)
{
	static const size_t sizes[] = {0, 1, 31, 33, 63, 66};
	char bad[67];

	memcpy(bad, hex, 64);
	memset(bad + 64, '\n', 3);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		write_key(*state, bad, sizes[i], 0400);
		assert_refused(*state, -EINVAL, "neither 32 bytes nor 64 hex digits");
	}
	bad[10] = 'g';
	write_key(*state, bad, 65, 0400);
	assert_refused(*state, -EINVAL, "neither 32 bytes nor 64 hex digits");
}

static void file_open_to_others_is_refused(void **state)
{
	static const mode_t modes[] = {0440, 0404, 0460, 0602, 0601};

	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		write_key(*state, hex, 65, modes[i]);
		assert_refused(*state, -EPERM, "(chmod 0400 it");
	}
}

static void foreign_file_is_refused(void **state)
{
	struct place *p = *state;

	if (geteuid() != 0)
		skip();
	write_key(p, hex, 65, 0400);
	assert_int_equal(chown(p->path, 12345, 0), 0);
	assert_refused(p, -EPERM, "belongs to uid 12345");
}

static void link_folder_and_missing_file_are_refused(void **state)
{
	struct place *p = *state;
	char target[64];

	write_key(p, hex, 65, 0400);
	snprintf(target, sizeof(target), "%s/t", p->dir);
	assert_int_equal(rename(p->path, target), 0);
	assert_refused(p, -ENOENT, "No such file or directory");
	assert_int_equal(symlink(target, p->path), 0);
	assert_refused(p, -ELOOP, "is a symbolic link");
	unlink(p->path);
	unlink(target);
	assert_int_equal(mkdir(p->path, 0700), 0);
	assert_refused(p, -EINVAL, "is not a plain file");
	rmdir(p->path);
	assert_int_equal(mkfifo(p->path, 0600), 0);
	assert_refused(p, -EINVAL, "is not a plain file");
}

static void credential_is_used_when_no_path_is_given(void **state)
{
	struct place *p = *state;
	struct cluster_key key;
	struct err_text err;

	unsetenv("CREDENTIALS_DIRECTORY");
	assert_int_equal(key_load(&key, "", &err), 0);
	setenv("CREDENTIALS_DIRECTORY", p->dir, 1);
	assert_int_equal(key_load(&key, NULL, &err), 0);
	write_key(p, hex, 65, 0400);
	assert_int_equal(key_load(&key, NULL, &err), 1);
	assert_counting_key(&key);
	write_key(p, hex, 65, 0440); /* as an access list looks */
	assert_int_equal(key_load(&key, NULL, &err), 1);
	write_key(p, hex, 65, 0444);
	assert_int_equal(key_load(&key, NULL, &err), -EPERM);
	unsetenv("CREDENTIALS_DIRECTORY");
}

static void credential_that_says_none_is_no_key(void **state)
{
	struct place *p = *state;
	struct cluster_key key;
	struct err_text err;

	write_key(p, "none", 4, 0400);
	setenv("CREDENTIALS_DIRECTORY", p->dir, 1);
	assert_int_equal(key_load(&key, NULL, &err), 0);
	unsetenv("CREDENTIALS_DIRECTORY");
	assert_int_equal(key_load(&key, p->path, &err), -EINVAL); /* not in a file of one's own */
}

/* RFC 5869 spelled out with HMAC: extract with a zero salt, expand by one block. */
static void derived_key_is_hkdf_of_label_and_context(void **state)
{
	static const uint8_t info[] = "label\0server:n1\x01";
	struct cluster_key zero = {{0}}, key = {{9, 8, 7}}, prk, derived, other;
	uint8_t want[KEY_MAC_BYTES];

	(void)state;
	assert_int_equal(key_mac(&zero, key.b, KEY_BYTES, prk.b), 0);
	assert_int_equal(key_mac(&prk, info, sizeof(info) - 1, want), 0);
	assert_int_equal(key_derive(&derived, &key, "label", "server:n1"), 0);
	assert_memory_equal(derived.b, want, KEY_BYTES);
	assert_int_equal(key_derive(&other, &key, "label", "server:n2"), 0);
	assert_false(key_bytes_equal(derived.b, other.b, KEY_BYTES));
	assert_int_equal(key_derive(&other, &key, "labe", "lserver:n1"), 0);
	assert_false(key_bytes_equal(derived.b, other.b, KEY_BYTES));
}

/* RFC 4231 has no 32-byte key; this vector is of `openssl mac -digest SHA256 ... HMAC`. */
static void mac_is_hmac_sha256(void **state)
{
	static const uint8_t want_start[] = {0x9d, 0xd7, 0x8f, 0xa3};
	struct cluster_key key;
	uint8_t mac[KEY_MAC_BYTES];

	(void)state;
	for (size_t i = 0; i < KEY_BYTES; i++)
		key.b[i] = (uint8_t)i;
	assert_int_equal(key_mac(&key, "data", 4, mac), 0);
	assert_memory_equal(mac, want_start, sizeof(want_start));
}

static void random_keys_differ(void **state)
{
	struct cluster_key a, b;

	(void)state;
	assert_int_equal(key_random(&a), 0);
	assert_int_equal(key_random(&b), 0);
	assert_false(key_bytes_equal(a.b, b.b, KEY_BYTES));
	key_wipe(&a);
	key_wipe(NULL);
	for (size_t i = 0; i < KEY_BYTES; i++)
		assert_int_equal(a.b[i], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			raw_and_hex_files_give_the_same_key, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(
			file_of_wrong_size_or_digits_is_refused, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(file_open_to_others_is_refused, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(foreign_file_is_refused, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(
			link_folder_and_missing_file_are_refused, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(
			credential_is_used_when_no_path_is_given, make_dir, drop_dir),
		cmocka_unit_test_setup_teardown(
			credential_that_says_none_is_no_key, make_dir, drop_dir),
		cmocka_unit_test(derived_key_is_hkdf_of_label_and_context),
		cmocka_unit_test(mac_is_hmac_sha256),
		cmocka_unit_test(random_keys_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
