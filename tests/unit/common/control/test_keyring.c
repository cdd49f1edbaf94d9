/* Key files: which files are refused, rotation of keys, and revocation. */
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
#include <sys/wait.h>
#include <unistd.h>

#include "common/control/keyring.h"

struct keyring_place {
	char dir[40];
	char path[64];
};

static int make_dir(void **state)
{
	struct keyring_place *p = calloc(1, sizeof(*p));

	strcpy(p->dir, "/tmp/bps-key-XXXXXX");
	if (!mkdtemp(p->dir))
		return -1;
	snprintf(p->path, sizeof(p->path), "%s/cluster.key", p->dir);
	*state = p;
	return 0;
}

static int drop_dir(void **state)
{
	struct keyring_place *p = *state;

	unlink(p->path);
	rmdir(p->dir);
	free(p);
	return 0;
}

static void write_key(const struct keyring_place *p, const void *bytes, size_t n, mode_t mode)
{
	FILE *f;

	unlink(p->path);
	f = fopen(p->path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(p->path, mode), 0);
}

/* Load a key file and return its first key. */
static int key_load(struct cluster_key *ret_key, const char *path, struct err_text *err)
{
	struct keyring ring;
	int rc = keyring_load(&ring, path, err);

	if (rc > 0)
		*ret_key = ring.key[0];
	return rc;
}

static const char hex[] = "000102030405060708090A0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

static void assert_counting_key(const struct cluster_key *key)
{
	for (size_t i = 0; i < KEY_BYTES; i++)
		assert_int_equal(key->b[i], i);
}

static void raw_and_hex_files_give_the_same_key(void **state)
{
	struct keyring_place *p = *state;
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
	key_format_hex(&key, text);
	write_key(p, text, strlen(text), 0400);
	assert_int_equal(key_load(&key, p->path, &err), 1);
	assert_counting_key(&key);
}

static void assert_refused(const struct keyring_place *p, int rc, const char *part)
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
	static const size_t sizes[] = {0, 1, 31, 33, 63};
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
		assert_refused(*state, -EPERM, "(chmod 0400 the file");
	}
}

static void foreign_file_is_refused(void **state)
{
	struct keyring_place *p = *state;

	if (geteuid() != 0)
		skip();
	write_key(p, hex, 65, 0400);
	assert_int_equal(chown(p->path, 12345, 0), 0);
	assert_refused(p, -EPERM, "belongs to uid 12345");
}

static void link_folder_and_missing_file_are_refused(void **state)
{
	struct keyring_place *p = *state;
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
	assert_refused(p, -EINVAL, "is not a regular file");
	rmdir(p->path);
	assert_int_equal(mkfifo(p->path, 0600), 0);
	assert_refused(p, -EINVAL, "is not a regular file");
}

static void credential_is_used_when_no_path_is_given(void **state)
{
	struct keyring_place *p = *state;
	struct cluster_key key;
	struct err_text err;

	unsetenv("CREDENTIALS_DIRECTORY");
	assert_int_equal(key_load(&key, "", &err), 0);
	setenv("CREDENTIALS_DIRECTORY", p->dir, 1);
	assert_int_equal(key_load(&key, NULL, &err), 0);
	write_key(p, hex, 65, 0400);
	assert_int_equal(key_load(&key, NULL, &err), 1);
	assert_counting_key(&key);
	write_key(p, hex, 65, 0440); /* a file with an access list has the mode bits 0440 */
	assert_int_equal(key_load(&key, NULL, &err), 1);
	write_key(p, hex, 65, 0444);
	assert_int_equal(key_load(&key, NULL, &err), -EPERM);
	unsetenv("CREDENTIALS_DIRECTORY");
}

static void credential_that_says_none_is_no_key(void **state)
{
	struct keyring_place *p = *state;
	struct cluster_key key;
	struct err_text err;

	write_key(p, "none", 4, 0400);
	setenv("CREDENTIALS_DIRECTORY", p->dir, 1);
	assert_int_equal(key_load(&key, NULL, &err), 0);
	unsetenv("CREDENTIALS_DIRECTORY");
	/* a file that its owner cannot read */
	assert_int_equal(key_load(&key, p->path, &err), -EINVAL);
}

#define HEX_A "0000000000000000000000000000000000000000000000000000000000000001"
#define HEX_B "0000000000000000000000000000000000000000000000000000000000000002"

