#include "common/datapath/net_open.h"

#include <errno.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/nicspeed.h"
#include "common/base/rdma_port.h"
#include "common/transport/fabric/fabric.h"
#include "common/transport/sockets/tcp.h"

const char *const net_provider_words[] = {"auto", "sockets", "tcp", "verbs", NULL};

const char *net_provider_auto(const char *sysfs, const char *bind_addr)
{
	return rdma_port_has_address(sysfs, bind_addr) ? "verbs" : "sockets";
}

static int net_open_provider(const char *provider, const struct net_config *cfg, net_key_fn key_fn,
	void *key_ctx, struct net **ret, struct err_text *err)
{
	struct net_config named = *cfg;

	named.provider = provider;
	if (strcmp(provider, "sockets") == 0)
		return tcp_open(&named, key_fn, key_ctx, ret, err);
	if (strcmp(provider, "tcp") == 0 || strcmp(provider, "verbs") == 0)
		return fabric_open(&named, key_fn, key_ctx, ret, err);
	return err_set(err, -EINVAL,
		"unknown provider '%s' (set provider to auto, sockets, tcp or verbs)", provider);
}

int net_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err)
{
	const char *provider = cfg->provider;
	bool is_auto = strcmp(provider, "auto") == 0;
	int rc;

	if (is_auto) {
		provider = net_provider_auto(NIC_SYSFS, cfg->bind_addr);
		log_info("provider 'auto' means '%s': address=%s has_active_rdma_port=%s", provider,
			cfg->bind_addr, strcmp(provider, "verbs") == 0 ? "yes" : "no");
	}
	rc = net_open_provider(provider, cfg, key_fn, key_ctx, ret, err);
	/* Do not fall back to sockets after -EADDRINUSE, because a port in use becomes free after
	 * a moment. */
	if (!is_auto || rc >= 0 || rc == -EADDRINUSE || strcmp(provider, "sockets") == 0)
		return rc;
	log_warn("using provider 'sockets', because the RDMA port of address %s cannot be used: "
		 "%s",
		cfg->bind_addr, err->s);
	return net_open_provider("sockets", cfg, key_fn, key_ctx, ret, err);
}
