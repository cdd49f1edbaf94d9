/* Sweep over sizes. For each size, the program submits `tensors` tensors in turn, with at most
 * `depth` tensors in flight. The program waits for the tensors in the same order. The time of a
 * push_pull begins when the program submits it and ends when the program has the result. With
 * --copies, the time includes the copies from and to an f32 array of the program. */
#include "tests/bench/bench.h"

#include <stdlib.h>

/* A measurement must last at least this share of --seconds to determine the speed. */
#define CALIBRATE_SHARE 0.1

struct sweep {
	struct bench *bench;
	uint64_t bytes, round; /* round: number of submissions of each tensor so far */
	struct bps_tensor **tensors;
	double *submitted_s;
	float *from, *to; /* arrays of the size `bytes`; NULL without --copies */
	char title[32];
};

struct sweep_result {
	uint64_t rounds;
	double elapsed_s; /* duration at the slowest rank, in seconds */
	double median_s, p99_s, min_s, max_s;
};

static int declare(struct sweep *s)
{
	const struct bench_options *o = &s->bench->o;
	char name[64];
	int rc = 0;

	for (unsigned i = 0; i < o->tensors && rc == 0; i++) {
		snprintf(name, sizeof(name), "bench.%llu.%u", (unsigned long long)s->bytes, i);
		rc = bps_declare(s->bench->b, name, o->dtype,
			o->has_copies ? s->bytes / sizeof(float)
				      : pattern_value_count(o->dtype, s->bytes),
			&s->tensors[i]);
		if (rc == 0)
			pattern_fill(s->tensors[i], o->op, 0, s->bench->rank);
	}
	return rc < 0 ? bench_fail(rc, "cannot declare a tensor") : 0;
}

static int submit(struct sweep *s, unsigned i, uint64_t round)
{
	const struct bench_options *o = &s->bench->o;
	int rc = 0;

	if (o->is_checking)
		pattern_fill(s->tensors[i], o->op, round, s->bench->rank);
	s->submitted_s[i] = bench_now_s();
	if (o->has_copies && !o->is_checking)
		rc = bps_fill_f32(s->tensors[i], s->from, 1);
	if (rc == 0)
		rc = bps_push_pull(s->tensors[i], o->op, 0);
	s->bench->bytes_moved += s->bytes;
	return rc < 0 ? bench_fail(rc, "cannot submit") : 0;
}

static int finish(struct sweep *s, unsigned i, uint64_t round, double *ret_s)
{
	const struct bench *bench = s->bench;
	int64_t wrong;
	int rc = bps_wait(s->tensors[i], 0);

	if (rc == 0 && bench->o.has_copies)
		rc = bps_read_f32(s->tensors[i], s->to, 1);
	*ret_s = bench_now_s() - s->submitted_s[i];
	if (rc < 0)
		return bench_fail(rc, "push_pull failed");
	if (!bench->o.is_checking)
		return 0;
	wrong = pattern_check(s->tensors[i], bench->o.op, round, bench->size);
	if (wrong < 0)
		return 0;
	fprintf(stderr, "bps-bench: rank %d: wrong result: %s round %llu element %lld\n",
		bench->rank, bps_name(s->tensors[i]), (unsigned long long)round, (long long)wrong);
	return -1;
}

/* Run rounds of all tensors, with at most `depth` tensors in flight. times_s has room for
 * rounds * tensors values. */
static int run_rounds(struct sweep *s, uint64_t rounds, double *times_s)
{
	const struct bench_options *o = &s->bench->o;
	uint64_t n = rounds * o->tensors, done = 0, sent = 0;
	int rc = 0;

	while (rc == 0 && done < n) {
		if (sent < n && sent - done < o->depth) {
			rc = submit(s, (unsigned)(sent % o->tensors), s->round + sent / o->tensors);
			sent++;
			continue;
		}
		rc = finish(s, (unsigned)(done % o->tensors), s->round + done / o->tensors,
			&times_s[done]);
		done++;
		bench_progress(s->bench, s->title, (double)done, (double)n);
	}
	s->round += rounds;
	return rc;
}

/* Run one round first, because the first round takes longer. Then double the number of rounds until
 * the rounds take long enough to determine the speed. */
static int calibrate(struct sweep *s, uint64_t *ret_rounds)
{
	const struct bench_options *o = &s->bench->o;
	uint64_t rounds = 1, is_known = 0;
	double start, elapsed;
	double *times;
	int rc = 0;

	for (unsigned turn = 0; rc == 0 && !is_known; turn++) {
		times = malloc(rounds * o->tensors * sizeof(*times));
		if (!times)
			return -1;
		start = bench_now_s();
		rc = run_rounds(s, rounds, times);
		elapsed = bench_now_s() - start;
		free(times);
		is_known = turn > 0 && (o->rounds || elapsed > o->seconds * CALIBRATE_SHARE);
		if (rc == 0)
			rc = bench_agree(s->bench, &is_known);
		if (is_known)
			*ret_rounds =
				o->rounds ? o->rounds
					  : 1 + (uint64_t)(o->seconds / elapsed * (double)rounds);
		else if (turn > 0)
			rounds *= 2;
	}
	return rc ? rc : bench_agree(s->bench, ret_rounds);
}

