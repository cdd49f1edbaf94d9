/* Events, virtual time and the course of one history. */
#include "tests/sim/sim.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES (256u << 10)
#define EVENTS_MAX  400000 /* limit that only an endless loop exceeds */

/* ---- random ---- */

uint64_t mix(uint64_t x) /* splitmix64 (Steele and others, 2014) */
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t rnd(struct sim *s)
{
	return mix(s->rng += UINT64_C(0x9e3779b97f4a7c15));
}

uint64_t rnd_below(struct sim *s, uint64_t n)
{
	return n ? rnd(s) % n : 0;
}

uint64_t rnd_between(struct sim *s, uint64_t lo, uint64_t hi)
{
	return lo + rnd_below(s, hi - lo + 1);
}

bool rnd_chance(struct sim *s, uint32_t permille)
{
	return permille && rnd(s) % 1000 < permille;
}

uint64_t sim_net_delay(struct sim *s)
{
	uint64_t d = s->o.delay_ns / 2 + rnd_below(s, s->o.delay_ns);

	return rnd_chance(s, s->o.tail_permille) ? d + rnd_below(s, 600 * MS) : d;
}

uint64_t ctl_delay(struct sim *s)
{
	uint64_t d = s->o.ctl_delay_ns / 2 + rnd_below(s, s->o.ctl_delay_ns);

	return rnd_chance(s, s->o.ctl_tail_permille) ? d + rnd_below(s, 300 * MS) : d;
}

/* ---- memory ---- */

static struct sim_arena_block *block_new(size_t n_bytes)
{
	struct sim_arena_block *b = malloc(sizeof(*b) + n_bytes);

	if (!b)
		abort();
	b->next = NULL;
	b->used = 0;
	b->bytes = n_bytes;
	return b;
}

void *sim_alloc(struct sim *s, size_t n_bytes)
{
	void *p;

	n_bytes = (n_bytes + 63) & ~(size_t)63;
	if (!s->arena)
		s->arena = s->arena_at = block_new(ARENA_BYTES);
	while (s->arena_at->bytes - s->arena_at->used < n_bytes) {
		if (!s->arena_at->next)
			s->arena_at->next =
				block_new(n_bytes > ARENA_BYTES ? n_bytes : ARENA_BYTES);
		s->arena_at = s->arena_at->next;
		s->arena_at->used = 0;
	}
	p = s->arena_at->mem + s->arena_at->used;
	s->arena_at->used += n_bytes;
	return memset(p, 0, n_bytes);
}

static void arena_reset(struct sim *s)
{
	s->arena_at = s->arena;
	if (s->arena)
		s->arena->used = 0;
}

/* ---- events ---- */

