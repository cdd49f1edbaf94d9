/* The server's core: its creation and end, its connections (peers), and the events of the
 * transport. The rules of rounds are in rounds.c and completion.c. All functions run on the data
 * thread that owns the core. */
#include "bps-server/core/core_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-server/core/completion.h"
#include "bps-server/core/owed.h"
#include "bps-server/core/plan.h"
#include "bps-server/core/reads.h"
#include "bps-server/core/rounds.h"
#include "bps-server/core/sums.h"
#include "bps-server/core/values.h"
#include "common/base/failpoint.h"

static void event_contribution_read(struct srv_core *core, struct seat *seat)
{
	if (seat->part->value)
		value_stage_delta(seat);
	else
		seat_stage_contribution(core, seat);
}

static void event_result_ready(struct srv_core *core, struct slot *slot)
{
	if (slot->part->value)
		value_begin_live(core, slot);
	else
		slot_publish_result(core, slot);
}

static const struct srv_reports reports = {
	.contribution_read = event_contribution_read,
	.result_ready = event_result_ready,
	.donation_failed = slot_request_donation,
	.staging_exhausted = sums_queue_foldable_slots,
};

/* Return the size of a segment of the staging memory, which consists of two pools. */
static size_t staging_segment_bytes(const struct srv_config *cfg)
{
	size_t bytes = cfg->segment_bytes;

	while (bytes > cfg->staging_bytes / 2)
		bytes /= 2;
	return bytes;
}

int srv_core_new(const struct srv_config *cfg, const struct srv_env *env, struct srv_core **ret)
{
	struct srv_core *core = calloc(1, sizeof(*core));
	size_t segment_bytes = staging_segment_bytes(cfg);
	size_t early_bytes = cfg->staging_bytes / 2 / segment_bytes * segment_bytes;

	if (!core)
		return -ENOMEM;
	core->reports = &reports;
	core->cfg = *cfg;
	core->env = *env;
	TAILQ_INIT(&core->jobs);
	TAILQ_INIT(&core->peers);
	TAILQ_INIT(&core->work);
	TAILQ_INIT(&core->values);
	TAILQ_INIT(&core->donating);
	TAILQ_INIT(&core->holding);
	TAILQ_INIT(&core->cutting);
	TAILQ_INIT(&core->parked);
	TAILQ_INIT(&core->ready);
	TAILQ_INIT(&core->retired);
	TAILQ_INIT(&core->fetches);
	TAILQ_INIT(&core->free_fetches);
	core->sums = pool_new(cfg->segment_bytes, cfg->sums_bytes, env->segment, env->ctx);
	core->staging =
		pool_new(segment_bytes, cfg->staging_bytes - early_bytes, env->segment, env->ctx);
	core->early = pool_new(segment_bytes, early_bytes, env->segment, env->ctx);
	if (!core->sums || !core->staging || !core->early) {
		srv_core_free(core);
		return -ENOMEM;
	}
	*ret = core;
	return 0;
}

void srv_core_free(struct srv_core *core)
{
	struct retired_result *l;
	struct fetch *f;

	if (!core)
		return;
	while (!TAILQ_EMPTY(&core->jobs))
		plan_free_job(core, TAILQ_FIRST(&core->jobs));
	while ((l = TAILQ_FIRST(&core->retired))) {
		TAILQ_REMOVE(&core->retired, l, link);
		free(l);
	}
	while ((f = TAILQ_FIRST(&core->free_fetches))) {
		TAILQ_REMOVE(&core->free_fetches, f, link);
		free(f);
	}
	pool_free(core->sums);
	pool_free(core->staging);
	pool_free(core->early);
	free(core);
}

uint64_t srv_core_heard_ns(const struct srv_core *core, uint32_t agent, uint64_t instance)
{
	const struct srv_peer *peer;

	TAILQ_FOREACH (peer, &core->peers, link)
		if (peer->conn->peer_id == agent && peer->conn->peer_instance == instance)
			return peer->conn->x->ops->heard_ns(peer->conn);
	return 0;
}

