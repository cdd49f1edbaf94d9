#ifndef BPS_COMMON_TRANSPORT_NET_H
#define BPS_COMMON_TRANSPORT_NET_H
/* What a process has of a transport over the network: its address, for servers the listener with
 * its ticket check, and one struct xport per data thread (common/transport/xport.h). Two
 * implementations: common/transport/sockets/tcp.h, our own sockets, and
 * common/transport/fabric/fabric.h, libfabric (verbs, and its tcp for comparison).
 *
 * A connect brings a ticket: 48 bytes with (thread, peer id, instance, nonce) and their HMAC under
 * the key that the scheduler gave to exactly these two instances; it is checked before anything
 * else is heard, and answered with a proof. A ticket has no expiry: it is good as long as the key
 * function knows the pair, and once, since the nonce counts the connects of its sender and the
 * listener keeps a window over that count. */
#include <stdint.h>

#include "common/base/error.h"
#include "common/transport/xport.h"

struct net;

struct net_config {
	const char *provider;  /* "tcp"; "verbs"; "ofi-tcp": libfabric's tcp */
	const char *bind_addr; /* numeric address of the interface to use */
	const char *
		congestion; /* of "tcp": as in common/transport/sockets/congestion.h; NULL: "auto" */
	uint16_t port;      /* of the listener; 0: any */
	uint32_t is_listener; /* servers listen, agents connect */
	uint32_t my_id;       /* member id */
	uint64_t my_instance;
	uint32_t n_threads; /* data threads = xports */
	uint32_t
		credits; /* libfabric: control receives granted per connection, 0: 64; at least 4 */
	uint32_t connect_timeout_ms; /* 0: 3000 */
	uint32_t ping_ms;            /* quiet connections are pinged this often (0: never) ... */
	uint32_t dead_ms;            /* ... and dropped after this silence; at least 2 * ping_ms */
};

/* Ask (on the connection thread; the implementation locks, and must not call the transport): is
 * peer_id with this instance known, and which key do we share? Returns 0 and writes 32 bytes, or
 * BPS_ENOTFOUND. */
typedef int (*net_key_fn)(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key);

struct net_stats {
	/* Messages and what was read; what peers read from us is counted by them. */
	uint64_t rx_bytes, tx_bytes;
	uint64_t discarded_bytes; /* of rx_bytes: came with an offer, and were thrown away */
	uint64_t messages_in, messages_out, reads, protocol_errors, refused_tickets,
		silent_strangers;
	uint32_t connections;
};

/* Stop and free; all xports must be freed before. NULL is allowed. */
void net_close(struct net *n);
/* Of the listener. */
uint16_t net_port(const struct net *n);
/* Set our member id once the scheduler has told it; before the first connect. */
void net_set_id(struct net *n, uint32_t my_id);
/* The xport of data thread `thread`. Call on any thread before that thread starts using it. */
int net_xport_new(struct net *n, unsigned thread, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err);
/* Thread: any. */
void net_stats(struct net *n, struct net_stats *ret);
#endif
