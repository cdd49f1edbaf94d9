#ifndef BPS_COMMON_CONTROL_KEYRING_H
#define BPS_COMMON_CONTROL_KEYRING_H
/* The key file: the cluster key, during a rotation also the previous one, and the revoked host
 * keys. It holds 32 raw bytes, or lines of text:
 *
 *   <64 hex digits>                 the current key
 *   previous <64 hex digits>        accepted as well
 *   revoked server:node3#1a2b3c4d   refused: the key of that name with this fingerprint
 *
 * One file holds everything, so that it is replaced in one step and is one credential of systemd. A
 * revocation names a key, not a host: after the next rotation the host may get a new key. A
 * revocation is removed together with the master key of the revoked key.
 *
 * Values without state or ownership; any thread. */
#include <stdbool.h>
#include <stddef.h>

#include "common/base/error.h"
#include "common/base/key.h"

#define KEYRING_KEYS       2
#define KEYRING_REVOKED    64
#define KEYRING_ID_BYTES   128   /* "role:name#fingerprint" */
#define KEYRING_FILE_BYTES 16384 /* more than a full ring needs */

struct keyring {
	struct cluster_key key[KEYRING_KEYS]; /* current, previous */
	unsigned n_keys;                      /* 0: no key */
	char revoked[KEYRING_REVOKED][KEYRING_ID_BYTES];
	unsigned n_revoked;
};

/* Read a key file. Refuses a file that is not a plain file, is a symbolic link, belongs to a user
 * other than this process's user or root, or is open to the group or others.
 * path: the file; "" or NULL: `cluster.key` in systemd's $CREDENTIALS_DIRECTORY, which may be open
 * to the group. The word "none" in the file (the units' SetCredential=) means no key.
 * Returns 1 when a key was read, 0 when none is configured (ret_ring is unchanged).
 * Errors: -errno, -EPERM or -EINVAL with a sentence that advises what to do. */
int keyring_load(struct keyring *ret_ring, const char *path, struct err_text *err);

/* Parse the content of a key file; path is for the sentence. text: n bytes with room for one more;
 * it is modified. Returns 1.
 * Errors: -EINVAL with a sentence. */
int keyring_parse(
	struct keyring *ret_ring, char *text, size_t n, const char *path, struct err_text *err);

/* Write the text of a key file; returns its length. room: KEYRING_FILE_BYTES suffice. */
size_t keyring_format(const struct keyring *r, char *ret_text, size_t room);

/* Replace the key file, mode 0600, same owner. The new file is written next to the old one, synced,
 * and renamed over it, so that a complete file exists at all times.
 * Errors: -errno with a sentence; the old file stays. */
int keyring_store(const struct keyring *ring, const char *path, struct err_text *err);

/* Make fresh the current key and the current key the previous one. The old previous key is removed.
 * Errors: -ENOMEM, -EIO; the ring is unchanged. */
int keyring_rotate(struct keyring *ring, const struct cluster_key *fresh);
/* Drop the previous key.
 * Errors: -ENOENT there is none; same as keyring_rotate. */
int keyring_retire(struct keyring *ring);
/* Revoke the keys that were derived for identity ("server:node3") from any key of the ring.
 * Errors: -EINVAL invalid identity; -ENOSPC KEYRING_REVOKED are revoked already; -EEXIST this one
 * is; same as keyring_rotate. */
int keyring_revoke(struct keyring *ring, const char *identity);

/* Return whether every key that identity could have is revoked. */
bool keyring_is_out(const struct keyring *ring, const char *identity);
/* Return whether wire ("server:node3#1a2b3c4d") is revoked. */
bool keyring_is_revoked(const struct keyring *ring, const char *wire);
bool keyring_equal(const struct keyring *a, const struct keyring *b);

/* Return whether text is a valid "role:name". Letters, digits and .-_: are allowed; they are safe
 * in logs and labels. */
bool keyring_is_identity(const char *text);

/* Overwrite the secrets; NULL is allowed. */
void keyring_wipe(struct keyring *ring);
#endif
