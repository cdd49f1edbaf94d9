#include "bps-scheduler/core.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core_impl.h"
#include "bps-scheduler/record.h"
#include "common/log.h"

#define LATE_NS      (100 * NS_PER_MS)
#define THREADS_MAX  1024
#define TERM_MAX     (UINT32_MAX - 0xffff) /* a view beyond can only be made up */
#define PEERS_MAX    1024                  /* of one message: below the channel's 1 MiB */
#define STATE_BIT(s) (1u << (s))

static const struct {
	const char *name;
	unsigned next;
} member_states[MEMBER_STATES] = {
	[MEMBER_EXPECTED] = {"expected", STATE_BIT(MEMBER_UP) | STATE_BIT(MEMBER_DOWN)},
	[MEMBER_UP] = {"up", STATE_BIT(MEMBER_SUSPECT) | STATE_BIT(MEMBER_DOWN)},
	[MEMBER_SUSPECT] = {"suspect", STATE_BIT(MEMBER_UP) | STATE_BIT(MEMBER_DOWN)},
	[MEMBER_DOWN] = {"down", STATE_BIT(MEMBER_UP)},
};

/* ---- memory ---- */

void *sched_alloc(size_t n, size_t bytes)
{
	void *p = calloc(n ? n : 1, bytes);

	if (!p) {
		log_error("out of memory: ending, the state is durable");
		abort();
	}
	return p;
}

void *sched_grow(void *p, uint32_t *room, uint32_t need, size_t bytes)
{
	uint32_t n = *room ? *room : 8;

	if (need <= *room)
		return p;
	while (n < need)
		n *= 2;
	p = realloc(p, n * bytes);
	if (!p) {
		log_error("out of memory: ending, the state is durable");
		abort();
	}
	memset((char *)p + *room * bytes, 0, (n - *room) * bytes);
	*room = n;
	return p;
}

char *sched_dup(const char *s)
{
	size_t n = strlen(s) + 1;
	char *d = sched_alloc(n, 1);

	memcpy(d, s, n);
	return d;
}

/* ---- members ---- */

static const char *role_name(enum role role)
{
	return role == ROLE_SERVER ? "server" : "agent";
}

const char *sched_member_state_name(enum member_state s)
{
	return s < MEMBER_STATES ? member_states[s].name : "?";
}

void sched_note(struct sched_core *c, enum sched_event_kind kind, const char *fmt, ...)
{
	char text[SCHED_EVENT_BYTES];
	struct sched_event e = {kind, c->tx_view ? c->tx_view : c->view, text};
	va_list ap;

	if (!c->env.event)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	c->env.event(c->env.ctx, &e);
}

static void member_set_state(
	struct sched_core *c, struct member *m, enum member_state to, const char *why)
{
	assert(member_states[m->state].next & STATE_BIT(to));
	log_info("%s %s: %s -> %s, %s host=%s id=%u view=%llx", role_name(m->role), m->name,
		member_states[m->state].name, member_states[to].name, why, m->host, m->id,
		(unsigned long long)c->view);
	sched_note(c, EVENT_MEMBER, "%s %s (host %s) is %s: %s", role_name(m->role), m->name,
		m->host, member_states[to].name, why);
	m->state = to;
	m->since_ns = c->now_ns;
}

struct member *sched_member(const struct sched_core *c, uint32_t id)
{
	return id && id <= c->n_members ? c->members[id] : NULL;
}

static uint32_t host_intern(struct sched_core *c, const char *host)
{
	for (uint32_t i = 0; i < c->n_hosts; i++)
		if (strcmp(c->hosts[i], host) == 0)
			return i;
	c->hosts = sched_grow(c->hosts, &c->hosts_room, c->n_hosts + 1, sizeof(*c->hosts));
	c->hosts[c->n_hosts] = sched_dup(host);
	return c->n_hosts++;
}

static void set_str(char **s, const char *to)
{
	if (*s && strcmp(*s, to) == 0)
		return;
	free(*s);
	*s = sched_dup(to);
}

static void member_dirty(struct sched_core *c, struct member *m)
{
	sched_change(c);
	if (m->is_dirty)
		return;
	m->is_dirty = true;
	m->next_dirty = c->dirty_members;
	c->dirty_members = m;
}

struct member *sched_member_add(struct sched_core *c, uint32_t id, enum role role, const char *name)
{
	struct member *m = sched_alloc(1, sizeof(*m));

