/* Accounts of users and jobs with their limits, and the rate of requests. quota.h explains the
 * accounts. The functions only count and decide: the callers refuse or delay requests. No function
 * does I/O. Thread: the data thread. */
#include "bps-agent/quota/quota.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define NS_PER_S UINT64_C(1000000000)
/* Size of a user's token bucket. The bucket holds the requests that the user's rate allows in
 * BURST_S seconds. */
#define BURST_S 2
/* A connection is closed when too many of its requests in a row had to wait. The limit is the
 * number of requests that the user's rate allows in HOPELESS_S seconds. The largest job sends far
 * fewer requests than this limit when it declares its tensors. */
#define HOPELESS_S 4
/* Largest number of accounts that are kept for users without jobs or connections. */
#define IDLE_MAX 256

static const struct {
	const char *name, *noun;
	bool is_bytes;
	const char *settings[QUOTA_SCOPES];
} kinds[QUOTA_KINDS] = {
	[QUOTA_TRAINERS] = {"trainers", "trainer connections", false,
		{"max-trainers", "user-trainers", NULL}},
	[QUOTA_MEMORY] = {"memory", "shared memory", true, {"memory", "user-memory", "job-memory"}},
	[QUOTA_TENSORS] = {"tensors", "tensors", false, {NULL, "user-tensors", "job-tensors"}},
	[QUOTA_DESCRIPTORS] = {"descriptors", "descriptors", false,
		{NULL, "user-descriptors", NULL}},
	[QUOTA_INFLIGHT] = {"inflight", "bytes in flight", true, {NULL, NULL, "job-inflight"}},
	[QUOTA_EXECUTORS] = {"executors", "executors of GPUs", false,
		{NULL, "user-executors", NULL}},
};
static const char *const scopes[QUOTA_SCOPES] = {"machine", "user", "job"};

struct quota_account {
	TAILQ_ENTRY(quota_account) link;
	struct quota *quota;
	struct quota_account *above; /* NULL: this is the machine's account */
	enum quota_scope scope;
	uid_t uid;
	char name[QUOTA_NAME_BYTES]; /* name of the user or job */
	uint32_t n_refs;
	bool is_named;
	uint64_t used[QUOTA_KINDS], refused, slowed;
	/* time by which all requests received from this user so far would be served at the rate
	 * requests_per_s */
	uint64_t served_ns;
};

struct quota {
	struct quota_limits limits;
	char host[QUOTA_NAME_BYTES];
	struct quota_account machine;
	TAILQ_HEAD(, quota_account) accounts; /* all accounts except the machine's */
	uint32_t n_idle;                      /* accounts without references */
	uint64_t refused[QUOTA_SCOPES][QUOTA_KINDS], slowed, hopeless;
};

const char *quota_kind_name(enum quota_kind kind)
{
	return kinds[kind].name;
}

const char *quota_scope_name(enum quota_scope scope)
{
	return scopes[scope];
}

const char *quota_setting_name(enum quota_scope scope, enum quota_kind kind)
{
	return kinds[kind].settings[scope];
}

void quota_bytes_text(uint64_t bytes, char ret[static 32])
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
	double v = (double)bytes / 1024;
	unsigned i = 0;

	if (bytes < 1024) {
		snprintf(ret, 32, "%u bytes", (unsigned)bytes);
		return;
	}
	while (v >= 1024 && i < 3) {
		v /= 1024;
		i++;
	}
	snprintf(ret, 32, "%.*f %s", v < 10 ? 2 : 1, v, units[i]);
}

/* ---- start and end ---- */

struct quota *quota_new(const struct quota_limits *limits, const char *host)
{
	struct quota *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->limits = *limits;
	snprintf(q->host, sizeof(q->host), "%s", host);
	q->machine = (struct quota_account){.quota = q, .scope = QUOTA_MACHINE, .n_refs = 1};
	TAILQ_INIT(&q->accounts);
	return q;
}

void quota_free(struct quota *q)
{
	struct quota_account *a;

	if (!q)
		return;
	while ((a = TAILQ_FIRST(&q->accounts))) {
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): freed accounts are unlinked */
		assert(a->scope == QUOTA_USER && a->n_refs == 0);
		TAILQ_REMOVE(&q->accounts, a, link);
		free(a);
	}
	free(q);
}

void quota_set_limits(struct quota *q, const struct quota_limits *limits)
{
	q->limits = *limits;
}

static struct quota_account *quota_account_new(
	struct quota_account *above, enum quota_scope scope, uid_t uid, const char *name)
{
	struct quota_account *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	*a = (struct quota_account){
		.quota = above->quota, .above = above, .scope = scope, .uid = uid, .n_refs = 1};
	snprintf(a->name, sizeof(a->name), "%s", name);
	above->n_refs++;
	TAILQ_INSERT_TAIL(&above->quota->accounts, a, link);
	return a;
}

