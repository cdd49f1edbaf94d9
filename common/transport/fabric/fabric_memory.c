/* Memory that is registered with libfabric: the domains in which it is registered, and the regions
 * that the segments of several data threads share. Thread: any, because the data threads of a
 * process share the regions. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/transport/fabric/fabric_impl.h"

#define LOCK_HINT "`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit"

bool fabric_is_verbs(const struct fabric *f)
{
	return strcmp(f->base.cfg.provider, "verbs") == 0;
}

int fabric_check_lockable(const struct fabric *f, struct err_text *err)
{
	if (!fabric_is_verbs(f) || fabric_lockable_bytes() >= FABRIC_LOCKED_MIN)
		return 0;
	return err_set(err, -EPERM,
		"libfabric provider 'verbs' locks the memory that it uses, and this process may "
		"lock only %llu KiB, so raise the limit: " LOCK_HINT,
		(unsigned long long)fabric_lockable_bytes() >> 10);
}

int fabric_open_domain(struct fabric_xport *x)
{
	struct fabric *f = x->f;
	int rc = 0;

	if (!fabric_is_verbs(f))
		return fi_domain(f->fabric, f->info, &x->domain, NULL);
	pthread_mutex_lock(&f->memory_lock);
	if (!f->domain)
		rc = fi_domain(f->fabric, f->info, &f->domain, NULL);
	x->domain = f->domain;
	pthread_mutex_unlock(&f->memory_lock);
	return rc;
}

void fabric_close_domain(struct fabric_xport *x)
{
	if (x->domain && x->domain != x->f->domain)
		fi_close(&x->domain->fid);
	x->domain = NULL;
}

int fabric_register_memory(
	struct fabric_xport *x, void *mem, size_t bytes, uint64_t access, struct fid_mr **ret)
{
	int rc = FAILPOINT(NET_REGISTER);

	if (rc < 0)
		return rc;
	rc = -FI_ENOKEY;
	for (int tries = 0; rc == -FI_ENOKEY && tries < 8; tries++)
		rc = fi_mr_reg(x->domain, mem, bytes, access, 0, ticket_random64(), 0, ret, NULL);
	if (rc)
		log_rated(LOG_ERROR, "cannot register %zu bytes of memory with libfabric: %s%s",
			bytes, fi_strerror(-rc),
			x->is_verbs && rc == -FI_ENOMEM && fabric_lockable_bytes() != UINT64_MAX
				? " (verbs locks this memory, so raise the limit: " LOCK_HINT ")"
				: "");
	return rc;
}

/* ---- regions ---- */

/* Find a region that another data thread has registered. The caller holds the lock. */
static struct fabric_region *region_find(const struct fabric_xport *x, void *mem, size_t bytes)
{
	struct fabric_region *r;

	LIST_FOREACH (r, &x->f->regions, link)
		if (r->domain == x->domain && r->mem == mem && r->bytes == bytes)
			return r;
	return NULL;
}

static int region_create(
	struct fabric_xport *x, void *mem, size_t bytes, struct fabric_region **ret)
{
	struct fabric_region *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	*r = (struct fabric_region){.domain = x->domain, .mem = mem, .bytes = bytes};
	rc = fabric_register_memory(x, mem, bytes, FI_SEND | FI_READ | FI_REMOTE_READ, &r->mr);
	if (rc) {
		free(r);
		return rc;
	}
	LIST_INSERT_HEAD(&x->f->regions, r, link);
	*ret = r;
	return 0;
}

int fabric_region_take(struct fabric_xport *x, void *mem, size_t bytes, struct fabric_region **ret)
{
	struct fabric_region *r;
	int rc = 0;

	pthread_mutex_lock(&x->f->memory_lock);
	r = region_find(x, mem, bytes);
	if (!r)
		rc = region_create(x, mem, bytes, &r);
	if (rc == 0) {
		r->n_uses++;
		*ret = r;
	}
	pthread_mutex_unlock(&x->f->memory_lock);
	return rc;
}

void fabric_region_drop(struct fabric *f, struct fabric_region *r)
{
	pthread_mutex_lock(&f->memory_lock);
	if (--r->n_uses == 0) {
		LIST_REMOVE(r, link);
		fi_close(&r->mr->fid);
		free(r);
	}
	pthread_mutex_unlock(&f->memory_lock);
}
