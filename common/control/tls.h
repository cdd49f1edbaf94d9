#ifndef BPS_COMMON_CONTROL_TLS_H
#define BPS_COMMON_CONTROL_TLS_H
/* TLS 1.3, TLS_AES_128_GCM_SHA256 only; no tickets, no cache. Either with certificates
 * (common/control/tlscert.h), or with an external pre-shared key (RFC 8446 section 2.2). X25519
 * keeps a recorded session secret when the key leaks later.
 *
 * The identity names the peer and its key: "server:node7#1a2b3c4d", where the digits are a
 * fingerprint of the key. The listener holds one or two master keys (current and previous, for
 * rotation). It accepts a peer with a master key itself or with the host key of its own name,
 * unless that key is revoked (common/control/keyring.h).
 *
 * A limit bounds the bytes that a stranger may announce before the handshake is complete; beyond it
 * nothing more is read:
 *   TLS_STRANGER_BYTES with keys, four times as much with certificates
 *
 * Thread: that of the event loop that uses it. */
#include <openssl/ssl.h>

#include "common/base/error.h"
#include "common/control/keyring.h"

#define TLS_IDENTITY_BYTES KEYRING_ID_BYTES
#define TLS_STRANGER_BYTES 4096

/* Credentials of one side: to authenticate itself and to check its peers. Empty: no TLS. */
struct tls_conf {
	struct keyring keys;
	const char *cert, *key, *ca; /* PEM files, instead of keys; NULL: none */
	uint8_t digest[32];          /* digest of their contents */
};
static inline bool tls_conf_is_empty(const struct tls_conf *conf)
{
	return !conf->keys.n_keys && !conf->cert;
}

/* Peer of a listener; proven only when tls_unproven returns NULL. */
struct tls_peer {
	char identity[TLS_IDENTITY_BYTES]; /* "role:name" */
	char print[KEY_PRINT_BYTES];       /* fingerprint of its key or certificate */
	uint32_t handshake_bytes;          /* bytes announced by its records so far */
	bool is_revoked;
	/* Fingerprint of the master key that it has or that its key was derived from; "" */
	char master[KEY_PRINT_BYTES];
};

struct tls; /* one side: a listener or a client */

/* Make the listener's side. conf is copied.
 * Errors: -ENOMEM, -EIO with a sentence. */
int tls_new_listener(struct tls **ret_tls, const struct tls_conf *conf, struct err_text *err);
/* Replace the credentials for future connections of the listener.
 * Errors: same as tls_new_listener, nothing has changed. */
int tls_renew(struct tls *t, const struct tls_conf *conf, struct err_text *err);
/* Return whether the listener would accept this peer again: its key or certificate is neither
 * dropped nor revoked. */
bool tls_accepts(const struct tls *t, const struct tls_peer *peer, const SSL *ssl);

/* Make a client's side. which: index of the key in conf (0 for a certificate). identity:
 * "role:name", or NULL: any. A certificate must have this identity; the role alone ("ctl:") matches
 * every name.
 * Errors: same as tls_new_listener; -EINVAL invalid identity, or not the certificate's. */
int tls_new_client(struct tls **ret_tls, const struct tls_conf *conf, unsigned which,
	const char *identity, struct err_text *err);

/* Return whether this side uses certificates. */
bool tls_uses_cert(const struct tls *t);

/* Return whether both clients use the same identity and key. */
bool tls_is_same(const struct tls *a, const struct tls *b);

/* Make a session object for one connection. The caller frees it with SSL_free and holds t until
 * then. ret_peer: listener: must outlive the object; filled in during the handshake. Client: NULL.
 * Returns NULL when out of memory. */
SSL *tls_session(struct tls *t, struct tls_peer *ret_peer);

/* Return why the peer of a complete handshake has not proven its identity; NULL when it has. */
const char *tls_unproven(const SSL *ssl);

/* Explain a failed handshake to a person, from an OpenSSL error code (0: the peer closed the
 * connection). */
const char *tls_failure(const SSL *ssl, unsigned long ssl_error);

/* Take or release a reference. Connections hold their own, so it may be freed at any time. ref
 * accepts NULL. */
struct tls *tls_ref(struct tls *t);
void tls_free(struct tls *t);
#endif
