/* The simulator's command line. usage() has its options. */
#include "tests/sim/fleet.h"
#include "tests/sim/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"

#define LOG_NONE ((enum log_level)0)
#define HANG_S   20 /* seconds of processor time after which a history counts as hung */
#define JOBS_MAX 1024

static const char usage[] =
	"usage: sim [--seed N | --seeds A..B | --file FILE] [--trace] [--report | --json]\n"
	"           [--keep-going] [--jobs N] [--mutant NAME]\n"
	"  --seed N        run the history of one seed\n"
	"  --seeds A..B    run the histories of these seeds (default 1..1000)\n"
	"  --file FILE     run the seeds that are the first words of the lines of FILE\n"
	"  --trace         print every event on stderr\n"
	"  --report        print figures at the end\n"
	"  --json          print the figures as JSON in the last line\n"
	"  --keep-going    run the other seeds after a violation\n"
	"  --jobs N        run the seeds A..B in N processes\n"
	"  --mutant NAME   run the program with that defect (make sim-mutants builds them)\n";

struct sim_args {
	uint64_t first, last;
	unsigned n_jobs;
	const char *file;
	bool is_traced, has_report, has_json, keeps_going;
};

/* Seed of the history that is running. The signal handler prints it. */
static volatile uint64_t running_seed;

static void on_signal(int sig)
{
	char text[64] = "seed ", digits[24];
	size_t n = 5, k = 0;
	uint64_t v = running_seed;
	const char *why =
		sig == SIGPROF ? " an event does not end\n" : " assertion failed or crash\n";

	do
		digits[k++] = (char)('0' + v % 10);
	while (v /= 10);
	while (k)
		text[n++] = digits[--k];
	memcpy(text + n, why, strlen(why));
	if (write(STDOUT_FILENO, text, n + strlen(why)) < 0)
		_exit(3);
	_exit(1);
}

/* Send SIGPROF to this process after HANG_S. Each call begins a new limit. The limit counts the
 * processor's time, because other programs may keep this process waiting. */
