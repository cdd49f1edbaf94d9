/* Places partitions on servers (place.h): computes shares by network bandwidth, then chooses a
 * server for each partition. The functions are pure: they use no state of the scheduler and send no
 * messages. Any thread may call them. */
#include "bps-scheduler/placement/place.h"

#include <math.h>
#include <stdlib.h>

#include "bps-scheduler/model/compare.h"
#include "common/data/pool.h"

/* Number of bisection steps. A double has only 64 bits, so more steps change nothing. */
#define BISECTIONS     100
#define BYTES_PER_MBIT 125000.0
/* Partition size in bytes. Partitions below this size do not shorten the last phase of a round any
 * further, and are made only if a server would otherwise have too few partitions. */
#define PART_BYTES_QUICK (UINT64_C(128) << 10)

static int compare_by_value(const void *a, const void *b)
{
	return compare_u64(*(const uint64_t *)a, *(const uint64_t *)b);
}

/* Return the median of the known bandwidths, or 1 if none is known. */
static uint64_t median_nic_mbps(const struct placement *p)
{
	uint64_t *known = malloc((p->n_machines + 1) * sizeof(*known)), median = 1;
	size_t n = 0;

	if (!known)
		return median;
	for (uint32_t i = 0; i < p->n_machines; i++)
		if (p->machines[i].nic_mbps)
			known[n++] = p->machines[i].nic_mbps;
	if (n) {
		qsort(known, n, sizeof(*known), compare_by_value);
		median = known[n / 2];
	}
	free(known);
	return median;
}

static double machine_byte_rate(const struct place_machine *m, uint64_t mbps_default)
{
	return BYTES_PER_MBIT * (double)(m->nic_mbps ? m->nic_mbps : mbps_default);
}

/* Return the seconds that machine m takes per round if it sums `extra` more bytes. */
static double machine_time_s(const struct placement *p, const struct place_machine *m,
	uint64_t extra, uint64_t mbps_default)
{
	double n = p->n_agents, bytes = (double)(m->bytes + extra), moved;

	if (m->has_agent)
		moved = (double)p->job_bytes + (n > 2 ? (n - 2) * bytes : 0);
	else
		moved = n * bytes;
	return (moved + (double)m->other_bytes) / machine_byte_rate(m, mbps_default);
}

/* Return how many of the job's bytes the machine m can sum within t seconds. In these t seconds,
 * m's network card also moves `other` bytes of other jobs. */
static double machine_bytes_within(const struct placement *p, const struct place_machine *m,
	double t, uint64_t other, uint64_t mbps_default)
{
	double n = p->n_agents, total = (double)p->job_bytes;
	double moved = t * machine_byte_rate(m, mbps_default) - (double)other;

	if (!m->has_server)
		return 0;
	if (!m->has_agent)
		return fmax(0, moved / n);
	if (n > 2)
		return fmax(0, (moved - total) / (n - 2));
	return moved >= total ? total : 0;
}

/* Return the bytes that all servers together can sum within t seconds. */
static double servers_bytes_within(
	const struct placement *p, double t, bool has_others, uint64_t mbps_default)
{
	double sum = 0;

	for (uint32_t i = 0; i < p->n_machines; i++)
		sum += machine_bytes_within(p, &p->machines[i], t,
			has_others ? p->machines[i].other_bytes : 0, mbps_default);
	return sum;
}

/* Return the smallest time, in seconds, in which the servers can sum all bytes of the job. */
static double least_sum_time_s(const struct placement *p, bool has_others, uint64_t mbps_default)
{
	double total = (double)p->job_bytes, low = 0, high;

	for (uint32_t i = 0; i < p->n_machines; i++)
		if (p->machines[i].has_agent)
			low = fmax(low, total / machine_byte_rate(&p->machines[i], mbps_default));
	if (servers_bytes_within(p, low, has_others, mbps_default) >= total)
		return low;
	high = low > 0 ? low : 1e-9;
	while (servers_bytes_within(p, high, has_others, mbps_default) < total)
		high *= 2;
	for (int i = 0; i < BISECTIONS; i++) {
		double mid = (low + high) / 2;

		if (servers_bytes_within(p, mid, has_others, mbps_default) >= total)
			high = mid;
		else
			low = mid;
	}
	return high;
}

void place_compute_shares(struct placement *p)
{
	uint64_t mbps_default = median_nic_mbps(p);
	double t = least_sum_time_s(p, true, mbps_default);

	for (uint32_t i = 0; i < p->n_machines; i++)
		p->machines[i].share_bytes = machine_bytes_within(
			p, &p->machines[i], t, p->machines[i].other_bytes, mbps_default);
}

/* Return whether the sums of a partition fit into the memory of a server. need: memory that these
 * sums take. */
static bool has_memory_for_part(const struct place_server *s, uint64_t need)
{
	return need <= place_server_room(s);
}

/* Choose a server for a partition. For each machine, compute the fraction of the machine's share
 * that would be filled if the machine got the partition. Return a server of the machine with the
 * smallest fraction. Return -1 if the partition fits into no share. */
static int64_t find_least_filled_server(const struct placement *p, const struct place_part *part)
{
	int64_t best = -1;
	double least = INFINITY;

	for (uint32_t i = 0; i < p->n_servers; i++) {
		const struct place_server *s = &p->servers[i];
		const struct place_machine *m = &p->machines[s->machine];
		double filled = (double)(m->bytes + part->bytes) / m->share_bytes;

		if (filled > 1 || !has_memory_for_part(s, part->need))
			continue;
		if (filled < least || (filled <= least && s->bytes < p->servers[best].bytes)) {
			best = i;
			least = filled;
		}
	}
	return best;
}

