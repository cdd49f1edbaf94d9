/* Checks by an observer outside of the cores: sums are exact, all members receive the same bytes,
 * and under each pgen, a partition is on only one server thread. */
#include "tests/sim/peek.h"
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "common/data/block.h"
#include "common/data/crc32c.h"
#include "tests/unit/half.h"

uint32_t tensor_bytes(const struct sim *s, unsigned t)
{
	return s->o.tensors[t].n_elems * (uint32_t)dtype_bytes(s->o.tensors[t].dtype);
}

#define RANKS_MAX (AGENTS_MAX * WORKERS_MAX)

static uint64_t seed_of(const struct sim *s, unsigned t, uint32_t rank, uint64_t round)
{
	return mix(s->seed << 24 ^ round << 16 ^ (uint64_t)t << 8 ^ rank);
}

bool oracle_abstains(const struct sim *s, unsigned t, uint32_t rank, uint64_t round)
{
	return mix(seed_of(s, t, rank, round) ^ 0xab57a1) % 1000 < s->o.abstain_permille;
}

uint32_t oracle_abstained_members(const struct sim *s, unsigned t, uint64_t round)
{
	const struct oracle *o = &s->oracle;
	uint32_t all = 0;

	for (unsigned m = 0; s->o.abstain_permille && m < o->n_members; m++) {
		unsigned k = 0;

		while (k < o->n_ranks[m] && oracle_abstains(s, t, o->ranks[m][k], round))
			k++;
		all |= k == o->n_ranks[m] ? 1u << m : 0;
	}
	return all;
}

/* Values of the ranks for a tensor and a round. */
struct given {
	uint64_t seeds[RANKS_MAX]; /* seeds of the ranks' values */
	bool is_given[RANKS_MAX];  /* false: the rank abstains */
	uint32_t n;                /* number of the job's ranks that give values */
};

static struct given given_values(const struct sim *s, unsigned t, uint64_t round)
{
	struct given g = {.n = 0};

	for (uint32_t r = 0; r < RANKS_MAX; r++) {
		g.seeds[r] = seed_of(s, t, r, round);
		g.is_given[r] = !s->o.abstain_permille || !oracle_abstains(s, t, r, round);
		g.n += r < s->o.size && g.is_given[r];
	}
	return g;
}

/* Return element i of an i32 tensor. The bits are arbitrary. For an average the value is small, so
 * that the sum does not overflow. */
static uint32_t int_at(uint64_t seed, uint8_t op, uint32_t i)
{
	uint32_t v = (uint32_t)seed + i * ((uint32_t)(seed >> 32) | 1);

	return op == OP_SUM ? v : (uint32_t)((int32_t)v >> 8);
}

/* Return element i of an f32 tensor. The magnitudes of the elements differ so much that the bits of
 * the sum depend on the order of the additions. */
static float float_at(uint64_t seed, uint32_t i)
{
	uint32_t v = (uint32_t)seed + i * ((uint32_t)(seed >> 32) | 1);
	uint32_t bits = (127 - (v & 15)) << 23; /* 2 to the power of minus (v & 15) */
	float scale;

	memcpy(&scale, &bits, sizeof(scale));
	return (float)((int32_t)v >> 8) * scale;
}

static int small_int_at(uint64_t seed, uint32_t i)
{
	return (int)((seed + i) % 15) - 7;
}

