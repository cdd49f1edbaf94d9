#ifndef BPS_BENCH_H
#define BPS_BENCH_H
/* bps-bench measures push_pull from inside a trainer: the sweep over sizes (sweep.c) and the replay
 * of a model's gradients against simulated computing (replay.c). All ranks run the same rounds.
 * Rank 0 makes decisions that depend on time, and broadcasts them. Rank 0 reports. One thread. */
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
	unsigned tensors, depth; /* depth: push_pulls in flight, at most tensors */
	unsigned rounds;         /* per tensor; 0: as many as fit into seconds */
	double seconds;
	bool is_checking, is_json;
	const char *replay;
	double compute_s; /* of one step, forward and backward */
	unsigned batch, shrink;
	bool has_barrier, is_fifo;
};

struct bench {
	struct bench_options o;
	struct bps *b;
	int rank, size;
	uint64_t bytes_moved; /* of this worker's tensors, including the warm-up */
	bool has_progress;    /* rank 0 on a terminal */
	double told_s;        /* time of the last progress line */
	unsigned n_results;
};

/* Run the sweep. Negative: failed, and the reason is on stderr. */
int sweep_run(struct bench *bench);
int replay_run(struct bench *bench);

/* ---- bps-bench.c ---- */
double bench_now_s(void);
/* Print "bps-bench: what: the library's last error" to stderr and return code. */
int bench_fail(int code, const char *what);
/* Sort v and return the value that a fraction q of the n (>= 1) values does not exceed. */
double bench_quantile(double *v, size_t n, double q);
/* Return the maximum over all ranks. Collective. */
int bench_max(struct bench *bench, double mine, double *ret);
/* Set value to that of rank 0. Collective. */
int bench_agree(struct bench *bench, uint64_t *value);
/* Rewrite rank 0's progress line, a few times a second. what NULL: clear it. */
void bench_progress(struct bench *bench, const char *what, double done, double all);
/* Format "1 MiB" or "1000 B". ret: 32 bytes. */
const char *bench_size(uint64_t bytes, char *ret);
/* Open the next object of the list "results" in the JSON report. */
void bench_json_result(struct bench *bench);

/* ---- pattern.c: inputs whose reduction is known exactly ---- */
size_t dtype_size(enum bps_dtype dtype);
/* Return whether sums over this number of workers are exact in this type. */
bool pattern_is_exact(enum bps_dtype dtype, enum bps_op op, int size);
/* The rank's input of a round: small integers with a period of PATTERN_PERIOD elements. */
#define PATTERN_PERIOD 7
void pattern_fill(struct bps_tensor *t, enum bps_op op, uint64_t round, int rank);
/* Return the index of the first wrong element of the output, or -1. */
int64_t pattern_check(const struct bps_tensor *t, enum bps_op op, uint64_t round, int size);
#endif
