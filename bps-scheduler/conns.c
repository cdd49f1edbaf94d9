/* Handles the connections of servers, agents and operators. Passes their messages to the core,
 * sends the core's messages, and closes the connections that the core drops. All functions run on
 * the control loop's thread. */
#include "bps-scheduler/app.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

#define CONNS_MAX 65536

/* A connection. Its number in the core is its index in app.conns. */
struct sched_app_conn {
	struct ctlchan *chan;
	uint32_t id;
	bool is_dropped; /* the core has dropped the connection and ignores its events */
	bool is_member;  /* the core has accepted the peer's HELLO */
};

/* ---- callbacks of the core ---- */

void conns_send_message(void *ctx, uint32_t id, const struct ctl_msg *msg)
{
	struct sched_app *app = ctx;
	const struct layout *layout = ctl_layout(msg->type);
	size_t n = codec_encoded_size(layout, &msg->hello);
	void *buf = n ? malloc(n) : NULL;
	int rc = -EMSGSIZE;

	if (buf) {
		codec_encode(layout, &msg->hello, buf);
		rc = ctlchan_send(app->conns[id]->chan, msg->type, buf, n);
	}
	/* If a message cannot be sent, close the connection. The member then connects again and
	 * gets the whole state. */
	if (rc < 0 && rc != BPS_ECLOSED) {
		log_rated(LOG_WARN, "cannot send %s to %s: %s", ctl_type_name(msg->type),
			ctlchan_peer_address(app->conns[id]->chan), err_str(rc));
		ctlchan_close(app->conns[id]->chan, "cannot send");
	}
	free(buf);
}

void conns_drop(void *ctx, uint32_t id, const char *why)
{
	struct sched_app *app = ctx;

	app->conns[id]->is_dropped = true;
	ctlchan_close(app->conns[id]->chan, "%s", why);
}

struct ctlchan *conns_get_channel(void *ctx, uint32_t conn)
{
	struct sched_app *app = ctx;

	return app->conns[conn]->chan;
}

/* ---- events of connections ---- */

static uint32_t conns_find_free_id(struct sched_app *app)
{
	uint32_t id = 0;

	while (id < app->n_conns && app->conns[id])
		id++;
	if (id == app->n_conns && id < CONNS_MAX) {
		uint32_t room = id ? 2 * id : 64;
		struct sched_app_conn **v =
			realloc(app->conns, room * sizeof(struct sched_app_conn *));

		if (!v)
			return CONNS_MAX;
		memset(v + id, 0, (room - id) * sizeof(struct sched_app_conn *));
		app->conns = v;
		app->n_conns = room;
	}
	return id;
}

static void on_sched_chan_opened(void *arg, struct ctlchan *chan)
{
	struct sched_app *app = arg;
	uint32_t id = conns_find_free_id(app);
	struct sched_app_conn *conn = id < CONNS_MAX ? calloc(1, sizeof(*conn)) : NULL;

	if (!conn) {
		ctlchan_close(chan, "too many connections");
		return;
	}
	conn->chan = chan;
	conn->id = id;
	app->conns[id] = conn;
	ctlchan_set_data(chan, conn);
	sched_conn_open(app->core, id, clock_now_ns());
	if (ctlchan_uses_master(chan))
		sched_conn_note_master(app->core, id);
	app_after_event(app);
}

/* Declare the member with this identity dead. An identity consists of a role and a name, such as
 * "server:node3". An operator's identity has no effect, because no operator is a member. */
static void conns_expel_identity(struct sched_app *app, const char *identity)
{
	static const struct {
		const char *prefix;
		enum role role;
	} roles[] = {{"server:", ROLE_SERVER}, {"agent:", ROLE_AGENT}};

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		size_t n = strlen(roles[i].prefix);

		if (strncmp(identity, roles[i].prefix, n) == 0)
			sched_expel(app->core, roles[i].role, identity + n, clock_now_ns());
	}
}