/* Return element i of a bf16 tensor: a small integer, so that sums are exact in every order. */
static uint16_t bf16_at(uint64_t seed, uint32_t i)
{
	float f = (float)small_int_at(seed, i);
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* Unit of the elements of f16 tensors, of which averages are computed. The sum of two large
 * elements is too large for f16. */
#define F16_UNIT 8192
/* Largest error of an average: it is rounded to f16 at its machine and at the server, each time by
 * at most half of the distance of two f16 numbers, which is at most 32. */
#define F16_ERROR 32.01

/* Return element i of an f16 tensor. */
static uint16_t f16_at(uint64_t seed, uint32_t i)
{
	return half_round(small_int_at(seed, i) * F16_UNIT);
}

/* Return whether `half` is the sum, or for f16 the average, of n elements with the sum `sum`. */
static bool half_is(uint8_t dtype, uint16_t half, int sum, uint32_t n)
{
	uint32_t bits = (uint32_t)half << 16;
	float got;

	if (!n)
		return half == 0;
	if (dtype == DTYPE_F16) /* 31: exponent of infinity and NaN */
		return (half >> 10 & 31) != 31 &&
		       fabs(half_value(half) - (double)sum * F16_UNIT / n) <= F16_ERROR;
	memcpy(&got, &bits, sizeof(got));
	return got == (float)sum;
}

#define BLOCK_VALUES 64 /* values of a block of type q4 */

/* Store the values of a block of a tensor of type q4: small integers, of which the first is the
 * largest. So the worker's block and sums of workers' values have these values exactly, in every
 * order of addition. The last block repeats its values until it is full. */
static void block_values_at(
	const struct sim *s, unsigned t, uint64_t seed, uint32_t block, float ret[BLOCK_VALUES])
{
	uint32_t first = block * BLOCK_VALUES, n = s->o.tensors[t].n_values - first;

	for (uint32_t i = 0; i < BLOCK_VALUES; i++)
		ret[i] = (float)small_int_at(seed, first + i % n);
	for (uint32_t i = 0; i < BLOCK_VALUES; i += n)
		ret[i] = 7;
}

static void blocks_fill(const struct sim *s, unsigned t, uint64_t seed, unsigned char *dst)
{
	size_t elem = dtype_bytes(DTYPE_Q4);
	float v[BLOCK_VALUES];

	for (uint32_t b = 0; b < s->o.tensors[t].n_elems; b++) {
		block_values_at(s, t, seed, b, v);
		block_encode(dst + b * elem, v, NULL, BLOCK_VALUES, 1, DTYPE_Q4);
	}
}

void oracle_fill(struct sim *s, unsigned t, uint32_t rank, uint64_t round, void *dst)
{
	uint64_t seed = seed_of(s, t, rank, round);
	uint32_t n = s->o.tensors[t].n_elems;
	uint8_t op = s->o.tensors[t].op;

	if (dtype_is_block(s->o.tensors[t].dtype)) {
		blocks_fill(s, t, seed, dst);
		return;
	}
	if (values_is(s, t)) {
		values_fill(s, t, rank, dst);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		switch (s->o.tensors[t].dtype) {
		case DTYPE_I32:
			((uint32_t *)dst)[i] = int_at(seed, op, i);
			break;
		case DTYPE_F32:
			((float *)dst)[i] = float_at(seed, i);
			break;
		case DTYPE_F16:
			((uint16_t *)dst)[i] = f16_at(seed, i);
			break;
		default:
			((uint16_t *)dst)[i] = bf16_at(seed, i);
		}
	}
}

/* The result for one element of an i32 tensor, made of the values of n ranks. */
struct int_fold {
	uint32_t sum, all, any, odd;
	int64_t wide, n;
	int32_t most;
};

static void int_fold_add(struct int_fold *f, uint32_t x)
{
	f->sum += x;
	f->all = f->n ? f->all & x : x;
	f->any |= x;
	f->odd ^= x;
	f->most = !f->n || (int32_t)x > f->most ? (int32_t)x : f->most;
	f->wide += (int32_t)x;
	f->n++;
}

static uint32_t int_fold_result(const struct int_fold *f, uint8_t op)
{
	switch (op) {
	case OP_MAX:
		return (uint32_t)f->most;
	case OP_BAND:
		return f->all;
	case OP_BOR:
		return f->any;
	case OP_BXOR:
		return f->odd;
	case OP_AVG: /* an average of integers is rounded down */
		return f->n ? (uint32_t)(int32_t)((f->wide - (f->wide < 0 ? f->n - 1 : 0)) / f->n)
			    : 0;
	default:
		return f->sum;
	}
}

static bool int_is_right(const struct sim *s, unsigned t, const struct given *g, const uint32_t *v)
{
	uint8_t op = s->o.tensors[t].op;

	for (uint32_t i = 0; i < s->o.tensors[t].n_elems; i++) {
		struct int_fold f = {0};

		for (uint32_t r = 0; r < s->o.size; r++)
			if (g->is_given[r])
				int_fold_add(&f, int_at(g->seeds[r], op, i));
		if (v[i] != int_fold_result(&f, op))
			return false;
	}
	return true;
}

/* Check a sum that is not an average. Such sums are the most frequent case, so avoid a loop over
 * the ranks for each element. */
static bool int_sum_is_right(
	const struct sim *s, unsigned t, const struct given *g, const uint32_t *v)
{
	uint32_t base = 0, step = 0, bad = 0;

	for (uint32_t r = 0; r < s->o.size; r++) {
		uint64_t seed = g->seeds[r];

		if (!g->is_given[r])
			continue;
		base += (uint32_t)seed;
		step += (uint32_t)(seed >> 32) | 1;
	}
	for (uint32_t i = 0; i < s->o.tensors[t].n_elems; i++)
		bad |= v[i] ^ (base + i * step);
	return !bad;
}

/* Check a sum of floats. The outer loop is over the ranks, so that compilers vectorise the inner
 * one. */
static bool float_is_right(const struct sim *s, unsigned t, const struct given *g, const float *v)
{
	const struct oracle *o = &s->oracle;
	uint32_t n = s->o.tensors[t].n_elems, bad = 0;
	float sum[ELEMS_MAX] = {0}, weight[ELEMS_MAX] = {0}, part[ELEMS_MAX] = {0};
	bool is_first = true;

	for (unsigned m = 0; m < o->n_members; m++) {
		unsigned n_given = 0;

		for (unsigned k = 0; k < o->n_ranks[m]; k++) {
			uint64_t seed = g->seeds[o->ranks[m][k]];

			if (!g->is_given[o->ranks[m][k]])
				continue;
			for (uint32_t i = 0; i < n; i++) {
				float x = float_at(seed, i);

				part[i] = n_given ? part[i] + x : x;
				weight[i] += x < 0 ? -x : x;
			}
			n_given++;
		}
		for (uint32_t i = 0; n_given && i < n; i++)
			sum[i] = is_first ? part[i] : sum[i] + part[i];
		is_first = is_first && !n_given;
	}
	if (s->o.is_deterministic && memcmp(sum, v, n * sizeof(float)) != 0)
		return false;
	for (uint32_t i = 0; i < n; i++)
		bad |= !(v[i] - sum[i] <= weight[i] * 1e-5f && sum[i] - v[i] <= weight[i] * 1e-5f);
	return !bad;
}

static bool half_is_right(const struct sim *s, unsigned t, const struct given *g, const uint16_t *v)
{
	for (uint32_t i = 0; i < s->o.tensors[t].n_elems; i++) {
		int sum = 0;

		for (uint32_t r = 0; r < s->o.size; r++)
			sum += g->is_given[r] ? small_int_at(g->seeds[r], i) : 0;
		if (!half_is(s->o.tensors[t].dtype, v[i], sum, g->n))
			return false;
	}
	return true;
}

static bool int_part_is_sum(const struct sim *s, unsigned t, const struct given *g, uint32_t i,
	uint32_t members, uint32_t got)
{
	const struct oracle *o = &s->oracle;
	uint8_t op = s->o.tensors[t].op;
	struct int_fold f = {0};

	for (unsigned m = 0; m < o->n_members; m++)
		for (unsigned k = 0; members >> m & 1 && k < o->n_ranks[m]; k++)
			if (g->is_given[o->ranks[m][k]])
				int_fold_add(&f, int_at(g->seeds[o->ranks[m][k]], op, i));
	return got == int_fold_result(&f, op);
}

static bool float_part_is_sum(
	const struct sim *s, const struct given *g, uint32_t i, uint32_t members, float got)
{
	const struct oracle *o = &s->oracle;
	float sum = 0, weight = 0;
	bool is_first = true;

	for (unsigned m = 0; m < o->n_members; m++) {
		float part = 0;
		unsigned n_given = 0;

		for (unsigned k = 0; members >> m & 1 && k < o->n_ranks[m]; k++) {
			float x = float_at(g->seeds[o->ranks[m][k]], i);

			if (!g->is_given[o->ranks[m][k]])
				continue;
			part = n_given++ ? part + x : x;
			weight += x < 0 ? -x : x;
		}
		if (!n_given)
			continue;
		sum = is_first ? part : sum + part;
		is_first = false;
	}
	if (s->o.is_deterministic && memcmp(&sum, &got, sizeof(sum)) != 0)
		return false;
	return got - sum <= weight * 1e-5f && sum - got <= weight * 1e-5f;
}

static bool half_part_is_sum(const struct sim *s, unsigned t, const struct given *g, uint32_t i,
	uint32_t members, uint16_t half)
{
	const struct oracle *o = &s->oracle;
	uint32_t n = 0;
	int sum = 0;

	for (unsigned m = 0; m < o->n_members; m++)
		for (unsigned k = 0; members >> m & 1 && k < o->n_ranks[m]; k++) {
			if (!g->is_given[o->ranks[m][k]])
				continue;
			sum += small_int_at(g->seeds[o->ranks[m][k]], i);
			n++;
		}
	return half_is(s->o.tensors[t].dtype, half, sum, n);
}

/* Compute one block of the result (N3): a machine encodes the sum of several workers once, and the
 * server encodes the sum of the machines once. */
static void block_result(const struct sim *s, unsigned t, const struct given *g, uint32_t block,
	uint32_t members, unsigned char *ret)
{
	const struct oracle *o = &s->oracle;
	float sum[BLOCK_VALUES] = {0}, part[BLOCK_VALUES], v[BLOCK_VALUES];
	uint32_t workers = 0;

	for (unsigned m = 0; m < o->n_members; m++) {
		unsigned n_given = 0;

		if (!(members >> m & 1))
			continue;
		memset(part, 0, sizeof(part));
		for (unsigned k = 0; k < o->n_ranks[m]; k++) {
			if (!g->is_given[o->ranks[m][k]])
				continue;
			block_values_at(s, t, g->seeds[o->ranks[m][k]], block, v);
			for (uint32_t i = 0; i < BLOCK_VALUES; i++)
				part[i] += v[i];
			n_given++;
		}
		workers += n_given;
		if (n_given > 1) {
			block_encode(ret, part, NULL, BLOCK_VALUES, 1, DTYPE_Q4);
			block_decode(part, ret, BLOCK_VALUES, 1, DTYPE_Q4);
		}
		for (uint32_t i = 0; i < BLOCK_VALUES; i++)
			sum[i] += part[i];
	}
	for (uint32_t i = 0; i < BLOCK_VALUES && s->o.tensors[t].op == OP_AVG && workers; i++)
		sum[i] /= (float)workers;
	if (workers)
		block_encode(ret, sum, NULL, BLOCK_VALUES, 1, DTYPE_Q4);
	else
		memset(ret, 0, dtype_bytes(DTYPE_Q4));
}

static bool blocks_are_right(const struct sim *s, unsigned t, const struct given *g, uint32_t first,
	uint32_t n, uint32_t members, const unsigned char *v)
{
	size_t elem = dtype_bytes(DTYPE_Q4);
	unsigned char want[BLOCK_VALUES];

	for (uint32_t b = first; b < first + n; b++) {
		block_result(s, t, g, b, members, want);
		if (memcmp(v + b * elem, want, elem) != 0)
			return false;
	}
	return true;
}

bool oracle_is_sum(const struct sim *s, unsigned t, uint64_t round, uint32_t first, uint32_t n,
	uint32_t members, const void *v)
{
	struct given g = given_values(s, t, round);
	bool is_sum = !(members & oracle_abstained_members(s, t, round));

	if (is_sum && dtype_is_block(s->o.tensors[t].dtype))
		return blocks_are_right(s, t, &g, first, n, members, v);
	for (uint32_t i = first; is_sum && i < first + n; i++) {
		switch (s->o.tensors[t].dtype) {
		case DTYPE_I32:
			is_sum = int_part_is_sum(s, t, &g, i, members, ((const uint32_t *)v)[i]);
			break;
		case DTYPE_F32:
			is_sum = float_part_is_sum(s, &g, i, members, ((const float *)v)[i]);
			break;
		default:
			is_sum = half_part_is_sum(s, t, &g, i, members, ((const uint16_t *)v)[i]);
		}
	}
	return is_sum;
}

static bool is_right(const struct sim *s, unsigned t, uint64_t round, const void *v)
{
	struct given g = given_values(s, t, round);

	switch (s->o.tensors[t].dtype) {
	case DTYPE_I32:
		return s->o.tensors[t].op == OP_SUM ? int_sum_is_right(s, t, &g, v)
						    : int_is_right(s, t, &g, v);
	case DTYPE_F32:
		return float_is_right(s, t, &g, v);
	case DTYPE_Q4:
		return blocks_are_right(s, t, &g, 0, s->o.tensors[t].n_elems, UINT32_MAX, v);
	default:
		return half_is_right(s, t, &g, v);
	}
}

void oracle_result(struct sim *s, struct sim_agent *a, unsigned t, uint64_t round,
	const void *bytes, uint32_t workers)
{
	struct result *r = &s->oracle.results[t][round];
	uint32_t crc = a->tensors[t].crc[round & 1], n_given = given_values(s, t, round).n;

	s->tot->rounds++;
	trace(s, "%s: round %llu of tensor %u is done", a->node.name, (unsigned long long)round, t);
	if (values_is(s, t)) {
		values_result(s, a, t, round, bytes);
		return;
	}
	if (elastic_is(s)) {
		elastic_result(s, a, t, round, bytes);
		return;
	}
	if (workers != n_given)
		violation(s, "I4: %s tensor %u round %llu: sum of %u workers, not of %u",
			a->node.name, t, (unsigned long long)round, workers, n_given);
	if (shards_is(s, t)) {
		shards_result(s, a, t, round, bytes);
		return;
	}
	if (r->is_known && r->crc != crc)
		violation(s,
			"I2: %s tensor %u round %llu: bytes differ from those of another agent",
			a->node.name, t, (unsigned long long)round);
	if (!r->is_known && !is_right(s, t, round, bytes))
		violation(s, "I3: %s tensor %u round %llu: the sum is wrong", a->node.name, t,
			(unsigned long long)round);
	r->is_known = true;
	r->crc = crc;
}

void oracle_donated(struct sim *s, const struct peek *p)
{
	struct oracle *o = &s->oracle;

	if (p->job == o->job && o->n_donations < DONATIONS_MAX)
		o->donations[o->n_donations++] = (struct donation){
			p->pgen, (uint8_t)p->tensor, (uint8_t)p->part, (uint8_t)p->round};
}

static bool was_donated(const struct oracle *o, const struct peek *p)
{
	for (unsigned i = 0; i < o->n_donations; i++)
		if (o->donations[i].pgen == p->pgen && o->donations[i].tensor == p->tensor &&
			o->donations[i].part == p->part && o->donations[i].round == p->round)
			return true;
	return o->n_donations == DONATIONS_MAX;
}

/* Return whether the tensor that has this number in messages is a value. */
static bool is_number_of_value(const struct sim *s, uint32_t id)
{
	for (unsigned a = 0; a < s->o.n_agents; a++)
		for (unsigned t = 0; t < s->o.n_tensors; t++)
			if (values_is(s, t) && s->agents[a].tensors[t].is_planned &&
				s->agents[a].tensors[t].id == id)
				return true;
	return false;
}

void oracle_taken(struct sim *s, const struct peek *p)
{
	struct oracle *o = &s->oracle;
	uint64_t *made;

	if (p->job != o->job)
		return;
	if (s->o.is_shrink)
		return; /* A result may be computed again when all machines that had it are lost. */
	if (p->tensor >= TENSORS_MAX || p->part >= PARTS_MAX || p->round > ROUNDS_MAX)
		return;
	if (is_number_of_value(s, p->tensor))
		return;
	made = &o->made[p->tensor][p->part][p->round];
	if (!*made)
		*made = p->pgen;
	else if (*made != p->pgen && !was_donated(o, p))
		violation(s,
			"I2: tensor %u part %u round %llu was summed under pgen %llx and again "
			"under %llx",
			p->tensor, p->part, (unsigned long long)p->round, (unsigned long long)*made,
			(unsigned long long)p->pgen);
}

static bool has_results(const struct oracle *o)
{
	for (unsigned t = 0; t < TENSORS_MAX; t++)
		for (unsigned r = 0; r <= ROUNDS_MAX; r++)
			if (o->results[t][r].is_known)
				return true;
	return false;
}

void oracle_job(struct sim *s, const struct ctl_job *job)
{
	struct oracle *o = &s->oracle;

	if (strcmp(job->name, "j") != 0 || job->uid != 1000)
		return; /* the job of a guest or of a misbehaving agent: not checked here */
	if (o->job && o->job != job->job && s->o.is_elastic)
		/* In an elastic history, agents may join after the end of the first job. These
		 * agents form a new job. */
		return;
	if (o->job && o->job != job->job) {
		if (has_results(o)) {
			violation(s, "the job formed twice");
			return;
		}
		/* The agents of the job's workers died repeatedly. The job ended before any worker
		 * was informed that the job had formed. The workers join again and form a new
		 * job. */
		*o = (struct oracle){0};
	}
	if (elastic_is(s))
		elastic_job(s, job);
	if (o->job)
		return;
	o->job = job->job;
	faults_job_formed(s);
	o->n_members = job->n_members;
	for (unsigned i = 0; i < job->n_members; i++) {
		o->n_ranks[i] = job->members[i].n_ranks;
		for (unsigned k = 0; k < job->members[i].n_ranks; k++)
			o->ranks[i][k] = job->members[i].ranks[k].rank;
	}
}

/* Check that all plans with the same pgen assign a partition to the same server, instance and
 * thread. */
static void home_seen(struct sim *s, uint32_t job, const struct ctl_run *run, uint32_t part)
{
	struct oracle *o = &s->oracle;
	struct sim_home h = {run->pgen, run->instance, run->server, job, (uint16_t)run->tensor,
		(uint16_t)part, run->thread};

	for (unsigned i = o->n_homes; i-- > 0;) {
		const struct sim_home *k = &o->homes[i];

		if (k->tensor != h.tensor || k->part != h.part || k->pgen != h.pgen ||
			k->job != h.job)
			continue;
		if (k->instance != h.instance || k->server != h.server || k->thread != h.thread)
			violation(s, "C1: tensor %u part %u has two homes under pgen %llx",
				run->tensor, part, (unsigned long long)run->pgen);
		return;
	}
	if (o->n_homes < HOMES_MAX)
		o->homes[o->n_homes++] = h;
}

void oracle_plan(struct sim *s, const struct ctl_plan *plan)
{
	for (uint32_t i = 0; i < plan->n_runs; i++)
		for (uint32_t k = 0; k < plan->runs[i].n; k++)
			home_seen(s, plan->job, &plan->runs[i], plan->runs[i].first + k);
}

static void job_ends(struct sim *s, const struct ctl_job_end *msg)
{
	struct oracle *o = &s->oracle;

	if (msg->job != o->job || msg->code == (uint32_t)-BPS_EEVICTED)
		return;
	if (o->has_end && o->end_code != msg->code)
		violation(s, "C7: the job ended with code %u for some workers, %u for others: %s",
			o->end_code, msg->code, msg->text);
	if (elastic_is(s) && !elastic_may_end(s, msg->code))
		violation(s, "the job failed although some workers remained: %s", msg->text);
	if (msg->code && !s->o.may_fail)
		violation(s, "the job failed although no fault allows it: %s", msg->text);
	o->has_end = true;
	o->end_code = msg->code;
}

void oracle_sched_sends(struct sim *s, const struct sim_member *to, const struct ctl_msg *msg)
{
	uint64_t view = 0;

	if (msg->type == CTL_WELCOME)
		view = msg->welcome.view;
	else if (msg->type == CTL_PEERS)
		view = msg->peers.view;
	else if (msg->type == CTL_JOB)
		view = msg->job.view;
	else if (msg->type == CTL_PLAN)
		view = msg->plan.view;
	else if (msg->type == CTL_BEAT)
		view = msg->beat.view;
	/* Check JOB_END only at agents of the main job. A misbehaving guest (byzantine.c) may
	 * receive JOB_END for the main job, because it sends messages about any job. */
	else if (msg->type == CTL_JOB_END && to->idx < AGENTS_MAX)
		job_ends(s, &msg->job_end);
	if (view > s->sched.durable_view)
		violation(s, "I10: the scheduler sends view %llx, but only view %llx is durable",
			(unsigned long long)view, (unsigned long long)s->sched.durable_view);
}
