/* What it waits for, in words: for a trainer whose call timed out or failed, and for the scheduler
 * that asks on behalf of another machine's trainer or of bpsctl. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/agent.h"
#include "common/clock.h"

static void answer(struct trainer *t, uint32_t seq, int code, const char *text)
{
	struct local_msg m = {
		.type = LOCAL_TEXT, .seq = seq, .text = {.code = (uint32_t)-code, .text = text}};

	trainer_send(t, &m, NULL, 0);
}

static uint32_t ms_since(uint64_t then_ns, uint64_t now_ns)
{
	uint64_t ms = now_ns > then_ns ? (now_ns - then_ns) / 1000000 : 0;

	return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

/* Local ranks that keep a round waiting, up to what fits; returns their number. */
static unsigned local_culprits(const struct tensor *tensor, uint64_t round, char *buf, size_t room)
{
	const struct job *job = tensor->job;
	unsigned n = 0;
	size_t used = 0;

	for (uint32_t w = 0; w < job->n_workers; w++) {
		const struct tensor_worker *tw = &tensor->workers[w];
		const char *what =
			!tw->is_declared ? "has not declared it" : "has not submitted it";
		int len;

		if (tw->is_declared && tw->submitted >= round)
			continue;
		n++;
		if (used >= room)
			continue;
		len = snprintf(buf + used, room - used, "%srank %u (this host, pid %d) %s",
			used ? "; " : "", job->ranks[w],
			job->by_worker[w] ? (int)job->by_worker[w]->pid : 0, what);
		used += len > 0 ? (size_t)len : 0;
	}
	return n;
}

/* Append a clause to a sentence; what does not fit is cut. */
static void append(char *buf, size_t room, const char *clause)
{
	size_t used = strlen(buf);

	if (*clause && used + 3 < room)
		snprintf(buf + used, room - used, "%s%.*s", used ? "; " : "",
			(int)(room - used - 3), clause);
}

static void no_scheduler(const struct agent *a, char *buf, size_t room)
{
	snprintf(buf, room, "the scheduler at %s cannot be reached for %.1f s", a->cfg.scheduler,
		(double)member_down_ms(a->member) / 1000);
}

/* Ask the scheduler, which asks all machines of the job; what is known here goes along with its
 * answer. */
static void ask_scheduler(struct trainer *t, uint32_t seq, uint32_t tensor, uint64_t round)
{
	struct ctl_msg m = {.type = CTL_WHY};
	struct agent *a = t->agent;
	char text[CTL_TEXT_MAX + 1];

	m.why = (struct ctl_why){
		.seq = ++a->next_seq, .job = t->job->id, .tensor = tensor, .round = round};
	t->why_seq = m.why.seq;
	t->why_local_seq = seq;
	if (t->job->id != CTL_NO_ID && member_send(a->member, &m) == 0)
		return;
	t->why_seq = 0;
	no_scheduler(a, text, sizeof(text));
	append(text, sizeof(text), t->why_text);
	answer(t, seq, 0, text);
}

void why_ask(struct trainer *t, uint32_t seq, const struct local_why *w)
{
	struct job *job = t->job;
	struct tensor *tensor;

	if (!job)
		return;
	t->why_text[0] = '\0';
	tensor = w->tensor < t->n_tensors ? t->tensors[w->tensor] : NULL;
	if (!tensor && w->tensor != UINT32_MAX) {
		trainer_drop(t, true, "asks about a tensor that it has not declared");
		return;
	}
	if (tensor && tensor->failed) {
		answer(t, seq, tensor->failed, tensor->fail_text ? tensor->fail_text : "");
		return;
	}
	if (job->code < 0) {
		answer(t, seq, job->code, job->text);
		return;
	}
	if (!tensor) {
		ask_scheduler(t, seq, CTL_NO_ID, 0);
		return;
	}
	if (local_culprits(tensor, w->round, t->why_text, sizeof(t->why_text)) > 0 &&
		job->is_local) {
		answer(t, seq, 0, t->why_text);
		return;
	}
	if (job->core && !*t->why_text)
		agt_job_network(job->core, t->why_text, sizeof(t->why_text));
	ask_scheduler(t, seq, tensor->core ? agt_tensor_id(tensor->core) : CTL_NO_ID, w->round);
}

void why_on_text(struct agent *a, const struct ctl_why_text *m)
{
	char text[CTL_TEXT_MAX + 1] = "";
	struct trainer *t;

	TAILQ_FOREACH(t, &a->trainers, link)
	if (t->why_seq == m->seq && m->seq)
		break;
	if (!t)
		return;
	t->why_seq = 0;
	append(text, sizeof(text), m->text);
	append(text, sizeof(text), t->why_text);
	answer(t, t->why_local_seq, 0, text);
}

static void describe_worker(const struct job *job, uint32_t w, const struct ctl_probe *p,
	struct ctl_report_worker *r, uint64_t now)
{
	const struct trainer *t = job->by_worker[w];
	const struct tensor *tensor;
	uint64_t oldest_ns = UINT64_MAX;

	*r = (struct ctl_report_worker){.rank = job->ranks[w], .oldest_tensor = CTL_NO_ID};
	if (t) {
		r->is_attached = 1;
		r->pid = (uint32_t)t->pid;
		r->calls = t->calls;
		r->completed = t->completed;
		r->quiet_ms = ms_since(t->quiet_since_ns, now);
	}
	TAILQ_FOREACH(tensor, &job->tensors, link)
	{
		const struct tensor_worker *tw = &tensor->workers[w];
		uint32_t id = tensor->core ? agt_tensor_id(tensor->core) : CTL_NO_ID;
		uint64_t done = tensor->core ? agt_tensor_round(tensor->core) : 0;

		if (p->tensor != CTL_NO_ID && id == p->tensor)
			r->submitted = tw->submitted;
		if (tw->submitted > done && tw->since_ns < oldest_ns) {
			oldest_ns = tw->since_ns;
			r->oldest_tensor = id;
			r->oldest_round = tw->submitted;
			r->oldest_ms = ms_since(tw->since_ns, now);
		}
	}
}

void why_on_probe(struct agent *a, const struct ctl_probe *p)
{
	struct job *job = agent_job(a, p->job);
	char text[CTL_TEXT_MAX + 1] = "";
	struct ctl_msg m = {
		.type = CTL_REPORT, .report = {.seq = p->seq, .job = p->job, .text = text}};
	uint64_t now = clock_now_ns();
	struct trainer *t;
	uint32_t n = 0;

	if (!job)
		goto send;
	if (job->core)
		agt_job_network(job->core, text, sizeof(text));
	TAILQ_FOREACH(t, &job->trainers, of_job)
	n++;
	if (job->n_workers > n)
		n = job->n_workers;
	m.report.workers = calloc(n ? n : 1, sizeof(*m.report.workers));
	if (!m.report.workers)
		goto send;
	for (uint32_t w = 0; w < job->n_workers; w++)
		describe_worker(job, w, p, &m.report.workers[m.report.n_workers++], now);
	if (job->state == JOB_FORMING)
		TAILQ_FOREACH(t, &job->trainers, of_job)
	m.report.workers[m.report.n_workers++] = (struct ctl_report_worker){.rank = t->rank,
		.pid = (uint32_t)t->pid,
		.is_attached = 1,
		.oldest_tensor = CTL_NO_ID};
send:
	member_send(a->member, &m);
	free(m.report.workers);
}
