#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
/* The device back-end over the CUDA driver API and NCCL: the base of program bps-agent-cuda. Only
 * that program and its tests link it, directly against libcuda.so.1. NCCL is loaded when the first
 * clique needs it, so one GPU works without NCCL. Not compiled where the toolkit's headers are
 * missing.
 *
 * It works in primary contexts, retained by the first call that needs a GPU, and changes the
 * calling thread's current context; open sets the environment variables that the driver reads.
 * Memory is VMM memory with POSIX descriptors; queues are streams that do not synchronize with the
 * default stream; counters are 64-bit stream memory operations.
 *
 * Tested over the libraries of tests/gpu/fake/, which check every call's arguments, contexts and
 * lifetimes. Neither these libraries nor a machine with several GPUs have tested: links of peers
 * (native atomics distinguish NVLink from PCIe), access of `also` GPUs, NCCL's order of
 * finalization and abort with real kernels, queue priorities, dma-bufs, legacy handles across
 * containers, and that mappings of expandable segments are reported one by one. */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_cuda;
#endif
