#ifndef BPS_COMMON_CONTROL_KEYRING_H
#define BPS_COMMON_CONTROL_KEYRING_H
/* The key file: the cluster key, during a rotation the one before it too, and which host keys are
 * revoked. It holds 32 raw bytes, or lines of text:
 *
 *   <64 hex digits>                 the current key
 *   previous <64 hex digits>        accepted as well
 *   revoked server:node3#1a2b3c4d   refused: the key of that name with this fingerprint
 *
 * All in one file, so that it is replaced in one step and is one credential of systemd. A
 * revocation names a key, not a host for ever: after the next rotation the host may be given a new
 * one, and with the key that it was derived from the revocation goes.
 *
 * Values without state or ownership; any thread. */
#include <stdbool.h>
#include <stddef.h>

#include "common/base/error.h"
#include "common/base/key.h"

#define KEYRING_KEYS       2
#define KEYRING_REVOKED    64
#define KEYRING_ID_BYTES   128   /* "role:name#fingerprint" */
#define KEYRING_FILE_BYTES 16384 /* all that fits into a ring, and more */

struct keyring {
	struct cluster_key key[KEYRING_KEYS]; /* current, previous */
	unsigned n_keys;                      /* 0: no key */
	char revoked[KEYRING_REVOKED][KEYRING_ID_BYTES];
	unsigned n_revoked;
};

/* Read a key file. Refused when it is no plain file, a symbolic link, owned by somebody else than
 * this process's user or root, or open to the group or others.
 * path: the file; "" or NULL: `cluster.key` in systemd's $CREDENTIALS_DIRECTORY, which may be open
 * to the group; the word "none" in it (the units' SetCredential=) is no key.
 * Returns 1 when a key was read, 0 when none is configured (ret_ring is unchanged).
 * Errors: -errno, -EPERM or -EINVAL with a sentence that says what to do. */
int keyring_load(struct keyring *ret_ring, const char *path, struct err_text *err);

/* The content of a key file; path is for the sentence. text: n bytes with room for one more; it is
 * cut into lines. Returns 1. Errors: -EINVAL with a sentence. */
int keyring_parse(
	struct keyring *ret_ring, char *text, size_t n, const char *path, struct err_text *err);

/* The text of a key file; returns its length. room: KEYRING_FILE_BYTES are enough. */
size_t keyring_format(const struct keyring *r, char *ret_text, size_t room);

/* Replace the key file, mode 0600, its owner as before: written beside it, synced, renamed over it,
 * so that there is always a whole one. Errors: -errno with a sentence; the old file stays. */
int keyring_store(const struct keyring *ring, const char *path, struct err_text *err);

/* fresh becomes current and the current one previous. The previous one is gone.
 * Errors: -ENOMEM, -EIO, with the ring as it was. */
int keyring_rotate(struct keyring *ring, const struct cluster_key *fresh);
/* Drop the previous key. Errors: -ENOENT there is none; as keyring_rotate. */
int keyring_retire(struct keyring *ring);
/* Refuse the keys that were derived for identity ("server:node3") from any key of the ring.
 * Errors: -EINVAL no possible identity; -ENOSPC KEYRING_REVOKED are; -EEXIST it is revoked; as
 * keyring_rotate. */
int keyring_revoke(struct keyring *ring, const char *identity);

/* Is every key that identity could have revoked? */
bool keyring_is_out(const struct keyring *ring, const char *identity);
/* wire: "server:node3#1a2b3c4d". */
bool keyring_is_revoked(const struct keyring *ring, const char *wire);
bool keyring_equal(const struct keyring *a, const struct keyring *b);

/* Can this be "role:name"? Letters, digits and .-_: that are harmless in a log or a label. */
bool keyring_is_identity(const char *text);

/* Overwrite the secrets; NULL is allowed. */
void keyring_wipe(struct keyring *ring);
#endif
