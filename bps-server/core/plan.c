/* Creates and frees jobs and their partitions on this server, according to the scheduler's
 * messages. rounds.c handles the messages of members. All functions run on the data thread that
 * owns the core. */
#include "bps-server/core/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-server/core/completion.h"
#include "bps-server/core/job.h"
#include "bps-server/core/reads.h"
#include "bps-server/core/round_rule.h"
#include "bps-server/core/values.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

static void part_free(struct srv_core *core, struct srv_part *part)
{
	value_reset_for_pgen(part);
	for (unsigned i = 0; i < 2; i++) {
		slot_reset_to_empty(core, &part->slots[i]);
		pool_put(core->sums, part->slots[i].result);
	}
	for (unsigned i = 0; i < part->n_seats; i++)
		seat_reset_for_pgen(core, &part->seats[i]);
	pool_put(core->sums, part->acc);
	value_free(part);
	core->stats.parts--;
	free(part);
}

void plan_free_job(struct srv_core *core, struct srv_job *job)
{
	for (uint32_t t = 0; t < job->n_tensors; t++) {
		struct srv_tensor *tensor = &job->tensors[t];

		for (uint32_t i = 0; tensor->parts && i < tensor->n_parts; i++)
			if (tensor->parts[i])
				part_free(core, tensor->parts[i]);
		free(tensor->parts);
	}
	free(job->tensors);
	free(job->fail_text);
	free(job->arrivals);
	free(job->members);
	free(job->member_of_rank);
	TAILQ_REMOVE(&core->jobs, job, link);
	if (core->last_job == job)
		core->last_job = NULL;
	free(job);
}

/* Return whether msg describes this job. The job number is not sufficient, because a new scheduler
 * can reuse the number for a different job. But the two jobs have formed in different views. */
static bool job_is_same_as_message(const struct srv_job *job, const struct ctl_job *msg)
{
	return job->view == msg->view ||
	       (msg->formed && job->formed == msg->formed && job->n_members <= msg->n_members);
}

static void job_take_members(struct srv_job *job, const struct ctl_job *msg)
{
	job->view = msg->view;
	job->n_live = 0;
	memset(&job->live, 0, sizeof(job->live));
	for (uint32_t i = 0; i < msg->n_members; i++) {
		const struct ctl_job_member *m = &msg->members[i];

		job->members[i].agent = job->arrivals->members[i].agent = m->agent;
		job->members[i].workers = m->n_ranks;
		snprintf(job->members[i].host, sizeof(job->members[i].host), "%s",
			m->host ? m->host : "");
		if (m->is_gone)
			continue;
		member_set_add(&job->live, i);
		job->n_live++;
	}
	job->arrivals->n_live = job->n_live;
}

/* Return an array with the member that has each rank; NO_OWNER: none has it. Returns NULL if out of
 * memory. */
static uint16_t *job_map_ranks(const struct ctl_job *msg)
{
	uint16_t *ret = malloc((msg->size + (size_t)1) * sizeof(*ret));

	if (!ret)
		return NULL;
	memset(ret, 0xff, (msg->size + (size_t)1) * sizeof(*ret)); /* NO_OWNER */
	for (uint32_t m = 0; m < msg->n_members; m++)
		for (uint32_t i = 0; i < msg->members[m].n_ranks; i++)
			if (msg->members[m].ranks[i].rank < msg->size)
				ret[msg->members[m].ranks[i].rank] = (uint16_t)m;
	return ret;
}

/* Enlarge the job's lists for more members. A partition gets seats for the new members when it gets
 * its next pgen. */
static int job_grow_member_lists(struct srv_core *core, struct srv_job *job, uint32_t n_members)
{
	struct arrivals *a = arrivals_new(n_members, core->now_ns);
	struct srv_job_member *m = a ? realloc(job->members, n_members * sizeof(*m)) : NULL;

	if (!m) {
		free(a);
		return -ENOMEM;
	}
	memset(m + job->n_members, 0, (n_members - job->n_members) * sizeof(*m));
	job->members = m;
	free(job->arrivals);
	job->arrivals = a;
	job->n_members = (uint16_t)n_members;
	return 0;
}

