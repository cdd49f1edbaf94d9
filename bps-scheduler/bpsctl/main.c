/* bpsctl: queries the daemons over HTTP and prints their answers. Commands that change something
 * are sent to the scheduler's control port. Each query ends within two seconds, even if a daemon
 * does not answer. Exit codes: 0 OK, 1 WARN, 2 ERR, 3 no daemon answers, 64 usage. One thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "common/base/nearest_name.h"
#include "common/daemon/settings.h"
#include "common/wire/ctlmsg.h"

static const struct setting rows[] = {
	{"scheduler-http", SET_ADDR, SETTING_AT(struct bpsctl_opts, scheduler_http),
		.def = "127.0.0.1:7301", .port = 7301,
		.help = "HTTP address of bps-scheduler or, for `status`, of any daemon (aliases: "
			"--host, --daemon)"},
	{"agent-http", SET_ADDR, SETTING_AT(struct bpsctl_opts, agent_http),
		.def = "127.0.0.1:7304", .port = 7304,
		.help = "HTTP address of this host's bps-agent. `why-stuck` uses it while the "
			"scheduler does not answer. `trace` uses it if it is given, and otherwise "
			"asks the scheduler"},
	{"json", SET_BOOL, SETTING_AT(struct bpsctl_opts, json), .def = "no",
		.help = "print JSON (schema 1) instead of text"},
	{"watch", SET_BOOL, SETTING_AT(struct bpsctl_opts, watch), .def = "no",
		.help = "repeat the command until SIGINT; `--watch SECONDS` also sets --interval; "
			"with --json, print one object per line"},
	{"interval", SET_DURATION, SETTING_AT(struct bpsctl_opts, interval_us), .def = "2s",
		.min = 100 * SETTING_MS, .max = 3600 * SETTING_S,
		.help = "time between two screens of --watch, or two polls of --follow"},
	{"verbose", SET_BOOL, SETTING_AT(struct bpsctl_opts, verbose), .def = "no",
		.help = "show numbers in addition to names (-v)"},
	{"topology", SET_BOOL, SETTING_AT(struct bpsctl_opts, topology), .def = "no",
		.help = "`agent`: show its GPUs, the links that they share, and the route of the "
			"gradients"},
	{"follow", SET_BOOL, SETTING_AT(struct bpsctl_opts, follow), .def = "no",
		.help = "`events`: print new events as they occur, until SIGINT (-f)"},
	{"since", SET_STRING, SETTING_AT(struct bpsctl_opts, since), .def = "", .max = 32,
		.help = "`events`: print those of a time span, such as 30s, 10min, 4h or 2d, or "
			"those above an event number"},
	{"scheduler", SET_ADDR, SETTING_AT(struct bpsctl_opts, steer.scheduler),
		.def = STEER_SCHEDULER, .port = 7300,
		.help = "address of bps-scheduler, for commands that change something"},
	AUTH_SETTINGS(struct bpsctl_opts, steer.auth,
		"file with the master key or, for commands that change something, a key that `key "
		"derive ctl:NAME` printed; empty: /etc/bps/cluster.key if it exists"),
	{"as", SET_STRING, SETTING_AT(struct bpsctl_opts, steer.as), .def = "", .max = CTL_NAME_MAX,
		.help = "NAME of the key that `key derive ctl:NAME` printed; empty: the login "
			"name"},
	{"force", SET_BOOL, SETTING_AT(struct bpsctl_opts, force), .def = "no",
		.help = "`key retire`, `key rotate`: drop the previous key even if members still "
			"use it"},
	{"config-dir", SET_STRING, SETTING_AT(struct bpsctl_opts, config_dir), .def = "/etc/bps",
		.help = "folder in which `check` finds the daemons' settings and keys"},
	{"reason", SET_STRING, SETTING_AT(struct bpsctl_opts, reason), .def = "",
		.max = CTL_STEER_VALUE_MAX, .help = "reason, shown to the affected users"},
	{"wait", SET_BOOL, SETTING_AT(struct bpsctl_opts, wait), .def = "no",
		.help = "`drain`: return only when the server has no partitions any more"},
	{"dry-run", SET_BOOL, SETTING_AT(struct bpsctl_opts, dry_run), .def = "no",
		.help = "`drain`: print what the drain would do, and change nothing"},
	{"timeout", SET_DURATION, SETTING_AT(struct bpsctl_opts, timeout_us), .def = "60s",
		.min = SETTING_S, .max = 86400 * SETTING_S, .help = "time limit of --wait"},
};
static const struct settings_spec spec = {.program = "bpsctl",
	.usage = "COMMAND [argument]; `bpsctl help` lists the commands",
	.about = "shows a cluster of bps-scheduler, bps-servers and bps-agents",
	.args = SETTINGS_ARGS_MIXED,
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0])};

struct bpsctl_command {
	const char *words; /* words of the command, such as "status" or "key derive" */
	/* first argument, such as "NAME". NULL: the command takes no argument. "[NAME]": the
	 * argument is optional, and its value is "" if it is left out. */
	const char *argument;
	/* second argument, in the same form as the first; its value is passed in opts.more */
	const char *second;
	const char *help;
	/* function of the command; NULL: the command prints the document of the field `view` */
	int (*run)(const struct bpsctl_opts *o, const char *arg);
	/* the document that the command shows; set if the field `run` is NULL */
	const struct document_view *view;
};

