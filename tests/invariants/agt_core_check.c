/* The invariants of the agent's core. One walk visits all objects. */
#include "tests/invariants/invariants.h"

#include <stdio.h>

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/lockstep.h"

/* Sums over all partitions. They are compared with the counters and lists of the core and its
 * links. */
struct agt_tally {
	size_t n_parts, n_local, n_timers, n_ready, n_offered, n_owing, n_homes, n_shares,
		n_lagging, n_held;
	size_t charged_bytes;
	/* n_fetching, n_tasks, n_parked, job_bytes: counts of only the job that is checked now */
	uint32_t n_fetching, n_tasks;
	size_t n_parked;
	uint64_t job_bytes; /* bytes that are charged to the job that is checked now */
	size_t n_reads;     /* reads of all jobs */
};

struct agt_checker {
	const struct agt_core *core;
	struct err_text *err;
	int rc;
	const struct agt_part *part; /* the partition that is checked now, for the error text */
	const struct agt_link *link;
	struct agt_tally n;
};

/* Report the first invariant that does not hold. Calls after the first report do nothing. */
static void expect(struct agt_checker *c, bool is_true, const char *what)
{
	char where[128] = "";

	if (is_true || c->rc)
		return;
	if (c->part)
		snprintf(where, sizeof(where), " (job=%u tensor=%u part=%u state=%d)",
			c->part->tensor->job->id, c->part->tensor->id, c->part->index,
			(int)c->part->state);
	else if (c->link)
		snprintf(where, sizeof(where), " (server=%u thread=%u)", c->link->server,
			c->link->thread);
	c->rc = err_set(c->err, -1, "agent core: %s does not hold%s", what, where);
}

static bool heap_holds(const struct heap *h, const struct heap_node *n)
{
	return heap_node_is_queued(n) && n->pos <= h->n && h->v[n->pos - 1] == n;
}

/* ---- partitions ---- */

static void check_lists(struct agt_checker *c, const struct agt_part *part)
{
	bool is_local = part->tensor->job->is_local;
	bool is_ready = part->state == PART_READY, is_queued = heap_node_is_queued(&part->node);
	const struct heap *home = part->is_parked ? &part->tensor->job->parked
				  : is_local      ? &c->core->local
				  : part->share   ? &part->share->ready
						  : NULL;

	expect(c, !is_queued || (home && heap_holds(home, &part->node)),
		"queued => in its own heap");
	expect(c, !part->is_staging || (is_ready && part->tensor->is_device),
		"staging => READY, on a device");
	expect(c,
		is_queued == (is_ready && home && !part->is_staging && !part->is_working &&
				     !part_awaits_value(part)),
		"READY with a home, staged and without a task <=> queued");
	expect(c,
		!part->is_working || part->state == PART_READY || part->state == PART_SENT ||
			part->state == PART_WAITING || part->state == PART_IDLE,
		"I13: a partition with a task takes no result");
	expect(c, !heap_node_is_queued(&part->timer) || heap_holds(&c->core->timers, &part->timer),
		"timer => in the heap");
	expect(c, !part->owes || part->link, "owes => a link");
	expect(c, !part->is_charged || part->link, "charged => a link");
	expect(c,
		part->link ? part->share && part->share->link == part->link &&
				     part->share->job == part->tensor->job
			   : !part->share,
		"a share of its job <=> a link");
	c->n.n_local += is_queued && is_local;
	expect(c, !part->is_parked || (is_ready && part->link), "parked => READY, a link");
	c->n.n_ready += is_queued && !is_local && !part->is_parked;
	c->n.n_parked += part->is_parked;
	c->n.job_bytes += part->is_charged ? part_bytes(part) : 0;
	c->n.n_timers += heap_node_is_queued(&part->timer);
	c->n.n_offered += part->state == PART_OFFERED;
	c->n.n_owing += part->owes != 0;
	c->n.n_homes += part->link != NULL;
	c->n.charged_bytes += part->is_charged ? part_bytes(part) : 0;
}

