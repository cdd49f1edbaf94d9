#ifndef BPS_AGENT_TRAINERS_TRAINER_H
#define BPS_AGENT_TRAINERS_TRAINER_H
/* One trainer: its socket, its control page, its ring. The data thread's. */
#include "bps-agent/model/agent.h"

/* Open because of one trainer, but for arenas: socket, eventfd, pidfd. */
#define TRAINER_FDS 3

/* It has been let in, and is on the agent's list: listen to it, and bound its time until HELLO. */
void trainer_watch(struct trainer *t);
/* The only writer of its state; trainer.c has the table of what may follow. */
void trainer_set_state(struct trainer *t, enum trainer_state state);
/* Keep its memory after it is GONE, until trainer_unref. */
void trainer_ref(struct trainer *t);
void trainer_unref(struct trainer *t);
/* Send m with n_fds descriptors, lent. A trainer that does not take it is dropped later. */
void trainer_send(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds);
/* Its job has failed, or it cannot be of it. */
void trainer_send_job_failure(struct trainer *t, int code, const char *text);
/* Read its socket no more, or again. */
void trainer_hold(struct trainer *t, bool is_held);
/* Its message, which may have waited in its socket, is answered: on to the next. */
void trainer_answered(struct trainer *t);
/* Handle its submissions; true when there were any. */
bool trainer_poll_ring(struct trainer *t);
/* Tell it that the agent sleeps from now on; false: its ring has something, do not. */
bool trainer_may_sleep(struct trainer *t);
/* The agent is awake: submissions need no system call. */
void trainer_awake(struct trainer *t);
/* A round of one of its tensors is over. index: the trainer's own of the tensor; status: 0 or a
 * negative code; workers: behind the sum. It is woken by trainer_flush. */
void trainer_done(struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers);
/* Wake the trainers that have completions they were not told of. */
void trainer_flush(struct agent *a);
/* Drop it: it left, or broke the rules (why is logged as such when is_fault). */
void trainer_drop(struct trainer *t, bool is_fault, const char *why);
/* The process ends, not the trainer: as trainer_drop, but nobody hears of it. */
void trainer_leave(struct trainer *t);
#endif
