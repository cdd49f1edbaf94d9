#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
/* Ring in shared memory for one direction of a connection: one producer and one consumer in
 * different processes, which do not trust each other. An entry is a length (u64, a multiple of 8),
 * then that many bytes. An entry may wrap around the end of the ring.
 *
 * All values on which this process bases decisions are in its own memory (struct ring_end), where
 * the peer cannot change them. This side writes its own index to shared memory, but never reads it
 * there. This side reads the other side's index once and checks the value. It copies an entry once
 * and examines only the copy. So a hostile peer can only make ring_get return BPS_EPROTO, make
 * ring_put return -EAGAIN, or send invalid messages.
 *
 * Sleeping: a consumer sets `sleeps`, checks the ring again, and blocks. A producer publishes an
 * entry, then checks `sleeps` and wakes the consumer. A producer without room sets `wants` and
 * checks for room again. The consumer takes entries, then checks `wants` and wakes the producer. In
 * both cases each side stores its own word and then loads the word of the other side, all
 * sequentially consistent. So at least one side sees the store of the other side (Dekker's
 * algorithm). Pure: no system call. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Size of a ring in bytes. The ring has room for about 3000 offers. An offer is a message that
 * names bytes for the peer to read, and does not contain these bytes. */
#define RING_BYTES     (UINT32_C(256) << 10)
#define RING_LEN_BYTES 8

/* The part of a ring in shared memory, initially all zero. Each writer has its own cache line. */
struct ring_shared {
	/* Number of bytes put into the ring since the start; written by the producer */
	_Alignas(64) _Atomic uint64_t tail;
	/* 1: the producer waits for room; cleared by the consumer */
	_Atomic uint32_t wants;
	/* Number of bytes taken from the ring since the start; written by the consumer */
	_Alignas(64) _Atomic uint64_t head;
	_Atomic uint32_t sleeps; /* 1: the consumer sleeps; cleared by the producer */
};

/* State of one end of a ring, in this process's own memory. */
struct ring_end {
	struct ring_shared *s;
	uint8_t *bytes; /* data area of the ring: RING_BYTES in shared memory */
	uint64_t mine;  /* this side's index: tail of the producer, head of the consumer */
	uint64_t theirs;
};

/* Initialize one end of an empty ring. bytes: RING_BYTES of shared memory. s and bytes must stay
 * mapped as long as r is used. */
void ring_init(struct ring_end *r, struct ring_shared *s, void *bytes);

/* Producer: append an entry of n bytes (a multiple of 8, at most RING_BYTES / 2).
 * Errors: -EAGAIN: the ring has no room; BPS_EPROTO: the consumer's index is invalid. */
int ring_put(struct ring_end *r, const void *entry, size_t n);
/* Producer: return whether an entry of n bytes fits into the ring now. Returns false also when the
 * consumer's index is invalid. */
bool ring_has_room(struct ring_end *r, size_t n);
/* Producer: return whether the consumer sleeps. If the consumer sleeps, clear the flag `sleeps`;
 * the caller must then wake the consumer. */
bool ring_must_wake(struct ring_end *r);
/* Producer without room: ask the consumer for a wake-up. Returns true when there is room now; else
 * the consumer will wake this side. */
bool ring_want_room(struct ring_end *r);

/* Consumer: copy the next entry into `entry`, which has `room` bytes. Returns the entry's length,
 * or 0 when the ring is empty.
 * Errors: BPS_EPROTO: the producer's index or the entry's length is invalid, or the entry is longer
 * than `room`. */
int ring_get(struct ring_end *r, void *entry, size_t room);
/* Consumer: publish that the producer may overwrite the copied entries. Returns true when the
 * producer waits for room; then the caller must wake the producer. */
bool ring_took(struct ring_end *r);
/* Consumer: announce that this consumer will sleep. Returns false when an entry is in the ring;
 * then the consumer must not sleep. */
bool ring_may_sleep(struct ring_end *r);
/* Consumer: withdraw the announcement of ring_may_sleep. */
void ring_awake(struct ring_end *r);
#endif
