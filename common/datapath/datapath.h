#ifndef BPS_COMMON_DATAPATH_DATAPATH_H
#define BPS_COMMON_DATAPATH_DATAPATH_H
/* The transport of a data thread. It combines the network (common/transport/net.h) and, unless
 * switched off, shared memory with peers on the same host (common/transport/shm/shm.h). The core
 * sees one struct xport. Each of its connections belongs to one of the two transports.
 *
 * A connect goes through shared memory when the peer's socket is in the directory, else through the
 * network. A connect through shared memory may fail although the socket exists, for example without
 * permission or with a peer of another release. After three failures in a row, which are logged,
 * connects to that data thread go through the network.
 *
 * Both transports have the same segments under the same numbers. Thread: as in xport.h. */
#include "common/transport/net.h"
#include "common/transport/shm/shm.h"

/* Make the transport; free it with xport_free. same_host: settings of shared memory; NULL: use the
 * network only. When shared memory cannot be set up, this is logged and the transport uses the
 * network only.
 * Errors: a negative code; err gets the text. */
int datapath_new(struct net *net, const struct shm_config *same_host, unsigned thread,
	const struct xport_events *ev, void *ctx, struct xport **ret, struct err_text *err);

/* Return whether x uses shared memory. If not, it has no xport_ops.seg_share. */
bool datapath_is_shared(const struct xport *x);
#endif
