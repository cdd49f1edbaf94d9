#ifndef BPS_COMMON_DATAPATH_NET_OPEN_H
#define BPS_COMMON_DATAPATH_NET_OPEN_H
/* Opens the network transport that the setting `provider` names. net_open.c is the only file that
 * includes all implementations of common/transport/net.h. */
#include "common/transport/net.h"

/* Open the provider cfg->provider on the address cfg->bind_addr, and listen if cfg->is_listener.
 * Starts the connection thread. Call it before other threads read the environment, because it sets
 * two variables for libfabric.
 * Errors: negative, with a sentence that says what to do. */
int net_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
