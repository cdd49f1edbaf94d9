#include "tests/sim/move.h"

#include <string.h>

#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/drain.h"

static struct sched_member *any_server(
	const struct sched_core *c, uint64_t (*draw)(void *ctx, uint64_t n), void *ctx)
{
	struct sched_member *found = NULL;
	unsigned n = 0;

	for (uint32_t i = 1; i <= c->n_members; i++) {
		struct sched_member *m = c->members[i];

		if (m->role == ROLE_SERVER && sched_member_is_open(m) && draw(ctx, ++n) == 0)
			found = m;
	}
	return found;
}

void move_parts(struct sched_core *c, uint64_t (*draw)(void *ctx, uint64_t n), void *ctx)
{
	struct sched_job *j = c->jobs;

	if (!j || j->state != JOB_RUNNING || c->is_undurable || !any_server(c, draw, ctx))
		return;
	for (uint32_t i = 0; i < j->n_placed; i++) {
		struct sched_tensor *t = j->placed[i];

		for (uint32_t k = 0; t->parts && k < t->n_parts; k++) {
			struct sched_member *to = sched_member_by_id(c, t->parts[k].server);
			uint16_t thread = t->parts[k].thread;

			if (draw(ctx, 2))
				continue;
			if (!to || !sched_member_is_open(to) || draw(ctx, 2)) {
				to = any_server(c, draw, ctx);
				if (!to)
					return;
				thread = (uint16_t)draw(ctx, to->threads);
			}
			sched_part_set(c, j, t, k, NULL, 0, 0);
			sched_part_set(c, j, t, k, to, thread, sched_open_transaction_view(c));
			j->has_moved = true;
			sched_job_dirty(c, j);
		}
	}
}

uint64_t move_parts_at(const struct sched_core *c, const char *name)
{
	for (uint32_t i = 1; i <= c->n_members; i++)
		if (c->members[i]->role == ROLE_SERVER && strcmp(c->members[i]->name, name) == 0)
			return drain_count_parts(c, c->members[i]);
	return 0;
}

unsigned move_machines_left(const struct sched_core *core, uint32_t job)
{
	const struct sched_job *j = sched_job_any_by_id(core, job);

	return j ? j->n_members - j->n_left : 0;
}

uint32_t move_job_of(const struct sched_core *c, uint32_t uid)
{
	const struct sched_job *j = c->jobs;

	while (j && j->uid != uid)
		j = j->next;
	return j ? j->id : 0;
}
