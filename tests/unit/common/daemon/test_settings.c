/* The table of settings: sources, precedence, types, and the exact text of refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/daemon/settings.h"

struct test_opts {
	bool verbose;
	int64_t threads;
	uint64_t window_bytes;
	uint64_t dead_after_us;
	const char *name;
	unsigned mode;
	struct addr listen;
	struct addr scheduler;
};

static const char *const mode_words[] = {"abort", "shrink", NULL};

static const struct setting rows[] = {
	{"verbose", SET_BOOL, SETTING_AT(struct test_opts, verbose), .def = "no",
		.help = "say more"},
	{"threads", SET_INT, SETTING_AT(struct test_opts, threads), .def = "2", .min = 1, .max = 64,
		.help = "data threads"},
	{"window", SET_SIZE, SETTING_AT(struct test_opts, window_bytes), .def = "4MiB",
		.min = 4 * SETTING_KIB, .max = SETTING_GIB, .is_live = true,
		.help = "bytes in flight"},
	{"dead-after", SET_DURATION, SETTING_AT(struct test_opts, dead_after_us), .def = "3s",
		.min = 100 * SETTING_MS, .max = 60 * SETTING_S, .help = "silence until dead"},
	{"name", SET_STRING, SETTING_AT(struct test_opts, name), .def = "", .min = 0, .max = 8,
		.is_live = true, .help = "name of this host"},
	{"mode", SET_ENUM, SETTING_AT(struct test_opts, mode), .def = "abort", .words = mode_words,
		.help = "what a loss does"},
	{"listen", SET_ADDR, SETTING_AT(struct test_opts, listen), .def = "127.0.0.1:9500",
		.port = 9500, .help = "where to listen"},
	{"scheduler", SET_ADDR, SETTING_AT(struct test_opts, scheduler), .def = "",
		.help = "where the scheduler is"},
};

static struct settings_spec spec = {
	.program = "bps-test", .rows = rows, .n_rows = sizeof(rows) / sizeof(rows[0])};

struct result {
	enum settings_verdict verdict;
	struct test_opts opts;
	struct settings *s;
	struct err_text err;
};

/* Load settings from arguments. The settings keep pointers into argv. */
static void load_into(struct result *r, const char *const *args)
{
	static char *argv[16];
	int argc = 0;

	*r = (struct result){0};
	argv[argc++] = (char *)(uintptr_t) "bps-test";
	for (; args && *args; args++)
		argv[argc++] = (char *)(uintptr_t)*args;
	argv[argc] = NULL;
	r->verdict = settings_load(&r->s, &spec, argc, argv, &r->opts, &r->err);
}

static struct result load(const char *const *args)
{
	struct result r;

	load_into(&r, args);
	return r;
}

#define LOAD(...) load((const char *const[]){__VA_ARGS__, NULL})

static void assert_refused(struct result r, enum settings_verdict verdict, const char *text)
{
	assert_int_equal(r.verdict, verdict);
	assert_string_equal(r.err.s, text);
	assert_null(r.s);
}

static char ini_path[64];

