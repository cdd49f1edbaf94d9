#ifndef BPS_AGENT_TRAINERS_WAITS_REPORT_H
#define BPS_AGENT_TRAINERS_WAITS_REPORT_H
/* Describes what the workers of this machine wait for, as JSON. bpsctl uses the report while the
 * scheduler does not answer. The report covers only this agent's own workers and partitions.
 * Thread: the data thread. */
#include <jansson.h>

struct agent;

/* Return jobs[{job{name id uid state size} waits[...] condition}], a new reference. The waits have
 * the same fields as the waits in the scheduler's status (bps-scheduler/status/status.h). The field
 * `why` is one of
 *     join       the job has not formed
 *     submit     `missing` lists the workers of this machine that have not submitted the round
 *     elsewhere  all workers of this machine have submitted the round
 * A job has at most WAITS_MAX waits. Returns NULL when out of memory. */
json_t *waits_report_to_json(const struct agent *a);
#define WAITS_MAX 64
#endif
