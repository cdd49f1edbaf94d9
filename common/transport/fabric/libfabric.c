/* Load libfabric at run time. This file also defines the functions that libfabric's headers
 * declare. Each definition calls the function of the loaded library. This file is not part of a
 * transport. Thread: see libfabric.h. */
#include "common/transport/fabric/libfabric.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "common/transport/fabric/fabric_gates.h"

#define LIBRARY "libfabric.so.1"

/* The functions of libfabric that are looked up by name. Other functions of libfabric need no
 * look-up, because libfabric's headers define these functions inline. The inline functions call
 * function pointers in libfabric's objects. */
static struct {
	void *handle;
	uint32_t (*version)(void);
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	const char *(*strerror)(int errnum);
} lib;

/* Look up a function and write its address to ret_fn. memcpy converts dlsym's void pointer to a
 * function pointer, as POSIX specifies. */
static int library_find_function(void *handle, const char *name, void *ret_fn, struct err_text *err)
{
	void *sym = dlsym(handle, name);

	memcpy(ret_fn, &sym, sizeof(sym));
	return sym ? 0 : err_set(err, -ENOSYS, "%s has no function %s", LIBRARY, name);
}

int libfabric_load(struct err_text *err)
{
	void *handle;
	int rc;

	if (lib.handle)
		return 0;
	handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		return err_set(err, -ENOENT,
			"libfabric cannot be opened: %s (is package libfabric1 installed?)",
			dlerror());
	rc = library_find_function(handle, "fi_version", &lib.version, err);
	if (rc == 0)
		rc = library_find_function(handle, "fi_getinfo", &lib.getinfo, err);
	if (rc == 0)
		rc = library_find_function(handle, "fi_freeinfo", &lib.freeinfo, err);
	if (rc == 0)
		rc = library_find_function(handle, "fi_dupinfo", &lib.dupinfo, err);
	if (rc == 0)
		rc = library_find_function(handle, "fi_fabric", &lib.fabric, err);
	if (rc == 0)
		rc = library_find_function(handle, "fi_strerror", &lib.strerror, err);
	if (rc == 0)
		rc = fabric_gates_check(lib.version(), err);
	if (rc)
		dlclose(handle);
	else
		lib.handle = handle;
	return rc;
}

/* Definitions of the functions that libfabric's headers declare. The definitions are not exported,
 * so other libraries still call libfabric's own functions. */

uint32_t fi_version(void)
{
	return lib.version();
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	const struct fi_info *hints, struct fi_info **info)
{
	return lib.getinfo(version, node, service, flags, hints, info);
}

void fi_freeinfo(struct fi_info *info)
{
	lib.freeinfo(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
	return lib.dupinfo(info);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	return lib.fabric(attr, fabric, context);
}

const char *fi_strerror(int errnum)
{
	return lib.strerror(errnum);
}