	c->members = sched_grow(c->members, &c->members_room, id + 1, sizeof(struct member *));
	if (id > c->n_members)
		c->n_members = id;
	c->members[id] = m;
	m->id = id;
	m->role = role;
	m->name = sched_dup(name);
	return m;
}

void sched_member_describe(struct sched_core *c, struct member *m, const struct ctl_hello *h)
{
	uint16_t threads = m->role == ROLE_SERVER ? h->threads : 0;

	set_str(&m->host, h->host);
	set_str(&m->addr, h->addr);
	set_str(&m->version, h->version);
	m->host_idx = host_intern(c, h->host);
	m->pid = h->pid;
	m->port = h->port;
	m->nic_mbps = h->nic_mbps;
	m->quota_bytes = h->quota_bytes;
	if (m->threads != threads || (threads && !m->thread_bytes)) {
		free(m->thread_bytes);
		m->thread_bytes = threads ? sched_alloc(threads, sizeof(uint64_t)) : NULL;
		m->threads = threads;
	}
}

static void member_free(struct member *m)
{
	if (!m)
		return;
	free(m->name);
	free(m->host);
	free(m->addr);
	free(m->version);
	free(m->thread_bytes);
	free(m);
}

static struct member *member_find(const struct sched_core *c, enum role role, const char *name)
{
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role == role && strcmp(c->members[i]->name, name) == 0)
			return c->members[i];
	return NULL;
}

static uint64_t member_dead_ns(const struct sched_core *c, const struct member *m)
{
	return NS_PER_MS * (m->role == ROLE_SERVER ? c->cfg.server_dead_ms : c->cfg.agent_dead_ms);
}

static uint64_t member_window_ns(const struct sched_core *c, const struct member *m)
{
	return NS_PER_MS *
	       (m->role == ROLE_SERVER ? c->cfg.server_window_ms : c->cfg.agent_window_ms);
}

/* ---- connections ---- */

static struct conn **conn_at(struct sched_core *c, uint32_t id)
{
	struct conn **at = &c->conns[id % CONN_BUCKETS];

	while (*at && (*at)->id != id)
		at = &(*at)->next;
	return at;
}

static void conn_forget(struct sched_core *c, uint32_t id)
{
	struct conn **at = conn_at(c, id), *conn = *at;

	if (!conn)
		return;
	*at = conn->next;
	if (conn->member)
		conn->member->conn = NULL;
	else
		c->n_silent--;
	free(conn);
}

static void conn_drop(struct sched_core *c, uint32_t id, const char *why)
{
	conn_forget(c, id);
	c->env.drop(c->env.ctx, id, why);
}

void sched_send(struct sched_core *c, const struct member *m, const struct ctl_msg *msg)
{
	if (m->conn)
		c->env.send(c->env.ctx, m->conn->id, msg);
}

static void suspect(struct sched_core *c, struct member *m, const char *why)
{
	uint64_t until = c->now_ns + member_window_ns(c, m);

	if (until < c->grace_ns)
		until = c->grace_ns;
	member_set_state(c, m, MEMBER_SUSPECT, why);
	m->deadline_ns = until;
	sched_arm(c, until);
}

void sched_kick(struct sched_core *c, struct member *m, const char *why)
{
	log_rated(LOG_WARN, "%s %s: %s; closing its connection", role_name(m->role), m->name, why);
	if (!m->conn)
		return;
	conn_drop(c, m->conn->id, why);
	if (m->state == MEMBER_UP)
		suspect(c, m, why);
}

/* ---- transactions ---- */

uint64_t sched_change(struct sched_core *c)
{
	if (!c->tx_view)
		c->tx_view = c->view + 1;
	return c->tx_view;
}

static void fill_peer(struct sched_core *c, const struct member *to, const struct member *m,
	uint8_t key[CTL_KEY_BYTES], struct ctl_peer *ret)
{
	const struct member *agent = to->role == ROLE_AGENT ? to : m;
	const struct member *server = to->role == ROLE_AGENT ? m : to;

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

/* PEERS to `to` about these members of the other role, in messages below the channel's limit. */
static void send_peers(
	struct sched_core *c, const struct member *to, const struct member *const *list, uint32_t n)
{
	uint32_t room = n < PEERS_MAX ? n : PEERS_MAX;
	struct ctl_peer *peers = sched_alloc(room, sizeof(*peers));
	uint8_t(*keys)[CTL_KEY_BYTES] = sched_alloc(room, sizeof(*keys));
	struct ctl_msg msg = {.type = CTL_PEERS, .peers = {.view = c->view, .peers = peers}};

	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = msg.peers.n_peers++;

		fill_peer(c, to, list[i], keys[at], &peers[at]);
		if (msg.peers.n_peers < PEERS_MAX && i + 1 < n)
			continue;
		sched_send(c, to, &msg);
		msg.peers.n_peers = 0;
	}
	free(peers);
	free(keys);
}