static void check_state(struct agt_checker *c, const struct agt_part *part)
{
	bool is_up =
		part->link && (part->link->state == LINK_UP || part->link->state == LINK_CLOSING);
	bool has_timer = heap_node_is_queued(&part->timer);

	switch (part->state) {
	case PART_IDLE:
		expect(c, !part->is_charged, "IDLE => not charged");
		break;
	case PART_READY:
		expect(c, !part->is_charged, "READY => not charged");
		expect(c, !has_timer || part->is_have_unconfirmed,
			"READY with a timer => HAVE is unconfirmed");
		break;
	case PART_SENT:
		expect(c, is_up && has_timer, "SENT => connected, timer");
		break;
	case PART_WAITING:
		expect(c, is_up && has_timer && !part->is_charged,
			"WAITING => connected, timer, not charged");
		break;
	case PART_OFFERED:
		expect(c, is_up && !has_timer, "OFFERED => connected, no timer");
		break;
	case PART_FETCHING:
		expect(c, !has_timer, "FETCHING => no timer");
		expect(c, part->is_stale || is_up, "FETCHING => connected, or stale");
		expect(c, !part->is_stale || !part->is_charged, "stale => not charged");
		break;
	}
	expect(c, !part->is_stale || part->state == PART_FETCHING, "stale => FETCHING");
}

/* Check a partition against the round of its tensor. */
static void check_round(struct agt_checker *c, const struct agt_part *part)
{
	const struct agt_tensor *t = part->tensor;
	bool is_running = t->is_running;

	if (t->failed || t->job->failed || t->job->is_closing) {
		expect(c,
			part->state == PART_IDLE ||
				(part->state == PART_FETCHING && part->is_stale),
			"failed or closing => IDLE, or a stale read");
		return;
	}
	expect(c, part->state == PART_IDLE || is_running, "not IDLE => its tensor is running");
	expect(c,
		part->round == t->round + is_running ||
			(t->has_landed && part->round == t->round + 1),
		"a partition is in its tensor's round");
	/* Exception: an IDLE partition of a device tensor may already have the sum of the next
	 * round (part->round + 1). After a restart of the agent, that round runs again (K6). The
	 * agent's previous process may already have summed the round, although the partition in the
	 * new process is IDLE. */
	expect(c,
		part->kept->summed <= part->round + (t->is_device && part->state == PART_IDLE) &&
			part->crc_round <= part->round,
		"no sum or CRC is of a later round");
	expect(c, part->kept->landed == part->round - (part->state != PART_IDLE),
		"kept->landed = last round that has landed");
	if ((part->state == PART_IDLE || part->state == PART_READY) && part->is_have_unconfirmed &&
		part->link)
		expect(c, heap_node_is_queued(&part->timer) || (part->owes & OWE_HAVE),
			"an unconfirmed HAVE will be sent again");
}

static void check_tensor(struct agt_checker *c, const struct agt_tensor *t)
{
	uint32_t n_left = 0, n_submitted = 0, n_tasks = 0;

	expect(c, t->is_planned == (t->parts != NULL), "planned <=> partitions");
	expect(c,
		!t->is_running ||
			(t->is_planned && (!t->failed || t->is_end_due || t->job->is_closing)),
		"running => planned, not failed, or the failure waits for tasks");
	expect(c, !t->is_end_due || (t->failed && t->n_tasks), "A10: due => failed, and a task");
	for (uint32_t i = 0; t->parts && i < t->n_parts; i++) {
		const struct agt_part *part = &t->parts[i];

		c->part = part;
		expect(c, part->tensor == t && part->index == i, "a partition is its tensor's");
		check_lists(c, part);
		check_state(c, part);
		check_round(c, part);
		n_left += part->state != PART_IDLE;
		c->n.n_fetching += part->state == PART_FETCHING;
		n_tasks += part->is_working;
		c->part = NULL;
	}
	for (uint32_t w = 0; w < t->job->n_workers; w++)
		n_submitted += t->submitted[w] == t->round + 1;
	if (!t->job->is_closing) {
		expect(c, n_submitted == t->n_submitted,
			"n_submitted = workers that submitted round + 1");
		expect(c, !t->is_running || t->failed || n_left == t->parts_left,
			"parts_left = partitions that are not IDLE");
		expect(c, !t->is_running || t->failed || (n_left > 0) != t->is_unstaging,
			"running => something is left, or the sums go to devices");
	}
	expect(c, !t->is_running || n_submitted == t->job->n_workers, "running => all submitted");
	expect(c, n_tasks == t->n_tasks, "n_tasks = partitions with a task");
	c->n.n_tasks += n_tasks;
	c->n.n_parts += t->n_parts;
}

