/* The command line of bpsrun: options and the help. options_check.c checks them against each other.
 * This file starts nothing. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/duration.h"
#include "libbpsclient/tools/nodes/hostlist.h"

#define GRACE_DEFAULT_MS 10000
#define START_DEFAULT_MS 300000

static const char usage[] =
	"usage: bpsrun -n N [--job NAME] [--agent SOCKET | [--servers K] [--agents M]]\n"
	"              [--head HOST[:PORT]] [--nnodes K] [--node-rank R]\n"
	"              [--key-file FILE] [--servers-on all|head|HOSTS]\n"
	"              [--interface NAME]\n"
	"              [--start-timeout TIME] [--timeout TIME] [--grace TIME]\n"
	"              [--restart N] [--on-agent-loss abort|shrink] [-x NAME[=VALUE]]\n"
	"              [--log-dir DIR] [--status] [--no-prefix] -- COMMAND [ARG...]\n"
	"       bpsrun -H HOST[:N],... [-n N] [--hostfile FILE] [--rsh COMMAND] [...]\n"
	"              -- COMMAND [ARG...]\n"
	"       bpsrun --daemons [--head HOST[:PORT]] [--nnodes K] [...]\n"
	"              -- COMMAND [ARG...]\n"
	"       bpsrun --check-build\n"
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

/* Parse "FIRST/SIZE". */
static int parse_option_ranks(const char *text, struct bpsrun_options *o)
{
	char after;

	if (sscanf(text, "%u/%u%c", &o->first_rank, &o->size, &after) == 2 && o->size &&
		o->first_rank < o->size && text[0] != '-')
		return 0;
	output_print_message("--ranks '%s' is not FIRST/SIZE, such as 8/16", text);
	return -EINVAL;
}

