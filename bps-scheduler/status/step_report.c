/* Writes where the time of a job's last steps went, on each machine and on all of them
 * (status_impl.h). The agents report it in their answers to a probe. Each value is seconds per
 * step. All functions run on the core's thread. */
#include "bps-scheduler/status/status_impl.h"

#include <stdio.h>
#include <stdlib.h>

struct steps_mean {
	double length_s, exposed_s, phase_s[N_PHASES];
	uint64_t bytes; /* the largest of all machines; 0: no agent knows them */
};

static struct steps_mean steps_mean_of(const struct ctl_steps *s)
{
	double n = 1e6 * s->n_steps;
	struct steps_mean m = {.length_s = s->length_us / n,
		.exposed_s = s->exposed_us / n,
		.bytes = s->bytes / s->n_steps};

	for (int p = 0; p < N_PHASES; p++)
		m.phase_s[p] = s->phase_us[p] / n;
	return m;
}

static void steps_mean_add(struct steps_mean *to, const struct steps_mean *m, double share)
{
	to->length_s += m->length_s * share;
	to->exposed_s += m->exposed_s * share;
	to->bytes = m->bytes > to->bytes ? m->bytes : to->bytes;
	for (int p = 0; p < N_PHASES; p++)
		to->phase_s[p] += m->phase_s[p] * share;
}

/* Return the agent and the host of the member with this number, starting at 1; null: no member. */
static json_t *step_machine_json(
	const struct sched_core *c, const struct sched_job *j, uint32_t number)
{
	const struct sched_member *m;
	json_t *o;

	if (!number || number > j->n_members)
		return json_null();
	m = sched_member_by_id(c, j->members[number - 1].agent);
	o = json_object();
	status_put_str(o, "agent", m->name);
	status_put_str(o, "host", m->host);
	return o;
}

/* last: the machine for which this machine, or most machines, waited longest. n_last: number
 * of steps in which it was that one. */
static json_t *steps_mean_json(
	const struct steps_mean *m, uint64_t n_steps, json_t *last, uint64_t n_last)
{
	json_t *o = json_object();
	char key[16];

	status_put_num(o, "n", n_steps);
	status_put_sec(o, "length_s", m->length_s);
	status_put_sec(
		o, "computing_s", m->length_s > m->exposed_s ? m->length_s - m->exposed_s : 0);
	status_put_sec(o, "exposed_s", m->exposed_s);
	for (int p = 0; p < N_PHASES; p++) {
		snprintf(key, sizeof(key), "%s_s", round_phase_name(p));
		status_put_sec(o, key, m->phase_s[p]);
	}
	status_put_num(o, "bytes", m->bytes);
	json_object_set_new(o, "last", last);
	status_put_num(o, "n_last", n_last);
	return o;
}

json_t *step_report_of_agent(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, uint32_t member)
{
	const struct ctl_steps *s = p && member < p->n_members ? &p->steps[member] : NULL;
	struct steps_mean mean;

	if (!s || !s->n_steps)
		return json_null();
	mean = steps_mean_of(s);
	return steps_mean_json(
		&mean, s->n_steps, step_machine_json(c, j, s->last_member), s->n_last);
}

/* Return 1 + the number of the member for which the machines waited longest in most steps; 0: none.
 */
static uint32_t steps_last_member(
	const struct sched_job *j, const struct sched_probe *p, uint64_t *ret_n_last)
{
	uint64_t *votes = sched_alloc(j->n_members + 1, sizeof(*votes));
	uint32_t best = 0;

	for (uint32_t i = 0; i < p->n_members; i++)
		if (p->steps[i].last_member && p->steps[i].last_member <= j->n_members)
			votes[p->steps[i].last_member] += p->steps[i].n_last;
	for (uint32_t i = 1; i <= j->n_members; i++)
		if (votes[i] > votes[best])
			best = i;
	*ret_n_last = votes[best];
	free(votes);
	return best;
}

json_t *step_report_of_job(
	const struct sched_core *c, const struct sched_job *j, const struct sched_probe *p)
{
	struct steps_mean sum = {0};
	uint64_t n_steps = 0, n_last;
	uint32_t n_machines = 0, worst = 0, last;
	double worst_s = -1;
	json_t *o;

	for (uint32_t i = 0; p && i < p->n_members; i++)
		n_machines += p->steps[i].n_steps > 0;
	if (!n_machines)
		return json_null();
	for (uint32_t i = 0; i < p->n_members; i++) {
		struct steps_mean m;

		if (!p->steps[i].n_steps)
			continue;
		m = steps_mean_of(&p->steps[i]);
		steps_mean_add(&sum, &m, 1.0 / n_machines);
		n_steps += p->steps[i].n_steps;
		if (m.length_s - m.exposed_s > worst_s) {
			worst_s = m.length_s - m.exposed_s;
			worst = i + 1;
		}
	}
	last = steps_last_member(j, p, &n_last);
	o = steps_mean_json(&sum, n_steps, step_machine_json(c, j, last), n_last);
	status_put_num(o, "machines", n_machines);
	json_object_set_new(o, "worst", step_machine_json(c, j, worst));
	status_put_sec(o, "worst_computing_s", worst_s > 0 ? worst_s : 0);
	return o;
}
