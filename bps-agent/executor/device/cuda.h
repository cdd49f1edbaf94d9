#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
/* The device back-end for the CUDA driver API and NCCL. Only the program bps-agent-cuda and its
 * tests contain it; they link libcuda.so.1. NCCL is loaded when the first clique needs it, so a
 * single GPU works without NCCL. The back-end is not compiled if the headers of the CUDA toolkit
 * are missing.
 *
 * The back-end uses the primary context of each GPU, which the first call that needs the GPU
 * retains. It changes the current context of the calling thread. open sets environment variables
 * that the driver reads. Memory is VMM memory with POSIX descriptors. Queues are streams that do
 * not synchronize with the default stream. Counters are written by 64-bit stream memory operations.
 *
 * Tests run it with the libraries of tests/gpu/fake/, which check the arguments, contexts and
 * lifetimes of every call. Neither these libraries nor a machine with several GPUs have tested:
 * links of peers (native atomics distinguish NVLink from PCIe), access of `also` GPUs, NCCL's order
 * of finalization and abort with real kernels, queue priorities, dma-bufs, legacy handles across
 * containers, and that mappings of expandable segments are reported one by one. */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_cuda;
#endif
