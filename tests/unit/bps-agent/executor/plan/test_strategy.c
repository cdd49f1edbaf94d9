/* Tests which strategy is chosen for each machine, and which plan follows from the strategy. To
 * check that a plan sums correctly, the test runs the plan on sets of contributors. Where a real
 * run adds numbers, the test joins sets. */
#include "bps-agent/executor/plan/strategy.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/topo_fixture.h"

static struct topology topo;
static struct transfer_plan plan;

static enum strategy make(const char *name)
{
	struct topo_fixture f;

	topo_fixture_make(&f, name);
	topo_fixture_read(&f, &topo);
	topo_fixture_remove(&f);
	return f.expect;
}

static int ask(enum strategy want, bool has_collectives, struct err_text *err)
{
	return strategy_plan(&topo,
		&(struct strategy_ask){.want = want, .has_collectives = has_collectives}, &plan,
		err);
}

static void must(enum strategy want, bool has_collectives)
{
	struct err_text err = {""};

	if (ask(want, has_collectives, &err) < 0)
		fail_msg("%s", err.s);
}

/* ---- running a plan ---- */

/* For each unit, the set of GPUs that have contributed to the unit. `gpu` holds these sets for each
 * GPU, `source` for each source, and `sum` for the sum. Bit i stands for the GPU with the index i,
 * 0 to 62. The highest bit marks an error, such as a contribution that was added twice. */
struct sets {
	uint64_t gpu[TOPO_GPUS_MAX][PLAN_UNITS_MAX], source[TOPO_GPUS_MAX][PLAN_UNITS_MAX];
	uint64_t sum[PLAN_UNITS_MAX];
	bool has_summed;
};
#define TWICE (UINT64_C(1) << 63)

static uint64_t joined(uint64_t a, uint64_t b)
{
	return a & b ? TWICE : a | b;
}

static void do_reduce_scatter(struct sets *s, const struct plan_group *g)
{
	uint32_t share = plan.n_units / g->n;

	assert_int_equal(plan.n_units % g->n, 0);
	for (unsigned i = 0; i < g->n; i++)
		for (uint32_t u = 0; u < plan.n_units; u++) {
			uint64_t all = 0;

			for (unsigned k = 0; u / share == i && k < g->n; k++)
				all = joined(all, s->gpu[g->gpus[k]][u]);
			if (u / share == i)
				s->gpu[g->gpus[i]][u] = all;
		}
	/* mark the blocks that the reduce-scatter leaves undefined */
	for (unsigned i = 0; i < g->n; i++)
		for (uint32_t u = 0; u < plan.n_units; u++)
			if (u / share != i)
				s->gpu[g->gpus[i]][u] = TWICE;
}

static void do_all_gather(struct sets *s, const struct plan_group *g)
{
	uint32_t share = plan.n_units / g->n;

	for (unsigned i = 0; i < g->n; i++)
		for (uint32_t u = 0; u < plan.n_units; u++)
			s->gpu[g->gpus[i]][u] = s->gpu[g->gpus[u / share]][u];
}

static void do_reduce(struct sets *s, const struct plan_group *g, unsigned root)
{
	for (uint32_t u = 0; u < plan.n_units; u++) {
		uint64_t all = 0;

		for (unsigned i = 0; i < g->n; i++)
			all = joined(all, s->gpu[g->gpus[i]][u]);
		s->gpu[root][u] = all;
	}
}

static void do_sum(struct sets *s)
{
	for (uint32_t u = 0; u < plan.n_units; u++) {
		s->sum[u] = 0;
		for (unsigned i = 0; i < plan.n_sources; i++)
			s->sum[u] = joined(s->sum[u], s->source[i][u]);
	}
	s->has_summed = true;
}

/* Copy the sum of each unit to the given GPU. The source is any GPU that has the complete sum. */
static void do_peer_copy(struct sets *s, unsigned gpu, uint64_t all)
{
	for (unsigned i = 0; i < plan.n_gpus; i++)
		for (uint32_t u = 0; u < plan.n_units; u++)
			if (s->gpu[i][u] == all)
				s->gpu[gpu][u] = all;
}

static void do_copies(struct sets *s, const struct plan_step *step)
{
	assert_true(step->first + step->n <= plan.n_units && step->gpu < plan.n_gpus);
	assert_true(step->source < plan.n_sources || step->op == PLAN_COPY_IN);
	for (uint32_t u = step->first; u < step->first + step->n; u++)
		if (step->op == PLAN_COPY_OUT)
			s->source[step->source][u] =
				joined(s->source[step->source][u], s->gpu[step->gpu][u]);
		else
			s->gpu[step->gpu][u] = s->sum[u];
}

