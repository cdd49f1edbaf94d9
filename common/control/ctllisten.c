/* The listener of the control channel: accept connections, limit the number of strangers, close
 * strangers that do not become trusted in time, and close the oldest stranger to make room for a
 * newer stranger. ctlchan.h explains the limits.
 * Thread: the event loop's. */
#include "common/control/ctlchan_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <event2/bufferevent_ssl.h>
#include <event2/listener.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define TRUST_TIMEOUT_MS       5000
#define MAX_UNTRUSTED          64
#define MAX_UNTRUSTED_PER_HOST 16
#define REFUSAL_LOG_MS         60000
/* Length of the pause after a failed accept. The most likely cause of the failure is that the
 * process has no free descriptors. */
#define ACCEPT_PAUSE_MS 100
/* When the number of strangers of all hosts has reached its limit (max_untrusted), the listener
 * closes the oldest stranger only if this stranger is at least PLACE_MS old. */
#define PLACE_MS       200
#define LISTEN_BACKLOG 512

/* Accept connections again after a pause. */
static void listen_resume_accepting(struct ctllisten *l)
{
	l->is_full = false;
	if (l->listener)
		evconnlistener_enable(l->listener);
}

void listen_move_chan(struct ctlchan *c, struct chan_list *list)
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
	if (c->listener->is_full && c->listener->stats.untrusted < c->listener->conf.max_untrusted)
		listen_resume_accepting(c->listener);
}

void listen_log_refusal(struct ctllisten *l, const struct ctlchan *c)
{
	uint64_t now = clock_now_ms();

	if (now < l->next_log_ms) {
		l->n_unlogged++;
		return;
	}
	log_write(LOG_AS(LOG_WARN, STRANGER),
		"control channel: refused a connection: %s peer=%s identity=%s "
		"earlier_unlogged_refusals=%u",
		c->reason, c->peer, c->who.identity, l->n_unlogged);
	l->next_log_ms = now + REFUSAL_LOG_MS;
	l->n_unlogged = 0;
}

/* Close one stranger if there are too many. If the number of strangers from the host at
 * address `sa` has reached the limit per host, close the oldest of these. Otherwise, if the number
 * of all strangers has reached the total limit, close the oldest of all. The oldest stranger is
 * hardly ever a valid peer, because a valid peer is a stranger for some milliseconds only.
 *
 * At the total limit, listen_pause_until_room first pauses the listener. The pause ends when there
 * is room again or the oldest stranger is PLACE_MS old. Only after the pause can this function
 * close the oldest of all. Therefore members that all reconnect at once do not displace each
 * other. */
static void listen_evict_stranger(struct ctllisten *l, const struct sockaddr *sa)
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
	chan_fail(victim, "too many unauthenticated connections, closing the oldest");
}

/* Leave new connections in the kernel's accept queue until the number of strangers is below the
 * limit, or until the oldest stranger is PLACE_MS old. */
static void listen_pause_until_room(struct ctllisten *l)
{
	uint64_t age = clock_now_ms() - TAILQ_FIRST(&l->untrusted)->born_ms;

	l->is_full = true;
	evconnlistener_disable(l->listener);
	chan_timer_start(l->resume, age < PLACE_MS ? (uint32_t)(PLACE_MS - age) : 1);
}

static void on_stranger_accepted(struct evconnlistener *listener, evutil_socket_t fd,
	struct sockaddr *sa, int sa_len, void *arg)
{
	struct ctllisten *l = arg;
	struct ctlchan *c;

	(void)listener;
	listen_evict_stranger(l, sa);
	l->stats.accepted++;
	c = chan_new(l->base, sa, (socklen_t)sa_len, HANDSHAKE, l->ops, l->arg);
	if (!c) {
		close(fd);
		return;
	}
	c->listener = l;
	c->tls = tls_ref(l->tls);
	listen_move_chan(c, &l->untrusted);
	chan_timer_start(c->timer, l->conf.trust_timeout_ms);
	if (chan_start_bufferevent(c, fd))
		chan_fail(c, "out of memory");
	else if (!c->tls)
		chan_complete_opening(c);
	if (l->stats.untrusted >= l->conf.max_untrusted)
		listen_pause_until_room(l);
}

static void on_listen_accept_error(struct evconnlistener *listener, void *arg)
{
	struct ctllisten *l = arg;

	log_rated(LOG_WARN, "control channel: cannot accept connections, pausing for %d ms: %s",
		ACCEPT_PAUSE_MS, strerror(EVUTIL_SOCKET_ERROR()));
	evconnlistener_disable(listener);
	chan_timer_start(l->resume, ACCEPT_PAUSE_MS);
}

