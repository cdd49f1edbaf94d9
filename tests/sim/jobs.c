/* Simulates jobs beside the main job. Guests are agents of one worker each. Two guests form a job,
 * on the same scheduler and servers as the main job. The machines of the guests do not fail, so the
 * jobs of the guests must succeed with exact sums, whatever happens to the main job.
 *
 * In some histories one guest misbehaves (byzantine.c). Then the job of this guest may end in any
 * way. The guest must not affect any other job.
 *
 * In other histories the guests of the second job have no processes of their own: they share the
 * processes of the first job's guests. Then the core of a process has two jobs, which share one
 * window and the connections. Each process has two struct guests, one for each job. In both,
 * guest.agent points to the guest of the first job, which owns the process. */
#include "tests/sim/move.h"
#include "tests/invariants/invariants.h"
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/crc32c.h"

#define RETRY_NS    (300 * MS)
#define AGAIN_NS    (10 * MS)
#define WORK_LIMIT  100000
#define CHECK_EVERY 16
/* Salt for a hash of the seed. The hash decides has_tenants without a random number, so
 * the sequence of random numbers of a seed stays the same. */
#define TENANTS 0x7e4a47
/* The same for has_failing. */
#define FAILING 0xfa11ed
/* Number in the name of the tensor that fails on the first agent of a job (rule C9). */
#define FAILED_TENSOR 50u
/* Number of tensors that each worker of a greedy job declares, and the time between two successive
 * declarations. */
#define N_GREEDY     64
#define GREED_GAP_NS (5 * MS)
#define LATE_NS      (1500 * MS) /* how much later the other jobs start than the greedy job */
/* A job with a misbehaving agent is killed this long after the last fault. */
#define KILL_NS (1 * S)

/* ---- before and after every event ---- */

static void guest_enter(void *owner);
static void guest_leave(void *owner);

static void on_turn(struct sim *s, struct sim_event *e)
{
	struct guest *g = e->p;

	(void)s;
	if (e->b) {
		g->is_work_posted = false;
	} else {
		if (e->a != g->tick_at)
			return;
		g->tick_at = 0;
	}
	guest_enter(g);
	guest_leave(g);
}

static void work(struct guest *g)
{
	struct sim *s = g->s;
	unsigned n = 0;
	struct sim_event *e;

	while (!g->is_work_posted && agt_core_run_queued_work(g->core)) {
		if (s->o.is_work_slow) {
			g->is_work_posted = true;
			e = sim_post(s, &g->node, rnd_below(s, s->o.delay_ns), on_turn);
			e->p = g;
			e->b = 1;
		} else if (++n > WORK_LIMIT) {
			violation(s, "%s never becomes idle", g->node.name);
			return;
		}
	}
}

static void guest_enter(void *owner)
{
	struct guest *g = owner;

	agt_core_run_timers(g->core, g->s->now);
}

static void guest_leave(void *owner)
{
	struct guest *g = owner;
	struct sim *s = g->s;
	struct err_text err;
	struct sim_event *e;
	uint64_t at;

	work(g);
	if (rnd_below(s, CHECK_EVERY) == 0 && agt_core_check(g->core, &err) < 0)
		violation(s, "agt_core_check of %s: %s", g->node.name, err.s);
	at = agt_core_run_timers(g->core, s->now);
	if (at == UINT64_MAX || (g->tick_at && g->tick_at <= at))
		return;
	g->tick_at = at > s->now ? at : s->now;
	e = sim_post(s, &g->node, g->tick_at - s->now, on_turn);
	e->p = g;
	e->a = g->tick_at;
}

/* ---- the trainer ---- */

static struct guest_job *job_of(const struct guest *g)
{
	return &g->s->guest_jobs[g->idx / GUESTS_OF_JOB];
}

static uint32_t value(const struct guest *g, unsigned t, uint32_t rank, uint64_t round, uint32_t i)
{
	uint64_t seed = mix(g->s->seed << 24 ^ round << 16 ^ (uint64_t)t << 12 ^
			    (uint64_t)(g->idx / GUESTS_OF_JOB + 1) << 8 ^ rank);

	return (uint32_t)seed + i * ((uint32_t)(seed >> 32) | 1);
}

/* Return the guest that follows g in the process of guest `a`, or NULL if g is the last one. Guest
 * `a` owns the process, and is its first guest. */
