/* Reuse of offered memory over our own TCP. As soon as an offer has ended, the owner overwrites the
 * memory. Later the owner offers the memory again: eagerly or not, sometimes twice, sometimes with
 * another length. Meanwhile segments are withdrawn, connections are replaced, windows change and
 * one end pauses. Each successful read must return the bytes of the offer that it reads, and reads
 * must keep completing. The receiver reads an offer's bytes at once, later or not at all, as agents
 * and servers do. The receiver sends GOT after the read, or in place of the read. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/crc32c.h"
#include "tests/unit/tcp_peer.h"

#define PLACES   20
#define PLACE    60000u
#define AREA     ((size_t)PLACES * PLACE)
#define READS    800
#define SEEDS    3
#define STALL_NS (10000 * MS)

/* A piece of memory that is offered as a whole or one half at a time. */
struct reuse_place {
	uint64_t version;
	bool is_offered;
	uint32_t at, len;
};
/* The latest offer that this end has received for one place of the other end's memory. */
struct wanted {
	struct wire_msg m;
	struct xport_read rd;
	bool is_reading, is_waiting;
	uint64_t done; /* the last version for which GOT was sent */
};
static struct end {
	struct net_node *n;
	struct mem from, to;
	struct reuse_place places[PLACES];
	struct wanted wanted[PLACES];
	uint64_t version;
	uint32_t seed;
	unsigned n_ended, n_right;
	bool is_stuck;
} ends[2];

static uint32_t draw(struct end *e, uint32_t n)
{
	e->seed = e->seed * 1664525u + 1013904223u;
	return (e->seed >> 8) % n;
}

static struct end *end_of(const struct net_node *n)
{
	return &ends[n->peer_id == CLIENT_ID];
}

static uint8_t *bytes_of(struct end *e, unsigned i)
{
	return e->from.p + i * (size_t)PLACE;
}

static uint32_t seed_of(uint64_t version)
{
	return (uint32_t)version * 2654435761u | 1;
}

/* ---- the end that receives offers ---- */

static void say_got(struct end *e, struct wanted *w, const struct wire_msg *m)
{
	struct wire_msg got = wire_make_answer(m, WIRE_GOT);

	w->done = m->round;
	/* a short message, for which there is always room */
	e->n->is_wrong |= xport_send(e->n->conn, &got) != 0;
}

static void start(struct end *e, struct wanted *w)
{
	int rc;

	w->rd = (struct xport_read){.conn = e->n->conn,
		.dst = e->to.p + w->m.part * (size_t)PLACE,
		.own_segment = e->to.seg,
		.segment = w->m.segment,
		.offset = w->m.offset,
		.len = w->m.len};
	rc = xport_read(&w->rd);
	e->n->is_wrong |= rc && rc != -EAGAIN;
	w->is_reading = rc == 0;
	w->is_waiting = rc != 0;
}

static void hear_offer(struct end *e, const struct wire_msg *m)
{
	struct wanted *w = &e->wanted[m->part];
	uint32_t what = draw(e, 8);

	if (w->is_reading)
		return;
	if (m->round <= w->done || (!w->is_waiting && what == 0)) {
		say_got(e, w, m);
		return;
	}
	/* Replace an older offer that still waits for its read, because the other end may have
	 * withdrawn the older offer. */
	w->m = *m;
	if (w->is_waiting || what < 3)
		w->is_waiting = true;
	else
		start(e, w);
}

static void on_read_done(struct net_node *n, struct xport_read *rd, int status)
{
	static uint8_t right[PLACE];
	struct wanted *w = (struct wanted *)((char *)rd - offsetof(struct wanted, rd));
	struct end *e = end_of(n);

	w->is_reading = false;
	if (status == 0) {
		fill(right, rd->len, seed_of(w->m.round));
		n->is_wrong |= memcmp(rd->dst, right, rd->len) != 0 ||
			       xport_read_crc(rd) != crc32c(0, right, rd->len);
		e->n_right++;
	}
	n->is_wrong |= status && status != BPS_ENOTFOUND && status != -ECANCELED;
	if (status != -ECANCELED)
		say_got(e, w, &w->m);
}

/* ---- the end that sends offers ---- */

static void on_message(struct net_node *n, struct xconn *c, const struct wire_msg *m)
{
	struct end *e = end_of(n);
	struct reuse_place *p = &e->places[m->part];

	(void)c;
	if (m->type != WIRE_GOT) {
		hear_offer(e, m);
		return;
	}
	if (!p->is_offered || p->version != m->round)
		return;
	p->is_offered = false;
	e->n_ended++;
	/* Overwrite the memory at once, although this end may still be sending the
	 * old bytes. */
	memset(bytes_of(e, m->part), 0xee, PLACE);
}

static void on_writable(struct net_node *n, struct xconn *c)
{
	(void)c;
	end_of(n)->is_stuck = false;
}

static void renew(struct end *e, unsigned i)
{
	struct reuse_place *p = &e->places[i];

	p->version = ++e->version;
	p->at = draw(e, 2) * PLACE / 2;
	p->len = draw(e, 3) ? PLACE / 2 : 100;
	if (!p->at && !draw(e, 4))
		p->len = PLACE;
	fill(bytes_of(e, i) + p->at, p->len, seed_of(p->version));
}

