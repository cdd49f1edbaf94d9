/* The executor's engine on the back-ends "host" and "fake". On "fake", work completes in any order
 * and each call can fail. The test takes the role of the agent: it sums the inputs of all groups,
 * multiplies the sum by ten to simulate ten machines, and returns the result. */
#include "bps-agent/executor/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/host_executor/host.h"
#include "common/base/clock.h"
#include "tests/invariants/invariants.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/route_fixture.h"

#define MEMBERS   8
#define SLOTS     4
#define TENSORS   3
#define PARTS_MAX 8

struct engine_rig {
	struct device *dev;
	struct engine *e;
	struct route route;
	struct gpu_slot slots[MEMBERS][SLOTS];
	struct device_mem *gpu_mem[MEMBERS], *host_mem;
	char *host;
	uint64_t n_elems, bytes, part_bytes;
	unsigned n_staged, n_done[TENSORS];
	uint32_t last_done, first_staged;
	int failed;
	unsigned n_late, late_member;
	bool lands_at_once;
	/* partitions whose sums were reported to the engine; NULL: not recorded */
	bool (*landed)[PARTS_MAX];
	uint64_t now_ns;
	unsigned seed;
};

static uint64_t in_offset(const struct engine_rig *r, uint32_t t, unsigned group)
{
	return (uint64_t)t * r->bytes * (MEMBERS + 2) + r->bytes * group;
}

static uint64_t out_offset(const struct engine_rig *r, uint32_t t, unsigned i)
{
	return in_offset(r, t, MEMBERS + i);
}

static int32_t *gpu_values(const struct engine_rig *r, unsigned m, uint32_t t)
{
	uint64_t at = r->dev->ops->addr(r->gpu_mem[m], DEVICE_HOST);

	return (int32_t *)(uintptr_t)(at + t * r->bytes);
}

/* Act as the agent and the servers. Multiply the sum of this machine's inputs by ten, as if there
 * were ten equal machines. Write the product to the output, and report it to the engine. */
static void land(struct engine_rig *r, uint32_t t, uint32_t part, uint64_t round)
{
	uint64_t first = part * r->part_bytes / 4, n = r->part_bytes / 4;

	if (n > r->n_elems - first)
		n = r->n_elems - first;
	for (uint64_t i = first; i < first + n; i++) {
		int32_t sum = 0;

		for (unsigned g = 0; g < r->route.n_groups; g++)
			sum += ((int32_t *)(void *)(r->host + in_offset(r, t, g)))[i];
		((int32_t *)(void *)(r->host + out_offset(r, t, round & 1)))[i] = 10 * sum;
	}
	assert_int_equal(engine_accept_landed_sum(r->e, t, part, round), 0);
	if (r->landed)
		r->landed[t][part] = true;
}

static void on_staged(void *ctx, uint32_t tensor, uint32_t part, uint64_t round)
{
	struct engine_rig *r = ctx;

	if (r->n_staged++ == 0)
		r->first_staged = tensor;
	if (r->lands_at_once)
		land(r, tensor, part, round);
}

static void on_done(void *ctx, uint32_t tensor, uint64_t round)
{
	struct engine_rig *r = ctx;

	(void)round;
	r->n_done[tensor]++;
	r->last_done = tensor;
}

static void on_late(void *ctx, uint32_t tensor, unsigned member)
{
	struct engine_rig *r = ctx;

	(void)tensor;
	r->n_late++;
	r->late_member = member;
}

static void on_failed(void *ctx, int code, const char *text)
{
	struct engine_rig *r = ctx;

	assert_int_equal(r->failed, 0);
	assert_true(*text);
	r->failed = code;
}

