#ifndef BPS_AGENT_TRAINERS_ACCEPT_H
#define BPS_AGENT_TRAINERS_ACCEPT_H
/* Trainers at the listening socket, and the names of their users. The data thread's. */
#include <sys/socket.h>

#include "bps-agent/model/agent.h"

/* Accept a connection at the listening socket. */
void trainer_accept(struct agent *a);
/* Make a connection of that user a trainer. Takes all descriptors; pidfd -1: there is none. */
void trainer_take(struct agent *a, struct quota_account *user, const struct ucred *cred, int sock,
	int pidfd, uint64_t number, struct trainer *t);
/* Look up the user's name, once. */
void trainer_name_user(struct agent *a, struct quota_account *user, uid_t uid);
#endif
