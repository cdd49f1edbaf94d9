/* Makes planned moves of partitions (balance.h). This file decides when a job is checked, which
 * partitions are moved, and in which batches. rebalance_plan.c computes the moves that balance a
 * job. This file sends nothing. All functions run on the core's thread. */
#include "bps-scheduler/placement/balance.h"

#include <stdlib.h>

#include "bps-scheduler/placement/place.h"
#include "bps-scheduler/placement/place_apply.h"
#include "bps-scheduler/placement/rebalance_plan.h"
#include "bps-scheduler/placement/speed.h"
#include "common/data/shape.h"

/* Time between two batches. Also the time between two checks of whether the agents have applied a
 * batch. */
#define GAP_NS (100 * NS_PER_MS)
#define BEATS  3 /* number of heartbeat intervals after which a member without messages is silent */
/* Part of a server's memory that may be planned for sums. The threads of a server have equal parts
 * of its memory but slightly different loads, so a thread may be full before the others. */
#define MEMORY_SHARE 0.8

/* ---- time of the next check ---- */

static void balance_schedule_at(struct sched_core *c, uint64_t at_ns)
{
	if (!c->balance_ns || at_ns < c->balance_ns)
		c->balance_ns = at_ns;
	sched_arm_deadline(c, c->balance_ns);
}

void balance_schedule_now(struct sched_core *c)
{
	balance_schedule_at(c, c->now_ns);
}

void balance_request_all_jobs(struct sched_core *c)
{
	for (struct sched_job *j = c->jobs; j; j = j->next)
		j->wants_balance = true;
	balance_schedule_now(c);
}

void balance_gathered(struct sched_core *c)
{
	c->gathered_ns = c->now_ns;
	if (c->jobs)
		balance_request_all_jobs(c);
}

/* ---- memory ---- */

uint64_t balance_tensor_need(const struct sched_job *j, const struct sched_tensor *t)
{
	uint32_t elems = place_part_elems(&t->shape, t->n_shards, 1, UINT64_MAX, j->part_bytes);
	uint64_t shard = shape_elems(&t->shape) / t->n_shards, rest = shard % elems;

	return t->n_shards *
	       (shard / elems * sched_sums_need(t, elems) + (rest ? sched_sums_need(t, rest) : 0));
}

uint64_t balance_usable(uint64_t all)
{
	return (uint64_t)((double)all * MEMORY_SHARE);
}

uint64_t balance_memory_room(uint64_t all, uint64_t need)
{
	uint64_t usable = balance_usable(all);

	if (!all)
		return UINT64_MAX;
	return usable > need ? usable - need : 0;
}

/* ---- one job ---- */

/* Return whether at least one server must lose all its partitions of the job, because the server is
 * drained or about to end. *ret_is_hurried: at least one of these servers is about to end. */
static bool has_server_to_evacuate(
	const struct sched_core *c, const struct sched_job *j, bool *ret_is_hurried)
{
	bool found = false;

	*ret_is_hurried = false;
	for (uint32_t i = 1; i < j->n_loads; i++) {
		const struct sched_member *m = j->loads[i] ? sched_member_by_id(c, i) : NULL;

		if (!m || !sched_is_usable(m) || sched_member_is_open(m))
			continue;
		found = true;
		*ret_is_hurried |= m->is_leaving;
	}
	return found;
}

static bool is_recently_heard(const struct sched_core *c, const struct sched_member *m)
{
	return m->state == MEMBER_UP &&
	       c->now_ns <= m->heard_ns + BEATS * c->cfg.beat_ms * NS_PER_MS;
}

/* Return whether every agent of the job has sent a heartbeat recently and has applied the view in
 * which partitions of the job last moved. */
static bool has_each_agent_applied_move(const struct sched_core *c, const struct sched_job *j)
{
	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		if (!j->members[i].is_gone &&
			(!is_recently_heard(c, m) || m->beat.view < j->moved_view))
			return false;
	}
	return true;
}

