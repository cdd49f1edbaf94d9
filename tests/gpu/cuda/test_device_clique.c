/* Cliques of the CUDA back-end over the fake NCCL, which computes real sums. A clique is a group of
 * GPUs that sum together. The fake ends the process when a communicator or stream is used before it
 * is ready, or when ranks call different functions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/gpu/cuda/rig.h"
#include "tests/gpu/cuda/two.h"
#include "tests/gpu/fake/control.h"
#include "tests/unit/half.h"

#define COUNT 256u /* number of elements in each rank's block */
#define RANKS 8

static const struct device_ops *const ops = &device_cuda;
static const enum dtype dtypes[] = {
	DTYPE_I8, DTYPE_U8, DTYPE_I32, DTYPE_I64, DTYPE_F16, DTYPE_F32, DTYPE_F64, DTYPE_BF16};
#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* A clique of n members on GPUs 0 to n - 1, each with a queue and memory. The order of the
 * ranks differs from that of the GPUs. */
struct band {
	struct device *dev;
	struct device_clique *clique;
	int n, gpu[RANKS], rank[RANKS];
	struct device_piece piece[RANKS];
};

static void band_init(struct band *b, int n)
{
	memset(b, 0, sizeof(*b));
	b->n = n;
	assert_int_equal(ops->open("a job's name that is longer than what is kept of it, by far",
				 &b->dev, NULL),
		0);
	for (int i = 0; i < n; i++) {
		struct device_piece *p = &b->piece[i];

		b->gpu[i] = i;
		b->rank[i] = (i + 1) % n;
		p->offset = 512;
		assert_int_equal(ops->alloc(b->dev, i, RIG_MIB, NULL, 0, &p->mem), 0);
		assert_int_equal(ops->queue_open(b->dev, i, 0, &p->queue), 0);
	}
}

static int poll_clique(struct band *b)
{
	uint64_t deadline_ns = cuda_rig_deadline_ns();
	int rc;

	while ((rc = ops->clique_poll(b->clique)) == DEVICE_AGAIN && clock_now_ns() < deadline_ns)
		;
	return rc;
}

static void band_open(struct band *b, int n)
{
	uint8_t id[DEVICE_ID_BYTES];

	band_init(b, n);
	assert_int_equal(ops->clique_id(b->dev, id), 0);
	assert_int_equal(ops->clique_open(b->dev, id, n, b->gpu, b->rank, n, &b->clique), 0);
	assert_int_equal(ops->clique_poll(b->clique), DEVICE_AGAIN);
	assert_int_equal(poll_clique(b), 0);
}

static void band_fini(struct band *b)
{
	for (int i = 0; i < b->n; i++) {
		cuda_rig_drain(b->piece[i].queue);
		ops->queue_close(b->piece[i].queue);
		ops->drop(b->piece[i].mem);
	}
	ops->close(b->dev);
	cuda_rig_nothing_lives();
}

/* Let a queued collective start, and wait until it ends. */
static void finish(struct band *b)
{
	assert_int_equal(poll_clique(b), 0);
	for (int i = 0; i < b->n; i++)
		cuda_rig_drain(b->piece[i].queue);
}

static void band_close(struct band *b)
{
	ops->clique_close(b->clique);
	band_fini(b);
}

static uint64_t addr_of(const struct band *b, int i)
{
	return ops->addr(b->piece[i].mem, b->gpu[i]) + b->piece[i].offset;
}

/* Return input i of a rank: a small whole number. Sums stay below 64, so they are exact in all
 * types. */
static int input(int rank, unsigned i)
{
	return (int)(i * 3 + (unsigned)rank * 5) % 8;
}

static int sum(int n, unsigned i)
{
	int s = 0;

	for (int rank = 0; rank < n; rank++)
		s += input(rank, i);
	return s;
}

