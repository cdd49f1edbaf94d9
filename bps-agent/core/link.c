/* Connections to servers' data threads: the partitions that wait to be sent on each connection,
 * the window of bytes in flight, and reconnecting after a loss. The first attempt to reconnect
 * follows the loss at once. If the first attempt fails, the second follows 100 ms after the
 * failure. If the second attempt fails, the third follows 300 ms after the failure. Each later
 * attempt follows a random time of 0.4 to 1 s after the previous failure. A connection that ends
 * before the server has sent a message counts as a failed attempt, too. These delays are short
 * because the scheduler soon moves the partitions of a lost server to other servers. Thread: the
 * core's thread. */
#include "bps-agent/core/link.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/lockstep.h"
#include "common/base/duration.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

/* Number of failed attempts to connect after which the reason is logged. Earlier attempts may fail
 * because the server restarts. */
#define TRIES_REPORTED 3

static const char *const link_states[] = {"down", "connecting", "up", "closing"};

static void link_set_state(struct agt_link *link, enum link_state state, const char *why)
{
	static const unsigned next[] = {
		[LINK_DOWN] = 1u << LINK_CONNECTING,
		[LINK_CONNECTING] = 1u << LINK_UP | 1u << LINK_DOWN | 1u << LINK_CLOSING,
		[LINK_UP] = 1u << LINK_DOWN | 1u << LINK_CLOSING,
		[LINK_CLOSING] = 1u << LINK_DOWN,
	};

	assert(next[link->state] >> state & 1);
	log_debug("connection to a server changes from %s to %s: server=%u thread=%u why=%s",
		link_states[link->state], link_states[state], link->server, link->thread, why);
	link->state = state;
}

struct agt_link *link_find_or_create(struct agt_core *core, uint32_t server, uint16_t thread)
{
	struct agt_link *link;

	TAILQ_FOREACH (link, &core->links, link)
		if (link->server == server && link->thread == thread)
			return link;
	link = calloc(1, sizeof(*link));
	if (!link)
		return NULL;
	if (heap_reserve(&core->link_timers, core->n_links + 1) < 0) {
		free(link);
		return NULL;
	}
	core->n_links++;
	link->core = core;
	link->server = server;
	link->thread = thread;
	link->down_since_ns = core->now_ns;
	TAILQ_INIT(&link->parts);
	TAILQ_INIT(&link->offered);
	TAILQ_INIT(&link->owing);
	TAILQ_INIT(&link->shares);
	TAILQ_INIT(&link->gots);
	TAILQ_INSERT_TAIL(&core->links, link, link);
	return link;
}

void link_free(struct agt_link *link)
{
	struct agt_core *core = link->core;

	assert(!link->conn && !link->n_parts && TAILQ_EMPTY(&link->shares) &&
		TAILQ_EMPTY(&link->gots));
	if (heap_node_is_queued(&link->timer))
		heap_remove(&core->link_timers, &link->timer);
	if (link->is_active)
		TAILQ_REMOVE(&core->active, link, active);
	TAILQ_REMOVE(&core->links, link, link);
	core->n_links--;
	free(link);
}

void link_activate(struct agt_link *link)
{
	if (link->is_active || link->state != LINK_UP)
		return;
	link->is_active = true;
	TAILQ_INSERT_TAIL(&link->core->active, link, active);
}

static void link_deactivate(struct agt_link *link)
{
	if (link->is_active)
		TAILQ_REMOVE(&link->core->active, link, active);
	link->is_active = false;
}

/* Schedule the next attempt to connect, if a partition needs this connection. */
static void link_schedule_connect(struct agt_link *link)
{
	static const uint64_t delays_ms[] = {0, 100, 300};
	struct agt_core *core = link->core;
	/* A server that ends each connection before its first message, for example because it
	 * cannot decode ours, must not be connected in a loop without delay. So count each silent
	 * connection but the first. */
	unsigned n = link->n_attempts + link->n_silent_conns - (link->n_silent_conns > 0);
	uint64_t delay;

	if (link->state != LINK_DOWN || heap_node_is_queued(&link->timer) || !link->n_parts)
		return;
	if (n < sizeof(delays_ms) / sizeof(delays_ms[0]))
		delay = delays_ms[n] * NS_PER_MS;
	else
		delay = 400 * NS_PER_MS + core->env.random(core->env.ctx) % (600 * NS_PER_MS);
	link->timer.key = core->now_ns + delay;
	heap_push(&core->link_timers, &link->timer);
}

