/* Finds out why a call waits: probes the agents of a job, and describes their answers and the
 * scheduler's own state in sentences. This file changes neither members nor jobs. All functions run
 * on the core's thread. */
#include "bps-scheduler/core/why_stuck.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/core/stalls.h"
#include "bps-scheduler/model/compare.h"
#include "common/base/log.h"

#define NAMES_MAX        8
#define PROBES_PER_AGENT 16
/* probe_report_stalled_worker does not report a worker that was quiet for less than this time */
#define STALLED_MS     1000
#define DOWN_RECENT_NS (60 * NS_PER_S)

/* ---- sentences ---- */

struct why_text {
	char s[CTL_TEXT_MAX + 1];
	size_t n;
};

static void why_text_append(struct why_text *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void why_text_append(struct why_text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->s + t->n, sizeof(t->s) - t->n, fmt, ap);
	va_end(ap);
	if (n > 0)
		t->n += (size_t)n;
	if (t->n > sizeof(t->s) - 1)
		t->n = sizeof(t->s) - 1;
}

static void why_text_begin_clause(struct why_text *t)
{
	if (t->n)
		why_text_append(t, "; ");
}

static double seconds_from_ns(uint64_t ns)
{
	return (double)ns / 1e9;
}

static void add_missing_ranks(struct why_text *t, const struct sched_job *j)
{
	uint32_t missing = sched_job_missing_count(j), named = 0;

	why_text_append(t, "missing rank%s ", missing > 1 ? "s" : "");
	for (uint32_t r = 0; named < missing && named < NAMES_MAX; r++)
		if (r >= j->n_room || j->workers[r].state == WORKER_ABSENT)
			why_text_append(t, "%s%u", named++ ? ", " : "", r);
	if (missing > named)
		why_text_append(t, " and %u more", missing - named);
}

/* Name the machines of an elastic job from which not all workers have joined. */
static void add_missing_beside(
	const struct sched_core *c, const struct sched_job *j, struct why_text *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_job_member *jm = &j->members[i];

		if (jm->n_ranks < jm->local_size && n++ < NAMES_MAX)
			why_text_append(t, "%s%u of %u on host %s", n > 1 ? ", " : "but only ",
				jm->n_ranks, jm->local_size, sched_host_of_member(c, jm->agent));
	}
	if (n > NAMES_MAX)
		why_text_append(t, " and %u more", n - NAMES_MAX);
}

static void why_append_forming(
	const struct sched_core *c, const struct sched_job *j, struct why_text *t)
{
	why_text_append(
		t, "job '%s': %u of %u workers have joined, ", j->name, j->n_joined, j->size);
	if (sched_job_missing_count(j))
		add_missing_ranks(t, j);
	else
		add_missing_beside(c, j, t);
	why_text_append(t, "; waiting %.1f s", seconds_from_ns(c->now_ns - j->since_ns));
}

static uint32_t count_usable_servers(const struct sched_core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += c->members[i]->role == ROLE_SERVER && sched_is_usable(c->members[i]);
	return n;
}

static void why_append_undurable(const struct sched_core *c, struct why_text *t)
{
	if (!c->is_undurable)
		return;
	why_text_begin_clause(t);
	why_text_append(t, "the scheduler cannot write its state, so no partition can move");
}

static void why_append_silent_servers(
	const struct sched_core *c, const struct sched_job *j, struct why_text *t)
{
	uint32_t n = 0;

	if (j->n_orphans && !count_usable_servers(c)) {
		why_text_begin_clause(t);
		why_text_append(t, "no server is alive: start one");
	}
	for (uint32_t i = 1; i <= c->n_members && n < NAMES_MAX; i++) {
		const struct sched_member *m = c->members[i];
		uint64_t quiet_ns = c->now_ns - m->heard_ns, since_ns = c->now_ns - m->since_ns;

		if (m->role != ROLE_SERVER)
			continue;
		if (m->state == MEMBER_UP) {
			if (quiet_ns <= c->cfg.server_dead_ms * NS_PER_MS / 3)
				continue;
			why_text_begin_clause(t);
			why_text_append(t, "server %s (host %s) has been silent for %.1f s",
				m->name, m->host, seconds_from_ns(quiet_ns));
		} else {
			if (m->state == MEMBER_DOWN && since_ns > DOWN_RECENT_NS &&
				count_usable_servers(c))
				continue;
			why_text_begin_clause(t);
			why_text_append(t, "server %s (host %s) has been down for %.1f s", m->name,
				m->host, seconds_from_ns(since_ns));
		}
		n++;
	}
}

