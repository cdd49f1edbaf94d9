#ifndef BPS_COMMON_OS_FD_PASSING_H
#define BPS_COMMON_OS_FD_PASSING_H
/* Pass descriptors in messages over UNIX sockets (SCM_RIGHTS). Any thread may call the
 * functions. */
#include <sys/socket.h>

#define FD_PASSING_MAX 253 /* largest number of descriptors in a message (SCM_MAX_FD) */

union fd_passing_room {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(FD_PASSING_MAX * sizeof(int))];
};

/* Attach n_fds descriptors (at least one) to m. `room` holds the control data of m and must live
 * until m is sent.
 * Owns: the descriptors still belong to the caller. */
void fd_passing_attach(
	struct msghdr *m, union fd_passing_room *room, const int *fds, unsigned n_fds);
/* Copy the descriptors that were received with m to ret_fds, an array of `max` elements. The
 * control buffer of m must not have room for more than `max` descriptors, because only `max`
 * descriptors are copied. Returns the number of copied descriptors.
 * Owns: the caller owns the descriptors. */
unsigned fd_passing_detach(struct msghdr *m, int *ret_fds, unsigned max);
#endif