static void log_failed_attempt(const struct agt_link *link, const char *why)
{
	if (link->n_attempts == TRIES_REPORTED)
		log_rated(LOG_INFO,
			"cannot connect to a server, trying again: server=%u thread=%u attempts=%u "
			"why=%s",
			link->server, link->thread, link->n_attempts, why);
}

static void link_start_connect(struct agt_link *link)
{
	struct agt_core *core = link->core;
	int rc;

	link->n_attempts++;
	link->was_up = false;
	link_set_state(link, LINK_CONNECTING, "needed");
	rc = FAILPOINT(AGENT_LINK_CONNECT);
	if (rc == 0)
		rc = core->env.connect(
			core->env.ctx, link->server, link->thread, link, &link->conn);
	if (rc < 0) {
		log_failed_attempt(link, err_str(rc));
		link->conn = NULL;
		link_set_state(link, LINK_DOWN, err_str(rc));
		link_schedule_connect(link);
	}
}

int link_attach_part(struct agt_link *link, struct agt_part *part)
{
	struct lockstep_share *s = lockstep_share_get(link, part->tensor->job);
	int rc = s ? heap_reserve(&s->ready, s->n_parts + 1) : -ENOMEM;

	if (rc < 0) {
		if (s)
			lockstep_share_put(s);
		return rc;
	}
	part->link = link;
	part->share = s;
	link->n_parts++;
	lockstep_add_part(s, part);
	TAILQ_INSERT_TAIL(&link->parts, part, home);
	link_schedule_connect(link);
	return 0;
}

void link_detach_part(struct agt_part *part)
{
	struct agt_link *link = part->link;

	if (!link)
		return;
	link_drop_owed(part);
	TAILQ_REMOVE(&link->parts, part, home);
	link->n_parts--;
	lockstep_drop_part(part->share, part);
	lockstep_share_put(part->share);
	part->share = NULL;
	part->link = NULL;
}

void link_queue_owed(struct agt_part *part, enum part_owe what)
{
	struct agt_link *link = part->link;

	if (!link)
		return;
	if (!part->owes)
		TAILQ_INSERT_TAIL(&link->owing, part, owing);
	part->owes |= (uint8_t)what;
	link_activate(link);
}

void link_drop_owed(struct agt_part *part)
{
	if (part->owes)
		TAILQ_REMOVE(&part->link->owing, part, owing);
	part->owes = 0;
}

void link_send_got(struct agt_link *link, const struct wire_msg *m)
{
	struct wire_msg got = wire_make_answer(m, WIRE_GOT);
	struct agt_owed_got *g;

	if (link->state != LINK_UP)
		return; /* the loss of the connection has ended the offer, so no GOT is needed */
	if (TAILQ_EMPTY(&link->gots) && xport_send(link->conn, &got) != -EAGAIN)
		return;
	g = malloc(sizeof(*g));
	if (!g)
		/* Out of memory. GOT is not sent, so the server keeps the result until the
		 * connection ends. */
		return;
	g->m = got;
	TAILQ_INSERT_TAIL(&link->gots, g, link);
	link_activate(link);
}

static bool link_send_queued_gots(struct agt_link *link)
{
	struct agt_owed_got *g;

	while ((g = TAILQ_FIRST(&link->gots))) {
		if (xport_send(link->conn, &g->m) == -EAGAIN)
			return false;
		TAILQ_REMOVE(&link->gots, g, link);
		free(g);
	}
	return true;
}

static void link_discard_gots(struct agt_link *link)
{
	struct agt_owed_got *g;

	while ((g = TAILQ_FIRST(&link->gots))) {
		TAILQ_REMOVE(&link->gots, g, link);
		free(g);
	}
}

