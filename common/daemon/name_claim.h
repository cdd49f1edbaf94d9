#ifndef BPS_COMMON_DAEMON_NAME_CLAIM_H
#define BPS_COMMON_DAEMON_NAME_CLAIM_H
/* Claim of a name on this machine, for the life of the process. A second daemon of the same name is
 * refused at its start, instead of taking the first one's place in the cluster. The claim is an
 * abstract UNIX socket. The kernel releases it at the process's death, however it dies, and reports
 * its holder. Network namespaces have separate names.
 *
 * Any local user can take a name, so only a holder of our user or root counts. Any thread. */
#include <sys/types.h>

#include "common/base/error.h"

/* Claim a name. name: any text, cut at 100 characters. ret_fd: close it to release the name; -1
 * when there is no claim because another user's process holds the name. ret_holder: the pid of the
 * holder, set with -EADDRINUSE; 0: it is in another pid namespace.
 * Errors: -EADDRINUSE, -errno. */
int name_claim(const char *name, int *ret_fd, pid_t *ret_holder);
#endif
