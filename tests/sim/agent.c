/* Simulates the agent's code outside of its core, and the agent's trainers. The trainers join,
 * declare tensors, submit round after round, check every result, and finish. */
#include "tests/sim/peek.h"
#include "tests/invariants/invariants.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/crc32c.h"
#include "common/wire/name_hash.h"

#define RETRY_NS        (300 * MS)
#define AGAIN_NS        (10 * MS)
#define WORK_LIMIT      100000
#define CHECK_EVERY     16
#define JOIN_TIMEOUT_NS (20 * S)
/* After each round, a trainer's input is overwritten with this byte, as if by the next gradient. */
#define SCRIBBLE 0xee

/* ---- before and after every event ---- */

static void on_tick(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = e->p;

	(void)s;
	if (e->a != a->tick_at)
		return;
	a->tick_at = 0;
	agent_enter(a);
	agent_leave(a);
}

static void on_work(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = e->p;

	(void)s;
	a->is_work_posted = false;
	agent_enter(a);
	agent_leave(a);
}

static void work(struct sim_agent *a)
{
	struct sim *s = a->s;
	unsigned n = 0;

	if (a->is_work_posted)
		return;
	while (agt_core_run_queued_work(a->core)) {
		if (s->o.is_work_slow) {
			a->is_work_posted = true;
			sim_post(s, &a->node, rnd_below(s, s->o.delay_ns), on_work)->p = a;
			return;
		}
		if (++n > WORK_LIMIT) {
			violation(s, "%s never becomes idle", a->node.name);
			return;
		}
	}
}

void agent_enter(void *owner)
{
	struct sim_agent *a = owner;

	agt_core_run_timers(a->core, a->s->now);
}

void agent_leave(void *owner)
{
	struct sim_agent *a = owner;
	struct sim *s = a->s;
	struct err_text err;
	struct sim_event *e;
	uint64_t at;

	work(a);
	if (rnd_below(s, CHECK_EVERY) == 0 && agt_core_check(a->core, &err) < 0)
		violation(s, "agt_core_check: %s", err.s);
	at = agt_core_run_timers(a->core, s->now);
	if (at == UINT64_MAX || (a->tick_at && a->tick_at <= at))
		return;
	a->tick_at = at > s->now ? at : s->now;
	e = sim_post(s, &a->node, a->tick_at - s->now, on_tick);
	e->p = a;
	e->a = a->tick_at;
}

/* ---- trainers ---- */

/* a submission that an event stores in its field `bytes` */
struct sim_submit {
	struct sim_tensor_state *ts;
	unsigned worker;
};

/* With mixed priorities, agents rank their tensors differently. Trainers must still make progress,
 * and must not wait for each other forever. */
static uint16_t priority_of(const struct sim_agent *a, unsigned t)
{
	unsigned n = a->s->o.n_tensors;

	return (uint16_t)(a->s->o.is_priority_mixed ? (t + a->idx) % n : n - t);
}

void agent_submit(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w, uint64_t round)
{
	bool abstains = oracle_abstains(a->s, ts->idx, a->workers[w].rank, a->skipped + round);
	int rc = agt_tensor_submit(ts->t, a->workers[w].slot, round, a->s->o.tensors[ts->idx].op,
		priority_of(a, ts->idx), abstains);

	a->s->tot->abstentions += abstains;
	if (rc < 0 && !ts->failed)
		violation(a->s, "%s: submit of round %llu: %s", a->node.name,
			(unsigned long long)round, err_str(rc));
}

/* Submit the round that a worker has put into its ring since the last call. While an old round runs
 * again after a restart, leave new rounds in the ring. */
void agent_take_ring(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w)
{
	if (ts->taken[w] == ts->ring[w] || ts->again)
		return;
	ts->taken[w] = ts->ring[w];
	agent_submit(a, ts, w, ts->taken[w]);
}