/* All that are up. None is no message: an empty list after WELCOME has a meaning. */
static void send_all_peers(struct sched_core *c, const struct member *to)
{
	const struct member **list = sched_alloc(c->n_members, sizeof(*list));
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role != to->role && sched_is_usable(c->members[i]))
			list[n++] = c->members[i];
	send_peers(c, to, list, n);
	free(list);
}

/* The members that this transaction changed, to everybody of the other role. */
static void tell_members(struct sched_core *c, enum role changed)
{
	const struct member **list = NULL;
	uint32_t n = 0, room = 0;

	for (const struct member *m = c->dirty_members; m; m = m->next_dirty) {
		if (m->role != changed)
			continue;
		list = sched_grow(list, &room, n + 1, sizeof(*list));
		list[n++] = m;
	}
	for (uint32_t i = 1; n && i <= c->n_members; i++) {
		const struct member *to = c->members[i];

		if (to->role != changed && to->conn && !to->needs_sync)
			send_peers(c, to, list, n);
	}
	free(list);
}

static void send_sync(struct sched_core *c, struct member *m)
{
	struct ctl_msg welcome = {.type = CTL_WELCOME,
		.welcome = {.cluster_id = {c->cluster_id, STATE_ID_BYTES},
			.term = c->term,
			.view = c->view,
			.member_id = m->id,
			.beat_ms = c->cfg.beat_ms,
			.dead_ms = m->role == ROLE_SERVER ? c->cfg.server_dead_ms
							  : c->cfg.agent_dead_ms}};
	struct ctl_msg end = {.type = CTL_PEERS, .peers = {.view = c->view}};

	m->needs_sync = false;
	sched_send(c, m, &welcome);
	send_all_peers(c, m);
	for (struct job *j = c->jobs; j; j = j->next) {
		if (j->state != JOB_RUNNING)
			continue;
		if (m->role == ROLE_AGENT && sched_job_member(j, m->id) == CTL_NO_ID)
			continue;
		sched_send_job(c, m, j);
		sched_send_plan(c, m, j, true);
	}
	for (struct job *j = c->ended; j; j = j->next)
		if (m->role == ROLE_SERVER || sched_job_member(j, m->id) != CTL_NO_ID)
			sched_send_job_end(c, m, j);
	sched_send(c, m, &end);
}

/* Whom a job concerns: its agents and every server; not those that will be told everything. */
static bool is_audience(const struct job *j, const struct member *m, enum role role)
{
	return m->role == role && m->conn && !m->needs_sync &&
	       (role == ROLE_SERVER || sched_job_member(j, m->id) != CTL_NO_ID);
}

static void job_tell(struct sched_core *c, struct job *j)
{
	/* Servers first, so that they know a partition before its first contribution. */
	static const enum role order[] = {ROLE_SERVER, ROLE_AGENT};

	for (size_t r = 0; r < 2; r++) {
		for (uint32_t i = 1; i <= c->n_members; i++) {
			struct member *m = c->members[i];

			if (!is_audience(j, m, order[r]))
				continue;
			if (j->state == JOB_ENDED) {
				sched_send_job_end(c, m, j);
				continue;
			}
			if (j->is_changed)
				sched_send_job(c, m, j);
			if (j->fresh || j->has_moved)
				sched_send_plan(c, m, j, false);
		}
	}
}

static void job_settle(struct job *j)
{
	while (j->fresh) {
		struct tensor *t = j->fresh;

		j->fresh = t->next_fresh;
		t->next_fresh = NULL;
		free(t->declared);
		t->declared = NULL;
	}
	j->fresh_tail = &j->fresh;
	j->is_dirty = j->is_changed = j->has_moved = false;
	j->next_dirty = NULL;
}

void sched_trim_ended(struct sched_core *c)
{
	struct job **at = &c->ended;

	for (uint32_t i = 0; *at && i < ENDED_MAX; i++)
		at = &(*at)->next;
	while (*at) {
		struct job *j = *at;

		*at = j->next;
		c->n_ended--;
		sched_job_free(c, j);
	}
}

