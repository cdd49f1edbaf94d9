/* The speed of the sums of a server's core. All members are on the server's host, so that
 * contributions are summed in place. Nothing is read from sockets, no CRC is computed, and all
 * contributions are present before the sums start. The measured time is that of srv_core_sum_slice,
 * which also sends the results. The program runs the core and plain loops in turn. The core and the
 * loops add operands with the same layout. The results of the core and of the loops must be
 * equal. */
#include "tests/bench/probe/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bps-server/core/core.h"
#include "tests/unit/fake_xport.h"

#define JOB          1
#define SERVER       1
#define INSTANCE     1
#define PGEN         1
#define TURNS        5
#define WARMUP       2
#define TIMES_MAX    (1u << 16)
#define SEGMENT_MIN  (4u << 20)
#define SEGMENTS_MAX 8192

struct probe_sums {
	struct srv_core *core;
	struct fake_xport x;
	struct fake_conn *conns[PROBE_MEMBERS_MAX];
	void *src[PROBE_MEMBERS_MAX];
	void *segments[SEGMENTS_MAX];
	unsigned n_segments, members;
	size_t bytes, part;
	enum dtype dtype;
	uint64_t round;
	/* Results and accumulator of the plain loops. dst[0] has the expected result of the first
	 * round. */
	void *dst[2], *acc;
};

static int make_segment(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct probe_sums *s = ctx;

	if (s->n_segments == SEGMENTS_MAX)
		probe_fail("too many segments");
	*ret_mem = s->segments[s->n_segments++] = probe_alloc(bytes);
	return s->x.base.ops->seg_add(&s->x.base, *ret_mem, bytes, ret_segment);
}

static void job_failed(void *ctx, uint32_t job, int code, const char *text)
{
	(void)ctx, (void)job;
	probe_fail("the server core gave up (%d): %s", code, text);
}

static size_t power_of_two(size_t n)
{
	size_t p = 4096;

	while (p < n)
		p *= 2;
	return p;
}

static void begin(struct probe_sums *s)
{
	struct ctl_job_member members[PROBE_MEMBERS_MAX];
	struct ctl_rank rank = {0};
	struct ctl_job job = {
		.view = 1, .job = JOB, .name = "sum", .members = members, .n_members = s->members};
	uint32_t elem = (uint32_t)dtype_bytes(s->dtype);
	struct ctl_tensor tensor = {.name = "t",
		.shape = shape_from_dtype_and_count(s->dtype, s->bytes / elem),
		.part_elems = (uint32_t)(s->part / elem)};
	struct ctl_run run = {.n = (uint32_t)((s->bytes + s->part - 1) / s->part),
		.server = SERVER,
		.instance = INSTANCE,
		.pgen = PGEN};
	struct ctl_plan plan = {.view = PGEN,
		.job = JOB,
		.tensors = &tensor,
		.n_tensors = 1,
		.runs = &run,
		.n_runs = 1};
	size_t segment = power_of_two(s->part * 2 > SEGMENT_MIN ? s->part * 2 : SEGMENT_MIN);
	struct srv_config cfg = {.server_id = SERVER,
		.instance = INSTANCE,
		.sums_bytes = 8 * (s->bytes + SEGMENT_MIN),
		.staging_bytes = 4 * segment,
		.segment_bytes = segment,
		.peer_window_bytes = 8u << 20,
		.retry_ns = UINT64_C(1000000000)};
	struct srv_env env = {.ctx = s, .segment = make_segment, .fail = job_failed};

	if (srv_core_new(&cfg, &env, &s->core) < 0)
		probe_fail("cannot make a server core");
	fake_init(&s->x, &srv_core_events, s->core);
	for (unsigned i = 0; i < s->members; i++)
		members[i] = (struct ctl_job_member){
			.agent = 100 + i, .host = "h", .ranks = &rank, .n_ranks = 1};
	if (srv_core_apply_job(s->core, &job) < 0)
		probe_fail("no job");
	for (unsigned i = 0; i < s->members; i++) {
		s->conns[i] = fake_accept(&s->x, 100 + i, 1000 + i);
		s->conns[i]->base.is_same_host = true;
		s->conns[i]->peer[1] = (struct fake_segment){s->src[i], s->bytes};
	}
	srv_core_apply_plan(s->core, &plan);
}

static void end(struct probe_sums *s)
{
	for (unsigned i = 0; i < s->members; i++)
		fake_down(s->conns[i], "end");
	srv_core_job_end(s->core, JOB);
	fake_fini(&s->x);
	srv_core_free(s->core);
	while (s->n_segments > 0)
		free(s->segments[--s->n_segments]);
	s->round = 0;
}

static void contribute(struct probe_sums *s, unsigned member, uint32_t part)
{
	size_t at = part * s->part;
	struct wire_msg m = {.type = WIRE_CONTRIB,
		.pgen = PGEN,
		.round = s->round,
		.job = JOB,
		.part = part,
		.member = (uint16_t)member,
		.len = (uint32_t)(s->bytes - at < s->part ? s->bytes - at : s->part),
		.segment = 1,
		.offset = at,
		.contrib = {.op = OP_SUM, .workers = 1}};

	fake_deliver(s->conns[member], &m);
}