static void add_tensor(struct engine_rig *r, uint32_t t)
{
	struct engine_place places[MEMBERS];
	struct engine_range in[MEMBERS];
	struct engine_tensor_desc d = {.id = t,
		.shape = shape_from_dtype_and_count(DTYPE_I32, r->n_elems),
		.part_bytes = r->part_bytes,
		.places = places,
		.in = in};
	struct err_text err;

	for (unsigned m = 0; m < r->route.n_members; m++)
		places[m] = (struct engine_place){{r->gpu_mem[m], t * r->bytes}, t};
	for (unsigned g = 0; g < r->route.n_groups; g++)
		in[g] = (struct engine_range){r->host_mem, in_offset(r, t, g)};
	for (unsigned i = 0; i < 2; i++)
		d.out[i] = (struct engine_range){r->host_mem, out_offset(r, t, i)};
	assert_int_equal(engine_add_tensor(r->e, &d, &err), 0);
}

static int make(struct engine_rig *r, const struct device_ops *ops, const char *name, unsigned n,
	uint64_t n_elems, uint64_t part_bytes, uint64_t chunk_bytes)
{
	static const int switches[MEMBERS] = {0, 0, 0, 1, 1, 1, 2, 2};
	struct engine_member_desc members[MEMBERS];
	struct engine_env env = {.ctx = r,
		.staged = on_staged,
		.done = on_done,
		.late = on_late,
		.failed = on_failed};
	struct engine_config cfg = {.members = members, .stall_ns = 1000000000};
	struct err_text err;
	uint64_t host_bytes;
	int rc;

	memset(r, 0, sizeof(*r));
	r->lands_at_once = true;
	r->n_elems = n_elems;
	r->bytes = n_elems * 4;
	r->part_bytes = part_bytes;
	assert_int_equal(route_make(name, n, switches, &r->route, &err), 0);
	if (chunk_bytes && r->route.chunk_bytes)
		r->route.chunk_bytes = chunk_bytes;
	fake_device_set_gpus((int)n);
	assert_int_equal(ops->open("test", &r->dev, &err), 0);
	host_bytes = (r->bytes * (MEMBERS + 2) * TENSORS + 4095) / 4096 * 4096;
	r->host = aligned_alloc(4096, host_bytes);
	assert_non_null(r->host);
	memset(r->host, 0, host_bytes);
	assert_int_equal(ops->pin(r->dev, r->host, host_bytes, &r->host_mem), 0);
	for (unsigned m = 0; m < n; m++) {
		members[m] = (struct engine_member_desc){(int)m, r->slots[m], SLOTS};
		assert_int_equal(
			ops->alloc(r->dev, (int)m, r->bytes * TENSORS, NULL, 0, &r->gpu_mem[m]), 0);
	}
	cfg.route = r->route;
	rc = engine_new(r->dev, &cfg, &env, &r->e, &err);
	if (rc == 0)
		for (uint32_t t = 0; t < TENSORS; t++)
			add_tensor(r, t);
	return rc;
}

static void unmake(struct engine_rig *r)
{
	const struct device_ops *ops = r->dev->ops;

	engine_free(r->e);
	for (unsigned m = 0; m < r->route.n_members; m++)
		ops->drop(r->gpu_mem[m]);
	ops->drop(r->host_mem);
	if (ops == &device_fake)
		assert_int_equal(fake_device_objects(r->dev), 0);
	ops->close(r->dev);
	free(r->host);
}

static void check(const struct engine_rig *r)
{
	struct err_text err = {""};

	if (engine_check(r->e, &err) < 0)
		fail_msg("%s", err.s);
}

static void poll_engine(struct engine_rig *r)
{
	r->now_ns += 1000;
	engine_poll(r->e, r->now_ns);
	check(r);
}

static void fill(struct engine_rig *r, uint32_t t, uint64_t round)
{
	for (unsigned m = 0; m < r->route.n_members; m++)
		for (uint64_t i = 0; i < r->n_elems; i++)
			gpu_values(r, m, t)[i] = (int32_t)(i * (m + 1) + round * 7 + t);
}

static void submit(struct engine_rig *r, uint32_t t, uint64_t round, uint16_t priority)
{
	fill(r, t, round);
	for (unsigned m = 0; m < r->route.n_members; m++)
		atomic_store(&r->slots[m][t].ready, round);
	assert_int_equal(engine_submit_round(r->e, t, round, OP_SUM, priority), 0);
}

