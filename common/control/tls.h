#ifndef BPS_COMMON_CONTROL_TLS_H
#define BPS_COMMON_CONTROL_TLS_H
/* TLS 1.3 with TLS_AES_128_GCM_SHA256 only, without session tickets and cache. Peers authenticate
 * with certificates (common/control/tlscert.h), or with an external pre-shared key (RFC 8446
 * section 2.2). The key exchange is X25519. So a recorded session stays secret even if the
 * pre-shared key or the private key of a certificate leaks later.
 *
 * With keys, a client sends its identity and the fingerprint of its key: "server:node7#1a2b3c4d".
 * The listener has one or two master keys (current and previous, for rotation). The listener
 * accepts a client that has a master key, or the host key derived for the client's identity. The
 * listener rejects a revoked host key (common/control/keyring.h).
 *
 * The headers of a peer's TLS records announce how many bytes follow. Until the handshake is
 * complete, the listener limits the total of the bytes that a peer announces. The limit is
 * TLS_STRANGER_BYTES if the listener uses keys, and four times as much if it uses certificates.
 * Beyond the limit the listener reads nothing more.
 *
 * Thread: the event loop's. */
#include <openssl/ssl.h>

#include "common/base/error.h"
#include "common/control/keyring.h"

#define TLS_IDENTITY_BYTES KEYRING_ID_BYTES
#define TLS_STRANGER_BYTES 4096

/* Credentials of one side. With the credentials, the side proves its own identity and checks its
 * peers. Empty: no TLS. */
struct tls_conf {
	struct keyring keys;
	const char *cert, *key, *ca; /* paths of PEM files, set instead of `keys`; NULL: no files */
	uint8_t digest[32];          /* digest of the contents of the PEM files */
};
static inline bool tls_conf_is_empty(const struct tls_conf *conf)
{
	return !conf->keys.n_keys && !conf->cert;
}

/* Peer of a listener. The identity is proven only if tls_rejection_reason returns NULL. */
struct tls_peer {
	char identity[TLS_IDENTITY_BYTES]; /* "role:name" */
	char print[KEY_PRINT_BYTES];       /* fingerprint of the peer's key or certificate */
	/* Bytes that the peer's TLS records have announced so far */
	uint32_t handshake_bytes;
	bool is_revoked;
	/* Fingerprint of the master key that the peer has, or from which the peer's key was
	 * derived; "" with certificates */
	char master[KEY_PRINT_BYTES];
};

struct tls; /* credentials and settings of a listener or a client, for all its connections */

/* Make the TLS context of a listener. conf is copied.
 * Errors: -ENOMEM, -EIO; err gets the text. */
int tls_new_listener(struct tls **ret_tls, const struct tls_conf *conf, struct err_text *err);
/* Replace the credentials of a listener, for future connections.
 * Errors: the errors of tls_new_listener; the old credentials stay. */
int tls_renew(struct tls *t, const struct tls_conf *conf, struct err_text *err);
/* Return whether the present credentials of listener t still accept this peer: the peer's key or
 * certificate is still valid and not revoked. */
bool tls_peer_is_accepted(const struct tls *t, const struct tls_peer *peer, const SSL *ssl);

/* Make the TLS context of a client. `which` is the index of the key in conf. With certificates,
 * pass 0. `identity` is this client's "role:name". The client's certificate must have this
 * identity. A role alone ("ctl:") matches every name, and NULL matches any identity.
 * Errors: those of tls_new_listener. Also -EINVAL if the identity is invalid, or differs from the
 * identity in the certificate. */
int tls_new_client(struct tls **ret_tls, const struct tls_conf *conf, unsigned which,
	const char *identity, struct err_text *err);

/* Return whether t uses certificates, not keys. */
bool tls_has_certificate(const struct tls *t);

/* Return whether both clients use the same identity and the same key. Returns false if a client
 * uses a certificate. */
bool tls_has_same_identity(const struct tls *a, const struct tls *b);

/* Make an SSL object for one connection. The caller frees the object with SSL_free, and needs a
 * reference to t until then. For a connection of a listener, pass a ret_peer. The handshake fills
 * in *ret_peer, which must outlive the SSL object. For a connection of a client, pass NULL. Returns
 * NULL when out of memory. */
SSL *tls_create_session(struct tls *t, struct tls_peer *ret_peer);

/* Return the reason why a peer with a complete handshake has not proven its identity. Return NULL
 * if the peer has proven its identity. */
const char *tls_rejection_reason(const SSL *ssl);

/* Return a sentence that explains a failed handshake. ssl_error: error code of OpenSSL, or 0 if
 * the peer closed the connection. */
const char *tls_failure_text(const SSL *ssl, unsigned long ssl_error);

/* Return the error code of OpenSSL for an alert of the peer that has not been read yet, or 0 if
 * there is none. Call the function only after the connection has failed, for example because a
 * write failed: the alert then names the reason. */
unsigned long tls_unread_alert(SSL *ssl);

/* Take or release a reference. Each connection has its own reference, so the owner may call
 * tls_free at any time. Both functions accept NULL. */
struct tls *tls_ref(struct tls *t);
void tls_free(struct tls *t);
#endif