/* Describe tensors that only some agents have declared. A worker that waits for the declarations of
 * the other agents has no round yet. So probes of rounds do not find out why this worker waits. */
static void why_append_undeclared(
	const struct sched_core *c, const struct sched_job *j, struct why_text *t)
{
	uint32_t n_tensors = 0, n = 0;
	const struct sched_tensor *first = NULL;
	char title[TENSOR_TITLE_BYTES];

	for (uint32_t b = 0; b < j->n_buckets; b++) {
		for (const struct sched_tensor *x = j->buckets[b]; x; x = x->next_hash) {
			if (x->state != TENSOR_COLLECTING)
				continue;
			n_tensors++;
			if (!first || strcmp(x->name, first->name) < 0)
				first = x;
		}
	}
	if (!first)
		return;
	why_text_begin_clause(t);
	why_text_append(t, "tensor %.100s", tensor_title(first->name, title));
	if (n_tensors > 1)
		why_text_append(t, " and %u more", n_tensors - 1);
	why_text_append(t, " not declared yet by ");
	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		if (j->members[i].is_gone || sched_tensor_has_declared(first, i))
			continue;
		if (n++ < NAMES_MAX)
			why_text_append(t, "%srank %u (host %s)", n > 1 ? ", " : "",
				j->members[i].low_rank, m->host);
	}
	if (n > NAMES_MAX)
		why_text_append(t, " and %u more", n - NAMES_MAX);
}

static int quietest_first(const void *a, const void *b)
{
	const struct sched_probe_worker *x = a, *y = b;
	int rc = compare_u64(x->w.submitted, y->w.submitted);

	return rc ? rc : compare_u64(x->w.rank, y->w.rank);
}

/* Describe the workers that have not submitted the probed round. Returns their number. */
static uint32_t why_append_late_workers(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct why_text *t)
{
	uint64_t needed = sched_needed_round(j, p->tensor, p->round);
	uint32_t n = 0;

	for (uint32_t i = 0; p->tensor != CTL_NO_ID && i < p->n_workers; i++) {
		const struct sched_probe_worker *w = &p->workers[i];

		if (w->w.submitted >= needed && w->w.is_attached)
			continue;
		if (n++ >= NAMES_MAX)
			continue;
		if (n == 1)
			why_text_append(t, "waiting for ");
		else
			why_text_append(t, ", ");
		why_text_append(t, "rank %u (host %s, pid %u), which ", w->w.rank,
			sched_member_by_id(c, w->agent)->host, w->w.pid);
		if (!w->w.is_attached)
			why_text_append(t, "has left");
		else
			why_text_append(t, "submitted up to round %llu, quiet for %.1f s",
				(unsigned long long)w->w.submitted, w->w.quiet_ms / 1e3);
	}
	if (n > NAMES_MAX)
		why_text_append(t, " and %u more", n - NAMES_MAX);
	return n;
}

static void why_append_silent_agents(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct why_text *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		if (p->has_answered[i])
			continue;
		if (n++ >= NAMES_MAX)
			continue;
		why_text_begin_clause(t);
		if (m->conn)
			why_text_append(t, "agent %s (host %s) did not answer within %.1f s",
				m->name, m->host, p->bound_ms / 1e3);
		else
			why_text_append(t, "agent %s (host %s) has not been connected for %.1f s",
				m->name, m->host, seconds_from_ns(c->now_ns - m->since_ns));
	}
	if (n > NAMES_MAX)
		why_text_append(t, " and %u more", n - NAMES_MAX);
}