static void expect_sum(const struct engine_rig *r, uint32_t t, uint64_t round)
{
	uint64_t n = r->route.n_members;

	for (unsigned m = 0; m < n; m++) {
		assert_int_equal(atomic_load(&r->slots[m][t].done), round);
		for (uint64_t i = 0; i < r->n_elems; i++) {
			uint64_t want = 10 * (i * (n * (n + 1) / 2) + n * (round * 7 + t));

			if (gpu_values(r, m, t)[i] != (int32_t)want)
				fail_msg("%s: member %u tensor %u element %llu: %d, not %d",
					r->route.name, m, t, (unsigned long long)i,
					gpu_values(r, m, t)[i], (int32_t)want);
		}
	}
}

/* Run the device's queues in an order that depends on the seed, until the round is done. */
static void run_fake(struct engine_rig *r, uint32_t t)
{
	unsigned before = r->n_done[t];

	for (unsigned turn = 0; r->n_done[t] == before && turn < 200000; turn++) {
		poll_engine(r);
		r->seed = r->seed * 1103515245 + 12345;
		for (unsigned k = 0; k < (r->seed >> 16) % 5; k++)
			fake_device_step(r->dev, (r->seed >> 8) % fake_device_queues(r->dev));
		if (turn % 64 == 63)
			fake_device_run(r->dev);
		if (r->failed)
			return;
	}
	assert_int_equal(r->n_done[t], before + 1);
}

/* ---- sums ---- */

static const struct {
	const char *name;
	unsigned n;
} ways[] = {{"copy", 1}, {"copy", 3}, {"ce", 2}, {"ce", 8}, {"rs_ag", 2}, {"rs_ag", 3},
	{"rs_ag", 8}, {"switch_sum", 4}, {"switch_sum", 7}, {"switch_sum", 8}, {"roots", 2},
	{"roots", 8}};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

static void every_route_sums_exactly_in_any_order_of_completions(void **state)
{
	static const struct {
		uint64_t elems, part_bytes, chunk_bytes;
	} sizes[] = {{1, 1024, 0}, {5000, 4096, 8192}, {5000, 4096, 4096}, {9999, 1000, 6000}};

	(void)state;
	for (unsigned w = 0; w < N_WAYS; w++)
		for (unsigned s = 0; s < 4; s++) {
			struct engine_rig r;

			assert_int_equal(
				make(&r, &device_fake, ways[w].name, ways[w].n, sizes[s].elems,
					sizes[s].part_bytes, sizes[s].chunk_bytes),
				0);
			r.seed = w * 100 + s;
			for (uint64_t round = 1; round <= 3; round++) {
				submit(&r, 0, round, 5);
				submit(&r, 1, round, 9);
				run_fake(&r, 0);
				while (r.n_done[1] < round)
					run_fake(&r, 1);
				expect_sum(&r, 0, round);
				expect_sum(&r, 1, round);
			}
			assert_true(engine_is_quiet(r.e));
			assert_false(engine_is_busy(r.e));
			unmake(&r);
		}
}

static void every_route_sums_exactly_on_host_threads(void **state)
{
	(void)state;
	for (unsigned w = 0; w < N_WAYS; w++) {
		uint64_t end = clock_now_ns() + UINT64_C(20000000000);
		struct engine_rig r;

		assert_int_equal(
			make(&r, &device_host, ways[w].name, ways[w].n, 40000, 16384, 65536), 0);
		for (uint64_t round = 1; round <= 2; round++) {
			for (uint32_t t = 0; t < TENSORS; t++)
				submit(&r, t, round, (uint16_t)t);
			while (r.n_done[0] + r.n_done[1] + r.n_done[2] < TENSORS * round) {
				engine_poll(r.e, clock_now_ns());
				assert_int_equal(r.failed, 0);
				assert_true(clock_now_ns() < end);
			}
			check(&r);
			for (uint32_t t = 0; t < TENSORS; t++)
				expect_sum(&r, t, round);
		}
		unmake(&r);
	}
}

/* ---- order ---- */

