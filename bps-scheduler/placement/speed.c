/* Stores the measured network speeds and decides when the measured speeds replace the speeds that
 * placement uses (speed.h). The members measure the speeds (common/base/nicspeed.h). balance.c
 * moves the partitions. All functions run on the core's thread. */
#include "bps-scheduler/placement/speed.h"

#include <stdlib.h>

#include "bps-scheduler/model/compare.h"
#include "bps-scheduler/model/model.h"

static uint64_t member_measured_mbps(const struct sched_member *m)
{
	const struct sched_nic_speed *s = &m->speed;

	return m->nic_mbps ? 0 : s->best > s->past ? s->best : s->past;
}

static bool is_above_by_factor(uint64_t a, uint64_t b, double factor)
{
	return (double)a >= (double)b * factor;
}

static bool has_speed_changed(const struct sched_member *m)
{
	uint64_t now = member_measured_mbps(m), then = m->speed.then_mbps;

	return now && (is_above_by_factor(now, then, SPEED_STEP) ||
			      is_above_by_factor(then, now, SPEED_STEP));
}

static uint64_t speed_update_due_ns(const struct sched_core *c)
{
	const struct sched_nic_speeds *s = &c->speeds;
	uint64_t settled = s->first_ns + SPEED_SETTLE_NS, gap = s->taken_ns + SPEED_GAP_NS;

	if (settled > s->since_ns + SPEED_WAIT_NS)
		settled = s->since_ns + SPEED_WAIT_NS;
	return s->taken_ns && gap > settled ? gap : settled;
}

void speed_receive_beat(struct sched_core *c, struct sched_member *m, const struct ctl_beat *b)
{
	struct sched_nic_speed *s = &m->speed;

	if (b->measured_mbps && !s->best && !s->past)
		c->speeds.first_ns = c->now_ns;
	if (c->now_ns >= s->span_ns + SPEED_SPAN_NS) {
		s->past = s->best;
		s->best = 0;
		s->span_ns = c->now_ns;
	}
	if (b->measured_mbps > s->best)
		s->best = b->measured_mbps;
	if (has_speed_changed(m)) {
		if (!c->speeds.is_due)
			c->speeds.since_ns = c->now_ns;
		c->speeds.is_due = true;
		sched_arm_deadline(c, speed_update_due_ns(c));
	}
}

void speed_reset(struct sched_member *m, bool is_moved)
{
	if (is_moved)
		m->speed = (struct sched_nic_speed){0};
	m->speed.best = m->speed.past = 0;
}

static int compare_faster_first(const void *a, const void *b)
{
	const struct sched_member *x = *(struct sched_member *const *)a,
				  *y = *(struct sched_member *const *)b;
	int rc = compare_u64(member_measured_mbps(y), member_measured_mbps(x));

	return rc ? rc : compare_u64(x->id, y->id);
}

static void speed_adopt_measured(struct sched_core *c)
{
	struct sched_member **by_speed = sched_alloc(c->n_members, sizeof(struct sched_member *));
	uint64_t group = 0;
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		if (member_measured_mbps(c->members[i]))
			by_speed[n++] = c->members[i];
	qsort(by_speed, n, sizeof(struct sched_member *), compare_faster_first);
	for (uint32_t i = 0; i < n; i++) {
		struct sched_nic_speed *s = &by_speed[i]->speed;

		s->then_mbps = member_measured_mbps(by_speed[i]);
		if (!group || is_above_by_factor(group, s->then_mbps, SPEED_EQUAL))
			group = s->then_mbps;
		s->used_mbps = group;
	}
	if (n)
		sched_report_event(c, EVENT_MEMBER,
			"placement uses new measured speeds of %u network cards: %llu to %llu "
			"Mbit/s",
			n, (unsigned long long)by_speed[n - 1]->speed.used_mbps,
			(unsigned long long)by_speed[0]->speed.used_mbps);
	free(by_speed);
}

bool speed_tick(struct sched_core *c)
{
	bool is_due = false;

	if (!c->speeds.is_due)
		return false;
	if (c->now_ns < speed_update_due_ns(c)) {
		sched_arm_deadline(c, speed_update_due_ns(c));
		return false;
	}
	c->speeds.is_due = false;
	for (uint32_t i = 1; i <= c->n_members; i++)
		is_due |= has_speed_changed(c->members[i]);
	if (!is_due)
		return false;
	speed_adopt_measured(c);
	c->speeds.taken_ns = c->now_ns;
	c->speeds.count++;
	return true;
}

uint64_t speed_settles_ns(const struct sched_core *c)
{
	return c->speeds.is_due && !c->speeds.taken_ns ? speed_update_due_ns(c) : 0;
}

uint64_t speed_mbps(const struct sched_member *m)
{
	return m->nic_mbps ? m->nic_mbps : m->speed.used_mbps;
}

const char *speed_source(const struct sched_member *m)
{
	if (m->nic_mbps)
		return m->beat.nic_source == NIC_DRIVER ? "driver" : "set";
	return m->speed.used_mbps ? "measured" : "unknown";
}
