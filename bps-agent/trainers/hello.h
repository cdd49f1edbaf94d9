#ifndef BPS_AGENT_TRAINERS_HELLO_H
#define BPS_AGENT_TRAINERS_HELLO_H
/* Serves HELLO, after which a trainer has its control page and joins its job. Thread: the data
 * thread. */
#include "bps-agent/model/agent.h"

/* Serve HELLO. The answer is sent when the control page has been made. *mem: memory of m's strings;
 * set to NULL if the function takes it. */
void trainer_hello(struct trainer *t, const struct local_msg *m, void **mem);
/* Answer the trainer's HELLO with success. Also called after a restart, to repeat the answer. */
void trainer_welcome(struct trainer *t, uint32_t seq, int control_fd);
/* Start polling the trainer's eventfd, which wakes the agent when it sleeps. */
void trainer_listen_event(struct trainer *t);
#endif
