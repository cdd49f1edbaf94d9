/* Makes a part of the agent's status, in JSON. This part describes the machine's GPUs, the
 * machine's network cards and the plan for the gradients. strategy.c makes the plan.
 * Thread: any. */
#include "bps-agent/gpu/topology_report.h"

#include <stdio.h>
#include <stdlib.h>

static json_t *pci_address_to_json(uint64_t pci)
{
	char text[TOPO_PCI_BYTES];

	topo_pci_format(pci, text);
	return json_string(text);
}

/* Convert an index to JSON; TOPO_NONE becomes null. */
static json_t *uplink_index_to_json(uint32_t i)
{
	return i == TOPO_NONE ? json_null() : json_integer((json_int_t)i);
}

static json_t *gpu_mask_to_json(uint64_t mask)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < 64; i++)
		if (mask >> i & 1)
			json_array_append_new(list, json_integer(i));
	return list;
}

static json_t *gpu_uuid_to_json(const struct topo_gpu *g)
{
	char text[48];
	size_t n = 0;

	if (!g->has_uuid)
		return json_null();
	n = (size_t)snprintf(text, sizeof(text), "GPU-");
	for (unsigned i = 0; i < sizeof(g->uuid); i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%02x",
			i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", g->uuid[i]);
	return json_string(text);
}

static json_t *topology_gpus_to_json(const struct topology *t)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < t->n_gpus; i++) {
		const struct topo_gpu *g = &t->gpus[i];
		json_t *name = json_string(g->name); /* NULL if the name is not UTF-8 */

		json_array_append_new(
			list, json_pack("{s:o, s:o, s:i, s:o, s:o, s:i, s:b, s:o}", "pci",
				      pci_address_to_json(g->pci), "uplink",
				      uplink_index_to_json(g->uplink), "numa", (int)g->numa, "uuid",
				      gpu_uuid_to_json(g), "name", name ? name : json_string("?"),
				      "device", (int)g->device, "is_mig", g->is_mig, "links",
				      gpu_mask_to_json(g->links)));
	}
	return list;
}

static json_t *topology_nics_to_json(const struct topology *t)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < t->n_nics; i++) {
		const struct topo_nic *n = &t->nics[i];
		json_t *name = json_string(n->name);

		json_array_append_new(
			list, json_pack("{s:o, s:o, s:i, s:o, s:I, s:b}", "pci",
				      pci_address_to_json(n->pci), "uplink",
				      uplink_index_to_json(n->uplink), "numa", (int)n->numa, "name",
				      name ? name : json_string("?"), "mbps", (json_int_t)n->mbps,
				      "is_up", n->is_up));
	}
	return list;
}

static json_t *topology_uplinks_to_json(const struct topology *t)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < t->n_uplinks; i++) {
		const struct topo_uplink *u = &t->uplinks[i];

		json_array_append_new(
			list, json_pack("{s:o, s:s, s:b}", "pci", pci_address_to_json(u->pci),
				      "bridge", u->bridge, "has_switch", u->has_switch));
	}
	return list;
}

static json_t *plan_groups_to_json(const struct transfer_plan *p)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < p->n_groups; i++) {
		json_t *members = json_array();

		for (unsigned k = 0; k < p->groups[i].n; k++)
			json_array_append_new(members, json_integer(p->gpus[p->groups[i].gpus[k]]));
		json_array_append_new(list, members);
	}
	return list;
}

static json_t *plan_steps_to_json(const struct transfer_plan *p)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < p->n_steps; i++) {
		const struct plan_step *s = &p->steps[i];
		bool is_of_group = s->op == PLAN_REDUCE_SCATTER || s->op == PLAN_ALL_GATHER;
		json_t *gpu = is_of_group || s->op == PLAN_SUM ? json_null()
							       : json_integer(p->gpus[s->gpu]);

		json_array_append_new(list,
			json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:I, s:I}", "op",
				plan_op_name(s->op), "gpu", gpu, "group", (int)s->group, "turn",
				(int)s->turn, "source", (int)s->source, "numa", (int)s->numa,
				"first", (json_int_t)s->first, "units", (json_int_t)s->n));
	}
	return list;
}

static json_t *transfer_plan_to_json(const struct transfer_plan *p)
{
	return json_pack("{s:s, s:b, s:s, s:i, s:i, s:i, s:o, s:o}", "name",
		strategy_words[p->strategy], "is_forced", p->is_forced, "why", p->why, "units",
		(int)p->n_units, "sources", (int)p->n_sources, "turns", (int)p->n_turns, "groups",
		plan_groups_to_json(p), "steps", plan_steps_to_json(p));
}

static json_t *topology_to_json(const struct topology *t, const struct strategy_ask *ask)
{
	struct transfer_plan *p = malloc(sizeof(*p));
	struct err_text err = {""};
	json_t *root;

	if (!p)
		return NULL;
	root = json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "source",
		t->is_refined ? "executor" : "sysfs", "nvswitches", (int)t->n_nvswitches, "odd",
		(int)t->n_odd, "gpus", topology_gpus_to_json(t), "nics", topology_nics_to_json(t),
		"uplinks", topology_uplinks_to_json(t));
	if (t->n_gpus == 0)
		json_object_set_new(root, "strategy", json_null());
	else if (strategy_plan(t, ask, p, &err) == 0)
		json_object_set_new(root, "strategy", transfer_plan_to_json(p));
	else
		json_object_set_new(root, "error", json_string(err.s));
	free(p);
	return root;
}

json_t *topology_report(const char *sysfs, const struct strategy_ask *ask,
	const struct topo_report *reports, unsigned n, const char *why)
{
	struct topology *t = malloc(sizeof(*t));
	struct err_text err = {""};
	json_t *root;
	int rc;

	if (!t)
		return NULL;
	rc = topology_read(sysfs, t, &err);
	if (rc == 0 && n)
		rc = topology_refine(t, reports, n, &err);
	if (rc == 0)
		root = topology_to_json(t, ask);
	else
		root = json_pack("{s:s}", "error", err.s);
	if (*why)
		json_object_set_new(root, "executor", json_string(why));
	free(t);
	return root;
}
