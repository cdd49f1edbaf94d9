#ifndef BPS_COMMON_DATA_POOL_H
#define BPS_COMMON_DATA_POOL_H
/* Buffers in memory that peers may read. The pool is a buddy allocator (Knowlton 1965) and divides
 * segments into buffers. So the memory of partitions of one size can hold partitions of another
 * size afterwards. Segments are kept until pool_free, so in a steady state no memory is allocated.
 * Only one thread may use a pool. */
#include <sys/queue.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef POOL_MIN_BYTES /* the simulator defines a smaller value */
#define POOL_MIN_BYTES 4096
#endif
#ifndef POOL_SEGMENT_BYTES /* the simulator defines a smaller value */
/* Size of a segment of a server, and so the largest buffer of a partition */
#define POOL_SEGMENT_BYTES (16u << 20)
#endif

struct buf {
	void *mem;       /* aligned to POOL_MIN_BYTES if the segment is aligned to POOL_MIN_BYTES */
	uint64_t offset; /* position of mem in its segment */
	size_t bytes;    /* size of the buffer: the requested bytes, rounded up to a power of two */
	uint16_t segment;
	bool is_head, is_free; /* used by the pool only */
	/* Used by the pool while the buffer is free, else by the caller of pool_get */
	TAILQ_ENTRY(buf) link;
	struct pool_segment *owner;
};

/* Make a segment of exactly `bytes` bytes. *ret_segment: number under which peers can read the
 * segment.
 * Errors: a negative code, such as -ENOMEM. */
typedef int (*pool_segment_fn)(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment);

struct pool;
/* Return the size of the buffer that pool_get returns for a request of `bytes` bytes. */
static inline uint64_t pool_rounded_bytes(uint64_t bytes)
{
	uint64_t n = POOL_MIN_BYTES;

	while (n < bytes)
		n *= 2;
	return n;
}

/* Make a pool. segment_bytes: size of each segment, and thus also the largest size that pool_get
 * accepts. The size must be a power of two >= POOL_MIN_BYTES. limit_bytes: maximum of the total
 * size of all segments. Returns NULL when out of memory. */
struct pool *pool_new(
	size_t segment_bytes, size_t limit_bytes, pool_segment_fn segment_fn, void *ctx);
/* Free the pool. The memory of the segments belongs to the code that implements segment_fn and is
 * not freed. NULL is allowed. */
void pool_free(struct pool *p);
/* Return a buffer of at least `bytes` bytes. Returns NULL in these cases:
 * - `bytes` is larger than a segment.
 * - No buffer is free, and a new segment would exceed the limit of the pool.
 * - No buffer is free, and a new segment cannot be made. */
struct buf *pool_get(struct pool *p, size_t bytes);
/* Return the pool that the buffer comes from. */
struct pool *pool_of_buffer(const struct buf *b);
/* Return a buffer to the pool. NULL is allowed. */
void pool_put(struct pool *p, struct buf *b);
/* pool_used_bytes returns the total size of all buffers in use. pool_peak_bytes returns the largest
 * value that pool_used_bytes has had since pool_new. pool_limit_bytes returns the limit_bytes that
 * pool_new received. */
size_t pool_used_bytes(const struct pool *p);
size_t pool_peak_bytes(const struct pool *p);
size_t pool_limit_bytes(const struct pool *p);
#endif
