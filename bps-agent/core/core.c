/* Jobs, tensors and plans of the agent's core. The functions add tensors, submit tensors, place
 * partitions, and do the work of each iteration of the loop. part.c handles single partitions, and
 * link.c handles connections. Thread: the thread of the xport. */
#include "bps-agent/core/core_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-agent/core/lockstep.h"
#include "common/base/log.h"

/* Partition size in bytes for jobs that have only one member. Such jobs need no server. */
#define LOCAL_PART_BYTES (256u << 10)
/* Maximum number of calls of link_send_pending per call of agt_core_run_queued_work. If the calls
 * send few bytes, this limit ends the loop before the limit turn_bytes does. */
#define TURN_PUMPS 16

int agt_core_new(const struct agt_config *cfg, const struct agt_env *env, struct xport *x,
	struct agt_core **ret)
{
	struct agt_core *core = calloc(1, sizeof(*core));

	if (!core)
		return -ENOMEM;
	core->cfg = *cfg;
	core->env = *env;
	core->x = x;
	TAILQ_INIT(&core->jobs);
	TAILQ_INIT(&core->links);
	TAILQ_INIT(&core->active);
	*ret = core;
	return 0;
}

static void core_tensor_free(struct agt_tensor *t)
{
	struct agt_job *job = t->job;

	TAILQ_REMOVE(&job->tensors, t, link);
	for (uint32_t i = 0; t->parts && i < t->n_parts; i++) {
		part_stop_activity(&t->parts[i]);
		link_detach_part(&t->parts[i]);
	}
	job->core->n_parts -= t->n_parts;
	job->n_parts -= t->n_parts;
	free(t->parts);
	free(t->own_kept);
	free(t->submitted);
	free(t->weights);
	free(t->is_given);
	free(t);
}

static void job_destroy(struct agt_job *job)
{
	void (*release)(void *) = job->release;
	void *ctx = job->release_ctx;

	while (!TAILQ_EMPTY(&job->tensors))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the analyzer ignores TAILQ_REMOVE */
		core_tensor_free(TAILQ_FIRST(&job->tensors));
	TAILQ_REMOVE(&job->core->jobs, job, link);
	heap_fini(&job->parked);
	heap_fini(&job->lagging);
	heap_fini(&job->held);
	free(job->homes);
	free(job->by_id);
	free(job->ranks);
	free(job);
	if (release)
		release(ctx);
}

void agt_core_free(struct agt_core *core)
{
	if (!core)
		return;
	while (!TAILQ_EMPTY(&core->jobs))
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the analyzer ignores TAILQ_REMOVE */
		job_destroy(TAILQ_FIRST(&core->jobs));
	while (!TAILQ_EMPTY(&core->links))
		link_free(TAILQ_FIRST(&core->links));
	heap_fini(&core->local);
	heap_fini(&core->timers);
	heap_fini(&core->link_timers);
	free(core);
}

void agt_core_set_xport(struct agt_core *core, struct xport *x)
{
	core->x = x;
}

struct agt_job *agt_job_find(struct agt_core *core, uint32_t id)
{
	struct agt_job *job;

	TAILQ_FOREACH (job, &core->jobs, link)
		if (job->id == id && !job->is_closing)
			return job;
	return NULL;
}

int agt_job_new(
	struct agt_core *core, const struct ctl_job *msg, uint16_t my_member, struct agt_job **ret)
{
	const struct ctl_job_member *me = &msg->members[my_member];
	struct agt_job *job = calloc(1, sizeof(*job));

	if (!job)
		return -ENOMEM;
	job->core = core;
	job->id = msg->job;
	job->size = msg->size;
	job->member = my_member;
	job->n_members = (uint16_t)msg->n_members;
	job->is_local = job_is_local(msg->n_members, msg->flags);
	job->has_backup = msg->backup > 0;
	job->may_shrink = msg->flags & JOB_SHRINK;
	job->border = msg->border;
	job->n_workers = me->n_ranks;
	TAILQ_INIT(&job->tensors);
	job->ranks = calloc(me->n_ranks, sizeof(*job->ranks));
	if (!job->ranks) {
		free(job);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < me->n_ranks; i++)
		job->ranks[i] = me->ranks[i].rank;
	TAILQ_INSERT_TAIL(&core->jobs, job, link);
	*ret = job;
	return 0;
}

