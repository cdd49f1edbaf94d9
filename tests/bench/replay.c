/* Replays training steps of a model, whose tensors a trace lists in forward order (tests/traces/).
 * In a trace, macs is the computing cost of a row. A row with macs starts a layer, and the rows
 * without macs that follow belong to it. Rows before the first row with macs form a layer without
 * computing.
 *
 * The accelerator is simulated by a clock, which holds the time at which the accelerator is free.
 * The trainer only queues work for the accelerator, as with CUDA. In the forward pass, a layer
 * starts when the layer before it has ended and its own sums have arrived. The backward pass waits
 * for no sums, so the trainer queues the whole pass. The trainer is notified when a layer's
 * gradients are ready. Submitting the gradients does not delay the accelerator.
 *
 *   step:  for each layer, first to last: wait for its sums of the previous step; start forward
 *          for each layer, last to first: start backward; sleep until it ends; submit its tensors
 *
 * Forward takes a third of --compute and backward two thirds. Each layer's share of both times is
 * proportional to the layer's macs. With --barrier, a step ends when all sums have arrived. Without
 * --barrier, the trainer waits for a sum only before the next forward pass uses the sum, like the
 * cross-barrier option of the front-ends.
 *
 *   step time    median time from the first forward of a step to the first forward of the next
 *   efficiency   compute time / step time: the speed relative to a run without communication
 *   overlap      time when computing and communication run at once, divided by the shorter of the
 *                compute time and the communication time
 *   first layer  median time from the submission of the layer's gradients to the layer's sums
 *   on the wire  bytes that the agent of rank 0's machine sent and received per step, for all jobs,
 *                from bps_traffic(3) */
#include "tests/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS_MAX     65536
#define WARMUP_STEPS 2
#define COMM_STEPS   3 /* steps without computing, to measure the time of communication */

struct replay_row {
	char name[200];
	uint64_t elems, macs;
};

struct replay_layer {
	size_t first, n; /* the layer's tensors */
	double forward_s;
};

struct bench_replay {
	struct bench *bench;
	struct replay_row *rows;
	struct bps_tensor **tensors;
	struct replay_layer *layers;
	size_t n_rows, n_layers;
	uint64_t step, step_bytes;
	double clock_s; /* time at which the simulated accelerator is free */
	/* The first layer is special: its gradients come last, and its sums are needed first.
	 * first_submitted_s: time when the layer was submitted, or 0 once its sums have arrived.
	 * first_waits_s: for each step, the time from the submission to the sums. */
	double first_submitted_s, *first_waits_s;
	size_t n_first_waits;
};

/* ---- trace ---- */

static int read_row(char *line, struct replay_row *row)
{
	char *end;
	char *elems = strchr(line, '\t');

	if (!elems || elems == line || (size_t)(elems - line) >= sizeof(row->name))
		return -1;
	*elems++ = 0;
	memcpy(row->name, line, strlen(line) + 1);
	errno = 0;
	row->elems = strtoull(elems, &end, 10);
	if (end == elems || *end != '\t' || errno || !row->elems)
		return -1;
	elems = end + 1;
	row->macs = strtoull(elems, &end, 10);
	return end == elems || (*end && *end != '\n') || errno ? -1 : 0;
}

static int read_trace(struct bench_replay *r)
{
	const char *path = r->bench->o.replay;
	FILE *f = fopen(path, "r");
	char line[1024];
	unsigned number = 0;
	int rc = 0;

	r->rows = calloc(ROWS_MAX, sizeof(*r->rows));
	if (!f || !r->rows) {
		fprintf(stderr, "bps-bench: cannot read %s: %s\n", path, strerror(errno));
		if (f)
			fclose(f);
		return -1;
	}
	while (rc == 0 && fgets(line, sizeof(line), f)) {
		number++;
		if (line[0] == '#' || !strncmp(line, "name\t", 5))
			continue;
		rc = r->n_rows < ROWS_MAX ? read_row(line, &r->rows[r->n_rows++]) : -1;
	}
	fclose(f);
	if (rc < 0 || !r->n_rows) {
		fprintf(stderr,
			"bps-bench: %s:%u: the line needs name, elements and macs "
			"with tabs between them\n",
			path, number);
		return -1;
	}
	return 0;
}

