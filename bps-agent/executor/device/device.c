#include "bps-agent/executor/device/device.h"

#include <string.h>

static int device_desc_check_fds(const struct device_desc *d, struct err_text *err)
{
	if (!d->n_fds || d->n_fds > DEVICE_FDS_MAX)
		return err_set(err, DEVICE_ARG,
			"device memory is described by %u file descriptors (1 to %d are possible)",
			d->n_fds, DEVICE_FDS_MAX);
	if (d->kind == DEVICE_DESC_HOST && d->n_fds != 1)
		return err_set(err, DEVICE_ARG,
			"host memory is described by %u file descriptors instead of one", d->n_fds);
	return 0;
}

int device_desc_check(const struct device_desc *d, unsigned n_fds, struct err_text *err)
{
	uint64_t handles = d->n_fds, mapped;
	int rc;

	if (d->version != DEVICE_DESC_VERSION)
		return err_set(err, DEVICE_ARG,
			"the description of device memory has version %u instead of %d", d->version,
			DEVICE_DESC_VERSION);
	if (d->n_fds != n_fds)
		return err_set(err, DEVICE_ARG,
			"received %u file descriptors, but the description of device memory "
			"requires %u",
			n_fds, d->n_fds);
	switch (d->kind) {
	case DEVICE_DESC_FD:
	case DEVICE_DESC_HOST:
		rc = device_desc_check_fds(d, err);
		if (rc)
			return rc;
		break;
	case DEVICE_DESC_IPC:
		if (n_fds)
			return err_set(err, DEVICE_ARG,
				"file descriptors arrived with a legacy handle, which must have "
				"none");
		handles = 1;
		break;
	default:
		return err_set(err, DEVICE_ARG,
			"the description of device memory has the unknown kind %u", d->kind);
	}
	if (!d->bytes || !d->chunk_bytes ||
		__builtin_mul_overflow(handles, d->chunk_bytes, &mapped) || d->offset > mapped ||
		d->bytes > mapped - d->offset)
		return err_set(err, DEVICE_ARG,
			"device memory of %llu bytes at offset %llu does not fit into %u handles "
			"of %llu "
			"bytes each",
			(unsigned long long)d->bytes, (unsigned long long)d->offset,
			(unsigned)handles, (unsigned long long)d->chunk_bytes);
	return 0;
}

int device_find_gpu_by_uuid(struct device *dev, const uint8_t uuid[DEVICE_UUID_BYTES])
{
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	int n = dev->ops->gpus(dev, gpus, DEVICE_GPUS_MAX);

	for (int i = 0; i < n; i++)
		if (!memcmp(gpus[i].uuid, uuid, DEVICE_UUID_BYTES))
			return i;
	return n < 0 ? n : DEVICE_NODEV;
}

const char *device_error_name(int code)
{
	switch (code) {
	case DEVICE_AGAIN:
		return "AGAIN";
	case DEVICE_NODEV:
		return "NODEV";
	case DEVICE_UNSUP:
		return "UNSUP";
	case DEVICE_NOMEM:
		return "NOMEM";
	case DEVICE_ARG:
		return "ARG";
	case DEVICE_PEER:
		return "PEER";
	case DEVICE_LOST:
		return "LOST";
	}
	return "?";
}
