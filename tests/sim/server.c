/* The server's shell. Its control thread passes the scheduler's messages to each data thread. A
 * data thread has its own core and transport. */
#include "tests/sim/peek.h"
#include "tests/invariants/invariants.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_NS    (200 * MS)
#define WORK_LIMIT  100000
#define CHECK_EVERY 16

static int env_segment(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct sim_thread *t = ctx;

	return port_segment(&t->port, bytes, ret_mem, ret_segment);
}

static void env_fail(void *ctx, uint32_t job, int code, const char *text)
{
	struct sim_thread *t = ctx;
	struct ctl_msg msg = {
		.type = CTL_FAIL, .fail = {.job = job, .code = (uint32_t)-code, .text = text}};

	if (guests_may_fail(t->server->s, job)) {
		sim_member_send(&t->server->m, &msg);
		return;
	}
	violation(t->server->s, "%s fails the job (%s): %s", t->server->node.name, err_str(code),
		text);
}

/* ---- before and after every event of a thread ---- */

static void thread_enter(void *owner);
static void thread_leave(void *owner);

static void on_tick(struct sim *s, struct sim_event *e)
{
	struct sim_thread *t = e->p;

	(void)s;
	if (e->a != t->tick_at)
		return;
	t->tick_at = 0;
	thread_enter(t);
	thread_leave(t);
}

static void on_work(struct sim *s, struct sim_event *e)
{
	struct sim_thread *t = e->p;

	(void)s;
	t->is_work_posted = false;
	thread_enter(t);
	thread_leave(t);
}

static void work(struct sim_thread *t)
{
	struct sim *s = t->server->s;
	unsigned n = 0;

	if (t->is_work_posted)
		return;
	while (srv_core_sum_slice(t->core)) {
		if (s->o.is_work_slow) {
			t->is_work_posted = true;
			sim_post(s, &t->server->node, rnd_below(s, s->o.delay_ns), on_work)->p = t;
			return;
		}
		if (++n > WORK_LIMIT) {
			violation(s, "%s never becomes idle", t->server->node.name);
			return;
		}
	}
}

static void thread_enter(void *owner)
{
	struct sim_thread *t = owner;

	srv_core_run_deadlines(t->core, t->server->s->now);
}

static void thread_leave(void *owner)
{
	struct sim_thread *t = owner;
	struct sim *s = t->server->s;
	struct err_text err;
	struct sim_event *e;
	uint64_t at;

	work(t);
	if (rnd_below(s, CHECK_EVERY) == 0 && srv_core_check(t->core, &err) < 0)
		violation(s, "srv_core_check: %s", err.s);
	at = srv_core_run_deadlines(t->core, s->now);
	if (at == UINT64_MAX || (t->tick_at && t->tick_at <= at))
		return;
	t->tick_at = at > s->now ? at : s->now;
	e = sim_post(s, &t->server->node, t->tick_at - s->now, on_tick);
	e->p = t;
	e->a = t->tick_at;
}

/* ---- messages ---- */

static void on_data_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct sim_end *end = (struct sim_end *)c;
	struct sim_thread *t = end->port->owner;
	const struct peek p = {m->job, m->tensor, m->part, m->round, m->pgen};
	bool was_over = peek_slot_of(t->core, &p) == PEEK_OVER;

	srv_core_events.message(ctx, c, m);
	/* the message itself may have ended the round without its member */
	was_over |= peek_is_late(t->core, &p, m->member);
	/* the server closes the connection of an agent that is not the member */
	if (peek_slot_of(t->core, &p) != PEEK_ELSEWHERE && end->is_open)
		times_server_takes(t->server->s, m, was_over);
}

static void answer_sight(struct sim_thread *t, const struct ctl_sight *asked)
{
	uint64_t heard_ns = srv_core_heard_ns(t->core, asked->member, asked->instance);
	struct ctl_msg seen = {.type = CTL_SEEN, .sight = *asked};

	seen.sight.quiet_ms = (uint32_t)((t->server->s->now - heard_ns) / MS);
	if (heard_ns)
		sim_member_send(&t->server->m, &seen);
}

static void on_handover(struct sim *s, struct sim_event *e)
{
	struct sim_thread *t = e->p;
	struct ctl_msg msg;
	struct err_text err;
	void *mem = NULL;

	if (ctl_decode((unsigned)e->a, event_bytes(e), e->n, &msg, &mem, &err) < 0) {
		violation(s, "a control message does not decode: %s", err.s);
		return;
	}
	thread_enter(t);
	if (msg.type == CTL_JOB) {
		if (srv_core_apply_job(t->core, &msg.job) < 0)
			violation(s, "%s refuses a job", t->server->node.name);
	} else if (msg.type == CTL_PLAN) {
		srv_core_apply_plan(t->core, &msg.plan);
	} else if (msg.type == CTL_SIGHT) {
		answer_sight(t, &msg.sight);
	} else if (msg.type == CTL_WELCOME) {
		srv_core_resync_begin(t->core);
	} else if (msg.type == CTL_PEERS) {
		/* drop the jobs that the scheduler has not named since WELCOME */
		srv_core_resync_end(t->core);
	} else {
		srv_core_job_end(t->core, msg.job_end.job);
	}
	thread_leave(t);
	free(mem);
}

