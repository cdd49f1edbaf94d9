#ifndef BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
#define BPS_COMMON_TRANSPORT_SHM_SHM_RING_H
/* One direction of a connection through shared memory: a ring of bytes with one producer and one
 * consumer in different processes, which do not trust each other. An entry is its length (u64),
 * then that many bytes, a multiple of 8; it may go round the end.
 *
 * What this process decides by lies in its own memory (struct ring_end): its own index is only
 * published, never read back; the other side's is read once and checked; an entry is copied once,
 * and looked at in the copy. So a hostile peer can only make ring_get say BPS_EPROTO, ring_put say
 * -EAGAIN, or send nonsense.
 *
 * Sleeping: a consumer sets `sleeps`, looks once more, and blocks; a producer publishes, then looks
 * at `sleeps` and wakes it. A producer that found no room sets `wants`, looks once more, and its
 * consumer, which has made room, wakes it. In both pairs each side stores its own word and then
 * loads the other's, all sequentially consistent, so that at least one sees the other's store
 * (Dekker). Pure; no system call. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_BYTES     (UINT32_C(256) << 10) /* some 3000 offers */
#define RING_LEN_BYTES 8

/* In shared memory, zeroed: a cache line for each writer. */
struct ring_shared {
	_Alignas(64) _Atomic uint64_t tail; /* producer's: bytes put since the start */
	_Atomic uint32_t wants;             /* producer's; taken back by the consumer */
	_Alignas(64) _Atomic uint64_t head; /* consumer's: bytes taken */
	_Atomic uint32_t sleeps;            /* consumer's; taken back by the producer */
};

/* This process's end of it. */
struct ring_end {
	struct ring_shared *s;
	uint8_t *bytes; /* RING_BYTES */
	uint64_t mine;  /* producer: tail; consumer: head */
	uint64_t theirs;
};

/* One end of an empty ring: bytes has RING_BYTES, both outlive it. */
void ring_init(struct ring_end *r, struct ring_shared *s, void *bytes);

/* Producer: append an entry of n bytes (a multiple of 8, at most RING_BYTES / 2).
 * Errors: -EAGAIN no room; BPS_EPROTO the consumer's index is nonsense. */
int ring_put(struct ring_end *r, const void *entry, size_t n);
/* Producer: would an entry of n bytes fit now? False also when the consumer's index is nonsense. */
bool ring_has_room(struct ring_end *r, size_t n);
/* Producer: does the consumer sleep? Then it is for the caller to wake it, once. */
bool ring_must_wake(struct ring_end *r);
/* Producer: there was no room; true when there is some now, else the consumer will wake us. */
bool ring_want_room(struct ring_end *r);

/* Consumer: copy the next entry. Returns its length, 0 when there is none.
 * Errors: BPS_EPROTO an index or a length is nonsense, or larger than room. */
int ring_get(struct ring_end *r, void *entry, size_t room);
/* Consumer: tell the producer what was taken. True: it waits for room and is to be woken. */
bool ring_took(struct ring_end *r);
/* Consumer: about to sleep; false when something has come in meanwhile. */
bool ring_may_sleep(struct ring_end *r);
/* Consumer: awake, no need to wake us. */
void ring_awake(struct ring_end *r);
#endif