static void on_rings(struct sim *s, struct sim_event *e)
{
	struct sim_tensor_state *ts = e->p;
	struct sim_agent *a = ts->agent;

	(void)s;
	if (!a->job || a->has_ended)
		return;
	agent_enter(a);
	for (unsigned w = 0; w < a->n_workers; w++)
		agent_take_ring(a, ts, w);
	agent_leave(a);
}

static void on_submit(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = e->p;
	struct sim_submit sub;
	uint64_t round = e->a;

	memcpy(&sub, e->bytes, sizeof(sub));
	if (!a->has_job_msg || a->has_ended || a->has_dropped_trainers)
		return;
	oracle_fill(s, sub.ts->idx, a->workers[sub.worker].rank, a->skipped + round,
		sub.ts->dev[a->workers[sub.worker].slot]);
	trace(s, "%s: rank %u submits round %llu of tensor %u", a->node.name,
		a->workers[sub.worker].rank, (unsigned long long)round, sub.ts->idx);
	sub.ts->ring[sub.worker] = round;
	if (!a->job)
		/* The agent is restarting, so do nothing. The agent's next process will take the
		 * round from the ring. */
		return;
	agent_enter(a);
	agent_take_ring(a, sub.ts, sub.worker);
	agent_leave(a);
}

struct sim_node *trainers_of(struct sim_agent *a)
{
	return a->s->o.has_restarts ? &a->trainers : &a->node;
}

static void submit_later(struct sim_agent *a, struct sim_tensor_state *ts, unsigned w)
{
	struct sim_submit sub = {ts, w};
	uint64_t late = rnd_chance(a->s, a->s->o.slow_permille) ? rnd_below(a->s, 400 * MS) : 0;
	struct sim_event *e = sim_post(
		a->s, trainers_of(a), late + rnd_below(a->s, a->s->o.think_ns + 1), on_submit);

	e->p = a;
	e->a = ts->round + 1;
	memcpy(event_room(e, sizeof(sub)), &sub, sizeof(sub));
}

static void tell_finished(struct sim_agent *a, const struct sim_worker *w)
{
	struct ctl_msg msg = {
		.type = CTL_WORKER, .worker = {a->job_id, w->rank, WORKER_FINISHED, .text = ""}};

	sim_member_send(&a->m, &msg);
}

static void tell_barrier(struct sim_agent *a)
{
	for (unsigned w = 0; w < a->n_workers; w++) {
		struct ctl_msg msg = {.type = CTL_WORKER,
			.worker = {a->job_id, a->workers[w].rank, WORKER_AT_BARRIER, "",
				a->barrier + 1}};

		sim_member_send(&a->m, &msg);
	}
}

static bool is_at_barrier(const struct sim_agent *a)
{
	return a->s->o.barrier_every && a->n_at_barrier == a->s->o.n_tensors;
}

/* Handle the arrival of a JOB message at an agent that waits at a barrier. If this barrier has been
 * passed, submit the next rounds. Otherwise report again that the agent waits. */
static void look_at_barrier(struct sim_agent *a, uint64_t passed)
{
	if (!is_at_barrier(a))
		return;
	if (passed <= a->barrier) {
		tell_barrier(a);
		return;
	}
	trace(a->s, "%s: barrier %llu is passed", a->node.name, (unsigned long long)passed);
	a->barrier = passed;
	a->n_at_barrier = 0;
	for (unsigned t = 0; t < a->s->o.n_tensors; t++)
		for (unsigned w = 0; w < a->n_workers; w++)
			submit_later(a, &a->tensors[t], w);
}

static void on_finished(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = e->p;
	struct sim_worker *w = &a->workers[e->a];

	trace(s, "%s: rank %u has finished", a->node.name, w->rank);
	w->is_finished = true;
	tell_finished(a, w);
}

static void worker_tensor_done(struct sim_agent *a, unsigned w)
{
	struct sim_event *e;

	if (--a->workers[w].tensors_left)
		return;
	e = sim_post(a->s, trainers_of(a), rnd_below(a->s, a->s->o.think_ns + 1), on_finished);
	e->p = a;
	e->a = w;
}

