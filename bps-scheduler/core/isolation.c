/* Applies rule C4 of docs/reference/faults.md to the scheduler itself. If all connected members are
 * silent at the same time, they are probably not dead, but cut off from this host. So the scheduler
 * declares no member dead. Without this rule, the scheduler would end all jobs, although no job was
 * disturbed. When the first member reports again, the others may need a little longer. So the time
 * after which a silent member is declared dead begins again for all members.
 *
 *   connected --no message for ISOLATED_BEATS--> isolated --any message--> connected, with a grace
 *
 * The silence of a single member proves nothing about this host. If all members have really died,
 * nothing is lost: no member is left to notify. The silence of a member proves nothing either after
 * another machine has claimed the member's name, because the member's own machine was probably
 * booted again (rule C6). */
#include "bps-scheduler/core/members.h"
#include "common/base/log.h"

/* Isolation begins when all members have been silent for this number of beats. The number is well
 * below the dead time of one member, which is at least 3 beats (main.c). */
#define ISOLATED_BEATS 2

/* Return whether another machine has claimed the member's name since the member's last message. */
static bool is_member_name_claimed(const struct sched_member *m, uint64_t now_ns)
{
	const struct machine_rival *rival = machine_recent_rival(m, now_ns);

	return rival && rival->at_ns > m->heard_ns;
}

/* Return when the scheduler last received from any member.
 * ret_connected: number of connected members.
 * ret_unclaimed: number of those whose name no other machine has claimed since. */
static uint64_t members_last_heard_ns(
	const struct sched_core *c, uint32_t *ret_connected, uint32_t *ret_unclaimed)
{
	uint64_t last = 0;

	*ret_connected = *ret_unclaimed = 0;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (!m->conn)
			continue;
		++*ret_connected;
		*ret_unclaimed += !is_member_name_claimed(m, c->now_ns);
		if (m->heard_ns > last)
			last = m->heard_ns;
	}
	return last;
}

void isolation_tick(struct sched_core *c)
{
	uint64_t quiet_ns, limit_ns = ISOLATED_BEATS * c->cfg.beat_ms * NS_PER_MS + NS_PER_MS;
	uint32_t n_connected, n_unclaimed;
	uint64_t last = members_last_heard_ns(c, &n_connected, &n_unclaimed);
	bool is_isolated;

	if (!c->is_isolated && n_unclaimed < 2)
		return;
	quiet_ns = c->now_ns > last ? c->now_ns - last : 0;
	is_isolated = n_unclaimed && quiet_ns > limit_ns;
	if (is_isolated && !c->is_isolated)
		log_warn("all members are silent: this host may be cut off, so no member is "
			 "declared dead until one reports again: members=%u",
			n_connected);
	if (!is_isolated && c->is_isolated)
		log_info(
			"a member reports again: restarting the time limits of all silent members");
	if (is_isolated != c->is_isolated)
		sched_report_event(c, EVENT_SCHEDULER, "%s",
			is_isolated ? "all members are silent" : "members report again");
	if (is_isolated || c->is_isolated)
		c->isolated_ns = c->now_ns;
	c->is_isolated = is_isolated;
	if (is_isolated)
		sched_arm_deadline(c, c->now_ns + c->cfg.beat_ms * NS_PER_MS);
}
