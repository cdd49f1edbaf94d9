#ifndef BPS_COMMON_BASE_HEAP_H
#define BPS_COMMON_BASE_HEAP_H
/* Intrusive binary min-heap: the priority queues of the data path. A node is embedded in the object
 * that it orders. The node stores its own position, so that a node in the middle can be removed.
 * The key of a node must not change while the node is in a heap. heap_push never allocates
 * memory, so call heap_reserve whenever you create an object. Only one thread may use a heap. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
	uint64_t key; /* the node with the smallest key is first */
	size_t pos;   /* 1 + the index in the heap; 0: the node is in no heap */
};
struct heap {
	struct heap_node **v;
	size_t n, cap;
};

#define HEAP_KEY_SEQ_BITS 48
/* Return a key that sorts larger priorities first, and equal priorities by seq. Only the low
 * HEAP_KEY_SEQ_BITS bits of seq are used. */
static inline uint64_t heap_key(uint16_t priority, uint64_t seq)
{
	return (uint64_t)(UINT16_MAX - priority) << HEAP_KEY_SEQ_BITS |
	       (seq & ((UINT64_C(1) << HEAP_KEY_SEQ_BITS) - 1));
}
/* Return a heap_key for a partition. Equal priorities are sorted by seq, then by the partition's
 * index. seq: position of the round among all rounds, in the order of their starts. index: the
 * partition's index (less than 2^16: PLACE_PARTS_MAX). */
static inline uint64_t heap_key_of_partition(uint16_t priority, uint64_t seq, uint32_t index)
{
	return heap_key(priority, seq << 16 | (index & 0xffff));
}
/* Return the part of a heap_key that represents the priority. A smaller result is more urgent. */
static inline uint64_t heap_key_urgency(uint64_t key)
{
	return key >> HEAP_KEY_SEQ_BITS;
}
/* Reserve room for `cap` nodes in total.
 * Errors: -ENOMEM. */
int heap_reserve(struct heap *h, size_t cap);
void heap_fini(struct heap *h);
/* Insert n, which must be in no heap. heap_reserve must have reserved room for n. */
void heap_push(struct heap *h, struct heap_node *n);
/* Remove n, which must be in h. */
void heap_remove(struct heap *h, struct heap_node *n);
static inline struct heap_node *heap_min(const struct heap *h)
{
	return h->n ? h->v[0] : NULL;
}
static inline bool heap_node_is_queued(const struct heap_node *n)
{
	return n->pos != 0;
}
/* Return whether the order and the stored position of every node are correct. For tests; takes O(n)
 * time. */
bool heap_is_valid(const struct heap *h);
#endif
