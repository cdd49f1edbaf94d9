/* Membership in the cluster: HELLO, WELCOME, BEAT, the table of peers, and the check that the
 * scheduler belongs to this cluster (rule C8). The owner handles all other messages. Thread: the
 * control loop's. Any thread may send messages and look up peers. */
#include "common/control/member.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/control/ctlclient.h"
#include "common/loop/loop.h"

/* Milliseconds to wait for the answer to HELLO. This time suffices even if the scheduler's state
 * log is on a slow disk. */
#define WELCOME_MS 3000

struct known_peer {
	struct member_peer pub;
	/* a PEERS message since the last WELCOME has contained this peer */
	bool is_told;
};

struct member {
	struct loop *loop;
	struct ctlclient *client;
	const struct member_ops *ops;
	void *ctx;
	struct member_config cfg;
	char name[CTL_NAME_MAX + 1], host[CTL_NAME_MAX + 1], data_addr[64];
	uint8_t cluster_id[16];
	bool has_cluster_id;
	uint32_t id;
	/* Written by the loop, read by any thread. No memory order relative to other fields is
	 * needed */
	_Atomic uint32_t term;
	_Atomic uint32_t restarts; /* written by the loop, read by any thread */
	_Atomic uint64_t view;     /* largest view received */
	/* Written by the loop. Read by senders, which may see an outdated value */
	_Atomic bool is_up;
	_Atomic bool has_lost;       /* set by a sender when it could not queue a message */
	_Atomic uint64_t down_since; /* time at which the connection was lost, in ns */
	char down_why[200];
	struct event *beat_timer;
	uint32_t beat_ms, dead_ms;
	uint64_t seq, last_seq;
	/* Written by the loop, read by any thread. No memory order relative to other fields is
	 * needed */
	_Atomic uint64_t last_heard_ns;
	pthread_mutex_t lock; /* guards peers */
	struct known_peer *peers;
	size_t n_peers;
};

struct member_msg *member_msg_ref(struct member_msg *m)
{
	atomic_fetch_add(&m->refs, 1);
	return m;
}

void member_msg_unref(struct member_msg *m)
{
	if (m && atomic_fetch_sub(&m->refs, 1) == 1) {
		free(m->mem);
		free(m);
	}
}

/* ---- sending ---- */

struct outgoing {
	struct member *m;
	uint16_t type;
	size_t bytes;
	uint8_t body[];
};

static void member_send_outgoing(void *arg)
{
	struct outgoing *o = arg;

	if (o->m->client)
		ctlclient_send(o->m->client, o->type, o->body, o->bytes);
	free(o);
}

static struct outgoing *member_encode_message(struct member *m, const struct ctl_msg *msg)
{
	const struct layout *l = ctl_layout(msg->type);
	size_t bytes = codec_encoded_size(l, &msg->hello);
	struct outgoing *o = bytes ? malloc(sizeof(*o) + bytes) : NULL;

	if (!o)
		return NULL;
	o->m = m;
	o->type = msg->type;
	o->bytes = codec_encode(l, &msg->hello, o->body);
	return o;
}

int member_send(struct member *m, const struct ctl_msg *msg)
{
	struct outgoing *o;
	int rc;

	if (!atomic_load(&m->is_up))
		return BPS_ENOSCHED;
	o = member_encode_message(m, msg);
	if (!o) {
		atomic_store(&m->has_lost, true);
		return -ENOMEM;
	}
	rc = loop_post(m->loop, member_send_outgoing, o);
	if (rc < 0) {
		atomic_store(&m->has_lost, true);
		free(o);
	}
	return rc;
}

void member_answer_sight(struct member *m, const struct ctl_sight *asked, uint64_t heard_ns)
{
	struct ctl_msg msg = {.type = CTL_SEEN, .sight = *asked};
	uint64_t now_ns = clock_now_ns();

	if (!heard_ns)
		return;
	msg.sight.quiet_ms = now_ns > heard_ns ? (uint32_t)((now_ns - heard_ns) / NS_PER_MS) : 0;
	member_send(m, &msg);
}

