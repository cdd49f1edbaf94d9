#ifndef BPS_BENCH_H
#define BPS_BENCH_H
/* bps-bench measures push_pull in a trainer. It either sweeps over sizes (sweep.c), or replays a
 * model's gradients with simulated computing (replay.c). All ranks run the same rounds. Rank 0
 * makes the decisions that depend on time, broadcasts them, and prints the report. The
 * program itself creates no threads. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "libbpsclient/bps.h"

#define BENCH_SIZES_MAX 64

struct bench_options {
	uint64_t bytes[BENCH_SIZES_MAX];
	unsigned n_bytes;
	enum bps_dtype dtype;
	enum bps_op op;
	unsigned tensors, depth; /* `depth`: push_pulls in flight, <= `tensors` */
	unsigned rounds;         /* rounds per tensor, or 0 for as many as fit into `seconds` */
	double seconds;
	bool is_checking, is_json, has_copies;
	const char *replay;
	double compute_s; /* seconds of the forward and backward pass of one step */
	unsigned batch, shrink;
	bool has_barrier, is_fifo;
};

struct bench {
	struct bench_options o;
	struct bps *b;
	int rank, size;
	/* bytes of this worker's tensors that were summed, including the warm-up */
	uint64_t bytes_moved;
	/* whether to print a progress line; true at rank 0 when stderr is a terminal */
	bool has_progress;
	double told_s; /* time of the last progress line */
	unsigned n_results;
};

/* Run the sweep or the replay. Returns a negative number on failure; the reason is then on
 * stderr. */
int sweep_run(struct bench *bench);
int replay_run(struct bench *bench);

/* ---- bps-bench.c ---- */
double bench_now_s(void);
/* Print "bps-bench: what: (the library's last error)" to stderr, and return the argument
 * `code`. */
int bench_fail(int code, const char *what);
/* Sort the n >= 1 values of v, and return the quantile q. For example, q = 0.5 gives the
 * median. */
double bench_quantile(double *v, size_t n, double q);
/* Store the maximum of `mine` over all ranks in *ret. All ranks have to call this
 * function. */
int bench_max(struct bench *bench, double mine, double *ret);
/* Set *value to rank 0's value. All ranks have to call this function. */
int bench_agree(struct bench *bench, uint64_t *value);
/* Update rank 0's progress line, at most a few times a second. If `what` is NULL, clear
 * the line. */
void bench_progress(struct bench *bench, const char *what, double done, double all);
/* Write a size such as "1 MiB" or "1000 B" into the 32 bytes at ret. */
const char *bench_size(uint64_t bytes, char *ret);
/* Open the next object of the list "results" in the JSON report. */
void bench_json_result(struct bench *bench);

/* ---- pattern.c: inputs whose reduction is known exactly ---- */
/* Return the size of an element in bytes. */
size_t dtype_size(enum bps_dtype dtype);
/* Return the number of values of a tensor of the size `bytes`. For block types, `bytes` is the size
 * of the values as f32, so that all types can move the same values. */
uint64_t pattern_value_count(enum bps_dtype dtype, uint64_t bytes);
/* Return whether sums (or other reductions) over this number of workers are exact in this type. */
bool pattern_is_exact(enum bps_dtype dtype, enum bps_op op, int size);
/* Fill the tensor with the rank's input of a round: small integers that repeat after PATTERN_PERIOD
 * elements. */
#define PATTERN_PERIOD 7
void pattern_fill(struct bps_tensor *t, enum bps_op op, uint64_t round, int rank);
/* Return the index of the first wrong element of the output, or -1. */
int64_t pattern_check(const struct bps_tensor *t, enum bps_op op, uint64_t round, int size);
#endif
