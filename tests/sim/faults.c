/* Draws the job's shape, the network's behaviour and the faults from the seed, and injects the
 * faults. This is swarm testing: each seed omits most kinds of faults. Swarm testing reaches states
 * that a mix of all faults hides. */
#include "tests/sim/eager.h"
#include "tests/sim/io_threads.h"
#include "tests/sim/move.h"
#include "tests/sim/sim.h"

#include <string.h>

/* All jobs must end within this time after the end of the faults (invariant I9). */
#define SETTLE_NS (60 * S)
/* In histories whose jobs must succeed, the faults that separate agents from the scheduler last at
 * most this long in total. This is less than the time that the scheduler waits for an agent
 * (5 s). */
#define AGENT_FAULT_NS (2500 * MS)

const char *const fault_names[F_COUNT] = {"connection loss", "server killed", "server gone",
	"server paused", "agent paused", "agent lost", "agent cut off", "scheduler killed",
	"scheduler paused", "scheduler killed while sending", "disk error",
	"control connection loss", "control cut", "partitions moved", "data cut"};

static void draw_job(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->n_servers = (unsigned)rnd_between(s, 1, SERVERS_MAX);
	o->n_threads = rnd_chance(s, 300) ? 2 : 1;
	o->n_agents = rnd_chance(s, 30) ? 1 : (unsigned)rnd_between(s, 2, AGENTS_MAX);
	for (unsigned i = 0; i < o->n_agents; i++) {
		o->n_workers[i] = rnd_chance(s, 350) ? 2 : 1;
		o->size += o->n_workers[i];
	}
	o->rounds = (unsigned)rnd_between(s, 4, ROUNDS_MAX);
	o->is_deterministic = rnd_chance(s, 300);
	o->is_priority_mixed = rnd_chance(s, 200);
	o->has_ranks = rnd_chance(s, 500);
	o->part_bytes = 256u << rnd_below(s, 3);
	o->n_tensors = (unsigned)rnd_between(s, 1, TENSORS_MAX);
	for (unsigned t = 0; t < o->n_tensors; t++) {
		static const uint8_t dtypes[] = {
			DTYPE_I32, DTYPE_I32, DTYPE_F32, DTYPE_F32, DTYPE_BF16};
		static const uint8_t ops[] = {OP_SUM, OP_SUM, OP_SUM, OP_AVG, OP_MAX};
		uint8_t dtype = dtypes[rnd_below(s, sizeof(dtypes))];
		uint32_t part = o->part_bytes / (uint32_t)dtype_bytes(dtype);
		uint32_t n = part * (uint32_t)rnd_between(s, 1, PARTS_DRAWN);

		if (n > ELEMS_MAX)
			n = ELEMS_MAX;
		o->tensors[t].dtype = dtype;
		o->tensors[t].op = dtype == DTYPE_I32 ? ops[rnd_below(s, sizeof(ops))] : OP_SUM;
		if (o->tensors[t].op == OP_MAX) {
			static const uint8_t more[] = {OP_MAX, OP_BAND, OP_BOR, OP_BXOR};

			o->tensors[t].op = more[mix(s->seed ^ t) % sizeof(more)];
		}
		if (dtype == DTYPE_BF16 && mix(s->seed ^ t) % 2) {
			/* of the same size, so that the seed's other draws stay as they are */
			o->tensors[t].dtype = DTYPE_F16;
			o->tensors[t].op = OP_AVG;
		}
		o->tensors[t].n_elems = n - (uint32_t)rnd_below(s, part / 2);
		o->tensors[t].n_values = o->tensors[t].n_elems;
	}
}