static void store(void *at, enum dtype dtype, int v)
{
	float f = (float)v;
	double d = v;
	int64_t i64 = v;
	uint16_t h = half_round(v);
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	switch (dtype) {
	case DTYPE_F16:
		memcpy(at, &h, sizeof(h));
		break;
	case DTYPE_BF16:
		h = (uint16_t)(bits >> 16);
		memcpy(at, &h, sizeof(h));
		break;
	case DTYPE_F32:
		memcpy(at, &f, sizeof(f));
		break;
	case DTYPE_F64:
		memcpy(at, &d, sizeof(d));
		break;
	default:
		/* copy the low bytes of the integer, which come first on a little-endian machine */
		memcpy(at, &i64, dtype_bytes(dtype));
	}
}

/* Function that returns element i of a member's piece, before or after the collective. */
typedef int value_fn(int n, int rank, unsigned i);

static void set(struct band *b, enum dtype dtype, unsigned elems, value_fn *value)
{
	size_t bytes = dtype_bytes(dtype);
	unsigned char *p = malloc(elems * bytes);

	assert_non_null(p);
	for (int m = 0; m < b->n; m++) {
		for (unsigned i = 0; i < elems; i++)
			store(p + i * bytes, dtype, value(b->n, b->rank[m], i));
		fakecuda_poke(addr_of(b, m), p, elems * bytes);
	}
	free(p);
}

static void expect(
	struct band *b, int m, enum dtype dtype, unsigned from, unsigned elems, value_fn *value)
{
	size_t bytes = dtype_bytes(dtype);
	unsigned char *p = malloc(elems * bytes), want[8];

	assert_non_null(p);
	fakecuda_peek(addr_of(b, m) + from * bytes, p, elems * bytes);
	for (unsigned i = 0; i < elems; i++) {
		store(want, dtype, value(b->n, b->rank[m], from + i));
		if (memcmp(p + i * bytes, want, bytes) != 0)
			fail_msg("%s, %d ranks: rank %d, element %u", dtype_name(dtype), b->n,
				b->rank[m], from + i);
	}
	free(p);
}

static int own_input(int n, int rank, unsigned i)
{
	return n ? input(rank, i) : 0;
}

static int all_sum(int n, int rank, unsigned i)
{
	return sum(n, i) + 0 * rank;
}

/* Values before an all-gather: the owner of a block has the sum of the block. All other members
 * have the value 77 in this block. */
static int own_block(int n, int rank, unsigned i)
{
	return (int)(i / COUNT) == rank ? sum(n, i) : 77;
}

static int root_input(int n, int rank, unsigned i)
{
	return input(n - 1, i) + 0 * rank;
}

static void sums_scatter_and_gather(struct band *b, enum dtype dtype)
{
	unsigned all = COUNT * (unsigned)b->n;

	set(b, dtype, all, own_input);
	assert_int_equal(ops->reduce_scatter(b->clique, b->piece, COUNT, dtype, OP_SUM), 0);
	finish(b);
	for (int m = 0; m < b->n; m++)
		expect(b, m, dtype, COUNT * (unsigned)b->rank[m], COUNT, all_sum);
	set(b, dtype, all, own_block);
	assert_int_equal(ops->all_gather(b->clique, b->piece, COUNT, dtype), 0);
	finish(b);
	for (int m = 0; m < b->n; m++)
		expect(b, m, dtype, 0, all, all_sum);
}

static void sums_reduce_and_broadcast(struct band *b, enum dtype dtype)
{
	int root = b->n - 1;

	set(b, dtype, COUNT, own_input);
	assert_int_equal(ops->reduce(b->clique, b->piece, COUNT, dtype, OP_SUM, root), 0);
	finish(b);
	for (int m = 0; m < b->n; m++)
		expect(b, m, dtype, 0, COUNT, b->rank[m] == root ? all_sum : own_input);
	set(b, dtype, COUNT, own_input);
	assert_int_equal(ops->broadcast(b->clique, b->piece, COUNT, dtype, root), 0);
	finish(b);
	for (int m = 0; m < b->n; m++)
		expect(b, m, dtype, 0, COUNT, root_input);
}

static void cliques_of_all_sizes_sum_exactly_in_all_types(void **state)
{
	struct band b;

	(void)state;
	for (int n = 2; n <= RANKS; n *= 2) {
		band_open(&b, n);
		for (size_t t = 0; t < N_DTYPES; t++) {
			sums_scatter_and_gather(&b, dtypes[t]);
			sums_reduce_and_broadcast(&b, dtypes[t]);
		}
		band_close(&b);
	}
}