static bool link_send_owed_messages(struct agt_link *link)
{
	struct agt_part *part;

	while ((part = TAILQ_FIRST(&link->owing))) {
		for (unsigned what = 1; what <= OWE_DONATE; what <<= 1) {
			if (!(part->owes & what))
				continue;
			if (part_send_owed(part, (enum part_owe)what) == -EAGAIN)
				return false;
			part->owes &= (uint8_t)~what;
		}
		TAILQ_REMOVE(&link->owing, part, owing);
	}
	return true;
}

static void link_fetch_offered(struct agt_link *link)
{
	struct agt_part *part;

	while ((part = TAILQ_FIRST(&link->offered)))
		if (!part_start_result_read(part))
			return;
}

/* Return the link's most urgent partition that can be sent; NULL: no partition can be sent.
 * A share is one job's part of the link (lockstep.h). If a share must wait, the function puts the
 * share on hold (lockstep_hold_share). When the share may send again, its link is activated. */
static struct agt_part *link_next_sendable_part(struct agt_link *link)
{
	struct agt_part *best = NULL;
	struct lockstep_share *s;

	TAILQ_FOREACH (s, &link->shares, of_link) {
		struct agt_part *part = s->ready.n ? part_of_heap_node(heap_min(&s->ready)) : NULL;

		if (!part || (best && best->node.key <= part->node.key))
			continue;
		if (part->sent_ns || !lockstep_is_held(s))
			best = part;
		else
			lockstep_hold_share(s);
	}
	return best;
}

bool link_send_pending(struct agt_link *link)
{
	struct agt_core *core = link->core;
	struct agt_part *part;

	link_deactivate(link);
	if (link->state != LINK_UP)
		return false;
	link_fetch_offered(link);
	if (link->is_stuck)
		return false;
	if (!link_send_queued_gots(link) || !link_send_owed_messages(link)) {
		link->is_stuck = true;
		return false;
	}
	part = link_next_sendable_part(link);
	if (!part)
		return false;
	if (!part_has_room_in_job(part)) {
		/* while this partition waits, the link can send partitions of other jobs */
		part_park_in_job(part);
		link_activate(link);
		return true;
	}
	if (!part->is_overdue && link->inflight &&
		link->inflight + part_bytes(part) > core->cfg.window_bytes)
		return false; /* part_uncharge_inflight activates the link when a result arrives */
	if (link->is_full && !part->sent_ns)
		return false;
	if (part_send_contrib(part) < 0) {
		/* event_link_writable or a new connection clears is_full. Until then, the link
		 * still sends GOTs, HAVEs and donations if possible, because these messages are
		 * small. */
		link->is_full = true;
		return false;
	}
	link_activate(link);
	return true;
}

static void link_lockstep_changed(struct agt_link *link)
{
	struct lockstep_share *s;

	TAILQ_FOREACH (s, &link->shares, of_link)
		lockstep_changed(s);
}

static void link_update_heard_time(struct agt_link *link)
{
	uint64_t heard_ns = link->conn->x->ops->heard_ns(link->conn);

	if (link->heard_ns < heard_ns)
		link->heard_ns = heard_ns;
}

uint64_t link_heard_ns(struct agt_link *link, uint64_t instance)
{
	if (link->instance != instance)
		return 0;
	if (link->state == LINK_UP)
		link_update_heard_time(link);
	return link->heard_ns;
}

static void link_record_loss(struct agt_link *link)
{
	link->lost_ns[link->n_losses++ % LINK_LOSSES_KEPT] = link->core->now_ns;
}

static unsigned link_count_recent_losses(const struct agt_link *link, uint64_t now_ns)
{
	unsigned n = link->n_losses < LINK_LOSSES_KEPT ? link->n_losses : LINK_LOSSES_KEPT;
	unsigned n_recent = 0;

	for (unsigned i = 0; i < n; i++)
		n_recent += now_ns - link->lost_ns[i] < LINK_LOSS_SPAN_NS;
	return n_recent;
}

uint32_t link_list_losses(const struct agt_link *link, uint64_t now_ns,
	struct ctl_beat_link list[static CTL_BEAT_LINKS_MAX], uint32_t n)
{
	unsigned losses = link_count_recent_losses(link, now_ns);
	uint32_t i, least = 0;

