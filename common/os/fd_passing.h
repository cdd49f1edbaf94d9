#ifndef BPS_COMMON_OS_FD_PASSING_H
#define BPS_COMMON_OS_FD_PASSING_H
/* Descriptors in messages over UNIX sockets (SCM_RIGHTS). Any thread. */
#include <sys/socket.h>

#define FD_PASSING_MAX 253 /* of one message: SCM_MAX_FD of the kernel */

union fd_passing_room {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(FD_PASSING_MAX * sizeof(int))];
};

/* Have m bring n_fds descriptors, at least one. room lives until m is sent.
 * Owns: fds stay the caller's. */
void fd_passing_attach(
	struct msghdr *m, union fd_passing_room *room, const int *fds, unsigned n_fds);
/* Take the descriptors that came with m, all records of them: at most `max`, which its room for
 * control bytes must bound. Returns how many; they are the caller's. */
unsigned fd_passing_detach(struct msghdr *m, int *ret_fds, unsigned max);
#endif
