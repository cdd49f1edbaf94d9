/* Run B, the decisive one: a trainer's process keeps the GPU busy with matrix products; what does
 * it lose when a second process copies, launches small kernels, or a large one; and how long does
 * the second wait for each? Each kind is first measured with the trainer idle. See docs/gpu.md. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/gpu.h"
#include "tests/gpu/sides.h"

#define MIB          ((size_t)1 << 20)
#define MATRIX       2048 /* a product takes about a millisecond, as kernels of a step do */
#define DEPTH        8    /* products queued ahead */
#define COPY_BYTES   (64 * MIB)
#define BIG_BYTES    (1024 * MIB)
#define SMALL_BYTES  4096
#define SAMPLES_MAX  (1 << 20)
#define BAR_SLOWDOWN 0.05
#define BAR_COPY     0.9

enum kind { COPY_OUT, COPY_IN, COPY_BOTH, KERNEL_SMALL, KERNEL_BIG, N_KINDS };
static const char *const kind_names[] = {
	"copy_out", "copy_in", "copy_both", "small_kernels", "1GiB_kernels"};

enum word { BEGIN = 100 /* + kind */, STOP = 1, FIGURES = 2, READY = 3, OVER = 4 };

/* Times of one stretch, in microseconds. */
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

struct trainer {
	CUdevice dev;
	CUstream stream;
	CUfunction matmul;
	CUdeviceptr a, b, c;
	CUevent events[DEPTH];
	struct times times;
};

static bool trainer_open(struct trainer *t)
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

static bool trainer_launch(struct trainer *t, unsigned slot)
{
	int n = MATRIX;
	void *args[] = {&t->a, &t->b, &t->c, &n};

	return CU(cuLaunchKernel, t->matmul, MATRIX / 64, MATRIX / 64, 1, 16, 16, 1, 0, t->stream,
		       args, NULL) &&
	       CU(cuEventRecord, t->events[slot], t->stream);
}

/* Products for so long; the times between their ends. */
static bool trainer_work(struct trainer *t, double seconds)
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

struct second {
	CUdevice dev;
	CUstream out, in;
	CUfunction increment;
	CUdeviceptr from, to, big;
	void *host_from, *host_to;
	struct times times;
};

static bool second_open(struct second *w)
{
	return gpu_context(&w->dev) && gpu_stream(&w->out) && gpu_stream(&w->in) &&
	       gpu_kernel("increment", &w->increment) && CU(cuMemAlloc, &w->from, COPY_BYTES) &&
	       CU(cuMemAlloc, &w->to, COPY_BYTES) && CU(cuMemAlloc, &w->big, BIG_BYTES) &&
	       CU(cuMemHostAlloc, &w->host_from, COPY_BYTES, 0) &&
	       CU(cuMemHostAlloc, &w->host_to, COPY_BYTES, 0) && times_new(&w->times);
}

static bool increment(struct second *w, size_t bytes)
{
	size_t n = bytes / sizeof(float);
	unsigned blocks = bytes > MIB ? 4096 : 4;
	void *args[] = {&w->big, &n};

	return CU(cuLaunchKernel, w->increment, blocks, 1, 1, 256, 1, 1, 0, w->out, args, NULL) &&
	       CU(cuStreamSynchronize, w->out);
}

static bool copy(struct second *w, bool is_out, bool is_in)
{
	return (!is_out || CU(cuMemcpyDtoHAsync, w->host_to, w->from, COPY_BYTES, w->out)) &&
	       (!is_in || CU(cuMemcpyHtoDAsync, w->to, w->host_from, COPY_BYTES, w->in)) &&
	       (!is_out || CU(cuStreamSynchronize, w->out)) &&
	       (!is_in || CU(cuStreamSynchronize, w->in));
}

static bool second_once(struct second *w, enum kind kind)
{
	switch (kind) {
	case COPY_OUT:
		return copy(w, true, false);
	case COPY_IN:
		return copy(w, false, true);
	case COPY_BOTH:
		return copy(w, true, true);
	case KERNEL_SMALL:
		return increment(w, SMALL_BYTES);
	case KERNEL_BIG:
		return increment(w, BIG_BYTES);
	case N_KINDS:
		break;
	}
	return gpu_fail("no such kind");
}

/* Until the trainer says something; then the figures. */
static bool second_work(struct side *s, struct second *w, enum kind kind)
{
	struct pollfd p = {.fd = s->sock, .events = POLLIN};
	uint64_t begin_ns, before, now;
	struct report r;

	w->times.n = 0;
	if (!second_once(w, kind)) /* the first one has something to load */
		return false;
	begin_ns = now_ns();
	do {
		before = now_ns();
		if (!second_once(w, kind))
			return false;
		now = now_ns();
		times_add(&w->times, (double)(now - before) / 1e3);
	} while (poll(&p, 1, 0) == 0 && now < s->deadline_ns);
	w->times.seconds = (double)(now - begin_ns) / 1e9;
	r = report_of(&w->times);
	return side_await(s, STOP) && side_send(s, FIGURES, &r, sizeof(r), -1);
}

