/* Sends messages to members about jobs, tensors, partitions and other members. The callers choose
 * the receivers and the time. A change is sent only after it is durable. All functions run on the
 * core's thread. */
#include "bps-scheduler/model/send.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/model.h"

/* largest number of peers in one message, so that the message stays below the channel's limit of 1
 * MiB */
#define PEERS_MAX       1024
#define PLAN_NAME_BYTES (256u << 10) /* largest number of bytes of tensor names in one PLAN */

void sched_send_message(
	struct sched_core *c, const struct sched_member *m, const struct ctl_msg *msg)
{
	if (m->conn)
		c->env.send(c->env.ctx, m->conn->id, msg);
}

void sched_send_job(struct sched_core *c, const struct sched_member *m, const struct sched_job *j)
{
	struct ctl_job_member *members = sched_alloc(j->n_members, sizeof(*members));
	struct ctl_rank *ranks = sched_alloc(j->n_room, sizeof(*ranks)), *next = ranks;
	/* for each agent id: the agent's member number in the job */
	uint32_t *number = sched_alloc(c->n_members + 1, sizeof(*number));
	struct ctl_msg msg = {.type = CTL_JOB,
		.job = {.view = j->view,
			.job = j->id,
			.uid = j->uid,
			.name = j->name,
			.size = sched_rank_bound(j),
			.flags = j->flags,
			.members = members,
			.n_members = j->n_members,
			.formed = j->formed,
			.backup = j->backup,
			.grace_ms = j->grace_ms,
			.barrier = j->barrier,
			.border = j->border,
			.border_barrier = j->border_barrier}};

	for (uint32_t i = 0; i < j->n_members; i++) {
		members[i] = (struct ctl_job_member){j->members[i].agent,
			sched_host_of_member(c, j->members[i].agent), next, 0,
			j->members[i].is_gone, j->members[i].why ? j->members[i].why : "",
			j->members[i].since, sched_member_by_id(c, j->members[i].agent)->name};
		next += j->members[i].n_ranks;
		number[j->members[i].agent] = i;
	}
	for (uint32_t r = 0; r < j->n_room; r++) {
		struct ctl_job_member *to = &members[number[j->workers[r].agent]];

		if (j->workers[r].state == WORKER_ABSENT)
			continue;
		to->ranks[to->n_ranks++].rank = r;
	}
	sched_send_message(c, m, &msg);
	free(members);
	free(ranks);
	free(number);
}

void sched_send_job_end(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j)
{
	struct ctl_msg msg = {.type = CTL_JOB_END,
		.job_end = {j->id, j->code, j->end_text, {j->cause_rank, j->cause_host}}};
	uint32_t i = m->role == ROLE_AGENT ? sched_job_member_ever(j, m->id) : CTL_NO_ID;
	char text[CTL_TEXT_MAX + 1];

	if (i != CTL_NO_ID && j->members[i].is_gone) {
		snprintf(text, sizeof(text),
			"agent '%s' (host %s) is no longer in job '%s', which went on without it: "
			"%s",
			m->name, m->host, j->name, j->members[i].why);
		msg.job_end.code = (uint32_t)-BPS_EEVICTED;
		msg.job_end.text = text;
		msg.job_end.cause = (struct ctl_cause){CTL_NO_ID, m->host};
	}
	sched_send_message(c, m, &msg);
}

struct plan_message {
	struct sched_core *c;
	const struct sched_member *m;
	struct ctl_msg msg;
	uint32_t tensors_room, runs_room;
	size_t name_bytes;
};

static void plan_message_flush(struct plan_message *p)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_tensors || plan->n_runs)
		sched_send_message(p->c, p->m, &p->msg);
	plan->n_tensors = plan->n_runs = 0;
	p->name_bytes = 0;
}

static void plan_add_tensor(struct plan_message *p, const struct sched_tensor *t)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_tensors == CTL_LIST_MAX || p->name_bytes > PLAN_NAME_BYTES)
		plan_message_flush(p);
	plan->tensors = sched_grow_array(
		plan->tensors, &p->tensors_room, plan->n_tensors + 1, sizeof(*plan->tensors));
	plan->tensors[plan->n_tensors++] =
		(struct ctl_tensor){t->id, t->name, t->shape, t->part_elems};
	p->name_bytes += strlen(t->name);
}

