/* Handles the messages about workers: JOIN, WORKER (a worker finished, was lost, or waits at a
 * barrier) and FAIL. When the workers of a job have joined, this file starts the job.
 * core/elastic.c lets more workers into a running job, and core/job_end.c ends jobs. All functions
 * run on the core's thread. */
#include "bps-scheduler/core/workers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/admission.h"
#include "bps-scheduler/core/commit.h"
#include "bps-scheduler/core/elastic.h"
#include "bps-scheduler/core/job_end.h"
#include "bps-scheduler/core/stalls.h"
#include "bps-scheduler/model/compare.h"
#include "common/base/log.h"

static const struct sched_worker *job_worker_or_null(const struct sched_job *j, uint32_t rank)
{
	return rank < j->n_room ? &j->workers[rank] : NULL;
}

/* Remove a worker from a forming job. If the worker was the last one on its machine, remove the
 * machine too. */
static void job_detach_worker(struct sched_job *j, uint32_t rank)
{
	uint32_t i = sched_job_member(j, j->workers[rank].agent);

	j->workers[rank] = (struct sched_worker){.state = WORKER_ABSENT};
	j->n_joined--;
	if (rank < j->next_free_rank)
		j->next_free_rank = rank;
	if (--j->members[i].n_ranks == 0)
		j->members[i] = j->members[--j->n_members];
}

static uint32_t take_free_rank(struct sched_job *j)
{
	uint32_t r = j->next_free_rank;

	while (r < j->n_room && j->workers[r].state != WORKER_ABSENT)
		r++;
	j->next_free_rank = r;
	return r;
}

static const struct sched_worker *first_joined_worker(const struct sched_job *j, uint32_t *ret_rank)
{
	for (uint32_t r = 0; r < j->n_room; r++) {
		if (j->workers[r].state != WORKER_ABSENT) {
			*ret_rank = r;
			return &j->workers[r];
		}
	}
	return NULL;
}

/* ---- JOIN ---- */

struct join_request {
	struct sched_core *c;
	struct sched_member *m;
	const struct ctl_join *msg;
};

static void send_joined_answer(const struct join_request *in, uint32_t job, uint32_t rank)
{
	struct ctl_msg msg = {.type = CTL_JOINED, .joined = {in->msg->seq, 0, "", job, rank}};

	sched_send_message(in->c, in->m, &msg);
}

static void join_refuse(const struct join_request *in, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void join_refuse(const struct join_request *in, int code, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX + 1];
	struct ctl_msg msg = {.type = CTL_JOINED,
		.joined = {in->msg->seq, (uint32_t)-code, text, CTL_NO_ID, CTL_NO_ID}};

	format_arguments(text, fmt);
	log_limited(LOG_AS(LOG_INFO, WORKER_REFUSED), "worker refused: %s agent=%s pid=%u", text,
		in->m->name, in->msg->pid);
	sched_send_message(in->c, in->m, &msg);
}

/* Return whether w is the worker of this JOIN. One process may join twice, as two workers. Only the
 * sequence numbers (`seq`) of the two JOIN messages differ. */
static bool is_same_worker(const struct join_request *in, const struct sched_worker *w)
{
	return w->state != WORKER_ABSENT && w->agent == in->m->id && w->pid == in->msg->pid &&
	       w->seq == in->msg->seq;
}

/* Return the rank that the worker of a repeated JOIN already has. CTL_NO_ID: the JOIN is not a
 * repetition. */
static uint32_t join_find_repeated(const struct join_request *in, const struct sched_job *j)
{
	const struct sched_worker *w;

	if (in->msg->rank != CTL_NO_ID) {
		w = job_worker_or_null(j, in->msg->rank);
		return w && is_same_worker(in, w) ? in->msg->rank : CTL_NO_ID;
	}
	for (uint32_t r = 0; r < j->n_room; r++) {
		w = &j->workers[r];
		if (is_same_worker(in, w))
			return r;
	}
	return CTL_NO_ID;
}

