#ifndef BPS_COMMON_TRANSPORT_FABRIC_FABRIC_H
#define BPS_COMMON_TRANSPORT_FABRIC_FABRIC_H
/* libfabric back-end of common/transport/net.h: FI_EP_MSG endpoints of provider tcp or verbs, API
 * 1.17.
 *
 * A process has one struct fabric: provider, address, and the connection-management thread with the
 * event queue and, for a server, the listener with its ticket check. Each data thread has one
 * struct fabric_xport: domain, completion queue, shared receive context; 256 connections at most.
 * Progress is manual: poll makes it, and may_sleep asks libfabric whether the thread may block.
 *
 * A peer with a valid ticket is trusted code: it can crash provider tcp. */
#include "common/transport/net.h"

/* Open like net_open, for libfabric's provider cfg->provider. Sets two environment variables of
 * libfabric, so call it before other threads read the environment. */
int fabric_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);

#endif
