/* Explain errors of libfabric to people. If a provider cannot use an address, libfabric reports
 * only "no data available". If the limit of locked memory is too low, libfabric reports only
 * "cannot allocate memory". Any thread may call the functions. */
#include "common/transport/fabric/fabric_impl.h"

#include <linux/capability.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

int fabric_explain(const struct net_config *cfg, int rc, struct err_text *err)
{
	if (strcmp(cfg->provider, "tcp") == 0)
		return err_set(err, rc,
			"libfabric provider 'tcp' has no endpoint on address %s: %s (does this "
			"machine have the address?)",
			cfg->bind_addr, fi_strerror(-rc));
	return err_set(err, rc,
		"libfabric provider 'verbs' finds no RDMA device with address %s: %s (is the "
		"device's driver loaded? `ibv_devices` lists the RDMA devices; --provider sockets "
		"needs no RDMA device)",
		cfg->bind_addr, fi_strerror(-rc));
}

static bool process_may_lock_memory(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

	return syscall(SYS_capget, &head, data) == 0 &&
	       data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

uint64_t fabric_lockable_bytes(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY ||
		process_may_lock_memory())
		return UINT64_MAX;
	return limit.rlim_cur;
}