static void why_append_networks(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, struct why_text *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->n_members && n < 3; i++) {
		if (!p->texts[i] || !p->texts[i][0])
			continue;
		why_text_begin_clause(t);
		why_text_append(t, "host %s: %s", sched_member_by_id(c, j->members[i].agent)->host,
			p->texts[i]);
		n++;
	}
}

/* Describe the workers for which other workers wait. If a worker waits at a barrier, these are the
 * workers that have not reached it. Otherwise these are the workers that have not called
 * bps_close. */
static void why_append_unfinished(
	const struct sched_core *c, const struct sched_job *j, struct why_text *t)
{
	bool is_barrier = j->n_at_barrier > 0;
	uint32_t n = 0;

	for (uint32_t r = 0; (is_barrier || j->n_done) && r < j->n_room; r++) {
		const struct sched_worker *w = &j->workers[r];

		if (w->state == WORKER_ABSENT || w->state == WORKER_GONE ||
			(is_barrier ? w->barrier == j->barrier + 1 : w->state == WORKER_DONE) ||
			n++ >= NAMES_MAX)
			continue;
		if (n == 1)
			why_text_begin_clause(t);
		why_text_append(t, "%srank %u (host %s, pid %u)", n > 1 ? ", " : "waiting for ", r,
			sched_host_of_member(c, w->agent), w->pid);
	}
	if (n > NAMES_MAX)
		why_text_append(t, " and %u more", n - NAMES_MAX);
	if (n)
		why_text_append(t, " to %s", is_barrier ? "reach the barrier" : "finish");
}

static void why_append_round(const struct sched_core *c, const struct sched_job *j,
	struct sched_probe *p, struct why_text *t)
{
	uint32_t late;

	if (p->n_workers)
		qsort(p->workers, p->n_workers, sizeof(*p->workers), quietest_first);
	late = why_append_late_workers(c, j, p, t);
	if (p->tensor == CTL_NO_ID)
		why_append_undeclared(c, j, t);
	if (p->tensor == CTL_NO_ID)
		why_append_unfinished(c, j, t);
	why_append_silent_agents(c, j, p, t);
	why_append_silent_servers(c, j, t);
	if (!late)
		why_append_networks(c, j, p, t);
	if (t->n)
		return;
	if (p->tensor == CTL_NO_ID)
		why_text_append(t, "job '%s' is running, and no missing worker is known", j->name);
	else if (sched_needed_round(j, p->tensor, p->round) < p->round)
		why_text_append(t, "no worker of another machine is too far behind round %llu",
			(unsigned long long)p->round);
	else
		why_text_append(t, "all workers have submitted round %llu; the sum is in progress",
			(unsigned long long)p->round);
}

void why_stuck_conditions(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, char ret[CTL_TEXT_MAX + 1])
{
	struct why_text t = {.n = 0};

	if (p)
		why_append_silent_agents(c, j, p, &t);
	why_append_undurable(c, &t);
	if (j->state == JOB_RUNNING)
		why_append_silent_servers(c, j, &t);
	memcpy(ret, t.s, t.n);
	ret[t.n] = 0;
}

/* ---- probes ---- */

static void send_why_answer(struct sched_core *c, uint32_t agent, uint32_t seq, const char *text)
{
	struct ctl_msg msg = {.type = CTL_WHY_TEXT, .why_text = {seq, text}};
	const struct sched_member *m = sched_member_by_id(c, agent);

	if (m)
		sched_send_message(c, m, &msg);
}

static void probe_free(struct sched_probe *p)
{
	while (p->details) {
		struct sched_probe *d = p->details;

		p->details = d->next;
		probe_free(d);
	}
	for (uint32_t i = 0; i < p->n_members; i++)
		free(p->texts[i]);
	free(p->texts);
	free(p->steps);
	free(p->has_answered);
	free(p->workers);
	free(p);
}

static struct sched_probe *probe_new(
	struct sched_core *c, const struct sched_job *j, uint32_t tensor, uint32_t bound_ms)
{
	struct sched_probe *p = sched_alloc(1, sizeof(*p));

