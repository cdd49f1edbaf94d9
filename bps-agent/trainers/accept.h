#ifndef BPS_AGENT_TRAINERS_ACCEPT_H
#define BPS_AGENT_TRAINERS_ACCEPT_H
/* Accepts trainers at the listening socket, and looks up the names of their users. Thread: the data
 * thread. */
#include <sys/socket.h>

#include "bps-agent/model/agent.h"

/* Accept a connection at the listening socket. */
void trainer_accept(struct agent *a);
/* Initialise t as the trainer of the connection sock, and start reading its messages. pidfd: pidfd
 * of the trainer's process, or -1. Owns: takes `sock`, `pidfd` and the reference to `user`. */
void trainer_register(struct agent *a, struct quota_account *user, const struct ucred *cred,
	int sock, int pidfd, uint64_t number, struct trainer *t);
/* Look up the user's name on another thread. Does nothing if the name is known. */
void trainer_name_user(struct agent *a, struct quota_account *user, uid_t uid);
#endif