static void a_round_starts_only_when_every_stream_is_ready(void **state)
{
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "ce", 4, 1000, 1024, 0), 0);
	fill(&r, 0, 1);
	assert_int_equal(engine_submit_round(r.e, 0, 1, OP_SUM, 0), 0);
	for (unsigned m = 0; m < 4; m++) {
		poll_engine(&r);
		assert_int_equal(engine_missing(r.e, 0), m);
		assert_int_equal(fake_device_calls(r.dev, FAKE_COPY), 0);
		atomic_store(&r.slots[m][0].ready, 1);
	}
	assert_true(engine_is_busy(r.e));
	run_fake(&r, 0);
	expect_sum(&r, 0, 1);
	unmake(&r);
}

static void a_stream_that_is_late_is_named_once(void **state)
{
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "ce", 3, 1000, 1024, 0), 0);
	fill(&r, 0, 1);
	assert_int_equal(engine_submit_round(r.e, 0, 1, OP_SUM, 0), 0);
	poll_engine(&r);
	r.now_ns += 900000000;
	poll_engine(&r);
	assert_int_equal(r.n_late, 0);
	for (unsigned m = 0; m < 3; m++) {
		r.now_ns += 200000000;
		poll_engine(&r);
		poll_engine(&r);
		assert_int_equal(r.n_late, m + 1);
		assert_int_equal(r.late_member, m);
		atomic_store(&r.slots[m][0].ready, 1);
	}
	run_fake(&r, 0);
	expect_sum(&r, 0, 1);
	unmake(&r);
}

/* Submit tensor `first` and then the other tensor, of 64 MiB each. Check that the engine stages
 * tensor `next` after 32 MiB of tensor `first`. priority: priority of tensor `first`. of_other:
 * priority of the other tensor. */
static void check_next(uint32_t first, uint16_t priority, uint16_t of_other, uint32_t next)
{
	struct engine_rig r;

	assert_int_equal(make(&r, &device_fake, "copy", 1, 64 << 20 >> 2, 1 << 20, 0), 0);
	r.lands_at_once = false;
	submit(&r, first, 1, priority);
	poll_engine(&r); /* the first tensor's first 32 MiB are being copied */
	submit(&r, !first, 1, of_other);
	fake_device_run(r.dev);
	assert_int_equal(r.n_staged, 0);
	poll_engine(&r);
	assert_int_equal(r.n_staged, 32);
	r.n_staged = 0;
	fake_device_run(r.dev);
	poll_engine(&r);
	assert_int_equal(r.first_staged, next);
	unmake(&r);
}

static void a_higher_priority_overtakes_what_is_not_queued_yet(void **state)
{
	(void)state;
	check_next(0, 1, 9, 1);
}

static void equal_priorities_are_staged_in_the_order_of_their_rounds(void **state)
{
	(void)state;
	check_next(0, 1, 1, 0);
	check_next(1, 1, 1, 1);
}

static void a_partition_is_pushed_while_others_are_copied(void **state)
{
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "copy", 1, 4096, 4096, 0), 0);
	r.lands_at_once = false;
	submit(&r, 0, 1, 0);
	poll_engine(&r);
	fake_device_step(r.dev, 0); /* run the first copy */
	fake_device_step(r.dev, 0); /* write the counter that reports the copy */
	poll_engine(&r);
	assert_int_equal(r.n_staged, 1);
	land(&r, 0, 0, 1);
	poll_engine(&r);
	/* The sum is copied while three copies in the other direction wait. */
	fake_device_step(r.dev, 1);
	fake_device_step(r.dev, 1);
	assert_string_equal(fake_device_history(r.dev), "UpDp");
	unmake(&r);
}

static void small_collectives_share_a_launch(void **state)
{
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "rs_ag", 4, 1 << 18, 1 << 14, 0), 0);
	submit(&r, 0, 1, 0);
	run_fake(&r, 0);
	/* all 64 partitions share one collective in each direction */
	assert_int_equal(fake_device_calls(r.dev, FAKE_COLLECTIVE), 2);
	unmake(&r);
}