int srv_core_apply_job(struct srv_core *core, const struct ctl_job *msg)
{
	struct srv_job *job = srv_job_find(core, msg->job);
	int rc = FAILPOINT(SERVER_JOB_NEW);

	if (rc < 0)
		return rc;
	if (msg->n_members > WIRE_MEMBERS_MAX)
		return BPS_EPROTO;
	if (job && job_is_same_as_message(job, msg)) {
		/* The message was sent again after a reconnect, or the members have changed. */
		job->is_confirmed = true;
		if (msg->n_members > job->n_members &&
			job_grow_member_lists(core, job, msg->n_members) < 0)
			return -ENOMEM;
		if (msg->view > job->view)
			job_take_members(job, msg);
		if (job->has_failed) /* the scheduler may not have received the failure */
			core->env.fail(core->env.ctx, job->id, job->fail_code,
				job->fail_text ? job->fail_text : err_str(job->fail_code));
		return 0;
	}
	/* A scheduler that has lost its state counts jobs from 1 again. If this server has a job
	 * with the number of the new job, the old job is over. */
	if (job)
		plan_free_job(core, job);
	job = calloc(1, sizeof(*job));
	if (!job)
		return -ENOMEM;
	job->members = calloc(msg->n_members + 1, sizeof(job->members[0]));
	job->arrivals = arrivals_new(msg->n_members, core->now_ns);
	job->member_of_rank = job_map_ranks(msg);
	if (!job->members || !job->arrivals || !job->member_of_rank) {
		free(job->members);
		free(job->arrivals);
		free(job->member_of_rank);
		free(job);
		return -ENOMEM;
	}
	job->id = msg->job;
	snprintf(job->name, sizeof(job->name), "%s", msg->name ? msg->name : "");
	job->formed = msg->formed;
	job->is_confirmed = true;
	job->flags = msg->flags;
	job->backup = msg->backup;
	job->rule = msg->backup ? &rule_backup : &rule_in_step;
	job->grace_ns = msg->grace_ms * UINT64_C(1000000);
	job->n_members = (uint16_t)msg->n_members;
	job->n_ranks = msg->size;
	job_take_members(job, msg);
	TAILQ_INSERT_TAIL(&core->jobs, job, link);
	return 0;
}

void srv_core_job_end(struct srv_core *core, uint32_t id)
{
	struct srv_job *job = srv_job_find(core, id);

	if (job)
		plan_free_job(core, job);
	reads_start_queued(core);
}

/* Check that the job can have a tensor of this shape: if it is in shards, each has an owner, who
 * stays. Errors: BPS_EPROTO. */
static int job_check_shards(const struct srv_job *job, const struct tensor_shape *shape)
{
	struct err_text why;

	if (shape->owner == OWNER_ALL)
		return 0;
	if (job->backup || job->flags & (JOB_SHRINK | JOB_ELASTIC) ||
		shape_check_shards(shape, job->n_ranks, &why) < 0)
		return BPS_EPROTO;
	for (uint32_t rank = 0; rank < job->n_ranks; rank++)
		if (job->member_of_rank[rank] == NO_OWNER)
			return BPS_EPROTO;
	return 0;
}

static int job_register_tensor(struct srv_job *job, const struct ctl_tensor *t)
{
	uint32_t n_shards = shape_shards(&t->shape, job->n_ranks);
	struct err_text why;
	struct srv_tensor *tensor;
	uint64_t n_parts;

	if (shape_check(&t->shape, UINT64_MAX, &why) < 0 || !t->part_elems ||
		t->part_elems > UINT32_MAX / dtype_bytes(t->shape.dtype) ||
		job_check_shards(job, &t->shape) < 0)
		return BPS_EPROTO;
	n_parts = shape_partition_count(&t->shape, n_shards, t->part_elems);
	if (n_parts > UINT32_MAX || t->tensor >= CTL_TENSORS_MAX)
		return BPS_EPROTO;
	if (t->tensor >= job->n_tensors) {
		uint32_t n = t->tensor + 64;
		struct srv_tensor *v = realloc(job->tensors, n * sizeof(*v));

		if (!v)
			return -ENOMEM;
		memset(v + job->n_tensors, 0, (n - job->n_tensors) * sizeof(*v));
		job->tensors = v;
		job->n_tensors = n;
	}
	tensor = &job->tensors[t->tensor];
	if (tensor->parts)
		return 0; /* the scheduler sent the tensor again after a reconnect */
	tensor->parts = calloc(n_parts, sizeof(struct srv_part *));
	if (!tensor->parts)
		return -ENOMEM;
	tensor->n_parts = (uint32_t)n_parts;
	tensor->part_elems = t->part_elems;
	tensor->n_shards = n_shards;
	tensor->shape = t->shape;
	tensor->is_of_library = strncmp(t->name, CTL_OWN_TENSORS, strlen(CTL_OWN_TENSORS)) == 0;
	return 0;
}

