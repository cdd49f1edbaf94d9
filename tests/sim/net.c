/* The data plane: connections and reads. A connection keeps the order of its messages until it
 * breaks, unless the seed's options say otherwise. A read copies its bytes piece by piece at
 * several moments. */
#include "tests/sim/eager.h"
#include "tests/sim/io_threads.h"
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <string.h>

#include "common/data/crc32c.h"

#define CORRUPTED_MAX 4

static const struct xport_ops ops, threaded_ops;

static struct sim_end *end_of(struct xconn *c)
{
	return (struct sim_end *)c;
}

static const uint8_t *source(const struct sim_read *rd)
{
	return rd->end->peer->port->segs[rd->r->segment].mem + rd->r->offset;
}

void port_init(struct sim *s, struct sim_port *p, struct sim_node *node,
	const struct xport_events *ev, void *core, void *owner, void (*enter)(void *),
	void (*leave)(void *))
{
	memset(p, 0, sizeof(*p));
	p->is_threaded = s->o.is_threaded && ev == &agt_core_events;
	p->x = (struct xport){.ops = p->is_threaded ? &threaded_ops : &ops,
		.ev = ev,
		.ctx = core,
		.ahead_bytes = s->o.ahead_bytes,
		.tasks_max = p->is_threaded ? TASKS_MAX : 0};
	p->s = s;
	p->node = node;
	p->owner = owner;
	p->enter = enter;
	p->leave = leave;
}

int port_segment(struct sim_port *p, size_t n_bytes, void **ret_mem, uint16_t *ret_segment)
{
	if (p->n_segs == SEGS_MAX)
		return -ENOMEM;
	*ret_mem = memset(sim_alloc(p->s, n_bytes), 0xa5, n_bytes);
	*ret_segment = (uint16_t)p->n_segs;
	p->segs[p->n_segs].mem = *ret_mem;
	p->segs[p->n_segs++].bytes = n_bytes;
	return 0;
}

/* ---- ends of connections ---- */

static void read_end(struct sim_read *rd, int status)
{
	struct sim_end *end = rd->end;

	rd->is_over = true;
	if (rd->eager)
		eager_forget(rd->eager);
	*rd->prev = rd->next;
	if (rd->next)
		rd->next->prev = rd->prev;
	end->n_reads--;
	end->port->x.ev->read_done(end->port->x.ctx, rd->r, status);
}

/* End only the local side of a connection. First end the reads of this side, then report the
 * connection as down. */
static void end_down(struct sim_end *end, const char *why)
{
	if (!end->is_open && !end->is_connecting)
		return;
	trace(end->port->s, "%s: connection to %s is down: %s", end->port->node->name,
		end->peer->port ? end->peer->port->node->name : "?", why);
	end->is_open = end->is_connecting = false;
	while (end->reads)
		read_end(end->reads, -ECANCELED);
	io_threads_drop(end);
	end->port->x.ev->down(end->port->x.ctx, &end->c, why);
}

static void on_down(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;

	(void)s;
	if (!end->is_open && !end->is_connecting)
		return;
	end->port->enter(end->port->owner);
	end_down(end, "lost");
	end->port->leave(end->port->owner);
}

static void post_down(struct sim *s, struct sim_end *end, uint64_t delay_ns)
{
	uint64_t at = s->now + delay_ns;

	if (!end->port || (!end->is_open && !end->is_connecting))
		return;
	/* If the messages in flight are not lost, they arrive before this end of the connection
	 * notices the break. */
	if (!end->pipe->has_lost && at < end->last_at)
		at = end->last_at;
	sim_post(s, end->port->node, at - s->now, on_down)->p = end;
}

/* Return how long one end of a broken connection takes to notice the break. In most cases the time
 * is short. Sometimes the end notices nothing until the pings fail. */
static uint64_t notice_delay(struct sim *s)
{
	return rnd_chance(s, 200) ? rnd_below(s, 2 * S) : rnd_below(s, 5 * MS);
}

void pipe_break(struct sim *s, struct sim_pipe *p)
{
	if (p->is_broken)
		return;
	p->is_broken = true;
	p->has_lost = rnd_chance(s, 500);
	post_down(s, &p->agent, notice_delay(s));
	post_down(s, &p->server, notice_delay(s));
}