void agt_job_members(struct agt_job *job, const struct ctl_job *msg)
{
	struct agt_tensor *t;

	job->n_members = (uint16_t)msg->n_members;
	job->size = msg->size;
	/* Set has_backup again here. After a restart, the agent calls agt_job_new with a message
	 * that it made from the kept state. That message, unlike `msg` here, does not contain the
	 * number of backup machines. */
	job->has_backup = msg->backup > 0;
	if (msg->border <= job->border)
		return;
	/* Rounds that are submitted from now on belong to the new set of members. The partitions
	 * have no server from here on, until the placement for the new set arrives. */
	job->border = msg->border;
	TAILQ_FOREACH (t, &job->tensors, link)
		for (uint32_t i = 0; i < t->n_parts; i++)
			if (t->parts[i].pgen < job->border)
				part_move_to_server(&t->parts[i], NULL, t->parts[i].pgen);
}

uint64_t agt_tensor_base(const struct agt_tensor *t)
{
	return t->n_parts ? t->parts[0].kept->base : 0;
}

void agt_job_work_ended(struct agt_job *job)
{
	if (job->is_closing && job->n_reads == 0 && job->n_tasks == 0)
		job_destroy(job);
}

void agt_job_free(struct agt_job *job, void (*release)(void *ctx), void *release_ctx)
{
	struct agt_tensor *t;

	if (!job)
		return;
	job->is_closing = true;
	job->release = release;
	job->release_ctx = release_ctx;
	TAILQ_FOREACH (t, &job->tensors, link)
		for (uint32_t i = 0; i < t->n_parts; i++)
			part_abandon_round(&t->parts[i], "job is closing");
	agt_job_work_ended(job);
}

struct agt_contributors agt_tensor_contributors(const struct agt_tensor *t)
{
	struct agt_contributors c = {.least = t->n_parts ? UINT32_MAX : 0};
	unsigned at = t->round & 1;

	memset(&c.members, t->n_parts ? 0xff : 0, sizeof(c.members));
	for (uint32_t i = 0; i < t->n_parts; i++) {
		const struct agt_kept_part *k = t->parts[i].kept;

		for (unsigned w = 0; w < WIRE_MEMBERS_MAX / 64; w++)
			c.members.w[w] &= t->job->is_local || tensor_is_value(t)
						  ? UINT64_MAX
						  : k->contributors[at].w[w];
		c.least = k->workers[at] < c.least ? k->workers[at] : c.least;
		c.most = k->workers[at] > c.most ? k->workers[at] : c.most;
		c.is_late |= k->is_late[at] != 0;
	}
	c.has_mine = member_set_has(&c.members, t->job->member);
	return c;
}

/* End the round in progress. If no round is in progress, end the next round, which some worker has
 * submitted already. */
static void tensor_end_round(struct agt_tensor *t, int status)
{
	struct agt_core *core = t->job->core;

	t->is_running = t->is_unstaging = false;
	t->n_submitted = 0;
	t->round++;
	if (status == 0)
		agt_tensor_round_complete(t);
	core->env.done(core->env.ctx, t->user, t->round, status,
		status ? 0 : agt_tensor_contributors(t).least);
}

void agt_tensor_fail(struct agt_tensor *t, int code)
{
	bool has_waiters = t->is_running || t->n_submitted > 0;

	if (!t->failed)
		t->failed = code;
	for (uint32_t i = 0; i < t->n_parts; i++)
		part_abandon_round(&t->parts[i], "tensor has failed");
	t->is_end_due = has_waiters && t->n_tasks > 0;
	if (has_waiters && !t->is_end_due)
		tensor_end_round(t, t->failed);
}

void agt_tensor_task_ended(struct agt_tensor *t)
{
	if (t->n_tasks == 0 && t->is_end_due) {
		t->is_end_due = false;
		tensor_end_round(t, t->failed);
	}
	agt_job_work_ended(t->job);
}

