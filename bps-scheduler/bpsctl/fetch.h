#ifndef BPS_SCHEDULER_BPSCTL_FETCH_H
#define BPS_SCHEDULER_BPSCTL_FETCH_H
/* Fetches the documents that bpsctl shows, mostly from the scheduler. All requests for a document
 * end within one time limit. The document's "missing" names each member that has not answered, and
 * each job whose own document did not arrive. All documents have "schema": 1. The comments below
 * list the fields of a document. x[y]: x is a list of y. x{y}: x is an object with the fields y.
 *
 * ret: the document, a new reference. Errors: BPS_ENOSCHED, BPS_ETIMEDOUT and BPS_EPROTO, as in
 * http_get_all; BPS_ENOTFOUND if the daemon answers with an error; -EINVAL if the daemon is not a
 * scheduler. For each error, err gets a text. */
#include <stdbool.h>

#include <jansson.h>

#include "common/base/addr.h"
#include "common/base/error.h"

/* Fetch one document unchanged. */
int fetch_path(const struct addr *addr, const char *path, json_t **ret, struct err_text *err);

/* Fetch the cluster's document from the scheduler (bps-scheduler/status/status.h). If the daemon at
 * addr is a server or an agent, fetch the daemon's own document. The problems in the cluster's
 * document include those of the jobs, and the health takes them into account. bpsctl extends the
 * cluster's document with answers from the running jobs' agents:
 *   jobs[rounds calls_waiting longest_s]
 *               additional fields of a job
 *   collected{s jobs asked answered not_asked daemons heard}
 *               s: duration of the requests in seconds
 *               jobs: number of jobs whose documents were requested
 *               not_asked: number of jobs whose documents were not requested
 *               asked: number of agents (not of jobs) that are listed in the requested documents
 *               answered: number of these agents that answered
 *               daemons: number of daemons of the cluster. Agents that have been down for long
 *                   (DOWN_AGENT_S) are not counted.
 *               heard: number of these daemons from which the scheduler receives messages. The
 *                   scheduler itself is counted, too.
 *   missing[name of member or job]
 *               members that have not answered, and jobs whose documents did not arrive */
int fetch_status(const struct addr *addr, json_t **ret, struct err_text *err);

/* Fetch the members whose role is `role`. Fields: schema, role, view_text, members[fields as in the
 * cluster's document]. */
int fetch_members(const struct addr *addr, const char *role, json_t **ret, struct err_text *err);

/* Fetch the jobs. Fields: schema, role, view_text, jobs, collected, missing. `jobs`, `collected`
 * and `missing` have the same meaning as in fetch_status. `rounds` of a job: number of push_pulls
 * that the job's most advanced worker has completed. */
int fetch_jobs(const struct addr *addr, json_t **ret, struct err_text *err);

/* Fetch the wait reports of the job `name`, or of all forming and running jobs if `name` is NULL or
 * "". Fields: schema, role, view_text, jobs[documents of jobs], missing. If `name` is NULL or "",
 * the document also has the field `collected`. If the scheduler does not answer, the agent of this
 * host describes what the workers of its machine wait for. Then the fields are: role("agent"),
 * name, host, scheduler_error, jobs[as in bps-agent/trainers/waits_report.h]. */
int fetch_stuck(const struct addr *scheduler, const struct addr *agent, const char *name,
	json_t **ret, struct err_text *err);

#define AGENT_HTTP 7304 /* default HTTP port of an agent */
/* Fetch an agent's own document over HTTP. host: the agent's address, as "host[:port]".
 * has_topology: include the GPUs of the agent's machine. */
int fetch_agent(const char *host, bool has_topology, json_t **ret, struct err_text *err);

/* Fetch one job's document. */
int fetch_job(const struct addr *addr, const char *name, json_t **ret, struct err_text *err);
#endif
