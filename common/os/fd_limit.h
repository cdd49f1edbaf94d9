#ifndef BPS_COMMON_OS_FD_LIMIT_H
#define BPS_COMMON_OS_FD_LIMIT_H
/* How many descriptors this process may open. Any thread. */
#include <stdint.h>

/* Raise the soft limit to the hard one (1,048,576 at most), once at the start: the soft one is kept
 * low for programs that use select(2), which none of ours do. Returns the limit that holds. */
uint64_t fd_limit_raise(void);
/* The limit that holds. */
uint64_t fd_limit(void);
#endif
