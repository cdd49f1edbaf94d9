#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core_impl.h"
#include "bps-scheduler/place.h"
#include "common/dtype.h"
#include "common/log.h"

#define STATE_BIT(s)    (1u << (s))
#define PLAN_NAME_BYTES (256u << 10) /* of the tensors in one PLAN */

static const struct {
	const char *name;
	unsigned next;
} job_states[JOB_STATES] = {
	[JOB_FORMING] = {"forming", STATE_BIT(JOB_RUNNING)},
	[JOB_RUNNING] = {"running", STATE_BIT(JOB_ENDED)},
	[JOB_ENDED] = {"ended", 0},
};

static const struct {
	const char *name;
	unsigned next;
} tensor_states[TENSOR_STATES] = {
	[TENSOR_COLLECTING] = {"collecting", STATE_BIT(TENSOR_READY) | STATE_BIT(TENSOR_FAILED)},
	[TENSOR_READY] = {"ready", STATE_BIT(TENSOR_PLACED)},
	[TENSOR_PLACED] = {"placed", 0},
	[TENSOR_FAILED] = {"failed", 0},
};

const char *sched_job_state_name(enum job_state s)
{
	return s < JOB_STATES ? job_states[s].name : "?";
}

static void job_set_state(struct sched_core *c, struct job *j, enum job_state to, const char *why)
{
	assert(job_states[j->state].next & STATE_BIT(to));
	log_info("job '%s': %s -> %s, %s job=%u uid=%u workers=%u/%u", j->name,
		job_states[j->state].name, job_states[to].name, why, j->id, j->uid, j->n_joined,
		j->size);
	sched_note(c, EVENT_JOB, "job '%s' (%u workers, uid %u) %s: %s", j->name, j->size, j->uid,
		to == JOB_RUNNING ? "runs" : "has ended", why);
	j->state = to;
	j->since_ns = c->now_ns;
}

static void tensor_set_state(struct job *j, struct tensor *t, enum tensor_state to, const char *why)
{
	assert(tensor_states[t->state].next & STATE_BIT(to));
	log_debug("tensor '%s' of job '%s': %s -> %s, %s", t->name, j->name,
		tensor_states[t->state].name, tensor_states[to].name, why);
	t->state = to;
}

/* ---- finding ---- */

struct job *sched_job(const struct sched_core *c, uint32_t id)
{
	for (struct job *j = c->jobs; j; j = j->next)
		if (j->id == id)
			return j;
	return NULL;
}

struct job *sched_job_any(const struct sched_core *c, uint32_t id)
{
	for (struct job *j = c->ended; j; j = j->next)
		if (j->id == id)
			return j;
	return sched_job(c, id);
}

uint32_t sched_job_member(const struct job *j, uint32_t agent)
{
	for (uint32_t i = 0; i < j->n_members; i++)
		if (j->members[i].agent == agent)
			return i;
	return CTL_NO_ID;
}

static struct job *job_by_name(const struct sched_core *c, uint32_t uid, const char *name)
{
	for (struct job *j = c->jobs; j; j = j->next)
		if (j->uid == uid && strcmp(j->name, name) == 0)
			return j;
	return NULL;
}

static const char *host_of(const struct sched_core *c, uint32_t agent)
{
	const struct member *m = sched_member(c, agent);

	return m ? m->host : "?";
}

/* ---- life ---- */

struct job *sched_job_new(uint32_t id, uint32_t uid, const char *name, uint32_t size)
{
	struct job *j = sched_alloc(1, sizeof(*j));

	j->id = id;
	j->uid = uid;
	j->name = sched_dup(name);
	j->size = size;
	j->fresh_tail = &j->fresh;
	return j;
}

static void tensor_free(struct tensor *t)
{
	free(t->parts);
	free(t->declared);
	free(t->name);
	free(t->fail_text);
	free(t);
}

static void drop_tensors(struct sched_core *c, struct job *j)
{
	for (uint32_t i = 0; i < j->n_placed; i++)
		for (uint32_t k = 0; j->placed[i]->parts && k < j->placed[i]->n_parts; k++)
			sched_part_set(c, j, j->placed[i], k, NULL, 0, 0);
	for (uint32_t b = 0; b < j->n_buckets; b++) {
		while (j->buckets[b]) {
			struct tensor *t = j->buckets[b];

			j->buckets[b] = t->next_hash;
			tensor_free(t);
		}
	}
	free(j->buckets);
	free(j->placed);
	free(j->loads);
	j->buckets = j->placed = NULL;
	j->loads = NULL;
	j->n_buckets = j->n_tensors = j->n_placed = j->placed_room = j->n_loads = j->n_orphans = 0;
	j->fresh = NULL;
	j->fresh_tail = &j->fresh;
	j->bytes = 0;
	j->has_moved = false;
}

void sched_job_free(struct sched_core *c, struct job *j)
{
	if (!j)
		return;
	drop_tensors(c, j);
	free(j->workers);
	free(j->members);
	free(j->end_text);
	free(j->name);
	free(j);
}

void sched_job_dirty(struct sched_core *c, struct job *j)
{
	sched_change(c);
	if (j->is_dirty)
		return;
	j->is_dirty = true;
	j->next_dirty = c->dirty_jobs;
	c->dirty_jobs = j;
}

static void job_unlink(struct sched_core *c, struct job *j)
{
	struct job **at = &c->jobs;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	c->n_jobs--;
}

