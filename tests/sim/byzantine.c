/* A misbehaving agent (I12). It changes messages of its core before they are sent, and makes up
 * messages that no core would send. The messages concern its own job and other jobs, with existing
 * and invented pgens, rounds and members. All of them are well-formed, since the tests and fuzzers
 * of the decoders cover malformed ones. The agent may damage its own job and nothing else. */
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <string.h>

#define LIE_PERMILLE 150
/* name of a tensor that the scheduler must refuse, since all its shapes are impossible */
#define REFUSED    "refused"
#define JUNK_BYTES WIRE_INLINE_MAX

static uint32_t any_job(struct sim *s)
{
	switch (rnd_below(s, 6)) {
	case 0:
	case 1:
		return s->oracle.job;
	case 2:
		return s->guest_jobs[1].id;
	case 3:
		return (uint32_t)rnd_below(s, 5000);
	default:
		return s->guest_jobs[0].id;
	}
}

/* Return a random pgen. It is near the pgen of a recent partition, or near the durable view, or,
 * rarely, any number. */
static uint64_t any_pgen(struct sim *s)
{
	uint64_t pgen = rnd(s);

	if (rnd_chance(s, 100))
		return pgen;
	if (s->oracle.n_homes && rnd_chance(s, 500)) {
		unsigned back =
			(unsigned)rnd_below(s, s->oracle.n_homes < 12 ? s->oracle.n_homes : 12);

		pgen = s->oracle.homes[s->oracle.n_homes - 1 - back].pgen;
	} else {
		pgen = s->sched.durable_view - rnd_below(s, 4);
	}
	return pgen + rnd_below(s, 10) / 9;
}

static uint64_t any_round(struct sim *s)
{
	return rnd_chance(s, 50) ? rnd(s) : rnd_below(s, ROUNDS_MAX + 2);
}

static uint16_t any_member(struct sim *s)
{
	return (uint16_t)(rnd_chance(s, 50) ? rnd(s) : rnd_below(s, AGENTS_MAX));
}

/* Change a random field of a message. */
static void twist(struct sim *s, struct wire_msg *m)
{
	switch (rnd_below(s, 12)) {
	case 0:
		m->pgen = any_pgen(s);
		break;
	case 1:
	case 2:
		m->round += rnd_below(s, 5) - 2;
		break;
	case 3:
		m->member = any_member(s);
		break;
	case 4:
		m->crc ^= 1u << rnd_below(s, 32);
		break;
	case 5:
		m->job = any_job(s);
		break;
	case 6:
		m->tensor = (uint32_t)rnd_below(s, 4);
		break;
	case 7:
		m->part = (uint32_t)rnd_below(s, 5);
		break;
	case 8:
		m->segment = (uint16_t)rnd_below(s, 4);
		m->offset = rnd_below(s, 8192);
		break;
	case 9:
		if (!(m->flags & WIRE_INLINE))
			m->len = (uint32_t)rnd_below(s, 4096);
		break;
	case 10:
		if (m->type == WIRE_CONTRIB)
			m->contrib.workers = (uint32_t)rnd_below(s, 5);
		else
			m->result.workers = (uint32_t)rnd_below(s, 5);
		break;
	default:
		if (m->type == WIRE_CONTRIB)
			m->contrib.crc_prev ^= 1;
		else if (m->type == WIRE_DONATE)
			m->result.contributors.w[0] = rnd(s);
	}
}

static void made_up(struct sim *s, struct wire_msg *m, const uint8_t *junk)
{
	static const uint8_t types[] = {WIRE_CONTRIB, WIRE_CONTRIB, WIRE_CONTRIB, WIRE_HAVE,
		WIRE_HAVE, WIRE_DONATE, WIRE_DONATE, WIRE_GOT, WIRE_GOT, WIRE_RESULT, WIRE_HAVE_OK,
		WIRE_DONATE_REQ, WIRE_AGAIN, WIRE_BAD_CRC};

	*m = (struct wire_msg){.type = types[rnd_below(s, sizeof(types))],
		.crc = (uint32_t)rnd(s),
		.pgen = any_pgen(s),
		.round = any_round(s),
		.job = any_job(s),
		.tensor = (uint32_t)rnd_below(s, TENSORS_MAX + 1),
		.part = (uint32_t)rnd_below(s, PARTS_DRAWN + 1),
		.member = any_member(s),
		.priority = (uint16_t)rnd(s),
		.segment = WIRE_NO_SEGMENT};
	if (m->type != WIRE_CONTRIB && m->type != WIRE_DONATE && m->type != WIRE_RESULT)
		return;
	m->len = 4 * (uint32_t)rnd_between(s, 1, 256);
	if (m->len <= WIRE_INLINE_MAX) {
		m->flags = WIRE_INLINE;
		m->payload = junk;
	} else {
		m->segment = (uint16_t)rnd_below(s, 3);
		m->offset = rnd_below(s, 2048);
	}
	if (m->type == WIRE_CONTRIB) {
		m->contrib.op = (uint8_t)rnd_below(s, OP_COUNT + 1);
		m->contrib.workers = (uint32_t)rnd_below(s, 4);
		return;
	}
	m->result.workers = (uint32_t)rnd_below(s, 4);
	m->result.n_members = (uint16_t)rnd_below(s, AGENTS_MAX + 1);
	m->result.contributors.w[0] = rnd(s) & 15;
}

