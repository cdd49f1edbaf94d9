#ifndef BPS_COMMON_CONTROL_TLSCERT_H
#define BPS_COMMON_CONTROL_TLSCERT_H
/* Certificates for common/control/tls.h: mutual, signed by an authority of the site. The identity
 * of a peer is its certificate's subject, one CN "role:name": "server:node3", "agent:node7",
 * "ctl:alice", "scheduler:bps". A client accepts only a scheduler. Revocation lists are checked
 * when the file of the authorities holds one.
 *
 * Thread: same as common/control/tls.h. */
#include <openssl/ssl.h>

#include "common/base/error.h"
#include "common/control/tls.h"

/* Load certificate, key and authorities into ctx. who: identity that our own certificate must have,
 * "role:name" or the role alone ("ctl:"); NULL: any.
 * Errors: -EINVAL or -EPERM with a sentence that names the file. */
int tlscert_set_up(
	SSL_CTX *ctx, const struct tls_conf *conf, const char *who, struct err_text *err);

/* Read the identity of the peer of a complete handshake.
 * Errors: BPS_EAUTH no valid identity. */
int tlscert_peer(const SSL *ssl, struct tls_peer *ret_peer);

/* Return whether ctx would accept that peer's certificate, too. */
bool tlscert_accepts(SSL_CTX *ctx, const SSL *ssl);
#endif
