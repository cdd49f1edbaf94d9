#ifndef BPS_COMMON_CONTROL_KEYRING_H
#define BPS_COMMON_CONTROL_KEYRING_H
/* The key file. The file has the cluster key and a list of revoked host keys. During a rotation the
 * file also has the previous cluster key. These one or two cluster keys are the master keys, from
 * which the host keys are derived. The file is either 32 raw bytes, or lines of text:
 *
 *   <64 hex digits>                 the current key
 *   previous <64 hex digits>        the previous key, which is accepted as well
 *   revoked server:node3#1a2b3c4d   the key of this identity with this fingerprint is refused
 *
 * Keys and revocations are in one file, so that one rename replaces both and systemd can pass the
 * file as one credential. A revocation excludes a key, not a host. After the next rotation the host
 * may get a new key. The removal of a master key also removes the revocations of host keys that
 * were derived from that master key.
 *
 * The structs own no memory. Any thread may call the functions. */
#include <stdbool.h>
#include <stddef.h>

#include "common/base/error.h"
#include "common/base/key.h"

#define KEYRING_KEYS     2
#define KEYRING_REVOKED  64
#define KEYRING_ID_BYTES 128 /* room for "role:name#fingerprint" */
/* Size limit of a key file; the text of a full keyring is shorter */
#define KEYRING_FILE_BYTES 16384

struct keyring {
	struct cluster_key key[KEYRING_KEYS]; /* [0]: current key; [1]: previous key */
	unsigned n_keys;                      /* number of keys; 0: no key */
	char revoked[KEYRING_REVOKED][KEYRING_ID_BYTES];
	unsigned n_revoked;
};

/* Read a key file. Refuses a file that is not a regular file, or that belongs to a user other than
 * root and this process's user. Also refuses a symbolic link, and a file that the group or others
 * can access. path: the file; "" or NULL: the credential file `cluster.key` in systemd's
 * $CREDENTIALS_DIRECTORY. Two rules apply to the credential file only. The group may access it. Its
 * content may be the word "none" (from SetCredential= of the units), which means that there is no
 * key. Returns 1 when a key was read, or 0 when no key is configured; then *ret_ring is unchanged.
 * Errors: -errno, -EPERM or -EINVAL; err gets a text that advises what to do. */
int keyring_load(struct keyring *ret_ring, const char *path, struct err_text *err);

/* Parse the content of a key file. text: the content, n bytes long, with room for one more byte;
 * the function modifies `text`. path: name of the key file, used in the error text. Returns 1.
 * Errors: -EINVAL; err gets the text. */
int keyring_parse(
	struct keyring *ret_ring, char *text, size_t n, const char *path, struct err_text *err);

/* Write the text of a key file into ret_text and return its length. room: KEYRING_FILE_BYTES is
 * always enough. */
size_t keyring_format(const struct keyring *r, char *ret_text, size_t room);

/* Replace the key file by a new file with mode 0600 and the same owner. The new file is written
 * next to the old file, synced, and renamed, so that a complete file exists at all times.
 * Errors: -errno; err gets the text, and the old file stays. */
int keyring_store(const struct keyring *ring, const char *path, struct err_text *err);

/* Rotate the keys: `fresh` becomes the current key, and the current key becomes the previous key.
 * The old previous key is removed.
 * Errors: -ENOMEM, -EIO; the ring is unchanged. */
int keyring_rotate(struct keyring *ring, const struct cluster_key *fresh);
/* Remove the previous key.
 * Errors: -ENOENT: there is no previous key. Also the errors of keyring_rotate. */
int keyring_retire(struct keyring *ring);
/* Revoke the host keys of `identity` ("server:node3"). For each master key of the ring, `identity`
 * has one host key.
 * Errors: -EINVAL: invalid identity; -ENOSPC: the ring would have more than KEYRING_REVOKED revoked
 * keys; -EEXIST: the keys of this identity are already revoked; also the errors of
 * keyring_rotate. */
int keyring_revoke(struct keyring *ring, const char *identity);

/* Return whether all host keys of `identity` are revoked. For each master key of the ring,
 * `identity` has one host key. */
bool keyring_is_out(const struct keyring *ring, const char *identity);
/* Return whether a host key is revoked. wire: the identity and fingerprint of the host key, for
 * example "server:node3#1a2b3c4d". */
bool keyring_is_revoked(const struct keyring *ring, const char *wire);
bool keyring_is_equal(const struct keyring *a, const struct keyring *b);

/* Return whether `text` is a valid "role:name". Letters, digits and the characters ".-_:" are
 * allowed. These characters are safe in logs and labels. */
bool keyring_is_identity(const char *text);

/* Overwrite the secrets; NULL is allowed. */
void keyring_wipe(struct keyring *ring);
#endif
