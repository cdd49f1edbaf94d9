#ifndef BPS_COMMON_BASE_KEY_H
#define BPS_COMMON_BASE_KEY_H
/* The cluster key: 32 secret bytes, and what is made of them; the file is
 * common/control/keyring.h's. The scheduler's host holds the master key; every other host holds a
 * key derived from it for its role and name, so that one stolen host can be told apart. Not the
 * (job, tensor, partition) key of the data plane.
 *
 * Values without state; any thread. The secret never goes to the log. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define KEY_BYTES       32
#define KEY_MAC_BYTES   32
#define KEY_HEX_BYTES   (2 * KEY_BYTES + 1)
#define KEY_PRINT_BYTES 9 /* fingerprint, 8 hex digits */

struct cluster_key {
	uint8_t b[KEY_BYTES];
};

/* New random key. Errors: -EIO no randomness. */
int key_random(struct cluster_key *ret_key);

/* The 64 hex digits of a key, for a key file. */
void key_hex(const struct cluster_key *key, char ret_hex[static KEY_HEX_BYTES]);

/* The key of 64 hex digits; what follows them is not looked at. Errors: -EINVAL. */
int key_parse_hex(struct cluster_key *ret_key, const char *text);

/* ret_key = HKDF-SHA256 (RFC 5869) of key, without salt, info = label, a zero byte, context.
 * label: the purpose, a literal; context: whom it is for ("server:node7"), may be "".
 * Errors: -ENOMEM, -EIO from the library. */
int key_derive(struct cluster_key *ret_key, const struct cluster_key *key, const char *label,
	const char *context);

/* The key of one host, as `bpsctl key derive` hands it out. identity: "role:name". */
int key_for_host(
	struct cluster_key *ret_key, const struct cluster_key *master, const char *identity);

/* HMAC-SHA256 of data under key. Errors: -ENOMEM, -EIO. */
int key_mac(const struct cluster_key *key, const void *data, size_t n_bytes,
	uint8_t ret_mac[static KEY_MAC_BYTES]);

/* What tells two keys apart and may be shown. Errors: as key_mac. */
int key_fingerprint(const struct cluster_key *key, char ret_print[static KEY_PRINT_BYTES]);

/* Compare in a time that does not depend on the bytes. */
bool key_bytes_equal(const void *a, const void *b, size_t n_bytes);

/* Overwrite the secret; NULL is allowed. */
void key_wipe(struct cluster_key *key);
#endif