static struct guest *next_in(struct guest *a, const struct guest *g)
{
	struct sim *s = a->s;

	for (unsigned i = g->idx + 1; i < s->o.n_guests; i++)
		if (s->guests[i].agent == a)
			return &s->guests[i];
	return NULL;
}
#define FOREACH_IN(g, a) for (g = (a); g; g = next_in(a, g))

static void on_submit(struct sim *s, struct sim_event *e)
{
	struct guest_tensor *t = e->p;
	struct guest *g = t->guest;
	int rc;

	if (!g->job)
		return;
	guest_enter(g->agent);
	for (uint32_t i = 0; i < job_of(g)->n_elems; i++)
		((uint32_t *)t->in)[i] = value(g, t->idx, g->rank, t->round + 1, i);
	rc = agt_tensor_submit(t->t, 0, t->round + 1, OP_SUM, 1, false);
	if (rc < 0 && !t->failed)
		violation(s, "%s: submit: %s", g->node.name, err_str(rc));
	guest_leave(g->agent);
}

static void submit_later(struct guest_tensor *t)
{
	struct sim *s = t->guest->s;

	sim_post(s, &t->guest->agent->node, rnd_below(s, s->o.think_ns + 1), on_submit)->p = t;
}

static void tell_finished(struct guest *g)
{
	struct ctl_msg msg = {
		.type = CTL_WORKER, .worker = {g->job_id, g->rank, WORKER_FINISHED, .text = ""}};

	g->is_finished = true;
	sim_member_send(&g->agent->m, &msg);
}

static bool is_sum(const struct guest_tensor *t, uint64_t round)
{
	const struct guest *g = t->guest;

	for (uint32_t i = 0; i < job_of(g)->n_elems; i++) {
		uint32_t want = 0;

		for (uint32_t r = 0; r < GUESTS_OF_JOB; r++)
			want += value(g, t->idx, r, round, i);
		if (((const uint32_t *)t->out[round & 1])[i] != want)
			return false;
	}
	return true;
}

static void env_done(void *ctx, void *tensor_user, uint64_t round, int status, uint32_t workers)
{
	struct guest_tensor *t = tensor_user;
	struct guest *g = t->guest;
	struct sim *s = g->s;

	(void)ctx;
	if (round != t->round + 1)
		violation(s, "I1: %s: round %llu is done after round %llu", g->node.name,
			(unsigned long long)round, (unsigned long long)t->round);
	t->round = round;
	if (status < 0) {
		if (!job_of(g)->has_liar)
			violation(s, "%s: round %llu ends with: %s", g->node.name,
				(unsigned long long)round, err_str(status));
		t->failed = status;
		return;
	}
	s->tot->guest_rounds++;
	if (!job_of(g)->has_liar && (workers != GUESTS_OF_JOB || !is_sum(t, round)))
		violation(s, "I3: %s tensor %u round %llu: the sum is wrong", g->node.name, t->idx,
			(unsigned long long)round);
	memset(t->in, 0xee, job_of(g)->n_elems * sizeof(uint32_t));
	if (round < job_of(g)->rounds)
		submit_later(t);
	else if (--g->tensors_left == 0)
		tell_finished(g);
}

/* ---- joining, declaring ---- */

static uint32_t join_seq(const struct guest *g)
{
	return 1 + g->idx / GUESTS_OF_JOB;
}

static void join(struct guest *g)
{
	char name[16];
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = join_seq(g),
			.uid = g->s->o.has_greedy ? 1001 + g->idx / GUESTS_OF_JOB : 1000,
			.job = name,
			.rank = g->idx % GUESTS_OF_JOB,
			.size = GUESTS_OF_JOB,
			.pid = 100 + g->idx,
			.part_bytes = job_of(g)->part_bytes}};

	snprintf(name, sizeof(name), "g%u", g->idx / GUESTS_OF_JOB);
	g->has_joined = false;
	sim_member_send(&g->agent->m, &msg);
}

static void on_join_timer(struct sim *s, struct sim_event *e)
{
	struct guest *g = e->p;

	if (g->has_job_msg || g->has_ended)
		return;
	if (!g->has_joined)
		join(g);
	sim_post(s, &g->agent->node, 500 * MS, on_join_timer)->p = g;
}

