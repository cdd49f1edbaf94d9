#include "common/datapath/net_open.h"

#include <string.h>

#include "common/transport/fabric/fabric.h"
#include "common/transport/sockets/tcp.h"

int net_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err)
{
	struct net_config ofi = *cfg;

	if (strcmp(cfg->provider, "tcp") == 0)
		return tcp_open(cfg, key_fn, key_ctx, ret, err);
	if (strcmp(cfg->provider, "ofi-tcp") == 0)
		ofi.provider = "tcp";
	return fabric_open(&ofi, key_fn, key_ctx, ret, err);
}