static void do_step(struct sets *s, const struct plan_step *step, uint64_t all)
{
	const struct plan_group *g = &plan.groups[step->group];

	switch (step->op) {
	case PLAN_REDUCE_SCATTER:
		do_reduce_scatter(s, g);
		return;
	case PLAN_REDUCE:
		do_reduce(s, g, step->gpu);
		return;
	case PLAN_COPY_OUT:
		do_copies(s, step);
		return;
	case PLAN_SUM:
		do_sum(s);
		return;
	case PLAN_COPY_IN:
		/* A plan with one source has no PLAN_SUM step, so compute the sum here. */
		if (!s->has_summed)
			do_sum(s);
		do_copies(s, step);
		return;
	case PLAN_ALL_GATHER:
		do_all_gather(s, g);
		return;
	case PLAN_BROADCAST:
		for (unsigned i = 0; i < g->n; i++)
			memcpy(s->gpu[g->gpus[i]], s->gpu[step->gpu], sizeof(s->gpu[0]));
		return;
	case PLAN_PEER_COPY:
		do_peer_copy(s, step->gpu, all);
		return;
	}
	fail();
}

/* Check that at the end every GPU has every unit, with each contribution exactly once. */
static void assert_sums(void)
{
	struct sets *s = calloc(1, sizeof(*s));
	uint64_t all = (UINT64_C(1) << plan.n_gpus) - 1;

	assert_non_null(s);
	assert_true(plan.n_turns >= 1 && plan.n_units >= 1 && plan.n_units <= PLAN_UNITS_MAX);
	assert_true(plan.n_steps < PLAN_STEPS_MAX && plan.n_gpus < TOPO_GPUS_MAX);
	for (unsigned turn = 0; turn < plan.n_turns; turn++) {
		memset(s, 0, sizeof(*s));
		for (unsigned i = 0; i < plan.n_gpus; i++)
			for (uint32_t u = 0; u < plan.n_units; u++)
				s->gpu[i][u] = UINT64_C(1) << i;
		for (unsigned i = 0; i < plan.n_steps; i++)
			if (plan.steps[i].turn == turn)
				do_step(s, &plan.steps[i], all);
		for (unsigned i = 0; i < plan.n_gpus; i++)
			for (uint32_t u = 0; u < plan.n_units; u++)
				assert_int_equal(s->gpu[i][u], all);
		for (uint32_t u = 0; u < plan.n_units; u++)
			assert_int_equal(s->sum[u], all);
	}
	free(s);
}

/* ---- the rule ---- */

static void every_machine_gets_what_the_rule_says(void **state)
{
	(void)state;
	for (unsigned i = 0; topo_fixture_names[i]; i++) {
		enum strategy expect = make(topo_fixture_names[i]);

		must(STRATEGY_AUTO, true);
		if (plan.strategy != expect)
			fail_msg("%s: %s, because %s", topo_fixture_names[i],
				strategy_words[plan.strategy], plan.why);
		assert_false(plan.is_forced);
		assert_true(strlen(plan.why) > 10 && strlen(plan.why) < PLAN_WHY_BYTES - 1);
		assert_sums();
	}
}

static void every_strategy_that_is_wanted_sums_or_is_refused(void **state)
{
	unsigned n_refused = 0, n_done = 0;

	(void)state;
	for (unsigned i = 0; topo_fixture_names[i]; i++) {
		make(topo_fixture_names[i]);
		for (unsigned s = STRATEGY_AUTO; strategy_words[s]; s++)
			for (unsigned has = 0; has < 2; has++) {
				struct err_text err = {""};
				int rc = ask((enum strategy)s, has, &err);

				if (rc < 0) {
					assert_int_equal(rc, -EOPNOTSUPP);
					assert_non_null(strstr(err.s, strategy_words[s]));
					n_refused++;
					continue;
				}
				if (s != STRATEGY_AUTO && plan.n_gpus > 1)
					assert_int_equal(plan.strategy, s);
				assert_sums();
				n_done++;
			}
	}
	assert_true(n_refused > 20 && n_done > 100);
}

static unsigned count(enum plan_op op)
{
	unsigned n = 0;

	for (unsigned i = 0; i < plan.n_steps; i++)
		n += plan.steps[i].op == op;
	return n;
}

