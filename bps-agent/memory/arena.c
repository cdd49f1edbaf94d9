/* Arenas: memory that the agent shares with trainers and offers to servers. Allocates space in
 * arenas, makes and seals memfds, restores arenas after a restart. memory_thread.c calls the
 * memory_* functions step by step. Any thread may call the memory_* functions. The other functions
 * run on the data thread. */
#include "bps-agent/memory/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/os/memfd.h"

#define PAGE          4096u
#define ARENA_FIRST   ((size_t)1 << 20)
#define ARENA_LARGEST ((size_t)32 << 20)
/* Number of bytes that one call of memory_allocate_piece allocates. One call for all memory would
 * take too long: 1 GiB takes up to 1 s, and much more on a busy machine. */
#define PIECE ((size_t)16 << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

int memory_create_mapping(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err)
{
	int rc = FAILPOINT(AGENT_MEMORY_MAKE);

	if (rc < 0)
		return err_set(err, rc, "cannot create shared memory: %s", err_str(rc));
	*m = (struct memory){.bytes = bytes, .more_seals = more_seals, .fd = -1};
	rc = memfd_create_sealed(name, bytes, 0, &m->fd);
	if (rc)
		return err_set(err, rc, "cannot create shared memory: %s", strerror(-rc));
	m->mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->mem != MAP_FAILED)
		return 0;
	rc = err_set(
		err, -errno, "cannot map %zu bytes of shared memory: %s", bytes, strerror(errno));
	m->mem = NULL;
	memory_unmap_and_close(m);
	return rc;
}

void memory_prefer_node(struct memory *m, uint32_t node)
{
	unsigned long mask[1024 / (8 * sizeof(unsigned long))] = {0};
	unsigned bits = 8 * sizeof(mask[0]);

	m->node = node;
	if (!node || node > 1024)
		return;
	mask[(node - 1) / bits] = 1ul << (node - 1) % bits;
	/* The node is only a preference: if the node has no room, the kernel uses another node. For
	 * shared memory the preference belongs to the file, so the preference also applies to pages
	 * that another process touches first. */
	if (mbind(m->mem, m->bytes, MPOL_PREFERRED, mask, 1024, 0) < 0)
		log_debug("cannot place shared memory on a NUMA node: node=%u err=%s", node - 1,
			strerror(errno));
}

int memory_allocate_piece(struct memory *m, struct err_text *err)
{
	size_t n = m->bytes - m->n_made < PIECE ? m->bytes - m->n_made : PIECE;
	/* allocate the pages at once, because a page that cannot be allocated at a later access
	 * would raise SIGBUS */
	int rc = posix_fallocate(m->fd, (off_t)m->n_made, (off_t)n);

	if (rc)
		return err_set(err, -rc, "cannot allocate %zu bytes of shared memory: %s", m->bytes,
			strerror(rc));
	/* Ignore a failure. Linux before 5.14 does not support the call. After a failure, the first
	 * access to each page causes a page fault. */
	madvise((char *)m->mem + m->n_made, n, MADV_POPULATE_WRITE);
	m->n_made += n;
	if (m->n_made < m->bytes)
		return 1;
	if (fcntl(m->fd, F_ADD_SEALS, MEMFD_FIXED_SIZE | F_SEAL_SEAL | m->more_seals) < 0)
		return err_set(err, -errno, "cannot seal shared memory: %s", strerror(errno));
	return 0;
}

void memory_unmap_and_close(struct memory *m)
{
	if (m->mem)
		munmap(m->mem, m->bytes);
	if (m->fd >= 0)
		close(m->fd);
	*m = (struct memory){.fd = -1};
}

int memory_make_sealed(
	struct memory *m, const char *name, size_t bytes, int more_seals, struct err_text *err)
{
	int rc = memory_create_mapping(m, name, bytes, more_seals, err);

	if (rc < 0)
		return rc;
	while ((rc = memory_allocate_piece(m, err)) > 0)
		;
	if (rc < 0)
		memory_unmap_and_close(m);
	return rc;
}

