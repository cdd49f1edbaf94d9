#include "common/transport/net_impl.h"

#include "common/base/clock.h"

#define CONNECT_TIMEOUT_MS 3000

static uint64_t look(const _Atomic uint64_t *c)
{
	return atomic_load_explicit(c, memory_order_relaxed);
}

void net_stats_keep(struct net_stats *past, const struct net_counters *c)
{
	past->rx_bytes += look(&c->rx_bytes);
	past->tx_bytes += look(&c->tx_bytes);
	past->messages_in += look(&c->messages_in);
	past->messages_out += look(&c->messages_out);
	past->reads += look(&c->reads);
	past->discarded_bytes += look(&c->discarded_bytes);
	past->protocol_errors += look(&c->protocol_errors);
}

void net_stats_add(struct net_stats *s, const struct net_counters *c)
{
	net_stats_keep(s, c);
	s->connections += atomic_load_explicit(&c->connections, memory_order_relaxed);
}

void net_default_times(struct net_config *cfg)
{
	if (!cfg->connect_timeout_ms)
		cfg->connect_timeout_ms = CONNECT_TIMEOUT_MS;
	if (cfg->ping_ms && cfg->dead_ms < 2 * cfg->ping_ms)
		cfg->dead_ms = 2 * cfg->ping_ms;
}

static uint64_t dead_at(const struct net_silence *s, uint32_t ping_ms, uint32_t dead_ms)
{
	uint64_t by_rx = s->rx_ns + dead_ms * NS_PER_MS;
	uint64_t by_ping = s->ping_ns + (dead_ms - ping_ms) * NS_PER_MS;

	return by_rx > by_ping ? by_rx : by_ping;
}

enum net_due net_silence_due(struct net_silence *s, uint32_t ping_ms, uint32_t dead_ms,
	uint64_t now_ns, uint64_t *ret_at_ns)
{
	uint64_t ping_at_ns = ping_ms ? s->rx_ns + ping_ms * NS_PER_MS : UINT64_MAX;
	bool is_new = !s->is_pinged && now_ns >= ping_at_ns;

	if (is_new) {
		s->is_pinged = true;
		s->ping_ns = now_ns;
	}
	*ret_at_ns = s->is_pinged ? dead_at(s, ping_ms, dead_ms) : ping_at_ns;
	if (s->is_pinged && now_ns >= *ret_at_ns) {
		*ret_at_ns = UINT64_MAX;
		return NET_DUE_END;
	}
	return is_new ? NET_DUE_PING : NET_DUE_NOTHING;
}
