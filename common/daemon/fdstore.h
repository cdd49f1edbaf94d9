#ifndef BPS_COMMON_DAEMON_FDSTORE_H
#define BPS_COMMON_DAEMON_FDSTORE_H
/* Descriptors that outlive the process: the service manager keeps them under names and passes them
 * to the next process of the service (systemd's file descriptor store, sd_pid_notify_with_fds(3);
 * bpsrun implements the same). Without a manager, or with one that keeps none, putting does
 * nothing, and nothing is inherited.
 *
 * A manager takes a descriptor sent before the process died, even when it reads the message later.
 * It sends no answer: a descriptor that it had no room for is missing at the next start. It watches
 * none of them (FDPOLL=0), so the next process detects the end of a kept socket.
 *
 * Thread: any for put and remove. */
#include <stddef.h>

#include "common/base/error.h"

#define FDSTORE_NAME_BYTES 64

struct fdstore_fd {
	int fd; /* -1: already taken */
	char name[FDSTORE_NAME_BYTES];
};
/* Descriptors that the manager passed to this process, including sockets of activation. */
struct fdstore {
	struct fdstore_fd *fds;
	size_t n;
};

/* Read LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES; all descriptors become close-on-exec.
 * Errors: -ENOMEM, -errno with a sentence; nothing is taken. */
int fdstore_inherit(struct fdstore *ret, struct err_text *err);
/* Close the descriptors that were not taken, and free. NULL is allowed. */
void fdstore_fini(struct fdstore *s);
/* Take one descriptor of that name; the caller owns it. -1: none is left. */
int fdstore_take(struct fdstore *s, const char *name);

/* Keep n <= NOTIFY_FDS_MAX descriptors under that name, in addition to those already there. The
 * name has neither ':' nor blanks. Waits up to 200 ms for a slow manager.
 * Errors: -errno; they are not kept. */
int fdstore_put(const char *name, const int *fds, unsigned n);
/* Put one descriptor, or remove the name with fd -1, without waiting.
 * Errors: -EAGAIN the manager has not read the previous messages; -errno. */
int fdstore_offer(const char *name, int fd);
/* Remove all descriptors of that name.
 * Errors: -errno: the manager still keeps them. */
int fdstore_remove(const char *name);
#endif