__attribute__((format(printf, 4, 5))) static void job_end(
	struct sched_core *c, struct job *j, int code, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX + 1];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	job_set_state(c, j, JOB_ENDED, text[0] ? text : "all workers have finished");
	drop_tensors(c, j);
	j->code = (uint32_t)-code;
	j->end_text = sched_dup(text);
	j->is_changed = true;
	sched_job_dirty(c, j);
	job_unlink(c, j);
	j->next = c->ended;
	c->ended = j;
	c->n_ended++;
}

/* ---- workers ---- */

struct worker *sched_worker_at(struct job *j, uint32_t rank)
{
	j->workers = sched_grow(j->workers, &j->n_room, rank + 1, sizeof(*j->workers));
	return &j->workers[rank];
}

static const struct worker *worker_get(const struct job *j, uint32_t rank)
{
	return rank < j->n_room ? &j->workers[rank] : NULL;
}

void sched_job_attach(struct job *j, uint32_t rank, uint32_t agent, uint32_t pid, uint32_t seq)
{
	uint32_t i = sched_job_member(j, agent);
	struct job_member *m;

	*sched_worker_at(j, rank) = (struct worker){WORKER_ATTACHED, agent, pid, seq};
	j->n_joined++;
	if (i == CTL_NO_ID) {
		j->members = sched_grow(
			j->members, &j->members_room, j->n_members + 1, sizeof(*j->members));
		i = j->n_members++;
		j->members[i] = (struct job_member){.agent = agent, .low_rank = rank};
	}
	m = &j->members[i];
	m->n_ranks++;
	if (rank < m->low_rank)
		m->low_rank = rank;
}

/* Of a forming job. */
static void job_detach(struct job *j, uint32_t rank)
{
	uint32_t i = sched_job_member(j, j->workers[rank].agent);

	j->workers[rank] = (struct worker){.state = WORKER_ABSENT};
	j->n_joined--;
	if (rank < j->next_free_rank)
		j->next_free_rank = rank;
	if (--j->members[i].n_ranks == 0)
		j->members[i] = j->members[--j->n_members];
}

static uint32_t take_free_rank(struct job *j)
{
	uint32_t r = j->next_free_rank;

	while (r < j->n_room && j->workers[r].state != WORKER_ABSENT)
		r++;
	j->next_free_rank = r;
	return r;
}

static const struct worker *any_worker(const struct job *j, uint32_t *ret_rank)
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

struct join {
	struct sched_core *c;
	struct member *m;
	const struct ctl_join *msg;
};

static void joined(const struct join *in, uint32_t job, uint32_t rank)
{
	struct ctl_msg msg = {.type = CTL_JOINED, .joined = {in->msg->seq, 0, "", job, rank}};

	sched_send(in->c, in->m, &msg);
}

static void join_refuse(const struct join *in, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void join_refuse(const struct join *in, int code, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX + 1];
	struct ctl_msg msg = {.type = CTL_JOINED,
		.joined = {in->msg->seq, (uint32_t)-code, text, CTL_NO_ID, CTL_NO_ID}};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_info("worker refused: %s agent=%s pid=%u", text, in->m->name, in->msg->pid);
	sched_send(in->c, in->m, &msg);
}

/* A JOIN that was sent again: the rank that it has. */
static uint32_t join_repeated(const struct join *in, const struct job *j)
{
	const struct worker *w;

	if (in->msg->rank != CTL_NO_ID) {
		w = worker_get(j, in->msg->rank);
		return w && w->state != WORKER_ABSENT && w->agent == in->m->id &&
				       w->pid == in->msg->pid
			       ? in->msg->rank
			       : CTL_NO_ID;
	}
	for (uint32_t r = 0; r < j->n_room; r++) {
		w = &j->workers[r];
		if (w->state != WORKER_ABSENT && w->agent == in->m->id && w->pid == in->msg->pid &&
			w->seq == in->msg->seq)
			return r;
	}
	return CTL_NO_ID;
}

static bool join_sound(const struct join *in)
{
	const struct ctl_join *q = in->msg;

	if (!q->job[0])
		join_refuse(in, -EINVAL, "a job needs a name");
	else if (!q->size || q->size > CTL_WORKERS_MAX)
		join_refuse(in, -EINVAL, "job '%s': %u workers asked for, 1 to %u are possible",
			q->job, q->size, CTL_WORKERS_MAX);
	else if (q->rank != CTL_NO_ID && q->rank >= q->size)
		join_refuse(
			in, -EINVAL, "job '%s': rank %u of %u workers", q->job, q->rank, q->size);
	else if (q->flags & ~(uint32_t)JOB_FLAGS_KNOWN)
		join_refuse(in, BPS_EVERSION,
			"job '%s': options %#x are not known to the scheduler", q->job,
			q->flags & ~(uint32_t)JOB_FLAGS_KNOWN);
	else if (in->c->is_undurable)
		join_refuse(in, BPS_ENOTDURABLE,
			"the scheduler cannot write its state and takes no workers; see its log");
	else
		return true;
	return false;
}

