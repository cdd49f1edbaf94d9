#ifndef BPS_AGENT_TRAINERS_SLOW_CLOSE_H
#define BPS_AGENT_TRAINERS_SLOW_CLOSE_H
/* Closing what trainers can make slow to close. The data thread's. */
struct agent;

/* Close a trainer's socket. It can make that slow: the descriptors that it has sent go with it (a
 * TCP socket that lingers, a file system that answers late). So not on the loop's thread. */
void slow_close(struct agent *a, int sock);
#endif
