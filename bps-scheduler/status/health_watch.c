#include "bps-scheduler/status/health_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/status/status_impl.h"

struct health_watch {
	health_event_fn fn;
	void *ctx;
	json_t *problems; /* the problems at the last call of health_watch_check */
};

struct health_watch *health_watch_new(health_event_fn fn, void *ctx)
{
	struct health_watch *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	*w = (struct health_watch){fn, ctx, json_array()};
	return w;
}

void health_watch_free(struct health_watch *w)
{
	if (!w)
		return;
	json_decref(w->problems);
	free(w);
}

static const char *problem_text_of(json_t *problem, const char *key)
{
	return json_string_value(json_object_get(problem, key));
}

/* Report an event for each problem that is in `list` but not in `others`. If `is_over` is true, the
 * event reports that the problem is over. Otherwise the event reports a new problem. */
static void report_problem_changes(const struct health_watch *w, const struct sched_core *c,
	json_t *list, json_t *others, bool is_over)
{
	char text[SCHED_EVENT_BYTES];
	struct sched_event e = {EVENT_HEALTH, c->view, text};
	const char *subject;
	json_t *p;
	size_t i;

	json_array_foreach (list, i, p) {
		subject = problem_text_of(p, "subject");
		if (status_has_problem(others, problem_text_of(p, "code"), subject))
			continue;
		if (is_over)
			snprintf(text, sizeof(text), "%s is over%s%s", problem_text_of(p, "code"),
				*subject ? ": " : "", subject);
		else
			snprintf(text, sizeof(text), "%s: %s", problem_text_of(p, "code"),
				problem_text_of(p, "what"));
		w->fn(w->ctx, &e);
	}
}

void health_watch_check(
	struct health_watch *w, const struct sched_core *c, const struct status_info *info)
{
	json_t *problems = status_problems(c, info);

	while (json_array_size(problems) > HEALTH_WATCHED_MAX)
		json_array_remove(problems, json_array_size(problems) - 1);
	report_problem_changes(w, c, problems, w->problems, false);
	report_problem_changes(w, c, w->problems, problems, true);
	json_decref(w->problems);
	w->problems = problems;
}
