/* Connection of the control channel: TLS handshake, frames in and out, time limits and states.
 * ctllisten.c accepts connections, ctlclient.c reconnects. All functions run on the event loop's
 * thread. */
#include "common/control/ctlchan.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/state.h"
#include "common/control/ctlchan_impl.h"

#define FLUSH_TIMEOUT_MS 1000
#define STRANGER_BYTES   (CTLFRAME_HEAD_BYTES + CTLFRAME_UNTRUSTED_BYTES)

#define TO(s) (1u << (s))
static const struct state_row states[] = {
	[DIALING] = {"dialing", TO(HANDSHAKE) | TO(TRUSTED) | TO(DEAD)},
	[HANDSHAKE] = {"handshake", TO(UNTRUSTED) | TO(TRUSTED) | TO(DEAD)},
	[UNTRUSTED] = {"untrusted", TO(TRUSTED) | TO(FLUSHING) | TO(DEAD)},
	[TRUSTED] = {"trusted", TO(FLUSHING) | TO(DEAD)},
	[FLUSHING] = {"flushing", TO(DEAD)},
	[DEAD] = {"dead", 0},
};

/* --- states ----------------------------------------------------------------------------------- */

static void chan_change_state(struct ctlchan *c, enum chan_state state, const char *why)
{
	if (!(states[c->state].next & TO(state))) {
		log_error("control channel: ignored an invalid change from state %s to %s (please "
			  "report this bug) peer=%s",
			states[c->state].name, states[state].name, c->peer);
		return;
	}
	log_debug("control channel changes from %s to %s: %s: peer=%s identity=%s",
		states[c->state].name, states[state].name, why, c->peer, c->who.identity);
	c->state = state;
	if (c->listener && state == TRUSTED)
		listen_move_chan(c, &c->listener->trusted);
	else if (c->listener && (state == FLUSHING || state == DEAD))
		listen_move_chan(c, &c->listener->dying);
}

static bool chan_is_established(const struct ctlchan *c)
{
	return c->state == UNTRUSTED || c->state == TRUSTED;
}

void chan_fail(struct ctlchan *c, const char *fmt, ...)
{
	bool is_stranger = c->state == HANDSHAKE || c->state == UNTRUSTED;

	if (c->state == DEAD)
		return;
	if (c->state != FLUSHING)
		format_arguments(c->reason, fmt);
	if (c->listener && is_stranger)
		listen_log_refusal(c->listener, c);
	chan_change_state(c, DEAD, c->reason);
	if (c->dial)
		event_del(c->dial);
	if (c->bev) {
		bufferevent_setcb(c->bev, NULL, NULL, NULL, NULL);
		bufferevent_disable(c->bev, EV_READ | EV_WRITE);
	}
	event_active(c->timer, EV_TIMEOUT, 0);
}

void ctlchan_free(struct ctlchan *c)
{
	if (!c)
		return;
	listen_move_chan(c, NULL);
	if (c->dial) {
		evutil_socket_t fd = event_get_fd(c->dial);

		event_free(c->dial);
		close(fd);
	}
	if (c->timer)
		event_free(c->timer);
	if (c->bev)
		bufferevent_free(c->bev);
	tls_free(c->tls);
	free(c);
}

void chan_reap(struct ctlchan *c)
{
	if (c->has_opened || !c->listener)
		c->ops->closed(c->arg, c, c->reason);
	ctlchan_free(c);
}

static void on_chan_timer_expired(evutil_socket_t fd, short what, void *arg)
{
	struct ctlchan *c = arg;

	(void)fd;
	(void)what;
	switch (c->state) {
	case DIALING:
		chan_fail(c, "cannot connect to %s: no answer in time", c->peer);
		break;
	case HANDSHAKE:
	case UNTRUSTED:
		if (c->listener)
			c->listener->stats.trust_timeouts++;
		chan_fail(c, "%s did not authenticate in time", c->peer);
		break;
	case TRUSTED:
		break;
	case FLUSHING:
		chan_fail(c, "the peer did not close the connection in time");
		break;
	case DEAD:
		chan_reap(c);
		break;
	}
}

/* --- bytes ------------------------------------------------------------------------------------ */

static int chan_parse_next_frame(
	struct ctlchan *c, struct evbuffer *in, struct ctlframe *ret_frame, size_t *ret_bytes)
{
	size_t max = c->state == TRUSTED ? CTLFRAME_MAX_BYTES : CTLFRAME_UNTRUSTED_BYTES;
	size_t have = evbuffer_get_length(in);
	size_t look = have < CTLFRAME_HEAD_BYTES ? have : CTLFRAME_HEAD_BYTES;
	uint8_t *bytes;
	int rc;