/* Return the last round of the agent's workers. Workers that leave early finish one round before
 * the others (J15). */
static uint64_t last_round(const struct sim_agent *a)
{
	return a->s->o.rounds - (a->s->o.leaver == a->idx + 1u);
}

void agent_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers)
{
	struct sim_agent *a = ctx;
	struct sim_tensor_state *ts = tensor_user;
	struct sim *s = a->s;
	unsigned old = (unsigned)(round - 1) & 1;

	if (a->dies_at_done && status == 0) { /* the agent dies before its trainers are notified */
		a->dies_at_done = false;
		agent_restart(s, a->idx, 0);
	}
	if (a->is_restarting)
		return;
	/* K6: after the repeated round, start the rounds that were submitted meanwhile. */
	if (ts->again && round == ts->again) {
		ts->again = 0;
		if (status == 0)
			sim_post(s, &a->node, 0, on_rings)->p = ts;
		ts->failed = status; /* 0, or the error that ended the job */
		return;
	}
	if (peek_has_task(ts->t))
		violation(s, "A10: %s tensor %u: round %llu ends while a task uses its memory",
			a->node.name, ts->idx, (unsigned long long)round);
	if (round != ts->round + 1)
		violation(s, "I1: %s tensor %u: round %llu is done after round %llu", a->node.name,
			ts->idx, (unsigned long long)round, (unsigned long long)ts->round);
	ts->round = round;
	if (status < 0) {
		if (!a->is_evicted && !a->has_failed_gpus &&
			(!s->oracle.has_end || !s->oracle.end_code))
			violation(s, "%s tensor %u: round %llu ends with: %s", a->node.name,
				ts->idx, (unsigned long long)round, err_str(status));
		ts->failed = status;
		return;
	}
	if (round > 1 && crc32c(0, ts->out[old], tensor_bytes(s, ts->idx)) != ts->crc[old])
		violation(s, "A2: %s tensor %u: the sum of round %llu has changed", a->node.name,
			ts->idx, (unsigned long long)round - 1);
	ts->crc[round & 1] = crc32c(0, ts->out[round & 1], tensor_bytes(s, ts->idx));
	oracle_result(s, a, ts->idx, a->skipped + round, ts->out[round & 1], workers);
	device_done(ts, round);
	for (unsigned w = 0; w < a->n_workers; w++) {
		memset(ts->in[w], SCRIBBLE, tensor_bytes(s, ts->idx));
		memset(ts->dev[w], SCRIBBLE, tensor_bytes(s, ts->idx));
		if (elastic_waits(s, a->skipped + round))
			continue;
		if (a->skipped + round < last_round(a))
			submit_later(a, ts, w);
		else
			worker_tensor_done(a, w);
	}
	if (elastic_waits(s, a->skipped + round) && ++a->n_at_barrier == s->o.n_tensors)
		tell_barrier(a);
}

/* ---- joining, declaring ---- */

static void join_now(struct sim_agent *a, unsigned w)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = w + 1,
			.uid = 1000,
			.job = "j",
			.rank = a->workers[w].asked_rank,
			.size = a->s->o.size,
			.flags = (a->s->o.is_deterministic ? JOB_DETERMINISTIC : 0) |
				 (a->s->o.is_shrink ? JOB_SHRINK : 0) |
				 (a->s->o.is_elastic ? JOB_ELASTIC : 0),
			.pid = 10 * a->idx + w + 1,
			.part_bytes = a->s->o.part_bytes,
			.backup = (uint16_t)a->s->o.backup,
			.grace_ms = a->s->o.grace_ms,
			.max_size = AGENTS_MAX * WORKERS_MAX,
			.local_size = a->n_workers}};

	a->workers[w].has_joined = false;
	sim_member_send(&a->m, &msg);
}

