/* Last part of run A: two groups of measurements. The first group measures how fast counters notify
 * a process. In the second group, one process imports device memory, and measures how fast copies
 * between this memory and host memory are. Plain pinned copies in the same run are the
 * comparison. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/a.h"

#define MIB          ((size_t)1 << 20)
#define PAGE_BYTES   4096
#define BAR_OF_PLAIN 0.9

/* ---- counters ---- */

#define ROUNDS 2000
#define WARM   50

/* Ways in which the side `left` writes a word. The host or a stream writes the word, to host memory
 * or to device memory. A stream of the side `right` waits for the word. */
enum way { HOST_STORE, STREAM_TO_HOST, STREAM_TO_DEVICE };

/* The page that both sides map. The side `left` writes `ask`, and the side `right` answers in
 * `done`. The two counters are on separate cache lines. */
struct speed_page {
	_Alignas(64) _Atomic uint64_t ask;
	_Alignas(64) _Atomic uint64_t done;
};

struct counters {
	CUdevice dev;
	CUstream stream;
	struct speed_page *page;
	CUdeviceptr page_at, device_at;
	struct gpu_vmm device;
};

static bool counters_make(struct gpu_side *s, struct counters *c)
{
	uint64_t bytes;
	int page_fd, fd;

	c->page = gpu_memfd(PAGE_BYTES, &page_fd);
	if (!c->page || !gpu_context(&c->dev) || !gpu_stream(&c->stream) ||
		!gpu_pin(c->page, PAGE_BYTES, &c->page_at) ||
		!gpu_vmm_new(c->dev, PAGE_BYTES, &c->device) || !gpu_vmm_export(&c->device, &fd))
		return false;
	c->device_at = c->device.at;
	bytes = c->device.bytes;
	return CU(cuStreamWriteValue64, c->stream, c->device_at, 0, 0) &&
	       CU(cuStreamSynchronize, c->stream) && side_send(s, 1, NULL, 0, page_fd) &&
	       side_send(s, 2, &bytes, sizeof(bytes), fd);
}

static bool counters_take(struct gpu_side *s, struct counters *c)
{
	uint64_t word, bytes;
	int page_fd, fd;

	if (!gpu_context(&c->dev) || !gpu_stream(&c->stream) ||
		!side_recv(s, &word, NULL, 0, &page_fd) ||
		!side_recv(s, &word, &bytes, sizeof(bytes), &fd))
		return false;
	c->page = gpu_map(page_fd, PAGE_BYTES);
	if (!c->page || !gpu_pin(c->page, PAGE_BYTES, &c->page_at) ||
		!gpu_vmm_import(c->dev, fd, bytes, &c->device))
		return false;
	c->device_at = c->device.at;
	return true;
}

static bool say(struct counters *c, enum way way, uint64_t v)
{
	if (way == HOST_STORE) {
		/* The atomic store pairs with the cuStreamWaitValue64 of the side `right`. */
		atomic_store_explicit(&c->page->ask, v, memory_order_release);
		return true;
	}
	return CU(cuStreamWriteValue64, c->stream,
		way == STREAM_TO_DEVICE ? c->device_at
					: c->page_at + offsetof(struct speed_page, ask),
		v, 0);
}

#define LOOK_CLOCK 4096 /* turns of the wait loop between two checks of the clock */
/* turns of the wait loop between two checks of the socket; these turns take about a millisecond, so
 * the checks are too rare to affect the measurement */
#define LOOK_SOCKET (1 << 20)

static bool has_answered(struct counters *c, uint64_t v)
{
	/* The atomic load pairs with the cuStreamWriteValue64 of the side `right`. */
	return atomic_load_explicit(&c->page->done, memory_order_acquire) >= v;
}

/* Wait until the stream of the side `right` has written the value v. Fail at the deadline. If
 * `must_live` is true, also fail when the other process has ended. */
