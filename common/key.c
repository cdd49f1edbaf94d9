#include "common/key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#define PATH_BYTES 4096

/* What the units' SetCredential= gives in place of a key file that does not exist. */
static const char no_key[] = "none";

static int hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static int parse_hex(struct cluster_key *ret_key, const uint8_t *text)
{
	for (size_t i = 0; i < KEY_BYTES; i++) {
		int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		ret_key->b[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

static int check_file(int fd, const char *path, mode_t forbidden, struct err_text *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return err_set(
			err, -errno, "cannot examine key file '%s': %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return err_set(err, -EINVAL, "key file '%s' is not a plain file", path);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return err_set(err, -EPERM,
			"key file '%s' belongs to uid %u, not to this process's uid %u (chown it)",
			path, (unsigned)st.st_uid, (unsigned)geteuid());
	if (st.st_mode & forbidden)
		return err_set(err, -EPERM,
			"key file '%s' is open to group or others, mode %04o (chmod 0400 it, and "
			"replace the key if others could read it)",
			path, (unsigned)(st.st_mode & 07777));
	return 0;
}

static int parse_file(struct cluster_key *ret_key, const uint8_t *buf, size_t n, const char *path,
	struct err_text *err)
{
	bool is_hex = n == 2 * KEY_BYTES || (n == 2 * KEY_BYTES + 1 && buf[n - 1] == '\n');

	if (n == KEY_BYTES) {
		memcpy(ret_key->b, buf, KEY_BYTES);
		return 1;
	}
	if (is_hex && parse_hex(ret_key, buf) == 0)
		return 1;
	return err_set(err, -EINVAL,
		"key file '%s' holds neither 32 bytes nor 64 hex digits (make one with `openssl "
		"rand -hex 32`)",
		path);
}

static int open_key(const char *path, struct err_text *err)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	if (fd >= 0)
		return fd;
	if (errno == ELOOP)
		return err_set(err, -ELOOP,
			"key file '%s' is a symbolic link (name the file itself)", path);
	return err_set(err, -errno, "cannot open key file '%s': %s", path, strerror(errno));
}

static bool is_none(const uint8_t *buf, size_t n)
{
	return n == sizeof(no_key) - 1 && memcmp(buf, no_key, n) == 0;
}

/* is_credential: the service manager made the file for this process. Where it can, it lets us in by
 * an access list, which shows as permission of the group. */
static int load_file(
	struct cluster_key *ret_key, const char *path, bool is_credential, struct err_text *err)
{
	uint8_t buf[KEY_HEX_BYTES + 1];
	struct cluster_key key;
	ssize_t n;
	int fd = open_key(path, err), rc;

	if (fd < 0)
		return fd;
	rc = check_file(fd, path, is_credential ? 007 : 077, err);
	if (rc)
		goto out;
	n = read(fd, buf, sizeof(buf));
	if (n < 0)
		rc = err_set(err, -errno, "cannot read key file '%s': %s", path, strerror(errno));
	else if (is_credential && is_none(buf, (size_t)n))
		rc = 0;
	else
		rc = parse_file(&key, buf, (size_t)n, path, err);
	if (rc > 0)
		*ret_key = key;
	OPENSSL_cleanse(buf, sizeof(buf));
	key_wipe(&key);
out:
	close(fd);
	return rc;
}

int key_load(struct cluster_key *ret_key, const char *path, struct err_text *err)
{
	const char *dir = getenv("CREDENTIALS_DIRECTORY");
	char credential[PATH_BYTES];

	if (path && *path)
		return load_file(ret_key, path, false, err);
	if (!dir || !*dir)
		return 0;
	if (snprintf(credential, sizeof(credential), "%s/cluster.key", dir) >= PATH_BYTES)
		return err_set(err, -ENAMETOOLONG, "CREDENTIALS_DIRECTORY is too long a path");
	if (access(credential, F_OK) && errno == ENOENT)
		return 0;
	return load_file(ret_key, credential, true, err);
}

int key_random(struct cluster_key *ret_key)
{
	return RAND_bytes(ret_key->b, KEY_BYTES) == 1 ? 0 : -EIO;
}

void key_hex(const struct cluster_key *key, char ret_hex[static KEY_HEX_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < KEY_BYTES; i++) {
		ret_hex[2 * i] = digits[key->b[i] >> 4];
		ret_hex[2 * i + 1] = digits[key->b[i] & 15];
	}
	ret_hex[KEY_HEX_BYTES - 1] = '\0';
}

static int hkdf(uint8_t *out, const struct cluster_key *key, uint8_t *info, size_t n_info)
{
	char digest[] = "SHA256";
	uint8_t secret[KEY_BYTES];
	EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, secret, KEY_BYTES),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, n_info),
		OSSL_PARAM_construct_end(),
	};
	int rc = ctx ? 0 : -ENOMEM;

	memcpy(secret, key->b, KEY_BYTES);
	if (!rc && EVP_KDF_derive(ctx, out, KEY_BYTES, params) != 1)
		rc = -EIO;
	OPENSSL_cleanse(secret, sizeof(secret));
	EVP_KDF_CTX_free(ctx);
	EVP_KDF_free(kdf);
	return rc;
}

int key_derive(struct cluster_key *ret_key, const struct cluster_key *key, const char *label,
	const char *context)
{
	size_t n_label = strlen(label) + 1, n_context = strlen(context);
	uint8_t *info = malloc(n_label + n_context);
	struct cluster_key derived = {{0}};
	int rc;

	if (!info)
		return -ENOMEM;
	memcpy(info, label, n_label);
	memcpy(info + n_label, context, n_context);
	rc = hkdf(derived.b, key, info, n_label + n_context);
	free(info);
	if (!rc)
		*ret_key = derived;
	key_wipe(&derived);
	return rc;
}

int key_for_host(
	struct cluster_key *ret_key, const struct cluster_key *master, const char *identity)
{
	return key_derive(ret_key, master, "bps host key", identity);
}

int key_mac(const struct cluster_key *key, const void *data, size_t n_bytes,
	uint8_t ret_mac[static KEY_MAC_BYTES])
{
	unsigned n = 0;

	if (!HMAC(EVP_sha256(), key->b, KEY_BYTES, data, n_bytes, ret_mac, &n))
		return -EIO;
	return n == KEY_MAC_BYTES ? 0 : -EIO;
}

bool key_bytes_equal(const void *a, const void *b, size_t n_bytes)
{
	return CRYPTO_memcmp(a, b, n_bytes) == 0;
}

void key_wipe(struct cluster_key *key)
{
	if (key)
		OPENSSL_cleanse(key->b, sizeof(key->b));
}
