#ifndef BPS_COMMON_DAEMON_FDSTORE_H
#define BPS_COMMON_DAEMON_FDSTORE_H
/* Descriptors that outlive the process: the service manager keeps them under names and hands them
 * to the next process of the service (systemd's file descriptor store, sd_pid_notify_with_fds(3);
 * bpsrun speaks the same). Without a manager, or with one that keeps none, putting does nothing,
 * and nothing is inherited.
 *
 * A manager takes what it was sent before the process died also when it looks only afterwards, and
 * does not answer: what it had no room for is missed at the next start. It watches nothing
 * (FDPOLL=0): the end of a kept socket is for the next process to see.
 *
 * Thread: any for put and remove. */
#include <stddef.h>

#include "common/base/error.h"

#define FDSTORE_NAME_BYTES 64

struct fdstore_fd {
	int fd; /* -1: somebody has taken it */
	char name[FDSTORE_NAME_BYTES];
};
/* What the manager handed to this process, sockets of activation too. */
struct fdstore {
	struct fdstore_fd *fds;
	size_t n;
};

/* Read LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES; all become close-on-exec. Errors: -ENOMEM,
 * -errno with a sentence; nothing is taken. */
int fdstore_inherit(struct fdstore *ret, struct err_text *err);
/* Close what nobody has taken, and free. NULL is allowed. */
void fdstore_fini(struct fdstore *s);
/* Take one of that name: the caller's. -1: there is none (left). */
int fdstore_take(struct fdstore *s, const char *name);

/* Keep n <= NOTIFY_FDS_MAX descriptors under that name, beside what is there under it; it has
 * neither ':' nor blanks. Waits up to 200 ms for a manager that is slow. Errors: -errno; they are
 * not kept. */
int fdstore_put(const char *name, const int *fds, unsigned n);
/* As fdstore_put of one, or as fdstore_remove with fd -1, now or not at all.
 * Errors: -EAGAIN the manager has not read what came before; -errno. */
int fdstore_offer(const char *name, int fd);
/* Forget all under that name. Errors: -errno: it keeps them for longer. */
int fdstore_remove(const char *name);
#endif