static void declare(struct guest *g)
{
	struct ctl_decl decls[GUEST_TENSORS + 1];
	char names[GUEST_TENSORS + 1][16];
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {g->job_id, decls, 0}};

	for (unsigned t = 0; t < GUEST_TENSORS; t++) {
		if (g->tensors[t].is_planned)
			continue;
		snprintf(names[t], sizeof(names[t]), "t%u", t);
		decls[msg.declare.n_tensors++] = (struct ctl_decl){g->rank, names[t],
			shape_from_dtype_and_count(DTYPE_I32, job_of(g)->n_elems), 0};
	}
	if (g->s->o.has_failing) {
		snprintf(names[GUEST_TENSORS], sizeof(names[0]), "t%u", FAILED_TENSOR);
		decls[msg.declare.n_tensors++] = (struct ctl_decl){g->rank, names[GUEST_TENSORS],
			shape_from_dtype_and_count(DTYPE_I32, job_of(g)->n_elems), g->failed};
	}
	if (msg.declare.n_tensors)
		sim_member_send(&g->agent->m, &msg);
}

/* C10: each worker of the greedy job declares N_GREEDY tensors, one per event, to fill the memory
 * of the servers. A worker stops earlier if its job ends. */
static void on_greed(struct sim *s, struct sim_event *e)
{
	uint64_t k = e->a, n_elems = 1 + mix(s->seed ^ k << 8) % (SUMS_BYTES / 16);
	struct guest *g = e->p;
	char name[16];
	struct ctl_decl decl = {g->rank, name, shape_from_dtype_and_count(DTYPE_I32, n_elems), 0};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {g->job_id, &decl, 1}};
	struct sim_event *next;

	if (g->has_ended || k == GREEDY_FIRST + N_GREEDY)
		return;
	snprintf(name, sizeof(name), "t%u", (unsigned)k);
	sim_member_send(&g->agent->m, &msg);
	next = sim_post(s, &g->agent->node, GREED_GAP_NS, on_greed);
	next->p = g;
	next->a = k + 1;
}

static void tensor_make(struct guest *g, unsigned i)
{
	struct guest_tensor *t = &g->tensors[i];
	uint32_t bytes = job_of(g)->n_elems * (uint32_t)sizeof(uint32_t);
	uint8_t *mem;
	uint16_t segment;
	struct tensor_shape shape = shape_from_dtype_and_count(DTYPE_I32, job_of(g)->n_elems);
	struct agt_mem in, out[2];

	if (port_segment(&g->agent->port, 3 * (size_t)bytes, (void **)&mem, &segment) < 0)
		abort();
	*t = (struct guest_tensor){
		.guest = g, .idx = i, .in = mem, .out = {mem + bytes, mem + 2 * bytes}};
	in = (struct agt_mem){mem, 0, segment};
	out[0] = (struct agt_mem){mem + bytes, bytes, segment};
	out[1] = (struct agt_mem){mem + 2 * bytes, 2 * bytes, segment};
	if (agt_tensor_new(g->job, &shape, &in, NULL, out, t, &t->t) < 0)
		abort();
}

static void job_start(struct guest *g, const struct ctl_job *msg)
{
	uint16_t my = 0;

	while (my < msg->n_members && msg->members[my].agent != g->agent->m.id)
		my++;
	if (my == msg->n_members) {
		violation(g->s, "%s gets a job that does not name its agent", g->node.name);
		return;
	}
	if (agt_job_new(g->agent->core, msg, my, &g->job) < 0)
		abort();
	g->has_job_msg = true;
	g->job_id = job_of(g)->id = msg->job;
	/* The worker learns that its tensor has failed before it finishes. */
	g->tensors_left = GUEST_TENSORS + g->s->o.has_failing;
	if (g->s->o.has_failing && g->idx % GUESTS_OF_JOB == 0)
		g->failed = ENOMEM;
	for (unsigned t = 0; t < GUEST_TENSORS; t++) {
		tensor_make(g, t);
		submit_later(&g->tensors[t]);
	}
	declare(g);
	if (g->s->o.has_greedy && g->idx < GUESTS_OF_JOB) {
		struct sim_event *e = sim_post(g->s, &g->agent->node, 0, on_greed);

		e->p = g;
		e->a = GREEDY_FIRST;
	}
}

/* ---- messages of the scheduler ---- */

static void released(void *ctx)
{
	struct guest *g = ctx;

	g->is_released = true;
}

