/* Starts and ends the draining and the leaving of members (drain.h), and checks whether a member
 * may be drained or may leave. balance.c moves the partitions. All functions run on the core's
 * thread. */
#include "bps-scheduler/placement/drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bps-scheduler/model/compare.h"
#include "bps-scheduler/model/host_memory.h"
#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/balance.h"

static const char *text_after_prefix(const char *target, const char *prefix)
{
	size_t n = strlen(prefix);

	return strncmp(target, prefix, n) == 0 ? target + n : NULL;
}

int drain_find_member(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err)
{
	const char *as_server = text_after_prefix(target, "server:"),
		   *as_agent = text_after_prefix(target, "agent:");
	struct sched_member *server =
		as_agent ? NULL : sched_member_find(c, ROLE_SERVER, as_server ? as_server : target);
	struct sched_member *agent =
		as_server ? NULL : sched_member_find(c, ROLE_AGENT, as_agent ? as_agent : target);

	if (server && agent)
		return err_set(err, -EINVAL,
			"a server and an agent are named '%s': use server:%s or agent:%s", target,
			target, target);
	if (!server && !agent)
		return err_set(err, BPS_ENOTFOUND, "there is no server or agent '%s'", target);
	*ret = server ? server : agent;
	return 0;
}

/* ---- checks ---- */

uint64_t drain_count_parts(const struct sched_core *c, const struct sched_member *m)
{
	uint64_t n = 0;

	if (m->role != ROLE_SERVER)
		return 0;
	for (const struct sched_job *j = c->jobs; j; j = j->next) {
		struct sched_part_ref p = {NULL, 0};

		if (m->id >= j->n_loads || !j->loads[m->id])
			continue;
		while (sched_part_next(j, m->id, &p))
			n++;
	}
	return n;
}

/* Return whether m is a server that can take over partitions of another server. A server without a
 * connection cannot do so, because it may never connect again. */
static bool is_partition_taker(const struct sched_member *m)
{
	return m->role == ROLE_SERVER && m->state == MEMBER_UP && sched_member_is_open(m);
}

/* Count the servers that would take m's partitions. */
static uint32_t count_other_partition_takers(
	const struct sched_core *c, const struct sched_member *m)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++)
		n += c->members[i] != m && is_partition_taker(c->members[i]);
	return n;
}

/* Return whether the sums of m's partitions fit into the memory of the servers that would take
 * them. If one of these servers does not report its memory, the sums count as fitting. */
static bool has_room_elsewhere(const struct sched_core *c, const struct sched_member *m)
{
	uint64_t room = 0;
	struct host_memory *hosts = host_memory_new(c);

	for (uint32_t i = 1; i <= c->n_members; i++) {
		const struct sched_member *k = c->members[i];

		if (k != m && is_partition_taker(k))
			room = balance_add_room(
				room, balance_memory_room(host_memory_of(hosts, k), k->sums_bytes));
	}
	free(hosts);
	return m->sums_bytes <= room;
}

static int compare_largest_first(const void *a, const void *b)
{
	return compare_u64(*(const uint64_t *)b, *(const uint64_t *)a);
}

/* Count how many servers the cluster can lose while the remaining servers have enough memory for
 * all sums. The worst case is assumed: the servers with the most memory are lost first. */
uint32_t drain_tolerated_losses(const struct sched_core *c, bool *ret_lacks_memory)
{
	uint64_t used = 0, room = 0;
	uint64_t *sizes = sched_alloc(c->n_members + 1, sizeof(*sizes));
	struct host_memory *hosts = host_memory_new(c);
	uint32_t n = 0, lost = 0;

	for (uint32_t i = 1; i <= c->n_members; i++) {
		used += c->members[i]->sums_bytes;
		if (!is_partition_taker(c->members[i]))
			continue;
		sizes[n] = balance_memory_room(host_memory_of(hosts, c->members[i]), 0);
		room = balance_add_room(room, sizes[n++]);
	}
	qsort(sizes, n, sizeof(*sizes), compare_largest_first);
	while (lost + 1 < n && (room == UINT64_MAX || room - sizes[lost] >= used)) {
		room -= room == UINT64_MAX ? 0 : sizes[lost];
		lost++;
	}
	*ret_lacks_memory = lost + 1 < n;
	free(hosts);
	free(sizes);
	return lost;
}

static int check_may_drain(
	const struct sched_core *c, const struct sched_member *m, struct err_text *err)
{
	if (m->role != ROLE_SERVER || m->is_drained)
		return 0;
	if (!count_other_partition_takers(c, m))
		return err_set(err, -EBUSY,
			"'%s' is the last server that accepts partitions: start or undrain another "
			"one first",
			m->name);
	if (!has_room_elsewhere(c, m))
		return err_set(err, -EBUSY,
			"the other servers have no memory for the sums of server '%s': add a "
			"server, or raise the sums-memory of the other servers",
			m->name);
	return 0;
}

/* ---- operators ---- */

static void member_set_drain_words(struct sched_member *m, const char *reason, const char *who)
{
	free(m->drain_reason);
	free(m->drain_who);
	m->drain_reason = sched_dup_string(reason);
	m->drain_who = sched_dup_string(who);
}