void agt_job_fail(struct agt_job *job, int code)
{
	struct agt_tensor *t;

	if (job->failed)
		return;
	job->failed = code;
	TAILQ_FOREACH (t, &job->tensors, link)
		agt_tensor_fail(t, code);
}

void agt_job_fail_and_report(struct agt_job *job, int code, const char *fmt, ...)
{
	struct err_text err;

	if (job->failed)
		return;
	format_arguments(err.s, fmt);
	log_limited(LOG_AS(LOG_WARN, JOB_FAILED), "job failed on this host: job=%u err=%s: %s",
		job->id, err_str(code), err.s);
	job->core->env.fail(job->core->env.ctx, job->id, code, err.s);
	agt_job_fail(job, code);
}

/* in_workers: as agt_tensor_new_device describes; NULL: each input is the values of one worker. */
static int agt_tensor_allocate(struct agt_job *job, const struct tensor_shape *shape,
	const struct agt_mem *in, const uint16_t *in_workers, uint32_t n_in,
	const struct agt_mem *staging, const struct agt_mem out[2], void *user,
	struct agt_tensor **ret)
{
	struct agt_tensor *t = calloc(1, sizeof(*t) + n_in * sizeof(t->in[0]));

	if (!t)
		return -ENOMEM;
	t->submitted = calloc(job->n_workers, sizeof(*t->submitted));
	t->weights = calloc(n_in, sizeof(*t->weights));
	t->is_given = calloc(n_in, sizeof(*t->is_given));
	if (!t->submitted || !t->weights || !t->is_given) {
		free(t->submitted);
		free(t->weights);
		free(t->is_given);
		free(t);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n_in; i++) {
		t->weights[i] = in_workers ? in_workers[i] : 1;
		t->is_given[i] = true;
	}
	t->n_given = n_in;
	t->job = job;
	t->user = user;
	t->shape = *shape;
	t->id = CTL_NO_ID;
	t->n_in = n_in;
	memcpy(t->in, in, n_in * sizeof(*in));
	if (staging)
		t->staging = *staging;
	t->out[0] = out[0];
	t->out[1] = out[1];
	TAILQ_INSERT_TAIL(&job->tensors, t, link);
	job->tensor_bytes += shape_bytes(shape);
	*ret = t;
	return 0;
}

int agt_tensor_new(struct agt_job *job, const struct tensor_shape *shape, const struct agt_mem *in,
	const struct agt_mem *staging, const struct agt_mem out[2], void *user,
	struct agt_tensor **ret)
{
	return agt_tensor_allocate(job, shape, in, NULL, job->n_workers, staging, out, user, ret);
}

int agt_tensor_new_device(struct agt_job *job, const struct tensor_shape *shape,
	const struct agt_mem *in, const uint16_t *in_workers, uint32_t n_in,
	const struct agt_mem *staging, const struct agt_mem out[2], void *user,
	struct agt_tensor **ret)
{
	int rc = agt_tensor_allocate(job, shape, in, in_workers, n_in, staging, out, user, ret);

	if (rc == 0)
		(*ret)->is_device = true;
	return rc;
}

/* Start a round of a device tensor. If a sum was already in its out-slot before a restart, report
 * the sum to the executor again. The previous report may have been lost. */
static void tensor_start_device_round(struct agt_tensor *t, uint64_t round)
{
	struct agt_env *env = &t->job->core->env;

	env->stage(env->ctx, t->user, round, t->op, t->priority);
	for (uint32_t i = 0; i < t->n_parts; i++)
		if (t->parts[i].state == PART_IDLE)
			env->unstage(env->ctx, t->user, i, round);
	t->is_unstaging = t->parts_left == 0;
}

static void tensor_start_round(struct agt_tensor *t)
{
	uint64_t round = t->round + 1;

	t->is_running = true;
	t->begun_seq = t->job->core->n_begun++;
	t->has_landed = false;
	t->parts_left = 0;
	/* A partition needs no work if the sum of this round reached the out-slot before a
	 * restart. Such a partition already has this round number. */
	for (uint32_t i = 0; i < t->n_parts; i++)
		t->parts_left += t->parts[i].round < round;
	for (uint32_t i = 0; i < t->n_parts; i++)
		if (t->parts[i].round < round)
			part_start_round(&t->parts[i]);
	if (t->is_device)
		tensor_start_device_round(t, round);
}

