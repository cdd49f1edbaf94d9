/* Creates, describes and frees members, and changes their states. conn.c handles connections.
 * core/members.c handles the consequences of a state. All functions run on the core's thread. */
#include "bps-scheduler/model/member.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/model.h"
#include "common/base/log.h"

const char *sched_role_name(enum role role)
{
	return role == ROLE_SERVER ? "server" : "agent";
}

static const struct {
	const char *name;
	unsigned next;
} member_states[MEMBER_STATES] = {
	[MEMBER_EXPECTED] = {"expected", STATE_BIT(MEMBER_UP) | STATE_BIT(MEMBER_DOWN)},
	[MEMBER_UP] = {"up", STATE_BIT(MEMBER_SUSPECT) | STATE_BIT(MEMBER_DOWN)},
	[MEMBER_SUSPECT] = {"suspect", STATE_BIT(MEMBER_UP) | STATE_BIT(MEMBER_DOWN)},
	[MEMBER_DOWN] = {"down", STATE_BIT(MEMBER_UP)},
};

const char *sched_member_state_name(enum member_state s)
{
	return s < MEMBER_STATES ? member_states[s].name : "?";
}

void sched_member_set_state(
	struct sched_core *c, struct sched_member *m, enum member_state to, const char *why)
{
	if (!why) {
		m->state = to;
		return;
	}
	assert(member_states[m->state].next & STATE_BIT(to));
	log_limited(LOG_AS(LOG_INFO, MEMBER), "%s %s: %s -> %s, %s host=%s id=%u view=%llx",
		sched_role_name(m->role), m->name, member_states[m->state].name,
		member_states[to].name, why, m->host, m->id, (unsigned long long)c->view);
	sched_report_event(c, EVENT_MEMBER, "%s %s (host %s) is %s: %s", sched_role_name(m->role),
		m->name, m->host, member_states[to].name, why);
	m->state = to;
	m->since_ns = c->now_ns;
}

static uint32_t host_name_intern(struct sched_core *c, const char *host)
{
	for (uint32_t i = 0; i < c->n_hosts; i++)
		if (strcmp(c->hosts[i], host) == 0)
			return i;
	c->hosts = sched_grow_array(c->hosts, &c->hosts_room, c->n_hosts + 1, sizeof(*c->hosts));
	c->hosts[c->n_hosts] = sched_dup_string(host);
	return c->n_hosts++;
}

static void set_owned_string(char **s, const char *to)
{
	if (*s && strcmp(*s, to) == 0)
		return;
	free(*s);
	*s = sched_dup_string(to);
}

struct sched_member *sched_member_add(
	struct sched_core *c, uint32_t id, enum role role, const char *name)
{
	struct sched_member *m = sched_alloc(1, sizeof(*m));

	c->members = sched_grow_array(
		c->members, &c->members_room, id + 1, sizeof(struct sched_member *));
	if (id > c->n_members)
		c->n_members = id;
	c->members[id] = m;
	m->id = id;
	m->role = role;
	m->name = sched_dup_string(name);
	return m;
}

void sched_member_describe(struct sched_core *c, struct sched_member *m, const struct ctl_hello *h)
{
	uint16_t threads = m->role == ROLE_SERVER ? h->threads : 0;
	struct machine machine = machine_of_hello(h);

	set_owned_string(&m->host, h->host);
	set_owned_string(&m->addr, h->addr);
	set_owned_string(&m->version, h->version);
	set_owned_string(&m->provider, h->provider);
	set_owned_string(&m->domain, machine.domain);
	set_owned_string(&m->http, h->http ? h->http : "");
	memset(m->boot_id, 0, sizeof(m->boot_id));
	if (machine.boot_id)
		memcpy(m->boot_id, machine.boot_id, sizeof(m->boot_id));
	m->host_idx = host_name_intern(c, h->host);
	m->pid = h->pid;
	m->port = h->port;
	m->nic_mbps = h->nic_mbps;
	m->quota_bytes = h->quota_bytes;
	m->memory_bytes = h->memory_bytes;
	if (m->threads != threads || (threads && !m->thread_bytes)) {
		free(m->thread_bytes);
		m->thread_bytes = threads ? sched_alloc(threads, sizeof(uint64_t)) : NULL;
		m->threads = threads;
	}
}

void sched_member_free(struct sched_member *m)
{
	if (!m)
		return;
	free(m->name);
	free(m->host);
	free(m->addr);
	free(m->version);
	free(m->provider);
	free(m->domain);
	free(m->http);
	free(m->rival);
	free(m->thread_bytes);
	free(m->reports);
	free(m->losses);
	free(m->drain_reason);
	free(m->drain_who);
	free(m);
}

uint64_t sched_member_dead_ns(const struct sched_core *c, const struct sched_member *m)
{
	return NS_PER_MS * (m->role == ROLE_SERVER ? c->cfg.server_dead_ms : c->cfg.agent_dead_ms);
}

uint64_t sched_member_window_ns(const struct sched_core *c, const struct sched_member *m)
{
	return NS_PER_MS *
	       (m->role == ROLE_SERVER ? c->cfg.server_window_ms : c->cfg.agent_window_ms);
}

uint64_t sched_grace_end_ns(const struct sched_core *c)
{
	uint32_t server_ms = c->cfg.server_dead_ms, agent_ms = c->cfg.agent_dead_ms;

	return c->now_ns + 2 * NS_PER_MS * (server_ms > agent_ms ? server_ms : agent_ms);
}
