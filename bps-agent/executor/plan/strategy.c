/* The rule that chooses a machine's strategy, and the plan of steps for the strategy. strategy.h
 * explains the rule. Reads no files, moves no data and has no state. Thread: any. */
#include "bps-agent/executor/plan/strategy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *const strategy_words[] = {"auto", "copy", "rs_ag", "switch_sum", "roots", "ce", NULL};

const char *plan_op_name(enum plan_op op)
{
	switch (op) {
	case PLAN_REDUCE_SCATTER:
		return "reduce-scatter";
	case PLAN_REDUCE:
		return "reduce";
	case PLAN_COPY_OUT:
		return "copy-out";
	case PLAN_SUM:
		return "sum";
	case PLAN_COPY_IN:
		return "copy-in";
	case PLAN_ALL_GATHER:
		return "all-gather";
	case PLAN_BROADCAST:
		return "broadcast";
	case PLAN_PEER_COPY:
		return "peer-copy";
	}
	return "?";
}

/* Facts about a job's GPUs, from which the rule chooses the strategy. */
struct facts {
	const struct topology *t;
	const struct strategy_ask *ask;
	bool has_mig;
	bool has_tree;  /* at least one GPU is below a root port */
	bool is_linked; /* NVLink joins all GPUs */
	bool can_reach; /* every GPU can copy to every other GPU, or this is not known yet */
	/* n_with_card: number of uplinks with GPUs and a network card. n_without_card: number of
	 * uplinks with GPUs but without a card. The OSDI'20 paper (strategy.h) calls these numbers
	 * Sn and Sg. */
	unsigned n_with_card, n_without_card;
};

static const struct topo_gpu *topo_gpu_of_member(
	const struct topology *t, const struct transfer_plan *p, unsigned i)
{
	return &t->gpus[p->gpus[i]];
}

static bool is_joined_by_nvlink(const struct topology *t, unsigned a, unsigned b)
{
	return t->gpus[a].links >> b & 1 && t->gpus[b].links >> a & 1;
}

static bool is_on_same_uplink(const struct topo_gpu *a, const struct topo_gpu *b)
{
	return a->uplink != TOPO_NONE && a->uplink == b->uplink;
}

/* ---- groups ---- */

/* Give the same label to GPUs that are connected by NVLinks, directly or through other GPUs. If
 * by_uplink is true, GPUs that share an uplink also count as connected. The label is the least
 * index among the connected GPUs. Returns the number of different labels. */
static unsigned label_connected_gpus(const struct topology *t, const struct transfer_plan *p,
	bool by_uplink, uint8_t ret[TOPO_GPUS_MAX])
{
	unsigned n_labels = 0;
	bool has_changed = true;

	for (unsigned i = 0; i < p->n_gpus; i++)
		ret[i] = (uint8_t)i;
	while (has_changed) {
		has_changed = false;
		for (unsigned i = 0; i < p->n_gpus; i++)
			for (unsigned k = 0; k < i; k++) {
				uint8_t least = ret[i] < ret[k] ? ret[i] : ret[k];

				if (ret[i] == ret[k] ||
					(!is_joined_by_nvlink(t, p->gpus[i], p->gpus[k]) &&
						!(by_uplink &&
							is_on_same_uplink(
								topo_gpu_of_member(t, p, i),
								topo_gpu_of_member(t, p, k)))))
					continue;
				ret[i] = ret[k] = least;
				has_changed = true;
			}
	}
	for (unsigned i = 0; i < p->n_gpus; i++)
		n_labels += ret[i] == i;
	return n_labels;
}

static void plan_add_group(
	struct transfer_plan *p, const uint8_t labels[TOPO_GPUS_MAX], unsigned wanted)
{
	struct plan_group *g = &p->groups[p->n_groups++];

	g->n = 0;
	for (unsigned i = 0; i < p->n_gpus; i++)
		if (labels[i] == wanted)
			g->gpus[g->n++] = (uint8_t)i;
}

static void plan_group_all_gpus(struct transfer_plan *p)
{
	static const uint8_t one[TOPO_GPUS_MAX];

	plan_add_group(p, one, 0);
}

static void group_by_switch(struct transfer_plan *p, const struct topology *t)
{
	uint8_t labels[TOPO_GPUS_MAX] = {0};

	label_connected_gpus(t, p, true, labels);
	for (unsigned i = 0; i < p->n_gpus; i++)
		if (labels[i] == i)
			plan_add_group(p, labels, i);
}

/* Return the least number of units that is a multiple of the size of every group; 0: the number
 * exceeds PLAN_UNITS_MAX. */
