#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
/* The device back-end over the CUDA driver API and NCCL: what program bps-agent-cuda runs on. Only
 * that program (and its tests) link it, plainly against libcuda.so.1; NCCL is loaded when the first
 * clique needs it, so one GPU works without. Not compiled where the toolkit's headers are missing.
 *
 * It works in primary contexts, retained by the first call that needs a GPU, and changes the
 * calling thread's current context; open sets what the driver reads from the environment. Memory is
 * VMM memory with POSIX descriptors; queues are streams that do not synchronize with the default
 * stream; counters are 64-bit stream memory operations.
 *
 * Tested over the libraries of tests/gpu/fake/, which check every call's arguments, contexts and
 * lifetimes. What they cannot show, and no machine with several GPUs has shown either: links of
 * peers (NVLink is told from PCIe by native atomics), access of `also` GPUs, NCCL's order of
 * finalization and abort with real kernels, queue priorities, dma-bufs, legacy handles across
 * containers, and that mappings of expandable segments are reported one by one. */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_cuda;
#endif
