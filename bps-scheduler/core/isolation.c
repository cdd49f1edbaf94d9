/* C4, of the scheduler itself: when all members that were connected are silent at the same time, it
 * is this host that is cut off, and not all of the others that have died. Nobody is given up then,
 * since all jobs would end of which none has noticed anything; and whoever is heard first has not
 * come back sooner than the others could: all have their time once more.
 *
 *     hears somebody ──nobody for ISOLATED_BEATS──> alone ──anybody──> hears somebody, with a grace
 *
 * A single member that is silent says nothing about this host. If all have really died, nothing is
 * lost: there is nobody to be told. */
#include "bps-scheduler/core/members.h"
#include "common/base/log.h"

/* Silence of all; well below what is death for one (at least 3 beats, see main.c). */
#define ISOLATED_BEATS 2

static uint64_t last_heard_ns(const struct sched_core *c, uint32_t *ret_connected)
{
	uint64_t last = 0;

	*ret_connected = 0;
	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *m = c->members[i];

		if (!m->conn)
			continue;
		++*ret_connected;
		if (m->heard_ns > last)
			last = m->heard_ns;
	}
	return last;
}

void isolation_tick(struct sched_core *c)
{
	uint64_t quiet_ns, limit_ns = ISOLATED_BEATS * c->cfg.beat_ms * NS_PER_MS + NS_PER_MS;
	uint32_t n;
	uint64_t last = last_heard_ns(c, &n);
	bool is_isolated;

	if (!c->is_isolated && n < 2)
		return;
	quiet_ns = c->now_ns > last ? c->now_ns - last : 0;
	is_isolated = n && quiet_ns > limit_ns;
	if (is_isolated && !c->is_isolated)
		log_warn("no member is heard any more: this host may be cut off, nobody is given "
			 "up until one is heard members=%u",
			n);
	if (!is_isolated && c->is_isolated)
		log_info("members are heard again: all have their time once more");
	if (is_isolated != c->is_isolated)
		sched_note(c, EVENT_SCHEDULER, "%s",
			is_isolated ? "no member is heard any more" : "members are heard again");
	if (is_isolated || c->is_isolated)
		c->isolated_ns = c->now_ns;
	c->is_isolated = is_isolated;
	if (is_isolated)
		sched_arm(c, c->now_ns + c->cfg.beat_ms * NS_PER_MS);
}