static int cmd_help(const struct bpsctl_opts *o, const char *arg);

static const struct bpsctl_command commands[] = {
	{"status", NULL, NULL, "health, problems, jobs, servers and agents", .view = &view_status},
	{"top", NULL, NULL, "status --watch", .run = cmd_top},
	{"servers", NULL, NULL, "all servers", .view = &view_servers},
	{"agents", NULL, NULL, "all agents", .view = &view_agents},
	{"agent", "HOST", NULL, "one agent's own figures; --topology: its GPUs and their strategy",
		.run = cmd_agent},
	{"jobs", NULL, NULL, "forming and running jobs, with their agents' reports",
		.view = &view_jobs},
	{"job", "NAME", NULL, "one job: which workers have submitted what, the slowest first", NULL,
		&view_job},
	{"job kill", "NAME", NULL, "end a job; --reason TEXT is shown to its workers",
		.run = cmd_job_kill},
	{"advise", "NAME", NULL, "what would make the steps of a job shorter, and by how much",
		.view = &view_advice},
	{"trace", "NAME", "[FILE]",
		"write the last rounds of a job on this host to FILE (NAME.AGENT.trace.json), for "
		"https://ui.perfetto.dev",
		.run = cmd_trace},
	{"why-stuck", "[NAME]", NULL, "what every waiting call waits for, and the missing workers",
		NULL, &view_why_stuck},
	{"events", NULL, NULL, "recent events; --since 10min; -f prints new events, too",
		.run = cmd_events},
	{"explain", "[CODE]", NULL, "meaning of a problem or an error, and what to do",
		.run = cmd_explain},
	{"drain", "NAME", NULL,
		"move a server's partitions away, or give an agent no new jobs; --reason, --wait, "
		"--dry-run",
		.run = cmd_drain},
	{"undrain", "NAME", NULL, "use a drained server or agent again", .run = cmd_undrain},
	{"mute", "CODE", "[DURATION]",
		"leave a problem code out of the health for 4h or DURATION; --reason TEXT",
		.run = cmd_mute},
	{"unmute", "CODE", NULL, "count problems of a muted code again", .run = cmd_unmute},
	{"check", NULL, NULL, "check this host: settings, keys, ports, limits, devices", NULL,
		&view_check},
	{"key new", NULL, NULL, "print a new random cluster key", .run = cmd_key_new},
	{"key derive", "ROLE:NAME", NULL,
		"print the key of a host or operator, such as server:node7", .run = cmd_key_derive},
	{"key rotate", NULL, NULL, "write a new current key; the old one stays valid",
		.run = cmd_key_rotate},
	{"key retire", NULL, NULL, "drop the previous key, if no member uses it",
		.run = cmd_key_retire},
	{"key revoke", "ROLE:NAME", NULL, "make the scheduler refuse the key of a host or operator",
		.run = cmd_key_revoke},
	{"key status", NULL, NULL, "the cluster's keys, and the members that use each",
		.run = cmd_key_status},
	{"version", NULL, NULL, "print the version", .run = cmd_version},
	{"help", NULL, NULL, "print this list", .run = cmd_help},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static json_t *command_list_json(void)
{
	json_t *list = json_array();

	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct bpsctl_command *c = &commands[i];
		json_t *args = json_array();

		if (c->argument)
			json_array_append_new(args, json_string(c->argument));
		if (c->second)
			json_array_append_new(args, json_string(c->second));
		json_array_append_new(list, json_pack("{s:s, s:o, s:s}", "words", c->words,
						    "arguments", args, "help", c->help));
	}
	return list;
}

