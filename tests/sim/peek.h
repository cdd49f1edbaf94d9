#ifndef BPS_TESTS_SIM_PEEK_H
#define BPS_TESTS_SIM_PEEK_H
/* Look-ups in the agent's core: which result a partition has accepted and under which pgen, and
 * whether all connections are up. A check needs the pgen to detect that a sum was computed twice,
 * because both computations may give the same bits. The functions need a separate file because
 * names of the core clash with those of sim.h. */
#include <stdbool.h>
#include <stdint.h>

struct agt_core;
struct agt_job;
struct xport_read;

struct peek {
	uint32_t job, tensor, part;
	uint64_t round, pgen; /* round and pgen of the result */
};

/* Return whether the partition given in `p` has accepted the result of the round given in `p`.
 * Return false if the partition is unknown. */
bool peek_has(const struct agt_core *core, const struct peek *p);
/* Return whether every partition of a job has a connection to its server. n_tensors: the number of
 * tensors that the job will have. */
bool peek_is_settled(const struct agt_job *job, unsigned n_tensors);
/* Look up which members contributed to the last result of partition `part` of `t`. ret_first: index
 * of the partition's first element. ret_n: number of the partition's elements. ret_members: one bit
 * per contributor. Returns true, or false if `t` has no partition `part`. */
struct agt_tensor;
bool peek_contributors(const struct agt_tensor *t, uint32_t part, uint32_t *ret_first,
	uint32_t *ret_n, uint32_t *ret_members);
/* Return whether a task uses the memory of the tensor. */
bool peek_has_task(const struct agt_tensor *t);
/* Return the partition, the round and the pgen of the result that the agent fetches with the read
 * operation `r`. */
struct peek peek_read(const struct xport_read *r);
/* Return false if the scheduler has a tensor with the given name in the job, and has not refused
 * this tensor. Return true in all other cases. */
struct sched_core;
bool peek_is_refused(const struct sched_core *core, uint32_t job, const char *name);
/* Return whether the scheduler has declared a server dead. `server` is the name of the server. */
bool peek_is_down(const struct sched_core *core, const char *server);
/* Return whether the scheduler has the member and has not declared it dead. */
bool peek_is_usable(const struct sched_core *core, unsigned role, const char *name);
/* Return the number of jobs of a server's thread. */
struct srv_core;
unsigned peek_server_jobs(const struct srv_core *core);
/* State of a round at a server's thread: no slot holds the round under this pgen, it is open, or
 * its sum or donation has begun. */
enum peek_slot { PEEK_ELSEWHERE, PEEK_OPEN, PEEK_OVER };
enum peek_slot peek_slot_of(const struct srv_core *core, const struct peek *p);
/* Return whether the round's sum did not wait for the member, whose contribution came later. */
bool peek_is_late(const struct srv_core *core, const struct peek *p, uint16_t member);
#endif