	p->seq = ++c->probe_seq;
	p->job = j->id;
	p->tensor = tensor;
	p->bound_ms = bound_ms;
	p->deadline_ns = c->now_ns + bound_ms * NS_PER_MS;
	p->n_members = j->n_members;
	p->has_answered = sched_alloc(j->n_members, sizeof(bool));
	p->texts = sched_alloc(j->n_members, sizeof(char *));
	p->steps = sched_alloc(j->n_members, sizeof(*p->steps));
	p->next = c->probes;
	c->probes = p;
	c->n_probes++;
	sched_arm_deadline(c, p->deadline_ns);
	return p;
}

static void probe_send_requests(
	struct sched_core *c, const struct sched_job *j, struct sched_probe *p)
{
	struct ctl_msg msg = {.type = CTL_PROBE, .probe = {p->seq, j->id, p->tensor}};

	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		/* no answer is expected from a member that is gone */
		p->has_answered[i] = j->members[i].is_gone;
		if (!m->conn || j->members[i].is_gone || (p->parent && !p->parent->has_answered[i]))
			continue;
		p->n_open++;
		sched_send_message(c, m, &msg);
	}
	if (!p->n_open)
		sched_arm_deadline(c, p->deadline_ns = c->now_ns);
}

/* Return the worker whose call has waited longest for a tensor that is not among the n tensors in
 * `asked`. If no call waits for one, return the worker whose round has been in flight longest.
 * NULL: there is no such worker. */
static const struct ctl_report_worker *next_longest_waiter(
	const struct sched_probe *p, const uint32_t *asked, uint32_t n)
{
	const struct ctl_report_worker *best = NULL;

	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;
		bool is_asked = w->oldest_tensor == CTL_NO_ID;

		for (uint32_t k = 0; k < n && !is_asked; k++)
			is_asked = asked[k] == w->oldest_tensor;
		if (!is_asked && (!best || w->is_waiting > best->is_waiting ||
					 (w->is_waiting == best->is_waiting &&
						 w->oldest_ms > best->oldest_ms)))
			best = w;
	}
	return best;
}

/* Return one of the tensor's rounds for which workers wait. For a sum, return the earliest: a
 * worker that waits for a later round already has its result. For a value, return the latest: a
 * worker that is beyond its bound holds up a worker, whatever the others wait for. */
static uint64_t waited_round(
	const struct sched_job *j, const struct sched_probe *p, uint32_t tensor)
{
	bool is_value = tensor < j->n_placed && j->placed[tensor]->shape.mode == MODE_VALUE;
	uint64_t round = is_value ? 0 : UINT64_MAX;

	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct ctl_report_worker *w = &p->workers[i].w;

		if (w->oldest_tensor != tensor)
			continue;
		if (is_value ? w->oldest_round > round : w->oldest_round < round)
			round = w->oldest_round;
	}
	return round;
}

/* Start the second step of a status probe: ask about the tensors whose waiting calls have waited
 * longest. Returns whether there are answers to wait for. */
static bool probe_start_details(struct sched_core *c, struct sched_probe *p)
{
	const struct sched_job *j = sched_job_by_id(c, p->job);
	uint32_t asked[SCHED_DETAILS_MAX], n = 0;

	if (p->asker || p->parent || p->deadline_ns == UINT64_MAX || !j)
		return false;
	while (n < SCHED_DETAILS_MAX && c->n_probes < SCHED_PROBES_MAX) {
		const struct ctl_report_worker *w = next_longest_waiter(p, asked, n);
		struct sched_probe *d;

		if (!w)
			break;
		d = probe_new(c, j, w->oldest_tensor, c->cfg.probe_ms / 4);
		d->round = waited_round(j, p, w->oldest_tensor);
		d->parent = p;
		asked[n++] = w->oldest_tensor;
		p->n_details_open++;
		probe_send_requests(c, j, d);
	}
	if (n) {
		/* The probe p now ends when all probes of the second step have ended. Late answers
		 * to the first step do not end p. */
		p->n_open = 0;
		p->deadline_ns = UINT64_MAX;
	}
	return n > 0;
}