/* Start the next round when all local workers have submitted it and the placement is known. */
static void tensor_try_start(struct agt_tensor *t)
{
	int failed = t->job->failed ? t->job->failed : t->failed;

	if (failed && t->n_submitted > 0)
		tensor_end_round(t, failed);
	else if (!failed && t->is_planned && !t->is_running && t->n_submitted == t->job->n_workers)
		tensor_start_round(t);
}

void agt_tensor_part_done(struct agt_tensor *t)
{
	assert(t->is_running && t->parts_left > 0);
	if (--t->parts_left > 0)
		return;
	if (t->is_device)
		t->is_unstaging = true;
	else
		tensor_end_round(t, 0);
}

int agt_part_staged(struct agt_tensor *t, uint32_t part, uint64_t round)
{
	if (!t->is_running || round != t->round + 1 || part >= t->n_parts ||
		!t->parts[part].is_staging)
		return -EINVAL;
	part_staging_done(&t->parts[part]);
	return 0;
}

int agt_tensor_unstaged(struct agt_tensor *t, uint64_t round)
{
	if (!t->is_unstaging || round != t->round + 1)
		return -EINVAL;
	tensor_end_round(t, 0);
	return 0;
}

uint64_t agt_tensor_part_bytes(const struct agt_tensor *t)
{
	return (uint64_t)t->part_elems * dtype_bytes(t->shape.dtype);
}

static int job_index_tensor(struct agt_job *job, uint32_t id, struct agt_tensor *t)
{
	if (id >= job->n_by_id) {
		uint32_t n = id + 64;
		struct agt_tensor **v = realloc(job->by_id, n * sizeof(struct agt_tensor *));

		if (!v)
			return -ENOMEM;
		memset(v + job->n_by_id, 0, (n - job->n_by_id) * sizeof(struct agt_tensor *));
		job->by_id = v;
		job->n_by_id = n;
	}
	job->by_id[id] = t;
	return 0;
}

static int job_reserve_heaps(struct agt_job *job, uint32_t n)
{
	struct agt_core *core = job->core;
	int rc = heap_reserve(&core->timers, core->n_parts + n);

	if (rc == 0)
		rc = heap_reserve(&core->local, core->n_parts + n);
	return rc < 0 ? rc : heap_reserve(&job->parked, job->n_parts + n);
}

static bool is_over_inflight_limit(const struct agt_job *job, uint64_t bytes)
{
	uint64_t limit = job->core->cfg.job_inflight_bytes;

	return !job->is_local && limit && bytes > limit;
}

/* Return the memory that keeps the partitions' state across restarts. NULL: out of memory. */
static struct agt_kept_part *tensor_get_kept_parts(
	struct agt_tensor *t, uint32_t id, uint32_t part_elems, uint32_t n_parts)
{
	struct agt_core *core = t->job->core;

	if (core->env.keep)
		return core->env.keep(core->env.ctx, t->user, id, part_elems, n_parts);
	t->own_kept = calloc(n_parts, sizeof(*t->own_kept));
	return t->own_kept;
}

/* Find the tensor's last complete round in the state that the previous process kept (K3, K6). *ret
 * is 0 if no round is complete. Errors: BPS_EPROTO: the kept state contradicts itself. */
static int kept_last_complete_round(
	const struct agt_kept_part *kept, uint32_t n_parts, bool is_device, uint64_t *ret)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (uint32_t i = 0; i < n_parts; i++) {
		uint64_t landed = atomic_load_explicit(&kept[i].landed, memory_order_acquire);

		least = landed < least ? landed : least;
		most = landed > most ? landed : most;
	}
	*ret = is_device && least == most && least ? least - 1 : least;
	return most - least > 1 || most == UINT64_MAX ? BPS_EPROTO : 0;
}

/* Create the tensor's partitions, and read the round of each partition from the kept state. Errors:
 * -ENOMEM, BPS_EPROTO. */
