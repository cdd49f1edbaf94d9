/* The key file: read, write and replace the file; rotate, retire and revoke keys.
 * common/control/tls.c applies the keys to connections. The functions keep no state and may be
 * called on any thread. */
#include "common/control/keyring.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/os/secret.h"

#define FILE_MAX_BYTES KEYRING_FILE_BYTES
#define HEX_CHARS      (KEY_HEX_BYTES - 1)

static const char previous_word[] = "previous ", revoked_word[] = "revoked ";

/* Content of the credential when the host has no key file. SetCredential= of the systemd units sets
 * this default. */
static const char no_key[] = "none";

bool keyring_is_identity(const char *text)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789.-_:";
	size_t n = strlen(text);

	return n > 0 && n < KEYRING_ID_BYTES - KEY_PRINT_BYTES && strspn(text, allowed) == n;
}

/* ---- parsing ---- */

static int parse_key_line(struct keyring *r, const char *line)
{
	bool is_previous = strncmp(line, previous_word, sizeof(previous_word) - 1) == 0;
	const char *hex = is_previous ? line + sizeof(previous_word) - 1 : line;

	if (is_previous != (r->n_keys == 1) || strlen(hex) != HEX_CHARS)
		return -EINVAL;
	return key_parse_hex(&r->key[r->n_keys++], hex);
}

static int parse_revoked_line(struct keyring *r, const char *line)
{
	const char *wire = line + sizeof(revoked_word) - 1, *print = strchr(wire, '#');
	char identity[KEYRING_ID_BYTES];

	if (r->n_revoked == KEYRING_REVOKED || !print || print - wire >= KEYRING_ID_BYTES ||
		strlen(print + 1) != KEY_PRINT_BYTES - 1 ||
		strspn(print + 1, "0123456789abcdef") != KEY_PRINT_BYTES - 1)
		return -EINVAL;
	snprintf(identity, sizeof(identity), "%.*s", (int)(print - wire), wire);
	if (!keyring_is_identity(identity))
		return -EINVAL;
	snprintf(r->revoked[r->n_revoked++], KEYRING_ID_BYTES, "%s", wire);
	return 0;
}

/* Parse a key file's `text`. The function overwrites the line ends. Returns the number of the first
 * invalid line, or 0 if all lines are valid. */
static unsigned keyring_parse_lines(struct keyring *r, char *text)
{
	unsigned n = 0;
	char *line;
	int rc = 0;

	while (rc == 0 && text && *text) {
		n++;
		line = strsep(&text, "\n");
		if (r->n_keys && strncmp(line, revoked_word, sizeof(revoked_word) - 1) == 0)
			rc = parse_revoked_line(r, line);
		else
			rc = r->n_keys < KEYRING_KEYS ? parse_key_line(r, line) : -EINVAL;
	}
	return rc == 0 && n ? 0 : n ? n : 1;
}

static int keyring_parse_content(
	struct keyring *ret, char *buf, size_t n, const char *path, struct err_text *err)
{
	unsigned bad;

	if (n == KEY_BYTES) {
		memcpy(ret->key[ret->n_keys++].b, buf, KEY_BYTES);
		return 1;
	}
	buf[n] = '\0';
	bad = n < FILE_MAX_BYTES && !memchr(buf, '\0', n) ? keyring_parse_lines(ret, buf) : 1;
	if (!bad)
		return 1;
	if (bad > 1)
		return err_set(err, -EINVAL,
			"line %u of key file '%s' is invalid: after the first line, the file may "
			"have one line 'previous KEY', where KEY is 64 hex digits, and further "
			"lines 'revoked ROLE:NAME#FINGERPRINT'",
			bad, path);
	return err_set(err, -EINVAL,
		"key file '%s' holds neither 32 bytes nor 64 hex digits (make one with `openssl "
		"rand -hex 32`)",
		path);
}

int keyring_parse(
	struct keyring *ret_ring, char *text, size_t n, const char *path, struct err_text *err)
{
	struct keyring ring = {.n_keys = 0};
	int rc = keyring_parse_content(&ring, text, n, path, err);

	if (rc > 0)
		*ret_ring = ring;
	keyring_wipe(&ring);
	return rc;
}

