#ifndef BPS_SCHEDULER_CORE_DECLARE_H
#define BPS_SCHEDULER_CORE_DECLARE_H
#include "bps-scheduler/model/model.h"

/* Handle DECLARE from member m. The caller keeps msg. An invalid message closes the connection of
 * m. */
void sched_receive_declare(
	struct sched_core *c, struct sched_member *m, const struct ctl_declare *msg);
#endif
