#ifndef BPS_SCHEDULER_STATUS_EVENTS_H
#define BPS_SCHEDULER_STATUS_EVENTS_H
/* Keeps the most recent events of the core (struct sched_event) for users. The events are kept in a
 * ring in memory, and in a file that the next scheduler process reads. Each event has the wall
 * clock's time and a number. The numbers count from 1. All functions run on the core's thread.
 *
 * Each line of the file holds the number, time, view, kind and text of one event, separated by
 * blanks. The file is not synced. Errors are logged and otherwise ignored, because no other part
 * depends on the events. When the file has twice as many lines as the ring has entries, the file is
 * written again from the ring. */
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/core/core.h"

#define EVENTS_KEPT       1000
#define EVENTS_ANSWER_MAX 250 /* largest number of events in one answer */

struct event_ring;

/* Create an empty ring. Return NULL if memory is exhausted. */
struct event_ring *events_new(void);
/* Read the events of the previous process from the file `events` in dir, and write new events to
 * that file from now on. No other process may use dir. ev must be empty. If the file cannot be
 * written, the error is logged and the events are kept in memory only. */
void events_open(struct event_ring *ev, const char *dir);
/* Add an event. unix_s: its time, in seconds of the wall clock. If the ring is full, the oldest
 * event is dropped. */
void events_add(struct event_ring *ev, const struct sched_event *e, double unix_s);
/* Return the events whose numbers are larger than `since`. If there are more than EVENTS_ANSWER_MAX
 * such events, return only the oldest EVENTS_ANSWER_MAX. The result is a new reference:
 * schema role("scheduler") term first last next
 *     first, last: numbers of the oldest and the newest kept event; if no event is kept, `last`
 *     is 0; next: the value of `since` that requests the events after those returned
 * restored  `seq` of the last event of the previous processes, 0: none is known
 * lost      count of events after `since` that are not kept any more
 * now       present time on the clock of the events; web.c adds it
 * events[{seq time kind view text}]
 *     time: unix seconds; kind: scheduler, view, member, job, partitions, steer, health
 * The value of `since` may come from an answer of a previous scheduler process, whose term differs.
 * In that case, numbers up to `restored` still name the same events, but larger numbers may name
 * other events. */
json_t *events_json(const struct event_ring *ev, uint32_t term, uint64_t since);
void events_free(struct event_ring *ev);
#endif
