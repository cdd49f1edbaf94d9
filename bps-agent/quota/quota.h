#ifndef BPS_AGENT_QUOTA_QUOTA_H
#define BPS_AGENT_QUOTA_QUOTA_H
/* Who uses how much of this agent, and what the limits are: accounts of jobs, of the users that
 * they belong to, and of the machine. What is taken counts in the account and in all above it, and
 * is refused with a sentence when one of them would go over its limit; nobody else is touched by
 * that.
 *
 *   machine <── user (uid) <── job        QUOTA_TRAINERS, QUOTA_MEMORY, QUOTA_TENSORS, ...
 *
 * Requests on the socket are a rate, and of users only: a bucket that holds two seconds' worth.
 * Who finds it empty has to wait, and who never stops to find it empty is hopeless.
 *
 * Pure: no I/O, no clock, no threads; the data thread's. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum quota_scope { QUOTA_MACHINE, QUOTA_USER, QUOTA_JOB, QUOTA_SCOPES };
enum quota_kind {
	QUOTA_TRAINERS,    /* connections */
	QUOTA_MEMORY,      /* bytes shared with trainers, or kept for their sums */
	QUOTA_TENSORS,     /* declared on this machine; workers of one job share them */
	QUOTA_DESCRIPTORS, /* open because of them */
	QUOTA_INFLIGHT,    /* bytes pushed whose sums are not in; those beyond wait */
	QUOTA_EXECUTORS,   /* processes that drive GPUs, until they have ended */
	QUOTA_KINDS
};

#define QUOTA_NAME_BYTES 128

struct quota_limits {
	uint64_t of[QUOTA_SCOPES][QUOTA_KINDS]; /* 0: no limit */
	uint32_t requests_per_s;                /* of a user; 0: no limit */
};

struct quota;
struct quota_account;

/* host: of the sentences; copied. NULL: out of memory. */
struct quota *quota_new(const struct quota_limits *limits, const char *host);
/* All accounts must be put back. NULL is allowed. */
void quota_free(struct quota *q);

/* Change the limits; what is beyond them already stays. */
void quota_set_limits(struct quota *q, const struct quota_limits *limits);

/* The account of a user, shared by all who get it. Some that nobody has are kept: their bucket and
 * their name. NULL: out of memory. Owns: a reference, until quota_put. */
struct quota_account *quota_user(struct quota *q, uid_t uid);
/* A new account of a job that belongs to that user. NULL: out of memory. Owns: as quota_user. */
struct quota_account *quota_job(struct quota_account *user, const char *name);
/* What it still has goes back with its last reference. NULL is allowed. */
void quota_put(struct quota_account *a);
/* The user's name; "" when there is none. */
void quota_set_name(struct quota_account *user, const char *name);
/* Was it set, or is it being looked up? True from the second call on. */
bool quota_is_named(struct quota_account *user);

/* Take n in the account and all above it. Errors: BPS_EQUOTA with limit, use and setting. */
int quota_take(struct quota_account *a, enum quota_kind kind, uint64_t n, struct err_text *err);
/* The same, and descriptors with it: both, or neither. */
int quota_take_fds(struct quota_account *a, enum quota_kind kind, uint64_t n, unsigned n_fds,
	struct err_text *err);
/* Give back n of what was taken there. */
void quota_give(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* It has n now, whatever the limit: of what is limited elsewhere. */
void quota_note(struct quota_account *a, enum quota_kind kind, uint64_t n);
uint64_t quota_used(const struct quota_account *a, enum quota_kind kind);
/* Take it over the limits, too: it is there already. */
void quota_charge(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* What quota_take would still take. */
uint64_t quota_room(const struct quota_account *a, enum quota_kind kind);

/* One connection's way through its user's bucket. */
struct quota_pace {
	uint32_t n_slowed; /* requests in a row that had to wait */
};
/* A request came. Returns 0: serve it; a positive number: that many ns later, and do not ask again
 * then. Errors: BPS_EQUOTA nothing but requests beyond the rate for so long that there is no end of
 * it to be expected; err says so. */
int64_t quota_request(
	struct quota_account *user, struct quota_pace *pace, uint64_t now_ns, struct err_text *err);

/* ---- for the status and the metrics ---- */
#define QUOTA_VIEW_MAX 64
struct quota_row {
	enum quota_scope scope;
	uid_t uid;
	char user[QUOTA_NAME_BYTES]; /* "" when it is not known */
	char job[QUOTA_NAME_BYTES];  /* of QUOTA_JOB */
	uint64_t used[QUOTA_KINDS];
	uint64_t refused, slowed;
};
struct quota_view {
	struct quota_limits limits;
	struct quota_row rows[QUOTA_VIEW_MAX]; /* the machine first */
	uint32_t n_rows, n_left_out;
	uint64_t refused[QUOTA_SCOPES][QUOTA_KINDS]; /* since the start */
	uint64_t slowed, hopeless;
	double fullest[QUOTA_SCOPES][QUOTA_KINDS]; /* largest share of its limit that one has */
};
void quota_view(const struct quota *q, struct quota_view *ret);
/* "memory": in JSON and labels. */
const char *quota_kind_name(enum quota_kind kind);
const char *quota_scope_name(enum quota_scope scope);
/* "user-memory", or NULL when there is no such limit. */
const char *quota_setting(enum quota_scope scope, enum quota_kind kind);
/* Bytes as people write them: "1.5 GiB". */
void quota_bytes_text(uint64_t bytes, char ret[static 32]);
#endif
