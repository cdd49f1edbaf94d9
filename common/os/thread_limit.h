#ifndef BPS_COMMON_OS_THREAD_LIMIT_H
#define BPS_COMMON_OS_THREAD_LIMIT_H
/* Limits on the number of processes and threads: pids.max of the control group (TasksMax= of
 * systemd, --pids-limit of docker), and RLIMIT_NPROC. When a limit is reached, fork(2) and
 * pthread_create(3) fail with EAGAIN. Any thread may call the functions. */
#include "common/base/error.h"

/* Start n threads that do nothing, and end them. A daemon calls this at its start, because a
 * library may abort the process if it cannot start a thread later.
 * Errors: -EAGAIN, -ENOMEM; err gets the text, with the limit and how to raise it. */
int thread_limit_try(unsigned n, struct err_text *err);
/* Explain that `what` has failed with the negative code rc. If rc is -EAGAIN, the text names the
 * limit and how to raise it. Writes the text to *err, and returns rc. */
int thread_limit_explain(int rc, const char *what, struct err_text *err);
#endif
