#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_H
/* Transport over TCP sockets (common/transport/net.h, common/transport/xport.h).
 * docs/reference/protocol-data.md describes the bytes on the sockets.
 *
 * libfabric's provider "tcp" costs more than the sockets that it uses. The provider wakes itself up
 * for each completion, and calls epoll once more for each poll. With libfabric 1.17, all
 * connections of a thread must also be opened again when one of them ends during a read.
 * docs/explanation/design/transports.md has the figures. For these reasons, provider "auto" chooses
 * our own sockets where there is no RDMA.
 *
 * A server has one connection thread, which accepts connections and checks tickets, so that a peer
 * without a valid ticket never delays data. When the ticket is valid, the connection thread passes
 * the socket to the data thread that the ticket names. */
#include "common/transport/net.h"

#define TCP_CONNS_MAX 1024 /* largest number of connections of a data thread */

/* Open the network transport for provider "sockets". For the parameters and errors, see net_open
 * (common/datapath/net_open.h). */
int tcp_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
