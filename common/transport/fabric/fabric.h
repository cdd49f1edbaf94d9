#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_H
/* libfabric back-end of common/transport/net.h: FI_EP_MSG endpoints of provider tcp or verbs, API
 * 1.17.
 *
 * A process has one struct fabric, with the provider, the address and the connection-management
 * thread. In a server, that thread checks the tickets of the listener's connections. Each data
 * thread has one struct fabric_xport: domain, completion queue, event queue, shared receive
 * context. The connection-management thread reads the event queues of the data threads; with
 * provider tcp of libfabric 1.19 and later, each data thread reads its own, and has at most 1,024
 * connections instead of 256 (fabric_gates.h). Progress is manual (FI_PROGRESS_MANUAL): data moves
 * only inside calls of libfabric. may_sleep asks libfabric whether the thread may block.
 *
 * A peer with a valid ticket must be trusted code, because it could crash libfabric's provider
 * tcp. */
#include "common/transport/net.h"

/* Open the network transport for libfabric's provider cfg->provider, as net_open does
 * (common/datapath/net_open.h). Sets environment variables of libfabric, so call this function
 * before other threads read the environment. */
int fabric_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);

#endif