static void hand_over(struct sim_server *srv, const struct ctl_msg *msg)
{
	struct sim *s = srv->s;
	const struct layout *l = ctl_layout(msg->type);

	for (unsigned k = 0; k < s->o.n_threads; k++) {
		struct sim_thread *t = &srv->threads[k];
		uint64_t at = s->now + rnd_below(s, 100 * US);
		struct sim_event *e;

		at = at < t->last_ctl ? t->last_ctl : at;
		t->last_ctl = at;
		e = sim_post(s, &srv->node, at - s->now, on_handover);
		e->p = t;
		e->a = msg->type;
		codec_encode(l, &msg->hello,
			event_room(e, (uint32_t)codec_encoded_size(l, &msg->hello)));
	}
}

static void make_cores(struct sim_server *srv)
{
	struct sim *s = srv->s;

	for (unsigned k = 0; k < s->o.n_threads; k++) {
		struct sim_thread *t = &srv->threads[k];
		struct srv_config cfg = {.server_id = srv->m.id,
			.instance = srv->m.instance,
			.thread = (uint16_t)k,
			.sums_bytes = SUMS_BYTES,
			.staging_bytes = s->o.staging_bytes,
			.segment_bytes = POOL_SEGMENT_BYTES,
			.peer_window_bytes = s->o.peer_window_bytes,
			.retry_ns = RETRY_NS};
		struct srv_env env = {.ctx = t, .segment = env_segment, .fail = env_fail};

		t->server = srv;
		t->idx = k;
		t->tick_at = t->last_ctl = 0;
		t->is_work_posted = false;
		if (srv_core_new(&cfg, &env, &t->core) < 0)
			abort();
		t->events = srv_core_events;
		t->events.message = on_data_message;
		port_init(s, &t->port, &srv->node, &t->events, t->core, t, thread_enter,
			thread_leave);
		srv_core_run_deadlines(t->core, s->now);
	}
	srv->has_cores = true;
}

static void peers(struct sim_server *srv, const struct ctl_msg *msg)
{
	for (uint32_t i = 0; i < msg->peers.n_peers; i++) {
		const struct ctl_peer *p = &msg->peers.peers[i];

		if (p->state == PEER_UP)
			srv->agents_known[p->port - 1000] = p->instance;
	}
	if (!msg->peers.n_peers)
		hand_over(srv, msg);
}

void server_message(struct sim *s, unsigned idx, const struct ctl_msg *msg)
{
	struct sim_server *srv = &s->servers[idx];

	switch (msg->type) {
	case CTL_WELCOME:
		if (!srv->has_cores)
			make_cores(srv);
		hand_over(srv, msg);
		server_say_leave(srv);
		break;
	case CTL_PEERS:
		peers(srv, msg);
		break;
	case CTL_JOB:
		oracle_job(s, &msg->job);
		hand_over(srv, msg);
		break;
	case CTL_PLAN:
	case CTL_SIGHT:
	case CTL_JOB_END:
		hand_over(srv, msg);
		break;
	case CTL_LEFT:
		server_left(srv, &msg->left);
		break;
	default:
		violation(s, "%s gets %s", srv->node.name, ctl_type_name(msg->type));
	}
}

/* ---- start and end of the process ---- */

bool server_has_job(const struct sim_server *srv)
{
	for (unsigned k = 0; srv->has_cores && k < srv->s->o.n_threads; k++)
		if (peek_server_jobs(srv->threads[k].core) ||
			srv->threads[k].last_ctl > srv->s->now)
			return true;
	return false;
}

void server_start(struct sim *s, unsigned idx)
{
	/* Host h1 also has an agent. */
	static const char *const hosts[] = {"c0", "h1", "c2"};
	struct sim_server *srv = &s->servers[idx];

	srv->node.is_up = true;
	srv->node.life++;
	srv->node.paused_until = 0;
	srv->m = (struct sim_member){
		.s = s, .node = &srv->node, .role = ROLE_SERVER, .idx = idx, .host = hosts[idx]};
	srv->has_cores = false;
	memset(srv->agents_known, 0, sizeof(srv->agents_known));
	srv->leave_ns = 0;
	srv->has_left = false;
	trace(s, "%s: started", srv->node.name);
	member_start(&srv->m);
}

void server_kill(struct sim *s, unsigned idx, bool is_silent)
{
	struct sim_server *srv = &s->servers[idx];

	trace(s, "%s: killed%s", srv->node.name, is_silent ? " with its host" : "");
	srv->node.is_up = false;
	if (is_silent && srv->m.conn)
		srv->m.conn->is_open_m = false, srv->m.conn = NULL;
	else
		member_stop(&srv->m);
	for (unsigned k = 0; srv->has_cores && k < s->o.n_threads; k++) {
		sim_net_kill(s, &srv->threads[k].port, is_silent);
		srv_core_free(srv->threads[k].core);
		srv->threads[k].core = NULL;
	}
	srv->has_cores = false;
}

static void on_come_back(struct sim *s, struct sim_event *e)
{
	const struct sim_server *srv = &s->servers[e->a];

	if (!srv->node.is_up && !srv->is_gone)
		server_start(s, (unsigned)e->a);
}

void server_restart(struct sim *s, unsigned idx, uint64_t span_ns)
{
	server_kill(s, idx, false);
	sim_post(s, NULL, span_ns, on_come_back)->a = idx;
}
