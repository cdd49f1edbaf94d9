/* Assigns partitions to servers: for new tensors, after the loss of a server, and after a server's
 * restart. balance.c makes the planned moves; place.c computes the placement. All functions run on
 * the core's thread. */
#include "bps-scheduler/placement/place_apply.h"

#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/compare.h"
#include "bps-scheduler/model/host_memory.h"
#include "bps-scheduler/placement/balance.h"
#include "bps-scheduler/placement/place.h"
#include "bps-scheduler/placement/speed.h"
#include "common/data/shape.h"

void place_want_add(struct place_wants *w, struct sched_tensor *t, uint32_t i)
{
	w->v = sched_grow_array(w->v, &w->room, w->n + 1, sizeof(*w->v));
	w->v[w->n++] = (struct place_want){
		.part = {.bytes = sched_part_bytes(t, i), .need = sched_part_need(t, i)},
		.t = t,
		.i = i};
}

static int compare_larger_part_first(const void *a, const void *b)
{
	const struct place_want *x = a, *y = b;

	int rc = compare_u64(y->part.bytes, x->part.bytes);

	if (!rc)
		rc = compare_u64(x->t->id, y->t->id);
	return rc ? rc : compare_u64(x->i, y->i);
}

uint32_t place_taking_servers(const struct sched_core *c, bool *ret_any)
{
	uint32_t n_open = 0, n_usable = 0;

	for (uint32_t i = 1; i <= c->n_members; i++) {
		if (c->members[i]->role != ROLE_SERVER)
			continue;
		n_open += sched_member_is_open(c->members[i]);
		n_usable += sched_is_usable(c->members[i]);
	}
	*ret_any = !n_open;
	return n_open ? n_open : n_usable;
}

static void machine_raise_nic_mbps(struct place_machine *machine, const struct sched_member *m)
{
	uint64_t mbps = speed_mbps(m);

	if (mbps > machine->nic_mbps)
		machine->nic_mbps = mbps;
}

/* Return the machine of server m in the placement. On a host without an agent of the job, each
 * address of servers becomes a machine of its own, because it has a network card of its own: the
 * first keeps the host's machine, and each further one gets a new machine. Where there is an agent,
 * it uses all cards, and they are one machine. Call this function before has_server is set. */
static uint32_t place_machine_of(
	struct placement *p, struct sched_member *const *servers, const struct sched_member *m)
{
	const struct place_machine *of_host = &p->machines[m->host_idx];

	if (of_host->has_agent || !of_host->has_server)
		return m->host_idx;
	for (uint32_t k = 0; k < p->n_servers; k++)
		if (servers[k]->host_idx == m->host_idx && strcmp(servers[k]->addr, m->addr) == 0)
			return p->servers[k].machine;
	return p->n_machines++;
}

/* Fill the placement. Each host becomes one machine of the placement, or several
 * (place_machine_of). A host without a usable server gets no partitions. */
void placement_fill(const struct sched_core *c, const struct sched_job *j, struct placement *p,
	struct sched_member ***ret_servers)
{
	bool any;
	uint32_t room = place_taking_servers(c, &any);
	struct sched_member **servers = sched_alloc(room, sizeof(struct sched_member *));
	struct host_memory *hosts = host_memory_new(c);

	*ret_servers = servers;
	*p = (struct placement){
		.machines = sched_alloc(c->n_hosts + room, sizeof(struct place_machine)),
		.servers = sched_alloc(room, sizeof(struct place_server))};
	p->n_agents = j->n_members - j->n_left;
	p->job_bytes = j->bytes;
	p->n_machines = c->n_hosts;
	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		if (j->members[i].is_gone)
			continue;
		p->machines[m->host_idx].has_agent = true;
		machine_raise_nic_mbps(&p->machines[m->host_idx], m);
	}
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];
		uint64_t own = i < j->n_loads ? j->loads[i] : 0;
		struct place_machine *machine;
		uint32_t at;

		if (m->role != ROLE_SERVER || !(any ? sched_is_usable(m) : sched_member_is_open(m)))
			continue;
		at = place_machine_of(p, servers, m);
		machine = &p->machines[at];
		machine_raise_nic_mbps(machine, m);
		machine->has_server = true;
		machine->bytes += own;
		machine->other_bytes += m->scaled_bytes - own * j->n_members;
		servers[p->n_servers] = m;
		p->servers[p->n_servers++] = (struct place_server){.machine = at,
			.n_threads = m->threads,
			.bytes = own,
			.memory = balance_usable(host_memory_of(hosts, m)),
			.sums = m->sums_bytes,
			.thread_bytes = sched_alloc(m->threads, sizeof(uint64_t))};
		memcpy(p->servers[p->n_servers - 1].thread_bytes, m->thread_bytes,
			m->threads * sizeof(uint64_t));
	}
	free(hosts);
}

void placement_free(struct placement *p, struct sched_member **servers)
{
	for (uint32_t i = 0; i < p->n_servers; i++)
		free(p->servers[i].thread_bytes);
	free(p->servers);
	free(p->machines);
	free(servers);
}

void place_apply_wants(struct sched_core *c, struct sched_job *j, struct place_wants *w)
{
	struct sched_member **servers;
	struct placement p;
	struct place_part *parts = sched_alloc(w->n, sizeof(*parts));
	uint64_t pgen = sched_open_transaction_view(c);

	qsort(w->v, w->n, sizeof(*w->v), compare_larger_part_first);
	for (uint32_t k = 0; k < w->n; k++)
		parts[k] = w->v[k].part;
	placement_fill(c, j, &p, &servers);
	if (p.n_servers)
		place_parts(&p, parts, w->n);
	for (uint32_t k = 0; k < w->n; k++)
		sched_part_set(c, j, w->v[k].t, w->v[k].i,
			p.n_servers ? servers[parts[k].server] : NULL, parts[k].thread, pgen);
	placement_free(&p, servers);
	free(parts);
	sched_job_dirty(c, j);
}

