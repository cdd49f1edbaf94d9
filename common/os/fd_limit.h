#ifndef BPS_COMMON_OS_FD_LIMIT_H
#define BPS_COMMON_OS_FD_LIMIT_H
/* Limits on open descriptors and on locked memory of this process. Any thread may call the
 * functions. */
#include <stdint.h>

#include "common/base/error.h"

/* Smallest limit of open descriptors with which a daemon starts, and the limit below which it
 * warns. A daemon needs about 20 descriptors at its start, and some more for each connection. */
#define FD_LIMIT_MIN  64
#define FD_LIMIT_WARN 1024

/* Raise the soft limit to the hard limit, at most to 1,048,576. Call this function once at program
 * start. The default soft limit is low, because select(2) cannot handle large descriptors. The
 * daemons do not use select. Returns the soft limit now in force. */
uint64_t fd_limit_raise(void);
/* Return the soft limit now in force. */
uint64_t fd_limit(void);
/* Explain that `what` has failed with the negative code rc. If rc is -EMFILE, the text names the
 * limit and how to raise it. Writes the text to *err, and returns rc. */
int fd_limit_explain(int rc, const char *what, struct err_text *err);
/* Raise the soft limit of locked memory (RLIMIT_MEMLOCK) to the hard limit. Only RDMA locks
 * memory. */
void memlock_limit_raise(void);
#endif
