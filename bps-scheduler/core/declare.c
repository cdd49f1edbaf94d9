/* Handles DECLARE, the message with which agents declare tensors. This file compares the
 * declarations of a tensor. The tensor becomes READY when all agents have declared it with the same
 * shape. place_apply.c numbers the tensors. All functions run on the core's thread. */
#include "bps-scheduler/core/declare.h"

#include <errno.h>
#include <stdio.h>

#include "bps-scheduler/core/admission.h"
#include "bps-scheduler/placement/place.h"
#include "common/base/log.h"
#include "common/data/shape.h"

struct declare_request {
	struct sched_core *c;
	struct sched_member *m;
	struct sched_job *j;
	uint32_t member; /* member number of agent `m` in the job */
};

static void format_shape_mismatch(const struct declare_request *in, const struct sched_tensor *t,
	const struct ctl_decl *d, char *ret, size_t n)
{
	const struct sched_worker *w = &in->j->workers[t->first_rank];

	snprintf(ret, n,
		"tensor '%s' of job '%s': rank %u (host %s) declares %s, rank %u (host %s) declares"
		" %s",
		t->name, in->j->name, t->first_rank, sched_host_of_member(in->c, w->agent),
		shape_text(&t->shape).s, d->rank, in->m->host, shape_text(&d->shape).s);
}

/* Fail a tensor that agents still declare. Send TENSOR_FAIL to the agents that have declared it. */
static void fail_collecting(const struct declare_request *in, struct sched_tensor *t, int code,
	const char *text, const struct ctl_cause *cause)
{
	log_rated(LOG_AS(LOG_WARN, TENSOR_REFUSED), "%s job='%s' id=%u", text, in->j->name,
		in->j->id);
	t->fail_text = sched_dup_string(text);
	t->fail_code = code;
	t->cause_rank = cause->rank;
	t->cause_host = cause->host ? sched_dup_string(cause->host) : NULL;
	admission_unclaim(in->j, t);
	for (uint32_t i = 0; i < in->j->n_members; i++)
		if (sched_tensor_has_declared(t, i))
			sched_send_tensor_fail(in->c,
				sched_member_by_id(in->c, in->j->members[i].agent), in->j, t->name,
				code, text, cause);
	sched_tensor_set_state(in->j, t, TENSOR_FAILED, "refused");
}

static void tensor_mismatch(
	const struct declare_request *in, struct sched_tensor *t, const struct ctl_decl *d)
{
	const struct ctl_cause cause = {d->rank, in->m->host};
	char text[CTL_TEXT_MAX + 1];

	format_shape_mismatch(in, t, d, text, sizeof(text));
	/* all members have already agreed on a shape, so refuse only the new declaration */
	if (t->state != TENSOR_COLLECTING) {
		sched_send_tensor_fail(in->c, in->m, in->j, t->name, BPS_EMISMATCH, text, &cause);
		return;
	}
	t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
	fail_collecting(in, t, BPS_EMISMATCH, text, &cause);
}

/* The tensor has failed on the machine of the agent, for example because the scheduler refused it
 * before a restart. Fail it for all agents, because that agent takes part in no round of it. */
static void fail_tensor_for_all_agents(
	const struct declare_request *in, struct sched_tensor *t, const struct ctl_decl *d)
{
	int code = d->code <= INT32_MAX ? -(int)d->code : BPS_EJOB_FAILED;
	struct err_text text;

	err_set(&text, code,
		"tensor '%s' of job '%s' has failed on host %s already: %s; see the first error on "
		"that host",
		t->name, in->j->name, in->m->host, err_str(code));
	t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
	fail_collecting(in, t, code, text.s, &(struct ctl_cause){0, NULL});
}

static struct sched_tensor *declared_tensor_new(
	const struct declare_request *in, const struct ctl_decl *d)
{
	struct sched_tensor *t = sched_alloc(1, sizeof(*t));

	t->id = CTL_NO_ID;
	t->shape = d->shape;
	t->n_shards = shape_shards(&d->shape, in->j->size);
	t->name = sched_dup_string(d->name);
	t->first_rank = d->rank;
	t->since_ns = in->c->now_ns;
	t->declared = sched_alloc((in->j->n_members + 63) / 64, sizeof(uint64_t));
	sched_tensor_add(in->j, t);
	return t;
}

static bool is_declaration_valid(const struct declare_request *in, const struct ctl_decl *d)
{
	struct sched_core *c = in->c;

	if (d->name[0] && d->rank < in->j->n_room && in->j->workers[d->rank].agent == in->m->id)
		return true;
	sched_member_disconnect(c, in->m, "sent an invalid declaration");
	return false;
}

static bool has_room_for_tensor(const struct declare_request *in, const struct ctl_decl *d)
{
	uint32_t max = in->c->cfg.job_tensors;
	struct err_text err;

	if (!max || max > SCHED_TENSORS_MAX)
		max = SCHED_TENSORS_MAX;
	if (in->j->n_tensors < max)
		return true;
	in->c->refused[QUOTA_JOB_TENSORS]++;
	err_set(&err, BPS_EQUOTA,
		"tensor '%s': job '%s' has %u tensors, and the limit is %u; see bps-scheduler's "
		"--job-tensors",
		d->name, in->j->name, in->j->n_tensors, max);
	sched_send_tensor_fail(
		in->c, in->m, in->j, d->name, BPS_EQUOTA, err.s, &(struct ctl_cause){0, NULL});
	return false;
}

