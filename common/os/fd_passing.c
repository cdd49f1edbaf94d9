#include "common/os/fd_passing.h"

#include <string.h>

void fd_passing_attach(
	struct msghdr *m, union fd_passing_room *room, const int *fds, unsigned n_fds)
{
	m->msg_control = room->bytes;
	m->msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	memset(room->bytes, 0, m->msg_controllen);
	room->head.cmsg_level = SOL_SOCKET;
	room->head.cmsg_type = SCM_RIGHTS;
	room->head.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
	memcpy(CMSG_DATA(&room->head), fds, n_fds * sizeof(int));
}

unsigned fd_passing_detach(struct msghdr *m, int *ret_fds, unsigned max)
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len && n < max;
			at += sizeof(int))
			memcpy(&ret_fds[n++], (char *)c + at, sizeof(int));
	}
	return n;
}