/* Return the server that would finish first if it got the partition, or -1 if no server has memory
 * for the partition. */
static int64_t placement_find_earliest_end(
	const struct placement *p, const struct place_part *part, uint64_t mbps_default)
{
	int64_t best = -1;
	double best_time = INFINITY;

	for (uint32_t i = 0; i < p->n_servers; i++) {
		const struct place_server *s = &p->servers[i];
		double t = machine_time_s(p, &p->machines[s->machine], part->bytes, mbps_default);

		if (!has_memory_for_part(s, part->need))
			continue;
		if (best < 0 || t < best_time ||
			(t <= best_time && s->bytes < p->servers[best].bytes)) {
			best = i;
			best_time = t;
		}
	}
	return best;
}

/* Return the server whose memory is used least, as a fraction. The memory of all servers is
 * known. */
static uint32_t find_least_used_server(const struct placement *p)
{
	uint32_t best = 0;
	double least = INFINITY;

	for (uint32_t i = 0; i < p->n_servers; i++) {
		double used = (double)p->servers[i].sums / (double)p->servers[i].memory;

		if (used < least) {
			best = i;
			least = used;
		}
	}
	return best;
}

static uint32_t choose_best_server(
	const struct placement *p, const struct place_part *part, uint64_t mbps_default)
{
	int64_t best = find_least_filled_server(p, part);

	if (best < 0)
		best = placement_find_earliest_end(p, part, mbps_default);
	return best >= 0 ? (uint32_t)best : find_least_used_server(p);
}

uint16_t place_idlest_thread(const uint64_t *thread_bytes, uint16_t n_threads)
{
	uint16_t best = 0;

	for (uint16_t i = 1; i < n_threads; i++)
		if (thread_bytes[i] < thread_bytes[best])
			best = i;
	return best;
}

void place_parts(struct placement *p, struct place_part *parts, size_t n_parts)
{
	uint64_t mbps = median_nic_mbps(p);

	place_compute_shares(p);
	for (size_t i = 0; i < n_parts; i++) {
		struct place_part *part = &parts[i];
		struct place_server *s;

		part->server = choose_best_server(p, part, mbps);
		s = &p->servers[part->server];
		part->thread = place_idlest_thread(s->thread_bytes, s->n_threads);
		s->bytes += part->bytes;
		s->sums += part->need;
		s->thread_bytes[part->thread] += part->bytes;
		p->machines[s->machine].bytes += part->bytes;
	}
}

double placement_worst_time_s(const struct placement *p)
{
	uint64_t mbps = median_nic_mbps(p);
	double worst = 0;

	for (uint32_t i = 0; i < p->n_machines; i++)
		worst = fmax(worst, machine_time_s(p, &p->machines[i], 0, mbps));
	return worst;
}

double place_optimum_s(const struct placement *p)
{
	return least_sum_time_s(p, false, median_nic_mbps(p));
}

/* Return the partition size for a tensor. The default is PLACE_PART_BYTES. With this size, LPT
 * (place.h) is within a few percent of the optimum if each server has 8 or more partitions of the
 * job. For small models on many servers, the size is halved until each server has 8 partitions or
 * the size is PLACE_PART_BYTES_MIN.
 *
 * In the last phase of a round, all agents have pushed their values but must still fetch the last
 * sums. To keep this phase short, a size above PART_BYTES_QUICK is halved further. The halving
 * stops when the size is at most 1/128 of the job's bytes per server, or when the size is
 * PART_BYTES_QUICK.
 *
 * The rules above have an exception. If the job has more than 32 MiB of tensors per server, a
 * tensor of more than 64 MiB has partitions of 1 MiB. Compared with partitions of PLACE_PART_BYTES,
 * this size halves the number of messages and keeps the same balance. */
static uint64_t part_bytes_wanted(uint64_t tensor_bytes, uint32_t n_servers, uint64_t job_bytes)
{
	uint64_t per_server = job_bytes / (n_servers ? n_servers : 1), bytes = PLACE_PART_BYTES;

	if (tensor_bytes > 64u << 20 && per_server > 32u << 20)
		return 2 * bytes;
	while (bytes > PLACE_PART_BYTES_MIN &&
		per_server < (bytes > PART_BYTES_QUICK ? 128 : 8) * bytes)
		bytes /= 2;
	return bytes;
}

uint32_t place_part_elems(const struct tensor_shape *shape, uint32_t n_shards, uint32_t n_servers,
	uint64_t job_bytes, uint32_t want_bytes)
{
	uint64_t bytes = want_bytes, elems, least;
	uint64_t most = POOL_SEGMENT_BYTES / dtype_acc_bytes(shape->dtype) / PLACE_ALIGN_ELEMS *
			PLACE_ALIGN_ELEMS;

	if (!bytes)
		bytes = part_bytes_wanted(shape_bytes(shape), n_servers, job_bytes);
	elems = bytes / dtype_bytes(shape->dtype);
	if (elems > most)
		elems = most;
	least = (shape_elems(shape) / n_shards - 1) / (PLACE_PARTS_MAX / n_shards) + 1;
	if (elems < least)
		elems = least;
	elems = (elems + PLACE_ALIGN_ELEMS - 1) / PLACE_ALIGN_ELEMS * PLACE_ALIGN_ELEMS;
	return elems ? (uint32_t)elems : PLACE_ALIGN_ELEMS;
}
