/* Tests the choice of a route for the members of a job. The choice depends on the places of the
 * members' GPUs. The places are read from sysfs and from the device. */
#include "bps-agent/executor/plan/choose.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/topo_fixture.h"

/* A device whose GPUs are those of a machine described in tests/topologies. */
struct described {
	struct device base;
	const struct topo_fixture *f;
	uint32_t caps;
};

static int described_gpus(struct device *dev, struct device_gpu *ret, int max)
{
	struct described *d = (struct described *)dev;

	assert_true(max >= (int)d->f->n_reports);
	for (unsigned i = 0; i < d->f->n_reports; i++) {
		ret[i] = (struct device_gpu){.numa = d->f->reports[i].numa, .caps = d->caps};
		snprintf(ret[i].pci, sizeof(ret[i].pci), "%.15s", d->f->reports[i].pci);
	}
	return (int)d->f->n_reports;
}

static int described_peer(struct device *dev, int a, int b)
{
	const struct topo_report *r = &((struct described *)dev)->f->reports[a];

	return r->links >> b & 1   ? DEVICE_LINK_NVLINK
	       : r->peers >> b & 1 ? DEVICE_LINK_PCI
				   : DEVICE_LINK_NONE;
}

static const struct device_ops described_ops = {
	.name = "described", .gpus = described_gpus, .peer = described_peer};

static struct choice choice;
static struct err_text err;

static int choose(const char *machine, const char *want, uint32_t caps, const int *gpus, unsigned n)
{
	struct topo_fixture f;
	struct described d = {.base = {.ops = &described_ops}, .f = &f, .caps = caps};
	int rc;

	topo_fixture_make(&f, machine);
	rc = choose_route(f.root, &d.base, gpus, n, want, &choice, &err);
	topo_fixture_remove(&f);
	return rc;
}

/* Return, as text, the NUMA nodes that are chosen for a machine's inputs and sums. For example,
 * "0,1/-1" means inputs on nodes 0 and 1, and sums on any node. */
static const char *nodes_of(
	const char *machine, const char *want, const int *gpus, unsigned n, bool has_sysfs)
{
	static char text[256];
	struct topo_fixture f;
	struct described d = {.base = {.ops = &described_ops}, .f = &f, .caps = DEVICE_CAP_CLIQUE};
	int at = 0;

	topo_fixture_make(&f, machine);
	if (choose_route(
		    has_sysfs ? f.root : "/nonexistent", &d.base, gpus, n, want, &choice, &err) < 0)
		fail_msg("%s, %s: %s", machine, want, err.s);
	topo_fixture_remove(&f);
	for (unsigned g = 0; g < choice.route.n_groups; g++)
		at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%d", g ? "," : "",
			choice.input_nodes[g] - 1);
	snprintf(text + at, sizeof(text) - (size_t)at, "/%d", choice.sum_node - 1);
	return text;
}

static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Check that each member is in exactly one group. */
static void assert_members(unsigned n)
{
	uint64_t seen = 0;

	assert_int_equal(choice.route.n_members, n);
	for (unsigned g = 0; g < choice.route.n_groups; g++)
		for (unsigned i = 0; i < choice.route.groups[g].n; i++) {
			assert_false(seen >> choice.route.groups[g].member[i] & 1);
			seen |= UINT64_C(1) << choice.route.groups[g].member[i];
		}
	assert_int_equal(seen, (UINT64_C(1) << n) - 1);
}

static void the_rule_becomes_the_route_of_the_engine(void **state)
{
	(void)state;
	assert_int_equal(choose("two-switches-both", "auto", DEVICE_CAP_CLIQUE, all, 8), 0);
	assert_string_equal(choice.route.name, "switch_sum");
	assert_int_equal(choice.route.up, UP_SCATTER);
	assert_int_equal(choice.route.down, DOWN_GATHER);
	assert_int_equal(choice.route.n_groups, 2);
	assert_int_equal(choice.route.chunk_bytes, ROUTE_CHUNK_BYTES);
	assert_members(8);
	assert_int_equal(choose("two-switches-nvlink", "", DEVICE_CAP_CLIQUE, all, 8), 0);
	assert_string_equal(choice.route.name, "rs_ag");
	assert_int_equal(choice.route.n_groups, 1);
	assert_members(8);
	assert_int_equal(choose("two-switches-roots", "auto", DEVICE_CAP_CLIQUE, all, 8), 0);
	assert_string_equal(choice.route.name, "roots");
	assert_int_equal(choice.route.up, UP_REDUCE);
	assert_int_equal(choice.route.down, DOWN_BCAST);
	assert_int_equal(choice.route.n_roots, 1);
	assert_true(choice.route.roots[0] < 4);
	assert_members(8);
}

