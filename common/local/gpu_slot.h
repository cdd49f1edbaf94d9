#ifndef BPS_COMMON_LOCAL_GPU_SLOT_H
#define BPS_COMMON_LOCAL_GPU_SLOT_H
/* Page of counters that synchronizes a trainer's GPU streams with the executor of its job. The page
 * is a sealed memfd. It has one slot for each tensor of the trainer, at the tensor's index.
 *
 *   ready   the trainer's stream writes round r after the kernels that compute the gradient
 *   done    the executor writes r when the sum of round r is in the tensor; the trainer's
 *           stream waits until done >= r
 *
 * Both counters only grow. A counter has reached round r if counter - r, taken as a signed number,
 * is not negative. The GPU compares in the same way.
 *
 * To poison a slot means to add GPU_SLOT_POISON to done, once. Then done is larger than every
 * round, so that all waits end. The executor poisons a tensor's slot when no further round of the
 * tensor can be completed. When the agent or the executor has ended, or the trainer closes its
 * connection to the executor, the trainer's library poisons all slots. So the trainer needs write
 * access to the page. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GPU_SLOT_BYTES  64
#define GPU_SLOT_POISON (UINT64_C(1) << 62)

struct gpu_slot {
	/* The GPU writes this counter after the gradient was written. The executor's acquire load
	 * pairs with this write. */
	_Atomic uint64_t ready;
	/* The executor stores this counter with release. The GPU's wait or the trainer's acquire
	 * load pairs with this store. */
	_Atomic uint64_t done;
	uint64_t reserved[6];
};
_Static_assert(sizeof(struct gpu_slot) == GPU_SLOT_BYTES, "slots are part of the ABI");

/* Return whether a counter has reached a round. */
static inline bool gpu_slot_reached(uint64_t counter, uint64_t round)
{
	return (int64_t)(counter - round) >= 0;
}

static inline bool gpu_slot_is_poisoned(uint64_t done)
{
	return done >= GPU_SLOT_POISON;
}

/* Return the last round that the executor has finished. Works with the counter of a poisoned slot
 * too. */
static inline uint64_t gpu_slot_finished_round(uint64_t done)
{
	return gpu_slot_is_poisoned(done) ? done - GPU_SLOT_POISON : done;
}

/* Poison the slot, which ends every wait on the slot. A second call has no effect. */
static inline void gpu_slot_poison(struct gpu_slot *s)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	while (!gpu_slot_is_poisoned(done) &&
		!atomic_compare_exchange_weak_explicit(&s->done, &done, done + GPU_SLOT_POISON,
			memory_order_release, memory_order_relaxed))
		;
}

/* Mark the round as done, unless the slot is poisoned. Release: pairs with the wait of the
 * trainer's stream on the field `done`. The sum must be written before `done`. */
static inline void gpu_slot_finish(struct gpu_slot *s, uint64_t round)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	while (!gpu_slot_is_poisoned(done) &&
		!atomic_compare_exchange_weak_explicit(
			&s->done, &done, round, memory_order_release, memory_order_relaxed))
		;
}
#endif