/* The newcomer against the first worker that is there. */
static bool join_agrees(const struct join *in, const struct job *j)
{
	const struct ctl_join *q = in->msg;
	uint32_t rank = 0;
	const struct worker *w = any_worker(j, &rank);
	const char *what;
	uint32_t theirs, ours;

	if (!w || (q->size == j->size && q->flags == j->flags && q->part_bytes == j->part_bytes))
		return true;
	if (q->size != j->size) {
		what = "workers";
		theirs = j->size;
		ours = q->size;
	} else if (q->flags != j->flags) {
		what = "option flags";
		theirs = j->flags;
		ours = q->flags;
	} else {
		what = "partition bytes";
		theirs = j->part_bytes;
		ours = q->part_bytes;
	}
	join_refuse(in, BPS_EMISMATCH,
		"job '%s': rank %u (host %s, pid %u) has %u %s, this worker (host %s, pid %u) %u",
		j->name, rank, host_of(in->c, w->agent), w->pid, theirs, what, in->m->host, q->pid,
		ours);
	return false;
}

static bool join_has_room(const struct join *in, const struct job *j, uint32_t rank)
{
	const struct worker *w = worker_get(j, rank);

	if (rank >= j->size)
		join_refuse(
			in, BPS_EDUP, "job '%s' has all its %u workers already", j->name, j->size);
	else if (w && w->state != WORKER_ABSENT)
		join_refuse(in, BPS_EDUP, "rank %u of job '%s' is held by pid %u on host %s", rank,
			j->name, w->pid, host_of(in->c, w->agent));
	else if (j->n_members >= WIRE_MEMBERS_MAX && sched_job_member(j, in->m->id) == CTL_NO_ID)
		join_refuse(in, BPS_EQUOTA, "job '%s' spans %u machines, the limit", j->name,
			WIRE_MEMBERS_MAX);
	else
		return true;
	return false;
}

static struct job *job_for_join(const struct join *in)
{
	struct sched_core *c = in->c;
	struct job *j = job_by_name(c, in->msg->uid, in->msg->job);
	uint32_t id;

