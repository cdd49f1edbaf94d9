/* Decides when the scheduler, without a request, probes a job's agents, and derives findings from
 * the answers. why_stuck.c runs the probes. status/findings.c turns findings into text. All
 * functions run on the core's thread. */
#include "bps-scheduler/core/stalls.h"

#include <assert.h>
#include <errno.h>

#include "bps-scheduler/core/leavers.h"
#include "bps-scheduler/core/why_stuck.h"

/* interval of the checks, equal to the default interval of heartbeats */
#define LOOK_NS      (500 * NS_PER_MS)
#define STRAGGLER_MS 500
/* time without progress after which a job is probed if some of its workers have finished */
#define LEAVER_NS (500 * NS_PER_MS)

static const struct {
	const char *name;
	unsigned next;
} states[STALL_STATES] = {
	[STALL_MOVING] = {"moving", STATE_BIT(STALL_STANDING)},
	[STALL_STANDING] = {"standing", STATE_BIT(STALL_MOVING) | STATE_BIT(STALL_PROBING)},
	[STALL_PROBING] = {"probing", STATE_BIT(STALL_MOVING) | STATE_BIT(STALL_PROBED)},
	[STALL_PROBED] = {"probed", STATE_BIT(STALL_MOVING) | STATE_BIT(STALL_STANDING)},
};

const char *sched_stall_state_name(enum stall_state s)
{
	return s < STALL_STATES ? states[s].name : "?";
}

static void stall_set_state(struct sched_stall *s, enum stall_state to)
{
	assert(states[s->state].next & STATE_BIT(to));
	s->state = to;
}

static uint64_t stall_probe_delay_ns(const struct sched_core *c, const struct sched_job *j)
{
	uint64_t usual = c->cfg.stall_ms * NS_PER_MS / 2;

	return leavers_has_any(j) && usual > LEAVER_NS ? LEAVER_NS : usual;
}

static void stall_note_progress(const struct sched_core *c, struct sched_stall *s)
{
	s->moved_ns = c->now_ns;
	s->n_findings = 0;
	if (s->state != STALL_MOVING)
		stall_set_state(s, STALL_MOVING);
}

/* ---- findings from the answers to probes ---- */

struct finding_list {
	struct sched_finding *f;
	uint32_t n;
};

static void add_silent_agent_findings(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct finding_list *l)
{
	for (uint32_t i = 0; i < p->n_members && l->n < SCHED_FINDINGS_MAX; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		/* an agent without connection is reported as CONTROL_SILENT */
		if (!p->has_answered[i] && m->conn)
			l->f[l->n++] = (struct sched_finding){
				.kind = FINDING_NO_ANSWER, .agent = m->id, .since_ns = c->now_ns};
	}
}

/* Add f, a finding about n_late late workers, if other workers have waited for these workers for
 * stall_ms. A shorter wait of at least STRAGGLER_MS is enough if only a few workers are late. f
 * names one late worker. If the list already has a finding that names this worker, only the finding
 * with the longer wait is kept. */
static void finding_list_add_late(const struct sched_core *c, const struct sched_job *j,
	uint32_t n_late, struct sched_finding f, struct finding_list *l)
{
	uint64_t ms = (c->now_ns - f.since_ns) / NS_PER_MS;
	bool is_stalled = ms >= c->cfg.stall_ms;
	uint32_t i = 0;

	if (!n_late || (!is_stalled && (ms < STRAGGLER_MS || n_late * 4 > j->size + 2)))
		return;
	f.kind = is_stalled ? FINDING_STALLED : FINDING_STRAGGLER;
	f.n_more = n_late - 1;
	while (i < l->n && (l->f[i].kind == FINDING_NO_ANSWER || l->f[i].rank != f.rank))
		i++;
	if (i < l->n) {
		if (f.since_ns < l->f[i].since_ns)
			l->f[i] = f;
	} else if (l->n < SCHED_FINDINGS_MAX) {
		l->f[l->n++] = f;
	}
}

static void finding_set_worker(struct sched_finding *f, const struct sched_probe_worker *w)
{
	f->agent = w->agent;
	f->rank = w->w.rank;
	f->pid = w->w.pid;
}

/* Return the last round that a worker must have submitted so that no other worker waits for it. The
 * workers of one machine are in step, also where others may be behind by the bound of a value. */
