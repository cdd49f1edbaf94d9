/* The invariants of the scheduler's core: objects, counts, loads, views and states. */
#include "tests/invariants/invariants.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/core/stalls.h"
#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/balance.h"
#include "bps-scheduler/placement/place.h"
#include "common/data/dtype.h"

/* Return from the check with an error text if the condition does not hold. */
#define EXPECT(cond, ...)                                                                          \
	do {                                                                                       \
		if (!(cond))                                                                       \
			return err_set(err, -EINVAL, __VA_ARGS__);                                 \
	} while (0)

static int check_member(
	const struct sched_core *c, const struct sched_member *m, uint32_t id, struct err_text *err)
{
	EXPECT(m && m->id == id, "member %u is not at its place", id);
	EXPECT(m->state < MEMBER_STATES, "member %u has no state", id);
	EXPECT(m->role == ROLE_SERVER || m->role == ROLE_AGENT, "member %u has no role", id);
	EXPECT(m->host_idx < c->n_hosts && strcmp(c->hosts[m->host_idx], m->host) == 0,
		"wrong host of member %u", id);
	EXPECT((m->state == MEMBER_UP) == (m->conn != NULL), "member %u is %s %s connection", id,
		sched_member_state_name(m->state), m->conn ? "with a" : "without");
	EXPECT(!m->conn || m->conn->member == m,
		"the connection of member %u belongs to another member", id);
	EXPECT(!m->is_dirty || c->tx_view, "member %u is dirty outside a transaction", id);
	EXPECT(!m->needs_sync, "member %u still waits for WELCOME", id);
	EXPECT((m->role == ROLE_SERVER) == (m->threads > 0), "wrong number of threads of member %u",
		id);
	for (uint32_t i = 1; i < id; i++)
		EXPECT(c->members[i]->role != m->role || strcmp(c->members[i]->name, m->name) != 0,
			"members %u and %u have the same role and name", i, id);
	return 0;
}

static int check_conns(const struct sched_core *c, struct err_text *err)
{
	uint32_t silent = 0;

	for (size_t b = 0; b < CONN_BUCKETS; b++) {
		for (const struct sched_conn *conn = c->conns[b]; conn; conn = conn->next) {
			EXPECT(conn->id % CONN_BUCKETS == b, "connection %u is in the wrong bucket",
				conn->id);
			EXPECT(!conn->member || conn->member->conn == conn,
				"the member of connection %u has another connection", conn->id);
			silent += !conn->member;
		}
	}
	EXPECT(silent == c->n_silent, "%u silent connections, %u counted", silent, c->n_silent);
	return 0;
}

static int check_workers(
	const struct sched_core *c, const struct sched_job *j, struct err_text *err)
{
	uint32_t joined = 0, done = 0, gone = 0, left = 0, ranks = 0, low = 0, waiting = 0;

	for (uint32_t r = 0; r < j->n_room; r++) {
		const struct sched_worker *w = &j->workers[r];

		if (w->state == WORKER_ABSENT)
			continue;
		EXPECT(r < sched_rank_bound(j), "rank %u of job %u is out of range", r, j->id);
		waiting += w->state != WORKER_GONE && w->barrier == j->barrier + 1;
		EXPECT(!w->is_fresh || j->is_dirty,
			"rank %u of job %u has joined, but JOINED will not be sent", r, j->id);
		EXPECT((w->state == WORKER_GONE) == (sched_job_member(j, w->agent) == CTL_NO_ID) &&
				sched_job_member_ever(j, w->agent) != CTL_NO_ID,
			"wrong agent of rank %u of job %u", r, j->id);
		joined += w->state != WORKER_GONE;
		gone += w->state == WORKER_GONE;
		done += w->state == WORKER_DONE;
	}
	EXPECT(joined == j->n_joined && gone == j->n_gone && done == j->n_done,
		"wrong counts of workers of job %u", j->id);
	EXPECT(j->state == JOB_FORMING ? joined && (joined < j->size || j->max_size) && !gone
				       : joined + gone == j->size || (j->max_size && joined),
		"job %u is %s with %u of %u workers", j->id, sched_job_state_name(j->state), joined,
		j->size);
	EXPECT(j->state != JOB_RUNNING || done < joined,
		"job %u runs, but all its workers are done", j->id);
	for (uint32_t i = 0; i < j->n_members; i++) {
		const struct sched_member *m = sched_member_by_id(c, j->members[i].agent);

		EXPECT(m && m->role == ROLE_AGENT, "member %u of job %u is not an agent", i, j->id);
		left += j->members[i].is_gone;
		EXPECT(j->state == JOB_ENDED || m->state != MEMBER_DOWN || j->members[i].is_gone,
			"job %u still counts on its dead agent %s", j->id, m->name);
		EXPECT(j->state == JOB_FORMING || !i || j->members[i].low_rank > low || j->max_size,
			"members of job %u are out of order", j->id);
		low = j->members[i].low_rank;
		ranks += j->members[i].n_ranks;
	}
	EXPECT(j->state != JOB_RUNNING || (waiting == j->n_at_barrier && waiting < joined),
		"wrong number of workers of job %u at its barrier", j->id);
	EXPECT(left == j->n_left, "wrong number of gone members of job %u", j->id);
	EXPECT(ranks == joined + gone, "wrong number of ranks of members of job %u", j->id);
	return 0;
}

