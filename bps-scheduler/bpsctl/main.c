/* bpsctl: asks the scheduler over HTTP and prints what it says. Answers within two seconds,
 * whatever is broken. Exit codes: 0 OK, 1 WARN, 2 ERR, 3 nobody answers, 64 usage. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sysexits.h>
#include <unistd.h>

#include "bps-scheduler/bpsctl/http.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "common/ctlmsg.h"
#include "common/key.h"
#include "common/settings.h"

#define ANSWER_MS        1900
#define EXIT_ERR         2
#define EXIT_UNREACHABLE 3

struct opts {
	struct addr scheduler_http;
	const char *key_file;
	bool json;
};

static const struct setting rows[] = {
	{"scheduler-http", SET_ADDR, SETTING_AT(struct opts, scheduler_http),
		.def = "127.0.0.1:7301", .port = 7301, .help = "where bps-scheduler serves HTTP"},
	{"json", SET_BOOL, SETTING_AT(struct opts, json), .def = "no",
		.help = "print the same facts as JSON (schema 1)"},
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
	const char *argument; /* NULL: takes none */
	const char *help;
	int (*run)(const struct opts *o, const char *arg);
};

static int complain(const char *text, int status)
{
	fprintf(stderr, "bpsctl: %s\n", text);
	return status;
}

static int print_json(json_t *root)
{
	json_dumpf(root, stdout, JSON_INDENT(2));
	putchar('\n');
	return 0;
}

/* Get a document and show it. */
static int show(const struct opts *o, const char *path, int (*screen)(FILE *out, json_t *root),
	int (*code)(json_t *root))
{
	struct err_text err = {""};
	json_t *root = NULL;
	const char *text;
	int http = 0, status;

	if (http_get(&o->scheduler_http, path, ANSWER_MS, &http, &root, &err) < 0)
		return complain(err.s, EXIT_UNREACHABLE);
	text = json_string_value(json_object_get(root, "error"));
	if (o->json)
		print_json(root);
	if (http != 200)
		status = complain(text ? text : "the scheduler refuses to answer", EXIT_ERR);
	else
		status = o->json ? code(root) : screen(stdout, root);
	json_decref(root);
	return status;
}

static int run_status(const struct opts *o, const char *arg)
{
	(void)arg;
	return show(o, "/status", screen_status, screen_status_code);
}

static int run_job(const struct opts *o, const char *arg)
{
	char name[3 * CTL_JOB_NAME_MAX + 1], path[sizeof(name) + 16];

	if (!http_escape(arg, name, sizeof(name)))
		return complain("no job has so long a name", EXIT_ERR);
	snprintf(path, sizeof(path), "/status?job=%s", name);
	return show(o, path, screen_job, screen_job_code);
}

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
	{"job", "NAME", "one job: who has submitted what, the culprit first", run_job},
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
	       "exit codes: 0 OK, 1 WARN, 2 ERR, 3 the scheduler does not answer, 64 usage\n");
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

static int dispatch(const struct opts *o, char *const *args, size_t n)
{
	for (size_t i = 0; i < N_COMMANDS; i++) {
		const struct command *c = &commands[i];
		size_t words = matches(c, args, n);
		char text[128];

		if (!words)
			continue;
		if (n == words + (c->argument != NULL))
			return c->run(o, c->argument ? args[words] : NULL);
		snprintf(text, sizeof(text), "usage: bpsctl %s %s", c->words,
			c->argument ? c->argument : "(no argument)");
		return complain(text, EX_USAGE);
	}
	fprintf(stderr, "bpsctl: %s%s; `bpsctl help` lists the commands\n",
		n ? "no such command: " : "which command", n ? args[0] : "?");
	return EX_USAGE;
}

/* The resolver has its own idea of time. */
static void on_alarm(int sig)
{
	static const char text[] = "bpsctl: the scheduler does not answer in time\n";
	ssize_t n = write(STDERR_FILENO, text, sizeof(text) - 1);

	(void)sig;
	(void)n;
	_exit(EXIT_UNREACHABLE);
}

static void bound_time(void)
{
	struct itimerval t = {.it_value = {.tv_sec = 2}};

	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &t, NULL);
}

int main(int argc, char **argv)
{
	struct opts opts = {0};
	struct err_text err = {""};
	struct settings *settings = NULL;
	enum settings_verdict v = settings_load(&settings, &spec, argc, argv, &opts, &err);
	char *const *args;
	size_t n = 0;
	int status;

	if (v != SETTINGS_RUN)
		return settings_exit_status(v, &err);
	bound_time();
	args = settings_args(settings, &n);
	status = dispatch(&opts, args, n);
	settings_free(settings);
	if (fflush(stdout) != 0)
		status = complain("cannot write the answer", EXIT_ERR);
	return status;
}
