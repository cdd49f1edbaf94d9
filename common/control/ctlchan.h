#ifndef BPS_COMMON_CONTROL_CTLCHAN_H
#define BPS_COMMON_CONTROL_CTLCHAN_H
/* The control channel: frames (common/wire/ctlframe.h) over TCP, with TLS 1.3 and the cluster key
 * (common/control/tls.h). Without a key only loopback addresses are allowed. This module has the
 * code of the listener and of a connection. Both ends of a connection use the same code.
 * common/control/ctlclient.h keeps a connection open and reconnects.
 *
 *   DIALING ──> HANDSHAKE ──> UNTRUSTED ──> TRUSTED ──> FLUSHING ──> DEAD      (each may go DEAD)
 *   connector   TLS only      listener      1 MiB       ctlchan_     closed() runs in the loop's
 *   only                      only, 4 KiB   frames      close        next iteration, then the
 *                                                                    connection is freed
 *
 * The listener limits strangers: peers that have not proven their identity yet, or that the owner
 * has not accepted yet (ctlchan_set_trusted). A connection must become TRUSTED within
 * trust_timeout_ms. The number of untrusted connections is limited, in total and per host. Beyond a
 * limit the oldest untrusted connection is closed, so that silent connections cannot block other
 * peers. But at the total limit, the oldest connection is closed only when its age is at least
 * 200 ms. Until then new connections wait in the kernel's accept queue. So a thousand members that
 * reconnect at once can all connect, one after the other. The bytes of a stranger are limited as
 * well. The limit is 4 KiB until the stranger's handshake is complete (16 KiB with certificates).
 * After the handshake, the limit is 4 KiB of frames until the stranger is trusted. A listener logs
 * at most one refusal per minute.
 *
 * Thread: the event loop's, for all functions. ctllisten_new and ctlchan_connect make the process
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
	/* The connection is open. If there is a key, the peer has proven its identity. */
	void (*opened)(void *arg, struct ctlchan *c);
	/* Called for each frame. body is valid until the callback returns. */
	void (*frame)(
		void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* The connection has ended. closed() is called exactly once for each connection that
	 * ctlchan_connect made, and for each accepted connection for which opened() was called. The
	 * call comes from the event loop or from ctllisten_free. c is freed after closed()
	 * returns. */
	void (*closed)(void *arg, struct ctlchan *c, const char *reason);
};

/* --- listener --------------------------------------------------------------------------------- */

struct ctllisten_conf {
	struct addr addr;                /* listening address; port 0: any free port */
	struct tls_conf auth;            /* credentials; empty: addr must be a loopback address */
	uint32_t trust_timeout_ms;       /* time limit of untrusted connections; 0 means 5000 ms */
	unsigned max_untrusted;          /* limit of untrusted connections in total; 0 means 64 */
	unsigned max_untrusted_per_host; /* limit of untrusted connections per host; 0 means 16 */
};

#define CTLLISTEN_REFUSALS_KEPT  64
#define CTLLISTEN_IDENTITY_BYTES 128

struct ctllisten_stats {
	uint64_t accepted;
	uint64_t auth_failures;      /* TLS handshakes that failed */
	uint64_t protocol_errors;    /* invalid frames, from any peer */
	uint64_t trust_timeouts;     /* connections that did not become trusted in time */
	uint64_t evicted;            /* untrusted connections that were closed for newer ones */
	unsigned untrusted, trusted; /* current numbers of connections */
};

/* Handshake that failed. identity: the identity that the peer has claimed but not proven. */
struct ctllisten_refusal {
	uint64_t at_ms;
	char identity[CTLLISTEN_IDENTITY_BYTES];
};

/* Start to listen. ops must outlive the listener; conf is copied.
 * Errors: -EPERM: there is no key and addr is not a loopback address; -errno. err gets the text. */
int ctllisten_new(struct ctllisten **ret_listen, struct event_base *base,
	const struct ctllisten_conf *conf, const struct ctlchan_ops *ops, void *arg,
	struct err_text *err);

/* Replace the credentials and revocations. Connections whose peer would now be refused are closed.
 * Connections of accepted peers stay open. auth must be empty if and only if the listener was made
 * without credentials. Returns how many connections are being closed.
 * Errors: -EINVAL, -EIO; err gets the text, and the old credentials stay. */
