#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_NCCL_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_NCCL_H
/* NCCL, loaded when the first clique needs it. One GPU works on machines without NCCL, and its 200
 * MB stay out of processes that do not use it. Its header gives the types; its symbols carry no
 * versions. Once loaded it stays, since it has threads and exit handlers. */
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
	int version; /* 21800 is 2.18.0 */
#define X(name) __typeof__(&nccl##name) name;
	NCCL_CALLS(X)
#undef X
};

/* Return the device's NCCL, loaded at the first call. Errors: DEVICE_UNSUP with the reason. */
int cuda_nccl(struct cuda_device *d, const struct nccl **ret_nccl);
#endif
