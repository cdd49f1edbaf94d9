#ifndef BPS_COMMON_CONTROL_RESOLVE_H
#define BPS_COMMON_CONTROL_RESOLVE_H
/* Name lookup for an event loop. Only the system's resolver implements the host's configuration
 * (files, DNS, mDNS, directory), and its functions block. So each lookup runs in a thread of its
 * own. Limits for retries end a lookup after a few seconds. Numeric addresses need no thread.
 *
 * Thread: the loop's, for all functions and the callback. */
#include <stddef.h>
#include <sys/socket.h>

#include "common/base/addr.h"
#include "common/base/error.h"

#define RESOLVE_MAX_ADDRS 8

struct event_base;
struct resolve;

struct resolve_answer {
	int rc; /* 0, or -EADDRNOTAVAIL with the reason in err */
	size_t n_addrs;
	struct sockaddr_storage addrs[RESOLVE_MAX_ADDRS];
	socklen_t lens[RESOLVE_MAX_ADDRS];
	struct err_text err;
};

/* Called once with the answer, on the loop's thread, and never from inside resolve_start. The
 * lookup is freed before the callback runs. */
typedef void resolve_done_fn(void *arg, const struct resolve_answer *answer);

/* Start a lookup.
 * Errors: -ENOMEM, -errno. After an error, the callback `done` does not run. */
int resolve_start(struct resolve **ret_resolve, struct event_base *base, const struct addr *addr,
	resolve_done_fn *done, void *arg);

/* End and free a lookup; its callback does not run. May block for a few seconds, until the lookup
 * has ended. Do not call this function from inside `done`. NULL is allowed. */
void resolve_cancel(struct resolve *r);
#endif
