/* Checks the options of bpsrun against each other. This file starts nothing. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <string.h>

/* Print that two options exclude each other, and why. */
static int refuse_pair(const char *why)
{
	output_print_message("%s", why);
	return -EINVAL;
}

/* Check the options that choose the daemons. */
static int check_daemon_options(const struct bpsrun_options *o)
{
	bool is_private = o->has_agents || o->has_servers;

	if (o->agents > o->n && !o->daemons_only && !o->hosts) {
		output_print_message(
			"--agents %u is more than the number of workers, %u", o->agents, o->n);
		return -EINVAL;
	}
	if (o->agent && is_private)
		return refuse_pair(
			"--agent uses running daemons; --agents and --servers start new ones");
	if (o->agent && (o->head || o->daemons_only))
		return refuse_pair(
			"--agent uses running daemons; --head and --daemons start new ones");
	if (is_private && (o->head || o->hosts || o->nnodes > 1))
		return refuse_pair("--agents and --servers are for a job on one node; with several "
				   "nodes each has an agent, and --servers-on chooses the servers");
	if (o->servers_on && !*o->servers_on)
		return refuse_pair("--servers-on must be all, head or a list of hosts");
	return 0;
}

/* Check the options that start nodes on other hosts. */
static int check_host_options(const struct bpsrun_options *o)
{
	if (!o->hosts)
		return 0;
	if (o->agent)
		return refuse_pair("-H starts the daemons of the job; --agent uses running ones");
	if (o->nnodes || o->node_rank != PLACE_RANK_UNKNOWN || o->size)
		return refuse_pair(
			"-H gives each host its place: leave out --nnodes, --node-rank and "
			"--ranks");
	return 0;
}

static int check_worker_options(const struct bpsrun_options *o)
{
	if (o->daemons_only && o->n && !o->hosts)
		return refuse_pair("--daemons runs the command once on each node: leave out -n");
	if (o->daemons_only && o->restarts)
		return refuse_pair(
			"--daemons runs the command once on each node: leave out --restart");
	if (o->size && o->first_rank + o->n > o->size) {
		output_print_message(
			"--ranks %u/%u has no room for %u workers", o->first_rank, o->size, o->n);
		return -EINVAL;
	}
	if (o->on_agent_loss && strcmp(o->on_agent_loss, "abort") != 0 &&
		strcmp(o->on_agent_loss, "shrink") != 0) {
		output_print_message(
			"--on-agent-loss '%s' is neither abort nor shrink", o->on_agent_loss);
		return -EINVAL;
	}
	if (o->log_dir && o->has_no_prefix)
		return refuse_pair("--log-dir copies the output of the workers, which --no-prefix "
				   "does not pass through bpsrun: choose one of them");
	return 0;
}

int bpsrun_options_check(struct bpsrun_options *o)
{
	int rc;

	if (o->from_stdin || o->wants_check_build)
		return 0;
	if ((!o->n && !o->hosts && !o->daemons_only) || !o->command[0]) {
		output_print_message("%s is missing", o->n || o->hosts || o->daemons_only
							      ? "the command"
							      : "-n, the number of workers,");
		return -EINVAL;
	}
	if (o->nnodes && o->node_rank != PLACE_RANK_UNKNOWN && o->node_rank >= o->nnodes) {
		output_print_message(
			"--node-rank %u is not below --nnodes %u", o->node_rank, o->nnodes);
		return -EINVAL;
	}
	if (o->job && (!*o->job || strlen(o->job) > CTL_JOB_NAME_MAX)) {
		output_print_message("--job must have 1 to %d bytes", CTL_JOB_NAME_MAX);
		return -EINVAL;
	}
	rc = check_worker_options(o);
	if (!rc)
		rc = check_host_options(o);
	if (!rc)
		rc = check_daemon_options(o);
	if (!rc && o->daemons_only && !o->hosts)
		o->n = 1;
	return rc;
}