static void job_end(struct guest *g, uint32_t code, const char *text)
{
	if (g->has_ended)
		return;
	trace(g->s, "%s: its job ends with code %u", g->node.name, code);
	g->has_ended = true;
	if (code && !job_of(g)->has_liar)
		violation(g->s, "I12: the job of %s failed: %s", g->node.name, text);
	if (!code && !g->is_finished && !job_of(g)->has_liar)
		violation(g->s, "C7: the job of %s succeeds before its worker has finished",
			g->node.name);
	if (!g->job)
		return;
	agt_job_fail(g->job, code ? -(int)code : BPS_ECLOSED);
	agt_job_free(g->job, released, g);
	g->job = NULL;
}

static void plan(struct guest *g, const struct ctl_plan *msg)
{
	if (!g->job || msg->job != g->job_id)
		return;
	for (uint32_t i = 0; i < msg->n_tensors; i++) {
		unsigned t = (unsigned)atoi(msg->tensors[i].name + 1);

		if (t == FAILED_TENSOR)
			violation(g->s, "C9: %s gets a plan of a tensor that has failed",
				g->node.name);
		if (t >= GUEST_TENSORS)
			continue; /* a tensor that the misbehaving agent of the job made up */
		if (agt_tensor_plan(g->tensors[t].t, &msg->tensors[i]) < 0)
			violation(g->s, "%s rejects the plan of tensor %u", g->node.name, t);
		g->tensors[t].is_planned = true;
	}
	agt_job_apply_placement(g->job, msg->runs, msg->n_runs);
}

static void tensor_failed(struct guest *g, const struct ctl_tensor_fail *msg)
{
	if (job_of(g)->has_liar || msg->job != g->job_id || g->has_ended)
		return;
	if (!g->s->o.has_failing || atoi(msg->name + 1) != FAILED_TENSOR)
		violation(g->s, "%s: tensor '%s' fails: %s", g->node.name, msg->name, msg->text);
	g->failed = msg->code;
	if (!g->knows_failed && --g->tensors_left == 0)
		tell_finished(g);
	g->knows_failed = true;
}

static void peers(struct guest *a, const struct ctl_peers *msg)
{
	struct guest *g;

	for (uint32_t i = 0; i < msg->n_peers; i++) {
		const struct ctl_peer *p = &msg->peers[i];
		struct guest_server *srv = &a->servers[p->id];
		bool is_up = p->state == PEER_UP;

		if (srv->instance == p->instance && srv->is_up == is_up)
			continue;
		*srv = (struct guest_server){p->instance, p->port - 1000u, is_up};
		agt_core_server_changed(a->core, p->id);
	}
	if (msg->n_peers || !a->is_syncing)
		return;
	a->is_syncing = false;
	FOREACH_IN (g, a)
		if (g->has_job_msg && !g->is_named)
			job_end(g, (uint32_t)-BPS_EJOB_FAILED,
				"the scheduler did not name the job after WELCOME");
}

static void welcome(struct guest *a)
{
	struct guest *g;

	a->is_syncing = true;
	FOREACH_IN (g, a) {
		g->is_named = false;
		if (!g->has_job_msg)
			join(g);
		else if (g->is_finished && !g->has_ended)
			tell_finished(g);
		if (g->job)
			declare(g);
	}
}

static void joined(struct guest *g, const struct ctl_joined *msg)
{
	if (msg->seq != join_seq(g))
		/* The message answers a JOIN of another guest in g's process, or a JOIN that the
		 * misbehaving agent sent for a different job. */
		return;
	if (msg->code && msg->code != (uint32_t)-BPS_ENOTDURABLE && !job_of(g)->has_liar)
		violation(g->s, "%s is not admitted: %s", g->node.name, msg->text);
	if (msg->code)
		return;
	g->has_joined = true;
	g->rank = msg->rank;
	g->joined_id = job_of(g)->id = msg->job;
}

static void job_message(struct guest *g, const struct ctl_msg *msg)
{
	switch (msg->type) {
	case CTL_JOINED:
		joined(g, &msg->joined);
		break;
	case CTL_JOB:
		g->is_named |= msg->job.job == g->job_id;
		if (!g->has_job_msg && !g->has_ended && g->has_joined &&
			msg->job.job == g->joined_id)
			job_start(g, &msg->job);
		break;
	case CTL_PLAN:
		plan(g, &msg->plan);
		break;
	case CTL_TENSOR_FAIL:
		tensor_failed(g, &msg->tensor_fail);
		break;
	case CTL_JOB_END:
		if (msg->job_end.job == (g->has_job_msg ? g->job_id : g->joined_id))
			job_end(g, msg->job_end.code, msg->job_end.text);
		break;
	default:
		if (!job_of(g)->has_liar)
			violation(g->s, "%s gets %s", g->node.name, ctl_type_name(msg->type));
	}
}

