/* The test run B checks whether an executor in a second process is acceptable. A trainer's process
 * keeps the GPU busy with matrix products. A second process copies memory, or launches small or
 * large kernels. The run measures how much the trainer slows down, and how long the second process
 * waits for each piece of work. Each kind of work is also measured while the trainer is idle. See
 * docs/guides/gpu-tests.md. */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/gpu.h"
#include "tests/gpu/sides.h"

#define MIB ((size_t)1 << 20)
/* a product of this size takes about a millisecond, like kernels of a training step */
#define MATRIX      2048
#define DEPTH       8 /* matrix products in the stream's queue at a time */
#define COPY_BYTES  (64 * MIB)
#define BIG_BYTES   (1024 * MIB)
#define SMALL_BYTES 4096
#define PART_BYTES  (4 * MIB) /* size of the executor's partitions */
#define PARTS       8         /* partitions in flight */
/* Size from which copies to the GPU have one row, as in the executor. */
#define TWO_ROWS_BYTES (32u << 10)
#define PAGE_BYTES     4096
/* A wait loop calls may_wait once in LOOK iterations, which is about once a millisecond. */
#define LOOK         (1 << 20)
#define SAMPLES_MAX  (1 << 22)
#define SECONDS      8.0
#define SECONDS_MAX  18.0
#define BAR_SLOWDOWN 0.05
#define BAR_COPY     0.9
#define ALL_KINDS    "beside" /* the program's argument that selects all kinds of work */

/* Words that the two sides send to each other. To start a kind of work, a side sends BEGIN plus the
 * index of that kind. */
enum word { BEGIN = 100, STOP = 1, FIGURES = 2, READY = 3, OVER = 4 };

/* Durations of one measurement, in microseconds. */
struct times {
	double *us;
	size_t n;
	double seconds;
};

struct report {
	double p50, p99, max, per_s;
};

static bool times_new(struct times *t)
{
	t->us = calloc(SAMPLES_MAX, sizeof(*t->us));
	return t->us || gpu_fail("out of memory");
}

static void times_add(struct times *t, double us)
{
	if (t->n < SAMPLES_MAX)
		t->us[t->n++] = us;
}

static struct report report_of(struct times *t)
{
	struct gpu_figures f = gpu_figures(t->us, t->n);

	return (struct report){.p50 = f.p50,
		.p99 = f.p99,
		.max = f.max,
		.per_s = t->seconds > 0 ? (double)t->n / t->seconds : 0};
}

/* ---- the trainer ---- */

struct b_trainer {
	CUdevice dev;
	CUstream stream;
	CUfunction matmul;
	CUdeviceptr a, b, c;
	CUevent events[DEPTH];
	struct times times;
};

static bool trainer_open(struct b_trainer *t)
{
	size_t bytes = (size_t)MATRIX * MATRIX * sizeof(float);

	if (!gpu_context(&t->dev) || !gpu_stream(&t->stream) || !gpu_kernel("matmul", &t->matmul) ||
		!CU(cuMemAlloc, &t->a, bytes) || !CU(cuMemAlloc, &t->b, bytes) ||
		!CU(cuMemAlloc, &t->c, bytes) || !gpu_fill(t->a, bytes, 1) ||
		!gpu_fill(t->b, bytes, 2))
		return false;
	for (unsigned i = 0; i < DEPTH; i++)
		if (!CU(cuEventCreate, &t->events[i], CU_EVENT_DISABLE_TIMING))
			return false;
	return times_new(&t->times);
}

static bool trainer_launch(struct b_trainer *t, unsigned slot)
{
	int n = MATRIX;
	void *args[] = {&t->a, &t->b, &t->c, &n};

	return CU(cuLaunchKernel, t->matmul, MATRIX / 64, MATRIX / 64, 1, 16, 16, 1, 0, t->stream,
		       args, NULL) &&
	       CU(cuEventRecord, t->events[slot], t->stream);
}

/* Compute matrix products for `seconds` seconds. Record the time from the end of each product to
 * the end of the next one. */
