#include "common/ctlchan.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/listener.h>

#include "common/clock.h"
#include "common/log.h"

#define FLUSH_TIMEOUT_MS       1000
#define TRUST_TIMEOUT_MS       5000
#define MAX_UNTRUSTED          64
#define MAX_UNTRUSTED_PER_HOST 16
#define REFUSAL_LOG_MS         60000
#define ACCEPT_PAUSE_MS        100 /* after accept failed, out of descriptors most likely */
#define LISTEN_BACKLOG         512

enum state { DIALING, HANDSHAKE, UNTRUSTED, TRUSTED, FLUSHING, DEAD };

#define TO(s) (1u << (s))
static const struct {
	const char *name;
	unsigned next; /* states that may follow */
} states[] = {
	[DIALING] = {"dialing", TO(HANDSHAKE) | TO(TRUSTED) | TO(DEAD)},
	[HANDSHAKE] = {"handshake", TO(UNTRUSTED) | TO(TRUSTED) | TO(DEAD)},
	[UNTRUSTED] = {"untrusted", TO(TRUSTED) | TO(FLUSHING) | TO(DEAD)},
	[TRUSTED] = {"trusted", TO(FLUSHING) | TO(DEAD)},
	[FLUSHING] = {"flushing", TO(DEAD)},
	[DEAD] = {"dead", 0},
};

TAILQ_HEAD(chan_list, ctlchan);

struct ctlchan {
	TAILQ_ENTRY(ctlchan) link; /* in one list of the listener */
	struct chan_list *list;    /* NULL at the connector */
	struct ctllisten *listener;
	struct event_base *base;
	struct bufferevent *bev;
	struct event *timer; /* the state's deadline; in DEAD it runs at once and frees */
	struct event *dial;  /* DIALING: writable means connected */
	struct tls *tls;
	const struct ctlchan_ops *ops;
	void *arg;
	void *data;
	enum state state;
	bool has_opened;
	struct tls_peer who;
	char peer[ADDR_TEXT_BYTES];
	struct sockaddr_storage peer_sa;
	char reason[ERR_TEXT_BYTES];
};

struct ctllisten {
	struct event_base *base;
	struct evconnlistener *listener;
	struct event *resume; /* ends a pause of accepting */
	struct tls *tls;
	struct ctllisten_conf conf;
	const struct ctlchan_ops *ops;
	void *arg;
	struct chan_list untrusted; /* oldest first */
	struct chan_list trusted;
	struct chan_list dying;
	struct ctllisten_stats stats;
	uint64_t next_log_ms;
	unsigned n_unlogged;
};

static void arm(struct event *timer, uint32_t ms)
{
	struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};

	evtimer_add(timer, &tv);
}

/* --- states ----------------------------------------------------------------------------------- */

static void move_to_list(struct ctlchan *c, struct chan_list *list)
{
	if (!c->listener)
		return;
	if (c->list)
		TAILQ_REMOVE(c->list, c, link);
	if (c->list == &c->listener->untrusted)
		c->listener->stats.untrusted--;
	else if (c->list == &c->listener->trusted)
		c->listener->stats.trusted--;
	c->list = list;
	if (list)
		TAILQ_INSERT_TAIL(list, c, link);
	if (list == &c->listener->untrusted)
		c->listener->stats.untrusted++;
	else if (list == &c->listener->trusted)
		c->listener->stats.trusted++;
}

static void set_state(struct ctlchan *c, enum state state, const char *why)
{
	if (!(states[c->state].next & TO(state))) {
		log_error("control channel: forbidden step from %s to %s peer=%s",
			states[c->state].name, states[state].name, c->peer);
		return;
	}
	log_debug("control channel: %s to %s: %s peer=%s identity=%s", states[c->state].name,
		states[state].name, why, c->peer, c->who.identity);
	c->state = state;
	if (c->listener && state == TRUSTED)
		move_to_list(c, &c->listener->trusted);
	else if (c->listener && (state == FLUSHING || state == DEAD))
		move_to_list(c, &c->listener->dying);
}

static bool is_open(const struct ctlchan *c)
{
	return c->state == UNTRUSTED || c->state == TRUSTED;
}

