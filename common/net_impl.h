#ifndef BPS_COMMON_NET_IMPL_H
#define BPS_COMMON_NET_IMPL_H
/* What the implementations of common/net.h have in common, and common/shm.h, which listens for
 * silence as they do. */
#include <stdatomic.h>

#include "common/net.h"

/* What a data thread counts: written by it, read by any. */
struct net_counters {
	_Atomic uint64_t rx_bytes, tx_bytes, messages_in, messages_out, reads, protocol_errors;
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

/* When a connection is dead that was last heard at rx_ns, and pinged at ping_ns: silence is only held
 * against a peer that had a ping to answer, since we may have been stopped ourselves. */
uint64_t net_dead_ns(uint64_t rx_ns, uint64_t ping_ns, uint32_t ping_ms, uint32_t dead_ms);
#endif