static int cmd_help(const struct bpsctl_opts *o, const char *arg)
{
	(void)arg;
	if (o->json)
		return print_answer(o, "",
			json_pack("{s:i, s:o}", "schema", 1, "commands", command_list_json()));
	printf("bpsctl [flags] COMMAND\n");
	for (size_t i = 0; i < N_COMMANDS; i++) {
		char text[64], head[80];

		snprintf(text, sizeof(text), "%s %s %s", commands[i].words,
			commands[i].argument ? commands[i].argument : "",
			commands[i].second ? commands[i].second : "");
		snprintf(head, sizeof(head), "  %-22s ", text);
		settings_print_wrapped(stdout, head, commands[i].help, SETTINGS_HELP_COLUMNS);
	}
	printf("flags: bpsctl --help\nexit codes: 0 OK, 1 WARN, 2 ERR, 3 no answer, 64 usage\n");
	return 0;
}

/* Return how many of the first n arguments form this command's name (1 or 2). Return 0 if the
 * arguments name another command. */
static size_t command_match_words(const struct bpsctl_command *c, char *const *args, size_t n)
{
	const char *space = strchr(c->words, ' ');
	size_t first = space ? (size_t)(space - c->words) : strlen(c->words);

	if (!n || strlen(args[0]) != first || strncmp(args[0], c->words, first) != 0)
		return 0;
	if (!space)
		return 1;
	return n > 1 && strcmp(args[1], space + 1) == 0 ? 2 : 0;
}

static void print_no_such_command(const char *word)
{
	struct nearest_name best = NEAREST_NONE;
	char hint[NEAREST_HINT_BYTES];
	struct err_text text;

	for (size_t i = 0; i < N_COMMANDS; i++)
		nearest_name_try(&best, word, commands[i].words);
	err_set(&text, 0, "no such command: %.64s%s; `bpsctl help` lists the commands", word,
		nearest_name_hint(&best, "", hint));
	print_error_line(text.s, 0);
}

static int reject_unknown_command(char *const *args, size_t n)
{
	size_t first = n ? strlen(args[0]) : 0;
	/* true if args[0] is the first word of a command of two words, but the second word is
	 * missing or unknown: "key" alone, or "key" and an unknown word */
	bool is_half = false;

	for (size_t i = 0; first && i < N_COMMANDS; i++) {
		const struct bpsctl_command *c = &commands[i];

		if (strncmp(c->words, args[0], first) != 0 || c->words[first] != ' ')
			continue;
		fprintf(stderr, "bpsctl: usage: bpsctl %s%s%s\n", c->words, c->argument ? " " : "",
			c->argument ? c->argument : "");
		is_half = true;
	}
	if (!n)
		print_error_line("a command is missing; `bpsctl help` lists the commands", 0);
	else if (!is_half)
		print_no_such_command(args[0]);
	else
		print_error_json("the command is not complete");
	return EX_USAGE;
}

/* Return the command whose name matches the most words of the arguments. For example, for the
 * arguments "job kill NAME", return the command "job kill", not "job". Store the number of matched
 * words in *ret_words. */
static const struct bpsctl_command *find_longest_command(
	char *const *args, size_t n, size_t *ret_words)
{
	const struct bpsctl_command *found = NULL;

	*ret_words = 0;
	for (size_t i = 0; i < N_COMMANDS; i++) {
		size_t words = command_match_words(&commands[i], args, n);

		if (words <= *ret_words)
			continue;
		found = &commands[i];
		*ret_words = words;
	}
	return found;
}

static bool is_argument_required(const char *argument)
{
	return argument && argument[0] != '[';
}

static int dispatch_command(struct bpsctl_opts *o, char *const *args, size_t n)
{
	size_t words;
	const struct bpsctl_command *c = find_longest_command(args, n, &words);
	char text[128];
	size_t most, least;

	if (!c)
		return reject_unknown_command(args, n);
	most = words + (c->argument != NULL) + (c->second != NULL);
	least = words + is_argument_required(c->argument) + is_argument_required(c->second);
	o->more = n > words + 1 ? args[words + 1] : "";
	if (n >= least && n <= most)
		return c->view ? cmd_show_document(c->view, o, n > words ? args[words] : "")
			       : c->run(o, n > words ? args[words] : "");
	snprintf(text, sizeof(text), "usage: bpsctl %s %s%s%s", c->words,
		c->argument ? c->argument : "(no argument)", c->second ? " " : "",
		c->second ? c->second : "");
	return print_error_line(text, EX_USAGE);
}

