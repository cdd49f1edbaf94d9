#ifndef BPS_COMMON_TLS_H
#define BPS_COMMON_TLS_H
/* TLS 1.3 with an external pre-shared key (RFC 8446 section 2.2, with X25519: a recorded session
 * stays closed when the key leaks later). TLS_AES_128_GCM_SHA256 only; no tickets, no cache.
 *
 * The identity says who and which key: "server:node7#1a2b3c4d", where the digits are a fingerprint
 * of the key. The listener holds one or two master keys (current and previous, for rotation) and
 * accepts a peer that has a master key itself or the host key of its own name.
 *
 * Thread: that of the event loop that uses it. */
#include <openssl/ssl.h>

#include "common/error.h"
#include "common/key.h"

#define TLS_MAX_KEYS       2
#define TLS_IDENTITY_BYTES 128
#define TLS_PRINT_BYTES    9 /* fingerprint of a key, 8 hex digits */

/* Who a listener's peer is; proven only when tls_is_proven says so. */
struct tls_peer {
	char identity[TLS_IDENTITY_BYTES]; /* "role:name" */
	char master[TLS_PRINT_BYTES];      /* which master key it has, or has its own from */
	bool has_master;
};

struct tls_keys {
	struct cluster_key key[TLS_MAX_KEYS];
	unsigned n_keys; /* 0: no TLS */
};

struct tls; /* one side: a listener or a client */

/* What tells two keys apart and may be shown. Errors: -ENOMEM, -EIO. */
int tls_fingerprint(const struct cluster_key *key, char ret_print[static TLS_PRINT_BYTES]);

/* keys are copied. Errors: -ENOMEM, -EIO with a sentence. */
int tls_new_listener(struct tls **ret_tls, const struct tls_keys *keys, struct err_text *err);
/* Replace the listener's keys for the connections to come. */
void tls_set_keys(struct tls *t, const struct tls_keys *keys);
/* identity: "role:name", at most TLS_IDENTITY_BYTES - 16 characters, else -EINVAL. */
int tls_new_client(struct tls **ret_tls, const struct cluster_key *key, const char *identity,
	struct err_text *err);

/* A session object for one connection; the caller frees it with SSL_free before tls_free.
 * ret_peer: listener: outlives the object; filled in during the handshake. Client: NULL.
 * Returns NULL when out of memory. */
SSL *tls_session(struct tls *t, struct tls_peer *ret_peer);

/* True when the handshake is complete and the peer has the key. */
bool tls_is_proven(const SSL *ssl);

/* What a failed handshake means, for a human, from an OpenSSL error code (0: the peer hung up). */
const char *tls_failure(unsigned long ssl_error);

void tls_free(struct tls *t);
#endif
