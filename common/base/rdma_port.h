#ifndef BPS_COMMON_BASE_RDMA_PORT_H
#define BPS_COMMON_BASE_RDMA_PORT_H
/* Finds out from sysfs whether a network interface belongs to an active RDMA port (InfiniBand,
 * RoCE). Does not open the device. Any thread may call the functions. */
#include <stdbool.h>

/* Return whether the interface belongs to a port that is ACTIVE. With RoCE, a file in the
 * port's folder gid_attrs/ndevs contains the name of the interface. With IPoIB, the interface's
 * folder contains the name of the RDMA device, and the folder's file dev_port contains the port's
 * number minus 1. sysfs: "/sys", or a folder that a test has made. */
bool rdma_port_is_active(const char *sysfs, const char *interface);
/* Return whether the interface with this numeric address belongs to an ACTIVE port. Returns false
 * for the loopback. */
bool rdma_port_has_address(const char *sysfs, const char *host);
#endif
