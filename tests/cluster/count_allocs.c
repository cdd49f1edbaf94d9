/* A library to preload into a daemon. It counts how often the daemon's data threads call the
 * allocator and mmap(2). The two counters are u64 in the file COUNT_FILE, which the test reads
 * while the daemon runs. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

struct counts {
	_Atomic uint64_t allocs, maps;
};
static struct counts none, *counts = &none;

__attribute__((constructor)) static void open_counts(void)
{
	const char *path = getenv("COUNT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *mem = fd < 0 ? MAP_FAILED
			   : mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (mem != MAP_FAILED)
		counts = mem;
}

static void note(_Atomic uint64_t *count)
{
	char name[16];

	if (prctl(PR_GET_NAME, name) == 0 && strncmp(name, "data", 4) == 0)
		atomic_fetch_add(count, 1);
}

void *malloc(size_t n)
{
	note(&counts->allocs);
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	note(&counts->allocs);
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	note(&counts->allocs);
	return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
	note(&counts->allocs);
	return __libc_memalign(align, n);
}

int posix_memalign(void **ret, size_t align, size_t n)
{
	note(&counts->allocs);
	*ret = __libc_memalign(align, n);
	return *ret ? 0 : 12;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
	note(&counts->maps);
	return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}
