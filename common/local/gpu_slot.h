#ifndef BPS_COMMON_LOCAL_GPU_SLOT_H
#define BPS_COMMON_LOCAL_GPU_SLOT_H
/* Counter page that orders work between one trainer's GPU streams and its job's executor: a sealed
 * memfd with a slot for each of the trainer's tensors, at the tensor's index.
 *
 *   ready   the trainer's stream writes round r after the kernels that compute the gradient
 *   done    the executor writes r when the sum of round r lies in the tensor; the trainer's
 *           stream waits until done >= r
 *
 * Both only grow and are compared as a cyclic signed difference, as the GPU does it. A poisoned
 * done is ahead of every round that can be waited for. To poison a slot, add GPU_SLOT_POISON once.
 * The trainer's library does so itself when the agent or the executor has ended, so it has write
 * access to the page. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GPU_SLOT_BYTES  64
#define GPU_SLOT_POISON (UINT64_C(1) << 62)

struct gpu_slot {
	_Atomic uint64_t ready; /* partner: the executor's acquire load; a GPU fences its write */
	_Atomic uint64_t done; /* release; partner: the GPU's wait, or the trainer's acquire load */
	uint64_t reserved[6];
};
_Static_assert(sizeof(struct gpu_slot) == GPU_SLOT_BYTES, "slots are part of the ABI");

static inline bool gpu_slot_reached(uint64_t counter, uint64_t round)
{
	return (int64_t)(counter - round) >= 0;
}

static inline bool gpu_slot_is_poisoned(uint64_t done)
{
	return done >= GPU_SLOT_POISON;
}

/* End every wait on this slot. A second call has no effect. */
static inline void gpu_slot_poison(struct gpu_slot *s)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	while (!gpu_slot_is_poisoned(done) &&
		!atomic_compare_exchange_weak_explicit(&s->done, &done, done + GPU_SLOT_POISON,
			memory_order_release, memory_order_relaxed))
		;
}

/* Mark the round as done, unless the other process has poisoned the slot. Release: partner is the
 * wait of the trainer's stream, for the sum that was written before. */
static inline void gpu_slot_finish(struct gpu_slot *s, uint64_t round)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	while (!gpu_slot_is_poisoned(done) &&
		!atomic_compare_exchange_weak_explicit(
			&s->done, &done, round, memory_order_release, memory_order_relaxed))
		;
}
#endif
