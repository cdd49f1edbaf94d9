/* The ring of a job's records of rounds (round_log.h). Thread: the data thread. */
#include "bps-agent/core/round_log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

void round_log_add(struct round_log *log, const struct round_record *record)
{
	if (!log->of)
		log->of = calloc(ROUND_LOG_ROOM, sizeof(*log->of));
	if (log->of)
		log->of[log->n_added % ROUND_LOG_ROOM] = *record;
	log->n_added++;
}

static bool record_is_chosen(const struct round_record *r, const struct round_choice *choice)
{
	/* an entry of zeros: there was no memory for its record */
	return r->round && r->began_ns >= choice->since_ns && r->round >= choice->first_round &&
	       (!choice->last_round || r->round <= choice->last_round);
}

int round_log_copy(const struct round_log *log, const struct round_choice *choice,
	struct round_record **ret, size_t *ret_n, uint64_t *ret_n_lost)
{
	size_t n_kept = !log->of                        ? 0
			: log->n_added < ROUND_LOG_ROOM ? log->n_added
							: ROUND_LOG_ROOM;
	struct round_record *copy = n_kept ? malloc(n_kept * sizeof(*copy)) : NULL;

	*ret = copy;
	*ret_n = 0;
	*ret_n_lost = log->n_added - n_kept;
	if (n_kept && !copy)
		return -ENOMEM;
	for (uint64_t i = log->n_added - n_kept; copy && i < log->n_added; i++)
		if (record_is_chosen(&log->of[i % ROUND_LOG_ROOM], choice))
			copy[(*ret_n)++] = log->of[i % ROUND_LOG_ROOM];
	return 0;
}

void round_log_forget_members(struct round_log *log)
{
	size_t n = log->n_added < ROUND_LOG_ROOM ? log->n_added : ROUND_LOG_ROOM;

	for (size_t i = 0; log->of && i < n; i++)
		log->of[i].last_member = 0;
}

void round_log_free(struct round_log *log)
{
	free(log->of);
	log->of = NULL;
}
