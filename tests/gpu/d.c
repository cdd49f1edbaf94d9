/* Run D: the product's own CUDA back-end, mainly on one GPU. Copies on one GPU must not load NCCL.
 * A clique of one rank needs no second GPU. The clique uses all NCCL calls of the product that are
 * possible on one GPU. By default NCCL refuses two ranks on one GPU. NCCL 2.30 allows two ranks if
 * it is so configured. The run then checks collectives over the two ranks. If the second member of
 * a clique never joins, the first member must be able to abort the clique in bounded time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bps-agent/executor/device/cuda.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/sides.h"

#define MIB      ((size_t)1 << 20)
#define BYTES    (64 * MIB)
#define COUNT    (MIB) /* f32 elements of each rank's block in a collective */
#define WAIT_NS  UINT64_C(20000000000)
#define OPEN_MS  2000.0 /* milliseconds that opening a clique may block */
#define ABORT_MS 5000.0
#define LEAVE_MS 2000.0 /* milliseconds after which clique_close aborts the clique */

static const struct device_ops *const ops = &device_cuda;

struct d_rig {
	struct device *dev;
	struct device_queue *out, *in;
	struct device_mem *mem, *host;
	struct device_mem *second_mem; /* memory and queue of a second member (rig_second) */
	struct device_queue *second;
	void *at;
};

static bool fail_with(int rc, const struct d_rig *r, const char *what)
{
	return gpu_fail("%s: %s (%s)", what, r->dev ? r->dev->why.s : "", device_error_name(rc));
}

static bool is_nccl_loaded(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	bool found = false;

	while (f && fgets(line, sizeof(line), f))
		found |= strstr(line, "libnccl") != NULL;
	if (f)
		fclose(f);
	return found;
}

static bool rig_open(struct d_rig *r)
{
	struct err_text why = {""};
	int rc = ops->open("run-d", &r->dev, &why);

	if (rc)
		return gpu_fail("cannot open the GPUs: %s", why.s);
	r->at = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (r->at == MAP_FAILED)
		return gpu_fail("out of memory");
	rc = ops->alloc(r->dev, 0, BYTES, NULL, 0, &r->mem);
	if (!rc)
		rc = ops->pin(r->dev, r->at, 2 * BYTES, &r->host);
	if (!rc)
		rc = ops->queue_open(r->dev, 0, 0, &r->out);
	if (!rc)
		rc = ops->queue_open(r->dev, 0, 0, &r->in);
	return rc == 0 || fail_with(rc, r, "cannot use the GPU");
}

/* Make memory and a queue for a second member in this process. */
static bool rig_second(struct d_rig *r, int gpu)
{
	int rc = ops->alloc(r->dev, gpu, BYTES, NULL, 0, &r->second_mem);

	if (!rc)
		rc = ops->queue_open(r->dev, gpu, 0, &r->second);
	return rc == 0 || fail_with(rc, r, "cannot use the second GPU");
}

static bool wait_queue(struct d_rig *r, struct device_queue *q)
{
	uint64_t end_ns = now_ns() + WAIT_NS;
	int rc;

	while ((rc = ops->queue_poll(q)) == DEVICE_AGAIN)
		if (now_ns() > end_ns)
			return gpu_fail("a queue does not become idle");
	return rc == 0 || fail_with(rc, r, "a queue failed");
}

/* Copy bytes to the GPU and back. Return whether the bytes are unchanged. */
static bool there_and_back(struct d_rig *r)
{
	uint32_t *from = r->at, *to = (void *)((char *)r->at + BYTES);
	int rc;

	for (size_t i = 0; i < BYTES / sizeof(*from); i++)
		from[i] = (uint32_t)i * 2654435761u;
	rc = ops->copy(r->in, r->mem, 0, r->host, 0, BYTES);
	if (!rc && !wait_queue(r, r->in))
		return false;
	if (!rc)
		rc = ops->copy(r->out, r->host, BYTES, r->mem, 0, BYTES);
	if (rc)
		return fail_with(rc, r, "cannot copy");
	return wait_queue(r, r->out) &&
	       (memcmp(from, to, BYTES) == 0 || gpu_fail("the bytes that came back differ"));
}

/* ---- one GPU ---- */

static bool one_gpu(struct gpu_side *s)
{
	struct d_rig r = {0};

	if (!rig_open(&r) || !there_and_back(&r))
		return false;
	if (is_nccl_loaded())
		return gpu_fail("libnccl is loaded");
	gpu_answer(s->item, true, "\"nccl_loaded\":false");
	return true;
}

static bool nothing(struct gpu_side *s)
{
	(void)s;
	return true;
}