size_t arena_round_up_bytes(size_t n_bytes)
{
	size_t align = n_bytes >= PAGE ? PAGE : 64;

	return (n_bytes + align - 1) / align * align;
}

/* Outputs get F_SEAL_FUTURE_WRITE. A descriptor without write access is not enough, because its
 * holder may reopen the file for writing. */
int arena_seals_of_kind(const struct arena_set *set, enum arena_kind kind)
{
	return kind == ARENA_OUTPUT && !set->keeps_outputs_writable ? F_SEAL_FUTURE_WRITE : 0;
}

/* Replace the writable descriptor of an output arena by a read-only descriptor for trainers. Makes
 * the file's mode read-only, too, so that a trainer cannot reopen the file for writing. */
static int descriptor_make_readonly(int *fd, struct err_text *err)
{
	char path[32];
	int ro;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", *fd);
	if (fchmod(*fd, 0444) < 0 || (ro = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return err_set(
			err, -errno, "cannot make shared memory read-only: %s", strerror(errno));
	close(*fd);
	*fd = ro;
	return 0;
}

struct arena *arena_find(const struct arena_set *set, uint32_t id)
{
	struct arena *a = set->head;

	while (a && a->id != id)
		a = a->next;
	return a;
}

struct arena *arena_newest_on_node(const struct arena_set *set, uint32_t node)
{
	struct arena *a = set->head;

	while (a && a->node != node)
		a = a->next;
	return a;
}

static unsigned arena_count_fds(enum arena_kind kind)
{
	return kind != ARENA_PRIVATE;
}

void arena_release_charge(struct arena_set *set, enum arena_kind kind, size_t bytes)
{
	set->owner->release(set->owner_ctx, bytes, arena_count_fds(kind));
}

/* Offer the arena as a segment to servers, over the network and on this host. */
static int arena_offer_segment(struct xport *x, struct arena *a)
{
	int rc = x->ops->seg_add(x, a->mem, a->bytes, &a->segment);

	if (rc < 0 || !x->ops->seg_share)
		return rc;
	rc = x->ops->seg_share(x, a->segment, a->fd);
	if (rc < 0)
		x->ops->seg_del(x, a->segment);
	return rc;
}

/* Replace or close the arena's writable descriptor if a->fd is not yet as struct arena
 * describes. */
static int arena_restrict_fd(const struct arena_set *set, struct arena *a, struct err_text *err)
{
	if (a->kind == ARENA_OUTPUT && set->keeps_outputs_writable)
		return descriptor_make_readonly(&a->fd, err);
	if (a->kind == ARENA_PRIVATE) {
		close(a->fd);
		a->fd = -1;
	}
	return 0;
}

/* Offer the arena to servers and add it to the set. If is_new is true, also record the arena for
 * the next process. Errors: a negative code; err gets the text, and an offer already made is
 * withdrawn. */
static int arena_set_register(
	struct arena_set *set, struct arena *a, bool is_new, struct err_text *err)
{
	int rc = arena_offer_segment(set->x, a);

	if (rc < 0)
		return err_set(
			err, rc, "cannot offer shared memory to the servers: %s", err_str(rc));
	if (is_new && set->adopted && (rc = set->adopted(set->owner_ctx, a)) < 0)
		err_set(err, rc, "the agent is out of memory");
	if (rc == 0)
		rc = arena_restrict_fd(set, a, err);
	if (rc < 0) {
		set->x->ops->seg_del(set->x, a->segment);
		return rc;
	}
	a->next = set->head;
	set->head = a;
	if (a->id >= set->next_id)
		set->next_id = a->id + 1;
	return 0;
}

int arena_restore(struct arena_set *set, enum arena_kind kind, uint32_t id, uint32_t node, int fd,
	size_t bytes, uint64_t *kept_used, struct err_text *err)
{
	const int seals = MEMFD_FIXED_SIZE | F_SEAL_SEAL;
	struct arena *a = calloc(1, sizeof(*a));
	struct stat st;
	int rc = -ENOMEM;

	if (!a)
		return err_set(err, rc, "out of memory");
	*a = (struct arena){.kind = kind,
		.id = id,
		.fd = fd,
		.mem = MAP_FAILED,
		.bytes = bytes,
		.used = *kept_used,
		.kept_used = kept_used,
		.node = node};
	if (fstat(fd, &st) < 0 || (size_t)st.st_size != bytes || !bytes || a->used > bytes ||
		(fcntl(fd, F_GET_SEALS) & seals) != seals) {
		rc = err_set(err, BPS_EPROTO,
			"shared memory %u does not have the size and seals that were recorded", id);
		goto failed;
	}
	a->mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (a->mem == MAP_FAILED) {
		rc = err_set(err, -errno, "cannot map %zu bytes of shared memory: %s", bytes,
			strerror(errno));
		goto failed;
	}
	rc = arena_set_register(set, a, false, err);
	if (rc == 0)
		return 0;
failed:
	if (a->mem != MAP_FAILED)
		munmap(a->mem, bytes);
	free(a);
	return rc;
}

int arena_adopt(struct arena_set *set, enum arena_kind kind, struct memory *m, struct arena **ret,
	struct err_text *err)
{
	struct arena *a = calloc(1, sizeof(*a));
	int rc = -ENOMEM;

	if (a) {
		*a = (struct arena){.kind = kind,
			.id = set->next_id,
			.fd = m->fd,
			.mem = m->mem,
			.bytes = m->bytes,
			.node = m->node};
		rc = arena_set_register(set, a, true, err);
		m->fd = a->fd;
	} else {
		err_set(err, rc, "the agent is out of memory");
	}
	if (rc == 0) {
		*ret = a;
		return 0;
	}
	arena_release_charge(set, kind, m->bytes);
	memory_unmap_and_close(m);
	free(a);
	return rc;
}

/* Return the offset of the next `need` free bytes in the arena `a`. If `a` is NULL or has no room,
 * return SIZE_MAX. */
static size_t arena_next_free_offset(const struct arena *a, size_t need)
{
	size_t start;

	if (!a)
		return SIZE_MAX;
	start = need >= PAGE ? (a->used + PAGE - 1) / PAGE * PAGE : a->used;
	return start > a->bytes || need > a->bytes - start ? SIZE_MAX : start;
}

size_t arena_bytes_to_grow(const struct arena *a, size_t n_bytes)
{
	size_t need = arena_round_up_bytes(n_bytes);

	return arena_next_free_offset(a, need) == SIZE_MAX ? (need + PAGE - 1) / PAGE * PAGE : 0;
}

int arena_alloc(struct arena_set *set, enum arena_kind kind, struct arena *prefer, size_t n_bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err)
{
	size_t need = arena_round_up_bytes(n_bytes), bytes,
	       start = arena_next_free_offset(prefer, need);
	struct arena *a = prefer;
	int rc;

	if (start == SIZE_MAX) {
		bytes = prefer ? prefer->bytes * 2 : ARENA_FIRST;
		if (bytes > ARENA_LARGEST)
			bytes = ARENA_LARGEST;
		/* If the account is near its quota, allocate no more than requested. */
		if (bytes < need || bytes > set->owner->room(set->owner_ctx) / 4)
			bytes = (need + PAGE - 1) / PAGE * PAGE;
		rc = set->owner->admit(set->owner_ctx, bytes, arena_count_fds(kind), err);
		if (rc < 0)
			return rc;
		set->want_kind = kind;
		set->want_bytes = bytes;
		return -EINPROGRESS;
	}
	a->used = start + need;
	if (a->kept_used)
		*a->kept_used = a->used;
	*ret = (struct agt_mem){.mem = a->mem + start, .offset = start, .segment = a->segment};
	*ret_arena = a;
	return 0;
}

void arena_set_fini(struct arena_set *set)
{
	struct memory m;
	struct arena *a;

	while ((a = set->head)) {
		set->head = a->next;
		if (set->x)
			set->x->ops->seg_del(set->x, a->segment);
		m = (struct memory){.fd = a->fd, .mem = a->mem, .bytes = a->bytes};
		set->owner->drop(set->owner_ctx, &m);
		arena_release_charge(set, a->kind, a->bytes);
		free(a);
	}
}
