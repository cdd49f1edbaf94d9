#include "bps-server/core/core_impl.h"
#include "tests/sim/peek.h"

unsigned peek_server_jobs(const struct srv_core *core)
{
	const struct srv_job *job;
	unsigned n = 0;

	TAILQ_FOREACH (job, &core->jobs, link)
		n++;
	return n;
}