static void member_send_immediately(struct member *m, const struct ctl_msg *msg)
{
	struct outgoing *o = member_encode_message(m, msg);

	if (o)
		member_send_outgoing(o);
}

/* ---- peers ---- */

static void member_copy_text(char *dst, size_t room, const char *src)
{
	snprintf(dst, room, "%s", src ? src : "");
}

static void member_update_peer(struct member *m, const struct ctl_peer *p)
{
	struct member_peer *to;
	size_t i = 0;

	while (i < m->n_peers && m->peers[i].pub.id != p->id)
		i++;
	if (p->state == PEER_GONE) {
		if (i < m->n_peers)
			m->peers[i] = m->peers[--m->n_peers];
		return;
	}
	if (i == m->n_peers) {
		struct known_peer *v = realloc(m->peers, (i + 1) * sizeof(*v));

		if (!v) {
			log_error("out of memory: ignoring peer %u until the scheduler sends this "
				  "peer's address again",
				p->id);
			return;
		}
		m->peers = v;
		m->n_peers++;
	}
	to = &m->peers[i].pub;
	*to = (struct member_peer){.id = p->id,
		.state = p->state,
		.instance = p->instance,
		.port = p->port,
		.threads = p->threads};
	member_copy_text(to->name, sizeof(to->name), p->name);
	member_copy_text(to->host, sizeof(to->host), p->host);
	member_copy_text(to->addr, sizeof(to->addr), p->addr);
	if (p->key.bytes == CTL_KEY_BYTES)
		memcpy(to->key, p->key.data, CTL_KEY_BYTES);
	m->peers[i].is_told = true;
}

/* Remove the peers that the scheduler has not listed since the WELCOME. These peers left the
 * cluster while the connection was down. Returns a PEERS message that lists the removed peers. The
 * caller must release the message. Returns NULL when no peer was removed, or when out of memory. */
static struct member_msg *member_remove_unlisted_peers(struct member *m)
{
	struct member_msg *ret = calloc(1, sizeof(*ret));
	struct ctl_peer *gone = calloc(m->n_peers + 1, sizeof(*gone));
	uint32_t n = 0;

	for (size_t i = m->n_peers; i-- > 0;) {
		struct ctl_peer p = {.id = m->peers[i].pub.id,
			.state = PEER_GONE,
			.instance = m->peers[i].pub.instance,
			.name = "",
			.host = "",
			.addr = ""};

		if (m->peers[i].is_told)
			continue;
		member_update_peer(m, &p);
		if (gone)
			gone[n++] = p;
	}
	if (!ret || !n) {
		free(gone);
		free(ret);
		return NULL;
	}
	ret->refs = 1;
	ret->mem = gone;
	ret->msg = (struct ctl_msg){.type = CTL_PEERS,
		.peers = {.view = atomic_load(&m->view), .peers = gone, .n_peers = n}};
	return ret;
}

int member_find_peer(struct member *m, uint32_t id, struct member_peer *ret)
{
	int rc = BPS_ENOTFOUND;

	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->n_peers && rc; i++) {
		if (m->peers[i].pub.id == id) {
			*ret = m->peers[i].pub;
			rc = 0;
		}
	}
	pthread_mutex_unlock(&m->lock);
	return rc;
}

void member_each_peer(struct member *m, member_peer_fn *fn, void *ctx)
{
	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->n_peers; i++)
		fn(ctx, &m->peers[i].pub);
	pthread_mutex_unlock(&m->lock);
}

int member_peer_key(void *ctx, uint32_t id, uint64_t instance, void *ret_key)
{
	struct member *_Atomic *m = ctx;
	struct member_peer p;
	int rc = atomic_load(m) ? member_find_peer(atomic_load(m), id, &p) : BPS_ENOTFOUND;

	if (rc < 0)
		return rc;
	if (p.instance != instance || p.state != PEER_UP)
		return BPS_ENOTFOUND;
	memcpy(ret_key, p.key, CTL_KEY_BYTES);
	return 0;
}

/* ---- the scheduler's side ---- */

static void member_start_beat_timer(struct member *m, uint32_t ms)
{
	struct timeval tv = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};

	event_add(m->beat_timer, &tv);
}