struct load_sums {
	uint64_t *bytes;   /* bytes of the checked job, by server id */
	uint64_t **thread; /* bytes of all jobs, by server id and thread */
	uint64_t *scaled;
};

static int check_parts(const struct sched_core *c, const struct sched_job *j,
	const struct sched_tensor *t, struct load_sums *s, uint32_t *orphans, struct err_text *err)
{
	uint64_t limit = c->tx_view ? c->tx_view : c->view;

	for (uint32_t i = 0; i < t->n_parts; i++) {
		const struct sched_part *p = &t->parts[i];
		const struct sched_member *m = sched_member_by_id(c, p->server);

		EXPECT(p->pgen && p->pgen <= limit,
			"invalid pgen of partition %u of '%s' of job %u", i, t->name, j->id);
		if (p->server == CTL_NO_ID) {
			++*orphans;
			continue;
		}
		EXPECT(m && m->role == ROLE_SERVER && sched_is_usable(m),
			"partition %u of '%s' of job %u is on no live server", i, t->name, j->id);
		EXPECT(p->instance == m->instance && p->thread < m->threads,
			"partition %u of '%s' of job %u has a wrong instance or thread of %s", i,
			t->name, j->id, m->name);
		s->bytes[m->id] += sched_part_bytes(t, i);
		s->thread[m->id][p->thread] += sched_part_bytes(t, i);
		s->scaled[m->id] += sched_part_bytes(t, i) * j->n_members;
	}
	return 0;
}

static int check_tensor(const struct sched_core *c, const struct sched_job *j,
	const struct sched_tensor *t, struct err_text *err)
{
	EXPECT(t->state < TENSOR_STATES, "invalid state of tensor '%s'", t->name);
	EXPECT(sched_tensor_find(j, t->name) == t, "tensor '%s' is not found", t->name);
	if (t->state != TENSOR_PLACED) {
		EXPECT(t->id == CTL_NO_ID && !t->parts,
			"unplaced tensor '%s' has an id or partitions", t->name);
		EXPECT(t->declared, "no declarations of tensor '%s'", t->name);
		EXPECT(t->state != TENSOR_FAILED || t->fail_text,
			"failed tensor '%s' has no reason", t->name);
		return 0;
	}
	EXPECT(t->id < j->n_placed && j->placed[t->id] == t, "wrong id of tensor '%s'", t->name);
	EXPECT(t->part_elems && t->n_shards == shape_shards(&t->shape, j->size) &&
			t->n_parts ==
				shape_partition_count(&t->shape, t->n_shards, t->part_elems) &&
			t->n_parts <= PLACE_PARTS_MAX,
		"wrong partitions of tensor '%s'", t->name);
	EXPECT((t->parts != NULL) == !job_is_local(j->n_members, j->flags),
		"wrong places of tensor '%s'", t->name);
	EXPECT(!t->declared || c->tx_view, "placed tensor '%s' still has declarations", t->name);
	return 0;
}

static int check_tensors(const struct sched_core *c, const struct sched_job *j, struct load_sums *s,
	struct err_text *err)
{
	uint32_t n = 0, placed = 0, orphans = 0;
	uint64_t claimed = 0, sums = 0;
	int r = 0;

