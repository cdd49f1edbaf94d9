/* TLS contexts and sessions with pre-shared keys, the check of a peer's identity, and texts for
 * failures. Certificates are in tlscert.c; sockets and frames are in ctlchan.c. Thread: the event
 * loop that uses the context. */
#include "common/control/tls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>

#include "common/control/tlscert.h"

#define FINGERPRINT_CHARS (KEY_PRINT_BYTES - 1)

struct tls {
	unsigned refs; /* number of references besides the first one */
	SSL_CTX *ctx;
	bool is_listener;
	struct cluster_key key; /* key of a client; unused by a listener */
	struct tls_conf conf;
	char wire_identity[TLS_IDENTITY_BYTES]; /* identity and fingerprint that a client sends */
};

static bool has_fingerprint(const struct cluster_key *key, const char *text)
{
	char own[KEY_PRINT_BYTES];

	return key_fingerprint(key, own) == 0 && strcmp(own, text) == 0;
}

/* Find the key with the fingerprint `print`: the master key, or the host key that is derived from
 * the master key for this identity. Returns 0 or BPS_EAUTH. */
static int key_find_by_fingerprint(const struct cluster_key *master, const char *identity,
	const char *print, struct cluster_key *ret_key)
{
	struct cluster_key host_key = {{0}};
	int rc = BPS_EAUTH;

	if (has_fingerprint(master, print)) {
		*ret_key = *master;
		return 0;
	}
	if (key_derive_for_host(&host_key, master, identity) == 0 &&
		has_fingerprint(&host_key, print)) {
		*ret_key = host_key;
		rc = 0;
	}
	key_wipe(&host_key);
	return rc;
}

/* Find the key of a peer in the listener's keyring. Set the fields `print` and `master` of
 * ret_peer. */
static int tls_find_peer_key(const struct tls *t, const char *identity, const char *print,
	struct cluster_key *ret_key, struct tls_peer *ret_peer)
{
	const struct keyring *keys = &t->conf.keys;

	for (unsigned i = 0; i < keys->n_keys; i++) {
		if (key_find_by_fingerprint(&keys->key[i], identity, print, ret_key))
			continue;
		memcpy(ret_peer->print, print, KEY_PRINT_BYTES);
		return key_fingerprint(&keys->key[i], ret_peer->master);
	}
	return BPS_EAUTH;
}

/* Split "role:name#fingerprint". Accept only characters that are safe in a log or a label. */
static int split_identity(const unsigned char *wire, size_t n_wire,
	char ret_identity[static TLS_IDENTITY_BYTES], char ret_print[static KEY_PRINT_BYTES])
{
	size_t n_identity;

	if (n_wire >= TLS_IDENTITY_BYTES || n_wire <= FINGERPRINT_CHARS + 1)
		return BPS_EPROTO;
	n_identity = n_wire - FINGERPRINT_CHARS - 1;
	memcpy(ret_identity, wire, n_identity);
	ret_identity[n_identity] = '\0';
	memcpy(ret_print, wire + n_identity + 1, FINGERPRINT_CHARS);
	ret_print[FINGERPRINT_CHARS] = '\0';
	if (wire[n_identity] != '#' || !keyring_is_identity(ret_identity))
		return BPS_EPROTO;
	return 0;
}

