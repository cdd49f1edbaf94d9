/* The control plane: ordered connections between members and the scheduler, and the scheduler's
 * shell with its durable records. */
#include "tests/sim/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/state.h"
#include "tests/invariants/invariants.h"

#define RECORD_MEM_MAX  (1u << 20)
#define ATTEMPT_NS      (2 * S)
#define CTL_CHECK_EVERY 8

/* Most messages are heartbeats without lists. To save time, the simulator encodes only about one
 * in CODED_BEATS of these heartbeats. RAW marks an event that contains the struct of a message
 * instead of the encoded message. */
#define RAW         0x100
#define CODED_BEATS 16

static void encode(struct sim_event *e, const struct ctl_msg *msg)
{
	const struct layout *l = ctl_layout(msg->type);
	size_t n;

	e->a = msg->type;
	if (msg->type == CTL_BEAT && !msg->beat.n_jobs && e->seq % CODED_BEATS) {
		memcpy(event_room(e, sizeof(msg->beat)), &msg->beat, sizeof(msg->beat));
		e->a |= RAW;
		return;
	}
	n = codec_encoded_size(l, &msg->hello);
	codec_encode(l, &msg->hello, event_room(e, (uint32_t)n));
}

static bool decode(struct sim *s, struct sim_event *e, struct ctl_msg *ret, void **ret_mem)
{
	struct err_text err;

	*ret_mem = NULL;
	if (e->a & RAW) {
		ret->type = (uint16_t)(e->a & ~(uint64_t)RAW);
		memcpy(&ret->beat, event_bytes(e), sizeof(ret->beat));
		return true;
	}
	if (ctl_decode((unsigned)e->a, event_bytes(e), e->n, ret, ret_mem, &err) == 0)
		return true;
	violation(s, "a control message does not decode: %s", err.s);
	return false;
}

/* ---- to the scheduler ---- */

static void on_up_message(struct sim *s, struct sim_event *e)
{
	struct sim_ctlconn *c = e->p;
	struct ctl_msg msg;
	void *mem;

	if (!c->is_open_s || !decode(s, e, &msg, &mem))
		return;
	if (msg.type != CTL_BEAT)
		trace(s, "sched: %s from %s", ctl_type_name(msg.type), c->m->node->name);
	sched_receive_message(s->sched.core, c->id, &msg, s->now);
	free(mem);
	sched_settle(s);
}

void ctl_send_up(struct sim_ctlconn *c, const struct ctl_msg *msg)
{
	struct sim *s = c->m->s;
	uint64_t at = s->now + ctl_delay(s);
	struct sim_event *e;

	if (c->is_broken)
		return;
	at = at < c->m->cut_from ? c->m->cut_from : at;
	at = at < c->last_s ? c->last_s : at;
	c->last_s = at;
	e = sim_post(s, &s->sched.node, at - s->now, on_up_message);
	e->p = c;
	encode(e, msg);
}

/* ---- to members ---- */

static void on_down_message(struct sim *s, struct sim_event *e)
{
	struct sim_ctlconn *c = e->p;
	struct ctl_msg msg;
	void *mem;

	if (!c->is_open_m || !decode(s, e, &msg, &mem))
		return;
	if (msg.type != CTL_BEAT)
		trace(s, "%s: %s from sched", c->m->node->name, ctl_type_name(msg.type));
	if (msg.type == CTL_PLAN && !e->b && rnd_chance(s, s->o.ctl_again_permille)) {
		struct sim_event *again =
			sim_post(s, e->node, rnd_below(s, 500 * MS), on_down_message);

		again->p = c;
		again->b = 1;
		encode(again, &msg);
	}
	member_message(c->m, &msg);
	free(mem);
}

static bool countdown(struct sim_sched *sc)
{
	if (sc->die_after > 0 && --sc->die_after == 0)
		sc->is_dying = true;
	return sc->is_dying;
}

static void env_send(void *ctx, uint32_t conn, const struct ctl_msg *msg)
{
	struct sim *s = ctx;
	struct sim_ctlconn *c = s->sched.conns[conn];
	struct sim_event *e;
	uint64_t at;

	if (c == &s->twin) {
		twin_receives(s, msg);
		return;
	}
	at = s->now + ctl_delay(s);
	if (countdown(&s->sched) || c->is_broken || !c->is_open_s)
		return;
	oracle_sched_sends(s, c->m, msg);
	at = at < c->m->cut_to ? c->m->cut_to : at;
	at = at < c->last_m ? c->last_m : at;
	c->last_m = at;
	e = sim_post(s, c->m->node, at - s->now, on_down_message);
	e->p = c;
	encode(e, msg);
}

/* ---- connections ---- */

static void on_conn_down_m(struct sim *s, struct sim_event *e)
{
	struct sim_ctlconn *c = e->p;

	(void)s;
	if (!c->is_open_m)
		return;
	c->is_open_m = false;
	member_conn_down(c->m, "connection lost");
}

