#ifndef BPS_AGENT_TRAINERS_TOKEN_H
#define BPS_AGENT_TRAINERS_TOKEN_H
/* Job tokens: 32 random bytes that the workers of a job share. A process that has them may join the
 * job as any user; a job that was opened with a token is closed to all others.
 *
 * The token itself is sent to this machine's agent only. The scheduler gets its proof, under the
 * TLS of the control channel: HMAC-SHA256(token, "bps job token", a zero byte, the job's name). The
 * proof gives agents access to that one job, while it exists; no trainer can use it. Neither is
 * logged.
 *
 * Pure; any thread. */
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/ctlmsg.h"

/* Compute the proof. token: CTL_TOKEN_BYTES. Errors: -ENOMEM, -EIO from the library. */
int token_proof(const struct blob *token, const char *job, uint8_t ret[static CTL_TOKEN_BYTES]);
#endif
