/* Decides which workers may join a job, how many jobs a user may have, and how much of the
 * servers' memory a user or a job may use. All functions run on the core's thread.
 *
 * A job is identified by its user and name, or by its name and token if its first worker had a
 * token. In the second case, workers of other users may join if they have the token, because one
 * user may have different uids in different containers. The scheduler receives only the proof of
 * the token, see bps-agent/trainers/token.h. Jobs with the same name and different users are
 * unrelated, so that no user can reserve a name. */
#include "bps-scheduler/core/admission.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/core/job_end.h"
#include "bps-scheduler/model/host_memory.h"
#include "bps-scheduler/placement/balance.h"
#include "common/base/key.h"
#include "common/data/shape.h"

static bool has_matching_token(const struct sched_job *j, const struct ctl_join *q)
{
	return j->has_token && q->token.bytes == sizeof(j->token) &&
	       key_bytes_equal(j->token, q->token.data, sizeof(j->token));
}

static int refuse_wrong_token(const struct sched_core *c, const struct sched_job *j,
	const struct ctl_join *q, struct err_text *err)
{
	const char *what = !j->has_token ? "was opened without a job token, and this worker has one"
			   : q->token.bytes ? "has a job token that differs from this worker's"
					    : "has a job token, and this worker has none";
	uint32_t rank = 0;
	const struct sched_worker *w;

	while (j->workers[rank].state == WORKER_ABSENT) /* each job on c->jobs has a worker */
		rank++;
	w = &j->workers[rank];
	return err_set(err, BPS_EAUTH,
		"job '%s' of uid %u %s (BPS_JOB_TOKEN must be the same for all workers); the job's "
		"rank %u is pid %u on host %s",
		j->name, j->uid, what, rank, w->pid, sched_host_of_member(c, w->agent));
}

int admission_find_job(const struct sched_core *c, const struct ctl_join *q, struct sched_job **ret,
	struct err_text *err)
{
	struct sched_job *own = NULL;

	for (struct sched_job *j = c->jobs; j; j = j->next) {
		if (strcmp(j->name, q->job) != 0)
			continue;
		if (has_matching_token(j, q)) {
			*ret = j;
			return 0;
		}
		if (j->uid == q->uid)
			own = j;
	}
	if (own && (own->has_token || q->token.bytes))
		return refuse_wrong_token(c, own, q, err);
	*ret = own;
	return 0;
}

uint32_t admission_user_jobs(const struct sched_core *c, uint32_t uid)
{
	uint32_t n = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n += j->uid == uid;
	return n;
}

int admission_check_job(struct sched_core *c, uint32_t uid, struct err_text *err)
{
	uint32_t n = admission_user_jobs(c, uid);

	if (c->n_jobs >= SCHED_JOBS_MAX)
		return err_set(err, BPS_EQUOTA, "the scheduler has %u jobs, its limit is %u",
			c->n_jobs, SCHED_JOBS_MAX);
	if (!c->cfg.user_jobs || n < c->cfg.user_jobs)
		return 0;
	c->refused[QUOTA_USER_JOBS]++;
	return err_set(err, BPS_EQUOTA,
		"the user with uid %u has %u jobs, and the limit is %u; see bps-scheduler's "
		"--user-jobs",
		uid, n, c->cfg.user_jobs);
}

/* ---- memory of servers ---- */

uint64_t admission_job_bytes(const struct sched_job *j)
{
	return job_is_local(j->n_members, j->flags) ? 0 : j->claimed_bytes;
}

uint64_t admission_user_bytes(const struct sched_core *c, uint32_t uid)
{
	uint64_t n = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n += j->uid == uid ? admission_job_bytes(j) : 0;
	return n;
}

uint64_t admission_servers_bytes(const struct sched_core *c)
{
	struct host_memory *hosts = host_memory_new(c);
	bool is_known = true;
	uint64_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (m->role != ROLE_SERVER || !sched_is_usable(m))
			continue;
		is_known &= m->quota_bytes > 0;
		n += host_memory_of(hosts, m);
	}
	free(hosts);
	return is_known ? n : 0;
}

uint64_t admission_share(uint64_t all_bytes, uint32_t percent)
{
	return all_bytes / 100 * percent + all_bytes % 100 * percent / 100;
}

static int refuse_memory_quota(const char *whose, uint64_t used, uint64_t more, uint64_t all,
	uint32_t percent, const char *setting, struct err_text *err)
{
	return err_set(err, BPS_EQUOTA,
		"the tensor takes %.1f MiB of the servers' memory; %s already takes %.1f MiB, and "
		"the limit is %.1f MiB (%u%% of the servers' memory); see bps-scheduler's --%s",
		(double)more / 0x1p20, whose, (double)used / 0x1p20,
		(double)admission_share(all, percent) / 0x1p20, percent, setting);
}

static bool is_beyond_memory_share(uint64_t used, uint64_t more, uint64_t all, uint32_t percent)
{
	uint64_t limit = admission_share(all, percent);

	return percent && (more > limit || used > limit - more);
}

void admission_claim(struct sched_core *c, struct sched_job *j, const struct sched_tensor *t)
{
	j->is_unchecked |= !admission_servers_bytes(c);
	j->claimed_bytes += shape_bytes(&t->shape);
	j->claimed_sums += balance_tensor_need(j, t);
}

