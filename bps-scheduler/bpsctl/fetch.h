#ifndef BPS_SCHEDULER_BPSCTL_FETCH_H
#define BPS_SCHEDULER_BPSCTL_FETCH_H
/* The documents that bpsctl shows, put together from what the scheduler answers. All within one
 * bound; what did not answer is named in the document's "missing". All carry "schema": 1.
 *
 * ret: the caller's reference. Errors: BPS_ENOSCHED, BPS_ETIMEDOUT, BPS_EPROTO as http_get_all;
 * BPS_ENOTFOUND the daemon answers with an error; -EINVAL it is not a scheduler; with a
 * sentence. */
#include <stdbool.h>

#include <jansson.h>

#include "common/base/addr.h"
#include "common/base/error.h"

/* One document as it is. */
int fetch_path(const struct addr *addr, const char *path, json_t **ret, struct err_text *err);

/* The cluster as the scheduler has it (bps-scheduler/status/status.h), with what its running jobs'
 * agents say:
 *   problems also those of the jobs; health follows
 *   collected{s jobs asked answered not_asked daemons heard}   jobs: that were asked about; asked, answered:
 *                         their agents; daemons, heard: of the whole cluster
 *   missing[name of member or job]
 * Of a server or an agent: its own document. */
int fetch_status(const struct addr *addr, json_t **ret, struct err_text *err);

/* schema role view_text members[] of one role. */
int fetch_members(const struct addr *addr, const char *role, json_t **ret, struct err_text *err);

/* schema role view_text jobs[as the cluster's, and rounds, calls_waiting, longest_s] collected
 * missing; rounds: push_pulls that the worker who has most of them has completed. */
int fetch_jobs(const struct addr *addr, json_t **ret, struct err_text *err);

/* schema role jobs[documents of jobs] missing; name: NULL or "" for all that form or run. */
int fetch_stuck(const struct addr *addr, const char *name, json_t **ret, struct err_text *err);

/* An agent's own document, asked at its HTTP port: "host[:port]". has_topology: with its GPUs. */
int fetch_agent(const char *host, bool has_topology, json_t **ret, struct err_text *err);

/* One job's document. */
int fetch_job(const struct addr *addr, const char *name, json_t **ret, struct err_text *err);
#endif
