#ifndef BPS_AGENT_TRAINERS_SLOW_CLOSE_H
#define BPS_AGENT_TRAINERS_SLOW_CLOSE_H
/* Closes sockets of trainers on the threads of libuv's pool, because a close may take long.
 * Thread: the data thread calls slow_close_socket. */
struct agent;

/* Close a trainer's socket on another thread. The close also closes the unread descriptors that the
 * trainer has sent over the socket. Closing such a descriptor may block, for example when
 * the descriptor is a TCP socket with SO_LINGER or a file on a slow file system. */
void slow_close_socket(struct agent *a, int sock);
#endif