static bool hear(struct gpu_side *s, struct counters *c, uint64_t v, bool must_live)
{
	uint64_t n = 0;

	while (!has_answered(c, v)) {
		if (++n % LOOK_CLOCK == 0 && now_ns() > s->deadline_ns)
			return gpu_fail("a counter stays at %llu", (unsigned long long)(v - 1));
		if (must_live && n % LOOK_SOCKET == 0 && !side_is_there(s))
			/* the answer may have arrived just before the process ended */
			return has_answered(c, v);
	}
	return true;
}

static bool latency_left(struct gpu_side *s, enum way way)
{
	static double round_us[ROUNDS], call_us[ROUNDS];
	struct gpu_figures round, call;
	struct counters c;

	if (!counters_make(s, &c) || !side_await(s, 3))
		return false;
	for (uint64_t i = 0; i < ROUNDS + WARM; i++) {
		uint64_t begin_ns = now_ns(), said_ns;

		if (!say(&c, way, i + 1))
			return false;
		said_ns = now_ns();
		if (!hear(s, &c, i + 1, true))
			return false;
		if (i >= WARM) {
			round_us[i - WARM] = (double)(now_ns() - begin_ns) / 1e3;
			call_us[i - WARM] = (double)(said_ns - begin_ns) / 1e3;
		}
	}
	round = gpu_figures(round_us, ROUNDS);
	call = gpu_figures(call_us, ROUNDS);
	gpu_answer(s->item, true,
		"\"round_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"call_us\":%.2f", round.p50,
		round.p99, round.max, call.p50);
	return side_await(s, 4);
}

/* In each round, queue a wait for the word of the side `left`, and then the write of the answer. A
 * few rounds are queued ahead. */
static bool latency_right(struct gpu_side *s, enum way way)
{
	struct counters c;
	CUdeviceptr ask;

	if (!counters_take(s, &c))
		return false;
	ask = way == STREAM_TO_DEVICE ? c.device_at : c.page_at + offsetof(struct speed_page, ask);
	for (uint64_t i = 0; i < ROUNDS + WARM; i++) {
		if (!CU(cuStreamWaitValue64, c.stream, ask, i + 1, CU_STREAM_WAIT_VALUE_GEQ) ||
			!CU(cuStreamWriteValue64, c.stream,
				c.page_at + offsetof(struct speed_page, done), i + 1, 0))
			return false;
		if (i == 16 && !side_tell(s, 3))
			return false;
		if (i >= 16 && !hear(s, &c, i - 15, true))
			return false;
	}
	return CU(cuStreamSynchronize, c.stream) && side_tell(s, 4);
}

static bool host_store_left(struct gpu_side *s)
{
	return latency_left(s, HOST_STORE);
}

static bool host_store_right(struct gpu_side *s)
{
	return latency_right(s, HOST_STORE);
}

static bool to_host_left(struct gpu_side *s)
{
	return latency_left(s, STREAM_TO_HOST);
}

static bool to_host_right(struct gpu_side *s)
{
	return latency_right(s, STREAM_TO_HOST);
}

static bool to_device_left(struct gpu_side *s)
{
	return latency_left(s, STREAM_TO_DEVICE);
}

static bool to_device_right(struct gpu_side *s)
{
	return latency_right(s, STREAM_TO_DEVICE);
}

/* The side `left` is killed while the stream of the side `right` waits for the word of `left`. The
 * CPU code of `right` then stores a large value, which must release the stream. */
static bool poison_left(struct gpu_side *s)
{
	struct counters c;

	return counters_make(s, &c) && side_tell(s, (uint64_t)getpid()) && side_await(s, 1) &&
	       side_await(s, 99); /* does not return, because this process is killed */
}

static bool poison_right(struct gpu_side *s)
{
	uint64_t pid, begin_ns;
	struct counters c;

	if (!counters_take(s, &c) || !side_recv(s, &pid, NULL, 0, NULL) ||
		!CU(cuStreamWaitValue64, c.stream, c.page_at + offsetof(struct speed_page, ask), 7,
			CU_STREAM_WAIT_VALUE_GEQ) ||
		!CU(cuStreamWriteValue64, c.stream, c.page_at + offsetof(struct speed_page, done),
			1, 0) ||
		!side_tell(s, 1) || !side_kill(s, (pid_t)pid))
		return false;
	if (c.page->done != 0)
		return gpu_fail("the stream did not wait");
	begin_ns = now_ns();
	atomic_store_explicit(&c.page->ask, 7 + (UINT64_C(1) << 62), memory_order_release);
	if (!hear(s, &c, 1, false) || !CU(cuStreamSynchronize, c.stream))
		return false;
	gpu_answer(s->item, true, "\"freed_us\":%.1f", (double)(now_ns() - begin_ns) / 1e3);
	return true;
}

