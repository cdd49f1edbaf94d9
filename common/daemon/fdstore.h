#ifndef BPS_COMMON_DAEMON_FDSTORE_H
#define BPS_COMMON_DAEMON_FDSTORE_H
/* Descriptors that outlive the process: the service manager stores them under names and passes them
 * to the next process of the service. The manager is systemd (file descriptor store,
 * sd_pid_notify_with_fds(3)) or bpsrun, which implements the same protocol. Without a service
 * manager that stores descriptors, fdstore_put does nothing, and fdstore_inherit returns an empty
 * list.
 *
 * The manager keeps a descriptor that was sent before the process ended, even if the manager reads
 * the message after the process has ended. The manager sends no answer. So if the manager has no
 * room for a descriptor, only the next process can detect that the descriptor is missing. The
 * manager does not poll the descriptors (FDPOLL=0). So if the peer of a stored socket closes the
 * connection, only the next process can detect this.
 *
 * Thread: main for fdstore_inherit, fdstore_take and fdstore_fini; any for the other functions. */
#include <stddef.h>

#include "common/base/error.h"

#define FDSTORE_NAME_BYTES 64

struct fdstore_fd {
	int fd; /* -1: fdstore_take has taken the descriptor */
	char name[FDSTORE_NAME_BYTES];
};
/* Descriptors that the service manager passed to this process, including the sockets of socket
 * activation. */
struct fdstore {
	struct fdstore_fd *fds;
	size_t n;
};

/* Read LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, and store in *ret the descriptors that these
 * variables describe. Make these descriptors close-on-exec.
 * Errors: -ENOMEM, -errno; err gets the text, and *ret is empty. */
int fdstore_inherit(struct fdstore *ret, struct err_text *err);
/* Close the descriptors that were not taken, and free the list. NULL is allowed. */
void fdstore_fini(struct fdstore *s);
/* Take one descriptor with this name out of the list. The caller then owns the descriptor. Returns
 * -1 when the list has no more descriptors with this name. */
int fdstore_take(struct fdstore *s, const char *name);

/* Ask the manager to store a descriptor under this name, in addition to the descriptors that it has
 * stored before. The name must not contain ':' or blanks. Waits up to 200 ms for a slow manager.
 * Errors: -errno; the manager does not store the descriptor. */
int fdstore_put(const char *name, int fd);
/* Ask the manager to store one descriptor, as fdstore_put does, but without waiting. If fd is -1,
 * ask the manager to close all descriptors with this name, as fdstore_remove does.
 * Errors: -EAGAIN: the manager has not read the previous messages; -errno. */
int fdstore_put_or_remove(const char *name, int fd);
/* Ask the manager to close all descriptors that it has stored under this name.
 * Errors: -errno; the manager still has the descriptors. */
int fdstore_remove(const char *name);
#endif