	if (j)
		return j;
	if (c->n_jobs >= SCHED_JOBS_MAX) {
		join_refuse(in, BPS_EQUOTA, "the scheduler has %u jobs, its limit", SCHED_JOBS_MAX);
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
	j->since_ns = c->now_ns;
	j->next = c->jobs;
	c->jobs = j;
	c->n_jobs++;
	sched_note(c, EVENT_JOB, "job '%s' (%u workers, uid %u) begins to form", j->name, j->size,
		j->uid);
	return j;
}

static int by_low_rank(const void *a, const void *b)
{
	uint32_t x = ((const struct job_member *)a)->low_rank;
	uint32_t y = ((const struct job_member *)b)->low_rank;

	return (x > y) - (x < y);
}

/* Ranks leave while a job forms, so the lowest is known only now. */
static void number_members(struct job *j)
{
	for (uint32_t i = 0; i < j->n_members; i++)
		j->members[i].low_rank = CTL_NO_ID;
	for (uint32_t r = j->size; r-- > 0;)
		j->members[sched_job_member(j, j->workers[r].agent)].low_rank = r;
	qsort(j->members, j->n_members, sizeof(*j->members), by_low_rank);
}

static void job_start(struct sched_core *c, struct job *j)
{
	number_members(j);
	job_set_state(c, j, JOB_RUNNING, "all workers have joined");
	j->view = sched_change(c);
	j->is_changed = true;
	sched_job_dirty(c, j);
}

/* An agent cannot read JOB before it knows its ranks, so it gets it once more. */
static void join_again(const struct join *in, struct job *j, uint32_t rank)
{
	if (j->state == JOB_RUNNING && in->c->is_undurable) {
		sched_kick(in->c, in->m, "its job may not be durable yet");
		return;
	}
	joined(in, j->id, rank);
	if (j->state != JOB_RUNNING)
		return;
	sched_send_job(in->c, in->m, j);
	sched_send_plan(in->c, in->m, j, true);
}

void sched_join(struct sched_core *c, struct member *m, const struct ctl_join *msg)
{
	struct join in = {c, m, msg};
	struct job *j = job_by_name(c, msg->uid, msg->job);
	uint32_t rank = j ? join_repeated(&in, j) : CTL_NO_ID;

	if (rank != CTL_NO_ID) {
		join_again(&in, j, rank);
		return;
	}
	if (!join_sound(&in))
		return;
	j = job_for_join(&in);
	if (!j)
		return;
	if (!join_agrees(&in, j))
		return;
	rank = msg->rank == CTL_NO_ID ? take_free_rank(j) : msg->rank;
	if (!join_has_room(&in, j, rank))
		return;
	sched_job_attach(j, rank, m->id, msg->pid, msg->seq);
	joined(&in, j->id, rank);
	if (j->n_joined == j->size)
		job_start(c, j);
}

/* ---- workers' ends ---- */

void sched_job_unknown(struct sched_core *c, const struct member *m, uint32_t id)
{
	struct ctl_msg msg = {.type = CTL_JOB_END,
		.job_end = {id, (uint32_t)-BPS_EJOB_FAILED,
			"the scheduler does not know this job (any more)"}};
	const struct job *j = sched_job_any(c, id);

	if (j && j->is_dirty)
		return; /* its end is told when it is durable */
	if (j)
		sched_send_job_end(c, m, j);
	else
		sched_send(c, m, &msg);
}

/* The last worker of a forming job has left. */
static void forming_end(struct sched_core *c, struct job *j)
{
	sched_note(c, EVENT_JOB, "job '%s' (%u workers, uid %u): all left before it had formed",
		j->name, j->size, j->uid);
	job_unlink(c, j);
	sched_job_free(c, j);
}

static void forming_lost(struct sched_core *c, struct job *j, uint32_t rank)
{
	log_info("rank %u of job '%s' left before the job had formed job=%u", rank, j->name, j->id);
	job_detach(j, rank);
	if (!j->n_joined)
		forming_end(c, j);
}

static void worker_finished(struct sched_core *c, struct job *j, struct worker *w)
{
	if (w->state == WORKER_DONE)
		return;
	w->state = WORKER_DONE;
	if (++j->n_done == j->size)
		job_end(c, j, 0, "%s", "");
}

void sched_worker(struct sched_core *c, struct member *m, const struct ctl_worker *msg)
{
	struct job *j = sched_job(c, msg->job);
	struct worker *w;

	if (!j) {
		sched_job_unknown(c, m, msg->job);
		return;
	}
	w = msg->rank < j->n_room ? &j->workers[msg->rank] : NULL;
	if (msg->event != WORKER_FINISHED && msg->event != WORKER_LOST) {
		sched_kick(c, m, "an unknown event of a worker");
	} else if (!w || w->state == WORKER_ABSENT || w->agent != m->id) {
		log_rated(LOG_WARN, "agent %s speaks of rank %u of job '%s', which is not its",
			m->name, msg->rank, j->name);
	} else if (j->state == JOB_FORMING) {
		forming_lost(c, j, msg->rank);
	} else if (msg->event == WORKER_FINISHED) {
		worker_finished(c, j, w);
	} else if (w->state != WORKER_DONE) {
		job_end(c, j, BPS_EWORKER_LOST,
			"rank %u (host %s, pid %u) of job '%s' was lost%s%s", msg->rank, m->host,
			w->pid, j->name, msg->text[0] ? ": " : "", msg->text);
	}
}

void sched_fail(struct sched_core *c, struct member *m, const struct ctl_fail *msg)
{
	struct job *j = sched_job(c, msg->job);
	int code = msg->code && msg->code <= INT32_MAX ? -(int)msg->code : BPS_EJOB_FAILED;

	if (!j || j->state != JOB_RUNNING) {
		sched_job_unknown(c, m, msg->job);
		return;
	}
	if (m->role == ROLE_AGENT && sched_job_member(j, m->id) == CTL_NO_ID) {
		sched_kick(c, m, "FAIL of a job that is not its");
		return;
	}
	if (msg->text[0])
		job_end(c, j, code, "%s", msg->text);
	else
		job_end(c, j, code, "%s (host %s): %s", m->name, m->host, err_str(code));
}

static void forming_drop_agent(struct sched_core *c, struct job *j, uint32_t agent)
{
	for (uint32_t r = 0; r < j->n_room; r++)
		if (j->workers[r].state != WORKER_ABSENT && j->workers[r].agent == agent)
			job_detach(j, r);
	if (!j->n_joined)
		forming_end(c, j);
}

void sched_agent_gone(struct sched_core *c, struct member *m, bool is_dead)
{
	struct job *next;

	for (struct job *j = c->jobs; j; j = next) {
		next = j->next;
		if (sched_job_member(j, m->id) == CTL_NO_ID)
			continue;
		/* on_agent_loss=abort. To shrink instead: drop the member and give all
		 * partitions of the job a new pgen here (docs/faults.md, elastic jobs). */
		if (j->state == JOB_FORMING)
			forming_drop_agent(c, j, m->id);
		else if (is_dead)
			job_end(c, j, BPS_EAGENT_LOST,
				"agent '%s' (host %s) of job '%s' is lost: %s", m->name, m->host,
				j->name, m->why_down);
	}
}

/* ---- tensors ---- */

static uint32_t name_hash(const char *s)
{
	uint32_t h = 2166136261u; /* FNV-1a */

	while (*s)
		h = (h ^ (uint8_t)*s++) * 16777619u;
	return h;
}

static void tensors_rehash(struct job *j)
{
	uint32_t n = j->n_buckets ? 4 * j->n_buckets : 16;
	struct tensor **to = sched_alloc(n, sizeof(*to));

	for (uint32_t b = 0; b < j->n_buckets; b++) {
		while (j->buckets[b]) {
			struct tensor *t = j->buckets[b];
			uint32_t h = name_hash(t->name) % n;

			j->buckets[b] = t->next_hash;
			t->next_hash = to[h];
			to[h] = t;
		}
	}
	free(j->buckets);
	j->buckets = to;
	j->n_buckets = n;
}

void sched_tensor_add(struct job *j, struct tensor *t)
{
	uint32_t h;

	if (j->n_tensors >= 2 * j->n_buckets)
		tensors_rehash(j);
	h = name_hash(t->name) % j->n_buckets;
	t->next_hash = j->buckets[h];
	j->buckets[h] = t;
	j->n_tensors++;
}

struct tensor *sched_tensor_find(const struct job *j, const char *name)
{
	struct tensor *t;

	if (!j->n_buckets)
		return NULL;
	t = j->buckets[name_hash(name) % j->n_buckets];
	while (t && strcmp(t->name, name) != 0)
		t = t->next_hash;
	return t;
}

uint64_t sched_part_bytes(const struct tensor *t, uint32_t i)
{
	uint64_t first = (uint64_t)i * t->part_elems;
	uint64_t elems = t->n_elems - first < t->part_elems ? t->n_elems - first : t->part_elems;

	return elems * dtype_bytes(t->dtype);
}

void sched_part_set(struct sched_core *c, struct job *j, struct tensor *t, uint32_t i,
	struct member *server, uint16_t thread, uint64_t pgen)
{
	struct part *p = &t->parts[i];
	struct member *old = sched_member(c, p->server);
	uint64_t bytes = sched_part_bytes(t, i);

