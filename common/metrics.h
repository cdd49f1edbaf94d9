#ifndef BPS_COMMON_METRICS_H
#define BPS_COMMON_METRICS_H
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

/* The HELP and TYPE lines, once before the values of a metric. type: "counter" or "gauge". */
void metric_begin(struct evbuffer *out, const char *name, const char *type, const char *help);

/* One sample. Behind value: pairs of label name and label value, then NULL. */
void metric_value(struct evbuffer *out, const char *name, double value, ...)
	__attribute__((sentinel));

/* A metric of one sample without labels: metric_begin and metric_value. */
void metric_one(
	struct evbuffer *out, const char *name, const char *type, const char *help, double value);
#endif
