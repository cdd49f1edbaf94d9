#ifndef BPS_COMMON_BASE_KEY_H
#define BPS_COMMON_BASE_KEY_H
/* The cluster key: 32 secret bytes, and values derived from them. common/control/keyring.h reads
 * the key file. The scheduler's host has the master key. Every other host has its own key, which is
 * derived from the master key and the host's role and name. So a stolen host can be excluded
 * without excluding the other hosts. The (job, tensor, partition) keys of the data plane are not
 * related to the cluster key.
 *
 * The functions keep no state and may be called on any thread. The secret is never logged. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEY_BYTES       32
#define KEY_MAC_BYTES   32
#define KEY_HEX_BYTES   (2 * KEY_BYTES + 1)
#define KEY_PRINT_BYTES 9 /* fingerprint: 8 hex digits and a NUL byte */

struct cluster_key {
	uint8_t b[KEY_BYTES];
};

/* Make a random key.
 * Errors: -EIO: no random bytes are available. */
int key_generate_random(struct cluster_key *ret_key);

/* Write a key as 64 hex digits, for a key file. */
void key_format_hex(const struct cluster_key *key, char ret_hex[static KEY_HEX_BYTES]);

/* Parse a key of 64 hex digits. Text after them is ignored.
 * Errors: -EINVAL. */
int key_parse_hex(struct cluster_key *ret_key, const char *text);

/* Derive *ret_key from key with HKDF-SHA256 (RFC 5869), without salt. HKDF's input `info` consists
 * of `label`, a zero byte, and `context`. label: string literal that names the purpose of the key.
 * context: identity for which the key is made ("server:node7"), or "".
 * Errors: -ENOMEM; -EIO: OpenSSL failed. */
int key_derive(struct cluster_key *ret_key, const struct cluster_key *key, const char *label,
	const char *context);

/* Derive the host key of an identity ("role:name"). `bpsctl key derive` prints the same key. */
int key_derive_for_host(
	struct cluster_key *ret_key, const struct cluster_key *master, const char *identity);

/* Compute HMAC-SHA256 of data under key.
 * Errors: -ENOMEM, -EIO. */
int key_compute_mac(const struct cluster_key *key, const void *data, size_t n_bytes,
	uint8_t ret_mac[static KEY_MAC_BYTES]);

/* Compute a short fingerprint of the key. The fingerprint is not secret and may be shown.
 * Errors: those of key_compute_mac. */
int key_fingerprint(const struct cluster_key *key, char ret_print[static KEY_PRINT_BYTES]);

/* Return whether two byte strings are equal. The comparison takes the same time for all contents,
 * so an attacker learns nothing from the time. */
bool key_bytes_equal(const void *a, const void *b, size_t n_bytes);

/* Overwrite the secret; NULL is allowed. */
void key_wipe(struct cluster_key *key);
#endif
