/* Explain errors of libfabric to people. For a provider that cannot use an address, libfabric
 * reports only "no data available", and for a limit of locked memory only "cannot allocate memory".
 * Any thread. */
#include "common/transport/fabric/fabric_impl.h"

#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

/* List the providers that work on this machine, except those that are only layers over other
 * providers. */
static void list_providers(char *list, size_t room)
{
	struct fi_info *all = NULL;
	size_t n = 0;

	list[0] = '\0';
	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &all))
		return;
	for (const struct fi_info *i = all; i && n < room; i = i->next) {
		const char *name = i->fabric_attr->prov_name;

		if (!strchr(name, ';') && strncmp(name, "ofi_", 4) != 0)
			n += (size_t)snprintf(list + n, room - n, "%s%s", n ? ", " : "", name);
	}
	fi_freeinfo(all);
}

int fabric_explain(const struct net_config *cfg, int rc, struct err_text *err)
{
	char list[256];

	if (strcmp(cfg->provider, "tcp") == 0)
		return err_set(err, rc,
			"libfabric provider 'tcp' has no endpoint on address %s: %s (does this "
			"machine have the address?)",
			cfg->bind_addr, fi_strerror(-rc));
	if (strcmp(cfg->provider, "verbs") == 0)
		return err_set(err, rc,
			"libfabric provider 'verbs' finds no RDMA device with address %s: %s (is "
			"its driver loaded? `ibv_devices` lists the devices; --provider tcp needs "
			"none)",
			cfg->bind_addr, fi_strerror(-rc));
	list_providers(list, sizeof(list));
	return err_set(err, rc,
		"libfabric provider '%s' cannot be used on address %s: %s (available: %s; choose "
		"another --provider: tcp or verbs)",
		cfg->provider, cfg->bind_addr, fi_strerror(-rc), *list ? list : "none");
}

static bool may_lock_any(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

	return syscall(SYS_capget, &head, data) == 0 &&
	       data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

uint64_t fabric_lockable_bytes(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY || may_lock_any())
		return UINT64_MAX;
	return limit.rlim_cur;
}
