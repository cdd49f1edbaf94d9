#ifndef BPS_AGENT_EXECUTOR_DEVICE_HOST_H
#define BPS_AGENT_EXECUTOR_DEVICE_HOST_H
/* Back-end "host": emulates a machine's GPUs in plain memory. Device memory is a memfd, which
 * trainers map as they would import a GPU's. A queue is a thread that copies. Collectives are sums
 * by common/data/reduce.h. On a machine without GPUs, the whole path from trainer to servers and
 * back uses it.
 *
 * There are BPS_DEVICE_HOST_GPUS (environment, default 8) of them; the uuid of GPU i is
 * "bps-host-gpu" and i as four bytes. */
#include "bps-agent/executor/device/device.h"

extern const struct device_ops device_host;
#endif
