/* Keeps the connections of a job in step (A8 of docs/reference/faults.md), and manages the job's
 * shares of connections. link.c sends the contributions. Thread: the core's thread.
 *
 * Servers sum different amounts of data. A server that shares its machine with an agent gets fewer
 * bytes to sum than a server with a network card of its own. A server with a slow card gets fewer
 * bytes, too (bps-scheduler/placement/place.h). But a card gives all its connections the same rate,
 * even if the connections have different amounts to send. So without control, connections with few
 * bytes finish early. Then all agents wait for the few servers with many bytes, while the cards of
 * the other servers are idle. With 4 agents and 2 separate servers, a round took a third longer
 * than the optimum.
 *
 * Connections with equal amounts to send do not stay in step by themselves either. Agent 1 may have
 * sent much to server 1 and little to server 2, and agent 2 the opposite. All cards are busy, but
 * no sum is complete before nearly all bytes are pushed. The results then arrive when no push is
 * left to overlap with them. 8 agents and 8 servers at 100 Mbit/s reached this state and stayed in
 * it. The throughput was 60 % of the throughput in step.
 *
 * Therefore a connection is held (sends no new contribution) while it has made more progress than
 * the connection furthest behind. A connection has a number of bytes to send in a burst of its job.
 * Its progress is the fraction of these bytes that it has sent. A burst lasts as long as the job
 * has something to send. A partition that is added during a burst starts at the progress of the
 * connection furthest behind. So all connections finish at the same time, at the rate of the server
 * with the most bytes.
 *
 * Holding is useless if the servers sum different amounts and each server receives at most as much
 * as one agent sends. Then the agents' own cards are the limit, and no connection is held. An
 * example is two agents and several servers, of which only some share a machine with an agent.
 *
 * A connection B, which is behind, does not hold a connection A, which is ahead, in three cases:
 *   1. All contributions of B are less urgent than the most urgent contribution of A.
 *   2. B is late: B has sent nothing for longer than expected (is_late). The number of B's bytes is
 *      not the cause of the delay, and the other connections can use the time.
 *   3. B uses no network card, because its server is on the same host.
 * A connection in case 2 or 3 is not held either. Of the connections that are not in case 2 or 3,
 * only the one furthest behind can hold A. If case 1 applies to this one, no connection holds A.
 *
 * If a connection's most urgent contribution has been sent before, the connection may always send
 * this contribution again. If a transport accepts offers without their bytes, all offers are sent
 * in one iteration of the loop. With such a transport, holding has no effect. */
#include "bps-agent/core/lockstep.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "bps-agent/core/core_impl.h"
#include "common/base/duration.h"

/* A share is late when it has sent nothing for PATIENCE_NS plus GAPS times its mean gap between two
 * contributions. The gap is some milliseconds when a card carries several connections. PATIENCE_NS
 * is longer than a thread usually waits for a processor. The last gap has the weight 1 / GAP_WEIGHT
 * in the mean. A gap longer than GAP_MAX_NS counts as GAP_MAX_NS. */
#define PATIENCE_NS  (20 * NS_PER_MS)
#define GAPS         4
#define GAP_WEIGHT   8
#define GAP_MAX_NS   (1000 * NS_PER_MS)
#define PROGRESS_ONE (UINT64_C(1) << 48)
/* Tolerances for comparing how many bytes the servers sum. Amounts that should be equal can differ
 * by some partitions. If a server sums about 8 partitions, one partition more or less changes the
 * amount by an eighth. */
#define FULLER 1.02
#define ALIKE  1.15
/* If all servers sum equal amounts, one of every LOOSE_EVERY rounds runs without keeping the
 * connections in step. In such a round each card carries as much as it can. This distinguishes fast
 * cards from slow cards (common/base/nicspeed.h). */
#define LOOSE_EVERY 32
#define LOOSE_AT    2
/* Limit for the result of the function count_bytes_presumed_sent, as a multiple of its parameter
 * `bytes`. */
#define BEHIND_MAX 64

/* ---- bytes per server ---- */

/* Make room for one more server in job->homes. Errors: -ENOMEM. */
static int lockstep_reserve_server(struct agt_job *job)
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

static struct lockstep_server *lockstep_server_find_or_add(struct agt_job *job, uint32_t server)
{
	for (size_t i = 0; i < job->n_homes; i++)
		if (job->homes[i].server == server)
			return &job->homes[i];
	job->homes[job->n_homes] = (struct lockstep_server){.server = server};
	return &job->homes[job->n_homes++];
}

