/* bpsctl: asks the daemons over HTTP and prints what they say. Each answer takes less than two
 * seconds, whatever is broken. Exit codes: 0 OK, 1 WARN, 2 ERR, 3 nobody answers, 64 usage. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sysexits.h>
#include <unistd.h>

#include "bps-scheduler/bpsctl/cells.h"
#include "bps-scheduler/bpsctl/explain.h"
#include "bps-scheduler/bpsctl/gather.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/watch.h"
#include "common/key.h"
#include "common/settings.h"

#define EXIT_ERR         2
#define EXIT_UNREACHABLE 3
#define EVENTS_BEFORE    10 /* that `events --follow` begins with */

struct opts {
	struct addr scheduler_http;
	const char *key_file;
	bool json, watch, follow;
	uint64_t interval_us;
	int64_t since; /* -1: not told */
};

static const struct setting rows[] = {
	{"scheduler-http", SET_ADDR, SETTING_AT(struct opts, scheduler_http),
		.def = "127.0.0.1:7301", .port = 7301,
		.help = "where bps-scheduler serves HTTP; for `status` that of any daemon "
			"(--host)"},
	{"json", SET_BOOL, SETTING_AT(struct opts, json), .def = "no",
		.help = "print the same facts as JSON (schema 1)"},
	{"watch", SET_BOOL, SETTING_AT(struct opts, watch), .def = "no",
		.help = "`status` again and again; with --json one object per line"},
	{"interval", SET_DURATION, SETTING_AT(struct opts, interval_us), .def = "2s",
		.min = 100 * SETTING_MS, .max = 3600 * SETTING_S,
		.help = "time between two screens of --watch, or two looks of --follow"},
	{"follow", SET_BOOL, SETTING_AT(struct opts, follow), .def = "no",
		.help = "`events` as they come, until SIGINT (-f)"},
	{"since", SET_INT, SETTING_AT(struct opts, since), .def = "-1", .min = -1, .max = INT64_MAX,
		.help = "`events` with a greater number; -1: all that are kept"},
	{"key-file", SET_STRING, SETTING_AT(struct opts, key_file), .def = "/etc/bps/cluster.key",
		.help = "master key, for `key derive`"},
};
static const struct settings_spec spec = {.program = "bpsctl",
	.usage = "COMMAND [argument]; `bpsctl help` lists the commands",
	.about = "shows a cluster of bps-scheduler, bps-servers and bps-agents",
	.args = SETTINGS_ARGS_MIXED,
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0])};

struct command {
	const char *words;    /* "status", "key derive" */
	const char *argument; /* NULL: takes none; "[NAME]": may be left out, then it is "" */
	const char *help;
	int (*run)(const struct opts *o, const char *arg);
};

static int complain(const char *text, int status)
{
	fprintf(stderr, "bpsctl: %s\n", text);
	return status;
}

static int failed(int rc, const struct err_text *err)
{
	bool is_mute = rc == BPS_ENOSCHED || rc == BPS_ETIMEDOUT || rc == BPS_EPROTO;

	return complain(err->s[0] ? err->s : err_str(rc), is_mute ? EXIT_UNREACHABLE : EXIT_ERR);
}

/* Print a document, as text or as JSON, and free it. Returns the exit code. */
static int show(const struct opts *o, json_t *root, int (*screen)(FILE *out, json_t *root))
{
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);
	int status = out ? screen(out, root) : EXIT_ERR;

	if (!out || fclose(out) != 0) {
		status = complain("out of memory", EXIT_ERR);
	} else if (o->json) {
		json_dumpf(root, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		fputs(text, stdout);
	}
	free(text);
	json_decref(root);
	return status;
}

/* ---- words that show one document ---- */

static int watch_status(const struct opts *o);

static int run_status(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc;

	(void)arg;
	if (o->watch)
		return watch_status(o);
	rc = gather_status(&o->scheduler_http, &root, &err);
	return rc < 0 ? failed(rc, &err) : show(o, root, screen_status);
}

static int run_top(const struct opts *o, const char *arg)
{
	(void)arg;
	return watch_status(o);
}

static int run_servers(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc = gather_members(&o->scheduler_http, "server", &root, &err);

	(void)arg;
	return rc < 0 ? failed(rc, &err) : show(o, root, screen_servers);
}

