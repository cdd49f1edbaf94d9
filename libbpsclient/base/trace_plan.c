/* Traces that environment variables request, and the file of a trace (trace_plan.h). */
#include "libbpsclient/base/trace_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/os/file_save.h"

/* Text of a trace without rounds */
#define EMPTY_TRACE                                                                                \
	"{\"displayTimeUnit\":\"ms\",\"bps\":{\"records\":0,\"lost\":0},\"traceEvents\":[]}\n"
/* BytePS's defaults of BYTEPS_TRACE_START_STEP and BYTEPS_TRACE_END_STEP */
#define FIRST_STEP 10
#define LAST_STEP  20

int trace_file_save(const char *path, int from)
{
	return file_save(path, from, EMPTY_TRACE, strlen(EMPTY_TRACE));
}

void trace_plan_make_folder(struct trace_plan *plan)
{
	if (!*plan->folder)
		return;
	for (char *end = plan->folder + 1; (end = strchr(end, '/')); end++) {
		*end = 0;
		mkdir(plan->folder, 0777);
		*end = '/';
	}
	mkdir(plan->folder, 0777); /* if this fails, the error of the file says so */
}

static uint64_t read_step(const char *name, uint64_t by_default)
{
	const char *value = getenv(name);
	char *end;
	uint64_t step;

	if (!value || !*value)
		return by_default;
	step = strtoull(value, &end, 10); /* which accepts a sign */
	if (!*end && step > 0 && !strchr(value, '-'))
		return step;
	fprintf(stderr, "libbpsclient: warning: %s=%.20s is no number of a step: using %llu\n",
		name, value, (unsigned long long)by_default);
	return by_default;
}

static bool is_switched_on(const char *value)
{
	return value && *value && strcmp(value, "0") != 0 && strcasecmp(value, "false") != 0;
}

void trace_plan_from_env(struct trace_plan *plan, int32_t rank)
{
	const char *timeline = getenv("HOROVOD_TIMELINE"), *folder = getenv("BYTEPS_TRACE_DIR");
	bool is_too_long = false;

	*plan = (struct trace_plan){.due_round = UINT64_MAX};
	if (is_switched_on(getenv("BYTEPS_TRACE_ON"))) {
		folder = folder && *folder ? folder : ".";
		is_too_long = snprintf(plan->folder, sizeof(plan->folder), "%s/%d", folder, rank) >=
			      (int)sizeof(plan->folder);
		snprintf(plan->path, sizeof(plan->path), "%s/comm.json", plan->folder);
		plan->ask.first_round = read_step("BYTEPS_TRACE_START_STEP", FIRST_STEP);
		plan->ask.last_round = read_step("BYTEPS_TRACE_END_STEP", LAST_STEP);
		plan->due_round = plan->ask.last_round;
	} else if (timeline && *timeline && strcmp(timeline, "DYNAMIC") != 0 && rank == 0) {
		is_too_long = snprintf(plan->path, sizeof(plan->path), "%s", timeline) >=
			      (int)sizeof(plan->path);
	}
	if (is_too_long) {
		fprintf(stderr,
			"libbpsclient: warning: no trace is written: its path is longer than "
			"%d bytes\n",
			PATH_MAX);
		*plan->path = 0;
	}
}
