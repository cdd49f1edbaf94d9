/* Rule C6. A process on another machine with the same host name, the "twin", claims the name of one
 * member again and again. While the scheduler has not declared the member dead, the scheduler must
 * refuse the twin, also after the scheduler's restart. The twin draws no random number and has no
 * network, so the faults of recorded seeds stay the same. */
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <stdio.h>

#define CLAIM_NS (350 * MS)

static struct ctl_msg twin_hello(const struct sim_member *m, const char *name)
{
	return (struct ctl_msg){.type = CTL_HELLO,
		.hello = {.proto = CTL_PROTO,
			.role = (uint8_t)m->role,
			.instance = mix(m->s->seed ^ m->s->now) | 1,
			.name = name,
			.host = m->host,
			.version = "sim",
			.pid = 1,
			.addr = "10.0.0.2",
			.port = 1,
			.threads = m->role == ROLE_SERVER ? (uint16_t)m->s->o.n_threads : 0,
			.provider = "sim",
			.boot_id = {"the twin's boot.", CTL_BOOT_ID_BYTES}}};
}

void twin_receives(struct sim *s, const struct ctl_msg *msg)
{
	if (msg->type == CTL_WELCOME)
		violation(s, "C6: another machine takes the name of a member that is not down");
}

static void on_claim(struct sim *s, struct sim_event *e)
{
	struct sim_sched *sc = &s->sched;
	const struct sim_member *m = e->p;
	struct ctl_msg msg;
	char name[16];

	sim_post(s, NULL, CLAIM_NS, on_claim)->p = e->p;
	snprintf(name, sizeof(name), "n%u", m->idx);
	if (!sc->node.is_up || sc->is_dying || sc->node.paused_until > s->now ||
		sc->n_conns == CONNS_MAX || !peek_is_usable(sc->core, m->role, name))
		return;
	msg = twin_hello(m, name);
	/* The scheduler drops this connection at once. So the next member may get its id. */
	s->twin.id = sc->n_conns;
	sc->conns[s->twin.id] = &s->twin;
	s->twin.is_open_s = true;
	sched_conn_open(sc->core, s->twin.id, s->now);
	sched_receive_message(sc->core, s->twin.id, &msg, s->now);
}

void twin_start(struct sim *s)
{
	uint64_t k = mix(s->seed ^ 0x7717) % (s->o.n_servers + s->o.n_agents);
	struct sim_member *m =
		k < s->o.n_servers ? &s->servers[k].m : &s->agents[k - s->o.n_servers].m;

	s->twin.m = m;
	sim_post(s, NULL, CLAIM_NS, on_claim)->p = m;
}