struct quota_account *quota_get_user_account(struct quota *q, uid_t uid)
{
	struct quota_account *a;

	TAILQ_FOREACH (a, &q->accounts, link) {
		if (a->scope == QUOTA_USER && a->uid == uid) {
			q->n_idle -= a->n_refs == 0;
			a->n_refs++;
			return a;
		}
	}
	return quota_account_new(&q->machine, QUOTA_USER, uid, "");
}

struct quota_account *quota_new_job_account(struct quota_account *user, const char *name)
{
	return quota_account_new(user, QUOTA_JOB, user->uid, name);
}

static void drop_oldest_idle(struct quota *q)
{
	struct quota_account *a;

	TAILQ_FOREACH (a, &q->accounts, link)
		if (a->n_refs == 0)
			break;
	TAILQ_REMOVE(&q->accounts, a, link);
	q->n_idle--;
	free(a);
}

static void quota_user_release(struct quota_account *user)
{
	struct quota *q = user->quota;

	if (--user->n_refs > 0)
		return;
	if (++q->n_idle > IDLE_MAX)
		drop_oldest_idle(q);
}

void quota_account_release(struct quota_account *a)
{
	struct quota_account *user;

	if (!a)
		return;
	if (a->scope == QUOTA_USER) {
		quota_user_release(a);
		return;
	}
	if (--a->n_refs > 0)
		return;
	user = a->above;
	for (unsigned k = 0; k < QUOTA_KINDS; k++)
		quota_give(a, (enum quota_kind)k, a->used[k]);
	TAILQ_REMOVE(&a->quota->accounts, a, link);
	free(a);
	quota_user_release(user);
}

void quota_set_name(struct quota_account *user, const char *name)
{
	snprintf(user->name, sizeof(user->name), "%s", name);
	user->is_named = true;
}

bool quota_is_named(struct quota_account *user)
{
	bool was = user->is_named;

	user->is_named = true;
	return was;
}

/* ---- amounts ---- */

static uint64_t quota_account_limit(const struct quota_account *a, enum quota_kind kind)
{
	return a->quota->limits.of[a->scope][kind];
}

static void quota_format_user(const struct quota_account *a, char *ret, size_t room)
{
	if (*a->name)
		snprintf(ret, room, "user %s (uid %u)", a->name, (unsigned)a->uid);
	else
		snprintf(ret, room, "the user with uid %u", (unsigned)a->uid);
}

static void quota_format_owner(const struct quota_account *a, char *ret, size_t room)
{
	char user[QUOTA_NAME_BYTES + 32];

	if (a->scope == QUOTA_MACHINE) {
		snprintf(ret, room, "all users together have");
		return;
	}
	quota_format_user(a->scope == QUOTA_JOB ? a->above : a, user, sizeof(user));
	if (a->scope == QUOTA_JOB)
		snprintf(ret, room, "job '%s' of %s has", a->name, user);
	else
		snprintf(ret, room, "%s has", user);
}

static void quota_format_amount(enum quota_kind kind, uint64_t n, char ret[static 32])
{
	if (kinds[kind].is_bytes)
		quota_bytes_text(n, ret);
	else
		snprintf(ret, 32, "%llu", (unsigned long long)n);
}

static int quota_refuse_amount(
	struct quota_account *a, enum quota_kind kind, uint64_t n, struct err_text *err)
{
	char whose[2 * QUOTA_NAME_BYTES + 64], used[32], limit[32], more[32], request[64] = "";

	a->refused++;
	a->quota->refused[a->scope][kind]++;
	quota_format_owner(a, whose, sizeof(whose));
	quota_format_amount(kind, a->used[kind], used);
	quota_format_amount(kind, quota_account_limit(a, kind), limit);
	quota_format_amount(kind, n, more);
	if (n > 1)
		snprintf(request, sizeof(request), ", and %s more is requested", more);
	/* For example: user ann (uid 1000) has 3.00 GiB of 4.00 GiB shared memory on node7, and
	 * 2.00 GiB more is requested; see bps-agent's --user-memory */
	return err_set(err, BPS_EQUOTA, "%s %s of %s %s on %s%s; %ssee bps-agent's --%s", whose,
		used, limit, kinds[kind].noun, a->quota->host, request,
		kind == QUOTA_MEMORY ? "a job keeps its tensors until it is closed, so close and "
				       "open it between models (in Python: shutdown(), init()), or "
				     : "",
		kinds[kind].settings[a->scope]);
}