static uint32_t plan_common_units(const struct transfer_plan *p)
{
	uint32_t units = 1;

	for (unsigned i = 0; i < p->n_groups; i++) {
		uint32_t step = units, n = p->groups[i].n;

		while (n && units % n)
			units += step;
		if (units > PLAN_UNITS_MAX)
			return 0;
	}
	return units;
}

/* ---- steps ---- */

static void plan_append_step(struct transfer_plan *p, struct plan_step s)
{
	if (p->n_steps < PLAN_STEPS_MAX)
		p->steps[p->n_steps++] = s;
}

static void plan_append_copy(
	struct transfer_plan *p, const struct topology *t, enum plan_op op, struct plan_step s)
{
	s.op = op;
	s.numa = topo_gpu_of_member(t, p, s.gpu)->numa;
	plan_append_step(p, s);
}

static void plan_append_sums(struct transfer_plan *p)
{
	for (unsigned turn = 0; turn < p->n_turns; turn++)
		plan_append_step(p, (struct plan_step){.op = PLAN_SUM,
					    .turn = (uint8_t)turn,
					    .numa = -1,
					    .n = p->n_units});
}

/* For each group that has several GPUs, add a step that runs the collective operation `op`. */
static void add_collectives(struct transfer_plan *p, enum plan_op op)
{
	for (unsigned g = 0; g < p->n_groups; g++)
		if (p->groups[g].n > 1)
			plan_append_step(p, (struct plan_step){.op = op,
						    .group = (uint8_t)g,
						    .numa = -1,
						    .n = p->n_units});
}

/* For each GPU, add a step that copies the GPU's share of the tensor. The GPUs of a group have
 * equal shares. */
static void plan_append_share_copies(
	struct transfer_plan *p, const struct topology *t, enum plan_op op)
{
	for (unsigned g = 0; g < p->n_groups; g++) {
		const struct plan_group *group = &p->groups[g];
		uint32_t n = p->n_units / group->n;

		for (unsigned i = 0; i < group->n; i++)
			plan_append_copy(p, t, op,
				(struct plan_step){.group = (uint8_t)g,
					.gpu = group->gpus[i],
					.source = (uint8_t)g,
					.first = i * n,
					.n = n});
	}
}

/* For each GPU, add a step that copies the whole tensor. Each GPU has its own source in staging
 * memory. */
static void plan_append_whole_copies(
	struct transfer_plan *p, const struct topology *t, enum plan_op op)
{
	for (unsigned i = 0; i < p->n_gpus; i++)
		plan_append_copy(p, t, op,
			(struct plan_step){
				.gpu = (uint8_t)i, .source = (uint8_t)i, .n = p->n_units});
}

static void plan_set_sizes(
	struct transfer_plan *p, unsigned n_turns, unsigned n_sources, uint32_t n_units)
{
	p->n_turns = n_turns;
	p->n_sources = n_sources;
	p->n_units = n_units;
}

static void plan_make_copy(struct transfer_plan *p, const struct topology *t)
{
	plan_group_all_gpus(p);
	plan_set_sizes(p, 1, p->n_gpus, 1);
	plan_append_whole_copies(p, t, PLAN_COPY_OUT);
	if (p->n_gpus > 1)
		plan_append_sums(p);
	plan_append_whole_copies(p, t, PLAN_COPY_IN);
}

static void plan_make_peer_copies(struct transfer_plan *p, const struct topology *t)
{
	plan_group_all_gpus(p);
	plan_set_sizes(p, 1, p->n_gpus, p->n_gpus);
	plan_append_whole_copies(p, t, PLAN_COPY_OUT);
	plan_append_sums(p);
	plan_append_share_copies(p, t, PLAN_COPY_IN);
	for (unsigned i = 0; i < p->n_gpus; i++)
		plan_append_step(p, (struct plan_step){.op = PLAN_PEER_COPY,
					    .gpu = (uint8_t)i,
					    .numa = -1,
					    .n = p->n_units});
}

/* Make the plan of reduce-scatter and all-gather in the existing groups. If there are several
 * groups, the processor adds their sums. Returns false if no number of units up to PLAN_UNITS_MAX
 * is a multiple of the size of every group. */
static bool plan_make_scatter_gather(struct transfer_plan *p, const struct topology *t)
{
	uint32_t units = plan_common_units(p);

	if (!units)
		return false;
	plan_set_sizes(p, 1, p->n_groups, units);
	add_collectives(p, PLAN_REDUCE_SCATTER);
	plan_append_share_copies(p, t, PLAN_COPY_OUT);
	if (p->n_groups > 1)
		plan_append_sums(p);
	plan_append_share_copies(p, t, PLAN_COPY_IN);
	add_collectives(p, PLAN_ALL_GATHER);
	return true;
}

/* Choose the roots: one GPU of each uplink that has no network card. If all uplinks have cards,
 * choose one GPU of each uplink. */