static void flush(struct sched_core *c)
{
	tell_members(c, ROLE_SERVER);
	tell_members(c, ROLE_AGENT);
	for (struct job *j = c->dirty_jobs; j; j = j->next_dirty)
		job_tell(c, j);
	while (c->dirty_jobs) {
		struct job *j = c->dirty_jobs;

		c->dirty_jobs = j->next_dirty;
		job_settle(j);
	}
	while (c->dirty_members) {
		struct member *m = c->dirty_members;

		c->dirty_members = m->next_dirty;
		m->is_dirty = false;
		m->next_dirty = NULL;
	}
	sched_trim_ended(c);
}

static void set_undurable(struct sched_core *c, int r)
{
	if (!c->is_undurable) {
		log_error(
			"cannot write the state: %s; no view changes and no new jobs until it works"
			" view=%llx",
			err_str(r), (unsigned long long)c->view);
		sched_note(c, EVENT_SCHEDULER, "the state cannot be written: %s", err_str(r));
	}
	c->is_undurable = true;
	c->retry_ns = c->now_ns + c->cfg.beat_ms * NS_PER_MS;
	sched_arm(c, c->retry_ns);
}

/* Move the deadlines of members: they cannot be blamed for that span. */
static void extend(struct sched_core *c, uint64_t span_ns)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		c->members[i]->deadline_ns += span_ns;
		c->members[i]->heard_ns += span_ns;
		if (c->members[i]->heard_ns > c->now_ns)
			c->members[i]->heard_ns = c->now_ns;
	}
}

static void set_durable(struct sched_core *c)
{
	uint64_t dead =
		NS_PER_MS * (c->cfg.server_dead_ms > c->cfg.agent_dead_ms ? c->cfg.server_dead_ms
									  : c->cfg.agent_dead_ms);

	if (!c->is_undurable)
		return;
	log_info("the state is durable again view=%llx", (unsigned long long)c->tx_view);
	sched_note(c, EVENT_SCHEDULER, "the state is durable again");
	c->is_undurable = false;
	/* Members that had to be refused meanwhile come back now. */
	c->grace_ns = c->now_ns + 2 * dead;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct member *m = c->members[i];

		if (m->state == MEMBER_EXPECTED || m->state == MEMBER_SUSPECT)
			m->deadline_ns = c->grace_ns;
	}
}

static void note_member_view(struct sched_core *c)
{
	const struct member *m = c->dirty_members;
	uint32_t more = 0;

	for (const struct member *i = m->next_dirty; i; i = i->next_dirty)
		more++;
	sched_note(c, EVENT_VIEW, "%s %s %s%s", role_name(m->role), m->name,
		m->state == MEMBER_DOWN ? "is gone" : "is there",
		more ? ", and others changed too" : "");
}

static void note_job_view(struct sched_core *c, const struct job *j)
{
	uint32_t n_fresh = 0;

	for (const struct tensor *t = j->fresh; t; t = t->next_fresh)
		n_fresh++;
	if (j->state == JOB_ENDED)
		sched_note(c, EVENT_VIEW, "job '%s' has ended", j->name);
	else if (j->is_changed)
		sched_note(c, EVENT_VIEW, "job '%s' has formed", j->name);
	else if (j->has_moved)
		sched_note(c, EVENT_VIEW, "partitions of job '%s' have new places", j->name);
	else
		sched_note(c, EVENT_VIEW, "%u tensor%s of job '%s' placed", n_fresh,
			n_fresh == 1 ? "" : "s", j->name);
}

/* Why there is a new view, which holds for the one that has just become durable. */
static void note_view(struct sched_core *c)
{
	if (!c->env.event)
		return;
	if (c->dirty_members)
		note_member_view(c);
	else if (c->dirty_jobs)
		note_job_view(c, c->dirty_jobs);
	else
		sched_note(c, EVENT_VIEW, "the scheduler reserved numbers");
}

static int persist_record(void *ctx, const struct state_record *rec)
{
	struct sched_core *c = ctx;

	return c->env.persist(c->env.ctx, rec);
}

