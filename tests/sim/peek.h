#ifndef BPS_TESTS_SIM_PEEK_H
#define BPS_TESTS_SIM_PEEK_H
/* Look-ups in the agent's core: which result a partition has taken, and of which pgen (equal bits
 * do not reveal a sum that was made twice), and whether everything is connected. They are separate
 * because the core's names clash with those of sim.h. */
#include <stdbool.h>
#include <stdint.h>

struct agt_core;
struct agt_job;
struct xport_read;

struct peek {
	uint32_t job, tensor, part;
	uint64_t round, pgen; /* of the result in question */
};

/* Return whether the partition has that round's result. False also when it is unknown. */
bool peek_has(const struct agt_core *core, const struct peek *p);
/* Return whether every partition of a job with servers has its connection. n_tensors: how many it
 * will have. */
bool peek_is_settled(const struct agt_job *job, unsigned n_tensors);
/* Return what came with the last result of a partition of t: its first element, their number, and a
 * bit for each of its contributors. False: there is no such partition. */
struct agt_tensor;
bool peek_contributors(const struct agt_tensor *t, uint32_t part, uint32_t *ret_first,
	uint32_t *ret_n, uint32_t *ret_members);
/* Return what a read of an agent is for. */
struct peek peek_read(const struct xport_read *r);
/* Return whether the scheduler has no tensor of that name in the job, or a refused one. */
struct sched_core;
bool peek_is_refused(const struct sched_core *core, uint32_t job, const char *name);
/* Return whether the scheduler has declared the server of that name dead. */
bool peek_is_down(const struct sched_core *core, const char *server);
/* Return how many jobs a server's thread has. */
struct srv_core;
unsigned peek_server_jobs(const struct srv_core *core);
#endif