static int tensor_make_parts(
	struct agt_tensor *t, uint32_t id, uint32_t part_elems, uint32_t n_parts)
{
	struct agt_kept_part *kept =
		n_parts ? tensor_get_kept_parts(t, id, part_elems, n_parts) : NULL;
	uint64_t round;

	if (!kept)
		return -ENOMEM;
	if (kept_last_complete_round(kept, n_parts, t->is_device, &round) < 0)
		return BPS_EPROTO;
	t->parts = calloc(n_parts, sizeof(t->parts[0]));
	if (!t->parts)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_parts; i++) {
		part_init(&t->parts[i], t, i, &kept[i]);
		t->has_landed |= t->parts[i].round > round;
	}
	for (uint32_t w = 0; round && w < t->job->n_workers; w++)
		t->submitted[w] = round;
	if (round)
		t->round = round;
	return 0;
}

int agt_tensor_plan(struct agt_tensor *t, const struct ctl_tensor *plan)
{
	struct agt_job *job = t->job;
	size_t elem = dtype_bytes(t->shape.dtype);
	uint32_t part_elems = plan->part_elems;
	uint64_t n_parts;
	int rc;

	if (t->is_planned)
		return 0;
	if (job->is_local)
		part_elems = (uint32_t)(LOCAL_PART_BYTES / elem);
	if (!shape_is_equal(&plan->shape, &t->shape) || !part_elems ||
		part_elems > UINT32_MAX / elem || plan->tensor >= CTL_TENSORS_MAX ||
		shape_check_shards(&t->shape, job->size, &(struct err_text){0}) < 0)
		return BPS_EPROTO;
	t->n_shards = job->is_local ? 1 : shape_shards(&t->shape, job->size);
	t->part_elems = part_elems;
	n_parts = shape_partition_count(&t->shape, t->n_shards, part_elems);
	if (n_parts > UINT32_MAX)
		return BPS_EPROTO;
	if (is_over_inflight_limit(
		    job, shape_part_elems(&t->shape, t->n_shards, part_elems, 0) * elem))
		return BPS_EQUOTA;
	if (job_reserve_heaps(job, (uint32_t)n_parts) < 0 ||
		job_index_tensor(job, plan->tensor, t) < 0)
		return -ENOMEM;
	rc = tensor_make_parts(t, plan->tensor, part_elems, (uint32_t)n_parts);
	if (rc < 0)
		return rc;
	t->id = plan->tensor;
	t->n_parts = (uint32_t)n_parts;
	job->core->n_parts += t->n_parts;
	job->n_parts += t->n_parts;
	t->is_planned = true;
	tensor_try_start(t);
	return 0;
}

static void tensor_apply_placement(struct agt_tensor *t, const struct ctl_run *run)
{
	struct agt_core *core = t->job->core;
	struct agt_link *link = NULL;

	if (run->server != CTL_NO_ID) {
		link = link_find_or_create(core, run->server, run->thread);
		if (!link) {
			agt_job_fail_and_report(t->job, -ENOMEM, "out of memory in the agent");
			return;
		}
	}
	for (uint32_t i = run->first; i < run->first + run->n; i++)
		/* rule A5: only a placement with a larger pgen is applied */
		if (run->pgen > t->parts[i].pgen)
			part_move_to_server(&t->parts[i], link, run->pgen);
}

void agt_job_apply_placement(struct agt_job *job, const struct ctl_run *runs, uint32_t n_runs)
{
	for (uint32_t r = 0; r < n_runs && !job->failed; r++) {
		struct agt_tensor *t =
			runs[r].tensor < job->n_by_id ? job->by_id[runs[r].tensor] : NULL;

		if (!t || t->failed)
			continue;
		if (runs[r].first >= t->n_parts || runs[r].n > t->n_parts - runs[r].first) {
			log_rated(LOG_WARN,
				"ignoring a placement from the scheduler, because it names "
				"partitions that the tensor does not have: job=%u tensor=%u",
				job->id, t->id);
			continue;
		}
		tensor_apply_placement(t, &runs[r]);
	}
}

/* Note whether the worker's input is in the contribution to the next round. */
static void tensor_note_given(struct agt_tensor *t, uint32_t worker, bool abstains)
{
	if (t->is_device)
		return;
	if (t->n_submitted == 0)
		t->n_given = 0;
	t->is_given[worker] = !abstains;
	if (abstains)
		return;
	if (!t->n_given || worker < t->first_given)
		t->first_given = worker;
	t->n_given++;
}

