#ifndef BPS_COMMON_CONTROL_RESOLVE_H
#define BPS_COMMON_CONTROL_RESOLVE_H
/* Name lookup for an event loop. The system's resolver blocks, and only it has the host's name
 * service (files, DNS, mDNS, directory). So each lookup runs in a thread of its own, with a retry
 * limit that bounds it to a few seconds. Numeric addresses are answered without a thread.
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
	int rc; /* 0, or -EADDRNOTAVAIL with err */
	size_t n_addrs;
	struct sockaddr_storage addrs[RESOLVE_MAX_ADDRS];
	socklen_t lens[RESOLVE_MAX_ADDRS];
	struct err_text err;
};

/* Called once, on the loop, never from inside resolve_start; the lookup is freed after it
 * returns. */
typedef void resolve_done_fn(void *arg, const struct resolve_answer *answer);

/* Start a lookup.
 * Errors: -ENOMEM, -errno of the thread; then done does not run. */
int resolve_start(struct resolve **ret_resolve, struct event_base *base, const struct addr *addr,
	resolve_done_fn *done, void *arg);

/* End a lookup without its callback. May wait for the resolver's timeout, a few seconds at most. Do
 * not call it from inside done. NULL is allowed. */
void resolve_cancel(struct resolve *r);
#endif
