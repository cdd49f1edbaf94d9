#include "bps-scheduler/status/events.h"

#include <stdio.h>
#include <stdlib.h>

#include "bps-scheduler/status/status_impl.h"

struct entry {
	double unix_s;
	uint64_t view;
	enum sched_event_kind kind;
	char text[SCHED_EVENT_BYTES];
};

struct event_ring {
	uint64_t last; /* number of the newest; entry n is at n % EVENTS_KEPT */
	struct entry ring[EVENTS_KEPT];
};

static const char *const kinds[EVENT_KINDS] = {[EVENT_SCHEDULER] = "scheduler",
	[EVENT_VIEW] = "view",
	[EVENT_MEMBER] = "member",
	[EVENT_JOB] = "job",
	[EVENT_PARTITIONS] = "partitions",
	[EVENT_STEER] = "steer",
	[EVENT_HEALTH] = "health"};

struct event_ring *events_new(void)
{
	return calloc(1, sizeof(struct event_ring));
}

void events_free(struct event_ring *ev)
{
	free(ev);
}

void events_add(struct event_ring *ev, const struct sched_event *e, double unix_s)
{
	struct entry *at = &ev->ring[++ev->last % EVENTS_KEPT];

	at->unix_s = unix_s;
	at->view = e->view;
	at->kind = e->kind;
	snprintf(at->text, sizeof(at->text), "%s", e->text);
}

static json_t *entry_json(const struct entry *e, uint64_t seq)
{
	json_t *o = json_object();

	status_put_num(o, "seq", seq);
	status_put_sec(o, "time", e->unix_s);
	status_put_str(o, "kind", kinds[e->kind]);
	status_put_num(o, "view", e->view);
	status_put_str(o, "text", e->text);
	return o;
}

json_t *events_json(const struct event_ring *ev, uint32_t term, uint64_t since)
{
	uint64_t first = ev->last > EVENTS_KEPT ? ev->last - EVENTS_KEPT + 1 : 1;
	uint64_t from = since >= first - 1 ? since : first - 1, at = from;
	json_t *o = json_object(), *list = json_array();

	while (at < ev->last && at - from < EVENTS_ANSWER_MAX) {
		at++;
		json_array_append_new(list, entry_json(&ev->ring[at % EVENTS_KEPT], at));
	}
	status_put_num(o, "schema", STATUS_SCHEMA);
	status_put_str(o, "role", "scheduler");
	status_put_num(o, "term", term);
	status_put_num(o, "first", first);
	status_put_num(o, "last", ev->last);
	status_put_num(o, "next", at > ev->last ? ev->last : at);
	status_put_num(o, "lost", from - since);
	json_object_set_new(o, "events", list);
	return o;
}
