#ifndef BPS_AGENT_TRAINERS_TRAINER_IMPL_H
#define BPS_AGENT_TRAINERS_TRAINER_IMPL_H
/* What the files of a trainer's connection share: accept.c lets it in, hello.c makes its control
 * page, trainer.c has it from then on, slow_close.c closes its socket. The data thread's. */
#include <sys/socket.h>

#include "bps-agent/agent.h"

/* Open because of one trainer, but for arenas: socket, eventfd, pidfd. */
#define TRAINER_FDS 3

/* ---- trainer.c ---- */
/* It has been let in, and is on the agent's list: listen to it, and bound its time until HELLO. */
void trainer_watch(struct trainer *t);

/* ---- hello.c ---- */
/* Its HELLO; answered when its control page is made. *mem: of m's strings; set to NULL when it is
 * needed longer. */
void trainer_hello(struct trainer *t, const struct local_msg *m, void **mem);
/* Its HELLO is answered well, perhaps by a successor. */
void trainer_welcome(struct trainer *t, uint32_t seq, int control_fd);
/* Its eventfd wakes the agent from now on. */
void trainer_listen_event(struct trainer *t);

/* ---- accept.c ---- */
/* A connection of that user becomes a trainer of the agent. Takes all descriptors; pidfd -1: there
 * is none. */
void trainer_take(struct agent *a, struct quota_account *user, const struct ucred *cred, int sock,
	int pidfd, uint64_t number, struct trainer *t);
/* Its user's name is looked up, once. */
void trainer_name_user(struct agent *a, struct quota_account *user, uid_t uid);

/* ---- slow_close.c ---- */
/* Close a trainer's socket. It can make that slow: the descriptors that it has sent go with it (a
 * TCP socket that lingers, a file system that answers late). So not on the loop's thread. */
void slow_close(struct agent *a, int sock);
#endif
