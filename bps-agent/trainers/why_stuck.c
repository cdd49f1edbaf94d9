/* Describes what a call waits for. A trainer requests the description when its call has timed out
 * or failed. The scheduler requests the description on behalf of a trainer on another machine, on
 * behalf of bpsctl, or if a job makes no progress. The functions read jobs and rounds, but do not
 * change them. Thread: the data thread. */
#include "bps-agent/trainers/why_stuck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/steps/job_steps.h"
#include "bps-agent/trainers/job_failure.h"
#include "bps-agent/trainers/tensor.h"
#include "bps-agent/trainers/trainer.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/wire/name_hash.h"

/* Time limit for the scheduler's answer to WHY. For half a second, the scheduler collects reports
 * of all agents of the job. The trainer's own limit, SESSION_WHY_MS, is a little longer than
 * WHY_NS. */
#define WHY_NS UINT64_C(700000000)
/* If a request names no tensor, the answer describes a tensor only if workers have waited for that
 * tensor longer than OLD_NS. */
#define OLD_NS UINT64_C(1000000000)
/* If other workers wait for a worker that has submitted nothing for this time, log the worker as
 * stalled. */
#define STALLED_MS 10000
/* An executor is described as hung after this time without progress. The agent reads the executor's
 * beat every second. */
#define STANDS_NS UINT64_C(3000000000)

static void answer_failure(
	struct trainer *t, uint32_t seq, int code, const char *text, const struct ctl_cause *cause)
{
	struct local_msg m = {.type = LOCAL_TEXT,
		.seq = seq,
		.text = {.code = (uint32_t)-code, .text = text, .cause = *cause}};

	trainer_send_message(t, &m, NULL, 0);
}

/* Answer a trainer whose call waits, but has not failed. */
static void why_answer_trainer(struct trainer *t, uint32_t seq, const char *text)
{
	answer_failure(t, seq, 0, text, &(struct ctl_cause){0, NULL});
}