	if (old) {
		old->thread_bytes[p->thread] -= bytes;
		old->scaled_bytes -= bytes * j->n_members;
		j->loads[old->id] -= bytes;
	} else {
		j->n_orphans--;
	}
	*p = (struct part){pgen, 0, CTL_NO_ID, 0};
	if (server) {
		j->loads = sched_grow(j->loads, &j->n_loads, server->id + 1, sizeof(*j->loads));
		server->thread_bytes[thread] += bytes;
		server->scaled_bytes += bytes * j->n_members;
		j->loads[server->id] += bytes;
		*p = (struct part){pgen, server->instance, server->id, thread};
	} else {
		j->n_orphans++;
	}
}

void sched_tensor_publish(struct job *j, struct tensor *t)
{
	tensor_set_state(j, t, TENSOR_PLACED, "numbered");
	j->placed = sched_grow(j->placed, &j->placed_room, j->n_placed + 1, sizeof(*j->placed));
	t->id = j->n_placed;
	j->placed[j->n_placed++] = t;
	j->bytes += t->n_elems * dtype_bytes(t->dtype);
	t->n_parts = (uint32_t)((t->n_elems + t->part_elems - 1) / t->part_elems);
	if (job_is_local(j->n_members, j->flags))
		return;
	t->parts = sched_alloc(t->n_parts, sizeof(*t->parts));
	for (uint32_t i = 0; i < t->n_parts; i++)
		t->parts[i].server = CTL_NO_ID;
	j->n_orphans += t->n_parts;
}

/* ---- DECLARE ---- */

struct declare {
	struct sched_core *c;
	struct member *m;
	struct job *j;
	uint32_t member; /* number in the job */
};

static void tensor_fail_send(struct sched_core *c, const struct member *m, const struct job *j,
	const char *name, int code, const char *text)
{
	struct ctl_msg msg = {
		.type = CTL_TENSOR_FAIL, .tensor_fail = {j->id, name, (uint32_t)-code, text}};

	sched_send(c, m, &msg);
}

static void mismatch_text(const struct declare *in, const struct tensor *t,
	const struct ctl_decl *d, char *ret, size_t n)
{
	const struct worker *w = &in->j->workers[t->first_rank];

	snprintf(ret, n,
		"tensor '%s' of job '%s': rank %u (host %s) declares %s x %llu, rank %u (host %s)"
		" %s x %llu",
		t->name, in->j->name, t->first_rank, host_of(in->c, w->agent), dtype_name(t->dtype),
		(unsigned long long)t->n_elems, d->rank, in->m->host, dtype_name(d->dtype),
		(unsigned long long)d->n_elems);
}

static bool has_declared(const struct tensor *t, uint32_t member)
{
	return t->declared && t->declared[member / 64] >> (member % 64) & 1;
}

static void tensor_mismatch(const struct declare *in, struct tensor *t, const struct ctl_decl *d)
{
	char text[CTL_TEXT_MAX + 1];

	mismatch_text(in, t, d, text, sizeof(text));
	if (t->state != TENSOR_COLLECTING) { /* the others agreed long ago */
		tensor_fail_send(in->c, in->m, in->j, t->name, BPS_EMISMATCH, text);
		return;
	}
	log_warn("%s", text);
	t->fail_text = sched_dup(text);
	t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
	for (uint32_t i = 0; i < in->j->n_members; i++)
		if (has_declared(t, i))
			tensor_fail_send(in->c, sched_member(in->c, in->j->members[i].agent), in->j,
				t->name, BPS_EMISMATCH, text);
	tensor_set_state(in->j, t, TENSOR_FAILED, "workers disagree");
}

static void fresh_add(struct sched_core *c, struct job *j, struct tensor *t)
{
	tensor_set_state(j, t, TENSOR_READY, "all agents have declared it");
	*j->fresh_tail = t;
	j->fresh_tail = &t->next_fresh;
	sched_job_dirty(c, j);
}

static struct tensor *tensor_new(const struct declare *in, const struct ctl_decl *d)
{
	struct tensor *t = sched_alloc(1, sizeof(*t));