/* ---- links ---- */

static void check_homes(struct agt_checker *c, const struct agt_link *link)
{
	size_t n_homes = 0, n_offered = 0, n_owing = 0, inflight = 0;
	const struct agt_part *part;

	TAILQ_FOREACH (part, &link->parts, home) {
		expect(c, part->link == link, "home => its link");
		inflight += part->is_charged ? part_bytes(part) : 0;
		n_homes++;
	}
	TAILQ_FOREACH (part, &link->offered, offered) {
		expect(c, part->link == link && part->state == PART_OFFERED, "offered => OFFERED");
		n_offered++;
	}
	TAILQ_FOREACH (part, &link->owing, owing) {
		expect(c, part->link == link && part->owes, "owing => owes");
		n_owing++;
	}
	expect(c, n_homes == link->n_parts, "n_parts = |homes|");
	expect(c, inflight == link->inflight, "inflight = bytes charged");
	c->n.n_homes -= n_homes;
	c->n.n_offered -= n_offered;
	c->n.n_owing -= n_owing;
	c->n.charged_bytes -= inflight;
}

/* Return whether any share of the link should be sending. A share should be sending if it has ready
 * partitions and does not wait in the job's heap of held shares. */
static bool can_send(const struct agt_link *link)
{
	const struct lockstep_share *s;

	TAILQ_FOREACH (s, &link->shares, of_link)
		if (s->ready.n && (!lockstep_is_held(s) || !heap_node_is_queued(&s->wait)))
			return true;
	return false;
}

static void check_shares(struct agt_checker *c, const struct agt_link *link)
{
	const struct lockstep_share *s;
	const struct agt_part *part;

	TAILQ_FOREACH (s, &link->shares, of_link) {
		size_t n_parts = 0;
		uint64_t ready_bytes = 0;

		TAILQ_FOREACH (part, &link->parts, home) {
			if (part->share != s)
				continue;
			n_parts++;
			ready_bytes += heap_holds(&s->ready, &part->node) && !part->sent_ns
					       ? part_bytes(part)
					       : 0;
		}
		expect(c, heap_is_valid(&s->ready), "heap order");
		expect(c, s->link == link && n_parts && n_parts == s->n_parts,
			"a share has partitions, on its link");
		expect(c, ready_bytes == s->ready_bytes,
			"a share's ready_bytes = ready bytes not sent yet");
		expect(c, heap_node_is_queued(&s->lag) == lockstep_counts(s),
			"others may wait for the share <=> lagging");
		expect(c, !heap_node_is_queued(&s->lag) || heap_holds(&s->job->lagging, &s->lag),
			"lagging => in its job's heap");
		expect(c, !heap_node_is_queued(&s->wait) || heap_holds(&s->job->held, &s->wait),
			"held => in its job's heap");
		expect(c, !heap_node_is_queued(&s->wait) || lockstep_is_held(s) || link->is_active,
			"no longer held => its link is active");
		c->n.n_ready -= s->ready.n;
		c->n.n_shares++;
		c->n.n_lagging += heap_node_is_queued(&s->lag);
		c->n.n_held += heap_node_is_queued(&s->wait);
	}
}

static bool is_window_full(const struct agt_checker *c, const struct agt_link *link)
{
	return link->inflight && c->core->cfg.window_bytes != SIZE_MAX;
}

