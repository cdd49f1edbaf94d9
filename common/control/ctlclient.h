#ifndef BPS_COMMON_CONTROL_CTLCLIENT_H
#define BPS_COMMON_CONTROL_CTLCLIENT_H
/* The connecting end of the control channel, which reconnects by itself. After a connection is
 * lost, the client makes three attempts to reconnect. The pauses before these attempts are 0, about
 * 100 ms and about 200 ms. If the lost connection was open for less than a second, the client omits
 * the immediate attempt. Before each further attempt, the client pauses for a random time of up to
 * 1.5 s. So a thousand agents do not reconnect at the same time. The peer may have sent a window,
 * which is the time in which the peer expects a reconnect (ctlclient_accepted). Within the window a
 * pause is at most a quarter of the window, so that the client makes several attempts. If the
 * address is a name with several results, the client tries them one after the other. During a
 * rotation the client has two keys. It tries all results first with the current key, and then with
 * the other key. Attempts continue until the owner frees the client.
 *
 *   WAITING ──> RESOLVING ──> DIALING ──> UP ──> WAITING        (each failure leads to WAITING)
 *                                <────────┘ a second connection replaces the first, because the
 *                                           peer accepts the new key
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
	/* Called for each frame. The buffer `body` is valid until the callback returns. */
	void (*frame)(
		void *arg, struct ctlclient *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* Called when an open connection was lost (was_up is true) or an attempt has failed (was_up
	 * is false). The client continues its attempts. */
	void (*down)(void *arg, struct ctlclient *c, const char *reason, bool was_up);
};

struct ctlclient_conf {
	struct addr addr;
	struct tls_conf auth; /* credentials; empty: only loopback addresses are allowed */
	/* Identity such as "server:node7"; needed only until ctlclient_new returns */
	const char *identity;
	uint32_t attempt_timeout_ms; /* time limit for connect and handshake; 0: 2000 ms */
};

/* Make a client. The first attempt starts in the next iteration of the event loop, so no callback
 * runs inside this call. ops must outlive the client; conf is copied.
 * Errors: -EINVAL, -ENOMEM, -EIO; err gets the text. */
int ctlclient_new(struct ctlclient **ret_client, struct event_base *base,
	const struct ctlclient_conf *conf, const struct ctlclient_ops *ops, void *arg,
	struct err_text *err);

/* Change the key. While a connection is up, the client opens a second connection with the new key.
 * If the peer accepts the new key, the second connection replaces the first: down() and up() run,
 * one after the other. If the peer refuses the new key, the first connection stays, and later
 * attempts use the new and the old key. auth: copied; must be empty if and only if the client was
 * made without credentials.
 * Errors: -EINVAL, -EIO; err gets the text, and the client keeps its key. */
int ctlclient_set_auth(struct ctlclient *c, const struct tls_conf *auth, struct err_text *err);

/* Record that the peer has accepted this process on the current connection. window_ms: time in
 * which the peer expects a reconnect after a loss; 0: unknown. */
void ctlclient_accepted(struct ctlclient *c, uint32_t window_ms);

/* Send a frame as ctlchan_send does. Returns BPS_ECLOSED while the client is not up. */
int ctlclient_send(struct ctlclient *c, uint16_t type, const void *body, size_t n_body);

/* Close the connection, for example when heartbeats are missing. The client later calls down() and
 * starts to reconnect. */
void ctlclient_drop(struct ctlclient *c, const char *reason);

/* Close the connection and free the client; down() does not run, and queued frames are discarded.
 * Do not call this function from inside a callback. NULL is allowed. */
void ctlclient_free(struct ctlclient *c);
#endif