/* ---- bandwidth ---- */

#define BULK_BYTES  (256 * MIB)
#define BURST_BYTES (32 * MIB) /* small copies are queued until this many bytes are in flight */
#define REPEATS     31

/* A series of copies in one direction between device memory and host memory. */
struct speed_lane {
	CUdeviceptr device;
	char *host;
	CUstream stream;
	bool is_out;
};

/* Variants of a lane. They differ in the owner of the device memory and in the kind of host
 * memory. */
enum mix { SHARED, PLAIN, OWN_MEMFD, IMPORTED_ALLOC, N_MIXES };
struct lanes {
	struct speed_lane mix[N_MIXES][2];
};

static bool lane_queue(const struct speed_lane *l, size_t bytes, size_t at)
{
	return l->is_out ? CU(cuMemcpyDtoHAsync, l->host + at, l->device + at, bytes, l->stream)
			 : CU(cuMemcpyHtoDAsync, l->device + at, l->host + at, bytes, l->stream);
}

/* Measure the total speed of n lanes, in GB/s, with copies of `bytes` bytes. If the copies are
 * small, each lane queues several of them before the function waits. */
static bool lanes_time(const struct speed_lane *lanes, unsigned n, size_t bytes, double *ret)
{
	size_t total = bytes > BURST_BYTES ? bytes : BURST_BYTES;
	uint64_t begin_ns = now_ns();

	for (size_t at = 0; at < total; at += bytes)
		for (unsigned i = 0; i < n; i++)
			if (!lane_queue(&lanes[i], bytes, at))
				return false;
	for (unsigned i = 0; i < n; i++)
		if (!CU(cuStreamSynchronize, lanes[i].stream))
			return false;
	*ret = (double)total * n / (double)(now_ns() - begin_ns);
	return true;
}

/* Measure all variants in turn, repeatedly, and store the median of each in `ret`. The lanes are
 * `first` to `first` + n - 1 of each variant. */
static bool medians(
	const struct lanes *l, unsigned first, unsigned n, size_t bytes, double ret[N_MIXES])
{
	unsigned repeats = getenv("BPS_GPU_FAKE") ? 3 : REPEATS;
	double v[N_MIXES][REPEATS + 1] = {{0}};

	for (unsigned i = 0; i <= repeats; i++) /* repetition 0 is a warm-up */
		for (unsigned k = 0; k < N_MIXES; k++)
			if (!lanes_time(&l->mix[k][first], n, bytes, &v[k][i]))
				return false;
	for (unsigned k = 0; k < N_MIXES; k++)
		ret[k] = gpu_figures(v[k] + 1, repeats).p50;
	return true;
}

/* Compare the bandwidth of shared memory with that of plain memory. Two further variants share only
 * the device memory or only the host memory. They show which kind of shared memory is slow. */
static bool compare(struct gpu_side *s, const char *what, const struct lanes *l, unsigned first,
	unsigned n, size_t bytes)
{
	double v[N_MIXES];
	char item[64];

	if (!medians(l, first, n, bytes, v))
		return false;
	snprintf(item, sizeof(item), "%s_%s_%zuMiB", s->item, what, bytes / MIB);
	gpu_answer(item, v[SHARED] >= BAR_OF_PLAIN * v[PLAIN],
		"\"gbytes_s\":%.1f,\"plain_gbytes_s\":%.1f,\"of_plain\":%.2f,"
		"\"own_memfd_gbytes_s\":%.1f,\"imported_alloc_gbytes_s\":%.1f,\"bar\":%.2f",
		v[SHARED], v[PLAIN], v[SHARED] / v[PLAIN], v[OWN_MEMFD], v[IMPORTED_ALLOC],
		BAR_OF_PLAIN);
	return true;
}

