#ifndef BPS_AGENT_RESTORE_HANDOVER_READ_H
#define BPS_AGENT_RESTORE_HANDOVER_READ_H
/* Restores the state that the previous process has left. handover_write.h describes this state. */
struct agent;
struct fdstore;

/* Restore jobs and trainers. Call this function before the data thread runs. Messages from the
 * trainers of a restored job are read only after the scheduler has answered. Jobs that cannot
 * continue are ended, and their trainers get the reason. Takes the descriptors of restored jobs and
 * trainers out of the store s. */
void handover_restore_all(struct agent *a, struct fdstore *s);
#endif
