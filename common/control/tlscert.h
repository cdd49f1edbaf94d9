#ifndef BPS_COMMON_CONTROL_TLSCERT_H
#define BPS_COMMON_CONTROL_TLSCERT_H
/* The part of common/control/tls.h for certificates: mutual, signed by an authority of the site.
 * Who a peer is stands in its certificate's subject, one CN "role:name": "server:node3",
 * "agent:node7", "ctl:alice", "scheduler:bps"; a client talks to a scheduler only. Revocation lists
 * are looked at when the file of the authorities holds one.
 *
 * Thread: as common/control/tls.h. */
#include <openssl/ssl.h>

#include "common/base/error.h"
#include "common/control/tls.h"

/* who: what our own certificate must say, "role:name" or the role alone ("ctl:"); NULL: anything.
 * Errors: -EINVAL or -EPERM with a sentence that names the file. */
int tlscert_set_up(
	SSL_CTX *ctx, const struct tls_conf *conf, const char *who, struct err_text *err);

/* Who the peer of a complete handshake is. Errors: BPS_EAUTH nobody by our rules. */
int tlscert_peer(const SSL *ssl, struct tls_peer *ret_peer);

/* Would that peer's certificate be accepted under ctx, too? */
bool tlscert_accepts(SSL_CTX *ctx, const SSL *ssl);
#endif