static uint64_t needed_of_worker(const struct sched_job *j, const struct sched_probe *p,
	const struct sched_probe *detail, const struct sched_probe_worker *w)
{
	for (uint32_t i = 0; i < p->n_workers; i++)
		if (p->workers[i].agent == w->agent &&
			p->workers[i].w.oldest_tensor == detail->tensor)
			return p->workers[i].w.oldest_round;
	return sched_needed_round(j, detail->tensor, detail->round);
}

/* Find the workers that have not submitted a tensor for which other workers wait. `detail` is the
 * finished probe about this tensor, and `p` is the probe that shows which workers wait. */
static void late_for_tensor(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, const struct sched_probe *detail, struct finding_list *l)
{
	struct sched_finding f = {.tensor = detail->tensor, .round = detail->round};
	uint32_t n_late = 0, longest_ms = 0;

	for (uint32_t i = 0; i < detail->n_workers; i++) {
		const struct sched_probe_worker *w = &detail->workers[i];

		if (w->w.submitted >= needed_of_worker(j, p, detail, w) && w->w.is_attached)
			continue;
		if (!n_late++)
			finding_set_worker(&f, w);
	}
	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;

		if (w->oldest_tensor != detail->tensor)
			continue;
		f.n_waiting++;
		if (w->oldest_ms > longest_ms)
			longest_ms = w->oldest_ms;
	}
	f.since_ns = c->now_ns - longest_ms * NS_PER_MS;
	finding_list_add_late(c, j, n_late, f, l);
}

/* Find late workers of a job that runs on only one machine. stalls_list_findings uses this function
 * if p->details is empty. In this case, no answer shows which workers have not submitted a tensor.
 * A worker is late if it has no call in flight and has made fewer calls than another worker. If no
 * worker has a call in flight, no worker is late. The time of the last completed call is known only
 * from answers to probes, and is too coarse to find stragglers. So each finding about late workers
 * is a FINDING_STALLED, never a FINDING_STRAGGLER. */
static void late_on_one_machine(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct finding_list *l)
{
	struct sched_finding f = {.tensor = CTL_NO_ID, .since_ns = j->stall.moved_ns};
	uint32_t n_late = 0;

	if (c->now_ns - f.since_ns < c->cfg.stall_ms * NS_PER_MS)
		return;
	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;

		f.n_waiting += w->calls > w->completed;
		if (w->calls > f.round)
			f.round = w->calls;
	}
	for (uint32_t i = 0; f.n_waiting && i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;

		if (w->is_attached && w->calls == w->completed && w->calls < f.round && !n_late++)
			finding_set_worker(&f, &p->workers[i]);
	}
	finding_list_add_late(c, j, n_late, f, l);
}

static bool is_on_one_machine(const struct sched_job *j)
{
	return j->n_members - j->n_left == 1;
}

uint32_t stalls_list_findings(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct sched_finding *ret)
{
	struct finding_list l = {ret, 0};

	if (j->state != JOB_RUNNING)
		return 0;
	add_silent_agent_findings(c, j, p, &l);
	for (const struct sched_probe *d = p->details; d; d = d->next)
		late_for_tensor(c, j, p, d, &l);
	if (is_on_one_machine(j) && !p->details)
		late_on_one_machine(c, j, p, &l);
	return l.n;
}

/* ---- states ---- */

/* Return whether the workers have completed calls since the previous probe. Returns false for the
 * first probe. */
static bool has_job_completed_calls(struct sched_stall *s, const struct sched_probe *p)
{
	uint64_t completed = 0, before = s->completed;
	bool is_known = s->has_completed;

	if (!p->n_workers)
		return false;
	for (uint32_t i = 0; i < p->n_workers; i++)
		completed += p->workers[i].w.completed;
	s->completed = completed;
	s->has_completed = true;
	return is_known && completed > before;
}

void stalls_finish_probe(struct sched_core *c, struct sched_job *j, const struct sched_probe *p)
{
	struct sched_stall *s = &j->stall;

	if (j->state != JOB_RUNNING || s->state != STALL_PROBING || s->probe_seq != p->seq)
		return; /* a round has completed since probe p began */
	stall_set_state(s, STALL_PROBED);
	s->due_ns = c->now_ns + stall_probe_delay_ns(c, j);
	leavers_probed(c, j, p);
	if (j->state != JOB_RUNNING)
		return; /* a machine was lost */
	if (has_job_completed_calls(s, p)) {
		stall_note_progress(c, s);
		return;
	}
	s->n_findings = stalls_list_findings(c, j, p, s->findings);
}

