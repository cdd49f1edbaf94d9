/* Tests the placement of partitions on servers. Compares the duration of a round with the
 * optimal duration. The tensors come from traces of real models (tests/traces). The machines have
 * different speeds. No daemon runs. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-scheduler/placement/place.h"
#include "common/data/pool.h"

#define TENSORS_MAX 1024
#define NODES_MAX   64
#define MBPS        100000

struct place_trace {
	size_t n;
	uint64_t elems[TENSORS_MAX];
	uint64_t bytes;
};

static struct place_trace trace_load(const char *model)
{
	struct place_trace t = {0};
	char path[128], line[512];
	FILE *f;

	snprintf(path, sizeof(path), "tests/traces/%s.tsv", model);
	f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		char *tab = strchr(line, '\t');
		unsigned long long elems;

		if (line[0] == '#' || !tab || sscanf(tab, "%llu", &elems) != 1)
			continue;
		assert_true(t.n < TENSORS_MAX);
		t.elems[t.n++] = elems;
		t.bytes += 4 * elems;
	}
	fclose(f);
	assert_true(t.n > 0);
	return t;
}

struct cluster {
	struct placement p;
	struct place_machine machines[NODES_MAX];
	struct place_server servers[NODES_MAX];
	uint64_t threads[NODES_MAX][2];
};

/* Make n machines with an agent and a server, and k machines with only a server. */
static void cluster_init(struct cluster *c, uint32_t n, uint32_t k, uint64_t job_bytes)
{
	*c = (struct cluster){.p = {n, job_bytes, c->machines, n + k, c->servers, n + k}};
	for (uint32_t i = 0; i < n + k; i++) {
		c->machines[i] = (struct place_machine){
			.nic_mbps = MBPS, .has_agent = i < n, .has_server = true};
		c->servers[i] = (struct place_server){
			.machine = i, .n_threads = 2, .thread_bytes = c->threads[i]};
	}
}

static int larger_first(const void *a, const void *b)
{
	uint64_t x = ((const struct place_part *)a)->bytes;
	uint64_t y = ((const struct place_part *)b)->bytes;

	return (x < y) - (x > y);
}

/* Place a trace's tensors in one batch. Returns the time that a round takes with this placement,
 * divided by the optimal time. */
static double place_trace(struct cluster *c, const struct place_trace *t)
{
	struct place_part *parts = NULL;
	size_t n_parts = 0, room = 0;
	double ratio;

	for (size_t i = 0; i < t->n; i++) {
		struct tensor_shape shape = shape_from_dtype_and_count(DTYPE_F32, t->elems[i]);
		uint32_t part = place_part_elems(&shape, 1, c->p.n_servers, t->bytes, 0);

		for (uint64_t at = 0; at < t->elems[i]; at += part) {
			uint64_t elems = t->elems[i] - at < part ? t->elems[i] - at : part;

			if (n_parts == room) {
				room = room ? 2 * room : 256;
				parts = realloc(parts, room * sizeof(*parts));
				assert_non_null(parts);
			}
			parts[n_parts++] = (struct place_part){.bytes = 4 * elems};
		}
	}
	qsort(parts, n_parts, sizeof(*parts), larger_first);
	place_parts(&c->p, parts, n_parts);
	ratio = placement_worst_time_s(&c->p) / place_optimum_s(&c->p);
	free(parts);
	return ratio;
}

static const char *const models[] = {"vgg16", "resnet50", "bert-large"};

