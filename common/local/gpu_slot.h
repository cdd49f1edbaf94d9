#ifndef BPS_COMMON_LOCAL_GPU_SLOT_H
#define BPS_COMMON_LOCAL_GPU_SLOT_H
/* The counter page that orders work between one trainer's GPU streams and its job's executor: a
 * sealed memfd with a slot for each of the trainer's tensors, at the tensor's index.
 *
 *   ready   the trainer's stream writes round r there behind the kernels that make the gradient
 *   done    the executor writes r there when the sum of round r lies in the tensor; the trainer's
 *           stream waits until done >= r
 *
 * Both only grow and are compared as a cyclic signed difference, as the GPU does it. A poisoned
 * done is ahead of every round that can be waited for: who gives up adds GPU_SLOT_POISON once. The
 * trainer's library does so itself when agent or executor is gone, which is why it can write
 * there. */
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

/* Let everything that waits for it go. Who does it twice does it once. */
static inline void gpu_slot_poison(struct gpu_slot *s)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	while (!gpu_slot_is_poisoned(done) &&
		!atomic_compare_exchange_weak_explicit(&s->done, &done, done + GPU_SLOT_POISON,
			memory_order_release, memory_order_relaxed))
		;
}

/* The round is done, unless the other process has poisoned it: that stays.
 * Release: partner is the wait of the trainer's stream, for the sum behind it. */
static inline void gpu_slot_finish(struct gpu_slot *s, uint64_t round)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	while (!gpu_slot_is_poisoned(done) &&
		!atomic_compare_exchange_weak_explicit(
			&s->done, &done, round, memory_order_release, memory_order_relaxed))
		;
}
#endif