static void join(struct sim_agent *a, unsigned w)
{
	if (a->has_ended || (a->s->o.is_elastic && a->s->oracle.has_end))
		return;
	join_now(a, w);
}

/* Withdraw some trainers that wait for admission. New trainers replace them at the next JOIN. */
static void unjoin(struct sim_agent *a)
{
	for (unsigned w = 0; w < a->n_workers; w++) {
		const struct ctl_msg msg = {.type = CTL_UNJOIN, .unjoin = {w + 1}};

		if (!a->workers[w].has_joined)
			sim_member_send(&a->m, &msg);
	}
}

static void declare(struct sim_agent *a)
{
	struct ctl_decl decls[TENSORS_MAX];
	char names[TENSORS_MAX][16];
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {a->job_id, decls, 0}};

	for (unsigned i = 0; i < a->s->o.n_tensors; i++) {
		unsigned t = (i + a->idx) % a->s->o.n_tensors;

		if (a->tensors[t].is_planned)
			continue;
		snprintf(names[t], sizeof(names[t]), "t%u", t);
		decls[msg.declare.n_tensors++] =
			(struct ctl_decl){a->workers[0].rank, names[t], values_shape(a->s, t), 0};
	}
	if (msg.declare.n_tensors)
		sim_member_send(&a->m, &msg);
}

static void tensor_make(struct sim_agent *a, unsigned t)
{
	struct sim_tensor_state *ts = &a->tensors[t];

	memset(ts, 0, sizeof(*ts));
	ts->agent = a;
	ts->idx = t;
	agent_tensor_attach(a, t);
}

void agent_tensor_attach(struct sim_agent *a, unsigned t)
{
	struct tensor_shape shape = values_shape(a->s, t);
	struct sim_tensor_state *ts = &a->tensors[t];
	uint32_t bytes = tensor_bytes(a->s, t);
	struct agt_mem in[WORKERS_MAX] = {{0}}, dev[WORKERS_MAX] = {{0}}, staging, out[2] = {{0}};
	struct agt_mem *all[2 * WORKERS_MAX + 3];
	static const uint16_t one_each[WORKERS_MAX] = {1, 1};
	bool is_device = device_is(a->s);
	unsigned n = 0;
	uint8_t *mem = ts->mem;
	int rc;
	uint16_t segment;

	for (unsigned w = 0; w < a->n_workers; w++)
		all[n++] = &in[w];
	all[n++] = &staging;
	all[n++] = &out[0];
	all[n++] = &out[1];
	for (unsigned w = 0; is_device && w < a->n_workers; w++)
		all[n++] = &dev[w];
	if (mem ? port_segment_again(&a->port, mem, ts->mem_bytes, &segment)
		: port_segment(&a->port, (size_t)n * bytes, (void **)&mem, &segment))
		abort();
	ts->mem = mem;
	ts->mem_bytes = n * bytes;
	for (unsigned i = 0; i < n; i++)
		*all[i] = (struct agt_mem){mem + (size_t)i * bytes, (uint64_t)i * bytes, segment};
	for (unsigned w = 0; w < a->n_workers; w++) {
		ts->in[w] = in[w].mem;
		ts->dev[w] = is_device ? dev[w].mem : ts->in[w];
	}
	ts->out[0] = out[0].mem;
	ts->out[1] = out[1].mem;
	if (is_device)
		rc = agt_tensor_new_device(a->job, &shape, in, one_each, a->n_workers,
			a->n_workers > 1 ? &staging : NULL, out, ts, &ts->t);
	else
		rc = agt_tensor_new(
			a->job, &shape, in, a->n_workers > 1 ? &staging : NULL, out, ts, &ts->t);
	if (rc < 0)
		abort();
}

