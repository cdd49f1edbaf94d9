/* The executor's engine on the CUDA back-end, over the fake driver and the fake NCCL: all routes,
 * up to eight GPUs, exact sums. The fakes end the process when the engine queues something too
 * early. */
#include "bps-agent/executor/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/gpu/cuda/rig.h"
#include "tests/gpu/cuda/two.h"
#include "tests/gpu/fake/control.h"
#include "tests/unit/route_fixture.h"

#define MEMBERS    8
#define TENSORS    2u
#define ELEMS      40000u
#define BYTES      (ELEMS * 4)
#define PART_BYTES 16384u
#define CHUNK      65536u

static const struct device_ops *const ops = &device_cuda;

/* The engine of one machine. The test acts as the machine's agent. The test adds the sums of all
 * groups of GPUs. It multiplies the total by ten, as if ten equal machines took part. */
struct stage {
	struct device *dev;
	struct engine *e;
	struct route route;
	struct gpu_slot slots[MEMBERS][TENSORS];
	struct device_mem *gpu_mem[MEMBERS], *host_mem;
	unsigned char *host;
	size_t host_bytes;
	int failed;
	char text[ERR_TEXT_BYTES];
	unsigned n_done;
};

static uint64_t in_offset(uint32_t t, unsigned group)
{
	return (t * (MEMBERS + 2u) + group) * (uint64_t)BYTES;
}

static uint64_t out_offset(uint32_t t, uint64_t round)
{
	return in_offset(t, MEMBERS + (unsigned)(round & 1));
}

static int32_t *host_values(const struct stage *s, uint64_t offset)
{
	return (int32_t *)(void *)(s->host + offset);
}

static void on_staged(void *ctx, uint32_t tensor, uint32_t part, uint64_t round)
{
	struct stage *s = ctx;
	unsigned first = part * (PART_BYTES / 4), end = first + PART_BYTES / 4;

	for (unsigned i = first; i < end && i < ELEMS; i++) {
		int32_t sum = 0;

		for (unsigned g = 0; g < s->route.n_groups; g++)
			sum += host_values(s, in_offset(tensor, g))[i];
		host_values(s, out_offset(tensor, round))[i] = 10 * sum;
	}
	assert_int_equal(engine_accept_landed_sum(s->e, tensor, part, round), 0);
}

static void on_done(void *ctx, uint32_t tensor, uint64_t round)
{
	struct stage *s = ctx;

	(void)tensor;
	(void)round;
	s->n_done++;
}

static void on_failed(void *ctx, int code, const char *text)
{
	struct stage *s = ctx;

	s->failed = code;
	snprintf(s->text, sizeof(s->text), "%s", text);
}

static void add_tensor(struct stage *s, uint32_t t)
{
	struct engine_place places[MEMBERS];
	struct engine_range in[MEMBERS];
	struct engine_tensor_desc d = {.id = t,
		.shape = shape_from_dtype_and_count(DTYPE_I32, ELEMS),
		.part_bytes = PART_BYTES,
		.places = places,
		.in = in};
	struct err_text err;

	for (unsigned m = 0; m < s->route.n_members; m++)
		places[m] = (struct engine_place){{s->gpu_mem[m], t * (uint64_t)BYTES}, t};
	for (unsigned g = 0; g < s->route.n_groups; g++)
		in[g] = (struct engine_range){s->host_mem, in_offset(t, g)};
	for (unsigned i = 0; i < 2; i++)
		d.out[i] = (struct engine_range){s->host_mem, out_offset(t, i)};
	assert_int_equal(engine_add_tensor(s->e, &d, &err), 0);
}

static void alloc_all(struct stage *s, struct engine_member_desc *members)
{
	int all[MEMBERS];

	for (int m = 0; m < s->route.n_members; m++)
		all[m] = m;
	for (int m = 0; m < s->route.n_members; m++) {
		members[m] = (struct engine_member_desc){m, s->slots[m], TENSORS};
		assert_int_equal(ops->alloc(s->dev, m, BYTES * TENSORS, all, s->route.n_members,
					 &s->gpu_mem[m]),
			0);
	}
}

static void stage_open(struct stage *s, const char *route, unsigned n)
{
	static const int switches[MEMBERS] = {0, 0, 0, 1, 1, 1, 2, 2};
	struct engine_member_desc members[MEMBERS];
	struct engine_env env = {
		.ctx = s, .staged = on_staged, .done = on_done, .failed = on_failed};
	struct engine_config cfg = {.members = members, .stall_ns = UINT64_C(300000000)};
	struct err_text err = {""};

	memset(s, 0, sizeof(*s));
	assert_int_equal(route_make(route, n, switches, &s->route, &err), 0);
	if (s->route.chunk_bytes)
		s->route.chunk_bytes = CHUNK;
	assert_int_equal(ops->open("test", &s->dev, &err), 0);
	s->host_bytes = (in_offset(TENSORS, 0) + RIG_PAGE - 1) / RIG_PAGE * RIG_PAGE;
	s->host = cuda_rig_host_memory(s->host_bytes);
	assert_int_equal(ops->pin(s->dev, s->host, s->host_bytes, &s->host_mem), 0);
	alloc_all(s, members);
	cfg.route = s->route;
	if (engine_new(s->dev, &cfg, &env, &s->e, &err))
		fail_msg("%s", err.s);
	for (uint32_t t = 0; t < TENSORS; t++)
		add_tensor(s, t);
}

static void stage_close(struct stage *s)
{
	engine_free(s->e);
	for (unsigned m = 0; m < s->route.n_members; m++)
		ops->drop(s->gpu_mem[m]);
	ops->drop(s->host_mem);
	ops->close(s->dev);
	munmap(s->host, s->host_bytes);
}

