#ifndef BPS_SCHEDULER_BPSCTL_FETCH_H
#define BPS_SCHEDULER_BPSCTL_FETCH_H
/* Fetches the documents that bpsctl shows, mostly from the scheduler. All requests for a document
 * end within one time limit. The document's "missing" names each member that has not answered, and
 * each job whose own document did not arrive. All documents have "schema": 1. The comments below
 * list the fields of a document. x[y]: x is a list of y. x{y}: x is an object with the fields y.
 *
 * o: the addresses of the daemons. arg: the argument of the command; unused where no text says
 * otherwise. ret: the document, a new reference. Errors: those of http_get_all (BPS_ENOSCHED,
 * BPS_ETIMEDOUT and BPS_EPROTO); BPS_ENOTFOUND if the daemon answers with an error; -EINVAL if the
 * daemon is not of the right kind. For each error, err gets a text. */
#include <jansson.h>

#include "common/base/addr.h"
#include "common/base/error.h"

struct bpsctl_opts;

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
int fetch_status(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);

/* Fetch the servers, or the agents. Fields: schema, role, view_text, members[fields as in the
 * cluster's document]. */
int fetch_servers(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);
int fetch_agents(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);

/* Fetch the jobs. Fields: schema, role, view_text, jobs, collected, missing. `jobs`, `collected`
 * and `missing` have the same meaning as in fetch_status. `rounds` of a job: number of push_pulls
 * that the job's most advanced worker has completed. */
int fetch_jobs(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);

/* Fetch the wait reports of the job `arg`, or of all forming and running jobs if `arg` is "".
 * Fields: schema, role, view_text, jobs[documents of jobs], missing. If `arg` is "", the document
 * also has the field `collected`. If the scheduler does not answer, the agent of this host reports
 * what the workers of its machine wait for. Then the fields are: role("agent"), name, host,
 * scheduler_error, jobs[as in bps-agent/trainers/waits_report.h]. */
int fetch_stuck(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);

#define AGENT_HTTP 7304 /* default HTTP port of an agent */
/* Fetch an agent's own document over HTTP. arg: the agent's address, as "host[:port]". With
 * o->topology, the document includes the GPUs of the agent's machine. */
int fetch_agent(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);

/* Fetch the documents of the job `arg` and of the cluster, and compare them
 * (bps-scheduler/bpsctl/advice/advice.h). */
int fetch_advice(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);

/* Fetch the trace of the job `arg` (bps-agent/steps/trace_file.h) from the agent at o->agent_http
 * or, if that is not given, from the agent of this host that the scheduler names.
 * *ret_text: the n bytes of the file, which the caller frees. *ret_head: its fields before the
 * events, a new reference. */
int fetch_trace(const struct bpsctl_opts *o, const char *arg, char **ret_text, size_t *ret_n,
	json_t **ret_head, struct err_text *err);

/* Fetch the document of the job `arg`. */
int fetch_job(const struct bpsctl_opts *o, const char *arg, json_t **ret, struct err_text *err);
#endif