static void job_start(struct sim_agent *a, const struct ctl_job *msg)
{
	struct sim *s = a->s;
	uint16_t my = 0;

	while (my < msg->n_members && msg->members[my].agent != a->m.id)
		my++;
	if (my == msg->n_members || msg->members[my].n_ranks != a->n_workers) {
		violation(s, "%s gets a job in which its ranks are missing", a->node.name);
		return;
	}
	for (unsigned w = 0; w < a->n_workers; w++) {
		uint32_t slot = 0;

		while (slot < a->n_workers &&
			msg->members[my].ranks[slot].rank != a->workers[w].rank)
			slot++;
		if (slot == a->n_workers) {
			violation(s, "%s: the job does not have rank %u", a->node.name,
				a->workers[w].rank);
			return;
		}
		a->workers[w].slot = slot;
		a->workers[w].tensors_left = s->o.n_tensors;
	}
	if (agt_job_new(a->core, msg, my, &a->job) < 0)
		abort();
	a->kept_job = (struct kept_job){
		.n_members = msg->n_members, .flags = msg->flags, .my_member = my};
	memcpy(a->kept_job.ranks, msg->members[my].ranks, a->n_workers * sizeof(struct ctl_rank));
	a->has_job_msg = true;
	a->job_id = msg->job;
	a->job_view = msg->view;
	a->barrier = msg->barrier;
	a->skipped = msg->barrier * s->o.barrier_every;
	for (unsigned t = 0; t < s->o.n_tensors; t++)
		tensor_make(a, t);
	declare(a);
	for (unsigned t = 0; t < s->o.n_tensors; t++)
		for (unsigned w = 0; w < a->n_workers; w++)
			submit_later(a, &a->tensors[t], w);
}

static bool all_joined(const struct sim_agent *a)
{
	for (unsigned w = 0; w < a->n_workers; w++)
		if (!a->workers[w].has_joined)
			return false;
	return true;
}

static void say_lost(struct sim_agent *a, uint32_t job, uint32_t rank)
{
	const struct ctl_msg lost = {
		.type = CTL_WORKER, .worker = {job, rank, WORKER_LOST, .text = "it came too late"}};

	sim_member_send(&a->m, &lost);
}

/* Handle a JOB message of a job whose trainers on this agent have stopped waiting. Report each rank
 * of the job on this agent as lost, as the daemon's disown() does. */
static void disown(struct sim_agent *a, const struct ctl_job *msg)
{
	for (uint32_t i = 0; i < msg->n_members; i++)
		for (uint32_t r = 0;
			msg->members[i].agent == a->m.id && r < msg->members[i].n_ranks; r++)
			say_lost(a, msg->job, msg->members[i].ranks[r].rank);
}

static void job_told(struct sim_agent *a, const struct ctl_msg *msg)
{
	if (a->s->o.is_elastic && a->s->oracle.has_end && !a->has_job_msg && !all_joined(a))
		/* the trainers have received the end of a job and do not join another one */
		a->has_ended = true;
	if (a->has_ended && !a->has_job_msg) {
		disown(a, &msg->job);
		return;
	}
	a->named_job = msg->job.job;
	if (a->job && msg->job.view > a->job_view) {
		a->job_view = msg->job.view;
		agt_job_members(a->job, &msg->job);
	}
	if (a->job)
		look_at_barrier(a, msg->job.barrier);
	/* if some trainers have not joined yet, the scheduler sends the job again after JOINED */
	if (!a->has_job_msg && all_joined(a))
		job_start(a, &msg->job);
}

static void joined(struct sim_agent *a, const struct ctl_joined *msg)
{
	struct sim_worker *w = &a->workers[msg->seq - 1];

	if (msg->code == (uint32_t)-BPS_ENOTDURABLE)
		return; /* join again at the next heartbeat */
	if (msg->code == (uint32_t)-BPS_EEVICTED) {
		a->has_ended = a->is_evicted = true;
		return;
	}
	if (msg->code == (uint32_t)-BPS_ECLOSED && a->s->o.is_elastic) {
		a->has_ended = true;
		return;
	}
	if (!msg->code && msg->job == CTL_NO_ID)
		return; /* the worker waits until the job admits it */
	if (!msg->code && a->has_ended && !a->has_job_msg) {
		say_lost(a, msg->job, msg->rank);
		return;
	}
	if (!msg->code && a->s->o.is_elastic && a->s->oracle.job && msg->job != a->s->oracle.job) {
		/* The elastic job had formed before this agent joined, so the agent's workers are
		 * in another job. */
		a->has_ended = true;
		say_lost(a, msg->job, msg->rank);
		return;
	}
	if (msg->code) {
		violation(a->s, "%s is not admitted: %s", a->node.name, msg->text);
		return;
	}
	w->has_joined = true;
	w->rank = msg->rank;
}

