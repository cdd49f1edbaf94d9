/* How a simulated server or agent communicates with the scheduler: connecting, HELLO, heartbeats,
 * views. This part is the same for servers and agents. */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

#define BEAT_NS    (500 * MS)
#define REFUSED_NS (200 * MS)

static void on_connect(struct sim *s, struct sim_event *e)
{
	struct sim_member *m = e->p;

	(void)s;
	if (!m->conn && !m->is_connecting)
		ctl_connect(m);
}

/* Connect after a delay. The delays are like those of common/control/ctlclient.h. */
static void connect_later(struct sim_member *m)
{
	static const uint64_t delays_ms[] = {0, 100, 300};
	uint64_t delay = m->n_tries < 3 ? delays_ms[m->n_tries] * MS : rnd_below(m->s, 2 * S);

	m->n_tries++;
	sim_post(m->s, m->node, delay, on_connect)->p = m;
}

/* Return whether the members of this history measure the speeds of their network cards. For one
 * seed of four, the speeds are measured. For the other seeds, the speeds are configured. Measured
 * speeds change every 4 s, by a factor of up to 8. The function makes no random draw, so that the
 * faults of recorded seeds stay the same. */
static bool is_measured(const struct sim *s)
{
	return mix(s->seed) % 4 == 0;
}

static uint64_t measured_mbps(const struct sim_member *m)
{
	const struct sim *s = m->s;

	if (!is_measured(s))
		return 0;
	return UINT64_C(250) << mix(s->seed + m->idx * 31 + m->role * 7 + s->now / (4 * S)) % 4;
}

static void on_beat(struct sim *s, struct sim_event *e)
{
	struct sim_member *m = e->p;
	uint64_t dead = m->role == ROLE_SERVER ? 3 * S : 5 * S;
	struct ctl_msg msg = {.type = CTL_BEAT};

	sim_post(s, m->node, BEAT_NS, on_beat)->p = m;
	if (!m->conn)
		return;
	if (s->now - m->heard_ns > dead) {
		ctl_close_m(m->conn);
		member_conn_down(m, "the scheduler is silent");
		return;
	}
	msg.beat = (struct ctl_beat){.seq = ++m->seq,
		.echo = m->echo,
		.view = m->view,
		.progress = m->seq,
		.measured_mbps = measured_mbps(m)};
	if (m->is_welcome)
		ctl_send_up(m->conn, &msg);
}

void member_start(struct sim_member *m)
{
	struct sim *s = m->s;
	const char *host = m->host;

	/* The new process has no state of the previous one. */
	*m = (struct sim_member){
		.s = s, .node = m->node, .role = m->role, .idx = m->idx, .host = host};
	m->instance = rnd(s) | 1;
	sim_post(s, m->node, rnd_below(s, BEAT_NS), on_beat)->p = m;
	connect_later(m);
}

void member_stop(struct sim_member *m)
{
	if (m->conn)
		ctl_close_m(m->conn);
	m->conn = NULL;
}

void sim_member_send(struct sim_member *m, const struct ctl_msg *msg)
{
	if (m->conn && m->is_welcome)
		ctl_send_up(m->conn, msg);
}

/* Return the size in bytes that a server reports for its memory for sums. Returns 0 (unknown) in
 * all histories that do not test the limit on this memory. */
static uint64_t sums_bytes(const struct sim_member *m)
{
	if (!m->s->o.has_greedy || m->role != ROLE_SERVER)
		return 0;
	return (uint64_t)SUMS_BYTES * m->s->o.n_threads;
}

/* Return the speed that a member reports for its card. Returns 0 (unknown) in histories in which
 * speeds are measured. In histories that test the limit on the memory for sums, the first server
 * has a faster card than the others, so placement prefers this server. */
static uint32_t nic_mbps(const struct sim_member *m)
{
	bool is_preferred = m->s->o.has_greedy && m->role == ROLE_SERVER && m->idx == 0;

	return is_measured(m->s) ? 0 : is_preferred ? 10000 : 1000;
}