static int add_option_export(const char *text, struct bpsrun_options *o)
{
	if (o->n_exports == EXPORTS_MAX) {
		output_print_message("-x is there more than %d times", EXPORTS_MAX);
		return -EINVAL;
	}
	if (!*text || *text == '=') {
		output_print_message("-x '%s' is not NAME or NAME=VALUE", text);
		return -EINVAL;
	}
	o->exports[o->n_exports++] = text;
	return 0;
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
	OPT_HEAD,
	OPT_KEY_FILE,
	OPT_SERVERS_ON,
	OPT_INTERFACE,
	OPT_DAEMONS,
	OPT_START_TIMEOUT,
	OPT_RESTART,
	OPT_LOG_DIR,
	OPT_HOSTFILE,
	OPT_RSH,
	OPT_RANKS,
	OPT_STDIN,
	OPT_CHECK_BUILD,
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
	{"head", required_argument, NULL, OPT_HEAD},
	{"key-file", required_argument, NULL, OPT_KEY_FILE},
	{"servers-on", required_argument, NULL, OPT_SERVERS_ON},
	{"interface", required_argument, NULL, OPT_INTERFACE},
	{"daemons", no_argument, NULL, OPT_DAEMONS},
	{"start-timeout", required_argument, NULL, OPT_START_TIMEOUT},
	{"restart", required_argument, NULL, OPT_RESTART},
	{"log-dir", required_argument, NULL, OPT_LOG_DIR},
	{"hosts", required_argument, NULL, 'H'},
	{"hostfile", required_argument, NULL, OPT_HOSTFILE},
	{"rsh", required_argument, NULL, OPT_RSH},
	{"ranks", required_argument, NULL, OPT_RANKS},
	{"stdin", no_argument, NULL, OPT_STDIN},
	{"check-build", no_argument, NULL, OPT_CHECK_BUILD},
	{"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

/* Store an option whose value is a text. Returns false if c is no such option. */
static bool store_option_text(int c, struct bpsrun_options *o)
{
	const char **at = c == OPT_JOB		   ? &o->job
			  : c == OPT_AGENT	   ? &o->agent
			  : c == OPT_HEAD	   ? &o->head
			  : c == OPT_KEY_FILE	   ? &o->key_file
			  : c == OPT_SERVERS_ON	   ? &o->servers_on
			  : c == OPT_INTERFACE	   ? &o->interface
			  : c == OPT_LOG_DIR	   ? &o->log_dir
			  : c == OPT_RSH	   ? &o->rsh
			  : c == OPT_ON_AGENT_LOSS ? &o->on_agent_loss
			  : c == 'H'		   ? &o->hosts
						   : NULL;

	if (at)
		*at = optarg;
	return at != NULL;
}

/* Store an option without a value. Returns false if c is no such option. */
static bool store_option_flag(int c, struct bpsrun_options *o)
{
	bool *at = c == OPT_STATUS        ? &o->wants_status
		   : c == OPT_NO_PREFIX   ? &o->has_no_prefix
		   : c == OPT_DAEMONS     ? &o->daemons_only
		   : c == OPT_STDIN       ? &o->from_stdin
		   : c == OPT_CHECK_BUILD ? &o->wants_check_build
					  : NULL;

	if (at)
		*at = true;
	return at != NULL;
}

/* Store the option c. Return 0 on success. Return 1 for --help and --version, after which nothing
 * is run. Return -EINVAL if the option is not valid. */
static int parse_bpsrun_option(int c, struct bpsrun_options *o)
{
	switch (c) {
	case 'n':
		return parse_number_in_range("-n", optarg, 1, TRAINERS_MAX, &o->n);
	case 'x':
		return add_option_export(optarg, o);
	case OPT_SERVERS:
		o->has_servers = true;
		return parse_number_in_range(
			"--servers", optarg, 1, DAEMONS_MAX / 2 - 1, &o->servers);
	case OPT_AGENTS:
		o->has_agents = true;
		return parse_number_in_range(
			"--agents", optarg, 1, DAEMONS_MAX / 2 - 1, &o->agents);
	case OPT_NNODES:
		return parse_number_in_range("--nnodes", optarg, 1, PLACE_NODES_MAX, &o->nnodes);
	case OPT_NODE_RANK:
		return parse_number_in_range(
			"--node-rank", optarg, 0, PLACE_NODES_MAX - 1, &o->node_rank);
	case OPT_RESTART:
		return parse_number_in_range("--restart", optarg, 0, 1000, &o->restarts);
	case OPT_TIMEOUT:
		return parse_option_duration("--timeout", optarg, &o->timeout_ms);
	case OPT_GRACE:
		return parse_option_duration("--grace", optarg, &o->grace_ms);
	case OPT_START_TIMEOUT:
		return parse_option_duration("--start-timeout", optarg, &o->start_timeout_ms);
	case OPT_RANKS:
		return parse_option_ranks(optarg, o);
	case OPT_HOSTFILE:
		o->hosts = hostlist_read_file(optarg); /* lives as long as the process */
		return o->hosts ? 0 : -EINVAL;
	case OPT_VERSION:
		printf("bpsrun " BPS_VERSION "\n");
		return 1;
	case 'h':
		fputs(usage, stdout);
		return 1;
	default:
		if (store_option_text(c, o) || store_option_flag(c, o))
			return 0;
		fputs(usage, stderr);
		return -EINVAL;
	}
}

/* Keep an option that the nodes on other hosts get too. */
static void keep_passed_option(int c, int from, char **argv, struct bpsrun_options *o)
{
	static const int own[] = {'n', 'x', 'H', OPT_HOSTFILE, OPT_RSH, OPT_KEY_FILE, OPT_HEAD,
		OPT_NNODES, OPT_NODE_RANK, OPT_RANKS, OPT_STDIN};

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (c == own[i])
			return;
	for (int i = from; i < optind; i++)
		if (o->n_passed < sizeof(o->passed) / sizeof(o->passed[0]))
			o->passed[o->n_passed++] = argv[i];
}

int bpsrun_options_parse(int argc, char **argv, struct bpsrun_options *o)
{
	int c, rc, from;

	*o = (struct bpsrun_options){.servers = 1,
		.agents = 1,
		.node_rank = PLACE_RANK_UNKNOWN,
		.rsh = "ssh",
		.grace_ms = GRACE_DEFAULT_MS,
		.start_timeout_ms = START_DEFAULT_MS};
	for (;;) {
		from = optind ? optind : 1;
		if (from < argc)
			argv[from] = horovod_option_translate(argv[from]);
		if (from < argc && horovod_option_explain(argv[from]))
			return -EINVAL;
		c = getopt_long(argc, argv, "+n:x:H:h", long_options, NULL);
		if (c < 0)
			break;
		rc = parse_bpsrun_option(c, o);
		if (rc)
			return rc;
		keep_passed_option(c, from, argv, o);
	}
	o->command = argv + optind;
	rc = bpsrun_options_check(o);
	if (rc < 0 && (o->from_stdin ? 0 : !o->command[0]))
		fputs(usage, stderr);
	return rc;
}