static unsigned plan_choose_roots(
	const struct facts *f, const struct transfer_plan *p, uint8_t ret[TOPO_GPUS_MAX])
{
	bool is_taken[TOPO_PORTS_MAX] = {false};
	unsigned n = 0;

	for (unsigned i = 0; i < p->n_gpus; i++) {
		uint32_t up = topo_gpu_of_member(f->t, p, i)->uplink;

		if (up == TOPO_NONE || is_taken[up] ||
			(f->n_without_card && f->t->uplinks[up].n_nics))
			continue;
		is_taken[up] = true;
		ret[n++] = (uint8_t)i;
	}
	if (n == 0)
		ret[n++] = 0;
	return n;
}

static void plan_make_roots(struct transfer_plan *p, const struct facts *f)
{
	static const enum plan_op ops[] = {
		PLAN_REDUCE, PLAN_COPY_OUT, PLAN_COPY_IN, PLAN_BROADCAST};
	uint8_t roots[TOPO_GPUS_MAX];
	unsigned n = plan_choose_roots(f, p, roots);

	plan_group_all_gpus(p);
	plan_set_sizes(p, n, 1, 1);
	for (unsigned k = 0; k < sizeof(ops) / sizeof(ops[0]); k++)
		for (unsigned turn = 0; turn < n; turn++)
			plan_append_copy(p, f->t, ops[k],
				(struct plan_step){
					.gpu = roots[turn], .turn = (uint8_t)turn, .n = 1});
}

/* ---- the rule ---- */

static void strategy_collect_facts(struct facts *f, const struct transfer_plan *p)
{
	bool is_seen[TOPO_PORTS_MAX] = {false};
	uint8_t labels[TOPO_GPUS_MAX] = {0};

	f->can_reach = true;
	for (unsigned i = 0; i < p->n_gpus; i++) {
		const struct topo_gpu *g = topo_gpu_of_member(f->t, p, i);

		f->has_mig |= g->is_mig;
		for (unsigned k = 0; f->t->is_refined && k < p->n_gpus; k++)
			f->can_reach &= k == i || (g->peers >> p->gpus[k] & 1) != 0;
		if (g->uplink == TOPO_NONE)
			continue;
		f->has_tree = true;
		if (is_seen[g->uplink])
			continue;
		is_seen[g->uplink] = true;
		if (f->t->uplinks[g->uplink].n_nics)
			f->n_with_card++;
		else
			f->n_without_card++;
	}
	f->can_reach &= !f->has_mig;
	f->is_linked = label_connected_gpus(f->t, p, false, labels) == 1;
}

static enum strategy strategy_choose_by_rule(
	struct transfer_plan *p, const struct facts *f, unsigned n_groups)
{
	unsigned n = p->n_gpus;

	if (n == 1) {
		snprintf(p->why, sizeof(p->why), "there is one GPU");
		return STRATEGY_COPY;
	}
	if (f->has_mig) {
		snprintf(p->why, sizeof(p->why),
			"parts of a GPU (MIG) cannot copy to each other, so the processor sums");
		return STRATEGY_COPY;
	}
	if (f->is_linked && f->n_with_card && f->n_without_card) {
		snprintf(p->why, sizeof(p->why),
			"NVLink joins the %u GPUs, and %u of their %u uplinks have no network "
			"card: GPUs on these uplinks copy",
			n, f->n_without_card, f->n_with_card + f->n_without_card);
		return STRATEGY_ROOTS;
	}
	if (f->is_linked) {
		snprintf(p->why, sizeof(p->why),
			"NVLink joins the %u GPUs, and all or none of their uplinks have a network "
			"card",
			n);
		return STRATEGY_RS_AG;
	}
	if (!f->has_tree) {
		snprintf(p->why, sizeof(p->why),
			"neither a PCI tree (a virtual machine?) nor NVLink is visible, so "
			"the processor sums");
		return STRATEGY_COPY;
	}
	if (n_groups == 1) {
		snprintf(p->why, sizeof(p->why), "the %u GPUs share one uplink", n);
		return STRATEGY_RS_AG;
	}
	snprintf(p->why, sizeof(p->why),
		"the %u GPUs have %u uplinks and no NVLink between the uplinks, so GPUs copy "
		"only within an uplink",
		n, n_groups);
	return STRATEGY_SWITCH_SUM;
}

static bool needs_collectives(enum strategy s, unsigned n_gpus, unsigned n_groups)
{
	return s == STRATEGY_RS_AG || s == STRATEGY_ROOTS ||
	       (s == STRATEGY_SWITCH_SUM && n_groups < n_gpus);
}

/* Check whether strategy s, which a setting requires, is possible. */
static int strategy_check_wanted(
	enum strategy s, const struct transfer_plan *p, const struct facts *f, struct err_text *err)
{
	const char *name = strategy_words[s];

