/* The command `bpsctl events`: prints the recent events, and with --follow also new ones as they
 * occur. The scheduler keeps the events (status/events.h). One thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/fetch.h"
#include "bps-scheduler/bpsctl/live_screen.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/table_cells.h"
#include "common/base/duration.h"

#define EVENTS_BEFORE 10 /* number of past events that `events --follow` prints first */
#define SINCE_MAX_MS  (UINT64_C(3650) * 86400 * 1000)

static int fetch_events_once(
	const struct bpsctl_opts *o, uint64_t since, json_t **ret, struct err_text *err)
{
	json_t *root = NULL;
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/status?events=%" PRIu64, since);
	query_time_limit_set(true);
	rc = fetch_path(&o->scheduler_http, path, &root, err);
	query_time_limit_set(false);
	if (rc < 0)
		return rc;
	if (!json_object_get(root, "events")) {
		json_decref(root);
		return err_set(err, -EINVAL,
			"the daemon at --scheduler-http is not a bps-scheduler, and only a "
			"scheduler keeps events");
	}
	*ret = root;
	return 0;
}

/* Get all events with numbers above `since`, as one document. term: the term in the previous
 * document; 0: there is no previous document. A changed term means that the scheduler has
 * restarted. The restarted scheduler numbers its new events from `restored` + 1; `restored` is a
 * field of the document. After a restart, begin after the smaller of `since` and `restored`. */
static int get_all_events(const struct bpsctl_opts *o, uint64_t since, uint64_t term, json_t **ret,
	struct err_text *err)
{
	json_t *root = NULL, *next = NULL;
	bool is_new = true;
	int rc = fetch_events_once(o, since, &root, err);

	if (rc == 0 && term && cell_num(root, "term") != term) {
		uint64_t restored = cell_num(root, "restored");

		json_decref(root);
		root = NULL;
		rc = fetch_events_once(o, since < restored ? since : restored, &root, err);
	}
	while (rc == 0 && is_new && cell_num(root, "next") < cell_num(root, "last")) {
		rc = fetch_events_once(o, cell_num(root, "next"), &next, err);
		if (rc < 0)
			break;
		is_new = cell_num(next, "next") > cell_num(root, "next");
		json_array_extend(json_object_get(root, "events"), json_object_get(next, "events"));
		json_object_set(root, "next", json_object_get(next, "next"));
		json_object_set(root, "last", json_object_get(next, "last"));
		json_decref(next);
	}
	if (rc < 0)
		json_decref(root);
	else
		*ret = root;
	return rc;
}

static void print_events(const struct bpsctl_opts *o, json_t *root)
{
	json_t *e;
	size_t i;

	json_array_foreach (json_object_get(root, "events"), i, e) {
		if (!o->json)
			break;
		json_object_set_new(e, "schema", json_integer(1));
		print_json_line(e);
	}
	if (!o->json)
		screen_events(stdout, root);
	fflush(stdout);
}

/* Parse the value of --since. *ret_number: the number of the event after which to start, or 0.
 * *ret_span_s: the time span in seconds, or 0. Errors: -EINVAL. */
static int parse_since_flag(
	const char *text, uint64_t *ret_number, double *ret_span_s, struct err_text *err)
{
	uint64_t ms = duration_parse_ms(text, SINCE_MAX_MS);
	char *end;

	*ret_number = 0;
	*ret_span_s = (double)ms / 1e3;
	if (!*text || ms)
		return 0;
	errno = 0;
	*ret_number = strtoull(text, &end, 10);
	if (*text >= '0' && *text <= '9' && !*end && !errno)
		return 0;
	return err_set(err, -EINVAL,
		"--since '%s' is neither an event number nor a time span such as 10min", text);
}

/* Keep only the events of the last span_s seconds by the scheduler's clock. If span_s is 0, keep
 * all events. */
static void drop_older_events(json_t *root, double span_s)
{
	json_t *list = json_object_get(root, "events");
	double from = cell_sec(root, "now") - span_s;

	while (span_s > 0 && json_array_size(list) &&
		cell_sec(json_array_get(list, 0), "time") < from)
		json_array_remove(list, 0);
	if (span_s > 0)
		json_object_set_new(root, "lost", json_integer(0));
}

/* Find where --follow begins. *ret_since: the number of the event after which --follow begins, or
 * 0. *ret_span_s: the time span before now, in seconds, or 0. If --since is set, it gives one of
 * the two values. Without --since, begin EVENTS_BEFORE events before the newest. */
static int find_follow_start(
	const struct bpsctl_opts *o, uint64_t *ret_since, double *ret_span_s, struct err_text *err)
{
	json_t *root = NULL;
	uint64_t last;
	int rc = parse_since_flag(o->since, ret_since, ret_span_s, err);

	if (rc < 0 || *o->since)
		return rc;
	rc = fetch_events_once(o, UINT64_MAX, &root, err);
	if (rc < 0)
		return rc;
	last = cell_num(root, "last");
	*ret_since = last > EVENTS_BEFORE ? last - EVENTS_BEFORE : 0;
	json_decref(root);
	return 0;
}

static int follow_new_events(const struct bpsctl_opts *o)
{
	struct err_text err = {""};
	uint64_t since = 0, term = 0;
	double span_s = 0;
	bool is_away = false;
	struct live_screen w;
	int rc = find_follow_start(o, &since, &span_s, &err);

	if (rc == -EINVAL)
		return print_error_line(err.s, EX_USAGE);
	if (rc < 0)
		return print_failure(rc, &err);
	if (live_screen_begin(&w) < 0)
		return print_error_line("cannot wait for signals", EXIT_ERR);
	do {
		json_t *root = NULL;

		rc = get_all_events(o, since, term, &root, &err);
		if (rc < 0) {
			if (!is_away)
				print_error_line(err.s, 0);
			is_away = true;
			continue;
		}
		is_away = false;
		drop_older_events(root, span_s);
		span_s = 0;
		print_events(o, root);
		since = cell_num(root, "next");
		term = cell_num(root, "term");
		json_decref(root);
	} while (live_screen_wait(&w, opts_interval_ms(o)));
	live_screen_end(&w);
	return is_away ? EXIT_UNREACHABLE : 0;
}

int cmd_events(const struct bpsctl_opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	uint64_t since;
	double span_s;
	int rc;

	(void)arg;
	if (o->follow)
		return follow_new_events(o);
	if (parse_since_flag(o->since, &since, &span_s, &err) < 0)
		return print_error_line(err.s, EX_USAGE);
	rc = get_all_events(o, since, 0, &root, &err);
	if (rc < 0)
		return print_failure(rc, &err);
	drop_older_events(root, span_s);
	return print_document(o, root, screen_events);
}
