#include "common/ctlclient.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <event2/event.h>
#include <event2/util.h>

#include "common/clock.h"
#include "common/ctlchan.h"
#include "common/log.h"
#include "common/resolve.h"

#define ATTEMPT_TIMEOUT_MS 2000
#define BACKOFF_MIN_MS     400
#define BACKOFF_MAX_MS     2000
#define STABLE_MS          1000 /* a peer that takes and drops at once must not be hammered */

enum state { WAITING, RESOLVING, DIALING, UP };

struct ctlclient {
	struct event_base *base;
	const struct ctlclient_ops *ops;
	void *arg;
	struct ctlclient_conf conf;
	struct tls *tls; /* NULL without a key */
	struct event *retry;
	struct resolve *resolve; /* in RESOLVING */
	struct ctlchan *chan;    /* in DIALING and UP */
	enum state state;
	uint64_t up_since_ms;
	unsigned n_failed; /* attempts since it was up for STABLE_MS */
	size_t next_addr;
	size_t next_number; /* of the name's numbers */
};

/* Attempts at 0, 100 and 300 ms, then 0.4 to 2 s after the last, spread evenly. */
static uint32_t backoff_ms(unsigned n_failed)
{
	static const uint32_t first[] = {0, 100, 200};
	uint32_t random;

	if (n_failed < sizeof(first) / sizeof(first[0]))
		return first[n_failed];
	evutil_secure_rng_get_bytes(&random, sizeof(random));
	return BACKOFF_MIN_MS + random % (BACKOFF_MAX_MS - BACKOFF_MIN_MS + 1);
}

static void wait_for_retry(struct ctlclient *c)
{
	uint32_t ms = backoff_ms(c->n_failed++);
	struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};

	c->state = WAITING;
	evtimer_add(c->retry, &tv);
}

static void attempt_failed(struct ctlclient *c, const char *reason)
{
	log_debug("control client: attempt %u failed: %s", c->n_failed, reason);
	wait_for_retry(c);
	c->ops->down(c->arg, c, reason, false);
}

static void on_opened(void *arg, struct ctlchan *chan)
{
	struct ctlclient *c = arg;

	(void)chan;
	c->state = UP;
	c->up_since_ms = clock_now_ms();
	c->ops->up(c->arg, c);
}

static void on_frame(
	void *arg, struct ctlchan *chan, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct ctlclient *c = arg;

	(void)chan;
	c->ops->frame(c->arg, c, type, body, n_body);
}

static void on_closed(void *arg, struct ctlchan *chan, const char *reason)
{
	struct ctlclient *c = arg;
	bool was_up = c->state == UP;

	(void)chan;
	c->chan = NULL;
	if (!was_up) {
		attempt_failed(c, reason);
		return;
	}
	if (clock_now_ms() - c->up_since_ms >= STABLE_MS)
		c->n_failed = 0;
	wait_for_retry(c);
	c->ops->down(c->arg, c, reason, true);
}

static const struct ctlchan_ops chan_ops = {on_opened, on_frame, on_closed};

static void on_resolved(void *arg, const struct resolve_answer *answer)
{
	struct ctlclient *c = arg;
	size_t i = answer->n_addrs ? c->next_number++ % answer->n_addrs : 0;
	struct err_text err;

	c->resolve = NULL;
	if (answer->rc) {
		attempt_failed(c, answer->err.s);
		return;
	}
	if (ctlchan_connect(&c->chan, c->base, (const struct sockaddr *)&answer->addrs[i],
		    answer->lens[i], c->tls, c->conf.attempt_timeout_ms, &chan_ops, c, &err))
		attempt_failed(c, err.s);
	else
		c->state = DIALING;
}

static void on_retry(evutil_socket_t fd, short what, void *arg)
{
	struct ctlclient *c = arg;
	const struct addr *addr = &c->conf.addrs[c->next_addr++ % c->conf.n_addrs];
	int rc = resolve_start(&c->resolve, c->base, addr, on_resolved, c);

	(void)fd;
	(void)what;
	if (rc)
		attempt_failed(c, err_str(rc));
	else
		c->state = RESOLVING;
}

int ctlclient_new(struct ctlclient **ret_client, struct event_base *base,
	const struct ctlclient_conf *conf, const struct ctlclient_ops *ops, void *arg,
	struct err_text *err)
{
	struct ctlclient *c;
	int rc = 0;

	if (conf->n_addrs < 1 || conf->n_addrs > CTLCLIENT_MAX_ADDRS)
		return err_set(err, -EINVAL, "give one to %d addresses to connect to",
			CTLCLIENT_MAX_ADDRS);
	c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(err, -ENOMEM, "out of memory");
	c->base = base;
	c->ops = ops;
	c->arg = arg;
	c->conf = *conf;
	c->conf.identity = NULL;
	if (!conf->attempt_timeout_ms)
		c->conf.attempt_timeout_ms = ATTEMPT_TIMEOUT_MS;
	c->retry = evtimer_new(base, on_retry, c);
	if (!c->retry)
		rc = err_set(err, -ENOMEM, "out of memory");
	if (!rc && conf->has_key)
		rc = tls_new_client(&c->tls, &conf->key, conf->identity, err);
	key_wipe(&c->conf.key);
	if (rc) {
		ctlclient_free(c);
		return rc;
	}
	wait_for_retry(c);
	*ret_client = c;
	return 0;
}

int ctlclient_send(struct ctlclient *c, uint16_t type, const void *body, size_t n_body)
{
	return c->state == UP ? ctlchan_send(c->chan, type, body, n_body) : BPS_ECLOSED;
}

void ctlclient_drop(struct ctlclient *c, const char *reason)
{
	if (c->chan)
		ctlchan_abort(c->chan, "%s", reason);
}

void ctlclient_free(struct ctlclient *c)
{
	if (!c)
		return;
	resolve_cancel(c->resolve);
	ctlchan_free(c->chan);
	if (c->retry)
		event_free(c->retry);
	tls_free(c->tls);
	free(c);
}
