#ifndef BPS_COMMON_CONTROL_TLSCERT_H
#define BPS_COMMON_CONTROL_TLSCERT_H
/* Certificates for common/control/tls.h. Each side has a certificate that an authority of the site
 * has signed. The identity of a peer is the CN in the subject of its certificate. The identity has
 * the form "role:name". Examples are "server:node3", "agent:node7", "ctl:alice" and
 * "scheduler:bps". A client accepts only a scheduler. Revocation lists are checked if the file with
 * the authorities contains a revocation list.
 *
 * Thread: the event loop's. */
#include <openssl/ssl.h>

#include "common/base/error.h"
#include "common/control/tls.h"

/* Load this side's certificate, its key and the authorities into ctx. who: identity that the
 * certificate must have, as "role:name" or as a role alone ("ctl:"). If `who` is NULL, the
 * certificate may have any identity. Errors: -EINVAL or -EPERM; err gets a text that names the
 * file. */
int tlscert_set_up(
	SSL_CTX *ctx, const struct tls_conf *conf, const char *who, struct err_text *err);

/* Read identity and fingerprint of the peer's certificate after a complete handshake.
 * Errors: BPS_EAUTH: the certificate has no valid identity. */
int tlscert_read_peer(const SSL *ssl, struct tls_peer *ret_peer);

/* Return whether the authorities of ctx accept the certificate that the peer of ssl has sent. */
bool tlscert_accepts(SSL_CTX *ctx, const SSL *ssl);
#endif
