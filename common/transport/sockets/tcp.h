#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_H
/* Transport over TCP sockets (common/transport/net.h, common/transport/xport.h).
 * docs/reference/protocol-data.md describes the bytes on them.
 *
 * In addition to the cost of sockets, libfabric's tcp provider costs a wake-up of itself per
 * completion and an epoll call of its own per poll. It must also restart all connections of a
 * thread when a read was cut short (docs/explanation/design/transports.md has the figures). So we
 * use our own sockets for TCP, and libfabric for networks without sockets.
 *
 * A process has one connection thread, which accepts connections and checks tickets, so that a
 * stranger never delays data. The socket of a valid ticket goes to the data thread that the ticket
 * names. */
#include "common/transport/net.h"

#define TCP_CONNS_MAX 1024 /* limit per data thread */

/* Open like net_open, for provider "tcp". */
int tcp_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
