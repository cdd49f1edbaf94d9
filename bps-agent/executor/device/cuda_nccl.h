#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_NCCL_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_NCCL_H
/* Loads NCCL when the first clique is opened. So a single GPU works on machines without NCCL, and
 * processes that do not use NCCL save 200 MB of memory. The types come from NCCL's header. NCCL's
 * symbols have no versions, so NCCL's version is checked after loading. NCCL is never unloaded,
 * because it has threads and exit handlers. */
#include <nccl.h>

#include "bps-agent/executor/device/cuda_impl.h"

#define NCCL_CALLS(X)                                                                              \
	X(GetVersion)                                                                              \
	X(GetErrorString)                                                                          \
	X(GetLastError)                                                                            \
	X(GetUniqueId)                                                                             \
	X(CommInitRankConfig)                                                                      \
	X(CommGetAsyncError)                                                                       \
	X(CommFinalize)                                                                            \
	X(CommDestroy)                                                                             \
	X(CommAbort)                                                                               \
	X(GroupStart)                                                                              \
	X(GroupEnd)                                                                                \
	X(ReduceScatter)                                                                           \
	X(AllGather)                                                                               \
	X(Reduce)                                                                                  \
	X(Broadcast)

struct nccl {
	int version; /* version number, for example 21800 for 2.18.0 */
#define X(name) __typeof__(&nccl##name) name;
	NCCL_CALLS(X)
#undef X
};

/* Write the device's NCCL to *ret_nccl. The first call loads NCCL. Errors: DEVICE_UNSUP,
 * DEVICE_NOMEM, with the text in d->base.why. */
int cuda_load_nccl_once(struct cuda_device *d, const struct nccl **ret_nccl);
#endif
