/* Keep one control connection open: connect, reconnect after a pause, resolve the name before each
 * attempt, and replace the key of a connection. ctlchan.c implements the frames and the handshake.
 * All functions run on the event loop's thread. */
#include "common/control/ctlclient.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <event2/util.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/state.h"
#include "common/control/ctlchan.h"
#include "common/control/resolve.h"

#define ATTEMPT_TIMEOUT_MS 2000
#define BACKOFF_MIN_MS     400
/* Longest pause between attempts. Members must reconnect within 2 s after a restart of the
 * scheduler. */
#define BACKOFF_MAX_MS 1500
#define SETTLE_MS      500
#define N_TLS          2
/* After a connection is lost, the peer expects a reconnect within window_ms. During this time no
 * pause between attempts is longer than window_ms / WINDOW_SHARE. */
#define WINDOW_SHARE 4
/* After a connection that lasted at least this long, the pauses between attempts start from the
 * shortest pause. After a shorter connection the pauses continue to grow, so that the client does
 * not flood a peer that accepts and closes at once. */
#define STABLE_MS 1000

enum client_state { CLIENT_WAITING, CLIENT_RESOLVING, CLIENT_DIALING, CLIENT_UP };

struct ctlclient {
	struct event_base *base;
	const struct ctlclient_ops *ops;
	void *arg;
	struct ctlclient_conf conf;
	char identity[TLS_IDENTITY_BYTES];
	/* TLS contexts, one per key. The context of the newest key is first. The array is empty
	 * when there is no key. */
	struct tls *tls[N_TLS];
	unsigned n_tls;
	struct tls *used; /* context that chan uses; chan has a reference to the context */
	/* Second connection, used only in the state CLIENT_UP. It uses tls[0]. When the timer
	 * `settle` fires, the second connection replaces `chan`. */
	struct ctlchan *trial;
	struct sockaddr_storage sa; /* peer address of chan */
	socklen_t sa_len;
	struct event *retry;
	/* timer after which `trial` replaces `chan`, see client_start_settle_timer */
	struct event *settle;
	struct resolve *resolve; /* running name lookup; used in the state CLIENT_RESOLVING */
	struct ctlchan *chan;    /* connection; used in the states CLIENT_DIALING and CLIENT_UP */
	enum client_state state;
	uint64_t up_since_ms;
	bool is_accepted; /* ctlclient_accepted was called for chan */
	uint32_t window_ms;
	/* Time at which the last accepted connection was lost; 0: no accepted connection was lost
	 * yet */
	uint64_t lost_ms;
	/* Number of attempts since the end of the most recent connection that was open for at least
	 * STABLE_MS */
	unsigned n_failed;
};

#define TO(s) (1u << (s))
static const struct state_row states[] = {
	[CLIENT_WAITING] = {"waiting", TO(CLIENT_RESOLVING) | TO(CLIENT_WAITING)},
	[CLIENT_RESOLVING] = {"resolving", TO(CLIENT_DIALING) | TO(CLIENT_WAITING)},
	[CLIENT_DIALING] = {"dialing", TO(CLIENT_UP) | TO(CLIENT_WAITING)},
	[CLIENT_UP] = {"up",
		/* The transition to DIALING happens when the trial replaces the connection */
		TO(CLIENT_DIALING) | TO(CLIENT_WAITING)},
};

static void client_set_state(struct ctlclient *c, enum client_state state)
{
	if (states[c->state].next & TO(state))
		c->state = state;
	else
		log_error("control client: ignored an invalid change from state %s to %s (please "
			  "report this bug)",
			states[c->state].name, states[state].name);
}

/* Return the longest allowed pause between attempts. In the first window_ms after an accepted
 * connection was lost, the limit may be shorter than BACKOFF_MAX_MS. */
static uint32_t client_max_backoff_ms(const struct ctlclient *c)
{
	uint32_t share = c->window_ms / WINDOW_SHARE;

	if (!c->lost_ms || clock_now_ms() - c->lost_ms >= c->window_ms)
		return BACKOFF_MAX_MS;
	return share < BACKOFF_MAX_MS ? share : BACKOFF_MAX_MS;
}

/* Return the pause before an attempt, in milliseconds. The first attempts are at 0, about 100 and
 * about 300 ms. Later attempts are 0.4 to 1.5 s apart. longest: upper limit of the pause. */
static uint32_t client_random_backoff_ms(unsigned n_failed, uint32_t longest)
{
	static const uint32_t first[] = {0, 100, 200};
	uint32_t random, least, most;

	evutil_secure_rng_get_bytes(&random, sizeof(random));
	if (n_failed < sizeof(first) / sizeof(first[0])) {
		least = first[n_failed] / 2;
		most = least + first[n_failed];
	} else {
		least = BACKOFF_MIN_MS;
		most = BACKOFF_MAX_MS;
	}
	if (most > longest)
		most = longest;
	if (least > most / 2)
		least = most / 2;
	return least + random % (most - least + 1);
}