static int run_agents(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc = gather_members(&o->scheduler_http, "agent", &root, &err);

	(void)arg;
	return rc < 0 ? failed(rc, &err) : show(o, root, screen_agents);
}

static int run_jobs(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc = gather_jobs(&o->scheduler_http, &root, &err);

	(void)arg;
	return rc < 0 ? failed(rc, &err) : show(o, root, screen_jobs);
}

static int run_job(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc = gather_job(&o->scheduler_http, arg, &root, &err);

	return rc < 0 ? failed(rc, &err) : show(o, root, screen_job);
}

static int run_why_stuck(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc = gather_stuck(&o->scheduler_http, arg, &root, &err);

	return rc < 0 ? failed(rc, &err) : show(o, root, screen_stuck);
}

static int run_explain(const struct opts *o, const char *arg)
{
	json_t *root = explain_json(arg);

	if (!root)
		return complain("no such code; `bpsctl explain` lists them", EX_USAGE);
	return show(o, root, screen_explain);
}

/* ---- again and again ---- */

/* The resolver has its own idea of time. */
static void on_alarm(int sig)
{
	static const char text[] = "bpsctl: no answer in time\n";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	(void)sig;
	(void)n;
	_exit(EXIT_UNREACHABLE);
}

/* What is asked from now on ends in two seconds; false: is not bounded. */
static void bound_time(bool is_bounded)
{
	struct itimerval t = {.it_value = {.tv_sec = is_bounded ? 2 : 0}};

	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &t, NULL);
}

static uint32_t interval_ms(const struct opts *o)
{
	return (uint32_t)(o->interval_us / 1000);
}

static void print_line(json_t *o)
{
	json_dumpf(o, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
}

/* One screen of the status; a scheduler that is away for a while is part of the show. */
static int watch_once(const struct opts *o, struct watch *w)
{
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);
	struct err_text err = {""};
	json_t *root = NULL;
	int rc, status = EXIT_UNREACHABLE;

	if (!out)
		return complain("out of memory", EXIT_ERR);
	bound_time(true);
	rc = gather_status(&o->scheduler_http, &root, &err);
	bound_time(false);
	if (rc == 0)
		status = screen_status(out, root);
	else
		cell_wrapped(out, "! ", err.s);
	if (fclose(out) != 0)
		status = complain("out of memory", EXIT_ERR);
	else if (!o->json)
		watch_show(w, text);
	else
		print_line(root ? root
				: (root = json_pack("{s:i, s:s}", "schema", 1, "error", err.s)));
	json_decref(root);
	free(text);
	return status;
}

static int watch_status(const struct opts *o)
{
	struct watch w;
	int status;

	if (watch_begin(&w) < 0)
		return complain("cannot wait for signals", EXIT_ERR);
	do
		status = watch_once(o, &w);
	while (watch_wait(&w, interval_ms(o)));
	watch_end(&w);
	return status;
}

/* ---- events ---- */

static int get_events(const struct opts *o, uint64_t since, json_t **ret, struct err_text *err)
{
	json_t *root = NULL;
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/status?events=%" PRIu64, since);
	bound_time(true);
	rc = gather_path(&o->scheduler_http, path, &root, err);
	bound_time(false);
	if (rc < 0)
		return rc;
	if (!json_object_get(root, "events")) {
		json_decref(root);
		return err_set(err, -EINVAL, "only a bps-scheduler keeps events");
	}
	*ret = root;
	return 0;
}

/* All above since, put together; a new scheduler's from its first on. */
static int get_all_events(
	const struct opts *o, uint64_t since, uint64_t term, json_t **ret, struct err_text *err)
{
	json_t *root = NULL, *next = NULL;
	bool is_new = true;
	int rc = get_events(o, since, &root, err);

	if (rc == 0 && term && cell_num(root, "term") != term) {
		json_decref(root);
		root = NULL;
		rc = get_events(o, 0, &root, err);
	}
	while (rc == 0 && is_new && cell_num(root, "next") < cell_num(root, "last")) {
		rc = get_events(o, cell_num(root, "next"), &next, err);
		if (rc < 0)
			break;
		is_new = cell_num(next, "next") > cell_num(root, "next");
		json_array_extend(json_object_get(root, "events"), json_object_get(next, "events"));
		json_object_set(root, "next", json_object_get(next, "next"));
		json_object_set(root, "last", json_object_get(next, "last"));
		json_decref(next);
	}
	if (rc < 0)
		json_decref(root);
	else
		*ret = root;
	return rc;
}

