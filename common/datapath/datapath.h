#ifndef BPS_COMMON_DATAPATH_DATAPATH_H
#define BPS_COMMON_DATAPATH_DATAPATH_H
/* The transport of a data thread. It combines the network (common/transport/net.h) and, unless
 * switched off, shared memory with peers on the same host (common/transport/shm/shm.h). The core
 * sees one struct xport. Each connection belongs to one of the two transports.
 *
 * An attempt to connect uses shared memory if the peer's socket is in the directory shm_config.dir.
 * Otherwise it uses the network. An attempt through shared memory may fail although the socket
 * exists, for example because a permission is missing or the peer runs another release. After three
 * failures in a row, the combined transport logs a warning and connects to the peer's data thread
 * through the network.
 *
 * Both transports have the same segments under the same numbers. Thread: as in xport.h. */
#include "common/transport/net.h"
#include "common/transport/shm/shm.h"

/* Make the transport; free it with xport_free. same_host: settings of shared memory; NULL: use the
 * network only. If shared memory cannot be set up, log a warning and use the network only.
 * Errors: a negative code; err gets the text. */
int datapath_new(struct net *net, const struct shm_config *same_host, unsigned thread,
	const struct xport_events *ev, void *ctx, struct xport **ret, struct err_text *err);

/* Return whether x uses shared memory. If not, xport_ops.seg_share of x is NULL. */
bool datapath_is_shared(const struct xport *x);
#endif
