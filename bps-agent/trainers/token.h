#ifndef BPS_AGENT_TRAINERS_TOKEN_H
#define BPS_AGENT_TRAINERS_TOKEN_H
/* Job tokens: 32 random bytes that the workers of a job share. A process that has the token may
 * join the job under any uid. A process that does not have the token cannot join.
 *
 * A trainer sends the token to the agent of its machine only. The agent sends the scheduler a proof
 * of the token, under the TLS of the control channel. The proof is HMAC-SHA256(token, "bps job
 * token", a zero byte, the job's name). With the proof, an agent has access to that one job while
 * the job exists. A trainer cannot use the proof. Neither token nor proof is logged.
 *
 * Thread: any. The function has no state. */
#include <stdint.h>

#include "common/wire/codec.h"
#include "common/wire/ctlmsg.h"

/* Compute the proof of a token. Errors: -EINVAL (the token is not CTL_TOKEN_BYTES long), -ENOMEM,
 * -EIO (OpenSSL has failed). */
int token_compute_proof(
	const struct blob *token, const char *job, uint8_t ret[static CTL_TOKEN_BYTES]);
#endif