/* End of the event: give the changes a view, make them durable, tell. */
static int commit(struct sched_core *c, bool is_retry)
{
	int r;

	if (c->is_undurable && !is_retry)
		return BPS_ENOTDURABLE;
	sched_place_waiting(c);
	sched_place_fresh(c);
	if (c->tx_view) {
		r = sched_record_changes(c, persist_record, c);
		if (r < 0) {
			set_undurable(c, r);
			return r;
		}
		set_durable(c);
		c->view = c->tx_view;
		c->tx_view = 0;
		c->changes++;
		note_view(c);
		flush(c);
	}
	return 0;
}

static void finish_event(struct sched_core *c)
{
	commit(c, false);
}

uint32_t sched_job_id_take(struct sched_core *c)
{
	if (c->next_job == c->job_id_limit) {
		sched_change(c);
		c->job_id_limit += JOB_ID_BLOCK;
		if (commit(c, false) < 0) {
			c->job_id_limit -= JOB_ID_BLOCK;
			return CTL_NO_ID;
		}
	}
	return c->next_job++;
}

/* ---- deaths and returns ---- */

static void member_down(struct sched_core *c, struct member *m, const char *why)
{
	snprintf(m->why_down, sizeof(m->why_down), "%s", why);
	member_set_state(c, m, MEMBER_DOWN, why);
	member_dirty(c, m);
	if (m->conn)
		conn_drop(c, m->conn->id, why);
	if (m->role == ROLE_SERVER)
		sched_server_gone(c, m);
	else
		sched_agent_gone(c, m, true);
}

static void refuse(struct sched_core *c, uint32_t conn, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void refuse(struct sched_core *c, uint32_t conn, int code, const char *fmt, ...)
{
	struct err_text text;
	struct ctl_msg msg = {.type = CTL_REFUSE, .refuse = {(uint32_t)-code, text.s}};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text.s, sizeof(text.s), fmt, ap);
	va_end(ap);
	log_rated(LOG_WARN, "refused: %s", text.s);
	c->env.send(c->env.ctx, conn, &msg);
	conn_drop(c, conn, "refused");
}

static bool is_hello_sound(const struct ctl_hello *h)
{
	if ((h->role != ROLE_SERVER && h->role != ROLE_AGENT) || !h->instance || !h->name[0] ||
		!h->host[0] || (h->cluster_id.bytes && h->cluster_id.bytes != STATE_ID_BYTES) ||
		h->view >> 32 >= TERM_MAX)
		return false;
	return h->role == ROLE_AGENT ||
	       (h->addr[0] && h->port && h->threads && h->threads <= THREADS_MAX);
}

/* A scheduler that has lost its state takes the identity and goes above the views that its
 * members know. */
static bool adopt_cluster(struct sched_core *c, const struct ctl_hello *h)
{
	if (!h->cluster_id.bytes || memcmp(h->cluster_id.data, c->cluster_id, STATE_ID_BYTES) == 0)
		return true;
	if (c->is_restored || c->n_members)
		return false;
	memcpy(c->cluster_id, h->cluster_id.data, STATE_ID_BYTES);
	log_warn("no state here: taking over the cluster that %s '%s' on %s belongs to",
		role_name(h->role), h->name, h->host);
	sched_change(c);
	return true;
}

static void go_above(struct sched_core *c, uint64_t view)
{
	uint32_t term = (uint32_t)(view >> 32);

	if (view <= c->view)
		return;
	if (term < c->term)
		term = c->term;
	log_warn("a member knows view %llx, the state here ends at %llx: going above",
		(unsigned long long)view, (unsigned long long)c->view);
	c->term = term + 1;
	c->tx_view = (uint64_t)c->term << 32 | 1;
}

/* C6: a live holder keeps its name, unless the newcomer is its successor on the same host; the one
 * that was replaced is not, or two processes of one name would take it from each other for ever. */
static bool is_name_free(const struct member *m, const struct ctl_hello *h)
{
	return !m || m->state == MEMBER_DOWN || m->instance == h->instance ||
	       (strcmp(m->host, h->host) == 0 && m->former_instance != h->instance);
}

/* A known member must not end for this, as members do when they are refused: it tries again. */
static void turn_away(struct sched_core *c, uint32_t conn, bool is_known)
{
	if (is_known)
		conn_drop(c, conn, "the state cannot be written, come again");
	else
		refuse(c, conn, BPS_ENOTDURABLE,
			"the scheduler cannot write its state and takes no new members; see its "
			"log");
}

