#ifndef BPS_TOOLS_GUARD_H
#define BPS_TOOLS_GUARD_H
/* The guard is the process that the user starts. It forks the runner, which starts everything else,
 * passes signals on to it, and ends with its exit code. Whichever of the two is killed, the other
 * one kills all processes that are left, also those that workers have started and left behind, and
 * removes the private folder. Each function runs on the only thread of its process.
 *
 *   guard ─┬─ runs ── the runner has ended ── no process is left ── exit
 *   runner └─ runs ── GUARD_DIED ── kills the workers ── the usual end
 *
 * Both are subreapers (prctl(2)): a process whose parent has ended becomes the child of the
 * nearest one of the two that still runs. */
#include <signal.h>
#include <stdbool.h>

/* signal that the kernel sends to the runner when the guard has died */
#define GUARD_DIED SIGRTMAX
/* Time in which killed processes must have ended. A process that waits for a disk may need it. */
#define GUARD_SWEEP_MS 5000

/* Fork the runner. dir: private folder that the guard removes at its end; "": none. signals:
 * blocked signals that the guard passes on. has_lifeline: the run ends when standard input is
 * closed: then the runner gets GUARD_DIED. GUARD_DIED is blocked. Returns 0, in the runner only:
 * the guard exits. Errors: -errno; there is no runner, and the error was printed. */
int guard_fork_runner(const char *dir, const sigset_t *signals, bool has_lifeline);
/* Kill the children of this process, and those that become its children when their parents end,
 * until none is left or GUARD_SWEEP_MS have passed. */
void guard_kill_children(void);
/* Reap the adopted children that have ended. Returns when none has, or when the next one that has
 * ended is a child of which is_own returns true. */
void guard_reap_adopted(int (*is_own)(const void *ctx, int pid), const void *ctx);
/* Remove a folder and all that is in it. */
void guard_remove_folder(const char *dir);
#endif