static bool join_request_is_valid(const struct join_request *in)
{
	const struct ctl_join *q = in->msg;
	uint32_t most = q->flags & JOB_ELASTIC ? q->max_size : q->size;

	if (!q->job[0])
		join_refuse(in, -EINVAL, "the name of the job is empty");
	else if (!q->size || q->size > CTL_WORKERS_MAX)
		join_refuse(in, -EINVAL,
			"job '%s': %u workers requested, but only 1 to %u are possible", q->job,
			q->size, CTL_WORKERS_MAX);
	else if (q->flags & JOB_ELASTIC && !(q->flags & JOB_SHRINK))
		join_refuse(in, -EINVAL, "job '%s': an elastic job must be able to shrink", q->job);
	else if (q->flags & JOB_ELASTIC && (q->max_size < q->size || q->max_size > CTL_WORKERS_MAX))
		join_refuse(in, -EINVAL,
			"job '%s' has %u workers: the largest number of workers must be from %u "
			"to %u, not %u",
			q->job, q->size, q->size, CTL_WORKERS_MAX, q->max_size);
	else if (q->rank != CTL_NO_ID && q->rank >= most)
		join_refuse(in, -EINVAL, "job '%s': rank %u is too large for at most %u workers",
			q->job, q->rank, most);
	else if (q->flags & ~(uint32_t)JOB_FLAGS_KNOWN)
		join_refuse(in, BPS_EVERSION,
			"job '%s': the scheduler does not support the option flags %#x", q->job,
			q->flags & ~(uint32_t)JOB_FLAGS_KNOWN);
	else if (q->backup && q->flags & JOB_DETERMINISTIC)
		join_refuse(in, -EINVAL,
			"job '%s': deterministic sums wait for all machines, but rounds with "
			"backup machines do not: choose one of the two",
			q->job);
	else if (q->token.bytes && q->token.bytes != CTL_TOKEN_BYTES)
		join_refuse(in, -EINVAL, "job '%s': the job token has a wrong length of %u bytes",
			q->job, q->token.bytes);
	else if (in->c->is_undurable)
		join_refuse(in, BPS_ENOTDURABLE,
			"the scheduler cannot write its state and accepts no workers; see its log");
	else
		return true;
	return false;
}

/* Check that the worker requests the options that the job has. If not, refuse the worker. The error
 * names a worker that has already joined. */
static bool join_has_same_options(const struct join_request *in, const struct sched_job *j)
{
	const struct ctl_join *q = in->msg;
	bool is_elastic = q->flags & JOB_ELASTIC;
	const struct {
		const char *what;
		uint32_t theirs, ours;
	} options[] = {
		{"workers", j->size, q->size},
		{"option flags", j->flags, q->flags},
		{"partition bytes", j->part_bytes, q->part_bytes},
		{"backup machines", j->backup, q->backup},
		{"workers at most", j->max_size, is_elastic ? q->max_size : j->max_size},
		{"ms of grace for late machines", j->grace_ms, q->grace_ms},
	};
	uint32_t rank = 0;
	const struct sched_worker *w = first_joined_worker(j, &rank);

	for (size_t i = 0; w && i < sizeof(options) / sizeof(options[0]); i++) {
		if (options[i].theirs == options[i].ours)
			continue;
		join_refuse(in, BPS_EMISMATCH,
			"job '%s': rank %u (host %s, pid %u) requested %u %s, but this worker "
			"(host %s, pid %u) requests %u",
			j->name, rank, sched_host_of_member(in->c, w->agent), w->pid,
			options[i].theirs, options[i].what, in->m->host, q->pid, options[i].ours);
		return false;
	}
	return true;
}