static void event_peer_connected(
	void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance)
{
	struct srv_core *core = ctx;
	struct srv_peer *peer = calloc(1, sizeof(*peer)), *old, *next;

	/* An agent keeps one connection to a data thread and closes the old connection before it
	 * opens a new one. The agent's reads on the old connection have ended, even if the
	 * transport has not reported the end of the old connection yet. */
	for (old = TAILQ_FIRST(&core->peers); old; old = next) {
		next = TAILQ_NEXT(old, link);
		if (old->conn->peer_id == peer_id)
			xport_close(old->conn, "replaced by a newer connection");
	}
	(void)peer_instance;
	FAILPOINT(SERVER_PEER_UP);
	c->user = peer;
	if (!peer)
		/* The server drops the messages of a connection that has no struct srv_peer. The
		 * agent then times out and retries. */
		return;
	peer->conn = c;
	TAILQ_INIT(&peer->owing);
	if (plan_reserve_peer(core, peer) < 0) {
		heap_fini(&peer->want);
		free(peer);
		c->user = NULL;
		return;
	}
	TAILQ_INSERT_TAIL(&core->peers, peer, link);
}

static void event_peer_disconnected(void *ctx, struct xconn *c, const char *why)
{
	struct srv_core *core = ctx;
	struct srv_peer *peer = c->user;

	(void)why;
	FAILPOINT(SERVER_PEER_DOWN);
	if (!peer)
		return;
	c->user = NULL;
	TAILQ_REMOVE(&core->peers, peer, link);
	values_peer_down(core, peer);
	slots_peer_down(core, peer);
	if (peer->is_ready)
		TAILQ_REMOVE(&core->ready, peer, ready);
	heap_fini(&peer->want);
	heap_fini(&peer->results);
	free(peer);
	reads_start_queued(core);
}

static void event_peer_writable(void *ctx, struct xconn *c)
{
	struct srv_peer *peer = c->user;

	(void)ctx;
	if (!peer)
		return;
	peer->is_stuck = peer->is_full = false;
	peer_send_owed(peer);
}

const struct xport_events srv_core_events = {
	.up = event_peer_connected,
	.down = event_peer_disconnected,
	.message = rounds_message,
	.read_done = on_peer_read_done,
	.writable = event_peer_writable,
};

uint64_t srv_core_run_deadlines(struct srv_core *core, uint64_t now_ns)
{
	struct slot *slot;
	uint64_t cut_ns;

	core->now_ns = now_ns;
	/* The list is ordered by deadline, because slot_request_donation always adds the same
	 * interval to the present time and moves the slot to the tail. */
	while ((slot = TAILQ_FIRST(&core->donating)) && slot->donor_deadline_ns <= now_ns)
		slot_request_donation(core, slot);
	cut_ns = slots_check_due_cuts(core);
	return slot && slot->donor_deadline_ns < cut_ns ? slot->donor_deadline_ns : cut_ns;
}

bool srv_core_sum_slice(struct srv_core *core)
{
	/* a value first, so that sums that never end do not hold up values */
	size_t done = values_work(core);

	done += sums_work(core);
	while (done < SRV_SLICE_BYTES && !TAILQ_EMPTY(&core->values))
		done += values_work(core);
	core->stats.bytes_summed += done;
	reads_start_queued(core);
	return !TAILQ_EMPTY(&core->work) || !TAILQ_EMPTY(&core->values);
}

void srv_core_agent_gone(struct srv_core *core, uint32_t agent)
{
	struct srv_peer *peer, *next;

	for (peer = TAILQ_FIRST(&core->peers); peer; peer = next) {
		next = TAILQ_NEXT(peer, link);
		if (peer->conn->peer_id == agent)
			xport_close(peer->conn, "the scheduler reported the agent's end");
	}
}

void srv_core_set_peer_window(struct srv_core *core, size_t bytes)
{
	core->cfg.peer_window_bytes = bytes;
}

void srv_core_stats(const struct srv_core *core, struct srv_stats *ret)
{
	*ret = core->stats;
	ret->sums_used = pool_used_bytes(core->sums);
	ret->staging_used = pool_used_bytes(core->staging) + pool_used_bytes(core->early);
}

void srv_core_arrivals(struct srv_core *core, struct arrivals_figures *ret)
{
	struct srv_job *job;

	ret->n_jobs = 0;
	TAILQ_FOREACH (job, &core->jobs, link) {
		struct arrivals_job *j = &ret->jobs[ret->n_jobs];

		if (ret->n_jobs == ARRIVALS_JOBS_MAX)
			break;
		if (!job->arrivals->rounds) /* no round of this job was summed on this thread */
			continue;
		arrivals_roll_window(job->arrivals, core->now_ns);
		j->job = job->id;
		memcpy(j->name, job->name, sizeof(j->name));
		arrivals_report(job->arrivals, j);
		ret->n_jobs++;
	}
}