/* ---- cliques ---- */

/* Poll until the clique is usable or has failed. */
static int wait_clique(struct device_clique *c)
{
	uint64_t end_ns = now_ns() + WAIT_NS;
	int rc;

	while ((rc = ops->clique_poll(c)) == DEVICE_AGAIN)
		if (now_ns() > end_ns)
			break;
	return rc;
}

static double ms_since(uint64_t begin_ns)
{
	return (double)(now_ns() - begin_ns) / 1e6;
}

/* Make the id of a clique. If there is no NCCL, report this test item as skipped, and set
 * *ret_skip. */
static bool make_id(
	struct gpu_side *s, struct d_rig *r, uint8_t id[DEVICE_ID_BYTES], bool *ret_skip)
{
	int rc = ops->clique_id(r->dev, id);

	*ret_skip = rc == DEVICE_UNSUP;
	if (rc == 0)
		return true;
	fail_with(rc, r, "no clique");
	if (*ret_skip)
		answer_why(s->item, true);
	return *ret_skip;
}

/* Two members of this process on one GPU must be refused, and the device must still work. */
static bool same_process(struct gpu_side *s)
{
	const int gpus[] = {0, 0}, ranks[] = {0, 1};
	struct device_clique *c = NULL;
	uint8_t id[DEVICE_ID_BYTES];
	struct d_rig r = {0};
	bool is_skip;
	int rc;

	if (!rig_open(&r) || !make_id(s, &r, id, &is_skip))
		return false;
	if (is_skip)
		return true;
	rc = ops->clique_open(r.dev, id, 2, gpus, ranks, 2, &c);
	if (rc != DEVICE_UNSUP)
		return gpu_fail(
			"two members on one GPU are not refused: %s", device_error_name(rc));
	gpu_answer(s->item, there_and_back(&r), "\"says\":\"%s\"", json_safe(r.dev->why.s));
	return true;
}

/* ---- a member that never comes ---- */

struct waits {
	double open_ms, abort_ms;
};

static bool stay_alone(struct device_clique *c)
{
	for (uint64_t begin_ns = now_ns(); ms_since(begin_ns) < 3000;) {
		int rc = ops->clique_poll(c);

		if (rc != DEVICE_AGAIN)
			return gpu_fail(
				"a clique without its other member says %s", device_error_name(rc));
		usleep(1000);
	}
	return true;
}

/* Join a clique whose other member never comes, wait, and abort the clique. */
static bool give_up(struct d_rig *r, const uint8_t id[DEVICE_ID_BYTES], struct waits *ret)
{
	const int gpu = 0, rank = 0;
	struct device_clique *c = NULL;
	uint64_t begin_ns = now_ns();
	int rc = ops->clique_open(r->dev, id, 2, &gpu, &rank, 1, &c);

	ret->open_ms = ms_since(begin_ns);
	if (rc)
		return fail_with(rc, r, "cannot begin to join");
	if (!stay_alone(c))
		return false;
	begin_ns = now_ns();
	ops->clique_abort(c);
	ret->abort_ms = ms_since(begin_ns);
	ops->clique_close(c);
	return true;
}

/* Open and abort a clique whose other member never joins. Do this twice. The second opening must
 * not block, and the second abort must end soon. The first opening and abort have no time limits,
 * because they load modules, maybe from a slow disk. */
static bool nobody_comes(struct gpu_side *s)
{
	uint8_t id[DEVICE_ID_BYTES];
	struct waits first, second;
	struct d_rig r = {0};
	bool is_skip;

	if (!rig_open(&r) || !make_id(s, &r, id, &is_skip))
		return false;
	if (is_skip)
		return true;
	if (!give_up(&r, id, &first) || !make_id(s, &r, id, &is_skip) ||
		!give_up(&r, id, &second) || !there_and_back(&r))
		return false;
	gpu_answer(s->item, second.open_ms < OPEN_MS && second.abort_ms < ABORT_MS,
		"\"first_open_ms\":%.0f,\"first_abort_ms\":%.0f,\"open_ms\":%.0f,"
		"\"abort_ms\":%.0f,\"bar_open_ms\":%.0f,\"bar_abort_ms\":%.0f",
		first.open_ms, first.abort_ms, second.open_ms, second.abort_ms, OPEN_MS, ABORT_MS);
	return true;
}

/* ---- a clique of one rank ---- */

#define ROUNDS 10

static int settle(struct device_clique *c, int rc)
{
	return rc ? rc : wait_clique(c);
}

