#ifndef BPS_AGENT_TRAINERS_HELLO_H
#define BPS_AGENT_TRAINERS_HELLO_H
/* HELLO: a trainer gets its control page and joins its job. The data thread's. */
#include "bps-agent/model/agent.h"

/* Its HELLO; answered when its control page is made. *mem: of m's strings; set to NULL when it is
 * needed longer. */
void trainer_hello(struct trainer *t, const struct local_msg *m, void **mem);
/* Its HELLO is answered well, perhaps by a successor. */
void trainer_welcome(struct trainer *t, uint32_t seq, int control_fd);
/* Its eventfd wakes the agent from now on. */
void trainer_listen_event(struct trainer *t);
#endif
