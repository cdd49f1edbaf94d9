/* What a job has on each connection, and keeping the connections in step (A8 of
 * docs/reference/faults.md).
 *
 * Servers sum different amounts: one beside an agent less than one with a card of its own, one with a
 * slow card less than the others (bps-scheduler/placement/place.h). A card serves its connections
 * alike, whatever each still has to carry. So without more the small shares are through early, and
 * then all agents wait for the few servers that have the large ones, with half of their cards idle:
 * with 4 agents and 2 servers of their own a round took a third longer than it has to.
 *
 * Where shares are equal, nothing else keeps them so: agent 1 may be far with server 1 and far behind
 * with server 2, and agent 2 the other way round. All cards are busy, but no sum is complete before
 * nearly all is pushed, and then results come with nothing to push beside them: 8 agents and 8 servers
 * at 100 Mbit/s fell into that, and stayed there, at 60 % of the throughput.
 *
 * Therefore a connection is held while its progress is ahead of that of the connection furthest
 * behind. Progress is what it has been sent of all that was there for it, in a burst of its job, which
 * lasts as long as there is something to send; what comes later begins where the one furthest behind
 * is. So all are through at the same time, and what each is given follows what the fullest server
 * takes. Where shares differ and still no server has more contributions to take than an agent has to
 * send (two agents, some servers beside them), the agents' own cards are what all wait for: then
 * nobody is held.
 *
 * Nobody is held
 *   - by who has only less urgent contributions. Only the one furthest behind is looked at: if that one
 *     is less urgent, whoever is between them goes, too, and so do the others;
 *   - by who sends nothing for longer than it should take (is_late): it is slow for another reason,
 *     and the time is better used;
 *   - by what does not go over a card: a server on the same host.
 * These are not held either, nor is one whose most urgent contribution is a repeated one. Over a
 * transport that takes offers without their bytes all are through within one turn. */
#include "bps-agent/core/lockstep.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "bps-agent/core/core_impl.h"
#include "common/base/duration.h"

/* Late: longer than GAPS times the usual gap between two contributions, which is some milliseconds
 * where a card carries several connections, and longer than a thread may have to wait for its
 * processor. The mean has a GAP_WEIGHT-th of the last gap, of which a long stop counts as GAP_MAX_NS. */
#define PATIENCE_NS  (20 * NS_PER_MS)
#define GAPS         4
#define GAP_WEIGHT   8
#define GAP_MAX_NS   (1000 * NS_PER_MS)
#define PROGRESS_ONE (UINT64_C(1) << 48)
/* Shares differ by some partitions even where they should be equal; small ones by one of eight. */
#define FULLER 1.02
#define ALIKE  1.15
/* In one round of so many equal shares are not kept in step: then each card carries what it can, by
 * which fast ones are told from slow ones (common/base/nicspeed.h). */
#define LOOSE_EVERY 32
#define LOOSE_AT    2
/* What comes when others are nearly through begins with no more than so many times its bytes. */
#define BEHIND_MAX 64

/* ---- how much lives where ---- */

/* Room for one more server. Errors: -ENOMEM. */
static int home_reserve(struct agt_job *job)
{
	size_t room = job->homes_room ? 2 * job->homes_room : 16;
	struct lockstep_server *homes;

	if (job->n_homes < job->homes_room)
		return 0;
	homes = realloc(job->homes, room * sizeof(*homes));
	if (!homes)
		return -ENOMEM;
	job->homes = homes;
	job->homes_room = room;
	return 0;
}

static struct lockstep_server *home_of(struct agt_job *job, uint32_t server)
{
	for (size_t i = 0; i < job->n_homes; i++)
		if (job->homes[i].server == server)
			return &job->homes[i];
	job->homes[job->n_homes] = (struct lockstep_server){.server = server};
	return &job->homes[job->n_homes++];
}

/* Is it worth holding those ahead: because a server takes more contributions than an agent sends, or
 * because all take as many? Servers on this host count, so that all agents find the same. */
