#ifndef BPS_SCHEDULER_MODEL_TENSOR_H
#define BPS_SCHEDULER_MODEL_TENSOR_H
/* A tensor of a job, and its partitions. Each partition is placed on a server, which sums it. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_job;
struct sched_member;

/* server id that selects all partitions, also those without a server; no member has the id 0 */
#define SERVER_ANY 0

struct sched_part {
	uint64_t pgen, instance;
	uint32_t server; /* id of the server that sums the partition; CTL_NO_ID: no server */
	/* id of the server that had the partition before this pgen and must be notified; 0: there
	 * is no such server */
	uint32_t former;
	uint16_t thread;
};

enum tensor_state { TENSOR_COLLECTING, TENSOR_READY, TENSOR_PLACED, TENSOR_FAILED, TENSOR_STATES };
struct sched_tensor {
	uint32_t id; /* tensor id; CTL_NO_ID until the tensor is placed */
	enum tensor_state state;
	struct tensor_shape shape;
	uint32_t part_elems, n_parts;
	uint32_t n_shards; /* shape_shards of the shape and the job's size */
	/* array of n_parts partitions; NULL if the job runs on one machine and needs no servers */
	struct sched_part *parts;
	/* cause_host, cause_rank: host and rank of the worker whose declaration differs from the
	 * earlier declarations of the tensor. cause_host is NULL if no declarations differ. */
	char *name, *fail_text, *cause_host;
	int fail_code;
	uint32_t cause_rank;
	uint32_t first_rank; /* rank of the worker whose declaration arrived first */
	/* time of the first declaration; 0: the tensor was restored from the state log */
	uint64_t since_ns;
	uint32_t n_declared;
	/* bitmap of the members that have declared the tensor; NULL once the tensor is placed or
	 * restored */
	uint64_t *declared;
	struct sched_tensor *next_hash, *next_fresh;
};

/* Set a tensor's state; no other code writes the state. why: reason of the change, for the log;
 * NULL: the state comes from a record, and the change is not logged. */
void sched_tensor_set_state(
	struct sched_job *j, struct sched_tensor *t, enum tensor_state to, const char *why);
/* Add t to the job, which then owns t. The job must not already have a tensor with the name of
 * t. */
void sched_tensor_add(struct sched_job *j, struct sched_tensor *t);
/* Find a tensor by name. Returns NULL if no tensor with this name is declared. */
struct sched_tensor *sched_tensor_find(const struct sched_job *j, const char *name);
bool sched_tensor_has_declared(const struct sched_tensor *t, uint32_t member);
/* Make t READY if all members have declared it. t must be COLLECTING. */
void sched_tensor_check_declared(struct sched_core *c, struct sched_job *j, struct sched_tensor *t);
/* Remove the declarations of a member that has left job j. The tensors that all remaining members
 * have declared become READY. */
void sched_job_undeclare(struct sched_core *c, struct sched_job *j, uint32_t member);
/* Give t its id and create its partitions, which have no server yet. The shape and part_elems of t
 * must be set. t becomes PLACED. */
void sched_tensor_publish(struct sched_job *j, struct sched_tensor *t);
/* Free all tensors of job j. Subtract the load of these tensors from their servers. */
void sched_job_drop_tensors(struct sched_core *c, struct sched_job *j);
/* Set the server, thread and pgen of partition i of t, and update the loads of servers and threads.
 * No other code writes these fields. server: NULL if the partition has no server. */
void sched_part_set(struct sched_core *c, struct sched_job *j, struct sched_tensor *t, uint32_t i,
	struct sched_member *server, uint16_t thread, uint64_t pgen);
/* Cursor over all partitions of a job (sched_part_next). A zeroed cursor is before the first
 * partition. */
struct sched_part_ref {
	struct sched_tensor *t;
	uint32_t i;
};
/* Advance `ref` to the job's next partition on the server with the id `server`. The id SERVER_ANY
 * selects all partitions, CTL_NO_ID the partitions without a server. Returns false if there is no
 * further partition. */
bool sched_part_next(const struct sched_job *j, uint32_t server, struct sched_part_ref *ref);
uint64_t sched_part_bytes(const struct sched_tensor *t, uint32_t i);
/* Return the last round that each worker of the job must have submitted before a round of the
 * tensor with this id can end: the round itself, or for a value the last one within its bound. */
uint64_t sched_needed_round(const struct sched_job *j, uint32_t tensor, uint64_t round);
/* Return the memory that a server needs for the sums of a partition with n_elems elements of the
 * tensor t. */
uint64_t sched_sums_need(const struct sched_tensor *t, uint64_t n_elems);
/* Return the memory that a server needs for the sums of partition i. */
uint64_t sched_part_need(const struct sched_tensor *t, uint32_t i);
/* Find the first run of t that begins at the partition with the index `*at` or a larger index. A
 * run is a sequence of partitions that have the same server, server instance, thread and pgen. Sets
 * `*at` to the index after the last partition of the run. Returns false if there is no further run.
 * The parameters `pgen` and `server` select the partitions that a run may contain.
 * pgen: only partitions placed in view `pgen`; 0: partitions placed in any view.
 * server: only partitions that this server has, or that this server lost in view `pgen`;
 * SERVER_ANY: all partitions. */
bool sched_run_next(const struct sched_tensor *t, uint32_t *at, uint64_t pgen, uint32_t server,
	struct ctl_run *ret);
#endif