static void draw_net(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->delay_ns = (20 * US) << rnd_below(s, 6);
	o->read_delay_ns = rnd_chance(s, 300) ? (1 * MS) << rnd_below(s, 5) : o->delay_ns;
	o->read_tail_permille = rnd_chance(s, 300) ? 60 : 0;
	o->corrupt_permille = rnd_chance(s, 100) ? (uint32_t)rnd_between(s, 1, 20) : 0;
	o->ctl_delay_ns = (50 * US) << rnd_below(s, 9);
	o->think_ns = rnd_chance(s, 300) ? 0 : (1 * MS) << rnd_below(s, 9);
	o->tail_permille = rnd_chance(s, 400) ? (uint32_t)rnd_below(s, 60) : 0;
	o->ctl_tail_permille = rnd_chance(s, 400) ? (uint32_t)rnd_below(s, 300) : 0;
	o->eagain_permille = rnd_chance(s, 400) ? (uint32_t)rnd_below(s, 300) : 0;
	o->refuse_permille = rnd_chance(s, 300) ? (uint32_t)rnd_below(s, 500) : 0;
	if (rnd_chance(s, 400)) {
		o->loss_permille = rnd_chance(s, 600) ? (uint32_t)rnd_below(s, 150) : 0;
		o->dup_permille = rnd_chance(s, 600) ? (uint32_t)rnd_below(s, 150) : 0;
		o->reorder_permille = rnd_chance(s, 600) ? (uint32_t)rnd_below(s, 200) : 0;
	}
	o->ctl_again_permille = rnd_chance(s, 200) ? 200 : 0;
	o->credits = (unsigned)rnd_between(s, 1, 12);
	o->reads_max = (unsigned)rnd_between(s, 1, 6);
	o->is_work_slow = rnd_chance(s, 400);
	o->is_nic_alone = rnd_chance(s, 300);
	o->staging_bytes = (size_t)(8u << 10) << rnd_below(s, 3);
	o->peer_window_bytes = (size_t)512 << rnd_below(s, 5);
	o->window_bytes = (size_t)512 << rnd_below(s, 6);
	eager_draw(s);
	/* Compute the limit from the seed without a random draw, so that the histories of recorded
	 * seeds stay the same. */
	o->job_inflight_bytes = s->seed % 4 ? 0 : (size_t)1024 << (s->seed / 4 % 3);
}

/* Let reads last longer than the placement under which they start. If a server reuses memory too
 * early in such a history, the server changes memory that a peer still reads (B3). */
static void draw_long_reads(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->read_tail_permille = 300;
	o->reads_max = 6;
	o->faults = 1u << F_MOVE;
	o->fault_gap_ns = (2 * MS) << rnd_below(s, 5);
	o->faults_ns = o->fault_gap_ns * 100;
	o->is_forming_calm = true;
	o->think_ns = 1 * MS;
}

/* Let only the connections between agents and scheduler fail, for much longer than the scheduler
 * waits for an agent. No job may end because of these faults (C4). */
static void draw_deaf(struct sim_options *o)
{
	o->has_deaf = true;
	o->may_fail = false;
	o->is_forming_calm = true;
	o->faults = 0;
	o->faults_ns = 40 * S;
}

/* Let processes of agents die and start again. Faults of all other kinds may occur in the same
 * history. */
static void draw_restarts(struct sim *s)
{
	struct sim_options *o = &s->o;

	o->is_forming_calm = rnd_chance(s, 700);
	o->restart_gap_ns = (2 * MS) << rnd_below(s, 8);
	if (rnd_chance(s, 300))
		o->faults = 0;
	if (o->faults_ns < 10 * o->restart_gap_ns)
		o->faults_ns = 10 * o->restart_gap_ns;
	o->think_ns = o->think_ns > 16 * MS ? 16 * MS : o->think_ns;
}

/* Change some tensors of floats to a block type, whose last block is not full. Derive all from the
 * seed without a random draw, so that the histories of recorded seeds stay the same. The partitions
 * of such a tensor exceed some seeds' limit of bytes in flight, and take memory that a greedy job
 * would leave to a small tensor. */
static void draw_blocks(struct sim *s)
{
	struct sim_options *o = &s->o;

	for (unsigned t = 0; t < o->n_tensors && !o->job_inflight_bytes && !o->has_greedy; t++) {
		uint64_t any = mix(s->seed * TENSORS_MAX + t);

		if (o->tensors[t].dtype != DTYPE_F32 || any % 5)
			continue;
		o->tensors[t].dtype = DTYPE_Q4;
		o->tensors[t].op = any >> 16 & 1 ? OP_AVG : OP_SUM;
		o->tensors[t].n_elems = BLOCKS_MAX - (uint32_t)(any >> 20) % (BLOCKS_MAX / 2);
		o->tensors[t].n_values = o->tensors[t].n_elems * (uint32_t)dtype_values(DTYPE_Q4) -
					 (uint32_t)(any >> 40) % 60;
	}
}

