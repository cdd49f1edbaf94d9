/* Computes the pace of jobs and members from heartbeats, and finds the stragglers among agents and
 * servers (progress.h). This file makes nothing durable and changes no placement. All functions run
 * on the core's thread. */
#include "bps-scheduler/core/progress.h"

#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/model.h"

#define CANDIDATES_MAX 64

/* ---- members ---- */

static void traffic_rate_sample(struct sched_traffic *r, const struct ctl_beat *b, uint64_t now_ns)
{
	double s = (double)(now_ns - r->at_ns) / 1e9;

	if (r->at_ns && now_ns - r->at_ns < PROGRESS_RATE_NS)
		return;
	if (r->at_ns && b->rx_bytes >= r->rx_bytes && b->tx_bytes >= r->tx_bytes) {
		r->rx_bytes_s = (double)(b->rx_bytes - r->rx_bytes) / s;
		r->tx_bytes_s = (double)(b->tx_bytes - r->tx_bytes) / s;
	}
	r->at_ns = now_ns;
	r->rx_bytes = b->rx_bytes;
	r->tx_bytes = b->tx_bytes;
}

/* Count one more observation of a condition. looks: 1 if the observation supports the condition, -1
 * if the observation contradicts the condition, 0 if undecided. Sets *is_raised when the score
 * reaches PROGRESS_SURE, and clears *is_raised when the score reaches 0. Returns whether *is_raised
 * has changed. */
static bool hysteresis_update(unsigned *score, bool *is_raised, int looks)
{
	if (looks > 0)
		*score += *score < PROGRESS_SURE;
	else if (looks < 0)
		*score -= *score > 0;
	if (*score != (*is_raised ? 0 : PROGRESS_SURE))
		return false;
	*is_raised = !*is_raised;
	return true;
}

/* Judge from a heartbeat whether a server takes too long to sum, and report an event when the
 * judgement changes. */
static void judge_server_sum_delay(
	struct sched_core *c, struct sched_member *m, const struct ctl_beat *b)
{
	struct sched_sum_delay *s = &m->sums;
	uint32_t limit_us = c->cfg.server_slow_ms * 1000;
	bool is_judged = limit_us && b->rounds != m->last_rounds;
	int looks = is_judged && b->sum_us > limit_us                            ? 1
		    : is_judged && b->sum_us >= PROGRESS_CLEAR_FACTOR * limit_us ? 0
										 : -1;

	m->last_rounds = b->rounds;
	if (!hysteresis_update(&s->score, &s->is_slow, looks))
		return;
	if (s->is_slow)
		sched_report_event(c, EVENT_MEMBER,
			"server %s (host %s) is slow: %.0f ms from the last "
			"contribution to the sum",
			m->name, m->host, b->sum_us / 1e3);
	else
		sched_report_event(
			c, EVENT_MEMBER, "server %s (host %s) is no longer slow", m->name, m->host);
}

void progress_reset(struct sched_member *m)
{
	m->sums = (struct sched_sum_delay){0};
	m->last_rounds = 0;
	free(m->reports);
	m->reports = NULL;
	m->n_reports = 0;
	m->n_losses = 0;
	m->rate = (struct sched_traffic){0};
}

static void member_store_job_reports(struct sched_member *m, const struct ctl_beat *b)
{
	m->n_reports = 0;
	if (!b->n_jobs)
		return;
	if (!m->reports)
		m->reports = sched_alloc(CTL_BEAT_JOBS_MAX, sizeof(*m->reports));
	for (uint32_t i = 0; i < b->n_jobs && i < CTL_BEAT_JOBS_MAX; i++) {
		struct sched_server_report *r = &m->reports[m->n_reports++];

		r->job = b->jobs[i];
		r->job.late = NULL;
		if (r->job.n_late > CTL_BEAT_LATE_MAX)
			r->job.n_late = CTL_BEAT_LATE_MAX;
		for (uint32_t k = 0; k < r->job.n_late; k++)
			r->late[k] = b->jobs[i].late[k];
	}
}