static int part_allocate_buffers(struct srv_core *core, struct srv_part *part)
{
	enum dtype dtype = part_dtype(part);

	bool is_value = part->job->tensors[part->tensor].shape.mode == MODE_VALUE;

	for (unsigned i = 0; i < (is_value ? 1 : 2); i++) {
		part->slots[i].result = pool_get(core->sums, part->bytes);
		if (!part->slots[i].result)
			return BPS_EQUOTA;
	}
	if (is_value)
		return value_new(core, part);
	if (dtype_acc_bytes(dtype) != dtype_bytes(dtype)) {
		part->acc = pool_get(core->sums, part->n_elems * dtype_acc_bytes(dtype));
		if (!part->acc)
			return BPS_EQUOTA;
	}
	return 0;
}

int plan_reserve_peer(const struct srv_core *core, struct srv_peer *peer)
{
	int rc = heap_reserve(&peer->want, core->stats.parts);

	return rc < 0 ? rc : heap_reserve(&peer->results, core->stats.parts);
}

static int part_create_in_tensor(
	struct srv_core *core, struct srv_job *job, uint32_t t, uint32_t index, uint64_t pgen)
{
	struct srv_tensor *tensor = &job->tensors[t];
	struct srv_peer *peer;
	struct srv_part *part;
	int rc = 0;

	part = calloc(1, sizeof(*part) + job->n_members * sizeof(part->seats[0]));
	if (!part)
		return -ENOMEM;
	part->job = job;
	part->tensor = t;
	part->index = index;
	part->waits_for_all = tensor->is_of_library;
	part->pgen = pgen;
	part->is_confirmed = true;
	part->n_elems =
		shape_part_elems(&tensor->shape, tensor->n_shards, tensor->part_elems, index);
	part->owner = NO_OWNER;
	if (tensor->shape.owner == OWNER_SHARDS)
		part->owner = job->member_of_rank[shape_part_shard(
			&tensor->shape, tensor->n_shards, tensor->part_elems, index)];
	part->bytes = (uint32_t)(part->n_elems * dtype_bytes(tensor->shape.dtype));
	part->n_seats = job->n_members;
	part->n_live = job->n_live;
	part->live = job->live;
	for (unsigned i = 0; i < 2; i++) {
		part->slots[i].part = part;
		TAILQ_INIT(&part->slots[i].staged);
	}
	for (uint16_t i = 0; i < job->n_members; i++) {
		part->seats[i].part = part;
		part->seats[i].member = i;
	}
	core->stats.parts++;
	TAILQ_FOREACH (peer, &core->peers, link)
		if ((rc = plan_reserve_peer(core, peer)) < 0)
			break;
	if (rc == 0)
		rc = part->bytes > core->cfg.staging_bytes / 4 ? BPS_EQUOTA
							       : part_allocate_buffers(core, part);
	if (rc < 0) {
		part_free(core, part);
		return rc;
	}
	tensor->parts[index] = part;
	return 0;
}

/* Restart a partition from scratch under a larger pgen (rule S6 of docs/reference/faults.md). Clear
 * its slots and seats. The server ignores messages of the old pgen from now on. */
static void part_restart_under_pgen(struct srv_core *core, struct srv_part *part, uint64_t pgen)
{
	log_debug(
		"partition restarts in a new placement: job=%u tensor=%u part=%u pgen=%llu to=%llu",
		part->job->id, part->tensor, part->index, (unsigned long long)part->pgen,
		(unsigned long long)pgen);
	value_reset_for_pgen(part);
	for (unsigned i = 0; i < 2; i++)
		slot_reset_to_empty(core, &part->slots[i]);
	for (unsigned i = 0; i < part->n_seats; i++)
		seat_reset_for_pgen(core, &part->seats[i]);
	part->pgen = pgen;
	part->n_live = part->job->n_live;
	part->live = part->job->live;
}