static bool join_has_room(const struct join_request *in, const struct sched_job *j, uint32_t rank)
{
	const struct sched_worker *w = job_worker_or_null(j, rank);

	if (rank >= sched_rank_bound(j))
		join_refuse(in, BPS_EDUP, "job '%s' already has all its %u workers", j->name,
			sched_rank_bound(j));
	else if (w && w->state != WORKER_ABSENT)
		join_refuse(in, BPS_EDUP,
			"rank %u of job '%s' is already taken by pid %u on host %s", rank, j->name,
			w->pid, sched_host_of_member(in->c, w->agent));
	else if (j->n_members >= WIRE_MEMBERS_MAX && sched_job_member(j, in->m->id) == CTL_NO_ID)
		join_refuse(in, BPS_EQUOTA, "job '%s' spans %u machines, which is the limit",
			j->name, WIRE_MEMBERS_MAX);
	else
		return true;
	return false;
}

static struct sched_job *job_begin_forming(const struct join_request *in)
{
	struct sched_core *c = in->c;
	struct err_text err;
	struct sched_job *j;
	uint32_t id;
	int rc = admission_check_job(c, in->msg->uid, &err);

	if (rc < 0) {
		join_refuse(in, rc, "job '%s': %s", in->msg->job, err.s);
		return NULL;
	}
	id = sched_job_id_take(c);
	if (id == CTL_NO_ID) {
		join_refuse(
			in, BPS_ENOTDURABLE, "the scheduler cannot write its state; see its log");
		return NULL;
	}
	j = sched_job_new(id, in->msg->uid, in->msg->job, in->msg->size);
	j->flags = in->msg->flags;
	j->part_bytes = in->msg->part_bytes;
	j->backup = in->msg->backup;
	j->grace_ms = in->msg->grace_ms;
	j->max_size = in->msg->flags & JOB_ELASTIC ? in->msg->max_size : 0;
	j->has_token = in->msg->token.bytes == CTL_TOKEN_BYTES;
	if (j->has_token)
		memcpy(j->token, in->msg->token.data, CTL_TOKEN_BYTES);
	j->since_ns = c->now_ns;
	sched_job_link(c, j);
	sched_report_event(c, EVENT_JOB, "job '%s' (%u worker%s, uid %u) begins to form", j->name,
		j->size, plural_suffix_of(j->size), j->uid);
	return j;
}

static int compare_by_low_rank(const void *a, const void *b)
{
	uint32_t x = ((const struct sched_job_member *)a)->low_rank;
	uint32_t y = ((const struct sched_job_member *)b)->low_rank;

	return compare_u64(x, y);
}

/* Number the members in the order of their lowest ranks. Workers may leave while a job forms, so
 * the lowest rank of each member is known only when the job starts. */
static void number_members(struct sched_job *j)
{
	for (uint32_t i = 0; i < j->n_members; i++)
		j->members[i].low_rank = CTL_NO_ID;
	for (uint32_t r = j->n_room; r-- > 0;)
		if (j->workers[r].state != WORKER_ABSENT)
			j->members[sched_job_member(j, j->workers[r].agent)].low_rank = r;
	qsort(j->members, j->n_members, sizeof(*j->members), compare_by_low_rank);
}

static void job_start_running(struct sched_core *c, struct sched_job *j)
{
	number_members(j);
	sched_job_set_state(c, j, JOB_RUNNING, "all workers have joined");
	j->view = j->formed = sched_open_transaction_view(c);
	for (uint32_t i = 0; i < j->n_members; i++)
		j->members[i].since = j->formed;
	j->is_changed = true;
	sched_job_dirty(c, j);
}

/* Return whether a forming job can start. A job of fixed size needs all its workers. An elastic job
 * needs `size` workers, and all workers of each of its machines. */
static bool can_forming_job_start(const struct sched_job *j)
{
	if (!j->max_size)
		return j->n_joined == j->size;
	for (uint32_t i = 0; i < j->n_members; i++)
		if (j->members[i].n_ranks < j->members[i].local_size)
			return false;
	return j->n_joined >= j->size;
}

/* Answer a repeated JOIN with JOINED, then JOB and PLAN if the job runs. JOINED must come first,
 * because an agent cannot interpret JOB before it knows its ranks. */