static void member_store_link_losses(struct sched_member *m, const struct ctl_beat *b)
{
	m->n_losses = 0;
	if (!b->n_links)
		return;
	if (!m->losses)
		m->losses = sched_alloc(CTL_BEAT_LINKS_MAX, sizeof(*m->losses));
	m->n_losses = b->n_links < CTL_BEAT_LINKS_MAX ? b->n_links : CTL_BEAT_LINKS_MAX;
	memcpy(m->losses, b->links, m->n_losses * sizeof(*m->losses));
}

/* ---- jobs ---- */

/* The reports of all servers about one job, added up. */
struct job_totals {
	bool is_known;
	uint64_t round, bytes, rounds, partition_rounds;
	/* each report adds its median, multiplied by its number of rounds */
	double wait_p50;
	uint32_t wait_p99_us;
	struct {
		uint32_t agent;
		uint64_t rounds;
		/* each report adds the agent's median lag, multiplied by the number of rounds in
		 * which the agent was last */
		double lag;
	} late[CANDIDATES_MAX];
	unsigned n_late;
};

static void job_totals_add_late(struct job_totals *t, const struct ctl_beat_late *l)
{
	unsigned k = 0;

	while (k < t->n_late && t->late[k].agent != l->agent)
		k++;
	if (k == CANDIDATES_MAX)
		return;
	if (k == t->n_late) {
		t->late[k].agent = l->agent;
		t->late[k].rounds = 0;
		t->late[k].lag = 0;
		t->n_late++;
	}
	t->late[k].rounds += l->rounds;
	t->late[k].lag += (double)l->lag_us * l->rounds;
}

static void job_totals_add_report(struct job_totals *t, const struct sched_server_report *r)
{
	t->is_known = true;
	if (r->job.round > t->round)
		t->round = r->job.round;
	t->bytes += r->job.bytes;
	t->partition_rounds += r->job.rounds;
	t->rounds += r->job.window_rounds;
	t->wait_p50 += (double)r->job.wait_p50_us * r->job.window_rounds;
	if (r->job.wait_p99_us > t->wait_p99_us)
		t->wait_p99_us = r->job.wait_p99_us;
	for (uint32_t k = 0; k < r->job.n_late; k++)
		job_totals_add_late(t, &r->late[k]);
}

static void job_totals_collect(const struct sched_member *const *tellers, uint32_t n,
	const struct sched_job *j, struct job_totals *ret)
{
	*ret = (struct job_totals){.n_late = 0};
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < tellers[i]->n_reports; k++)
			if (tellers[i]->reports[k].job.job == j->id)
				job_totals_add_report(ret, &tellers[i]->reports[k]);
}

static void progress_set_rates(
	struct sched_progress *p, const struct job_totals *t, uint64_t now_ns)
{
	double s = (double)(now_ns - p->at_ns) / 1e9;

	p->round = t->round > p->round ? t->round : p->round;
	p->bytes = t->bytes;
	if (p->at_ns && now_ns - p->at_ns < PROGRESS_RATE_NS)
		return;
	/* A restarted server counts from 0 again, which makes the total smaller than before. */
	if (p->at_ns && t->bytes >= p->bytes_then) {
		p->steps_s = (double)(p->round - p->round_then) / s;
		p->bytes_s = (double)(t->bytes - p->bytes_then) / s;
	}
	p->at_ns = now_ns;
	p->round_then = p->round;
	p->bytes_then = t->bytes;
}

/* Set the slowest agent: the agent with the most rounds in which it contributed last. While the
 * present slowest agent counts as a straggler, do not choose another agent. */
static void progress_set_slowest(struct sched_progress *p, const struct job_totals *t)
{
	unsigned worst = CANDIDATES_MAX;

	for (unsigned k = 0; k < t->n_late; k++) {
		bool is_it = p->is_straggling ? t->late[k].agent == p->slowest
					      : worst == CANDIDATES_MAX ||
							t->late[k].rounds > t->late[worst].rounds;

		if (t->late[k].rounds && is_it)
			worst = k;
	}
	p->slowest_rounds = p->slowest_lag_us = 0;
	if (worst == CANDIDATES_MAX) {
		if (!p->is_straggling)
			p->slowest = 0;
		return;
	}
	if (p->slowest != t->late[worst].agent)
		p->score = 0;
	p->slowest = t->late[worst].agent;
	p->slowest_rounds = (uint32_t)t->late[worst].rounds;
	p->slowest_lag_us = (uint32_t)(t->late[worst].lag / (double)t->late[worst].rounds);
}