/* ---- messages of the scheduler ---- */

static void released(void *ctx)
{
	struct sim_agent *a = ctx;

	a->is_released = true;
}

static void job_end(struct sim_agent *a, uint32_t code)
{
	struct sim *s = a->s;

	if (a->has_ended)
		return;
	trace(s, "%s: the job ends with %u", a->node.name, code);
	a->has_ended = true;
	a->is_evicted = code == (uint32_t)-BPS_EEVICTED;
	for (unsigned w = 0; w < a->n_workers; w++)
		if (code == 0 && !a->workers[w].is_finished)
			violation(s, "C7: the job succeeds, but rank %u has not finished",
				a->workers[w].rank);
	if (!a->job)
		return;
	agt_job_fail(a->job, code ? -(int)code : BPS_ECLOSED);
	agt_job_free(a->job, released, a);
	a->job = NULL;
}

static void plan(struct sim_agent *a, const struct ctl_plan *msg)
{
	if (!a->job || msg->job != a->job_id)
		return;
	for (uint32_t i = 0; i < msg->n_tensors; i++) {
		unsigned t = (unsigned)atoi(msg->tensors[i].name + 1);
		struct sim_tensor_state *ts = &a->tensors[t];

		if (agt_tensor_plan(ts->t, &msg->tensors[i]) < 0)
			violation(a->s, "%s rejects the plan of tensor %u", a->node.name, t);
		ts->is_planned = true;
	}
	agt_job_apply_placement(a->job, msg->runs, msg->n_runs);
}

static struct agt_kept_part *env_keep(
	void *ctx, void *tensor_user, uint32_t id, uint32_t part_elems, uint32_t n_parts)
{
	struct sim_tensor_state *ts = tensor_user;

	(void)ctx;
	ts->id = id;
	ts->part_elems = part_elems;
	return n_parts <= PARTS_MAX ? ts->kept : NULL;
}

bool agent_is_settled(const struct sim_agent *a)
{
	return a->job && peek_is_settled(a->job, a->s->o.n_tensors);
}

static void peers(struct sim_agent *a, const struct ctl_peers *msg)
{
	for (uint32_t i = 0; i < msg->n_peers; i++) {
		const struct ctl_peer *p = &msg->peers[i];
		bool is_up = p->state == PEER_UP;

		if (a->servers[p->id].instance == p->instance && a->servers[p->id].is_up == is_up)
			continue;
		a->servers[p->id].instance = p->instance;
		a->servers[p->id].is_up = is_up;
		a->servers[p->id].idx = p->port - 1000u;
		agt_core_server_changed(a->core, p->id);
	}
	if (msg->n_peers || !a->is_syncing)
		return;
	a->is_syncing = false;
	if (a->has_job_msg && a->named_job != a->job_id)
		job_end(a, (uint32_t)-BPS_EJOB_FAILED);
}

static void repeat(struct sim_agent *a)
{
	for (unsigned w = 0; w < a->n_workers; w++)
		if (!a->has_job_msg)
			join(a, w);
		else if (a->workers[w].is_finished && !a->has_ended)
			tell_finished(a, &a->workers[w]);
	if (a->job && a->has_failed_gpus)
		device_tell_lost(a);
	if (a->job && is_at_barrier(a))
		tell_barrier(a);
	if (a->job)
		declare(a);
}