/* Fill the inputs with small whole numbers, which are exact in all types. */
static void fill(struct probe_sums *s)
{
	for (unsigned k = 0; k < s->members; k++)
		for (size_t i = 0; i < s->bytes / dtype_bytes(s->dtype); i++) {
			float v = (float)(i % 7 + k % 4);
			uint32_t bits;

			memcpy(&bits, &v, sizeof(bits));
			if (s->dtype == DTYPE_F32)
				((float *)s->src[k])[i] = v;
			else if (s->dtype == DTYPE_F64)
				((double *)s->src[k])[i] = (double)v;
			else if (s->dtype == DTYPE_BF16)
				((uint16_t *)s->src[k])[i] = (uint16_t)(bits >> 16);
			/* f16. No input is subnormal. So after the shift, only the bias of the
			 * exponent differs between f32 and f16. */
			else
				((uint16_t *)s->src[k])[i] =
					(uint16_t)(bits ? (bits >> 13) - (112u << 10) : 0);
		}
}

/* Compare the result of the first round with the result of the plain loop. */
static void compare(struct probe_sums *s, const struct wire_msg *m, const void *want)
{
	const void *got = fake_own(&s->x, m->segment, m->offset, m->len);

	if (m->flags & WIRE_INLINE)
		got = m->payload;
	if (!got || memcmp(got, (const char *)want + m->part * s->part, m->len) != 0)
		probe_fail("partition %u of %s: the sum differs from that of the plain loop",
			m->part, dtype_name(s->dtype));
}

/* Let every member acknowledge every result. */
static void take_results(struct probe_sums *s, uint32_t n_parts)
{
	const struct wire_msg *m;

	for (unsigned i = 0; i < s->members; i++) {
		uint32_t n = 0;

		while ((m = fake_take(s->conns[i]))) {
			if (m->type == WIRE_RESULT && m->round == s->round) {
				n++;
				if (s->round == 1)
					compare(s, m, s->dst[0]);
			}
		}
		if (n != n_parts)
			probe_fail("member %u got %u results of %u", i, n, n_parts);
	}
}

/* Run one round of the server's core. Returns the time of the sums in seconds. */
static double round_ours(struct probe_sums *s)
{
	uint32_t n_parts = (uint32_t)((s->bytes + s->part - 1) / s->part);
	double start, took;

	s->round++;
	for (uint32_t p = 0; p < n_parts; p++)
		for (unsigned i = 0; i < s->members; i++)
			contribute(s, i, p);
	start = probe_now_s();
	while (srv_core_sum_slice(s->core))
		continue;
	took = probe_now_s() - start;
	take_results(s, n_parts);
	return took;
}

enum how { OURS, PLAIN_ADD, PLAIN_SUM, HOWS };

static double round_plain(struct probe_sums *s, enum how how, uint64_t round)
{
	const void *const *src = (const void *const *)s->src;
	size_t n_elems = s->bytes / dtype_bytes(s->dtype);
	double start = probe_now_s();

	if (how == PLAIN_ADD)
		plain_add(s->dst[round & 1], s->acc, src, s->members, n_elems, s->dtype);
	else
		plain_sum(s->dst[round & 1], src, s->members, n_elems, s->dtype);
	return probe_now_s() - start;
}

/* Measure sums for a while. Returns GB/s, from the median of the rounds' times. */
static double turn(struct probe_sums *s, enum how how, double seconds)
{
	static double times[TIMES_MAX];
	double start = probe_now_s();
	unsigned n = 0;

	for (uint64_t r = 0; n < 3 || (n < TIMES_MAX && probe_now_s() - start < seconds); r++) {
		double took = how == OURS ? round_ours(s) : round_plain(s, how, r);

		if (r >= WARMUP)
			times[n++] = took;
	}
	return (double)s->bytes / probe_median(times, n) / 1e9;
}

static void measure(struct probe_sums *s, double seconds, const char *before)
{
	double gbs[HOWS][TURNS], of_add[TURNS], of_sum[TURNS];

	fill(s);
	round_plain(s, PLAIN_SUM, 0);
	begin(s);
	for (unsigned i = 0; i < TURNS; i++) {
		for (enum how how = OURS; how < HOWS; how++)
			gbs[how][i] = turn(s, how, seconds / TURNS / HOWS);
		of_add[i] = gbs[OURS][i] / gbs[PLAIN_ADD][i];
		of_sum[i] = gbs[OURS][i] / gbs[PLAIN_SUM][i];
	}
	end(s);
	printf("%s{\"dtype\": \"%s\", \"bytes\": %zu, \"members\": %u, \"ours_gbs\": %.3f, "
	       "\"plain_add_gbs\": %.3f, \"plain_sum_gbs\": %.3f, \"of_add\": %.4f, "
	       "\"of_sum\": %.4f}",
		before, dtype_name(s->dtype), s->bytes, s->members, probe_median(gbs[OURS], TURNS),
		probe_median(gbs[PLAIN_ADD], TURNS), probe_median(gbs[PLAIN_SUM], TURNS),
		probe_median(of_add, TURNS), probe_median(of_sum, TURNS));
}

void probe_sum(size_t bytes, size_t part, unsigned members, double seconds)
{
	static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64};
	struct probe_sums s = {.members = members, .bytes = bytes, .part = part};

	if (members < 2 || bytes % part || part % 64)
		probe_fail(
			"use 2 or more MEMBERS, BYTES in whole PARTs, and PART in multiples of 64");
	for (unsigned i = 0; i < members; i++)
		s.src[i] = probe_alloc(bytes);
	s.dst[0] = probe_alloc(bytes);
	s.dst[1] = probe_alloc(bytes);
	s.acc = probe_alloc(2 * bytes);
	printf("{\"what\": \"sum\", \"results\": [");
	for (unsigned i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		s.dtype = dtypes[i];
		measure(&s, seconds, i ? ", " : "");
	}
	puts("]}");
	for (unsigned i = 0; i < members; i++)
		free(s.src[i]);
	free(s.dst[0]);
	free(s.dst[1]);
	free(s.acc);
}