static uint32_t count_member_jobs(const struct sched_core *c, const struct sched_member *m)
{
	uint32_t n = 0;

	for (const struct sched_job *j = c->jobs; j; j = j->next)
		n += sched_job_member(j, m->id) != CTL_NO_ID;
	return n;
}

int drain_set_member(struct sched_core *c, const char *target, const char *reason, const char *who,
	struct sched_member **ret, struct err_text *err)
{
	struct sched_member *m;
	bool is_again;
	int rc = drain_find_member(c, target, ret, err);

	if (rc == 0)
		rc = check_may_drain(c, *ret, err);
	if (rc < 0)
		return rc;
	m = *ret;
	is_again = m->is_drained;
	m->is_drained = true;
	if (!is_again || *reason) /* a second drain without a reason keeps the first reason */
		member_set_drain_words(m, reason, who);
	balance_schedule_now(c);
	sched_member_dirty(c, m);
	return 0;
}

int drain_preview(struct sched_core *c, const char *target, struct err_text *ret_text)
{
	struct sched_member *m = NULL;
	int rc = drain_find_member(c, target, &m, ret_text);
	uint32_t n_jobs, n_takers;
	uint64_t n;

	if (rc == 0)
		rc = check_may_drain(c, m, ret_text);
	if (rc < 0)
		return rc;
	if (m->is_drained)
		return drain_describe(c, m, ret_text);
	n = drain_count_parts(c, m);
	n_jobs = count_member_jobs(c, m);
	n_takers = count_other_partition_takers(c, m);
	if (m->role == ROLE_AGENT)
		return err_set(ret_text, 0,
			"a drain of agent %s would end no job: its %u running job%s would go on",
			m->name, n_jobs, plural_suffix_of(n_jobs));
	return err_set(ret_text, 0,
		"a drain of server %s would move %llu partition%s, %.1f MiB of sums, to %u other "
		"server%s",
		m->name, (unsigned long long)n, plural_suffix_of(n), (double)m->sums_bytes / 0x1p20,
		n_takers, plural_suffix_of(n_takers));
}

int drain_clear_member(
	struct sched_core *c, const char *target, struct sched_member **ret, struct err_text *err)
{
	struct sched_member *m;
	int rc = drain_find_member(c, target, ret, err);

	if (rc < 0)
		return rc;
	m = *ret;
	if (!m->is_drained)
		return err_set(
			err, -EALREADY, "%s %s is not drained", sched_role_name(m->role), m->name);
	m->is_drained = false;
	if (m->role == ROLE_SERVER)
		balance_gathered(c);
	sched_member_dirty(c, m);
	return 0;
}

int drain_describe(
	const struct sched_core *c, const struct sched_member *m, struct err_text *ret_text)
{
	uint64_t n = drain_count_parts(c, m);
	uint32_t n_takers = count_other_partition_takers(c, m);

	if (!m->is_drained)
		return err_set(ret_text, 0,
			m->role == ROLE_SERVER ? "server %s accepts partitions again"
					       : "agent %s accepts jobs again",
			m->name);
	if (m->role == ROLE_AGENT)
		return err_set(ret_text, 0,
			"agent %s accepts no new jobs; its %u running jobs go on until they end",
			m->name, count_member_jobs(c, m));
	if (!n)
		return err_set(ret_text, 0, "server %s is drained, and has no partitions", m->name);
	return err_set(ret_text, 0,
		"server %s is being drained: %llu partition%s move%s to %u other server%s", m->name,
		(unsigned long long)n, plural_suffix_of(n), verb_suffix_of(n), n_takers,
		plural_suffix_of(n_takers));
}

/* ---- members that are about to end ---- */

bool drain_has_stopped(const struct sched_member *m)
{
	return m->role == ROLE_AGENT && m->is_drained && m->is_leaving;
}

void drain_receive_leave(struct sched_core *c, struct sched_member *m)
{
	m->has_left = false;
	if (m->role == ROLE_AGENT) {
		m->is_leaving = m->is_drained;
		sched_send_left(c, m, 0, "");
		return;
	}
	if (c->is_undurable) {
		sched_send_left(c, m, BPS_ENOTDURABLE, "the scheduler cannot write its state");
	} else if (!count_other_partition_takers(c, m)) {
		sched_send_left(c, m, BPS_ENOSERVER, "no other server accepts partitions");
	} else if (!has_room_elsewhere(c, m)) {
		sched_send_left(c, m, BPS_EQUOTA, "the other servers have no memory for its sums");
	} else {
		m->is_leaving = true;
		sched_report_event(
			c, EVENT_MEMBER, "server %s (host %s) is about to end", m->name, m->host);
		balance_schedule_now(c);
	}
}

void drain_answer_leavers(struct sched_core *c)
{
	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];

		if (m->role != ROLE_SERVER || !m->is_leaving || m->has_left ||
			drain_count_parts(c, m))
			continue;
		m->has_left = true;
		sched_send_left(c, m, 0, "");
	}
}

/* ---- durable ---- */

void drain_restore(struct sched_member *m, const struct state_member *s)
{
	m->is_drained = s->is_drained;
	member_set_drain_words(m, s->drain_reason, s->drain_who);
}