void sim_net_close(struct xconn *c, const char *why)
{
	struct sim_end *end = end_of(c);
	struct sim *s = end->port->s;

	if (!end->is_open && !end->is_connecting)
		return;
	end_down(end, why);
	if (end->pipe->is_broken)
		return;
	end->pipe->is_broken = true;
	end->pipe->has_lost = rnd_chance(s, 500);
	post_down(s, end->peer, notice_delay(s));
}

static struct sim_end *end_at(struct sim_pipe *p, const struct sim_port *port)
{
	if (p->agent.port == port)
		return &p->agent;
	return p->server.port == port ? &p->server : NULL;
}

void sim_net_close_all(struct sim *s, struct sim_port *port)
{
	for (struct sim_pipe *p = s->pipes; p; p = p->next) {
		struct sim_end *end = end_at(p, port);

		if (end)
			sim_net_close(&end->c, "the end");
	}
}

void sim_net_kill(struct sim *s, struct sim_port *port, bool is_silent)
{
	for (struct sim_pipe *p = s->pipes; p; p = p->next) {
		struct sim_end *end = end_at(p, port);

		if (!end || (!end->is_open && !end->is_connecting))
			continue;
		if (!p->is_broken) {
			p->is_broken = true;
			p->has_lost = is_silent || rnd_chance(s, 500);
			post_down(s, end->peer,
				is_silent ? rnd_between(s, 1 * S, 3 * S) : notice_delay(s));
		}
		end_down(end, "killed");
	}
}

/* ---- messages ---- */

static void on_writable(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;

	(void)s;
	if (!end->is_open || !end->is_refused)
		return;
	end->is_refused = false;
	if (end->port->is_threaded) {
		io_threads_pump(end);
		return;
	}
	end->port->enter(end->port->owner);
	end->port->x.ev->writable(end->port->x.ctx, &end->c);
	end->port->leave(end->port->owner);
}

void sim_net_room(struct sim_end *from)
{
	struct sim *s = from->port->s;

	if (from->is_refused && from->is_open)
		sim_post(s, from->port->node, sim_net_delay(s), on_writable)->p = from;
}

static void on_message(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;
	struct err_text err;
	struct wire_msg m;
	bool is_copy = e->a == 1, is_lost = e->a == 2, had;
	struct peek p;

	if (!is_copy) {
		end->peer->in_flight--;
		sim_net_room(end->peer);
	}
	if (is_lost || !end->is_open || end->is_closing ||
		(end->pipe->is_broken && end->pipe->has_lost))
		return;
	if (wire_decode(e->bytes, e->n, &m, &err) != (int)e->n) {
		violation(s, "a message of %s does not decode: %s", end->peer->port->node->name,
			err.s);
		return;
	}
	trace(s, "%s: %s from %s pgen=%llx round=%llu tensor=%u part=%u member=%u%s",
		end->port->node->name, wire_type_name(m.type), end->peer->port->node->name,
		(unsigned long long)m.pgen, (unsigned long long)m.round, m.tensor, m.part, m.member,
		m.flags & WIRE_INLINE ? " inline" : "");
	s->tot->messages++;
	if (m.type == WIRE_DONATE)
		oracle_donated(s, &(struct peek){m.job, m.tensor, m.part, m.round, m.pgen});
	s->tot->agains += m.type == WIRE_AGAIN;
	times_check(s, end, &m);
	eager_heard(end, &m, e->b);
	end->port->enter(end->port->owner);
	p = (struct peek){m.job, m.tensor, m.part, m.round, m.pgen};
	had = m.type != WIRE_RESULT || end != &end->pipe->agent || peek_has(end->port->x.ctx, &p);
	end->port->x.ev->message(end->port->x.ctx, &end->c, &m);
	if (!had && peek_has(end->port->x.ctx, &p))
		oracle_taken(s, &p);
	end->port->leave(end->port->owner);
}

/* Change bytes that no checksum of the transport covers. The number of changes is limited, because
 * a job ends if a daemon repeatedly receives damaged bytes of the same partition. In histories with
 * duplicated messages, reports of damage are duplicated, too, so a change counts twice. */
