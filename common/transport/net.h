#ifndef BPS_COMMON_TRANSPORT_NET_H
#define BPS_COMMON_TRANSPORT_NET_H
/* Network transport of a process. A struct net has the address of the process, one struct xport per
 * data thread (common/transport/xport.h) and, in a server, the listener, which checks tickets.
 * There are two implementations: common/transport/sockets/tcp.h uses our own sockets, and
 * common/transport/fabric/fabric.h uses libfabric (its providers tcp and verbs).
 *
 * The connecting side first sends a ticket. The 48 bytes of the ticket contain thread, peer id,
 * instance and nonce, and an HMAC of these fields under a key. The scheduler gives the key only to
 * the two processes that the connection joins. The listener checks the ticket before it receives
 * anything else, and answers with a proof. A ticket has no expiry time. A ticket is valid while the
 * key function returns a key for its sender. Each ticket is valid only once: its nonce contains a
 * serial number, and the listener records the latest serial numbers of each sender. */
#include <stdint.h>

#include "common/base/error.h"
#include "common/transport/xport.h"

struct net;

struct net_config {
	/* "sockets": our own transport; "tcp" or "verbs": the provider of libfabric with this name.
	 * net_open also accepts "auto". */
	const char *provider;
	const char *bind_addr; /* numeric address of the network interface to use */
	/* Name of that interface, if connections of the provider "sockets" must use it whatever the
	 * routes are, because the process has several; NULL: the routes decide */
	const char *device;
	/* Congestion control of TCP connections: the argument `wanted` of congestion_choose. NULL:
	 * "auto" */
	const char *congestion;
	uint16_t port;        /* listener's port; 0: any */
	uint32_t is_listener; /* 1: a server, which listens; 0: an agent, which connects */
	uint32_t my_id;       /* member id */
	uint64_t my_instance;
	uint32_t n_threads; /* number of data threads; each has one xport */
	/* Number that distinguishes the nonces of several networks of one process; 0: random */
	uint16_t tag;
	/* Only for libfabric: number of receive buffers granted to the peer per connection. 0 means
	 * 64. Values 1 to 3 are raised to 4 */
	uint32_t credits;
	uint32_t connect_timeout_ms; /* time limit for connect and handshake; 0: 3000 ms */
	uint32_t ping_ms;            /* silence after which a ping is sent; 0: never */
	uint32_t dead_ms;            /* silence that closes a connection; at least 2 * ping_ms */
};

/* Look up the key shared with the peer of this id and instance. The transport over shared memory
 * calls this function on its data threads. The other transports call this function on the
 * connection thread. So the implementation must lock its data. The implementation must not call the
 * transport. If there is a key, the function writes the 32 bytes of the key to ret_key, and returns
 * 0. Otherwise the function returns BPS_ENOTFOUND. */
typedef int (*net_key_fn)(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key);

struct net_stats {
	/* rx_bytes: bytes of received messages and of this process's reads. tx_bytes: bytes of sent
	 * messages. Bytes that a peer reads are in the peer's rx_bytes, not in tx_bytes */
	uint64_t rx_bytes, tx_bytes;
	/* Part of rx_bytes: eager bytes that were discarded, because no read of their offer was
	 * open */
	uint64_t discarded_bytes;
	uint64_t messages_in, messages_out, reads, protocol_errors, refused_tickets,
		silent_strangers;
	uint32_t connections;
};

/* Stop the listener of n, and free n. All xports of n must have been freed. NULL is allowed. */
void net_close(struct net *n);
/* Return the provider in use: "sockets", "tcp" or "verbs". The string is valid as long as n
 * exists. */
const char *net_provider(const struct net *n);
/* Return the listener's port. */
uint16_t net_port(const struct net *n);
/* Set the member id that the scheduler has assigned to this process. Call this function before the
 * first connect. */
void net_set_id(struct net *n, uint32_t my_id);
/* Make the xport of data thread `thread`. Thread: any, before the data thread starts using the
 * xport. */
int net_xport_new(struct net *n, unsigned thread, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err);
/* Read the counters. Thread: any. */
void net_stats(struct net *n, struct net_stats *ret);
/* Add the counters of another net. */
void net_stats_add(struct net_stats *s, const struct net_stats *more);
#endif
