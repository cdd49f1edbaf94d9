/* Divides the time of steps (step_log.h). Thread: the thread of the core. */
#include "bps-agent/core/step_log.h"

#include <string.h>

static void step_log_start_step(struct step_log *log, uint64_t now_ns, uint64_t waited_ns)
{
	log->began_ns = now_ns;
	log->waited_ns = waited_ns;
	memset(log->phase_ns, 0, sizeof(log->phase_ns));
	if (log->last_member)
		memset(log->member_ns, 0, sizeof(log->member_ns));
	log->last_member = 0;
}

/* Return the exposed time of the step that ends now. Workers write their waits, so the time is
 * limited to the length of the step. */
static uint64_t step_exposed_ns(
	const struct step_log *log, uint64_t length_ns, uint64_t waited_ns, uint32_t n_workers)
{
	uint64_t ns = waited_ns > log->waited_ns ? (waited_ns - log->waited_ns) / n_workers : 0;

	return ns < length_ns ? ns : length_ns;
}

static void step_log_end_step(
	struct step_log *log, uint64_t now_ns, uint64_t waited_ns, uint32_t n_workers)
{
	struct step *s = &log->kept[log->n_steps++ % STEPS_KEPT];
	uint64_t divided_ns = 0;

	*s = (struct step){.length_ns = now_ns - log->began_ns,
		.bytes = log->bytes,
		.last_member = log->last_member};
	s->exposed_ns = step_exposed_ns(log, s->length_ns, waited_ns, n_workers);
	for (int p = 0; p < N_PHASES; p++) {
		uint64_t ns = log->phase_ns[p] / n_workers, room = s->exposed_ns - divided_ns;

		s->phase_ns[p] = ns < room ? ns : room;
		divided_ns += s->phase_ns[p];
	}
	s->phase_ns[PHASE_PULL] += s->exposed_ns - divided_ns;
	log->computing_ns += s->length_ns - s->exposed_ns;
	for (int p = 0; p < N_PHASES; p++)
		log->total_ns[p] += s->phase_ns[p];
}

void step_log_round_begins(struct step_log *log, uint64_t round, uint64_t now_ns,
	uint64_t waited_ns, uint32_t n_workers)
{
	if (round <= log->round)
		return;
	if (log->round)
		step_log_end_step(log, now_ns, waited_ns, n_workers);
	log->round = round;
	log->bytes = 0;
	step_log_start_step(log, now_ns, waited_ns);
}

void step_log_round_ends(struct step_log *log, uint64_t bytes)
{
	log->bytes += bytes;
}

void step_log_restart(struct step_log *log)
{
	log->round = 0;
	log->n_steps = 0;
}

static void step_log_blame_member(struct step_log *log, uint16_t last_member, uint64_t ns)
{
	uint64_t *total_ns = &log->member_ns[last_member - 1];

	*total_ns += ns;
	if (!log->last_member || *total_ns > log->member_ns[log->last_member - 1])
		log->last_member = last_member;
}

void step_log_divide_wait(struct step_log *log, const struct round_record *record, uint64_t from_ns)
{
	uint64_t at_ns = from_ns > log->began_ns ? from_ns : log->began_ns;
	uint32_t ends[N_PHASES];

	/* The wait was for another round before this one began. */
	if (at_ns < record->began_ns)
		at_ns = record->began_ns;
	round_record_phase_ends(record, ends);
	for (int p = 0; p < N_PHASES; p++) {
		uint64_t end_ns = record->began_ns + UINT64_C(1000) * ends[p];
		uint64_t ns = end_ns > at_ns ? end_ns - at_ns : 0;

		log->phase_ns[p] += ns;
		at_ns += ns;
		if (p == PHASE_WAIT && ns && record->last_member &&
			record->last_member <= WIRE_MEMBERS_MAX)
			step_log_blame_member(log, record->last_member, ns);
	}
}

void step_log_forget_members(struct step_log *log)
{
	log->n_steps = 0;
	step_log_start_step(log, log->began_ns, log->waited_ns);
}

void step_log_sum_up(const struct step_log *log, struct step_summary *ret)
{
	uint64_t n = log->n_steps < STEPS_KEPT ? log->n_steps : STEPS_KEPT;

	*ret = (struct step_summary){.n_steps = (uint32_t)n};
	for (uint64_t i = 0; i < n; i++) {
		const struct step *s = &log->kept[i];
		uint32_t n_last = 0;

		ret->sum.length_ns += s->length_ns;
		ret->sum.exposed_ns += s->exposed_ns;
		ret->sum.bytes += s->bytes;
		for (int p = 0; p < N_PHASES; p++)
			ret->sum.phase_ns[p] += s->phase_ns[p];
		for (uint64_t k = 0; k < n && s->last_member; k++)
			n_last += log->kept[k].last_member == s->last_member;
		if (n_last > ret->n_last) {
			ret->n_last = n_last;
			ret->sum.last_member = s->last_member;
		}
	}
}
