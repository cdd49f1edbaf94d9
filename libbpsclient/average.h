#ifndef BPSCLIENT_AVERAGE_H
#define BPSCLIENT_AVERAGE_H
/* Averages of integers. The sum need not fit into the tensor's type. So an integer tensor that is
 * averaged has a companion: a tensor of a wider type, under a reserved name, that carries the
 * values of these rounds. The tensor itself is submitted too. That keeps its rounds numbered, and
 * the service compares types and operations of all workers as in any other round.
 *
 *   tensor       companion
 *   i8, u8 [n]   i32[n]    the server divides, and the floor fits into the tensor's type
 *   i32 [n]      i64[n]    likewise
 *   i64 [n]      i64[2n]   sums of upper halves, and of lower halves with a count of workers
 *
 * A round is complete when both tensors have completed it. The result is converted into memory of
 * this process when it is needed: by the wait that delivers a copy, or by bps_output.
 *
 * Thread: the one that operates on the tensor. */
#include <stdbool.h>

#include "libbpsclient/client.h"

/* Prefix of the companions' names. bps_last_error removes it, so that sentences name the tensor. */
#define AVERAGE_PREFIX CLIENT_RESERVED "_avg."

/* Return whether this operation on that tensor needs a companion. */
bool average_is_needed(const struct bps_tensor *t, enum bps_op op);
/* Declare the companion, unless it exists, and write the tensor's input into the companion's.
 * Blocks for a declaration. Errors: BPS_EBUSY or the failure of the tensor, those of bps_declare,
 * -EINVAL the name is too long; with the thread's sentence. */
int average_prepare(struct bps_tensor *t);
/* Submit the companion of a prepared tensor, whose new round is t->round. The ring has room.
 * ring_mutex is held. */
void average_push(struct bps_tensor *t, int32_t priority);
/* Note that the round t->round is no average. */
void average_skip(struct bps_tensor *t);

/* Return the companion if that round of t, the last submitted one or the one before, is an average.
 * *ret_round: the companion's round; may be NULL. NULL: the round is no such average. */
struct bps_tensor *average_carrier(const struct bps_tensor *t, uint64_t round, uint64_t *ret_round);
/* Convert the average of that round, which is complete. output returns memory of the tensor, valid
 * until the result of the round after the next one is converted; copy writes to dst. */
const void *average_output(const struct bps_tensor *t, uint64_t round);
void average_copy(const struct bps_tensor *t, uint64_t round, void *dst);

/* Forget all rounds: the tensor has left its job. t may have no companion. */
void average_reset(struct bps_tensor *t);
void average_free(struct bps_tensor *t);
#endif
