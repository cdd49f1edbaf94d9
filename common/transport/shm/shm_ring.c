/* Ring in shared memory for one direction of a connection: put and get entries, and set and check
 * the flags of sleepers. No function makes a system call; the caller wakes the peer. Each ring has
 * one thread that produces and one that consumes. */
#include "common/transport/shm/shm_ring.h"

#include <errno.h>
#include <string.h>

#include "common/base/error.h"

void ring_init(struct ring_end *r, struct ring_shared *s, void *bytes)
{
	*r = (struct ring_end){.s = s, .bytes = bytes};
}

static void ring_copy_bytes_in(struct ring_end *r, uint64_t at, const void *src, size_t n)
{
	size_t start = at % RING_BYTES;
	size_t first = n < RING_BYTES - start ? n : RING_BYTES - start;

	memcpy(r->bytes + start, src, first);
	memcpy(r->bytes, (const uint8_t *)src + first, n - first);
}

static void ring_copy_bytes_out(const struct ring_end *r, uint64_t at, void *dst, size_t n)
{
	size_t start = at % RING_BYTES;
	size_t first = n < RING_BYTES - start ? n : RING_BYTES - start;

	memcpy(dst, r->bytes + start, first);
	memcpy((uint8_t *)dst + first, r->bytes, n - first);
}

/* Read the consumer's index. Returns false when it is invalid. */
static bool ring_refresh_head(struct ring_end *r)
{
	/* Pairs with the store in ring_release_consumed, so that the consumer has copied the bytes
	 * before this side overwrites them. */
	uint64_t head = atomic_load(&r->s->head);

	if (head < r->theirs || head > r->mine)
		return false;
	r->theirs = head;
	return true;
}

static bool ring_has_known_room(const struct ring_end *r, size_t n)
{
	return RING_BYTES - (r->mine - r->theirs) >= n;
}

bool ring_has_room(struct ring_end *r, size_t n)
{
	return ring_has_known_room(r, RING_LEN_BYTES + n) ||
	       (ring_refresh_head(r) && ring_has_known_room(r, RING_LEN_BYTES + n));
}

int ring_put(struct ring_end *r, const void *entry, size_t n)
{
	uint64_t len = n;

	if (!ring_has_known_room(r, RING_LEN_BYTES + n) && !ring_refresh_head(r))
		return BPS_EPROTO;
	if (!ring_has_known_room(r, RING_LEN_BYTES + n))
		return -EAGAIN;
	ring_copy_bytes_in(r, r->mine, &len, RING_LEN_BYTES);
	ring_copy_bytes_in(r, r->mine + RING_LEN_BYTES, entry, n);
	r->mine += RING_LEN_BYTES + n;
	/* Pairs with the acquire in ring_refresh_tail: the bytes are written before the index
	 * includes them. The store is sequentially consistent because of `sleeps`, as the header
	 * explains. */
	atomic_store(&r->s->tail, r->mine);
	return 0;
}

/* Clear the flag of a sleeper, so that the caller wakes the sleeper only once. Returns whether the
 * flag was set. */
static bool ring_take_wake_flag(_Atomic uint32_t *flag)
{
	return atomic_load(flag) && atomic_exchange(flag, 0);
}

bool ring_must_wake(struct ring_end *r)
{
	return ring_take_wake_flag(&r->s->sleeps);
}

bool ring_want_room(struct ring_end *r)
{
	/* If this side is about to sleep, the caller has set `sleeps` before this call. So a peer
	 * that sees `wants` also sees `sleeps` */
	atomic_store(&r->s->wants, 1);
	/* If the consumer's index is invalid, return true. The next ring_put then reports the
	 * error. */
	return !ring_refresh_head(r) || ring_has_known_room(r, RING_BYTES / 2);
}

static bool ring_refresh_tail(struct ring_end *r)
{
	uint64_t tail = atomic_load_explicit(&r->s->tail, memory_order_acquire);

	if (tail < r->theirs || tail - r->mine > RING_BYTES || tail % 8)
		return false;
	r->theirs = tail;
	return true;
}

int ring_get(struct ring_end *r, void *entry, size_t room)
{
	uint64_t len, there;

	if (r->theirs == r->mine && !ring_refresh_tail(r))
		return BPS_EPROTO;
	there = r->theirs - r->mine;
	if (!there)
		return 0;
	ring_copy_bytes_out(r, r->mine, &len, RING_LEN_BYTES);
	if (!len || len % 8 || len > room || len > there - RING_LEN_BYTES)
		return BPS_EPROTO;
	ring_copy_bytes_out(r, r->mine + RING_LEN_BYTES, entry, len);
	r->mine += RING_LEN_BYTES + len;
	return (int)len;
}

bool ring_release_consumed(struct ring_end *r)
{
	atomic_store(&r->s->head, r->mine);
	return ring_take_wake_flag(&r->s->wants);
}

bool ring_may_sleep(struct ring_end *r)
{
	atomic_store(&r->s->sleeps, 1);
	return atomic_load(&r->s->tail) == r->mine;
}

void ring_clear_sleeping(struct ring_end *r)
{
	atomic_store_explicit(&r->s->sleeps, 0, memory_order_relaxed);
}