static void offer(struct end *e)
{
	unsigned i = draw(e, PLACES), how = draw(e, 5);
	struct reuse_place *p = &e->places[i];
	struct wire_msg m;
	int rc;

	if (p->is_offered && draw(e, 6))
		return;
	if (!p->is_offered)
		renew(e, i);
	m = (struct wire_msg){.type = WIRE_CONTRIB,
		.round = p->version,
		.part = i,
		.segment = e->from.seg,
		.offset = i * (uint64_t)PLACE + p->at,
		.len = p->len,
		.contrib.workers = 1};
	rc = how == 0 ? xport_send(e->n->conn, &m) : xport_send_eager(e->n->conn, &m, how < 3);
	e->n->is_wrong |= rc && rc != -EAGAIN;
	p->is_offered |= rc == 0;
	e->is_stuck = rc != 0;
}

static void withdraw(struct end *e)
{
	e->n->x->ops->seg_del(e->n->x, e->from.seg);
	mem_free(&e->from);
	e->from = mem_new(e->n, AREA, 0);
	for (unsigned i = 0; i < PLACES; i++)
		e->places[i].is_offered = false;
}

static void change_window(struct end *e)
{
	static const int windows[] = {RECV_WINDOW_MIN, 224 << 10, RECV_WINDOW_MAX};
	struct tcp_xport *x = tcp_xport_of_conn(tcp_conn_of(e->n));

	x->window.bytes = windows[draw(e, 3)];
	tcp_set_windows(x);
}

/* ---- both ends ---- */

static void play(struct end *e)
{
	for (unsigned i = draw(e, 12); i > 0 && !e->is_stuck; i--)
		offer(e);
	for (unsigned i = 0; i < PLACES; i++)
		if (e->wanted[i].is_waiting && !draw(e, 3))
			start(e, &e->wanted[i]);
	if (!draw(e, 1000))
		withdraw(e);
	if (!draw(e, 500))
		change_window(e);
}

static void end_open(struct net_node *n, uint32_t seed)
{
	struct end *e = end_of(n);

	*e = (struct end){.n = n, .seed = seed};
	e->from = mem_new(n, AREA, 0);
	e->to = mem_new(n, AREA, 0);
	n->on_message = on_message;
	n->on_read_done = on_read_done;
	n->on_writable = on_writable;
}

static void connect_anew(struct net_rig *r)
{
	unsigned n_up = r->client.n_up + 1;

	xport_close(r->client.conn, "replaced");
	RUN(r, r->server.n_down == r->client.n_down);
	for (unsigned k = 0; k < 2; k++) {
		memset(ends[k].wanted, 0, sizeof(ends[k].wanted));
		for (unsigned i = 0; i < PLACES; i++)
			ends[k].places[i].is_offered = false;
		ends[k].is_stuck = false;
	}
	assert_int_equal(dial(&r->client, net_port(r->server.f), the_key), 0);
	RUN(r, r->client.n_up == n_up && r->server.n_up == n_up);
}

/* Let both ends act until the test is over. Return how often the ends reconnected. */
static unsigned play_all(struct net_rig *r)
{
	struct net_node *both[] = {&r->server, &r->client};
	unsigned n_ended = 0, n_anew = 0, n_still = 0;
	uint64_t ended_ns = clock_now_ns();

	while (ends[0].n_right + ends[1].n_right < READS || !n_anew) {
		if (!draw(&ends[0], 1000)) {
			connect_anew(r);
			n_anew++;
		}
		play(&ends[0]);
		play(&ends[1]);
		if (!n_still && !draw(&ends[0], 50))
			n_still = draw(&ends[0], 60);
		if (n_still) /* run one end while its peer pauses */
			turn(&both[--n_still / 30], 1, clock_now_ns() + MS);
		else
			turn(both, 2, clock_now_ns() + MS);
		if (r->server.is_wrong || r->client.is_wrong || r->client.n_down != n_anew)
			fail_msg("wrong data, or an unexpected end of the connection: %s",
				r->client.why);
		if (n_ended != ends[0].n_ended + ends[1].n_ended)
			ended_ns = clock_now_ns();
		n_ended = ends[0].n_ended + ends[1].n_ended;
		if (clock_now_ns() - ended_ns > STALL_NS)
			fail_msg("no offer ends any more");
	}
	return n_anew;
}

static void reads_have_the_bytes_of_their_own_offer(void **state)
{
	(void)state;
	for (uint32_t seed = 1; seed <= SEEDS; seed++) {
		unsigned n_anew;
		struct net_rig r;

		net_rig_open(&r);
		rig_connect(&r);
		end_open(&r.server, seed);
		end_open(&r.client, seed + 1000);
		print_message("seed %u\n", seed);
		n_anew = play_all(&r);
		assert_int_equal(r.server.n_down, n_anew);
		assert_int_equal(protocol_errors(&r.server) + protocol_errors(&r.client), 0);
		net_rig_close(&r);
		for (unsigned k = 0; k < 2; k++) {
			mem_free(&ends[k].from);
			mem_free(&ends[k].to);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_have_the_bytes_of_their_own_offer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
