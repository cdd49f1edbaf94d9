/* Properties of the fake driver's GPUs. */
#include "tests/gpu/fake/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetCount(int *ret)
{
	CUresult r = fake_enter(__func__, "%s", "");

	if (r)
		return r;
	*ret = fake.n_gpus;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGet(CUdevice *ret, int ordinal)
{
	CUresult r = fake_enter(__func__, "%d", ordinal);

	if (r)
		return r;
	if (ordinal < 0 || ordinal >= fake.n_gpus)
		return fake_leave(CUDA_ERROR_INVALID_DEVICE);
	*ret = ordinal;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetName(char *ret, int len, CUdevice dev)
{
	CUresult r = fake_enter(__func__, "%d", dev);

	if (r)
		return r;
	snprintf(ret, (size_t)len, "Fake GPU %d", fake.gpu[fake_dev(dev)]);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetUuid(CUuuid *ret, CUdevice dev)
{
	CUresult r = fake_enter(__func__, "%d", dev);

	if (r)
		return r;
	memcpy(ret->bytes, "fake-gpu-uuid--", 15);
	ret->bytes[15] = (char)('A' + fake.gpu[fake_dev(dev)]);
	return fake_leave(CUDA_SUCCESS);
}

/* The environment variable holds a list of words, separated by commas. Store word i in ret. Return
 * false if the variable is not set or the list has no word i. */
static bool listed(const char *variable, int i, char *ret, size_t room)
{
	const char *s = getenv(variable);

	while (s && i-- > 0) {
		s = strchr(s, ',');
		s += s != NULL;
	}
	if (!s)
		return false;
	snprintf(ret, room, "%.*s", (int)strcspn(s, ","), s);
	return true;
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetPCIBusId(char *ret, int len, CUdevice dev)
{
	CUresult r = fake_enter(__func__, "%d", dev);

	if (r)
		return r;
	if (!listed("FAKE_CUDA_PCI", fake.gpu[fake_dev(dev)], ret, (size_t)len))
		snprintf(ret, (size_t)len, "0000:%02X:00.0", 0x1a + fake.gpu[fake_dev(dev)]);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceTotalMem(size_t *ret, CUdevice dev)
{
	CUresult r = fake_enter(__func__, "%d", dev);

	if (r)
		return r;
	*ret = (size_t)fake_dev(dev) * 0 + (16ull << 30);
	return fake_leave(CUDA_SUCCESS);
}

static bool is_lacking(int attribute)
{
	const char *s = getenv("FAKE_CUDA_LACKS");

	while (s && *s) {
		char *end;

		if (strtol(s, &end, 10) == attribute)
			return true;
		if (end == s)
			break;
		s = *end == ',' ? end + 1 : end;
	}
	return false;
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetAttribute(int *ret, CUdevice_attribute attr, CUdevice dev)
{
	char numa[16];
	CUresult r = fake_enter(__func__, "%d %d", (int)attr, dev);

	if (r)
		return r;
	if (attr == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
		*ret = listed("FAKE_CUDA_NUMA", fake.gpu[fake_dev(dev)], numa, sizeof(numa))
			       ? atoi(numa)
			       : fake.gpu[fake_dev(dev)] % 2;
	else if (attr == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
		*ret = 8;
	else if (attr == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)
		*ret = CU_COMPUTEMODE_DEFAULT;
	else
		*ret = attr != CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM &&
		       !is_lacking((int)attr);
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int *ret, CUdevice dev, CUdevice peer)
{
	CUresult r = fake_enter(__func__, "%d %d", dev, peer);

	if (r)
		return r;
	*ret = fake_dev(dev) != fake_dev(peer) && fake.links > 0;
	return fake_leave(CUDA_SUCCESS);
}

FAKE_EXPORT CUresult CUDAAPI cuDeviceGetP2PAttribute(
	int *ret, CUdevice_P2PAttribute attr, CUdevice src, CUdevice dst)
{
	CUresult r = fake_enter(__func__, "%d %d %d", (int)attr, src, dst);

	if (r)
		return r;
	if (fake_dev(src) == fake_dev(dst))
		return fake_leave(CUDA_ERROR_INVALID_DEVICE);
	*ret = attr == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED ? fake.links == 2
								       : fake.links > 0;
	return fake_leave(CUDA_SUCCESS);
}