static void placement_is_within_5_percent_of_the_optimum(void **state)
{
	static const uint32_t shapes[][2] = {{2, 0}, {2, 1}, {2, 2}, {3, 0}, {3, 2}, {4, 0}, {4, 1},
		{4, 2}, {4, 4}, {5, 3}, {8, 0}, {8, 1}, {8, 4}, {8, 8}, {12, 5}, {16, 0}, {16, 4},
		{16, 8}, {16, 16}, {24, 7}, {24, 24}, {32, 0}, {32, 1}, {32, 8}, {32, 16}, {32, 24},
		{32, 31}, {32, 32}};

	(void)state;
	for (size_t m = 0; m < 3; m++) {
		struct place_trace t = trace_load(models[m]);

		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			struct cluster c;
			double ratio;

			cluster_init(&c, shapes[i][0], shapes[i][1], t.bytes);
			ratio = place_trace(&c, &t);
			if (getenv("PLACE_TABLE"))
				printf("%-10s n=%-2u k=%-2u t/t_opt=%.3f\n", models[m],
					shapes[i][0], shapes[i][1], ratio);
			assert_true(ratio >= 1 - 1e-9);
			if (ratio > 1.05)
				fail_msg("%s (%u,%u): %.3f", models[m], shapes[i][0], shapes[i][1],
					ratio);
		}
	}
}

static void unequal_nics_are_within_5_percent_of_the_bound(void **state)
{
	static const uint64_t speeds[] = {100000, 25000, 50000, 100000, 40000, 100000, 10000};
	static const uint64_t agent_speeds[] = {100000, 90000, 95000, 100000, 80000};
	static const uint32_t shapes[][2] = {{4, 2}, {8, 8}, {16, 8}, {32, 16}};

	(void)state;
	for (size_t m = 0; m < 3; m++) {
		struct place_trace t = trace_load(models[m]);

		for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			for (int slow_agents = 0; slow_agents < 2; slow_agents++) {
				uint32_t n = shapes[i][0], k = shapes[i][1];
				struct cluster c;
				double ratio;

				cluster_init(&c, n, k, t.bytes);
				for (uint32_t j = n; j < n + k; j++)
					c.machines[j].nic_mbps = speeds[j % 7];
				for (uint32_t j = 0; slow_agents && j < n; j++)
					c.machines[j].nic_mbps = agent_speeds[j % 5];
				ratio = place_trace(&c, &t);
				if (getenv("PLACE_TABLE"))
					printf("%-10s n=%-2u k=%-2u unequal %s t/t_opt=%.3f\n",
						models[m], n, k,
						slow_agents ? "all" : "CPU machines", ratio);
				assert_true(ratio >= 1 - 1e-9);
				if (ratio > 1.05)
					fail_msg("%s (%u,%u): %.3f", models[m], n, k, ratio);
			}
		}
	}
}

static void optimum_of_equal_nics_is_the_published_formula(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 32; n++) {
		for (uint32_t k = 0; k <= n; k++) {
			struct cluster c;
			double nn = n, kk = k, total = 1e9, rate = MBPS * 125000.0, formula;

			if (n + k > NODES_MAX)
				continue;
			cluster_init(&c, n, k, (uint64_t)total);
			formula = 2 * nn * (nn - 1) * total / ((nn * nn + kk * nn - 2 * kk) * rate);
			assert_true(fabs(place_optimum_s(&c.p) / formula - 1) < 1e-6);
		}
	}
}

/* Eight machines have an agent, a server and a card of 100 Gbit/s. Eight other machines have only a
 * server and a card of 25 Gbit/s. These eight slow machines help as much as two machines with 100
 * Gbit/s would. So the expected time is the time for n = 8 and k = 2 in docs/guides/plan.md. */
static void slow_cpu_machines_add_their_share_to_the_optimum(void **state)
{
	struct cluster c;
	double m_over_b = 1e9 / (MBPS * 125000.0);

	(void)state;
	cluster_init(&c, 8, 8, (uint64_t)1e9);
	for (int i = 8; i < 16; i++)
		c.machines[i].nic_mbps = 25000;
	assert_true(fabs(place_optimum_s(&c.p) / m_over_b - 1.474) < 0.001);
}

