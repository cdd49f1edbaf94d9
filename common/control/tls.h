#ifndef BPS_COMMON_CONTROL_TLS_H
#define BPS_COMMON_CONTROL_TLS_H
/* TLS 1.3, TLS_AES_128_GCM_SHA256 only; no tickets, no cache. Either with certificates
 * (common/control/tlscert.h), or with an external pre-shared key (RFC 8446 section 2.2, with
 * X25519: a recorded session stays closed when the key leaks later).
 *
 * The identity says who and which key: "server:node7#1a2b3c4d", where the digits are a fingerprint
 * of the key. The listener holds one or two master keys (current and previous, for rotation) and
 * accepts a peer that has a master key itself or the host key of its own name, unless that one is
 * revoked (common/control/keyring.h).
 *
 * A stranger may announce so many bytes before the handshake is complete, then nothing of it is
 * read any more:
 *   TLS_STRANGER_BYTES with keys, four times as much with certificates
 *
 * Thread: that of the event loop that uses it. */
#include <openssl/ssl.h>

#include "common/base/error.h"
#include "common/control/keyring.h"

#define TLS_IDENTITY_BYTES KEYRING_ID_BYTES
#define TLS_STRANGER_BYTES 4096

/* What one side proves itself and others by; empty: no TLS. */
struct tls_conf {
	struct keyring keys;
	const char *cert, *key, *ca; /* PEM files, in place of keys; NULL: none */
	uint8_t digest[32];          /* of what is in them */
};
static inline bool tls_conf_is_empty(const struct tls_conf *conf)
{
	return !conf->keys.n_keys && !conf->cert;
}

/* Who a listener's peer is; proven only when tls_unproven says NULL. */
struct tls_peer {
	char identity[TLS_IDENTITY_BYTES]; /* "role:name" */
	char print[KEY_PRINT_BYTES];       /* fingerprint of its key or certificate */
	uint32_t handshake_bytes;          /* announced by its records so far */
	bool is_revoked;
	char master[KEY_PRINT_BYTES]; /* of the master key that it has, or has its own from; "" */
};

struct tls; /* one side: a listener or a client */

/* conf is copied. Errors: -ENOMEM, -EIO with a sentence. */
int tls_new_listener(struct tls **ret_tls, const struct tls_conf *conf, struct err_text *err);
/* What counts for the listener's connections to come. Errors: as tls_new_listener, all stays as it
 * was. */
int tls_renew(struct tls *t, const struct tls_conf *conf, struct err_text *err);
/* Would the listener take this peer again: what it has proven itself by is neither dropped nor
 * revoked. */
bool tls_accepts(const struct tls *t, const struct tls_peer *peer, const SSL *ssl);

/* which: of the keys in conf (0 for a certificate). identity: "role:name"; it has to
 * be a certificate's, of which it may be the role alone ("ctl:"), or NULL: whatever it is.
 * Errors: as tls_new_listener; -EINVAL no possible identity, or another than the certificate's. */
int tls_new_client(struct tls **ret_tls, const struct tls_conf *conf, unsigned which,
	const char *identity, struct err_text *err);

/* By certificates? */
bool tls_uses_cert(const struct tls *t);

/* Do both clients prove themselves by the same identity and key? */
bool tls_is_same(const struct tls *a, const struct tls *b);

/* A session object for one connection; the caller frees it with SSL_free and holds t until then.
 * ret_peer: listener: outlives the object; filled in during the handshake. Client: NULL.
 * Returns NULL when out of memory. */
SSL *tls_session(struct tls *t, struct tls_peer *ret_peer);

/* Why the peer of a complete handshake has not proven who it is; NULL when it has. */
const char *tls_unproven(const SSL *ssl);

/* What a failed handshake means, for a human, from an OpenSSL error code (0: the peer hung up). */
const char *tls_failure(const SSL *ssl, unsigned long ssl_error);

/* Connections hold theirs, so it may be freed at any time. ref: NULL is allowed. */
struct tls *tls_ref(struct tls *t);
void tls_free(struct tls *t);
#endif
