#ifndef BPS_SCHEDULER_STATUS_HEALTH_WATCH_H
#define BPS_SCHEDULER_STATUS_HEALTH_WATCH_H
/* Reports an event when a problem of the cluster (problems.c) appears, and another event when the
 * problem is over. A problem is identified by its code and its subject. All functions run on the
 * core's thread. */
#include "bps-scheduler/status/status.h"

/* largest number of problems that are watched at a time; further problems cause no events */
#define HEALTH_WATCHED_MAX 256

struct health_watch;
typedef void (*health_event_fn)(void *ctx, const struct sched_event *e);

/* Create a watch, which calls fn(ctx, event) for each event. Return NULL if memory is exhausted. */
struct health_watch *health_watch_new(health_event_fn fn, void *ctx);
/* Compare the problems with those of the last call, and report the differences. */
void health_watch_check(
	struct health_watch *w, const struct sched_core *c, const struct status_info *info);
void health_watch_free(struct health_watch *w);
#endif
