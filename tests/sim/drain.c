/* Simulates operators that drain and undrain servers, and servers that start late. Some server
 * processes receive a stop signal. These processes send LEAVE, end, and start again. All this
 * happens in histories with and without other faults. */
#include "bps-scheduler/placement/drain.h"
#include "tests/sim/move.h"
#include "tests/sim/sim.h"

#include <stdio.h>

#define LEAVE_BOUND_NS (20 * S)
#define LAST_NS        (1 * S)
/* Time within which a drained server must become empty. The limit applies only to histories for
 * which is_calm returns true. The server has few partitions, so they move in one batch. A second
 * batch would wait for a heartbeat of every agent. */
#define EMPTY_NS (3 * S)

static bool is_calm(const struct sim *s)
{
	return !s->o.faults && !s->o.has_deaf && !s->o.loss_permille && !s->o.has_stops;
}

/* ---- operators ---- */

/* Check that a drained server has no partitions. e->a: index of the server. e->b: value of n_orders
 * after the drain. If a later order has changed n_orders, skip the check. */
static void on_should_be_empty(struct sim *s, struct sim_event *e)
{
	const struct sim_server *srv = &s->servers[e->a];
	char name[16];

	if (!s->sched.node.is_up || srv->n_orders != e->b)
		return;
	snprintf(name, sizeof(name), "n%u", (unsigned)e->a);
	if (move_parts_at(s->sched.core, name))
		violation(s, "%s is drained, but still has partitions", srv->node.name);
}

static void order(struct sim *s, unsigned idx)
{
	struct sim_server *srv = &s->servers[idx];
	struct err_text text = {""};
	char target[32];
	struct sim_event *e;
	int rc;

	if (!s->sched.node.is_up || s->sched.node.paused_until > s->now)
		return;
	snprintf(target, sizeof(target), "server:n%u", idx);
	if (rnd_chance(s, 500)) {
		rc = sched_drain(s->sched.core, target, "", "", s->now, &text);
		srv->n_orders++;
		if (rc == 0 && is_calm(s)) {
			e = sim_post(s, NULL, EMPTY_NS, on_should_be_empty);
			e->a = idx;
			e->b = srv->n_orders;
		}
	} else {
		rc = sched_undrain(s->sched.core, target, s->now, &text);
		srv->n_orders++;
	}
	trace(s, "operator: %s", text.s);
	s->tot->drains += rc == 0;
	sched_settle(s);
}

/* ---- processes that receive a stop signal ---- */

static void end(struct sim_server *srv)
{
	struct sim *s = srv->s;

	trace(s, "%s: ends", srv->node.name);
	server_restart(s, srv->m.idx, rnd_between(s, 50 * MS, 2 * S));
}

static uint64_t busy(const struct sim_server *srv)
{
	struct srv_stats st;
	uint64_t n = 0;

	for (unsigned k = 0; srv->has_cores && k < srv->s->o.n_threads; k++) {
		srv_core_stats(srv->threads[k].core, &st);
		n += st.parts + st.retired;
	}
	return n;
}

static void on_leaving(struct sim *s, struct sim_event *e)
{
	struct sim_server *srv = e->p;

	if (s->now < srv->leave_ns && (!srv->has_left || busy(srv)))
		sim_post(s, &srv->node, 20 * MS, on_leaving)->p = srv;
	else
		end(srv);
}

void server_say_leave(struct sim_server *srv)
{
	struct ctl_msg msg = {.type = CTL_LEAVE, .leave = {LEAVE_BOUND_NS / MS}};

	if (srv->leave_ns)
		sim_member_send(&srv->m, &msg);
}

/* Check that a server that received LEFT has no partitions. The check runs in each thread of the
 * server, after the thread has handled all plans that arrived before LEFT. If no other server
 * remains, plans that arrive after LEFT may add partitions again. */
static void on_left_thread(struct sim *s, struct sim_event *e)
{
	const struct sim_thread *t = e->p;
	struct srv_stats st;

	srv_core_stats(t->core, &st);
	if (st.parts)
		violation(s, "%s received LEFT, but has %u partitions", t->server->node.name,
			st.parts);
}

void server_left(struct sim_server *srv, const struct ctl_left *msg)
{
	struct sim *s = srv->s;

	if (!srv->leave_ns)
		return;
	if (msg->code) {
		srv->leave_ns = s->now;
		return;
	}
	srv->has_left = true;
	if (srv->leave_ns > s->now + LAST_NS)
		srv->leave_ns = s->now + LAST_NS;
	/* Check in each thread that the server has no partitions. Skip this check in histories that
	 * duplicate plans, because a duplicate of an old plan would add the partitions again. Real
	 * connections never duplicate plans. */
	for (unsigned k = 0; k < s->o.n_threads && !s->o.has_old_plans; k++) {
		struct sim_thread *t = &srv->threads[k];

		sim_post(s, &srv->node, t->last_ctl > s->now ? t->last_ctl - s->now : 0,
			on_left_thread)
			->p = t;
	}
}

static void stop(struct sim_server *srv)
{
	if (!srv->node.is_up || srv->leave_ns || !srv->has_cores)
		return;
	trace(srv->s, "%s receives a stop signal", srv->node.name);
	srv->leave_ns = srv->s->now + LEAVE_BOUND_NS;
	srv->s->tot->leaves++;
	server_say_leave(srv);
	sim_post(srv->s, &srv->node, 20 * MS, on_leaving)->p = srv;
}

/* ---- timing ---- */

static void on_drain_event(struct sim *s, struct sim_event *e)
{
	unsigned idx = (unsigned)rnd_below(s, s->o.n_servers);

	(void)e;
	if (s->now > s->faults_end)
		return;
	if (s->o.has_stops && rnd_chance(s, 600))
		stop(&s->servers[idx]);
	else
		order(s, idx);
	sim_post(s, NULL, 1 + rnd_below(s, 2 * s->o.drain_gap_ns), on_drain_event);
}

/* Schedule the first drain, undrain or stop of a server. A server that is in the drained state at
 * the end of the faults remains drained. Jobs must end nevertheless. */
void drains_start(struct sim *s)
{
	sim_post(s, NULL, rnd_below(s, 2 * s->o.drain_gap_ns), on_drain_event);
}

void drains_draw(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->drain_gap_ns = (20 * MS) << rnd_below(s, 7);
	/* If `has_deaf` is set, the only fault is that agents are cut off from the scheduler. This
	 * fault must not end a job. But a server that stops does not wait for the agents that are
	 * cut off, and would end their jobs. So no server stops if `has_deaf` is set. */
	if (o->has_deaf)
		return;
	o->is_forming_calm = rnd_chance(s, 800);
	o->has_stops = rnd_chance(s, 600);
	if (rnd_chance(s, 400) && !o->is_shrink)
		o->faults = 0;
	if (o->faults_ns < 8 * o->drain_gap_ns)
		o->faults_ns = 8 * o->drain_gap_ns;
	if (o->fault_gap_ns < o->faults_ns / 40)
		o->fault_gap_ns = o->faults_ns / 40;
	o->think_ns = (16 * MS) << rnd_below(s, 6);
	if (o->n_servers == 1)
		o->n_servers = 2;
	o->is_late = rnd_chance(s, 400);
}

uint64_t server_start_delay(struct sim *s, unsigned idx)
{
	return s->o.is_late && idx ? rnd_below(s, 4 * S) : rnd_below(s, 50 * MS);
}
