/* Traces that environment variables request, and the file of a trace (trace_plan.h). */
#include "libbpsclient/base/trace_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

/* Text of a trace without rounds */
#define EMPTY_TRACE "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[]}\n"
/* BytePS's defaults of BYTEPS_TRACE_START_STEP and BYTEPS_TRACE_END_STEP */
#define FIRST_STEP 10
#define LAST_STEP  20

static int copy_file(int to, int from)
{
	ssize_t n;

	if (lseek(from, 0, SEEK_SET) < 0)
		return -errno;
	do
		n = sendfile(to, from, NULL, 1u << 30);
	while (n > 0 || (n < 0 && errno == EINTR));
	return n < 0 ? -errno : 0;
}

int trace_file_save(const char *path, int from)
{
	size_t room = strlen(path) + sizeof(".XXXXXX");
	char *name = malloc(room);
	int to, rc;

	if (!name)
		return -ENOMEM;
	snprintf(name, room, "%s.XXXXXX", path);
	to = mkostemp(name, O_CLOEXEC);
	rc = to < 0 ? -errno : 0;
	if (rc == 0 && from >= 0)
		rc = copy_file(to, from);
	else if (rc == 0 && write(to, EMPTY_TRACE, strlen(EMPTY_TRACE)) < 0)
		rc = -errno;
	if (rc == 0 && (fchmod(to, 0644) < 0 || rename(name, path) < 0))
		rc = -errno;
	if (rc < 0 && to >= 0)
		unlink(name);
	if (to >= 0)
		close(to);
	free(name);
	return rc;
}

void trace_plan_make_folder(struct trace_plan *plan)
{
	char *last = strrchr(plan->folder, '/');

	if (!last)
		return;
	*last = 0;
	mkdir(plan->folder, 0777);
	*last = '/';
	mkdir(plan->folder, 0777);
}

static uint64_t read_step(const char *name, uint64_t by_default)
{
	const char *value = getenv(name);
	char *end;
	uint64_t step;

	if (!value || !*value)
		return by_default;
	step = strtoull(value, &end, 10);
	if (!*end && step > 0)
		return step;
	fprintf(stderr, "libbpsclient: warning: %s=%.20s is no number of a step: using %llu\n",
		name, value, (unsigned long long)by_default);
	return by_default;
}

static bool is_switched_on(const char *value)
{
	return value && *value && strcmp(value, "0") != 0 && strcasecmp(value, "false") != 0;
}

void trace_plan_from_env(struct trace_plan *plan, int32_t rank, int32_t local_rank)
{
	const char *timeline = getenv("HOROVOD_TIMELINE"), *folder = getenv("BYTEPS_TRACE_DIR");

	*plan = (struct trace_plan){.due_round = UINT64_MAX};
	if (is_switched_on(getenv("BYTEPS_TRACE_ON"))) {
		folder = folder && *folder ? folder : ".";
		snprintf(plan->folder, sizeof(plan->folder), "%s/%d", folder, local_rank);
		snprintf(plan->path, sizeof(plan->path), "%s/comm.json", plan->folder);
		plan->ask.first_round = read_step("BYTEPS_TRACE_START_STEP", FIRST_STEP);
		plan->ask.last_round = read_step("BYTEPS_TRACE_END_STEP", LAST_STEP);
		plan->due_round = plan->ask.last_round;
	} else if (timeline && *timeline && strcmp(timeline, "DYNAMIC") != 0 && rank == 0) {
		snprintf(plan->path, sizeof(plan->path), "%s", timeline);
	}
}