static uint64_t addr_of(const struct stage *s, unsigned m, uint32_t t)
{
	return ops->addr(s->gpu_mem[m], (int)m) + t * (uint64_t)BYTES;
}

static void submit(struct stage *s, uint32_t t, uint64_t round)
{
	int32_t *values = malloc(BYTES);

	assert_non_null(values);
	for (unsigned m = 0; m < s->route.n_members; m++) {
		for (unsigned i = 0; i < ELEMS; i++)
			values[i] = (int32_t)(i * (m + 1) + round * 7 + t);
		fakecuda_poke(addr_of(s, m, t), values, BYTES);
		atomic_store(&s->slots[m][t].ready, round);
	}
	free(values);
	assert_int_equal(engine_submit_round(s->e, t, round, OP_SUM, (uint16_t)t), 0);
}

static void expect_sum(const struct stage *s, uint32_t t, uint64_t round)
{
	uint64_t n = s->route.n_members;
	int32_t *values = malloc(BYTES);

	assert_non_null(values);
	for (unsigned m = 0; m < n; m++) {
		assert_int_equal(atomic_load(&s->slots[m][t].done), round);
		fakecuda_peek(addr_of(s, m, t), values, BYTES);
		for (unsigned i = 0; i < ELEMS; i++) {
			uint64_t want = 10 * (i * (n * (n + 1) / 2) + n * (round * 7 + t));

			if (values[i] != (int32_t)want)
				fail_msg("%s over %u: member %u, element %u: %d, not %d",
					s->route.name, (unsigned)n, m, i, values[i], (int)want);
		}
	}
	free(values);
}

static void every_route_sums_exactly_on_gpus(void **state)
{
	static const struct {
		const char *route;
		unsigned n;
	} ways[] = {{"copy", 1}, {"copy", 3}, {"ce", 2}, {"ce", 8}, {"rs_ag", 2}, {"rs_ag", 3},
		{"rs_ag", 8}, {"switch_sum", 4}, {"switch_sum", 8}, {"roots", 2}, {"roots", 8}};

	(void)state;
	for (unsigned w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		uint64_t end_ns = cuda_rig_deadline_ns();
		struct stage s;

		stage_open(&s, ways[w].route, ways[w].n);
		for (uint64_t round = 1; round <= 2; round++) {
			for (uint32_t t = 0; t < TENSORS; t++)
				submit(&s, t, round);
			while (s.n_done < TENSORS * round && clock_now_ns() < end_ns) {
				engine_poll(s.e, clock_now_ns());
				assert_int_equal(s.failed, 0);
			}
			assert_int_equal(s.n_done, TENSORS * round);
			for (uint32_t t = 0; t < TENSORS; t++)
				expect_sum(&s, t, round);
		}
		assert_true(engine_is_quiet(s.e));
		stage_close(&s);
		cuda_rig_nothing_lives();
	}
}

/* Inject a fault and run until the engine fails with an error. All waiters must be released. */
static void fail_with(const char *route, const char *fault, const char *word)
{
	uint64_t end_ns = cuda_rig_deadline_ns();
	struct stage s;

	stage_open(&s, route, 4);
	for (int i = 0; i < 200; i++)
		engine_poll(s.e, clock_now_ns()); /* let the engine open its cliques */
	fakecuda_faults(fault);
	for (uint32_t t = 0; t < TENSORS; t++)
		submit(&s, t, 1);
	while (!s.failed && clock_now_ns() < end_ns)
		engine_poll(s.e, clock_now_ns());
	assert_int_equal(s.failed, BPS_EDEVICE);
	if (!strstr(s.text, word))
		fail_msg("no '%s' in '%s'", word, s.text);
	for (unsigned m = 0; m < 4; m++)
		for (uint32_t t = 0; t < TENSORS; t++)
			assert_true(gpu_slot_is_poisoned(atomic_load(&s.slots[m][t].done)));
	if (!strcmp(word, "(LOST)"))
		_Exit(0); /* after a sticky error the process is unusable, so end the process now */
	fakecuda_faults(NULL);
	while (!engine_is_quiet(s.e) && clock_now_ns() < end_ns)
		engine_poll(s.e, clock_now_ns());
	stage_close(&s);
	cuda_rig_nothing_lives();
}

static void a_fault_of_the_gpu_ends_all_rounds_and_frees_the_waiters(void **state)
{
	struct two lost;

	(void)state;
	fail_with("ce", "cuMemcpyDtoHAsync:3=2", "(NOMEM)");
	fail_with("rs_ag", "ncclCommGetAsyncError:9=6", "(PEER)");
	fail_with("rs_ag", "ncclReduceScatter:2=3", "(PEER)");
	fail_with("rs_ag", "work:2=hang", "completed no work for 0 s");
	lost = two_start("rs_ag,work:7=700");
	assert_int_equal(two_end(&lost), 0);
	lost = two_start("ce,cuMemcpy2DAsync:2=719");
	assert_int_equal(two_end(&lost), 0);
}

/* Runs in a child process, because the fault is a sticky error. */
static int lose(char *route_fault)
{
	char *fault = strchr(route_fault, ',');

	if (!fault)
		return 2;
	*fault++ = 0;
	fail_with(route_fault, fault, "(LOST)");
	return 1;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_route_sums_exactly_on_gpus),
		cmocka_unit_test(a_fault_of_the_gpu_ends_all_rounds_and_frees_the_waiters),
	};

	setenv("FAKE_CUDA_GPUS", "8", 1);
	setenv("FAKE_CUDA_DELAY_US", "50", 1);
	if (argc == 2)
		return lose(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
