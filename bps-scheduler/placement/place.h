#ifndef BPS_SCHEDULER_PLACEMENT_PLACE_H
#define BPS_SCHEDULER_PLACEMENT_PLACE_H
/* Placement of partitions on servers. Largest first, each goes to the machine that has the smallest
 * part of its share of the job, and what fits into no share to the machine that ends earliest with
 * it (LPT). Pure functions over the caller's arrays; no state.
 *
 * Of a job with n agents, M bytes in all and x bytes summed on one machine, that machine's NIC
 * carries in each direction (OSDI'20 "A Unified Architecture for Accelerating Distributed DNN
 * Training", equations 3 and 4):
 *   machine with an agent of the job:  M + (n-2) x
 *   machine without:                   n x
 * over its bandwidth, behind what other jobs' partitions carry there. The shares are those that
 * make all machines end at the same time. Hashing reaches that paper's optimum only on average;
 * with a few hundred partitions it misses by 1.1 to 3 times, LPT by some percent.
 *
 * Why shares: to end at the same time is not enough, all machines must be busy all the time. LPT
 * alone gives the first tensors to the machines without agents, which start with nothing to carry,
 * and the last to those with agents: while the first travel half of the cards are idle.
 *
 * Several servers of one machine share its NIC; among those the one with fewer bytes is taken,
 * and of a server its thread with the fewest bytes. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLACE_ALIGN_ELEMS    64
#define PLACE_PART_BYTES     (512u << 10)
#define PLACE_PART_BYTES_MIN (64u << 10)
#define PLACE_PARTS_MAX      32768 /* of one tensor */

struct place_machine {
	uint64_t nic_mbps; /* 0: not known (speed.h), taken as the median of the known ones */
	bool has_agent;    /* of this job */
	bool has_server;
	uint64_t other_bytes; /* per round and direction, of other jobs' partitions */
	uint64_t bytes;       /* of this job's partitions summed here */
	double share_bytes;   /* set by place_parts: of this job, by bandwidth */
};

struct place_server {
	uint32_t machine;       /* index */
	uint16_t n_threads;     /* >= 1 */
	uint64_t bytes;         /* of this job's partitions */
	uint64_t *thread_bytes; /* n_threads: of all jobs' partitions */
};

struct placement {
	uint32_t n_agents;  /* >= 1 */
	uint64_t job_bytes; /* M: of all the job's tensors, those to be placed included */
	struct place_machine *machines;
	uint32_t n_machines;
	struct place_server *servers;
	uint32_t n_servers; /* >= 1 */
};

struct place_part {
	uint64_t bytes;
	uint32_t server; /* out: index */
	uint16_t thread; /* out */
};

/* Place parts, which are in descending order of bytes, and add them to the loads of p. */
void place_parts(struct placement *p, struct place_part *parts, size_t n_parts);

uint16_t place_idlest_thread(const uint64_t *thread_bytes, uint16_t n_threads);

/* Set the machines' shares of the job, as place_parts does first. */
void place_shares(struct placement *p);

/* Seconds that the slowest machine takes per round, with unknown bandwidths taken as place_parts
 * does (1 Mbit/s when none is known: then only ratios mean something). */
double place_time_s(const struct placement *p);

/* The smallest time that any division of the job's bytes reaches on these machines, other jobs
 * left out: bisection over the time t of
 *   x_i = max(0, (t B_i - M) / (n-2)) on machines with an agent,
 *   y_j = t C_j / n on others, sum of all >= M.
 * Loads in p do not matter. */
double place_optimum_s(const struct placement *p);

/* Elements of each partition (the last may be shorter) of a tensor.
 * job_bytes: of the job so far with this tensor and those that come with it. want_bytes: the job's
 * wish, 0: none.
 * Returns a multiple of PLACE_ALIGN_ELEMS; the tensor has at most PLACE_PARTS_MAX partitions. */
uint32_t place_part_elems(uint64_t n_elems, uint32_t elem_bytes, uint32_t n_servers,
	uint64_t job_bytes, uint32_t want_bytes);
#endif
