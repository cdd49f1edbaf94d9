#ifndef BPS_AGENT_TRAINERS_SLOW_CLOSE_H
#define BPS_AGENT_TRAINERS_SLOW_CLOSE_H
/* Closes the sockets of trainers, which may take long to close. Thread: the data thread. */
struct agent;

/* Close a trainer's socket on another thread. This also closes the unread descriptors that the
 * trainer has sent over the socket. Closing one may block, for example a TCP socket with SO_LINGER,
 * or a file on a slow file system. */
void slow_close(struct agent *a, int sock);
#endif