static void wait_for_retry(struct ctlclient *c)
{
	uint32_t ms = client_random_backoff_ms(c->n_failed++, client_max_backoff_ms(c));
	struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};

	client_set_state(c, CLIENT_WAITING);
	evtimer_add(c->retry, &tv);
}

static void attempt_failed(struct ctlclient *c, const char *reason)
{
	log_debug("attempt %u to connect to the scheduler failed: %s", c->n_failed, reason);
	wait_for_retry(c);
	c->ops->down(c->arg, c, reason, false);
}

static void client_free_tls_from(struct ctlclient *c, unsigned from)
{
	while (c->n_tls > from)
		tls_free(c->tls[--c->n_tls]);
}

/* Close the trial and stop its settle timer, so that another trial may start. */
static void client_close_trial(struct ctlclient *c)
{
	ctlchan_free(c->trial);
	c->trial = NULL;
	evtimer_del(c->settle);
}

static void client_enter_up_state(struct ctlclient *c)
{
	client_set_state(c, CLIENT_UP);
	c->up_since_ms = clock_now_ms();
	c->ops->up(c->arg, c);
}

/* Let the trial replace chan, because the peer has accepted the new key. */
static void client_promote_trial(struct ctlclient *c)
{
	ctlchan_free(c->chan);
	c->chan = c->trial;
	c->trial = NULL;
	c->used = c->tls[0];
	client_set_state(c, CLIENT_DIALING);
	c->is_accepted = false;
	c->ops->down(c->arg, c, "replaced by a connection with the new key", true);
	client_enter_up_state(c);
}

static void on_trial_settled(evutil_socket_t fd, short what, void *arg)
{
	struct ctlclient *c = arg;

	(void)fd;
	(void)what;
	if (c->trial)
		client_promote_trial(c);
}

/* Start the settle timer of an open trial. With certificates, the handshake of this side completes
 * before the listener has checked the client's certificate. When the check succeeds, the listener
 * sends nothing. So wait for SETTLE_MS to see whether the listener closes the connection. */
static void client_start_settle_timer(struct ctlclient *c)
{
	struct timeval tv = {.tv_usec = tls_has_certificate(c->tls[0]) ? SETTLE_MS * 1000 : 0};

	evtimer_add(c->settle, &tv);
}

static void on_client_chan_opened(void *arg, struct ctlchan *chan)
{
	struct ctlclient *c = arg;

	if (chan == c->trial) {
		client_start_settle_timer(c);
		return;
	}
	client_enter_up_state(c);
}

static void on_client_chan_frame(
	void *arg, struct ctlchan *chan, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct ctlclient *c = arg;

	if (chan != c->chan)
		return;
	if (c->used == c->tls[0])
		/* a frame on this connection proves that the peer accepts the newest key */
		client_free_tls_from(c, 1);
	c->ops->frame(c->arg, c, type, body, n_body);
}

static void on_client_chan_closed(void *arg, struct ctlchan *chan, const char *reason)
{
	struct ctlclient *c = arg;
	bool was_up = c->state == CLIENT_UP;

	if (chan == c->trial) {
		c->trial = NULL; /* ctlchan frees chan after this callback */
		client_close_trial(c);
		log_warn("keeping the connection with the previous key, because the scheduler "
			 "does not accept the new key yet: why=%s",
			reason);
		return;
	}
	c->chan = NULL;
	client_close_trial(c);
	if (!was_up) {
		attempt_failed(c, reason);
		return;
	}
	if (clock_now_ms() - c->up_since_ms >= STABLE_MS)
		c->n_failed = 0;
	if (c->is_accepted)
		c->lost_ms = clock_now_ms();
	c->is_accepted = false;
	wait_for_retry(c);
	c->ops->down(c->arg, c, reason, true);
}

static const struct ctlchan_ops chan_ops = {
	on_client_chan_opened, on_client_chan_frame, on_client_chan_closed};

/* For this attempt, choose a key and one of the n_results results of the address's lookup. Each
 * attempt uses the next result, and after all results the next key. n_results: at least 1. n_failed
 * counts this attempt too, so it is at least 1. */
static void select_result_and_key(
	const struct ctlclient *c, size_t n_results, size_t *ret_result, struct tls **ret_tls)
{
	size_t n_tried = c->n_failed - 1;

	*ret_result = n_tried % n_results;
	*ret_tls = c->n_tls ? c->tls[n_tried / n_results % c->n_tls] : NULL;
}

static void on_client_resolved(void *arg, const struct resolve_answer *answer)
{
	struct ctlclient *c = arg;
	struct err_text err;
	size_t i;

	c->resolve = NULL;
	if (answer->rc) {
		attempt_failed(c, answer->err.s);
		return;
	}
	select_result_and_key(c, answer->n_addrs, &i, &c->used);
	c->sa = answer->addrs[i];
	c->sa_len = answer->lens[i];
	if (ctlchan_connect(&c->chan, c->base, (const struct sockaddr *)&c->sa, c->sa_len, c->used,
		    c->conf.attempt_timeout_ms, &chan_ops, c, &err))
		attempt_failed(c, err.s);
	else
		client_set_state(c, CLIENT_DIALING);
}