static void a_landed_partition_must_have_been_staged(void **state)
{
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "copy", 1, 1000, 1024, 0), 0);
	assert_int_equal(engine_accept_landed_sum(r.e, 0, 0, 1), -EINVAL);
	submit(&r, 0, 1, 0);
	poll_engine(&r);
	assert_int_equal(engine_accept_landed_sum(r.e, 0, 0, 1), -EINVAL);
	assert_int_equal(engine_accept_landed_sum(r.e, 9, 0, 1), -EINVAL);
	assert_int_equal(engine_submit_round(r.e, 0, 1, OP_SUM, 0), -EINVAL);
	assert_int_equal(engine_submit_round(r.e, 1, 2, OP_SUM, 0), -EINVAL);
	assert_int_equal(engine_submit_round(r.e, 9, 1, OP_SUM, 0), -EINVAL);
	unmake(&r);
}

/* Act as the process that follows the agent's process. The new process has only `rounds` (the round
 * of each tensor) and has_landed (the partitions whose sums have arrived). The new process starts
 * these rounds again and reports these sums again. */
static void have_successor(
	struct engine_rig *r, const uint64_t rounds[TENSORS], bool has_landed[TENSORS][PARTS_MAX])
{
	unsigned before = r->n_staged, n_done[TENSORS];

	memcpy(n_done, r->n_done, sizeof(n_done));
	engine_mute_reports(r->e);
	for (unsigned i = 0; i < 40; i++) {
		poll_engine(r);
		fake_device_step(r->dev, i % fake_device_queues(r->dev));
	}
	assert_int_equal(r->n_staged, before);
	for (uint32_t t = 0; t < TENSORS; t++) {
		assert_int_equal(r->n_done[t], n_done[t]);
		assert_int_equal(engine_submit_round(r->e, t, rounds[t], OP_SUM, 0), 0);
		for (uint32_t i = 0; i < PARTS_MAX; i++)
			if (has_landed[t][i])
				assert_int_equal(
					engine_accept_landed_sum(r->e, t, i, rounds[t]), 0);
	}
	check(r);
}

static void a_restarted_agent_receives_the_reports_that_it_missed(void **state)
{
	(void)state;
	for (unsigned w = 0; w < N_WAYS; w++)
		for (unsigned steps = 0; steps < 160; steps += 3) {
			const uint64_t first[TENSORS] = {1, 1, 1};
			bool landed[TENSORS][PARTS_MAX] = {{0}};
			struct engine_rig r;

			assert_int_equal(
				make(&r, &device_fake, ways[w].name, ways[w].n, 5000, 4096, 8192),
				0);
			r.landed = landed;
			for (uint32_t t = 0; t < TENSORS; t++)
				submit(&r, t, 1, (uint16_t)t);
			for (unsigned i = 0; i < steps; i++) {
				poll_engine(&r);
				fake_device_step(r.dev, i % fake_device_queues(r.dev));
			}
			have_successor(&r, first, landed);
			/* the same round cannot run again */
			assert_int_equal(engine_submit_round(r.e, 0, 1, OP_SUM, 0), -EINVAL);
			for (uint32_t t = 0; t < TENSORS; t++)
				if (atomic_load(&r.slots[0][t].done) < 1)
					run_fake(&r, t);
			for (uint32_t t = 0; t < TENSORS; t++) {
				expect_sum(&r, t, 1);
				submit(&r, t, 2, 0);
				run_fake(&r, t);
				expect_sum(&r, t, 2);
			}
			unmake(&r);
		}
}

static void a_restarted_agent_may_request_rounds_that_are_over(void **state)
{
	const uint64_t last[TENSORS] = {2, 2, 1};
	bool none[TENSORS][PARTS_MAX] = {{0}};
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "rs_ag", 2, 1000, 1024, 0), 0);
	for (uint32_t t = 0; t < TENSORS; t++)
		for (uint64_t round = 1; round <= last[t]; round++) {
			submit(&r, t, round, 0);
			run_fake(&r, t);
		}
	submit(&r, 0, 3, 0);
	have_successor(
		/* for tensor 0, the agent starts round 2 again, although round 3 was submitted */
		&r, (const uint64_t[]){2, 2, 1}, none);
	assert_int_equal(r.n_done[0], 3);
	assert_int_equal(r.n_done[1], 3);
	assert_int_equal(r.n_done[2], 2);
	engine_accept_landed_sum(r.e, 0, 0, 2); /* a late report about a round that has ended */
	assert_int_equal(engine_submit_round(r.e, 0, 3, OP_SUM, 0), 0);
	run_fake(&r, 0);
	expect_sum(&r, 0, 3);
	unmake(&r);
}

