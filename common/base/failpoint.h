#ifndef BPS_COMMON_BASE_FAILPOINT_H
#define BPS_COMMON_BASE_FAILPOINT_H
/* Failpoints: named places in the programs and the library where a fault can be injected.
 * Failpoints are compiled into every build, so that the tested code is the shipped code. Without a
 * configuration, all points are off. A point that is off costs one load and one predictable branch.
 *
 * Only a user who starts the process or may change its settings file can set faults. A daemon reads
 * the faults from its setting `faults` (flag, BPS_FAULTS or file). SIGHUP reads the file again. The
 * library reads BPS_FAULTS of its own process, and injects faults only into that process. No
 * message and no HTTP request can set a fault.
 *
 *   faults = server.result.before-send=drop,prob=0.01 server.thread.tick=hang,after=5000 seed=7
 *
 * Words are separated by blanks. A word is POINT=ACTION, then options after commas:
 *   crash        the process kills itself with SIGKILL
 *   sleep:200ms  the thread sleeps
 *   hang         the thread hangs until the faults change
 *   error:NAME   the step fails with this errno or error code (ENOSPC, BPS_EPROTO)
 *   drop         the step is skipped (only for steps that are repeated later or may be lost)
 *   after=N      the first N passes of the point have no effect
 *   count=N      the action runs at most N times
 *   prob=P       the action runs with probability P in each pass
 * seed=N makes prob=P repeatable: with the same seed, the n-th pass of a point always has the same
 * outcome. An unknown name is an error whose text suggests the nearest known name. An action that
 * the point does not support is an error, too.
 *
 * Before the first action of a point, the process writes a line to stderr:
 *
 *   <4>a fault is injected: point=server.sum.start action=crash pid=4711
 *
 * So a test can require that a fault was injected, also in a process that has crashed, and also in
 * a trainer. There is one such line for each point each time that the faults are set. The line is
 * written under the lock of all faults, so a slow stderr delays every thread that passes a point
 * with a fault. The number of all actions is failpoint_acted(), which the daemons serve as a
 * metric.
 *
 * Thread: any thread may pass a point. Only the main thread calls failpoint_set. In the library,
 * the first bps_open calls failpoint_set. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/error.h"

enum failpoint_owner { FP_SCHED = 1, FP_SERVER = 2, FP_AGENT = 4, FP_CLIENT = 8 };

/* Actions that a point supports besides crash, sleep and hang. */
enum failpoint_takes { FP_ANY, FP_ERROR = 1, FP_DROP = 2, FP_BOTH = 3 };

#define FP_MEMBERS (FP_SERVER | FP_AGENT)
#define FP_DAEMONS (FP_SCHED | FP_MEMBERS)

enum failpoint {
#define X(id, name, owner, takes, where) FP_##id,
#include "common/base/failpoints.def"
#undef X
	FAILPOINT_COUNT
};

/* For each point: 1 if a fault is set for the point, else 0. failpoint_set sets these flags; other
 * threads may see a change slightly later. */
extern _Atomic unsigned char failpoint_armed[FAILPOINT_COUNT];

#define FAILPOINT_DROPPED 1
/* Run the action of a point that has a fault. The action may take long or end the process.
 * Returns 0 if the caller must continue, FAILPOINT_DROPPED if the caller must skip the step, or a
 * negative code with which the caller must fail. A point returns FAILPOINT_DROPPED or a negative
 * code only if the point's row in failpoints.def allows this action. */
int failpoint_pass(enum failpoint point);
#define FAILPOINT(id)                                                                              \
	(__builtin_expect(                                                                         \
		 atomic_load_explicit(&failpoint_armed[FP_##id], memory_order_relaxed), 0)         \
			? failpoint_pass(FP_##id)                                                  \
			: 0)

/* Replace all faults by the faults that the string `text` lists. NULL or "" removes all faults.
 * Threads that hang or sleep at a point are released. Returns the number of points that have a
 * fault. Errors: -EINVAL; err gets the message, and the previous faults stay. */
int failpoint_set(const char *text, struct err_text *err);
/* Check the string `text` as failpoint_set does, but do not change the faults. Returns 0 if the
 * string is valid. Errors: those of failpoint_set. */
int failpoint_check(const char *text, struct err_text *err);
const char *failpoint_name(enum failpoint point);
/* Return how often the actions of a point have run since the start of the process. */
uint64_t failpoint_acted(enum failpoint point);
/* Print the points whose owner is in the bit set `owners` (enum failpoint_owner), one point per
 * line. */
void failpoint_print(FILE *out, unsigned owners);
#endif