/* Start two collectives in one launch. */
static int group_of_one(struct device_clique *c, const struct device_piece p[2])
{
	int rc = ops->group_begin(c), ended;

	if (rc)
		return rc;
	rc = ops->reduce_scatter(c, &p[0], COUNT, DTYPE_F32, OP_SUM);
	if (!rc)
		rc = ops->all_gather(c, &p[1], COUNT, DTYPE_F32);
	ended = ops->group_end(c);
	return settle(c, rc ? rc : ended);
}

/* Run every collective that the product uses. */
static int all_of_one(struct device_clique *c, const struct device_piece p[2])
{
	int rc = settle(c, ops->reduce_scatter(c, &p[0], COUNT, DTYPE_F32, OP_SUM));

	if (!rc)
		rc = settle(c, ops->all_gather(c, &p[0], COUNT, DTYPE_F32));
	if (!rc)
		rc = settle(c, ops->reduce(c, &p[1], COUNT, DTYPE_F32, OP_SUM, 0));
	if (!rc)
		rc = settle(c, ops->broadcast(c, &p[1], COUNT, DTYPE_F32, 0));
	return rc ? rc : group_of_one(c, p);
}

/* Check that collectives in place over one rank change no byte. */
static bool sums_of_one(struct d_rig *r, struct device_clique *c)
{
	const uint64_t bytes = 2 * COUNT * sizeof(float);
	const struct device_piece p[] = {{.mem = r->mem, .queue = r->out},
		{.mem = r->mem, .offset = bytes / 2, .queue = r->out}};
	float *from = r->at, *to = (void *)((char *)r->at + BYTES);
	int rc;

	for (size_t i = 0; i < 2 * COUNT; i++)
		from[i] = (float)(i % 4093) + 0.25f;
	memset(to, 0, bytes);
	rc = ops->copy(r->out, r->mem, 0, r->host, 0, bytes);
	for (int i = 0; i < ROUNDS && !rc; i++)
		rc = all_of_one(c, p);
	if (!rc)
		rc = ops->copy(r->out, r->host, BYTES, r->mem, 0, bytes);
	if (rc)
		return fail_with(rc, r, "a collective over one rank failed");
	return wait_queue(r, r->out) &&
	       (memcmp(from, to, bytes) == 0 ||
		       gpu_fail("a sum over one rank differs from its input"));
}

/* Open a clique of one rank. *ret_ms: the milliseconds that the opening took. */
static bool one_open(struct gpu_side *s, struct d_rig *r, struct device_clique **ret,
	bool *ret_skip, double *ret_ms)
{
	const int gpu = 0, rank = 0;
	uint8_t id[DEVICE_ID_BYTES];
	uint64_t begin_ns;
	int rc;

	*ret = NULL;
	if (!make_id(s, r, id, ret_skip))
		return false;
	if (*ret_skip)
		return true;
	begin_ns = now_ns();
	rc = ops->clique_open(r->dev, id, 1, &gpu, &rank, 1, ret);
	if (!rc)
		rc = wait_clique(*ret);
	*ret_ms = ms_since(begin_ns);
	return rc == 0 || fail_with(rc, r, "a clique of one rank does not open");
}

/* Abort a clique while a collective is queued behind copies that still run. */
static bool abort_of_one(struct d_rig *r, struct device_clique *c, double *ret_ms)
{
	const struct device_piece p = {.mem = r->mem, .queue = r->out};
	uint64_t begin_ns;
	int rc = 0;

	for (int i = 0; i < 16 && !rc; i++)
		rc = ops->copy(r->out, r->host, BYTES, r->mem, 0, BYTES);
	if (!rc)
		rc = ops->reduce_scatter(c, &p, COUNT, DTYPE_F32, OP_SUM);
	if (rc)
		return fail_with(rc, r, "cannot queue work");
	begin_ns = now_ns();
	ops->clique_abort(c);
	*ret_ms = ms_since(begin_ns);
	ops->clique_close(c);
	return wait_queue(r, r->out) && there_and_back(r);
}

/* Use all NCCL calls of the product that are possible with one GPU: join, sum and leave, then join
 * and abort. */
