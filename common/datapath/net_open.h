#ifndef BPS_COMMON_DATAPATH_NET_OPEN_H
#define BPS_COMMON_DATAPATH_NET_OPEN_H
/* Opens the network transport that the setting `provider` names. net_open.c is the only file that
 * includes all implementations of common/transport/net.h. */
#include "common/transport/net.h"

/* Values of the setting `provider`. auto: net_provider_auto chooses. sockets: our own transport
 * over TCP. tcp and verbs: libfabric's providers of these names. */
extern const char *const net_provider_words[];

/* Return what "auto" means on this address: "verbs" when the address belongs to an active RDMA
 * port, else "sockets". Never returns "tcp", because not every row of the table
 * docs/results/performance/providers.md holds. sysfs: "/sys", or a folder that a test has made. */
const char *net_provider_auto(const char *sysfs, const char *bind_addr);

/* Open the provider cfg->provider on the address cfg->bind_addr, and listen if cfg->is_listener. If
 * cfg->provider is "auto", net_provider_auto chooses the provider. If it chooses "verbs" and that
 * provider cannot be opened, log the reason and open the provider "sockets" instead. If the error
 * is -EADDRINUSE, return it without this second attempt. Start the connection thread. Call net_open
 * before other threads read the environment, because net_open sets environment variables for
 * libfabric.
 * Errors: a negative code; err gets a text that says what to do. */
int net_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err);
#endif