int agt_tensor_submit(struct agt_tensor *t, uint32_t worker, uint64_t round, uint8_t op,
	uint16_t priority, bool abstains)
{
	int failed = t->job->failed ? t->job->failed : t->failed;

	if (round != t->submitted[worker] + 1)
		return BPS_EBUSY;
	if (failed && round <= t->round) {
		/* the round failed before this worker submitted it */
		t->submitted[worker] = round;
		return failed;
	}
	if (t->is_running || round != t->round + 1)
		return BPS_EBUSY;
	if (t->n_submitted > 0 && op != t->op)
		return BPS_EMISMATCH;
	if (t->n_submitted == 0) {
		t->op = op;
		t->priority = priority;
	}
	if (priority > t->priority)
		t->priority = priority;
	tensor_note_given(t, worker, abstains);
	agt_tensor_record_submission(t, worker);
	t->submitted[worker] = round;
	t->n_submitted++;
	tensor_try_start(t);
	return 0;
}

uint64_t agt_tensor_round(const struct agt_tensor *t)
{
	return t->round;
}

uint32_t agt_tensor_id(const struct agt_tensor *t)
{
	return t->id;
}

/* Send contributions until their bytes reach turn_bytes. Send on one connection while it accepts
 * more, then on the next connection. */
static void core_send_contributions(struct agt_core *core)
{
	uint64_t before = core->stats.pushed_bytes;
	struct agt_link *link = TAILQ_FIRST(&core->active);

	for (unsigned i = 0; link && i < TURN_PUMPS; i++) {
		if (!link_send_pending(link))
			link = TAILQ_FIRST(&core->active);
		if (core->stats.pushed_bytes - before >= core->cfg.turn_bytes)
			return;
	}
}

/* Return whether the sum of a partition can start. When all room is taken, the end of a task makes
 * room. */
static bool core_has_room_for_task(const struct agt_core *core)
{
	return !core->x->tasks_max || core->n_local_tasks < core->x->tasks_max;
}

bool agt_core_run_queued_work(struct agt_core *core)
{
	struct heap_node *node;

	core_send_contributions(core);
	do {
		node = core_has_room_for_task(core) ? heap_min(&core->local) : NULL;
		if (node)
			part_sum_local(part_of_heap_node(node));
	} while (node && core->x->tasks_max);
	return (core->local.n > 0 && core_has_room_for_task(core)) || !TAILQ_EMPTY(&core->active);
}

uint64_t agt_core_run_timers(struct agt_core *core, uint64_t now_ns)
{
	struct agt_job *job;
	struct heap_node *n;
	uint64_t next = UINT64_MAX;

	core->now_ns = now_ns;
	while ((n = heap_min(&core->timers)) && n->key <= now_ns)
		on_part_timer_expiry(
			(struct agt_part *)((char *)n - offsetof(struct agt_part, timer)));
	if (n)
		next = n->key;
	while ((n = heap_min(&core->link_timers)) && n->key <= now_ns) {
		link_retry_connect(
			(struct agt_link *)((char *)n - offsetof(struct agt_link, timer)));
		if (heap_min(&core->link_timers) == n)
			/* The attempt to connect has failed immediately, and the next attempt is
			 * already due. Handle other events first. */
			break;
	}
	n = heap_min(&core->link_timers);
	if (n && n->key < next)
		next = n->key;
	TAILQ_FOREACH (job, &core->jobs, link) {
		uint64_t late_ns = lockstep_mark_late_shares(job);

		next = late_ns < next ? late_ns : next;
	}
	return next;
}

void agt_core_set_window(struct agt_core *core, size_t window_bytes)
{
	core->cfg.window_bytes = window_bytes;
}

void agt_core_set_job_inflight(struct agt_core *core, uint64_t bytes)
{
	struct agt_job *job;

	core->cfg.job_inflight_bytes = bytes;
	TAILQ_FOREACH (job, &core->jobs, link)
		job_unpark_parts(job);
}