static int keyring_load_file(
	struct keyring *ret, const char *path, bool is_credential, struct err_text *err)
{
	char buf[FILE_MAX_BYTES + 1];
	int n = secret_read(path, "key file", is_credential, buf, FILE_MAX_BYTES, err), rc = n;

	if (n >= 0) {
		buf[n] = '\0';
		rc = is_credential && strcmp(buf, no_key) == 0
			     ? 0
			     : keyring_parse(ret, buf, (size_t)n, path, err);
	}
	OPENSSL_cleanse(buf, sizeof(buf));
	return rc;
}

int keyring_load(struct keyring *ret_ring, const char *path, struct err_text *err)
{
	char credential[PATH_MAX];

	if (path && *path)
		return keyring_load_file(ret_ring, path, false, err);
	if (!secret_credential("cluster.key", credential, sizeof(credential)))
		return 0;
	return keyring_load_file(ret_ring, credential, true, err);
}

/* ---- writing ---- */

size_t keyring_format(const struct keyring *r, char *buf, size_t room)
{
	char hex[KEY_HEX_BYTES];
	size_t used = 0;

	for (unsigned i = 0; i < r->n_keys; i++) {
		key_format_hex(&r->key[i], hex);
		used += (size_t)snprintf(
			buf + used, room - used, "%s%s\n", i ? previous_word : "", hex);
	}
	for (unsigned i = 0; i < r->n_revoked; i++)
		used += (size_t)snprintf(
			buf + used, room - used, "%s%s\n", revoked_word, r->revoked[i]);
	OPENSSL_cleanse(hex, sizeof(hex));
	return used;
}

/* Write n bytes of text to a new file `path`, and sync the file. `of`: path of the file that the
 * new file will replace. The new file gets the owner of the replaced file. */
static int key_file_write_new(const char *path, const char *of, const char *text, size_t n)
{
	struct stat st;
	int fd, rc = 0;

	if (unlink(path) && errno != ENOENT)
		return -errno;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	if ((lstat(of, &st) == 0 && st.st_uid != geteuid() && fchown(fd, st.st_uid, st.st_gid)) ||
		fchmod(fd, 0600))
		rc = -errno;
	if (rc == 0) {
		ssize_t written = write(fd, text, n);

		if (written != (ssize_t)n)
			rc = written < 0 ? -errno : -ENOSPC;
	}
	if (rc == 0 && fsync(fd))
		rc = -errno;
	if (close(fd) && rc == 0)
		rc = -errno;
	if (rc < 0)
		unlink(path);
	return rc;
}

