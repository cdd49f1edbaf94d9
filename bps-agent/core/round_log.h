#ifndef BPS_AGENT_CORE_ROUND_LOG_H
#define BPS_AGENT_CORE_ROUND_LOG_H
/* The records of a job's last rounds (bps-agent/core/round_record.h), in a ring of a fixed size.
 * The memory, 1 MiB, is allocated for the first record. Thread: the data thread. */
#include <stddef.h>
#include <stdint.h>

#include "bps-agent/core/round_record.h"

#define ROUND_LOG_ROOM 16384

struct round_log {
	struct round_record *of; /* NULL: no record was added, or there is no memory */
	uint64_t n_added;
};

/* A choice of records. Zeros: all of them. */
struct round_choice {
	uint64_t since_ns; /* of rounds that began then or later, by CLOCK_MONOTONIC */
	uint64_t first_round, last_round; /* 0: no limit */
};

/* Add a record. If there is no memory, the record is only counted. */
void round_log_add(struct round_log *log, const struct round_record *record);
/* Copy the chosen records, the oldest first. *ret: NULL if there are none. *ret_n_lost: number of
 * records that the ring does not have any more.
 * Owns: the caller frees the array *ret.
 * Errors: -ENOMEM. */
int round_log_copy(const struct round_log *log, const struct round_choice *choice,
	struct round_record **ret, size_t *ret_n, uint64_t *ret_n_lost);
/* Forget which members were last, because the members of the job get other numbers. */
void round_log_forget_members(struct round_log *log);
void round_log_free(struct round_log *log);
#endif
