/* The common part of the network transports: dispatch to the implementation, seal and check
 * tickets, count and log refusals. This file does not use sockets. net_stats runs on any thread,
 * the ticket check on the connection thread. */
#include "common/transport/net_shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"

#define CONNECT_TIMEOUT_MS 3000

static uint64_t counter_load_relaxed(const _Atomic uint64_t *c)
{
	return atomic_load_explicit(c, memory_order_relaxed);
}

static void net_stats_add_counters(struct net_stats *s, const struct net_counters *c)
{
	s->rx_bytes += counter_load_relaxed(&c->rx_bytes);
	s->tx_bytes += counter_load_relaxed(&c->tx_bytes);
	s->messages_in += counter_load_relaxed(&c->messages_in);
	s->messages_out += counter_load_relaxed(&c->messages_out);
	s->reads += counter_load_relaxed(&c->reads);
	s->discarded_bytes += counter_load_relaxed(&c->discarded_bytes);
	s->protocol_errors += counter_load_relaxed(&c->protocol_errors);
}

/* ---- the interface of net.h ---- */

void net_close(struct net *n)
{
	if (n)
		n->ops->close(n);
}

const char *net_provider(const struct net *n)
{
	return n->cfg.provider;
}

uint16_t net_port(const struct net *n)
{
	return n->port;
}

void net_set_id(struct net *n, uint32_t my_id)
{
	atomic_store(&n->my_id, my_id);
}

int net_xport_new(struct net *n, unsigned thread, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err)
{
	return n->ops->xport_new(n, thread, ev, ctx, ret, err);
}

void net_stats(struct net *n, struct net_stats *ret)
{
	const struct net_thread *t;

	pthread_mutex_lock(&n->lock);
	*ret = n->past;
	LIST_FOREACH (t, &n->threads, link) {
		net_stats_add_counters(ret, &t->count);
		ret->connections +=
			atomic_load_explicit(&t->count.connections, memory_order_relaxed);
	}
	pthread_mutex_unlock(&n->lock);
	ret->refused_tickets = counter_load_relaxed(&n->refused);
	ret->silent_strangers = counter_load_relaxed(&n->silent);
}

void net_stats_add(struct net_stats *s, const struct net_stats *more)
{
	s->rx_bytes += more->rx_bytes;
	s->tx_bytes += more->tx_bytes;
	s->discarded_bytes += more->discarded_bytes;
	s->messages_in += more->messages_in;
	s->messages_out += more->messages_out;
	s->reads += more->reads;
	s->protocol_errors += more->protocol_errors;
	s->refused_tickets += more->refused_tickets;
	s->silent_strangers += more->silent_strangers;
	s->connections += more->connections;
}

/* ---- for the implementations ---- */

int net_init(struct net *n, const struct net_ops *ops, const struct net_config *cfg,
	net_key_fn key_fn, void *key_ctx)
{
	n->ops = ops;
	n->cfg = *cfg;
	n->cfg.provider = strdup(cfg->provider);
	n->cfg.bind_addr = strdup(cfg->bind_addr);
	n->cfg.device = cfg->device ? strdup(cfg->device) : NULL;
	n->cfg.congestion = NULL;
	if (!n->cfg.connect_timeout_ms)
		n->cfg.connect_timeout_ms = CONNECT_TIMEOUT_MS;
	if (n->cfg.ping_ms && n->cfg.dead_ms < 2 * n->cfg.ping_ms)
		n->cfg.dead_ms = 2 * n->cfg.ping_ms;
	n->key_fn = key_fn;
	n->key_ctx = key_ctx;
	n->my_id = cfg->my_id;
	n->tag = cfg->tag ? cfg->tag : (uint16_t)ticket_random64();
	pthread_mutex_init(&n->lock, NULL);
	LIST_INIT(&n->threads);
	if (!n->cfg.provider || !n->cfg.bind_addr || !n->cfg.device != !cfg->device)
		return -ENOMEM;
	return 0;
}