void conns_expel_revoked(struct sched_app *app)
{
	const struct keyring *keys = &app->daemon.auth.keys;
	char identity[KEYRING_ID_BYTES];

	for (unsigned i = 0; i < keys->n_revoked; i++) {
		snprintf(identity, sizeof(identity), "%s", keys->revoked[i]);
		identity[strcspn(identity, "#")] = '\0';
		if (keyring_is_out(keys, identity))
			conns_expel_identity(app, identity);
	}
	app_after_event(app);
}

static void on_sched_chan_closed(void *arg, struct ctlchan *chan, const char *reason)
{
	struct sched_app *app = arg;
	struct sched_app_conn *conn = ctlchan_data(chan);

	if (!conn)
		return;
	log_debug("connection of %s ended: %s", ctlchan_peer_address(chan), reason);
	app->conns[conn->id] = NULL;
	if (!conn->is_dropped) {
		sched_conn_closed(app->core, conn->id, clock_now_ns());
		if (ctlchan_is_expelled(chan) && conn->is_member)
			conns_expel_identity(app, ctlchan_identity(chan));
		app_after_event(app);
	}
	free(conn);
}

/* Return whether the name in HELLO is the name for which the peer's key was made. Without a cluster
 * key, any name is valid. */
static bool is_who_it_says(const struct ctlchan *chan, const struct ctl_hello *h)
{
	const char *identity = ctlchan_identity(chan);
	char claimed[CTL_NAME_MAX + 16];

	if (!*identity)
		return true;
	snprintf(claimed, sizeof(claimed), "%s:%s", h->role == ROLE_SERVER ? "server" : "agent",
		h->name);
	if (strcmp(identity, claimed) == 0)
		return true;
	log_rated(LOG_WARN, "%s has the key of %s but claims to be %s: closing the connection",
		ctlchan_peer_address(chan), identity, claimed);
	return false;
}

/* Return whether a failpoint makes the scheduler drop a received message of this type. */
static bool is_dropped_by_failpoint(uint16_t type)
{
	switch (type) {
	case CTL_HELLO:
		return FAILPOINT(SCHED_HELLO_RECEIVED);
	case CTL_BEAT:
		return FAILPOINT(SCHED_BEAT_RECEIVED);
	case CTL_JOIN:
		return FAILPOINT(SCHED_JOIN_RECEIVED);
	case CTL_DECLARE:
		return FAILPOINT(SCHED_DECLARE_RECEIVED);
	case CTL_STEER:
		return FAILPOINT(SCHED_STEER_RECEIVED);
	default:
		return false;
	}
}

static void on_sched_chan_frame(
	void *arg, struct ctlchan *chan, uint16_t type, const uint8_t *body, size_t n_body)
{
	struct sched_app *app = arg;
	struct sched_app_conn *conn = ctlchan_data(chan);
	struct err_text err = {""};
	struct ctl_msg msg;
	void *mem = NULL;

	if (!conn || conn->is_dropped || is_dropped_by_failpoint(type))
		return;
	if (ctl_decode(type, body, n_body, &msg, &mem, &err) < 0) {
		log_rated(LOG_WARN, "cannot decode a message from %s: %s",
			ctlchan_peer_address(chan), err.s);
		ctlchan_close(chan, "protocol error: %s", err.s);
		return;
	}
	if (type == CTL_HELLO && !is_who_it_says(chan, &msg.hello)) {
		ctlchan_close(chan, "the name in HELLO differs from the name of the key");
	} else if (type == CTL_STEER && !conn->is_member) {
		steer_receive_request(&app->steer, chan, &msg.steer, clock_now_ns());
		app_after_event(app);
	} else {
		sched_receive_message(app->core, conn->id, &msg, clock_now_ns());
		if (type == CTL_HELLO && !conn->is_dropped) {
			conn->is_member = true;
			ctlchan_set_trusted(chan);
		}
		app_after_event(app);
	}
	free(mem);
}

const struct ctlchan_ops conns_ops = {.opened = on_sched_chan_opened,
	.frame = on_sched_chan_frame,
	.closed = on_sched_chan_closed};
