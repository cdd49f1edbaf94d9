#ifndef BPS_TESTS_GPU_CUDA_SHARE_PTR_H
#define BPS_TESTS_GPU_CUDA_SHARE_PTR_H
/* The trainer's side (libbpsclient/gpu_cuda.c), for tests of imports by the executor's back-end.
 * Describe `bytes` from any device address of this process, from any allocator: by a legacy handle
 * where possible, else by descriptors, mapping by mapping.
 * Returns how many descriptors there are, which the caller closes. Errors: as device_ops.share. */
#include "bps-agent/executor/device/device.h"

int share_ptr(struct device *dev, uint64_t addr, uint64_t bytes, struct device_desc *ret_desc,
	int *fds, int max);
#endif
