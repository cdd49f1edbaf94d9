#ifndef BPS_COMMON_OS_LIMITS_H
#define BPS_COMMON_OS_LIMITS_H
/* Limits of this process on open files, locked memory, processes and threads. The number of
 * processes and threads is limited by pids.max of the control group (TasksMax= of systemd,
 * --pids-limit of docker) and by RLIMIT_NPROC. When such a limit is reached, fork(2) and
 * pthread_create(3) fail with EAGAIN. Any thread may call the functions. */
#include <stdint.h>

#include "common/base/error.h"

/* Smallest limit of open files with which a daemon starts, and the limit below which it warns. A
 * daemon needs about 20 descriptors at its start, and some more for each connection. */
#define LIMIT_FILES_MIN  64
#define LIMIT_FILES_WARN 1024

/* Raise the soft limits of open files (at most to 1,048,576) and of locked memory to the hard
 * limits. Call this function once at program start. The default soft limit of open files is low,
 * because select(2) cannot handle large descriptors. The programs do not use select. Only RDMA
 * locks memory. */
void limits_raise(void);
/* Return the soft limit of open files now in force. */
uint64_t limits_open_files(void);
/* Start n threads that do nothing, and some more, and end them. A daemon calls this at its start,
 * because a library may abort the process if it cannot start a thread later. An ended thread still
 * counts for a moment, and other processes start threads, too: the further threads are room for
 * both. The room is no guarantee.
 * Errors: -EAGAIN, -ENOMEM; err gets the text, with the limit and how to raise it. */
int limits_try_threads(unsigned n, struct err_text *err);
/* Explain that `what` has failed with the negative code rc. If rc is -EMFILE or -EAGAIN, the text
 * names the limit of files, or of processes and threads, and how to raise it. Writes the text to
 * *err, and returns rc. */
int limits_explain(int rc, const char *what, struct err_text *err);
#endif
