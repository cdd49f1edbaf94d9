#ifndef BPS_AGENT_CORE_STEP_LOG_H
#define BPS_AGENT_CORE_STEP_LOG_H
/* The last steps of a job on this machine, and where their time went. A step begins when a worker
 * submits a round whose number no tensor of the job has had before. So the tensor with the most
 * rounds sets the pace. If it rests while another tensor has many rounds, the other one sets the
 * pace from then on, as when a program trains a second model (job_steps.c).
 *
 * The exposed time of a step is the time in which the workers' calls wait for rounds; the rest is
 * computing. Each landing of a sum divides the wait since the landing before over the phases of its
 * round (round_record.h). Waits that no landing explains, such as the wake-up of the worker, count
 * as PHASE_PULL. All times are means of the machine's workers, so computing and phases add up to
 * the step. No clock is read and no memory is allocated. Thread: the thread of the core. */
#include <stdint.h>

#include "bps-agent/core/round_record.h"
#include "common/wire/wire.h"

#define STEPS_KEPT 10

struct step {
	uint64_t length_ns, exposed_ns;
	uint64_t bytes; /* of the tensors whose rounds ended in the step */
	uint64_t phase_ns[N_PHASES];
	/* 1 + number of the member for which this machine waited longest; 0: no known one */
	uint16_t last_member;
};

struct step_log {
	uint64_t round; /* largest number of a round that has begun; 0: no step has begun */
	uint64_t began_ns;
	uint64_t waited_ns; /* the sum of the workers' waits when the step in progress began */
	/* in the step in progress, sums over the workers: time of each phase, and of PHASE_WAIT by
	 * member */
	uint64_t phase_ns[N_PHASES];
	uint64_t member_ns[WIRE_MEMBERS_MAX];
	uint16_t last_member; /* 1 + the member with the largest member_ns; 0: none */
	uint64_t bytes;       /* of the rounds that ended in the step in progress */
	uint64_t n_steps;     /* number of complete steps */
	struct step kept[STEPS_KEPT];
	/* totals of all complete steps */
	uint64_t computing_ns, total_ns[N_PHASES];
};

/* Sum of the last steps. */
struct step_summary {
	uint32_t n_steps; /* number of these steps */
	struct step sum;  /* last_member: the member that was the last one in most of the steps */
	uint32_t n_last;  /* number of steps in which it was */
};

/* Note that a round of a tensor begins. waited_ns: time that the workers have waited so far, also
 * in waits that go on, summed over n_workers workers. */
void step_log_round_begins(struct step_log *log, uint64_t round, uint64_t now_ns,
	uint64_t waited_ns, uint32_t n_workers);
/* Forget the kept steps and the step in progress. The next round that begins also begins a step,
 * whatever its number is. */
void step_log_restart(struct step_log *log);
/* Note that a round of a tensor of `bytes` bytes ends. */
void step_log_round_ends(struct step_log *log, uint64_t bytes);
/* Divide the time from from_ns to the end of the round, in which a worker waited, over the phases
 * of the round. */
void step_log_divide_wait(
	struct step_log *log, const struct round_record *record, uint64_t from_ns);
/* Forget the kept steps and the members, because the members of the job get other numbers. */
void step_log_forget_members(struct step_log *log);
void step_log_sum_up(const struct step_log *log, struct step_summary *ret);
#endif
