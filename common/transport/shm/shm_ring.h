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

#define RING_BYTES     (UINT32_C(256) << 10) /* room for about 3000 messages with an offer */
#define RING_LEN_BYTES 8

/* The part of a ring in shared memory, zeroed at first. Each writer has its own cache line. */
struct ring_shared {
	_Alignas(64) _Atomic uint64_t tail; /* written by the producer: bytes put since the start */
	/* 1: the producer waits for room; cleared by the consumer */
	_Atomic uint32_t wants;
	/* Written by the consumer: bytes taken since the start */
	_Alignas(64) _Atomic uint64_t head;
	_Atomic uint32_t sleeps; /* 1: the consumer sleeps; cleared by the producer */
};

/* State of one end of a ring, in this process's own memory. */
struct ring_end {
	struct ring_shared *s;
	uint8_t *bytes; /* the RING_BYTES of the ring, in shared memory */
	uint64_t mine;  /* this side's index: tail of the producer, head of the consumer */
	uint64_t theirs;
};

/* Initialize one end of an empty ring. bytes: RING_BYTES of shared memory. s and bytes must stay
 * mapped as long as r is used. */
void ring_init(struct ring_end *r, struct ring_shared *s, void *bytes);

/* Producer: append an entry of n bytes (a multiple of 8, at most RING_BYTES / 2).
 * Errors: -EAGAIN: the ring has no room; BPS_EPROTO: the consumer's index is invalid. */
int ring_put(struct ring_end *r, const void *entry, size_t n);
/* Producer: return whether an entry of n bytes would fit now. False also when the consumer's index
 * is invalid. */
bool ring_has_room(struct ring_end *r, size_t n);
/* Producer: return whether the consumer sleeps. If it does, clear the flag `sleeps`; the caller
 * must wake the consumer. */
bool ring_must_wake(struct ring_end *r);
/* Producer without room: ask the consumer for a wake-up. Returns true when there is room now; else
 * the consumer will wake this side. */
bool ring_want_room(struct ring_end *r);

/* Consumer: copy the next entry into `entry`, which has `room` bytes. Returns its length, or 0 when
 * the ring is empty.
 * Errors: BPS_EPROTO: the producer's index or the length is invalid, or the length is larger than
 * room. */
int ring_get(struct ring_end *r, void *entry, size_t room);
/* Consumer: publish that the copied entries may be overwritten. Returns true when the producer
 * waits for room; then the caller must wake it. */
bool ring_took(struct ring_end *r);
/* Consumer: announce that it will sleep. Returns false when an entry is in the ring; then the
 * consumer must not sleep. */
bool ring_may_sleep(struct ring_end *r);
/* Consumer: withdraw the announcement of ring_may_sleep. */
void ring_awake(struct ring_end *r);
#endif