static bool hello_refused(
	struct sched_core *c, uint32_t conn, const struct ctl_hello *h, const struct member *m)
{
	if (h->proto != CTL_PROTO) {
		refuse(c, conn, BPS_EVERSION,
			"'%s' on %s (release %s) speaks control protocol %u, the scheduler "
			"(release %s) %u:"
			" install the same release",
			h->name, h->host, h->version, h->proto, BPS_VERSION, CTL_PROTO);
	} else if (!is_hello_sound(h)) {
		refuse(c, conn, BPS_EPROTO, "HELLO of '%s' on '%s' is not sound", h->name, h->host);
	} else if (c->is_undurable) {
		turn_away(c, conn, m != NULL);
	} else if (!is_name_free(m, h)) {
		refuse(c, conn, BPS_EDUP,
			"the name '%s' is held by a live %s on %s (pid %u, %s:%u): choose another "
			"--name",
			h->name, role_name(h->role), m->host, m->pid, m->addr, m->port);
	} else if (!m && c->n_members >= SCHED_MEMBERS_MAX) {
		refuse(c, conn, BPS_EQUOTA, "the scheduler has %u members, its limit",
			SCHED_MEMBERS_MAX);
	} else if (!adopt_cluster(c, h)) {
		refuse(c, conn, BPS_EMISMATCH,
			"%s '%s' on %s belongs to another cluster: point it to its own scheduler or"
			" restart it",
			role_name(h->role), h->name, h->host);
	} else {
		return false;
	}
	return true;
}

static void member_back(struct sched_core *c, struct member *m, const struct ctl_hello *h)
{
	bool is_new = m->instance != h->instance, was_usable = sched_is_usable(m);

	if (m->conn)
		conn_drop(c, m->conn->id, is_new ? "replaced by a new instance" : "reconnected");
	if (m->state != MEMBER_UP) {
		member_set_state(c, m, MEMBER_UP, is_new ? "restarted" : "reconnected");
	} else {
		const char *how = is_new ? "restarted" : "reconnected";

		log_info("%s %s: %s host=%s", role_name(m->role), m->name, how, h->host);
		sched_note(c, EVENT_MEMBER, "%s %s (host %s) has %s", role_name(m->role), m->name,
			h->host, how);
	}
	if (!is_new && was_usable)
		return;
	member_dirty(c, m);
	if (is_new) {
		m->restart_count++;
		m->former_instance = was_usable ? m->instance : 0;
		m->instance = h->instance;
		m->beat = (struct ctl_beat){0};
		m->moved_ns = c->now_ns;
	}
	if (m->role == ROLE_AGENT && is_new)
		sched_agent_gone(c, m, false);
	if (m->role == ROLE_SERVER && is_new && was_usable) {
		uint16_t threads = h->threads;

		sched_server_restarted(c, m, threads);
	}
	sched_member_describe(c, m, h);
}

static void hello(struct sched_core *c, struct conn *conn, const struct ctl_hello *h)
{
	struct member *m = member_find(c, h->role, h->name);
	bool is_known = m != NULL;

	if (hello_refused(c, conn->id, h, m))
		return;
	go_above(c, h->view);
	if (is_known) {
		member_back(c, m, h);
	} else {
		m = sched_member_add(c, c->n_members + 1, h->role, h->name);
		m->instance = h->instance;
		sched_member_describe(c, m, h);
		member_dirty(c, m);
		m->moved_ns = c->now_ns;
		member_set_state(c, m, MEMBER_UP, "it is new");
	}
	c->n_silent--;
	conn->member = m;
	m->conn = conn;
	m->heard_ns = m->echoed_ns = c->now_ns;
	m->needs_sync = true;
	sched_arm(c, c->beat_ns ? c->beat_ns : c->now_ns);
	if (commit(c, false) < 0) {
		/* Until the state is durable it must learn nothing of the new one. */
		conn->member = NULL;
		m->conn = NULL;
		m->needs_sync = false;
		c->n_silent++;
		suspect(c, m, "the state cannot be written");
		turn_away(c, conn->id, is_known);
		return;
	}
	send_sync(c, m);
}

static void beat(struct sched_core *c, struct member *m, const struct ctl_beat *b)
{
	if (b->progress != m->beat.progress)
		m->moved_ns = c->now_ns;
	if (b->echo != m->beat.echo)
		m->echoed_ns = c->now_ns;
	m->beat = *b;
}

/* ---- events ---- */

