/* Tensors in shards (O1): the worker of rank r gets only shard r of a sum. A shard that another
 * machine owns is not checked here, but no machine may have learned of a round before the owners of
 * all shards have it. */
#include "tests/sim/sim.h"

#include <stdatomic.h>

bool shards_is(const struct sim *s, unsigned t)
{
	return s->o.tensors[t].is_sharded;
}

void shards_draw(struct sim *s)
{
	struct sim_options *o = &s->o;

	if (o->backup || o->is_shrink || o->is_elastic || o->has_greedy || device_is(s))
		return;
	for (unsigned t = 0; t < o->n_tensors; t++) {
		uint32_t shard = o->tensors[t].n_elems / o->size;

		if (values_is(s, t) || !shard || mix(s->seed * TENSORS_MAX + t + 0x54a2d) % 3)
			continue;
		o->tensors[t].is_sharded = true;
		o->tensors[t].n_elems = shard * o->size;
		o->tensors[t].n_values =
			shard * o->size * (uint32_t)dtype_values(o->tensors[t].dtype);
	}
}

/* Check that the owners of all shards have the sum of the round. */
static void check_owners(struct sim *s, const struct sim_agent *a, unsigned t, uint64_t round)
{
	const struct tensor_shape shape = values_shape(s, t);
	uint32_t each = a->tensors[t].part_elems;
	unsigned n = (unsigned)shape_partition_count(&shape, s->o.size, each), w;

	for (unsigned part = 0; part < n; part++) {
		uint32_t rank = shape_part_shard(&shape, s->o.size, each, part);
		const struct sim_agent *owner = sim_agent_of_rank(s, rank, &w);

		if (owner && owner != a &&
			atomic_load(&owner->tensors[t].kept[part].landed) < round)
			violation(s,
				"O1: %s tensor %u round %llu: the round is over, but %s, which "
				"owns partition %u, does not have it",
				a->node.name, t, (unsigned long long)round, owner->node.name, part);
	}
}

void shards_result(
	struct sim *s, struct sim_agent *a, unsigned t, uint64_t round, const uint8_t *bytes)
{
	uint32_t shard = s->o.tensors[t].n_elems / s->o.size;
	uint32_t members = (1u << s->oracle.n_members) - 1;

	members &= ~oracle_abstained_members(s, t, round);
	for (unsigned w = 0; w < a->n_workers; w++)
		if (!oracle_is_sum(s, t, round, a->workers[w].rank * shard, shard, members, bytes))
			violation(s, "I3: %s tensor %u round %llu: shard %u is wrong", a->node.name,
				t, (unsigned long long)round, a->workers[w].rank);
	if (s->oracle.n_members > 1)
		check_owners(s, a, t, round);
}
