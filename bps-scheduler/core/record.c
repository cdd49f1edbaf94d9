/* Converts between the core's objects and durable records. A record contains the changes of a
 * transaction, or the whole state (a snapshot). When the scheduler starts, records are converted
 * back to objects. All functions run on the core's thread. */
#include "bps-scheduler/core/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/admission.h"
#include "bps-scheduler/core/core.h"
#include "bps-scheduler/placement/drain.h"
#include "bps-scheduler/placement/place.h"
#include "bps-scheduler/placement/place_apply.h"
#include "common/data/shape.h"

struct record_builder {
	struct state_record rec;
	struct state_mute mutes[MUTES_MAX];
	uint32_t members_room, jobs_room, tensors_room, runs_room;
};

static void record_add_member(struct record_builder *b, const struct sched_member *m)
{
	struct state_record *r = &b->rec;

	r->members = sched_grow_array(
		r->members, &b->members_room, r->n_members + 1, sizeof(*r->members));
	r->members[r->n_members++] = (struct state_member){.id = m->id,
		.is_up = sched_is_usable(m),
		.is_drained = m->is_drained,
		.drain_reason = m->is_drained ? m->drain_reason : "",
		.drain_who = m->is_drained ? m->drain_who : "",
		.hello = {.role = (uint8_t)m->role,
			.instance = m->instance,
			.name = m->name,
			.host = m->host,
			.addr = m->addr,
			.version = m->version,
			.pid = m->pid,
			.port = m->port,
			.threads = m->threads,
			.nic_mbps = m->nic_mbps,
			.quota_bytes = m->quota_bytes,
			.memory_bytes = m->memory_bytes,
			.provider = m->provider,
			.boot_id = {m->boot_id, sizeof(m->boot_id)},
			.domain = m->domain}};
}

/* Convert a time on the core's clock to seconds of the wall clock. The end of a job is stored in
 * this form, because the machine may reboot before the record is read. */
static uint64_t record_unix_of_ns(const struct sched_core *c, uint64_t ns)
{
	return (uint64_t)((int64_t)ns / (int64_t)NS_PER_S + c->cfg.unix_offset_s);
}

static uint64_t record_ns_of_unix(const struct sched_core *c, uint64_t unix_s)
{
	return (unix_s - (uint64_t)c->cfg.unix_offset_s) * NS_PER_S;
}

static void record_add_job(
	struct record_builder *b, const struct sched_core *c, const struct sched_job *j)
{
	struct state_record *r = &b->rec;
	struct state_job *s;

	r->jobs = sched_grow_array(r->jobs, &b->jobs_room, r->n_jobs + 1, sizeof(*r->jobs));
	s = &r->jobs[r->n_jobs++];
	*s = (struct state_job){.id = j->id,
		.uid = j->uid,
		.name = j->name,
		.size = j->size,
		.flags = j->flags,
		.part_bytes = j->part_bytes,
		.view = j->view,
		.is_ended = j->state == JOB_ENDED,
		.code = j->code,
		.text = j->end_text ? j->end_text : "",
		.n_members = j->n_members,
		.token = {j->has_token ? j->token : NULL, j->has_token ? CTL_TOKEN_BYTES : 0},
		.formed = j->formed,
		.backup = j->backup,
		.grace_ms = j->grace_ms,
		.max_size = j->max_size,
		.barrier = j->barrier,
		.border = j->border,
		.border_barrier = j->border_barrier,
		.ended_unix_s = j->state == JOB_ENDED ? record_unix_of_ns(c, j->since_ns) : 0,
		.cause = {j->cause_rank, j->cause_host}};
	s->members = sched_alloc(j->n_members, sizeof(*s->members));
	for (uint32_t i = 0; i < j->n_members; i++) {
		s->members[i].agent = j->members[i].agent;
		s->members[i].is_gone = j->members[i].is_gone;
		s->members[i].why = j->members[i].why ? j->members[i].why : "";
		s->members[i].since = j->members[i].since;
		s->members[i].workers =
			sched_alloc(j->members[i].n_ranks, sizeof(struct state_worker));
	}
	for (uint32_t rank = 0; rank < j->n_room; rank++) {
		const struct sched_worker *w = &j->workers[rank];
		uint32_t i =
			w->state == WORKER_ABSENT ? CTL_NO_ID : sched_job_member_ever(j, w->agent);

		if (i != CTL_NO_ID)
			s->members[i].workers[s->members[i].n_workers++] =
				(struct state_worker){rank, w->pid, w->seq};
	}
}

static void record_add_tensor(
	struct record_builder *b, const struct sched_job *j, const struct sched_tensor *t)
{
	struct state_record *r = &b->rec;