int ctllisten_set_auth(struct ctllisten *l, const struct tls_conf *auth, struct err_text *err);

/* Return the bound port, also when port 0 was requested. */
uint16_t ctllisten_port(const struct ctllisten *l);
void ctllisten_stats(const struct ctllisten *l, struct ctllisten_stats *ret_stats);
/* Write to `ret` the handshakes that failed during the last span_ms, newest first. Handshakes in
 * which the peer claimed no identity are left out. The listener keeps at most
 * CTLLISTEN_REFUSALS_KEPT failures. Returns the number of failures that were written. */
unsigned ctllisten_refusals(const struct ctllisten *l, uint32_t span_ms,
	struct ctllisten_refusal ret[static CTLLISTEN_REFUSALS_KEPT]);

/* Stop listening and close all connections. If opened() was called for a connection, closed() is
 * called for it before ctllisten_free returns. Do not call this function from inside a callback. */
void ctllisten_free(struct ctllisten *l);

/* --- connection ------------------------------------------------------------------------------- */

/* Start to connect. opened() or closed() runs later, never inside this call. The connection is
 * TRUSTED when it opens. `tls` has the credentials; the connection takes a reference. If there is
 * no key, `tls` is NULL and `sa` must be a loopback address. timeout_ms is the time limit for
 * connect and handshake together.
 * Errors: -EPERM: there is no key and sa is not a loopback address; -errno. err gets the text, and
 * no callback runs. */
int ctlchan_connect(struct ctlchan **ret_chan, struct event_base *base, const struct sockaddr *sa,
	socklen_t sa_len, struct tls *tls, uint32_t timeout_ms, const struct ctlchan_ops *ops,
	void *arg, struct err_text *err);

/* Return the identity "role:name" that the peer has proven. On the connecting side,
 * ctlchan_identity, ctlchan_fingerprint and ctlchan_master return "". These functions also return
 * "" if the connection uses no credentials. */
const char *ctlchan_identity(const struct ctlchan *c);
/* Return the fingerprint of the peer's key or certificate. */
const char *ctlchan_fingerprint(const struct ctlchan *c);
/* Return the fingerprint of the peer's master key, or of the master key from which the peer's host
 * key was derived. */
const char *ctlchan_master(const struct ctlchan *c);
/* Return whether the peer has proven its identity with the master key itself. */
bool ctlchan_uses_master(const struct ctlchan *c);
/* Return whether the peer may perform the operations that are reserved for the holder of the master
 * key. Returns true if the peer used the master key. Also returns true if the connection uses
 * certificates or no TLS, because there is no master key in these cases. */
bool ctlchan_has_master(const struct ctlchan *c);
/* Return whether the connection is being closed because the listener no longer accepts the peer's
 * key or certificate (ctllisten_set_auth). */
bool ctlchan_is_expelled(const struct ctlchan *c);
/* Return the peer's address and port, for example "10.0.0.1:4711". */
const char *ctlchan_peer_address(const struct ctlchan *c);

/* Set or return the pointer that the connection's owner stores in the connection. */
void ctlchan_set_data(struct ctlchan *c, void *data);
void *ctlchan_data(const struct ctlchan *c);

/* Mark the peer as accepted by the owner: the limits for strangers no longer apply. */
void ctlchan_set_trusted(struct ctlchan *c);

/* Queue one frame; the bytes are copied.
 * Errors: BPS_ECLOSED: the connection is not open; -EMSGSIZE: the frame is larger than
 * CTLFRAME_MAX_BYTES; -ENOBUFS: the peer does not receive, and CTLCHAN_MAX_OUT_BYTES are queued;
 * -ENOMEM. After -ENOBUFS and -ENOMEM, the connection is being closed. */
int ctlchan_send(struct ctlchan *c, uint16_t type, const void *body, size_t n_body);
#define CTLCHAN_MAX_OUT_BYTES ((size_t)64 << 20)

/* Close the connection when the queued frames are sent, or after a second. No more frames are
 * received. closed() gets the formatted text as its reason. A second call has no effect. */
void ctlchan_close(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Close the connection as ctlchan_close does, but at once. Queued frames are discarded. */
void ctlchan_abort(struct ctlchan *c, const char *reason);

/* Close and free the connection now; closed() does not run. Do not call this function from inside a
 * callback of c. NULL is allowed. */
void ctlchan_free(struct ctlchan *c);
#endif
