/* Failpoints: parse the faults, arm the points, and run the action of an armed point when a thread
 * reaches it. failpoints.def lists the points. Any thread may read failpoint_armed. A mutex guards
 * the plan, which has the action of each point. */
#include "common/base/failpoint.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/duration.h"
#include "common/base/nearest_name.h"

#define WORD_BYTES   128
#define SLEEP_MAX_MS (3600u * 1000u)
#define ERRNO_MAX    133 /* EHWPOISON, the largest errno of Linux */

enum action { ACT_NONE, ACT_CRASH, ACT_SLEEP, ACT_HANG, ACT_ERROR, ACT_DROP };
static const char *const action_names[] = {[ACT_CRASH] = "crash",
	[ACT_SLEEP] = "sleep",
	[ACT_HANG] = "hang",
	[ACT_ERROR] = "error",
	[ACT_DROP] = "drop"};

struct arm {
	enum action action;
	int code;          /* error code of ACT_ERROR */
	uint64_t sleep_ms; /* duration of ACT_SLEEP */
	uint64_t after, count, passed, done;
	double prob;
};

struct failpoint_plan {
	uint64_t seed;
	struct arm arms[FAILPOINT_COUNT];
};

static const struct {
	const char *name;
	unsigned owner;
	enum failpoint_takes takes;
	const char *where;
} points[] = {
#define X(id, name, owner, takes, where) [FP_##id] = {name, owner, takes, where},
#include "common/base/failpoints.def"
#undef X
};

/* The state of the failpoints is global, because any code can contain a failpoint. Some of this
 * code has no object that could hold the state. */
_Atomic unsigned char failpoint_armed[FAILPOINT_COUNT];
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t generation;
	struct failpoint_plan plan;
	uint64_t n_acted[FAILPOINT_COUNT]; /* actions since the start of the process */
} the = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- parsing ---- */

static int failpoint_find_by_name(const char *name, struct err_text *err)
{
	struct nearest_name best = NEAREST_NONE;
	char hint[NEAREST_HINT_BYTES];

	for (int i = 0; i < FAILPOINT_COUNT; i++) {
		if (strcmp(points[i].name, name) == 0)
			return i;
		nearest_name_try(&best, name, points[i].name);
	}
	return err_set(err, -EINVAL, "there is no failpoint '%s'%s", name,
		nearest_name_hint(&best, "", hint));
}

/* Look up the error `name` among the names of errno and of error.h. Returns its negative code, or 0
 * if neither has the name. */