void guest_message(struct sim *s, unsigned idx, const struct ctl_msg *msg)
{
	struct guest *a = &s->guests[idx], *g;

	guest_enter(a);
	switch (msg->type) {
	case CTL_WELCOME:
		welcome(a);
		break;
	case CTL_PEERS:
		peers(a, &msg->peers);
		break;
	case CTL_PROBE: /* send no report, so that the probe ends at its deadline */
	case CTL_SIGHT:
		break;
	default:
		FOREACH_IN (g, a)
			job_message(g, msg);
	}
	guest_leave(a);
}

/* ---- start and stop of the process ---- */

static int env_connect(
	void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn)
{
	struct guest *g = ctx;

	if (!g->servers[server].is_up)
		return -ENOTCONN;
	return sim_net_connect(g->s, &g->port, server, g->servers[server].idx, thread,
		g->servers[server].instance, link, ret_conn);
}

static void env_fail(void *ctx, uint32_t job, int code, const char *text)
{
	struct guest *g = ctx;
	struct ctl_msg msg = {
		.type = CTL_FAIL, .fail = {.job = job, .code = (uint32_t)-code, .text = text}};

	if (!job_of(g)->has_liar)
		violation(g->s, "%s fails its job (%s): %s", g->node.name, err_str(code), text);
	sim_member_send(&g->m, &msg);
}

static uint64_t env_random(void *ctx)
{
	struct guest *g = ctx;

	return rnd(g->s);
}

static void agent_of_guest_start(struct sim *s, struct sim_event *e)
{
	static const char *const hosts[] = {"g0", "g1", "g2", "g3"};
	struct guest *g = &s->guests[e->a];
	struct agt_config cfg = {.window_bytes = s->o.window_bytes,
		.retry_ns = RETRY_NS,
		.again_ns = AGAIN_NS,
		.lead_bytes = s->o.lead_bytes,
		.turn_bytes = s->o.turn_bytes};
	struct agt_env env = {.ctx = g,
		.connect = env_connect,
		.done = env_done,
		.fail = env_fail,
		.random = env_random};

	g->node.is_up = true;
	g->node.life++;
	g->m = (struct sim_member){.s = s,
		.node = &g->node,
		.role = ROLE_AGENT,
		.idx = AGENTS_MAX + g->idx,
		.host = hosts[g->idx]};
	if (agt_core_new(&cfg, &env, &g->port.x, &g->core) < 0)
		abort();
	port_init(s, &g->port, &g->node, &agt_core_events, g->core, g, guest_enter, guest_leave);
	g->port.m = &g->m;
	agt_core_run_timers(g->core, s->now);
	trace(s, "%s: started%s", g->node.name, g->is_liar ? ", and lies" : "");
	member_start(&g->m);
	if (g->is_liar)
		liar_start(g);
}

static void guest_start(struct sim *s, struct sim_event *e)
{
	struct guest *g = &s->guests[e->a];

	if (g->agent == g)
		agent_of_guest_start(s, e);
	if (g->agent->node.is_up) {
		sim_post(s, &g->agent->node, g->agent == g ? 500 * MS : 0, on_join_timer)->p = g;
		return;
	}
	/* The guest must run in the process of another guest, and that process has not started
	 * yet. Try again later. */
	sim_post(s, NULL, 10 * MS, guest_start)->a = e->a;
}

/* Let an operator kill the job of a misbehaving agent, since such a job may never end by itself. */
static void on_kill(struct sim *s, struct sim_event *e)
{
	uint32_t id = s->guest_jobs[e->a].id;
	unsigned n = 0;
	int rc;

	sim_post(s, NULL, KILL_NS, on_kill)->a = e->a;
	if (!s->has_faults_begun || s->now < s->faults_end + KILL_NS || !s->sched.node.is_up ||
		s->sched.node.paused_until > s->now)
		return;
	for (unsigned i = 0; i < s->o.n_guests; i++) {
		const struct guest *g = &s->guests[i];

		/* The misbehaving agent may have left a job before it formed. The others of the job
		 * then wait for it in another one. */
		if (i / GUESTS_OF_JOB == e->a && g->joined_id && g->joined_id != id)
			sched_job_kill(s->sched.core, g->joined_id, "it has a liar", s->now);
	}
	do {
		rc = sched_job_kill(s->sched.core, id, "it has a liar", s->now);
		trace(s, "operator: job kill #%u: %s", id, rc ? err_str(rc) : "done");
		/* continue with another job that the misbehaving agent opened */
		id = move_job_of(s->sched.core, LIAR_UID);
	} while (id && (rc == 0 || rc == BPS_ENOTFOUND) && ++n < 64);
	sched_settle(s);
}