static int make_layers(struct bench_replay *r)
{
	struct replay_layer *layer = NULL;
	double macs = 0;

	r->layers = calloc(r->n_rows, sizeof(*r->layers));
	if (!r->layers)
		return -1;
	for (size_t i = 0; i < r->n_rows; i++)
		macs += (double)r->rows[i].macs;
	for (size_t i = 0; i < r->n_rows; i++) {
		if (!layer || r->rows[i].macs) {
			layer = &r->layers[r->n_layers++];
			layer->first = i;
			layer->forward_s = macs > 0 ? r->bench->o.compute_s / 3 *
							      (double)r->rows[i].macs / macs
						    : 0;
		}
		layer->n++;
	}
	return 0;
}

static int declare(struct bench_replay *r)
{
	const struct bench_options *o = &r->bench->o;
	struct bps_decl *decls = calloc(r->n_rows, sizeof(*decls));
	int rc;

	r->tensors = calloc(r->n_rows, sizeof(struct bps_tensor *));
	if (!decls || !r->tensors) {
		free(decls);
		return -1;
	}
	for (size_t i = 0; i < r->n_rows; i++) {
		decls[i] = (struct bps_decl){.size = sizeof(decls[i]),
			.name = r->rows[i].name,
			.dtype = o->dtype,
			.n_values = (r->rows[i].elems + o->shrink - 1) / o->shrink};
		r->step_bytes += bps_blocks(o->dtype, decls[i].n_values) * dtype_size(o->dtype);
	}
	rc = bps_declare_group(r->bench->b, decls, r->n_rows, r->tensors);
	free(decls);
	if (rc < 0)
		return bench_fail(rc, "cannot declare the tensors");
	for (size_t i = 0; i < r->n_rows; i++)
		pattern_fill(r->tensors[i], o->op, 0, r->bench->rank);
	return 0;
}

/* ---- steps ---- */

/* Advance the accelerator's clock to the present time, if the clock is behind. */
static void accelerator_has(struct bench_replay *r)
{
	double now = bench_now_s();

	r->clock_s = r->clock_s > now ? r->clock_s : now;
}

static void wait_for_accelerator(const struct bench_replay *r)
{
	struct timespec until = {.tv_sec = (time_t)r->clock_s};

	until.tv_nsec = (long)((r->clock_s - (double)until.tv_sec) * 1e9);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static int submit(struct bench_replay *r, const struct replay_layer *layer)
{
	const struct bench_options *o = &r->bench->o;
	struct bps_tensor **t = r->tensors + layer->first;
	int rc;

	for (size_t i = 0; i < layer->n && o->is_checking; i++)
		pattern_fill(t[i], o->op, r->step, r->bench->rank);
	if (layer == r->layers)
		r->first_submitted_s = bench_now_s();
	if (o->is_fifo) {
		rc = bps_push_pull_group(t, layer->n, o->op, 0);
		return rc < 0 ? bench_fail(rc, "cannot submit") : 0;
	}
	for (size_t i = 0; i < layer->n; i++) {
		rc = bps_push_pull(t[i], o->op, BPS_PRIORITY_AUTO);
		if (rc < 0)
			return bench_fail(rc, "cannot submit");
	}
	return 0;
}

static void note_first(struct bench_replay *r)
{
	if (r->first_waits_s && r->first_submitted_s > 0)
		r->first_waits_s[r->n_first_waits++] = bench_now_s() - r->first_submitted_s;
	r->first_submitted_s = 0;
}

/* Wait for the sums of a layer in this step, and check them. */
static int finish(struct bench_replay *r, const struct replay_layer *layer, uint64_t step)
{
	const struct bench *bench = r->bench;
	struct bps_tensor **t = r->tensors + layer->first;
	int rc = bps_wait_group(t, layer->n, 0);
	int64_t wrong;

	if (rc < 0)
		return bench_fail(rc, "push_pull failed");
	if (layer == r->layers)
		note_first(r);
	for (size_t i = 0; i < layer->n && bench->o.is_checking; i++) {
		wrong = pattern_check(t[i], bench->o.op, step, bench->size);
		if (wrong < 0)
			continue;
		fprintf(stderr, "bps-bench: rank %d: wrong result: %s step %llu element %lld\n",
			bench->rank, bps_name(t[i]), (unsigned long long)step, (long long)wrong);
		return -1;
	}
	return 0;
}

static int finish_all(struct bench_replay *r)
{
	int rc = 0;

	for (size_t i = 0; i < r->n_layers && rc == 0; i++)
		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): replay_run frees the layers */
		rc = finish(r, &r->layers[i], r->step);
	return rc;
}

