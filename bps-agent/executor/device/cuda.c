/* Base of the CUDA back-end: initialises the driver, describes the GPUs, and creates their
 * contexts. Memory, queues and cliques are in the other files cuda_*.c. Thread: the executor's. */
#include "bps-agent/executor/device/cuda_impl.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Oldest driver that can be used, CUDA 12.0. Older drivers need a module parameter for 64-bit
 * memory operations. They also lack the pointer attributes that describe a mapping
 * (CU_POINTER_ATTRIBUTE_MAPPING_SIZE). */
#define DRIVER_MIN 12000

/* Initialise the driver and count the GPUs. Creates no context. Errors: DEVICE_NODEV, with the text
 * in `why`. */
static int cuda_init_driver(struct err_text *why, int *ret_count)
{
	int version = 0, count = 0, rc;

	rc = cuda_convert_result(cuInit(0), why, "cannot use GPUs");
	if (rc)
		return DEVICE_NODEV;
	rc = cuda_convert_result(
		cuDriverGetVersion(&version), why, "cannot get the driver's version");
	if (rc)
		return DEVICE_NODEV;
	if (version < DRIVER_MIN)
		return err_set(why, DEVICE_NODEV,
			"the NVIDIA driver is too old: it is for CUDA %d.%d, but 12.0 is needed",
			version / 1000, version % 1000 / 10);
	rc = cuda_convert_result(cuDeviceGetCount(&count), why, "cannot count GPUs");
	if (rc)
		return DEVICE_NODEV;
	if (count < 1)
		return err_set(why, DEVICE_NODEV, "no GPU is visible to this process");
	*ret_count = count < DEVICE_GPUS_MAX ? count : DEVICE_GPUS_MAX;
	return 0;
}

static int cuda_probe(struct err_text *why)
{
	int count = 0, rc = cuda_init_driver(why, &count);

	return rc ? rc : count;
}

/* Return an attribute of the GPU, or `missing` if this driver does not support the attribute. */
static int cuda_gpu_attribute(CUdevice dev, CUdevice_attribute attr, int missing)
{
	int value = 0;

	return cuDeviceGetAttribute(&value, attr, dev) == CUDA_SUCCESS ? value : missing;
}

static uint32_t cuda_gpu_capabilities(CUdevice dev, int n_gpus)
{
	uint32_t caps = 0;

	if (cuda_gpu_attribute(dev, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) &&
		cuda_gpu_attribute(
			dev, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0))
		caps |= DEVICE_CAP_VMM_FD;
	if (cuda_gpu_attribute(dev, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 0))
		caps |= DEVICE_CAP_LEGACY_IPC;
	if (cuda_gpu_attribute(dev, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0))
		caps |= DEVICE_CAP_MEMOP64;
	if (n_gpus > 1)
		caps |= DEVICE_CAP_CLIQUE;
	return caps;
}

static int cuda_gpu_describe(struct cuda_gpu *g, int ordinal, int n_gpus, struct err_text *why)
{
	struct device_gpu *info = &g->info;
	CUuuid uuid;
	size_t bytes = 0;
	char what[64];
	int rc;

	snprintf(what, sizeof(what), "cannot get attributes of GPU %d", ordinal);
	rc = cuda_convert_result(cuDeviceGet(&g->dev, ordinal), why, what);
	if (!rc)
		rc = cuda_convert_result(cuDeviceGetUuid(&uuid, g->dev), why, what);
	if (!rc)
		rc = cuda_convert_result(cuDeviceTotalMem(&bytes, g->dev), why, what);
	if (!rc)
		rc = cuda_convert_result(
			cuDeviceGetName(info->name, sizeof(info->name), g->dev), why, what);
	if (rc)
		return DEVICE_NODEV;
	memcpy(info->uuid, uuid.bytes, sizeof(info->uuid));
	info->bytes = bytes;
	if (cuDeviceGetPCIBusId(info->pci, sizeof(info->pci), g->dev) != CUDA_SUCCESS)
		info->pci[0] = 0;
	for (char *p = info->pci; *p; p++)
		*p = (char)tolower((unsigned char)*p); /* sysfs writes addresses in lower case */
	info->numa = cuda_gpu_attribute(g->dev, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1);
	info->caps = cuda_gpu_capabilities(g->dev, n_gpus);
	return 0;
}

/* Set environment variables that the driver reads once, when it starts. The first variable makes
 * the driver use all 32 hardware queues, so that one stream does not delay another. The second
 * variable makes the driver load modules when it starts, not during a collective. */
