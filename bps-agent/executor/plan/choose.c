/* Chooses the route of a job and the NUMA nodes of its host memory. Reads the machine's topology,
 * applies the rule of strategy.c, and converts the plan to a route. Starts no work. Thread: the
 * executor's. */
#include "bps-agent/executor/plan/choose.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(DEVICE_GPUS_MAX <= TOPO_GPUS_MAX, "the topology has room for all GPUs of a device");
_Static_assert(TOPO_GPUS_MAX <= UINT8_MAX, "the index of a member fits into a byte");

int choose_reports(struct device *dev, struct topo_report ret[TOPO_GPUS_MAX], struct err_text *err)
{
	struct device_gpu gpus[DEVICE_GPUS_MAX];
	int n = dev->ops->gpus(dev, gpus, DEVICE_GPUS_MAX);

	if (n < 0)
		return err_set(err, n, "%s", dev->why.s);
	for (int i = 0; i < n; i++) {
		struct topo_report *r = &ret[i];

		*r = (struct topo_report){.numa = gpus[i].numa};
		snprintf(r->pci, sizeof(r->pci), "%.15s", gpus[i].pci);
		snprintf(r->name, sizeof(r->name), "%.63s", gpus[i].name);
		memcpy(r->uuid, gpus[i].uuid, sizeof(r->uuid));
		for (int k = 0; k < n; k++) {
			int link = k == i ? DEVICE_LINK_NONE : dev->ops->peer(dev, i, k);

			if (link == DEVICE_LINK_NVLINK)
				r->links |= UINT64_C(1) << k;
			if (link == DEVICE_LINK_NVLINK || link == DEVICE_LINK_PCI)
				r->peers |= UINT64_C(1) << k;
		}
	}
	return n;
}

static bool has_collective(const struct transfer_plan *p)
{
	for (unsigned i = 0; i < p->n_steps; i++)
		if (p->steps[i].op == PLAN_REDUCE_SCATTER || p->steps[i].op == PLAN_REDUCE)
			return true;
	return false;
}

static void route_make_single_groups(struct route *r)
{
	r->n_groups = r->n_members;
	for (unsigned i = 0; i < r->n_members; i++)
		r->groups[i] = (struct route_group){1, {(uint8_t)i}};
}

static void groups_of_plan(const struct transfer_plan *p, struct route *r)
{
	r->n_groups = (uint8_t)p->n_groups;
	for (unsigned g = 0; g < p->n_groups; g++) {
		r->groups[g].n = (uint8_t)p->groups[g].n;
		memcpy(r->groups[g].member, p->groups[g].gpus, p->groups[g].n);
	}
}

static void roots_of_plan(const struct transfer_plan *p, struct route *r)
{
	for (unsigned i = 0; i < p->n_steps; i++)
		if (p->steps[i].op == PLAN_REDUCE)
			r->roots[r->n_roots++] = p->steps[i].gpu;
}

/* Convert the plan to a route, which the engine follows. */
static void route_of_plan(const struct transfer_plan *p, struct route *ret)
{
	struct route r = {.n_members = (uint8_t)p->n_gpus};

	snprintf(r.name, sizeof(r.name), "%s", strategy_words[p->strategy]);
	if (has_collective(p)) {
		bool has_roots = p->strategy == STRATEGY_ROOTS;

		groups_of_plan(p, &r);
		roots_of_plan(p, &r);
		r.up = has_roots ? UP_REDUCE : UP_SCATTER;
		r.down = has_roots ? DOWN_BCAST : DOWN_GATHER;
		r.chunk_bytes = ROUTE_CHUNK_BYTES;
	} else {
		route_make_single_groups(&r);
		r.up = UP_COPY;
		r.down = p->strategy == STRATEGY_CE ? DOWN_PEER : DOWN_COPY;
	}
	*ret = r;
}

static int strategy_parse_name(const char *want, enum strategy *ret, struct err_text *err)
{
	for (unsigned i = 0; strategy_words[i]; i++)
		if (strcmp(*want ? want : "auto", strategy_words[i]) == 0) {
			*ret = (enum strategy)i;
			return 0;
		}
	return err_set(err, -EINVAL,
		"gpu-strategy '%s' does not exist: use auto, copy, rs_ag, switch_sum, roots or ce",
		want);
}

/* Return whether two members share a GPU. If so, only the processor can sum the members'
 * tensors. */
static bool has_shared_gpu(const int *gpus, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < i; k++)
			if (gpus[i] == gpus[k])
				return true;
	return false;
}

static int copy_for_shared(enum strategy want, unsigned n, struct choice *ret, struct err_text *err)
{
	if (want != STRATEGY_AUTO && want != STRATEGY_COPY)
		return err_set(err, -EOPNOTSUPP,
			"gpu-strategy '%s' is not possible when workers share a GPU: set "
			"gpu-strategy to 'copy' or 'auto'",
			strategy_words[want]);
	snprintf(ret->why, sizeof(ret->why), "workers share a GPU, so the processor sums");
	ret->route = (struct route){
		.name = "copy", .n_members = (uint8_t)n, .up = UP_COPY, .down = DOWN_COPY};
	route_make_single_groups(&ret->route);
	return 0;
}