static int step(struct bench_replay *r, double *ret_start_s)
{
	int rc = 0;

	for (size_t i = 0; i < r->n_layers && rc == 0; i++) {
		if (r->step > 0)
			rc = finish(r, &r->layers[i], r->step);
		accelerator_has(r);
		if (i == 0)
			*ret_start_s = r->clock_s;
		r->clock_s += r->layers[i].forward_s;
	}
	r->step++;
	for (size_t i = r->n_layers; i-- > 0 && rc == 0;) {
		r->clock_s += 2 * r->layers[i].forward_s;
		wait_for_accelerator(r);
		rc = submit(r, &r->layers[i]);
	}
	r->bench->bytes_moved += r->step_bytes;
	return rc == 0 && r->bench->o.has_barrier ? finish_all(r) : rc;
}

/* Measure steps that communicate but compute nothing. *ret_s receives the median time from the
 * first submission to the last sum. Call this function after all memory has been touched. */
static int communicate(struct bench_replay *r, double *ret_s)
{
	double times[COMM_STEPS], start;
	int rc = 0;

	for (int k = -WARMUP_STEPS; k < COMM_STEPS && rc == 0; k++) {
		rc = bps_barrier(r->bench->b, 0);
		if (rc < 0)
			return bench_fail(rc, "barrier");
		start = bench_now_s();
		r->step++;
		for (size_t i = r->n_layers; i-- > 0 && rc == 0;)
			rc = submit(r, &r->layers[i]);
		if (rc == 0)
			rc = finish_all(r);
		if (k >= 0)
			times[k] = bench_now_s() - start;
		r->bench->bytes_moved += r->step_bytes;
	}
	if (rc == 0)
		*ret_s = bench_quantile(times, COMM_STEPS, 0.5);
	return rc;
}

/* ---- result ---- */

struct replay_result {
	uint64_t steps;
	double communication_s, step_s, p99_s, elapsed_s;
	double first_wait_s; /* first layer: time from submission until the sums arrive */
	bool has_traffic;
	double sent_bytes, received_bytes; /* bytes of this worker's machine, per step */
};

/* Compute the mean traffic of a step. `before` has the counters from before the n_steps steps. The
 * traffic is unknown if the agent is too old, or has restarted since then. Call this function when
 * no bytes of this machine are in flight. */
static int count_traffic(struct bench_replay *r, const struct bps_traffic *before, double n_steps,
	struct replay_result *ret)
{
	struct bps_traffic now;
	int rc = bps_traffic(r->bench->b, &now);

	ret->has_traffic = rc == 0 && now.instance == before->instance;
	if (ret->has_traffic) {
		ret->sent_bytes = (double)(now.sent_bytes - before->sent_bytes) / n_steps;
		ret->received_bytes =
			(double)(now.received_bytes - before->received_bytes) / n_steps;
	}
	return rc < 0 && rc != -EOPNOTSUPP ? bench_fail(rc, "cannot get the traffic counters") : 0;
}

static int measure(struct bench_replay *r, struct replay_result *ret)
{
	const struct bench_options *o = &r->bench->o;
	struct bps_traffic before = {.instance = 0};
	double *starts, expected;
	int rc = communicate(r, &ret->communication_s);

	expected = o->compute_s > ret->communication_s ? o->compute_s : ret->communication_s;
	ret->steps = o->rounds ? o->rounds : 3 + (uint64_t)(o->seconds / expected);
	if (rc == 0)
		rc = bench_agree(r->bench, &ret->steps);
	if (rc < 0)
		return rc;
	rc = bps_traffic(r->bench->b, &before);
	if (rc < 0 && rc != -EOPNOTSUPP)
		return bench_fail(rc, "cannot get the traffic counters");
	starts = calloc(ret->steps + WARMUP_STEPS + 1, sizeof(*starts));
	r->first_waits_s = calloc(ret->steps + WARMUP_STEPS, sizeof(*r->first_waits_s));
	if (!starts || !r->first_waits_s) {
		free(starts);
		return -1;
	}
	for (uint64_t k = 0; k < ret->steps + WARMUP_STEPS && rc == 0; k++) {
		rc = step(r, &starts[k]);
		bench_progress(r->bench, "step", (double)k, (double)(ret->steps + WARMUP_STEPS));
	}
	/* The final step ends when the first layer's sums arrive, because a further step could then
	 * start. */
	if (rc == 0)
		rc = finish(r, &r->layers[0], r->step);
	accelerator_has(r);
	starts[ret->steps + WARMUP_STEPS] = r->clock_s;
	if (rc == 0)
		rc = finish_all(r);
	if (rc == 0)
		rc = count_traffic(r, &before, (double)(ret->steps + WARMUP_STEPS), ret);
	ret->elapsed_s = starts[ret->steps + WARMUP_STEPS] - starts[WARMUP_STEPS];
	for (uint64_t k = 0; k < ret->steps; k++)
		starts[k] = starts[k + WARMUP_STEPS + 1] - starts[k + WARMUP_STEPS];
	ret->step_s = bench_quantile(starts, ret->steps, 0.5);
	ret->p99_s = bench_quantile(starts, ret->steps, 0.99);
	ret->first_wait_s = bench_quantile(r->first_waits_s + WARMUP_STEPS, ret->steps, 0.5);
	free(starts);
	return rc;
}