static void on_member_client_up(void *arg, struct ctlclient *c)
{
	struct member *m = arg;
	struct ctl_msg msg = {.type = CTL_HELLO};

	(void)c;
	member_start_beat_timer(m, m->cfg.welcome_ms);
	msg.hello = (struct ctl_hello){.proto = CTL_PROTO,
		.role = (uint8_t)m->cfg.role,
		.instance = m->cfg.instance,
		.name = m->name,
		.host = m->host,
		.version = BPS_VERSION,
		.pid = (uint32_t)getpid(),
		.addr = m->data_addr,
		.port = m->cfg.data_port,
		.threads = m->cfg.threads,
		.nic_mbps = m->cfg.nic_mbps,
		.view = atomic_load(&m->view),
		.quota_bytes = m->cfg.quota_bytes,
		.memory_bytes = m->cfg.memory_bytes,
		.provider = m->cfg.provider,
		.boot_id = {m->cfg.boot_id, m->cfg.boot_id ? CTL_BOOT_ID_BYTES : 0},
		.domain = m->cfg.domain,
		.http = m->cfg.http};
	if (m->has_cluster_id)
		msg.hello.cluster_id = (struct blob){m->cluster_id, sizeof(m->cluster_id)};
	member_send_immediately(m, &msg);
}

static void on_member_welcome(struct member *m, const struct ctl_welcome *w)
{
	FAILPOINT(MEMBER_WELCOME);
	/* Rule C8: only one scheduler may control a member. */
	if (w->term < m->term || w->cluster_id.bytes != sizeof(m->cluster_id) ||
		(m->has_cluster_id &&
			memcmp(m->cluster_id, w->cluster_id.data, sizeof(m->cluster_id)) != 0)) {
		log_rated(LOG_WARN,
			"rejected a scheduler, because it belongs to another cluster or has an "
			"outdated term (check --scheduler): term=%u known=%u",
			w->term, m->term);
		ctlclient_drop(m->client,
			"the scheduler belongs to another cluster or has an outdated term");
		return;
	}
	m->id = w->member_id;
	m->term = w->term;
	m->restarts = w->restarts;
	memcpy(m->cluster_id, w->cluster_id.data, sizeof(m->cluster_id));
	m->has_cluster_id = true;
	m->beat_ms = w->beat_ms ? w->beat_ms : 500;
	m->dead_ms = w->dead_ms ? w->dead_ms : 5000;
	m->last_heard_ns = clock_now_ns();
	for (size_t i = 0; i < m->n_peers; i++)
		m->peers[i].is_told = false;
	ctlclient_accepted(m->client, w->window_ms);
	member_start_beat_timer(m, m->beat_ms);
	atomic_store(&m->is_up, true);
	log_write(LOG_AS(LOG_INFO, JOINED), "joined the cluster: id=%u term=%u view=%llu",
		w->member_id, w->term, (unsigned long long)w->view);
	if (w->has_master)
		log_warn("this member has the cluster's master key, which allows it to act as any "
			 "member: give it the key of its name (bpsctl key derive %s:%s)",
			m->cfg.role == ROLE_SERVER ? "server" : "agent", m->name);
	m->ops->up(m->ctx, w->member_id);
}

static void on_member_beat_due(evutil_socket_t fd, short what, void *arg)
{
	struct member *m = arg;
	struct ctl_msg msg = {.type = CTL_BEAT};

	(void)fd;
	(void)what;
	if (!atomic_load(&m->is_up)) {
		ctlclient_drop(m->client, "the scheduler does not answer");
		return;
	}
	if (clock_now_ns() - m->last_heard_ns > (uint64_t)m->dead_ms * 1000000) {
		ctlclient_drop(m->client, "nothing was received from the scheduler for too long");
		return;
	}
	if (atomic_exchange(&m->has_lost, false)) {
		ctlclient_drop(m->client,
			"messages to the scheduler could not be queued; they are sent again after "
			"a reconnect");
		return;
	}
	m->ops->beat(m->ctx, &msg.beat);
	msg.beat.seq = ++m->seq;
	msg.beat.echo = m->last_seq;
	msg.beat.view = atomic_load(&m->view);
	if (!FAILPOINT(MEMBER_BEAT_BEFORE_SEND))
		member_send_immediately(m, &msg);
}

