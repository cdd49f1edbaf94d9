#ifndef BPS_COMMON_DAEMON_METRICS_H
#define BPS_COMMON_DAEMON_METRICS_H
/* Writer of the Prometheus text format 0.0.4 into a libevent buffer.
 *
 *   metric_begin(out, "bps_members", "gauge", "members by role and state");
 *   metric_value(out, "bps_members", 3, "role", "agent", "state", "up", NULL);
 *
 * Names are ours: bps_ prefix, base units, _total for counters. Label values may come from
 * anywhere: quotes, backslashes and line ends are escaped, other control bytes and what is not
 * ASCII become '?' (one bad byte would make the whole scrape fail). Stateless; the thread that owns
 * out. */
struct evbuffer;

/* What every process has: bps_build_info, bps_fds, bps_fds_limit, bps_up_since_seconds, and what
 * process_metrics.h has.
 * started_unix: when it began, seconds. */
void metrics_process(struct evbuffer *out, double started_unix);

/* The HELP and TYPE lines, once before the values of a metric. type: "counter", "gauge" or
 * "histogram". */
void metric_begin(struct evbuffer *out, const char *name, const char *type, const char *help);

/* One sample. Behind value: pairs of label name and label value, then NULL. */
void metric_value(struct evbuffer *out, const char *name, double value, ...)
	__attribute__((sentinel));

/* The samples of a histogram's labels behind metric_begin; in seconds. Behind h: as
 * metric_value. */
struct histogram;
void metric_histogram(struct evbuffer *out, const char *name, const struct histogram *h, ...)
	__attribute__((sentinel));

/* A metric of one sample without labels: metric_begin and metric_value. */
void metric_one(
	struct evbuffer *out, const char *name, const char *type, const char *help, double value);
#endif
