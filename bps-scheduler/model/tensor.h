#ifndef BPS_SCHEDULER_MODEL_TENSOR_H
#define BPS_SCHEDULER_MODEL_TENSOR_H
/* A tensor of a job, and its partitions, which servers sum. */
#include <stdbool.h>
#include <stdint.h>

#include "common/wire/ctlmsg.h"

struct sched_core;
struct sched_job;
struct sched_member;

#define SERVER_ANY 0 /* ids start at 1 */

struct sched_part {
	uint64_t pgen, instance;
	uint32_t server; /* CTL_NO_ID: none */
	uint32_t former; /* server before this pgen, which must learn of the move; 0: none */
	uint16_t thread;
};

enum tensor_state { TENSOR_COLLECTING, TENSOR_READY, TENSOR_PLACED, TENSOR_FAILED, TENSOR_STATES };
struct sched_tensor {
	uint32_t id; /* CTL_NO_ID until READY */
	enum tensor_state state;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t part_elems, n_parts;
	struct sched_part *parts;            /* NULL in jobs of one member */
	char *name, *fail_text, *cause_host; /* cause_host: of the worker that disagrees, or NULL */
	int fail_code;
	uint32_t cause_rank;
	uint32_t first_rank; /* first rank that declared it */
	uint64_t since_ns;   /* time of the first declaration; 0: restored */
	uint32_t n_declared;
	uint64_t *declared; /* bitmap of members; NULL once placed or restored */
	struct sched_tensor *next_hash, *next_fresh;
};

/* Set a tensor's state; no other code writes it. why: for the log; NULL: the state comes from a
 * record and is not logged. */
void sched_tensor_set_state(
	struct sched_job *j, struct sched_tensor *t, enum tensor_state to, const char *why);
/* Add t to the job, which then owns it. The job must have no tensor of that name. */
void sched_tensor_add(struct sched_job *j, struct sched_tensor *t);
/* Find a tensor by name. NULL: not declared. */
struct sched_tensor *sched_tensor_find(const struct sched_job *j, const char *name);
bool sched_tensor_has_declared(const struct sched_tensor *t, uint32_t member);
/* Make t, which is COLLECTING, READY once all members have declared it. */
void sched_tensor_check_declared(struct sched_core *c, struct sched_job *j, struct sched_tensor *t);
/* Handle a member that is gone: tensors that only this member had not declared become ready. */
void sched_job_undeclare(struct sched_core *c, struct sched_job *j, uint32_t member);
/* Give t its number and its unplaced partitions. Its shape and part_elems must be set. */
void sched_tensor_publish(struct sched_job *j, struct sched_tensor *t);
/* Free all tensors of j and remove their load from servers. */
void sched_job_drop_tensors(struct sched_core *c, struct sched_job *j);
/* Set a partition's place and update the loads of servers and threads; no other code writes it.
 * server: NULL for none. */
void sched_part_set(struct sched_core *c, struct sched_job *j, struct sched_tensor *t, uint32_t i,
	struct sched_member *server, uint16_t thread, uint64_t pgen);
/* Cursor over all partitions of a job. Zeroed: before the first partition. */
struct sched_part_ref {
	struct sched_tensor *t;
	uint32_t i;
};
/* Advance to the job's next partition on that server. SERVER_ANY: on any server or none; CTL_NO_ID:
 * on none. Returns false at the end. */
bool sched_part_next(const struct sched_job *j, uint32_t server, struct sched_part_ref *ref);
uint64_t sched_part_bytes(const struct sched_tensor *t, uint32_t i);
/* Find the next run of partitions of t, from *at on: under pgen (0: any), and on server
 * (SERVER_ANY: any) or taken from it under that pgen. Returns false at the end. */
bool sched_run_next(const struct sched_tensor *t, uint32_t *at, uint64_t pgen, uint32_t server,
	struct ctl_run *ret);
#endif