static void a_tensor_outside_of_its_memory_is_refused(void **state)
{
	struct engine_place place = {{0}, 3};
	struct engine_range in;
	struct engine_tensor_desc d = {.id = 7,
		.shape = shape_from_dtype_and_count(DTYPE_I32, 1000),
		.part_bytes = 1024,
		.places = &place,
		.in = &in};
	struct err_text err;
	struct engine_rig r;

	(void)state;
	assert_int_equal(make(&r, &device_fake, "copy", 1, 1000, 1024, 0), 0);
	in = d.out[0] = d.out[1] = (struct engine_range){r.host_mem, 0};
	place.at = (struct engine_range){r.gpu_mem[0], r.bytes * TENSORS - 3996};
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	place.at.offset = UINT64_MAX - 3;
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	place.at.offset = 2;
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	place.at.offset = 0;
	place.slot = SLOTS;
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	place.slot = 3;
	d.shape.dtype = UINT8_MAX;
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	d.shape.dtype = DTYPE_Q8;
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	d.shape.dtype = DTYPE_I32;
	assert_int_equal(engine_add_tensor(r.e, &d, &err), 0);
	assert_int_equal(engine_add_tensor(r.e, &d, &err), -EINVAL);
	unmake(&r);
}

/* ---- faults ---- */

static void expect_all_poisoned(const struct engine_rig *r)
{
	for (unsigned m = 0; m < r->route.n_members; m++)
		for (unsigned s = 0; s < SLOTS; s++)
			assert_true(gpu_slot_reached(
				atomic_load(&r->slots[m][s].done), UINT64_C(1) << 40));
}

static void a_full_queue_only_delays(void **state)
{
	(void)state;
	for (unsigned w = 0; w < N_WAYS; w++)
		for (unsigned n = 1; n < 40; n += 3) {
			struct engine_rig r;

			make(&r, &device_fake, ways[w].name, ways[w].n, 5000, 4096, 8192);
			r.seed = n;
			fake_device_inject(r.dev, FAKE_COPY, n, 3, DEVICE_AGAIN);
			fake_device_inject(r.dev, FAKE_POST, n, 2, DEVICE_AGAIN);
			fake_device_inject(r.dev, FAKE_CLIQUE_POLL, n, 2, DEVICE_AGAIN);
			submit(&r, 0, 1, 5);
			run_fake(&r, 0);
			expect_sum(&r, 0, 1);
			unmake(&r);
		}
}

static void any_failed_call_ends_all_rounds_and_releases_all_streams(void **state)
{
	static const struct {
		enum fake_call call;
		int rc;
	} faults[] = {{FAKE_COPY, DEVICE_LOST}, {FAKE_POST, DEVICE_LOST},
		{FAKE_COLLECTIVE, DEVICE_LOST}, {FAKE_CLIQUE_POLL, DEVICE_PEER}};

	(void)state;
	for (unsigned w = 0; w < N_WAYS; w++)
		for (unsigned f = 0; f < 4; f++)
			for (unsigned n = 1;; n++) {
				struct engine_rig r;
				int failed;

				make(&r, &device_fake, ways[w].name, ways[w].n, 5000, 4096, 8192);
				r.seed = n;
				fake_device_inject(r.dev, faults[f].call, n, 1, faults[f].rc);
				submit(&r, 0, 1, 5);
				run_fake(&r, 0);
				failed = r.failed;
				if (failed) {
					assert_int_equal(failed, BPS_EDEVICE);
					assert_int_equal(fake_device_was_aborted(r.dev),
						ways[w].n > 1 && route_has_cliques(&r.route));
					expect_all_poisoned(&r);
					fake_device_run(r.dev);
					poll_engine(&r);
					check(&r);
				}
				unmake(&r);
				if (!failed)
					break;
			}
}

