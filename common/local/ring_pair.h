#ifndef BPS_COMMON_LOCAL_RING_PAIR_H
#define BPS_COMMON_LOCAL_RING_PAIR_H
/* Two rings of small fixed entries between two processes, one each way, in one piece of shared
 * memory, with an eventfd each to wake who sleeps. The agent and its executor speak through it
 * about partitions: no system call while both are awake. What does not fit waits in the sender's
 * own memory, so that a push never fails for want of room.
 *
 * Sender: fill the entry, store tail (seq_cst), then if the reader sleeps: write its eventfd.
 * Reader: set sleeps (seq_cst), look at tail once more, block. The same order as in local.h.
 *
 * Nothing in the page is trusted: positions are kept on one's own side, entries are copied once.
 * One thread on each side. */
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

#define RING_PAIR_ENTRIES 4096u /* of each ring; a power of two */

struct ring_pair_ring {
	_Alignas(64) _Atomic uint32_t tail; /* its sender writes */
	_Alignas(64) _Atomic uint32_t head; /* its reader writes, as sleeps */
	_Atomic uint32_t sleeps;
	_Alignas(64) struct ring_pair_entry entries[RING_PAIR_ENTRIES];
};

struct ring_pair_page {
	struct ring_pair_ring rings[2]; /* [0]: agent to executor */
	_Atomic uint64_t beat;          /* the executor's loop turns, at least each second */
};

struct ring_pair {
	struct ring_pair_page *page;  /* mapped; the owner unmaps it */
	int wake_fd;                  /* the other side's eventfd; lent */
	unsigned out;                 /* the ring that this side fills */
	uint32_t tail, head;          /* own positions */
	struct ring_pair_entry *late; /* what did not fit, in order */
	size_t n_late, first_late, cap_late;
	bool is_dirty; /* pushed since the last flush */
};

/* is_agent: which side this is. */
void ring_pair_init(struct ring_pair *p, struct ring_pair_page *page, int wake_fd, bool is_agent);
void ring_pair_fini(struct ring_pair *p);
/* Errors: -ENOMEM. The other side need not see it before ring_pair_flush. */
int ring_pair_push(struct ring_pair *p, const struct ring_pair_entry *e);
/* Hand on what waits, as far as there is room, and wake the reader. True when some still waits. */
bool ring_pair_flush(struct ring_pair *p);
bool ring_pair_pop(struct ring_pair *p, struct ring_pair_entry *ret);
/* About to block: true when this side may; else there is something to pop, or what waits fits
 * now. */
bool ring_pair_sleep(struct ring_pair *p);
void ring_pair_awake(struct ring_pair *p);

/* What the agent says. id is the tensor's, unless it says otherwise. */
enum ring_pair_to_executor {
	RING_PAIR_TENSOR =
		1, /* a dtype, x elements, y bytes of a partition; BUFFERs and PLACEs follow */
	RING_PAIR_BUFFER, /* a enum ring_pair_buffer, b index; x arena, y offset */
	RING_PAIR_PLACE,  /* b worker; x region, y offset, z slot */
	RING_PAIR_RUN,    /* a op, b priority; x round */
	RING_PAIR_LANDED, /* x round, y partition: its sum lies in the out-buffer of the round */
	RING_PAIR_CANCEL, /* it has failed */
	RING_PAIR_POISON, /* b worker, z slot: nothing will come for it, whatever waits may go */
};
enum ring_pair_buffer { RING_PAIR_IN, RING_PAIR_OUT };
/* What the executor says. */
enum ring_pair_to_agent {
	RING_PAIR_STAGED = 64, /* x round, y partition: its contribution lies in the in-buffers */
	RING_PAIR_DONE,        /* x round: the sum is in all trainers' tensors */
	RING_PAIR_BAD,         /* b worker, x code (positive): the tensor makes no sense */
	RING_PAIR_LATE,        /* b worker: its stream has not come to the round, for a while now */
};
#endif
