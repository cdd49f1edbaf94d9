#ifndef BPS_AGENT_STEPS_JOB_STEPS_H
#define BPS_AGENT_STEPS_JOB_STEPS_H
/* Where the time of a job's steps goes: connects the core's records of rounds (round_record.h) with
 * the waits that trainers note in their control pages (local.h), and reports the sums. Thread: the
 * data thread. */
#include <stdbool.h>
#include <stdint.h>

#include "bps-agent/core/round_record.h"
#include "bps-agent/model/control.h"
#include "common/wire/ctlmsg.h"

struct agent;
struct job;

/* Functions of struct agt_env. ctx is the agent, and tensor_user a struct tensor. */
bool job_steps_on_begun(void *ctx, void *tensor_user, uint64_t round, uint64_t now_ns);
void job_steps_on_record(void *ctx, void *tensor_user, const struct round_record *record);
/* Write the sums of the job's last steps. If no step is complete, or if not all waits are known,
 * n_steps is 0. */
void job_steps_report(const struct job *job, struct ctl_steps *ret);
/* Forget for which members the machine has waited, because the members get other numbers. */
void job_steps_forget_members(struct job *job);
/* If the job ends with an error, log where the time of its last steps went, as far as that is
 * known. code: 0 or a negative error code. */
void job_steps_log_end(const struct job *job, int code);
/* Write the totals of the agent's oldest jobs to `ret`. Returns their number, at most
 * AGENT_STEP_JOBS. */
uint32_t job_steps_totals(const struct agent *a, struct agent_job_steps ret[AGENT_STEP_JOBS]);
#endif
