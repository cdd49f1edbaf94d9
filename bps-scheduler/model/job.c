/* Implements jobs as a data structure: states, workers, machines, newcomers and the lists of jobs.
 * core/workers.c and core/elastic.c handle messages about jobs. core/job_end.c ends jobs. All
 * functions run on the core's thread. */
#include "bps-scheduler/model/job.h"

#include <assert.h>
#include <stdlib.h>

#include "bps-scheduler/model/model.h"
#include "common/base/log.h"

static const struct {
	const char *name;
	unsigned next;
} job_states[JOB_STATES] = {
	[JOB_FORMING] = {"forming", STATE_BIT(JOB_RUNNING)},
	[JOB_RUNNING] = {"running", STATE_BIT(JOB_ENDED)},
	[JOB_ENDED] = {"ended", 0},
};

const char *sched_job_state_name(enum job_state s)
{
	return s < JOB_STATES ? job_states[s].name : "?";
}

void sched_job_set_state(
	struct sched_core *c, struct sched_job *j, enum job_state to, const char *why)
{
	if (!why) {
		j->state = to;
		return;
	}
	assert(job_states[j->state].next & STATE_BIT(to));
	log_limited(LOG_AS(LOG_INFO, JOB), "job: %s -> %s, %s job='%s' id=%u uid=%u workers=%u/%u",
		job_states[j->state].name, job_states[to].name, why, j->name, j->id, j->uid,
		j->n_joined, j->size);
	sched_report_event(c, EVENT_JOB, "job '%s' (%u worker%s, uid %u) %s: %s", j->name, j->size,
		plural_suffix_of(j->size), j->uid, to == JOB_RUNNING ? "runs" : "has ended", why);
	j->state = to;
	j->since_ns = c->now_ns;
}

struct sched_job *sched_job_new(uint32_t id, uint32_t uid, const char *name, uint32_t size)
{
	struct sched_job *j = sched_alloc(1, sizeof(*j));

	j->id = id;
	j->uid = uid;
	j->name = sched_dup_string(name);
	j->size = size;
	j->fresh_tail = &j->fresh;
	return j;
}

void sched_job_free(struct sched_core *c, struct sched_job *j)
{
	if (!j)
		return;
	sched_job_drop_tensors(c, j);
	free(j->workers);
	for (uint32_t i = 0; i < j->n_members; i++)
		free(j->members[i].why);
	free(j->newcomers);
	free(j->members);
	free(j->end_text);
	free(j->cause_host);
	free(j->first_failure);
	free(j->first_loss);
	free(j->name);
	free(j);
}

void sched_job_link(struct sched_core *c, struct sched_job *j)
{
	struct sched_job **list = j->state == JOB_ENDED ? &c->ended : &c->jobs;

	j->next = *list;
	*list = j;
	c->n_ended += j->state == JOB_ENDED;
	c->n_jobs += j->state != JOB_ENDED;
}

void sched_job_unlink(struct sched_core *c, struct sched_job *j)
{
	struct sched_job **at = &c->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	c->n_jobs--;
}

struct sched_worker *sched_worker_at(struct sched_job *j, uint32_t rank)
{
	j->workers = sched_grow_array(j->workers, &j->n_room, rank + 1, sizeof(*j->workers));
	return &j->workers[rank];
}

struct sched_job_member *sched_job_member_add(struct sched_job *j, uint32_t agent)
{
	j->members = sched_grow_array(
		j->members, &j->members_room, j->n_members + 1, sizeof(*j->members));
	j->members[j->n_members] = (struct sched_job_member){
		.agent = agent, .low_rank = CTL_NO_ID, .since = j->formed};
	return &j->members[j->n_members++];
}

void sched_job_attach(
	struct sched_job *j, uint32_t rank, uint32_t agent, uint32_t pid, uint32_t seq)
{
	uint32_t i = sched_job_member(j, agent);
	struct sched_job_member *m;

	*sched_worker_at(j, rank) = (struct sched_worker){
		.state = WORKER_ATTACHED, .agent = agent, .pid = pid, .seq = seq};
	j->n_joined++;
	m = i == CTL_NO_ID ? sched_job_member_add(j, agent) : &j->members[i];
	m->n_ranks++;
	if (rank < m->low_rank)
		m->low_rank = rank;
}

void sched_job_member_drop(struct sched_core *c, struct sched_job *j, uint32_t i, const char *why)
{
	struct sched_job_member *m = &j->members[i];

	for (uint32_t r = 0; r < j->n_room; r++) {
		struct sched_worker *w = &j->workers[r];

		if (w->state == WORKER_ABSENT || w->agent != m->agent)
			continue;
		j->n_done -= w->state == WORKER_DONE;
		w->state = WORKER_GONE;
		j->n_joined--;
		j->n_gone++;
	}
	m->is_gone = true;
	m->why = sched_dup_string(why);
	j->n_left++;
	sched_job_undeclare(c, j, i);
}

void sched_job_rescale(struct sched_core *c, const struct sched_job *j, uint32_t was)
{
	for (uint32_t i = 1; i < j->n_loads && i <= c->n_members; i++) {
		c->members[i]->scaled_bytes -= j->loads[i] * was;
		c->members[i]->scaled_bytes += j->loads[i] * j->n_members;
	}
}

void sched_newcomers_drop(struct sched_core *c, struct sched_job *j, uint32_t agent)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < j->n_newcomers; i++) {
		const struct sched_newcomer *n = &j->newcomers[i];
		const struct sched_member *m = sched_member_by_id(c, n->agent);
		struct ctl_msg msg = {.type = CTL_JOINED,
			.joined = {n->seq, (uint32_t)-BPS_ECLOSED,
				"the job ended while this worker waited for admission", CTL_NO_ID,
				CTL_NO_ID}};

		if (agent == CTL_NO_ID && m)
			sched_send_message(c, m, &msg);
		else if (n->agent != agent)
			j->newcomers[kept++] = *n;
	}
	j->n_newcomers = kept;
}

void sched_ended_trim(struct sched_core *c)
{
	struct sched_job **at = &c->ended;

	for (uint32_t i = 0; *at && i < ENDED_MAX; i++)
		at = &(*at)->next;
	while (*at) {
		struct sched_job *j = *at;

		*at = j->next;
		c->n_ended--;
		sched_job_free(c, j);
	}
}
