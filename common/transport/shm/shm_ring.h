#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
/* Ring in shared memory for one direction of a connection: one producer and one consumer in
 * different processes, which do not trust each other. An entry is a length n (u64, a multiple of
 * 8), then n bytes. An entry may wrap around the end of the ring.
 *
 * All values on which this process bases decisions are in its own memory (struct ring_end), where
 * the peer cannot change them. This side writes its own index to shared memory, but never reads it
 * there. This side reads the other side's index once and checks the value. This side copies an
 * entry once and examines only the copy. So a hostile peer can only make ring_get or ring_put
 * return BPS_EPROTO, make ring_put return -EAGAIN, or send invalid messages.
 *
 * Sleeping: a consumer sets `sleeps`, checks the ring again, and blocks. A producer publishes an
 * entry, then checks `sleeps` and wakes the consumer. A producer without room sets `wants` and
 * checks for room again. The consumer takes entries, then checks `wants` and wakes the producer.
 * For each of the two flags, one side stores the flag and then loads the index of the other side.
 * The other side stores its index and then loads the flag. All these stores and loads are
 * sequentially consistent. So at least one side sees the store of the other side (Dekker's
 * algorithm). No function makes a system call. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Size of a ring in bytes. The ring has room for about 3000 offers. An offer is a message that
 * names bytes for the peer to read, and does not contain these bytes. */
#define RING_BYTES     (UINT32_C(256) << 10)
#define RING_LEN_BYTES 8

/* Counters and flags of a ring, in shared memory. They are all zero at first. Each writer has its
 * own cache line. */
struct ring_shared {
	/* number of bytes that the producer has put into the ring so far */
	_Alignas(64) _Atomic uint64_t tail;
	/* The producer sets this flag to 1 when it waits for room. The consumer clears the flag. */
	_Atomic uint32_t wants;
	/* number of bytes that the consumer has taken from the ring so far */
	_Alignas(64) _Atomic uint64_t head;
	/* The consumer sets this flag to 1 when it will sleep. The producer or the consumer clears
	 * the flag. */
	_Atomic uint32_t sleeps;
};

/* State of one end of a ring, in this process's own memory. */
struct ring_end {
	struct ring_shared *s;
	uint8_t *bytes; /* data area of the ring: RING_BYTES in shared memory */
	uint64_t mine;  /* this side's index: `tail` if this side is the producer, else `head` */
	uint64_t theirs;
};

/* Initialize one end of an empty ring. `bytes` points to RING_BYTES of shared memory. The memory at
 * `s` and `bytes` must stay mapped as long as `r` is used. */
void ring_init(struct ring_end *r, struct ring_shared *s, void *bytes);

/* Producer: append an entry of n bytes (a multiple of 8, at most RING_BYTES / 2).
 * Errors: -EAGAIN: the ring has no room; BPS_EPROTO: the consumer's index is invalid. */
int ring_put(struct ring_end *r, const void *entry, size_t n);
/* Producer: return whether an entry of n bytes fits into the ring now. Returns false also when the
 * consumer's index is invalid. */
bool ring_has_room(struct ring_end *r, size_t n);
/* Producer: return whether the consumer sleeps. If the consumer sleeps, this call clears the flag
 * `sleeps`, and the caller must then wake the consumer. */
bool ring_must_wake(struct ring_end *r);
/* Producer: ask the consumer to wake the producer as soon as the ring has room. Returns true if
 * half of the ring is free now, or if the consumer's index is invalid. If this function returns
 * false, the consumer will wake the producer. */
bool ring_want_room(struct ring_end *r);

/* Consumer: copy the next entry into `entry`, which has `room` bytes. Returns the entry's length,
 * or 0 when the ring is empty.
 * Errors: BPS_EPROTO: the producer's index or the entry's length is invalid, or the entry is longer
 * than `room`. */
int ring_get(struct ring_end *r, void *entry, size_t room);
/* Consumer: publish that the producer may overwrite the copied entries. Returns true when the
 * producer waits for room; then the caller must wake the producer. */
bool ring_release_consumed(struct ring_end *r);
/* Consumer: announce that this consumer will sleep. Returns false when an entry is in the ring;
 * then the consumer must not sleep. */
bool ring_may_sleep(struct ring_end *r);
/* Consumer: withdraw the announcement of ring_may_sleep. */
void ring_clear_sleeping(struct ring_end *r);
#endif