static void stall_update_state(const struct sched_core *c, struct sched_job *j)
{
	struct sched_stall *s = &j->stall;

	if (j->progress.partition_rounds != s->rounds) {
		s->rounds = j->progress.partition_rounds;
		stall_note_progress(c, s);
	}
	if (s->moved_ns < j->since_ns)
		s->moved_ns = j->since_ns;
	if (s->state == STALL_MOVING && c->now_ns >= s->moved_ns + stall_probe_delay_ns(c, j)) {
		stall_set_state(s, STALL_STANDING);
		s->due_ns = c->now_ns;
	} else if (s->state == STALL_PROBED && c->now_ns >= s->due_ns) {
		stall_set_state(s, STALL_STANDING);
	}
}

static bool has_connected_agent(const struct sched_core *c, const struct sched_job *j)
{
	for (uint32_t i = 0; i < j->n_members; i++)
		if (!j->members[i].is_gone && sched_member_by_id(c, j->members[i].agent)->conn)
			return true;
	return false;
}

/* Return the job that has waited longest for its probe, or NULL if no job waits. A job is skipped
 * while none of its agents is connected. */
static struct sched_job *next_job_to_probe(const struct sched_core *c)
{
	struct sched_job *best = NULL;

	for (struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_RUNNING && j->stall.state == STALL_STANDING &&
			(!best || j->stall.due_ns <= best->stall.due_ns) &&
			has_connected_agent(c, j))
			best = j;
	return best;
}

static uint32_t count_stall_probes(const struct sched_core *c)
{
	uint32_t n = 0;

	for (const struct sched_probe *p = c->probes; p; p = p->next)
		n += p->is_own && !p->parent;
	return n;
}

void stalls_probe_sooner(struct sched_core *c, struct sched_job *j)
{
	struct sched_stall *s = &j->stall;

	if (s->state == STALL_PROBED && leavers_has_any(j) && s->due_ns > c->now_ns + LEAVER_NS)
		s->due_ns = c->now_ns + LEAVER_NS;
}

void stalls_tick(struct sched_core *c)
{
	struct sched_job *j, *next;
	uint32_t n;

	if (c->now_ns < c->stalls_ns) {
		sched_arm_deadline(c, c->stalls_ns);
		return;
	}
	n = count_stall_probes(c);
	for (j = c->jobs; j; j = next) {
		next = j->next; /* leavers_tick may end the job, which moves it in the list */
		leavers_tick(c, j);
		if (j->state == JOB_RUNNING)
			stall_update_state(c, j);
	}
	while (n < STALLS_PROBES_MAX && (j = next_job_to_probe(c)) && sched_probe_own(c, j)) {
		stall_set_state(&j->stall, STALL_PROBING);
		j->stall.probe_seq = c->probe_seq;
		n++;
	}
	if (!c->jobs)
		return;
	c->stalls_ns = c->now_ns + LOOK_NS;
	sched_arm_deadline(c, c->stalls_ns);
}

int stalls_check(const struct sched_core *c, const struct sched_job *j, struct err_text *err)
{
	const struct sched_stall *s = &j->stall;
	uint32_t n = 0;

	if (s->state >= STALL_STATES || s->n_findings > SCHED_FINDINGS_MAX ||
		(s->state == STALL_MOVING && s->n_findings))
		return err_set(err, -EINVAL, "job %u has an invalid stall: state %u, %u findings",
			j->id, s->state, s->n_findings);
	for (const struct sched_probe *p = c->probes; p; p = p->next)
		n += p->seq == s->probe_seq && p->job == j->id && p->is_own && !p->parent;
	if (s->state == STALL_PROBING && j->state == JOB_RUNNING && n != 1)
		return err_set(
			err, -EINVAL, "job %u is in the state 'probing', but has no probe", j->id);
	if (count_stall_probes(c) > STALLS_PROBES_MAX)
		return err_set(err, -EINVAL, "too many jobs are probed");
	return 0;
}
