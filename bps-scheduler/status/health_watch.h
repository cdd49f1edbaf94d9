#ifndef BPS_SCHEDULER_STATUS_HEALTH_WATCH_H
#define BPS_SCHEDULER_STATUS_HEALTH_WATCH_H
/* Problems of the cluster (problems.c) as events: one when a problem comes, one when it is over. A
 * problem is known by its code and its subject. Same thread as the core. */
#include "bps-scheduler/status/status.h"

#define HEALTH_WATCHED_MAX 256 /* problems at a time; more give no events */

struct health_watch;
typedef void (*health_event_fn)(void *ctx, const struct sched_event *e);

/* fn gets the events, with ctx. NULL: out of memory. */
struct health_watch *health_watch_new(health_event_fn fn, void *ctx);
/* Compare the problems with those of the last look. */
void health_watch_look(
	struct health_watch *w, const struct sched_core *c, const struct status_info *info);
void health_watch_free(struct health_watch *w);
#endif