static bool one_rank(struct gpu_side *s)
{
	double open_ms[2] = {0}, close_ms, abort_ms = 0;
	struct device_clique *c;
	struct d_rig r = {0};
	uint64_t begin_ns;
	bool is_skip;

	setenv("BPS_TEST_CLIQUE_OF_ONE", "1", 1);
	if (!rig_open(&r) || !one_open(s, &r, &c, &is_skip, &open_ms[0]))
		return false;
	if (is_skip)
		return true;
	if (!sums_of_one(&r, c))
		return false;
	begin_ns = now_ns();
	ops->clique_close(c);
	close_ms = ms_since(begin_ns);
	if (!there_and_back(&r) || !one_open(s, &r, &c, &is_skip, &open_ms[1]) ||
		!abort_of_one(&r, c, &abort_ms))
		return false;
	gpu_answer(s->item, close_ms < LEAVE_MS && abort_ms < ABORT_MS,
		"\"first_open_ms\":%.0f,\"open_ms\":%.0f,\"close_ms\":%.0f,\"abort_ms\":%.0f,"
		"\"bar_close_ms\":%.0f,\"bar_abort_ms\":%.0f",
		open_ms[0], open_ms[1], close_ms, abort_ms, LEAVE_MS, ABORT_MS);
	return true;
}

/* ---- sums of two ---- */

static bool is_about(float is, double should)
{
	return is > should - 1e-3 && is < should + 1e-3;
}

#define AREA(i) ((uint64_t)(i) * (BYTES / 2)) /* offset of local member i's area in host memory */

/* Copy 2 * COUNT elements of each local member to its GPU if is_in, else from its GPU. */
static int move(struct d_rig *r, const struct device_piece *pieces, int n_local, bool is_in)
{
	const uint64_t bytes = 2 * COUNT * sizeof(float);
	int rc = 0;

	for (int i = 0; i < n_local && !rc; i++)
		rc = is_in ? ops->copy(pieces[i].queue, pieces[i].mem, 0, r->host, AREA(i), bytes)
			   : ops->copy(pieces[i].queue, r->host, AREA(i), pieces[i].mem, 0, bytes);
	return rc;
}

/* Check in-place collectives over two ranks. At first, all values of rank 0 are 1, and all values
 * of rank 1 are 2. In the end, all values must be 3 on both ranks. first: rank of member 0 of this
 * process. n_local: count of members in this process. */
static bool collectives(struct d_rig *r, struct device_clique *c, int first, int n_local)
{
	const struct device_piece pieces[] = {
		{.mem = r->mem, .queue = r->out}, {.mem = r->second_mem, .queue = r->second}};
	int rc;

	for (int i = 0; i < n_local; i++) {
		float *host = (void *)((char *)r->at + AREA(i));

		for (size_t k = 0; k < 2 * COUNT; k++)
			host[k] = (float)(first + i + 1);
	}
	rc = move(r, pieces, n_local, true);
	if (!rc)
		rc = ops->reduce_scatter(c, pieces, COUNT, DTYPE_F32, OP_SUM);
	if (!rc)
		rc = wait_clique(c);
	if (!rc)
		rc = ops->all_gather(c, pieces, COUNT, DTYPE_F32);
	if (!rc)
		rc = wait_clique(c);
	if (!rc)
		rc = move(r, pieces, n_local, false);
	if (rc)
		return fail_with(rc, r, "a collective failed");
	for (int i = 0; i < n_local; i++) {
		const float *host = (void *)((char *)r->at + AREA(i));

		if (!wait_queue(r, pieces[i].queue))
			return false;
		for (size_t k = 0; k < 2 * COUNT; k++)
			if (!is_about(host[k], 3))
				return gpu_fail("element %zu is %g, not 3", k, (double)host[k]);
	}
	return true;
}

/* Leave the clique, and check that the GPU still works. Then print the item's answer. The field
 * `outcome` of the answer has one word for the result of joining the clique. */
static bool tell_outcome(struct gpu_side *s, struct d_rig *r, struct device_clique *c, int rc,
	bool may_hang, uint64_t begin_ns)
{
	const char *word = rc == 0 ? "works" : rc == DEVICE_AGAIN ? "hangs" : "refused";
	bool is_ok = rc == 0 || rc == DEVICE_PEER || rc == DEVICE_UNSUP ||
		     (rc == DEVICE_AGAIN && may_hang);
	double ms = ms_since(begin_ns);
	char says[400];

	snprintf(says, sizeof(says), "%s", json_safe(rc ? r->dev->why.s : ""));
	if (rc && c)
		ops->clique_abort(c);
	ops->clique_close(c);
	if (!there_and_back(r))
		return false;
	gpu_answer(
		s->item, is_ok, "\"outcome\":\"%s\",\"ms\":%.0f,\"says\":\"%s\"", word, ms, says);
	return true;
}

/* Let two processes join on the same GPU. Polling must return an error, unless NCCL allows two
 * ranks on a GPU. If NCCL allows two ranks, the clique must work. */
