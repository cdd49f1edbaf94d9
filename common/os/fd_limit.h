#ifndef BPS_COMMON_OS_FD_LIMIT_H
#define BPS_COMMON_OS_FD_LIMIT_H
/* Limit of open descriptors of this process. Any thread may call the functions. */
#include <stdint.h>

/* Raise the soft limit to the hard limit, at most to 1,048,576. Call this function once at program
 * start. The default soft limit is low, because select(2) cannot handle large descriptors. The
 * daemons do not use select. Returns the soft limit now in force. */
uint64_t fd_limit_raise(void);
/* Return the soft limit now in force. */
uint64_t fd_limit(void);
#endif
