#ifndef BPS_AGENT_QUOTA_QUOTA_H
#define BPS_AGENT_QUOTA_QUOTA_H
/* Counts and limits the use of this agent's resources in accounts: one per job, one per user that
 * owns jobs, and one for the machine. An amount counts in its account and in all accounts above it.
 * A request that would exceed a limit of one of them is refused with a text. Other users are not
 * affected.
 *
 *   machine <── user (uid) <── job        QUOTA_TRAINERS, QUOTA_MEMORY, QUOTA_TENSORS, ...
 *
 * The rate of requests on the socket is limited per user, with a token bucket that holds the
 * requests of two seconds. A request that finds the bucket empty has to wait. A connection whose
 * requests always have to wait is called hopeless, and is refused.
 *
 * Pure: no I/O, no clock, no threads. Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum quota_scope { QUOTA_MACHINE, QUOTA_USER, QUOTA_JOB, QUOTA_SCOPES };
enum quota_kind {
	QUOTA_TRAINERS, /* connections of trainers */
	QUOTA_MEMORY,   /* bytes shared with trainers, or used for sums */
	/* tensors declared on this machine; a tensor of several workers counts once */
	QUOTA_TENSORS,
	QUOTA_DESCRIPTORS, /* descriptors that the agent has open for trainers and their memory */
	/* bytes pushed whose sums have not arrived; beyond the limit, contributions wait */
	QUOTA_INFLIGHT,
	QUOTA_EXECUTORS, /* executors: processes that drive GPUs */
	QUOTA_KINDS
};

#define QUOTA_NAME_BYTES 128

struct quota_limits {
	uint64_t of[QUOTA_SCOPES][QUOTA_KINDS]; /* limit per scope and kind, 0: no limit */
	uint32_t requests_per_s;                /* per user; 0: no limit */
};

struct quota;
struct quota_account;

/* Create the set of accounts. host: name of this machine for the texts; copied. NULL: out of
 * memory. */
struct quota *quota_new(const struct quota_limits *limits, const char *host);
/* Free the set. All references must have been dropped (quota_put). NULL is allowed. */
void quota_free(struct quota *q);

/* Change the limits. Amounts in use beyond a new limit are not taken away. */
void quota_set_limits(struct quota *q, const struct quota_limits *limits);

/* Return the account of a user, which all callers share. Some unused accounts are kept with their
 * bucket and name. NULL: out of memory. Owns: the caller gets a reference, until quota_put. */
struct quota_account *quota_user(struct quota *q, uid_t uid);
/* Create an account of a job that belongs to that user. NULL: out of memory. Owns: the caller gets
 * the only reference, until quota_put. */
struct quota_account *quota_job(struct quota_account *user, const char *name);
/* Drop a reference. The last one gives back the account's amounts. NULL is allowed. */
void quota_put(struct quota_account *a);
/* Set the user's name; "": the user has none. */
void quota_set_name(struct quota_account *user, const char *name);
/* Return whether the user's name is set or being looked up. The first call returns false, and the
 * caller has to look it up; later calls return true. */
bool quota_is_named(struct quota_account *user);

/* Add n to the account and all accounts above it. Errors: BPS_EQUOTA a limit would be exceeded; the
 * text names limit, use and setting. */
int quota_take(struct quota_account *a, enum quota_kind kind, uint64_t n, struct err_text *err);
/* Take n of kind and n_fds descriptors: both, or neither. Errors: as quota_take. */
int quota_take_fds(struct quota_account *a, enum quota_kind kind, uint64_t n, unsigned n_fds,
	struct err_text *err);
/* Give back n of the amount that was taken in the account. */
void quota_give(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* Set the account's amount to n, without checking the limit: for resources that are limited
 * elsewhere. */
void quota_note(struct quota_account *a, enum quota_kind kind, uint64_t n);
uint64_t quota_used(const struct quota_account *a, enum quota_kind kind);
/* Add n without checking the limits, because it is in use already. */
void quota_charge(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* Return the amount that quota_take would still accept. */
uint64_t quota_room(const struct quota_account *a, enum quota_kind kind);

/* State of one connection for its user's request rate. */
struct quota_pace {
	uint32_t n_slowed; /* number of requests in a row that had to wait */
};
/* Count a request. Returns 0: serve it now; a positive number: serve it after that many ns, without
 * another call. Errors: BPS_EQUOTA the connection has exceeded the rate without a pause for too
 * long; with a text. */
int64_t quota_request(
	struct quota_account *user, struct quota_pace *pace, uint64_t now_ns, struct err_text *err);

/* ---- for the status and the metrics ---- */
#define QUOTA_VIEW_MAX 64
struct quota_row {
	enum quota_scope scope;
	uid_t uid;
	char user[QUOTA_NAME_BYTES]; /* "": not known */
	char job[QUOTA_NAME_BYTES];  /* set for QUOTA_JOB */
	uint64_t used[QUOTA_KINDS];
	uint64_t refused, slowed;
};
struct quota_view {
	struct quota_limits limits;
	struct quota_row rows[QUOTA_VIEW_MAX]; /* the first row is the machine's */
	uint32_t n_rows, n_left_out;
	uint64_t refused[QUOTA_SCOPES][QUOTA_KINDS]; /* since the start */
	uint64_t slowed, hopeless;
	/* the largest fraction of its limit that an account uses */
	double fullest[QUOTA_SCOPES][QUOTA_KINDS];
};
void quota_view(const struct quota *q, struct quota_view *ret);
/* Return the kind's name in JSON, such as "memory". */
const char *quota_kind_name(enum quota_kind kind);
const char *quota_scope_name(enum quota_scope scope);
/* Return the name of the limit's setting, such as "user-memory"; NULL: there is no such limit. */
const char *quota_setting(enum quota_scope scope, enum quota_kind kind);
/* Format bytes for display: "1.5 GiB". */
void quota_bytes_text(uint64_t bytes, char ret[static 32]);
#endif