/* Let workers abstain from some rounds, often all workers of a machine or of the job (W1 to W4). A
 * worker of a device tensor cannot abstain. Derive all from the seed, as above. */
static void draw_abstentions(struct sim *s)
{
	static const uint32_t permille[] = {100, 500, 900};
	uint64_t any = mix(s->seed ^ 0xab57a1);

	if (any % 4 == 0 && !device_is(s))
		s->o.abstain_permille = permille[any >> 16 & 1 ? 2 : any >> 17 & 1];
}

void options_draw(struct sim *s)
{
	struct sim_options *o = &s->o;

	draw_job(s);
	draw_net(s);
	o->is_forming_calm = rnd_chance(s, 700);
	o->may_fail = rnd_chance(s, 150);
	for (unsigned f = 0; f < F_COUNT; f++)
		if (rnd_chance(s, 300))
			o->faults |= 1u << f;
	if (!o->may_fail)
		o->faults &= ~(1u << F_AGT_LOSS | 1u << F_AGT_LONG);
	else
		o->faults |= rnd_chance(s, 500) ? 1u << F_AGT_LOSS : 1u << F_AGT_LONG;
	if (rnd_chance(s, 50))
		o->faults = 0;

	o->fault_gap_ns = (500 * US) << rnd_below(s, 12);
	o->faults_ns = o->fault_gap_ns * rnd_between(s, 5, 40);
	if (rnd_chance(s, 40))
		draw_long_reads(s);
	if (s->seed % 32 == 0)
		draw_deaf(o);
	/* Compute these values from the seed without a random draw, so that the histories of
	 * recorded seeds stay the same. */
	o->lead_bytes = mix(s->seed ^ 0x1ead) % 3 ? mix(s->seed ^ 0x1eada) % 2048 : SIZE_MAX;
	o->turn_bytes = mix(s->seed ^ 0x70b1) % 2 ? mix(s->seed ^ 0x70b2) % 8192 : 0;
	o->ahead_bytes = mix(s->seed ^ 0xa4ead) % 2 ? (uint32_t)(mix(s->seed ^ 0xa4eae) % 4096) : 0;
	io_threads_draw(s);
	o->has_restarts = s->seed % 16 == 7 || s->seed % 16 == 13;
	if (o->has_restarts)
		draw_restarts(s);
	if (s->seed % 32)
		elastic_draw(s);
	/* seeds whose remainder modulo 32 is 1, 8, 9, 13, 19, 25, 28 or 31 */
	o->has_near = UINT32_C(0x92082302) >> (s->seed % 32) & 1;
	o->has_drains = s->seed % 16 == 3 || s->seed % 16 == 11 || s->seed % 64 == 32;
	if (o->has_drains)
		drains_draw(s);
	if (s->seed % 32 == 12)
		hung_draw(s);
	if (s->seed % 8 == 1 || s->seed % 32 == 3 || s->seed % 32 == 16) {
		o->has_liar = s->seed % 16 == 9 || s->seed % 64 == 3;
		o->has_greedy = s->seed % 32 == 17;
		guests_draw(s);
	}
	o->has_old_plans = o->ctl_again_permille > 0;
	draw_blocks(s);
	draw_abstentions(s);
	values_draw(s);
	shards_draw(s);
	/* in a job that may end with an error anyway */
	if (o->may_fail && !elastic_is(s) && o->n_agents > 1 && mix(s->seed ^ 0x1ea4e) % 3 == 0)
		o->leaver = 1 + (unsigned)(mix(s->seed ^ 0x1ea4f) % o->n_agents);
}

/* ---- during a history ---- */

static unsigned servers_left(const struct sim *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->o.n_servers; i++)
		n += !s->servers[i].is_gone;
	return n;
}

