#ifndef BPS_TESTS_SIM_PEEK_H
#define BPS_TESTS_SIM_PEEK_H
/* A look into the agent's core, whose names are others than those of sim.h: which result has a
 * partition taken, and of which pgen. Equal bits do not tell a sum that was made twice. And is
 * everything connected. */
#include <stdbool.h>
#include <stdint.h>

struct agt_core;
struct agt_job;
struct xport_read;

struct peek {
	uint32_t job, tensor, part;
	uint64_t round, pgen; /* of the result in question */
};

/* Has the partition that round's result? False also when it is not known. */
bool peek_has(const struct agt_core *core, const struct peek *p);
/* Has every partition of a job with servers its connection? n_tensors: that it will have. */
bool peek_is_settled(const struct agt_job *job, unsigned n_tensors);
/* What came with the last result of a partition of t: its first element, their number, and a bit
 * for each of its contributors. False: there is no such partition. */
struct agt_tensor;
bool peek_contributors(const struct agt_tensor *t, uint32_t part, uint32_t *ret_first,
	uint32_t *ret_n, uint32_t *ret_members);
/* What a read of an agent is for. */
struct peek peek_read(const struct xport_read *r);
/* Has the scheduler no tensor of that name in the job, or a refused one? */
struct sched_core;
bool peek_is_refused(const struct sched_core *core, uint32_t job, const char *name);
/* How many jobs does a server's thread know? */
struct srv_core;
unsigned peek_server_jobs(const struct srv_core *core);
#endif
