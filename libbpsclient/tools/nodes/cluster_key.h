#ifndef BPS_TOOLS_CLUSTER_KEY_H
#define BPS_TOOLS_CLUSTER_KEY_H
/* The key of a cluster that serves one job on several nodes. All nodes have the same key. It comes
 * from the environment, from a file, or from standard input, and never from the command line, which
 * other users can read. The functions run on bpsrun's only thread. */
#include "common/base/key.h"

#define CLUSTER_KEY_ENV "BPS_CLUSTER_KEY"

/* Read the key. file: value of --key-file; NULL: read $BPS_CLUSTER_KEY. Removes the variable from
 * the environment, so that no child inherits it. Returns 1, or 0 if there is no key.
 * Errors: a negative code; the error was printed. */
int cluster_key_load(const char *file, struct cluster_key *ret);
/* Parse a key that must consist of 64 hex digits. source: its origin, for the error text.
 * Errors: -EINVAL; the error was printed. */
int cluster_key_parse(const char *text, const char *source, struct cluster_key *ret);
/* Write the key of `identity` ("agent:node3") to a new file that only this user can read; NULL: the
 * cluster key itself, for the scheduler. Errors: a negative code; the error was printed. */
int cluster_key_write_file(const struct cluster_key *key, const char *identity, const char *path);
/* Derive the token of the job from the key, so that all nodes have the same token. ret_hex: 64 hex
 * digits. Errors: those of key_derive; the error was printed. */
int cluster_key_derive_token(
	const struct cluster_key *key, const char *job, char ret_hex[static KEY_HEX_BYTES]);
#endif
