/* The command line of bpsrun: options, their checks and the help. This file starts nothing. One
 * thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/duration.h"

#define GRACE_DEFAULT_MS 10000

static const char usage[] =
	"usage: bpsrun -n N [--job NAME] [--agent SOCKET | [--servers K] [--agents M]]\n"
	"              [--nnodes K --node-rank R] [--timeout TIME] [--grace TIME]\n"
	"              [--status] [--no-prefix] [--on-agent-loss abort|shrink]\n"
	"              -- COMMAND [ARG...]\n"
	"bpsrun(1) describes the options (`man bpsrun`).\n";

static int parse_number_in_range(
	const char *what, const char *text, unsigned min, unsigned max, unsigned *ret)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || v < min || v > max) {
		output_print_message("%s '%s' is not a number from %u to %u", what, text, min, max);
		return -EINVAL;
	}
	*ret = (unsigned)v;
	return 0;
}

static int parse_option_duration(const char *option, const char *text, uint32_t *ret_ms)
{
	uint64_t ms = duration_parse_ms(text, INT32_MAX);

	if (ms) {
		*ret_ms = (uint32_t)ms;
		return 0;
	}
	output_print_message(
		"%s '%s' is not a number with a unit, such as 30s or 5min", option, text);
	return -EINVAL;
}

enum {
	OPT_SERVERS = 256,
	OPT_AGENTS,
	OPT_JOB,
	OPT_STATUS,
	OPT_TIMEOUT,
	OPT_GRACE,
	OPT_AGENT,
	OPT_NNODES,
	OPT_NODE_RANK,
	OPT_NO_PREFIX,
	OPT_ON_AGENT_LOSS,
	OPT_VERSION
};
static const struct option long_options[] = {
	{"servers", required_argument, NULL, OPT_SERVERS},
	{"agents", required_argument, NULL, OPT_AGENTS},
	{"job", required_argument, NULL, OPT_JOB},
	{"status", no_argument, NULL, OPT_STATUS},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"grace", required_argument, NULL, OPT_GRACE},
	{"agent", required_argument, NULL, OPT_AGENT},
	{"nnodes", required_argument, NULL, OPT_NNODES},
	{"node-rank", required_argument, NULL, OPT_NODE_RANK},
	{"no-prefix", no_argument, NULL, OPT_NO_PREFIX},
	{"on-agent-loss", required_argument, NULL, OPT_ON_AGENT_LOSS},
	{"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

/* Store the option c. Return 0 on success. Return 1 for --help and --version, after which nothing
 * is run. Return -EINVAL if the option is not valid. */
static int parse_bpsrun_option(int c, struct bpsrun_options *o)
{
	switch (c) {
	case 'n':
		return parse_number_in_range("-n", optarg, 1, TRAINERS_MAX, &o->n);
	case OPT_SERVERS:
		o->has_servers = true;
		return parse_number_in_range(
			"--servers", optarg, 1, DAEMONS_MAX / 2 - 1, &o->servers);
	case OPT_AGENTS:
		o->has_agents = true;
		return parse_number_in_range(
			"--agents", optarg, 1, DAEMONS_MAX / 2 - 1, &o->agents);
	case OPT_NNODES:
		return parse_number_in_range("--nnodes", optarg, 1, 65536, &o->nnodes);
	case OPT_NODE_RANK:
		return parse_number_in_range("--node-rank", optarg, 0, 65535, &o->node_rank);
	case OPT_TIMEOUT:
		return parse_option_duration("--timeout", optarg, &o->timeout_ms);
	case OPT_GRACE:
		return parse_option_duration("--grace", optarg, &o->grace_ms);
	case OPT_JOB:
		o->job = optarg;
		return 0;
	case OPT_AGENT:
		o->agent = optarg;
		return 0;
	case OPT_STATUS:
		o->wants_status = true;
		return 0;
	case OPT_NO_PREFIX:
		o->has_no_prefix = true;
		return 0;
	case OPT_ON_AGENT_LOSS:
		o->on_agent_loss = optarg;
		return 0;
	case OPT_VERSION:
		printf("bpsrun " BPS_VERSION "\n");
		return 1;
	case 'h':
		fputs(usage, stdout);
		return 1;
	default:
		fputs(usage, stderr);
		return -EINVAL;
	}
}

static int check_bpsrun_options(struct bpsrun_options *o)
{
	if (!o->n || !o->command[0]) {
		output_print_message(
			"%s is missing", o->n ? "the command" : "-n, the number of workers,");
		fputs(usage, stderr);
		return -EINVAL;
	}
	if (o->node_rank >= o->nnodes) {
		output_print_message(
			"--node-rank %u is not below --nnodes %u", o->node_rank, o->nnodes);
		return -EINVAL;
	}
	if (o->nnodes > 1 && !o->job) {
		output_print_message(
			"a job on several nodes needs --job, with the same name on each node");
		return -EINVAL;
	}
	if (o->job && (!*o->job || strlen(o->job) > CTL_JOB_NAME_MAX)) {
		output_print_message("--job must have 1 to %d bytes", CTL_JOB_NAME_MAX);
		return -EINVAL;
	}
	if (o->on_agent_loss && strcmp(o->on_agent_loss, "abort") != 0 &&
		strcmp(o->on_agent_loss, "shrink") != 0) {
		output_print_message(
			"--on-agent-loss '%s' is neither abort nor shrink", o->on_agent_loss);
		return -EINVAL;
	}
	if (o->agents > o->n) {
		output_print_message(
			"--agents %u is more than the number of workers, %u", o->agents, o->n);
		return -EINVAL;
	}
	if (o->agent && (o->has_agents || o->has_servers)) {
		output_print_message(
			"--agent uses running daemons; --agents and --servers start new ones");
		return -EINVAL;
	}
	return 0;
}

int bpsrun_options_parse(int argc, char **argv, struct bpsrun_options *o)
{
	int c, rc;

	*o = (struct bpsrun_options){
		.servers = 1, .agents = 1, .nnodes = 1, .grace_ms = GRACE_DEFAULT_MS};
	for (;;) {
		if (optind < argc && horovod_option_explain(argv[optind]))
			return -EINVAL;
		c = getopt_long(argc, argv, "+n:h", long_options, NULL);
		if (c < 0)
			break;
		rc = parse_bpsrun_option(c, o);
		if (rc)
			return rc;
	}
	o->command = argv + optind;
	return check_bpsrun_options(o);
}
