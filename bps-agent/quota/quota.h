#ifndef BPS_AGENT_QUOTA_QUOTA_H
#define BPS_AGENT_QUOTA_QUOTA_H
/* Counts and limits the use of this agent's resources. There is one account per job, one per user
 * that owns jobs, and one for the machine. An amount counts in its account and in all accounts
 * above that account. A request that would exceed the limit of one of these accounts is refused,
 * and the caller gets an error text. Other users are not affected.
 *
 *   machine <── user (uid) <── job        QUOTA_TRAINERS, QUOTA_MEMORY, QUOTA_TENSORS, ...
 *
 * The rate of requests on the agent's socket is limited per user. A token bucket holds the requests
 * of two seconds. A request that finds the bucket empty has to wait. A connection whose requests
 * always have to wait is called hopeless, and is refused.
 *
 * The functions do no I/O and read no clock. Thread: the data thread. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/error.h"

enum quota_scope { QUOTA_MACHINE, QUOTA_USER, QUOTA_JOB, QUOTA_SCOPES };
enum quota_kind {
	QUOTA_TRAINERS, /* connections of trainers */
	QUOTA_MEMORY,   /* bytes of memory shared with trainers, or used for sums */
	/* tensors declared on this machine; a tensor of several workers counts once */
	QUOTA_TENSORS,
	QUOTA_DESCRIPTORS, /* open descriptors for trainers and for the trainers' memory */
	/* bytes of contributions whose sums have not arrived; beyond the limit, contributions
	 * wait */
	QUOTA_INFLIGHT,
	QUOTA_EXECUTORS, /* executors: processes that drive GPUs */
	QUOTA_KINDS
};

#define QUOTA_NAME_BYTES 128

struct quota_limits {
	uint64_t of[QUOTA_SCOPES][QUOTA_KINDS]; /* limit for each scope and kind; 0: no limit */
	uint32_t requests_per_s;                /* limit for each user; 0: no limit */
};

struct quota;
struct quota_account;

/* Create the set of accounts. host: name of this machine, for error texts; copied. Returns NULL
 * when out of memory. */
struct quota *quota_new(const struct quota_limits *limits, const char *host);
/* Free the set. All references must have been dropped (quota_account_release). NULL is allowed. */
void quota_free(struct quota *q);

/* Change the limits. If an account already uses more than a new limit, the account keeps the amount
 * that it uses. */
void quota_set_limits(struct quota *q, const struct quota_limits *limits);

/* Return the account of a user, which all callers share. Returns NULL when out of memory. The
 * caller gets a reference, and drops it with quota_account_release. Some unused accounts are kept
 * with their bucket and name. */
struct quota_account *quota_get_user_account(struct quota *q, uid_t uid);
/* Create an account of a job. user: account of the job's owner. Returns NULL when out of memory.
 * The caller gets the only reference, and drops it with quota_account_release. */
struct quota_account *quota_new_job_account(struct quota_account *user, const char *name);
/* Drop a reference. Dropping the last reference subtracts the account's amounts from the accounts
 * above it. NULL is allowed. */
void quota_account_release(struct quota_account *a);
/* Set the user's name; "": the user has none. */
void quota_set_name(struct quota_account *user, const char *name);
/* Return true if the user's name has been set, or if a look-up of the name has been started. If
 * this call returns false, the caller must look up the name. Later calls return true. */
bool quota_is_named(struct quota_account *user);

/* Add n to the account and all accounts above it. Errors: BPS_EQUOTA when a limit would be
 * exceeded. `err` then gets a text with the limit, the amount in use and the setting's name. */
int quota_take(struct quota_account *a, enum quota_kind kind, uint64_t n, struct err_text *err);
/* Like quota_take, but add two amounts: n for the given kind, and n_fds for QUOTA_DESCRIPTORS. If
 * one of these two amounts would exceed a limit, add neither. */
int quota_take_fds(struct quota_account *a, enum quota_kind kind, uint64_t n, unsigned n_fds,
	struct err_text *err);
/* Subtract n from the account and all accounts above it. */
void quota_give(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* Set the account's amount to n, without checking the limit. Used for resources that are limited
 * elsewhere. */
void quota_set_used(struct quota_account *a, enum quota_kind kind, uint64_t n);
uint64_t quota_used(const struct quota_account *a, enum quota_kind kind);
/* Add n without checking the limits, because the amount is in use already. */
void quota_charge(struct quota_account *a, enum quota_kind kind, uint64_t n);
/* Return the amount that quota_take would still accept. */
uint64_t quota_room(const struct quota_account *a, enum quota_kind kind);

/* State of one connection, for the request rate of its user. */
struct quota_pace {
	uint32_t n_slowed; /* number of requests in a row that had to wait */
};
/* Count a request. Returns 0 if the caller may serve the request now. Returns a positive number if
 * the caller must wait that many ns and then serve the request, without another call. Errors:
 * BPS_EQUOTA if the connection has exceeded the rate for too long without a pause. `err` then gets
 * the text. */
int64_t quota_pace_request(
	struct quota_account *user, struct quota_pace *pace, uint64_t now_ns, struct err_text *err);

/* ---- for the status and the metrics ---- */
#define QUOTA_VIEW_MAX 64
struct quota_row {
	enum quota_scope scope;
	uid_t uid;
	char user[QUOTA_NAME_BYTES]; /* "": the name is not known */
	char job[QUOTA_NAME_BYTES];  /* name of the job; set if scope is QUOTA_JOB */
	uint64_t used[QUOTA_KINDS];
	uint64_t refused, slowed;
};
struct quota_view {
	struct quota_limits limits;
	struct quota_row rows[QUOTA_VIEW_MAX]; /* the first row is the machine's */
	uint32_t n_rows, n_left_out;
	/* number of refused requests since the agent's start */
	uint64_t refused[QUOTA_SCOPES][QUOTA_KINDS];
	uint64_t slowed, hopeless;
	/* largest fraction of a limit that any account uses, for each scope and kind */
	double fullest[QUOTA_SCOPES][QUOTA_KINDS];
};
void quota_fill_view(const struct quota *q, struct quota_view *ret);
/* Return the kind's name in JSON, such as "memory". */
const char *quota_kind_name(enum quota_kind kind);
const char *quota_scope_name(enum quota_scope scope);
/* Return the name of the setting for this limit, such as "user-memory"; NULL: there is no such
 * limit. */
const char *quota_setting_name(enum quota_scope scope, enum quota_kind kind);
/* Format bytes for display: "1.5 GiB". */
void quota_bytes_text(uint64_t bytes, char ret[static 32]);
#endif
