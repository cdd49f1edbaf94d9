/* Plans of the moves that balance a job: which partitions move, and in which order. No scheduler
 * runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bps-scheduler/placement/place.h"
#include "bps-scheduler/placement/rebalance_plan.h"

#define PARTS_MAX   8
#define SERVERS_MAX 3

struct plan_case {
	uint32_t n_servers, n_parts;
	struct {
		uint32_t server;
		uint64_t bytes;
		uint32_t to; /* the expected new server */
	} parts[PARTS_MAX];
	uint64_t rooms[SERVERS_MAX]; /* free memory; 0: unlimited */
	uint32_t mbps[SERVERS_MAX];  /* speeds of the cards; 0: 1000 */
	uint64_t busy[SERVERS_MAX];  /* bytes of other jobs that the cards move per round */
};

/* Plan the moves of a job on servers that have a machine each, which has no agent. The sums of a
 * partition need as much memory as the partition has bytes. */
static void check_plan(const struct plan_case *k)
{
	struct place_machine machines[SERVERS_MAX] = {0};
	struct place_server servers[SERVERS_MAX] = {0};
	struct rebalance_part parts[PARTS_MAX] = {0};
	uint64_t rooms[SERVERS_MAX], want_rooms[SERVERS_MAX];
	struct placement p = {.n_agents = 4,
		.machines = machines,
		.n_machines = k->n_servers,
		.servers = servers,
		.n_servers = k->n_servers};
	struct rebalance_gain gain;
	uint32_t n_moves = 0, orders = 0;

	for (uint32_t i = 0; i < k->n_servers; i++) {
		machines[i].has_server = true;
		machines[i].nic_mbps = k->mbps[i] ? k->mbps[i] : 1000;
		machines[i].other_bytes = k->busy[i];
		servers[i].machine = i;
		rooms[i] = want_rooms[i] = k->rooms[i] ? k->rooms[i] : UINT64_MAX;
	}
	for (uint32_t i = 0; i < k->n_parts; i++) {
		parts[i] = (struct rebalance_part){.bytes = k->parts[i].bytes,
			.need = k->parts[i].bytes,
			.server = k->parts[i].server,
			.ref = i};
		p.job_bytes += parts[i].bytes;
		if (k->parts[i].to == k->parts[i].server)
			continue;
		n_moves++;
		if (k->rooms[k->parts[i].to])
			want_rooms[k->parts[i].to] -= parts[i].need;
	}
	gain = rebalance_plan(&p, rooms, parts, k->n_parts);
	for (uint32_t i = 0; i < k->n_parts; i++) {
		const struct rebalance_part *part = &parts[i];

		if (part->to != k->parts[part->ref].to)
			fail_msg("partition %u moves to server %u", part->ref, part->to);
		if (part->to != part->server)
			orders |= 1u << part->order;
	}
	assert_int_equal(gain.n_moves, n_moves);
	assert_int_equal(orders, (1u << n_moves) - 1); /* each number once */
	for (uint32_t i = 0; i < k->n_servers; i++)
		assert_int_equal(rooms[i], want_rooms[i]);
	if (n_moves)
		assert_true(gain.after < gain.before);
	else
		assert_true(gain.after == gain.before);
}

#define CHECK_PLAN(...) check_plan(&(struct plan_case){__VA_ARGS__})

static void largest_partition_moves_that_does_not_make_the_other_server_fuller(void **state)
{
	(void)state;
	/* the largest of at most half of the difference: 30 of 50, and then 10 of 20 */
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .parts = {{0, 10, 1}, {0, 60, 0}, {0, 30, 1}});
	/* 60 of 67, which is not the first */
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .parts = {{0, 30, 0}, {0, 60, 1}, {0, 45, 0}});
	/* 30 of 32, but only 20 of 28 */
	CHECK_PLAN(.n_servers = 2, .n_parts = 4,
		.parts = {{0, 60, 0}, {0, 30, 1}, {0, 20, 0}, {1, 46, 1}});
	CHECK_PLAN(.n_servers = 2, .n_parts = 4,
		.parts = {{0, 60, 0}, {0, 30, 0}, {0, 20, 1}, {1, 54, 1}});
	/* server 1 sums twice as fast, so its share is 80 of 120 */
	CHECK_PLAN(.n_servers = 2, .n_parts = 4, .mbps = {500, 1000},
		.parts = {{0, 50, 1}, {0, 41, 0}, {0, 9, 1}, {1, 20, 1}});
}

static void smallest_partition_moves_if_that_lowers_the_larger_fill(void **state)
{
	(void)state;
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .parts = {{0, 60, 0}, {0, 40, 1}, {1, 50, 1}});
	/* after the move, server 1 would be as full as server 0 is now */
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .parts = {{0, 50, 0}, {0, 50, 0}, {1, 50, 1}});
	/* a move must lower the fill by more than half a percent */
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .parts = {{0, 500, 0}, {0, 500, 0}, {1, 496, 1}});
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .parts = {{0, 500, 0}, {0, 500, 1}, {1, 494, 1}});
}

static void server_whose_card_is_busy_does_not_stop_moves_between_others(void **state)
{
	(void)state;
	CHECK_PLAN(.n_servers = 3, .n_parts = 3, .busy = {1u << 20},
		.parts = {{1, 40, 1}, {1, 30, 2}, {1, 9, 2}});
	/* its own partition moves away */
	CHECK_PLAN(.n_servers = 3, .n_parts = 3, .busy = {1u << 20},
		.parts = {{0, 20, 1}, {1, 20, 1}, {2, 40, 2}});
}

static void partitions_move_only_into_free_memory(void **state)
{
	(void)state;
	CHECK_PLAN(.n_servers = 2, .n_parts = 4, .rooms = {1000, 40},
		.parts = {{0, 20, 1}, {0, 20, 1}, {0, 20, 0}, {0, 20, 0}});
	CHECK_PLAN(.n_servers = 2, .n_parts = 4, .rooms = {1000, 39},
		.parts = {{0, 20, 1}, {0, 20, 0}, {0, 20, 0}, {0, 20, 0}});
	CHECK_PLAN(.n_servers = 2, .n_parts = 4, .rooms = {1000, 19},
		.parts = {{0, 20, 0}, {0, 20, 0}, {0, 20, 0}, {0, 20, 0}});
	/* a small partition fits where a large one does not */
	CHECK_PLAN(.n_servers = 2, .n_parts = 3, .rooms = {1000, 39},
		.parts = {{0, 60, 0}, {0, 40, 0}, {0, 10, 1}});
	/* another server gets what does not fit into the emptiest one */
	CHECK_PLAN(.n_servers = 3, .n_parts = 4, .rooms = {1000, 19, 1000},
		.parts = {{0, 20, 2}, {0, 20, 0}, {0, 20, 0}, {2, 10, 2}});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			largest_partition_moves_that_does_not_make_the_other_server_fuller),
		cmocka_unit_test(smallest_partition_moves_if_that_lowers_the_larger_fill),
		cmocka_unit_test(server_whose_card_is_busy_does_not_stop_moves_between_others),
		cmocka_unit_test(partitions_move_only_into_free_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