static uint32_t elapsed_milliseconds(uint64_t then_ns, uint64_t now_ns)
{
	uint64_t ms = now_ns > then_ns ? (now_ns - then_ns) / 1000000 : 0;

	return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

/* Return a clause that describes how the worker delays the round; NULL: the worker does not delay
 * the round. */
static const char *worker_delay_clause(const struct tensor *tensor, uint32_t w, uint64_t round)
{
	const struct tensor_worker *tw = &tensor->workers[w];

	if (!tw->is_declared)
		return "has not declared it";
	if (tw->submitted < round)
		return "has not submitted it";
	return tensor->awaited_stream == w + 1
		       ? "has submitted it, but its GPU's stream has not reached it"
		       : NULL;
}

/* Write to buf which local ranks delay the round, and how. Names as many ranks as fit. Returns how
 * many ranks delay the round. */
static unsigned local_culprits(const struct tensor *tensor, uint64_t round, char *buf, size_t room)
{
	const struct job *job = tensor->job;
	unsigned n = 0;
	size_t used = 0;

	for (uint32_t w = 0; w < job->n_workers; w++) {
		const char *what = worker_delay_clause(tensor, w, round);
		const struct trainer *t = job->by_worker[w];
		char pid[24] = "gone";
		int len;

		if (!what)
			continue;
		n++;
		if (used >= room)
			continue;
		if (t)
			snprintf(pid, sizeof(pid), "pid %d", (int)t->pid);
		len = snprintf(buf + used, room - used, "%srank %u (this host, %s) %s",
			used ? "; " : "", job->ranks[w], pid, what);
		used += len > 0 ? (size_t)len : 0;
	}
	return n;
}

/* Append a clause to the text in buf. Separate the text and the clause by "; ". Cut off the part of
 * the clause that does not fit. */
static void text_append_clause(char *buf, size_t room, const char *clause)
{
	size_t used = strlen(buf);

	if (*clause && used + 3 < room)
		snprintf(buf + used, room - used, "%s%.*s", used ? "; " : "",
			(int)(room - used - 3), clause);
}

/* Return GPU_OPEN_WAITS if `worker` waits in bps_gpu_open. Return GPU_OPEN_MISSING if other workers
 * wait in bps_gpu_open for `worker`. *ret_ms: how long the wait has lasted. Returns GPU_OPEN_NONE
 * after a restart of the agent, because no record states which workers have requested the executor.
 */
static enum ctl_gpu_open executor_opening(const struct job *job, uint32_t worker, uint32_t *ret_ms)
{
	const struct trainer *t = job->by_worker[worker];
	const struct executor_link *g = job->executor;
	bool is_any = false;

	for (uint32_t w = 0; w < job->n_workers; w++)
		is_any |= job->by_worker[w] && job->by_worker[w]->has_asked_device;
	if (!t || !g || !is_any || g->is_adopted ||
		(g->state != EXECUTOR_STARTING && g->state != EXECUTOR_MEETING))
		return GPU_OPEN_NONE;
	*ret_ms = (uint32_t)((clock_now_ns() - g->asked_ns) / 1000000);
	return t->has_asked_device ? GPU_OPEN_WAITS : GPU_OPEN_MISSING;
}

/* Return for how many ns the executor has made no progress. 0: this time is less than STANDS_NS, or
 * no executor runs. */
static uint64_t executor_stands_ns(const struct executor_link *g, uint64_t now_ns)
{
	if (!g || g->state == EXECUTOR_OVER || now_ns - g->beat_at_ns < STANDS_NS)
		return 0;
	return now_ns - g->beat_at_ns;
}

/* If some workers of this machine wait in bps_gpu_open, append to buf a list of the workers that
 * have not called bps_gpu_open. */
static void append_gpu_open_missing(const struct job *job, char *buf, size_t room)
{
	char text[128];
	uint32_t ms;

	for (uint32_t w = 0; w < job->n_workers; w++) {
		if (executor_opening(job, w, &ms) != GPU_OPEN_MISSING)
			continue;
		snprintf(text, sizeof(text),
			"rank %u (this host, pid %d) has not called bps_gpu_open", job->ranks[w],
			(int)job->by_worker[w]->pid);
		text_append_clause(buf, room, text);
	}
}

/* If the executor has made no progress for STANDS_NS, append this fact to buf. The agent kills an
 * executor that makes no progress for much longer. */
static void append_executor_hang(const struct job *job, uint64_t now, char *buf, size_t room)
{
	uint64_t ns = executor_stands_ns(job->executor, now);
	char text[128];

	if (!ns)
		return;
	snprintf(text, sizeof(text),
		"the executor of its GPUs (this host, pid %d) has made no progress for %.0f s",
		(int)job->executor->pid, (double)ns / 1e9);
	text_append_clause(buf, room, text);
}

static void format_scheduler_down(const struct agent *a, char *buf, size_t room)
{
	snprintf(buf, room, "the scheduler at %s has been unreachable for %.1f s", a->cfg.scheduler,
		(double)member_down_ms(a->member) / 1000);
}

/* Send WHY to the scheduler, which collects reports of all machines of the job. When the scheduler
 * answers, why_stuck_on_text adds the local findings. */
static void why_request_scheduler(struct trainer *t, uint32_t seq, uint32_t tensor, uint64_t round)
{
	struct ctl_msg m = {.type = CTL_WHY};
	struct agent *a = t->agent;
	char text[CTL_TEXT_MAX + 1];

	m.why = (struct ctl_why){
		.seq = ++a->next_seq, .job = t->job->id, .tensor = tensor, .round = round};
	t->why_seq = m.why.seq;
	t->why_local_seq = seq;
	t->why_due_ns = clock_now_ns() + WHY_NS;
	if (!a->why_due_ns || t->why_due_ns < a->why_due_ns)
		a->why_due_ns = t->why_due_ns;
	if (t->job->id != CTL_NO_ID && member_send(a->member, &m) == 0)
		return;
	t->why_seq = 0;
	format_scheduler_down(a, text, sizeof(text));
	text_append_clause(text, sizeof(text), t->why_text);
	why_answer_trainer(t, seq, text);
}

uint64_t why_stuck_tick(struct agent *a, uint64_t now_ns)
{
	char text[CTL_TEXT_MAX + 1];
	struct trainer *t;

	if (!a->why_due_ns)
		return UINT64_MAX;
	if (now_ns < a->why_due_ns)
		return a->why_due_ns;
	a->why_due_ns = 0;
	TAILQ_FOREACH (t, &a->trainers, link) {
		if (!t->why_seq)
			continue;
		if (now_ns < t->why_due_ns) {
			if (!a->why_due_ns || t->why_due_ns < a->why_due_ns)
				a->why_due_ns = t->why_due_ns;
			continue;
		}
		t->why_seq = 0;
		snprintf(text, sizeof(text), "the scheduler at %s does not answer",
			a->cfg.scheduler);
		text_append_clause(text, sizeof(text), t->why_text);
		why_answer_trainer(t, t->why_local_seq, text);
	}
	return a->why_due_ns ? a->why_due_ns : UINT64_MAX;
}

/* Append to buf which partition of the tensor has waited longest, and for what. */
static void append_partition_stall(
	const struct agent *a, const struct agt_tensor *t, char *buf, size_t room)
{
	static const char *const what[] = {[AGT_STALL_NOWHERE] = "has no server",
		[AGT_STALL_LINK] = "waits for a connection to",
		[AGT_STALL_QUEUE] = "waits for its turn to be sent to",
		[AGT_STALL_SENT] = "was sent, and waits for other machines' parts at",
		[AGT_STALL_READ] = "is summed and is still being read from",
		[AGT_STALL_DEVICE] = "has not arrived from the GPUs"};
	char where[2 * CTL_NAME_MAX + 32] = "", span[32] = "", text[CTL_TEXT_MAX + 1];
	struct member_peer peer;
	struct agt_stall s;

	if (!agt_tensor_find_stall(t, &s))
		return;
	if (s.server && member_find_peer(a->member, s.server, &peer) == 0)
		snprintf(where, sizeof(where), " server %s (host %s)", peer.name, peer.host);
	else if (s.server)
		snprintf(where, sizeof(where), " server %u", s.server);
	if (s.ns)
		snprintf(span, sizeof(span), ", for %.1f s", (double)s.ns / 1e9);
	snprintf(text, sizeof(text), "%u of %u partitions have no sum yet; partition %u %s%s%s",
		s.n_open, s.n_parts, s.part, what[s.kind], where, span);
	text_append_clause(buf, room, text);
}

static void why_answer_about_job(struct trainer *t, uint32_t seq, bool is_gpu_open)
{
	if (is_gpu_open) {
		append_gpu_open_missing(t->job, t->why_text, sizeof(t->why_text));
		t->has_asked_device = false;
	}
	if (*t->why_text)
		why_answer_trainer(t, seq, t->why_text);
	else
		why_request_scheduler(t, seq, CTL_NO_ID, 0);
}

static void why_answer_tensor_query(
	struct trainer *t, uint32_t seq, const struct tensor *tensor, uint64_t round)
{
	char network[CTL_TEXT_MAX + 1];
	struct job *job = t->job;

	if (local_culprits(tensor, round, t->why_text, sizeof(t->why_text)) > 0 && job->is_local) {
		why_answer_trainer(t, seq, t->why_text);
		return;
	}
	if (job->core && !*t->why_text) {
		agt_job_describe_waits(job->core, network, sizeof(network));
		if (tensor->core)
			append_partition_stall(
				t->agent, tensor->core, t->why_text, sizeof(t->why_text));
		append_executor_hang(job, clock_now_ns(), t->why_text, sizeof(t->why_text));
		text_append_clause(t->why_text, sizeof(t->why_text), network);
	}
	why_request_scheduler(t, seq, tensor->core ? agt_tensor_id(tensor->core) : CTL_NO_ID,
		tensor->core ? round - agt_tensor_base(tensor->core) : round);
}

void why_stuck_accept_request(struct trainer *t, uint32_t seq, const struct local_why *w)
{
	struct job *job = t->job;
	struct ctl_cause cause;
	struct err_text over;
	struct tensor *tensor;

	if (!job)
		return;
	t->why_text[0] = '\0';
	tensor = w->tensor < t->n_tensors ? t->tensors[w->tensor] : NULL;
	if (!tensor && w->tensor != UINT32_MAX)
		trainer_disconnect(t, true, "WHY names a tensor that the trainer has not declared");
	else if (tensor && tensor->failed)
		answer_failure(t, seq, tensor->failed, tensor->fail_text ? tensor->fail_text : "",
			&(struct ctl_cause){tensor->cause_rank, tensor->cause_host});
	else if (job->code < 0)
		answer_failure(t, seq, job_reason_of_end(t, &over, &cause), over.s, &cause);
	else if (tensor)
		why_answer_tensor_query(t, seq, tensor, w->round);
	else if (t->is_waiting)
		why_answer_trainer(t, seq,
			"the job runs already, and admits new workers only when all its workers "
			"wait in bps_checkpoint_barrier");
	else
		why_answer_about_job(t, seq, w->round == LOCAL_WHY_GPU_OPEN);
}

void why_stuck_on_text(struct agent *a, const struct ctl_why_text *m)
{
	char text[CTL_TEXT_MAX + 1] = "", ours[CTL_NAME_MAX + 16];
	struct trainer *t;

	snprintf(ours, sizeof(ours), "host %s: ", a->cfg.host);
	TAILQ_FOREACH (t, &a->trainers, link)
		if (t->why_seq == m->seq && m->seq)
			break;
	if (!t)
		return;
	t->why_seq = 0;
	text_append_clause(text, sizeof(text), m->text);
	/* If the scheduler's text contains `ours`, it already contains this agent's report. */
	if (!strstr(m->text, ours))
		text_append_clause(text, sizeof(text), t->why_text);
	why_answer_trainer(t, t->why_local_seq, text);
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
		r->quiet_ms = elapsed_milliseconds(t->quiet_since_ns, now);
	}
	r->gpu_open = (uint8_t)executor_opening(job, w, &r->gpu_open_ms);
	TAILQ_FOREACH (tensor, &job->tensors, link) {
		const struct tensor_worker *tw = &tensor->workers[w];
		uint32_t id = tensor->core ? agt_tensor_id(tensor->core) : CTL_NO_ID;
		uint64_t done = tensor->core ? agt_tensor_round(tensor->core) : 0;
		uint64_t base = tensor->core ? agt_tensor_base(tensor->core) : 0;
		bool is_awaited;

		if (p->tensor != CTL_NO_ID && id == p->tensor)
			r->submitted = tw->submitted - base;
		if (tensor->failed || tw->submitted <= done)
			continue;
		is_awaited = tensor_is_awaited(tensor, w);
		if (is_awaited == r->is_waiting ? tw->since_ns >= oldest_ns : r->is_waiting)
			continue;
		oldest_ns = tw->since_ns;
		r->oldest_tensor = id;
		r->oldest_name = name_hash(tensor->name);
		r->oldest_round = tw->submitted - base;
		r->oldest_ms = elapsed_milliseconds(tw->since_ns, now);
		r->is_waiting = is_awaited;
	}
}