static bool trainer_work(struct b_trainer *t, double seconds)
{
	uint64_t begin_ns, last_ns, now;
	unsigned slot = 0;

	t->times.n = 0;
	for (unsigned i = 0; i < DEPTH; i++)
		if (!trainer_launch(t, i))
			return false;
	begin_ns = last_ns = now_ns();
	do {
		if (!CU(cuEventSynchronize, t->events[slot]) || !trainer_launch(t, slot))
			return false;
		slot = (slot + 1) % DEPTH;
		now = now_ns();
		times_add(&t->times, (double)(now - last_ns) / 1e3);
		last_ns = now;
	} while ((double)(now - begin_ns) < seconds * 1e9);
	t->times.seconds = (double)(now - begin_ns) / 1e9;
	return CU(cuStreamSynchronize, t->stream);
}

/* ---- the second process ---- */

/* A lane copies in the same way as the executor. After each copy, the stream writes the count of
 * copies so far to the lane's counter in registered memory. The CPU polls the counter. */
struct b_lane {
	CUstream stream;
	_Atomic uint64_t *counter;
	CUdeviceptr counter_at;
	struct gpu_vmm device;
	char *host;
	/* the copies with the indexes `head` to `tail` - 1 are in flight */
	uint64_t begin_ns[PARTS], head, tail;
};

struct second {
	CUdevice dev;
	CUstream out, in;
	CUfunction increment;
	CUdeviceptr from, to, big;
	void *host_from, *host_to;
	struct b_lane lane_out, lane_in;
	struct times times;
	struct gpu_side *side;
};

/* A kind of work of the second process. */
struct kind {
	const char *name;
	/* Do one piece of work, and store the duration of the piece in *ret_us. If several pieces
	 * may be in flight, start pieces until `in_flight` pieces are in flight. Then wait for the
	 * oldest piece, and store its duration. */
	bool (*once)(struct second *w, const struct kind *k, double *ret_us);
	size_t bytes; /* bytes in each direction; a kernel reads and writes this much GPU memory */
	bool is_out, is_in;
	unsigned in_flight;
	bool has_bars;
	/* Factor by which the measuring time is multiplied for this kind. The kinds that make tiny
	 * copies and the kind "post_only" have a smaller factor, because they yield many samples
	 * and have no limits to meet. */
	double share;
};

static bool engine_lane_open(struct second *w, struct b_lane *l, CUstream stream)
{
	char *page;
	int fd;

	l->stream = stream;
	l->host = gpu_memfd(PARTS * PART_BYTES, &fd);
	page = l->host ? gpu_memfd(PAGE_BYTES, &fd) : NULL;
	l->counter = (_Atomic uint64_t *)(void *)page;
	return page && gpu_pin(l->host, PARTS * PART_BYTES, NULL) &&
	       gpu_pin(page, PAGE_BYTES, &l->counter_at) &&
	       gpu_vmm_new(w->dev, PARTS * PART_BYTES, &l->device);
}

static bool second_open(struct second *w)
{
	return gpu_context(&w->dev) && gpu_stream(&w->out) && gpu_stream(&w->in) &&
	       gpu_kernel("increment", &w->increment) && CU(cuMemAlloc, &w->from, COPY_BYTES) &&
	       CU(cuMemAlloc, &w->to, COPY_BYTES) && CU(cuMemAlloc, &w->big, BIG_BYTES) &&
	       CU(cuMemHostAlloc, &w->host_from, COPY_BYTES, 0) &&
	       CU(cuMemHostAlloc, &w->host_to, COPY_BYTES, 0) &&
	       engine_lane_open(w, &w->lane_out, w->out) &&
	       engine_lane_open(w, &w->lane_in, w->in) && times_new(&w->times);
}

static bool kernel_once(struct second *w, const struct kind *k, double *ret_us)
{
	size_t n = k->bytes / sizeof(float);
	unsigned blocks = k->bytes > MIB ? 4096 : 4;
	void *args[] = {&w->big, &n};
	uint64_t begin_ns = now_ns();

	if (!CU(cuLaunchKernel, w->increment, blocks, 1, 1, 256, 1, 1, 0, w->out, args, NULL) ||
		!CU(cuStreamSynchronize, w->out))
		return false;
	*ret_us = (double)(now_ns() - begin_ns) / 1e3;
	return true;
}

