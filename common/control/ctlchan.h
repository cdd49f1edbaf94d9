#ifndef BPS_COMMON_CONTROL_CTLCHAN_H
#define BPS_COMMON_CONTROL_CTLCHAN_H
/* The control channel: frames (common/wire/ctlframe.h) over TCP, with TLS 1.3 and the cluster key
 * (common/control/tls.h), or without a key and then on loopback addresses only. This is one
 * connection, either end, and the listener; the end that connects and comes back is
 * common/control/ctlclient.h.
 *
 *   DIALING ──> HANDSHAKE ──> UNTRUSTED ──> TRUSTED ──> FLUSHING ──> DEAD      (each may go DEAD)
 *   connector   TLS only      listener      1 MiB       ctlchan_     closed() runs on the next
 *   only                      only, 4 KiB   frames      close        turn of the loop, then freed
 *
 * The listener bounds what strangers get: a connection must become TRUSTED within a time, and only
 * so many are not, in all and per host; beyond that the oldest gives way, so that silent
 * connections keep nobody out. Of all it gives way only after 200 ms, and new ones wait meanwhile
 * in the system's queue: a thousand members that come back at once get through one after the other.
 * A stranger's bytes are bounded, too: 4 KiB before its handshake is complete (16 KiB with
 * certificates), and 4 KiB of frames before it is trusted. What is refused makes one log line per
 * minute and listener.
 *
 * Thread: that of the event loop, for all of it. SIGPIPE is ignored in the process from the first
 * listener or connection on. */
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
	/* The connection stands, and with a key the peer has proven its identity. */
	void (*opened)(void *arg, struct ctlchan *c);
	/* One frame; body is lent for the call. */
	void (*frame)(
		void *arg, struct ctlchan *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* The end, exactly once: for each connection that opened, and at a connector for each one.
	 * Never from inside a call of this module but the two _free. c is gone after it. */
	void (*closed)(void *arg, struct ctlchan *c, const char *reason);
};

/* --- listener --------------------------------------------------------------------------------- */

struct ctllisten_conf {
	struct addr addr;                /* port 0: any */
	struct tls_conf auth;            /* empty: addr must be a loopback address */
	uint32_t trust_timeout_ms;       /* 0: 5000 */
	unsigned max_untrusted;          /* 0: 64 */
	unsigned max_untrusted_per_host; /* 0: 16 */
};

#define CTLLISTEN_REFUSALS_KEPT  64
#define CTLLISTEN_IDENTITY_BYTES 128

struct ctllisten_stats {
	uint64_t accepted;
	uint64_t auth_failures;      /* TLS handshakes that failed */
	uint64_t protocol_errors;    /* impossible frames, of anyone */
	uint64_t trust_timeouts;     /* not trusted in time */
	uint64_t evicted;            /* untrusted, gave way to newer ones */
	unsigned untrusted, trusted; /* now */
};

/* A handshake that failed. identity: what the peer claimed to be; anybody may claim it. */
struct ctllisten_refusal {
	uint64_t at_ms;
	char identity[CTLLISTEN_IDENTITY_BYTES];
};

/* Start to listen. ops and conf: ops must outlive the listener, conf is copied.
 * Errors: -EPERM no key and not loopback; -errno; all with a sentence. */
int ctllisten_new(struct ctllisten **ret_listen, struct event_base *base,
	const struct ctllisten_conf *conf, const struct ctlchan_ops *ops, void *arg,
	struct err_text *err);

/* Change what counts: keys, revocations. Connections that would not be taken again are closed;
 * those that would stay. auth must be empty if and only if the listener was made without.
 * Returns how many are being closed. Errors: -EINVAL, -EIO with a sentence; all stays as it was. */
int ctllisten_set_auth(struct ctllisten *l, const struct tls_conf *auth, struct err_text *err);

/* The bound port, also when 0 was asked for. */
uint16_t ctllisten_port(const struct ctllisten *l);
void ctllisten_stats(const struct ctllisten *l, struct ctllisten_stats *ret_stats);
/* How many of the last CTLLISTEN_REFUSALS_KEPT handshakes that failed are at most span_ms old and
 * of a peer that claimed an identity; these go to ret, newest first. */
unsigned ctllisten_refusals(const struct ctllisten *l, uint32_t span_ms,
	struct ctllisten_refusal ret[static CTLLISTEN_REFUSALS_KEPT]);

/* Stop listening and close all connections; closed() runs for each before this returns. Not from
 * inside a callback. */
void ctllisten_free(struct ctllisten *l);

/* --- connection ------------------------------------------------------------------------------- */

/* Connect; opened() or closed() follows, never at once. The connection is TRUSTED once it stands.
 * tls: shared; NULL: no key, sa must be a loopback address.
 * timeout_ms: for connect and handshake together.
 * Errors: -EPERM no key and not loopback; -errno; with a sentence, and no callback runs. */
int ctlchan_connect(struct ctlchan **ret_chan, struct event_base *base, const struct sockaddr *sa,
	socklen_t sa_len, struct tls *tls, uint32_t timeout_ms, const struct ctlchan_ops *ops,
	void *arg, struct err_text *err);

/* "role:name" that the peer has proven; "" at the connector and without a key. */
const char *ctlchan_identity(const struct ctlchan *c);
/* Fingerprint of its key or certificate; "" likewise. */
const char *ctlchan_print(const struct ctlchan *c);
/* Fingerprint of the master key that the peer has or has its own from; "" likewise. */
const char *ctlchan_master(const struct ctlchan *c);
/* It has the master key itself, or there is none: no keys, or certificates. */
bool ctlchan_has_master(const struct ctlchan *c);
/* It ends because its key is not accepted any more (ctllisten_set_auth). */
bool ctlchan_is_expelled(const struct ctlchan *c);
/* "10.0.0.1:4711", of the peer. */
const char *ctlchan_peer(const struct ctlchan *c);

/* A pointer of the user's. */
void ctlchan_set_data(struct ctlchan *c, void *data);
void *ctlchan_data(const struct ctlchan *c);

/* The application knows the peer now: lifts the limits of strangers. */
void ctlchan_set_trusted(struct ctlchan *c);

/* Queue one frame; the bytes are copied.
 * Errors: BPS_ECLOSED it is not open (any more); -EMSGSIZE above CTLFRAME_MAX_BYTES; -ENOBUFS the
 * peer does not read, CTLCHAN_MAX_OUT_BYTES wait: the connection is being closed; -ENOMEM: so
 * too. */
int ctlchan_send(struct ctlchan *c, uint16_t type, const void *body, size_t n_body);
#define CTLCHAN_MAX_OUT_BYTES ((size_t)64 << 20)

/* Close after what is queued has gone out, within a second; closed() gets the sentence. Nothing is
 * received any more. A second close is ignored. */
void ctlchan_close(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* As ctlchan_close, but now: what is queued is dropped. */
void ctlchan_abort(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Close and free now, without closed(). Not from inside a callback of c. NULL is allowed. */
void ctlchan_free(struct ctlchan *c);
#endif
