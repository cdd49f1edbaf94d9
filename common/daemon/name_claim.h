#ifndef BPS_COMMON_DAEMON_NAME_CLAIM_H
#define BPS_COMMON_DAEMON_NAME_CLAIM_H
/* Claim of a name on this machine, valid until the process ends. With the claim, a second daemon
 * with the same name cannot start. Without the claim, the second daemon would replace the first
 * daemon in the cluster. The claim is a listening abstract UNIX socket. The kernel always closes
 * the socket when the process ends, and reports which process has the socket. Each network
 * namespace has its own claims.
 *
 * Any local user can make such a socket. So a claim counts only if the process that has the socket
 * runs as root, or as the same user as the process that calls name_claim. Any thread may call the
 * functions. */
#include <sys/types.h>

/* Claim a name. name: any text, cut at 100 bytes. After a successful claim, *ret_fd is the claim's
 * socket, and the function returns 0. To release the name, close *ret_fd.
 *
 * If another process has claimed the name, the result depends on that claim. If the claim counts
 * (see above), the function returns -EADDRINUSE. Then *ret_holder is the pid of that process, or 0
 * if that process is in another pid namespace. If the claim does not count, or that process cannot
 * be identified, the function claims nothing and sets *ret_fd to -1, but also returns 0. Other
 * errors: -errno. */
int name_claim(const char *name, int *ret_fd, pid_t *ret_holder);
/* Close the connections of processes that have asked who has the name. The holder calls this
 * function from time to time, because the kernel queues only a few connections. When the queue is
 * full, the next process cannot learn who has the name. fd: the claim's socket; -1: none. */
void name_claim_drain(int fd);
#endif
