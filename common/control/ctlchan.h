#ifndef BPS_COMMON_CONTROL_CTLCHAN_H
#define BPS_COMMON_CONTROL_CTLCHAN_H
/* The control channel: frames (common/wire/ctlframe.h) over TCP, with TLS 1.3 and the cluster key
 * (common/control/tls.h). Without a key only loopback addresses are allowed. This module has one
 * connection, either end, and the listener; common/control/ctlclient.h is the end that connects and
 * reconnects.
 *
 *   DIALING ──> HANDSHAKE ──> UNTRUSTED ──> TRUSTED ──> FLUSHING ──> DEAD      (each may go DEAD)
 *   connector   TLS only      listener      1 MiB       ctlchan_     closed() runs on the next
 *   only                      only, 4 KiB   frames      close        turn of the loop, then freed
 *
 * The listener limits strangers. A connection must become TRUSTED within a time. The number of
 * untrusted connections is limited, in total and per host. Beyond a limit the oldest is closed, so
 * that silent connections block no peer. For the total limit, a connection is closed only after 200
 * ms, and new ones wait meanwhile in the system's queue. So a thousand members that reconnect at
 * once all get through, one after the other. A stranger's bytes are limited, too: 4 KiB before its
 * handshake is complete (16 KiB with certificates), and 4 KiB of frames before it is trusted.
 * Refusals are logged once per minute and listener.
 *
 * Thread: the event loop's, for all functions. The first listener or connection makes the process
 * ignore SIGPIPE. */
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/addr.h"
#include "common/base/error.h"
#include "common/control/tls.h"
#include "common/wire/ctlframe.h"

struct event_base;
struct ctlchan;
struct ctllisten;

struct ctlchan_ops {
	/* The connection is open, and with a key the peer has proven its identity. */
	void (*opened)(void *arg, struct ctlchan *c);
	/* Called for each frame; body is lent for the call. */
	void (*frame)(
		void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* The connection has ended. Called exactly once: for each connection that opened, and for
	 * every connection of a connector. Never called from inside a function of this module,
	 * except the two _free. c is freed when it returns. */
	void (*closed)(void *arg, struct ctlchan *c, const char *reason);
};

/* --- listener --------------------------------------------------------------------------------- */

struct ctllisten_conf {
	struct addr addr;                /* port 0: any free port */
	struct tls_conf auth;            /* empty: addr must be a loopback address */
	uint32_t trust_timeout_ms;       /* 0: the default, 5000 */
	unsigned max_untrusted;          /* 0: the default, 64 */
	unsigned max_untrusted_per_host; /* 0: the default, 16 */
};

#define CTLLISTEN_REFUSALS_KEPT  64
#define CTLLISTEN_IDENTITY_BYTES 128

struct ctllisten_stats {
	uint64_t accepted;
	uint64_t auth_failures;      /* TLS handshakes that failed */
	uint64_t protocol_errors;    /* invalid frames, from any peer */
	uint64_t trust_timeouts;     /* connections not trusted in time */
	uint64_t evicted;            /* untrusted, closed for newer ones */
	unsigned untrusted, trusted; /* current numbers */
};

/* A handshake that failed. identity: the peer's unproven claim. */
struct ctllisten_refusal {
	uint64_t at_ms;
	char identity[CTLLISTEN_IDENTITY_BYTES];
};

/* Start to listen. ops must outlive the listener; conf is copied.
 * Errors: -EPERM no key and not loopback; -errno; all with a sentence. */
int ctllisten_new(struct ctllisten **ret_listen, struct event_base *base,
	const struct ctllisten_conf *conf, const struct ctlchan_ops *ops, void *arg,
	struct err_text *err);

/* Replace keys and revocations. Connections that would now be refused are closed, the others stay.
 * auth must be empty if and only if the listener was made without a key.
 * Returns how many are being closed.
 * Errors: -EINVAL, -EIO with a sentence; nothing has changed. */
int ctllisten_set_auth(struct ctllisten *l, const struct tls_conf *auth, struct err_text *err);

/* Return the bound port, also when port 0 was requested. */
uint16_t ctllisten_port(const struct ctllisten *l);
void ctllisten_stats(const struct ctllisten *l, struct ctllisten_stats *ret_stats);
/* How many of the last CTLLISTEN_REFUSALS_KEPT handshakes that failed are at most span_ms old and
 * of a peer that claimed an identity; these go to ret, newest first. */
unsigned ctllisten_refusals(const struct ctllisten *l, uint32_t span_ms,
	struct ctllisten_refusal ret[static CTLLISTEN_REFUSALS_KEPT]);

/* Stop listening and close all connections; closed() runs for each before this returns. Do not call
 * it from inside a callback. */
void ctllisten_free(struct ctllisten *l);

/* --- connection ------------------------------------------------------------------------------- */

/* Connect; opened() or closed() follows, never from inside this call. The connection is TRUSTED
 * when it opens. tls: shared; NULL: no key, sa must be a loopback address. timeout_ms: for connect
 * and handshake together.
 * Errors: -EPERM no key and not loopback; -errno; with a sentence, and no callback runs. */
int ctlchan_connect(struct ctlchan **ret_chan, struct event_base *base, const struct sockaddr *sa,
	socklen_t sa_len, struct tls *tls, uint32_t timeout_ms, const struct ctlchan_ops *ops,
	void *arg, struct err_text *err);

/* Return the "role:name" that the peer has proven; "" at the connector and without a key. */
const char *ctlchan_identity(const struct ctlchan *c);
/* Return the fingerprint of the peer's key or certificate; "" at the connector and without a
 * key. */
const char *ctlchan_print(const struct ctlchan *c);
/* Return the fingerprint of the master key that the peer has, or that its key was derived from; ""
 * at the connector and without a key. */
const char *ctlchan_master(const struct ctlchan *c);
/* Return whether the peer proved with the master key itself who it is. */
bool ctlchan_uses_master(const struct ctlchan *c);
/* Return whether the peer has the master key itself, or no master key exists: no keys, or
 * certificates. */
bool ctlchan_has_master(const struct ctlchan *c);
/* Return whether the connection is being closed because its key is no longer accepted
 * (ctllisten_set_auth). */
bool ctlchan_is_expelled(const struct ctlchan *c);
/* Return the peer's address: "10.0.0.1:4711". */
const char *ctlchan_peer(const struct ctlchan *c);

/* Attach a pointer for the user of the connection. */
void ctlchan_set_data(struct ctlchan *c, void *data);
void *ctlchan_data(const struct ctlchan *c);

/* Mark the peer as known to the application: the limits for strangers no longer apply. */
void ctlchan_set_trusted(struct ctlchan *c);

/* Queue one frame; the bytes are copied.
 * Errors: BPS_ECLOSED the connection is not open; -EMSGSIZE above CTLFRAME_MAX_BYTES; -ENOBUFS the
 * peer does not read, CTLCHAN_MAX_OUT_BYTES are queued; -ENOMEM. After the last two the connection
 * is being closed. */
int ctlchan_send(struct ctlchan *c, uint16_t type, const void *body, size_t n_body);
#define CTLCHAN_MAX_OUT_BYTES ((size_t)64 << 20)

/* Close after the queued frames are sent, within a second; closed() gets the sentence. Nothing more
 * is received. A second close is ignored. */
void ctlchan_close(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Close like ctlchan_close, but at once: queued frames are discarded. */
void ctlchan_abort(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Close and free now, without closed(). Do not call it from inside a callback of c. NULL is
 * allowed. */
void ctlchan_free(struct ctlchan *c);
#endif
