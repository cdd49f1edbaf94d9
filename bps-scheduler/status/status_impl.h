#ifndef BPS_SCHEDULER_STATUS_STATUS_IMPL_H
#define BPS_SCHEDULER_STATUS_STATUS_IMPL_H
/* What the writers of the scheduler's JSON and metrics share: status.c the cluster, problems.c what
 * is wrong with it, job_status.c one job, wait_report.c what that waits for, gauges.c metrics, events.c
 * what happened. */
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/model/model.h"
#include "bps-scheduler/status/status.h"
#include "common/daemon/jsontext.h"

#define STATUS_SCHEMA      1
#define STATUS_MISSING_MAX 8 /* ranks that are named */

/* Add one value; what cannot be added for want of memory is left out. */
void status_put_str(json_t *o, const char *key, const char *s);
void status_put_num(json_t *o, const char *key, uint64_t v);
void status_put_sec(json_t *o, const char *key, double v);
/* Seconds since then, 0 when it is in the future. */
double status_span_s(const struct status_info *info, uint64_t since_ns);
/* The three lines of a problem. */
struct problem_lines {
	char what[1024], effect[256], action[256];
};
/* Append a problem. subject: what has it, the same as long as it lasts ("server s1"); "": the
 * cluster. */
void status_problem(json_t *list, const char *code, bool is_error, const char *subject,
	const struct problem_lines *l);

/* The core's view, as a number and as people write it. */
void status_put_view(json_t *o, const struct sched_core *c);
/* s: MEMBER_STATES for any. */
uint32_t status_count_members(const struct sched_core *c, enum role role, enum member_state s);
/* Partitions of all jobs that wait for a server. */
uint64_t status_orphans(const struct sched_core *c);
/* The first max ranks that have not joined; returns how many it wrote. */
uint32_t status_missing_ranks(const struct sched_job *j, uint32_t *ret, uint32_t max);
/* What is said of a job in the cluster's document. A new reference. */
json_t *status_job_brief(
	const struct sched_core *c, const struct status_info *info, const struct sched_job *j);
/* All problems that the core knows of. A new reference. */
json_t *status_problems(
	const struct sched_core *c, const struct status_info *info, bool *ret_is_error);

/* Use and limits of a job, and of every user with a job; a limit of 0 is none (user_quotas.c). New
 * references. */
json_t *status_job_quota(const struct sched_core *c, const struct sched_job *j);
json_t *status_users(const struct sched_core *c);
void status_quota_metrics(const struct sched_core *c, struct evbuffer *out);
/* Metrics of the running jobs (job_gauges.c). */
void status_job_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out);

/* Mark the problems in list that are muted ("muted": true). Returns whether one is an error, and
 * whether there is any, of those that are not. */
void status_mark_muted(const struct sched_core *c, const struct status_info *info, json_t *list,
	bool *ret_is_error, bool *ret_is_any);

/* What calls of j wait for. p: the answers, NULL when nobody was asked. A new reference
 * (wait_report.c). */
json_t *wait_report_json(const struct status_info *info, const struct sched_core *c,
	const struct sched_job *j, const struct sched_probe *p);
/* Append the problems of j that a probe has found (core/stalls.h; findings.c). */
void status_findings(const struct sched_core *c, const struct status_info *info,
	const struct sched_job *j, const struct sched_finding *f, uint32_t n, json_t *list);
#endif