static bool has_cliques_on_gpus(struct device *dev, const int *gpus, unsigned n)
{
	struct device_gpu all[DEVICE_GPUS_MAX];
	int n_all = dev->ops->gpus(dev, all, DEVICE_GPUS_MAX);

	for (unsigned i = 0; i < n; i++)
		if (gpus[i] >= n_all || !(all[gpus[i]].caps & DEVICE_CAP_CLIQUE))
			return false;
	return true;
}

struct work {
	struct topology topology;
	struct topo_report reports[TOPO_GPUS_MAX];
	struct transfer_plan plan;
	unsigned gpus[TOPO_GPUS_MAX];
};

/* Store the topology of the machine in w->topology. The sources are sysfs and the device. */
static int topology_read_machine(
	struct work *w, const char *sysfs, struct device *dev, struct err_text *err)
{
	int rc = choose_reports(dev, w->reports, err);

	if (rc < 0)
		return rc;
	/* Ignore a failure: without sysfs, the GPUs have no uplinks. */
	topology_read(sysfs, &w->topology, NULL);
	return topology_refine(&w->topology, w->reports, (unsigned)rc, err);
}

static int route_choose_by_strategy(struct work *w, struct device *dev, const int *gpus, unsigned n,
	enum strategy want, struct choice *ret, struct err_text *err)
{
	struct strategy_ask ask = {.want = want,
		.has_collectives = has_cliques_on_gpus(dev, gpus, n),
		.gpus = w->gpus,
		.n_gpus = n};
	int rc;

	if (has_shared_gpu(gpus, n))
		return copy_for_shared(want, n, ret, err);
	for (unsigned i = 0; i < n; i++)
		w->gpus[i] = (unsigned)gpus[i];
	rc = strategy_plan(&w->topology, &ask, &w->plan, err);
	if (rc < 0)
		return rc;
	route_of_plan(&w->plan, &ret->route);
	snprintf(ret->why, sizeof(ret->why), "%s", w->plan.why);
	return 0;
}

/* ---- nodes ---- */

/* The NUMA node that all added objects have in common. is_any: an object was added. is_apart: the
 * objects are on several nodes. */
struct common_node {
	bool is_any, is_apart;
	int32_t numa;
};

static void common_node_add(struct common_node *c, int32_t numa)
{
	c->is_apart |= c->is_any && c->numa != numa;
	c->is_any = true;
	c->numa = numa;
}

/* Return 1 + the number of the common node, or 0 if there is no common node. */
static uint16_t common_node_get(const struct common_node *c)
{
	return c->is_any && !c->is_apart && c->numa >= 0 ? (uint16_t)(c->numa + 1) : 0;
}

static uint16_t node_of_fastest_cards(const struct topology *t)
{
	struct common_node cards = {0};
	uint32_t most = 0;

	for (unsigned i = 0; i < t->n_nics; i++)
		if (t->nics[i].is_up && t->nics[i].mbps > most)
			most = t->nics[i].mbps;
	for (unsigned i = 0; i < t->n_nics; i++)
		if (t->nics[i].is_up && t->nics[i].mbps == most)
			common_node_add(&cards, t->nics[i].numa);
	return common_node_get(&cards);
}

static void choose_numa_nodes(const struct topology *t, const int *gpus, struct choice *ret)
{
	const struct route *r = &ret->route;
	struct common_node all = {0};

	for (unsigned g = 0; g < r->n_groups; g++) {
		struct common_node group = {0};

		for (unsigned i = 0; i < r->groups[g].n; i++) {
			int32_t numa = t->gpus[gpus[r->groups[g].member[i]]].numa;

			common_node_add(&group, numa);
			common_node_add(&all, numa);
		}
		ret->input_nodes[g] = common_node_get(&group);
	}
	if (!all.is_apart) {
		ret->sum_node = common_node_get(&all);
		return;
	}
	ret->sum_node = node_of_fastest_cards(t);
	for (unsigned g = 0; g < r->n_groups; g++)
		if (!ret->input_nodes[g])
			/* The group's GPUs are on several nodes. Place the input near the network
			 * card. */
			ret->input_nodes[g] = ret->sum_node;
}

int choose_route(const char *sysfs, struct device *dev, const int *gpus, unsigned n_members,
	const char *want, struct choice *ret, struct err_text *err)
{
	enum strategy strategy = STRATEGY_AUTO;
	struct work *w;
	int rc = strategy_parse_name(want, &strategy, err);

	if (rc < 0)
		return rc;
	if (n_members < 1 || n_members > DEVICE_GPUS_MAX)
		return err_set(err, -EINVAL,
			"%u workers use GPUs of this machine, but the limit is %d workers",
			n_members, DEVICE_GPUS_MAX);
	memset(ret, 0, sizeof(*ret));
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_set(err, -ENOMEM, "out of memory");
	rc = topology_read_machine(w, sysfs, dev, err);
	if (rc >= 0)
		rc = route_choose_by_strategy(w, dev, gpus, n_members, strategy, ret, err);
	if (rc == 0)
		choose_numa_nodes(&w->topology, gpus, ret);
	free(w);
	return rc;
}