/* Write the settings file. Returns the argument "--config=PATH" for it. */
static const char *with_ini(const char *text)
{
	static char flag[80];
	FILE *f = fopen(ini_path, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
	snprintf(flag, sizeof(flag), "--config=%s", ini_path);
	return flag;
}

/* Return the text that the program prints on stdout with these arguments. The caller frees it. */
static char *stdout_of(const char *const *args, enum settings_verdict want)
{
	FILE *tmp = tmpfile();
	int saved = dup(STDOUT_FILENO);
	char *text = calloc(1, 8192);
	struct result r;

	assert_true(tmp && text && saved >= 0);
	fflush(stdout);
	dup2(fileno(tmp), STDOUT_FILENO);
	r = load(args);
	fflush(stdout);
	dup2(saved, STDOUT_FILENO);
	close(saved);
	rewind(tmp);
	assert_true(fread(text, 1, 8191, tmp) > 0);
	fclose(tmp);
	assert_int_equal(r.verdict, want);
	return text;
}

static void defaults_fill_every_type(void **state)
{
	struct result r = load(NULL);

	(void)state;
	assert_int_equal(r.verdict, SETTINGS_RUN);
	assert_false(r.opts.verbose);
	assert_int_equal(r.opts.threads, 2);
	assert_int_equal(r.opts.window_bytes, 4 << 20);
	assert_int_equal(r.opts.dead_after_us, 3000000);
	assert_string_equal(r.opts.name, "");
	assert_int_equal(r.opts.mode, 0);
	assert_string_equal(r.opts.listen.host, "127.0.0.1");
	assert_int_equal(r.opts.listen.port, 9500);
	assert_string_equal(r.opts.scheduler.host, "");
	assert_string_equal(settings_source(r.s, "threads"), "default");
	settings_free(r.s);
}

static void flags_set_every_type(void **state)
{
	struct result r = LOAD("--verbose", "--threads", "7", "--window=64KiB", "--dead-after",
		"200ms", "--name=n1", "--mode=shrink", "--listen=[::1]:0", "--scheduler", "head:9");

	(void)state;
	assert_int_equal(r.verdict, SETTINGS_RUN);
	assert_true(r.opts.verbose);
	assert_int_equal(r.opts.threads, 7);
	assert_int_equal(r.opts.window_bytes, 65536);
	assert_int_equal(r.opts.dead_after_us, 200000);
	assert_string_equal(r.opts.name, "n1");
	assert_int_equal(r.opts.mode, 1);
	assert_string_equal(r.opts.listen.host, "::1");
	assert_int_equal(r.opts.listen.port, 0);
	assert_string_equal(r.opts.scheduler.host, "head");
	assert_int_equal(r.opts.scheduler.port, 9);
	assert_string_equal(settings_source(r.s, "dead-after"), "flag --dead-after");
	settings_free(r.s);
}

static void flag_beats_environment_beats_file_beats_default(void **state)
{
	const char *config = with_ini("threads = 3 ; three\n  window = 8KiB\n\n[test]\n# no\n"
				      "\ndead_after = 1s\n");
	char source[80];
	struct result r;

	(void)state;
	setenv("BPS_THREADS", "4", 1);
	setenv("BPS_WINDOW", "16 KiB", 1);
	r = LOAD(config, "--threads=5");
	unsetenv("BPS_THREADS");
	unsetenv("BPS_WINDOW");
	assert_string_equal(r.verdict == SETTINGS_RUN ? "" : r.err.s, "");
	assert_int_equal(r.opts.threads, 5);
	assert_int_equal(r.opts.window_bytes, 16 << 10);
	assert_int_equal(r.opts.dead_after_us, 1000000);
	assert_string_equal(settings_source(r.s, "window"), "environment BPS_WINDOW");
	snprintf(source, sizeof(source), "%s:7", ini_path);
	assert_string_equal(settings_source(r.s, "dead-after"), source);
	settings_free(r.s);
}

static void bad_flags_are_refused_with_range_and_nearest_name(void **state)
{
	(void)state;
	assert_refused(LOAD("--threds=3"), SETTINGS_USAGE,
		"unknown flag '--threds' (did you mean '--threads'?)");
	assert_refused(LOAD("--check-confg"), SETTINGS_USAGE,
		"unknown flag '--check-confg' (did you mean '--check-config'?)");
	assert_refused(LOAD("--qqqqqq"), SETTINGS_USAGE, "unknown flag '--qqqqqq'");
	assert_refused(LOAD("--threads=0"), SETTINGS_USAGE,
		"flag --threads: threads: '0' is out of range (allowed: 1 to 64)");
	assert_refused(LOAD("--threads=99999999999999999999"), SETTINGS_USAGE,
		"flag --threads: threads: '99999999999999999999' is out of range (allowed: 1 to "
		"64)");
	assert_refused(LOAD("--threads=two"), SETTINGS_USAGE,
		"flag --threads: threads: 'two' is not an integer");
	assert_refused(LOAD("--window=2GiB"), SETTINGS_USAGE,
		"flag --window: window: '2GiB' is out of range (allowed: 4KiB to 1GiB)");
	assert_refused(LOAD("--window=9999999999TiB"), SETTINGS_USAGE,
		"flag --window: window: '9999999999TiB' is out of range (allowed: 4KiB to 1GiB)");
	assert_refused(LOAD("--window=4MB"), SETTINGS_USAGE,
		"flag --window: window: '4MB' is not a size such as 64KiB, 4MiB or 1GiB");
	assert_refused(LOAD("--dead-after=3"), SETTINGS_USAGE,
		"flag --dead-after: dead-after: '3' is not a duration such as 500us, 200ms, 2s or "
		"5min");
	assert_refused(LOAD("--dead-after=90s"), SETTINGS_USAGE,
		"flag --dead-after: dead-after: '90s' is out of range (allowed: 100ms to 1min)");
	assert_refused(LOAD("--mode=shrnk"), SETTINGS_USAGE,
		"flag --mode: mode: 'shrnk' is not one of: abort, shrink (did you mean 'shrink'?)");
	assert_refused(LOAD("--verbose=maybe"), SETTINGS_USAGE,
		"flag --verbose: verbose: 'maybe' is not yes or no");
	assert_refused(LOAD("--name=123456789"), SETTINGS_USAGE,
		"flag --name: name: '123456789' has 9 characters (allowed: 0 to 8)");
	assert_refused(LOAD("--threads"), SETTINGS_USAGE, "flag --threads needs a value");
	assert_refused(LOAD("--help=1"), SETTINGS_USAGE, "flag --help takes no value");
	assert_refused(LOAD("-x"), SETTINGS_USAGE, "unknown flag '-x' (flags start with --)");
	assert_refused(
		LOAD("serve"), SETTINGS_USAGE, "unexpected argument 'serve' (flags start with --)");
	assert_refused(LOAD("--scheduler=head"), SETTINGS_USAGE,
		"flag --scheduler: scheduler: 'head' has no port (write host:port)");
	assert_refused(LOAD("--listen="), SETTINGS_USAGE,
		"flag --listen: listen: '' is not an address (write host:port, 10.0.0.1:port or "
		"[v6]:port)");
}

static void assert_ini_refused(const char *ini, const char *tail)
{
	char text[256];

	snprintf(text, sizeof(text), "%s:%s", ini_path, tail);
	assert_refused(LOAD(with_ini(ini)), SETTINGS_CONFIG, text);
}

static void bad_files_are_refused_with_file_and_line(void **state)
{
	char text[256], line[512];

	(void)state;
	assert_ini_refused(
		"[test]\n\nwindw = 1MiB\n", "3: unknown setting 'windw' (did you mean 'window'?)");
	assert_ini_refused("threads = 1\n  threads = 2\n", "2: 'threads' is already set in line 1");
	assert_ini_refused("threads = 1\n [server]\nwindow = 1MiB\n",
		"2: unknown section '[server]' (sections are not needed; only '[test]' is "
		"allowed)");
	assert_ini_refused("threads = 65\n", "1: threads: '65' is out of range (allowed: 1 to 64)");
	assert_ini_refused(
		"threads = 2\nrubbish\n", "2: the line is neither 'name = value' nor '[section]'");
	memset(line, 'x', sizeof(line));
	line[sizeof(line) - 1] = '\0';
	assert_ini_refused(line, "1: the line is longer than 198 characters");
	unlink(ini_path);
	snprintf(text, sizeof(text), "cannot open '%s': No such file or directory", ini_path);
	assert_refused(LOAD("--config", ini_path), SETTINGS_CONFIG, text);
}

static void bad_file_value_is_refused_even_if_a_flag_overrides_it(void **state)
{
	(void)state;
	assert_int_equal(LOAD(with_ini("threads = 0\n"), "--threads=2").verdict, SETTINGS_CONFIG);
}

static void bad_environment_is_refused_by_its_name(void **state)
{
	struct result r;

	(void)state;
	setenv("BPS_DEAD_AFTER", "1ms", 1);
	r = load(NULL);
	unsetenv("BPS_DEAD_AFTER");
	assert_refused(r, SETTINGS_CONFIG,
		"environment BPS_DEAD_AFTER: dead-after: '1ms' is out of range (allowed: 100ms to "
		"1min)");
	assert_int_equal(settings_exit_status(SETTINGS_USAGE, &r.err), 64);
	assert_int_equal(settings_exit_status(SETTINGS_CONFIG, &r.err), 78);
	assert_int_equal(settings_exit_status(SETTINGS_DONE, &r.err), 0);
}

static void missing_default_file_is_no_error(void **state)
{
	struct result r;

	(void)state;
	unlink(ini_path);
	spec.config_path = ini_path;
	r = load(NULL);
	spec.config_path = NULL;
	assert_int_equal(r.verdict, SETTINGS_RUN);
	settings_free(r.s);
}

/* Write a drop-in file in the folder "FILE.d" beside the settings file. */
static void drop_in(const char *name, const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s.d", ini_path);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s.d/%s", ini_path, name);
	if (!text) {
		unlink(path);
		snprintf(path, sizeof(path), "%s.d", ini_path);
		rmdir(path);
		return;
	}
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void drop_ins_follow_the_file_in_the_order_of_their_names(void **state)
{
	const char *config = with_ini("threads = 3\nwindow = 8KiB\nname = main\n");
	char text[256];
	struct result r;

	(void)state;
	drop_in("20-b.conf", "threads = 5\n");
	drop_in("10-a.conf", "[test]\nthreads = 4\nname = a\n");
	drop_in("30-c.conf~", "rubbish\n");
	drop_in(".40-d.conf", "rubbish\n");
	r = load((const char *const[]){config, NULL});
	assert_string_equal(r.verdict == SETTINGS_RUN ? "" : r.err.s, "");
	assert_int_equal(r.opts.threads, 5);
	assert_int_equal(r.opts.window_bytes, 8 << 10);
	assert_string_equal(r.opts.name, "a");
	snprintf(text, sizeof(text), "%s.d/20-b.conf:1", ini_path);
	assert_string_equal(settings_source(r.s, "threads"), text);
	settings_free(r.s);

	drop_in("20-b.conf", "\nthreads = 0\n");
	snprintf(text, sizeof(text),
		"%s.d/20-b.conf:2: threads: '0' is out of range (allowed: 1 to 64)", ini_path);
	assert_refused(load((const char *const[]){config, NULL}), SETTINGS_CONFIG, text);
	drop_in("30-c.conf~", NULL);
	drop_in(".40-d.conf", NULL);
	drop_in("10-a.conf", NULL);
	drop_in("20-b.conf", NULL);
}

static int odd_window(const void *values, struct err_text *err)
{
	const struct test_opts *o = values;

	return o->window_bytes >= (uint64_t)o->threads * 1024
		       ? 0
		       : err_set(err, -EINVAL, "window is below %d KiB", (int)o->threads);
}

static void values_that_do_not_fit_together_are_refused(void **state)
{
	(void)state;
	spec.check = odd_window;
	assert_refused(
		LOAD("--threads=9", "--window=8KiB"), SETTINGS_CONFIG, "window is below 9 KiB");
	assert_refused(LOAD("--threads=9", "--window=8KiB", "--check-config"), SETTINGS_CONFIG,
		"window is below 9 KiB");
	spec.check = NULL;
}

static char logged[4096];

/* Run settings_adopt. Store in `logged` the log lines that settings_adopt writes, without their
 * time stamps. */
static unsigned adopt(struct settings *s, struct settings *fresh)
{
	int saved = dup(STDERR_FILENO), fds[2];
	ssize_t n_bytes;
	unsigned n;

	assert_true(saved >= 0);
	assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
	dup2(fds[1], STDERR_FILENO);
	n = settings_adopt(s, fresh);
	dup2(saved, STDERR_FILENO);
	close(saved);
	n_bytes = read(fds[0], logged, sizeof(logged) - 1);
	logged[n_bytes > 0 ? n_bytes : 0] = '\0';
	close(fds[0]);
	close(fds[1]);
	return n;
}

static void reread_changes_live_values_and_keeps_the_others(void **state)
{
	const char *config = with_ini("name = old\nthreads = 3\n"), *old_name;
	struct settings *fresh;
	const struct test_opts *later;
	struct result r;
	struct err_text err;
	char text[512];

	(void)state;
	load_into(&r, (const char *const[]){config, "--dead-after=2s", NULL});
	old_name = r.opts.name;
	r.opts.threads = 17; /* a program may change its copy of a value */
	with_ini("\nthreads = 4\nname = new\nwindow = 16KiB\ndead-after = 4s\n");
	assert_int_equal(settings_reread(r.s, &fresh, &err), 0);
	later = settings_values(fresh);
	assert_string_equal(later->name, "new");
	assert_int_equal(later->threads, 3);
	assert_string_equal(r.opts.name, "old");
	assert_int_equal(adopt(r.s, fresh), 2);
	assert_string_equal(r.opts.name, "new");
	/* the old string stays valid, since a reader may still use it */
	assert_string_equal(old_name, "old");
	assert_int_equal(r.opts.window_bytes, 16 << 10);
	assert_int_equal(r.opts.threads, 17);
	assert_int_equal(r.opts.dead_after_us, 2000000);
	snprintf(text, sizeof(text),
		"<4>threads: the old value 3 stays in force; the new value 4 takes effect after a "
		"restart: source='%s:2'\n"
		"<6>window: 4MiB -> 16KiB source='%s:4'\n<6>name: old -> new source='%s:3'\n",
		ini_path, ini_path, ini_path);
	assert_string_equal(logged, text);
	assert_string_equal(settings_source(r.s, "dead-after"), "flag --dead-after");

	/* A changed setting that needs a restart is reported at each reload until the file has the
	 * old value again. */
	assert_int_equal(settings_reread(r.s, &fresh, &err), 0);
	assert_int_equal(adopt(r.s, fresh), 0);
	assert_non_null(strstr(logged, "threads: the old value 3 stays in force"));
	with_ini("threads = 3\nname = new\nwindow = 16384B\n");
	assert_int_equal(settings_reread(r.s, &fresh, &err), 0);
	assert_int_equal(adopt(r.s, fresh), 0);
	assert_string_equal(logged, "");
	settings_free(r.s);
}

static void faults_that_a_reread_replaced_can_still_be_read(void **state)
{
	static const struct setting fault_rows[] = {{"faults", SET_FAULTS,
		SETTING_AT(struct test_opts, name), .def = "", .is_live = true, .help = "faults"}};
	static const struct settings_spec fault_spec = {
		.program = "bps-test", .rows = fault_rows, .n_rows = 1};
	const char *config = with_ini("faults = agent.read.start=crash\n");
	char *argv[] = {(char *)(uintptr_t) "bps-test", (char *)(uintptr_t)config, NULL};
	struct test_opts opts = {0};
	struct settings *s, *fresh;
	const char *old;
	struct err_text err;

	(void)state;
	assert_int_equal(settings_load(&s, &fault_spec, 2, argv, &opts, &err), SETTINGS_RUN);
	old = opts.name;
	with_ini("faults = scheduler.log.write=crash\n");
	assert_int_equal(settings_reread(s, &fresh, &err), 0);
	assert_int_equal(adopt(s, fresh), 1);
	assert_string_equal(opts.name, "scheduler.log.write=crash");
	assert_string_equal(old, "agent.read.start=crash");
	settings_free(s);
}

static void reread_of_a_bad_file_changes_nothing(void **state)
{
	const char *config = with_ini("name = old\n");
	struct settings *fresh = NULL;
	struct result r;
	struct err_text err;
	char text[256];

	(void)state;
	load_into(&r, (const char *const[]){config, NULL});
	with_ini("name = new\nwindow = 16KB\n");
	assert_true(settings_reread(r.s, &fresh, &err) < 0);
	snprintf(text, sizeof(text),
		"%s:2: window: '16KB' is not a size such as 64KiB, 4MiB or 1GiB", ini_path);
	assert_string_equal(err.s, text);
	assert_null(fresh);
	assert_string_equal(r.opts.name, "old");
	unlink(ini_path);
	assert_true(settings_reread(r.s, &fresh, &err) < 0);
	settings_free(r.s);
}

static void reread_checks_the_new_values_together_with_those_that_stay(void **state)
{
	const char *config = with_ini("window = 8KiB\nthreads = 8\n");
	struct settings *fresh = NULL;
	struct result r;
	struct err_text err;

	(void)state;
	spec.check = odd_window;
	load_into(&r, (const char *const[]){config, NULL});
	/* A window of 4 KiB is large enough for 4 threads, but not for the 8 threads that stay
	 * until a restart. */
	with_ini("window = 4KiB\nthreads = 4\n");
	assert_true(settings_reread(r.s, &fresh, &err) < 0);
	assert_string_equal(err.s, "window is below 8 KiB (settings that change only at a restart "
				   "keep their present values)");
	settings_free(r.s);
	spec.check = NULL;
}

static void printed_config_can_be_read_back(void **state)
{
	const char *const args[] = {"--window=64KiB", "--name=n1", "--print-config", NULL};
	char *text = stdout_of(args, SETTINGS_DONE);
	struct result r;

	(void)state;
	assert_non_null(strstr(text, "window = 64KiB ; flag --window\n"));
	assert_non_null(strstr(text, "threads = 2 ; default\n"));
	r = LOAD(with_ini(text));
	assert_int_equal(r.verdict, SETTINGS_RUN);
	assert_int_equal(r.opts.window_bytes, 65536);
	assert_string_equal(r.opts.name, "n1");
	settings_free(r.s);
	free(text);
}

static void help_names_every_setting_with_default_and_range(void **state)
{
	const char *const args[] = {"--help", NULL};
	char *text = stdout_of(args, SETTINGS_DONE);

	(void)state;
	assert_non_null(strstr(text, "--mode=abort|shrink"));
	assert_non_null(strstr(text, "silence until dead; 100ms to 1min (default 3s)"));
	assert_non_null(strstr(text, "bytes in flight; live; 4KiB to 1GiB (default 4MiB)"));
	free(text);
}

static void check_config_runs_nothing_and_reports_errors(void **state)
{
	(void)state;
	assert_int_equal(LOAD("--check-config").verdict, SETTINGS_DONE);
	assert_int_equal(LOAD("--check-config", "--threads=0").verdict, SETTINGS_USAGE);
}

static void arguments_are_handed_back(void **state)
{
	struct result r;
	char *const *args;
	size_t n;

	(void)state;
	spec.args = SETTINGS_ARGS_MIXED;
	r = LOAD("job", "--threads", "3", "7f3a", "--", "--verbose");
	args = settings_args(r.s, &n);
	assert_int_equal(n, 3);
	assert_string_equal(args[0], "job");
	assert_string_equal(args[1], "7f3a");
	assert_string_equal(args[2], "--verbose");
	assert_null(args[3]);
	assert_int_equal(r.opts.threads, 3);
	settings_free(r.s);

	spec.args = SETTINGS_ARGS_LAST;
	r = LOAD("--threads=3", "python3", "--threads=9");
	args = settings_args(r.s, &n);
	assert_int_equal(n, 2);
	assert_string_equal(args[1], "--threads=9");
	assert_int_equal(r.opts.threads, 3);
	settings_free(r.s);
	spec.args = SETTINGS_NO_ARGS;
}

static void addresses_are_parsed_and_printed(void **state)
{
	static const struct {
		const char *text, *printed;
	} good[] = {{"head:1", "head:1"}, {"[::1]:65535", "[::1]:65535"}, {"::1", "[::1]:77"},
		{"10.0.0.1", "10.0.0.1:77"}, {"*:5", "*:5"},
		{"[fe80::1%eth0]:5", "[fe80::1%eth0]:5"}};
	static const char *const bad[] = {"", ":5", "[::1", "[::1]5", "a:65536", "a:", "a:-1",
		"a b:1", "a:1x", "[]:5", "a/b:1"};
	char buf[ADDR_TEXT_BYTES];
	struct err_text err;
	struct addr a;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(addr_parse(&a, good[i].text, 77, &err), 0);
		assert_string_equal(addr_format(&a, buf), good[i].printed);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_true(addr_parse(&a, bad[i], 77, &err) < 0);
}

static void assert_wrapped(const char *head, const char *text, size_t columns, const char *want)
{
	char *got = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&got, &n);

	assert_non_null(out);
	settings_print_wrapped(out, head, text, columns);
	fclose(out);
	assert_string_equal(got, want);
	free(got);
}

