#ifndef BPSCLIENT_OPTIONS_H
#define BPSCLIENT_OPTIONS_H
/* A worker's options: the fields of struct bps_options. A field that the caller does not set comes
 * from the environment, else from a default. Rank, size, local rank, local size and job come from
 * the variables of one launcher: the first one that sets both a rank and a size. Variables of
 * different launchers are never mixed, because that could give wrong ranks without an error, e.g.
 * with mpirun inside a Slurm allocation. */
#include <stdbool.h>
#include <stdint.h>

struct bps_options;

#define OPTIONS_JOB_BYTES    128 /* CTL_JOB_NAME_MAX and the final NUL */
#define OPTIONS_TOKEN_BYTES  32
#define OPTIONS_SOCKET_BYTES 108 /* size of sun_path */

struct client_options {
	char job[OPTIONS_JOB_BYTES];
	char socket[OPTIONS_SOCKET_BYTES];
	int32_t rank; /* -1: the agent assigns the rank */
	int32_t size;
	int32_t local_rank; /* -1: the agent reports the local rank */
	int32_t local_size;
	uint32_t timeout_ms;
	uint32_t open_timeout_ms;
	uint32_t part_bytes;
	uint32_t spin_us;
	uint8_t token[OPTIONS_TOKEN_BYTES]; /* value of BPS_JOB_TOKEN */
	bool has_token;
	bool is_deterministic;
	bool may_shrink; /* continue when machines are lost (on_agent_loss) */
	bool is_elastic;
	int32_t max_size; /* valid if the job is elastic */
	uint16_t backup;
	uint32_t grace_ms;
	bool is_forced; /* use the agent even in a job of one worker */
};

/* Resolve the options of bps_open. If opt is NULL, all options come from the environment. Errors:
 * -EINVAL. bps_last_error then names the environment variable, or the field of struct
 * bps_options. */
int client_options_resolve(const struct bps_options *opt, struct client_options *ret);
#endif
