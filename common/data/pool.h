#ifndef BPS_COMMON_DATA_POOL_H
#define BPS_COMMON_DATA_POOL_H
/* Buffers in memory that peers may read: a buddy allocator over segments (Knowlton 1965), so that
 * memory freed by partitions of one size serves those of another. Segments are never given back
 * before pool_free. A steady state allocates nothing. One thread. */
#include <sys/queue.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef POOL_MIN_BYTES /* smaller in the simulator */
#define POOL_MIN_BYTES 4096
#endif

struct buf {
	void *mem;       /* POOL_MIN_BYTES aligned when the segment is */
	uint64_t offset; /* of mem in its segment */
	size_t bytes;    /* room: what was asked, rounded up to a power of two */
	uint16_t segment;
	bool is_head, is_free; /* the pool's */
	TAILQ_ENTRY(buf) link; /* the pool's while free, the owner's otherwise */
	struct pool_segment *owner;
};

/* Makes one more segment of exactly `bytes` bytes, offered under *ret_segment. Errors: -ENOMEM,
 * ... */
typedef int (*pool_segment_fn)(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment);

struct pool;
/* NULL: out of memory. segment_bytes: a power of two >= POOL_MIN_BYTES, the largest request;
 * limit_bytes: of all segments. */
struct pool *pool_new(
	size_t segment_bytes, size_t limit_bytes, pool_segment_fn segment_fn, void *ctx);
/* The segments' memory belongs to whoever made it. NULL is allowed. */
void pool_free(struct pool *p);
/* A buffer of at least `bytes`, or NULL at the limit. */
struct buf *pool_get(struct pool *p, size_t bytes);
/* NULL is allowed. */
void pool_put(struct pool *p, struct buf *b);
/* Bytes in use, the most that ever were, and the limit. */
size_t pool_used(const struct pool *p);
size_t pool_high(const struct pool *p);
size_t pool_limit(const struct pool *p);
#endif
