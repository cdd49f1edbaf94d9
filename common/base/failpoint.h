#ifndef BPS_COMMON_BASE_FAILPOINT_H
#define BPS_COMMON_BASE_FAILPOINT_H
/* Failpoints: named points of the shipped programs and the library where a fault can be injected.
 * They are compiled in always, so that what is tested is what is shipped, and off unless somebody
 * names them; each costs one load and one predictable branch then.
 *
 * Who may set them: whoever starts the process or may change its settings' file, nobody else. A
 * daemon takes the setting `faults` (flag, BPS_FAULTS, file; live, so SIGHUP takes it from the
 * file); the library takes BPS_FAULTS of its own process, which harms only that. No message and no
 * HTTP request sets one.
 *
 *   faults = server.result.before-send=drop,prob=0.01 server.thread.tick=hang,after=5000 seed=7
 *
 * Words are separated by blanks. A word is POINT=ACTION with options behind commas:
 *   crash        the process is gone, as by SIGKILL
 *   sleep:200ms  the thread sleeps
 *   hang         the thread hangs, until the faults change
 *   error:NAME   the step fails with an errno or code of ours (ENOSPC, BPS_EPROTO), where it can fail
 *   drop         the step is skipped, where what it does is done again or may get lost
 *   after=N      not the first N times; count=N at most N times; prob=P each time by chance
 * seed=N makes chance repeatable: whether a point acts depends on the seed, its name and how often
 * it was passed. A name that is not one is refused with the nearest that is; an action that the
 * point does not take, too.
 *
 * Thread: any may pass a point; failpoint_set is the main thread's, or the library's first open. */
#include <stdatomic.h>
#include <stdio.h>

#include "common/base/error.h"

enum failpoint_owner { FP_SCHED = 1, FP_SERVER = 2, FP_AGENT = 4, FP_CLIENT = 8 };

/* What a point takes beside crash, sleep and hang. */
enum failpoint_takes { FP_ANY, FP_ERROR = 1, FP_DROP = 2, FP_BOTH = 3 };

#define FP_MEMBERS (FP_SERVER | FP_AGENT)
#define FP_DAEMONS (FP_SCHED | FP_MEMBERS)

enum failpoint {
#define X(id, name, owner, takes, where) FP_##id,
#include "common/base/failpoints.def"
#undef X
	FAILPOINT_COUNT
};

/* Set by failpoint_set; a point may see it a little later than another thread does. */
extern _Atomic unsigned char failpoint_armed[FAILPOINT_COUNT];

#define FAILPOINT_DROPPED 1
/* What an armed point does: it may not return, or return late. Returns 0: go on; FAILPOINT_DROPPED:
 * skip the step (only where the table says so); negative: fail with this (only where it says
 * so). */
int failpoint_pass(enum failpoint point);
#define FAILPOINT(id)                                                                              \
	(__builtin_expect(                                                                         \
		 atomic_load_explicit(&failpoint_armed[FP_##id], memory_order_relaxed), 0)         \
			? failpoint_pass(FP_##id)                                                  \
			: 0)

/* Take these faults in place of the former ones; NULL or "": none. Wakes whoever hangs or sleeps at
 * a point. Returns how many points are armed.
 * Errors: -EINVAL, with a sentence; nothing has changed. */
int failpoint_set(const char *text, struct err_text *err);
/* The same check alone. */
int failpoint_check(const char *text, struct err_text *err);
/* The points of these owners (enum failpoint_owner), one per line. */
void failpoint_print(FILE *out, unsigned owners);
#endif
