#ifndef BPS_AGENT_LISTEN_SOCKET_H
#define BPS_AGENT_LISTEN_SOCKET_H
/* The socket to which trainers connect. Thread: the control thread. */
#include <stdbool.h>

#include "common/base/error.h"
#include "common/daemon/fdstore.h"

struct listen_socket {
	int fd;        /* -1: none */
	bool has_file; /* the socket's file is this agent's, not the service manager's */
};

/* Use the listening socket that the service manager has passed, or open one at the path, for the
 * group; group "" keeps the group of the process. can_hand_over: store the socket with the service
 * manager for the next process. Call listen_socket_close also after an error.
 * Errors: a negative code; err gets the text. */
int listen_socket_open(struct listen_socket *s, const char *path, const char *group,
	struct fdstore *inherited, bool can_hand_over, struct err_text *err);
/* Close the socket. Remove its file, unless the next process takes the socket. */
void listen_socket_close(const struct listen_socket *s, const char *path, bool can_hand_over);
#endif