static void print_events(const struct opts *o, json_t *root)
{
	json_t *e;
	size_t i;

	if (o->json)
		json_array_foreach(json_object_get(root, "events"), i, e) print_line(e);
	else
		screen_events(stdout, root);
	fflush(stdout);
}

/* Where to begin: what was told, or a little before now. */
static int follow_start(const struct opts *o, uint64_t *ret_since, struct err_text *err)
{
	json_t *root = NULL;
	uint64_t last;
	int rc;

	*ret_since = (uint64_t)o->since;
	if (o->since >= 0)
		return 0;
	rc = get_events(o, UINT64_MAX, &root, err);
	if (rc < 0)
		return rc;
	last = cell_num(root, "last");
	*ret_since = last > EVENTS_BEFORE ? last - EVENTS_BEFORE : 0;
	json_decref(root);
	return 0;
}

static int follow(const struct opts *o)
{
	struct err_text err = {""};
	uint64_t since = 0, term = 0;
	bool is_away = false;
	struct watch w;
	int rc = follow_start(o, &since, &err);

	if (rc < 0)
		return failed(rc, &err);
	if (watch_begin(&w) < 0)
		return complain("cannot wait for signals", EXIT_ERR);
	do {
		json_t *root = NULL;

		rc = get_all_events(o, since, term, &root, &err);
		if (rc < 0) {
			if (!is_away)
				complain(err.s, 0);
			is_away = true;
			continue;
		}
		is_away = false;
		print_events(o, root);
		since = cell_num(root, "next");
		term = cell_num(root, "term");
		json_decref(root);
	} while (watch_wait(&w, interval_ms(o)));
	watch_end(&w);
	return is_away ? EXIT_UNREACHABLE : 0;
}

static int run_events(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc;

	(void)arg;
	if (o->follow)
		return follow(o);
	rc = get_all_events(o, o->since < 0 ? 0 : (uint64_t)o->since, 0, &root, &err);
	return rc < 0 ? failed(rc, &err) : show(o, root, screen_events);
}

/* ---- keys ---- */

static int run_key_new(const struct opts *o, const char *arg)
{
	struct cluster_key key;
	char hex[KEY_HEX_BYTES];

	(void)o;
	(void)arg;
	if (key_random(&key) < 0)
		return complain("no randomness", EXIT_ERR);
	key_hex(&key, hex);
	printf("%s\n", hex);
	key_wipe(&key);
	return 0;
}

static int run_key_derive(const struct opts *o, const char *arg)
{
	struct cluster_key master, key;
	struct err_text err = {""};
	char hex[KEY_HEX_BYTES];
	int r;

	if (strncmp(arg, "server:", 7) != 0 && strncmp(arg, "agent:", 6) != 0)
		return complain("`key derive` wants server:NAME or agent:NAME", EX_USAGE);
	r = key_load(&master, o->key_file, &err);
	if (r <= 0)
		return complain(r < 0 ? err.s : "there is no --key-file", EXIT_ERR);
	r = key_for_host(&key, &master, arg);
	key_wipe(&master);
	if (r < 0)
		return complain(err_str(r), EXIT_ERR);
	key_hex(&key, hex);
	printf("%s\n", hex);
	key_wipe(&key);
	return 0;
}

static int run_version(const struct opts *o, const char *arg)
{
	(void)o;
	(void)arg;
	printf("bpsctl %s\n", BPS_VERSION);
	return 0;
}

static int run_help(const struct opts *o, const char *arg);