static void unknown_nic_counts_as_the_median(void **state)
{
	struct cluster a, b;
	struct place_trace t = trace_load("resnet50");

	(void)state;
	cluster_init(&a, 4, 3, t.bytes);
	a.machines[4].nic_mbps = 10000;
	b = a;
	b.p.machines = b.machines;
	b.p.servers = b.servers;
	for (int i = 0; i < 7; i++)
		b.servers[i].thread_bytes = b.threads[i];
	b.machines[6].nic_mbps = 0;
	assert_true(fabs(place_trace(&a, &t) - place_trace(&b, &t)) < 1e-9);
	assert_memory_equal(a.threads, b.threads, sizeof(a.threads));
}

static void other_jobs_load_is_avoided(void **state)
{
	struct cluster c;
	struct place_part parts[4] = {
		{.bytes = 100}, {.bytes = 100}, {.bytes = 100}, {.bytes = 100}};

	(void)state;
	cluster_init(&c, 4, 2, 400);
	for (uint32_t i = 0; i < 4; i++)
		c.machines[i].has_server = false;
	c.p.n_servers = 2;
	c.servers[0].machine = 4;
	c.servers[1].machine = 5;
	c.machines[4].other_bytes = 100000;
	place_parts(&c.p, parts, 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(parts[i].server, 1);
}

static void servers_of_one_machine_and_threads_share_evenly(void **state)
{
	struct cluster c;
	struct place_part parts[8];

	(void)state;
	cluster_init(&c, 2, 0, 800);
	c.servers[1].machine = 0;
	for (int i = 0; i < 8; i++)
		parts[i] = (struct place_part){.bytes = 100};
	place_parts(&c.p, parts, 8);
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			assert_int_equal(c.threads[i][j], 200);
}

/* Place n equal partitions on two machines without agents. The first machine's card is ten times as
 * fast, so it would get almost all partitions. need: memory for the sums of a partition. */
static void place_on_unequal_cards(
	struct cluster *c, uint64_t memory0, uint64_t memory1, unsigned n, uint64_t need)
{
	struct place_part parts[64];

	assert_true(n <= 64);
	cluster_init(c, 2, 2, n * (uint64_t)100);
	c->machines[0].has_server = c->machines[1].has_server = false;
	c->p.n_servers = 2;
	for (uint32_t i = 0; i < 2; i++)
		c->servers[i].machine = 2 + i;
	c->machines[2].nic_mbps = 10 * MBPS;
	c->servers[0].memory = memory0;
	c->servers[1].memory = memory1;
	for (unsigned i = 0; i < n; i++)
		parts[i] = (struct place_part){.bytes = 100, .need = need};
	place_parts(&c->p, parts, n);
}

static void no_server_gets_more_sums_than_its_memory_holds(void **state)
{
	struct cluster c;

	(void)state;
	/* Without limits of memory, the fast machine gets more than 1,000 bytes of sums. */
	place_on_unequal_cards(&c, 0, 0, 12, 150);
	assert_true(c.servers[0].sums > 1000);
	place_on_unequal_cards(&c, 1000, 1000, 12, 150);
	assert_int_equal(c.servers[0].sums, 900);
	assert_int_equal(c.servers[1].sums, 900);
	/* A server whose memory is not known has no limit. */
	place_on_unequal_cards(&c, 1000, 0, 12, 150);
	assert_int_equal(c.servers[0].sums, 900);
	assert_int_equal(c.servers[1].sums, 900);
}

/* The sums of a large job do not fit. Afterwards the same fraction of each server's memory is used,
 * so a small job finds memory on both. */
static void sums_beyond_all_memory_are_shared_by_memory(void **state)
{
	struct cluster c;

	(void)state;
	place_on_unequal_cards(&c, 1000, 2000, 40, 100);
	assert_int_equal(c.servers[0].sums + c.servers[1].sums, 4000);
	assert_in_range(c.servers[0].sums, 1300, 1400);
}

static void part_size_is_aligned_and_bounded(void **state)
{
	static const uint64_t elems[] = {1, 63, 64, 1000, 1 << 20, 1ull << 30, 1ull << 40};
	static const enum dtype types[] = {
		DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_F64, DTYPE_Q8, DTYPE_Q4, DTYPE_SIGN};
	static const uint32_t wants[] = {0, 1, 4096, 1 << 20, 4000000};
	struct tensor_shape shape;

	(void)state;
	for (size_t i = 0; i < 7; i++) {
		for (size_t j = 0; j < sizeof(types) / sizeof(types[0]); j++) {
			for (size_t w = 0; w < sizeof(wants) / sizeof(wants[0]); w++) {
				struct tensor_shape s = shape_from_dtype_and_count(
					types[j], elems[i] * dtype_values(types[j]));
				uint32_t part =
					place_part_elems(&s, 1, 7, shape_bytes(&s), wants[w]);
				uint64_t acc = (uint64_t)part * dtype_acc_bytes(types[j]);

				assert_true(part > 0 && part % PLACE_ALIGN_ELEMS == 0);
				assert_true((elems[i] + part - 1) / part <= PLACE_PARTS_MAX);
				assert_true(
					acc <= POOL_SEGMENT_BYTES ||
					elems[i] / (part - PLACE_ALIGN_ELEMS) >= PLACE_PARTS_MAX);
			}
		}
	}
	shape = shape_from_dtype_and_count(DTYPE_F32, 1 << 24);
	assert_int_equal(place_part_elems(&shape, 1, 4, 1 << 26, 0), (128u << 10) / 4);
	assert_int_equal(place_part_elems(&shape, 1, 4, 1 << 28, 0), PLACE_PART_BYTES / 4);
	assert_int_equal(place_part_elems(&shape, 1, 4, 1 << 26, 1 << 16), 1 << 14);
	assert_int_equal(place_part_elems(&shape, 1, 4, 1 << 26, 1u << 30), POOL_SEGMENT_BYTES / 4);
	shape = shape_from_dtype_and_count(DTYPE_F32, 1 << 25);
	assert_int_equal(place_part_elems(&shape, 1, 4, 1u << 30, 0), PLACE_PART_BYTES / 2);
}

/* A training step goes through the tensors of a job in order. In every part of the step, machines
 * without agents must sum some of the partitions, but not all of them. */
static void every_stretch_of_equal_partitions_is_shared_by_bandwidth(void **state)
{
	enum { N = 400, STRETCH = 50 };
	struct place_part parts[N];
	struct cluster c;

	(void)state;
	cluster_init(&c, 4, 2, (uint64_t)N << 19);
	for (size_t i = 0; i < N; i++)
		parts[i] = (struct place_part){.bytes = 1 << 19};
	place_parts(&c.p, parts, N);
	for (size_t first = 0; first < N; first += STRETCH) {
		/* partitions on servers of machines that also have an agent */
		unsigned n_beside = 0;

		for (size_t i = first; i < first + STRETCH; i++)
			n_beside += parts[i].server < 4;
		/* Let M be the number of bytes of gradients, and B the bandwidth of a machine
		 * (docs/guides/plan.md). The optimal time is 1.2 * M / B. Each machine with an
		 * agent sums 0.1 * M bytes. Each machine without an agent sums 0.3 * M bytes. */
		assert_in_range(n_beside, STRETCH * 0.36, STRETCH * 0.44);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(placement_is_within_5_percent_of_the_optimum),
		cmocka_unit_test(unequal_nics_are_within_5_percent_of_the_bound),
		cmocka_unit_test(optimum_of_equal_nics_is_the_published_formula),
		cmocka_unit_test(slow_cpu_machines_add_their_share_to_the_optimum),
		cmocka_unit_test(unknown_nic_counts_as_the_median),
		cmocka_unit_test(other_jobs_load_is_avoided),
		cmocka_unit_test(servers_of_one_machine_and_threads_share_evenly),
		cmocka_unit_test(no_server_gets_more_sums_than_its_memory_holds),
		cmocka_unit_test(sums_beyond_all_memory_are_shared_by_memory),
		cmocka_unit_test(every_stretch_of_equal_partitions_is_shared_by_bandwidth),
		cmocka_unit_test(part_size_is_aligned_and_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
