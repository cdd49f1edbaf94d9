#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
/* Ring of one direction of a connection through shared memory: one producer and one consumer in
 * different processes, which do not trust each other. An entry is its length (u64), then that many
 * bytes, a multiple of 8; it may wrap around the end.
 *
 * Every value that this process decides by is in its own memory (struct ring_end). Its own index is
 * only published, never read back. The other side's index is read once and checked. An entry is
 * copied once, and only the copy is examined. So a hostile peer can only make ring_get return
 * BPS_EPROTO, make ring_put return -EAGAIN, or send invalid messages.
 *
 * Sleeping: a consumer sets `sleeps`, checks the ring again, and blocks. A producer publishes, then
 * checks `sleeps` and wakes it. A producer without room sets `wants` and checks again; its consumer
 * wakes it after making room. In both pairs each side stores its own word and then loads the
 * other's, all sequentially consistent, so that at least one sees the other's store (Dekker). Pure;
 * no system call. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_BYTES     (UINT32_C(256) << 10) /* about 3000 offers */
#define RING_LEN_BYTES 8

/* Part in shared memory, zeroed: a cache line for each writer. */
struct ring_shared {
	_Alignas(64) _Atomic uint64_t tail; /* producer's: bytes put since the start */
	_Atomic uint32_t wants;             /* producer's; cleared by the consumer */
	_Alignas(64) _Atomic uint64_t head; /* consumer's: bytes taken */
	_Atomic uint32_t sleeps;            /* consumer's; cleared by the producer */
};

/* Part in this process. */
struct ring_end {
	struct ring_shared *s;
	uint8_t *bytes; /* RING_BYTES */
	uint64_t mine;  /* producer: tail; consumer: head */
	uint64_t theirs;
};

/* Initialize one end of an empty ring: bytes has RING_BYTES, both outlive it. */
void ring_init(struct ring_end *r, struct ring_shared *s, void *bytes);

/* Producer: append an entry of n bytes (a multiple of 8, at most RING_BYTES / 2).
 * Errors: -EAGAIN no room; BPS_EPROTO the consumer's index is invalid. */
int ring_put(struct ring_end *r, const void *entry, size_t n);
/* Producer: return whether an entry of n bytes would fit now. False also when the consumer's index
 * is invalid. */
bool ring_has_room(struct ring_end *r, size_t n);
/* Producer: return whether the consumer sleeps; then the caller must wake it, once. */
bool ring_must_wake(struct ring_end *r);
/* Producer without room: return true when there is room now; else the consumer will wake us. */
bool ring_want_room(struct ring_end *r);

/* Consumer: copy the next entry. Returns its length, 0 when there is none.
 * Errors: BPS_EPROTO an index or a length is invalid, or larger than room. */
int ring_get(struct ring_end *r, void *entry, size_t room);
/* Consumer: publish what was taken. True: the producer waits for room and must be woken. */
bool ring_took(struct ring_end *r);
/* Consumer about to sleep: false when an entry has come in meanwhile. */
bool ring_may_sleep(struct ring_end *r);
/* Consumer: it is awake and needs no wake-up. */
void ring_awake(struct ring_end *r);
#endif
