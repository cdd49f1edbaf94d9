#ifndef BPS_TESTS_HOST_EXECUTOR_HOST_H
#define BPS_TESTS_HOST_EXECUTOR_HOST_H
/* Back-end "host": emulates a machine's GPUs in plain memory, so that the whole path from trainer
 * to servers and back can run without GPUs. Device memory is a memfd, which trainers map instead of
 * importing memory of a GPU. A queue is a thread that copies. Collectives use common/data/reduce.h.
 *
 * The environment variable BPS_DEVICE_HOST_GPUS sets the number of GPUs (default 8). The uuid of
 * GPU i is "bps-host-gpu" followed by i as four bytes. */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_host;
#endif