static void a_queue_that_broke_is_noticed(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "copy", 1, 1000, 1024, 0);
	submit(&r, 0, 1, 0);
	poll_engine(&r);
	fake_device_inject(r.dev, FAKE_QUEUE_POLL, 1, 1, DEVICE_LOST);
	r.now_ns += 10000000;
	poll_engine(&r);
	assert_int_equal(r.failed, BPS_EDEVICE);
	expect_all_poisoned(&r);
	unmake(&r);
}

static void work_that_never_ends_is_given_up(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "rs_ag", 4, 1000, 1024, 0);
	submit(&r, 0, 1, 0);
	poll_engine(&r);
	r.now_ns += 900000000;
	poll_engine(&r);
	assert_int_equal(r.failed, 0);
	r.now_ns += 200000000;
	poll_engine(&r);
	assert_int_equal(r.failed, BPS_EDEVICE);
	assert_true(fake_device_was_aborted(r.dev));
	expect_all_poisoned(&r);
	unmake(&r);
}

/* NCCL starts to connect and never completes. Nothing is queued yet, but the trainers' streams
 * wait. */
static void a_clique_that_never_opens_is_given_up(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "rs_ag", 4, 1000, 1024, 0);
	fake_device_inject(r.dev, FAKE_CLIQUE_POLL, 1, 1000000, DEVICE_AGAIN);
	submit(&r, 0, 1, 0);
	for (unsigned i = 0; i < 100 && !r.failed; i++) {
		poll_engine(&r);
		r.now_ns += 100000000;
	}
	assert_int_equal(r.failed, BPS_EDEVICE);
	assert_true(fake_device_was_aborted(r.dev));
	expect_all_poisoned(&r);
	unmake(&r);
}

static void a_slow_trainer_or_network_is_no_fault(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "copy", 1, 1000, 4096, 0);
	r.lands_at_once = false;
	assert_int_equal(engine_submit_round(r.e, 0, 1, OP_SUM, 0), 0);
	r.now_ns += UINT64_C(100000000000);
	poll_engine(&r);
	fill(&r, 0, 1);
	atomic_store(&r.slots[0][0].ready, 1);
	poll_engine(&r);
	fake_device_run(r.dev);
	poll_engine(&r);
	r.now_ns += UINT64_C(100000000000);
	poll_engine(&r);
	land(&r, 0, 0, 1);
	run_fake(&r, 0);
	assert_int_equal(r.failed, 0);
	expect_sum(&r, 0, 1);
	unmake(&r);
}

static void a_member_that_dies_releases_the_others(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "rs_ag", 4, 1000, 1024, 0);
	submit(&r, 0, 1, 0);
	poll_engine(&r);
	engine_member_gone(r.e, 2);
	assert_int_equal(r.failed, BPS_EWORKER_LOST);
	assert_true(fake_device_was_aborted(r.dev));
	expect_all_poisoned(&r);
	check(&r);
	unmake(&r);
}

static void a_member_may_leave_when_nothing_is_in_flight(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "ce", 2, 1000, 1024, 0);
	submit(&r, 0, 1, 0);
	run_fake(&r, 0);
	engine_member_gone(r.e, 1);
	assert_int_equal(r.failed, 0);
	assert_int_equal(engine_submit_round(r.e, 0, 2, OP_SUM, 0), 0);
	assert_int_equal(r.failed, BPS_EWORKER_LOST);
	unmake(&r);
}

