#ifndef BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
#define BPS_AGENT_EXECUTOR_DEVICE_CUDA_H
/* The device back-end for the CUDA driver API and NCCL. Only the program bps-agent-cuda and its
 * tests contain the back-end and link libcuda.so.1. NCCL is loaded when the first clique is opened,
 * so a single GPU works without NCCL. The back-end is not compiled if the headers of the CUDA
 * toolkit are missing.
 *
 * The back-end uses the primary context of each GPU. The first call that needs a GPU retains the
 * GPU's context. Calls change the current context of the calling thread. The function `open` sets
 * environment variables that the driver reads. Memory is VMM memory with POSIX descriptors. Queues
 * are streams that do not synchronize with the default stream. Counters are written by 64-bit
 * stream memory operations.
 *
 * Tests run the back-end with the libraries of tests/gpu/fake/, which check the arguments, contexts
 * and lifetimes of every call. Neither these tests nor tests on several GPUs cover the following:
 *   - the kind of link between two GPUs (native atomics distinguish NVLink from PCIe)
 *   - access to memory by the GPUs in the argument `also` of the function `alloc`
 *   - the order in which NCCL finalizes and aborts communicators while real kernels run
 *   - priorities of queues, dma-bufs, and legacy handles across containers
 *   - expandable segments, whose mappings the driver reports separately */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_cuda;
#endif
