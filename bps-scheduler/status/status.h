#ifndef BPS_SCHEDULER_STATUS_STATUS_H
#define BPS_SCHEDULER_STATUS_STATUS_H
/* The scheduler's status: JSON for bpsctl and other programs, and metrics as Prometheus text. Reads
 * the core and changes nothing. All functions run on the core's thread.
 *
 * The fields of /status, schema 1. Times are in seconds. Later releases may add fields:
 * schema role cluster version commit pid health("OK"|"WARN"|"ERR") view view_text("term.counter")
 * term up_s is_durable  state{kind("file"|"memory") bytes sync_s}
 * tolerates{server_losses limit("memory"|"servers") scheduler_loss}
 * problems[{code severity("WARN"|"ERR") subject what effect action see muted}]
 *                                                      subject "": the cluster
 * muted[{code left_s reason who}]                      these problems do not count in the health
 * members[{id role name host addr port http pid version provider instance state state_s quiet_s
 *     is_quiet why is_drained is_leaving drain_reason drain_who
 *     threads nic_mbps nic_source("set"|"driver"|"measured"|"unknown") measured_mbps
 *     partitions_bytes restarts view rounds rx_bytes tx_bytes mem_bytes
 *     quota_bytes connections trainers same_host{state connections received_bytes}
 *     partitions rx_bytes_s tx_bytes_s sum_s}]          state: expected, up, suspect, down
 * jobs[{id name uid state state_s size joined done agents[name] tensors undeclared bytes
 *     bytes_by_type{"f32": n, ...} values{tensors stale|null}|null partitions
 *     waiting_partitions missing_ranks[at most 8] agents_up
 *     pace{round steps_s push_bytes_s rounds wait_p50_s wait_p99_s
 *         slowest{agent host share lag_s is_straggler}|null}|null}]
 *                 values: those whose mode is value; stale: their largest bound, null: none
 *                 state: forming, running; pace: from the last reports of the job's servers
 * ended[{id name uid state state_s size code text}]    the last 64 jobs that ended
 *
 * /status?job=NAME describes one job. NAME may also be the job's id; #ID always selects by id. The
 * scheduler first asks the job's agents, which have one second to answer. The agents then have a
 * further quarter of a second to report the tensors that calls wait for. Fields:
 * schema role view view_text  job{as above}
 * agents[{name host has_answered text}]                text: state of its network
 * workers[{rank host agent pid attached submitted completed quiet_s behind
 *     oldest{tensor round s}}]           sorted by submitted calls, fewest first
 *                 behind: largest `submitted` of all workers, minus this worker's `submitted`
 * missing[name of an agent that did not answer]
 * waits[{why("join"|"gpu_open"|"declare"|"submit"|"sum"|"unknown") tensor(name, null: none) round s
 *     waiting[{rank host agent pid}] n_waiting        at most 16 workers; n_waiting counts all
 *     missing[{rank host agent pid attached submitted quiet_s}] n_missing
 *                 if why is "join", missing has only rank; attached, submitted and quiet_s are
 *                 present only if why is "submit"
 *     servers[{name host state quiet_s}] n_servers}]   if why is "sum": servers with the tensor
 * condition                     text about servers, agents and the scheduler; "" if none
 * problems[as above]                      STRAGGLER, TRAINER_STALLED, NO_ANSWER
 *
 * /status?events=SEQ returns events (events.h). */
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/core/core.h"

struct evbuffer;

/* Values that the status needs and that the core does not contain. */
struct status_info {
	uint64_t now_ns;     /* present time on the core's clock */
	double started_unix; /* time of the scheduler's start on the wall clock, in seconds */
	uint64_t log_bytes, log_sync_ns;
	bool has_log;
	uint64_t auth_failures, protocol_errors, trust_timeouts;
};

/* Write a summary of the cluster in one line. */
void status_write_line(const struct sched_core *c, char *ret, size_t room);

/* Write the health and the codes of the problems, for example "WARN SERVER_DOWN TRAINER_STALLED".
 * Write "" if the health is OK. Returns false if the health is ERR. */
bool status_health(
	const struct sched_core *c, const struct status_info *info, struct err_text *ret_text);

/* Return the status of the cluster as JSON, a new reference. NULL: out of memory. */
json_t *status_cluster(const struct sched_core *c, const struct status_info *info);

/* Find a job by its name or by its id in digits. If `name` begins with '#', find the job only by
 * its id. If several jobs have the name, a running job comes before a forming job, and a forming
 * job before an ended job. Returns the job's id; 0: no such job. */
uint32_t status_find_job(const struct sched_core *c, const char *name);

/* Return the status of a job as JSON, a new reference. p: the finished probe of the job's agents;
 * NULL if the job does not run. Returns NULL if the job no longer exists, or when out of memory. */
json_t *status_job_json(const struct sched_core *c, const struct status_info *info, uint32_t job,
	const struct sched_probe *p);

/* Append the core's metrics as Prometheus text. */
void status_metrics(
	const struct sched_core *c, const struct status_info *info, struct evbuffer *out);
#endif