static void probe_unlink(struct sched_core *c, struct sched_probe *p)
{
	for (struct sched_probe **at = &c->probes; *at; at = &(*at)->next) {
		if (*at == p) {
			*at = p->next;
			break;
		}
	}
	c->n_probes--;
}

/* Report an event when a call has ended because a worker did not submit the call's tensor in time.
 * The event names the worker. Each round is reported once. */
static void probe_report_stalled_worker(
	struct sched_core *c, struct sched_job *j, const struct sched_probe *p)
{
	const struct sched_tensor *tensor = p->tensor < j->n_placed ? j->placed[p->tensor] : NULL;
	char title[TENSOR_TITLE_BYTES];

	if (!tensor || (j->stalled_tensor == p->tensor && j->stalled_round == p->round))
		return;
	for (uint32_t i = 0; i < p->n_workers; i++) {
		const struct sched_probe_worker *w = &p->workers[i];

		if (w->w.submitted >= sched_needed_round(j, p->tensor, p->round) ||
			!w->w.is_attached || w->w.quiet_ms < STALLED_MS)
			continue;
		j->stalled_tensor = p->tensor;
		j->stalled_round = p->round;
		sched_report_event(c, EVENT_JOB,
			"job '%s': rank %u (host %s, pid %u) has stalled: it has not submitted "
			"%.100s, round %llu, for %.1f s",
			j->name, w->w.rank, sched_host_of_member(c, w->agent), w->w.pid,
			tensor_title(tensor->name, title), (unsigned long long)p->round,
			w->w.quiet_ms / 1e3);
		return;
	}
}

static void probe_send_answer(struct sched_core *c, struct sched_probe *p)
{
	struct sched_job *j = sched_job_by_id(c, p->job);
	struct why_text t = {.n = 0};

	if (j) {
		/* why_append_round also sorts p->workers, so that probe_report_stalled_worker
		 * reports the stalled worker that is furthest behind */
		why_append_round(c, j, p, &t);
		probe_report_stalled_worker(c, j, p);
	} else {
		why_text_append(&t, "the job has ended");
	}
	send_why_answer(c, p->asker, p->asker_seq, t.s);
}

static void probe_advance_or_end(struct sched_core *c, struct sched_probe *p)
{
	struct sched_probe *parent = p->parent;

	if (probe_start_details(c, p))
		return;
	probe_unlink(c, p);
	if (parent) {
		p->next = parent->details;
		parent->details = p;
		if (--parent->n_details_open == 0)
			probe_advance_or_end(c, parent);
		return;
	}
	if (p->asker)
		probe_send_answer(c, p);
	else if (p->is_own && sched_job_by_id(c, p->job))
		stalls_finish_probe(c, sched_job_by_id(c, p->job), p);
	else if (!p->is_own)
		c->env.probe_done(c->env.ctx, p->token, p);
	probe_free(p);
}

static bool has_room_for_probe(const struct sched_core *c, uint32_t agent)
{
	uint32_t n = 0;

	for (const struct sched_probe *p = c->probes; p; p = p->next)
		n += p->asker == agent && !p->is_own && !p->parent;
	return c->n_probes < SCHED_PROBES_MAX &&
	       n < (agent ? PROBES_PER_AGENT : SCHED_STATUS_PROBES);
}