	r->tensors = sched_grow_array(
		r->tensors, &b->tensors_room, r->n_tensors + 1, sizeof(*r->tensors));
	r->tensors[r->n_tensors++] = (struct state_tensor){.job = j->id,
		.tensor = t->id,
		.name = t->name,
		.shape = t->shape,
		.part_elems = t->part_elems};
}

static void record_add_runs(struct record_builder *b, const struct sched_job *j,
	const struct sched_tensor *t, uint64_t pgen)
{
	struct state_record *r = &b->rec;
	struct ctl_run run;
	uint32_t at = 0;

	while (sched_run_next(t, &at, pgen, SERVER_ANY, &run)) {
		r->runs = sched_grow_array(r->runs, &b->runs_room, r->n_runs + 1, sizeof(*r->runs));
		r->runs[r->n_runs++] = (struct state_run){j->id, run};
	}
}

static void record_builder_init(struct record_builder *b, const struct sched_core *c, uint64_t view)
{
	*b = (struct record_builder){.rec = {.cluster_id = {c->cluster_id, STATE_ID_BYTES},
					     .secret = {c->secret, STATE_SECRET_BYTES},
					     .term = c->term,
					     .view = view,
					     .job_id_limit = c->job_id_limit}};
}

static void record_builder_fini(struct record_builder *b)
{
	for (uint32_t i = 0; i < b->rec.n_jobs; i++) {
		for (uint32_t k = 0; k < b->rec.jobs[i].n_members; k++)
			free(b->rec.jobs[i].members[k].workers);
		free(b->rec.jobs[i].members);
	}
	free(b->rec.members);
	free(b->rec.jobs);
	free(b->rec.tensors);
	free(b->rec.runs);
}

static void record_add_mutes(struct record_builder *b, const struct sched_core *c)
{
	b->rec.has_mutes = 1;
	b->rec.mutes = b->mutes;
	b->rec.n_mutes = mute_make_records(c, b->mutes);
}

static void add_job_changes(struct record_builder *b, const struct sched_core *c,
	const struct sched_job *j, uint64_t tx_view)
{
	if (j->is_changed)
		record_add_job(b, c, j);
	if (j->state == JOB_ENDED)
		return;
	for (const struct sched_tensor *t = j->fresh; t; t = t->next_fresh) {
		record_add_tensor(b, j, t);
		if (!j->has_moved)
			record_add_runs(b, j, t, 0);
	}
	for (uint32_t i = 0; j->has_moved && i < j->n_placed; i++)
		record_add_runs(b, j, j->placed[i], tx_view);
}

int sched_persist_changes(struct sched_core *c)
{
	struct record_builder b;
	int r;

	record_builder_init(&b, c, c->tx_view);
	if (c->has_new_mutes)
		record_add_mutes(&b, c);
	for (const struct sched_member *m = c->dirty_members; m; m = m->next_dirty)
		record_add_member(&b, m);
	for (const struct sched_job *j = c->dirty_jobs; j; j = j->next_dirty)
		add_job_changes(&b, c, j, c->tx_view);
	r = c->env.persist(c->env.ctx, &b.rec);
	record_builder_fini(&b);
	return r;
}

static const struct sched_job *ended_job_at_index(const struct sched_core *c, uint32_t n)
{
	const struct sched_job *j = c->ended;

	while (n--)
		j = j->next;
	return j;
}

int sched_snapshot(
	const struct sched_core *c, int (*fn)(void *ctx, const struct state_record *rec), void *ctx)
{
	struct record_builder b;
	int r;

	record_builder_init(&b, c, c->view);
	record_add_mutes(&b, c);
	for (uint32_t i = 1; i <= c->n_members; i++)
		record_add_member(&b, c->members[i]);
	for (uint32_t i = c->n_ended; i-- > 0;) /* in the order in which the jobs ended */
		record_add_job(&b, c, ended_job_at_index(c, i));
	for (const struct sched_job *j = c->jobs; j; j = j->next) {
		if (j->state != JOB_RUNNING)
			continue;
		record_add_job(&b, c, j);
		for (uint32_t i = 0; i < j->n_placed; i++) {
			record_add_tensor(&b, j, j->placed[i]);
			record_add_runs(&b, j, j->placed[i], 0);
		}
	}
	r = fn(ctx, &b.rec);
	record_builder_fini(&b);
	return r;
}

/* ---- restoring ---- */

