/* Measures which members of a job contribute last, in windows of a few seconds. arrivals.h
 * describes the figures. This file sends nothing and delays no round. All functions run on the data
 * thread that owns the core. */
#include "bps-server/core/arrivals.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_US 1000

struct arrivals *arrivals_new(unsigned n_members, uint64_t now_ns)
{
	struct arrivals *a = calloc(1, sizeof(*a) + n_members * sizeof(a->members[0]));

	if (!a)
		return NULL;
	a->n_members = a->n_live = n_members;
	a->window_ns = now_ns;
	return a;
}

void arrivals_count_rounds(struct arrivals *a, uint64_t n_rounds, uint64_t round, uint64_t bytes)
{
	a->rounds += n_rounds;
	a->bytes += bytes;
	if (round > a->round)
		a->round = round;
}

void arrivals_complete(
	struct arrivals *a, const struct arrivals_round *r, uint64_t round, uint64_t bytes)
{
	struct arrivals_member *m = &a->members[r->last_member];

	arrivals_count_rounds(a, 1, round, bytes);
	if (r->n != a->n_live || a->n_live < 2)
		return;
	histogram_add(&a->wait, r->last_ns - r->first_ns);
	histogram_add(&a->window_wait[0], r->last_ns - r->first_ns);
	m->last++;
	m->window_last[0]++;
	m->window_lag[0][histogram_bucket(r->last_ns - r->half_ns)]++;
}

void arrivals_record_late_member(struct arrivals *a, const struct arrivals_round *r,
	uint16_t member, bool is_first, uint64_t now_ns)
{
	struct arrivals_member *m = &a->members[member];

	if (is_first) {
		histogram_add(&a->wait, now_ns - r->first_ns);
		histogram_add(&a->window_wait[0], now_ns - r->first_ns);
	}
	m->last++;
	m->window_last[0]++;
	m->window_lag[0][histogram_bucket(now_ns - r->half_ns)]++;
}

void arrivals_roll_window(struct arrivals *a, uint64_t now_ns)
{
	if (now_ns - a->window_ns < ARRIVALS_WINDOW_NS)
		return;
	a->window_ns = now_ns;
	a->window_wait[1] = a->window_wait[0];
	memset(&a->window_wait[0], 0, sizeof(a->window_wait[0]));
	for (unsigned i = 0; i < a->n_members; i++) {
		struct arrivals_member *m = &a->members[i];

		m->window_last[1] = m->window_last[0];
		m->window_last[0] = 0;
		memcpy(m->window_lag[1], m->window_lag[0], sizeof(m->window_lag[0]));
		memset(m->window_lag[0], 0, sizeof(m->window_lag[0]));
	}
}

/* Return whether there are more rounds in which member `a` contributed last than rounds in which
 * member `b` did. First count the rounds of the present and the previous window together. If the
 * counts are equal, count the rounds of the job's whole lifetime. */
static bool is_more_often_last(const struct arrivals_late *a, const struct arrivals_late *b)
{
	if (a->window_last != b->window_last)
		return a->window_last > b->window_last;
	return a->last > b->last;
}

/* Insert `late` into the job's list if the member of `late` is among the members that most often
 * contribute last. */
static void late_list_insert_ranked(struct arrivals_job *j, const struct arrivals_late *late)
{
	unsigned at = j->n_late;

	while (at && is_more_often_last(late, &j->late[at - 1]))
		at--;
	if (at == ARRIVALS_LATE_MAX)
		return;
	if (j->n_late < ARRIVALS_LATE_MAX)
		j->n_late++;
	memmove(&j->late[at + 1], &j->late[at], (j->n_late - at - 1) * sizeof(j->late[0]));
	j->late[at] = *late;
}

void arrivals_report(const struct arrivals *a, struct arrivals_job *ret)
{
	ret->rounds = a->rounds;
	ret->bytes = a->bytes;
	ret->round = a->round;
	ret->wait = a->wait;
	ret->window_wait = a->window_wait[0];
	histogram_merge(&ret->window_wait, &a->window_wait[1]);
	ret->n_late = 0;
	for (unsigned i = 0; i < a->n_members; i++) {
		const struct arrivals_member *m = &a->members[i];
		struct arrivals_late late = {.agent = m->agent,
			.last = m->last,
			.window_last = m->window_last[0] + m->window_last[1]};

		if (!m->last)
			continue;
		for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++)
			late.lag.n[k] = m->window_lag[0][k] + m->window_lag[1][k];
		late_list_insert_ranked(ret, &late);
	}
}

static void arrivals_merge_job(struct arrivals_job *to, const struct arrivals_job *from)
{
	struct arrivals_job old = *to;

	to->rounds += from->rounds;
	to->bytes += from->bytes;
	if (from->round > to->round)
		to->round = from->round;
	histogram_merge(&to->wait, &from->wait);
	histogram_merge(&to->window_wait, &from->window_wait);
	to->n_late = 0;
	for (unsigned i = 0; i < from->n_late; i++) {
		struct arrivals_late late = from->late[i];

		for (unsigned k = 0; k < old.n_late; k++) {
			if (old.late[k].agent != late.agent)
				continue;
			late.last += old.late[k].last;
			late.window_last += old.late[k].window_last;
			histogram_merge(&late.lag, &old.late[k].lag);
			old.late[k] = old.late[--old.n_late];
			break;
		}
		late_list_insert_ranked(to, &late);
	}
	for (unsigned k = 0; k < old.n_late; k++)
		late_list_insert_ranked(to, &old.late[k]);
}

void arrivals_merge(struct arrivals_figures *to, const struct arrivals_figures *from)
{
	for (unsigned i = 0; i < from->n_jobs; i++) {
		unsigned k = 0;

		while (k < to->n_jobs && to->jobs[k].job != from->jobs[i].job)
			k++;
		if (k < to->n_jobs)
			arrivals_merge_job(&to->jobs[k], &from->jobs[i]);
		else if (k < ARRIVALS_JOBS_MAX)
			to->jobs[to->n_jobs++] = from->jobs[i];
	}
}

static uint32_t us_from_ns_saturated(uint64_t ns)
{
	return ns / NS_PER_US < UINT32_MAX ? (uint32_t)(ns / NS_PER_US) : UINT32_MAX;
}

uint32_t arrivals_known_us(uint64_t ns)
{
	return ns < NS_PER_US ? 1 : us_from_ns_saturated(ns);
}

uint32_t arrivals_fill_beat(
	const struct arrivals_figures *f, struct ctl_beat_job *ret, struct ctl_beat_late *late)
{
	for (unsigned i = 0; i < f->n_jobs; i++) {
		const struct arrivals_job *j = &f->jobs[i];

		ret[i] = (struct ctl_beat_job){.job = j->job,
			.round = j->round,
			.rounds = j->rounds,
			.bytes = j->bytes,
			.window_rounds = (uint32_t)histogram_count(&j->window_wait),
			.wait_p50_us =
				us_from_ns_saturated(histogram_quantile(&j->window_wait, 0.5)),
			.wait_p99_us =
				us_from_ns_saturated(histogram_quantile(&j->window_wait, 0.99)),
			.late = late,
			.n_late = j->n_late};
		for (unsigned k = 0; k < j->n_late; k++)
			*late++ = (struct ctl_beat_late){.agent = j->late[k].agent,
				.rounds = j->late[k].window_last,
				.lag_us = us_from_ns_saturated(
					histogram_quantile(&j->late[k].lag, 0.5))};
	}
	return f->n_jobs;
}
