#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_H
/* Transport over TCP sockets (common/transport/net.h, common/transport/xport.h).
 * docs/reference/protocol-data.md has what goes over them.
 *
 * libfabric's tcp provider costs, beside what the sockets cost, a wake-up of itself per completion
 * and an epoll of its own per look, and must start all connections of a thread anew when a read was
 * cut short (docs/explanation/design/transports.md has the figures). So TCP is ours; libfabric
 * serves what has no sockets.
 *
 * A process has one connection thread, which accepts and checks tickets, so that no stranger ever
 * holds up data; a good ticket's socket goes to the data thread that it names. */
#include "common/transport/net.h"

#define TCP_CONNS_MAX 1024 /* of a data thread */

/* As net_open, for provider "tcp". */
int tcp_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
