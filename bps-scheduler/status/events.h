#ifndef BPS_SCHEDULER_STATUS_EVENTS_H
#define BPS_SCHEDULER_STATUS_EVENTS_H
/* The last events of the core (core.h), for users: a ring in memory, and a copy of it in a file,
 * which the next process reads. Each event has the wall clock's time and a number, which counts
 * from 1. Thread: the core's.
 *
 * The file has a line per event: number, time, view, kind and text, separated by blanks. It is not
 * synced, and errors are logged and otherwise ignored: nothing depends on it. At most twice as many
 * lines as the ring has entries are in it; then it is written again from the ring. */
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/core/core.h"

#define EVENTS_KEPT       1000
#define EVENTS_ANSWER_MAX 250 /* in one document */

struct event_ring;

/* Create an empty ring. NULL: out of memory. */
struct event_ring *events_new(void);
/* Read the events of the previous process from the file `events` in dir, which this process alone
 * uses, and write those that follow into it. ev: without events. Errors: logged; then ev stays in
 * memory. */
void events_open(struct event_ring *ev, const char *dir);
/* unix_s: the wall clock, seconds. Forgets the oldest when the ring is full. */
void events_add(struct event_ring *ev, const struct sched_event *e, double unix_s);
/* Return the events with a number above since, at most the oldest EVENTS_ANSWER_MAX of them. The
 * result is a new reference:
 * schema role("scheduler") term first last next
 *     first, last: of the events that are kept (last 0: none); next: request this for what follows
 * restored  the last event of the previous processes, 0: none is known
 * lost      number of events above since that are not kept any more
 * now       of the same clock as the events' time; web.c adds it
 * events[{seq time kind view text}]
 *     time: unix seconds; kind: scheduler, view, member, job, partitions, steer, health
 * since may come from before a restart of the scheduler. With a new term, numbers up to restored
 * name the same events; above it they may name others. */
json_t *events_json(const struct event_ring *ev, uint32_t term, uint64_t since);
void events_free(struct event_ring *ev);
#endif