/* Return the tensor that a PROBE names, or else the first one that has rounds left. */
static const struct sim_tensor_state *probed_tensor(
	const struct sim_agent *a, const struct ctl_probe *p)
{
	unsigned n = a->s->o.n_tensors;

	for (unsigned t = 0; t < n; t++)
		if (p->tensor != CTL_NO_ID && a->tensors[t].is_planned &&
			a->tensors[t].id == p->tensor)
			return &a->tensors[t];
	for (unsigned t = 0; t < n; t++)
		if (a->skipped + a->tensors[t].round < last_round(a))
			return &a->tensors[t];
	return &a->tensors[0];
}

/* Answer the scheduler's PROBE about stuck rounds. Before the last round, the first worker reports
 * one submitted round fewer than the other workers, so that the scheduler asks again about the
 * tensor. */
static void report(struct sim_agent *a, const struct ctl_probe *p)
{
	const struct sim_tensor_state *ts = probed_tensor(a, p);
	bool is_over = a->skipped + ts->round >= last_round(a);
	struct ctl_report_worker workers[WORKERS_MAX];
	struct ctl_msg msg = {.type = CTL_REPORT, .report = {p->seq, p->job, "", workers, 0}};
	char name[16];

	snprintf(name, sizeof(name), "t%u", ts->idx);
	for (unsigned w = 0; p->job == a->job_id && w < a->n_workers; w++)
		workers[msg.report.n_workers++] =
			(struct ctl_report_worker){.rank = a->workers[w].rank,
				.submitted = ts->round + (w > 0 && !is_over),
				.completed = ts->round,
				.oldest_tensor = ts->is_planned && !is_over ? ts->id : CTL_NO_ID,
				.oldest_round = ts->round + 1,
				.oldest_ms = 1000,
				.is_attached = 1,
				/* a round in flight need not have a call that waits */
				.is_waiting = mix(a->s->seed ^ a->s->now) % 4 > 0,
				.oldest_name = name_hash(name)};
	sim_member_send(&a->m, &msg);
}

static void answer_sight(struct sim_agent *a, const struct ctl_sight *asked)
{
	uint64_t heard_ns = agt_core_last_receive_ns(a->core, asked->member, asked->instance);
	struct ctl_msg seen = {.type = CTL_SEEN, .sight = *asked};

	seen.sight.quiet_ms = (uint32_t)((a->s->now - heard_ns) / MS);
	if (heard_ns)
		sim_member_send(&a->m, &seen);
}

void agent_message(struct sim *s, unsigned idx, const struct ctl_msg *msg)
{
	struct sim_agent *a = &s->agents[idx];

	agent_enter(a);
	switch (msg->type) {
	case CTL_WELCOME:
		a->is_syncing = true;
		a->named_job = 0;
		repeat(a);
		break;
	case CTL_PEERS:
		peers(a, &msg->peers);
		break;
	case CTL_JOINED:
		joined(a, &msg->joined);
		break;
	case CTL_JOB:
		oracle_job(s, &msg->job);
		job_told(a, msg);
		break;
	case CTL_PLAN:
		plan(a, &msg->plan);
		break;
	case CTL_JOB_END:
		if (a->has_job_msg ? msg->job_end.job == a->job_id
				   : s->oracle.job == msg->job_end.job)
			job_end(a, msg->job_end.code);
		break;
	case CTL_SIGHT:
		answer_sight(a, &msg->sight);
		break;
	case CTL_PROBE:
		report(a, &msg->probe);
		break;
	default:
		violation(s, "%s gets %s: %s", a->node.name, ctl_type_name(msg->type),
			msg->type == CTL_TENSOR_FAIL ? msg->tensor_fail.text : "");
	}
	agent_leave(a);
}