static void member_raise_view(struct member *m, uint64_t view)
{
	if (view > atomic_load(&m->view))
		atomic_store(&m->view, view);
}

static void member_finish_state_sync(struct member *m)
{
	struct member_msg *gone;

	pthread_mutex_lock(&m->lock);
	gone = member_remove_unlisted_peers(m);
	pthread_mutex_unlock(&m->lock);
	if (gone)
		m->ops->message(m->ctx, gone);
	member_msg_unref(gone);
	m->ops->told(m->ctx);
}

static void member_dispatch_message(struct member *m, struct member_msg *in)
{
	const struct ctl_msg *msg = &in->msg;

	switch (msg->type) {
	case CTL_WELCOME:
		member_raise_view(m, msg->welcome.view);
		on_member_welcome(m, &msg->welcome);
		return;
	case CTL_REFUSE:
		if (m->has_cluster_id && msg->refuse.code == (uint32_t)-BPS_EMISMATCH) {
			/* Rule C8: only the scheduler of the member's own cluster may end this
			 * process. BPS_EMISMATCH shows that the scheduler which sent REFUSE
			 * belongs to another cluster. */
			log_rated(LOG_WARN,
				"rejected a scheduler, because it belongs to another cluster; "
				"retrying (check --scheduler): %s",
				msg->refuse.text);
			ctlclient_drop(m->client, "the scheduler belongs to another cluster");
			return;
		}
		log_write(LOG_AS(LOG_ERROR, REFUSED), "the scheduler refuses this member: %s",
			msg->refuse.text);
		m->ops->refused(m->ctx, -(int)msg->refuse.code, msg->refuse.text);
		return;
	case CTL_BEAT:
		m->last_seq = msg->beat.seq;
		return;
	case CTL_PEERS:
		member_raise_view(m, msg->peers.view);
		pthread_mutex_lock(&m->lock);
		for (uint32_t i = 0; i < msg->peers.n_peers; i++)
			member_update_peer(m, &msg->peers.peers[i]);
		pthread_mutex_unlock(&m->lock);
		break;
	case CTL_JOB:
		member_raise_view(m, msg->job.view);
		break;
	case CTL_PLAN:
		member_raise_view(m, msg->plan.view);
		break;
	default:
		break;
	}
	if (msg->type == CTL_PEERS && msg->peers.n_peers == 0) {
		member_finish_state_sync(m);
		return;
	}
	if (atomic_load(&m->is_up))
		m->ops->message(m->ctx, in);
}

static void on_member_client_frame(
	void *arg, struct ctlclient *c, uint16_t type, const uint8_t *body, size_t n)
{
	struct member *m = arg;
	struct member_msg *in = calloc(1, sizeof(*in));
	struct err_text err = {0};

	m->last_heard_ns = clock_now_ns();
	if (!in) {
		/* The scheduler sends its state again on the next connection */
		ctlclient_drop(c, "out of memory for a message from the scheduler");
		return;
	}
	in->refs = 1;
	if (ctl_decode(type, body, n, &in->msg, &in->mem, &err) < 0) {
		log_rated(LOG_WARN,
			"received a malformed message from the scheduler, reconnecting: %s", err.s);
		ctlclient_drop(c, "the scheduler sent a malformed message");
	} else {
		member_dispatch_message(m, in);
	}
	member_msg_unref(in);
}

static void on_member_client_down(void *arg, struct ctlclient *c, const char *reason, bool was_up)
{
	struct member *m = arg;

	(void)c;
	event_del(m->beat_timer);
	member_copy_text(m->down_why, sizeof(m->down_why), reason);
	/* If is_up is false, the scheduler did not accept this member on the connection */
	if (was_up && atomic_load(&m->is_up))
		log_rated(LOG_AS(LOG_WARN, SCHEDULER_LOST),
			"connection to the scheduler is lost, retrying: why=%s", reason);
	else
		log_rated(LOG_AS(LOG_WARN, SCHEDULER_LOST),
			"cannot reach the scheduler, retrying: why=%s", reason);
	if (!atomic_exchange(&m->is_up, false))
		return;
	atomic_store(&m->down_since, clock_now_ns());
	m->ops->down(m->ctx, reason);
}