/* Return the time at which the worker that has waited longest for the tensor's sum began to wait;
 * UINT64_MAX: no worker waits. */
static uint64_t waited_since_ns(const struct tensor *tensor)
{
	uint64_t done = tensor->core ? agt_tensor_round(tensor->core) : 0, since_ns = UINT64_MAX;

	for (uint32_t w = 0; w < tensor->job->n_workers; w++) {
		const struct tensor_worker *tw = &tensor->workers[w];

		if (tw->submitted > done && tw->since_ns < since_ns)
			since_ns = tw->since_ns;
	}
	return since_ns;
}

/* Append to buf what one tensor waits for. asked: the tensor's id. If asked is CTL_NO_ID, describe
 * the tensor for which workers have waited longest, if they have waited longer than OLD_NS. */
static void append_tensor_wait(const struct agent *a, const struct job *job, uint32_t asked,
	uint64_t now, char *buf, size_t room)
{
	const struct tensor *tensor, *oldest = NULL;
	uint64_t since_ns = now - OLD_NS, ns;

	TAILQ_FOREACH (tensor, &job->tensors, link) {
		if (!tensor->core)
			continue;
		ns = asked == CTL_NO_ID                     ? waited_since_ns(tensor)
		     : agt_tensor_id(tensor->core) == asked ? 0
							    : UINT64_MAX;
		if (ns >= since_ns)
			continue;
		since_ns = ns;
		oldest = tensor;
	}
	if (oldest && oldest->kind->has_streams)
		local_culprits(oldest, agt_tensor_round(oldest->core) + 1, buf, room);
	if (oldest)
		append_partition_stall(a, oldest->core, buf, room);
}

