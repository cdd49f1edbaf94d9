#include "bps-agent/executor/device/cuda_nccl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

/* first version of NCCL whose communicators can be aborted while they open */
#define VERSION_MIN NCCL_VERSION(2, 18, 0)

/* Look up a function, and convert dlsym's void pointer to a function pointer as POSIX intends. */
static bool nccl_find_function(void *lib, const char *name, void *ret_fn)
{
	void *sym = dlsym(lib, name);

	memcpy(ret_fn, &sym, sizeof(sym));
	return sym;
}

static int nccl_load_library(struct cuda_device *d, struct nccl *n)
{
	void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	const char *missing = NULL;

	if (!lib)
		return cuda_refuse(&d->base, DEVICE_UNSUP,
			"cannot load NCCL, which several GPUs need: %s (is package libnccl2 "
			"installed?)",
			dlerror());
#define X(name)                                                                                    \
	if (!nccl_find_function(lib, "nccl" #name, &n->name))                                      \
		missing = "nccl" #name;
	NCCL_CALLS(X)
#undef X
	if (missing)
		return cuda_refuse(
			&d->base, DEVICE_UNSUP, "NCCL is too old: it has no function %s", missing);
	if (n->GetVersion(&n->version) != ncclSuccess || n->version < VERSION_MIN)
		return cuda_refuse(&d->base, DEVICE_UNSUP,
			"NCCL is too old: its version code is %d, but version 2.18 is needed",
			n->version);
	log_info("loaded NCCL: version=%d.%d.%d", n->version / 10000, n->version / 100 % 100,
		n->version % 100);
	return 0;
}

int cuda_load_nccl_once(struct cuda_device *d, const struct nccl **ret_nccl)
{
	struct nccl *n = d->nccl;
	int rc;

	if (!n) {
		n = calloc(1, sizeof(*n));
		if (!n)
			return cuda_refuse(&d->base, DEVICE_NOMEM,
				"out of memory for the table of NCCL's functions");
		rc = nccl_load_library(d, n);
		if (rc) {
			free(n);
			return rc;
		}
		d->nccl = n;
	}
	*ret_nccl = n;
	return 0;
}
