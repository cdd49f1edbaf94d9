/* Errors of the CUDA back-end: converts results of the driver to device errors and texts. Thread:
 * the executor's. */
#include "bps-agent/executor/device/cuda_impl.h"

/* Result codes of the driver, each with its device error and a hint for the operator. Code 35
 * belongs to the CUDA runtime, which reports this code when the driver is too old. A code that is
 * not in the table becomes DEVICE_LOST, because the state of the process is unknown. */
static const struct {
	int code, error;
	const char *hint;
} table[] = {
	{CUDA_ERROR_INVALID_VALUE, DEVICE_ARG, NULL},
	{CUDA_ERROR_OUT_OF_MEMORY, DEVICE_NOMEM, "no device memory left"},
	{CUDA_ERROR_NOT_INITIALIZED, DEVICE_NODEV,
		"the driver is not initialized (is the kernel module loaded?)"},
	{CUDA_ERROR_STUB_LIBRARY, DEVICE_NODEV,
		"libcuda.so.1 is the toolkit's stub, not a driver (look at LD_LIBRARY_PATH)"},
	{35, DEVICE_NODEV, "the NVIDIA driver is missing, or too old for this program"},
	{CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, DEVICE_UNSUP,
		"the driver is too old for this call"},
	{CUDA_ERROR_DEVICE_UNAVAILABLE, DEVICE_NODEV,
		"the GPU is in exclusive or prohibited mode (nvidia-smi -q -d COMPUTE)"},
	{CUDA_ERROR_NO_DEVICE, DEVICE_NODEV, "no GPU is visible to this process"},
	{CUDA_ERROR_INVALID_DEVICE, DEVICE_NODEV, "the GPU does not exist"},
	{CUDA_ERROR_DEVICE_NOT_LICENSED, DEVICE_NODEV, "the virtual GPU has no license"},
	{CUDA_ERROR_INVALID_CONTEXT, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_MAP_FAILED, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_ALREADY_MAPPED, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, DEVICE_UNSUP,
		"the GPUs cannot access each other's memory"},
	{CUDA_ERROR_OPERATING_SYSTEM, DEVICE_UNSUP,
		"refused by the operating system (limits, cgroup or another user's memory)"},
	{CUDA_ERROR_INVALID_HANDLE, DEVICE_ARG, NULL},
	{CUDA_ERROR_NOT_FOUND, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_NOT_READY, DEVICE_AGAIN, NULL},
	{CUDA_ERROR_TOO_MANY_PEERS, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, DEVICE_ARG, NULL},
	{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, DEVICE_ARG, NULL},
	{CUDA_ERROR_NOT_PERMITTED, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_NOT_SUPPORTED, DEVICE_UNSUP, NULL},
	{CUDA_ERROR_SYSTEM_NOT_READY, DEVICE_NODEV,
		"the fabric manager is not ready (systemctl status nvidia-fabricmanager)"},
	{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, DEVICE_NODEV,
		"kernel module and libcuda have different versions (reboot after an update)"},
	{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, DEVICE_NODEV,
		"this GPU needs the driver's own libcuda, not the compatibility library"},
	{CUDA_ERROR_MPS_CONNECTION_FAILED, DEVICE_NODEV,
		"the MPS daemon cannot be reached (CUDA_MPS_PIPE_DIRECTORY?)"},
	{CUDA_ERROR_MPS_RPC_FAILURE, DEVICE_NODEV, "the MPS server does not respond"},
	{CUDA_ERROR_MPS_SERVER_NOT_READY, DEVICE_NODEV,
		"the MPS server is recovering, or belongs to another user"},
	{CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, DEVICE_NODEV, "MPS has reached its limit of clients"},
	{CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, DEVICE_NODEV,
		"MPS has reached its limit of connections"},
	{CUDA_ERROR_MPS_CLIENT_TERMINATED, DEVICE_LOST,
		"MPS has terminated the work of this process"},
	{CUDA_ERROR_ECC_UNCORRECTABLE, DEVICE_LOST, "uncorrectable memory error of the GPU"},
	{CUDA_ERROR_NVLINK_UNCORRECTABLE, DEVICE_LOST, "uncorrectable error of an NVLink"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, DEVICE_LOST, "the GPU accessed an address that is not mapped"},
	{CUDA_ERROR_UNKNOWN, DEVICE_LOST, "unknown error (see dmesg for Xid)"},
};

/* The error text has the code's name and number, so that users can find them in manuals. */
int cuda_convert_result(CUresult r, struct err_text *why, const char *what)
{
	const char *name = NULL, *hint = NULL;
	int error = DEVICE_LOST;

	if (r == CUDA_SUCCESS)
		return 0;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (table[i].code != (int)r)
			continue;
		error = table[i].error;
		hint = table[i].hint;
	}
	if (error == DEVICE_AGAIN)
		return error;
	if (cuGetErrorName(r, &name) != CUDA_SUCCESS || !name)
		name = "CUDA error"; /* the toolkit's stub library has no names of errors */
	return err_set(why, error, "%s: %s (%d)%s%s", what, name, (int)r, hint ? ": " : "",
		hint ? hint : "");
}

int cuda_check_result(struct device *dev, CUresult r, const char *what)
{
	int rc = cuda_convert_result(r, &dev->why, what);

	if (rc == DEVICE_LOST)
		cuda_device_of_base(dev)->is_lost = true;
	return rc;
}
