#ifndef BPS_COMMON_BASE_RDMA_PORT_H
#define BPS_COMMON_BASE_RDMA_PORT_H
/* Finds out from sysfs whether a network interface belongs to an active RDMA port (InfiniBand,
 * RoCE). Does not open the device. Any thread. */
#include <stdbool.h>

/* Return whether the interface belongs to a port that is ACTIVE. Two links count: RoCE names the
 * interface beside the port's addresses (gid_attrs/ndevs). An IPoIB interface names its device, and
 * its port by dev_port, which counts from 0. sysfs: "/sys", or the folder of a test. */
bool rdma_port_is_active(const char *sysfs, const char *interface);
/* Return whether the interface with this numeric address belongs to an ACTIVE port. Returns false
 * for the loopback. */
bool rdma_port_has_address(const char *sysfs, const char *host);
#endif