static void on_conn_down_s(struct sim *s, struct sim_event *e)
{
	struct sim_ctlconn *c = e->p;

	if (!c->is_open_s)
		return;
	c->is_open_s = false;
	sched_conn_closed(s->sched.core, c->id, s->now);
	sched_settle(s);
}

static void post_down_m(struct sim *s, struct sim_ctlconn *c, uint64_t delay_ns)
{
	uint64_t at = s->now + delay_ns;

	at = at < c->last_m ? c->last_m : at;
	sim_post(s, c->m->node, at - s->now, on_conn_down_m)->p = c;
}

static void post_down_s(struct sim *s, struct sim_ctlconn *c, uint64_t delay_ns)
{
	uint64_t at = s->now + delay_ns;

	at = at < c->last_s ? c->last_s : at;
	if (s->sched.node.is_up)
		sim_post(s, &s->sched.node, at - s->now, on_conn_down_s)->p = c;
}

void ctl_break(struct sim *s, struct sim_ctlconn *c)
{
	if (!c || c->is_broken)
		return;
	c->is_broken = true;
	post_down_m(s, c, rnd_below(s, 20 * MS));
	post_down_s(s, c, rnd_chance(s, 200) ? rnd_below(s, 2 * S) : rnd_below(s, 20 * MS));
}

void ctl_close_m(struct sim_ctlconn *c)
{
	struct sim *s = c->m->s;

	c->is_open_m = false;
	if (c->is_broken)
		return;
	c->is_broken = true;
	post_down_s(s, c, c->m->cut_from > s->now ? c->m->cut_from - s->now : ctl_delay(s));
}

static void on_attempt_failed(struct sim *s, struct sim_event *e)
{
	struct sim_member *m = e->p;

	(void)s;
	m->is_connecting = false;
	member_conn_down(m, "no connection");
}

static void on_conn_up(struct sim *s, struct sim_event *e)
{
	struct sim_ctlconn *c = e->p;

	(void)s;
	c->m->is_connecting = false;
	if (c->is_broken) {
		member_conn_down(c->m, "refused");
		return;
	}
	c->is_open_m = true;
	c->m->conn = c;
	member_conn_up(c->m);
}

static void on_ctl_accept(struct sim *s, struct sim_event *e)
{
	struct sim_member *m = e->p;
	struct sim_event *again;
	struct sim_ctlconn *c;
	uint64_t wait;

	if (!m->node->is_up || m->node->life != e->b)
		return;
	if (!s->sched.node.is_up || s->sched.n_conns == CONNS_MAX) {
		sim_post(s, m->node, ctl_delay(s), on_attempt_failed)->p = m;
		return;
	}
	wait = s->sched.node.paused_until > s->now ? s->sched.node.paused_until - s->now : 0;
	if (m->cut_to > s->now || m->cut_from > s->now || wait > ATTEMPT_NS) {
		sim_post(s, m->node, ATTEMPT_NS, on_attempt_failed)->p = m;
		return;
	}
	/* The kernel accepts the connection at once. A paused scheduler handles it after the
	 * pause. */
	if (wait) {
		again = sim_post(s, NULL, wait, on_ctl_accept);
		again->p = m;
		again->b = e->b;
		return;
	}
	c = sim_alloc(s, sizeof(*c));
	c->m = m;
	c->id = s->sched.n_conns;
	c->is_open_s = true;
	s->sched.conns[s->sched.n_conns++] = c;
	sched_conn_open(s->sched.core, c->id, s->now);
	sim_post(s, m->node, ctl_delay(s), on_conn_up)->p = c;
	sched_settle(s);
}

void ctl_connect(struct sim_member *m)
{
	struct sim_event *e = sim_post(m->s, NULL, ctl_delay(m->s), on_ctl_accept);

	m->is_connecting = true;
	e->p = m;
	e->b = m->node->life;
}

static void env_drop(void *ctx, uint32_t conn, const char *why)
{
	struct sim *s = ctx;
	struct sim_ctlconn *c = s->sched.conns[conn];

	if (s->sched.is_dying)
		return;
	trace(s, "sched: drops %s: %s", c->m->node->name, why);
	c->is_open_s = false;
	if (c->is_broken || c == &s->twin)
		return;
	c->is_broken = true;
	post_down_m(s, c, ctl_delay(s));
}

/* ---- the scheduler's shell ---- */

