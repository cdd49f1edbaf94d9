#ifndef BPS_TESTS_GPU_CUDA_RIG_H
#define BPS_TESTS_GPU_CUDA_RIG_H
/* The common set-up of most tests of the CUDA back-end: a device with a queue and memory on GPU 0,
 * and pinned host memory. All waits have a deadline, at which the test fails. */
#include <stdint.h>

#include "bps-agent/executor/device/cuda.h"

#define RIG_PAGE  4096u
#define RIG_MIB   (1u << 20)
#define RIG_BYTES (4u * RIG_MIB) /* size of the GPU memory, and also of the pinned memory */

struct cuda_rig {
	struct device *dev;
	struct device_queue *q;
	struct device_mem *mem, *pinned;
	unsigned char *host; /* the pinned host memory */
};

void cuda_rig_open(struct cuda_rig *r);
/* Close the rig. Check that no object is left in the driver. */
void cuda_rig_close(struct cuda_rig *r);
/* Check that the device's last error contains the word. */
void cuda_rig_said(const struct cuda_rig *r, const char *word);

/* Return zeroed memory of a memfd. The agent's staging memory is of the same kind. */
unsigned char *cuda_rig_host_memory(size_t bytes);
void cuda_rig_nothing_lives(void);
/* Wait until the queue is idle. */
void cuda_rig_drain(struct device_queue *q);
/* Return the deadline of a wait that starts now, on the monotonic clock. */
uint64_t cuda_rig_deadline_ns(void);

uint64_t cuda_rig_counter(const unsigned char *at);
/* Wait until the counter at the address `at` is at least `value`. */
void cuda_rig_await(const unsigned char *at, uint64_t value);
#endif
