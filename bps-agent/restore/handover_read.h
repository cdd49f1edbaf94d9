#ifndef BPS_AGENT_RESTORE_HANDOVER_READ_H
#define BPS_AGENT_RESTORE_HANDOVER_READ_H
/* Reads what a predecessor of this process has left (handover_write.h). The data thread's. */
struct agent;
struct fdstore;

/* Restore jobs and trainers, before the thread runs; they wait for the scheduler. Those that cannot
 * go on are told so and forgotten. Takes descriptors out of s. */
void handover_read(struct agent *a, struct fdstore *s);
#endif
