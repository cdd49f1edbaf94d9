#ifndef BPS_SCHEDULER_STATUS_STATUS_IMPL_H
#define BPS_SCHEDULER_STATUS_STATUS_IMPL_H
/* Declares the functions that the files of this folder share. The following files write JSON.
 * status.c: the cluster; problems.c: the problems of the cluster; job_status.c: one job;
 * wait_report.c: the calls that wait; step_report.c: where the time of steps goes; events.c: the
 * events. gauges.c writes the metrics. */
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/model/model.h"
#include "bps-scheduler/status/status.h"
#include "common/daemon/explanations.h"
#include "common/daemon/jsontext.h"

#define STATUS_SCHEMA      1
#define STATUS_MISSING_MAX 8 /* largest number of missing ranks that are listed */

/* Add one value to the JSON object o. The value is left out if there is no memory. */
void status_put_str(json_t *o, const char *key, const char *s);
void status_put_num(json_t *o, const char *key, uint64_t v);
void status_put_sec(json_t *o, const char *key, double v);
/* Return the seconds from since_ns to info->now_ns; 0 if since_ns is later than info->now_ns. */
double status_seconds_since(const struct status_info *info, uint64_t since_ns);
/* Append a problem to list. kind, name: the affected object, such as "server" and "s1"; "": the
 * cluster. They must not change while the problem lasts. effect: the effect on jobs; NULL: the text
 * of the table of explanations. fmt: what is wrong. */
void status_add_problem(json_t *list, const char *code, bool is_error, const char *kind,
	const char *name, const char *effect, const char *fmt, ...)
	__attribute__((format(printf, 7, 8)));
/* Return whether `list` contains a problem with this code and subject. subject: NULL: any. */
bool status_has_problem(json_t *list, const char *code, const char *subject);

/* Add the core's view to the JSON object o, as a number and as text. */
void status_put_view(json_t *o, const struct sched_core *c);
/* Count the members of a role that are in state s. If s is MEMBER_STATES, count the members in all
 * states. */
uint32_t status_count_members(const struct sched_core *c, enum role role, enum member_state s);
/* Count the partitions that wait for a server, in all jobs. */
uint64_t status_orphans(const struct sched_core *c);
/* Write to ret the lowest ranks that have not joined, at most `max` ranks. Returns the number of
 * written ranks. */
uint32_t status_missing_ranks(const struct sched_job *j, uint32_t *ret, uint32_t max);
/* Return a job's entry for the status of the cluster, as a new reference. */
json_t *status_job_brief(
	const struct sched_core *c, const struct status_info *info, const struct sched_job *j);
/* Return all problems of the cluster, muted ones too, as a new reference. */
json_t *status_problems(const struct sched_core *c, const struct status_info *info);

/* status_job_quota returns the quotas of a job. status_users_json returns the quotas of each user
 * that has a job. Both return the use and the limit of each quota (user_quotas.c). A limit of 0
 * means unlimited. The results are new references. */
json_t *status_job_quota(const struct sched_core *c, const struct sched_job *j);
json_t *status_users_json(const struct sched_core *c);
void status_quota_metrics(const struct sched_core *c, struct evbuffer *out);
/* Append metrics of the running jobs (job_gauges.c). */
void status_job_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out);

/* Set "muted" to true or false in each problem of the array `list`. *ret_is_any: at least one
 * problem is not muted. *ret_is_error: at least one problem that is not muted is an error. */
void status_mark_muted(const struct sched_core *c, const struct status_info *info, json_t *list,
	bool *ret_is_error, bool *ret_is_any);

/* Return what the calls of j wait for (wait_report.c), as a new reference to JSON. p: the finished
 * probe of j, or NULL. */
json_t *wait_report_json(const struct status_info *info, const struct sched_core *c,
	const struct sched_job *j, const struct sched_probe *p);
/* Return where the time of the last steps went (step_report.c), as a new reference: on the machine
 * with this member number, and on the mean machine of the job. null: the agents do not know. */
json_t *step_report_of_agent(const struct sched_core *c, const struct sched_job *j,
	const struct sched_probe *p, uint32_t member);
json_t *step_report_of_job(
	const struct sched_core *c, const struct sched_job *j, const struct sched_probe *p);
/* Append the problems of job j that a probe has found (see core/stalls.h). The function is in
 * findings.c. */
void status_findings(const struct sched_core *c, const struct status_info *info,
	const struct sched_job *j, const struct sched_finding *f, uint32_t n, json_t *list);
#endif