static int all_max(int n, int rank, unsigned i)
{
	int max = 0;

	for (int r = 0; r < n; r++)
		max = input(r, i) > max ? input(r, i) : max;
	return max + 0 * rank;
}

/* Inputs of an average of four ranks. A quarter of each is exact in f16, but their sum is too large
 * for f16. */
static int large_input(int n, int rank, unsigned i)
{
	return 4 * (8000 + 8 * (int)(i % 16) + 64 * rank) + 0 * n;
}

static int large_average(int n, int rank, unsigned i)
{
	return 4 * (8000 + 8 * (int)(i % 16)) + 4 * 64 * (n - 1) / 2 + 0 * rank;
}

static void other_operations_reduce_too(void **state)
{
	struct band b;

	(void)state;
	band_open(&b, 4);
	set(&b, DTYPE_BF16, 4 * COUNT, own_input);
	assert_int_equal(ops->reduce_scatter(b.clique, b.piece, COUNT, DTYPE_BF16, OP_MAX), 0);
	finish(&b);
	expect(&b, 0, DTYPE_BF16, COUNT, COUNT, all_max);
	set(&b, DTYPE_F16, COUNT, large_input);
	assert_int_equal(ops->reduce(b.clique, b.piece, COUNT, DTYPE_F16, OP_AVG, 0), 0);
	finish(&b);
	for (int m = 0; m < b.n; m++)
		expect(&b, m, DTYPE_F16, 0, COUNT, b.rank[m] == 0 ? large_average : large_input);
	assert_int_equal(
		ops->reduce_scatter(b.clique, b.piece, COUNT, DTYPE_I32, OP_AVG), DEVICE_ARG);
	assert_non_null(strstr(b.dev->why.s, "avg of i32"));
	assert_int_equal(
		ops->reduce(b.clique, b.piece, COUNT, (enum dtype)10, OP_SUM, 0), DEVICE_ARG);
	band_close(&b);
}

/* Sum two tensors in one launch. During the launch the clique must not be used. After the launch
 * both sums must be right. */
static void collectives_of_a_group_are_one_launch(void **state)
{
	struct band b;

	(void)state;
	band_open(&b, 4);
	set(&b, DTYPE_I32, 4 * COUNT, own_input);
	assert_int_equal(ops->group_end(b.clique), DEVICE_ARG);
	assert_int_equal(ops->group_begin(b.clique), 0);
	assert_int_equal(ops->group_begin(b.clique), DEVICE_ARG);
	assert_int_equal(ops->reduce_scatter(b.clique, b.piece, COUNT, DTYPE_I32, OP_SUM), 0);
	for (int i = 0; i < b.n; i++)
		b.piece[i].offset += 64 * 1024;
	set(&b, DTYPE_F64, 4 * COUNT, own_input);
	assert_int_equal(ops->reduce_scatter(b.clique, b.piece, COUNT, DTYPE_F64, OP_SUM), 0);
	assert_int_equal(ops->queue_poll(b.piece[0].queue), DEVICE_AGAIN);
	assert_int_equal(ops->post(b.piece[0].queue, NULL, 0, 1), DEVICE_AGAIN);
	assert_int_equal(ops->group_end(b.clique), 0);
	assert_int_equal(ops->clique_poll(b.clique), DEVICE_AGAIN);
	finish(&b);
	expect(&b, 1, DTYPE_F64, COUNT * (unsigned)b.rank[1], COUNT, all_sum);
	for (int i = 0; i < b.n; i++)
		b.piece[i].offset -= 64 * 1024;
	expect(&b, 1, DTYPE_I32, COUNT * (unsigned)b.rank[1], COUNT, all_sum);
	band_close(&b);
}

/* A queue must refuse work while a collective launches, because the work would overtake the
 * collective. */