static void join_answer_repeated(const struct join_request *in, struct sched_job *j, uint32_t rank)
{
	if (j->state == JOB_RUNNING && in->c->is_undurable) {
		sched_member_disconnect(in->c, in->m, "the job is not durable yet");
		return;
	}
	send_joined_answer(in, j->id, rank);
	if (j->state != JOB_RUNNING)
		return;
	sched_send_job(in->c, in->m, j);
	sched_send_plan(in->c, in->m, j, true);
}

void sched_receive_join(struct sched_core *c, struct sched_member *m, const struct ctl_join *msg)
{
	struct join_request in = {c, m, msg};
	struct err_text err;
	struct sched_job *j = NULL;
	int rc = admission_find_job(c, msg, &j, &err);
	uint32_t rank = j ? join_find_repeated(&in, j) : CTL_NO_ID;

	if (rank != CTL_NO_ID && j->workers[rank].state == WORKER_GONE) {
		join_refuse(&in, BPS_EEVICTED, "job '%s' went on without this machine", j->name);
		return;
	}
	if (rank != CTL_NO_ID) {
		join_answer_repeated(&in, j, rank);
		return;
	}
	if (!join_request_is_valid(&in))
		return;
	if (rc < 0) {
		join_refuse(&in, rc, "%s", err.s);
		return;
	}
	if (m->is_drained && (!j || sched_job_member(j, m->id) == CTL_NO_ID)) {
		join_refuse(&in, BPS_EDRAINED,
			"job '%s': agent %s (host %s) is drained and accepts no new jobs%s%s (by "
			"%s)",
			msg->job, m->name, m->host, *m->drain_reason ? ": " : "", m->drain_reason,
			m->drain_who);
		return;
	}
	if (!j && !(j = job_begin_forming(&in)))
		return;
	if (!join_has_same_options(&in, j))
		return;
	if (j->state == JOB_RUNNING && j->flags & JOB_ELASTIC) {
		rc = sched_newcomer(c, m, j, msg, &err);
		if (rc == 0)
			send_joined_answer(&in, CTL_NO_ID, CTL_NO_ID);
		else
			join_refuse(&in, rc, "%s", err.s);
		return;
	}
	rank = msg->rank == CTL_NO_ID ? take_free_rank(j) : msg->rank;
	if (!join_has_room(&in, j, rank))
		return;
	sched_job_attach(j, rank, m->id, msg->pid, msg->seq);
	send_joined_answer(&in, j->id, rank);
	j->members[sched_job_member(j, m->id)].local_size = msg->local_size;
	if (can_forming_job_start(j))
		job_start_running(c, j);
}

/* ---- workers' ends ---- */

/* Remove a forming job whose last worker has left. */
static void forming_job_remove(struct sched_core *c, struct sched_job *j)
{
	sched_report_event(c, EVENT_JOB,
		"job '%s' (%u worker%s, uid %u): all workers left before the job had formed",
		j->name, j->size, plural_suffix_of(j->size), j->uid);
	sched_job_unlink(c, j);
	sched_job_free(c, j);
}

static void forming_worker_remove(struct sched_core *c, struct sched_job *j, uint32_t rank)
{
	log_limited(LOG_INFO, "rank %u left before the job had formed: job='%s' id=%u", rank,
		j->name, j->id);
	job_detach_worker(j, rank);
	if (!j->n_joined)
		forming_job_remove(c, j);
}

static void worker_finished(struct sched_core *c, struct sched_job *j, struct sched_worker *w)
{
	if (w->state == WORKER_DONE)
		return;
	w->state = WORKER_DONE;
	w->done_seq = c->probe_seq;
	j->n_done++;
	stalls_probe_sooner(c, j);
	sched_job_check_done(c, j);
}

void sched_receive_worker_event(
	struct sched_core *c, struct sched_member *m, const struct ctl_worker *msg)
{
	struct sched_job *j = sched_job_by_id(c, msg->job);
	struct sched_worker *w;

