/* Reads the variables of Slurm, Kubernetes and torchrun. A launcher counts only if it says that the
 * job has several nodes, so a job on one machine is not changed by a launcher around it. */
#include "libbpsclient/tools/nodes/place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libbpsclient/tools/nodes/nodelist.h"
#include "libbpsclient/tools/process/output.h"

/* Ports of clusters of Slurm's jobs: several jobs may have the same head at the same time. The
 * ports are below those that the kernel chooses by itself. Each cluster uses two. */
#define SLURM_PORT_FIRST 20000
#define SLURM_PORT_COUNT 5000

/* Names of the variables of a launcher. Each may be NULL. */
struct launcher_variables {
	const char *count, *rank;
	/* number of the process on its node: bpsrun must be started once on each node */
	const char *local_rank;
	const char *once_per_node;    /* how to start one process on each node */
	const char *list, *list_else; /* nodes; the first one is the head */
	const char *head;             /* address of the head */
};

static const struct launcher_variables launchers[] = {
	/* srun sets these for its step. The variables of the whole job, which a batch script also
	 * has, are not read for the number of nodes: there, bpsrun runs on one node. */
	{"SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_LOCALID", "srun --ntasks-per-node=1",
		"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", NULL},
	/* Kubernetes does not say how many pods an indexed Job has */
	{NULL, "JOB_COMPLETION_INDEX", NULL, NULL, NULL, NULL, NULL},
	/* torchrun's own options as variables, which Kubeflow sets */
	{"PET_NNODES", "PET_NODE_RANK", NULL, NULL, NULL, NULL, "PET_MASTER_ADDR"},
	/* a worker of torchrun */
	{"GROUP_WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "torchrun --nproc-per-node 1", NULL, NULL,
		"MASTER_ADDR"},
};
#define N_LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

static const char *place_variable(const char *name)
{
	const char *value = name ? getenv(name) : NULL;

	return value && *value ? value : NULL;
}

static int env_parse_number(const char *name, unsigned long max, unsigned long *ret)
{
	const char *text = place_variable(name);
	char *end;

	*ret = text ? strtoul(text, &end, 10) : 0;
	if (text && *text >= '0' && *text <= '9' && !*end && *ret <= max)
		return 0;
	output_print_message("%s='%s' is not a number up to %lu: set the place of this node with "
			     "--nnodes and --node-rank",
		name, text ? text : "", max);
	return -EINVAL;
}

/* Find the number of nodes, and the launcher that says it. */
static int find_node_count(unsigned *ret, const struct launcher_variables **ret_launcher)
{
	unsigned long n;

	for (size_t i = 0; i < N_LAUNCHERS; i++) {
		if (!place_variable(launchers[i].count))
			continue;
		if (env_parse_number(launchers[i].count, PLACE_NODES_MAX, &n) < 0)
			return -EINVAL;
		if (n < 2)
			continue;
		*ret = (unsigned)n;
		*ret_launcher = &launchers[i];
		return 0;
	}
	return 0;
}

/* Find the rank of this node. l: the launcher that says the number of nodes; NULL: any. */
static int find_node_rank(const struct launcher_variables *l, uint32_t *ret)
{
	unsigned long rank, local = 0;

	for (size_t i = 0; i < N_LAUNCHERS; i++) {
		const struct launcher_variables *at = &launchers[i];

		if ((l && at != l) || !place_variable(at->rank))
			continue;
		if (env_parse_number(at->rank, PLACE_NODES_MAX - 1, &rank) < 0)
			return -EINVAL;
		if (place_variable(at->local_rank) &&
			env_parse_number(at->local_rank, PLACE_NODES_MAX, &local) < 0)
			return -EINVAL;
		if (local) {
			output_print_message(
				"%s is %lu: start bpsrun once on each node, with `%s`; "
				"its -n is the number of workers of a node",
				at->local_rank, local, at->once_per_node);
			return -EINVAL;
		}
		*ret = (uint32_t)rank;
		return 0;
	}
	return 0;
}

/* Find the host of the head, and Slurm's port. */
static int find_head_in_env(const struct launcher_variables *l, struct addr *ret)
{
	char host[ADDR_HOST_BYTES];
	struct err_text err;

	for (size_t i = 0; i < N_LAUNCHERS; i++) {
		const struct launcher_variables *at = &launchers[i];
		const char *name = place_variable(at->list) ? at->list : at->list_else;
		const char *list = place_variable(name), *head = place_variable(at->head);

		if ((l && at != l) || (!list && !head))
			continue;
		if (list && nodelist_get_name(list, 0, host, sizeof(host)) < 0) {
			output_print_message(
				"%s='%s' is not a list of nodes: set --head", name, list);
			return -EINVAL;
		}
		if (addr_parse(ret, list ? host : head, ret->port, &err) < 0) {
			output_print_message("the head of this job: %s", err.s);
			return -EINVAL;
		}
		return 0;
	}
	return 0;
}

static void find_slurm_job(struct place *p)
{
	const char *job = place_variable("SLURM_JOB_ID"), *step = place_variable("SLURM_STEP_ID");

	if (!job)
		return;
	snprintf(p->job, sizeof(p->job), "%s%s%s", job, step ? "." : "", step ? step : "");
	p->head.port =
		(uint16_t)(SLURM_PORT_FIRST +
			   2 * ((strtoul(job, NULL, 10) + (step ? strtoul(step, NULL, 10) : 0)) %
				       SLURM_PORT_COUNT));
}

int place_find(unsigned nnodes, uint32_t node_rank, const char *head, bool uses_environment,
	struct place *ret)
{
	struct place p = {
		.nnodes = nnodes ? nnodes : 1, .node_rank = node_rank, .head.port = PLACE_PORT};
	const struct launcher_variables *l = NULL;
	struct err_text err;
	int rc = 0;

	if (!nnodes && uses_environment)
		rc = find_node_count(&p.nnodes, &l);
	if (!rc && p.nnodes > 1)
		find_slurm_job(&p);
	if (!rc && p.nnodes > 1 && node_rank == PLACE_RANK_UNKNOWN)
		rc = find_node_rank(l, &p.node_rank);
	if (!rc && head && addr_parse(&p.head, head, p.head.port, &err) < 0) {
		output_print_message("--head: %s", err.s);
		rc = -EINVAL;
	}
	if (!rc && !head && p.nnodes > 1)
		rc = find_head_in_env(l, &p.head);
	if (rc < 0)
		return rc;
	if (p.nnodes == 1 && p.node_rank == PLACE_RANK_UNKNOWN)
		p.node_rank = 0;
	if (p.node_rank != PLACE_RANK_UNKNOWN && p.node_rank >= p.nnodes) {
		output_print_message("the node rank %u is not below the number of nodes, %u",
			p.node_rank, p.nnodes);
		return -EINVAL;
	}
	*ret = p;
	return 0;
}