/* Aliases of flags, for interactive use. */
static const struct {
	const char *alias, *flag;
} aliases[] = {{"-f", "--follow"}, {"-v", "--verbose"}, {"--host", "--scheduler-http"},
	{"--daemon", "--scheduler-http"}};

/* Convert the interval after --watch to the flag --interval. A number without a unit means
 * seconds. */
static char *make_interval_flag(const char *s)
{
	char *text = NULL;
	size_t n = strspn(s, "0123456789.");
	const char *unit = s + n;

	if (!n || (*unit && strcmp(unit, "s") != 0 && strcmp(unit, "ms") != 0 &&
			  strcmp(unit, "min") != 0))
		return NULL; /* s is not an interval, so it belongs to the command */
	if ((*unit ? asprintf(&text, "--interval=%s", s)
		   : asprintf(&text, "--interval=%.0fms", strtod(s, NULL) * 1e3)) < 0)
		return NULL;
	return text;
}

/* Return whether s is a negative error number, such as -10001. */
static bool is_negative_number(const char *s)
{
	return s[0] == '-' && s[1] && !s[1 + strspn(s + 1, "0123456789")];
}

/* Return argv with short flags replaced by their full names. The array `mem` receives the
 * new strings, which the caller frees. Returns NULL when out of memory. */
static char **expand_short_flags(int argc, char **argv, char **mem)
{
	char **args = calloc((size_t)argc + 1, sizeof(*args));
	bool has_code = false;

	for (int i = 0; args && i < argc; i++) {
		args[i] = argv[i];
		/* the argument is an error number for `explain`, not a flag: skip the minus sign */
		if (has_code && is_negative_number(argv[i]))
			args[i]++;
		has_code |= i && strcmp(argv[i], "explain") == 0;
		if (i > 1 && strcmp(argv[i - 1], "--watch") == 0)
			mem[i] = make_interval_flag(argv[i]);
		if (mem[i]) {
			args[i] = mem[i];
			continue;
		}
		for (size_t k = 0; i && k < sizeof(aliases) / sizeof(aliases[0]); k++) {
			size_t n = strlen(aliases[k].alias);

			if (strncmp(argv[i], aliases[k].alias, n) != 0 ||
				(argv[i][n] && argv[i][n] != '='))
				continue;
			if (asprintf(&mem[i], "%s%s", aliases[k].flag, argv[i] + n) < 0)
				mem[i] = NULL;
			else
				args[i] = mem[i];
		}
	}
	return args;
}

static void expanded_args_free(int argc, char **args, char **mem)
{
	for (int i = 0; mem && i < argc; i++)
		free(mem[i]);
	free(mem);
	free(args);
}

/* Return whether --json is given. Does not parse the other flags, which may be invalid. */
static bool is_json_requested(char *const *argv)
{
	for (; *argv; argv++)
		if (strcmp(*argv, "--json") == 0 || strcmp(*argv, "--json=yes") == 0)
			return true;
	return false;
}

static int run_command_line(int argc, char **argv)
{
	struct bpsctl_opts opts = {0};
	struct err_text err = {""};
	struct settings *settings = NULL;
	enum settings_verdict v = settings_load(&settings, &spec, argc, argv, &opts, &err);
	char *const *args;
	size_t n = 0;
	int status;

	if (v == SETTINGS_DONE)
		return 0;
	set_json_output(v == SETTINGS_RUN ? opts.json : is_json_requested(argv));
	if (v != SETTINGS_RUN)
		return print_error_line(err.s, v == SETTINGS_USAGE ? EX_USAGE : EX_CONFIG);
	query_time_limit_set(true);
	opts.is_scheduler_given =
		strcmp(settings_source(settings, "scheduler-http"), "default") != 0;
	opts.is_agent_given = strcmp(settings_source(settings, "agent-http"), "default") != 0;
	args = settings_args(settings, &n);
	status = dispatch_command(&opts, args, n);
	settings_free(settings);
	if (fflush(stdout) != 0)
		status = print_error_line("cannot write the answer to stdout", EXIT_ERR);
	return status;
}

int main(int argc, char **argv)
{
	char **mem = calloc((size_t)argc + 1, sizeof(*mem));
	char **args = mem ? expand_short_flags(argc, argv, mem) : NULL;
	int status =
		args ? run_command_line(argc, args) : print_error_line("out of memory", EXIT_ERR);

	expanded_args_free(argc, args, mem);
	return status;
}