/* Return how many units the plan copies to host memory over the given uplink. The plan is for
 * n_turns tensors, which together have n_turns * n_units units. */
static unsigned out_units(uint32_t uplink)
{
	unsigned n = 0;

	for (unsigned i = 0; i < plan.n_steps; i++) {
		const struct plan_step *s = &plan.steps[i];

		if (s->op == PLAN_COPY_OUT && topo.gpus[plan.gpus[s->gpu]].uplink == uplink)
			n += s->n;
	}
	return n;
}

static void scattering_puts_an_equal_share_on_every_uplink(void **state)
{
	(void)state;
	make("dgx");
	must(STRATEGY_AUTO, true);
	assert_int_equal(plan.n_units, 8);
	assert_int_equal(plan.n_sources, 1);
	assert_int_equal(count(PLAN_REDUCE_SCATTER), 1);
	assert_int_equal(count(PLAN_SUM), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(out_units(topo.gpus[2 * i].uplink), 2);
	for (unsigned i = 0; i < plan.n_steps; i++)
		if (plan.steps[i].op == PLAN_COPY_OUT)
			assert_int_equal(plan.steps[i].numa, topo.gpus[plan.steps[i].gpu].numa);
}

static void switches_are_summed_by_the_processor(void **state)
{
	(void)state;
	make("two-switches-both");
	must(STRATEGY_AUTO, true);
	assert_int_equal(plan.n_groups, 2);
	assert_int_equal(plan.n_sources, 2);
	assert_int_equal(plan.n_units, 4);
	assert_int_equal(count(PLAN_REDUCE_SCATTER), 2);
	assert_int_equal(count(PLAN_ALL_GATHER), 2);
	assert_int_equal(count(PLAN_SUM), 1);
	/* each uplink carries all 4 units, as in the OSDI'20 paper */
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(out_units(topo.gpus[4 * i].uplink), 4);
}

static void roots_leave_the_uplink_of_the_card_free(void **state)
{
	(void)state;
	make("two-switches-roots");
	must(STRATEGY_AUTO, true);
	assert_int_equal(plan.n_turns, 1);
	assert_int_equal(out_units(topo.gpus[0].uplink), 1);
	assert_int_equal(out_units(topo.gpus[7].uplink), 0);
	assert_string_equal(plan.why, "NVLink joins the 8 GPUs, and 1 of their 2 uplinks have no "
				      "network card: GPUs on these uplinks copy");
}

static void roots_take_turns(void **state)
{
	(void)state;
	/* each uplink has a network card, so there is a root behind each uplink */
	make("two-switches-both");
	must(STRATEGY_ROOTS, true);
	assert_true(plan.is_forced);
	assert_int_equal(plan.n_turns, 2);
	assert_int_equal(out_units(topo.gpus[0].uplink), 1);
	assert_int_equal(out_units(topo.gpus[7].uplink), 1);
}

static void unequal_groups_share_common_units(void **state)
{
	(void)state;
	make("unequal");
	must(STRATEGY_AUTO, true);
	assert_int_equal(plan.n_groups, 2);
	assert_int_equal(plan.n_units, 6);
	assert_int_equal(out_units(topo.gpus[0].uplink), 6);
	assert_int_equal(out_units(topo.gpus[4].uplink), 6);
}

static void linked_pairs_are_groups(void **state)
{
	(void)state;
	make("nvlink-pairs");
	must(STRATEGY_AUTO, true);
	assert_int_equal(plan.n_groups, 2);
	assert_int_equal(plan.groups[1].gpus[0], 2);
	assert_int_equal(plan.groups[1].gpus[1], 3);
}

static void without_nccl_the_processor_sums(void **state)
{
	(void)state;
	make("two-switches-nvlink");
	must(STRATEGY_AUTO, false);
	assert_int_equal(plan.strategy, STRATEGY_CE);
	make("two-switches-both"); /* some GPUs cannot reach each other */
	must(STRATEGY_AUTO, false);
	assert_int_equal(plan.strategy, STRATEGY_COPY);
	make("one-root"); /* groups of one GPU have nothing to exchange */
	must(STRATEGY_AUTO, false);
	assert_int_equal(plan.strategy, STRATEGY_SWITCH_SUM);
}

static void impossible_strategy_is_refused_with_an_alternative(void **state)
{
	struct err_text err = {""};

	(void)state;
	make("two-switches-both");
	assert_int_equal(ask(STRATEGY_CE, true, &err), -EOPNOTSUPP);
	assert_string_equal(err.s, "gpu-strategy 'ce' is not possible, because the GPUs cannot "
				   "copy to each other: set gpu-strategy to 'copy'");
	assert_int_equal(ask(STRATEGY_RS_AG, false, &err), -EOPNOTSUPP);
	assert_string_equal(err.s, "gpu-strategy 'rs_ag' needs NCCL, but NCCL cannot be used "
				   "here: set gpu-strategy to 'ce' or 'copy'");
	make("mig");
	assert_int_equal(ask(STRATEGY_RS_AG, true, &err), -EOPNOTSUPP);
}

static void a_job_on_some_of_the_gpus_gets_a_plan_for_those(void **state)
{
	static const unsigned same_switch[] = {6, 5}, one[] = {3}, wrong[] = {8}, twice[] = {1, 1};
	struct strategy_ask a = {.has_collectives = true, .gpus = same_switch, .n_gpus = 2};
	struct err_text err = {""};

	(void)state;
	make("two-switches-both");
	assert_int_equal(strategy_plan(&topo, &a, &plan, &err), 0);
	assert_int_equal(plan.strategy, STRATEGY_RS_AG);
	assert_int_equal(plan.gpus[0], 6);
	assert_sums();
	a.gpus = one;
	a.n_gpus = 1;
	assert_int_equal(strategy_plan(&topo, &a, &plan, &err), 0);
	assert_int_equal(plan.strategy, STRATEGY_COPY);
	a.gpus = wrong;
	assert_int_equal(strategy_plan(&topo, &a, &plan, &err), -EINVAL);
	assert_string_equal(err.s, "GPU 8 is not on this machine");
	a.gpus = twice;
	a.n_gpus = 2;
	assert_int_equal(strategy_plan(&topo, &a, &plan, &err), -EINVAL);
	a.n_gpus = 9;
	assert_int_equal(strategy_plan(&topo, &a, &plan, &err), -EINVAL);
	topo.n_gpus = 0;
	a.n_gpus = 0;
	assert_int_equal(strategy_plan(&topo, &a, &plan, &err), -ENODEV);
}

/* Check plans on random machines. */
static void random_machines_get_plans_that_sum(void **state)
{
	uint64_t seed = 1;

	(void)state;
	for (unsigned round = 0; round < 3000; round++) {
		uint64_t r[4];

		for (unsigned i = 0; i < 4; i++)
			r[i] = seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		memset(&topo, 0, sizeof(topo));
		topo.n_gpus = 1 + (unsigned)(r[0] >> 40) % 63;
		topo.n_uplinks = 1 + (unsigned)(r[1] >> 40) % 12;
		topo.is_refined = r[2] >> 40 & 1;
		for (unsigned i = 0; i < topo.n_uplinks; i++)
			topo.uplinks[i].n_nics = (unsigned)(r[3] >> (20 + i)) & 1;
		for (unsigned i = 0; i < topo.n_gpus; i++) {
			struct topo_gpu *g = &topo.gpus[i];

			seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
			g->uplink = (uint32_t)((seed >> 33) % (topo.n_uplinks + (round & 1)));
			if (g->uplink == topo.n_uplinks)
				g->uplink = TOPO_NONE;
			g->links = g->peers = r[2] >> 50 & 1 ? UINT64_MAX : seed;
		}
		for (unsigned s = STRATEGY_AUTO; strategy_words[s]; s++) {
			struct err_text err = {""};

			if (ask((enum strategy)s, r[0] >> 60 & 1, &err) == 0)
				assert_sums();
			else
				assert_int_not_equal(s, STRATEGY_AUTO);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_machine_gets_what_the_rule_says),
		cmocka_unit_test(every_strategy_that_is_wanted_sums_or_is_refused),
		cmocka_unit_test(scattering_puts_an_equal_share_on_every_uplink),
		cmocka_unit_test(switches_are_summed_by_the_processor),
		cmocka_unit_test(roots_leave_the_uplink_of_the_card_free),
		cmocka_unit_test(roots_take_turns),
		cmocka_unit_test(unequal_groups_share_common_units),
		cmocka_unit_test(linked_pairs_are_groups),
		cmocka_unit_test(without_nccl_the_processor_sums),
		cmocka_unit_test(impossible_strategy_is_refused_with_an_alternative),
		cmocka_unit_test(a_job_on_some_of_the_gpus_gets_a_plan_for_those),
		cmocka_unit_test(random_machines_get_plans_that_sum),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
