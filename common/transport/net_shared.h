#ifndef BPS_COMMON_TRANSPORT_NET_SHARED_H
#define BPS_COMMON_TRANSPORT_NET_SHARED_H
/* Code that the implementations of common/transport/net.h share. A process has one struct net. Each
 * data thread has one struct net_thread, with counters and a queue. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "common/os/handover_queue.h"
#include "common/transport/net.h"
#include "common/transport/peer_conn.h"
#include "common/wire/ticket.h"

/* Counters of a data thread: only that thread writes them, any thread reads them. */
struct net_counters {
	_Atomic uint64_t rx_bytes, tx_bytes, messages_in, messages_out, reads, protocol_errors,
		discarded_bytes;
	_Atomic uint32_t connections;
};
static inline void net_counter_add(_Atomic uint64_t *c, uint64_t n)
{
	atomic_store_explicit(
		c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}

struct net_thread {
	struct peer_xport *x;
	struct net_counters count;
	struct handover_queue queue;
	LIST_ENTRY(net_thread) link; /* link in net->threads, guarded by net->lock */
};

struct net_ops {
	void (*close)(struct net *n);
	int (*xport_new)(struct net *n, unsigned thread, const struct xport_events *ev, void *ctx,
		struct xport **ret, struct err_text *err);
};

/* First member of every implementation's object. */
struct net {
	const struct net_ops *ops;
	/* Copy of the caller's configuration. The strings in it are copies as well, except the
	 * field `congestion`, which is NULL */
	struct net_config cfg;
	net_key_fn key_fn;
	void *key_ctx;
	uint16_t port;
	/* Whether this process can receive eager bytes over libfabric. Its tickets and proofs
	 * report it */
	bool can_take_eager;
	_Atomic uint32_t my_id, nonces;
	/* Connections of all data threads over this network card, on which the receive windows
	 * depend (flow/recv_window.h). Relaxed: a thread may learn of a change a little later */
	_Atomic uint32_t n_conns;
	/* Number that all nonces of this object contain, so that they differ from those of the
	 * process's other objects, and from those that were made before a restart of the process */
	uint16_t tag;

	pthread_mutex_t lock; /* guards `threads` and `past` */
	LIST_HEAD(net_thread_list, net_thread) threads;
	struct net_stats past; /* sums of the counters of freed data threads */
	_Atomic uint64_t refused, silent;
	struct replay replay; /* used only by the connection thread */
};

/* Fill in a zeroed object. Call net_fini even when net_init fails.
 * Errors: -ENOMEM. */
int net_init(struct net *n, const struct net_ops *ops, const struct net_config *cfg,
	net_key_fn key_fn, void *key_ctx);
void net_fini(struct net *n);

static inline struct peer_times net_peer_times(const struct net *n)
{
	return (struct peer_times){n->cfg.connect_timeout_ms, n->cfg.ping_ms, n->cfg.dead_ms};
}

/* Return the data thread with the number `thread`, or NULL. The caller holds net->lock. */
struct net_thread *net_find_thread(const struct net *n, unsigned thread);
/* Remove t from the list and add its counters to net->past. The caller holds net->lock. */
void net_remove_thread(struct net *n, struct net_thread *t);

/* Record how many connections the data thread t has. Thread: t. */
void net_set_conn_count(struct net *n, struct net_thread *t, uint32_t n_conns);

/* Return the nonce of a new connection in this slot. Also reserve the nonce of the connection's
 * second channel. The serial number in that nonce is larger by one. */
uint64_t net_new_nonce(struct net *n, unsigned slot);
/* Make the ticket that c sends for a channel. */
void net_seal_ticket(const struct net *n, const struct peer_conn *c, enum channel channel,
	uint16_t credits, uint8_t ret[TICKET_BYTES]);
/* Make the proof with which this process answers the sender of ticket t. */
void net_seal_proof(const struct net *n, const struct ticket *t, const void *key, uint16_t credits,
	uint64_t cookie, uint8_t ret[PROOF_BYTES]);
/* Check a ticket, on the connection thread. If the ticket is valid, writes its fields to *ret,
 * writes to ret_key the key that is shared with the sender, and returns NULL. Otherwise returns the
 * reason for refusing the ticket. */
const char *net_check_ticket(
	struct net *n, const void *buf, size_t n_bytes, struct ticket *ret, void *ret_key);
/* Count and log a refusal. Returns the word (REFUSED_...) that the caller sends to the peer. */
const char *net_record_refusal(struct net *n, const struct ticket *t, const char *why);
#endif