static void queues_of_a_collective_that_launches_take_nothing(void **state)
{
	struct device_queue *other;
	struct device_mem *pinned;
	unsigned char *host;
	struct band b;
	int rc;

	(void)state;
	band_open(&b, 2);
	host = cuda_rig_host_memory(RIG_MIB);
	assert_int_equal(ops->pin(b.dev, host, RIG_MIB, &pinned), 0);
	assert_int_equal(ops->queue_open(b.dev, 0, 0, &other), 0);
	set(&b, DTYPE_I32, 2 * COUNT, own_input);
	assert_int_equal(ops->reduce_scatter(b.clique, b.piece, COUNT, DTYPE_I32, OP_SUM), 0);
	assert_int_equal(ops->queue_poll(b.piece[0].queue), DEVICE_AGAIN);
	while ((rc = ops->post(b.piece[0].queue, pinned, 0, 1)) == DEVICE_AGAIN)
		;
	assert_int_equal(rc, 0);
	cuda_rig_await(host, 1);
	expect(&b, 0, DTYPE_I32, COUNT * (unsigned)b.rank[0], COUNT, all_sum);
	/* After the launch, the queue that refused work may be closed. If the clique is aborted
	 * during the next launch, the queues of that launch accept work after the abort. */
	cuda_rig_drain(b.piece[0].queue);
	cuda_rig_drain(b.piece[1].queue);
	ops->queue_close(b.piece[0].queue);
	b.piece[0].queue = other;
	assert_int_equal(ops->all_gather(b.clique, b.piece, COUNT, DTYPE_I32), 0);
	ops->clique_abort(b.clique);
	cuda_rig_drain(other);
	assert_int_equal(ops->post(other, pinned, 0, 2), 0);
	cuda_rig_await(host, 2);
	cuda_rig_drain(other);
	ops->drop(pinned);
	munmap(host, RIG_MIB);
	ops->clique_close(b.clique);
	band_fini(&b);
}

static void call_that_would_hang_other_ranks_is_refused_before_nccl(void **state)
{
	struct device_piece wrong[RANKS];
	uint64_t starts;
	struct band b;

	(void)state;
	band_open(&b, 2);
	starts = fakecuda_calls("ncclGroupStart");
	memcpy(wrong, b.piece, sizeof(wrong));
	wrong[1].queue = b.piece[0].queue;
	assert_int_equal(ops->all_gather(b.clique, wrong, COUNT, DTYPE_F32), DEVICE_ARG);
	memcpy(wrong, b.piece, sizeof(wrong));
	wrong[1].mem = b.piece[0].mem;
	assert_int_equal(ops->all_gather(b.clique, wrong, COUNT, DTYPE_F32), DEVICE_ARG);
	memcpy(wrong, b.piece, sizeof(wrong));
	wrong[0].offset = b.piece[0].mem->bytes - 8 * COUNT + 1;
	assert_int_equal(ops->all_gather(b.clique, wrong, COUNT, DTYPE_F32), DEVICE_ARG);
	assert_int_equal(ops->all_gather(b.clique, b.piece, 0, DTYPE_F32), DEVICE_ARG);
	assert_int_equal(ops->all_gather(b.clique, b.piece, UINT64_MAX / 2, DTYPE_F32), DEVICE_ARG);
	assert_int_equal(ops->broadcast(b.clique, b.piece, COUNT, DTYPE_F32, 2), DEVICE_ARG);
	assert_int_equal(ops->reduce(b.clique, b.piece, COUNT, DTYPE_F32, OP_SUM, -1), DEVICE_ARG);
	assert_int_equal(fakecuda_calls("ncclGroupStart"), starts);
	/* While a collective launches, the next collective has to wait until poll reports the end
	 * of the launch. */
	assert_int_equal(ops->all_gather(b.clique, b.piece, COUNT, DTYPE_F32), 0);
	assert_int_equal(ops->all_gather(b.clique, b.piece, COUNT, DTYPE_F32), DEVICE_ARG);
	assert_non_null(strstr(b.dev->why.s, "launching"));
	finish(&b);
	band_close(&b);
}