static void corrupt(struct sim *s, const struct sim_pipe *p, void *payload, size_t n_bytes)
{
	if (p->is_near || !rnd_chance(s, s->o.corrupt_permille) || s->n_corrupted == CORRUPTED_MAX)
		return;
	s->n_corrupted += s->o.dup_permille ? 2 : 1;
	((uint8_t *)payload)[rnd_below(s, n_bytes)] ^= (uint8_t)(1u << rnd_below(s, 8));
	s->tot->corrupted++;
}

static struct sim_event *post_message(struct sim *s, struct sim_end *to, const struct wire_msg *m)
{
	uint64_t at = s->now + sim_net_delay(s);
	struct sim_event *e;

	if (at < to->cut_until)
		at = to->cut_until;
	if (at < to->tasks_at)
		at = to->tasks_at;
	if (rnd_chance(s, s->o.reorder_permille))
		s->tot->reordered++;
	else if (at < to->last_at)
		at = to->last_at;
	else
		to->last_at = at;
	e = sim_post(s, to->port->node, at - s->now, on_message);
	e->p = to;
	e->b = to->peer->n_sent;
	wire_encode(m, event_room(e, (uint32_t)wire_size(m)));
	if (m->flags & WIRE_INLINE)
		corrupt(s, to->pipe, e->bytes + e->n - ((m->len + 7) & ~7u), m->len);
	return e;
}

static int send_it(struct sim_end *end, const struct wire_msg *m, bool is_eager)
{
	struct sim *s = end->port->s;

	if (!end->is_open || !end->port->node->is_up)
		return -ENOTCONN;
	if (end->in_flight >= s->o.credits || rnd_chance(s, s->o.eagain_permille)) {
		end->is_refused = true;
		if (!end->in_flight)
			sim_post(s, end->port->node, sim_net_delay(s), on_writable)->p = end;
		return -EAGAIN;
	}
	if (end->pipe->is_broken)
		return 0;
	end->in_flight++;
	end->n_sent++;
	if (rnd_chance(s, s->o.loss_permille)) {
		s->tot->lost++;
		post_message(s, end->peer, m)->a = 2;
		return 0;
	}
	post_message(s, end->peer, m);
	if (rnd_chance(s, s->o.dup_permille)) {
		s->tot->dups++;
		post_message(s, end->peer, m)->a = 1;
	}
	if (is_eager)
		eager_send(end, m, end->n_sent);
	return 0;
}

void sim_net_say(struct sim_end *end, const struct wire_msg *m)
{
	union {
		uint64_t align;
		uint8_t bytes[EVENT_BYTES];
	} buf;
	struct wire_msg back;
	struct err_text err;

	if (!end->is_open)
		return;
	wire_encode(m, buf.bytes);
	if (wire_decode(buf.bytes, wire_size(m), &back, &err) > 0)
		send_it(end, m, eager_takes(end, false));
	else
		pipe_break(
			/* the transport closes a connection that receives an invalid message */
			end->port->s, end->pipe);
}

static int say(struct sim_end *end, const struct wire_msg *m, bool is_eager)
{
	struct wire_msg lie = *m;

	if (!end->port->is_liar)
		return send_it(end, m, is_eager);
	if (!end->is_open || !end->port->node->is_up)
		return -ENOTCONN;
	liar_twists(end->port->s, &lie);
	sim_net_say(end, &lie);
	return 0;
}

int sim_net_send(struct xconn *c, const struct wire_msg *m)
{
	return say(end_of(c), m, false);
}

/* Send a message with eager bytes, as the transport over sockets does. Connections within one host
 * have no eager bytes. */
int sim_net_send_eager(struct xconn *c, const struct wire_msg *m, bool is_patient)
{
	struct sim_end *end = end_of(c);
	struct sim *s = end->port->s;
	bool is_eager = !end->pipe->is_near && s->o.eager_max;

	if (!is_eager || !end->is_open || eager_takes(end, is_patient))
		return say(end, m, is_eager);
	if (!is_patient)
		return say(end, m, false);
	end->is_refused = true;
	if (!end->n_eager)
		sim_post(s, end->port->node, sim_net_delay(s), on_writable)->p = end;
	return -EAGAIN;
}

/* ---- reads ---- */