/* Return whether all servers that would get partitions have sent a heartbeat recently. If one of
 * these servers is silent, no partition moves until that server sends a heartbeat or is declared
 * dead. */
static bool is_each_open_server_live(const struct sched_core *c)
{
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role == ROLE_SERVER && sched_member_is_open(c->members[i]) &&
			!is_recently_heard(c, c->members[i]))
			return false;
	return true;
}

static void note_batch_moved(struct sched_core *c, struct sched_job *j, uint32_t n)
{
	j->has_moved = true;
	j->moved_ns = c->now_ns;
	j->moved_view = sched_open_transaction_view(c);
	c->n_planned += n;
	sched_job_dirty(c, j);
	balance_schedule_at(c, c->now_ns + GAP_NS);
}

/* Return how many of n partitions move in one batch. The number stays the same until all partitions
 * have moved. */
static uint32_t move_batch_size(struct sched_job *j, uint32_t n)
{
	if (!j->batch)
		j->batch = n / BALANCE_BATCHES;
	if (j->batch < BALANCE_BATCH_MIN)
		j->batch = BALANCE_BATCH_MIN;
	return j->batch;
}

static bool is_part_to_evacuate(const struct sched_core *c, const struct sched_part *p)
{
	const struct sched_member *m = sched_member_by_id(c, p->server);

	return m && !sched_member_is_open(m);
}

/* Move a batch of partitions away from servers that are drained or about to end. Partitions move
 * only if at least one server accepts partitions. */
static void evacuate_part_batch(struct sched_core *c, struct sched_job *j)
{
	struct sched_part_ref p = {NULL, 0};
	struct place_wants w = {0};
	uint32_t n = 0, batch;
	bool is_none_open;

	place_taking_servers(c, &is_none_open);
	if (is_none_open)
		return;
	while (sched_part_next(j, SERVER_ANY, &p))
		n += is_part_to_evacuate(c, &p.t->parts[p.i]);
	batch = move_batch_size(j, n);
	p = (struct sched_part_ref){NULL, 0};
	while (w.n < batch && sched_part_next(j, SERVER_ANY, &p)) {
		if (!is_part_to_evacuate(c, &p.t->parts[p.i]))
			continue;
		sched_part_set(c, j, p.t, p.i, NULL, 0, p.t->parts[p.i].pgen);
		place_want_add(&w, p.t, p.i);
	}
	place_apply_wants(c, j, &w);
	note_batch_moved(c, j, w.n);
	sched_report_event(c, EVENT_PARTITIONS,
		"%u partition%s of job '%s' move%s away from servers that are drained or about to "
		"end; %u more will follow",
		w.n, plural_suffix_of(w.n), j->name, verb_suffix_of(w.n), n - w.n);
	free(w.v);
}

/* ---- moves that balance a job ---- */

struct rebalance {
	struct placement place;
	struct sched_member **servers;
	uint64_t *rooms;
	struct rebalance_part *parts;
	/* The job's partitions. refs[p->ref] is the partition that element p of `parts` describes.
	 * The two arrays differ in order, because rebalance_plan sorts `parts` */
	struct sched_part_ref *refs;
	uint32_t n, n_room, refs_room;
};