void guests_draw(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->n_guests = GUESTS_OF_JOB * (unsigned)rnd_between(s, 1, GUEST_JOBS);
	for (unsigned i = 0; i < GUEST_JOBS; i++)
		s->guest_jobs[i] = (struct guest_job){.part_bytes = 256u << rnd_below(s, 3),
			.n_elems = (uint32_t)rnd_between(s, 32, GUEST_ELEMS_MAX),
			.rounds = (unsigned)rnd_between(s, 4, ROUNDS_MAX)};
	if (o->has_greedy)
		o->n_guests = GUESTS_MAX;
	/* A history with a greedy job tests what happens when this job exhausts the memory of the
	 * servers. Such a history has no faults, because a fault could reduce this memory. */
	if (o->has_greedy) {
		o->faults = 0;
		o->is_forming_calm = true;
	}
	if (o->has_liar || o->has_greedy)
		s->guest_jobs[0].has_liar = true;
	o->has_tenants = o->n_guests > GUESTS_OF_JOB && !o->has_liar && !o->has_greedy &&
			 mix(s->seed ^ TENANTS) % 4;
	o->has_failing = !o->has_liar && !o->has_greedy && mix(s->seed ^ FAILING) % 4 == 0;
}

void guests_start(struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_guests; i++) {
		struct guest *g = &s->guests[i];

		snprintf(g->node.name, sizeof(g->node.name), "guest%u", i);
		g->s = s;
		g->idx = i;
		g->is_liar = s->o.has_liar && i == 0;
		g->agent = s->o.has_tenants ? &s->guests[i % GUESTS_OF_JOB] : g;
		sim_post(s, NULL,
			rnd_below(s, 100 * MS) +
				(s->o.has_greedy && i >= GUESTS_OF_JOB ? LATE_NS : 0),
			guest_start)
			->a = i;
	}
	if (s->o.has_liar)
		sim_post(s, NULL, KILL_NS, on_kill)->a = 0;
}

/* Return whether a guest's job has ended as required. If a guest's agent misbehaves, and the guest
 * has received no JOB message, the guest need not receive JOB_END. The reason is that the agent may
 * have reported the guest's worker as finished or lost (message WORKER) while the job formed. */
static bool has_its_end(const struct guest *g)
{
	return g->has_job_msg ? g->has_ended && g->is_released : g->has_ended || g->is_liar;
}

bool guests_are_over(const struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_guests; i++) {
		const struct guest *g = &s->guests[i];

		if (!g->agent->node.life || !has_its_end(g))
			return false;
	}
	return true;
}

void guests_close(struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_guests; i++)
		if (s->guests[i].node.is_up)
			sim_net_close_all(s, &s->guests[i].port);
}

void guests_end(struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_guests; i++) {
		struct guest *g = &s->guests[i];

		if (!g->node.is_up)
			continue;
		g->node.is_up = false;
		if (g->m.conn)
			g->m.conn->is_open_m = false;
		g->m.conn = NULL;
		sim_net_kill(s, &g->port, true);
		agt_core_free(g->core);
		g->core = NULL;
	}
}

size_t guests_describe(const struct sim *s, char *ret, size_t room)
{
	size_t n = 0;

	for (unsigned i = 0; i < s->o.n_guests && n + 32 < room; i++)
		if (!has_its_end(&s->guests[i]))
			n += (size_t)snprintf(ret + n, room - n, " guest%u:%llu,%llu", i,
				(unsigned long long)s->guests[i].tensors[0].round,
				(unsigned long long)s->guests[i].tensors[1].round);
	return n;
}

bool guests_may_fail(const struct sim *s, uint32_t job)
{
	return s->o.has_liar && job && job == s->guest_jobs[0].id;
}