	for (uint32_t b = 0; r == 0 && b < j->n_buckets; b++) {
		for (const struct sched_tensor *t = j->buckets[b]; r == 0 && t; t = t->next_hash) {
			n++;
			placed += t->state == TENSOR_PLACED;
			if (t->state != TENSOR_FAILED) {
				claimed += shape_bytes(&t->shape);
				sums += balance_tensor_need(j, t);
			}
			r = check_tensor(c, j, t, err);
			if (r == 0 && t->parts)
				r = check_parts(c, j, t, s, &orphans, err);
		}
	}
	if (r < 0)
		return r;
	EXPECT(n == j->n_tensors && placed == j->n_placed && orphans == j->n_orphans,
		"wrong counts of tensors of job %u", j->id);
	EXPECT(claimed == j->claimed_bytes && sums == j->claimed_sums,
		"wrong number of bytes claimed by job %u", j->id);
	for (uint32_t i = 1; i <= c->n_members; i++) {
		EXPECT(s->bytes[i] == (i < j->n_loads ? j->loads[i] : 0),
			"wrong load of %s by job %u", c->members[i]->name, j->id);
		s->bytes[i] = 0;
	}
	return 0;
}

static int check_jobs(const struct sched_core *c, struct load_sums *s, struct err_text *err)
{
	uint32_t n = 0, ended = 0;
	int r = 0;

	for (const struct sched_job *j = c->jobs; r == 0 && j; j = j->next, n++) {
		EXPECT(j->state == JOB_FORMING || j->state == JOB_RUNNING,
			"invalid state of job %u", j->id);
		EXPECT(j->id < c->next_job, "the id of job %u is not below the next id", j->id);
		EXPECT(!j->is_dirty || c->tx_view, "job %u is dirty outside a transaction", j->id);
		EXPECT(j->is_dirty || (!j->fresh && !j->is_changed && !j->has_moved),
			"changes of job %u were not sent", j->id);
		for (const struct sched_job *k = j->next; k; k = k->next)
			EXPECT(k->id != j->id &&
					(k->uid != j->uid || strcmp(k->name, j->name) != 0),
				"jobs %u and %u have the same id, or the same user and name", j->id,
				k->id);
		r = check_workers(c, j, err);
		if (r == 0)
			r = stalls_check(c, j, err);
		if (r == 0)
			r = check_tensors(c, j, s, err);
	}
	for (const struct sched_job *j = c->ended; r == 0 && j; j = j->next, ended++) {
		EXPECT(j->state == JOB_ENDED && !j->n_tensors,
			"ended job %u has a wrong state, or tensors", j->id);
		r = check_workers(c, j, err);
	}
	if (r == 0)
		EXPECT(n == c->n_jobs && ended == c->n_ended, "wrong counts of jobs");
	return r;
}

static int check_loads(const struct sched_core *c, const struct load_sums *s, struct err_text *err)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		EXPECT(s->scaled[i] == m->scaled_bytes, "wrong scaled load of %s", m->name);
		for (uint32_t k = 0; k < m->threads; k++)
			EXPECT(s->thread[i][k] == m->thread_bytes[k],
				"wrong load of thread %u of %s", k, m->name);
	}
	return 0;
}

int sched_check(const struct sched_core *c, struct err_text *err)
{
	struct load_sums s = {sched_alloc(c->n_members + 1, sizeof(uint64_t)),
		sched_alloc(c->n_members + 1, sizeof(uint64_t *)),
		sched_alloc(c->n_members + 1, sizeof(uint64_t))};
	int r = 0;

	for (uint32_t i = 1; r == 0 && i <= c->n_members; i++) {
		r = check_member(c, c->members[i], i, err);
		s.thread[i] = sched_alloc(c->members[i]->threads, sizeof(uint64_t));
	}
	if (r == 0)
		r = check_conns(c, err);
	if (r == 0)
		r = check_jobs(c, &s, err);
	if (r == 0)
		r = check_loads(c, &s, err);
	if (r == 0 && c->is_started && c->view >> 32 != c->term && !c->tx_view)
		r = err_set(err, -EINVAL, "view %llx is not of term %u",
			(unsigned long long)c->view, c->term);
	if (r == 0 && c->tx_view && !c->is_undurable)
		r = err_set(err, -EINVAL, "a transaction is open");
	for (uint32_t i = 1; i <= c->n_members; i++)
		free(s.thread[i]);
	free(s.thread);
	free(s.bytes);
	free(s.scaled);
	return r;
}
