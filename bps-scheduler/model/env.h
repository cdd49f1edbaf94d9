#ifndef BPS_SCHEDULER_MODEL_ENV_H
#define BPS_SCHEDULER_MODEL_ENV_H
#include <stddef.h>

#include "bps-scheduler/model/config.h"

struct sched_core;

/* Allocate zeroed memory; the caller frees it with free(). Never returns NULL. */
void *sched_alloc(size_t n, size_t bytes);
/* Grow the array p, which has *room entries, to at least `need` entries, and update *room. New
 * entries are zeroed. Returns the array, which may have moved. Never returns NULL. */
void *sched_grow_array(void *p, uint32_t *room, uint32_t need, size_t bytes);
char *sched_dup_string(const char *s);
/* Report an event for users through env.event. fmt: format of the event's text, one sentence. */
void sched_report_event(struct sched_core *c, enum sched_event_kind kind, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Schedule a deadline: from now on sched_next_deadline returns at_ns or an earlier time. */
void sched_arm_deadline(struct sched_core *c, uint64_t at_ns);
#endif