static bool wants_step(const struct agt_job *job, uint64_t round)
{
	uint64_t all = 0, most = 0;

	for (size_t i = 0; i < job->n_homes; i++) {
		all += job->homes[i].bytes;
		most = job->homes[i].bytes > most ? job->homes[i].bytes : most;
	}
	if ((double)most * (double)job->n_homes <= (double)all * ALIKE)
		return round % LOOSE_EVERY != LOOSE_AT;
	return (double)most * job->n_members > (double)all * FULLER;
}

void lockstep_add_part(struct lockstep_share *s, const struct agt_part *part)
{
	s->n_parts++;
	home_of(s->job, s->link->server)->bytes += part_bytes(part);
}

void lockstep_drop_part(struct lockstep_share *s, const struct agt_part *part)
{
	struct lockstep_server *home = home_of(s->job, s->link->server);

	s->n_parts--;
	home->bytes -= part_bytes(part);
	if (!home->bytes)
		*home = s->job->homes[--s->job->n_homes];
}

/* ---- shares ---- */

struct lockstep_share *lockstep_share_get(struct agt_link *link, struct agt_job *job)
{
	struct lockstep_share *s;

	TAILQ_FOREACH (s, &link->shares, of_link)
		if (s->job == job)
			return s;
	if (heap_reserve(&job->lagging, job->n_shares + 1) < 0 ||
		heap_reserve(&job->held, job->n_shares + 1) < 0 || home_reserve(job) < 0)
		return NULL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->link = link;
	s->job = job;
	TAILQ_INSERT_TAIL(&link->shares, s, of_link);
	job->n_shares++;
	return s;
}

void lockstep_share_put(struct lockstep_share *s)
{
	if (s->n_parts)
		return;
	assert(!s->ready.n && !heap_has(&s->lag) && !heap_has(&s->wait));
	TAILQ_REMOVE(&s->link->shares, s, of_link);
	s->job->n_shares--;
	heap_fini(&s->ready);
	free(s);
}

static struct lockstep_share *of_lag(struct heap_node *lag)
{
	return (struct lockstep_share *)((char *)lag - offsetof(struct lockstep_share, lag));
}

static struct lockstep_share *of_wait(struct heap_node *wait)
{
	return (struct lockstep_share *)((char *)wait - offsetof(struct lockstep_share, wait));
}

static uint64_t urgency(const struct lockstep_share *s)
{
	const struct heap_node *first = heap_min(&s->ready);

	assert(first); /* it has something to send */
	return heap_key_urgency(first->key);
}

/* If so many bytes had been sent; it has something to send. */
static uint64_t progress(const struct lockstep_share *s, uint64_t sent_bytes)
{
	uint64_t all = s->sent_bytes + s->ready_bytes;

	return all ? (uint64_t)((double)sent_bytes / (double)all * (double)PROGRESS_ONE)
		   : PROGRESS_ONE;
}

/* Of the one furthest behind, for this one to go. */
static uint64_t wanted_progress(const struct lockstep_share *s)
{
	uint64_t lead = s->job->core->cfg.lead_bytes, ahead = s->link->conn->x->ahead_bytes;

	lead = lead > ahead ? lead : ahead;
	return progress(s, s->sent_bytes > lead ? s->sent_bytes - lead : 0);
}

bool lockstep_counts(const struct lockstep_share *s)
{
	return s->ready.n && !s->is_late && s->link->state == LINK_UP &&
	       !s->link->conn->is_same_host;
}

bool lockstep_is_held(const struct lockstep_share *s)
{
	struct heap_node *behind = heap_min(&s->job->lagging);

	return s->job->is_in_step && heap_has(&s->lag) && behind->key < wanted_progress(s) &&
	       urgency(of_lag(behind)) <= urgency(s);
}

void lockstep_hold(struct lockstep_share *s)
{
	if (heap_has(&s->wait))
		return;
	s->wait.key = wanted_progress(s);
	heap_push(&s->job->held, &s->wait);
}

static void release(struct lockstep_share *s)
{
	heap_remove(&s->job->held, &s->wait);
	s->moved_ns = s->job->core->now_ns;
	link_activate(s->link);
}

static struct lockstep_share *more_urgent(const struct agt_job *job, uint64_t than)
{
	for (size_t i = 0; i < job->held.n; i++)
		if (urgency(of_wait(job->held.v[i])) < than)
			return of_wait(job->held.v[i]);
	return NULL;
}

