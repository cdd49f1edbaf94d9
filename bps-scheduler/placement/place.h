#ifndef BPS_SCHEDULER_PLACEMENT_PLACE_H
#define BPS_SCHEDULER_PLACEMENT_PLACE_H
/* Places partitions on servers, the largest partition first (LPT, longest processing time first).
 * Each machine has a share of the job's bytes. For each machine, the code computes the fraction of
 * the machine's share that would be filled if the machine got the partition. The code places the
 * partition on the machine with the smallest fraction. If the partition fits into no share, the
 * code places the partition on the machine that would finish first. The functions keep no state and
 * change only the caller's arrays.
 *
 * A job has n agents and M bytes. If a machine sums x of these bytes, the number of bytes that its
 * network card (NIC) carries in each direction is:
 *   machine with an agent of the job:  M + (n-2) x
 *   machine without such an agent:     n x
 * These are equations 3 and 4 of OSDI'20 "A Unified Architecture for Accelerating Distributed DNN
 * Training". The time of a machine is the number of bytes divided by the machine's bandwidth, plus
 * the time for other jobs' partitions there. The shares are chosen so that all machines end at the
 * same time. Hashing reaches the optimum of that paper only on average. If a job has a few hundred
 * partitions and hashing places them, a round takes 1.1 to 3 times the optimal time. If LPT places
 * them, a round takes only a few percent more than the optimal time.
 *
 * The shares are needed because all machines must be busy during the whole round. LPT alone gives
 * the first tensors to the machines without agents, which start with no load, and the last tensors
 * to the machines with agents. While the first tensors are sent, half of the network cards are
 * idle.
 *
 * Several servers of one machine share its NIC. Among these servers, the partition is placed on the
 * one with the fewest bytes of the job. Within that server, the partition is placed on the data
 * thread with the fewest bytes.
 *
 * A server gets a partition only if the partition's sums fit into the server's memory. If they fit
 * into the memory of no server, the partition is placed on the server whose memory is used least,
 * as a fraction. So a large job fills no server while other servers have memory, and the admission
 * (core/admission.h) can count the memory of all servers together. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/data/shape.h"

#ifndef PLACE_ALIGN_ELEMS /* the simulator defines a smaller value */
/* Partitions of all types begin at multiples of 64 bytes of the tensor. */
#define PLACE_ALIGN_ELEMS 64
#endif
#define PLACE_PART_BYTES     (512u << 10)
#define PLACE_PART_BYTES_MIN (64u << 10)
#define PLACE_PARTS_MAX      32768 /* largest number of partitions of a tensor */

struct place_machine {
	/* speed of the machine's network card; 0: not known, so the median of the known speeds is
	 * used */
	uint64_t nic_mbps;
	bool has_agent; /* an agent of this job runs on the machine */
	bool has_server;
	/* bytes of other jobs that the machine's network card moves per round in each direction */
	uint64_t other_bytes;
	uint64_t bytes; /* bytes of this job's partitions on the servers of the machine */
	/* bytes of this job that the machine should sum; set by place_compute_shares */
	double share_bytes;
};

struct place_server {
	uint32_t machine;   /* the server's machine, as an index into placement.machines */
	uint16_t n_threads; /* number of the server's data threads, at least 1 */
	uint64_t bytes;     /* bytes of this job's partitions on the server */
	/* array with n_threads entries: bytes of all jobs' partitions on each data thread */
	uint64_t *thread_bytes;
	uint64_t memory; /* memory of the server for sums, in bytes; 0: unknown */
	uint64_t sums;   /* memory that the sums of all jobs' partitions on the server take */
};

struct placement {
	uint32_t n_agents;  /* number of the job's agents, at least 1 */
	uint64_t job_bytes; /* M: bytes of all tensors of the job, including those to be placed */
	struct place_machine *machines;
	uint32_t n_machines;
	struct place_server *servers;
	uint32_t n_servers; /* number of usable servers, at least 1 */
};

struct place_part {
	uint64_t bytes;
	uint64_t need;   /* memory that the partition's sums take */
	uint32_t server; /* result: the partition's server, as an index into placement.servers */
	uint16_t thread; /* result: the partition's data thread on that server */
};

/* Return how much memory the server has for the sums of further partitions; UINT64_MAX: unknown. */
static inline uint64_t place_server_room(const struct place_server *s)
{
	if (!s->memory)
		return UINT64_MAX;
	return s->sums < s->memory ? s->memory - s->sums : 0;
}

/* For each partition in the array `parts`, choose a server and a data thread, and add the
 * partition's bytes to the loads in p. The array must be in descending order of bytes. */
void place_parts(struct placement *p, struct place_part *parts, size_t n_parts);

uint16_t place_idlest_thread(const uint64_t *thread_bytes, uint16_t n_threads);

/* Set the machines' shares of the job. place_parts calls this function first. */
void place_compute_shares(struct placement *p);

/* Return the seconds that the slowest machine takes per round. The median of the known bandwidths
 * replaces unknown ones. If all bandwidths are unknown, 1 Mbit/s replaces them, and then only
 * ratios of times are meaningful. */
double placement_worst_time_s(const struct placement *p);

/* Return the time in seconds that a round takes with the best distribution of the job's bytes over
 * the machines of p, if no other job runs. The loads in p have no effect. The job has n agents and
 * M bytes. In t seconds, machine i with an agent can sum x_i bytes, and machine j without an agent
 * can sum y_j bytes. B_i and C_j are the bandwidths of these machines. Bisection finds the smallest
 * t for which the sum of all x_i and y_j is at least M, with
 *   x_i = max(0, (t B_i - M) / (n-2)) on machines with an agent (if n is more than 2),
 *   y_j = t C_j / n on machines without an agent. */
double place_optimum_s(const struct placement *p);

/* Return the number of elements of each partition of a tensor. The last partition of each of its
 * n_shards shards may be shorter.
 * job_bytes is the size of all tensors of the job so far, including this tensor and the tensors
 * declared in the same batch. want_bytes is the partition size that the job requests, or 0 if the
 * job requests no size. The result is a multiple of PLACE_ALIGN_ELEMS. The accumulator of a
 * partition is not larger than a server's segment, unless the tensor would then have more than
 * PLACE_PARTS_MAX partitions. */
uint32_t place_part_elems(const struct tensor_shape *shape, uint32_t n_shards, uint32_t n_servers,
	uint64_t job_bytes, uint32_t want_bytes);
#endif