static void on_read_done(struct sim *s, struct sim_event *e)
{
	struct sim_read *rd = e->p;
	struct sim_end *end = rd->end;
	struct peek p;
	bool had = true;

	if (rd->is_over)
		return;
	end->port->enter(end->port->owner);
	if (end == &end->pipe->agent) {
		p = peek_read(rd->r);
		had = peek_has(end->port->x.ctx, &p);
	}
	read_end(rd, rd->status);
	if (!had && peek_has(end->port->x.ctx, &p))
		oracle_taken(s, &p);
	end->port->leave(end->port->owner);
}

/* Check the bytes that an agent has read. The server must not change the offered bytes of a sum
 * while the reader is connected (B3), unless the reader has declined them. Eager bytes arrive
 * before the read starts, so for them the rule applies from the offer on. Eager bytes may also
 * arrive after the server has closed the connection and reused the memory. So if the server's end
 * is closed, check only the received bytes, and not the server's memory. A server's reads are not
 * checked. The bytes of a contribution may change when its round has ended elsewhere (B2), and the
 * CRC of the contribution must detect the change. */
static void check_torn(struct sim *s, const struct sim_read *rd)
{
	const struct sim_end *far = rd->end->peer;

	if (rd->end != &rd->end->pipe->agent || rd->end->port->is_liar || rd->status)
		return;
	if ((far->is_open && crc32c(0, source(rd), rd->r->len) != rd->crc) ||
		crc32c(0, rd->r->dst, rd->r->len) != rd->crc)
		violation(s, "B3: %s reads a sum that %s is writing to", rd->end->port->node->name,
			far->port->node->name);
}

void read_arrived(struct sim_read *rd, int status)
{
	struct sim_end *end = rd->end;
	struct sim *s = end->port->s;

	rd->status = status;
	check_torn(s, rd);
	corrupt(s, end->pipe, rd->r->dst, rd->r->len);
	sim_post(s, end->port->node, rnd_below(s, s->o.delay_ns), on_read_done)->p = rd;
}

uint64_t read_delay(struct sim *s)
{
	uint64_t d = rnd_below(s, 2 * s->o.read_delay_ns);

	return rnd_chance(s, s->o.read_tail_permille) ? d + rnd_below(s, 500 * MS) : d;
}

static void on_piece(struct sim *s, struct sim_event *e)
{
	struct sim_read *rd = e->p;
	const struct sim_node *near = rd->end->port->node, *far;
	uint64_t at = s->now;
	uint32_t n;

	if (rd->is_over || rd->end->pipe->is_broken || !rd->end->peer->is_open)
		return;
	far = rd->end->peer->port->node;
	if (rd->end->pipe->is_near)
		at = near->paused_until > at ? near->paused_until : at;
	/* over TCP the processes of both ends move the bytes, so no bytes move while one of the
	 * processes is paused */
	else if (!s->o.is_nic_alone) {
		at = near->paused_until > at ? near->paused_until : at;
		at = far->paused_until > at ? far->paused_until : at;
	}
	at = rd->end->cut_until > at ? rd->end->cut_until : at;
	if (at > s->now) {
		sim_post(s, NULL, at - s->now, on_piece)->p = rd;
		return;
	}
	n = rd->r->len - rd->done < rd->piece ? rd->r->len - rd->done : rd->piece;
	memcpy((uint8_t *)rd->r->dst + rd->done, source(rd) + rd->done, n);
	rd->done += n;
	if (rd->done < rd->r->len) {
		sim_post(s, NULL, read_delay(s), on_piece)->p = rd;
		return;
	}
	read_arrived(rd, 0);
}

static bool lies_in(const struct sim_port *p, uint16_t segment, const void *mem, uint32_t len)
{
	const uint8_t *at = mem;

	return segment < p->n_segs && at >= p->segs[segment].mem &&
	       at + len <= p->segs[segment].mem + p->segs[segment].bytes;
}