static void on_listen_resume_due(evutil_socket_t fd, short what, void *arg)
{
	struct ctllisten *l = arg;

	(void)fd;
	(void)what;
	listen_resume_accepting(l);
}

static int listen_bind_address(struct ctllisten *l, struct err_text *err)
{
	unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
	struct sockaddr_storage sa;
	socklen_t sa_len;
	char text[ADDR_TEXT_BYTES];
	int rc = addr_resolve_host(&l->conf.addr, &sa, &sa_len, err);

	if (rc)
		return rc;
	if (!l->tls) {
		rc = chan_refuse_without_key((struct sockaddr *)&sa, "listen on",
			"set a key file, or listen on 127.0.0.1", err);
		if (rc)
			return rc;
	}
	l->listener = evconnlistener_new_bind(l->base, on_stranger_accepted, l, flags,
		LISTEN_BACKLOG, (struct sockaddr *)&sa, (int)sa_len);
	if (!l->listener)
		return err_set(err, -errno, "cannot listen on %s: %s%s",
			addr_format(&l->conf.addr, text), strerror(errno), addr_bind_hint(-errno));
	evconnlistener_set_error_cb(l->listener, on_listen_accept_error);
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
	l->resume = evtimer_new(base, on_listen_resume_due, l);
	if (!l->resume)
		rc = err_set(err, -ENOMEM, "out of memory");
	if (!rc && !tls_conf_is_empty(&conf->auth))
		rc = tls_new_listener(&l->tls, &conf->auth, err);
	keyring_wipe(&l->conf.auth.keys); /* from now on only l->tls has the keys */
	if (!rc)
		rc = listen_bind_address(l, err);
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
		if (!*c->who.print || /* no fingerprint: the peer has not proven its identity yet */
			tls_peer_is_accepted(l->tls, &c->who, bufferevent_openssl_get_ssl(c->bev)))
			continue;
		c->is_expelled = true;
		chan_fail(c, "the key or certificate of %s is no longer accepted", c->who.identity);
		n++;
	}
	return n;
}

int ctllisten_set_auth(struct ctllisten *l, const struct tls_conf *auth, struct err_text *err)
{
	int rc;

	if (tls_conf_is_empty(auth) != (l->tls == NULL))
		return err_set(err, -EINVAL,
			"adding the first key or removing the last key needs a restart");
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

void listen_note_refusal(struct ctllisten *l, const char *identity)
{
	struct ctllisten_refusal *r = &l->refusals[l->next_refusal];

	if (!*identity)
		return;
	l->next_refusal = (l->next_refusal + 1) % CTLLISTEN_REFUSALS_KEPT;
	r->at_ms = clock_now_ms();
	snprintf(r->identity, sizeof(r->identity), "%s", identity);
}

unsigned ctllisten_refusals(const struct ctllisten *l, uint32_t span_ms,
	struct ctllisten_refusal ret[static CTLLISTEN_REFUSALS_KEPT])
{
	uint64_t now_ms = clock_now_ms();
	unsigned n = 0;

	for (unsigned i = 1; i <= CTLLISTEN_REFUSALS_KEPT; i++) {
		const struct ctllisten_refusal *r =
			&l->refusals[(l->next_refusal + CTLLISTEN_REFUSALS_KEPT - i) %
				     CTLLISTEN_REFUSALS_KEPT];

		if (*r->identity && now_ms - r->at_ms <= span_ms)
			ret[n++] = *r;
	}
	return n;
}

void ctllisten_stats(const struct ctllisten *l, struct ctllisten_stats *ret_stats)
{
	*ret_stats = l->stats;
}

static void chan_list_close_all(struct chan_list *list)
{
	struct ctlchan *c;

	while ((c = TAILQ_FIRST(list))) {
		/* the analyzer does not see that chan_reap removes c from the list */
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
		if (c->state != DEAD)
			snprintf(c->reason, sizeof(c->reason), "shutting down");
		chan_reap(c);
	}
}

void ctllisten_free(struct ctllisten *l)
{
	if (!l)
		return;
	if (l->listener)
		evconnlistener_free(l->listener);
	chan_list_close_all(&l->untrusted);
	chan_list_close_all(&l->trusted);
	chan_list_close_all(&l->dying);
	if (l->resume)
		event_free(l->resume);
	tls_free(l->tls);
	free(l);
}