static bool copy_once(struct second *w, const struct kind *k, double *ret_us)
{
	uint64_t begin_ns = now_ns();

	if ((k->is_out && !CU(cuMemcpyDtoHAsync, w->host_to, w->from, k->bytes, w->out)) ||
		(k->is_in && !CU(cuMemcpyHtoDAsync, w->to, w->host_from, k->bytes, w->in)) ||
		(k->is_out && !CU(cuStreamSynchronize, w->out)) ||
		(k->is_in && !CU(cuStreamSynchronize, w->in)))
		return false;
	*ret_us = (double)(now_ns() - begin_ns) / 1e3;
	return true;
}

/* Queue a copy to the GPU. has_one_row: even if the copy is small, unlike in the executor
 * (cuda_queue.c). */
static bool lane_copy_in(const struct kind *k, bool has_one_row, CUdeviceptr device,
	const char *host, CUstream stream)
{
	CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = host,
		.srcPitch = k->bytes / 2,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = device,
		.dstPitch = k->bytes / 2,
		.WidthInBytes = k->bytes / 2,
		.Height = 2};

	if (k->bytes >= TWO_ROWS_BYTES || has_one_row)
		return CU(cuMemcpyHtoDAsync, device, host, k->bytes, stream);
	return CU(cuMemcpy2DAsync, &rows, stream);
}

/* If this kind of work has copies, queue a copy. In any case, queue a write of the increased `tail`
 * to the lane's counter. */
static bool lane_queue(struct b_lane *l, const struct kind *k, bool has_one_row)
{
	size_t slot = l->tail % PARTS;
	CUdeviceptr device = l->device.at + slot * PART_BYTES;
	char *host = l->host + slot * PART_BYTES;

	l->begin_ns[slot] = now_ns();
	if ((k->is_out && !CU(cuMemcpyDtoHAsync, host, device, k->bytes, l->stream)) ||
		(k->is_in && !lane_copy_in(k, has_one_row, device, host, l->stream)) ||
		!CU(cuStreamWriteValue64, l->stream, l->counter_at, l->tail + 1, 0))
		return false;
	l->tail++;
	return true;
}

static bool may_wait(struct gpu_side *s)
{
	return side_is_there(s) &&
	       (now_ns() < s->deadline_ns || gpu_fail("a counter makes no progress"));
}

/* Keep k->in_flight copies in flight. Wait until the lane's counter exceeds `head`, which means
 * that the oldest copy has ended. Store the duration of this copy in *ret_us. */
static bool lane_turn(struct second *w, const struct kind *k, bool has_one_row, double *ret_us)
{
	struct b_lane *l = k->is_in ? &w->lane_in : &w->lane_out;
	uint64_t now, n = 0;

	while (l->tail - l->head < k->in_flight)
		if (!lane_queue(l, k, has_one_row))
			return false;
	/* The acquire load pairs with the stream's write to the counter. */
	while (atomic_load_explicit(l->counter, memory_order_acquire) <= l->head)
		if (++n % LOOK == 0 && !may_wait(w->side))
			return false;
	now = now_ns();
	*ret_us = (double)(now - l->begin_ns[l->head++ % PARTS]) / 1e3;
	return true;
}

/* Wait until nothing is in flight. */
static bool second_settle(struct second *w)
{
	w->lane_out.head = w->lane_out.tail;
	w->lane_in.head = w->lane_in.tail;
	return CU(cuStreamSynchronize, w->out) && CU(cuStreamSynchronize, w->in);
}

static bool lane_once(struct second *w, const struct kind *k, double *ret_us)
{
	return lane_turn(w, k, false, ret_us);
}

static bool one_row_once(struct second *w, const struct kind *k, double *ret_us)
{
	return lane_turn(w, k, true, ret_us);
}