	if (!losses)
		return n;
	for (i = 0; i < n && list[i].server != link->server; i++)
		if (list[i].losses < list[least].losses)
			least = i;
	if (i == CTL_BEAT_LINKS_MAX) {
		if (list[least].losses >= losses)
			return n;
		i = least;
		list[i].server = link->server;
	} else if (i == n) {
		list[n++] = (struct ctl_beat_link){.server = link->server};
	}
	if (list[i].losses < losses)
		list[i].losses = losses;
	return n;
}

void link_close(struct agt_link *link, const char *why)
{
	if (link->state == LINK_DOWN || link->state == LINK_CLOSING)
		return;
	link_deactivate(link);
	link->down_since_ns = link->core->now_ns;
	link_set_state(link, LINK_CLOSING, why);
	link_lockstep_changed(link);
	xport_close(link->conn, why);
}

static void event_link_connected(
	void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance)
{
	struct agt_link *link = c->user;
	struct agt_part *part;

	(void)ctx;
	(void)peer_id;
	FAILPOINT(AGENT_LINK_UP);
	if (link->instance != peer_instance)
		link->n_losses = 0;
	link->instance = peer_instance;
	link->heard_ns = link->core->now_ns;
	link->n_attempts = 0;
	link->n_silent_conns++;
	link->is_stuck = link->is_full = false;
	link->was_up = true;
	link_set_state(link, LINK_UP, "connected");
	link_lockstep_changed(link);
	TAILQ_FOREACH (part, &link->parts, home)
		part_restart_sending(part);
	link_activate(link);
}

static void event_link_disconnected(void *ctx, struct xconn *c, const char *why)
{
	struct agt_link *link = c->user;
	struct agt_part *part;

	(void)ctx;
	FAILPOINT(AGENT_LINK_DOWN);
	if (link->was_up) {
		link_update_heard_time(link);
		link->down_since_ns = link->core->now_ns;
		link->core->stats.reconnects++;
		link_record_loss(link);
		log_info("connection to a server is down: server=%u thread=%u why=%s", link->server,
			link->thread, why);
	} else {
		log_failed_attempt(link, why);
	}
	link->conn = NULL;
	link_deactivate(link);
	link_discard_gots(link);
	link_set_state(link, LINK_DOWN, why);
	link_lockstep_changed(link);
	TAILQ_FOREACH (part, &link->parts, home)
		part_restart_sending(part);
	link_schedule_connect(link);
}

static void event_link_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct agt_link *link = c->user;

	(void)ctx;
	link->n_attempts = link->n_silent_conns = 0;
	part_receive_message(link, m);
}

static void event_read_done(void *ctx, struct xport_read *r, int status)
{
	struct agt_link *link = r->conn->user;

	(void)ctx;
	part_read_done((struct agt_part *)((char *)r - offsetof(struct agt_part, read)), status);
	link_activate(link);
}

static void event_link_writable(void *ctx, struct xconn *c)
{
	struct agt_link *link = c->user;

	(void)ctx;
	link->is_stuck = link->is_full = false;
	link_activate(link);
}

static void event_task_done(void *ctx, struct xport_task *task)
{
	(void)ctx;
	part_task_done(part_of_task(task));
}

const struct xport_events agt_core_events = {
	.up = event_link_connected,
	.down = event_link_disconnected,
	.message = event_link_message,
	.read_done = event_read_done,
	.writable = event_link_writable,
	.task_done = event_task_done,
};

void link_retry_connect(struct agt_link *link)
{
	heap_remove(&link->core->link_timers, &link->timer);
	if (link->n_parts)
		link_start_connect(link);
}

void agt_core_server_changed(struct agt_core *core, uint32_t server)
{
	struct agt_link *link;

	TAILQ_FOREACH (link, &core->links, link) {
		if (link->server != server)
			continue;
		link_close(link, "the server's address or instance has changed");
		link->n_attempts = link->n_silent_conns = 0;
		if (heap_node_is_queued(&link->timer))
			heap_remove(&core->link_timers, &link->timer);
		link_schedule_connect(link);
	}
}
