#ifndef BPS_AGENT_TRAINERS_TRAINER_H
#define BPS_AGENT_TRAINERS_TRAINER_H
/* One trainer: its socket, its control page, its ring. The data thread's. */
#include "bps-agent/model/agent.h"

/* Open because of one trainer, but for arenas: socket, eventfd, pidfd. */
#define TRAINER_FDS 3

/* Poll the socket of a trainer that was let in, and bound the time until HELLO. */
void trainer_watch(struct trainer *t);
/* Write its state; trainer.c has the table of what may follow. */
void trainer_set_state(struct trainer *t, enum trainer_state state);
/* Keep its memory after it is GONE, until trainer_unref. */
void trainer_ref(struct trainer *t);
void trainer_unref(struct trainer *t);
/* Send m with n_fds descriptors, lent. A trainer that does not take it is dropped later. */
void trainer_send(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds);
/* Tell it that its job has failed, or that it was not let in. */
void trainer_send_job_failure(struct trainer *t, int code, const char *text);
/* Stop reading its socket, or read it again. */
void trainer_hold(struct trainer *t, bool is_held);
/* Take the answered message out of its socket; the next is read then. */
void trainer_answered(struct trainer *t);
/* Handle its submissions; true when there were any. */
bool trainer_poll_ring(struct trainer *t);
/* Tell it that the agent sleeps from now on; false: its ring has something, do not. */
bool trainer_may_sleep(struct trainer *t);
/* Mark the agent as awake: submissions need no system call. */
void trainer_awake(struct trainer *t);
/* A round of one of its tensors is over. index: the trainer's own of the tensor; status: 0 or a
 * negative code; workers: behind the sum. It is woken by trainer_flush. */
void trainer_done(struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers);
/* Wake the trainers that have completions they were not told of. */
void trainer_flush(struct agent *a);
/* Drop it: it left, or broke the rules (why is logged as such when is_fault). */
void trainer_drop(struct trainer *t, bool is_fault, const char *why);
/* Leave it to a successor: as trainer_drop, but without reporting it. */
void trainer_leave(struct trainer *t);
#endif