static int error_code_find_by_name(const char *name)
{
	for (int e = 1; e <= ERRNO_MAX; e++) {
		const char *n = strerrorname_np(e);

		if (n && strcmp(n, name) == 0)
			return -e;
	}
#define X(id, num, text)                                                                           \
	if (strcmp(name, #id) == 0)                                                                \
		return id;
	BPS_ERRORS(X)
#undef X
	return 0;
}

static int failpoint_parse_action(
	struct arm *a, const char *name, const char *arg, struct err_text *err)
{
	struct nearest_name best = NEAREST_NONE;
	char hint[NEAREST_HINT_BYTES];

	for (unsigned i = ACT_CRASH; i <= ACT_DROP; i++) {
		nearest_name_try(&best, name, action_names[i]);
		if (strcmp(name, action_names[i]) == 0)
			a->action = (enum action)i;
	}
	if (!a->action)
		return err_set(err, -EINVAL,
			"'%s' is not an action (allowed: crash, sleep, hang, error, drop)%s", name,
			nearest_name_hint(&best, "", hint));
	if ((a->action == ACT_SLEEP || a->action == ACT_ERROR) != (arg != NULL))
		return err_set(err, -EINVAL, "%s",
			arg ? "only the actions 'sleep' and 'error' have an argument after ':', as "
			      "in sleep:200ms and error:EIO"
			    : "the actions 'sleep' and 'error' need an argument after ':', as in "
			      "sleep:200ms and error:EIO");
	if (a->action == ACT_SLEEP && !(a->sleep_ms = duration_parse_ms(arg, SLEEP_MAX_MS)))
		return err_set(err, -EINVAL, "'%s' is not a time such as 200ms or 5s", arg);
	if (a->action == ACT_ERROR && !(a->code = error_code_find_by_name(arg)))
		return err_set(err, -EINVAL,
			"'%s' is not the name of an error (examples: EIO, BPS_EPROTO)", arg);
	return 0;
}

static int failpoint_parse_u64(const char *text, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return errno || end == text || *end || *text == '-' ? -EINVAL : 0;
}

static int failpoint_parse_option(struct arm *a, char *text, struct err_text *err)
{
	char *value = strchr(text, '='), *end;

	if (!value)
		return err_set(err, -EINVAL,
			"'%s' is not an option (allowed: after=N, count=N, prob=P)", text);
	*value++ = '\0';
	if (strcmp(text, "after") == 0 && failpoint_parse_u64(value, &a->after) == 0)
		return 0;
	if (strcmp(text, "count") == 0 && failpoint_parse_u64(value, &a->count) == 0 && a->count)
		return 0;
	if (strcmp(text, "prob") == 0) {
		a->prob = strtod(value, &end);
		if (end != value && !*end && a->prob > 0 && a->prob <= 1)
			return 0;
	}
	return err_set(err, -EINVAL,
		"'%s=%s' is not a valid option (allowed: after=N, count=N with N > 0, prob=P with "
		"0 < P <= 1)",
		text, value);
}

static int failpoint_parse_fault(struct failpoint_plan *plan, char *word, struct err_text *err)
{
	struct arm a = {.prob = 1, .count = UINT64_MAX};
	char *action = strchr(word, '='), *options, *arg, *save;
	int point, rc;

	if (!action)
		return err_set(
			err, -EINVAL, "the fault '%s' does not have the form POINT=ACTION", word);
	*action++ = '\0';
	if (strcmp(word, "seed") == 0)
		return failpoint_parse_u64(action, &plan->seed) < 0
			       ? err_set(err, -EINVAL, "the seed '%s' is not a number", action)
			       : 0;
	point = failpoint_find_by_name(word, err);
	if (point < 0)
		return point;
	options = strchr(action, ',');
	if (options)
		*options++ = '\0';
	arg = strchr(action, ':');
	if (arg)
		*arg++ = '\0';
	rc = failpoint_parse_action(&a, action, arg, err);
	for (char *o = options ? strtok_r(options, ",", &save) : NULL; o && rc == 0;
		o = strtok_r(NULL, ",", &save))
		rc = failpoint_parse_option(&a, o, err);
	if (rc < 0)
		return rc;
	if ((a.action == ACT_ERROR && !(points[point].takes & FP_ERROR)) ||
		(a.action == ACT_DROP && !(points[point].takes & FP_DROP)))
		return err_set(err, -EINVAL, "failpoint %s does not support the action %s", word,
			a.action == ACT_DROP ? "drop" : "error");
	plan->arms[point] = a;
	return 0;
}

static int failpoint_parse_plan(const char *text, struct failpoint_plan *ret, struct err_text *err)
{
	static const char blanks[] = " \t\n";
	char word[WORD_BYTES];
	int rc = 0;

	memset(ret, 0, sizeof(*ret));
	for (text += strspn(text, blanks); *text && rc == 0; text += strspn(text, blanks)) {
		size_t n = strcspn(text, blanks);

		if (n >= sizeof(word))
			return err_set(err, -EINVAL,
				"the fault '%.20s...' is longer than %d characters", text,
				WORD_BYTES - 1);
		memcpy(word, text, n);
		word[n] = '\0';
		text += n;
		rc = failpoint_parse_fault(ret, word, err);
	}
	return rc;
}

int failpoint_check(const char *text, struct err_text *err)
{
	struct failpoint_plan plan;

	return failpoint_parse_plan(text, &plan, err);
}

int failpoint_set(const char *text, struct err_text *err)
{
	struct failpoint_plan plan;
	int n = 0, rc = failpoint_parse_plan(text ? text : "", &plan, err);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&the.lock);
	the.plan = plan;
	the.generation++;
	for (int i = 0; i < FAILPOINT_COUNT; i++) {
		/* Relaxed order suffices, because a thread that reads 1 takes the lock. Under the
		 * lock the thread finds either the action of the new plan or no action. */
		atomic_store_explicit(
			&failpoint_armed[i], plan.arms[i].action != ACT_NONE, memory_order_relaxed);
		n += plan.arms[i].action != ACT_NONE;
	}
	pthread_cond_broadcast(&the.changed);
	pthread_mutex_unlock(&the.lock);
	return n;
}

const char *failpoint_name(enum failpoint point)
{
	return points[point].name;
}

uint64_t failpoint_acted(enum failpoint point)
{
	uint64_t n;

	pthread_mutex_lock(&the.lock);
	n = the.n_acted[point];
	pthread_mutex_unlock(&the.lock);
	return n;
}

void failpoint_print(FILE *out, unsigned owners)
{
	static const char *const more[] = {[FP_ANY] = "",
		[FP_ERROR] = " error",
		[FP_DROP] = " drop",
		[FP_BOTH] = " error drop"};

	for (int i = 0; i < FAILPOINT_COUNT; i++)
		if (points[i].owner & owners)
			fprintf(out, "%-32s %s; crash sleep hang%s\n", points[i].name,
				points[i].where, more[points[i].takes]);
}

/* ---- running ---- */

/* Return a pseudo-random number from 0 to 1 for this pass of the point. The steps that mix the bits
 * are those of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), as in Vigna's public domain code. */
static double failpoint_random_fraction(uint64_t seed, uint64_t point, uint64_t passed)
{
	uint64_t z = seed + (point << 48) + passed * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	z ^= z >> 31;
	return (double)(z >> 11) / (double)(UINT64_C(1) << 53);
}

/* Report the first action of a point since the faults were set. The line is written before the
 * action, and with one system call, so that it survives a crash. log.c is not used, because the
 * library does not link it. */
static void failpoint_report_action(enum failpoint point, enum action action)
{
	ssize_t unused;
	char line[128];
	int n = snprintf(line, sizeof(line), "<4>a fault is injected: point=%s action=%s pid=%d\n",
		points[point].name, action_names[action], (int)getpid());

	/* the fault is injected even if the line cannot be written */
	unused = write(STDERR_FILENO, line, (size_t)n);
	(void)unused;
}

/* Count a pass of the point, and return whether the point's action runs in this pass. The caller
 * holds the lock. */
static bool failpoint_pass_has_action(struct arm *a, enum failpoint point)
{
	uint64_t n = a->passed++;

	if (!a->action || n < a->after || a->done >= a->count)
		return false;
	if (a->prob < 1 && failpoint_random_fraction(the.plan.seed, point, n) >= a->prob)
		return false;
	the.n_acted[point]++;
	if (a->done++ == 0)
		failpoint_report_action(point, a->action);
	return true;
}

/* Wait until `ms` milliseconds have passed or the faults change. The caller holds the lock, which
 * the wait releases. */
static void failpoint_sleep_until_change(uint64_t ms)
{
	uint64_t generation = the.generation;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)(ms / 1000);
	until.tv_nsec += (long)(ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	while (the.generation == generation &&
		pthread_cond_clockwait(&the.changed, &the.lock, CLOCK_MONOTONIC, &until) == 0)
		;
}

int failpoint_pass(enum failpoint point)
{
	struct arm a;
	bool does;

	pthread_mutex_lock(&the.lock);
	does = failpoint_pass_has_action(&the.plan.arms[point], point);
	a = the.plan.arms[point];
	if (does && a.action == ACT_CRASH)
		kill(getpid(), SIGKILL);
	if (does && (a.action == ACT_SLEEP || a.action == ACT_HANG))
		failpoint_sleep_until_change(
			a.action == ACT_HANG ? UINT64_C(24) * 3600 * 1000 : a.sleep_ms);
	pthread_mutex_unlock(&the.lock);
	if (!does)
		return 0;
	return a.action == ACT_ERROR ? a.code : a.action == ACT_DROP ? FAILPOINT_DROPPED : 0;
}