/* If the probe names a tensor, a call waits for that tensor. In this case, log each local worker
 * that waits for no tensor and has submitted no round of any tensor for STALLED_MS. */
static void log_stalled_workers(const struct job *job, const struct ctl_probe *p,
	const struct ctl_report_worker *r, uint32_t n)
{
	const struct tensor *tensor;

	TAILQ_FOREACH (tensor, &job->tensors, link)
		if (tensor->core && agt_tensor_id(tensor->core) == p->tensor)
			break;
	for (uint32_t i = 0; i < n && p->tensor != CTL_NO_ID; i++)
		if (r[i].is_attached && r[i].oldest_tensor == CTL_NO_ID &&
			r[i].quiet_ms >= STALLED_MS)
			log_rated(LOG_AS(LOG_WARN, TRAINER_STALLED),
				"a trainer makes no progress while others wait for it: job=%s "
				"rank=%u pid=%u tensor=%s submitted_round=%llu quiet=%.1fs",
				job->name, r[i].rank, r[i].pid, tensor ? tensor->name : "?",
				(unsigned long long)r[i].submitted, r[i].quiet_ms / 1e3);
}

void why_stuck_describe(const struct agent *a, const struct job *job, uint32_t tensor,
	uint64_t now_ns, char *buf, size_t room)
{
	char network[CTL_TEXT_MAX + 1];

	if (!job->core)
		return;
	agt_job_describe_waits(job->core, network, sizeof(network));
	append_tensor_wait(a, job, tensor, now_ns, buf, room);
	append_gpu_open_missing(job, buf, room);
	append_executor_hang(job, now_ns, buf, room);
	text_append_clause(buf, room, network);
}