static const struct command commands[] = {
	{"status", NULL, "health, problems, jobs, servers and agents", run_status},
	{"top", NULL, "status --watch", run_top},
	{"servers", NULL, "all servers", run_servers},
	{"agents", NULL, "all agents", run_agents},
	{"jobs", NULL, "jobs that form or run, with what their agents say", run_jobs},
	{"job", "NAME", "one job: who has submitted what, the culprit first", run_job},
	{"why-stuck", "[NAME]", "what every waiting call waits for, and who is missing",
		run_why_stuck},
	{"events", NULL, "what has happened; --since NUMBER, -f follows", run_events},
	{"explain", "[CODE]", "what a problem or an error means and what to do", run_explain},
	{"key new", NULL, "print a new random cluster key", run_key_new},
	{"key derive", "ROLE:NAME", "print the key of one host, such as server:node7",
		run_key_derive},
	{"version", NULL, "print the version", run_version},
	{"help", NULL, "print this list", run_help},
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int run_help(const struct opts *o, const char *arg)
{
	(void)o;
	(void)arg;
	printf("bpsctl [flags] COMMAND\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		printf("  %-10s %-10s %s\n", commands[i].words,
			commands[i].argument ? commands[i].argument : "", commands[i].help);
	printf("flags: bpsctl --help\n"
	       "exit codes: 0 OK, 1 WARN, 2 ERR, 3 nobody answers, 64 usage\n");
	return 0;
}

/* How many of args make up the command's words; 0: it is another command. */
static size_t matches(const struct command *c, char *const *args, size_t n)
{
	const char *space = strchr(c->words, ' ');
	size_t first = space ? (size_t)(space - c->words) : strlen(c->words);

	if (!n || strlen(args[0]) != first || strncmp(args[0], c->words, first) != 0)
		return 0;
	if (!space)
		return 1;
	return n > 1 && strcmp(args[1], space + 1) == 0 ? 2 : 0;
}

static int unknown(char *const *args, size_t n)
{
	size_t first = n ? strlen(args[0]) : 0;
	bool is_half = false; /* "key" alone, or "key" and a word that does not follow it */

	for (size_t i = 0; first && i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];

		if (strncmp(c->words, args[0], first) != 0 || c->words[first] != ' ')
			continue;
		fprintf(stderr, "bpsctl: usage: bpsctl %s%s%s\n", c->words, c->argument ? " " : "",
			c->argument ? c->argument : "");
		is_half = true;
	}
	if (!is_half)
		fprintf(stderr, "bpsctl: %s%s; `bpsctl help` lists the commands\n",
			n ? "no such command: " : "a command is missing", n ? args[0] : "");
	return EX_USAGE;
}

static int dispatch(const struct opts *o, char *const *args, size_t n)
{
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];
		size_t words = matches(c, args, n);
		char text[128];
		bool is_optional;

		if (!words)
			continue;
		is_optional = c->argument && c->argument[0] == '[';
		if (n == words + (c->argument != NULL) || (is_optional && n == words))
			return c->run(o, n > words ? args[words] : "");
		snprintf(text, sizeof(text), "usage: bpsctl %s %s", c->words,
			c->argument ? c->argument : "(no argument)");
		return complain(text, EX_USAGE);
	}
	return unknown(args, n);
}

/* Short or other names of flags, for the hand. */
static const struct {
	const char *alias, *flag;
} aliases[] = {{"-f", "--follow"}, {"--host", "--scheduler-http"}};

/* argv with the flags' own names; what is new in it is in mem, the caller's. NULL: out of
 * memory. */
static char **expand(int argc, char **argv, char **mem)
{
	char **args = calloc((size_t)argc + 1, sizeof(*args));

	for (int i = 0; args && i < argc; i++) {
		args[i] = argv[i];
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

static void expand_free(int argc, char **args, char **mem)
{
	for (int i = 0; mem && i < argc; i++)
		free(mem[i]);
	free(mem);
	free(args);
}

static int run(int argc, char **argv)
{
	struct opts opts = {0};
	struct err_text err = {""};
	struct settings *settings = NULL;
	enum settings_verdict v = settings_load(&settings, &spec, argc, argv, &opts, &err);
	char *const *args;
	size_t n = 0;
	int status;

	if (v == SETTINGS_DONE)
		return 0;
	if (v != SETTINGS_RUN)
		return complain(err.s, v == SETTINGS_USAGE ? EX_USAGE : EX_CONFIG);
	bound_time(true);
	args = settings_args(settings, &n);
	status = dispatch(&opts, args, n);
	settings_free(settings);
	if (fflush(stdout) != 0)
		status = complain("cannot write the answer", EXIT_ERR);
	return status;
}

int main(int argc, char **argv)
{
	char **mem = calloc((size_t)argc + 1, sizeof(*mem));
	char **args = mem ? expand(argc, argv, mem) : NULL;
	int status = args ? run(argc, args) : complain("out of memory", EXIT_ERR);

	expand_free(argc, args, mem);
	return status;
}