static SSL_SESSION *tls_create_psk_session(SSL *ssl, const struct cluster_key *key)
{
	static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
	SSL_SESSION *session = SSL_SESSION_new();

	if (session && cipher && SSL_SESSION_set1_master_key(session, key->b, KEY_BYTES) &&
		SSL_SESSION_set_cipher(session, cipher) &&
		SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	SSL_SESSION_free(session);
	return NULL;
}

static bool tls_identity_is_revoked(const struct tls *t, const char *identity, const char *print)
{
	char wire[TLS_IDENTITY_BYTES + KEY_PRINT_BYTES + 1];

	snprintf(wire, sizeof(wire), "%s#%s", identity, print);
	return keyring_is_revoked(&t->conf.keys, wire);
}

bool tls_peer_is_accepted(const struct tls *t, const struct tls_peer *peer, const SSL *ssl)
{
	if (t->conf.cert)
		return tlscert_accepts(t->ctx, ssl);
	for (unsigned i = 0; i < t->conf.keys.n_keys; i++)
		if (has_fingerprint(&t->conf.keys.key[i], peer->master))
			return !tls_identity_is_revoked(t, peer->identity, peer->print);
	return false;
}

/* Callback of a listener: select the key that the peer claims to have. When the key is unknown or
 * revoked, returns 1 without a session. OpenSSL then tries certificates. The listener has no
 * certificate, so the handshake fails. */
static int on_find_session(
	SSL *ssl, const unsigned char *wire, size_t n_wire, SSL_SESSION **ret_session)
{
	const struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
	struct tls_peer *ret_peer = SSL_get_app_data(ssl);
	char identity[TLS_IDENTITY_BYTES], print[KEY_PRINT_BYTES];
	struct cluster_key key;

	*ret_session = NULL;
	if (split_identity(wire, n_wire, identity, print))
		return 1;
	memcpy(ret_peer->identity, identity, strlen(identity) + 1);
	ret_peer->is_revoked = tls_identity_is_revoked(t, identity, print);
	if (ret_peer->is_revoked || tls_find_peer_key(t, identity, print, &key, ret_peer))
		return 1;
	*ret_session = tls_create_psk_session(ssl, &key);
	key_wipe(&key);
	return *ret_session != NULL;
}

static int on_use_session(SSL *ssl, const EVP_MD *md, const unsigned char **ret_wire,
	size_t *ret_n_wire, SSL_SESSION **ret_session)
{
	const struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

	(void)md;
	*ret_session = tls_create_psk_session(ssl, &t->key);
	*ret_wire = (const unsigned char *)t->wire_identity;
	*ret_n_wire = strlen(t->wire_identity);
	return *ret_session != NULL;
}

static uint32_t stranger_limit(const struct tls *t)
{
	return t->conf.cert ? 4 * TLS_STRANGER_BYTES : TLS_STRANGER_BYTES;
}

/* Callback of a listener. OpenSSL calls the function when it has received the header of a record,
 * before it reads the body. OpenSSL itself would accept a ClientHello of 128 KiB. If the peer's
 * records announce more bytes in total than stranger_limit returns, replace the socket by an empty
 * source. The empty source ends the handshake. */
static void on_tls_record_header(
	int is_ours, int version, int type, const void *head, size_t n, SSL *ssl, void *arg)
{
	const struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
	struct tls_peer *peer = SSL_get_app_data(ssl);
	const uint8_t *b = head;

	(void)version;
	(void)arg;
	if (is_ours || type != SSL3_RT_HEADER || n < SSL3_RT_HEADER_LENGTH ||
		SSL_is_init_finished(ssl))
		return;
	peer->handshake_bytes += (uint32_t)(SSL3_RT_HEADER_LENGTH + (b[3] << 8 | b[4]));
	if (peer->handshake_bytes > stranger_limit(t))
		SSL_set0_rbio(ssl, BIO_new(BIO_s_null()));
}

static SSL_CTX *tls_create_ssl_context(struct tls *t)
{
	SSL_CTX *ctx = SSL_CTX_new(t->is_listener ? TLS_server_method() : TLS_client_method());

	if (!ctx || !SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) ||
		!SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") ||
		!SSL_CTX_set_num_tickets(ctx, 0)) {
		SSL_CTX_free(ctx);
		return NULL;
	}
	/* Accept an end of stream without a TLS close message. Frames contain their length, so a
	 * truncated frame is detected without that message. */
	SSL_CTX_set_options(
		ctx, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	/* Free a connection's buffers while the connection is idle. */
	SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_app_data(ctx, t);
	if (t->is_listener)
		SSL_CTX_set_msg_callback(ctx, on_tls_record_header);
	return ctx;
}

/* Replace the SSL context of t by a new context for conf. who: the identity that the certificate in
 * conf must have.
 * Errors: a negative code. `err` then gets the text, and t keeps its present context. */
static int tls_replace_ssl_context(
	struct tls *t, const struct tls_conf *conf, const char *who, struct err_text *err)
{
	SSL_CTX *ctx = tls_create_ssl_context(t);
	int rc = 0;

	if (!ctx)
		return err_set(err, -EIO, "cannot set up TLS: %s",
			ERR_reason_error_string(ERR_peek_last_error()));
	if (conf->cert)
		rc = tlscert_set_up(ctx, conf, who, err);
	else if (t->is_listener)
		SSL_CTX_set_psk_find_session_callback(ctx, on_find_session);
	else
		SSL_CTX_set_psk_use_session_callback(ctx, on_use_session);
	if (rc < 0) {
		SSL_CTX_free(ctx);
		return rc;
	}
	SSL_CTX_free(t->ctx); /* open connections have their own reference to the old context */
	t->ctx = ctx;
	t->conf = *conf;
	return 0;
}

/* Make the TLS context of a listener or a client.
 * Errors: a negative code; err gets the text, and *ret is unchanged. */
static int tls_create_endpoint(struct tls **ret, bool is_listener, const struct tls_conf *conf,
	const char *who, struct err_text *err)
{
	struct tls *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(err, -ENOMEM, "out of memory");
	t->is_listener = is_listener;
	rc = tls_replace_ssl_context(t, conf, who, err);
	if (rc < 0)
		tls_free(t);
	else
		*ret = t;
	return rc;
}

int tls_new_listener(struct tls **ret_tls, const struct tls_conf *conf, struct err_text *err)
{
	return tls_create_endpoint(ret_tls, true, conf, "scheduler:", err);
}

int tls_renew(struct tls *t, const struct tls_conf *conf, struct err_text *err)
{
	return tls_replace_ssl_context(t, conf, "scheduler:", err);
}

int tls_new_client(struct tls **ret_tls, const struct tls_conf *conf, unsigned which,
	const char *identity, struct err_text *err)
{
	const struct cluster_key *key = &conf->keys.key[which];
	char print[KEY_PRINT_BYTES], dummy[TLS_IDENTITY_BYTES];
	/* The initial value prevents a warning of gcc -O2, which does not see that
	 * tls_create_endpoint sets t when it returns 0 */
	struct tls *t = NULL;
	int rc, n;

	rc = tls_create_endpoint(&t, false, conf, identity, err);
	if (rc < 0 || conf->cert) {
		if (rc == 0)
			*ret_tls = t;
		return rc;
	}
	keyring_wipe(&t->conf.keys);
	t->key = *key;
	if (key_fingerprint(key, print)) {
		tls_free(t);
		return err_set(err, -EIO, "cannot compute the key's fingerprint");
	}
	n = snprintf(t->wire_identity, sizeof(t->wire_identity), "%s#%s", identity, print);
	if (n >= (int)sizeof(t->wire_identity) ||
		split_identity((const unsigned char *)t->wire_identity, (size_t)n, dummy, print)) {
		rc = err_set(err, -EINVAL,
			"'%s' is not a valid identity (at most %d characters; allowed are letters, "
			"digits and the characters . - _ :)",
			identity, KEYRING_ID_BYTES - KEY_PRINT_BYTES - 1);
		tls_free(t);
		return rc;
	}
	*ret_tls = t;
	return 0;
}

SSL *tls_create_session(struct tls *t, struct tls_peer *ret_peer)
{
	SSL *ssl = SSL_new(t->ctx);

	if (!ssl)
		return NULL;
	if (ret_peer)
		memset(ret_peer, 0, sizeof(*ret_peer));
	SSL_set_app_data(ssl, ret_peer);
	return ssl;
}

bool tls_has_certificate(const struct tls *t)
{
	return t->conf.cert != NULL;
}

/* Read the peer's certificate. A listener also fills in the struct tls_peer of the session. Returns
 * the reason for refusing the certificate, or NULL. */
static const char *cert_rejection_reason(const struct tls *t, const SSL *ssl)
{
	struct tls_peer peer = {.print = ""};
	struct tls_peer *at = t->is_listener ? SSL_get_app_data(ssl) : &peer;

	if (tlscert_read_peer(ssl, at))
		return "the peer's certificate has no identity (its subject needs exactly one CN, "
		       "ROLE:NAME)";
	/* The handshake has used the context that was current when the handshake started. If
	 * tls_renew has replaced that context since then, check the certificate with the current
	 * context. */
	if (t->ctx != SSL_get_SSL_CTX(ssl) && t->is_listener && !tlscert_accepts(t->ctx, ssl))
		return "the peer's certificate is no longer accepted";
	if (!t->is_listener && strncmp(at->identity, "scheduler:", 10) != 0)
		return "the peer's certificate is not that of a scheduler (its CN must be "
		       "scheduler:NAME)";
	return NULL;
}

const char *tls_rejection_reason(const SSL *ssl)
{
	const struct tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

	if (!SSL_is_init_finished(ssl) || SSL_version(ssl) != TLS1_3_VERSION)
		return "the peer does not use TLS 1.3";
	if (t->conf.cert)
		return cert_rejection_reason(t, ssl);
	return SSL_session_reused(ssl) ? NULL : "the peer did not use the cluster key";
}

const char *tls_failure_text(const SSL *ssl, unsigned long ssl_error)
{
	static const char cert_refused[] = "the other side refuses this certificate: its authority "
					   "is unknown, or it is expired or revoked (see the log "
					   "of the other side)";
	const struct tls *t = ssl ? SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)) : NULL;
	const char *reason = ERR_reason_error_string(ssl_error);
	const struct tls_peer *peer = t && t->is_listener ? SSL_get_app_data(ssl) : NULL;

	if (peer && peer->handshake_bytes > stranger_limit(t))
		return "the peer sent too many bytes before it proved its identity";
	if (peer && peer->is_revoked)
		return "the peer's key is revoked (`bpsctl key status` lists revoked keys)";
	if (!ssl_error)
		return "the peer closed the connection during the TLS handshake (does it lack a "
		       "key, or belong "
		       "to another cluster?)";
	if (t && t->conf.cert && ERR_GET_REASON(ssl_error) == SSL_R_TLSV1_ALERT_DECRYPT_ERROR)
		return cert_refused;
	switch (ERR_GET_REASON(ssl_error)) {
	case SSL_R_WRONG_VERSION_NUMBER:
	case SSL_R_HTTP_REQUEST:
	case SSL_R_UNKNOWN_PROTOCOL:
	case SSL_R_PACKET_LENGTH_TOO_LONG:
		return "the peer does not use TLS (does it lack a cluster key?)";
	case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
	case SSL_R_NO_SHARED_CIPHER:
	case SSL_R_BINDER_DOES_NOT_VERIFY:
	case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
	case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
	case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
		return "the cluster keys do not match (compare the key files of both hosts, the "
		       "names for which host keys were derived, and `auth`)";
	case SSL_R_CERTIFICATE_VERIFY_FAILED:
		return X509_verify_cert_error_string(SSL_get_verify_result(ssl));
	case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
		return "the peer has no certificate (auth = cert on one side only?)";
	case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
	case SSL_R_TLSV1_ALERT_DECODE_ERROR:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
	case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
	case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
	case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
		return cert_refused;
	default:
		return reason ? reason : "TLS error";
	}
}

unsigned long tls_unread_alert(SSL *ssl)
{
	char unused;

	ERR_clear_error();
	return SSL_peek(ssl, &unused, 1) > 0 ? 0 : ERR_get_error();
}

bool tls_has_same_identity(const struct tls *a, const struct tls *b)
{
	return !a->conf.cert && !b->conf.cert && strcmp(a->wire_identity, b->wire_identity) == 0;
}

struct tls *tls_ref(struct tls *t)
{
	if (t)
		t->refs++;
	return t;
}

void tls_free(struct tls *t)
{
	if (!t || t->refs--)
		return;
	SSL_CTX_free(t->ctx);
	key_wipe(&t->key);
	keyring_wipe(&t->conf.keys);
	free(t);
}
