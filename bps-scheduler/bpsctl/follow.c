/* bpsctl events, once or as they come. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "bps-scheduler/bpsctl/bpsctl.h"
#include "bps-scheduler/bpsctl/cells.h"
#include "bps-scheduler/bpsctl/gather.h"
#include "bps-scheduler/bpsctl/screen.h"
#include "bps-scheduler/bpsctl/watch.h"

#define EVENTS_BEFORE 10 /* that `events --follow` begins with */

static int get_events(const struct opts *o, uint64_t since, json_t **ret, struct err_text *err)
{
	json_t *root = NULL;
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/status?events=%" PRIu64, since);
	bound_time(true);
	rc = gather_path(&o->scheduler_http, path, &root, err);
	bound_time(false);
	if (rc < 0)
		return rc;
	if (!json_object_get(root, "events")) {
		json_decref(root);
		return err_set(err, -EINVAL, "only a bps-scheduler keeps events");
	}
	*ret = root;
	return 0;
}

/* All above since, put together; a new scheduler's from its first on. */
static int get_all_events(
	const struct opts *o, uint64_t since, uint64_t term, json_t **ret, struct err_text *err)
{
	json_t *root = NULL, *next = NULL;
	bool is_new = true;
	int rc = get_events(o, since, &root, err);

	if (rc == 0 && term && cell_num(root, "term") != term) {
		json_decref(root);
		root = NULL;
		rc = get_events(o, 0, &root, err);
	}
	while (rc == 0 && is_new && cell_num(root, "next") < cell_num(root, "last")) {
		rc = get_events(o, cell_num(root, "next"), &next, err);
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

static void print_events(const struct opts *o, json_t *root)
{
	json_t *e;
	size_t i;

	if (o->json)
		json_array_foreach(json_object_get(root, "events"), i, e) print_line(e);
	else
		screen_events(stdout, root);
	fflush(stdout);
}

/* Where to begin: what was told, or a little before now. */
static int follow_start(const struct opts *o, uint64_t *ret_since, struct err_text *err)
{
	json_t *root = NULL;
	uint64_t last;
	int rc;

	*ret_since = (uint64_t)o->since;
	if (o->since >= 0)
		return 0;
	rc = get_events(o, UINT64_MAX, &root, err);
	if (rc < 0)
		return rc;
	last = cell_num(root, "last");
	*ret_since = last > EVENTS_BEFORE ? last - EVENTS_BEFORE : 0;
	json_decref(root);
	return 0;
}

static int follow(const struct opts *o)
{
	struct err_text err = {""};
	uint64_t since = 0, term = 0;
	bool is_away = false;
	struct watch w;
	int rc = follow_start(o, &since, &err);

	if (rc < 0)
		return complain_failed(rc, &err);
	if (watch_begin(&w) < 0)
		return complain("cannot wait for signals", EXIT_ERR);
	do {
		json_t *root = NULL;

		rc = get_all_events(o, since, term, &root, &err);
		if (rc < 0) {
			if (!is_away)
				complain(err.s, 0);
			is_away = true;
			continue;
		}
		is_away = false;
		print_events(o, root);
		since = cell_num(root, "next");
		term = cell_num(root, "term");
		json_decref(root);
	} while (watch_wait(&w, interval_ms(o)));
	watch_end(&w);
	return is_away ? EXIT_UNREACHABLE : 0;
}

int run_events(const struct opts *o, const char *arg)
{
	struct err_text err = {""};
	json_t *root = NULL;
	int rc;

	(void)arg;
	if (o->follow)
		return follow(o);
	rc = get_all_events(o, o->since < 0 ? 0 : (uint64_t)o->since, 0, &root, &err);
	return rc < 0 ? complain_failed(rc, &err) : show(o, root, screen_events);
}