	if (p->n_gpus == 1 || s == STRATEGY_COPY)
		return 0;
	if (f->has_mig)
		return err_set(err, -EOPNOTSUPP,
			"gpu-strategy '%s' is not possible with parts of a GPU (MIG): set "
			"gpu-strategy to 'copy' or 'auto'",
			name);
	if (s == STRATEGY_CE && !f->can_reach)
		return err_set(err, -EOPNOTSUPP,
			"gpu-strategy 'ce' is not possible, because the GPUs cannot copy to each "
			"other: set gpu-strategy to 'copy'");
	return 0;
}

static void plan_build_steps(struct transfer_plan *p, const struct facts *f)
{
	switch (p->strategy) {
	case STRATEGY_RS_AG:
		plan_group_all_gpus(p);
		plan_make_scatter_gather(p, f->t);
		return;
	case STRATEGY_SWITCH_SUM:
		group_by_switch(p, f->t);
		if (plan_make_scatter_gather(p, f->t))
			return;
		p->n_groups = 0;
		p->strategy = STRATEGY_COPY;
		snprintf(p->why, sizeof(p->why),
			"the sizes of the groups of GPUs are too unequal for equal shares of a "
			"tensor, so the processor sums");
		plan_make_copy(p, f->t);
		return;
	case STRATEGY_ROOTS:
		plan_make_roots(p, f);
		return;
	case STRATEGY_CE:
		plan_make_peer_copies(p, f->t);
		return;
	case STRATEGY_AUTO:
	case STRATEGY_COPY:
		break;
	}
	plan_make_copy(p, f->t);
}

static int strategy_choose_and_build(
	struct transfer_plan *p, const struct facts *f, struct err_text *err)
{
	uint8_t labels[TOPO_GPUS_MAX] = {0};
	unsigned n_groups = label_connected_gpus(f->t, p, true, labels);
	enum strategy s = strategy_choose_by_rule(p, f, n_groups), want = f->ask->want;
	int rc;

	if (want != STRATEGY_AUTO && p->n_gpus > 1) {
		rc = strategy_check_wanted(want, p, f, err);
		if (rc < 0)
			return rc;
		if (needs_collectives(want, p->n_gpus, n_groups) && !f->ask->has_collectives)
			return err_set(err, -EOPNOTSUPP,
				"gpu-strategy '%s' needs NCCL, but NCCL cannot be used here: set "
				"gpu-strategy to 'ce' or 'copy'",
				strategy_words[want]);
		if (want != s)
			snprintf(p->why, sizeof(p->why),
				"set by gpu-strategy; auto would choose %s", strategy_words[s]);
		p->is_forced = true;
		s = want;
	} else if (needs_collectives(s, p->n_gpus, n_groups) && !f->ask->has_collectives) {
		s = f->can_reach ? STRATEGY_CE : STRATEGY_COPY;
		snprintf(p->why, sizeof(p->why), "NCCL cannot be used, so the processor sums%s",
			s == STRATEGY_CE ? ", and GPUs copy the shares among themselves" : "");
	}
	p->strategy = s;
	plan_build_steps(p, f);
	return 0;
}

static int plan_take_gpus(struct transfer_plan *p, const struct topology *t,
	const struct strategy_ask *ask, struct err_text *err)
{
	uint64_t seen = 0;

	p->n_gpus = ask->n_gpus ? ask->n_gpus : t->n_gpus;
	if (p->n_gpus == 0)
		return err_set(err, -ENODEV, "there is no NVIDIA GPU");
	if (p->n_gpus > t->n_gpus)
		return err_set(err, -EINVAL, "%u GPUs are requested, but there are only %u",
			p->n_gpus, t->n_gpus);
	for (unsigned i = 0; i < p->n_gpus; i++) {
		unsigned gpu = ask->n_gpus ? ask->gpus[i] : i;

		if (gpu >= t->n_gpus || seen >> gpu & 1)
			return err_set(err, -EINVAL, "GPU %u is %s", gpu,
				gpu >= t->n_gpus ? "not on this machine" : "requested twice");
		seen |= UINT64_C(1) << gpu;
		p->gpus[i] = (uint8_t)gpu;
	}
	return 0;
}

int strategy_plan(const struct topology *t, const struct strategy_ask *ask,
	struct transfer_plan *ret, struct err_text *err)
{
	struct facts f = {.t = t, .ask = ask};
	int rc;

	memset(ret, 0, sizeof(*ret));
	rc = plan_take_gpus(ret, t, ask, err);
	if (rc < 0)
		return rc;
	strategy_collect_facts(&f, ret);
	return strategy_choose_and_build(ret, &f, err);
}
