/* Sets, removes and finds mutes of problem codes, and converts mutes to and from records. This file
 * does not write records and does not read a clock. All functions run on the core's thread. */
#include "bps-scheduler/model/mute.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "bps-scheduler/model/model.h"

/* Remove mutes whose end has passed. Called before each change of the mutes. */
static void drop_ended_mutes(struct sched_core *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_mutes; i++)
		if (c->mutes[i].end_ns > c->now_ns)
			c->mutes[n++] = c->mutes[i];
	c->n_mutes = n;
}

/* Return the index of the code's mute in c->mutes. Return c->n_mutes if the code is not muted. */
static uint32_t mute_index_of_code(const struct sched_core *c, const char *code)
{
	uint32_t i = 0;

	while (i < c->n_mutes && strcmp(c->mutes[i].code, code) != 0)
		i++;
	return i;
}

const struct sched_mute *mute_find_active(
	const struct sched_core *c, const char *code, uint64_t now_ns)
{
	uint32_t i = mute_index_of_code(c, code);

	return i < c->n_mutes && c->mutes[i].end_ns > now_ns ? &c->mutes[i] : NULL;
}

static void mutes_mark_changed(struct sched_core *c)
{
	c->has_new_mutes = true;
	sched_open_transaction_view(c);
}

int mute_set(struct sched_core *c, const char *code, uint64_t span_ms, const char *reason,
	const char *who)
{
	struct sched_mute *m;
	uint32_t i;

	drop_ended_mutes(c);
	i = mute_index_of_code(c, code);
	if (i == MUTES_MAX)
		return BPS_EQUOTA;
	if (i == c->n_mutes)
		c->n_mutes++;
	m = &c->mutes[i];
	snprintf(m->code, sizeof(m->code), "%s", code);
	snprintf(m->reason, sizeof(m->reason), "%s", reason);
	snprintf(m->who, sizeof(m->who), "%s", who);
	m->end_ns = c->now_ns + span_ms * NS_PER_MS;
	mutes_mark_changed(c);
	return 0;
}

int mute_clear(struct sched_core *c, const char *code)
{
	uint32_t i;

	drop_ended_mutes(c);
	i = mute_index_of_code(c, code);
	if (i == c->n_mutes)
		return BPS_ENOTFOUND;
	c->mutes[i] = c->mutes[--c->n_mutes];
	mutes_mark_changed(c);
	return 0;
}

/* ---- durable ---- */

/* Convert a time of the core's clock to seconds of the wall clock. */
static uint64_t mute_unix_of_ns(const struct sched_core *c, uint64_t ns)
{
	int64_t s = (int64_t)(ns / NS_PER_S) + c->cfg.unix_offset_s;

	return s > 0 ? (uint64_t)s : 0;
}

static uint64_t mute_ns_of_unix(const struct sched_core *c, uint64_t unix_s)
{
	int64_t s = (int64_t)unix_s - c->cfg.unix_offset_s;

	return s > 0 && (uint64_t)s < UINT64_MAX / NS_PER_S ? (uint64_t)s * NS_PER_S : 0;
}

uint32_t mute_make_records(const struct sched_core *c, struct state_mute *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->n_mutes; i++) {
		const struct sched_mute *m = &c->mutes[i];

		ret[n++] = (struct state_mute){.code = m->code,
			.reason = m->reason,
			.who = m->who,
			.boot_id = {c->cfg.boot_id, sizeof(c->cfg.boot_id)},
			.end_ns = m->end_ns,
			.end_unix_s = mute_unix_of_ns(c, m->end_ns)};
	}
	return n;
}

int mute_restore(struct sched_core *c, const struct state_mute *list, uint32_t n)
{
	if (n > MUTES_MAX)
		return -EINVAL;
	c->n_mutes = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct state_mute *s = &list[i];
		struct sched_mute *m = &c->mutes[c->n_mutes++];
		bool is_same_boot =
			s->boot_id.bytes == sizeof(c->cfg.boot_id) &&
			memcmp(s->boot_id.data, c->cfg.boot_id, sizeof(c->cfg.boot_id)) == 0;

		snprintf(m->code, sizeof(m->code), "%s", s->code);
		snprintf(m->reason, sizeof(m->reason), "%s", s->reason);
		snprintf(m->who, sizeof(m->who), "%s", s->who);
		m->end_ns = is_same_boot ? s->end_ns : mute_ns_of_unix(c, s->end_unix_s);
	}
	return 0;
}