void why_stuck_on_probe(struct agent *a, const struct ctl_probe *p)
{
	struct job *job = job_find(a, p->job);
	char text[CTL_TEXT_MAX + 1] = "";
	struct ctl_msg m = {
		.type = CTL_REPORT, .report = {.seq = p->seq, .job = p->job, .text = text}};
	uint64_t now = clock_now_ns();
	struct trainer *t;
	uint32_t n = 0;

	if (!job)
		goto send;
	why_stuck_describe(a, job, p->tensor, now, text, sizeof(text));
	job_steps_report(job, &m.report.steps);
	TAILQ_FOREACH (t, &job->trainers, of_job)
		n++;
	if (job->n_workers > n)
		n = job->n_workers;
	m.report.workers = calloc(n ? n : 1, sizeof(*m.report.workers));
	if (!m.report.workers)
		goto send;
	for (uint32_t w = 0; w < job->n_workers; w++)
		describe_worker(job, w, p, &m.report.workers[m.report.n_workers++], now);
	log_stalled_workers(job, p, m.report.workers, m.report.n_workers);
	if (job->state == JOB_FORMING)
		TAILQ_FOREACH (t, &job->trainers, of_job)
			m.report.workers[m.report.n_workers++] =
				(struct ctl_report_worker){.rank = t->rank,
					.pid = (uint32_t)t->pid,
					.is_attached = 1,
					.oldest_tensor = CTL_NO_ID};
send:
	member_send(a->member, &m);
	free(m.report.workers);
}
