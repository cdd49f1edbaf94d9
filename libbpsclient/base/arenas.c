/* Maps the agent's arenas into this process. Maps sums a second time, copy-on-write. Finds, freezes
 * and unmaps mapped arenas (arenas.h). This file handles neither tensors nor rounds.
 * Thread: the thread that holds the session's lock. */
#include "libbpsclient/base/arenas.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/failpoint.h"

#define ARENAS_MAX 65536u

int arenas_map_sealed_file(int fd, uint64_t bytes, bool is_writable, void **ret)
{
	struct stat st;
	void *p;
	int rc = FAILPOINT(CLIENT_MAP);

	if (rc < 0)
		return rc;
	if (!local_is_sealed(fd))
		return BPS_EPROTO;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!bytes || (uint64_t)st.st_size < bytes)
		return BPS_EPROTO;
	p = mmap(NULL, bytes, PROT_READ | (is_writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	*ret = p;
	return 0;
}

static struct mapped_arena *arenas_find_by_id(const struct mapped_arenas *as, uint32_t id)
{
	for (uint32_t i = as->n; i > 0; i--) /* the newest arena is looked up most often */
		if (as->all[i - 1].id == id)
			return &as->all[i - 1];
	return NULL;
}

int arenas_add(struct mapped_arenas *as, const struct local_arena *m, int *fd)
{
	struct mapped_arena *known = arenas_find_by_id(as, m->id), *more;
	void *base = NULL;
	int rc;

	if (known && (known->bytes != m->bytes || known->is_writable != m->is_writable))
		return BPS_EPROTO;
	if (known && known->base)
		/* A restarted agent has no record of the arenas that its previous process has
		 * announced, so it announces all arenas again. */
		return 0;
	if (*fd == -1 || m->bytes > ARENA_MAX_BYTES || (as->n == ARENAS_MAX && !known))
		return BPS_EPROTO;
	if (!known) {
		more = realloc(as->all, (as->n + 1) * sizeof(*more));
		as->has_lost_some |= !more;
		if (!more)
			return 0;
		as->all = more;
		known = &as->all[as->n];
	}
	rc = *fd < 0 ? *fd : arenas_map_sealed_file(*fd, m->bytes, m->is_writable, &base);
	if (rc == BPS_EPROTO)
		return rc;
	if (known == as->all + as->n)
		as->n++;
	*known = (struct mapped_arena){.id = m->id,
		.is_writable = m->is_writable,
		.base = base,
		.bytes = m->bytes,
		.fd = rc ? -1 : *fd,
		.code = rc};
	if (!rc)
		*fd = -1;
	return 0;
}

int arenas_why_lost(const struct mapped_arenas *as, uint32_t id)
{
	const struct mapped_arena *a = arenas_find_by_id(as, id);

	if (a)
		return a->code;
	return as->has_lost_some ? -ENOMEM : 0;
}

void *arenas_resolve_address(const struct mapped_arenas *as, uint32_t id, bool is_writable,
	uint64_t offset, uint64_t bytes)
{
	const struct mapped_arena *a = arenas_find_by_id(as, id);

	if (!a || !a->base || a->is_writable != is_writable || bytes > a->bytes ||
		offset > a->bytes - bytes || offset % LOCAL_ALIGN)
		return NULL;
	return a->base + offset;
}

int arenas_copy_on_write(
	const struct mapped_arenas *as, const void *address, uint64_t bytes, void **ret)
{
	const char *first = address;

	for (uint32_t i = 0; i < as->n; i++) {
		const struct mapped_arena *a = &as->all[i];

		if (a->is_writable || !a->base || first < a->base || first >= a->base + a->bytes)
			continue;
		*ret = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, a->fd,
			(off_t)(first - a->base));
		return *ret == MAP_FAILED ? -errno : 0;
	}
	return -EINVAL;
}

void arenas_make_inputs_private(struct mapped_arenas *as)
{
	for (uint32_t i = 0; i < as->n; i++) {
		struct mapped_arena *a = &as->all[i];

		if (!a->is_writable || a->fd < 0)
			continue;
		(void)mmap(a->base, a->bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, a->fd, 0);
		close(a->fd);
		a->fd = -1;
	}
}

void arenas_fini(struct mapped_arenas *as)
{
	for (uint32_t i = 0; i < as->n; i++) {
		if (as->all[i].base)
			munmap(as->all[i].base, as->all[i].bytes);
		if (as->all[i].fd >= 0)
			close(as->all[i].fd);
	}
	free(as->all);
}
