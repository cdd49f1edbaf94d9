/* Write metrics in the Prometheus text format, and collect the metrics that every process has. Each
 * program collects its other metrics itself. The functions keep no state. They run on the thread
 * that owns the buffer. */
#include "common/daemon/metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <event2/buffer.h>

#include "common/base/failpoint.h"
#include "common/base/first_line.h"
#include "common/base/histogram.h"
#include "common/base/version.h"

#define THREAD_NAMES_MAX 64
#define THREAD_NAME_MAX  16 /* kernel's limit for a thread's name, including the NUL byte */

static void metric_append_text(struct evbuffer *out, const char *text)
{
	evbuffer_add(out, text, strlen(text));
}

/* Format a number for Prometheus. Whole numbers up to 2^53 are written without an exponent. */
static const char *metric_format_value(double v, char buf[static 32])
{
	if (isnan(v))
		return "NaN";
	if (isinf(v))
		return v > 0 ? "+Inf" : "-Inf";
	if (fabs(v) <= 9007199254740992.0 && floor(v) == v)
		snprintf(buf, 32, "%.0f", v);
	else
		snprintf(buf, 32, "%.17g", v);
	return buf;
}

static void metric_append_escaped(struct evbuffer *out, const char *text, const char *escaped)
{
	for (; *text; text++) {
		char pair[2] = {'\\', *text == '\n' ? 'n' : *text};

		if (strchr(escaped, *text))
			evbuffer_add(out, pair, 2);
		else
			evbuffer_add(out, *text < ' ' || *text > '~' ? "?" : text, 1);
	}
}

static void metric_append_typed_header(
	struct evbuffer *out, const char *name, const char *type, const char *help)
{
	evbuffer_add_printf(out, "# HELP %s ", name);
	metric_append_escaped(out, help, "\\\n");
	evbuffer_add_printf(out, "\n# TYPE %s %s\n", name, type);
}

void metric_append_header(struct evbuffer *out, const char *name, const char *help)
{
	size_t n = strlen(name), n_suffix = strlen("_total");
	bool is_counter = n > n_suffix && strcmp(name + n - n_suffix, "_total") == 0;

	metric_append_typed_header(out, name, is_counter ? "counter" : "gauge", help);
}

static void metric_append_label(
	struct evbuffer *out, char open, const char *name, const char *value)
{
	evbuffer_add_printf(out, "%c%s=\"", open, name);
	metric_append_escaped(out, value, "\\\"\n");
	metric_append_text(out, "\"");
}

void metric_append_value(struct evbuffer *out, const char *name, double value, ...)
{
	const char *label;
	char open = '{', buf[32];
	va_list ap;

	metric_append_text(out, name);
	va_start(ap, value);
	while ((label = va_arg(ap, const char *))) {
		metric_append_label(out, open, label, va_arg(ap, const char *));
		open = ',';
	}
	va_end(ap);
	if (open == ',')
		metric_append_text(out, "}");
	evbuffer_add_printf(out, " %s\n", metric_format_value(value, buf));
}

void metric_append_histogram(
	struct evbuffer *out, const char *name, const char *help, const struct histogram *h)
{
	char sample[128];
	uint64_t n = 0;

	metric_append_typed_header(out, name, "histogram", help);
	snprintf(sample, sizeof(sample), "%s_bucket", name);
	for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++) {
		char le[32] = "+Inf";

		n += h->n[k];
		if (k < HISTOGRAM_BUCKETS - 1)
			snprintf(le, sizeof(le), "%.10g", (double)(HISTOGRAM_FIRST_NS << k) / 1e9);
		metric_append_value(out, sample, (double)n, "le", le, NULL);
	}
	snprintf(sample, sizeof(sample), "%s_sum", name);
	metric_append_value(out, sample, (double)h->sum_ns / 1e9, NULL);
	snprintf(sample, sizeof(sample), "%s_count", name);
	metric_append_value(out, sample, (double)n, NULL);
}

void metric_append_single(struct evbuffer *out, const char *name, const char *help, double value)
{
	metric_append_header(out, name, help);
	metric_append_value(out, name, value, NULL);
}

/* Count the open descriptors of this process, without the descriptor that is open for the count. */
static double process_count_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *e;
	double n = -1;

	if (!dir)
		return NAN;
	while ((e = readdir(dir)))
		n += e->d_name[0] != '.';
	closedir(dir);
	return n;
}