static void without_cliques_nothing_is_summed_on_gpus(void **state)
{
	(void)state;
	assert_int_equal(choose("two-switches-nvlink", "auto", 0, all, 8), 0);
	assert_string_equal(choice.route.name, "ce");
	assert_int_equal(choice.route.up, UP_COPY);
	assert_int_equal(choice.route.down, DOWN_PEER);
	assert_int_equal(choice.route.n_groups, 8);
	assert_false(route_has_cliques(&choice.route));
	assert_members(8);
	assert_int_equal(choose("two-switches-nvlink", "rs_ag", 0, all, 8), -EOPNOTSUPP);
}

static void members_keep_their_order(void **state)
{
	static const int some[] = {7, 0, 4, 1};

	(void)state;
	assert_int_equal(choose("two-switches-both", "auto", DEVICE_CAP_CLIQUE, some, 4), 0);
	assert_members(4);
	assert_int_equal(choice.route.n_groups, 2);
	assert_int_equal(choice.route.groups[0].member[0], 0); /* group 0: GPUs 7 and 4 */
	assert_int_equal(choice.route.groups[0].member[1], 2);
	assert_int_equal(choose("two-switches-both", "auto", DEVICE_CAP_CLIQUE, some, 1), 0);
	assert_string_equal(choice.route.name, "copy");
	assert_int_equal(choice.route.n_groups, 1);
}

static void memory_lies_where_gpus_and_cards_are(void **state)
{
	static const int mixed[] = {7, 0, 4, 1}, shared[] = {2, 5, 2};

	(void)state;
	assert_string_equal(nodes_of("two-switches-both", "auto", all, 8, true), "0,1/-1");
	assert_string_equal(nodes_of("two-switches-both", "auto", all, 4, true), "0/0");
	assert_string_equal(nodes_of("two-switches-both", "auto", mixed, 4, true), "1,0/-1");
	assert_string_equal(nodes_of("two-switches-both", "copy", mixed, 4, true), "1,0,1,0/-1");
	assert_string_equal(nodes_of("two-switches-both", "auto", shared, 3, true), "0,1,0/-1");
	assert_string_equal(nodes_of("two-switches-nvlink", "rs_ag", all, 8, true), "-1/-1");
	/* The memory for network transfers is on the NUMA node of the only network card. */
	assert_string_equal(nodes_of("two-switches-roots", "auto", all, 8, true), "1/1");
	assert_string_equal(nodes_of("two-switches-roots", "auto", all, 8, false), "-1/-1");
	assert_string_equal(nodes_of("card-down", "rs_ag", all, 8, true), "1/1");
}

static void workers_that_share_a_gpu_are_summed_by_the_processor(void **state)
{
	static const int shared[] = {2, 3, 2};

	(void)state;
	assert_int_equal(choose("two-switches-both", "auto", DEVICE_CAP_CLIQUE, shared, 3), 0);
	assert_string_equal(choice.route.name, "copy");
	assert_int_equal(choice.route.n_groups, 3);
	assert_string_equal(choice.why, "workers share a GPU, so the processor sums");
	assert_int_equal(
		choose("two-switches-both", "ce", DEVICE_CAP_CLIQUE, shared, 3), -EOPNOTSUPP);
}

static void invalid_strategies_and_gpus_are_refused(void **state)
{
	static const int missing[] = {0, 9};

	(void)state;
	assert_int_equal(choose("two-switches-both", "ring", 0, all, 8), -EINVAL);
	assert_string_equal(err.s, "gpu-strategy 'ring' does not exist: use auto, copy, rs_ag, "
				   "switch_sum, roots or ce");
	assert_int_equal(choose("two-switches-both", "auto", 0, missing, 2), -EINVAL);
	assert_int_equal(choose("two-switches-both", "auto", 0, all, 0), -EINVAL);
}

static void without_sysfs_nvlink_still_counts(void **state)
{
	struct topo_fixture f;
	struct described d = {.base = {.ops = &described_ops}, .f = &f, .caps = DEVICE_CAP_CLIQUE};

	(void)state;
	topo_fixture_make(&f, "two-switches-nvlink");
	assert_int_equal(choose_route("/nonexistent", &d.base, all, 8, "auto", &choice, &err), 0);
	topo_fixture_remove(&f);
	assert_string_equal(choice.route.name, "rs_ag");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_rule_becomes_the_route_of_the_engine),
		cmocka_unit_test(without_cliques_nothing_is_summed_on_gpus),
		cmocka_unit_test(members_keep_their_order),
		cmocka_unit_test(memory_lies_where_gpus_and_cards_are),
		cmocka_unit_test(workers_that_share_a_gpu_are_summed_by_the_processor),
		cmocka_unit_test(invalid_strategies_and_gpus_are_refused),
		cmocka_unit_test(without_sysfs_nvlink_still_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
