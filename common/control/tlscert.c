/* Certificates for the control channel: load them, require them from both sides, and read the
 * identity from the subject. Keys and sessions are in tls.c. Thread: the event loop's. */
#include "common/control/tlscert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include "common/os/secret.h"

/* Return OpenSSL's reason for the last failure, and clear OpenSSL's error queue. */
static const char *openssl_take_last_reason(void)
{
	unsigned long e = ERR_peek_last_error();
	const char *reason = ERR_reason_error_string(e);

	ERR_clear_error();
	if (ERR_GET_LIB(e) == ERR_LIB_SYS)
		return strerror(ERR_GET_REASON(e));
	return reason ? reason : "unknown error of OpenSSL";
}

/* Turn on the check of revocation lists if the file with the authorities contains a list. Otherwise
 * leave the check off, because OpenSSL would treat the missing list as an error. */
static void store_enable_crl_check(X509_STORE *store)
{
	const STACK_OF(X509_OBJECT) *all = X509_STORE_get0_objects(store);

	for (int i = 0; i < sk_X509_OBJECT_num(all); i++)
		if (X509_OBJECT_get_type(sk_X509_OBJECT_value(all, i)) == X509_LU_CRL)
			X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
}

static int tlscert_load_files(SSL_CTX *ctx, const struct tls_conf *conf, struct err_text *err)
{
	ERR_clear_error();
	if (SSL_CTX_load_verify_locations(ctx, conf->ca, NULL) != 1)
		return err_set(err, -EINVAL, "cannot use the authorities in '%s': %s", conf->ca,
			openssl_take_last_reason());
	if (SSL_CTX_use_certificate_chain_file(ctx, conf->cert) != 1)
		return err_set(err, -EINVAL, "cannot use the certificate '%s': %s", conf->cert,
			openssl_take_last_reason());
	if (SSL_CTX_use_PrivateKey_file(ctx, conf->key, SSL_FILETYPE_PEM) != 1 ||
		SSL_CTX_check_private_key(ctx) != 1)
		return err_set(err, -EINVAL, "cannot use the private key '%s' with '%s': %s",
			conf->key, conf->cert, openssl_take_last_reason());
	return 0;
}

/* Read the CN of the certificate's subject. There must be exactly one CN. It must have the form
 * "role:name", with only characters that are safe in logs.
 * Errors: BPS_EAUTH. */
static int tlscert_read_identity(X509 *cert, char ret[static TLS_IDENTITY_BYTES])
{
	const X509_NAME *subject = X509_get_subject_name(cert);
	int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1), n;
	unsigned char *text = NULL;
	const ASN1_STRING *cn;
	bool is_good;

	if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0)
		return BPS_EAUTH;
	cn = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
	n = ASN1_STRING_to_UTF8(&text, cn);
	is_good = n > 0 && n < TLS_IDENTITY_BYTES && strlen((char *)text) == (size_t)n &&
		  keyring_is_identity((char *)text) && strchr((char *)text, ':');
	if (is_good)
		memcpy(ret, text, (size_t)n + 1);
	if (n >= 0)
		OPENSSL_free(text);
	return is_good ? 0 : BPS_EAUTH;
}

static int tlscert_check_own_identity(
	SSL_CTX *ctx, const struct tls_conf *conf, const char *who, struct err_text *err)
{
	X509 *cert = SSL_CTX_get0_certificate(ctx);
	char identity[TLS_IDENTITY_BYTES] = "none";
	size_t n = strlen(who);
	bool is_role = n && who[n - 1] == ':';

	if (cert && tlscert_read_identity(cert, identity) == 0 &&
		(is_role ? strncmp(identity, who, n) : strcmp(identity, who)) == 0)
		return 0;
	return err_set(err, -EINVAL,
		"the certificate '%s' has the identity %s, but its CN has to be %s%s", conf->cert,
		identity, who, is_role ? "NAME" : "");
}

int tlscert_set_up(SSL_CTX *ctx, const struct tls_conf *conf, const char *who, struct err_text *err)
{
	int rc = secret_check(conf->key, "private key", err);

	if (rc == 0)
		rc = tlscert_load_files(ctx, conf, err);
	if (rc == 0 && who)
		rc = tlscert_check_own_identity(ctx, conf, who, err);
	if (rc < 0)
		return rc;
	store_enable_crl_check(SSL_CTX_get_cert_store(ctx));
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	return 0;
}

int tlscert_read_peer(const SSL *ssl, struct tls_peer *ret_peer)
{
	X509 *cert = SSL_get0_peer_certificate(ssl);
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;

	if (!cert || SSL_get_verify_result(ssl) != X509_V_OK ||
		tlscert_read_identity(cert, ret_peer->identity) < 0 ||
		!X509_digest(cert, EVP_sha256(), digest, &n))
		return BPS_EAUTH;
	for (int i = 0; i < (KEY_PRINT_BYTES - 1) / 2; i++)
		snprintf(ret_peer->print + 2 * i, 3, "%02x", digest[i]);
	return 0;
}

bool tlscert_accepts(SSL_CTX *ctx, const SSL *ssl)
{
	X509_STORE_CTX *verify = X509_STORE_CTX_new();
	X509 *cert = SSL_get0_peer_certificate(ssl);
	bool is_good = verify && cert &&
		       X509_STORE_CTX_init(verify, SSL_CTX_get_cert_store(ctx), cert,
			       SSL_get_peer_cert_chain(ssl)) &&
		       X509_STORE_CTX_set_default(verify, "ssl_client") &&
		       X509_verify_cert(verify) == 1;

	X509_STORE_CTX_free(verify);
	return is_good;
}