static void members_that_make_no_clique_are_refused(void **state)
{
	uint8_t id[DEVICE_ID_BYTES];
	const int same[] = {0, 0};
	struct band b;

	(void)state;
	band_init(&b, 2);
	assert_int_equal(ops->clique_id(b.dev, id), 0);
	assert_int_equal(ops->clique_open(b.dev, id, 1, b.gpu, b.rank, 1, &b.clique), DEVICE_ARG);
	assert_int_equal(ops->clique_open(b.dev, id, 2, same, b.rank, 2, &b.clique), DEVICE_UNSUP);
	assert_non_null(strstr(b.dev->why.s, "two members on one GPU"));
	assert_int_equal(ops->clique_open(b.dev, id, 2, b.gpu, same, 2, &b.clique), DEVICE_ARG);
	assert_int_equal(ops->clique_open(b.dev, id, 2, b.gpu, b.rank, 3, &b.clique), DEVICE_ARG);
	band_fini(&b);
}

/* Open a clique of four ranks. One of the ranks belongs to another process, which never joins. */
static void a_clique_whose_member_never_comes_is_aborted_in_time(void **state)
{
	uint64_t begin_ns;
	uint8_t id[DEVICE_ID_BYTES];
	struct band b;

	(void)state;
	band_init(&b, 3);
	assert_int_equal(ops->clique_id(b.dev, id), 0);
	assert_int_equal(ops->clique_open(b.dev, id, 4, b.gpu, b.rank, 3, &b.clique), 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(ops->clique_poll(b.clique), DEVICE_AGAIN);
	assert_int_equal(ops->all_gather(b.clique, b.piece, COUNT, DTYPE_F32), DEVICE_ARG);
	begin_ns = clock_now_ns();
	ops->clique_abort(b.clique);
	assert_true(clock_now_ns() - begin_ns < UINT64_C(1000000000));
	assert_int_equal(ops->clique_poll(b.clique), DEVICE_ARG);
	band_close(&b);
}

/* Work that hangs on one GPU blocks the collective on all GPUs. */
static void a_collective_that_hangs_is_aborted_and_the_queues_get_idle(void **state)
{
	uint64_t begin_ns;
	struct band b;

	(void)state;
	band_open(&b, 4);
	fakecuda_faults("work:2=hang");
	assert_int_equal(ops->reduce_scatter(b.clique, b.piece, COUNT, DTYPE_F32, OP_SUM), 0);
	assert_int_equal(poll_clique(&b), 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(ops->queue_poll(b.piece[0].queue), DEVICE_AGAIN);
	begin_ns = clock_now_ns();
	ops->clique_abort(b.clique);
	assert_true(clock_now_ns() - begin_ns < UINT64_C(1000000000));
	fakecuda_faults(NULL); /* end the fault, so that the GPU that hung can be closed as well */
	band_close(&b);
}

static void an_asynchronous_error_fails_the_clique_until_it_is_aborted(void **state)
{
	struct band b;

	(void)state;
	band_open(&b, 2);
	fakecuda_faults("ncclCommGetAsyncError:2=6");
	assert_int_equal(ops->clique_poll(b.clique), DEVICE_PEER);
	assert_non_null(strstr(b.dev->why.s, "remote process exited"));
	assert_int_equal(ops->clique_poll(b.clique), DEVICE_PEER);
	assert_int_equal(ops->all_gather(b.clique, b.piece, COUNT, DTYPE_F32), DEVICE_PEER);
	fakecuda_faults(NULL);
	ops->clique_abort(b.clique);
	band_close(&b);
}

static const char *const may_fail[] = {"ncclGetUniqueId", "ncclGroupStart", "ncclGroupEnd",
	"ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclReduceScatter", "ncclAllGather",
	"ncclReduce", "ncclBroadcast", "ncclCommFinalize"};

static void scenario(struct band *b)
{
	const struct device_piece *p = b->piece;
	uint8_t id[DEVICE_ID_BYTES];

	b->clique = NULL;
	if (ops->clique_id(b->dev, id) ||
		ops->clique_open(b->dev, id, b->n, b->gpu, b->rank, b->n, &b->clique))
		return;
	if (!poll_clique(b) && !ops->reduce_scatter(b->clique, p, COUNT, DTYPE_F32, OP_SUM) &&
		!poll_clique(b) && !ops->group_begin(b->clique) &&
		!ops->all_gather(b->clique, p, COUNT, DTYPE_F32) &&
		!ops->reduce(b->clique, p, COUNT, DTYPE_F32, OP_SUM, 0) &&
		!ops->broadcast(b->clique, p, COUNT, DTYPE_F32, 0) && !ops->group_end(b->clique))
		poll_clique(b);
	ops->clique_close(b->clique);
}

static void whichever_call_of_nccl_fails_the_queues_get_idle_and_nothing_is_left(void **state)
{
	unsigned walked = 0;
	struct band b;
	char fault[80];

	(void)state;
	band_init(&b, 2);
	for (size_t f = 0; f < sizeof(may_fail) / sizeof(may_fail[0]); f++) {
		uint64_t calls = fakecuda_calls(may_fail[f]);

		scenario(&b);
		calls = fakecuda_calls(may_fail[f]) - calls;
		assert_true(calls > 0);
		for (unsigned n = 1; n <= calls && n <= 12; n++, walked++) {
			struct fakecuda_live live;

			snprintf(fault, sizeof(fault), "%s:%u=3", may_fail[f], n);
			fakecuda_faults(fault);
			scenario(&b);
			fakecuda_faults(NULL);
			for (int i = 0; i < b.n; i++)
				cuda_rig_drain(b.piece[i].queue);
			fakecuda_live(&live);
			assert_int_equal(live.communicators, 0);
		}
	}
	assert_true(walked > 30);
	band_fini(&b);
}

/* Runs in a child: NCCL cannot be loaded, so there is no clique. The error has the reason. */
static int no_nccl(const char *word)
{
	uint8_t id[DEVICE_ID_BYTES];
	struct band b;

	band_init(&b, 2);
	assert_int_equal(ops->clique_id(b.dev, id), DEVICE_UNSUP);
	if (!strstr(b.dev->why.s, word))
		fail_msg("no '%s' in '%s'", word, b.dev->why.s);
	band_fini(&b);
	return 0;
}

static void an_nccl_that_is_too_old_is_refused(void **state)
{
	struct two child;

	(void)state;
	setenv("FAKE_NCCL_VERSION", "21708", 1);
	child = two_start("21708");
	unsetenv("FAKE_NCCL_VERSION");
	assert_int_equal(two_end(&child), 0);
}

/* Return whether a library is loaded. With one GPU, NCCL is not needed and must not be loaded. */
static bool is_loaded(const char *name)
{
	FILE *f = fopen("/proc/self/maps", "r");
	bool is_found = false;
	char line[600];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		is_found = is_found || strstr(line, name);
	fclose(f);
	return is_found;
}

static void nccl_is_loaded_with_the_first_clique(void **state)
{
	struct band b;

	(void)state;
	assert_true(is_loaded("libcuda.so.1"));
	band_init(&b, 2);
	assert_false(is_loaded("libnccl.so.2"));
	band_fini(&b);
	band_open(&b, 2);
	assert_true(is_loaded("libnccl.so.2"));
	band_close(&b);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nccl_is_loaded_with_the_first_clique),
		cmocka_unit_test(cliques_of_all_sizes_sum_exactly_in_all_types),
		cmocka_unit_test(other_operations_reduce_too),
		cmocka_unit_test(collectives_of_a_group_are_one_launch),
		cmocka_unit_test(queues_of_a_collective_that_launches_take_nothing),
		cmocka_unit_test(call_that_would_hang_other_ranks_is_refused_before_nccl),
		cmocka_unit_test(members_that_make_no_clique_are_refused),
		cmocka_unit_test(a_clique_whose_member_never_comes_is_aborted_in_time),
		cmocka_unit_test(a_collective_that_hangs_is_aborted_and_the_queues_get_idle),
		cmocka_unit_test(an_asynchronous_error_fails_the_clique_until_it_is_aborted),
		cmocka_unit_test(
			whichever_call_of_nccl_fails_the_queues_get_idle_and_nothing_is_left),
		cmocka_unit_test(an_nccl_that_is_too_old_is_refused),
	};

	setenv("FAKE_CUDA_GPUS", "8", 1);
	setenv("FAKE_CUDA_DELAY_US", "100", 1);
	if (argc == 2)
		return no_nccl(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
