#ifndef BPS_COMMON_DAEMON_NAME_CLAIM_H
#define BPS_COMMON_DAEMON_NAME_CLAIM_H
/* Claim of a name on this machine, for as long as the process lives. Without it, a second daemon
 * with the same name would replace the first one in the cluster; with it, the second one cannot
 * start. The claim is a listening abstract UNIX socket. The kernel closes the socket however the
 * process ends, and reports which process has it. Each network namespace has its own claims.
 *
 * Any local user can make such a socket, so a claim counts only if its process belongs to this
 * process's user or to root. Any thread may call the functions. */
#include <sys/types.h>

#include "common/base/error.h"

/* Claim a name. name: any text, cut at 100 characters. Returns 0 with *ret_fd, which releases the
 * name when it is closed. *ret_fd is -1, and nothing is claimed, when a process of another user has
 * the name. After -EADDRINUSE *ret_holder is the pid of the process that has the name. It is 0 when
 * that process is in another pid namespace.
 * Errors: -EADDRINUSE, -errno. */
int name_claim(const char *name, int *ret_fd, pid_t *ret_holder);
#endif
