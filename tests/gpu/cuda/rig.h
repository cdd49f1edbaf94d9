#ifndef BPS_TESTS_GPU_CUDA_RIG_H
#define BPS_TESTS_GPU_CUDA_RIG_H
/* What most tests of the CUDA back-end start from: a device with a queue on GPU 0, memory there,
 * and pinned host memory. All waits end by a deadline; a failed one fails the test. */
#include <stdint.h>

#include "bps-agent/executor/device/cuda.h"

#define RIG_PAGE  4096u
#define RIG_MIB   (1u << 20)
#define RIG_BYTES (4u * RIG_MIB) /* of the memory on the GPU and of the pinned memory */

struct cuda_rig {
	struct device *dev;
	struct device_queue *q;
	struct device_mem *mem, *pinned;
	unsigned char *host; /* of pinned */
};

void cuda_rig_open(struct cuda_rig *r);
/* Also checks that nothing is left in the driver. */
void cuda_rig_close(struct cuda_rig *r);
/* The device's last sentence has this in it. */
void cuda_rig_said(const struct cuda_rig *r, const char *word);

/* Zeroed memory of a memfd, as staging memory is. */
unsigned char *cuda_rig_host_memory(size_t bytes);
void cuda_rig_nothing_lives(void);
/* Until the queue is idle. */
void cuda_rig_drain(struct device_queue *q);
/* Nanoseconds from now on the monotonic clock; has it passed? */
uint64_t cuda_rig_deadline_ns(void);

uint64_t cuda_rig_counter(const unsigned char *at);
/* Until the counter is value or more. */
void cuda_rig_await(const unsigned char *at, uint64_t value);
#endif