/* Join again for the workers that are not admitted yet. Give up after some time. */
static void on_join_timer(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = e->p;

	if (a->has_job_msg || a->has_ended)
		return;
	if (s->o.is_elastic ? s->oracle.has_end ||
				      (!s->oracle.job && s->now > s->faults_end + JOIN_TIMEOUT_NS)
			    : s->o.may_fail && s->now > s->faults_end + JOIN_TIMEOUT_NS) {
		trace(s, "%s: gives up joining", a->node.name);
		a->has_ended = true;
		return;
	}
	if (s->o.has_unjoins && rnd_chance(s, 300))
		unjoin(a);
	else
		for (unsigned w = 0; w < a->n_workers; w++)
			if (!a->workers[w].has_joined)
				join(a, w);
	agent_join_timer(a);
}

void agent_join_timer(struct sim_agent *a)
{
	sim_post(a->s, &a->node, 500 * MS, on_join_timer)->p = a;
}

/* ---- start and stop of the process ---- */

static int env_connect(
	void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn)
{
	struct sim_agent *a = ctx;

	if (!a->servers[server].is_up)
		return -ENOTCONN;
	return sim_net_connect(a->s, &a->port, server, a->servers[server].idx, thread,
		a->servers[server].instance, link, ret_conn);
}

static void env_fail(void *ctx, uint32_t job, int code, const char *text)
{
	struct sim_agent *a = ctx;

	(void)job;
	violation(a->s, "%s fails the job (%s): %s", a->node.name, err_str(code), text);
}

static uint64_t env_random(void *ctx)
{
	struct sim_agent *a = ctx;

	return rnd(a->s);
}

bool agent_is_over(const struct sim_agent *a)
{
	return !a->is_restarting && a->has_ended && (a->is_released || !a->has_job_msg);
}

void agent_start(struct sim *s, unsigned idx)
{
	static const char *const hosts[] = {"h0", "h1", "h2", "h3"};
	struct sim_agent *a = &s->agents[idx];
	uint32_t rank = 0;

	a->trainers = (struct sim_node){.is_up = true};
	a->n_workers = s->o.n_workers[idx];
	for (unsigned i = 0; i < idx; i++)
		rank += s->o.n_workers[i];
	for (unsigned w = 0; w < a->n_workers; w++)
		a->workers[w].asked_rank = s->o.has_ranks ? rank + w : CTL_NO_ID;
	a->m = (struct sim_member){
		.s = s, .node = &a->node, .role = ROLE_AGENT, .idx = idx, .host = hosts[idx]};
	agent_core_make(a);
	trace(s, "%s: started", a->node.name);
	member_start(&a->m);
	agent_join_timer(a);
}

void agent_core_make(struct sim_agent *a)
{
	struct sim *s = a->s;
	struct agt_config cfg = {.window_bytes = s->o.window_bytes,
		.job_inflight_bytes = s->o.job_inflight_bytes,
		.retry_ns = RETRY_NS,
		.again_ns = AGAIN_NS,
		.lead_bytes = s->o.lead_bytes,
		.turn_bytes = s->o.turn_bytes};
	struct agt_env env = {.ctx = a,
		.connect = env_connect,
		.done = agent_done,
		.record = times_check_record,
		.stage = device_stage,
		.unstage = device_unstage,
		.fail = env_fail,
		.random = env_random,
		.keep = env_keep};

	a->node.is_up = true;
	a->node.life++;
	if (agt_core_new(&cfg, &env, &a->port.x, &a->core) < 0)
		abort();
	port_init(s, &a->port, &a->node, &agt_core_events, a->core, a, agent_enter, agent_leave);
	a->port.m = &a->m;
	agt_core_run_timers(a->core, s->now);
}

void agent_lose(struct sim *s, unsigned idx)
{
	struct sim_agent *a = &s->agents[idx];

	trace(s, "%s: its machine is lost", a->node.name);
	a->node.is_up = a->trainers.is_up = false;
	if (a->m.conn)
		a->m.conn->is_open_m = false;
	a->m.conn = NULL;
	sim_net_kill(s, &a->port, true);
	agt_core_free(a->core);
	a->core = NULL;
}
