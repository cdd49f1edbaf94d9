/* Notifies trainers when no server has been available for longer than stranded_ns. A trainer is
 * notified only if its job runs and needs a server. The notification is an error code in the field
 * `trouble` of the trainer's control page. The library reads this field while a call waits. The
 * rounds stay in flight, and complete when a server is available again. Thread: the data thread. */
#include "bps-agent/trainers/no_server.h"

#include "common/base/log.h"

#define LOOK_NS UINT64_C(250000000)

static bool agent_has_server(const struct agent *a)
{
	for (uint32_t i = 0; i < a->n_servers; i++)
		if (a->servers[i].state == PEER_UP)
			return true;
	return false;
}

/* Return the error code for the trainers. 0: a server has been available within the limit, or there
 * is no limit. BPS_EISOLATED: the agent has received nothing from the scheduler or any server for
 * longer than the limit. BPS_ENOSERVER: for longer than the limit, no server in the scheduler's
 * list has been up. */
static int agent_stranded_code(struct agent *a, uint64_t now_ns)
{
	uint64_t limit_ns = a->cfg.limits.stranded_ns;
	uint64_t quiet_ns = member_quiet_ms(a->member) * 1000000;

	if (!a->heard_ns || agt_core_is_connected(a->core))
		a->heard_ns = now_ns;
	else if (now_ns > quiet_ns && now_ns - quiet_ns > a->heard_ns)
		a->heard_ns = now_ns - quiet_ns;
	if (!a->server_ns || agent_has_server(a))
		a->server_ns = now_ns;
	if (!limit_ns)
		return 0;
	if (now_ns - a->heard_ns > limit_ns)
		return BPS_EISOLATED;
	return now_ns - a->server_ns > limit_ns ? BPS_ENOSERVER : 0;
}

static void job_publish_trouble(struct job *job, int code)
{
	struct trainer *t;

	TAILQ_FOREACH (t, &job->trainers, of_job)
		if (t->control &&
			atomic_load_explicit(&t->control->trouble, memory_order_relaxed) != code) {
			/* Relaxed: no other data depends on this field. The wake-up makes the
			 * library read the field. */
			atomic_store_explicit(&t->control->trouble, code, memory_order_relaxed);
			local_done_wake(t->control);
		}
}

uint64_t no_server_tick(struct agent *a, uint64_t now_ns)
{
	struct job *job;
	bool is_needed = false;
	int code = agent_stranded_code(a, now_ns);

	TAILQ_FOREACH (job, &a->jobs, link) {
		if (job->state != JOB_RUNNING || job->is_local)
			continue;
		is_needed = true;
		job_publish_trouble(
			job, now_ns - job->running_since_ns > a->cfg.limits.stranded_ns ? code : 0);
	}
	if (code && code != a->stranded && is_needed)
		log_write(LOG_AS(LOG_WARN, STRANDED),
			"the waiting calls fail now: %s (this fault has lasted more than %.1f s)",
			err_str(code), (double)a->cfg.limits.stranded_ns / 1e9);
	else if (!code && a->stranded)
		log_info("a server is available again: waiting calls no longer fail");
	a->stranded = is_needed ? code : 0;
	return is_needed ? now_ns + LOOK_NS : UINT64_MAX;
}