/* Return whether connections that are ahead must be held. Holding is useful if a server receives
 * more bytes than an agent sends, or if all servers receive equal amounts. Servers on this host are
 * counted, so that all agents get the same result. */
static bool job_wants_lockstep(const struct agt_job *job, uint64_t round)
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
	lockstep_server_find_or_add(s->job, s->link->server)->bytes += part_bytes(part);
}

void lockstep_drop_part(struct lockstep_share *s, const struct agt_part *part)
{
	struct lockstep_server *home = lockstep_server_find_or_add(s->job, s->link->server);

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
		heap_reserve(&job->held, job->n_shares + 1) < 0 || lockstep_reserve_server(job) < 0)
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
	assert(!s->ready.n && !heap_node_is_queued(&s->lag) && !heap_node_is_queued(&s->wait));
	TAILQ_REMOVE(&s->link->shares, s, of_link);
	s->job->n_shares--;
	heap_fini(&s->ready);
	free(s);
}

static struct lockstep_share *share_of_lag_node(struct heap_node *lag)
{
	return (struct lockstep_share *)((char *)lag - offsetof(struct lockstep_share, lag));
}

static struct lockstep_share *share_of_wait_node(struct heap_node *wait)
{
	return (struct lockstep_share *)((char *)wait - offsetof(struct lockstep_share, wait));
}

static uint64_t share_first_urgency(const struct lockstep_share *s)
{
	const struct heap_node *first = heap_min(&s->ready);

	assert(first); /* the share has something to send */
	return heap_key_urgency(first->key);
}

/* Return the progress that the share would have if it had sent `sent_bytes` bytes in the burst. The
 * share must have something to send. */
static uint64_t share_progress_at(const struct lockstep_share *s, uint64_t sent_bytes)
{
	uint64_t all = s->sent_bytes + s->ready_bytes;

	return all ? (uint64_t)((double)sent_bytes / (double)all * (double)PROGRESS_ONE)
		   : PROGRESS_ONE;
}

/* Return the progress at which the share furthest behind stops holding share s. */
static uint64_t wanted_progress(const struct lockstep_share *s)
{
	uint64_t lead = s->job->core->cfg.lead_bytes, ahead = s->link->conn->x->ahead_bytes;

	lead = lead > ahead ? lead : ahead;
	return share_progress_at(s, s->sent_bytes > lead ? s->sent_bytes - lead : 0);
}

bool lockstep_counts(const struct lockstep_share *s)
{
	return s->ready.n && !s->is_late && s->link->state == LINK_UP &&
	       !s->link->conn->is_same_host;
}

bool lockstep_is_held(const struct lockstep_share *s)
{
	struct heap_node *behind = heap_min(&s->job->lagging);

	return s->job->is_in_step && heap_node_is_queued(&s->lag) &&
	       behind->key < wanted_progress(s) &&
	       share_first_urgency(share_of_lag_node(behind)) <= share_first_urgency(s);
}

void lockstep_hold_share(struct lockstep_share *s)
{
	if (heap_node_is_queued(&s->wait))
		return;
	s->wait.key = wanted_progress(s);
	heap_push(&s->job->held, &s->wait);
}

static void lockstep_release_share(struct lockstep_share *s)
{
	heap_remove(&s->job->held, &s->wait);
	s->moved_ns = s->job->core->now_ns;
	link_activate(s->link);
}

static struct lockstep_share *find_more_urgent_share(const struct agt_job *job, uint64_t than)
{
	for (size_t i = 0; i < job->held.n; i++)
		if (share_first_urgency(share_of_wait_node(job->held.v[i])) < than)
			return share_of_wait_node(job->held.v[i]);
	return NULL;
}

/* Release the held shares that may send now. Held shares may send again when the share furthest
 * behind has progressed or become less urgent, or when another share is furthest behind now. */