static bool second_side(struct side *s)
{
	static struct second w; /* as long as the process */
	uint64_t word;

	if (!second_open(&w) || !side_tell(s, READY))
		return false;
	while (side_recv(s, &word, NULL, 0, NULL)) {
		if (word == OVER)
			return true;
		if (word < BEGIN || word >= BEGIN + N_KINDS)
			return gpu_fail("the trainer says %llu", (unsigned long long)word);
		if (!second_work(s, &w, (enum kind)(word - BEGIN)))
			return false;
	}
	return false;
}

/* ---- together; the trainer leads ---- */

static bool ask_figures(struct side *s, struct report *ret)
{
	uint64_t word;

	return side_tell(s, STOP) && side_recv(s, &word, ret, sizeof(*ret), NULL) &&
	       (word == FIGURES || gpu_fail("no figures"));
}

static bool second_alone(struct side *s, enum kind kind, double seconds, struct report *ret)
{
	if (!side_tell(s, BEGIN + (uint64_t)kind))
		return false;
	usleep((useconds_t)(seconds * 1e6));
	return ask_figures(s, ret);
}

static bool both(struct side *s, struct trainer *t, enum kind kind, double seconds,
	struct report *ret_trainer, struct report *ret_second)
{
	if (!side_tell(s, BEGIN + (uint64_t)kind) || !trainer_work(t, seconds) ||
		!ask_figures(s, ret_second))
		return false;
	*ret_trainer = report_of(&t->times);
	return true;
}

static double gbytes_s(enum kind kind, const struct report *r)
{
	double bytes = kind == COPY_BOTH      ? 2.0 * (double)COPY_BYTES
		       : kind < KERNEL_SMALL  ? (double)COPY_BYTES
		       : kind == KERNEL_SMALL ? (double)SMALL_BYTES
					      : 2.0 * (double)BIG_BYTES;

	return bytes * r->per_s / 1e9;
}

static void tell(enum kind kind, const struct report *idle, const struct report *trainer,
	const struct report *alone, const struct report *beside)
{
	double slowdown = idle->per_s / trainer->per_s - 1;
	double kept = alone->per_s > 0 ? beside->per_s / alone->per_s : 0;
	bool is_copy = kind < KERNEL_SMALL;

	answer(kind_names[kind], !is_copy || (slowdown < BAR_SLOWDOWN && kept >= BAR_COPY),
		"\"trainer_slowdown\":%.3f,\"second_keeps\":%.3f,\"trainer_p50_us\":%.0f,"
		"\"trainer_p99_us\":%.0f,\"alone_p50_us\":%.0f,\"alone_gbytes_s\":%.1f,"
		"\"beside_gbytes_s\":%.1f,\"wait_p50_us\":%.0f,\"wait_p99_us\":%.0f,"
		"\"wait_max_us\":%.0f%s",
		slowdown, kept, trainer->p50, trainer->p99, alone->p50, gbytes_s(kind, alone),
		gbytes_s(kind, beside), beside->p50, beside->p99, beside->max,
		is_copy ? ",\"bar_slowdown\":0.05,\"bar_keeps\":0.90" : "");
}

static double seconds_of_stretch(void)
{
	const char *s = getenv("BPS_GPU_SECONDS");
	double v = s ? strtod(s, NULL) : 0;

	return v > 0 && v <= 60 ? v : 8;
}

static bool trainer_side(struct side *s)
{
	double seconds = seconds_of_stretch(), flops;
	struct report idle, trainer, alone, beside;
	static struct trainer t; /* the same */

	if (!trainer_open(&t) || !side_await(s, READY) || !trainer_work(&t, seconds / 2)) /* warm */
		return false;
	for (int k = 0; k < N_KINDS; k++) {
		enum kind kind = (enum kind)k;

		/* Anew for each kind: clocks drift. */
		if (!trainer_work(&t, seconds / 2))
			return false;
		idle = report_of(&t.times);
		if (!second_alone(s, kind, seconds / 2, &alone) ||
			!both(s, &t, kind, seconds, &trainer, &beside))
			return false;
		tell(kind, &idle, &trainer, &alone, &beside);
	}
	flops = 2.0 * MATRIX * MATRIX * MATRIX * idle.per_s / 1e12;
	answer("trainer_alone", true,
		"\"product_us\":%.0f,\"tflop_s\":%.1f,\"stretch_s\":%.1f,\"mps\":%s", idle.p50,
		flops, seconds,
		access("/tmp/nvidia-mps/control", F_OK) == 0 || getenv("CUDA_MPS_PIPE_DIRECTORY")
			? "true"
			: "false");
	return side_tell(s, OVER);
}

int main(void)
{
	static const struct pair pair = {
		"beside", trainer_side, second_side, 480, SIDE_NONE, false};

	return pair_run(&pair) ? 0 : 1;
}