static void metrics_append_fault_counts(struct evbuffer *out)
{
	metric_append_header(out, "bps_injected_faults_total", "faults injected by failpoints");
	for (int i = 0; i < FAILPOINT_COUNT; i++) {
		uint64_t n = failpoint_acted((enum failpoint)i);

		if (n)
			metric_append_value(out, "bps_injected_faults_total", (double)n, "point",
				failpoint_name((enum failpoint)i), NULL);
	}
}

/* ---- threads and memory, from /proc/self: threads start and end between two requests, so each
 * request reads all files again ---- */

struct thread_times {
	char name[THREAD_NAME_MAX];
	bool is_main;
	uint64_t busy_ns, runqueue_ns;
};

struct thread_list {
	struct thread_times t[THREAD_NAMES_MAX];
	unsigned n;
};

/* Read the first line of a file in the thread's /proc folder into buf. Returns false when the
 * thread has ended. */
static bool thread_read_proc_line(const char *tid, const char *file, char *buf, size_t room)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%.16s/%s", tid, file);
	return first_line_read(path, buf, room);
}

static void thread_list_add_times(struct thread_list *l, const char *tid)
{
	struct thread_times t = {.is_main = strtol(tid, NULL, 10) == (long)getpid()};
	char line[96];
	unsigned i = 0;

	if (!thread_read_proc_line(tid, "schedstat", line, sizeof(line)) ||
		sscanf(line, "%" SCNu64 " %" SCNu64, &t.busy_ns, &t.runqueue_ns) != 2 ||
		!thread_read_proc_line(tid, "comm", t.name, sizeof(t.name)))
		return;
	while (i < l->n && (l->t[i].is_main || t.is_main || strcmp(l->t[i].name, t.name) != 0))
		i++;
	if (i == THREAD_NAMES_MAX)
		return;
	if (i == l->n) {
		l->t[l->n++] = t;
		return;
	}
	l->t[i].busy_ns += t.busy_ns;
	l->t[i].runqueue_ns += t.runqueue_ns;
}

static void thread_list_read_all(struct thread_list *l)
{
	DIR *dir = opendir("/proc/self/task");
	const struct dirent *e;

	l->n = 0;
	if (!dir)
		return;
	while ((e = readdir(dir)))
		if (e->d_name[0] != '.')
			thread_list_add_times(l, e->d_name);
	closedir(dir);
}

static void thread_append_sample(
	struct evbuffer *out, const char *metric, const struct thread_times *t, uint64_t ns)
{
	const char *kind = t->is_main                         ? "main"
			   : strncmp(t->name, "data", 4) == 0 ? "data"
							      : "other";

	metric_append_value(out, metric, (double)ns / 1e9, "thread", t->is_main ? "main" : t->name,
		"kind", kind, NULL);
}

static void thread_metrics(struct evbuffer *out)
{
	struct thread_list l;

	thread_list_read_all(&l);
	metric_append_header(
		out, "bps_thread_busy_seconds_total", "time that threads ran on a processor");
	for (unsigned i = 0; i < l.n; i++)
		thread_append_sample(out, "bps_thread_busy_seconds_total", &l.t[i], l.t[i].busy_ns);
	metric_append_header(out, "bps_thread_runqueue_seconds_total",
		"time that threads waited for a processor, ready to run");
	for (unsigned i = 0; i < l.n; i++)
		thread_append_sample(
			out, "bps_thread_runqueue_seconds_total", &l.t[i], l.t[i].runqueue_ns);
}

/* Return the bytes of resident memory; 0: unknown. */
static double resident_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	uint64_t pages = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%*u %" SCNu64, &pages) != 1)
		pages = 0;
	fclose(f);
	return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void metrics_append_usage(struct evbuffer *out)
{
	double resident = resident_bytes();
	struct timespec t;

	if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0)
		metric_append_single(out, "process_cpu_seconds_total",
			"user and system time of this process",
			(double)t.tv_sec + (double)t.tv_nsec / 1e9);
	if (resident > 0)
		metric_append_single(out, "process_resident_memory_bytes",
			"resident memory, shared memory included", resident);
	thread_metrics(out);
}

void metrics_append_process(struct evbuffer *out, double started_unix)
{
	struct rlimit limit;

	metric_append_header(out, "bps_build_info", "version of this program, and its commit");
	metric_append_value(
		out, "bps_build_info", 1, "version", BPS_VERSION, "commit", bps_commit(), NULL);
	metric_append_single(out, "bps_fds", "open descriptors", process_count_open_fds());
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		metric_append_single(out, "bps_fds_limit", "limit of open descriptors",
			limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur);
	metric_append_single(out, "bps_up_since_seconds",
		"start time of this process, in seconds since 1970", started_unix);
	metrics_append_fault_counts(out);
	metrics_append_usage(out);
}
