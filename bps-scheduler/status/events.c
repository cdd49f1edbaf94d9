/* Implements the ring of events, the file with a copy of the ring, and the JSON form of the events.
 * All functions run on the core's thread. */
#include "bps-scheduler/status/events.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/status/status_impl.h"
#include "common/base/log.h"

#define LINES_MAX  (2 * EVENTS_KEPT)
#define LINE_BYTES (SCHED_EVENT_BYTES + 128)

struct entry {
	double unix_s;
	uint64_t view;
	enum sched_event_kind kind;
	char text[SCHED_EVENT_BYTES];
};

struct event_ring {
	uint64_t last; /* number of the newest entry; entry n is at n % EVENTS_KEPT */
	struct entry ring[EVENTS_KEPT];
	uint64_t start;    /* events with a lower number are forgotten */
	uint64_t restored; /* number of the last event that was read from the file */
	char *path;        /* path of the file with the copy of the ring; NULL: there is no file */
	/* file with the copy of the ring, open for appending; NULL: not open, for example after a
	 * failed write */
	FILE *file;
	unsigned n_lines;
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
	struct event_ring *ev = calloc(1, sizeof(*ev));

	if (ev)
		ev->start = 1;
	return ev;
}

static void events_close_file(struct event_ring *ev)
{
	if (ev->file)
		fclose(ev->file);
	ev->file = NULL;
}

void events_free(struct event_ring *ev)
{
	if (!ev)
		return;
	events_close_file(ev);
	free(ev->path);
	free(ev);
}

/* ---- file ---- */

static uint64_t events_first_kept_seq(const struct event_ring *ev)
{
	uint64_t first = ev->last > EVENTS_KEPT ? ev->last - EVENTS_KEPT + 1 : 1;

	return first > ev->start ? first : ev->start;
}

static bool print_event_entry(const struct event_ring *ev, uint64_t seq, FILE *f)
{
	const struct entry *e = &ev->ring[seq % EVENTS_KEPT];
	char text[SCHED_EVENT_BYTES];

	snprintf(text, sizeof(text), "%s", e->text);
	log_replace_unprintable(text); /* log_replace_unprintable replaces line breaks by '?' */
	return fprintf(f, "%" PRIu64 " %.17g %" PRIu64 " %s %s\n", seq, e->unix_s, e->view,
		       kinds[e->kind], text) > 0;
}

/* Write a new file that has the events of the ring, and replace the old file by it. The new file
 * stays open. */
static int events_rewrite_file(struct event_ring *ev)
{
	char fresh[4096];
	bool is_written = true;
	FILE *f;
	int rc;

	snprintf(fresh, sizeof(fresh), "%s.new", ev->path);
	events_close_file(ev);
	f = fopen(fresh, "we");
	if (!f)
		return -errno;
	for (uint64_t i = events_first_kept_seq(ev); i <= ev->last; i++)
		is_written = print_event_entry(ev, i, f) && is_written;
	if (!is_written || fflush(f) || rename(fresh, ev->path) < 0) {
		rc = errno ? -errno : -EIO;
		fclose(f);
		remove(fresh);
		return rc;
	}
	ev->file = f;
	ev->n_lines = (unsigned)(ev->last - events_first_kept_seq(ev) + 1);
	return 0;
}

/* Write the newest event to the file. Write the whole file again if an earlier write failed, for
 * example because the disk was full, or if the file has LINES_MAX lines. */
static void events_write_newest(struct event_ring *ev)
{
	int rc = 0;

	if (!ev->path)
		return;
	if (!ev->file || ev->n_lines >= LINES_MAX)
		rc = events_rewrite_file(ev);
	else if (print_event_entry(ev, ev->last, ev->file) && fflush(ev->file) == 0)
		ev->n_lines++;
	else
		rc = errno ? -errno : -EIO;
	if (rc == 0)
		return;
	log_rated(LOG_WARN, "cannot write '%s': %s; events are in memory only", ev->path,
		err_str(rc));
	events_close_file(ev);
}

static int find_event_kind(const char *name)
{
	for (int i = 0; i < EVENT_KINDS; i++)
		if (strcmp(kinds[i], name) == 0)
			return i;
	return -1;
}

/* Parse a line of the file, and add the line's event to the ring. Returns false if the line is
 * incomplete or is not an event. */
static bool events_parse_line(struct event_ring *ev, char *line)
{
	char kind[16];
	struct entry e;
	uint64_t seq;
	int at = 0, k;
	size_t n = strlen(line);

	if (!n || line[n - 1] != '\n')
		return false;
	line[n - 1] = '\0';
	if (sscanf(line, "%" SCNu64 " %lf %" SCNu64 " %15s %n", &seq, &e.unix_s, &e.view, kind,
		    &at) < 4 ||
		!at)
		return false;
	k = find_event_kind(kind);
	if (k < 0 || !line[at] || seq <= ev->last || seq > INT64_MAX)
		return false;
	if (seq != ev->last + 1) /* forget the events before a gap in the numbers */
		ev->start = seq;
	e.kind = (enum sched_event_kind)k;
	snprintf(e.text, sizeof(e.text), "%s", line + at);
	ev->ring[seq % EVENTS_KEPT] = e;
	ev->last = seq;
	return true;
}

static void events_read_file(struct event_ring *ev, FILE *f)
{
	char line[LINE_BYTES];
	unsigned n_odd = 0;

	while (fgets(line, sizeof(line), f))
		n_odd += !events_parse_line(ev, line);
	ev->restored = ev->last;
	if (n_odd)
		log_warn("ignored %u incomplete or invalid lines of '%s'", n_odd, ev->path);
}

void events_open(struct event_ring *ev, const char *dir)
{
	char path[4096 - sizeof(".new")];
	FILE *f;
	int rc;

	snprintf(path, sizeof(path), "%s/events", dir);
	ev->path = sched_dup_string(path);
	f = fopen(path, "re");
	if (f) {
		events_read_file(ev, f);
		fclose(f);
	}
	rc = events_rewrite_file(ev);
	if (rc < 0)
		log_warn("cannot write '%s': %s; events are in memory only", path, err_str(rc));
}

void events_add(struct event_ring *ev, const struct sched_event *e, double unix_s)
{
	struct entry *at = &ev->ring[++ev->last % EVENTS_KEPT];

	at->unix_s = unix_s;
	at->view = e->view;
	at->kind = e->kind;
	snprintf(at->text, sizeof(at->text), "%s", e->text);
	events_write_newest(ev);
}

static json_t *event_entry_json(const struct entry *e, uint64_t seq)
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
	uint64_t first = events_first_kept_seq(ev);
	uint64_t from = since >= first - 1 ? since : first - 1, at = from;
	json_t *o = json_object(), *list = json_array();

	while (at < ev->last && at - from < EVENTS_ANSWER_MAX) {
		at++;
		json_array_append_new(list, event_entry_json(&ev->ring[at % EVENTS_KEPT], at));
	}
	status_put_num(o, "schema", STATUS_SCHEMA);
	status_put_str(o, "role", "scheduler");
	status_put_num(o, "term", term);
	status_put_num(o, "first", first);
	status_put_num(o, "last", ev->last);
	status_put_num(o, "next", at > ev->last ? ev->last : at);
	status_put_num(o, "restored", ev->restored);
	status_put_num(o, "lost", from - since);
	json_object_set_new(o, "events", list);
	return o;
}