static bool bandwidth_left(struct gpu_side *s)
{
	struct gpu_vmm m;
	uint64_t bytes;
	CUdevice dev;
	int fd, host_fd;

	if (!gpu_context(&dev) || !gpu_vmm_new(dev, BULK_BYTES, &m) || !gpu_vmm_export(&m, &fd) ||
		!gpu_memfd(2 * BULK_BYTES, &host_fd))
		return false;
	bytes = m.bytes;
	return side_send(s, 1, &bytes, sizeof(bytes), fd) && side_send(s, 2, NULL, 0, host_fd) &&
	       side_await(s, 3);
}

/* Import GPU memory and host memory that the other process has made. */
static bool bandwidth_take(struct gpu_side *s, struct gpu_vmm *ret, char **ret_host)
{
	uint64_t word, bytes, begin_ns;
	CUdevice dev;
	int fd, host_fd;

	if (!gpu_context(&dev) || !side_recv(s, &word, &bytes, sizeof(bytes), &fd) ||
		!side_recv(s, &word, NULL, 0, &host_fd) || !gpu_vmm_import(dev, fd, bytes, ret))
		return false;
	*ret_host = gpu_map(host_fd, 2 * BULK_BYTES);
	if (!*ret_host)
		return false;
	begin_ns = now_ns();
	if (!gpu_pin(*ret_host, 2 * BULK_BYTES, NULL))
		return false;
	gpu_answer("pin_memfd", true, "\"ms_per_gib\":%.0f",
		(double)(now_ns() - begin_ns) / 1e6 / (2.0 * (double)BULK_BYTES / (1 << 30)));
	return true;
}

/* Open two lanes of each variant: lane 0 copies from the GPU, and lane 1 copies to the GPU. The two
 * lanes use different halves of the shared memory. */
static bool lanes_open(struct lanes *l, const struct gpu_vmm *m, char *host)
{
	for (unsigned i = 0; i < 2; i++) {
		CUdeviceptr imported = m->at + i * (m->bytes / 2), own;
		char *memfd = host + i * BULK_BYTES;
		CUstream stream;
		void *alloc;

		if (!gpu_stream(&stream) || !CU(cuMemAlloc, &own, BULK_BYTES) ||
			!CU(cuMemHostAlloc, &alloc, BULK_BYTES, 0))
			return false;
		l->mix[SHARED][i] = (struct speed_lane){imported, memfd, stream, i == 0};
		l->mix[PLAIN][i] = (struct speed_lane){own, alloc, stream, i == 0};
		l->mix[OWN_MEMFD][i] = (struct speed_lane){own, memfd, stream, i == 0};
		l->mix[IMPORTED_ALLOC][i] = (struct speed_lane){imported, alloc, stream, i == 0};
	}
	return true;
}

static bool bandwidth_right(struct gpu_side *s)
{
	struct gpu_vmm m;
	struct lanes l;
	char *host;

	if (!bandwidth_take(s, &m, &host) || !lanes_open(&l, &m, host))
		return false;
	for (size_t n = 4 * MIB; n <= BULK_BYTES / 2; n *= 32)
		if (!compare(s, "d2h", &l, 0, 1, n) || !compare(s, "h2d", &l, 1, 1, n) ||
			!compare(s, "both", &l, 0, 2, n))
			return false;
	return side_tell(s, 3);
}

const struct gpu_pair a_speed[] = {
	{"host_store", host_store_left, host_store_right, 60, SIDE_NONE, false},
	{"stream_to_host", to_host_left, to_host_right, 60, SIDE_NONE, false},
	{"stream_to_device", to_device_left, to_device_right, 60, SIDE_NONE, false},
	{"poison", poison_left, poison_right, 60, SIDE_LEFT, false},
	{"importer", bandwidth_left, bandwidth_right, 90, SIDE_NONE, false},
};
const size_t a_speed_count = sizeof(a_speed) / sizeof(a_speed[0]);
