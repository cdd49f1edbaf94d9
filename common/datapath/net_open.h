#ifndef BPS_COMMON_DATAPATH_NET_OPEN_H
#define BPS_COMMON_DATAPATH_NET_OPEN_H
/* Opens the network transport that the setting `provider` names. The only place that knows all
 * implementations of common/transport/net.h. */
#include "common/transport/net.h"

/* Open the provider and the address; with is_listener, listen. Starts the connection thread. err
 * gets the sentence (unknown or missing provider, port in use, what to do). Call it before other
 * threads look at the environment, of which libfabric gets two variables. */
int net_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