void liar_twists(struct sim *s, struct wire_msg *m)
{
	if (rnd_chance(s, LIE_PERMILLE)) {
		twist(s, m);
		s->tot->lies++;
	}
}

static struct sim_pipe *any_pipe_of(struct sim *s, const struct sim_port *port)
{
	struct sim_pipe *found = NULL;
	unsigned n = 0;

	for (struct sim_pipe *p = s->pipes; p; p = p->next)
		if (p->agent.port == port && p->agent.is_open && rnd_below(s, ++n) == 0)
			found = p;
	return found;
}

/* ---- to the scheduler ---- */

static void lie_to_scheduler(struct guest *g)
{
	struct sim *s = g->s;
	struct ctl_decl decl = {(uint32_t)rnd_below(s, 4), "t1",
		shape_from_dtype_and_count(DTYPE_F32, rnd_below(s, 1000)), 0};
	struct ctl_decl twice[2] = {
		{g->rank, REFUSED, shape_from_dtype_and_count(DTYPE_F64, UINT64_C(1) << 38), 0},
		{g->rank, REFUSED, shape_from_dtype_and_count(DTYPE_U8, decl.shape.n_values + 1),
			0}};
	struct ctl_report_worker worker = {.rank = (uint32_t)rnd_below(s, 9)};
	uint32_t job = any_job(s), rank = (uint32_t)rnd_below(s, 9);
	struct ctl_msg msg;

	switch (rnd_below(s, 7)) {
	case 0:
		msg = (struct ctl_msg){
			CTL_WORKER, .worker = {job, rank, WORKER_FINISHED, .text = ""}};
		break;
	case 1:
		msg = (struct ctl_msg){
			CTL_WORKER, .worker = {job, rank, WORKER_LOST, .text = "lie"}};
		break;
	case 2:
		msg = (struct ctl_msg){
			CTL_FAIL, .fail = {job, (uint32_t)rnd_below(s, 20000), "lie"}};
		break;
	case 3:
		if (decl.shape.n_values % 2)
			msg = (struct ctl_msg){CTL_DECLARE, .declare = {g->job_id, twice, 2}};
		else
			msg = (struct ctl_msg){CTL_DECLARE, .declare = {job, &decl, 1}};
		break;
	case 4: /* a job of the same name but another user is a different job */
		msg = (struct ctl_msg){CTL_JOIN, .join = {.seq = 2,
							 .uid = LIAR_UID,
							 .job = "j",
							 .rank = rank,
							 .size = 9,
							 .pid = 1}};
		break;
	case 5:
		msg = (struct ctl_msg){
			CTL_REPORT, .report = {(uint32_t)rnd_below(s, 4), job, "lie", &worker, 1}};
		break;
	default:
		msg = (struct ctl_msg){
			CTL_SEEN, .sight = {(uint32_t)rnd_below(s, 9), s->agents[0].m.instance, 0}};
	}
	s->tot->lies++;
	sim_member_send(&g->m, &msg);
}

static void on_lie(struct sim *s, struct sim_event *e)
{
	static const uint8_t junk[JUNK_BYTES];
	struct guest *g = e->p;
	struct sim_pipe *p = any_pipe_of(s, &g->port);
	struct wire_msg m;

	if (s->has_faults_begun && s->now > s->faults_end + 500 * MS)
		return;
	sim_post(s, &g->node, 1 + rnd_below(s, 2 * s->o.lie_gap_ns), on_lie)->p = g;
	if (rnd_chance(s, 100)) {
		lie_to_scheduler(g);
	} else if (p) {
		made_up(s, &m, junk);
		s->tot->lies++;
		sim_net_say(&p->agent, &m);
	}
}

void liar_check(struct sim *s)
{
	for (unsigned i = 0; i < GUEST_JOBS; i++)
		if (!peek_is_refused(s->sched.core, s->guest_jobs[i].id, REFUSED))
			violation(s, "C9: a refused tensor was accepted in another shape");
}

void liar_start(struct guest *g)
{
	struct sim *s = g->s;

	s->o.lie_gap_ns = (500 * US) << rnd_below(s, 8);
	g->port.is_liar = true;
	sim_post(s, &g->node, rnd_below(s, 100 * MS), on_lie)->p = g;
}
