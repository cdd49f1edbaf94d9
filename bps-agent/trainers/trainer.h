#ifndef BPS_AGENT_TRAINERS_TRAINER_H
#define BPS_AGENT_TRAINERS_TRAINER_H
/* The agent's end of a trainer's connection: its socket, its control page, its ring. Thread: the
 * data thread. */
#include "bps-agent/model/agent.h"

/* Number of descriptors that the agent keeps open per trainer: socket, eventfd, pidfd. The
 * descriptors of arenas are not counted. */
#define TRAINER_FDS 3

/* Start polling the socket of a new trainer. Disconnects the trainer if no HELLO arrives within
 * GREETING_MS. */
void trainer_start_watching(struct trainer *t);
/* Set the trainer's state. The table of allowed changes is in trainer.c. */
void trainer_set_state(struct trainer *t, enum trainer_state state);
/* Keep the trainer's memory after its state is GONE, until trainer_unref is called. */
void trainer_ref(struct trainer *t);
void trainer_unref(struct trainer *t);
/* Send m with n_fds descriptors, which the caller still owns. A trainer whose socket is full is
 * disconnected later, not in this call. */
void trainer_send_message(struct trainer *t, struct local_msg *m, const int *fds, unsigned n_fds);
/* Report to the trainer that its job has failed, or that the trainer cannot join. cause: NULL if
 * the cause is not known. */
void trainer_send_job_failure(
	struct trainer *t, int code, const char *text, const struct ctl_cause *cause);
/* Stop (is_held) or continue (not is_held) reading the trainer's messages. */
void trainer_set_held(struct trainer *t, bool is_held);
/* Remove the answered message from the trainer's socket, so that the next message can be read. */
void trainer_answered(struct trainer *t);
/* Handle the submissions in the trainer's ring. Returns whether the ring had submissions.
 * Disconnects the trainer if an entry is invalid. */
bool trainer_poll_ring(struct trainer *t);
/* Handle all submissions that the trainer made before this call. Disconnects the trainer if an
 * entry is invalid. */
void trainer_empty_ring(struct trainer *t);
/* Set a flag in the trainer's ring. While the flag is set, the trainer wakes the agent after a
 * submission. Returns false if the agent must not sleep, because the ring has entries. */
bool trainer_may_sleep(struct trainer *t);
/* Clear the flag that trainer_may_sleep has set. While the agent is awake, submissions need no
 * system call. */
void trainer_mark_awake(struct trainer *t);
/* Write to the trainer's control page that a round of one of the trainer's tensors is over. index:
 * the trainer's index of the tensor; status: 0 or a negative code; workers: number of contributors
 * to the sum. trainer_wake_dirty wakes the trainer. */
void trainer_report_round_done(
	struct trainer *t, uint32_t index, uint64_t round, int status, uint32_t workers);
/* Wake the trainers that have new completions in their control pages. */
void trainer_wake_dirty(struct agent *a);
/* Disconnect the trainer, because it has left or has violated the protocol. why: the reason.
 * is_fault: the trainer has violated the protocol, so the reason is logged as a warning. */
void trainer_disconnect(struct trainer *t, bool is_fault, const char *why);
/* Free the trainer's memory, but leave the trainer's connection open for the agent's next process.
 * Send no message to the trainer or the scheduler. */
void trainer_close_for_handover(struct trainer *t);
#endif