static int restore_member(struct sched_core *c, const struct state_member *s, struct err_text *err)
{
	const struct ctl_hello *h = &s->hello;
	struct sched_member *m = sched_member_by_id(c, s->id);

	if ((!m && s->id != c->n_members + 1) || (m && m->role != h->role) ||
		(h->role != ROLE_SERVER && h->role != ROLE_AGENT) ||
		(h->role == ROLE_SERVER && !h->threads))
		return err_set(err, -EINVAL,
			"member %u '%s' is invalid or contradicts earlier records", s->id, h->name);
	if (!m)
		m = sched_member_add(c, s->id, h->role, h->name);
	/* A server that has partitions may have restarted with a different number of threads.
	 * Assign its partitions to threads that exist, and compute the loads of the threads. */
	if (m->threads != h->threads)
		place_server_rethread(c, m, h->threads);
	m->instance = h->instance;
	sched_member_describe(c, m, h);
	sched_member_set_state(c, m, s->is_up ? MEMBER_EXPECTED : MEMBER_DOWN, NULL);
	drain_restore(m, s);
	return 0;
}

static int restore_workers(struct sched_core *c, struct sched_job *j, const struct state_job *s)
{
	for (uint32_t i = 0; i < s->n_members; i++) {
		const struct state_job_member *sm = &s->members[i];
		const struct sched_member *m = sched_member_by_id(c, sm->agent);

		if (!m || m->role != ROLE_AGENT || sched_job_member_ever(j, sm->agent) != CTL_NO_ID)
			return -EINVAL;
		sched_job_member_add(j, sm->agent)->since = sm->since;
		for (uint32_t k = 0; k < sm->n_workers; k++) {
			uint32_t rank = sm->workers[k].rank;

			if (rank >= sched_rank_bound(j) ||
				sched_worker_at(j, rank)->state != WORKER_ABSENT)
				return -EINVAL;
			sched_job_attach(
				j, rank, sm->agent, sm->workers[k].pid, sm->workers[k].seq);
		}
	}
	if (!j->max_size && j->n_joined != j->size)
		return -EINVAL;
	for (uint32_t i = 0; i < s->n_members; i++)
		if (s->members[i].is_gone)
			sched_job_member_drop(c, j, i, s->members[i].why);
	return j->n_joined || s->is_ended ? 0 : -EINVAL;
}

static struct sched_job *job_of_record(struct sched_core *c, const struct state_job *s)
{
	struct sched_job *j = sched_job_new(s->id, s->uid, s->name, s->size);

	j->flags = s->flags;
	j->part_bytes = s->part_bytes;
	j->has_token = s->token.bytes == CTL_TOKEN_BYTES;
	if (j->has_token)
		memcpy(j->token, s->token.data, CTL_TOKEN_BYTES);
	j->view = s->view;
	j->formed = s->formed;
	j->backup = s->backup;
	j->grace_ms = s->grace_ms;
	j->max_size = s->max_size;
	j->barrier = s->barrier;
	j->border = s->border;
	j->border_barrier = s->border_barrier;
	sched_job_set_state(c, j, s->is_ended ? JOB_ENDED : JOB_RUNNING, NULL);
	j->since_ns = s->ended_unix_s ? record_ns_of_unix(c, s->ended_unix_s) : 0;
	j->code = s->code;
	j->end_text = s->is_ended ? sched_dup_string(s->text) : NULL;
	if (ctl_has_cause(&s->cause)) {
		j->cause_rank = s->cause.rank;
		j->cause_host = sched_dup_string(s->cause.host);
	}
	return j;
}

/* Update a running job from a second or later record of this job. These records are written when
 * the job's machines have changed, or when the job has passed a barrier. */
static int restore_members(
	struct sched_core *c, struct sched_job *j, const struct state_job *s, struct err_text *err)
{
	uint32_t was = j->n_members;

	for (uint32_t i = 0; i < j->n_members; i++)
		free(j->members[i].why);
	memset(j->workers, 0, j->n_room * sizeof(*j->workers));
	j->n_members = j->n_left = j->n_joined = j->n_gone = j->n_done = 0;
	if (j->formed != s->formed || restore_workers(c, j, s) < 0)
		return err_set(err, -EINVAL,
			"the record of the machines of job %u '%s' contradicts earlier records",
			s->id, s->name);
	sched_job_rescale(c, j, was);
	j->view = s->view;
	j->barrier = s->barrier;
	j->border = s->border;
	j->border_barrier = s->border_barrier;
	return 0;
}

/* Restore a job. A record of a job is written when the job forms, when its machines change, when it
 * passes a barrier, and when it ends. */
static int restore_job(struct sched_core *c, const struct state_job *s, struct err_text *err)
{
	struct sched_job *j = sched_job_by_id(c, s->id);

	if (j && !s->is_ended)
		return restore_members(c, j, s, err);
	if (j) {
		sched_job_unlink(c, j);
		sched_job_free(c, j);
	}
	if (!s->name[0] || !s->size || s->size > CTL_WORKERS_MAX || s->id >= c->job_id_limit ||
		sched_job_any_by_id(c, s->id))
		return err_set(err, -EINVAL,
			"job %u '%s' is invalid or contradicts earlier records", s->id, s->name);
	j = job_of_record(c, s);
	if (restore_workers(c, j, s) < 0) {
		sched_job_free(c, j);
		return err_set(err, -EINVAL,
			"the record of the workers of job %u '%s' contradicts earlier records",
			s->id, s->name);
	}
	sched_job_link(c, j);
	sched_ended_trim(c);
	return 0;
}