static void a_cancelled_tensor_leaves_the_others_alone(void **state)
{
	(void)state;
	for (unsigned w = 0; w < N_WAYS; w++)
		for (unsigned steps = 0; steps < 12; steps++) {
			struct engine_rig r;

			make(&r, &device_fake, ways[w].name, ways[w].n, 5000, 4096, 8192);
			submit(&r, 0, 1, 5);
			submit(&r, 1, 1, 5);
			for (unsigned i = 0; i < steps; i++) {
				poll_engine(&r);
				fake_device_step(r.dev, i % fake_device_queues(r.dev));
			}
			if (!r.n_done[0]) {
				engine_cancel_tensor(r.e, 0);
				check(&r);
				assert_true(gpu_slot_is_poisoned(atomic_load(&r.slots[0][0].done)));
			}
			run_fake(&r, 1);
			expect_sum(&r, 1, 1);
			assert_int_equal(engine_submit_round(r.e, 0, 1 + r.n_done[0], OP_SUM, 0),
				r.n_done[0] ? 0 : -EINVAL);
			unmake(&r);
		}
}

static void memory_in_use_is_not_released(void **state)
{
	struct engine_rig r;

	(void)state;
	make(&r, &device_fake, "copy", 1, 1000, 1024, 0);
	submit(&r, 0, 1, 0);
	assert_int_equal(engine_cancel_tensors_of_memory(r.e, r.gpu_mem[0]), -EBUSY);
	run_fake(&r, 0);
	assert_int_equal(engine_cancel_tensors_of_memory(r.e, r.gpu_mem[0]), 0);
	assert_true(gpu_slot_is_poisoned(atomic_load(&r.slots[0][2].done)));
	unmake(&r);
}

static void an_engine_that_cannot_be_made_leaves_nothing(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 12; n++) {
		static const enum fake_call calls[] = {FAKE_QUEUE_OPEN, FAKE_CLIQUE_OPEN, FAKE_PIN};

		for (unsigned k = 0; k < 3; k++) {
			struct engine_member_desc members[4] = {{0}};
			struct engine_config cfg = {.members = members};
			struct engine_env env = {.failed = on_failed};
			struct engine *e = NULL;
			struct device *dev;
			struct err_text err;

			fake_device_set_gpus(4);
			assert_int_equal(device_fake.open("test", &dev, &err), 0);
			assert_int_equal(route_make("rs_ag", 4, NULL, &cfg.route, &err), 0);
			fake_device_inject(dev, calls[k], n, 1, DEVICE_NOMEM);
			if (engine_new(dev, &cfg, &env, &e, &err) == 0)
				engine_free(e);
			assert_int_equal(fake_device_objects(dev), 0);
			device_fake.close(dev);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_route_sums_exactly_in_any_order_of_completions),
		cmocka_unit_test(every_route_sums_exactly_on_host_threads),
		cmocka_unit_test(a_round_starts_only_when_every_stream_is_ready),
		cmocka_unit_test(a_stream_that_is_late_is_named_once),
		cmocka_unit_test(a_higher_priority_overtakes_what_is_not_queued_yet),
		cmocka_unit_test(equal_priorities_are_staged_in_the_order_of_their_rounds),
		cmocka_unit_test(a_partition_is_pushed_while_others_are_copied),
		cmocka_unit_test(small_collectives_share_a_launch),
		cmocka_unit_test(a_landed_partition_must_have_been_staged),
		cmocka_unit_test(a_restarted_agent_receives_the_reports_that_it_missed),
		cmocka_unit_test(a_restarted_agent_may_request_rounds_that_are_over),
		cmocka_unit_test(a_tensor_outside_of_its_memory_is_refused),
		cmocka_unit_test(a_full_queue_only_delays),
		cmocka_unit_test(any_failed_call_ends_all_rounds_and_releases_all_streams),
		cmocka_unit_test(a_queue_that_broke_is_noticed),
		cmocka_unit_test(work_that_never_ends_is_given_up),
		cmocka_unit_test(a_clique_that_never_opens_is_given_up),
		cmocka_unit_test(a_slow_trainer_or_network_is_no_fault),
		cmocka_unit_test(a_member_that_dies_releases_the_others),
		cmocka_unit_test(a_member_may_leave_when_nothing_is_in_flight),
		cmocka_unit_test(a_cancelled_tensor_leaves_the_others_alone),
		cmocka_unit_test(memory_in_use_is_not_released),
		cmocka_unit_test(an_engine_that_cannot_be_made_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
