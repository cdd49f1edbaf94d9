#ifndef BPS_AGENT_RESTORE_HANDOVER_READ_H
#define BPS_AGENT_RESTORE_HANDOVER_READ_H
/* Reads what a predecessor of this process has left (handover_write.h). The data thread's. */
struct agent;
struct fdstore;

/* What a former life has left, before the thread runs: its jobs and trainers are there again, and
 * wait for the scheduler. What cannot go on is told so and forgotten. Takes descriptors out of
 * s. */
void handover_read(struct agent *a, struct fdstore *s);
#endif