void admission_unclaim(struct sched_job *j, const struct sched_tensor *t)
{
	j->claimed_bytes -= shape_bytes(&t->shape);
	j->claimed_sums -= balance_tensor_need(j, t);
}

static uint64_t job_server_sum_bytes(const struct sched_job *j)
{
	return job_is_local(j->n_members, j->flags) ? 0 : j->claimed_sums;
}

uint64_t admission_all_sums(const struct sched_core *c)
{
	uint64_t n = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n += job_server_sum_bytes(j);
	return n;
}

static uint64_t user_server_sum_bytes(const struct sched_core *c, uint32_t uid)
{
	uint64_t n = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n += j->uid == uid ? job_server_sum_bytes(j) : 0;
	return n;
}

/* Check the reserve of memory (rule I12). Only users whose sums need little memory may use the
 * reserve. Therefore, if a user with small sums declares a tensor, the large tensors of another
 * user do not cause a refusal. */
static int check_memory_reserve(struct sched_core *c, const struct sched_job *j, uint64_t all,
	uint64_t more, struct err_text *err)
{
	uint64_t reserve = admission_share(all, c->cfg.small_reserve), left = all - reserve;
	uint64_t small = reserve / ADMISSION_SMALL_USERS, used = admission_all_sums(c);

	if (!reserve || (more <= small && user_server_sum_bytes(c, j->uid) <= small - more) ||
		(more <= left && used <= left - more))
		return 0;
	c->refused[QUOTA_SMALL_RESERVE]++;
	return err_set(err, BPS_EQUOTA,
		"the tensor's sums take %.1f MiB, but only %.1f of the servers' %.1f MiB are free "
		"for this user; %u%% of the servers' memory is reserved for users whose sums take "
		"at most %.1f MiB; see bps-scheduler's --small-user-reserve",
		(double)more / 0x1p20, used < left ? (double)(left - used) / 0x1p20 : 0,
		(double)all / 0x1p20, c->cfg.small_reserve, (double)small / 0x1p20);
}

int admission_check_tensor(struct sched_core *c, const struct sched_job *j,
	const struct sched_tensor *t, struct err_text *err)
{
	uint64_t all = admission_servers_bytes(c), used = admission_job_bytes(j);
	uint64_t bytes = shape_bytes(&t->shape);
	char whose[64];

	if (!all || job_is_local(j->n_members, j->flags))
		return 0;
	if (is_beyond_memory_share(used, bytes, all, c->cfg.job_share)) {
		c->refused[QUOTA_JOB_SHARE]++;
		return refuse_memory_quota(
			"the job", used, bytes, all, c->cfg.job_share, "job-share", err);
	}
	used = admission_user_bytes(c, j->uid);
	if (is_beyond_memory_share(used, bytes, all, c->cfg.user_share)) {
		c->refused[QUOTA_USER_SHARE]++;
		snprintf(whose, sizeof(whose), "the user with uid %u", j->uid);
		return refuse_memory_quota(
			whose, used, bytes, all, c->cfg.user_share, "user-share", err);
	}
	return check_memory_reserve(c, j, all, balance_tensor_need(j, t), err);
}

/* Return whether a job waits for servers: it has partitions without a server, or tensors that were
 * accepted unchecked because the cluster had no server. */
static bool is_job_waiting_for_server(const struct sched_job *j)
{
	return j->n_orphans || j->is_unchecked;
}

/* Return the running job that waits for servers and whose sums need the most memory. Only jobs of
 * users who need more than `small` bytes for sums are considered. NULL: there is no such job. */
static struct sched_job *largest_waiting(const struct sched_core *c, uint64_t small)
{
	struct sched_job *largest = NULL;

	for (struct sched_job *j = c->jobs; j; j = j->next)
		if (is_job_waiting_for_server(j) && j->state == JOB_RUNNING &&
			user_server_sum_bytes(c, j->uid) > small &&
			(!largest || job_server_sum_bytes(j) > job_server_sum_bytes(largest)))
			largest = j;
	return largest;
}

static bool has_job_waiting_for_server(const struct sched_core *c)
{
	for (const struct sched_job *j = c->jobs; j; j = j->next)
		if (is_job_waiting_for_server(j))
			return true;
	return false;
}

void admission_check_waiting(struct sched_core *c)
{
	uint64_t all = has_job_waiting_for_server(c) ? admission_servers_bytes(c) : 0;
	uint64_t reserve = admission_share(all, c->cfg.small_reserve);
	struct sched_job *j;

	if (!all)
		return;
	while (reserve && admission_all_sums(c) > all - reserve &&
		(j = largest_waiting(c, reserve / ADMISSION_SMALL_USERS))) {
		c->refused[QUOTA_SMALL_RESERVE]++;
		sched_job_end(c, j, BPS_EQUOTA, NULL,
			"job '%s' waited for servers, and its sums take %.1f MiB, but the present "
			"servers have %.1f MiB, of which %u%% is reserved for users who need "
			"little; see bps-scheduler's --small-user-reserve",
			j->name, (double)job_server_sum_bytes(j) / 0x1p20, (double)all / 0x1p20,
			c->cfg.small_reserve);
	}
	for (j = c->jobs; j; j = j->next)
		j->is_unchecked = false;
}