static void dispatch(struct sched_core *c, struct member *m, const struct ctl_msg *msg)
{
	if (msg->type == CTL_BEAT) {
		beat(c, m, &msg->beat);
		return;
	}
	if (msg->type == CTL_FAIL) {
		sched_fail(c, m, &msg->fail);
		return;
	}
	if (m->role != ROLE_AGENT) {
		sched_kick(c, m, "a message that only agents send");
		return;
	}
	switch ((enum ctl_type)msg->type) {
	case CTL_JOIN:
		sched_join(c, m, &msg->join);
		break;
	case CTL_DECLARE:
		sched_declare(c, m, &msg->declare);
		break;
	case CTL_WORKER:
		sched_worker(c, m, &msg->worker);
		break;
	case CTL_WHY:
		sched_why(c, m, &msg->why);
		break;
	case CTL_REPORT:
		sched_report(c, m, &msg->report);
		break;
	default:
		sched_kick(c, m, "a message that members do not send");
		break;
	}
}

void sched_message(
	struct sched_core *c, uint32_t conn_id, const struct ctl_msg *msg, uint64_t now_ns)
{
	struct conn *conn = *conn_at(c, conn_id);

	c->now_ns = now_ns;
	if (!conn)
		return;
	if (!conn->member) {
		if (msg->type == CTL_HELLO)
			hello(c, conn, &msg->hello);
		else
			conn_drop(c, conn_id, "its first message is not HELLO");
		return;
	}
	conn->member->heard_ns = now_ns;
	dispatch(c, conn->member, msg);
	if (msg->type != CTL_BEAT)
		finish_event(c);
}

void sched_conn_open(struct sched_core *c, uint32_t id, uint64_t now_ns)
{
	struct conn *conn = sched_alloc(1, sizeof(*conn));

	c->now_ns = now_ns;
	conn->id = id;
	conn->deadline_ns = now_ns + c->cfg.hello_ms * NS_PER_MS;
	conn->next = c->conns[id % CONN_BUCKETS];
	c->conns[id % CONN_BUCKETS] = conn;
	c->n_silent++;
	sched_arm(c, conn->deadline_ns);
}

void sched_conn_closed(struct sched_core *c, uint32_t id, uint64_t now_ns)
{
	struct conn *conn = *conn_at(c, id);
	struct member *m = conn ? conn->member : NULL;

	c->now_ns = now_ns;
	conn_forget(c, id);
	if (m && m->state == MEMBER_UP)
		suspect(c, m, "its connection closed");
}

/* ---- time ---- */

void sched_arm(struct sched_core *c, uint64_t at_ns)
{
	if (at_ns < c->due_ns)
		c->due_ns = at_ns;
}

uint64_t sched_next_deadline(const struct sched_core *c)
{
	return c->due_ns;
}

static void drop_silent_conns(struct sched_core *c)
{
	for (size_t b = 0; c->n_silent && b < CONN_BUCKETS; b++) {
		for (struct conn *conn = c->conns[b], *next; conn; conn = next) {
			next = conn->next;
			if (conn->member)
				continue;
			if (conn->deadline_ns <= c->now_ns)
				conn_drop(c, conn->id, "no HELLO in time");
			else
				sched_arm(c, conn->deadline_ns);
		}
	}
}

static void send_beats(struct sched_core *c)
{
	struct ctl_msg msg = {.type = CTL_BEAT};

	if (c->now_ns < c->beat_ns) {
		sched_arm(c, c->beat_ns);
		return;
	}
	c->beat_ns = 0;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct member *m = c->members[i];

		if (!m->conn)
			continue;
		msg.beat = (struct ctl_beat){++m->tx_seq, m->beat.seq, .view = c->view};
		sched_send(c, m, &msg);
		c->beat_ns = c->now_ns + c->cfg.beat_ms * NS_PER_MS;
	}
	if (c->beat_ns)
		sched_arm(c, c->beat_ns);
}

static void check_member(struct sched_core *c, struct member *m)
{
	uint64_t at = m->deadline_ns;
	char why[64];

	if (m->state == MEMBER_DOWN)
		return;
	if (m->state == MEMBER_UP) {
		at = m->heard_ns + member_dead_ns(c, m);
		if (at < c->grace_ns)
			at = c->grace_ns;
	}
	if (at > c->now_ns) {
		sched_arm(c, at);
		return;
	}
	if (m->state == MEMBER_UP)
		snprintf(why, sizeof(why), "silent for %.1f s",
			(double)(c->now_ns - m->heard_ns) / 1e9);
	else if (m->state == MEMBER_SUSPECT)
		snprintf(why, sizeof(why), "gone for %.1f s",
			(double)(c->now_ns - m->since_ns) / 1e9);
	else
		snprintf(why, sizeof(why), "did not come back after the scheduler's restart");
	member_down(c, m, why);
}