static const struct kind kinds[] = {
	{"copy_out", copy_once, COPY_BYTES, true, false, 1, true, 1},
	{"copy_in", copy_once, COPY_BYTES, false, true, 1, true, 1},
	{"copy_both", copy_once, COPY_BYTES, true, true, 1, true, 1},
	{"parts_out", lane_once, PART_BYTES, true, false, PARTS, true, 1},
	{"parts_in", lane_once, PART_BYTES, false, true, PARTS, true, 1},
	{"tiny_copies_out_64B", lane_once, 64, true, false, 1, false, 0.5},
	{"tiny_copies_in_64B", lane_once, 64, false, true, 1, false, 0.5},
	{"tiny_copies_out_4KiB", lane_once, 4096, true, false, 1, false, 0.5},
	{"tiny_copies_in_4KiB", lane_once, 4096, false, true, 1, false, 0.5},
	{"tiny_one_row_in_4KiB", one_row_once, 4096, false, true, 1, false, 0.5},
	{"post_only", lane_once, 0, false, false, 1, false, 0.5},
	{"small_kernels", kernel_once, SMALL_BYTES, true, true, 1, false, 1},
	{"1GiB_kernels", kernel_once, BIG_BYTES, true, true, 1, false, 1},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Do this kind of work until the trainer sends a word. Then send the figures. */
static bool second_work(struct gpu_side *s, struct second *w, const struct kind *k)
{
	struct pollfd p = {.fd = s->sock, .events = POLLIN};
	uint64_t begin_ns, now;
	struct report r;
	double us;

	w->times.n = 0;
	if (!k->once(w, k, &us)) /* not measured, because the first kernel loads its module */
		return false;
	begin_ns = now_ns();
	do {
		if (!k->once(w, k, &us))
			return false;
		times_add(&w->times, us);
		now = now_ns();
	} while (poll(&p, 1, 0) == 0 && now < s->deadline_ns);
	w->times.seconds = (double)(now - begin_ns) / 1e9;
	r = report_of(&w->times);
	return second_settle(w) && side_await(s, STOP) && side_send(s, FIGURES, &r, sizeof(r), -1);
}

static bool second_side(struct gpu_side *s)
{
	static struct second w; /* static, because the streams use it until the process ends */
	uint64_t word;

	w.side = s;
	if (!second_open(&w) || !side_tell(s, READY))
		return false;
	while (side_recv(s, &word, NULL, 0, NULL)) {
		if (word == OVER)
			return true;
		if (word < BEGIN || word >= BEGIN + N_KINDS)
			return gpu_fail(
				"unknown word %llu from the trainer", (unsigned long long)word);
		if (!second_work(s, &w, &kinds[word - BEGIN]))
			return false;
	}
	return false;
}

/* ---- both sides; the trainer's side decides what is measured ---- */

static bool say_begin(struct gpu_side *s, const struct kind *k)
{
	return side_tell(s, BEGIN + (uint64_t)(k - kinds));
}

static bool ask_figures(struct gpu_side *s, struct report *ret)
{
	uint64_t word;

	return side_tell(s, STOP) && side_recv(s, &word, ret, sizeof(*ret), NULL) &&
	       (word == FIGURES || gpu_fail("no figures"));
}

static bool second_alone(
	struct gpu_side *s, const struct kind *k, double seconds, struct report *ret)
{
	if (!say_begin(s, k))
		return false;
	usleep((useconds_t)(seconds * 1e6));
	return ask_figures(s, ret);
}

static bool both(struct gpu_side *s, struct b_trainer *t, const struct kind *k, double seconds,
	struct report *ret_trainer, struct report *ret_second)
{
	if (!say_begin(s, k) || !trainer_work(t, seconds) || !ask_figures(s, ret_second))
		return false;
	*ret_trainer = report_of(&t->times);
	return true;
}

static double gbytes_s(const struct kind *k, const struct report *r)
{
	return (double)k->bytes * (k->is_out + k->is_in) * r->per_s / 1e9;
}

static void tell(const struct kind *k, const struct report *idle, const struct report *trainer,
	const struct report *alone, const struct report *beside)
{
	double slowdown = idle->per_s / trainer->per_s - 1;
	double kept = alone->per_s > 0 ? beside->per_s / alone->per_s : 0;

	gpu_answer(k->name, !k->has_bars || (slowdown < BAR_SLOWDOWN && kept >= BAR_COPY),
		"\"trainer_slowdown\":%.3f,\"second_keeps\":%.3f,\"trainer_p50_us\":%.0f,"
		"\"trainer_p99_us\":%.0f,\"alone_p50_us\":%.1f,\"alone_p99_us\":%.1f,"
		"\"alone_gbytes_s\":%.1f,\"beside_gbytes_s\":%.1f,\"wait_p50_us\":%.1f,"
		"\"wait_p99_us\":%.1f,\"wait_max_us\":%.1f%s",
		slowdown, kept, trainer->p50, trainer->p99, alone->p50, alone->p99,
		gbytes_s(k, alone), gbytes_s(k, beside), beside->p50, beside->p99, beside->max,
		k->has_bars ? ",\"bar_slowdown\":0.05,\"bar_keeps\":0.90" : "");
}

static double seconds_of_stretch(void)
{
	const char *s = getenv("BPS_GPU_SECONDS");
	double v = s ? strtod(s, NULL) : 0;

	return v > 0 && v <= SECONDS_MAX ? v : SECONDS;
}

/* Return whether the program's argument selects this kind of work. The argument is the kind's name,
 * a prefix of the name, or ALL_KINDS. */
static bool is_wanted(const struct gpu_side *s, const struct kind *k)
{
	return strcmp(s->item, ALL_KINDS) == 0 || strncmp(k->name, s->item, strlen(s->item)) == 0;
}

/* Measure one kind of work. ret_idle: the trainer's figures without other work. They are measured
 * again before each kind, because the GPU's clock rate changes. */
static bool measure(struct gpu_side *s, struct b_trainer *t, const struct kind *k, double seconds,
	struct report *ret_idle)
{
	struct report trainer, alone, beside;

	if (!trainer_work(t, seconds / 2))
		return false;
	*ret_idle = report_of(&t->times);
	if (!second_alone(s, k, seconds / 2, &alone) || !both(s, t, k, seconds, &trainer, &beside))
		return false;
	tell(k, ret_idle, &trainer, &alone, &beside);
	return true;
}

static bool trainer_side(struct gpu_side *s)
{
	double seconds = seconds_of_stretch(), flops;
	static struct b_trainer t; /* static, because the stream uses it until the process ends */
	struct report idle;

	/* warm up */
	if (!trainer_open(&t) || !side_await(s, READY) || !trainer_work(&t, seconds / 2))
		return false;
	idle = report_of(&t.times);
	for (size_t i = 0; i < N_KINDS; i++)
		if (is_wanted(s, &kinds[i]) &&
			!measure(s, &t, &kinds[i], kinds[i].share * seconds, &idle))
			return false;
	flops = 2.0 * MATRIX * MATRIX * MATRIX * idle.per_s / 1e12;
	gpu_answer("trainer_alone", true,
		"\"product_us\":%.0f,\"tflop_s\":%.1f,\"stretch_s\":%.1f,\"mps\":%s", idle.p50,
		flops, seconds,
		access("/tmp/nvidia-mps/control", F_OK) == 0 || getenv("CUDA_MPS_PIPE_DIRECTORY")
			? "true"
			: "false");
	return side_tell(s, OVER);
}

/* Return the time limit: the measurements of each kind of work (alone half a stretch on each side,
 * and a stretch and a half beside each other), and a minute to start. Even with SECONDS_MAX this
 * limit is below the limit of tests/gpu/run. */
static unsigned limit_s(void)
{
	double stretches = 0.5;

	for (size_t i = 0; i < N_KINDS; i++)
		stretches += 2.5 * kinds[i].share;
	return 60 + (unsigned)(stretches * seconds_of_stretch());
}

/* Run all kinds of work, or only those whose name starts with the argument. */
int main(int argc, char **argv)
{
	const struct gpu_pair pair = {argc > 1 ? argv[1] : ALL_KINDS, trainer_side, second_side,
		limit_s(), SIDE_NONE, false};

	return pair_run(&pair) ? 0 : 1;
}