static int env_persist(void *ctx, const struct state_record *rec)
{
	struct sim *s = ctx;
	struct sim_sched *sc = &s->sched;
	size_t n = codec_encoded_size(state_record_layout(), rec);
	struct sim_record *r;

	if (s->now < sc->eio_until)
		return -EIO;
	if (sc->is_dying)
		return 0;
	if (countdown(sc) && rnd_chance(s, 500))
		return 0; /* kill the scheduler before it writes the record */
	r = malloc(sizeof(*r) + n);
	if (!r || !n)
		abort();
	r->next = NULL;
	r->n_bytes = n;
	codec_encode(state_record_layout(), rec, r->bytes);
	*sc->tail = r;
	sc->tail = &r->next;
	sc->durable_view = rec->view;
	s->tot->views++;
	trace(s, "sched: durable view=%llx", (unsigned long long)rec->view);
	return 0;
}

static void env_random(void *ctx, void *ret, size_t n_bytes)
{
	uint8_t *p = ret;

	for (size_t i = 0; i < n_bytes; i++)
		p[i] = (uint8_t)rnd(ctx);
}

static void env_pair_key(void *ctx, const uint8_t secret[STATE_SECRET_BYTES],
	uint64_t agent_instance, uint64_t server_instance, uint8_t ret_key[CTL_KEY_BYTES])
{
	uint64_t k = mix(agent_instance) ^ server_instance;

	(void)ctx;
	memcpy(ret_key, secret, CTL_KEY_BYTES);
	memcpy(ret_key, &k, sizeof(k));
}

static void on_sched_start(struct sim *s, struct sim_event *e)
{
	(void)e;
	if (!s->sched.node.is_up)
		sched_node_start(s);
}

void sched_node_kill(struct sim *s)
{
	struct sim_sched *sc = &s->sched;
	bool is_silent = rnd_chance(s, 200);

	trace(s, "sched: killed");
	sc->node.is_up = false;
	sc->is_dying = false;
	sc->die_after = 0;
	sched_free(sc->core);
	sc->core = NULL;
	for (uint32_t i = 0; i < sc->n_conns; i++) {
		struct sim_ctlconn *c = sc->conns[i];

		if (!c->is_open_s)
			continue;
		c->is_open_s = false;
		if (!c->is_broken && !is_silent && !s->is_ending)
			post_down_m(s, c, rnd_below(s, 20 * MS));
		c->is_broken = true;
	}
	if (!s->is_ending)
		sim_post(s, NULL, rnd_between(s, 10 * MS, 1500 * MS), on_sched_start);
}

static void on_sched_tick(struct sim *s, struct sim_event *e)
{
	if (e->a != s->sched.tick_at)
		return;
	s->sched.tick_at = 0;
	sched_tick(s->sched.core, s->now);
	sched_settle(s);
}

void sched_settle(struct sim *s)
{
	struct sim_sched *sc = &s->sched;
	struct err_text err;
	uint64_t at;

	if (sc->is_dying) {
		sched_node_kill(s);
		return;
	}
	if (rnd_below(s, CTL_CHECK_EVERY) == 0) {
		if (sched_check(sc->core, &err) < 0)
			violation(s, "sched_check: %s", err.s);
		liar_check(s);
	}
	at = sched_next_deadline(sc->core);
	if (at == UINT64_MAX || (sc->tick_at && sc->tick_at <= at))
		return;
	sc->tick_at = at > s->now ? at : s->now;
	sim_post(s, &sc->node, sc->tick_at - s->now, on_sched_tick)->a = sc->tick_at;
}

static bool restore(struct sim *s, const struct sim_record *r)
{
	struct state_record rec;
	struct err_text err;
	void *mem = NULL;
	int rc = codec_decode(
		state_record_layout(), r->bytes, r->n_bytes, RECORD_MEM_MAX, &rec, &mem, &err);

	if (rc == 0)
		rc = sched_restore(s->sched.core, &rec, &err);
	free(mem);
	if (rc < 0)
		violation(s, "a durable record cannot be restored: %s", err.s);
	return rc == 0;
}

void sched_node_start(struct sim *s)
{
	static const struct sched_env env = {.send = env_send,
		.drop = env_drop,
		.persist = env_persist,
		.random = env_random,
		.pair_key = env_pair_key};
	struct sim_sched *sc = &s->sched;
	struct sched_env my_env = env;
	struct sched_config cfg;
	int rc;

	sched_config_default(&cfg);
	cfg.small_reserve = GREEDY_RESERVE;
	my_env.ctx = s;
	sc->node.is_up = true;
	sc->node.life++;
	sc->n_lives++;
	sc->tick_at = 0;
	sc->core = sched_new(&cfg, &my_env);
	for (const struct sim_record *r = sc->records; r; r = r->next)
		if (!restore(s, r))
			return;
	rc = sched_start(sc->core, s->now);
	trace(s, "sched: started, term %u", sched_current_term(sc->core));
	if (rc < 0) { /* the core did not start, so the service manager restarts the scheduler */
		sc->node.is_up = false;
		sched_free(sc->core);
		sc->core = NULL;
		sim_post(s, NULL, 200 * MS, on_sched_start);
		return;
	}
	sched_settle(s);
}
