#ifndef BPS_COMMON_DATA_POOL_H
#define BPS_COMMON_DATA_POOL_H
/* Buffers in memory that peers may read: a buddy allocator over segments (Knowlton 1965), so that
 * memory freed by partitions of one size serves those of another. Segments are kept until
 * pool_free. A steady state allocates nothing. One thread. */
#include <sys/queue.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef POOL_MIN_BYTES /* smaller in the simulator */
#define POOL_MIN_BYTES 4096
#endif

struct buf {
	void *mem;       /* aligned to POOL_MIN_BYTES when the segment is */
	uint64_t offset; /* position of mem in its segment */
	size_t bytes;    /* size: the request, rounded up to a power of two */
	uint16_t segment;
	bool is_head, is_free; /* owned by the pool */
	TAILQ_ENTRY(buf) link; /* owned by the pool while free, else by the buffer's owner */
	struct pool_segment *owner;
};

/* Make a segment of exactly `bytes` bytes, offered under *ret_segment.
 * Errors: -ENOMEM, ... */
typedef int (*pool_segment_fn)(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment);

struct pool;
/* Return the memory that a request of that size takes. */
static inline uint64_t pool_rounded(uint64_t bytes)
{
	uint64_t n = POOL_MIN_BYTES;

	while (n < bytes)
		n *= 2;
	return n;
}

/* Make a pool. segment_bytes: a power of two >= POOL_MIN_BYTES, the largest request. limit_bytes:
 * of all segments. NULL: out of memory. */
struct pool *pool_new(
	size_t segment_bytes, size_t limit_bytes, pool_segment_fn segment_fn, void *ctx);
/* Free the pool, not the segments' memory, which belongs to the owner of segment_fn. NULL is
 * allowed. */
void pool_free(struct pool *p);
/* Return a buffer of at least `bytes`, or NULL at the limit. */
struct buf *pool_get(struct pool *p, size_t bytes);
/* Return a buffer to the pool. NULL is allowed. */
void pool_put(struct pool *p, struct buf *b);
/* Return the bytes in use, their maximum so far, and the limit. */
size_t pool_used(const struct pool *p);
size_t pool_high(const struct pool *p);
size_t pool_limit(const struct pool *p);
#endif