int quota_take(struct quota_account *a, enum quota_kind kind, uint64_t n, struct err_text *err)
{
	for (struct quota_account *x = a; x; x = x->above) {
		uint64_t limit = quota_account_limit(x, kind);

		if (limit && (n > limit || x->used[kind] > limit - n))
			return quota_refuse_amount(x, kind, n, err);
	}
	quota_charge(a, kind, n);
	return 0;
}

int quota_take_fds(struct quota_account *a, enum quota_kind kind, uint64_t n, unsigned n_fds,
	struct err_text *err)
{
	int rc = quota_take(a, kind, n, err);

	if (rc < 0)
		return rc;
	rc = quota_take(a, QUOTA_DESCRIPTORS, n_fds, err);
	if (rc < 0)
		quota_give(a, kind, n);
	return rc;
}

void quota_charge(struct quota_account *a, enum quota_kind kind, uint64_t n)
{
	for (; a; a = a->above)
		a->used[kind] += n;
}

void quota_give(struct quota_account *a, enum quota_kind kind, uint64_t n)
{
	for (; a; a = a->above) {
		assert(a->used[kind] >= n);
		a->used[kind] -= n;
	}
}

void quota_set_used(struct quota_account *a, enum quota_kind kind, uint64_t n)
{
	uint64_t was = a->used[kind];

	for (; a; a = a->above)
		a->used[kind] += n - was;
}

uint64_t quota_used(const struct quota_account *a, enum quota_kind kind)
{
	return a->used[kind];
}

uint64_t quota_room(const struct quota_account *a, enum quota_kind kind)
{
	uint64_t room = UINT64_MAX;

	for (; a; a = a->above) {
		uint64_t limit = quota_account_limit(a, kind);
		uint64_t left = limit > a->used[kind] ? limit - a->used[kind] : 0;

		if (limit && left < room)
			room = left;
	}
	return room;
}

/* ---- requests ---- */

static int quota_refuse_rate_excess(
	struct quota_account *user, const struct quota_pace *pace, struct err_text *err)
{
	char whose[QUOTA_NAME_BYTES + 32];

	user->quota->hopeless++;
	quota_format_user(user, whose, sizeof(whose));
	return err_set(err, BPS_EQUOTA,
		"%s sends more than %u requests a second on %s: %u requests in a row exceeded "
		"this limit; send fewer, or raise bps-agent's --user-requests",
		whose, user->quota->limits.requests_per_s, user->quota->host, pace->n_slowed);
}

int64_t quota_pace_request(
	struct quota_account *user, struct quota_pace *pace, uint64_t now_ns, struct err_text *err)
{
	uint64_t rate = user->quota->limits.requests_per_s, due;

	if (!rate)
		return 0;
	if (user->served_ns < now_ns)
		user->served_ns = now_ns;
	due = user->served_ns + NS_PER_S / rate;
	if (due - now_ns <= BURST_S * NS_PER_S) {
		user->served_ns = due;
		pace->n_slowed = 0;
		return 0;
	}
	if (++pace->n_slowed > HOPELESS_S * rate)
		return quota_refuse_rate_excess(user, pace, err);
	user->served_ns = due;
	user->slowed++;
	user->quota->slowed++;
	return (int64_t)(due - now_ns - BURST_S * NS_PER_S);
}

/* ---- view ---- */

static void quota_view_append(const struct quota_account *a, struct quota_view *v)
{
	const struct quota_account *user = a->scope == QUOTA_JOB ? a->above : a;
	struct quota_row *row;

	for (unsigned k = 0; k < QUOTA_KINDS; k++) {
		uint64_t limit = quota_account_limit(a, (enum quota_kind)k);
		double share = limit ? (double)a->used[k] / (double)limit : 0;

		if (share > v->fullest[a->scope][k])
			v->fullest[a->scope][k] = share;
	}
	if (v->n_rows == QUOTA_VIEW_MAX) {
		v->n_left_out++;
		return;
	}
	row = &v->rows[v->n_rows++];
	*row = (struct quota_row){
		.scope = a->scope, .uid = a->uid, .refused = a->refused, .slowed = a->slowed};
	memcpy(row->used, a->used, sizeof(row->used));
	memcpy(row->user, user->name, sizeof(row->user));
	if (a->scope == QUOTA_JOB)
		memcpy(row->job, a->name, sizeof(row->job));
}

void quota_fill_view(const struct quota *q, struct quota_view *ret)
{
	const struct quota_account *a;

	memset(ret, 0, sizeof(*ret));
	ret->limits = q->limits;
	memcpy(ret->refused, q->refused, sizeof(ret->refused));
	ret->slowed = q->slowed;
	ret->hopeless = q->hopeless;
	quota_view_append(&q->machine, ret);
	TAILQ_FOREACH (a, &q->accounts, link)
		if (a->n_refs > 0)
			quota_view_append(a, ret);
}