static void limit_cpu_time(void)
{
	const struct itimerval limit = {.it_value.tv_sec = HANG_S};

	setitimer(ITIMER_PROF, &limit, NULL);
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static bool run_seed(struct sim *s, uint64_t seed)
{
	running_seed = seed;
	if (sim_run(s, seed))
		return true;
	fflush(stderr);
	printf("seed %" PRIu64 " %s\n", seed, s->reason);
	fflush(stdout);
	return false;
}

static void report(const struct sim_totals *t, double took_s, uint64_t n_bad)
{
	uint64_t n_faults = 0;

	for (unsigned i = 0; i < F_COUNT; i++)
		n_faults += t->faults[i];
	printf("%" PRIu64 " seeds in %.1f s (%.0f/s), %" PRIu64 " violations\n", t->seeds, took_s,
		(double)t->seeds / took_s, n_bad);
	printf("%" PRIu64 " events (%.2e/s), %" PRIu64 " faults, %" PRIu64
	       " rounds delivered, %.1f "
	       "virtual hours\n",
		t->events, (double)t->events / took_s, n_faults, t->rounds,
		(double)t->virtual_ns / 3.6e12);
	printf("%" PRIu64 " messages (%" PRIu64 " lost, %" PRIu64 " duplicated, %" PRIu64
	       " reordered, %" PRIu64 " corrupted, %" PRIu64 " AGAIN), %" PRIu64 " reads (%" PRIu64
	       " of %" PRIu64 " eager offers, %" PRIu64 " discarded), %" PRIu64 " loans, %" PRIu64
	       " views, %" PRIu64 " scheduler starts, %" PRIu64 " agent restarts, %" PRIu64
	       " drains, %" PRIu64 " servers stopped, %" PRIu64 " jobs failed\n",
		t->messages, t->lost, t->dups, t->reordered, t->corrupted, t->agains, t->reads,
		t->eager_reads, t->eager, t->thrown, t->loans, t->views, t->lives, t->restarts,
		t->drains, t->leaves, t->failed_jobs);
	printf("%" PRIu64 " rounds of other jobs, %" PRIu64
	       " forged messages of misbehaving agents, %" PRIu64 " tasks of I/O threads, %" PRIu64
	       " abstentions\n",
		t->guest_rounds, t->lies, t->tasks, t->abstentions);
	printf("slowest end after the last fault: %.1f s (seed %" PRIu64 ")\n",
		(double)t->slowest_ns / 1e9, t->slowest_seed);
	for (unsigned i = 0; i < F_COUNT; i++)
		printf("  %-32s %" PRIu64 "\n", fault_names[i], t->faults[i]);
}

#define FIGURE(name)                                                                               \
	{                                                                                          \
#name, offsetof(struct sim_totals, name)                                           \
	}
static const struct {
	const char *name;
	size_t at;
} figures[] = {FIGURE(seeds), FIGURE(events), FIGURE(messages), FIGURE(lost), FIGURE(dups),
	FIGURE(reordered), FIGURE(corrupted), FIGURE(agains), FIGURE(reads), FIGURE(eager),
	FIGURE(eager_reads), FIGURE(thrown), FIGURE(loans), FIGURE(views), FIGURE(rounds),
	FIGURE(failed_jobs), FIGURE(virtual_ns), FIGURE(lives), FIGURE(restarts), FIGURE(drains),
	FIGURE(leaves), FIGURE(guest_rounds), FIGURE(lies), FIGURE(tasks), FIGURE(abstentions),
	FIGURE(slowest_ns), FIGURE(slowest_seed)};

static double cpu_s(int who)
{
	struct rusage u;

	getrusage(who, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void report_json(const struct sim_totals *t, double took_s, uint64_t n_bad)
{
	printf("{\"violations\": %" PRIu64 ", \"took_s\": %.1f, \"cpu_s\": %.1f", n_bad, took_s,
		cpu_s(RUSAGE_SELF) + cpu_s(RUSAGE_CHILDREN));
	for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++)
		printf(", \"%s\": %" PRIu64, figures[i].name,
			*(const uint64_t *)((const char *)t + figures[i].at));
	printf(", \"faults\": {");
	for (unsigned i = 0; i < F_COUNT; i++)
		printf("%s\"%s\": %" PRIu64, i ? ", " : "", fault_names[i], t->faults[i]);
	printf("}}\n");
}

static uint64_t run_file(struct sim *s, const char *path, bool keeps_going)
{
	FILE *f = fopen(path, "r");
	uint64_t n_bad = 0, seed;
	char line[512];

	if (!f) {
		fprintf(stderr, "sim: cannot open '%s': %s\n", path, strerror(errno));
		exit(2);
	}
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%" SCNu64, &seed) != 1)
			continue;
		n_bad += !run_seed(s, seed);
		if (n_bad && !keeps_going)
			break;
	}
	fclose(f);
	return n_bad;
}

static uint64_t run_range(struct sim *s, const struct sim_args *a)
{
	uint64_t n_bad = 0;

	for (uint64_t seed = a->first; seed <= a->last && (!n_bad || a->keeps_going); seed++) {
		if (seed % 64 == 0 || seed == a->first)
			limit_cpu_time();
		n_bad += !run_seed(s, seed);
	}
	return n_bad;
}

struct sim_crew {
	struct sim *s;
	struct sim_args args;
};

static uint64_t run_block(void *ctx, uint64_t first, uint64_t last, struct sim_totals *tot)
{
	struct sim_crew *c = ctx;

	c->args.first = first;
	c->args.last = last;
	c->s->tot = tot;
	return run_range(c->s, &c->args);
}

static uint64_t run_all(struct sim *s, const struct sim_args *a, struct sim_totals *tot)
{
	struct sim_crew crew = {s, *a};

	if (a->file)
		return run_file(s, a->file, a->keeps_going);
	if (a->n_jobs < 2)
		return run_range(s, a);
	return fleet_run(a->n_jobs, a->first, a->last, a->keeps_going, run_block, &crew, tot);
}

/* Execute the mutant with this name in place of the current program. Mutants are programs in
 * mutants/, a subfolder of the folder of this program. */
static void run_mutant(char **argv, const char *name)
{
	char path[4096];
	char *slash;

	snprintf(path, sizeof(path), "%s", argv[0]);
	slash = strrchr(path, '/');
	snprintf(slash ? slash + 1 : path, 64, "mutants/%s", name);
	execv(path, argv);
	fprintf(stderr, "sim: cannot run '%s': %s (make sim-mutants builds it)\n", path,
		strerror(errno));
	exit(2);
}

static bool parse(int argc, char **argv, struct sim_args *a)
{
	for (int i = 1; i < argc; i++) {
		const char *next = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(argv[i], "--trace") == 0) {
			a->is_traced = true;
		} else if (strcmp(argv[i], "--report") == 0) {
			a->has_report = true;
		} else if (strcmp(argv[i], "--json") == 0) {
			a->has_json = true;
		} else if (strcmp(argv[i], "--keep-going") == 0) {
			a->keeps_going = true;
		} else if (strcmp(argv[i], "--seed") == 0 && next) {
			a->first = a->last = strtoull(argv[++i], NULL, 10);
		} else if (strcmp(argv[i], "--seeds") == 0 && next) {
			if (sscanf(argv[++i], "%" SCNu64 "..%" SCNu64, &a->first, &a->last) != 2)
				return false;
		} else if (strcmp(argv[i], "--jobs") == 0 && next) {
			a->n_jobs = (unsigned)strtoul(argv[++i], NULL, 10);
			if (!a->n_jobs || a->n_jobs > JOBS_MAX)
				return false;
		} else if (strcmp(argv[i], "--file") == 0 && next) {
			a->file = argv[++i];
		} else if (strcmp(argv[i], "--mutant") == 0 && next) {
			char *name = argv[i + 1];

			memmove(argv + i, argv + i + 2, (size_t)(argc - i - 1) * sizeof(*argv));
			run_mutant(argv, name);
		} else {
			return false;
		}
	}
	return true;
}

int main(int argc, char **argv)
{
	struct sim_args a = {.first = 1, .last = 1000};
	struct sim_totals totals = {0};
	struct sim *s = calloc(1, sizeof(*s));
	uint64_t n_bad;
	double begin = now_s();

	if (!s || !parse(argc, argv, &a)) {
		fputs(usage, stderr);
		free(s);
		return 2;
	}
	log_set_level(a.is_traced ? LOG_TRACE : LOG_NONE);
	signal(SIGABRT, on_signal);
	signal(SIGSEGV, on_signal);
	signal(SIGPROF, on_signal);
	limit_cpu_time();
	s->is_traced = a.is_traced;
	s->tot = &totals;
	n_bad = run_all(s, &a, &totals);
	if (a.has_report)
		report(&totals, now_s() - begin, n_bad);
	if (a.has_json)
		report_json(&totals, now_s() - begin, n_bad);
	sim_free(s);
	return n_bad ? 1 : 0;
}