static void plan_add_run(struct plan_message *p, const struct ctl_run *run)
{
	struct ctl_plan *plan = &p->msg.plan;

	if (plan->n_runs == CTL_LIST_MAX)
		plan_message_flush(p);
	plan->runs =
		sched_grow_array(plan->runs, &p->runs_room, plan->n_runs + 1, sizeof(*plan->runs));
	plan->runs[plan->n_runs++] = *run;
}

/* Add the tensor and those of its runs that concern the receiver. The comment on sched_run_next
 * explains what a run is and what `pgen` means. If no run concerns the receiver, the tensor is
 * added only if the receiver is an agent and `pgen` is 0. */
static void plan_add_tensor_runs(
	struct plan_message *p, const struct sched_tensor *t, uint64_t pgen)
{
	uint32_t server = p->m->role == ROLE_SERVER ? p->m->id : SERVER_ANY, at = 0;
	struct ctl_run run;
	bool has_run = sched_run_next(t, &at, pgen, server, &run);

	if (has_run || (p->m->role == ROLE_AGENT && !pgen))
		plan_add_tensor(p, t);
	for (; has_run; has_run = sched_run_next(t, &at, pgen, server, &run))
		plan_add_run(p, &run);
}

static void plan_send_and_free(struct plan_message *p)
{
	plan_message_flush(p);
	free(p->msg.plan.tensors);
	free(p->msg.plan.runs);
}

void sched_send_plan(
	struct sched_core *c, const struct sched_member *m, struct sched_job *j, bool everything)
{
	struct plan_message p = {.c = c, .m = m};

	p.msg = (struct ctl_msg){.type = CTL_PLAN, .plan = {.view = c->view, .job = j->id}};
	for (uint32_t i = 0; (everything || j->has_moved) && i < j->n_placed; i++)
		if (everything || j->placed[i]->parts)
			plan_add_tensor_runs(&p, j->placed[i], everything ? 0 : c->view);
	for (struct sched_tensor *t = everything ? NULL : j->fresh; t; t = t->next_fresh)
		if (!j->has_moved || !t->parts)
			plan_add_tensor_runs(&p, t, 0);
	plan_send_and_free(&p);
}

void sched_send_tensor(struct sched_core *c, const struct sched_member *m,
	const struct sched_job *j, const struct sched_tensor *t)
{
	struct plan_message p = {.c = c, .m = m};

	p.msg = (struct ctl_msg){.type = CTL_PLAN, .plan = {.view = c->view, .job = j->id}};
	plan_add_tensor_runs(&p, t, 0);
	plan_send_and_free(&p);
}

bool sched_send_evicted(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j)
{
	uint32_t i = m->role == ROLE_AGENT ? sched_job_member_ever(j, m->id) : CTL_NO_ID;

	if (i == CTL_NO_ID || !j->members[i].is_gone)
		return false;
	if (!j->members[i].is_untold)
		sched_send_job_end(c, m, j);
	return true;
}

void sched_send_joined(
	struct sched_core *c, const struct sched_member *m, const struct sched_job *j)
{
	struct ctl_msg msg = {.type = CTL_JOINED, .joined = {.text = "", .job = j->id}};

	for (uint32_t r = 0; r < j->n_room; r++) {
		if (!j->workers[r].is_fresh || j->workers[r].agent != m->id)
			continue;
		msg.joined.seq = j->workers[r].seq;
		msg.joined.rank = r;
		sched_send_message(c, m, &msg);
	}
}

void sched_send_unknown_job(struct sched_core *c, const struct sched_member *m, uint32_t id)
{
	struct ctl_msg msg = {.type = CTL_JOB_END,
		.job_end = {id, (uint32_t)-BPS_EJOB_FAILED,
			"there is no such job, or it ended long ago", {0, NULL}}};
	const struct sched_job *j = sched_job_any_by_id(c, id);

	if (j && j->is_dirty)
		return; /* JOB_END is sent when the end of the job is durable */
	if (j)
		sched_send_job_end(c, m, j);
	else
		sched_send_message(c, m, &msg);
}

