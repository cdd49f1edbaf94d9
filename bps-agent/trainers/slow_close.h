#ifndef BPS_AGENT_TRAINERS_SLOW_CLOSE_H
#define BPS_AGENT_TRAINERS_SLOW_CLOSE_H
/* Closes sockets that trainers can make slow to close. The data thread's. */
struct agent;

/* Close a trainer's socket on another thread. Closing can be slow, because it also closes the
 * descriptors that the trainer has sent (a TCP socket that lingers, a slow file system). */
void slow_close(struct agent *a, int sock);
#endif
