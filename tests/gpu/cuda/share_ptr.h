#ifndef BPS_TESTS_GPU_CUDA_SHARE_PTR_H
#define BPS_TESTS_GPU_CUDA_SHARE_PTR_H
/* Shares device memory as a trainer does (libbpsclient/gpu_cuda.c), to test how the executor
 * imports that memory. share_ptr describes `bytes` bytes of memory that begin at any device address
 * of this process. Any allocator may have allocated the memory. The description is a legacy handle
 * if possible, otherwise a descriptor of each mapping. Returns the number of descriptors, which the
 * caller closes. Errors: like device_ops.share. */
#include "bps-agent/executor/device/device.h"

int share_ptr(struct device *dev, uint64_t addr, uint64_t bytes, struct device_desc *ret_desc,
	int *fds, int max);
#endif