static void place_fresh_of(struct sched_core *c, struct sched_job *j)
{
	bool any;
	uint32_t n_servers = place_taking_servers(c, &any);
	uint64_t bytes = j->bytes;
	struct place_wants w = {0};

	for (struct sched_tensor *t = j->fresh; t; t = t->next_fresh)
		if (t->state == TENSOR_READY)
			bytes += shape_bytes(&t->shape);
	for (struct sched_tensor *t = j->fresh; t; t = t->next_fresh) {
		if (t->state != TENSOR_READY)
			continue;
		t->part_elems =
			place_part_elems(&t->shape, t->n_shards, n_servers, bytes, j->part_bytes);
		sched_tensor_publish(j, t);
		for (uint32_t i = 0; t->parts && i < t->n_parts; i++)
			place_want_add(&w, t, i);
	}
	if (w.n)
		place_apply_wants(c, j, &w);
	free(w.v);
}

void place_fresh_tensors(struct sched_core *c)
{
	for (struct sched_job *j = c->dirty_jobs; j; j = j->next_dirty)
		if (j->fresh)
			place_fresh_of(c, j);
}

/* Report an event about n partitions that were placed again. `from` is the server that had these
 * partitions, or NULL if the partitions had no server. */
static void report_parts_moved(struct sched_core *c, const struct sched_job *j, uint32_t n,
	const struct sched_member *from)
{
	if (j->n_orphans)
		sched_report_event(c, EVENT_PARTITIONS,
			"%u partition%s of job '%s' wait%s for a server, because no server is "
			"alive",
			n, plural_suffix_of(n), j->name, n == 1 ? "s" : "");
	else if (from)
		sched_report_event(c, EVENT_PARTITIONS,
			"%u partition%s of job '%s' moved from server %s to others", n,
			plural_suffix_of(n), j->name, from->name);
	else
		sched_report_event(c, EVENT_PARTITIONS,
			"%u partition%s of job '%s' now %s a server", n, plural_suffix_of(n),
			j->name, n == 1 ? "has" : "have");
}

static void replace_parts_from(struct sched_core *c, struct sched_job *j, uint32_t server)
{
	struct sched_part_ref p = {NULL, 0};
	struct place_wants w = {0};

	while (sched_part_next(j, server, &p)) {
		sched_part_set(c, j, p.t, p.i, NULL, 0, p.t->parts[p.i].pgen);
		place_want_add(&w, p.t, p.i);
	}
	if (w.n) {
		place_apply_wants(c, j, &w);
		j->has_moved = true;
		report_parts_moved(c, j, w.n, sched_member_by_id(c, server));
	}
	free(w.v);
}

void place_server_gone(struct sched_core *c, struct sched_member *m)
{
	for (struct sched_job *j = c->jobs; j; j = j->next)
		if (m->id < j->n_loads && j->loads[m->id])
			replace_parts_from(c, j, m->id);
}

void place_waiting_parts(struct sched_core *c)
{
	bool has_server = false, any;

	for (struct sched_job *j = c->jobs; j; j = j->next) {
		if (!j->n_orphans || j->state != JOB_RUNNING)
			continue;
		if (!has_server && !(has_server = place_taking_servers(c, &any) > 0))
			return;
		replace_parts_from(c, j, CTL_NO_ID);
	}
}

void place_server_rethread(struct sched_core *c, struct sched_member *m, uint16_t threads)
{
	uint64_t *bytes = sched_alloc(threads, sizeof(*bytes));

	for (struct sched_job *j = c->jobs; j; j = j->next) {
		struct sched_part_ref p = {NULL, 0};

		while (sched_part_next(j, m->id, &p)) {
			p.t->parts[p.i].thread %= threads;
			bytes[p.t->parts[p.i].thread] += sched_part_bytes(p.t, p.i);
		}
	}
	free(m->thread_bytes);
	m->thread_bytes = bytes;
	m->threads = threads;
}

void place_server_restarted(struct sched_core *c, struct sched_member *m, uint16_t threads)
{
	if (threads != m->threads)
		place_server_rethread(c, m, threads);
	for (struct sched_job *j = c->jobs; j; j = j->next) {
		struct sched_part_ref p = {NULL, 0};
		uint32_t n = 0;

		if (m->id >= j->n_loads || !j->loads[m->id])
			continue;
		for (; sched_part_next(j, m->id, &p); n++)
			sched_part_set(c, j, p.t, p.i, m, p.t->parts[p.i].thread,
				sched_open_transaction_view(c));
		j->has_moved = true;
		sched_job_dirty(c, j);
		sched_report_event(c, EVENT_PARTITIONS,
			"%u partition%s of job '%s' start%s again on the restarted server %s", n,
			plural_suffix_of(n), j->name, verb_suffix_of(n), m->name);
	}
}

void place_renew_part_pgens(struct sched_core *c, struct sched_job *j)
{
	struct sched_part_ref p = {NULL, 0};
	uint64_t pgen = sched_open_transaction_view(c);

	while (sched_part_next(j, SERVER_ANY, &p))
		sched_part_set(c, j, p.t, p.i, sched_member_by_id(c, p.t->parts[p.i].server),
			p.t->parts[p.i].thread, pgen);
	j->has_moved = true;
	sched_job_dirty(c, j);
}
