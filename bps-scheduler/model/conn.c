/* Finds and drops connections, and handles the effect of a lost connection on its member. */
#include "bps-scheduler/model/conn.h"

#include <stdlib.h>

#include "bps-scheduler/model/model.h"
#include "common/base/log.h"

struct sched_conn **sched_conn_find_slot(struct sched_core *c, uint32_t id)
{
	struct sched_conn **at = &c->conns[id % CONN_BUCKETS];

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	return at;
}

void sched_conn_forget(struct sched_core *c, uint32_t id)
{
	struct sched_conn **at = sched_conn_find_slot(c, id), *conn = *at;

	if (!conn)
		return;
	*at = conn->next;
	if (conn->member)
		conn->member->conn = NULL;
	else
		c->n_silent--;
	free(conn);
}

void sched_conn_drop(struct sched_core *c, uint32_t id, const char *why)
{
	sched_conn_forget(c, id);
	c->env.drop(c->env.ctx, id, why);
}

void sched_member_set_suspect(struct sched_core *c, struct sched_member *m, const char *why)
{
	uint64_t until = c->now_ns + sched_member_window_ns(c, m);

	if (until < c->grace_ns)
		until = c->grace_ns;
	sched_member_set_state(c, m, MEMBER_SUSPECT, why);
	m->deadline_ns = until;
	sched_arm_deadline(c, until);
}

void sched_member_disconnect(struct sched_core *c, struct sched_member *m, const char *why)
{
	log_rated(LOG_WARN, "%s %s: %s; closing its connection", sched_role_name(m->role), m->name,
		why);
	if (!m->conn)
		return;
	sched_conn_drop(c, m->conn->id, why);
	if (m->state == MEMBER_UP)
		sched_member_set_suspect(c, m, why);
}