static int run_apply_to_partition(
	struct srv_core *core, struct srv_job *job, const struct ctl_run *run, uint32_t i)
{
	struct srv_tensor *tensor = &job->tensors[run->tensor];
	struct srv_part *part = tensor->parts[i];
	bool is_mine = run->server == core->cfg.server_id && run->instance == core->cfg.instance &&
		       run->thread == core->cfg.thread;

	if (part && is_mine)
		part->is_confirmed = true;
	if (part && run->pgen <= part->pgen)
		return 0;
	if (part && is_mine && part->n_seats == job->n_members) {
		part_restart_under_pgen(core, part, run->pgen);
	} else if (part) {
		tensor->parts[i] = NULL;
		part_free(core, part);
		part = NULL;
	}
	return is_mine && !part ? part_create_in_tensor(core, job, run->tensor, i, run->pgen) : 0;
}

static void job_fail_for_plan_error(struct srv_core *core, struct srv_job *job, int rc)
{
	if (rc == BPS_EQUOTA)
		srv_job_fail(core, job, rc,
			"server %u, thread %u: memory for sums is exhausted (%zu of %zu bytes in "
			"use); raise the server's sums-memory or add servers",
			core->cfg.server_id, core->cfg.thread, pool_used_bytes(core->sums),
			pool_limit_bytes(core->sums));
	else
		srv_job_fail(core, job, rc,
			"server %u cannot apply the scheduler's plan for the job: %s",
			core->cfg.server_id, err_str(rc));
}

void srv_core_apply_plan(struct srv_core *core, const struct ctl_plan *plan)
{
	struct srv_job *job = srv_job_find(core, plan->job);
	int rc = 0;

	FAILPOINT(SERVER_PLAN_APPLY);
	if (!job) {
		log_rated(LOG_WARN, "ignoring a plan for an unknown job: job=%u", plan->job);
		return;
	}
	for (uint32_t t = 0; rc == 0 && t < plan->n_tensors; t++)
		rc = job_register_tensor(job, &plan->tensors[t]);
	for (uint32_t r = 0; rc == 0 && r < plan->n_runs; r++) {
		const struct ctl_run *run = &plan->runs[r];

		if (run->tensor >= job->n_tensors ||
			(uint64_t)run->first + run->n > job->tensors[run->tensor].n_parts) {
			rc = BPS_EPROTO;
			break;
		}
		for (uint32_t i = run->first; rc == 0 && i < run->first + run->n; i++)
			rc = run_apply_to_partition(core, job, run, i);
	}
	if (rc < 0)
		job_fail_for_plan_error(core, job, rc);
	reads_start_queued(core);
}

static void job_resync_partitions(struct srv_core *core, struct srv_job *job, bool is_begin)
{
	for (uint32_t t = 0; t < job->n_tensors; t++) {
		struct srv_tensor *tensor = &job->tensors[t];

		for (uint32_t i = 0; tensor->parts && i < tensor->n_parts; i++) {
			struct srv_part *part = tensor->parts[i];

			if (part && is_begin) {
				part->is_confirmed = false;
			} else if (part && !part->is_confirmed) {
				tensor->parts[i] = NULL;
				part_free(core, part);
			}
		}
	}
}

void srv_core_resync_begin(struct srv_core *core)
{
	struct srv_job *job;

	TAILQ_FOREACH (job, &core->jobs, link) {
		job->is_confirmed = false;
		job_resync_partitions(core, job, true);
	}
}

void srv_core_resync_end(struct srv_core *core)
{
	struct srv_job *job, *next;

	for (job = TAILQ_FIRST(&core->jobs); job; job = next) {
		next = TAILQ_NEXT(job, link);
		if (job->is_confirmed)
			job_resync_partitions(core, job, false);
		else
			plan_free_job(core, job);
	}
	reads_start_queued(core);
}