void net_fini(struct net *n)
{
	pthread_mutex_destroy(&n->lock);
	free((char *)n->cfg.provider);
	free((char *)n->cfg.bind_addr);
	free((char *)n->cfg.device);
}

struct net_thread *net_find_thread(const struct net *n, unsigned thread)
{
	struct net_thread *t;

	LIST_FOREACH (t, &n->threads, link)
		if (t->x->thread == thread)
			break;
	return t;
}

void net_remove_thread(struct net *n, struct net_thread *t)
{
	LIST_REMOVE(t, link);
	net_stats_add_counters(&n->past, &t->count);
}

void net_set_conn_count(struct net *n, struct net_thread *t, uint32_t n_conns)
{
	uint32_t before = atomic_load_explicit(&t->count.connections, memory_order_relaxed);

	atomic_store_explicit(&t->count.connections, n_conns, memory_order_relaxed);
	atomic_fetch_add_explicit(&n->n_conns, n_conns - before, memory_order_relaxed);
}

/* ---- tickets ---- */

uint64_t net_new_nonce(struct net *n, unsigned slot)
{
	uint64_t count = atomic_fetch_add(&n->nonces, N_CHANNELS) + 1;

	return count << 32 | (uint64_t)n->tag << 16 | slot;
}

void net_seal_ticket(const struct net *n, const struct peer_conn *c, enum channel channel,
	uint16_t credits, uint8_t ret[TICKET_BYTES])
{
	struct ticket t = {.thread = c->peer_thread,
		.channel = (uint8_t)channel,
		.can_take_eager = n->can_take_eager,
		.peer_id = atomic_load(&n->my_id),
		.credits = credits,
		.instance = n->cfg.my_instance,
		.nonce = peer_conn_nonce(c, channel)};

	ticket_seal(&t, c->key, ret);
}

void net_seal_proof(const struct net *n, const struct ticket *t, const void *key, uint16_t credits,
	uint64_t cookie, uint8_t ret[PROOF_BYTES])
{
	struct proof p = {.instance = n->cfg.my_instance,
		.peer_id = atomic_load(&n->my_id),
		.credits = credits,
		.can_take_eager = n->can_take_eager,
		.cookie = cookie};

	proof_seal(&p, t->nonce, key, ret);
}

static const char other_version[] = "another version of the data protocol";

const char *net_check_ticket(
	struct net *n, const void *buf, size_t n_bytes, struct ticket *ret, void *ret_key)
{
	int rc = ticket_parse(buf, n_bytes, ret);

	if (rc)
		return rc == BPS_EVERSION ? other_version : "malformed ticket";
	if (ret->channel >= N_CHANNELS)
		return "ticket for shared memory on the network port";
	if (n->key_fn(n->key_ctx, ret->peer_id, ret->instance, ret_key))
		return "the peer is unknown, or a newer process has replaced it";
	if (ticket_verify(buf, ret_key))
		return "wrong key";
	/* Do not check the ticket of a second channel for a replay. Many other connections may have
	 * begun since the first channel. Then the serial number of this ticket may lie before the
	 * window of struct replay, although the ticket is new. The data thread accepts this ticket
	 * only once, for the connection that waits for its second channel (peer_conn_is_second). */
	if (ret->channel == CHANNEL_FIRST && replay_check(&n->replay, ret))
		return "replayed ticket";
	return FAILPOINT(NET_ACCEPT) ? "ordered by a failpoint" : NULL;
}

const char *net_record_refusal(struct net *n, const struct ticket *t, const char *why)
{
	struct err_text text;

	atomic_fetch_add_explicit(&n->refused, 1, memory_order_relaxed);
	if (why == other_version) {
		ticket_explain_version(t->version, &text);
		log_rated(LOG_WARN, "refused a data connection: %s", text.s);
		return REFUSED_VERSION;
	}
	if (t->instance)
		log_rated(LOG_WARN, "refused a data connection: %s peer=%u instance=%016lx", why,
			t->peer_id, (unsigned long)t->instance);
	else /* a ticket that could not be parsed names no peer */
		log_rated(LOG_WARN, "refused a data connection: %s", why);
	return REFUSED_TICKET;
}