static void rebalance_init(struct sched_core *c, struct sched_job *j, struct rebalance *e)
{
	struct sched_part_ref p = {NULL, 0};
	/* for each member id: 1 + the member's index in e->servers; 0: the member is not in
	 * e->servers */
	uint32_t *index = sched_alloc(c->n_members + 1, sizeof(*index));

	*e = (struct rebalance){.n = 0};
	placement_fill(c, j, &e->place, &e->servers);
	e->rooms = sched_alloc(e->place.n_servers, sizeof(*e->rooms));
	for (uint32_t i = 0; i < e->place.n_servers; i++) {
		e->rooms[i] = place_server_room(&e->place.servers[i]);
		index[e->servers[i]->id] = i + 1;
	}
	while (sched_part_next(j, SERVER_ANY, &p)) {
		uint32_t server = p.t->parts[p.i].server;
		uint32_t at = server <= c->n_members ? index[server] : 0;

		if (!at)
			continue;
		e->parts = sched_grow_array(e->parts, &e->n_room, e->n + 1, sizeof(*e->parts));
		e->refs = sched_grow_array(e->refs, &e->refs_room, e->n + 1, sizeof(*e->refs));
		e->parts[e->n] = (struct rebalance_part){.bytes = sched_part_bytes(p.t, p.i),
			.need = sched_part_need(p.t, p.i),
			.server = at - 1,
			.ref = e->n};
		e->refs[e->n++] = p;
	}
	free(index);
}

static void rebalance_free(struct rebalance *e)
{
	placement_free(&e->place, e->servers);
	free(e->rooms);
	free(e->parts);
	free(e->refs);
}

static void apply_rebalance_batch(
	struct sched_core *c, struct sched_job *j, const struct rebalance *e, uint32_t n_moves)
{
	uint32_t batch = move_batch_size(j, n_moves), n = 0;

	for (uint32_t i = 0; i < e->n; i++) {
		const struct rebalance_part *p = &e->parts[i];
		const struct sched_part_ref *w = &e->refs[p->ref];
		struct sched_member *to;

		if (p->to == p->server || p->order >= batch)
			continue;
		to = e->servers[p->to];
		sched_part_set(c, j, w->t, w->i, to,
			place_idlest_thread(to->thread_bytes, to->threads),
			sched_open_transaction_view(c));
		n++;
	}
	note_batch_moved(c, j, n);
	sched_report_event(c, EVENT_PARTITIONS,
		"%u partition%s of job '%s' move%s to balance its servers; %u more will follow", n,
		plural_suffix_of(n), j->name, verb_suffix_of(n), n_moves - n);
}

static void rebalance_job_servers(struct sched_core *c, struct sched_job *j)
{
	struct rebalance e;
	struct rebalance_gain gain = {0};

	rebalance_init(c, j, &e);
	if (e.place.n_servers > 1 && e.n)
		gain = rebalance_plan(&e.place, e.rooms, e.parts, e.n);
	if (gain.n_moves &&
		gain.after <= gain.before * (1 - (j->batch ? BALANCE_REST : BALANCE_GAIN)))
		apply_rebalance_batch(c, j, &e, gain.n_moves);
	else
		j->wants_balance = false;
	rebalance_free(&e);
}

static void balance_job(struct sched_core *c, struct sched_job *j)
{
	bool is_hurried, is_leaving = has_server_to_evacuate(c, j, &is_hurried);
	uint64_t from_ns = c->gathered_ns + BALANCE_SETTLE_NS, settled_ns = speed_settles_ns(c);

	if (from_ns < settled_ns)
		from_ns = settled_ns;
	if (!is_leaving && !j->wants_balance) {
		j->batch = 0;
		return;
	}
	if (!is_leaving && c->now_ns < from_ns) {
		j->batch = 0;
		balance_schedule_at(c, from_ns);
		return;
	}
	if (c->now_ns < j->moved_ns + GAP_NS || !is_each_open_server_live(c) ||
		(!is_hurried && !has_each_agent_applied_move(c, j))) {
		balance_schedule_at(c, c->now_ns + GAP_NS);
		return;
	}
	if (is_leaving)
		evacuate_part_batch(c, j);
	else
		rebalance_job_servers(c, j);
}

void balance_tick(struct sched_core *c)
{
	if (!c->balance_ns)
		return;
	if (c->now_ns < c->balance_ns) {
		sched_arm_deadline(c, c->balance_ns);
		return;
	}
	c->balance_ns = 0;
	for (struct sched_job *j = c->jobs; j; j = j->next)
		if (j->state == JOB_RUNNING)
			balance_job(c, j);
}
