#ifndef BPS_AGENT_RESTORE_HANDOVER_READ_H
#define BPS_AGENT_RESTORE_HANDOVER_READ_H
/* Reads the state that the previous process has left (handover_write.h). Thread: the data
 * thread. */
struct agent;
struct fdstore;

/* Restore jobs and trainers before the thread runs; they wait for the scheduler. Jobs that cannot
 * continue are reported and forgotten. Takes descriptors out of s. */
void handover_read(struct agent *a, struct fdstore *s);
#endif
