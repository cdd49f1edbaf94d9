/* Reports of the agent's core about its jobs and connections. Thread: the thread of the xport. */
#include <stdio.h>

#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/link.h"
#include "bps-agent/core/part.h"

static bool link_carries_job(const struct agt_link *link, const struct agt_job *job)
{
	const struct agt_part *part;

	TAILQ_FOREACH (part, &link->parts, home)
		if (part->tensor->job == job)
			return true;
	return false;
}

bool agt_job_describe_waits(const struct agt_job *job, char *ret_text, size_t text_bytes)
{
	const struct agt_core *core = job->core;
	const struct agt_link *link;
	size_t used = 0;

	*ret_text = '\0';
	if (job->is_local)
		return true;
	TAILQ_FOREACH (link, &core->links, link) {
		int n;

		if (link->state == LINK_UP || used >= text_bytes || !link_carries_job(link, job))
			continue;
		n = snprintf(ret_text + used, text_bytes - used,
			"%sno connection to server %u thread %u for %.1f s", used ? ", " : "",
			link->server, link->thread,
			(double)(core->now_ns - link->down_since_ns) / 1e9);
		used += n > 0 ? (size_t)n : 0;
	}
	if (job->parked.n && used < text_bytes)
		snprintf(ret_text + used, text_bytes - used,
			"%s%zu partition%s wait%s because the job has %.1f of %.1f MiB in flight "
			"from this machine (bps-agent's --job-inflight)",
			used ? ", " : "", job->parked.n, plural_suffix_of(job->parked.n),
			verb_suffix_of(job->parked.n), (double)job->inflight / 0x1p20,
			(double)core->cfg.job_inflight_bytes / 0x1p20);
	return used == 0;
}

uint64_t agt_core_last_receive_ns(struct agt_core *core, uint32_t server, uint64_t instance)
{
	uint64_t last_ns = 0;
	struct agt_link *link;

	TAILQ_FOREACH (link, &core->links, link) {
		uint64_t heard_ns = link->server == server ? link_heard_ns(link, instance) : 0;

		if (last_ns < heard_ns)
			last_ns = heard_ns;
	}
	return last_ns;
}

bool agt_core_is_connected(const struct agt_core *core)
{
	const struct agt_link *link;

	TAILQ_FOREACH (link, &core->links, link)
		if (link->state == LINK_UP)
			return true;
	return false;
}

uint64_t agt_job_inflight(const struct agt_job *job)
{
	return job->inflight;
}

uint32_t agt_core_losses(const struct agt_core *core, uint64_t now_ns,
	struct ctl_beat_link ret[static CTL_BEAT_LINKS_MAX])
{
	const struct agt_link *link;
	uint32_t n = 0;

	TAILQ_FOREACH (link, &core->links, link)
		n = link_list_losses(link, now_ns, ret, n);
	return n;
}

void agt_core_stats(const struct agt_core *core, struct agt_stats *ret)
{
	*ret = core->stats;
}