void sched_receive_why(struct sched_core *c, struct sched_member *m, const struct ctl_why *msg)
{
	struct sched_job *j = sched_job_by_id(c, msg->job);
	struct sched_probe *p;
	struct why_text t = {.n = 0};

	if (!j) {
		sched_send_unknown_job(c, m, msg->job);
		return;
	}
	if (sched_send_evicted(c, m, j))
		return;
	if (sched_job_member(j, m->id) == CTL_NO_ID) {
		sched_member_disconnect(c, m, "sent WHY for a job to which it does not belong");
		return;
	}
	if (j->state == JOB_FORMING) {
		why_append_forming(c, j, &t);
		send_why_answer(c, m->id, msg->seq, t.s);
		return;
	}
	if (c->is_undurable && j->is_dirty && msg->tensor == CTL_NO_ID) {
		why_text_append(&t,
			"the scheduler cannot write its state, so job '%s' has to wait; see its "
			"log",
			j->name);
		send_why_answer(c, m->id, msg->seq, t.s);
		return;
	}
	if (!has_room_for_probe(c, m->id)) {
		send_why_answer(c, m->id, msg->seq, "too many requests at once, retry");
		return;
	}
	/* The time limit is short, because the trainer's call returns only after the answer to
	 * WHY. */
	p = probe_new(c, j, msg->tensor, c->cfg.probe_ms / 2);
	p->round = msg->round;
	p->asker = m->id;
	p->asker_seq = msg->seq;
	probe_send_requests(c, j, p);
}

int sched_probe_start(struct sched_core *c, uint32_t job, uint64_t token, uint64_t now_ns)
{
	struct sched_job *j = sched_job_by_id(c, job);
	struct sched_probe *p;

	c->now_ns = now_ns;
	if (!j || j->state != JOB_RUNNING)
		return BPS_ENOTFOUND;
	if (!has_room_for_probe(c, 0))
		return BPS_EBUSY;
	p = probe_new(c, j, CTL_NO_ID, c->cfg.probe_ms);
	p->token = token;
	probe_send_requests(c, j, p);
	return 0;
}

bool sched_probe_own(struct sched_core *c, struct sched_job *j)
{
	struct sched_probe *p;

	if (c->n_probes >= SCHED_PROBES_MAX)
		return false;
	p = probe_new(c, j, CTL_NO_ID, c->cfg.probe_ms);
	p->is_own = true;
	probe_send_requests(c, j, p);
	return true;
}

static void probe_add_workers(struct sched_probe *p, const struct sched_job *j, uint32_t agent,
	const struct ctl_report *msg)
{
	p->workers = realloc(p->workers, (p->n_workers + msg->n_workers + 1) * sizeof(*p->workers));
	if (!p->workers)
		abort();
	for (uint32_t i = 0; i < msg->n_workers; i++) {
		uint32_t rank = msg->workers[i].rank;

		if (rank < j->n_room && j->workers[rank].agent == agent)
			p->workers[p->n_workers++] =
				(struct sched_probe_worker){msg->workers[i], agent};
	}
}

void sched_receive_report(
	struct sched_core *c, struct sched_member *m, const struct ctl_report *msg)
{
	struct sched_probe *p = c->probes;
	const struct sched_job *j;
	uint32_t i;

	while (p && p->seq != msg->seq)
		p = p->next;
	j = p ? sched_job_by_id(c, p->job) : NULL;
	i = j ? sched_job_member(j, m->id) : CTL_NO_ID;
	if (i == CTL_NO_ID || i >= p->n_members || p->has_answered[i] ||
		msg->n_workers > j->members[i].n_ranks) {
		log_debug("ignored a late or unrequested REPORT from agent %s: seq=%u", m->name,
			msg->seq);
		return;
	}
	p->has_answered[i] = true;
	p->texts[i] = sched_dup_string(msg->text);
	p->steps[i] = msg->steps;
	probe_add_workers(p, j, m->id, msg);
	if (p->n_open && --p->n_open == 0)
		probe_advance_or_end(c, p);
}

void sched_probe_tick(struct sched_core *c)
{
	struct sched_probe *p = c->probes;

	while (p) {
		if (p->deadline_ns > c->now_ns) {
			sched_arm_deadline(c, p->deadline_ns);
			p = p->next;
			continue;
		}
		probe_advance_or_end(
			c, p); /* probe_advance_or_end may also free other probes, so begin again */
		p = c->probes;
	}
}

void sched_probe_free_all(struct sched_core *c)
{
	while (c->probes) {
		struct sched_probe *p = c->probes;

		c->probes = p->next;
		probe_free(p);
	}
}
