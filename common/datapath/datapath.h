#ifndef BPS_COMMON_DATAPATH_DATAPATH_H
#define BPS_COMMON_DATAPATH_DATAPATH_H
/* The transport of a data thread: the network (common/transport/net.h), and beside it, where it is
 * not switched off, the memory of peers on the same host (common/transport/shm/shm.h). The core
 * sees one struct xport; each of its connections belongs to one of the two.
 *
 * A connect goes through shared memory when the peer's socket is in the directory, else through
 * the network. When the socket is there and nothing comes of it, three times in a row (no permission,
 * another release), that is logged, and the next ones to that thread go through the network.
 *
 * Both have the same segments under the same numbers. Thread: as xports. */
#include "common/transport/net.h"
#include "common/transport/shm/shm.h"

/* same_host: NULL when switched off. A listener that cannot make its socket is logged and goes
 * without. Freed by xport_free.
 * Errors: negative, with a sentence. */
int datapath_new(struct net *net, const struct shm_config *same_host, unsigned thread,
	const struct xport_events *ev, void *ctx, struct xport **ret, struct err_text *err);

/* Does it share memory with peers on this host? Else xport_ops.seg_share is pointless. */
bool datapath_is_shared(const struct xport *x);
#endif