static int parent_folder_sync(const char *path)
{
	char copy[PATH_MAX];
	int fd, rc;

	snprintf(copy, sizeof(copy), "%s", path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = fsync(fd) ? -errno : 0;
	close(fd);
	return rc;
}

int keyring_store(const struct keyring *ring, const char *path, struct err_text *err)
{
	char text[FILE_MAX_BYTES], fresh[PATH_MAX];
	size_t n = keyring_format(ring, text, sizeof(text));
	int rc;

	if (snprintf(fresh, sizeof(fresh), "%s.new", path) >= (int)sizeof(fresh))
		rc = -ENAMETOOLONG;
	else
		rc = key_file_write_new(fresh, path, text, n);
	OPENSSL_cleanse(text, sizeof(text));
	if (rc == 0 && rename(fresh, path)) {
		rc = -errno;
		unlink(fresh);
	}
	if (rc == 0)
		rc = parent_folder_sync(path);
	return rc < 0 ? err_set(err, rc, "cannot write key file '%s': %s", path, err_str(rc)) : 0;
}

/* ---- rotation and revocation ---- */

/* Write "identity#fingerprint" to ret_wire. The fingerprint is that of the host key that is derived
 * from `master` for `identity`. */
static int key_format_wire_identity(const struct cluster_key *master, const char *identity,
	char ret_wire[static KEYRING_ID_BYTES])
{
	struct cluster_key host_key = {{0}};
	char print[KEY_PRINT_BYTES];
	int rc = key_derive_for_host(&host_key, master, identity);

	if (rc == 0)
		rc = key_fingerprint(&host_key, print);
	if (rc == 0)
		snprintf(ret_wire, KEYRING_ID_BYTES, "%s#%s", identity, print);
	key_wipe(&host_key);
	return rc;
}

static int identity_is_from_master(const struct cluster_key *master, const char *wire, bool *ret)
{
	char identity[KEYRING_ID_BYTES], again[KEYRING_ID_BYTES];
	int rc;

	snprintf(identity, sizeof(identity), "%s", wire);
	identity[strcspn(identity, "#")] = '\0';
	rc = key_format_wire_identity(master, identity, again);
	*ret = rc == 0 && strcmp(again, wire) == 0;
	return rc;
}

/* Keep only the revocations of keys that were derived from this master key. */
static int keyring_filter_revoked(struct keyring *r, const struct cluster_key *master)
{
	struct keyring kept = *r;
	int rc = 0;

	kept.n_revoked = 0;
	for (unsigned i = 0; rc == 0 && i < r->n_revoked; i++) {
		bool is_its = false;

		rc = identity_is_from_master(master, r->revoked[i], &is_its);
		if (is_its)
			memcpy(kept.revoked[kept.n_revoked++], r->revoked[i], KEYRING_ID_BYTES);
	}
	if (rc == 0)
		*r = kept;
	keyring_wipe(&kept);
	return rc;
}

int keyring_rotate(struct keyring *ring, const struct cluster_key *fresh)
{
	int rc = keyring_filter_revoked(ring, &ring->key[0]);

	if (rc < 0)
		return rc;
	ring->key[1] = ring->key[0];
	ring->key[0] = *fresh;
	ring->n_keys = 2;
	return 0;
}

int keyring_retire(struct keyring *ring)
{
	int rc = ring->n_keys == 2 ? keyring_filter_revoked(ring, &ring->key[0]) : -ENOENT;

	if (rc < 0)
		return rc;
	key_wipe(&ring->key[1]);
	ring->n_keys = 1;
	return 0;
}

bool keyring_is_revoked(const struct keyring *ring, const char *wire)
{
	for (unsigned i = 0; i < ring->n_revoked; i++)
		if (strcmp(ring->revoked[i], wire) == 0)
			return true;
	return false;
}

int keyring_revoke(struct keyring *ring, const char *identity)
{
	char wire[KEYRING_KEYS][KEYRING_ID_BYTES];
	unsigned n_known = 0;

	if (!keyring_is_identity(identity))
		return -EINVAL;
	for (unsigned i = 0; i < ring->n_keys; i++) {
		int rc = key_format_wire_identity(&ring->key[i], identity, wire[i]);

		if (rc < 0)
			return rc;
		n_known += keyring_is_revoked(ring, wire[i]);
	}
	if (n_known == ring->n_keys)
		return -EEXIST;
	if (ring->n_revoked + ring->n_keys - n_known > KEYRING_REVOKED)
		return -ENOSPC;
	for (unsigned i = 0; i < ring->n_keys; i++)
		if (!keyring_is_revoked(ring, wire[i]))
			memcpy(ring->revoked[ring->n_revoked++], wire[i], KEYRING_ID_BYTES);
	return 0;
}

bool keyring_is_out(const struct keyring *ring, const char *identity)
{
	char wire[KEYRING_ID_BYTES];

	for (unsigned i = 0; i < ring->n_keys; i++)
		if (key_format_wire_identity(&ring->key[i], identity, wire) < 0 ||
			!keyring_is_revoked(ring, wire))
			return false;
	return ring->n_keys > 0;
}

bool keyring_is_equal(const struct keyring *a, const struct keyring *b)
{
	if (a->n_keys != b->n_keys || a->n_revoked != b->n_revoked)
		return false;
	for (unsigned i = 0; i < a->n_keys; i++)
		if (!key_bytes_equal(a->key[i].b, b->key[i].b, KEY_BYTES))
			return false;
	for (unsigned i = 0; i < a->n_revoked; i++)
		if (strcmp(a->revoked[i], b->revoked[i]) != 0)
			return false;
	return true;
}

void keyring_wipe(struct keyring *ring)
{
	if (ring)
		OPENSSL_cleanse(ring, sizeof(*ring));
}