static void pause_node(struct sim *s, struct sim_node *node, uint64_t span_ns)
{
	trace(s, "%s: paused for %.3f s", node->name, (double)span_ns / 1e9);
	if (node->paused_until < s->now + span_ns)
		node->paused_until = s->now + span_ns;
}

uint64_t agent_span(struct sim *s, uint64_t most_ns)
{
	uint64_t span = rnd_below(s, most_ns);

	if (!s->o.may_fail && s->agent_fault_ns + span > AGENT_FAULT_NS)
		span = AGENT_FAULT_NS - s->agent_fault_ns;
	s->agent_fault_ns += span;
	return span;
}

static struct sim_pipe *any_pipe(struct sim *s)
{
	struct sim_pipe *found = NULL;
	unsigned n = 0;

	for (struct sim_pipe *p = s->pipes; p; p = p->next)
		if (!p->is_broken && rnd_below(s, ++n) == 0)
			found = p;
	return found;
}

static struct sim_member *any_member(struct sim *s)
{
	unsigned i = (unsigned)rnd_below(s, s->o.n_servers + s->o.n_agents);

	return i < s->o.n_servers ? &s->servers[i].m : &s->agents[i - s->o.n_servers].m;
}

static void fault_server(struct sim *s, enum fault f)
{
	unsigned i = (unsigned)rnd_below(s, s->o.n_servers);
	struct sim_server *srv = &s->servers[i];

	if (!srv->node.is_up)
		return;
	if (f == F_SRV_PAUSE) {
		pause_node(s, &srv->node,
			rnd_chance(s, 300) ? rnd_below(s, 6 * S) : rnd_below(s, 500 * MS));
		return;
	}
	if (f == F_SRV_GONE) {
		if (servers_left(s) == 1)
			return;
		srv->is_gone = true;
		server_kill(s, i, rnd_chance(s, 500));
		return;
	}
	server_restart(
		s, i, rnd_chance(s, 300) ? rnd_between(s, 1 * S, 4 * S) : rnd_below(s, 500 * MS));
}

static void fault_agent(struct sim *s, enum fault f)
{
	struct sim_agent *a = &s->agents[rnd_below(s, s->o.n_agents)];

	if (!a->node.is_up)
		return;
	switch (f) {
	case F_AGT_PAUSE:
		pause_node(s, &a->node, agent_span(s, 1500 * MS));
		break;
	case F_AGT_LOSS:
		if (!rnd_chance(s, 300))
			break;
		/* mix() makes no random draw, so the later draws of recorded seeds stay the
		 * same. */
		if (s->o.is_shrink && mix(s->seed ^ s->now) % 2)
			device_lose(a);
		else
			agent_lose(s, a->idx);
		break;
	default:
		if (rnd_chance(s, 500))
			pause_node(s, &a->node, rnd_between(s, 4 * S, 8 * S));
		else
			a->m.cut_to = a->m.cut_from = s->now + rnd_between(s, 4 * S, 8 * S);
	}
}

static void fault_scheduler(struct sim *s, enum fault f)
{
	struct sim_sched *sc = &s->sched;

	if (f == F_PERSIST) {
		uint64_t span = rnd_below(s, 2 * S);

		sc->eio_until = s->now + span;
		return;
	}
	if (!sc->node.is_up)
		return;
	if (f == F_SCHED_KILL)
		sched_node_kill(s);
	else if (f == F_SCHED_PAUSE)
		pause_node(s, &sc->node, agent_span(s, 3 * S));
	else
		sc->die_after = 1 + (int)rnd_below(s, 12);
}

static uint64_t draw(void *ctx, uint64_t n)
{
	return rnd_below(ctx, n);
}

static void fault_move(struct sim *s)
{
	struct sim_sched *sc = &s->sched;

	if (!sc->node.is_up || sc->node.paused_until > s->now)
		return;
	move_parts(sc->core, draw, s);
	sched_tick(sc->core, s->now);
	sched_settle(s);
}