void sched_send_tensor_fail(struct sched_core *c, const struct sched_member *m, struct sched_job *j,
	const char *name, int code, const char *text, const struct ctl_cause *cause)
{
	struct ctl_msg msg = {.type = CTL_TENSOR_FAIL,
		.tensor_fail = {j->id, name, (uint32_t)-code, text, *cause}};

	if (!j->first_failure)
		j->first_failure = sched_dup_string(text);
	sched_send_message(c, m, &msg);
}

void sched_send_left(struct sched_core *c, const struct sched_member *m, int code, const char *text)
{
	struct ctl_msg msg = {.type = CTL_LEFT, .left = {(uint32_t)-code, text}};

	sched_send_message(c, m, &msg);
}

/* ---- members ---- */

static void make_peer_entry(struct sched_core *c, const struct sched_member *to,
	const struct sched_member *m, uint8_t key[CTL_KEY_BYTES], struct ctl_peer *ret)
{
	const struct sched_member *agent = to->role == ROLE_AGENT ? to : m;
	const struct sched_member *server = to->role == ROLE_AGENT ? m : to;

	c->env.pair_key(c->env.ctx, c->secret, agent->instance, server->instance, key);
	*ret = (struct ctl_peer){.id = m->id,
		.state = sched_is_usable(m) ? PEER_UP : PEER_DOWN,
		.instance = m->instance,
		.name = m->name,
		.host = m->host,
		.addr = m->addr,
		.port = m->port,
		.threads = m->threads,
		.key = {key, CTL_KEY_BYTES}};
}

void sched_send_peers(struct sched_core *c, const struct sched_member *to,
	const struct sched_member *const *list, uint32_t n)
{
	uint32_t room = n < PEERS_MAX ? n : PEERS_MAX;
	struct ctl_peer *peers = sched_alloc(room, sizeof(*peers));
	uint8_t(*keys)[CTL_KEY_BYTES] = sched_alloc(room, sizeof(*keys));
	struct ctl_msg msg = {.type = CTL_PEERS, .peers = {.view = c->view, .peers = peers}};

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = msg.peers.n_peers++;

		make_peer_entry(c, to, list[i], keys[at], &peers[at]);
		if (msg.peers.n_peers < PEERS_MAX && i + 1 < n)
			continue;
		sched_send_message(c, to, &msg);
		msg.peers.n_peers = 0;
	}
	free(peers);
	free(keys);
}

/* Send PEERS with all live agents if `to` is a server, or all live servers if `to` is an agent.
 * Send nothing if no such member exists, because an empty list marks the end of the messages after
 * WELCOME. */
static void send_all_peers(struct sched_core *c, const struct sched_member *to)
{
	const struct sched_member **list = sched_alloc(c->n_members, sizeof(*list));
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role != to->role && sched_is_usable(c->members[i]))
			list[n++] = c->members[i];
	sched_send_peers(c, to, list, n);
	free(list);
}

void sched_send_sync(struct sched_core *c, struct sched_member *m)
{
	struct ctl_msg welcome = {.type = CTL_WELCOME,
		.welcome = {.cluster_id = {c->cluster_id, STATE_ID_BYTES},
			.term = c->term,
			.view = c->view,
			.member_id = m->id,
			.beat_ms = c->cfg.beat_ms,
			.dead_ms = (uint32_t)(sched_member_dead_ns(c, m) / NS_PER_MS),
			.restarts = m->restart_count,
			.window_ms = (uint32_t)(sched_member_window_ns(c, m) / NS_PER_MS),
			.has_master = m->conn && m->conn->has_master}};
	struct ctl_msg end = {.type = CTL_PEERS, .peers = {.view = c->view}};

	m->needs_sync = m->is_behind = false;
	sched_send_message(c, m, &welcome);
	send_all_peers(c, m);
	for (struct sched_job *j = c->jobs; j; j = j->next) {
		if (j->state != JOB_RUNNING)
			continue;
		if (m->role == ROLE_AGENT && sched_job_member(j, m->id) == CTL_NO_ID) {
			sched_send_evicted(c, m, j);
			continue;
		}
		sched_send_job(c, m, j);
		sched_send_plan(c, m, j, true);
	}
	for (struct sched_job *j = c->ended; j; j = j->next)
		if (m->role == ROLE_SERVER || sched_job_member_ever(j, m->id) != CTL_NO_ID)
			sched_send_job_end(c, m, j);
	sched_send_message(c, m, &end);
}
