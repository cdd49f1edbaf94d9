/* Operations on the cluster key: random keys, hex form, derivation, HMAC, fingerprint. OpenSSL
 * provides the cryptography. common/control/keyring.c reads key files. The functions keep no state
 * and may be called on any thread. */
#include "common/base/key.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

static int key_hex_digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int key_parse_hex(struct cluster_key *ret_key, const char *text)
{
	for (size_t i = 0; i < KEY_BYTES; i++) {
		int high = key_hex_digit_value(text[2 * i]),
		    low = key_hex_digit_value(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		ret_key->b[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

int key_generate_random(struct cluster_key *ret_key)
{
	return RAND_bytes(ret_key->b, KEY_BYTES) == 1 ? 0 : -EIO;
}

void key_format_hex(const struct cluster_key *key, char ret_hex[static KEY_HEX_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < KEY_BYTES; i++) {
		ret_hex[2 * i] = digits[key->b[i] >> 4];
		ret_hex[2 * i + 1] = digits[key->b[i] & 15];
	}
	ret_hex[KEY_HEX_BYTES - 1] = '\0';
}

static int key_derive_hkdf_sha256(
	uint8_t *out, const struct cluster_key *key, uint8_t *info, size_t n_info)
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
	rc = key_derive_hkdf_sha256(derived.b, key, info, n_label + n_context);
	free(info);
	if (!rc)
		*ret_key = derived;
	key_wipe(&derived);
	return rc;
}

int key_derive_for_host(
	struct cluster_key *ret_key, const struct cluster_key *master, const char *identity)
{
	return key_derive(ret_key, master, "bps host key", identity);
}

int key_compute_mac(const struct cluster_key *key, const void *data, size_t n_bytes,
	uint8_t ret_mac[static KEY_MAC_BYTES])
{
	unsigned n = 0;

	if (!HMAC(EVP_sha256(), key->b, KEY_BYTES, data, n_bytes, ret_mac, &n))
		return -EIO;
	return n == KEY_MAC_BYTES ? 0 : -EIO;
}

int key_fingerprint(const struct cluster_key *key, char ret_print[static KEY_PRINT_BYTES])
{
	static const char label[] = "bps key fingerprint";
	uint8_t mac[KEY_MAC_BYTES];
	int rc = key_compute_mac(key, label, sizeof(label), mac);

	for (int i = 0; i < (KEY_PRINT_BYTES - 1) / 2; i++)
		snprintf(ret_print + 2 * i, 3, "%02x", mac[i]);
	return rc;
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
