#ifndef BPS_COMMON_DATAPATH_NET_OPEN_H
#define BPS_COMMON_DATAPATH_NET_OPEN_H
/* Opens the network transport that the setting `provider` names. Only this file refers to all
 * implementations of common/transport/net.h. */
#include "common/transport/net.h"

/* Open the provider and the address; with is_listener, listen. Starts the connection thread. err
 * gets the sentence (unknown or missing provider, port in use, advice). Call it before other
 * threads read the environment, because it sets two variables for libfabric. */
int net_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
