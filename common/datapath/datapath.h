#ifndef BPS_COMMON_DATAPATH_DATAPATH_H
#define BPS_COMMON_DATAPATH_DATAPATH_H
/* The transport of a data thread: the network (common/transport/net.h) and, unless it is switched
 * off, the memory of peers on the same host (common/transport/shm/shm.h). The core sees one struct
 * xport; each of its connections belongs to one of the two.
 *
 * A connect goes through shared memory when the peer's socket is in the directory, else through the
 * network. Three failures in a row although the socket exists (no permission, another release) are
 * logged. The next connects to that thread then go through the network.
 *
 * Both have the same segments under the same numbers. Thread: same as xport.h. */
#include "common/transport/net.h"
#include "common/transport/shm/shm.h"

/* Make the transport. same_host: NULL when switched off. A listener that cannot make its socket
 * logs that and continues without it. Freed by xport_free.
 * Errors: negative, with a sentence. */
int datapath_new(struct net *net, const struct shm_config *same_host, unsigned thread,
	const struct xport_events *ev, void *ctx, struct xport **ret, struct err_text *err);

/* Return whether it shares memory with peers on this host. If not, xport_ops.seg_share has no
 * use. */
bool datapath_is_shared(const struct xport *x);
#endif