static const struct ctlclient_ops client_ops = {
	.up = on_member_client_up, .frame = on_member_client_frame, .down = on_member_client_down};

int member_new(struct member **ret, struct loop *loop, const struct member_config *cfg,
	const struct member_ops *ops, void *ctx, struct err_text *err)
{
	struct member *m = calloc(1, sizeof(*m));
	struct ctlclient_conf conf = {.addr = cfg->scheduler, .auth = cfg->auth};
	char identity[CTL_NAME_MAX + 16];
	int rc;

	if (!m)
		return err_set(err, -ENOMEM, "out of memory");
	m->loop = loop;
	m->ops = ops;
	m->ctx = ctx;
	m->cfg = *cfg;
	m->cfg.past = NULL;
	if (cfg->past) {
		m->has_cluster_id = true;
		m->id = cfg->past->member_id;
		m->term = cfg->past->term;
		m->view = cfg->past->view;
		memcpy(m->cluster_id, cfg->past->cluster_id, sizeof(m->cluster_id));
	}
	if (!m->cfg.welcome_ms)
		m->cfg.welcome_ms = WELCOME_MS;
	member_copy_text(m->name, sizeof(m->name), cfg->name);
	member_copy_text(m->host, sizeof(m->host), cfg->host);
	member_copy_text(m->data_addr, sizeof(m->data_addr), cfg->data_addr);
	pthread_mutex_init(&m->lock, NULL);
	atomic_store(&m->down_since, clock_now_ns());
	m->last_heard_ns = clock_now_ns();
	m->beat_timer = event_new(loop_base(loop), -1, EV_PERSIST, on_member_beat_due, m);
	snprintf(identity, sizeof(identity), "%s:%s", cfg->role == ROLE_SERVER ? "server" : "agent",
		m->name);
	conf.identity = identity;
	rc = m->beat_timer ? ctlclient_new(&m->client, loop_base(loop), &conf, &client_ops, m, err)
			   : err_set(err, -ENOMEM, "out of memory");
	keyring_wipe(&conf.auth.keys);
	keyring_wipe(&m->cfg.auth.keys);
	if (rc < 0) {
		member_free(m);
		return rc;
	}
	*ret = m;
	return 0;
}

void member_free(struct member *m)
{
	if (!m)
		return;
	ctlclient_free(m->client);
	if (m->beat_timer)
		event_free(m->beat_timer);
	pthread_mutex_destroy(&m->lock);
	free(m->peers);
	free(m);
}

int member_set_auth(struct member *m, const struct tls_conf *auth, struct err_text *err)
{
	return ctlclient_set_auth(m->client, auth, err);
}

bool member_is_up(const struct member *m)
{
	return atomic_load(&m->is_up);
}

uint64_t member_view(const struct member *m)
{
	return m->view;
}

uint32_t member_term(const struct member *m)
{
	return m->term;
}

uint32_t member_restarts(const struct member *m)
{
	return m->restarts;
}

bool member_snapshot_state(const struct member *m, struct member_past *ret)
{
	if (!m->has_cluster_id)
		return false;
	*ret = (struct member_past){.member_id = m->id, .term = m->term, .view = m->view};
	memcpy(ret->cluster_id, m->cluster_id, sizeof(ret->cluster_id));
	return true;
}

const char *member_get_down_reason(const struct member *m)
{
	return m->down_why;
}

uint64_t member_down_ms(const struct member *m)
{
	if (atomic_load(&m->is_up))
		return 0;
	return (clock_now_ns() - atomic_load(&m->down_since)) / 1000000;
}

uint64_t member_quiet_ms(const struct member *m)
{
	uint64_t now = clock_now_ns(), heard = m->last_heard_ns;

	return now > heard ? (now - heard) / 1000000 : 0;
}