static void fault_control(struct sim *s, enum fault f)
{
	struct sim_member *m = any_member(s);
	uint64_t span;

	if (f == F_CTL_LOSS) {
		if (m->role == ROLE_AGENT && !s->o.may_fail && !agent_span(s, 300 * MS))
			return;
		ctl_break(s, m->conn);
		return;
	}
	span = m->role == ROLE_AGENT ? agent_span(s, 1500 * MS) : rnd_below(s, 5 * S);
	if (rnd_chance(s, 600))
		m->cut_to = s->now + span;
	if (rnd_chance(s, 600))
		m->cut_from = s->now + span;
}

static void fault_data(struct sim *s, enum fault f)
{
	struct sim_pipe *p = any_pipe(s);
	uint64_t until = s->now + rnd_below(s, 2 * S);

	if (!p)
		return;
	if (f == F_CONN_LOSS)
		pipe_break(s, p);
	else if (rnd_chance(s, 500))
		p->agent.cut_until = until;
	else
		p->server.cut_until = until;
}

static void fault_now(struct sim *s, enum fault f)
{
	trace(s, "fault: %s", fault_names[f]);
	s->tot->faults[f]++;
	switch (f) {
	case F_CONN_LOSS:
	case F_DATA_CUT:
		fault_data(s, f);
		break;
	case F_SRV_KILL:
	case F_SRV_GONE:
	case F_SRV_PAUSE:
		fault_server(s, f);
		break;
	case F_AGT_PAUSE:
	case F_AGT_LOSS:
	case F_AGT_LONG:
		fault_agent(s, f);
		break;
	case F_MOVE:
		fault_move(s);
		break;
	case F_CTL_LOSS:
	case F_CTL_CUT:
		fault_control(s, f);
		break;
	default:
		fault_scheduler(s, f);
	}
}

static void on_fault(struct sim *s, struct sim_event *e)
{
	unsigned f = (unsigned)rnd_below(s, F_COUNT);

	(void)e;
	if (s->now > s->faults_end)
		return;
	while (!(s->o.faults >> f & 1))
		f = (f + 1) % F_COUNT;
	fault_now(s, (enum fault)f);
	sim_post(s, NULL, 1 + rnd_below(s, 2 * s->o.fault_gap_ns), on_fault);
}

/* The faults are over: from now on the network works without faults. */
static void on_faults_end(struct sim *s, struct sim_event *e)
{
	struct sim_options *o = &s->o;

	(void)e;
	o->tail_permille = o->ctl_tail_permille = o->loss_permille = o->dup_permille =
		o->reorder_permille = 0;
	o->refuse_permille = o->ctl_again_permille = o->corrupt_permille = o->read_tail_permille =
		0;
}

static void on_deaf(struct sim *s, struct sim_event *e)
{
	struct sim_agent *a = &s->agents[rnd_below(s, s->o.n_agents)];
	uint64_t until = s->now + rnd_between(s, 1 * S, 20 * S);
	unsigned ways = 1 + (unsigned)rnd_below(s, 3);

	(void)e;
	if (s->now > s->faults_end)
		return;
	sim_post(s, NULL, rnd_below(s, 4 * S), on_deaf);
	if (!agent_is_settled(a))
		return;
	trace(s, "fault: %s is cut off from the scheduler", a->node.name);
	if (ways & 1)
		a->m.cut_to = until;
	if (ways & 2)
		a->m.cut_from = until;
}

static void begin(struct sim *s)
{
	s->faults_end = s->now + s->o.faults_ns;
	s->deadline = s->faults_end + SETTLE_NS;
	s->has_faults_begun = true;
	sim_post(s, NULL, s->o.faults_ns, on_faults_end);
	if (s->o.faults)
		sim_post(s, NULL, rnd_below(s, 2 * s->o.fault_gap_ns), on_fault);
	if (s->o.has_restarts)
		restarts_start(s);
	if (s->o.has_drains)
		drains_start(s);
	if (s->o.has_hung)
		hung_start(s);
	if (s->o.has_deaf)
		sim_post(s, NULL, rnd_below(s, 100 * MS), on_deaf);
}

void faults_start(struct sim *s)
{
	s->deadline = s->now + SETTLE_NS;
	if (!s->o.is_forming_calm)
		begin(s);
}

void faults_job_formed(struct sim *s)
{
	if (!s->has_faults_begun)
		begin(s);
}
