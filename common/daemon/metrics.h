#ifndef BPS_COMMON_DAEMON_METRICS_H
#define BPS_COMMON_DAEMON_METRICS_H
/* Writer of the Prometheus text format 0.0.4 into a libevent buffer.
 *
 *   metric_append_header(out, "bps_members", "members by role and state");
 *   metric_append_value(out, "bps_members", 3, "role", "agent", "state", "up", NULL);
 *
 * Names of metrics begin with bps_, and names of counters end in _total. If a metric has a unit,
 * the name contains the unit. The unit is a base unit, such as seconds or bytes. Label values may
 * come from any source: quotes, backslashes and line ends are escaped. Other control bytes and
 * bytes beyond ASCII become '?', because one invalid byte would make Prometheus reject the whole
 * page. The functions keep no state. Call them on the thread that owns the buffer `out`. */
struct evbuffer;

/* Write the metrics that every process has: bps_build_info, bps_fds, bps_fds_limit,
 * bps_up_since_seconds, bps_injected_faults_total, and the metrics of its processor time, memory
 * and threads.
 * started_unix: start time of the process, in seconds since 1970. */
void metrics_append_process(struct evbuffer *out, double started_unix);

/* Write the HELP and TYPE lines, once before the values of a metric. A metric whose name ends in
 * _total is a counter, any other a gauge. */
void metric_append_header(struct evbuffer *out, const char *name, const char *help);

/* Write a sample. The arguments after `value` are pairs of label name and label value, then
 * NULL. */
void metric_append_value(struct evbuffer *out, const char *name, double value, ...)
	__attribute__((sentinel));

/* Write a whole metric that is a histogram of durations, in seconds. */
struct histogram;
void metric_append_histogram(
	struct evbuffer *out, const char *name, const char *help, const struct histogram *h);

/* Write a whole metric that has one sample without labels. */
void metric_append_single(struct evbuffer *out, const char *name, const char *help, double value);
#endif