	t->id = CTL_NO_ID;
	t->dtype = d->dtype;
	t->n_elems = d->n_elems;
	t->name = sched_dup(d->name);
	t->first_rank = d->rank;
	t->since_ns = in->c->now_ns;
	t->declared = sched_alloc((in->j->n_members + 63) / 64, sizeof(uint64_t));
	sched_tensor_add(in->j, t);
	return t;
}

static bool is_decl_sound(const struct declare *in, const struct ctl_decl *d)
{
	struct sched_core *c = in->c;
	size_t bytes = dtype_bytes(d->dtype);

	if (!d->name[0] || d->rank >= in->j->size || in->j->workers[d->rank].agent != in->m->id)
		sched_kick(c, in->m, "a declaration that is not sound");
	else if (!bytes || !d->n_elems)
		tensor_fail_send(c, in->m, in->j, d->name, -EINVAL, "unknown type or no elements");
	else if (d->n_elems > SCHED_TENSOR_BYTES_MAX / bytes)
		tensor_fail_send(
			c, in->m, in->j, d->name, BPS_EQUOTA, "a tensor has at most 1 TiB");
	else
		return true;
	return false;
}

static void resend_plan(const struct declare *in, struct tensor *t)
{
	struct ctl_msg msg = {.type = CTL_PLAN, .plan = {.view = in->c->view, .job = in->j->id}};
	struct ctl_tensor def = {t->id, t->name, t->dtype, t->n_elems, t->part_elems};
	uint32_t at = 0;

	if (in->c->tx_view) /* what is not durable yet is sent when it is */
		return;
	msg.plan.tensors = &def;
	msg.plan.n_tensors = 1;
	msg.plan.runs = sched_alloc(CTL_LIST_MAX, sizeof(struct ctl_run));
	do {
		msg.plan.n_runs = 0;
		while (msg.plan.n_runs < CTL_LIST_MAX &&
			sched_run_next(t, &at, 0, SERVER_ANY, &msg.plan.runs[msg.plan.n_runs]))
			msg.plan.n_runs++;
		sched_send(in->c, in->m, &msg);
	} while (msg.plan.n_runs == CTL_LIST_MAX);
	free(msg.plan.runs);
}

static void declare_one(const struct declare *in, const struct ctl_decl *d)
{
	struct job *j = in->j;
	struct tensor *t = sched_tensor_find(j, d->name);

	if (!t) {
		if (j->n_tensors >= SCHED_TENSORS_MAX) {
			tensor_fail_send(in->c, in->m, j, d->name, BPS_EQUOTA,
				"the job has 100,000 tensors, its limit");
			return;
		}
		t = tensor_new(in, d);
	}
	if (t->state == TENSOR_FAILED) {
		tensor_fail_send(in->c, in->m, j, t->name, BPS_EMISMATCH, t->fail_text);
	} else if (t->dtype != d->dtype || t->n_elems != d->n_elems) {
		tensor_mismatch(in, t, d);
	} else if (t->state == TENSOR_PLACED) {
		resend_plan(in, t);
	} else if (t->state == TENSOR_COLLECTING && !has_declared(t, in->member)) {
		t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
		if (++t->n_declared == j->n_members)
			fresh_add(in->c, j, t);
	}
}

void sched_declare(struct sched_core *c, struct member *m, const struct ctl_declare *msg)
{
	struct declare in = {c, m, sched_job(c, msg->job), 0};

	if (!in.j) {
		sched_job_unknown(c, m, msg->job);
		return;
	}
	in.member = sched_job_member(in.j, m->id);
	if (in.member == CTL_NO_ID || in.j->state != JOB_RUNNING) {
		sched_kick(c, m, "DECLARE in a job that is not its or has not formed");
		return;
	}
	for (uint32_t i = 0; i < msg->n_tensors && m->conn; i++)
		if (is_decl_sound(&in, &msg->tensors[i]))
			declare_one(&in, &msg->tensors[i]);
}

/* ---- placement ---- */

struct want {
	struct place_part part;
	struct tensor *t;
	uint32_t i;
};
struct wants {
	struct want *v;
	uint32_t n, room;
};

static void want_add(struct wants *w, struct tensor *t, uint32_t i)
{
	w->v = sched_grow(w->v, &w->room, w->n + 1, sizeof(*w->v));
	w->v[w->n++] = (struct want){.part = {.bytes = sched_part_bytes(t, i)}, .t = t, .i = i};
}

static int larger_first(const void *a, const void *b)
{
	const struct want *x = a, *y = b;

	if (x->part.bytes != y->part.bytes)
		return x->part.bytes < y->part.bytes ? 1 : -1;
	if (x->t->id != y->t->id)
		return x->t->id < y->t->id ? -1 : 1;
	return (x->i > y->i) - (x->i < y->i);
}

static uint32_t usable_servers(const struct sched_core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += c->members[i]->role == ROLE_SERVER && sched_is_usable(c->members[i]);
	return n;
}

static void note_nic(struct place_machine *machine, const struct member *m)
{
	if (m->nic_mbps > machine->nic_mbps)
		machine->nic_mbps = m->nic_mbps;
}

/* Hosts are the machines; those without a usable server stay idle and only need not be chosen. */
static void place_fill(
	const struct sched_core *c, const struct job *j, struct place *p, struct member **servers)
{
	p->n_agents = j->n_members;
	p->job_bytes = j->bytes;
	p->n_machines = c->n_hosts;
	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct member *m = sched_member(c, j->members[i].agent);

		p->machines[m->host_idx].has_agent = true;
		note_nic(&p->machines[m->host_idx], m);
	}
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct member *m = c->members[i];
		uint64_t own = i < j->n_loads ? j->loads[i] : 0;
		struct place_machine *machine = &p->machines[m->host_idx];

		if (m->role != ROLE_SERVER || !sched_is_usable(m))
			continue;
		note_nic(machine, m);
		machine->has_server = true;
		machine->bytes += own;
		machine->other_bytes += m->scaled_bytes - own * j->n_members;
		servers[p->n_servers] = m;
		p->servers[p->n_servers++] = (struct place_server){.machine = m->host_idx,
			.n_threads = m->threads,
			.bytes = own,
			.thread_bytes = sched_alloc(m->threads, sizeof(uint64_t))};
		memcpy(p->servers[p->n_servers - 1].thread_bytes, m->thread_bytes,
			m->threads * sizeof(uint64_t));
	}
}

