#ifndef BPS_AGENT_TRAINERS_TRAINER_H
#define BPS_AGENT_TRAINERS_TRAINER_H
/* Connection of a trainer: its socket, its control page, its ring. The data thread's. */
#include "bps-agent/model/agent.h"

/* Descriptors of one trainer, without arenas: socket, eventfd, pidfd. */
#define TRAINER_FDS 3

/* Poll the socket of a trainer that was let in, and bound the time until HELLO. */
void trainer_watch(struct trainer *t);
/* Set its state; trainer.c has the table of allowed changes. */
void trainer_set_state(struct trainer *t, enum trainer_state state);
/* Keep its memory after it is GONE, until trainer_unref. */
void trainer_ref(struct trainer *t);
void trainer_unref(struct trainer *t);
/* Send m with n_fds descriptors, lent. A trainer that does not read it is dropped later. */
void trainer_send(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds);
/* Report to the trainer that its job has failed, or that it was not let in. */
void trainer_send_job_failure(struct trainer *t, int code, const char *text);
/* Stop reading its socket, or read it again. */
void trainer_hold(struct trainer *t, bool is_held);
/* Remove the answered message from its socket; the next one is read then. */
void trainer_answered(struct trainer *t);
/* Handle its submissions; true when there were any. */
bool trainer_poll_ring(struct trainer *t);
/* Announce that the agent is about to sleep; false: its ring has entries, do not sleep. */
bool trainer_may_sleep(struct trainer *t);
/* Mark the agent as awake: submissions need no system call. */
void trainer_awake(struct trainer *t);
/* Report that a round of one of its tensors is over. index: the trainer's own of the tensor;
 * status: 0 or a negative code; workers: contributors to the sum. trainer_flush wakes the
 * trainer. */
void trainer_done(struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers);
/* Wake the trainers that have unreported completions. */
void trainer_flush(struct agent *a);
/* Drop the trainer: it left, or broke the rules (why is logged as a fault when is_fault). */
void trainer_drop(struct trainer *t, bool is_fault, const char *why);
/* Leave the trainer to the next process: as trainer_drop, but without reporting it. */
void trainer_leave(struct trainer *t);
#endif