static void text_that_fits_is_one_line(void **state)
{
	(void)state;
	assert_wrapped("", "", 10, "\n");
	assert_wrapped("a: ", "", 10, "a: \n");
	assert_wrapped("a: ", "bcd efg", 10, "a: bcd efg\n");
}

static void lines_break_at_blanks_and_begin_below_the_text(void **state)
{
	(void)state;
	assert_wrapped("a: ", "bcd efgh", 10, "a: bcd\n   efgh\n");
	assert_wrapped("a: ", "bcd efg hijk lm no", 10, "a: bcd efg\n   hijk lm\n   no\n");
}

static void word_without_a_blank_is_broken(void **state)
{
	(void)state;
	assert_wrapped("", "abcdefghijklm", 5, "abcde\nfghij\nklm\n");
	/* the blank is in the first half of the line */
	assert_wrapped("", "a bcdefghi", 8, "a bcdefg\nhi\n");
}

static int make_ini_path(void **state)
{
	int fd;

	(void)state;
	strcpy(ini_path, "/tmp/bps-settings-XXXXXX");
	fd = mkstemp(ini_path);
	return fd < 0 ? -1 : close(fd);
}

static int drop_ini_path(void **state)
{
	(void)state;
	unlink(ini_path);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_fill_every_type),
		cmocka_unit_test(flags_set_every_type),
		cmocka_unit_test(flag_beats_environment_beats_file_beats_default),
		cmocka_unit_test(bad_flags_are_refused_with_range_and_nearest_name),
		cmocka_unit_test(bad_files_are_refused_with_file_and_line),
		cmocka_unit_test(bad_file_value_is_refused_even_if_a_flag_overrides_it),
		cmocka_unit_test(bad_environment_is_refused_by_its_name),
		cmocka_unit_test(missing_default_file_is_no_error),
		cmocka_unit_test(drop_ins_follow_the_file_in_the_order_of_their_names),
		cmocka_unit_test(values_that_do_not_fit_together_are_refused),
		cmocka_unit_test(reread_changes_live_values_and_keeps_the_others),
		cmocka_unit_test(faults_that_a_reread_replaced_can_still_be_read),
		cmocka_unit_test(reread_of_a_bad_file_changes_nothing),
		cmocka_unit_test(reread_checks_the_new_values_together_with_those_that_stay),
		cmocka_unit_test(printed_config_can_be_read_back),
		cmocka_unit_test(help_names_every_setting_with_default_and_range),
		cmocka_unit_test(text_that_fits_is_one_line),
		cmocka_unit_test(lines_break_at_blanks_and_begin_below_the_text),
		cmocka_unit_test(word_without_a_blank_is_broken),
		cmocka_unit_test(check_config_runs_nothing_and_reports_errors),
		cmocka_unit_test(arguments_are_handed_back),
		cmocka_unit_test(addresses_are_parsed_and_printed),
	};

	return cmocka_run_group_tests(tests, make_ini_path, drop_ini_path);
}