static int net_read(struct xport_read *r)
{
	struct sim_end *end = end_of(r->conn);
	struct sim *s = end->port->s;
	const struct sim_port *far = end->peer->port;
	struct sim_read *rd;

	if (!end->is_open || end->is_closing)
		return -ENOTCONN;
	if (end->n_reads >= s->o.reads_max)
		return -EAGAIN;
	if (!end->pipe->is_broken &&
		(r->segment >= far->n_segs || r->offset + r->len > far->segs[r->segment].bytes))
		return BPS_EPROTO;
	if (!lies_in(end->port, r->own_segment, r->dst, r->len)) {
		violation(s, "%s reads into memory that is not in its segment",
			end->port->node->name);
		return -EINVAL;
	}
	rd = sim_alloc(s, sizeof(*rd));
	rd->r = r;
	rd->end = end;
	rd->piece = (r->len + 2) / (1 + (uint32_t)rnd_below(s, 3));
	if (!end->pipe->is_broken)
		rd->crc = crc32c(0, source(rd), r->len);
	rd->next = end->reads;
	rd->prev = &end->reads;
	if (rd->next)
		rd->next->prev = &rd->next;
	end->reads = rd;
	end->n_reads++;
	s->tot->reads++;
	if (!eager_takes_read(rd))
		sim_post(s, NULL, read_delay(s), on_piece)->p = rd;
	return 0;
}

/* End a loan. The simulator frees lent memory only at the end of the history, so a loan needs no
 * owner. If lent bytes change during the loan, the oracle detects wrong sums. */
static void loan_end(void *impl)
{
	--*(uint64_t *)impl;
}

static int net_borrow(
	struct xconn *c, uint16_t segment, uint64_t offset, uint32_t len, struct xport_loan *ret)
{
	struct sim_end *end = end_of(c);
	const struct sim_port *far = end->peer->port;

	if (!end->is_open || end->pipe->is_broken)
		return -ENOTCONN;
	if (segment >= far->n_segs || offset + len > far->segs[segment].bytes)
		return BPS_EPROTO;
	end->port->s->n_loans++;
	end->port->s->tot->loans++;
	*ret = (struct xport_loan){
		far->segs[segment].mem + offset, loan_end, &end->port->s->n_loans};
	return 0;
}

/* Return whether the connection is within one host. In some histories, some pairs of an agent and a
 * server share a host. Even these pairs use the network for some of their connections. */
static bool is_near(const struct sim *s, const struct sim_pipe *p, unsigned agent_idx)
{
	uint64_t pair = mix(s->seed ^ (uint64_t)agent_idx << 40 ^ (uint64_t)p->server_idx << 48);

	return s->o.has_near && pair % 10 < 7 && mix(p->agent_instance ^ s->now) % 8;
}

/* ---- connecting ---- */

static void on_agent_up(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;

	if (!end->is_connecting || end->is_closing)
		return;
	end->is_connecting = false;
	end->is_open = true;
	trace(s, "%s: connected to server%u thread %u", end->port->node->name,
		end->pipe->server_idx, end->pipe->thread);
	end->port->enter(end->port->owner);
	end->port->x.ev->up(end->port->x.ctx, &end->c, end->c.peer_id, end->c.peer_instance);
	end->port->leave(end->port->owner);
}

static bool is_welcome(struct sim *s, const struct sim_pipe *p)
{
	const struct sim_server *srv = &s->servers[p->server_idx];
	const struct sim_member *m = p->agent.port->m;

	return srv->node.is_up && srv->has_cores && srv->m.instance == p->instance &&
	       srv->agents_known[m->idx] == p->agent_instance &&
	       !rnd_chance(s, s->o.refuse_permille);
}

static void on_accept(struct sim *s, struct sim_event *e)
{
	struct sim_pipe *p = e->p;
	struct sim_server *srv = &s->servers[p->server_idx];
	const struct sim_member *m = p->agent.port->m;

	if (!p->agent.is_connecting)
		return;
	if (srv->node.is_up && srv->node.paused_until > s->now) {
		sim_post(s, NULL, srv->node.paused_until - s->now, on_accept)->p = p;
		return;
	}
	if (!is_welcome(s, p)) {
		p->is_broken = true;
		post_down(s, &p->agent, sim_net_delay(s));
		return;
	}
	p->server = (struct sim_end){.pipe = p,
		.port = &srv->threads[p->thread].port,
		.peer = &p->agent,
		.is_open = true};
	p->server.c = (struct xconn){.x = &p->server.port->x,
		.peer_id = m->id,
		.peer_instance = p->agent_instance,
		.is_same_host = p->is_near};
	/* on_agent_up must run before the server's first messages arrive at the agent. */
	p->agent.last_at = s->now + sim_net_delay(s);
	sim_post(s, p->agent.port->node, p->agent.last_at - s->now, on_agent_up)->p = &p->agent;
	p->server.port->enter(p->server.port->owner);
	p->server.port->x.ev->up(p->server.port->x.ctx, &p->server.c, p->server.c.peer_id,
		p->server.c.peer_instance);
	p->server.port->leave(p->server.port->owner);
}