/* Make the arrays of --copies. The values differ, as gradients do. */
static int make_arrays(struct sweep *s)
{
	uint32_t x = 1;

	free(s->from);
	free(s->to);
	s->from = malloc(s->bytes);
	s->to = malloc(s->bytes);
	if (!s->from || !s->to) {
		fprintf(stderr, "bps-bench: out of memory\n");
		return -1;
	}
	for (uint64_t i = 0; i < s->bytes / sizeof(float); i++) {
		x = x * 1664525 + 1013904223;
		s->from[i] = (float)(int32_t)x * 0x1p-31f;
		s->to[i] = 0;
	}
	return 0;
}

static int measure(struct sweep *s, struct sweep_result *ret)
{
	const struct bench_options *o = &s->bench->o;
	double *times = NULL, start;
	size_t n;
	int rc = calibrate(s, &ret->rounds);

	if (rc < 0)
		return rc;
	n = (size_t)ret->rounds * o->tensors;
	times = calloc(n ? n : 1, sizeof(*times));
	if (!times)
		return -1;
	rc = bps_barrier(s->bench->b, 0);
	if (rc < 0)
		bench_fail(rc, "barrier");
	start = bench_now_s();
	if (rc == 0)
		rc = run_rounds(s, ret->rounds, times);
	if (rc == 0)
		rc = bench_max(s->bench, bench_now_s() - start, &ret->elapsed_s);
	ret->median_s = bench_quantile(times, n, 0.5);
	ret->p99_s = bench_quantile(times, n, 0.99);
	ret->min_s = times[0]; /* bench_quantile has sorted the times */
	ret->max_s = times[n ? n - 1 : 0];
	free(times);
	return rc;
}

static void report(struct sweep *s, const struct sweep_result *r)
{
	const struct bench_options *o = &s->bench->o;
	double goodput = (double)s->bytes * o->tensors * (double)r->rounds / r->elapsed_s / 1e6;

	bench_progress(s->bench, NULL, 0, 0);
	if (s->bench->rank != 0)
		return;
	if (!o->is_json) {
		if (s->bench->n_results++ == 0)
			printf("%12s %6s %8s %12s %12s %14s\n", "size", "depth", "rounds",
				"median us", "p99 us", "MB/s a worker");
		printf("%12s %6u %8llu %12.1f %12.1f %14.1f\n", s->title, o->depth,
			(unsigned long long)r->rounds, r->median_s * 1e6, r->p99_s * 1e6, goodput);
		fflush(stdout);
		return;
	}
	bench_json_result(s->bench);
	printf("{\"bytes\": %llu, \"tensors\": %u, \"depth\": %u, \"rounds\": %llu, \"median_us\": "
	       "%.2f, "
	       "\"p99_us\": %.2f, \"min_us\": %.2f, \"max_us\": %.2f, \"elapsed_s\": %.6f, "
	       "\"goodput_mbps\": %.3f}",
		(unsigned long long)s->bytes, o->tensors, o->depth, (unsigned long long)r->rounds,
		r->median_s * 1e6, r->p99_s * 1e6, r->min_s * 1e6, r->max_s * 1e6, r->elapsed_s,
		goodput);
}

int sweep_run(struct bench *bench)
{
	const struct bench_options *o = &bench->o;
	struct sweep s = {.bench = bench};
	struct sweep_result result = {0};
	int rc = -1;

	s.tensors = calloc(o->tensors, sizeof(struct bps_tensor *));
	s.submitted_s = calloc(o->tensors, sizeof(*s.submitted_s));
	if (!s.tensors || !s.submitted_s) {
		fprintf(stderr, "bps-bench: out of memory\n");
		goto out;
	}
	for (unsigned i = 0; i < o->n_bytes; i++) {
		s.bytes = o->bytes[i];
		s.round = 0;
		bench_size(s.bytes, s.title);
		rc = o->has_copies ? make_arrays(&s) : 0;
		if (rc == 0)
			rc = declare(&s);
		if (rc == 0)
			rc = measure(&s, &result);
		if (rc < 0)
			break;
		report(&s, &result);
	}
out:
	free(s.tensors);
	free(s.submitted_s);
	free(s.from);
	free(s.to);
	return rc;
}
