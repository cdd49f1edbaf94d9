/* Rule C2, in histories without other faults. The scheduler restarts. Meanwhile a server either
 * hangs (case 1), or loses only its connection to the scheduler (case 2). All agents have
 * connections to that server, and reconnect to the scheduler. The scheduler must then declare the
 * server of case 1 dead long before the end of the scheduler's grace period. It must never declare
 * the server of case 2 dead. */
#include "tests/sim/move.h"
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <stdio.h>

#define LOOK_NS  (50 * MS)
#define DEAD_NS  (3 * S)  /* --server-dead of the simulated scheduler */
#define GRACE_NS (10 * S) /* twice the --agent-dead of the simulated scheduler */
/* time for two questions from the scheduler to the agents, and their answers */
#define SLACK_NS   (1700 * MS)
#define HANG_NS    (15 * S)
#define SETTLED_NS (100 * MS)

void hung_draw(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->has_hung = true;
	o->may_fail = false;
	o->is_forming_calm = true;
	o->faults = 0;
	o->faults_ns = 30 * S;
	o->ctl_tail_permille = o->ctl_again_permille = 0;
	o->think_ns = 500 * MS;
	if (o->n_servers == 1)
		o->n_servers = 2;
}

static bool is_dead(const struct sim *s, const struct sim_hung *h)
{
	char name[16];

	snprintf(name, sizeof(name), "n%u", h->server);
	return peek_is_down(s->sched.core, name);
}

/* Return whether the scheduler sees the member as connected. The member itself may notice the end
 * of a connection later. */
static bool is_connected(const struct sim_member *m)
{
	return m->conn && m->conn->is_open_s && m->is_welcome;
}

static bool agents_are_back(const struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (s->agents[i].node.is_up && !is_connected(&s->agents[i].m))
			return false;
	return true;
}

static void on_look(struct sim *s, struct sim_event *e)
{
	struct sim_hung *h = &s->hung;
	uint64_t due_ns;

	(void)e;
	if (s->oracle.has_end || s->now > h->begun_ns + HANG_NS - 2 * S)
		return;
	sim_post(s, NULL, LOOK_NS, on_look);
	if (!s->sched.node.is_up)
		return;
	if (!h->started_ns)
		h->started_ns = s->now;
	if (!h->back_ns && agents_are_back(s))
		h->back_ns = s->now;
	if (!h->back_ns || s->now + SLACK_NS > h->started_ns + GRACE_NS)
		return;
	due_ns = h->started_ns + DEAD_NS > h->back_ns ? h->started_ns + DEAD_NS : h->back_ns;
	if (h->is_cut && is_dead(s, h))
		violation(s, "C2: server%u was declared dead, though agents receive from it",
			h->server);
	if (!h->is_cut && s->now > due_ns + SLACK_NS && !is_dead(s, h))
		violation(s, "C2: server%u hangs, but was not declared dead within %.1f s",
			h->server, (double)(s->now - h->started_ns) / 1e9);
}

/* Return whether all conditions for the fault hold:
 *   - The scheduler is up, and all agents and the server with index `server` are connected to it.
 *   - Every agent has a connection for each partition of the job.
 *   - This server has at least one partition. */
static bool is_ready(const struct sim *s, unsigned server)
{
	char name[16];

	snprintf(name, sizeof(name), "n%u", server);
	if (!s->sched.node.is_up || !s->oracle.job || !move_parts_at(s->sched.core, name) ||
		!is_connected(&s->servers[server].m) || !agents_are_back(s))
		return false;
	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (!s->agents[i].node.is_up || !agent_is_settled(&s->agents[i]))
			return false;
	return true;
}

static void on_hang(struct sim *s, struct sim_event *e)
{
	struct sim_hung *h = &s->hung;
	struct sim_server *srv;

	(void)e;
	if (s->now > s->faults_end || s->oracle.has_end)
		return;
	h->server = (unsigned)rnd_below(s, s->o.n_servers);
	if (!is_ready(s, h->server)) {
		sim_post(s, NULL, SETTLED_NS, on_hang);
		return;
	}
	srv = &s->servers[h->server];
	h->begun_ns = s->now;
	h->is_cut = rnd_chance(s, 500);
	trace(s, "fault: server%u %s while the scheduler restarts", h->server,
		h->is_cut ? "cannot reach the scheduler" : "hangs");
	if (h->is_cut)
		srv->m.cut_to = srv->m.cut_from = s->now + HANG_NS;
	else
		srv->node.paused_until = s->now + HANG_NS;
	sched_node_kill(s);
	sim_post(s, NULL, LOOK_NS, on_look);
}

void hung_start(struct sim *s)
{
	sim_post(s, NULL, rnd_below(s, 1 * S), on_hang);
}
