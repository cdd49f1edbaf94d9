#ifndef BPS_SCHEDULER_MODEL_TENSOR_H
#define BPS_SCHEDULER_MODEL_TENSOR_H
/* A tensor of a job, and the partitions of it that servers sum. */
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
	uint32_t former; /* the server before this pgen, which has to hear of it; 0: none */
	uint16_t thread;
};

enum tensor_state { TENSOR_COLLECTING, TENSOR_READY, TENSOR_PLACED, TENSOR_FAILED, TENSOR_STATES };
struct sched_tensor {
	uint32_t id; /* CTL_NO_ID before READY */
	enum tensor_state state;
	uint8_t dtype;
	uint64_t n_elems;
	uint32_t part_elems, n_parts;
	struct sched_part *parts; /* NULL in jobs of one member */
	char *name, *fail_text;
	int fail_code;
	uint32_t first_rank; /* who declared it first */
	uint64_t since_ns;   /* then; 0: restored */
	uint32_t n_declared;
	uint64_t *declared; /* bits of members; NULL once placed or restored */
	struct sched_tensor *next_hash, *next_fresh;
};

/* The only writer of a tensor's state. why: for the log. NULL: the state comes from a record, which
 * is not logged. */
void sched_tensor_set_state(
	struct sched_job *j, struct sched_tensor *t, enum tensor_state to, const char *why);
/* Give t, whose name is new there, to the job, which owns it from now on. */
void sched_tensor_add(struct sched_job *j, struct sched_tensor *t);
/* NULL: not declared. */
struct sched_tensor *sched_tensor_find(const struct sched_job *j, const char *name);
bool sched_tensor_has_declared(const struct sched_tensor *t, uint32_t member);
/* Make t, which is collecting, ready once all members have declared it. */
void sched_tensor_check_declared(struct sched_core *c, struct sched_job *j, struct sched_tensor *t);
/* That member is gone: tensors that only it has not declared become ready. */
void sched_job_undeclare(struct sched_core *c, struct sched_job *j, uint32_t member);
/* Give t, whose shape and part_elems are set, its number and its (unplaced) partitions. */
void sched_tensor_publish(struct sched_job *j, struct sched_tensor *t);
/* Forget all tensors of j, and their load on servers. */
void sched_job_drop_tensors(struct sched_core *c, struct sched_job *j);
/* The only writer of a part: keeps the loads of servers and threads. server: NULL for none. */
void sched_part_set(struct sched_core *c, struct sched_job *j, struct sched_tensor *t, uint32_t i,
	struct sched_member *server, uint16_t thread, uint64_t pgen);
/* A partition of a job, for walks over all of them. Zeroed: before the first. */
struct sched_part_ref {
	struct sched_tensor *t;
	uint32_t i;
};
/* Go on to the job's next partition on that server (SERVER_ANY: on any or none; CTL_NO_ID: on none).
 * False: there is none. */
bool sched_part_next(const struct sched_job *j, uint32_t server, struct sched_part_ref *ref);
uint64_t sched_part_bytes(const struct sched_tensor *t, uint32_t i);
/* Find the next run of partitions of t from *at on: under pgen (0: any), on server (SERVER_ANY:
 * any), or taken from it under that pgen. False: there is none. */
bool sched_run_next(const struct sched_tensor *t, uint32_t *at, uint64_t pgen, uint32_t server,
	struct ctl_run *ret);
#endif
