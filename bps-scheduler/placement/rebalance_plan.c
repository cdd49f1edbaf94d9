/* Plans the moves that balance a job's partitions (rebalance_plan.h). Each move takes a partition
 * from the fullest server to the emptiest server. balance.c decides when partitions are moved, and
 * moves them. The functions keep no state and may be called on any thread. */
#include "bps-scheduler/placement/rebalance_plan.h"

#include <math.h>
#include <stdlib.h>

#include "bps-scheduler/model/compare.h"
#include "bps-scheduler/placement/place.h"

/* Smallest share that the plan assumes for a server, as a fraction of an equal share.
 * place_compute_shares may give a server the share 0. Such a server may still have a partition,
 * because a partition that fits into no share is placed as well (place.h). Without this minimum,
 * the fill of such a server would be infinite. */
#define SHARE_MIN 0.05
/* Smallest gain of a move, as a fraction of the fill of the fullest server. */
#define STEP_MIN 0.005

/* A server and its partitions: parts[at] to parts[end - 1], largest first. pick_part_to_move()
 * skips the partitions in this range that the plan has already moved. */
struct rebalance_server {
	double share;
	uint64_t bytes;
	size_t at, end;
	uint32_t id;
	bool is_out; /* no further partition can move to this server */
};

static int by_server_and_size(const void *a, const void *b)
{
	const struct rebalance_part *x = a, *y = b;

	int rc = compare_u64(x->server, y->server);

	if (!rc)
		rc = compare_u64(y->bytes, x->bytes);
	return rc ? rc : compare_u64(x->ref, y->ref);
}

static double server_fill_ratio(const struct rebalance_server *s)
{
	return (double)s->bytes / s->share;
}

/* Set the shares of the servers. place_compute_shares computes the share of each machine. The
 * servers of one machine get equal parts of the machine's share, but at least the minimum
 * SHARE_MIN. */
static void set_server_shares(struct placement *p, struct rebalance_server *sides, uint64_t total)
{
	uint32_t *n = calloc(p->n_machines, sizeof(*n));
	double least = SHARE_MIN * (double)total / p->n_servers;

	place_compute_shares(p);
	for (uint32_t i = 0; n && i < p->n_servers; i++)
		n[p->servers[i].machine]++;
	for (uint32_t i = 0; i < p->n_servers; i++) {
		uint32_t m = p->servers[i].machine;

		sides[i].share = n ? p->machines[m].share_bytes / n[m] : 1;
		sides[i].share = fmax(sides[i].share, least);
	}
	free(n);
}

/* Find the fullest server, and the emptiest one that can take a partition. */
static void find_full_and_empty(struct rebalance_server *sides, uint32_t n,
	struct rebalance_server **ret_full, struct rebalance_server **ret_free)
{
	struct rebalance_server *full = NULL, *empty = NULL;

	for (uint32_t i = 0; i < n; i++) {
		if (!full || server_fill_ratio(&sides[i]) > server_fill_ratio(full))
			full = &sides[i];
		if (!sides[i].is_out &&
			(!empty || server_fill_ratio(&sides[i]) < server_fill_ratio(empty)))
			empty = &sides[i];
	}
	*ret_full = full;
	*ret_free = empty;
}

/* Choose a partition to move from server `from` to server `to`, which has `room` bytes of free
 * memory. Returns NULL if no move lowers the fill of `from` enough. */
static struct rebalance_part *pick_part_to_move(struct rebalance_part *parts,
	struct rebalance_server *from, const struct rebalance_server *to, uint64_t room)
{
	double ideal = ((double)from->bytes * to->share - (double)to->bytes * from->share) /
		       (from->share + to->share);
	struct rebalance_part *smallest = NULL;

	while (from->at < from->end && parts[from->at].to != parts[from->at].server)
		from->at++;
	for (size_t i = from->at; i < from->end; i++) {
		struct rebalance_part *p = &parts[i];

		if (p->to != p->server || p->need > room)
			continue;
		if ((double)p->bytes <= ideal)
			return p;
		smallest = p;
	}
	if (smallest && (double)(to->bytes + smallest->bytes) / to->share <
				server_fill_ratio(from) * (1 - STEP_MIN))
		return smallest;
	return NULL;
}

static double highest_fill_ratio(const struct rebalance_server *sides, uint32_t n)
{
	double most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = fmax(most, server_fill_ratio(&sides[i]));
	return most;
}

static void plan_part_moves(struct rebalance_server *sides, uint32_t n, uint64_t *rooms,
	struct rebalance_part *parts, struct rebalance_gain *ret)
{
	struct rebalance_server *from, *to;

	for (find_full_and_empty(sides, n, &from, &to); to && from != to;
		find_full_and_empty(sides, n, &from, &to)) {
		struct rebalance_part *p = pick_part_to_move(parts, from, to, rooms[to->id]);

		if (!p) {
			to->is_out = true;
			continue;
		}
		p->to = to->id;
		p->order = ret->n_moves++;
		from->bytes -= p->bytes;
		to->bytes += p->bytes;
		if (rooms[to->id] != UINT64_MAX)
			rooms[to->id] -= p->need;
	}
}

struct rebalance_gain rebalance_plan(
	struct placement *p, uint64_t *rooms, struct rebalance_part *parts, size_t n_parts)
{
	struct rebalance_server *sides = calloc(p->n_servers, sizeof(*sides));
	struct rebalance_gain gain = {0};
	uint64_t total = 0;

	if (!sides)
		return gain;
	qsort(parts, n_parts, sizeof(*parts), by_server_and_size);
	for (size_t i = 0; i < n_parts; i++) {
		parts[i].to = parts[i].server;
		total += parts[i].bytes;
	}
	if (!total) {
		free(sides);
		return gain;
	}
	for (size_t i = 0; i < n_parts; i++) {
		struct rebalance_server *s = &sides[parts[i].server];

		s->at = s->bytes ? s->at : i;
		s->bytes += parts[i].bytes;
		s->end = i + 1;
	}
	for (uint32_t i = 0; i < p->n_servers; i++)
		sides[i].id = i;
	set_server_shares(p, sides, total);
	gain.before = highest_fill_ratio(sides, p->n_servers);
	plan_part_moves(sides, p->n_servers, rooms, parts, &gain);
	gain.after = highest_fill_ratio(sides, p->n_servers);
	free(sides);
	return gain;
}
