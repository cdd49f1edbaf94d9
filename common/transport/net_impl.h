#ifndef BPS_COMMON_TRANSPORT_NET_IMPL_H
#define BPS_COMMON_TRANSPORT_NET_IMPL_H
/* What the implementations of common/transport/net.h have in common, and common/transport/shm/shm.h, which listens for
 * silence as they do. */
#include <stdatomic.h>
#include <stdbool.h>

#include "common/transport/net.h"

/* What a data thread counts: written by it, read by any. */
struct net_counters {
	_Atomic uint64_t rx_bytes, tx_bytes, messages_in, messages_out, reads, protocol_errors,
		discarded_bytes;
	_Atomic uint32_t connections;
};
static inline void net_count(_Atomic uint64_t *c, uint64_t n)
{
	atomic_store_explicit(
		c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}
/* Add a data thread's. */
void net_stats_add(struct net_stats *s, const struct net_counters *c);
/* Add those of one that is about to end, whose connections are gone with it. */
void net_stats_keep(struct net_stats *past, const struct net_counters *c);

/* The times that cfg leaves open. */
void net_default_times(struct net_config *cfg);

/* Silence of a peer: after ping_ms of it a ping is due, once, and after dead_ms the connection is
 * dead. It is only held against a peer that had a ping to answer, since we may have been stopped
 * ourselves. */
struct net_silence {
	uint64_t rx_ns;   /* the peer was heard last */
	uint64_t ping_ns; /* it was pinged last */
	bool is_pinged;   /* and not heard since */
};
/* It is heard at now_ns. Returns whether a ping waited for that. */
static inline bool net_silence_end(struct net_silence *s, uint64_t now_ns)
{
	bool was_pinged = s->is_pinged;

	s->rx_ns = now_ns;
	s->is_pinged = false;
	return was_pinged;
}

enum net_due { NET_DUE_NOTHING, NET_DUE_PING, NET_DUE_END };
/* What is due at now_ns on a connection that is up; a ping counts as sent. ping_ms of 0: nothing
 * ever is. *ret_at_ns: when to ask again; UINT64_MAX: never. */
enum net_due net_silence_due(struct net_silence *s, uint32_t ping_ms, uint32_t dead_ms,
	uint64_t now_ns, uint64_t *ret_at_ns);
#endif