static void report(struct bench_replay *r, const struct replay_result *m)
{
	const struct bench_options *o = &r->bench->o;
	double compute_s = o->compute_s, comm_s = m->communication_s,
	       least = compute_s < comm_s ? compute_s : comm_s,
	       hidden_s = compute_s + comm_s - m->step_s,
	       overlap = least > 0 && hidden_s > 0 ? fmin(hidden_s / least, 1) : 0,
	       samples = (double)o->batch * r->bench->size / m->step_s;

	bench_progress(r->bench, NULL, 0, 0);
	if (r->bench->rank != 0)
		return;
	if (o->is_json) {
		bench_json_result(r->bench);
		printf("{\"tensors\": %zu, \"layers\": %zu, \"step_bytes\": %llu, \"steps\": %llu, "
		       "\"step_ms\": %.3f, \"p99_ms\": %.3f, \"compute_ms\": %.3f, "
		       "\"communication_ms\": %.3f, \"overlap\": %.4f, \"efficiency\": %.4f, "
		       "\"first_layer_ms\": %.3f, \"samples_per_s\": %.3f, \"elapsed_s\": %.6f, "
		       "\"goodput_mbps\": %.3f, ",
			r->n_rows, r->n_layers, (unsigned long long)r->step_bytes,
			(unsigned long long)m->steps, m->step_s * 1e3, m->p99_s * 1e3,
			compute_s * 1e3, comm_s * 1e3, overlap, compute_s / m->step_s,
			m->first_wait_s * 1e3, samples, m->elapsed_s,
			(double)r->step_bytes * (double)m->steps / m->elapsed_s / 1e6);
		if (m->has_traffic)
			printf("\"sent_bytes\": %.0f, \"received_bytes\": %.0f}", m->sent_bytes,
				m->received_bytes);
		else
			printf("\"sent_bytes\": null, \"received_bytes\": null}");
		return;
	}
	printf("%zu tensors in %zu layers, %.1f MB per step and worker, %llu steps\n", r->n_rows,
		r->n_layers, (double)r->step_bytes / 1e6, (unsigned long long)m->steps);
	printf("step %.1f ms (p99 %.1f), compute %.1f ms, communication alone %.1f ms (%.1f "
	       "MB/s)\n",
		m->step_s * 1e3, m->p99_s * 1e3, compute_s * 1e3, comm_s * 1e3,
		(double)r->step_bytes / comm_s / 1e6);
	printf("first layer's sums %.1f ms after its gradients\n", m->first_wait_s * 1e3);
	if (compute_s > 0)
		printf("overlap %.1f %%, scaling efficiency %.1f %%, %.1f samples/s\n",
			overlap * 100, compute_s / m->step_s * 100, samples);
	if (m->has_traffic)
		printf("on the wire %.1f MB out and %.1f MB in per step at rank 0's machine%s\n",
			m->sent_bytes / 1e6, m->received_bytes / 1e6,
			m->sent_bytes < 0.01 * (double)r->step_bytes
				? ", which shares memory with its servers or sums alone"
				: "");
	else
		printf("on the wire: unknown, because rank 0's agent is too old or was "
		       "restarted\n");
}

int replay_run(struct bench *bench)
{
	struct bench_replay r = {.bench = bench};
	struct replay_result result = {0};
	int rc = read_trace(&r);

	if (rc == 0)
		rc = make_layers(&r);
	if (rc == 0)
		rc = declare(&r);
	if (rc == 0)
		rc = measure(&r, &result);
	if (rc == 0)
		report(&r, &result);
	free(r.rows);
	free(r.layers);
	free(r.first_waits_s);
	free(r.tensors);
	return rc;
}