/* Place the wanted partitions of j on the servers that are usable (none: nowhere), with a new
 * pgen. */
static void place_wants(struct sched_core *c, struct job *j, struct wants *w)
{
	uint32_t room = usable_servers(c);
	struct member **servers = sched_alloc(room, sizeof(struct member *));
	struct place p = {.machines = sched_alloc(c->n_hosts, sizeof(struct place_machine)),
		.servers = sched_alloc(room, sizeof(struct place_server))};
	struct place_part *parts = sched_alloc(w->n, sizeof(*parts));
	uint64_t pgen = sched_change(c);

	qsort(w->v, w->n, sizeof(*w->v), larger_first);
	for (uint32_t k = 0; k < w->n; k++)
		parts[k] = w->v[k].part;
	place_fill(c, j, &p, servers);
	if (p.n_servers)
		place_parts(&p, parts, w->n);
	for (uint32_t k = 0; k < w->n; k++)
		sched_part_set(c, j, w->v[k].t, w->v[k].i,
			p.n_servers ? servers[parts[k].server] : NULL, parts[k].thread, pgen);
	for (uint32_t i = 0; i < p.n_servers; i++)
		free(p.servers[i].thread_bytes);
	free(p.servers);
	free(p.machines);
	free(servers);
	free(parts);
	sched_job_dirty(c, j);
}

static void place_fresh_of(struct sched_core *c, struct job *j)
{
	uint32_t n_servers = usable_servers(c);
	uint64_t bytes = j->bytes;
	struct wants w = {0};

	for (struct tensor *t = j->fresh; t; t = t->next_fresh)
		if (t->state == TENSOR_READY)
			bytes += t->n_elems * dtype_bytes(t->dtype);
	for (struct tensor *t = j->fresh; t; t = t->next_fresh) {
		if (t->state != TENSOR_READY)
			continue;
		t->part_elems = place_part_elems(t->n_elems, (uint32_t)dtype_bytes(t->dtype),
			n_servers, bytes, j->part_bytes);
		sched_tensor_publish(j, t);
		for (uint32_t i = 0; t->parts && i < t->n_parts; i++)
			want_add(&w, t, i);
	}
	if (w.n)
		place_wants(c, j, &w);
	free(w.v);
}

void sched_place_fresh(struct sched_core *c)
{
	for (struct job *j = c->dirty_jobs; j; j = j->next_dirty)
		if (j->fresh)
			place_fresh_of(c, j);
}

/* from: NULL when they had no server. */
static void note_moved(
	struct sched_core *c, const struct job *j, uint32_t n, const struct member *from)
{
	if (j->n_orphans)
		sched_note(c, EVENT_PARTITIONS, "%u partitions of job '%s' have no server left", n,
			j->name);
	else if (from)
		sched_note(c, EVENT_PARTITIONS,
			"%u partitions of job '%s' moved from server %s to others", n, j->name,
			from->name);
	else
		sched_note(c, EVENT_PARTITIONS,
			"%u partitions of job '%s' that waited have a server", n, j->name);
}

static void replace_from(struct sched_core *c, struct job *j, uint32_t server)
{
	struct wants w = {0};

	for (uint32_t i = 0; i < j->n_placed; i++) {
		struct tensor *t = j->placed[i];

		for (uint32_t k = 0; t->parts && k < t->n_parts; k++) {
			if (t->parts[k].server != server)
				continue;
			sched_part_set(c, j, t, k, NULL, 0, t->parts[k].pgen);
			want_add(&w, t, k);
		}
	}
	if (w.n) {
		place_wants(c, j, &w);
		j->has_moved = true;
		note_moved(c, j, w.n, sched_member(c, server));
	}
	free(w.v);
}

void sched_server_gone(struct sched_core *c, struct member *m)
{
	for (struct job *j = c->jobs; j; j = j->next)
		if (m->id < j->n_loads && j->loads[m->id])
			replace_from(c, j, m->id);
}

void sched_place_waiting(struct sched_core *c)
{
	bool has_server = false;

	for (struct job *j = c->jobs; j; j = j->next) {
		if (!j->n_orphans || j->state != JOB_RUNNING)
			continue;
		if (!has_server && !(has_server = usable_servers(c) > 0))
			return;
		replace_from(c, j, CTL_NO_ID);
	}
}

void sched_server_rethread(struct sched_core *c, struct member *m, uint16_t threads)
{
	uint64_t *bytes = sched_alloc(threads, sizeof(*bytes));

	for (struct job *j = c->jobs; j; j = j->next) {
		for (uint32_t i = 0; i < j->n_placed; i++) {
			struct tensor *t = j->placed[i];

			for (uint32_t k = 0; t->parts && k < t->n_parts; k++) {
				if (t->parts[k].server != m->id)
					continue;
				t->parts[k].thread %= threads;
				bytes[t->parts[k].thread] += sched_part_bytes(t, k);
			}
		}
	}
	free(m->thread_bytes);
	m->thread_bytes = bytes;
	m->threads = threads;
}

void sched_server_restarted(struct sched_core *c, struct member *m, uint16_t threads)
{
	if (threads != m->threads)
		sched_server_rethread(c, m, threads);
	for (struct job *j = c->jobs; j; j = j->next) {
		uint32_t n = 0;

		if (m->id >= j->n_loads || !j->loads[m->id])
			continue;
		for (uint32_t i = 0; i < j->n_placed; i++) {
			struct tensor *t = j->placed[i];

			for (uint32_t k = 0; t->parts && k < t->n_parts; k++) {
				if (t->parts[k].server != m->id)
					continue;
				sched_part_set(c, j, t, k, m, t->parts[k].thread, sched_change(c));
				n++;
			}
		}
		j->has_moved = true;
		sched_job_dirty(c, j);
		sched_note(c, EVENT_PARTITIONS,
			"%u partitions of job '%s' begin anew on the restarted server %s", n,
			j->name, m->name);
	}
}

