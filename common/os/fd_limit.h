#ifndef BPS_COMMON_OS_FD_LIMIT_H
#define BPS_COMMON_OS_FD_LIMIT_H
/* Limit of open descriptors of this process. Any thread. */
#include <stdint.h>

/* Raise the soft limit to the hard one (1,048,576 at most), once at program start. Systems keep the
 * soft limit low for programs that use select(2); none of ours do. Returns the limit now in
 * force. */
uint64_t fd_limit_raise(void);
/* Return the limit now in force. */
uint64_t fd_limit(void);
#endif