void member_conn_up(struct sim_member *m)
{
	char name[16];
	struct ctl_msg msg = {.type = CTL_HELLO,
		.hello = {.proto = CTL_PROTO,
			.role = (uint8_t)m->role,
			.instance = m->instance,
			.name = name,
			.host = m->host,
			.version = "sim",
			.pid = 1000 + m->idx,
			.addr = "10.0.0.1",
			.port = (uint16_t)(1000 + m->idx),
			.threads = m->role == ROLE_SERVER ? (uint16_t)m->s->o.n_threads : 0,
			.nic_mbps = nic_mbps(m),
			.quota_bytes = sums_bytes(m),
			.cluster_id = {m->cluster_id, m->has_cluster_id ? 16 : 0},
			.view = m->view,
			.provider = "sim",
			.boot_id = {"the same boot id", CTL_BOOT_ID_BYTES}}};

	snprintf(name, sizeof(name), "n%u", m->idx);
	m->heard_ns = m->s->now;
	m->is_welcome = false;
	ctl_send_up(m->conn, &msg);
}

void member_conn_down(struct sim_member *m, const char *why)
{
	trace(m->s, "%s: no control connection: %s", m->node->name, why);
	m->conn = NULL;
	m->is_welcome = false;
	connect_later(m);
}

/* Rule I6: a member never receives a view number that is smaller than its present view number. */
static void view_seen(struct sim_member *m, uint64_t view, const char *what)
{
	if (view < m->view)
		violation(m->s, "I6: %s has view %llx, but receives view %llx in %s", m->node->name,
			(unsigned long long)m->view, (unsigned long long)view, what);
	m->view = view;
}

static void welcome(struct sim_member *m, const struct ctl_welcome *w)
{
	if (w->term < m->term)
		violation(m->s, "I6: %s has seen term %u, but gets WELCOME of term %u",
			m->node->name, m->term, w->term);
	if (m->id && m->id != w->member_id)
		violation(m->s, "%s had member id %u, but gets %u", m->node->name, m->id,
			w->member_id);
	if (m->has_cluster_id && memcmp(m->cluster_id, w->cluster_id.data, 16) != 0)
		violation(m->s, "%s gets WELCOME of another cluster", m->node->name);
	memcpy(m->cluster_id, w->cluster_id.data, 16);
	m->has_cluster_id = true;
	m->term = w->term;
	m->id = w->member_id;
	m->is_welcome = true;
	m->n_tries = 0;
	view_seen(m, w->view, "WELCOME");
}

void member_message(struct sim_member *m, const struct ctl_msg *msg)
{
	m->heard_ns = m->s->now;
	if (msg->type == CTL_WELCOME) {
		welcome(m, &msg->welcome);
	} else if (msg->type == CTL_BEAT) {
		m->echo = msg->beat.seq;
		view_seen(m, msg->beat.view, "BEAT");
		return;
	} else if (msg->type == CTL_PEERS) {
		view_seen(m, msg->peers.view, "PEERS");
	} else if (msg->type == CTL_PLAN) {
		oracle_plan(m->s, &msg->plan);
	} else if (msg->type == CTL_REFUSE) {
		/* The scheduler will close the connection. As in the real cluster, the daemon ends
		 * and its service manager starts it again. An agent is restarted only in histories
		 * where the agent's memory survives its process. The scheduler may refuse a member
		 * because two HELLOs arrived in the wrong order: first the HELLO of this process,
		 * then the HELLO of the member's previous process. */
		if (m->role == ROLE_SERVER)
			server_restart(m->s, m->idx, REFUSED_NS);
		else if (m->s->o.has_restarts && m->idx < AGENTS_MAX)
			agent_restart(m->s, m->idx, REFUSED_NS);
		return;
	}
	if (m->role == ROLE_SERVER)
		server_message(m->s, m->idx, msg);
	else if (m->idx < AGENTS_MAX)
		agent_message(m->s, m->idx, msg);
	else
		guest_message(m->s, m->idx - AGENTS_MAX, msg);
}
