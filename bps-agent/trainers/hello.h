#ifndef BPS_AGENT_TRAINERS_HELLO_H
#define BPS_AGENT_TRAINERS_HELLO_H
/* HELLO: a trainer gets its control page and joins its job. The data thread's. */
#include "bps-agent/model/agent.h"

/* Serve HELLO; the answer follows the control page. *mem: m's strings, NULL once taken. */
void trainer_hello(struct trainer *t, const struct local_msg *m, void **mem);
/* Answer its HELLO with success, perhaps after a restart. */
void trainer_welcome(struct trainer *t, uint32_t seq, int control_fd);
/* Let its eventfd wake the agent from now on. */
void trainer_listen_event(struct trainer *t);
#endif
