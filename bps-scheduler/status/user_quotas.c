/* Writes the limits and the use of the quotas into the status. Writes two metrics for each quota:
 * the used share of the limit, and the number of refused requests. All functions run on the core's
 * thread. */
#include "bps-scheduler/core/admission.h"
#include "bps-scheduler/status/status_impl.h"
#include "common/daemon/metrics.h"

#define USERS_MAX 256 /* largest number of users that are listed */

static json_t *quota_use_json(uint64_t used, uint64_t limit)
{
	json_t *o = json_object();

	status_put_num(o, "used", used);
	status_put_num(o, "limit", limit);
	return o;
}

static uint64_t server_memory_share(const struct sched_core *c, uint32_t percent)
{
	return admission_share(admission_servers_bytes(c), percent);
}

json_t *status_job_quota(const struct sched_core *c, const struct sched_job *j)
{
	json_t *o = json_object();

	json_object_set_new(o, "tensors", quota_use_json(j->n_tensors, c->cfg.job_tensors));
	json_object_set_new(o, "server_bytes",
		quota_use_json(admission_job_bytes(j), server_memory_share(c, c->cfg.job_share)));
	return o;
}

/* Return whether j is the newest job of its user. */
static bool is_newest_job_of_user(const struct sched_core *c, const struct sched_job *j)
{
	const struct sched_job *x = c->jobs;

	while (x->uid != j->uid)
		x = x->next;
	return x == j;
}

json_t *status_users_json(const struct sched_core *c)
{
	json_t *list = json_array();

	for (const struct sched_job *j = c->jobs; j && json_array_size(list) < USERS_MAX;
		j = j->next) {
		json_t *o;

		if (!is_newest_job_of_user(c, j))
			continue;
		o = json_object();
		status_put_num(o, "uid", j->uid);
		json_object_set_new(o, "jobs",
			quota_use_json(admission_user_jobs(c, j->uid), c->cfg.user_jobs));
		json_object_set_new(o, "server_bytes",
			quota_use_json(admission_user_bytes(c, j->uid),
				server_memory_share(c, c->cfg.user_share)));
		json_array_append_new(list, o);
	}
	return list;
}

static void keep_larger_share(double *max, uint64_t used, uint64_t limit)
{
	double v = limit ? (double)used / (double)limit : 0;

	if (v > *max)
		*max = v;
}

void status_quota_metrics(const struct sched_core *c, struct evbuffer *out)
{
	static const char *const names[SCHED_QUOTAS] = {[QUOTA_USER_JOBS] = "user-jobs",
		[QUOTA_JOB_TENSORS] = "job-tensors",
		[QUOTA_USER_SHARE] = "user-share",
		[QUOTA_JOB_SHARE] = "job-share",
		[QUOTA_SMALL_RESERVE] = "small-user-reserve"};
	uint64_t user_limit = server_memory_share(c, c->cfg.user_share),
		 job_limit = server_memory_share(c, c->cfg.job_share);
	double fullest[SCHED_QUOTAS] = {0};

	keep_larger_share(&fullest[QUOTA_SMALL_RESERVE], admission_all_sums(c),
		server_memory_share(c, 100 - c->cfg.small_reserve));
	for (const struct sched_job *j = c->jobs; j; j = j->next) {
		keep_larger_share(&fullest[QUOTA_JOB_TENSORS], j->n_tensors, c->cfg.job_tensors);
		keep_larger_share(&fullest[QUOTA_JOB_SHARE], admission_job_bytes(j), job_limit);
		if (!is_newest_job_of_user(c, j))
			continue;
		keep_larger_share(&fullest[QUOTA_USER_JOBS], admission_user_jobs(c, j->uid),
			c->cfg.user_jobs);
		keep_larger_share(
			&fullest[QUOTA_USER_SHARE], admission_user_bytes(c, j->uid), user_limit);
	}
	metric_append_header(out, "bps_quota_used_ratio",
		"largest share of its limit that a user or a job uses");
	for (unsigned i = 0; i < SCHED_QUOTAS; i++)
		metric_append_value(
			out, "bps_quota_used_ratio", fullest[i], "quota", names[i], NULL);
	metric_append_header(out, "bps_quota_refused_total", "requests that exceeded a limit");
	for (unsigned i = 0; i < SCHED_QUOTAS; i++)
		metric_append_value(out, "bps_quota_refused_total", (double)c->refused[i], "quota",
			names[i], NULL);
}