static bool is_before(const struct entry *a, const struct entry *b)
{
	return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void queue_push(struct sim_queue *q, struct sim_event *e)
{
	size_t i = q->n++;
	struct entry x = {e->at, e->seq, e};

	if (q->n > q->cap) {
		q->cap = q->cap ? 2 * q->cap : 1024;
		q->v = realloc(q->v, q->cap * sizeof(*q->v));
		if (!q->v)
			abort();
	}
	while (i && is_before(&x, &q->v[(i - 1) / 2])) {
		q->v[i] = q->v[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	q->v[i] = x;
}

static struct sim_event *queue_pop(struct sim_queue *q)
{
	struct sim_event *e = q->v[0].e;
	struct entry x = q->v[--q->n];
	size_t i = 0, k;

	while ((k = 2 * i + 1) < q->n) {
		if (k + 1 < q->n && is_before(&q->v[k + 1], &q->v[k]))
			k++;
		if (!is_before(&q->v[k], &x))
			break;
		q->v[i] = q->v[k];
		i = k;
	}
	q->v[i] = x;
	return e;
}

struct sim_event *sim_post(
	struct sim *s, struct sim_node *node, uint64_t delay_ns, sim_event_fn *fn)
{
	struct sim_event *e = s->free_events;

	if (e)
		s->free_events = e->next;
	else
		e = malloc(sizeof(*e));
	if (!e)
		abort();
	e->at = s->now + delay_ns;
	e->seq = s->queue.seq++;
	e->node = node;
	e->life = node ? node->life : 0;
	e->fn = fn;
	e->p = NULL;
	e->a = e->b = 0;
	e->n = 0;
	e->big = NULL;
	queue_push(&s->queue, e);
	return e;
}

uint8_t *event_room(struct sim_event *e, uint32_t n)
{
	e->n = n;
	if (n > EVENT_BYTES) {
		e->big = malloc(n);
		if (!e->big)
			abort();
	}
	return event_bytes(e);
}

static void event_free(struct sim *s, struct sim_event *e)
{
	free(e->big);
	e->big = NULL;
	e->next = s->free_events;
	s->free_events = e;
}

/* ---- reports ---- */

void violation(struct sim *s, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (s->has_violation)
		return;
	s->has_violation = true;
	n = snprintf(s->reason, sizeof(s->reason), "at %.6f s: ", (double)s->now / 1e9);
	va_start(ap, fmt);
	vsnprintf(s->reason + n, sizeof(s->reason) - (size_t)n, fmt, ap);
	va_end(ap);
	trace(s, "VIOLATION %s", s->reason);
}

void trace_write(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%12.6f ", (double)s->now / 1e9);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* ---- one history ---- */

static void start_server(struct sim *s, struct sim_event *e)
{
	server_start(s, (unsigned)e->a);
}

static void start_agent(struct sim *s, struct sim_event *e)
{
	if (s->o.is_elastic && s->oracle.has_end)
		/* the agent would start after the end of the job, so do not start it */
		s->agents[e->a].node.life = 1;
	else
		agent_start(s, (unsigned)e->a);
}

static void history_start(struct sim *s)
{
	unsigned first = s->o.is_elastic ? s->o.n_first : s->o.n_agents;

	s->sched.tail = &s->sched.records;
	snprintf(s->sched.node.name, sizeof(s->sched.node.name), "sched");
	sched_node_start(s);
	for (unsigned i = 0; i < s->o.n_servers; i++) {
		snprintf(s->servers[i].node.name, sizeof(s->servers[i].node.name), "server%u", i);
		s->servers[i].s = s;
		sim_post(s, NULL, server_start_delay(s, i), start_server)->a = i;
	}
	for (unsigned i = 0; i < s->o.n_agents; i++) {
		snprintf(s->agents[i].node.name, sizeof(s->agents[i].node.name), "agent%u", i);
		s->agents[i].s = s;
		s->agents[i].idx = i;
		sim_post(s, NULL, rnd_below(s, i < first ? 50 * MS : 3 * S), start_agent)->a = i;
	}
	guests_start(s);
	faults_start(s);
	twin_start(s);
}

/* Return whether every worker has received the job's end, and every live server has dropped the
 * job. */
static bool is_finished(const struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (!s->agents[i].node.life || /* the agent has not started yet */
			s->agents[i].is_restarting ||
			(s->agents[i].node.is_up && !agent_is_over(&s->agents[i])))
			return false;
	for (unsigned i = 0; i < s->o.n_servers; i++)
		if (s->servers[i].node.is_up && server_has_job(&s->servers[i]))
			return false;
	return guests_are_over(s);
}

static void hung(struct sim *s)
{
	char text[200];
	size_t n = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < s->o.n_agents; i++) {
		struct sim_agent *a = &s->agents[i];

		if (!a->node.is_up || agent_is_over(a))
			continue;
		n += (size_t)snprintf(text + n, sizeof(text) - n, " agent%u:%s", i,
			a->job ? "running" : "joining");
		for (unsigned t = 0; a->job && t < s->o.n_tensors; t++)
			n += (size_t)snprintf(text + n, sizeof(text) - n, ",%llu",
				(unsigned long long)a->tensors[t].round);
		if (n >= sizeof(text) - 64)
			break;
	}
	for (unsigned i = 0; i < s->o.n_servers && n < sizeof(text) - 32; i++)
		if (s->servers[i].node.is_up && server_has_job(&s->servers[i]))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " server%u", i);
	if (n < sizeof(text) - 64)
		guests_describe(s, text + n, sizeof(text) - n);
	violation(s, "hung:%s", text);
}

/* Close everything that is open. No pool may have memory in use afterwards, and no loan may be
 * open. */
static void check_leaks(struct sim *s)
{
	struct srv_stats st;

	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (s->agents[i].node.is_up)
			sim_net_close_all(s, &s->agents[i].port);
	guests_close(s);
	for (unsigned i = 0; i < s->o.n_servers; i++) {
		struct sim_server *srv = &s->servers[i];

		for (unsigned k = 0; srv->node.is_up && srv->has_cores && k < s->o.n_threads; k++) {
			sim_net_close_all(s, &srv->threads[k].port);
			srv_core_stats(srv->threads[k].core, &st);
			if (st.sums_used || st.staging_used || st.retired || st.parts)
				violation(s,
					"server%u thread %u leaks: sums %zu staging %zu limbo %u "
					"parts %u",
					i, k, st.sums_used, st.staging_used, st.retired, st.parts);
		}
	}
	if (s->n_loans)
		violation(s, "%" PRIu64 " loans were not returned", s->n_loans);
	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (s->agents[i].node.is_up && s->agents[i].has_job_msg &&
			!s->agents[i].is_released)
			violation(s, "agent%u: job memory was not released", i);
}

static void history_end(struct sim *s)
{
	for (unsigned i = 0; i < s->o.n_agents; i++)
		if (s->agents[i].node.is_up)
			agent_lose(s, i);
	guests_end(s);
	for (unsigned i = 0; i < s->o.n_servers; i++)
		if (s->servers[i].node.is_up)
			server_kill(s, i, true);
	if (s->sched.node.is_up)
		sched_node_kill(s);
}

static void forget(struct sim *s)
{
	while (s->sched.records) {
		struct sim_record *r = s->sched.records;

		s->sched.records = r->next;
		free(r);
	}
	while (s->queue.n)
		event_free(s, queue_pop(&s->queue));
}

static void run_events(struct sim *s)
{
	uint64_t n = 0;

	while (s->queue.n && !s->has_violation) {
		struct sim_event *e = queue_pop(&s->queue);
		struct sim_node *node = e->node;

		assert(e->at >= s->now);
		s->now = e->at;
		if (node && (!node->is_up || node->life != e->life)) {
			event_free(s, e);
			continue;
		}
		if (node && node->paused_until > s->now) {
			e->at = node->paused_until;
			queue_push(&s->queue, e);
			continue;
		}
		e->fn(s, e);
		event_free(s, e);
		if (is_finished(s))
			break;
		if (s->now > s->deadline) {
			hung(s);
			break;
		}
		if (++n > EVENTS_MAX) {
			violation(s, "the history has too many events, so it may never end");
			break;
		}
	}
	s->tot->events += n;
}

bool sim_run(struct sim *s, uint64_t seed)
{
	struct sim_totals *tot = s->tot;

	memset(&s->o, 0, sizeof(*s) - offsetof(struct sim, o));
	s->tot = tot;
	s->seed = seed;
	s->rng = mix(seed * 2 + 1);
	s->now = 1 * S;
	s->queue.seq = 0;
	s->has_violation = s->is_ending = s->has_faults_begun = false;
	arena_reset(s);
	options_draw(s);
	history_start(s);
	run_events(s);
	s->is_ending = true;
	if (!s->has_violation && elastic_is(s))
		elastic_end(s);
	if (!s->has_violation)
		check_leaks(s);
	tot->seeds++;
	tot->virtual_ns += s->now - 1 * S;
	if (s->now > s->faults_end && s->now - s->faults_end > tot->slowest_ns) {
		tot->slowest_ns = s->now - s->faults_end;
		tot->slowest_seed = seed;
	}
	tot->failed_jobs += s->oracle.has_end && s->oracle.end_code;
	tot->lives += s->sched.n_lives;
	if (!s->has_violation)
		/* after a violation the cores may be in any state, so they are not freed */
		history_end(s);
	forget(s);
	return !s->has_violation;
}

void sim_free(struct sim *s)
{
	struct sim_event *e;
	struct sim_arena_block *b;

	while ((e = s->free_events)) {
		s->free_events = e->next;
		free(e);
	}
	while ((b = s->arena)) {
		s->arena = b->next;
		free(b);
	}
	free(s->queue.v);
	free(s);
}