static void on_connect_timeout(struct sim *s, struct sim_event *e)
{
	struct sim_end *end = e->p;

	if (!end->is_connecting)
		return;
	end->pipe->is_broken = true;
	post_down(s, &end->pipe->server, notice_delay(s));
	on_down(s, e);
}

int sim_net_connect(struct sim *s, struct sim_port *agent, uint32_t peer_id, unsigned server_idx,
	unsigned thread, uint64_t instance, void *user, struct xconn **ret_conn)
{
	struct sim_pipe *p = sim_alloc(s, sizeof(*p));

	p->agent = (struct sim_end){
		.pipe = p, .port = agent, .peer = &p->server, .is_connecting = true};
	p->agent.c = (struct xconn){
		.x = &agent->x, .user = user, .peer_id = peer_id, .peer_instance = instance};
	p->server.pipe = p;
	p->server.peer = &p->agent;
	p->server_idx = server_idx;
	p->thread = thread;
	p->instance = instance;
	p->agent_instance = agent->m->instance;
	p->is_near = is_near(s, p, agent->m->idx);
	p->agent.c.is_same_host = p->is_near;
	p->next = s->pipes;
	s->pipes = p;
	sim_post(s, NULL, sim_net_delay(s), on_accept)->p = p;
	sim_post(s, agent->node, rnd_between(s, 1 * S, 3 * S), on_connect_timeout)->p = &p->agent;
	*ret_conn = &p->agent.c;
	return 0;
}

static int no_connect(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t peer_instance, const void *key, void *user,
	struct xconn **ret_conn)
{
	(void)x, (void)addr, (void)port, (void)thread, (void)peer_id, (void)peer_instance;
	(void)key, (void)user, (void)ret_conn;
	return -ENOTSUP;
}

int port_segment_again(struct sim_port *p, void *mem, size_t bytes, uint16_t *ret_segment)
{
	if (p->n_segs == SEGS_MAX)
		return -ENOMEM;
	*ret_segment = (uint16_t)p->n_segs;
	p->segs[p->n_segs].mem = mem;
	p->segs[p->n_segs++].bytes = bytes;
	return 0;
}

static int net_seg_add(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment)
{
	return port_segment_again((struct sim_port *)x, mem, bytes, ret_segment);
}

static void net_seg_del(struct xport *x, uint16_t segment)
{
	((struct sim_port *)x)->segs[segment].bytes = 0;
}

/* Return the time at which this end last received anything from its peer. Pings are not simulated,
 * so the time is the present time for a live peer, else 0. */
static uint64_t net_heard_ns(const struct xconn *c)
{
	const struct sim_end *end = (const struct sim_end *)c;
	const struct sim *s = end->port->s;
	const struct sim_node *far = end->peer->port ? end->peer->port->node : NULL;

	if (end->pipe->is_broken || end->cut_until > s->now || !far || far->paused_until > s->now)
		return 0;
	return s->now;
}

static const struct xport_ops ops = {
	.connect = no_connect,
	.send = sim_net_send,
	.send_eager = sim_net_send_eager,
	.read = net_read,
	.close = sim_net_close,
	.seg_add = net_seg_add,
	.seg_del = net_seg_del,
	.borrow = net_borrow,
	.heard_ns = net_heard_ns,
};
static const struct xport_ops threaded_ops = {
	.connect = no_connect,
	.send = io_threads_send,
	.send_eager = io_threads_send_eager,
	.offer = io_threads_offer,
	.run = io_threads_run,
	.read = net_read,
	.close = io_threads_close,
	.seg_add = net_seg_add,
	.seg_del = net_seg_del,
	.borrow = net_borrow,
	.heard_ns = net_heard_ns,
};
