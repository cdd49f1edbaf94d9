#include "bps-scheduler/model/model.h"
#include "tests/sim/peek.h"

bool peek_is_refused(const struct sched_core *core, uint32_t job, const char *name)
{
	const struct sched_job *j = sched_job_by_id(core, job);
	const struct sched_tensor *t = j ? sched_tensor_find(j, name) : NULL;

	return !t || t->state == TENSOR_FAILED;
}

bool peek_is_down(const struct sched_core *core, const char *server)
{
	const struct sched_member *m =
		sched_member_find((struct sched_core *)core, ROLE_SERVER, server);

	return m && m->state == MEMBER_DOWN;
}

bool peek_is_usable(const struct sched_core *core, unsigned role, const char *name)
{
	const struct sched_member *m =
		sched_member_find((struct sched_core *)core, (enum role)role, name);

	return m && sched_is_usable(m);
}
