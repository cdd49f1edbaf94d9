#ifndef BPS_AGENT_CORE_ROUND_RECORD_H
#define BPS_AGENT_CORE_ROUND_RECORD_H
/* Where the time of one complete round of a tensor went. The record follows the partition whose sum
 * landed last, because the round ends with this partition. common/wire/round_phase.h lists the
 * phases of a round.
 *
 * The server reports `wait` and `sum` (tail of RESULT), so no clocks are compared. `push` is the
 * rest of the time between the first contribution and the last offer. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/round_phase.h"

struct round_record {
	uint64_t began_ns; /* first local submission, by clock_now_ns */
	uint64_t round;
	uint32_t tensor;
	/* Longest wait of a worker that the end of this round ended, since the end of the round
	 * before that it waited for. Set by the owner of the core. */
	uint32_t waited_us;
	uint32_t part, server; /* the partition that landed last, and its server; CTL_NO_ID: none */
	/* Times after began_ns, in microseconds: last local submission, first contribution, offer
	 * of the sum that landed last, end of the round. Each is at least as large as the one
	 * before. */
	uint32_t submitted_us, pushed_us, offered_us, done_us;
	/* from the server; 0: not known, and this time is then a part of push */
	uint32_t wait_us, sum_us;
	/* 1 + number of the member whose contribution the server received last; 0: not known */
	uint16_t last_member;
	uint16_t last_worker;  /* local worker that submitted last */
	bool is_first_of_step; /* a step of the job began with this round (step_log.h) */
};

/* Write the times at which the phases of the record end, in microseconds after began_ns. A phase
 * ends no earlier than the phase before. */
static inline void round_record_phase_ends(const struct round_record *r, uint32_t ends[N_PHASES])
{
	uint32_t room = r->offered_us - r->pushed_us;
	uint32_t sum = r->sum_us < room ? r->sum_us : room;
	uint32_t wait = r->wait_us < room - sum ? r->wait_us : room - sum;

	ends[PHASE_LOCAL] = r->submitted_us;
	ends[PHASE_QUEUE] = r->pushed_us;
	ends[PHASE_PUSH] = r->offered_us - sum - wait;
	ends[PHASE_WAIT] = r->offered_us - sum;
	ends[PHASE_SUM] = r->offered_us;
	ends[PHASE_PULL] = r->done_us;
}
#endif