	if (!j) {
		sched_send_unknown_job(c, m, msg->job);
		return;
	}
	if (sched_send_evicted(c, m, j))
		return;
	w = msg->rank < j->n_room ? &j->workers[msg->rank] : NULL;
	if (msg->event < WORKER_FINISHED || msg->event > WORKER_AT_BARRIER) {
		sched_member_disconnect(c, m, "sent an unknown event about a worker");
	} else if (!w || w->state == WORKER_ABSENT || w->agent != m->id) {
		log_rated(LOG_WARN,
			"ignoring an event from agent %s about rank %u of job '%s': the worker is "
			"not on the agent's machine",
			m->name, msg->rank, j->name);
	} else if (j->state == JOB_FORMING) {
		forming_worker_remove(c, j, msg->rank);
	} else if (msg->event == WORKER_AT_BARRIER) {
		sched_at_barrier(c, m, j, msg->rank, msg->barrier);
	} else if (msg->event == WORKER_FINISHED) {
		worker_finished(c, j, w);
	} else if (w->state != WORKER_DONE) {
		sched_machine_lost(c, j, sched_job_member(j, m->id), msg->rank, BPS_EWORKER_LOST,
			"rank %u (host %s, pid %u) of job '%s' was lost%s%s", msg->rank, m->host,
			w->pid, j->name, msg->text[0] ? ": " : "", msg->text);
	}
}

void sched_receive_fail(struct sched_core *c, struct sched_member *m, const struct ctl_fail *msg)
{
	struct sched_job *j = sched_job_by_id(c, msg->job);
	int code = msg->code && msg->code <= INT32_MAX ? -(int)msg->code : BPS_EJOB_FAILED;
	uint32_t rank = msg->cause.rank;

	if (!j || j->state != JOB_RUNNING) {
		sched_send_unknown_job(c, m, msg->job);
		return;
	}
	if (sched_send_evicted(c, m, j))
		return;
	if (m->role == ROLE_AGENT && sched_job_member(j, m->id) == CTL_NO_ID) {
		sched_member_disconnect(c, m, "sent FAIL for a job to which it does not belong");
		return;
	}
	/* the agent names the worker that is lost (J15); other failures concern its machine */
	if (code == BPS_EWORKER_LOST && ctl_has_cause(&msg->cause) && rank < j->n_room &&
		j->workers[rank].agent == m->id)
		sched_machine_lost(c, j, sched_job_member(j, m->id), rank, code, "%s", msg->text);
	else if (m->role == ROLE_AGENT && (code == BPS_EDEVICE || code == BPS_EWORKER_LOST))
		sched_machine_lost(c, j, sched_job_member(j, m->id), CTL_NO_ID, code,
			"%s (host %s): %s", m->name, m->host,
			msg->text[0] ? msg->text : err_str(code));
	else if (msg->text[0])
		sched_job_end(c, j, code, &msg->cause, "%s", msg->text);
	else
		sched_job_end(c, j, code, &msg->cause, "%s (host %s): %s", m->name, m->host,
			err_str(code));
}

static void forming_drop_agent(struct sched_core *c, struct sched_job *j, uint32_t agent)
{
	for (uint32_t r = 0; r < j->n_room; r++)
		if (j->workers[r].state != WORKER_ABSENT && j->workers[r].agent == agent)
			job_detach_worker(j, r);
	if (!j->n_joined)
		forming_job_remove(c, j);
}

void sched_agent_gone(struct sched_core *c, struct sched_member *m, bool is_dead)
{
	struct sched_job *next;

	for (struct sched_job *j = c->jobs; j; j = next) {
		next = j->next;
		sched_newcomers_drop(c, j, m->id);
		if (sched_job_member(j, m->id) == CTL_NO_ID)
			continue;
		if (j->state == JOB_FORMING)
			forming_drop_agent(c, j, m->id);
		else if (is_dead)
			sched_machine_lost(c, j, sched_job_member(j, m->id), CTL_NO_ID,
				BPS_EAGENT_LOST, "agent '%s' (host %s) of job '%s' is lost: %s",
				m->name, m->host, j->name, m->why_down);
	}
}
