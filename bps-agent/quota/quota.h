#ifndef BPS_AGENT_QUOTA_QUOTA_H
#define BPS_AGENT_QUOTA_QUOTA_H
/* Use of this agent's resources and its limits: accounts of jobs, of the users that own them, and
 * of the machine. An amount counts in the account and in all above it. A request that would exceed
 * one of their limits is refused with a text; other users are not affected.
 *
 *   machine <── user (uid) <── job        QUOTA_TRAINERS, QUOTA_MEMORY, QUOTA_TENSORS, ...
 *
 * Requests on the socket have a rate, limited per user: a bucket that holds two seconds' worth. A
 * connection that finds the bucket empty has to wait. One that never stops to do so is hopeless.
 *
 * Pure: no I/O, no clock, no threads. Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum quota_scope { QUOTA_MACHINE, QUOTA_USER, QUOTA_JOB, QUOTA_SCOPES };
enum quota_kind {
	QUOTA_TRAINERS,    /* connections */
	QUOTA_MEMORY,      /* bytes shared with trainers, or kept for their sums */
	QUOTA_TENSORS,     /* declared on this machine; workers of one job share them */
	QUOTA_DESCRIPTORS, /* open for the account's trainers and their memory */
	QUOTA_INFLIGHT,    /* bytes pushed whose sums are not in; those beyond wait */
	QUOTA_EXECUTORS,   /* processes that drive GPUs, until they have ended */
	QUOTA_KINDS
};

#define QUOTA_NAME_BYTES 128

struct quota_limits {
	uint64_t of[QUOTA_SCOPES][QUOTA_KINDS]; /* 0: no limit */
	uint32_t requests_per_s;                /* per user; 0: no limit */
};

struct quota;
struct quota_account;

/* Create the accounts. host: name for the texts; copied. NULL: out of memory. */
struct quota *quota_new(const struct quota_limits *limits, const char *host);
/* Free them; all accounts must be put back before. NULL is allowed. */
void quota_free(struct quota *q);

/* Change the limits; use beyond them is kept. */
void quota_set_limits(struct quota *q, const struct quota_limits *limits);

/* Return the account of a user, shared by all callers. Some unused accounts are kept: their bucket
 * and their name. NULL: out of memory. Owns: a reference, until quota_put. */
struct quota_account *quota_user(struct quota *q, uid_t uid);
/* Create an account of a job that belongs to that user. NULL: out of memory. Owns: as
 * quota_user. */
struct quota_account *quota_job(struct quota_account *user, const char *name);
/* Drop a reference. The last one gives back the account's amounts. NULL is allowed. */
void quota_put(struct quota_account *a);
/* Set the user's name; "" when there is none. */
void quota_set_name(struct quota_account *user, const char *name);
/* Return whether the name is set or being looked up. True from the second call on. */
bool quota_is_named(struct quota_account *user);

/* Take n in the account and all above it. Errors: BPS_EQUOTA with limit, use and setting. */
int quota_take(struct quota_account *a, enum quota_kind kind, uint64_t n, struct err_text *err);
/* Take n, and descriptors with it: both, or neither. */
int quota_take_fds(struct quota_account *a, enum quota_kind kind, uint64_t n, unsigned n_fds,
	struct err_text *err);
/* Give back n of what was taken there. */
void quota_give(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* Set the amount to n, whatever the limit: for resources that are limited elsewhere. */
void quota_note(struct quota_account *a, enum quota_kind kind, uint64_t n);
uint64_t quota_used(const struct quota_account *a, enum quota_kind kind);
/* Take n even over the limits: it is in use already. */
void quota_charge(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* Return the amount that quota_take would still accept. */
uint64_t quota_room(const struct quota_account *a, enum quota_kind kind);

/* State of one connection for its user's request rate. */
struct quota_pace {
	uint32_t n_slowed; /* requests in a row that had to wait */
};
/* Count a request. Returns 0: serve it; a positive number: serve it that many ns later, without
 * another call. Errors: BPS_EQUOTA requests have exceeded the rate for so long that no end is
 * expected; err explains it. */
int64_t quota_request(
	struct quota_account *user, struct quota_pace *pace, uint64_t now_ns, struct err_text *err);

/* ---- for the status and the metrics ---- */
#define QUOTA_VIEW_MAX 64
struct quota_row {
	enum quota_scope scope;
	uid_t uid;
	char user[QUOTA_NAME_BYTES]; /* "" when it is not known */
	char job[QUOTA_NAME_BYTES];  /* set for QUOTA_JOB */
	uint64_t used[QUOTA_KINDS];
	uint64_t refused, slowed;
};
struct quota_view {
	struct quota_limits limits;
	struct quota_row rows[QUOTA_VIEW_MAX]; /* the machine first */
	uint32_t n_rows, n_left_out;
	uint64_t refused[QUOTA_SCOPES][QUOTA_KINDS]; /* since the start */
	uint64_t slowed, hopeless;
	/* largest share of its limit that an account uses */
	double fullest[QUOTA_SCOPES][QUOTA_KINDS];
};
void quota_view(const struct quota *q, struct quota_view *ret);
/* Return "memory" and the like: in JSON and labels. */
const char *quota_kind_name(enum quota_kind kind);
const char *quota_scope_name(enum quota_scope scope);
/* Return "user-memory" and the like, or NULL when there is no such limit. */
const char *quota_setting(enum quota_scope scope, enum quota_kind kind);
/* Format bytes for display: "1.5 GiB". */
void quota_bytes_text(uint64_t bytes, char ret[static 32]);
#endif
