#include "bps-agent/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define PAGE          4096u
#define ARENA_FIRST   ((size_t)1 << 20)
#define ARENA_LARGEST ((size_t)32 << 20)
/* Zeroing takes up to 1 s for 1 GiB, and much more on a busy machine. */
#define PIECE ((size_t)16 << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int make_pages(
	int fd, char *mem, size_t bytes, void (*progress)(void *ctx), void *progress_ctx)
{
	for (size_t at = 0; at < bytes; at += PIECE) {
		size_t n = bytes - at < PIECE ? bytes - at : PIECE;
		/* no page may be missing later: SIGBUS */
		int rc = posix_fallocate(fd, (off_t)at, (off_t)n);

		if (rc)
			return -rc;
		madvise(mem + at, n, MADV_POPULATE_WRITE); /* before Linux 5.14 each page faults */
		if (progress)
			progress(progress_ctx);
	}
	return 0;
}

int arena_memfd(const char *name, size_t bytes, int more_seals, void (*progress)(void *ctx),
	void *progress_ctx, int *ret_fd, void **ret_mem, struct err_text *err)
{
	void *mem = MAP_FAILED;
	int fd, rc;

	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return err_set(err, -errno, "cannot make shared memory: %s", strerror(errno));
	if (ftruncate(fd, (off_t)bytes) == 0)
		mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED) {
		rc = err_set(err, -errno, "cannot map %zu bytes of shared memory: %s", bytes,
			strerror(errno));
		goto failed;
	}
	rc = make_pages(fd, mem, bytes, progress, progress_ctx);
	if (rc < 0) {
		err_set(err, rc, "cannot allocate %zu bytes of shared memory: %s", bytes,
			strerror(-rc));
		goto failed;
	}
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more_seals) < 0) {
		rc = err_set(err, -errno, "cannot seal shared memory: %s", strerror(errno));
		goto failed;
	}
	*ret_fd = fd;
	*ret_mem = mem;
	return 0;
failed:
	if (mem != MAP_FAILED)
		munmap(mem, bytes);
	close(fd);
	return rc;
}

size_t arena_round(size_t n_bytes)
{
	size_t align = n_bytes >= PAGE ? PAGE : 64;

	return (n_bytes + align - 1) / align * align;
}

static int arena_new(struct arena_set *set, enum arena_kind kind, size_t bytes, struct arena **ret,
	struct err_text *err)
{
	unsigned n_fds = kind != ARENA_PRIVATE;
	struct arena *a = calloc(1, sizeof(*a));
	void *mem = NULL;
	int fd = -1, rc;

	if (!a)
		return err_set(err, -ENOMEM, "the agent is out of memory");
	rc = set->admit ? set->admit(set->admit_ctx, bytes, n_fds, err) : 0;
	if (rc < 0) {
		free(a);
		return rc;
	}
	/* A descriptor without write access would not do: its holder may open the file anew. */
	rc = arena_memfd("bps-arena", bytes, kind == ARENA_OUTPUT ? F_SEAL_FUTURE_WRITE : 0,
		set->progress, set->progress_ctx, &fd, &mem, err);
	if (rc < 0)
		goto refused;
	*a = (struct arena){.kind = kind, .fd = fd, .mem = mem, .bytes = bytes};
	if (kind == ARENA_PRIVATE) {
		close(fd);
		a->fd = -1;
	}
	rc = set->x->ops->seg_add(set->x, mem, bytes, &a->segment);
	if (rc < 0) {
		err_set(err, rc, "cannot offer memory to servers: %s", err_str(rc));
		munmap(mem, bytes);
		if (a->fd >= 0)
			close(a->fd);
		goto refused;
	}
	a->id = set->next_id++;
	a->next = set->head;
	set->head = a;
	set->bytes += bytes;
	*ret = a;
	return 0;
refused:
	if (set->release)
		set->release(set->admit_ctx, bytes, n_fds);
	free(a);
	return rc;
}

int arena_alloc(struct arena_set *set, enum arena_kind kind, struct arena *prefer, size_t n_bytes,
	struct arena **ret_arena, struct agt_mem *ret, struct err_text *err)
{
	size_t need = arena_round(n_bytes), bytes, start = 0;
	struct arena *a = prefer;
	int rc;

	if (a)
		start = need >= PAGE ? (a->used + PAGE - 1) / PAGE * PAGE : a->used;
	if (!a || start > a->bytes || need > a->bytes - start) {
		bytes = prefer ? prefer->bytes * 2 : ARENA_FIRST;
		if (bytes > ARENA_LARGEST)
			bytes = ARENA_LARGEST;
		/* Near its quota no more than is asked for. */
		if (bytes < need || (set->room && bytes > set->room(set->admit_ctx) / 4))
			bytes = (need + PAGE - 1) / PAGE * PAGE;
		rc = arena_new(set, kind, bytes, &a, err);
		if (rc < 0)
			return rc;
		start = 0;
	}
	a->used = start + need;
	*ret = (struct agt_mem){.mem = a->mem + start, .offset = start, .segment = a->segment};
	*ret_arena = a;
	return 0;
}

void arena_set_fini(struct arena_set *set)
{
	struct arena *a;

	while ((a = set->head)) {
		set->head = a->next;
		set->x->ops->seg_del(set->x, a->segment);
		munmap(a->mem, a->bytes);
		if (a->fd >= 0)
			close(a->fd);
		if (set->release)
			set->release(set->admit_ctx, a->bytes, a->fd >= 0);
		free(a);
	}
	set->bytes = 0;
}
