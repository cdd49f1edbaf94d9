#ifndef BPS_COMMON_CONTROL_CTLCLIENT_H
#define BPS_COMMON_CONTROL_CTLCLIENT_H
/* The connecting end of the control channel; it reconnects by itself. Attempts follow at 0, about
 * 100 and about 300 ms after a loss (100 and 300 when the connection was open for less than a
 * second). Later attempts come at random times of up to 1.5 s, so that a thousand agents do not
 * return at once. When the peer has sent a window to come back (ctlclient_accepted), a pause within
 * it is at most a quarter of it. So a live process gets several attempts, however often its
 * connections are reset. Each attempt takes the next of the given addresses, and the next address
 * that a name resolves to. Attempts do not end; to give up, the owner frees the client. With two
 * keys (a rotation) attempts use them in turn, the current one first.
 *
 *   WAITING ──> RESOLVING ──> DIALING ──> UP ──> WAITING        (each failure leads to WAITING)
 *                                <────────┘ with a connection that has proved a new key
 *
 * Thread: the event loop's. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/control/tls.h"

struct event_base;
struct ctlclient;

struct ctlclient_ops {
	/* The connection is open; send the first message. */
	void (*up)(void *arg, struct ctlclient *c);
	/* Called for each frame; body is lent for the call. */
	void (*frame)(
		void *arg, struct ctlclient *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* was_up: the connection was lost; else one more attempt failed. Attempts continue. */
	void (*down)(void *arg, struct ctlclient *c, const char *reason, bool was_up);
};

#define CTLCLIENT_MAX_ADDRS 8

struct ctlclient_conf {
	struct addr addrs[CTLCLIENT_MAX_ADDRS];
	size_t n_addrs;
	struct tls_conf auth;        /* empty: loopback addresses only */
	const char *identity;        /* "server:node7"; lent for ctlclient_new */
	uint32_t attempt_timeout_ms; /* connect and handshake; 0: 2000 */
};

/* Make a client; its first attempt runs in the loop's next turn. ops must outlive the client; conf
 * is copied.
 * Errors: -EINVAL, -ENOMEM, -EIO with a sentence. No callback runs inside. */
int ctlclient_new(struct ctlclient **ret_client, struct event_base *base,
	const struct ctlclient_conf *conf, const struct ctlclient_ops *ops, void *arg,
	struct err_text *err);

/* Change the key. While the client is up, it first opens a second connection with the new key. If
 * the peer accepts it, it replaces the first: down() and up() follow at once. If not, the open
 * connection stays, and later attempts use the new and the old key in turn.
 * auth: copied; empty if and only if it was empty before.
 * Errors: -EINVAL, -EIO with a sentence, nothing has changed. */
int ctlclient_set_auth(struct ctlclient *c, const struct tls_conf *auth, struct err_text *err);

/* Record that the peer has accepted us on this connection. window_ms: time to reconnect after a
 * loss; 0: unknown. */
void ctlclient_accepted(struct ctlclient *c, uint32_t window_ms);

/* Send like ctlchan_send; BPS_ECLOSED while the client is not up. */
int ctlclient_send(struct ctlclient *c, uint16_t type, const void *body, size_t n_body);

/* Drop the connection, for example when heartbeats are missing. down() runs later, then attempts
 * start. */
void ctlclient_drop(struct ctlclient *c, const char *reason);

/* Close without down(); queued frames are discarded. Do not call it from inside a callback. NULL is
 * allowed. */
void ctlclient_free(struct ctlclient *c);
#endif
