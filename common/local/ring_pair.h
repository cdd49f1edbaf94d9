#ifndef BPS_COMMON_LOCAL_RING_PAIR_H
#define BPS_COMMON_LOCAL_RING_PAIR_H
/* Two rings of small fixed entries between two processes, one for each direction, in one piece of
 * shared memory, each with an eventfd that wakes its reader. The agent and its executor exchange
 * events about partitions over them, without a system call while both are awake. Entries that do
 * not fit wait in the sender's own memory, so that a push never fails for want of room.
 *
 * Sender: fill the entry, store tail (seq_cst), then if the reader sleeps: write its eventfd.
 * Reader: set sleeps (seq_cst), check tail once more, block. The same order as in local.h.
 *
 * Nothing in the page is trusted: each side keeps its own positions, and copies entries once. One
 * thread on each side. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

struct ring_pair_entry {
	uint8_t type, a;
	uint16_t b;
	uint32_t id;
	uint64_t x, y, z;
};
_Static_assert(sizeof(struct ring_pair_entry) == 32, "part of the protocol");

#define RING_PAIR_ENTRIES 4096u /* per ring; a power of two */

struct ring_pair_ring {
	_Alignas(64) _Atomic uint32_t tail; /* its sender writes */
	_Alignas(64) _Atomic uint32_t head; /* written by the reader, like sleeps */
	_Atomic uint32_t sleeps;
	_Alignas(64) struct ring_pair_entry entries[RING_PAIR_ENTRIES];
};

struct ring_pair_page {
	struct ring_pair_ring rings[2]; /* [0]: agent to executor */
	/* Grows with turns of the executor's loop, at least once a second */
	_Atomic uint64_t beat;
};

struct ring_pair {
	struct ring_pair_page *page;  /* mapped; the owner unmaps it */
	int wake_fd;                  /* the other side's eventfd; lent */
	unsigned out;                 /* index of the ring that this side fills */
	uint32_t tail, head;          /* this side's own positions */
	struct ring_pair_entry *late; /* entries that did not fit, in order */
	size_t n_late, first_late, cap_late;
	bool is_dirty; /* pushed since the last flush */
};

/* Initialize one side. is_agent: which side this is. */
void ring_pair_init(struct ring_pair *p, struct ring_pair_page *page, int wake_fd, bool is_agent);
void ring_pair_fini(struct ring_pair *p);
/* Push an entry. The other side may not see it before ring_pair_flush.
 * Errors: -ENOMEM. */
int ring_pair_push(struct ring_pair *p, const struct ring_pair_entry *e);
/* Move waiting entries into the ring, as far as there is room, and wake the reader. Returns true
 * when some still wait. */
bool ring_pair_flush(struct ring_pair *p);
bool ring_pair_pop(struct ring_pair *p, struct ring_pair_entry *ret);
/* Call before blocking. Returns true when this side may block; false when there is an entry to pop,
 * or waiting entries fit now. */
bool ring_pair_sleep(struct ring_pair *p);
void ring_pair_awake(struct ring_pair *p);

/* Entries from the agent. id is the tensor's, except where noted. */
enum ring_pair_to_executor {
	RING_PAIR_TENSOR =
		1, /* a dtype, x elements, y bytes of a partition; BUFFERs and PLACEs follow */
	RING_PAIR_BUFFER, /* a enum ring_pair_buffer, b index; x arena, y offset */
	RING_PAIR_PLACE,  /* b worker; x region, y offset, z slot */
	RING_PAIR_RUN,    /* a op, b priority; x round */
	RING_PAIR_LANDED, /* x round, y partition: its sum lies in the out-buffer of the round */
	RING_PAIR_CANCEL, /* the tensor has failed */
	RING_PAIR_POISON, /* b worker, z slot: no sum will come, end all waits */
};
enum ring_pair_buffer { RING_PAIR_IN, RING_PAIR_OUT };
/* Entries from the executor. */
enum ring_pair_to_agent {
	RING_PAIR_STAGED = 64, /* x round, y partition: its contribution lies in the in-buffers */
	RING_PAIR_DONE,        /* x round: the sum is in all trainers' tensors */
	RING_PAIR_BAD,         /* b worker, x code (positive): the tensor is invalid */
	RING_PAIR_LATE,        /* b worker: its stream has not reached the round for a while */
};
#endif