/* Check that the job allows a tensor of this shape. Errors: -EINVAL; err gets the text. */
static int tensor_check_options(
	const struct sched_job *j, const struct sched_tensor *t, struct err_text *err)
{
	const struct shape_job options = {.is_deterministic = j->flags & JOB_DETERMINISTIC,
		.is_elastic = j->flags & JOB_ELASTIC,
		.may_shrink = j->flags & JOB_SHRINK,
		.has_backup = j->backup > 0};
	int rc = shape_check_job(&t->shape, &options, err);

	if (rc < 0 || t->shape.owner == OWNER_ALL)
		return rc;
	if (t->n_shards > PLACE_PARTS_MAX)
		return err_set(
			err, -EINVAL, "a tensor cannot have more than %d shards", PLACE_PARTS_MAX);
	return shape_check_shards(&t->shape, t->n_shards, err);
}

/* Accept or refuse a tensor that is declared for the first time. A refused tensor stays in the
 * table, in state FAILED (rule C9), for two reasons. First, all agents must get the same answer,
 * even if the servers have more memory later. Second, no tensor of that name with another shape may
 * be placed. */
static void tensor_claim_or_refuse(const struct declare_request *in, struct sched_tensor *t)
{
	struct err_text why, err;
	int rc = shape_check(&t->shape, SCHED_TENSOR_BYTES_MAX, &why);

	if (rc == 0)
		rc = tensor_check_options(in->j, t, &why);
	if (rc == 0)
		rc = admission_check_tensor(in->c, in->j, t, &why);
	if (rc == 0) {
		admission_claim(in->c, in->j, t);
		return;
	}
	err_set(&err, rc, "tensor '%s' of job '%s': %s", t->name, in->j->name, why.s);
	t->fail_text = sched_dup_string(err.s);
	t->fail_code = rc;
	sched_tensor_set_state(in->j, t, TENSOR_FAILED, "refused");
}

static void declare_one_tensor(const struct declare_request *in, const struct ctl_decl *d)
{
	struct sched_job *j = in->j;
	struct sched_tensor *t = sched_tensor_find(j, d->name);

	if (!t) {
		if (!has_room_for_tensor(in, d))
			return;
		t = declared_tensor_new(in, d);
		tensor_claim_or_refuse(in, t);
	}
	if (d->code && t->state == TENSOR_COLLECTING) {
		fail_tensor_for_all_agents(in, t, d);
	} else if (t->state == TENSOR_FAILED) {
		sched_send_tensor_fail(in->c, in->m, j, t->name, t->fail_code, t->fail_text,
			&(struct ctl_cause){t->cause_rank, t->cause_host});
	} else if (!shape_is_equal(&t->shape, &d->shape)) {
		tensor_mismatch(in, t, d);
	} else if (t->state == TENSOR_PLACED) {
		/* the place of the tensor may not be durable yet, so send PLAN after the commit */
		if (in->c->tx_view)
			j->owes_plans = j->members[in->member].is_owed_plan = true;
		else
			sched_send_tensor(in->c, in->m, j, t);
	} else if (t->state == TENSOR_COLLECTING && !sched_tensor_has_declared(t, in->member)) {
		t->declared[in->member / 64] |= UINT64_C(1) << (in->member % 64);
		t->n_declared++;
	}
}

/* Make a tensor READY if all members have declared it. Runs after all declarations of a message
 * were handled. Two declarations of one tensor in a message come from two workers, which may
 * disagree. Therefore all declarations must be compared before the tensor becomes READY. */
static void check_named_tensor_ready(const struct declare_request *in, const char *name)
{
	struct sched_tensor *t = sched_tensor_find(in->j, name);

	if (t && t->state == TENSOR_COLLECTING)
		sched_tensor_check_declared(in->c, in->j, t);
}

void sched_receive_declare(
	struct sched_core *c, struct sched_member *m, const struct ctl_declare *msg)
{
	struct declare_request in = {c, m, sched_job_by_id(c, msg->job), 0};

	if (!in.j) {
		sched_send_unknown_job(c, m, msg->job);
		return;
	}
	if (sched_send_evicted(c, m, in.j))
		return;
	in.member = sched_job_member(in.j, m->id);
	if (in.member == CTL_NO_ID || in.j->state != JOB_RUNNING) {
		sched_member_disconnect(c, m,
			"sent DECLARE for a job that has not formed, or to which it does not "
			"belong");
		return;
	}
	for (uint32_t i = 0; i < msg->n_tensors && m->conn; i++)
		if (is_declaration_valid(&in, &msg->tensors[i]))
			declare_one_tensor(&in, &msg->tensors[i]);
	for (uint32_t i = 0; i < msg->n_tensors && m->conn; i++)
		check_named_tensor_ready(&in, msg->tensors[i].name);
}