/* Return the straggler limit of a job with n_agents agents, as a share of the rounds. The slowest
 * agent looks like a straggler only if it contributes last in at least this share. */
static double straggler_share(uint32_t n_agents)
{
	/* If all agents are equally fast, each is last in 1/n of the rounds. */
	return n_agents ? 0.5 + 0.5 / n_agents : 1;
}

/* Judge the slowest agent of a job. Returns 1 if the agent looks like a straggler, -1 if the agent
 * does not, 0 if the figures do not decide. */
static int judge_slowest_agent(const struct sched_progress *p, uint32_t n_agents)
{
	double share = p->rounds ? (double)p->slowest_rounds / p->rounds : 0;
	double share_min = straggler_share(n_agents);
	double of_step = p->steps_s * p->slowest_lag_us / 1e6;

	if (!p->slowest || p->rounds < PROGRESS_ROUNDS_MIN || n_agents < 2)
		return -1;
	if (share >= share_min && p->slowest_lag_us >= PROGRESS_LAG_MIN_US &&
		of_step >= PROGRESS_STEP_SHARE)
		return 1;
	if (share < PROGRESS_CLEAR_FACTOR * share_min ||
		p->slowest_lag_us < PROGRESS_CLEAR_FACTOR * PROGRESS_LAG_MIN_US ||
		of_step < PROGRESS_CLEAR_FACTOR * PROGRESS_STEP_SHARE)
		return -1;
	return 0;
}

static void note_straggler(struct sched_core *c, const struct sched_job *j)
{
	const struct sched_progress *p = &j->progress;
	const struct sched_member *m = sched_member_by_id(c, p->slowest);

	if (!p->is_straggling)
		sched_report_event(c, EVENT_JOB, "job '%.100s': agent %s no longer delays it",
			j->name, m ? m->name : "?");
	else
		sched_report_event(c, EVENT_JOB,
			"job '%.100s': agent %s (host %s) is last in %.0f %% of the rounds by "
			"%.1f ms",
			j->name, m ? m->name : "?", m ? m->host : "?",
			100.0 * p->slowest_rounds / p->rounds, p->slowest_lag_us / 1e3);
}

static void job_progress_update(struct sched_core *c, struct sched_job *j,
	const struct sched_member *const *tellers, uint32_t n)
{
	struct sched_progress *p = &j->progress;
	struct job_totals t;

	job_totals_collect(tellers, n, j, &t);
	if (!t.is_known && !p->is_known)
		return;
	p->is_known = true;
	p->rounds = (uint32_t)t.rounds;
	p->partition_rounds = t.partition_rounds;
	p->wait_p50_us = t.rounds ? (uint32_t)(t.wait_p50 / (double)t.rounds) : 0;
	p->wait_p99_us = t.wait_p99_us;
	progress_set_rates(p, &t, c->now_ns);
	progress_set_slowest(p, &t);
	if (hysteresis_update(
		    &p->score, &p->is_straggling, judge_slowest_agent(p, j->n_members - j->n_left)))
		note_straggler(c, j);
}

/* Update the figures of all running jobs, once a second. The cost is the number of jobs times the
 * number of servers that report jobs, independent of the number of agents. */
static void progress_update_all_jobs(struct sched_core *c)
{
	const struct sched_member **tellers = sched_alloc(c->n_members + 1, sizeof(*tellers));
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->state == MEMBER_UP && c->members[i]->n_reports)
			tellers[n++] = c->members[i];
	for (struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_RUNNING)
			job_progress_update(c, j, tellers, n);
	free(tellers);
}

void progress_receive_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b)
{
	traffic_rate_sample(&m->rate, b, c->now_ns);
	if (m->role != ROLE_SERVER) {
		member_store_link_losses(m, b);
		return;
	}
	judge_server_sum_delay(c, m, b);
	member_store_job_reports(m, b);
	if (c->now_ns - c->progress_ns < PROGRESS_EVERY_NS)
		return;
	c->progress_ns = c->now_ns;
	progress_update_all_jobs(c);
}