void sched_tick(struct sched_core *c, uint64_t now_ns)
{
	uint64_t late_ns = now_ns > c->due_ns ? now_ns - c->due_ns : 0;

	c->now_ns = now_ns;
	if (late_ns > LATE_NS) {
		log_rated(LOG_WARN, "this loop was late by %.3f s: extending all deadlines",
			(double)late_ns / 1e9);
		extend(c, late_ns);
	}
	c->due_ns = UINT64_MAX;
	drop_silent_conns(c);
	send_beats(c);
	sched_probe_tick(c);
	if (c->is_undurable) {
		if (now_ns >= c->retry_ns)
			commit(c, true);
		else
			sched_arm(c, c->retry_ns);
	}
	if (c->is_undurable)
		return;
	for (uint32_t i = 1; i <= c->n_members; i++)
		check_member(c, c->members[i]);
	finish_event(c);
}

/* ---- life ---- */

void sched_config_default(struct sched_config *cfg)
{
	*cfg = (struct sched_config){.cluster = "bps",
		.beat_ms = 500,
		.server_dead_ms = 3000,
		.agent_dead_ms = 5000,
		.server_window_ms = 1000,
		.agent_window_ms = 5000,
		.probe_ms = 1000,
		.hello_ms = 5000};
}

struct sched_core *sched_new(const struct sched_config *cfg, const struct sched_env *env)
{
	struct sched_core *c = sched_alloc(1, sizeof(*c));

	c->cfg = *cfg;
	c->env = *env;
	c->due_ns = UINT64_MAX;
	c->next_job = c->job_id_limit = 1;
	env->random(env->ctx, c->cluster_id, sizeof(c->cluster_id));
	env->random(env->ctx, c->secret, sizeof(c->secret));
	return c;
}

int sched_start(struct sched_core *c, uint64_t now_ns)
{
	uint64_t dead =
		NS_PER_MS * (c->cfg.server_dead_ms > c->cfg.agent_dead_ms ? c->cfg.server_dead_ms
									  : c->cfg.agent_dead_ms);
	int r;

	assert(!c->is_started);
	c->now_ns = c->started_ns = now_ns;
	c->grace_ns = c->is_restored ? now_ns + 2 * dead : now_ns;
	c->term++;
	c->tx_view = (uint64_t)c->term << 32 | 1;
	c->next_job = c->job_id_limit; /* numbers of jobs that had not formed are lost */
	c->job_id_limit += JOB_ID_BLOCK;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct member *m = c->members[i];

		m->since_ns = m->heard_ns = now_ns;
		m->deadline_ns = c->grace_ns;
		if (m->state == MEMBER_EXPECTED)
			sched_arm(c, m->deadline_ns);
	}
	for (struct job *j = c->jobs; j; j = j->next)
		j->since_ns = now_ns;
	r = sched_record_changes(c, persist_record, c);
	if (r < 0)
		return r;
	c->view = c->tx_view;
	c->tx_view = 0;
	c->is_started = true;
	sched_note(c, EVENT_SCHEDULER, "the scheduler has started, term %u", c->term);
	return 0;
}

static void free_jobs(struct sched_core *c, struct job *j)
{
	while (j) {
		struct job *next = j->next;

		sched_job_free(c, j);
		j = next;
	}
}

void sched_free(struct sched_core *c)
{
	if (!c)
		return;
	sched_probe_free_all(c);
	free_jobs(c, c->jobs);
	free_jobs(c, c->ended);
	for (uint32_t i = 1; i <= c->n_members; i++)
		member_free(c->members[i]);
	free(c->members);
	for (uint32_t i = 0; i < c->n_hosts; i++)
		free(c->hosts[i]);
	free(c->hosts);
	for (size_t b = 0; b < CONN_BUCKETS; b++) {
		while (c->conns[b]) {
			struct conn *conn = c->conns[b];

			c->conns[b] = conn->next;
			free(conn);
		}
	}
	free(c);
}

uint32_t sched_term(const struct sched_core *c)
{
	return c->term;
}

uint64_t sched_view(const struct sched_core *c)
{
	return c->view;
}

bool sched_is_durable(const struct sched_core *c)
{
	return !c->is_undurable;
}
