#ifndef BPSCLIENT_AVERAGE_H
#define BPSCLIENT_AVERAGE_H
/* Averages of integers. The sum of the workers' integers may not fit into the tensor's type. So an
 * integer tensor that is averaged has a companion: an additional tensor of a wider type, with a
 * reserved name. The companion carries the values of the averaged rounds. Besides the companion,
 * the client submits the tensor. So the tensor's rounds are counted, and the service compares the
 * types and operations of all workers, as in rounds without an average.
 *
 *   tensor       companion
 *   i8, u8 [n]   i32[n]    The server divides, and the quotient fits into the tensor's type.
 *   i32 [n]      i64[n]    The server divides, as for i8.
 *   i64 [n]      i64[2n]   Each value has two sums: of the upper halves, and of the lower halves.
 *                          The upper bits of the sum of the lower halves count the workers. The
 *                          client divides.
 *
 * A round is complete when the tensor and its companion have completed the round. The client
 * converts the result to the tensor's type only when a wait delivers a copy, or in bps_output.
 *
 * Only the thread that operates on the tensor calls these functions. */
#include <stdbool.h>

#include "libbpsclient/client.h"

/* Prefix of the companions' names. bps_last_error removes the prefix, so that error texts have the
 * name that the user knows. */
#define AVERAGE_PREFIX CTL_COMPANIONS

/* Return whether the operation `op` on tensor t needs a companion: an average of integers does. */
bool average_is_needed(const struct bps_tensor *t, enum bps_op op);
/* Declare the companion, unless it exists. Unless the worker abstains, convert the tensor's values
 * to the wider type, and write them to the companion's input. Waits for the agent to accept the
 * declaration. Errors: BPS_EBUSY if a round is in flight; -EINVAL if the name is too long; those of
 * bps_declare; the error with which the tensor has failed. Sets bps_last_error. */
int average_prepare(struct bps_tensor *t, bool abstains);
/* Submit the companion of t for the round t->round, with the priority of `how` and its `abstains`.
 * average_prepare must have filled the companion. The ring must have room. The caller holds
 * ring_mutex. */
void average_submit_companion(struct bps_tensor *t, const struct submission *how);
/* Record that the round t->round is no average of integers, so it uses no companion. */
void average_clear_companion_round(struct bps_tensor *t);

/* Return the companion of t if `round` is an average of integers, else NULL. `round` must be the
 * last submitted round of t, or the round before it. *ret_round gets the companion's round for
 * `round`. ret_round may be NULL. */
struct bps_tensor *average_carrier(const struct bps_tensor *t, uint64_t round, uint64_t *ret_round);
/* Convert the average of a complete round to the tensor's type. average_output returns memory of
 * the tensor. The memory is valid until a call converts the average of the round `round + 2`.
 * average_copy_result writes to dst. */
const void *average_output(const struct bps_tensor *t, uint64_t round);
void average_copy_result(const struct bps_tensor *t, uint64_t round, void *dst);

/* Forget all rounds, because the tensor has left its job. Does nothing if t has no companion. */
void average_clear_all_rounds(struct bps_tensor *t);
void average_free(struct bps_tensor *t);
#endif
