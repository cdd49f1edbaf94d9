/* Prints what bps-agent-cuda reports about this machine's GPUs: a line for each GPU, or the reason
 * why there is none. This program is linked like bps-agent-cuda, so that tests can run it with any
 * libcuda.so.1. */
#include <stdio.h>

#include "bps-agent/executor/device/cuda.h"

int main(void)
{
	const struct device_ops *ops = &device_cuda;
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	struct err_text why = {""};
	struct device *dev;
	int n, rc;

	n = ops->probe(&why);
	if (n < 0) {
		printf("%s: %s\n", device_error_name(n), why.s);
		return 1;
	}
	rc = ops->open("probe", &dev, &why);
	if (rc) {
		printf("%s: %s\n", device_error_name(rc), why.s);
		return 1;
	}
	n = ops->gpus(dev, gpus, DEVICE_GPUS_MAX);
	for (int i = 0; i < n; i++)
		printf("gpu %d: %s at %s, node %d, caps %#x, %llu MiB\n", i, gpus[i].name,
			gpus[i].pci, gpus[i].numa, gpus[i].caps,
			(unsigned long long)(gpus[i].bytes >> 20));
	ops->close(dev);
	return 0;
}
