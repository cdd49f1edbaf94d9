/* Tensors whose value servers keep from round to round (V1 to V3). The deltas of a rank count its
 * rounds: element e belongs to rank e modulo the size of the job, and only this rank adds 1 to it.
 * So an answer shows how many deltas of each rank are in it. */
#include "tests/sim/sim.h"

#include <string.h>

bool values_is(const struct sim *s, unsigned t)
{
	return s->o.tensors[t].is_value;
}

void values_draw(struct sim *s)
{
	static const uint32_t bounds[] = {0, 1, 2, STALE_UNBOUNDED};
	struct sim_options *o = &s->o;

	if (o->is_deterministic || o->backup || o->is_elastic || device_is(s))
		return;
	for (unsigned t = 0; t < o->n_tensors; t++) {
		uint64_t any = mix(s->seed * TENSORS_MAX + t + 0x7a1);

		o->tensors[t].is_value = o->tensors[t].dtype == DTYPE_F32 && any % 3 == 0;
		if (o->tensors[t].is_value)
			o->tensors[t].stale = bounds[any >> 16 & 3];
	}
}

struct tensor_shape values_shape(const struct sim *s, unsigned t)
{
	struct tensor_shape shape =
		shape_from_dtype_and_count(s->o.tensors[t].dtype, s->o.tensors[t].n_values);

	shape.mode = values_is(s, t) ? MODE_VALUE : MODE_SUM;
	shape.owner = shards_is(s, t) ? OWNER_SHARDS : OWNER_ALL;
	shape.stale = s->o.tensors[t].stale;
	return shape;
}

void values_fill(const struct sim *s, unsigned t, uint32_t rank, float *dst)
{
	for (uint32_t i = 0; i < s->o.tensors[t].n_elems; i++)
		dst[i] = i % s->o.size == rank;
}

/* Return how many of the rank's deltas of the rounds up to `round` have values. */
static uint32_t n_given(const struct sim *s, unsigned t, uint32_t rank, uint64_t round)
{
	uint32_t n = 0;

	for (uint64_t r = 1; r <= round; r++)
		n += !s->o.abstain_permille || !oracle_abstains(s, t, rank, r);
	return n;
}

const struct sim_agent *sim_agent_of_rank(const struct sim *s, uint32_t rank, unsigned *ret_worker)
{
	for (unsigned i = 0; i < s->o.n_agents; i++)
		for (unsigned w = 0; w < s->agents[i].n_workers; w++)
			if (s->agents[i].has_job_msg && s->agents[i].workers[w].rank == rank) {
				*ret_worker = w;
				return &s->agents[i];
			}
	return NULL;
}

static void check_rank(struct sim *s, const struct sim_agent *a, unsigned t, uint64_t round,
	uint32_t rank, uint32_t n)
{
	uint64_t stale = s->o.tensors[t].stale, most, least;
	unsigned w = 0;
	const struct sim_agent *other = sim_agent_of_rank(s, rank, &w);

	if (!other)
		return; /* a machine that was lost, whose trainers have ended */
	most = other == a ? round : other->tensors[t].ring[w];
	least = other == a                                       ? round
		: s->o.may_fail                                  ? 0
		: stale == STALE_UNBOUNDED || round <= stale + 1 ? 1
								 : round - stale;
	if (n < n_given(s, t, rank, least) || n > n_given(s, t, rank, most))
		violation(s,
			"V2: %s tensor %u: the answer to round %llu has %u deltas of rank %u, not "
			"%u to %u",
			a->node.name, t, (unsigned long long)round, n, rank,
			n_given(s, t, rank, least), n_given(s, t, rank, most));
}

void values_result(struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const float *v)
{
	struct sim_tensor_state *ts = &a->tensors[t];
	uint32_t n = s->o.tensors[t].n_elems;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t rank = i % s->o.size, count = (uint32_t)v[i];

		if (v[i] != (float)count || count > ROUNDS_MAX) {
			violation(s, "V2: %s tensor %u round %llu: element %u is %g", a->node.name,
				t, (unsigned long long)round, i, v[i]);
			return;
		}
		check_rank(s, a, t, round, rank, count);
		if (count < ts->counts[i])
			violation(s, "V2: %s tensor %u round %llu: a delta of rank %u is gone",
				a->node.name, t, (unsigned long long)round, rank);
		ts->counts[i] = (uint8_t)count;
	}
}