static void log_refusal(struct ctllisten *l, const struct ctlchan *c)
{
	uint64_t now = clock_now_ms();

	if (now < l->next_log_ms) {
		l->n_unlogged++;
		return;
	}
	log_warn("control channel: refused a connection: %s peer=%s identity=%s unlogged_before=%u",
		c->reason, c->peer, c->who.identity, l->n_unlogged);
	l->next_log_ms = now + REFUSAL_LOG_MS;
	l->n_unlogged = 0;
}

/* End the connection now. The callback and the freeing wait for the loop's next turn, because the
 * caller may be a callback of this very connection. */
static void __attribute__((format(printf, 2, 3))) fail(struct ctlchan *c, const char *fmt, ...)
{
	bool is_stranger = c->state == HANDSHAKE || c->state == UNTRUSTED;
	va_list ap;

	if (c->state == DEAD)
		return;
	if (c->state != FLUSHING) {
		va_start(ap, fmt);
		vsnprintf(c->reason, sizeof(c->reason), fmt, ap);
		va_end(ap);
	}
	if (c->listener && is_stranger)
		log_refusal(c->listener, c);
	set_state(c, DEAD, c->reason);
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
	move_to_list(c, NULL);
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

static void reap(struct ctlchan *c)
{
	if (c->has_opened || !c->listener)
		c->ops->closed(c->arg, c, c->reason);
	ctlchan_free(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct ctlchan *c = arg;

	(void)fd;
	(void)what;
	switch (c->state) {
	case DIALING:
		fail(c, "cannot connect to %s: no answer in time", c->peer);
		break;
	case HANDSHAKE:
	case UNTRUSTED:
		if (c->listener)
			c->listener->stats.trust_timeouts++;
		fail(c, "%s did not authenticate in time", c->peer);
		break;
	case TRUSTED:
		break;
	case FLUSHING:
		fail(c, "the peer did not hang up");
		break;
	case DEAD:
		reap(c);
		break;
	}
}

/* --- bytes ------------------------------------------------------------------------------------ */

static int next_frame(
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

static void on_read(struct bufferevent *bev, void *arg)
{
	struct ctlchan *c = arg;
	struct evbuffer *in = bufferevent_get_input(bev);
	struct ctlframe frame;
	size_t n_bytes;
	int rc = 0;

	while (is_open(c) && (rc = next_frame(c, in, &frame, &n_bytes)) > 0) {
		c->ops->frame(c->arg, c, frame.type, frame.body, frame.n_body);
		evbuffer_drain(in, n_bytes);
	}
	if (!is_open(c)) {
		evbuffer_drain(in, evbuffer_get_length(in));
	} else if (rc < 0) {
		if (c->listener)
			c->listener->stats.protocol_errors++;
		fail(c, "%s sent an impossible frame: %s", c->peer, err_str(rc));
	}
}

static void hang_up(struct ctlchan *c)
{
	shutdown(bufferevent_getfd(c->bev), SHUT_WR);
}

static void on_drained(struct bufferevent *bev, void *arg)
{
	struct ctlchan *c = arg;

	(void)bev;
	if (c->state == FLUSHING)
		hang_up(c);
}

static void opened(struct ctlchan *c)
{
	if (c->listener) {
		set_state(c, UNTRUSTED, "open");
	} else {
		evtimer_del(c->timer);
		set_state(c, TRUSTED, "open");
	}
	c->has_opened = true;
	c->ops->opened(c->arg, c);
}

static void handshake_failed(struct ctlchan *c, const char *what)
{
	if (c->listener)
		c->listener->stats.auth_failures++;
	fail(c, "TLS with %s failed: %s", c->peer, what);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
	struct ctlchan *c = arg;
	int sys = EVUTIL_SOCKET_ERROR();
	unsigned long ssl_error = c->tls ? bufferevent_get_openssl_error(bev) : 0;

	if (what & BEV_EVENT_CONNECTED) {
		if (c->state != HANDSHAKE)
			return;
		if (tls_is_proven(bufferevent_openssl_get_ssl(bev)))
			opened(c);
		else
			handshake_failed(c, "the peer did not use the cluster key");
		/* NOLINTNEXTLINE(bugprone-branch-clone): two cases that end alike */
	} else if (c->state == HANDSHAKE) {
		handshake_failed(c, tls_failure(ssl_error));
	} else if (c->tls && !c->has_opened && ssl_error) {
		handshake_failed(c, tls_failure(ssl_error));
	} else if (what & BEV_EVENT_EOF) {
		fail(c, "%s closed the connection", c->peer);
	} else if (ssl_error) {
		fail(c, "TLS with %s failed: %s", c->peer, tls_failure(ssl_error));
	} else {
		fail(c, "connection to %s lost: %s", c->peer, strerror(sys ? sys : ECONNRESET));
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
	ssl = tls_session(c->tls, c->listener ? &c->who : NULL);
	if (!ssl)
		return NULL;
	bev = bufferevent_openssl_socket_new(c->base, fd, ssl, role, BEV_OPT_CLOSE_ON_FREE);
	if (bev)
		bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
	return bev;
}

/* The TCP connection stands; fd is taken, also on failure. */
static int start(struct ctlchan *c, int fd)
{
	int one = 1;

	/* Frames are small and waited for; failure costs latency only. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	c->bev = new_bufferevent(c, fd);
	if (!c->bev) {
		close(fd);
		return -ENOMEM;
	}
	bufferevent_setcb(c->bev, on_read, on_drained, on_event, c);
	bufferevent_enable(c->bev, EV_READ | EV_WRITE);
	return 0;
}

static struct ctlchan *chan_new(struct event_base *base, const struct sockaddr *sa,
	socklen_t sa_len, enum state state, const struct ctlchan_ops *ops, void *arg)
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
	c->timer = evtimer_new(base, on_timer, c);
	if (c->timer)
		return c;
	free(c);
	return NULL;
}

/* --- listener --------------------------------------------------------------------------------- */

/* Of too many strangers the oldest gives way: a good peer needs its place for milliseconds only. */
static void make_room(struct ctllisten *l, const struct sockaddr *sa)
{
	struct ctlchan *c, *oldest_of_host = NULL, *victim = NULL;
	unsigned n_of_host = 0;

	for (c = TAILQ_FIRST(&l->untrusted); c; c = TAILQ_NEXT(c, link)) {
		if (!sockaddr_same_host((struct sockaddr *)&c->peer_sa, sa))
			continue;
		n_of_host++;
		if (!oldest_of_host)
			oldest_of_host = c;
	}
	if (n_of_host >= l->conf.max_untrusted_per_host)
		victim = oldest_of_host;
	else if (l->stats.untrusted >= l->conf.max_untrusted)
		victim = TAILQ_FIRST(&l->untrusted);
	if (!victim)
		return;
	l->stats.evicted++;
	fail(victim, "too many unauthenticated connections, this was the oldest");
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *sa,
	int sa_len, void *arg)
{
	struct ctllisten *l = arg;
	struct ctlchan *c;

	(void)listener;
	make_room(l, sa);
	l->stats.accepted++;
	c = chan_new(l->base, sa, (socklen_t)sa_len, HANDSHAKE, l->ops, l->arg);
	if (!c) {
		close(fd);
		return;
	}
	c->listener = l;
	c->tls = tls_ref(l->tls);
	move_to_list(c, &l->untrusted);
	arm(c->timer, l->conf.trust_timeout_ms);
	if (start(c, fd))
		fail(c, "out of memory");
	else if (!c->tls)
		opened(c);
}

static void on_accept_error(struct evconnlistener *listener, void *arg)
{
	struct ctllisten *l = arg;

	log_rated(LOG_WARN, "control channel: cannot accept, pausing for %d ms: %s",
		ACCEPT_PAUSE_MS, strerror(EVUTIL_SOCKET_ERROR()));
	evconnlistener_disable(listener);
	arm(l->resume, ACCEPT_PAUSE_MS);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
	struct ctllisten *l = arg;

	(void)fd;
	(void)what;
	evconnlistener_enable(l->listener);
}

static int refuse_without_key(
	const struct sockaddr *sa, const char *verb, const char *option, struct err_text *err)
{
	char text[ADDR_TEXT_BYTES];

	if (sockaddr_is_loopback(sa))
		return 0;
	return err_set(err, -EPERM,
		"will not %s %s without a cluster key: only loopback addresses are allowed then "
		"(%s)",
		verb, sockaddr_format(sa, text), option);
}

static int bind_listener(struct ctllisten *l, struct err_text *err)
{
	unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
	struct sockaddr_storage sa;
	socklen_t sa_len;
	char text[ADDR_TEXT_BYTES];
	int rc = addr_lookup(&l->conf.addr, &sa, &sa_len, err);

	if (rc)
		return rc;
	if (!l->tls) {
		rc = refuse_without_key((struct sockaddr *)&sa, "listen on",
			"set a key file, or listen on 127.0.0.1", err);
		if (rc)
			return rc;
	}
	l->listener = evconnlistener_new_bind(
		l->base, on_accept, l, flags, LISTEN_BACKLOG, (struct sockaddr *)&sa, (int)sa_len);
	if (!l->listener)
		return err_set(err, -errno, "cannot listen on %s: %s%s",
			addr_format(&l->conf.addr, text), strerror(errno), addr_bind_hint(-errno));
	evconnlistener_set_error_cb(l->listener, on_accept_error);
	return 0;
}

int ctllisten_new(struct ctllisten **ret_listen, struct event_base *base,
	const struct ctllisten_conf *conf, const struct ctlchan_ops *ops, void *arg,
	struct err_text *err)
{
	struct ctllisten *l = calloc(1, sizeof(*l));
	int rc = 0;

	if (!l)
		return err_set(err, -ENOMEM, "out of memory");
	signal(SIGPIPE, SIG_IGN);
	l->base = base;
	l->conf = *conf;
	l->ops = ops;
	l->arg = arg;
	TAILQ_INIT(&l->untrusted);
	TAILQ_INIT(&l->trusted);
	TAILQ_INIT(&l->dying);
	if (!conf->trust_timeout_ms)
		l->conf.trust_timeout_ms = TRUST_TIMEOUT_MS;
	if (!conf->max_untrusted)
		l->conf.max_untrusted = MAX_UNTRUSTED;
	if (!conf->max_untrusted_per_host)
		l->conf.max_untrusted_per_host = MAX_UNTRUSTED_PER_HOST;
	l->resume = evtimer_new(base, on_resume, l);
	if (!l->resume)
		rc = err_set(err, -ENOMEM, "out of memory");
	if (!rc && !tls_conf_is_empty(&conf->auth))
		rc = tls_new_listener(&l->tls, &conf->auth, err);
	keyring_wipe(&l->conf.auth.keys); /* it lives on in tls only */
	if (!rc)
		rc = bind_listener(l, err);
	if (rc)
		ctllisten_free(l);
	else
		*ret_listen = l;
	return rc;
}

static int close_unaccepted(struct ctllisten *l, struct chan_list *list)
{
	struct ctlchan *c, *next;
	int n = 0;

	for (c = TAILQ_FIRST(list); c; c = next) {
		next = TAILQ_NEXT(c, link);
		if (!*c->who.print || tls_accepts(l->tls, &c->who)) /* else it has not said */
			continue;
		fail(c, "the key of %s is not accepted any more", c->who.identity);
		n++;
	}
	return n;
}

int ctllisten_set_auth(struct ctllisten *l, const struct tls_conf *auth, struct err_text *err)
{
	int rc;

	if (tls_conf_is_empty(auth) != (l->tls == NULL))
		return err_set(err, -EINVAL, "a listener cannot get or lose its key while it runs");
	if (!l->tls)
		return 0;
	rc = tls_renew(l->tls, auth, err);
	if (rc < 0)
		return rc;
	return close_unaccepted(l, &l->untrusted) + close_unaccepted(l, &l->trusted);
}

uint16_t ctllisten_port(const struct ctllisten *l)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);

	if (getsockname(evconnlistener_get_fd(l->listener), (struct sockaddr *)&sa, &len))
		return 0;
	return sockaddr_port((struct sockaddr *)&sa);
}

void ctllisten_stats(const struct ctllisten *l, struct ctllisten_stats *ret_stats)
{
	*ret_stats = l->stats;
}

static void close_all(struct chan_list *list)
{
	struct ctlchan *c;

	while ((c = TAILQ_FIRST(list))) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not follow the unlinking */
		if (c->state != DEAD)
			snprintf(c->reason, sizeof(c->reason), "shutting down");
		reap(c);
	}
}

void ctllisten_free(struct ctllisten *l)
{
	if (!l)
		return;
	if (l->listener)
		evconnlistener_free(l->listener);
	close_all(&l->untrusted);
	close_all(&l->trusted);
	close_all(&l->dying);
	if (l->resume)
		event_free(l->resume);
	tls_free(l->tls);
	free(l);
}

/* --- connector -------------------------------------------------------------------------------- */

static void on_connected(evutil_socket_t fd, short what, void *arg)
{
	struct ctlchan *c = arg;
	socklen_t len = sizeof(int);
	int error = 0;

	(void)what;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		error = errno;
	if (error) {
		fail(c, "cannot connect to %s: %s", c->peer, strerror(error));
		return;
	}
	event_free(c->dial);
	c->dial = NULL;
	if (c->tls)
		set_state(c, HANDSHAKE, "connected");
	if (start(c, fd))
		fail(c, "out of memory");
	else if (!c->tls)
		opened(c);
}

/* Begin to connect; a refusal that is known at once is reported like a late one. */
static int dial(struct ctlchan *c, const struct sockaddr *sa, socklen_t sa_len)
{
	int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	c->dial = event_new(c->base, fd, EV_WRITE, on_connected, c);
	if (!c->dial) {
		close(fd);
		return -ENOMEM;
	}
	if (connect(fd, sa, sa_len) && errno != EINPROGRESS)
		fail(c, "cannot connect to %s: %s", c->peer, strerror(errno));
	else
		event_add(c->dial, NULL);
	return 0;
}

int ctlchan_connect(struct ctlchan **ret_chan, struct event_base *base, const struct sockaddr *sa,
	socklen_t sa_len, struct tls *tls, uint32_t timeout_ms, const struct ctlchan_ops *ops,
	void *arg, struct err_text *err)
{
	struct ctlchan *c;
	int rc = tls ? 0 : refuse_without_key(sa, "connect to", "set a key file", err);

	if (rc)
		return rc;
	signal(SIGPIPE, SIG_IGN);
	c = chan_new(base, sa, sa_len, DIALING, ops, arg);
	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->tls = tls_ref(tls);
	arm(c->timer, timeout_ms);
	rc = dial(c, sa, sa_len);
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

const char *ctlchan_master(const struct ctlchan *c)
{
	return c->who.master;
}

bool ctlchan_has_master(const struct ctlchan *c)
{
	return !c->tls || strcmp(c->who.print, c->who.master) == 0;
}

const char *ctlchan_peer(const struct ctlchan *c)
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
	set_state(c, TRUSTED, "registered");
}

int ctlchan_send(struct ctlchan *c, uint16_t type, const void *body, size_t n_body)
{
	struct evbuffer *out;
	uint8_t head[CTLFRAME_HEAD_BYTES];

	if (!is_open(c))
		return BPS_ECLOSED;
	if (n_body > CTLFRAME_MAX_BYTES - 2)
		return -EMSGSIZE;
	out = bufferevent_get_output(c->bev);
	if (evbuffer_get_length(out) + sizeof(head) + n_body > CTLCHAN_MAX_OUT_BYTES) {
		fail(c, "%s does not read: %zu bytes wait for it", c->peer,
			evbuffer_get_length(out));
		return -ENOBUFS;
	}
	if (evbuffer_expand(out, sizeof(head) + n_body)) {
		fail(c, "out of memory");
		return -ENOMEM;
	}
	ctlframe_head(head, type, n_body);
	evbuffer_add(out, head, sizeof(head));
	if (n_body)
		evbuffer_add(out, body, n_body);
	return 0;
}

void ctlchan_close(struct ctlchan *c, const char *fmt, ...)
{
	char reason[ERR_TEXT_BYTES];
	va_list ap;

	if (c->state == FLUSHING || c->state == DEAD)
		return;
	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
	if (!is_open(c)) {
		fail(c, "%s", reason);
		return;
	}
	memcpy(c->reason, reason, sizeof(reason));
	set_state(c, FLUSHING, reason);
	arm(c->timer, FLUSH_TIMEOUT_MS);
	if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
		hang_up(c);
}

void ctlchan_abort(struct ctlchan *c, const char *fmt, ...)
{
	char reason[ERR_TEXT_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, sizeof(reason), fmt, ap);
	va_end(ap);
	fail(c, "%s", reason);
}
