/* List of the workers and machines of a job, copied from the last JOB message. Trainers can request
 * the list: workers by rank with the name of their machine, and lost workers with the reason.
 * Thread: the data thread. */
#include "bps-agent/trainers/roster.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bps-agent/steps/trace_file.h"
#include "bps-agent/trainers/trainer.h"

struct roster_machine {
	struct trace_machine place;
	char why[CTL_WHY_GONE_MAX + 1];
	bool is_gone;
	/* The machine joined the job at the last barrier at which machines joined. The flag stays
	 * set when the machine is lost, so that all workers get the same answer (J13). */
	bool is_new;
};
struct roster_worker {
	uint32_t rank;
	uint16_t member;
};
struct roster {
	uint64_t view, border_barrier;
	struct roster_machine *machines; /* indexed by member number */
	uint32_t n_machines;
	uint32_t n_workers;
	struct roster_worker workers[]; /* sorted by rank */
};

static int compare_by_rank(const void *a, const void *b)
{
	const struct roster_worker *x = a, *y = b;

	return (x->rank > y->rank) - (x->rank < y->rank);
}

void roster_free(struct job *job)
{
	if (!job->roster)
		return;
	free(job->roster->machines);
	free(job->roster);
	job->roster = NULL;
}

int roster_update(struct job *job, const struct ctl_job *m)
{
	struct roster *p;
	uint32_t n = 0, at = 0;

	for (uint32_t i = 0; i < m->n_members; i++)
		n += m->members[i].n_ranks;
	p = calloc(1, sizeof(*p) + n * sizeof(p->workers[0]));
	if (!p)
		return -ENOMEM;
	p->machines = calloc(m->n_members + 1, sizeof(*p->machines));
	if (!p->machines) {
		free(p);
		return -ENOMEM;
	}
	p->view = m->view;
	p->border_barrier = m->border_barrier;
	p->n_workers = n;
	p->n_machines = m->n_members;
	for (uint32_t i = 0; i < m->n_members; i++) {
		const struct ctl_job_member *cm = &m->members[i];

		snprintf(p->machines[i].place.host, sizeof(p->machines[i].place.host), "%s",
			cm->host);
		snprintf(p->machines[i].place.agent, sizeof(p->machines[i].place.agent), "%s",
			cm->name);
		snprintf(p->machines[i].why, sizeof(p->machines[i].why), "%s", cm->why);
		p->machines[i].is_gone = cm->is_gone;
		p->machines[i].is_new = m->border && cm->since == m->border;
		for (uint32_t r = 0; r < cm->n_ranks; r++)
			p->workers[at++] = (struct roster_worker){cm->ranks[r].rank, (uint16_t)i};
	}
	qsort(p->workers, n, sizeof(p->workers[0]), compare_by_rank);
	roster_free(job);
	job->roster = p;
	return 0;
}

void roster_newcomers(
	const struct job *job, uint64_t barrier, uint32_t *ret_n_new, uint32_t *ret_root)
{
	const struct roster *p = job->roster;

	*ret_n_new = 0;
	*ret_root = CTL_NO_ID;
	for (uint32_t i = 0; p && i < p->n_workers; i++) {
		const struct roster_machine *m = &p->machines[p->workers[i].member];

		*ret_n_new += m->is_new && barrier == p->border_barrier;
		if (*ret_root == CTL_NO_ID && !m->is_new && !m->is_gone)
			*ret_root = p->workers[i].rank;
	}
}

bool roster_is_new(const struct job *job, uint32_t rank)
{
	const struct roster *p = job->roster;

	for (uint32_t i = 0; p && i < p->n_workers; i++)
		if (p->workers[i].rank == rank)
			return p->machines[p->workers[i].member].is_new;
	return false;
}

void roster_answer_request(struct trainer *t, uint32_t seq, const struct local_ask *q)
{
	const struct tensor *tensor = q->tensor < t->n_tensors ? t->tensors[q->tensor] : NULL;
	const struct roster *p = t->job ? t->job->roster : NULL;
	struct local_person page[LOCAL_PEOPLE_MAX];
	struct local_msg m = {.type = LOCAL_PEOPLE, .seq = seq, .people = {.people = page}};
	struct agt_contributors behind;

	memset(&behind.members, 0xff, sizeof(behind.members));
	if (tensor && tensor->core)
		behind = agt_tensor_contributors(tensor->core);
	if (p) {
		m.people.view = p->view;
		m.people.n_all = p->n_workers;
	}
	for (uint32_t i = q->first; p && i < p->n_workers && m.people.n_people < LOCAL_PEOPLE_MAX;
		i++) {
		const struct roster_worker *who = &p->workers[i];
		const struct roster_machine *machine = &p->machines[who->member];

		page[m.people.n_people++] = (struct local_person){.rank = who->rank,
			.is_lost = machine->is_gone,
			.is_new = machine->is_new,
			.is_missing = !member_set_has(&behind.members, who->member),
			.host = machine->place.host,
			.why = machine->why};
	}
	trainer_send_message(t, &m, NULL, 0);
}

struct trace_machine *roster_copy_machines(const struct job *job, size_t *ret_n)
{
	const struct roster *p = job->roster;
	struct trace_machine *copy = p ? calloc(p->n_machines, sizeof(*copy)) : NULL;

	*ret_n = 0;
	for (uint32_t i = 0; copy && i < p->n_machines; i++)
		copy[(*ret_n)++] = p->machines[i].place;
	return copy;
}
