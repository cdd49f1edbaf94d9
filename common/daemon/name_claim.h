#ifndef BPS_COMMON_DAEMON_NAME_CLAIM_H
#define BPS_COMMON_DAEMON_NAME_CLAIM_H
/* A claim on a name on this machine, for as long as the process lives: a second daemon of the same
 * name is found out at its start, instead of taking the first one's place in the cluster. It is an
 * abstract UNIX socket, which the kernel gives back at the process's death, however it dies, and
 * which tells who holds it. Network namespaces have names of their own.
 *
 * Any local user can take a name, so only a holder of our user or root's counts. Any thread. */
#include <sys/types.h>

#include "common/base/error.h"

/* name: any text, cut at 100 characters. ret_fd: close it to give the name back; -1 when there is
 * no claim because a stranger holds the name. ret_holder: the pid of the holder, set with
 * -EADDRINUSE; 0: it is in another pid namespace.
 * Errors: -EADDRINUSE, -errno. */
int name_claim(const char *name, int *ret_fd, pid_t *ret_holder);
#endif