static void on_client_retry_due(evutil_socket_t fd, short what, void *arg)
{
	struct ctlclient *c = arg;
	int rc = FAILPOINT(CONTROL_CONNECT);

	(void)fd;
	(void)what;
	if (!rc)
		rc = resolve_start(&c->resolve, c->base, &c->conf.addr, on_client_resolved, c);
	if (rc)
		attempt_failed(c, err_str(rc));
	else
		client_set_state(c, CLIENT_RESOLVING);
}

/* Make a context for each key.
 * Errors: a negative code; err gets the text, and no context is left to free. */
static int client_create_tls(const struct ctlclient *c, const struct tls_conf *auth,
	struct tls *ret[N_TLS], unsigned *ret_n, struct err_text *err)
{
	unsigned n = 0, n_wanted = auth->cert ? 1 : auth->keys.n_keys;
	int rc = 0;

	while (rc == 0 && n < n_wanted) {
		rc = tls_new_client(&ret[n], auth, n, c->identity, err);
		n += rc == 0;
	}
	if (rc == 0)
		*ret_n = n;
	while (rc < 0 && n)
		tls_free(ret[--n]);
	return rc;
}

static void client_start_trial(struct ctlclient *c)
{
	struct err_text err;

	if (ctlchan_connect(&c->trial, c->base, (const struct sockaddr *)&c->sa, c->sa_len,
		    c->tls[0], c->conf.attempt_timeout_ms, &chan_ops, c, &err))
		log_warn("cannot connect to the scheduler with the new key, keeping the connection "
			 "with the previous key: %s",
			err.s);
}

int ctlclient_set_auth(struct ctlclient *c, const struct tls_conf *auth, struct err_text *err)
{
	struct tls *fresh[N_TLS] = {NULL}, *former;
	unsigned n = 0;
	bool is_same;
	int rc;

	if (tls_conf_is_empty(auth) != (c->n_tls == 0))
		return err_set(err, -EINVAL,
			"adding the first key or removing the last key needs a restart");
	rc = client_create_tls(c, auth, fresh, &n, err);
	if (rc < 0 || !n)
		return rc;
	former = c->chan && c->used ? c->used : c->tls[0];
	is_same = tls_has_same_identity(former, fresh[0]);
	if (n < N_TLS && !is_same)
		fresh[n++] = tls_ref(former);
	client_free_tls_from(c, 0);
	memcpy(c->tls, fresh, sizeof(fresh));
	c->n_tls = n;
	client_close_trial(c);
	if (c->state == CLIENT_UP && !is_same)
		client_start_trial(c);
	return 0;
}

int ctlclient_new(struct ctlclient **ret_client, struct event_base *base,
	const struct ctlclient_conf *conf, const struct ctlclient_ops *ops, void *arg,
	struct err_text *err)
{
	struct ctlclient *c = calloc(1, sizeof(*c));
	int rc = 0;

	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->base = base;
	c->ops = ops;
	c->arg = arg;
	c->conf = *conf;
	c->conf.identity = NULL;
	snprintf(c->identity, sizeof(c->identity), "%s", conf->identity ? conf->identity : "");
	if (!conf->attempt_timeout_ms)
		c->conf.attempt_timeout_ms = ATTEMPT_TIMEOUT_MS;
	c->retry = evtimer_new(base, on_client_retry_due, c);
	c->settle = evtimer_new(base, on_trial_settled, c);
	if (!c->retry || !c->settle)
		rc = err_set(err, -ENOMEM, "out of memory");
	if (!rc)
		rc = client_create_tls(c, &conf->auth, c->tls, &c->n_tls, err);
	keyring_wipe(&c->conf.auth.keys);
	if (rc) {
		ctlclient_free(c);
		return rc;
	}
	wait_for_retry(c);
	*ret_client = c;
	return 0;
}

void ctlclient_accepted(struct ctlclient *c, uint32_t window_ms)
{
	c->is_accepted = true;
	c->window_ms = window_ms;
}

int ctlclient_send(struct ctlclient *c, uint16_t type, const void *body, size_t n_body)
{
	return c->state == CLIENT_UP ? ctlchan_send(c->chan, type, body, n_body) : BPS_ECLOSED;
}

void ctlclient_drop(struct ctlclient *c, const char *reason)
{
	if (c->chan)
		ctlchan_abort(c->chan, reason);
}

void ctlclient_free(struct ctlclient *c)
{
	if (!c)
		return;
	resolve_cancel(c->resolve);
	ctlchan_free(c->chan);
	ctlchan_free(c->trial);
	if (c->retry)
		event_free(c->retry);
	if (c->settle)
		event_free(c->settle);
	client_free_tls_from(c, 0);
	free(c);
}
