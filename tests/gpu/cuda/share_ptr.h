#ifndef BPS_TESTS_GPU_CUDA_SHARE_PTR_H
#define BPS_TESTS_GPU_CUDA_SHARE_PTR_H
/* Device memory from a trainer's side (libbpsclient/gpu_cuda.c), for tests of how the executor
 * imports it. Describe `bytes` of memory from any device address of this process, from any
 * allocator. A legacy handle is used if possible, otherwise a descriptor of each mapping. Returns
 * the number of descriptors, which the caller closes. Errors: as device_ops.share. */
#include "bps-agent/executor/device/device.h"

int share_ptr(struct device *dev, uint64_t addr, uint64_t bytes, struct device_desc *ret_desc,
	int *fds, int max);
#endif
