/* Write metrics in the Prometheus text format, and collect the metrics that every process has. Each
 * program collects its other metrics itself. The functions keep no state. They run on the thread
 * that owns the buffer. */
#include "common/daemon/metrics.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <event2/buffer.h>

#include "common/base/failpoint.h"
#include "common/base/histogram.h"
#include "common/base/version.h"
#include "common/daemon/process_metrics.h"

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

void metric_append_header(
	struct evbuffer *out, const char *name, const char *type, const char *help)
{
	evbuffer_add_printf(out, "# HELP %s ", name);
	metric_append_escaped(out, help, "\\\n");
	evbuffer_add_printf(out, "\n# TYPE %s %s\n", name, type);
}

static void metric_append_label(
	struct evbuffer *out, char open, const char *name, const char *value)
{
	evbuffer_add_printf(out, "%c%s=\"", open, name);
	metric_append_escaped(out, value, "\\\"\n");
	metric_append_text(out, "\"");
}

/* Write a sample of the metric `name`. The sample's name is `name` followed by `suffix`. ap: label
 * names and values, then NULL. le: the upper bound of a histogram's bucket, which is added as a
 * label; NULL: no label is added. */
static void metric_append_sample(struct evbuffer *out, const char *name, const char *suffix,
	double value, const char *le, va_list ap)
{
	const char *label;
	char open = '{', buf[32];

	metric_append_text(out, name);
	metric_append_text(out, suffix);
	while ((label = va_arg(ap, const char *))) {
		metric_append_label(out, open, label, va_arg(ap, const char *));
		open = ',';
	}
	if (le) {
		metric_append_label(out, open, "le", le);
		open = ',';
	}
	if (open == ',')
		metric_append_text(out, "}");
	evbuffer_add_printf(out, " %s\n", metric_format_value(value, buf));
}

void metric_append_value(struct evbuffer *out, const char *name, double value, ...)
{
	va_list ap;

	va_start(ap, value);
	metric_append_sample(out, name, "", value, NULL, ap);
	va_end(ap);
}

static void metric_append_histogram_line(struct evbuffer *out, const char *name, const char *suffix,
	double value, const char *le, va_list ap)
{
	va_list copy;

	va_copy(copy, ap);
	metric_append_sample(out, name, suffix, value, le, copy);
	va_end(copy);
}

void metric_histogram(struct evbuffer *out, const char *name, const struct histogram *h, ...)
{
	uint64_t n = 0;
	va_list ap;

	va_start(ap, h);
	for (unsigned k = 0; k < HISTOGRAM_BUCKETS; k++) {
		char le[32] = "+Inf";

		n += h->n[k];
		if (k < HISTOGRAM_BUCKETS - 1)
			snprintf(le, sizeof(le), "%.10g", (double)(HISTOGRAM_FIRST_NS << k) / 1e9);
		metric_append_histogram_line(out, name, "_bucket", (double)n, le, ap);
	}
	metric_append_histogram_line(out, name, "_sum", (double)h->sum_ns / 1e9, NULL, ap);
	metric_append_histogram_line(out, name, "_count", (double)n, NULL, ap);
	va_end(ap);
}

void metric_append_single(
	struct evbuffer *out, const char *name, const char *type, const char *help, double value)
{
	metric_append_header(out, name, type, help);
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
	metric_append_header(
		out, "bps_injected_faults_total", "counter", "faults injected by failpoints");
	for (int i = 0; i < FAILPOINT_COUNT; i++) {
		uint64_t n = failpoint_acted((enum failpoint)i);

		if (n)
			metric_append_value(out, "bps_injected_faults_total", (double)n, "point",
				failpoint_name((enum failpoint)i), NULL);
	}
}

void metrics_append_process(struct evbuffer *out, double started_unix)
{
	struct rlimit limit;

	metric_append_header(
		out, "bps_build_info", "gauge", "version of this program, and its commit");
	metric_append_value(
		out, "bps_build_info", 1, "version", BPS_VERSION, "commit", bps_commit(), NULL);
	metric_append_single(out, "bps_fds", "gauge", "open descriptors", process_count_open_fds());
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		metric_append_single(out, "bps_fds_limit", "gauge", "limit of open descriptors",
			limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur);
	metric_append_single(out, "bps_up_since_seconds", "gauge",
		"start time of this process, in seconds since 1970", started_unix);
	metrics_append_fault_counts(out);
	process_metrics(out);
}
