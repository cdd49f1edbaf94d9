#ifndef BPS_COMMON_LOCAL_RING_PAIR_H
#define BPS_COMMON_LOCAL_RING_PAIR_H
/* Two rings in shared memory between the agent and an executor, one for each direction. The rings
 * carry events about partitions, as entries of a fixed size. Each ring has an eventfd that wakes
 * its reader. While both processes are awake, no system call is needed. When a ring is full,
 * entries wait in the memory of their sender, so a full ring does not make a push fail.
 *
 * The sender fills the entry and stores `tail` (seq_cst). Then, if the flag `sleeps` is set, the
 * sender writes the eventfd of the reader. The reader sets `sleeps` (seq_cst), checks `tail` once
 * more, and blocks. Submissions to the agent use the same protocol (local.h).
 *
 * Neither side trusts the contents of the shared memory. Each side has its own copy of its
 * positions. Each side copies an entry out of the shared memory exactly once, and then uses only
 * that copy. Each side uses one thread. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring_pair_entry {
	uint8_t type, a;
	uint16_t b;
	uint32_t id;
	uint64_t x, y, z;
};
_Static_assert(sizeof(struct ring_pair_entry) == 32, "part of the protocol");

#define RING_PAIR_ENTRIES 4096u /* number of entries of each ring, a power of two */

struct ring_pair_ring {
	_Alignas(64) _Atomic uint32_t tail; /* written by the sender */
	_Alignas(64) _Atomic uint32_t head; /* `head` and `sleeps` are written by the reader */
	_Atomic uint32_t sleeps;
	_Alignas(64) struct ring_pair_entry entries[RING_PAIR_ENTRIES];
};

struct ring_pair_page {
	/* [0]: from the agent to the executor; [1]: from the executor to the agent */
	struct ring_pair_ring rings[2];
	/* Counter that the executor's loop increases at least once a second, so that the agent can
	 * detect a hang */
	_Atomic uint64_t beat;
};

struct ring_pair {
	struct ring_pair_page *page;  /* shared page, mapped and unmapped by the caller */
	int wake_fd;                  /* eventfd that wakes the other side; the caller closes it */
	unsigned out;                 /* index of the ring that this side fills */
	uint32_t tail, head;          /* this side's own positions in the two rings */
	struct ring_pair_entry *late; /* entries that did not fit into the ring, oldest first */
	size_t n_late, first_late, cap_late;
	bool is_dirty; /* entries were written to the ring since the last flush */
};

/* Initialize one side. is_agent: this side is the agent, else the executor. */
void ring_pair_init(struct ring_pair *p, struct ring_pair_page *page, int wake_fd, bool is_agent);
void ring_pair_fini(struct ring_pair *p);
/* Push an entry. The other side may see the entry only after ring_pair_flush.
 * Errors: -ENOMEM. */
int ring_pair_push(struct ring_pair *p, const struct ring_pair_entry *e);
/* Move waiting entries into the ring, as many as fit, and wake the reader if it sleeps. Returns
 * true when some entries did not fit and still wait. */
bool ring_pair_flush(struct ring_pair *p);
/* Copy the next entry from the other side. Returns false when there is no entry. */
bool ring_pair_pop(struct ring_pair *p, struct ring_pair_entry *ret);
/* Set this side's sleep flag before this side blocks, and return true. Returns false, with the flag
 * cleared, when there is an entry to pop or when entries wait to be moved into the ring. */
bool ring_pair_sleep(struct ring_pair *p);
/* Clear this side's sleep flag. */
void ring_pair_awake(struct ring_pair *p);

/* Entries from the agent. The field `id` of each entry is the tensor's index. */
enum ring_pair_to_executor {
	RING_PAIR_TENSOR =
		/* A new tensor. `a`: dtype; `x`: number of elements; `y`: size of a partition in
		 * bytes. BUFFER and PLACE entries of the tensor follow */
	1,
	/* Host buffer of the tensor. `a`: enum ring_pair_buffer; `b`: index of the buffer; `x`:
	 * arena; `y`: offset */
	RING_PAIR_BUFFER,
	/* Memory of a worker's tensor. `b`: worker; `x`: region; `y`: offset; `z`: slot */
	RING_PAIR_PLACE,
	RING_PAIR_RUN, /* start a round. `a`: op; `b`: priority; `x`: round number */
	/* The out-buffer of the round contains the sum of a partition. `x`: round number; `y`:
	 * partition */
	RING_PAIR_LANDED,
	RING_PAIR_CANCEL, /* cancel the work on the tensor after a failure */
	RING_PAIR_POISON, /* poison the slot, because no sum will follow. `b`: worker; `z`: slot */
};
enum ring_pair_buffer { RING_PAIR_IN, RING_PAIR_OUT };
/* Entries from the executor. */
enum ring_pair_to_agent {
	/* The tensor's in-buffers contain this machine's contribution to a partition. `x`: round
	 * number; `y`: partition */
	RING_PAIR_STAGED = 64,
	RING_PAIR_DONE, /* the sum of a round is in all trainers' tensors. `x`: round number */
	RING_PAIR_BAD,  /* the tensor is invalid. `b`: worker; `x`: error code (positive) */
	/* The round has waited for a worker's GPU stream for more than a second. `b`: worker */
	RING_PAIR_LATE,
};
#endif