/* ---- telling ---- */

bool sched_run_next(
	const struct tensor *t, uint32_t *at, uint64_t pgen, uint32_t server, struct ctl_run *ret)
{
	const struct part *p = t->parts, *first;
	uint32_t i = *at;

	while (p && i < t->n_parts &&
		((pgen && p[i].pgen != pgen) || (server != SERVER_ANY && p[i].server != server)))
		i++;
	if (!p || i >= t->n_parts)
		return false;
	first = &p[i];
	*ret = (struct ctl_run){
		t->id, i, 1, first->server, first->instance, first->thread, first->pgen};
	for (i++; i < t->n_parts && p[i].server == first->server && p[i].pgen == first->pgen &&
		  p[i].instance == first->instance && p[i].thread == first->thread;
		i++)
		ret->n++;
	*at = i;
	return true;
}

void sched_send_job(struct sched_core *c, const struct member *m, const struct job *j)
{
	struct ctl_job_member *members = sched_alloc(j->n_members, sizeof(*members));
	struct ctl_rank *ranks = sched_alloc(j->size, sizeof(*ranks)), *next = ranks;
	uint32_t *number = sched_alloc(c->n_members + 1, sizeof(*number)); /* by agent id */
	struct ctl_msg msg = {.type = CTL_JOB,
		.job = {.view = j->view,
			.job = j->id,
			.uid = j->uid,
			.name = j->name,
			.size = j->size,
			.flags = j->flags,
			.members = members,
			.n_members = j->n_members}};

	for (uint32_t i = 0; i < j->n_members; i++) {
		members[i] = (struct ctl_job_member){
			j->members[i].agent, host_of(c, j->members[i].agent), next, 0};
		next += j->members[i].n_ranks;
		number[j->members[i].agent] = i;
	}
	for (uint32_t r = 0; r < j->size; r++) {
		struct ctl_job_member *to = &members[number[j->workers[r].agent]];

		to->ranks[to->n_ranks++].rank = r;
	}
	sched_send(c, m, &msg);
	free(members);
	free(ranks);
	free(number);
}

void sched_send_job_end(struct sched_core *c, const struct member *m, const struct job *j)
{
	struct ctl_msg msg = {.type = CTL_JOB_END, .job_end = {j->id, j->code, j->end_text}};

	sched_send(c, m, &msg);
}

struct plan {
	struct sched_core *c;
	const struct member *m;
	struct ctl_msg msg;
	uint32_t tensors_room, runs_room;
	size_t name_bytes;
};

static void plan_flush(struct plan *p)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_tensors || plan->n_runs)
		sched_send(p->c, p->m, &p->msg);
	plan->n_tensors = plan->n_runs = 0;
	p->name_bytes = 0;
}

static void plan_add_tensor(struct plan *p, const struct tensor *t)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_tensors == CTL_LIST_MAX || p->name_bytes > PLAN_NAME_BYTES)
		plan_flush(p);
	plan->tensors = sched_grow(
		plan->tensors, &p->tensors_room, plan->n_tensors + 1, sizeof(*plan->tensors));
	plan->tensors[plan->n_tensors++] =
		(struct ctl_tensor){t->id, t->name, t->dtype, t->n_elems, t->part_elems};
	p->name_bytes += strlen(t->name);
}

static void plan_add_run(struct plan *p, const struct ctl_run *run)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_runs == CTL_LIST_MAX)
		plan_flush(p);
	plan->runs = sched_grow(plan->runs, &p->runs_room, plan->n_runs + 1, sizeof(*plan->runs));
	plan->runs[plan->n_runs++] = *run;
}

/* A server hears of a tensor with its first run there, an agent always. */
static void plan_add(struct plan *p, const struct tensor *t, uint64_t pgen)
{
	uint32_t server = p->m->role == ROLE_SERVER ? p->m->id : SERVER_ANY, at = 0;
	struct ctl_run run;
	bool has_run = sched_run_next(t, &at, pgen, server, &run);

	if (has_run || (p->m->role == ROLE_AGENT && !pgen))
		plan_add_tensor(p, t);
	for (; has_run; has_run = sched_run_next(t, &at, pgen, server, &run))
		plan_add_run(p, &run);
}

void sched_send_plan(struct sched_core *c, const struct member *m, struct job *j, bool everything)
{
	struct plan p = {.c = c, .m = m};

	p.msg = (struct ctl_msg){.type = CTL_PLAN, .plan = {.view = c->view, .job = j->id}};
	for (uint32_t i = 0; (everything || j->has_moved) && i < j->n_placed; i++)
		if (everything || j->placed[i]->parts)
			plan_add(&p, j->placed[i], everything ? 0 : c->view);
	for (struct tensor *t = everything ? NULL : j->fresh; t; t = t->next_fresh)
		if (!j->has_moved || !t->parts)
			plan_add(&p, t, 0);
	plan_flush(&p);
	free(p.msg.plan.tensors);
	free(p.msg.plan.runs);
}