/* The one furthest behind may be another, or further, or less urgent. */
static void release_some(struct agt_job *job)
{
	struct heap_node *behind = heap_min(&job->lagging), *held;
	uint64_t reached = behind ? behind->key : UINT64_MAX, before = job->behind_urgency;
	struct lockstep_share *s;

	job->behind_urgency = behind ? urgency(of_lag(behind)) : UINT64_MAX;
	while ((held = heap_min(&job->held)) && held->key <= reached)
		release(of_wait(held));
	if (job->behind_urgency <= before)
		return; /* as it is but for a few times in each round of a tensor */
	while ((s = more_urgent(job, job->behind_urgency)))
		release(s);
}

void lockstep_changed(struct lockstep_share *s)
{
	struct agt_job *job = s->job;
	bool did_count = heap_has(&s->lag);

	if (heap_has(&s->wait))
		release(s);
	s->is_late = s->is_late && s->ready.n;
	if (did_count)
		heap_remove(&job->lagging, &s->lag);
	if (lockstep_counts(s)) {
		if (!did_count)
			s->moved_ns = job->core->now_ns;
		s->lag.key = progress(s, s->sent_bytes);
		heap_push(&job->lagging, &s->lag);
	}
	release_some(job);
}

/* On the way to the server. Of what is sent again only the offer goes. */
static uint64_t bytes_of(const struct agt_part *part)
{
	return part->sent_ns ? 0 : part_bytes(part);
}

/* As if it had always been there: what it begins with. */
static uint64_t sent_before(const struct agt_job *job, uint64_t bytes)
{
	double behind =
		job->lagging.n ? (double)heap_min(&job->lagging)->key / (double)PROGRESS_ONE : 0;
	double times = behind < 1 ? behind / (1 - behind) : BEHIND_MAX;

	return (uint64_t)((double)bytes * (times < BEHIND_MAX ? times : BEHIND_MAX));
}

void lockstep_push(struct agt_part *part)
{
	struct lockstep_share *s = part->share;
	struct agt_job *job = s->job;
	uint64_t bytes = bytes_of(part);

	if (!job->lagging.n) {
		job->burst++;
		job->is_in_step = wants_step(job, part->round);
	}
	if (s->burst != job->burst)
		s->sent_bytes = 0;
	s->burst = job->burst;
	heap_push(&s->ready, &part->node);
	s->ready_bytes += bytes;
	s->sent_bytes += sent_before(job, bytes);
	lockstep_changed(s);
	link_activate(s->link);
}

static void take_out(struct agt_part *part)
{
	struct lockstep_share *s = part->share;

	heap_remove(&s->ready, &part->node);
	s->ready_bytes -= bytes_of(part);
	lockstep_changed(s);
}

/* With its part of what was sent: progress stays. */
void lockstep_remove(struct agt_part *part)
{
	struct lockstep_share *s = part->share;
	uint64_t bytes = bytes_of(part);

	if (bytes)
		s->sent_bytes -=
			(uint64_t)((double)s->sent_bytes * (double)bytes / (double)s->ready_bytes);
	take_out(part);
}

void lockstep_sent(struct agt_part *part)
{
	struct lockstep_share *s = part->share;
	uint64_t now = s->job->core->now_ns, gap = now - s->moved_ns;

	gap = gap < GAP_MAX_NS ? gap : GAP_MAX_NS;
	s->gap_ns = (s->gap_ns * (GAP_WEIGHT - 1) + gap) / GAP_WEIGHT;
	s->moved_ns = now;
	s->is_late = false;
	s->sent_bytes += bytes_of(part);
	take_out(part);
}

uint64_t lockstep_tick(struct agt_job *job)
{
	while (job->lagging.n > 1) {
		struct lockstep_share *s = of_lag(heap_min(&job->lagging));
		uint64_t late_ns = s->moved_ns + PATIENCE_NS + GAPS * s->gap_ns;

		if (late_ns > job->core->now_ns)
			return late_ns;
		s->is_late = true;
		lockstep_changed(s);
	}
	return UINT64_MAX;
}