static void prepare_environment(void)
{
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static int cuda_open(const char *job, struct device **ret_dev, struct err_text *why)
{
	struct cuda_device *d;
	int count = 0, rc;

	prepare_environment();
	rc = cuda_init_driver(why, &count);
	if (rc)
		return rc;
	d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(why, DEVICE_NOMEM, "out of memory for the table of GPUs");
	d->base.ops = &device_cuda;
	snprintf(d->job, sizeof(d->job), "%s", job);
	d->n_gpus = count;
	for (int i = 0; i < count && !rc; i++)
		rc = cuda_gpu_describe(&d->gpu[i], i, count, why);
	if (rc) {
		free(d);
		return rc;
	}
	*ret_dev = &d->base;
	return 0;
}

/* Free the device. NCCL stays loaded, because it has threads and exit handlers. */
static void cuda_close(struct device *dev)
{
	struct cuda_device *d = cuda_device_of_base(dev);

	if (!d)
		return;
	for (int i = 0; i < d->n_gpus && !d->is_lost; i++)
		if (d->gpu[i].ctx)
			cuDevicePrimaryCtxRelease(d->gpu[i].dev);
	free(d->nccl);
	free(d);
}

static int cuda_list_gpus(struct device *dev, struct device_gpu *ret_gpus, int max)
{
	struct cuda_device *d = cuda_device_of_base(dev);

	for (int i = 0; i < d->n_gpus && i < max; i++)
		ret_gpus[i] = d->gpu[i].info;
	return d->n_gpus;
}

bool cuda_gpu_can_reach(struct cuda_device *d, int a, int b)
{
	int can = 0;

	if (a == b)
		return true;
	return cuDeviceCanAccessPeer(&can, d->gpu[a].dev, d->gpu[b].dev) == CUDA_SUCCESS && can;
}

/* Return how GPU `a` reaches GPU `b`. A link with native atomics is NVLink, because PCIe has no
 * native atomics. */
static int cuda_peer_link_kind(struct device *dev, int a, int b)
{
	struct cuda_device *d = cuda_device_of_base(dev);
	int atomics = 0;

	if (d->is_lost)
		return DEVICE_LOST;
	if (a < 0 || b < 0 || a >= d->n_gpus || b >= d->n_gpus || a == b)
		return cuda_refuse(
			dev, DEVICE_ARG, "GPUs %d and %d are not two GPUs of this machine", a, b);
	if (!cuda_gpu_can_reach(d, a, b))
		return DEVICE_LINK_NONE;
	if (cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
		    d->gpu[a].dev, d->gpu[b].dev) != CUDA_SUCCESS)
		atomics = 0;
	return atomics ? DEVICE_LINK_NVLINK : DEVICE_LINK_PCI;
}

int cuda_enter_context(struct device *dev, int gpu)
{
	struct cuda_device *d = cuda_device_of_base(dev);
	struct cuda_gpu *g;
	CUresult r;

	if (d->is_lost)
		return DEVICE_LOST;
	if (gpu < 0 || gpu >= d->n_gpus)
		return cuda_refuse(dev, DEVICE_ARG,
			"GPU %d does not exist on this machine, which has %d GPUs", gpu, d->n_gpus);
	g = &d->gpu[gpu];
	if (!g->ctx) {
		r = cuDevicePrimaryCtxRetain(&g->ctx, g->dev);
		if (r != CUDA_SUCCESS) {
			g->ctx = NULL;
			return cuda_check_result(dev, r, "cannot create a context on the GPU");
		}
	}
	return cuda_check_result(dev, cuCtxSetCurrent(g->ctx), "cannot use the GPU's context");
}

const struct device_ops device_cuda = {
	.name = "cuda",
	.probe = cuda_probe,
	.open = cuda_open,
	.close = cuda_close,
	.gpus = cuda_list_gpus,
	.peer = cuda_peer_link_kind,
	.alloc = cuda_alloc_memory,
	.share = cuda_share_memory,
	.import = cuda_import_memory,
	.pin = cuda_pin_host_memory,
	.addr = cuda_memory_address,
	.drop = cuda_drop_memory,
	.queue_open = cuda_queue_open,
	.queue_close = cuda_queue_close,
	.queue_poll = cuda_queue_poll,
	.copy = cuda_queue_copy,
	.post = cuda_queue_counter_write,
	.clique_id = cuda_clique_id,
	.clique_open = cuda_clique_open,
	.clique_poll = cuda_clique_poll,
	.reduce_scatter = cuda_reduce_scatter,
	.all_gather = cuda_all_gather,
	.reduce = cuda_reduce,
	.broadcast = cuda_broadcast,
	.group_begin = cuda_group_begin,
	.group_end = cuda_group_end,
	.clique_abort = cuda_clique_abort,
	.clique_close = cuda_clique_close,
};