static void release_ready_shares(struct agt_job *job)
{
	struct heap_node *behind = heap_min(&job->lagging), *held;
	uint64_t reached = behind ? behind->key : UINT64_MAX, before = job->behind_urgency;
	struct lockstep_share *s;

	job->behind_urgency = behind ? share_first_urgency(share_of_lag_node(behind)) : UINT64_MAX;
	while ((held = heap_min(&job->held)) && held->key <= reached)
		lockstep_release_share(share_of_wait_node(held));
	if (job->behind_urgency <= before)
		/* The share furthest behind has not become less urgent. This is the usual case,
		 * because the urgency changes only a few times in a round. */
		return;
	while ((s = find_more_urgent_share(job, job->behind_urgency)))
		lockstep_release_share(s);
}

void lockstep_changed(struct lockstep_share *s)
{
	struct agt_job *job = s->job;
	bool did_count = heap_node_is_queued(&s->lag);

	if (heap_node_is_queued(&s->wait))
		lockstep_release_share(s);
	s->is_late = s->is_late && s->ready.n;
	if (did_count)
		heap_remove(&job->lagging, &s->lag);
	if (lockstep_counts(s)) {
		if (!did_count)
			s->moved_ns = job->core->now_ns;
		s->lag.key = share_progress_at(s, s->sent_bytes);
		heap_push(&job->lagging, &s->lag);
	}
	release_ready_shares(job);
}

/* Return how many bytes of the partition are sent to the server. For a repeated contribution,
 * return 0, because only its offer is sent, without the bytes. */
static uint64_t part_bytes_to_send(const struct agt_part *part)
{
	return part->sent_ns ? 0 : part_bytes(part);
}

/* Return x, the number of bytes to count as already sent when a partition of size `bytes` is added
 * to a share. The result x is such that x / (x + bytes) is the progress of the share furthest
 * behind. So the added partition starts at that progress. x is at most BEHIND_MAX * bytes. */
static uint64_t count_bytes_presumed_sent(const struct agt_job *job, uint64_t bytes)
{
	double behind =
		job->lagging.n ? (double)heap_min(&job->lagging)->key / (double)PROGRESS_ONE : 0;
	double times = behind < 1 ? behind / (1 - behind) : BEHIND_MAX;

	return (uint64_t)((double)bytes * (times < BEHIND_MAX ? times : BEHIND_MAX));
}

void lockstep_push_part(struct agt_part *part)
{
	struct lockstep_share *s = part->share;
	struct agt_job *job = s->job;
	uint64_t bytes = part_bytes_to_send(part);

	if (!job->lagging.n) {
		job->burst++;
		job->is_in_step = job_wants_lockstep(job, part->round);
	}
	if (s->burst != job->burst)
		s->sent_bytes = 0;
	s->burst = job->burst;
	heap_push(&s->ready, &part->node);
	s->ready_bytes += bytes;
	s->sent_bytes += count_bytes_presumed_sent(job, bytes);
	lockstep_changed(s);
	link_activate(s->link);
}

static void share_remove_part(struct agt_part *part)
{
	struct lockstep_share *s = part->share;

	heap_remove(&s->ready, &part->node);
	s->ready_bytes -= part_bytes_to_send(part);
	lockstep_changed(s);
}

/* Remove the partition. Reduce sent_bytes in the same proportion as ready_bytes, so that the
 * share's progress does not change. */
void lockstep_remove(struct agt_part *part)
{
	struct lockstep_share *s = part->share;
	uint64_t bytes = part_bytes_to_send(part);

	if (bytes)
		s->sent_bytes -=
			(uint64_t)((double)s->sent_bytes * (double)bytes / (double)s->ready_bytes);
	share_remove_part(part);
}

void lockstep_record_sent(struct agt_part *part)
{
	struct lockstep_share *s = part->share;
	uint64_t now = s->job->core->now_ns, gap = now - s->moved_ns;

	gap = gap < GAP_MAX_NS ? gap : GAP_MAX_NS;
	s->gap_ns = (s->gap_ns * (GAP_WEIGHT - 1) + gap) / GAP_WEIGHT;
	s->moved_ns = now;
	s->is_late = false;
	s->sent_bytes += part_bytes_to_send(part);
	share_remove_part(part);
}

uint64_t lockstep_mark_late_shares(struct agt_job *job)
{
	while (job->lagging.n > 1) {
		struct lockstep_share *s = share_of_lag_node(heap_min(&job->lagging));
		uint64_t late_ns = s->moved_ns + PATIENCE_NS + GAPS * s->gap_ns;

		if (late_ns > job->core->now_ns)
			return late_ns;
		s->is_late = true;
		lockstep_changed(s);
	}
	return UINT64_MAX;
}
