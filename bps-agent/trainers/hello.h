#ifndef BPS_AGENT_TRAINERS_HELLO_H
#define BPS_AGENT_TRAINERS_HELLO_H
/* Serves HELLO, the first message of a trainer. The trainer gets its control page and joins its
 * job. Thread: the data thread. */
#include "bps-agent/model/agent.h"

/* Serve HELLO. The answer is sent when the control page has been made. *mem: memory that holds the
 * strings of m; set to NULL if the function takes that memory. */
void on_hello_of_trainer(struct trainer *t, const struct local_msg *m, void **mem);
/* Answer the trainer's HELLO with success. After a restart, the agent calls this function to
 * repeat the answer. */
void trainer_welcome(struct trainer *t, uint32_t seq, int control_fd);
/* Start polling the eventfd by which the trainer wakes the sleeping agent. */
void trainer_listen_event(struct trainer *t);
#endif
