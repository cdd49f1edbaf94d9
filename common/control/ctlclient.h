#ifndef BPS_COMMON_CONTROL_CTLCLIENT_H
#define BPS_COMMON_CONTROL_CTLCLIENT_H
/* The end of the control channel that connects, and comes back by itself: at 0, about 100 and about
 * 300 ms after a loss (100 and 300 when it had stood for less than a second), then at random times
 * of up to 1.5 s, so that a thousand agents do not return at once. Who has been told a window to
 * come back (ctlclient_accepted) waits no longer than a quarter of it while it lasts: whoever lives
 * gets its chances, however often its connections are reset. Each attempt takes the next of the
 * given addresses, and the next of the numbers that a name stands for. There is no end to the
 * attempts; the owner gives up by freeing. With two keys (a rotation) attempts take them in turn,
 * the current one first.
 *
 *   WAITING ──> RESOLVING ──> DIALING ──> UP ──> WAITING        (each failure leads to WAITING)
 *                                <────────┘ with a connection that has proved a new key
 *
 * Thread: that of the event loop. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/control/tls.h"

struct event_base;
struct ctlclient;

struct ctlclient_ops {
	/* The connection stands; say hello. */
	void (*up)(void *arg, struct ctlclient *c);
	/* One frame; body is lent for the call. */
	void (*frame)(
		void *arg, struct ctlclient *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* was_up: the connection is lost; else: one more attempt failed. Attempts go on. */
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

/* The first attempt is made at the loop's next turn. ops must outlive the client; conf is copied.
 * Errors: -EINVAL, -ENOMEM, -EIO with a sentence. No callback runs inside. */
int ctlclient_new(struct ctlclient **ret_client, struct event_base *base,
	const struct ctlclient_conf *conf, const struct ctlclient_ops *ops, void *arg,
	struct err_text *err);

/* Prove ourselves by this from now on. When it is up, a second connection is made first, and takes
 * the place of the first one if the other side accepts it: then down() and up() follow at once. If
 * not, what stands stays, and later attempts take the new and the former in turn.
 * auth: copied; empty if and only if it was. Errors: -EINVAL, -EIO with a sentence, nothing has
 * changed. */
int ctlclient_set_auth(struct ctlclient *c, const struct tls_conf *auth, struct err_text *err);

/* The other side has taken us in on this connection, and gives us so long to come back when it is
 * lost; 0: it does not say. */
void ctlclient_accepted(struct ctlclient *c, uint32_t window_ms);

/* As ctlchan_send; BPS_ECLOSED while it is not up. */
int ctlclient_send(struct ctlclient *c, uint16_t type, const void *body, size_t n_body);

/* Drop the connection (no heartbeat came, say); down() runs later, then the attempts begin. */
void ctlclient_drop(struct ctlclient *c, const char *reason);

/* Close without down(); what is still queued is dropped. Not from inside a callback. NULL is
 * allowed. */
void ctlclient_free(struct ctlclient *c);
#endif