	if (look < CTLFRAME_HEAD_BYTES)
		return 0;
	bytes = evbuffer_pullup(in, (ev_ssize_t)look);
	rc = bytes ? ctlframe_parse(bytes, look, max, ret_frame, ret_bytes) : -ENOMEM;
	if (rc != 0 || have < *ret_bytes)
		return rc;
	bytes = evbuffer_pullup(in, (ev_ssize_t)*ret_bytes);
	return bytes ? ctlframe_parse(bytes, *ret_bytes, max, ret_frame, ret_bytes) : -ENOMEM;
}

/* Return a hint for the user if this process has no key and the listener may have one. A listener
 * with a key treats the first frame of a process without a key as an invalid TLS handshake. The
 * listener then closes the connection without an answer. Returns "" if the hint does not apply. */
static const char *chan_missing_key_hint(const struct ctlchan *c)
{
	bool is_turned_away = !c->listener && !c->tls && !c->has_heard;

	return is_turned_away
		       ? " (the peer has sent no valid message on this connection; it may require "
			 "a cluster key, see --key-file)"
		       : "";
}

static void on_chan_readable(struct bufferevent *bev, void *arg)
{
	struct ctlchan *c = arg;
	struct evbuffer *in = bufferevent_get_input(bev);
	struct ctlframe frame;
	size_t n_bytes;
	int rc = 0;

	while (chan_is_established(c) &&
		(rc = chan_parse_next_frame(c, in, &frame, &n_bytes)) > 0) {
		if (c->state == UNTRUSTED && (c->stranger_bytes += n_bytes) > STRANGER_BYTES) {
			rc = -EMSGSIZE;
			break;
		}
		c->has_heard = true;
		c->ops->frame(c->arg, c, frame.type, frame.body, frame.n_body);
		evbuffer_drain(in, n_bytes);
	}
	if (!chan_is_established(c)) {
		evbuffer_drain(in, evbuffer_get_length(in));
	} else if (rc < 0) {
		if (c->listener)
			c->listener->stats.protocol_errors++;
		chan_fail(c, "%s sent an invalid frame: %s%s", c->peer, err_str(rc),
			chan_missing_key_hint(c));
	}
}