static bool two_ranks(
	struct gpu_side *s, int rank, const uint8_t id[DEVICE_ID_BYTES], struct d_rig *r)
{
	/* an experimental setting with which NCCL may allow two ranks on a GPU */
	bool may_hang = getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL;
	struct device_clique *c = NULL;
	uint64_t begin_ns = now_ns();
	const int gpu = 0;
	int rc = ops->clique_open(r->dev, id, 2, &gpu, &rank, 1, &c);

	if (rc == 0)
		rc = wait_clique(c);
	if (rc == 0 && !collectives(r, c, rank, 1))
		return false;
	if (rank == 0)
		return tell_outcome(s, r, c, rc, may_hang, begin_ns);
	if (rc && c)
		ops->clique_abort(c);
	ops->clique_close(c);
	return there_and_back(r);
}

static bool two_left(struct gpu_side *s)
{
	uint8_t id[DEVICE_ID_BYTES] = {0};
	struct d_rig r = {0};
	bool is_skip;

	if (getenv("BPS_GPU_FAKE")) {
		gpu_fail("the fake NCCL joins only ranks of one process");
		answer_why(s->item, true);
		return side_send(s, 2, id, sizeof(id), -1);
	}
	if (!rig_open(&r) || !make_id(s, &r, id, &is_skip))
		return false;
	if (!side_send(s, is_skip ? 2 : 1, id, sizeof(id), -1))
		return false;
	return is_skip || two_ranks(s, 0, id, &r);
}

static bool two_right(struct gpu_side *s)
{
	uint8_t id[DEVICE_ID_BYTES];
	struct d_rig r = {0};
	uint64_t word;

	if (!rig_open(&r) || !side_recv(s, &word, id, sizeof(id), NULL))
		return false;
	return word == 2 || two_ranks(s, 1, id, &r);
}

/* Make a clique of two members in this process: one on GPU 0, the other on GPU `second_gpu`. */
static bool members(struct gpu_side *s, int second_gpu)
{
	const int gpus[] = {0, second_gpu}, ranks[] = {0, 1};
	struct device_clique *c = NULL;
	uint8_t id[DEVICE_ID_BYTES];
	struct d_rig r = {0};
	uint64_t begin_ns;
	bool is_skip;
	int rc;

	if (!rig_open(&r) || !rig_second(&r, second_gpu) || !make_id(s, &r, id, &is_skip))
		return false;
	if (is_skip)
		return true;
	begin_ns = now_ns();
	rc = ops->clique_open(r.dev, id, 2, gpus, ranks, 2, &c);
	if (rc == 0)
		rc = wait_clique(c);
	if (rc == 0 && !collectives(&r, c, 0, 2))
		return false;
	return tell_outcome(s, &r, c, rc, second_gpu == 0, begin_ns);
}

/* Test two members on one GPU, with NCCL configured to allow two ranks on a GPU. */
static bool same_process_allowed(struct gpu_side *s)
{
	setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
	return members(s, 0);
}

/* Test two members, each with its own GPU, as in the product. */
static bool two_gpus(struct gpu_side *s)
{
	struct err_text why = {""};
	int n = ops->probe(&why);

	if (n >= 2)
		return members(s, 1);
	gpu_fail("there is only one GPU");
	answer_why(s->item, true);
	return true;
}

/* Test two processes, with the settings by which NCCL 2.30 allows several ranks per GPU. Older
 * versions ignore the settings. */
static bool many(side_fn side, struct gpu_side *s)
{
	setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
	setenv("NCCL_MAX_CTAS", "4", 1);
	setenv("NCCL_NVLS_ENABLE", "0", 1);
	return side(s);
}

static bool many_left(struct gpu_side *s)
{
	return many(two_left, s);
}

static bool many_right(struct gpu_side *s)
{
	return many(two_right, s);
}

static const struct gpu_pair pairs[] = {
	{"one_gpu", one_gpu, nothing, 60, SIDE_NONE, false},
	{"one_rank", one_rank, nothing, 90, SIDE_NONE, false},
	{"two_members", same_process, nothing, 60, SIDE_NONE, false},
	{"two_members_allowed", same_process_allowed, nothing, 90, SIDE_NONE, false},
	{"two_gpus", two_gpus, nothing, 90, SIDE_NONE, false},
	{"nobody_comes", nobody_comes, nothing, 90, SIDE_NONE, false},
	{"two_ranks", two_left, two_right, 90, SIDE_NONE, false},
	{"two_ranks_allowed", many_left, many_right, 90, SIDE_NONE, false},
};

/* Run all items, or only the item that the argument names. */
int main(int argc, char **argv)
{
	bool is_ok = true;

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		if (argc < 2 || strcmp(argv[1], pairs[i].item) == 0)
			is_ok &= pair_run(&pairs[i]);
	return is_ok ? 0 : 1;
}
