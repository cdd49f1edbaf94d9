#include "common/daemon/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "common/os/secret.h"

#define PEM_MAX_BYTES (1 << 20)

const char *const auth_words[] = {"psk", "cert", NULL};

/* Add the content of a file to the digest. auth_is_equal compares digests, to detect that a file
 * has changed. */
static int auth_digest_add_file(EVP_MD_CTX *ctx, const char *path, struct err_text *err)
{
	uint8_t buf[4096];
	size_t total = 0;
	ssize_t n = 1;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), rc = 0;

	if (fd < 0)
		return err_set(err, -errno, "cannot open '%s': %s", path, strerror(errno));
	while (n > 0 && rc == 0) {
		n = read(fd, buf, sizeof(buf));
		total += n > 0 ? (size_t)n : 0;
		if (n < 0)
			rc = err_set(err, -errno, "cannot read '%s': %s", path, strerror(errno));
		else if (total > PEM_MAX_BYTES || !EVP_DigestUpdate(ctx, buf, (size_t)n))
			rc = err_set(err, -EINVAL, "file '%s' is too large for a PEM file", path);
	}
	close(fd);
	return rc;
}

static int auth_digest_all_files(struct tls_conf *conf, struct err_text *err)
{
	const char *paths[] = {conf->cert, conf->key, conf->ca};
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	unsigned n = sizeof(conf->digest);
	int rc = 0;

	if (!ctx || !EVP_DigestInit_ex(ctx, EVP_sha256(), NULL))
		rc = err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; rc == 0 && i < sizeof(paths) / sizeof(paths[0]); i++)
		rc = auth_digest_add_file(ctx, paths[i], err);
	if (rc == 0 && !EVP_DigestFinal_ex(ctx, conf->digest, &n))
		rc = err_set(err, -EIO, "cannot compute a digest of the certificate files");
	EVP_MD_CTX_free(ctx);
	return rc;
}

static int auth_load_certificate(
	struct tls_conf *ret, const struct auth_opts *o, struct err_text *err)
{
	const struct {
		const char *name, *value;
	} files[] = {{"tls-cert", o->cert}, {"tls-key", o->key}, {"tls-ca", o->ca}};
	int rc;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (!*files[i].value)
			return err_set(err, -EINVAL, "with auth = cert, %s must name a file",
				files[i].name);
	*ret = (struct tls_conf){.cert = o->cert, .key = o->key, .ca = o->ca};
	rc = secret_check(o->key, "private key", err);
	if (rc == 0)
		rc = auth_digest_all_files(ret, err);
	return rc < 0 ? rc : 1;
}

int auth_load(struct tls_conf *ret, const struct auth_opts *o, struct err_text *err)
{
	struct tls_conf conf = {.cert = NULL};
	int rc = o->kind == AUTH_CERT ? auth_load_certificate(&conf, o, err)
				      : keyring_load(&conf.keys, o->key_file, err);

	if (rc >= 0)
		*ret = conf;
	keyring_wipe(&conf.keys);
	return rc;
}

bool auth_is_equal(const struct tls_conf *a, const struct tls_conf *b)
{
	return !a->cert == !b->cert && keyring_is_equal(&a->keys, &b->keys) &&
	       memcmp(a->digest, b->digest, sizeof(a->digest)) == 0;
}