static int restore_tensor(struct sched_core *c, const struct state_tensor *s, struct err_text *err)
{
	struct sched_job *j = sched_job_by_id(c, s->job);
	struct err_text why = {"its name or its place is wrong"};
	struct sched_tensor *t;

	if (!j || s->tensor != j->n_placed || !s->part_elems ||
		shape_check(&s->shape, SCHED_TENSOR_BYTES_MAX, &why) < 0 ||
		shape_check_shards(&s->shape, j->size, &why) < 0 ||
		shape_partition_count(&s->shape, shape_shards(&s->shape, j->size), s->part_elems) >
			PLACE_PARTS_MAX ||
		sched_tensor_find(j, s->name))
		return err_set(err, -EINVAL,
			"tensor '%s' of job %u is invalid or contradicts earlier records: %s",
			s->name, s->job, why.s);
	t = sched_alloc(1, sizeof(*t));
	t->id = CTL_NO_ID;
	t->name = sched_dup_string(s->name);
	t->shape = s->shape;
	t->n_shards = shape_shards(&s->shape, j->size);
	t->part_elems = s->part_elems;
	sched_tensor_set_state(j, t, TENSOR_READY, NULL);
	sched_tensor_add(j, t);
	admission_claim(c, j, t);
	sched_tensor_publish(j, t);
	return 0;
}

static int restore_partition_run(
	struct sched_core *c, const struct state_run *s, struct err_text *err)
{
	struct sched_job *j = sched_job_by_id(c, s->job);
	const struct ctl_run *r = &s->run;
	struct sched_tensor *t = j && r->tensor < j->n_placed ? j->placed[r->tensor] : NULL;
	struct sched_member *m = r->server == CTL_NO_ID ? NULL : sched_member_by_id(c, r->server);

	if (!t || !r->n || (uint64_t)r->first + r->n > t->n_parts || !t->parts ||
		(r->server != CTL_NO_ID && (!m || m->role != ROLE_SERVER)) ||
		(m && (r->thread >= m->threads || r->instance != m->instance)))
		return err_set(err, -EINVAL,
			"the range of partitions that begins with partition %u of tensor %u of job "
			"%u contradicts earlier records",
			r->first, r->tensor, s->job);
	for (uint32_t i = r->first; i < r->first + r->n; i++) {
		if (r->pgen < t->parts[i].pgen)
			return err_set(err, -EINVAL,
				"a pgen of job %u is smaller than in earlier records", s->job);
		sched_part_set(c, j, t, i, m, r->thread, r->pgen);
	}
	return 0;
}

static int restore_record_head(
	struct sched_core *c, const struct state_record *rec, struct err_text *err)
{
	if (rec->cluster_id.bytes != STATE_ID_BYTES || rec->secret.bytes != STATE_SECRET_BYTES)
		return err_set(err, -EINVAL, "the cluster id or the secret has a wrong length");
	if (rec->term < c->term || rec->view < c->view || rec->job_id_limit < c->job_id_limit)
		return err_set(
			err, -EINVAL, "term, view or job id is smaller than in earlier records");
	memcpy(c->cluster_id, rec->cluster_id.data, STATE_ID_BYTES);
	memcpy(c->secret, rec->secret.data, STATE_SECRET_BYTES);
	c->is_restored = true;
	c->term = rec->term;
	c->view = rec->view;
	c->job_id_limit = rec->job_id_limit;
	return 0;
}

int sched_restore(struct sched_core *c, const struct state_record *rec, struct err_text *err)
{
	int r = restore_record_head(c, rec, err);

	for (uint32_t i = 0; r == 0 && i < rec->n_members; i++)
		r = restore_member(c, &rec->members[i], err);
	for (uint32_t i = 0; r == 0 && i < rec->n_jobs; i++)
		r = restore_job(c, &rec->jobs[i], err);
	for (uint32_t i = 0; r == 0 && i < rec->n_tensors; i++)
		r = restore_tensor(c, &rec->tensors[i], err);
	for (uint32_t i = 0; r == 0 && i < rec->n_runs; i++)
		r = restore_partition_run(c, &rec->runs[i], err);
	if (r == 0 && rec->has_mutes && mute_restore(c, rec->mutes, rec->n_mutes) < 0)
		r = err_set(err, -EINVAL, "too many mutes");
	return r;
}