static void credential_of_root_is_read_by_the_service(void **state)
{
	struct keyring_place *p = *state;
	struct cluster_key key;
	struct err_text err;
	int status;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	write_key(
		/* Like a credential of systemd, the file belongs to root. Here the group gives the
		 * service access, while systemd uses an access list. */
		p, hex, 65, 0440);
	assert_int_equal(chown(p->path, 0, 65534), 0);
	assert_int_equal(chmod(p->dir, 0755), 0);
	pid = fork();
	if (pid == 0) {
		if (setgid(65534) || setuid(65534) || setenv("CREDENTIALS_DIRECTORY", p->dir, 1))
			_exit(2);
		_exit(key_load(&key, NULL, &err) == 1 && key_load(&key, p->path, &err) == -EPERM
				? 0
				: 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void file_with_two_keys_and_revocations_is_read(void **state)
{
	static const char text[] = HEX_A "\nprevious " HEX_B "\nrevoked server:n3#1a2b3c4d\n";
	struct keyring_place *p = *state;
	struct keyring ring;
	struct err_text err;

	write_key(p, text, strlen(text), 0400);
	assert_int_equal(keyring_load(&ring, p->path, &err), 1);
	assert_int_equal(ring.n_keys, 2);
	assert_int_equal(ring.key[0].b[31], 1);
	assert_int_equal(ring.key[1].b[31], 2);
	assert_true(keyring_is_revoked(&ring, "server:n3#1a2b3c4d"));
	assert_false(keyring_is_revoked(&ring, "server:n3#1a2b3c4e"));
}

static void unknown_line_is_refused_by_its_number(void **state)
{
	static const struct {
		const char *text, *part;
	} cases[] = {
		{HEX_A "\n\n", "line 2 "},
		{HEX_A "\n" HEX_B "\n", "line 2 "},
		{HEX_A "\nprevious " HEX_B "\nprevious " HEX_A "\n", "line 3 "},
		{HEX_A "\nrevoked server:n3\n", "line 2 "},
		{HEX_A "\nrevoked server:n3#1a2b3c4\n", "line 2 "},
		{HEX_A "\nrevoked server:n3#1a2b3c4x\n", "line 2 "},
		{HEX_A "\nrevoked server n3#1a2b3c4d\n", "line 2 "},
		{HEX_A "\nrevoke server:n3#1a2b3c4d\n", "line 2 "},
		{"previous " HEX_A "\n", "neither 32 bytes"},
		{"revoked server:n3#1a2b3c4d\n" HEX_A "\n", "neither 32 bytes"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_key(*state, cases[i].text, strlen(cases[i].text), 0400);
		assert_refused(*state, -EINVAL, cases[i].part);
	}
	write_key(*state, HEX_A "\0\n", 66, 0400);
	assert_refused(*state, -EINVAL, "neither 32 bytes");
}

static void stored_ring_reads_back_as_it_was(void **state)
{
	struct keyring_place *p = *state;
	struct keyring ring = {.key = {{{1}}}, .n_keys = 1}, back;
	struct cluster_key fresh = {{2}};
	struct err_text err;
	struct stat st;
	char name[16];

	assert_int_equal(keyring_rotate(&ring, &fresh), 0);
	for (unsigned i = 0; i < KEYRING_REVOKED / 2; i++) {
		snprintf(name, sizeof(name), "server:n%u", i);
		assert_int_equal(keyring_revoke(&ring, name), 0);
	}
	assert_int_equal(keyring_revoke(&ring, "server:more"), -ENOSPC);
	assert_int_equal(keyring_store(&ring, p->path, &err), 0);
	/* the second call replaces the existing file */
	assert_int_equal(keyring_store(&ring, p->path, &err), 0);
	assert_int_equal(stat(p->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(keyring_load(&back, p->path, &err), 1);
	assert_true(keyring_is_equal(&ring, &back));
}

static void ring_that_cannot_be_stored_leaves_the_file(void **state)
{
	struct keyring_place *p = *state;
	struct keyring ring = {.key = {{{1}}}, .n_keys = 1};
	struct cluster_key key;
	struct err_text err;
	char way[80];

	write_key(p, hex, 65, 0400);
	snprintf(way, sizeof(way), "%s.new", p->path);
	assert_int_equal(mkdir(way, 0700), 0);
	assert_true(keyring_store(&ring, p->path, &err) < 0);
	assert_non_null(strstr(err.s, p->path));
	assert_int_equal(rmdir(way), 0);
	assert_int_equal(key_load(&key, p->path, &err), 1);
	assert_counting_key(&key);
}

static void revocation_ends_with_its_key(void **state)
{
	struct keyring ring = {.key = {{{1}}}, .n_keys = 1};
	struct cluster_key second = {{2}}, third = {{3}};

	(void)state;
	assert_int_equal(keyring_retire(&ring), -ENOENT);
	assert_int_equal(keyring_revoke(&ring, "server n3"), -EINVAL);
	assert_int_equal(keyring_revoke(&ring, "server:n3"), 0);
	assert_int_equal(keyring_revoke(&ring, "server:n3"), -EEXIST);
	assert_int_equal(ring.n_revoked, 1);
	assert_int_equal(keyring_rotate(&ring, &second), 0);
	assert_int_equal(ring.n_revoked, 1); /* only the previous key has a revocation */
	assert_int_equal(keyring_revoke(&ring, "server:n3"), 0);
	assert_int_equal(ring.n_revoked, 2);
	assert_int_equal(keyring_retire(&ring), 0);
	assert_int_equal(ring.n_revoked, 1);
	assert_int_equal(ring.n_keys, 1);
	assert_int_equal(ring.key[0].b[0], 2);
	assert_int_equal(keyring_rotate(&ring, &third), 0);
	assert_int_equal(keyring_retire(&ring), 0);
	assert_int_equal(ring.n_revoked, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
		IN_FOLDER(raw_and_hex_files_give_the_same_key),
		IN_FOLDER(file_of_wrong_size_or_digits_is_refused),
		IN_FOLDER(file_open_to_others_is_refused),
		IN_FOLDER(foreign_file_is_refused),
		IN_FOLDER(link_folder_and_missing_file_are_refused),
		IN_FOLDER(credential_is_used_when_no_path_is_given),
		IN_FOLDER(credential_that_says_none_is_no_key),
		IN_FOLDER(credential_of_root_is_read_by_the_service),
		IN_FOLDER(file_with_two_keys_and_revocations_is_read),
		IN_FOLDER(unknown_line_is_refused_by_its_number),
		IN_FOLDER(stored_ring_reads_back_as_it_was),
		IN_FOLDER(ring_that_cannot_be_stored_leaves_the_file),
		cmocka_unit_test(revocation_ends_with_its_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