static void chan_shutdown_sending(struct ctlchan *c)
{
	shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void on_chan_output_drained(struct bufferevent *bev, void *arg)
{
	struct ctlchan *c = arg;

	(void)bev;
	if (c->state == FLUSHING)
		chan_shutdown_sending(c);
}

void chan_complete_opening(struct ctlchan *c)
{
	if (c->listener) {
		chan_change_state(c, UNTRUSTED, "open");
	} else {
		evtimer_del(c->timer);
		chan_change_state(c, TRUSTED, "open");
	}
	c->has_opened = true;
	c->ops->opened(c->arg, c);
}

static void handshake_failed(struct ctlchan *c, const char *what)
{
	if (c->listener) {
		c->listener->stats.auth_failures++;
		listen_note_refusal(c->listener, c->who.identity);
	}
	chan_fail(c, "TLS with %s failed: %s", c->peer, what);
}

/* Return whether the error is an alert of the peer. An alert has a number of one byte. */
static bool ssl_error_is_alert(unsigned long ssl_error)
{
	int number = ERR_GET_REASON(ssl_error) - SSL_AD_REASON_OFFSET;

	return ERR_GET_LIB(ssl_error) == ERR_LIB_SSL && number >= 0 && number <= UINT8_MAX;
}

/* Return the alert with which the listener has refused this side after the handshake was complete
 * on this side, or 0. If the listener also closes the connection before this side has written its
 * first frame, the write fails before libevent reads the alert. */
static unsigned long chan_find_late_alert(
	const struct ctlchan *c, short what, unsigned long ssl_error)
{
	bool has_write_failed = what & BEV_EVENT_ERROR && !ssl_error;

	if (!c->tls || c->listener || !c->has_opened || c->has_heard)
		return 0;
	if (ssl_error_is_alert(ssl_error))
		return ssl_error;
	if (!(what & BEV_EVENT_EOF) && !has_write_failed)
		return 0;
	return tls_unread_alert(bufferevent_openssl_get_ssl(c->bev));
}

/* Return the error of OpenSSL that the event reports, or 0. libevent 2.1.13 also reports errors of
 * system calls so. *sys gets the number of such an error. */
static unsigned long chan_take_openssl_error(const struct ctlchan *c, int *sys)
{
	unsigned long error = c->tls ? bufferevent_get_openssl_error(c->bev) : 0;

	if (!ERR_SYSTEM_ERROR(error))
		return error;
	*sys = ERR_GET_REASON(error);
	return 0;
}

static void on_chan_bufferevent(struct bufferevent *bev, short what, void *arg)
{
	struct ctlchan *c = arg;
	int sys = EVUTIL_SOCKET_ERROR();
	unsigned long ssl_error = chan_take_openssl_error(c, &sys);
	const SSL *ssl = c->tls ? bufferevent_openssl_get_ssl(bev) : NULL;
	unsigned long alert = chan_find_late_alert(c, what, ssl_error);
	const char *why;

	if (what & BEV_EVENT_CONNECTED) {
		if (c->state != HANDSHAKE)
			return;
		why = tls_rejection_reason(ssl);
		if (why)
			handshake_failed(c, why);
		else
			chan_complete_opening(c);
		/* NOLINTNEXTLINE(bugprone-branch-clone): two different cases need the same call */
	} else if (c->state == HANDSHAKE) {
		handshake_failed(c, tls_failure_text(ssl, ssl_error));
	} else if (c->tls && !c->has_opened && ssl_error) {
		handshake_failed(c, tls_failure_text(ssl, ssl_error));
	} else if (alert) {
		chan_fail(c, "TLS with %s failed: %s", c->peer, tls_failure_text(ssl, alert));
	} else if (what & BEV_EVENT_EOF) {
		chan_fail(c, "%s closed the connection%s", c->peer, chan_missing_key_hint(c));
	} else if (ssl_error) {
		chan_fail(c, "TLS with %s failed: %s", c->peer, tls_failure_text(ssl, ssl_error));
	} else {
		chan_fail(c, "connection to %s lost: %s%s", c->peer,
			strerror(sys ? sys : ECONNRESET), chan_missing_key_hint(c));
	}
}

static struct bufferevent *new_bufferevent(struct ctlchan *c, int fd)
{
	enum bufferevent_ssl_state role =
		c->listener ? BUFFEREVENT_SSL_ACCEPTING : BUFFEREVENT_SSL_CONNECTING;
	struct bufferevent *bev;
	SSL *ssl;

	if (!c->tls)
		return bufferevent_socket_new(c->base, fd, BEV_OPT_CLOSE_ON_FREE);
	ssl = tls_create_session(c->tls, c->listener ? &c->who : NULL);
	if (!ssl)
		return NULL;
	bev = bufferevent_openssl_socket_new(c->base, fd, ssl, role, BEV_OPT_CLOSE_ON_FREE);
	if (bev)
		bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
	return bev;
}

int chan_start_bufferevent(struct ctlchan *c, int fd)
{
	int one = 1;

	/* Turn off Nagle's algorithm, because frames are small and a process waits for each frame.
	 * Ignore a failure, which would only increase the latency. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->bev = new_bufferevent(c, fd);
	if (!c->bev) {
		close(fd);
		return -ENOMEM;
	}
	bufferevent_setcb(c->bev, on_chan_readable, on_chan_output_drained, on_chan_bufferevent, c);
	bufferevent_enable(c->bev, EV_READ | EV_WRITE);
	return 0;
}

struct ctlchan *chan_new(struct event_base *base, const struct sockaddr *sa, socklen_t sa_len,
	enum chan_state state, const struct ctlchan_ops *ops, void *arg)
{
	struct ctlchan *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->base = base;
	c->state = state;
	c->ops = ops;
	c->arg = arg;
	memcpy(&c->peer_sa, sa, sa_len < sizeof(c->peer_sa) ? sa_len : sizeof(c->peer_sa));
	sockaddr_format(sa, c->peer);
	c->born_ms = clock_now_ms();
	c->timer = evtimer_new(base, on_chan_timer_expired, c);
	if (c->timer)
		return c;
	free(c);
	return NULL;
}

int chan_refuse_without_key(
	const struct sockaddr *sa, const char *verb, const char *option, struct err_text *err)
{
	char text[ADDR_TEXT_BYTES];

	if (sockaddr_is_loopback(sa))
		return 0;
	return err_set(err, -EPERM,
		"cannot %s %s: without a cluster key only loopback addresses are allowed (%s)",
		verb, sockaddr_format(sa, text), option);
}

/* --- connector -------------------------------------------------------------------------------- */

static void on_chan_tcp_connected(evutil_socket_t fd, short what, void *arg)
{
	struct ctlchan *c = arg;
	socklen_t len = sizeof(int);
	int error = 0;

	(void)what;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		error = errno;
	if (error) {
		chan_fail(c, "cannot connect to %s: %s", c->peer, strerror(error));
		return;
	}
	event_free(c->dial);
	c->dial = NULL;
	if (c->tls)
		chan_change_state(c, HANDSHAKE, "connected");
	if (chan_start_bufferevent(c, fd))
		chan_fail(c, "out of memory");
	else if (!c->tls)
		chan_complete_opening(c);
}

/* Start to connect. The callback closed() reports every error of connect(2), even if connect(2)
 * fails at once. */
static int chan_start_connect(struct ctlchan *c, const struct sockaddr *sa, socklen_t sa_len)
{
	int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	c->dial = event_new(c->base, fd, EV_WRITE, on_chan_tcp_connected, c);
	if (!c->dial) {
		close(fd);
		return -ENOMEM;
	}
	if (connect(fd, sa, sa_len) && errno != EINPROGRESS)
		chan_fail(c, "cannot connect to %s: %s", c->peer, strerror(errno));
	else
		event_add(c->dial, NULL);
	return 0;
}

int ctlchan_connect(struct ctlchan **ret_chan, struct event_base *base, const struct sockaddr *sa,
	socklen_t sa_len, struct tls *tls, uint32_t timeout_ms, const struct ctlchan_ops *ops,
	void *arg, struct err_text *err)
{
	struct ctlchan *c;
	int rc = tls ? 0 : chan_refuse_without_key(sa, "connect to", "set a key file", err);

	if (rc)
		return rc;
	signal(SIGPIPE, SIG_IGN);
	c = chan_new(base, sa, sa_len, DIALING, ops, arg);
	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->tls = tls_ref(tls);
	chan_timer_start(c->timer, timeout_ms);
	rc = chan_start_connect(c, sa, sa_len);
	if (rc) {
		err_set(err, rc, "cannot connect to %s: %s", c->peer, err_str(rc));
		ctlchan_free(c);
		return rc;
	}
	*ret_chan = c;
	return 0;
}

/* --- use -------------------------------------------------------------------------------------- */

const char *ctlchan_identity(const struct ctlchan *c)
{
	return c->who.identity;
}

const char *ctlchan_fingerprint(const struct ctlchan *c)
{
	return c->who.print;
}

const char *ctlchan_master(const struct ctlchan *c)
{
	return c->who.master;
}

bool ctlchan_uses_master(const struct ctlchan *c)
{
	return c->tls && !tls_has_certificate(c->tls) && strcmp(c->who.print, c->who.master) == 0;
}

bool ctlchan_has_master(const struct ctlchan *c)
{
	return !c->tls || tls_has_certificate(c->tls) || ctlchan_uses_master(c);
}

bool ctlchan_is_expelled(const struct ctlchan *c)
{
	return c->is_expelled;
}

const char *ctlchan_peer_address(const struct ctlchan *c)
{
	return c->peer;
}

void ctlchan_set_data(struct ctlchan *c, void *data)
{
	c->data = data;
}

void *ctlchan_data(const struct ctlchan *c)
{
	return c->data;
}

void ctlchan_set_trusted(struct ctlchan *c)
{
	if (c->state != UNTRUSTED)
		return;
	evtimer_del(c->timer);
	chan_change_state(c, TRUSTED, "registered");
}

int ctlchan_send(struct ctlchan *c, uint16_t type, const void *body, size_t n_body)
{
	struct evbuffer *out;
	uint8_t head[CTLFRAME_HEAD_BYTES];
	int rc;

	if (!chan_is_established(c))
		return BPS_ECLOSED;
	rc = FAILPOINT(CONTROL_SEND);
	if (rc < 0) {
		chan_fail(c, "cannot send: %s", err_str(rc));
		return rc;
	}
	if (n_body > CTLFRAME_MAX_BYTES - 2)
		return -EMSGSIZE;
	out = bufferevent_get_output(c->bev);
	if (evbuffer_get_length(out) + sizeof(head) + n_body > CTLCHAN_MAX_OUT_BYTES) {
		chan_fail(c, "%s receives too slowly: %zu bytes are queued for it", c->peer,
			evbuffer_get_length(out));
		return -ENOBUFS;
	}
	if (evbuffer_expand(out, sizeof(head) + n_body)) {
		chan_fail(c, "out of memory");
		return -ENOMEM;
	}
	ctlframe_write_head(head, type, n_body);
	evbuffer_add(out, head, sizeof(head));
	if (n_body)
		evbuffer_add(out, body, n_body);
	return 0;
}

void ctlchan_close(struct ctlchan *c, const char *fmt, ...)
{
	char reason[ERR_TEXT_BYTES];

	if (c->state == FLUSHING || c->state == DEAD)
		return;
	format_arguments(reason, fmt);
	if (!chan_is_established(c)) {
		chan_fail(c, "%s", reason);
		return;
	}
	memcpy(c->reason, reason, sizeof(reason));
	chan_change_state(c, FLUSHING, reason);
	chan_timer_start(c->timer, FLUSH_TIMEOUT_MS);
	if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
		chan_shutdown_sending(c);
}

void ctlchan_abort(struct ctlchan *c, const char *reason)
{
	chan_fail(c, "%s", reason);
}
