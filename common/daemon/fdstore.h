#ifndef BPS_COMMON_DAEMON_FDSTORE_H
#define BPS_COMMON_DAEMON_FDSTORE_H
/* Descriptors that outlive the process: the service manager keeps them under names and passes them
 * to the next process of the service (systemd's file descriptor store, sd_pid_notify_with_fds(3);
 * bpsrun implements the same). Without a service manager that keeps descriptors, fdstore_put does
 * nothing, and fdstore_inherit finds none.
 *
 * The manager keeps a descriptor that was sent before the process died, even when the manager reads
 * the message only after the death. The manager sends no answer. So if it has no room for a
 * descriptor, only the next process notices that the descriptor is missing. The manager does not
 * poll the descriptors (FDPOLL=0). So only the next process notices that the peer of a kept socket
 * has closed it.
 *
 * Thread: main for fdstore_inherit, fdstore_take and fdstore_fini; any for the other functions. */
#include <stddef.h>

#include "common/base/error.h"

#define FDSTORE_NAME_BYTES 64

struct fdstore_fd {
	int fd; /* -1: fdstore_take has taken the descriptor */
	char name[FDSTORE_NAME_BYTES];
};
/* Descriptors that the manager passed to this process, including the sockets of socket
 * activation. */
struct fdstore {
	struct fdstore_fd *fds;
	size_t n;
};

/* Read LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, and list the descriptors that they name in *ret.
 * All of them become close-on-exec.
 * Errors: -ENOMEM, -errno; err gets the text, and *ret is empty. */
int fdstore_inherit(struct fdstore *ret, struct err_text *err);
/* Close the descriptors that were not taken, and free the list. NULL is allowed. */
void fdstore_fini(struct fdstore *s);
/* Take one descriptor of that name, which the caller then owns. Returns -1 when none is left. */
int fdstore_take(struct fdstore *s, const char *name);

/* Ask the manager to keep n <= NOTIFY_FDS_MAX descriptors under that name, in addition to those
 * that it has already. The name must contain neither ':' nor blanks. Waits up to 200 ms for a slow
 * manager.
 * Errors: -errno; the descriptors are not kept. */
int fdstore_put(const char *name, const int *fds, unsigned n);
/* Ask the manager to keep one descriptor, as fdstore_put does, but without waiting. If fd is -1,
 * ask the manager to close all descriptors of that name, as fdstore_remove does.
 * Errors: -EAGAIN: the manager has not read the previous messages; -errno. */
int fdstore_offer(const char *name, int fd);
/* Ask the manager to close all descriptors of that name.
 * Errors: -errno; the manager still keeps the descriptors. */
int fdstore_remove(const char *name);
#endif