static void check_link(struct agt_checker *c, const struct agt_link *link)
{
	bool is_up = link->state == LINK_UP, has_timer = heap_node_is_queued(&link->timer);

	c->link = link;
	expect(c, (link->state == LINK_DOWN) == !link->conn, "a connection <=> not DOWN");
	expect(c, !link->conn || link->conn->user == link, "a link is its connection's");
	expect(c,
		!has_timer || (link->state == LINK_DOWN &&
				      heap_holds(&c->core->link_timers, &link->timer)),
		"timer => DOWN");
	expect(c, link->state != LINK_DOWN || has_timer || !link->n_parts,
		"DOWN and needed => a connect is scheduled");
	expect(c,
		is_up || link->state == LINK_CLOSING ||
			(TAILQ_EMPTY(&link->gots) && !link->inflight &&
				TAILQ_EMPTY(&link->offered)),
		"not up => nothing under way");
	expect(c, is_up || !link->is_active, "A11: not up => nothing is sent");
	check_homes(c, link);
	check_shares(c, link);
	if (is_up && !link->is_active) {
		expect(c, link->is_stuck || TAILQ_EMPTY(&link->owing), "what is owed will be sent");
		expect(c, link->is_stuck || TAILQ_EMPTY(&link->gots), "a GOT will be sent");
		expect(c,
			link->is_stuck || link->is_full || is_window_full(c, link) ||
				!can_send(link),
			"what is ready will be sent");
		expect(c, TAILQ_EMPTY(&link->offered) || c->n.n_reads,
			"what is offered will be read");
	}
	c->link = NULL;
}

static void check_links(struct agt_checker *c)
{
	const struct agt_core *core = c->core;
	size_t n_links = 0, n_active = 0, n_is_active = 0, n_timers = 0;
	const struct agt_link *link;

	TAILQ_FOREACH (link, &core->links, link) {
		check_link(c, link);
		n_links++;
		n_is_active += link->is_active;
		n_timers += heap_node_is_queued(&link->timer);
	}
	TAILQ_FOREACH (link, &core->active, active)
		n_active++;
	expect(c, n_links == core->n_links, "n_links = |links|");
	expect(c, n_active == n_is_active, "is_active <=> on the list");
	expect(c, n_timers == core->link_timers.n, "link timers = those of links");
}

int agt_core_check(const struct agt_core *core, struct err_text *err)
{
	struct agt_checker c = {.core = core, .err = err};
	const struct agt_job *job;
	const struct agt_tensor *t;

	TAILQ_FOREACH (job, &core->jobs, link) {
		c.n.n_fetching = c.n.n_tasks = 0;
		c.n.n_parked = 0;
		c.n.job_bytes = 0;
		TAILQ_FOREACH (t, &job->tensors, link)
			check_tensor(&c, t);
		expect(&c, c.n.n_fetching == job->n_reads, "n_reads = partitions in FETCHING");
		expect(&c, c.n.n_parked == job->parked.n,
			"job->parked = partitions with is_parked");
		expect(&c, c.n.job_bytes == job->inflight, "a job's inflight = bytes charged");
		expect(&c, !job->parked.n || job->inflight,
			"parked => bytes of the job are in flight");
		expect(&c, heap_is_valid(&job->parked), "heap order");
		expect(&c, heap_is_valid(&job->lagging), "heap order");
		expect(&c, heap_is_valid(&job->held), "heap order");
		c.n.n_shares -= job->n_shares;
		c.n.n_lagging -= job->lagging.n;
		c.n.n_held -= job->held.n;
		expect(&c, c.n.n_tasks == job->n_tasks, "n_tasks = partitions with a task");
		expect(&c, !job->is_closing || job->n_reads || job->n_tasks,
			"closing => a read or a task is running");
		c.n.n_reads += job->n_reads;
	}
	expect(&c, c.n.charged_bytes == core->stats.inflight_bytes, "inflight_bytes = charged");
	check_links(&c);
	expect(&c, !c.n.n_shares && !c.n.n_lagging && !c.n.n_held,
		"shares of jobs = those of links");
	expect(&c, heap_is_valid(&core->local), "heap order");
	expect(&c, heap_is_valid(&core->timers), "heap order");
	expect(&c, heap_is_valid(&core->link_timers), "heap order");
	expect(&c, c.n.n_parts == core->n_parts, "n_parts = partitions");
	expect(&c, c.n.n_local == core->local.n,
		"core->local = READY partitions of one-member jobs");
	expect(&c, c.n.n_timers == core->timers.n, "timers = those of partitions");
	expect(&c,
		!c.n.n_homes && !c.n.n_offered && !c.n.n_owing && !c.n.n_ready &&
			!c.n.charged_bytes,
		"fields of partitions = lists of links");
	return c.rc;
}
