/* The main program of bps-bench: reads the options, runs the job, and has the functions that both
 * the sweep and the replay use. See bps-bench(1). */
#include "tests/bench/bench.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#define PROGRESS_EVERY_S 0.2

double bench_now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

int bench_fail(int code, const char *what)
{
	fprintf(stderr, "bps-bench: %s: %s\n", what, bps_last_error());
	return code;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double bench_quantile(double *v, size_t n, double q)
{
	size_t i = (size_t)(q * (double)n);

	qsort(v, n, sizeof(*v), by_value);
	return v[i < n ? i : n - 1];
}

int bench_max(struct bench *bench, double mine, double *ret)
{
	double *all = calloc((size_t)bench->size, sizeof(*all));
	int rc = all ? bps_allgather(bench->b, &mine, sizeof(mine), all, 0) : -1;

	if (rc < 0)
		bench_fail(rc, "allgather");
	else
		*ret = mine;
	for (int i = 0; i < bench->size && rc >= 0; i++)
		if (all[i] > *ret)
			*ret = all[i];
	free(all);
	return rc < 0 ? rc : 0;
}

int bench_agree(struct bench *bench, uint64_t *value)
{
	int rc = bps_broadcast(bench->b, value, sizeof(*value), 0, 0);

	return rc < 0 ? bench_fail(rc, "broadcast") : 0;
}

void bench_progress(struct bench *bench, const char *what, double done, double all)
{
	double now;

	if (!bench->has_progress)
		return;
	now = bench_now_s();
	if (what && now - bench->told_s < PROGRESS_EVERY_S)
		return;
	bench->told_s = now;
	if (what)
		fprintf(stderr, "\r%s: %.0f %%\033[K", what, done / all * 100);
	else
		fprintf(stderr, "\r\033[K");
}

static const struct {
	const char *suffix;
	uint64_t bytes;
} units[] = {{"GiB", 1u << 30}, {"MiB", 1u << 20}, {"KiB", 1u << 10}, {"B", 1}, {"", 1}};

const char *bench_size(uint64_t bytes, char *ret)
{
	unsigned i = 0;

	while (units[i].bytes > 1 && (!bytes || bytes % units[i].bytes))
		i++;
	snprintf(ret, 32, "%llu %s", (unsigned long long)(bytes / units[i].bytes), units[i].suffix);
	return ret;
}

void bench_json_result(struct bench *bench)
{
	printf(bench->n_results++ ? ",\n    " : "\n    ");
}

/* ---- options ---- */

static const struct {
	const char *name;
	enum bps_dtype dtype;
} dtypes[] = {{"f32", BPS_F32}, {"f16", BPS_F16}, {"bf16", BPS_BF16}, {"f64", BPS_F64},
	{"i8", BPS_I8}, {"u8", BPS_U8}, {"i32", BPS_I32}, {"i64", BPS_I64}, {"q8", BPS_Q8},
	{"q4", BPS_Q4}, {"sign", BPS_SIGN}};
static const char *const ops[] = {[BPS_SUM] = "sum",
	[BPS_PROD] = "prod",
	[BPS_MAX] = "max",
	[BPS_MIN] = "min",
	[BPS_AVG] = "avg",
	[BPS_BAND] = "band",
	[BPS_BOR] = "bor",
	[BPS_BXOR] = "bxor"};

static const char usage[] =
	"usage: bps-bench [--bytes LIST] [--dtype TYPE] [--op OP] [--tensors N]\n"
	"                 [--depth N] [--copies] [--rounds N | --seconds S] [--check]\n"
	"                 [--json]\n"
	"       bps-bench --replay FILE.tsv [--compute SECONDS] [--batch N] [--barrier]\n"
	"                 [--fifo] [--shrink N] [--dtype TYPE] [--op OP]\n"
	"                 [--rounds N | --seconds S] [--check] [--json]\n"
	"A worker of a job; start it with bpsrun.\n";

static int bad(const char *option, const char *value, const char *want)
{
	fprintf(stderr, "bps-bench: --%s wants %s, not '%s'\n", option, want, value);
	return -1;
}

static int parse_size(const char *text, char **end, uint64_t *ret)
{
	unsigned long long n = strtoull(text, end, 10);
	unsigned i = 0;

	if (*text < '0' || *text > '9')
		return -1;
	while (strncmp(*end, units[i].suffix, strlen(units[i].suffix)) != 0)
		i++;
	*end += strlen(units[i].suffix);
	*ret = n * units[i].bytes;
	return n && n <= UINT64_MAX / units[i].bytes ? 0 : -1;
}

static int parse_sizes(const char *text, struct bench_options *o)
{
	const char *p = text;
	char *end;

	o->n_bytes = 0;
	for (;;) {
		if (o->n_bytes == BENCH_SIZES_MAX || parse_size(p, &end, &o->bytes[o->n_bytes]) < 0)
			return bad("bytes", text, "sizes such as 4KiB,1MiB (B, KiB, MiB, GiB)");
		o->n_bytes++;
		if (!*end)
			return 0;
		if (*end != ',')
			return bad("bytes", text, "sizes such as 4KiB,1MiB (B, KiB, MiB, GiB)");
		p = end + 1;
	}
}

static int parse_count(const char *option, const char *text, unsigned *ret)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (*text < '1' || *text > '9' || *end || n > 100000000)
		return bad(option, text, "a number from 1");
	*ret = (unsigned)n;
	return 0;
}

static int parse_seconds(const char *option, const char *text, double *ret)
{
	char *end;
	double s = strtod(text, &end);

	if (end == text || *end || !(s >= 0 && s < 1e6))
		return bad(option, text, "seconds");
	*ret = s;
	return 0;
}

static int parse_dtype(const char *text, enum bps_dtype *ret)
{
	for (unsigned i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (!strcmp(text, dtypes[i].name)) {
			*ret = dtypes[i].dtype;
			return 0;
		}
	return bad("dtype", text, "f32, f16, bf16, f64, i8, u8, i32, i64, q8, q4 or sign");
}

static int parse_op(const char *text, enum bps_op *ret)
{
	for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		if (!strcmp(text, ops[i])) {
			*ret = (enum bps_op)i;
			return 0;
		}
	return bad("op", text, "sum, prod, max, min, avg, band, bor or bxor");
}

enum {
	OPT_BYTES = 256,
	OPT_DTYPE,
	OPT_OP,
	OPT_TENSORS,
	OPT_DEPTH,
	OPT_ROUNDS,
	OPT_SECONDS,
	OPT_CHECK,
	OPT_JSON,
	OPT_REPLAY,
	OPT_COMPUTE,
	OPT_BATCH,
	OPT_SHRINK,
	OPT_BARRIER,
	OPT_FIFO,
	OPT_COPIES,
	OPT_HELP,
	OPT_VERSION
};

/* The options, in the order of their OPT_ constants. */
static const struct option longopts[] = {{"bytes", 1, NULL, OPT_BYTES},
	{"dtype", 1, NULL, OPT_DTYPE}, {"op", 1, NULL, OPT_OP}, {"tensors", 1, NULL, OPT_TENSORS},
	{"depth", 1, NULL, OPT_DEPTH}, {"rounds", 1, NULL, OPT_ROUNDS},
	{"seconds", 1, NULL, OPT_SECONDS}, {"check", 0, NULL, OPT_CHECK},
	{"json", 0, NULL, OPT_JSON}, {"replay", 1, NULL, OPT_REPLAY},
	{"compute", 1, NULL, OPT_COMPUTE}, {"batch", 1, NULL, OPT_BATCH},
	{"shrink", 1, NULL, OPT_SHRINK}, {"barrier", 0, NULL, OPT_BARRIER},
	{"fifo", 0, NULL, OPT_FIFO}, {"copies", 0, NULL, OPT_COPIES}, {"help", 0, NULL, OPT_HELP},
	{"version", 0, NULL, OPT_VERSION}, {0}};

static int parse_option(int c, const char *arg, struct bench_options *o)
{
	switch (c) {
	case OPT_BYTES:
		return parse_sizes(arg, o);
	case OPT_DTYPE:
		return parse_dtype(arg, &o->dtype);
	case OPT_OP:
		return parse_op(arg, &o->op);
	case OPT_TENSORS:
		return parse_count("tensors", arg, &o->tensors);
	case OPT_DEPTH:
		return parse_count("depth", arg, &o->depth);
	case OPT_ROUNDS:
		return parse_count("rounds", arg, &o->rounds);
	case OPT_SECONDS:
		return parse_seconds("seconds", arg, &o->seconds);
	case OPT_CHECK:
		o->is_checking = true;
		return 0;
	case OPT_JSON:
		o->is_json = true;
		return 0;
	case OPT_REPLAY:
		o->replay = arg;
		return 0;
	case OPT_COMPUTE:
		return parse_seconds("compute", arg, &o->compute_s);
	case OPT_BATCH:
		return parse_count("batch", arg, &o->batch);
	case OPT_SHRINK:
		return parse_count("shrink", arg, &o->shrink);
	case OPT_BARRIER:
		o->has_barrier = true;
		return 0;
	case OPT_FIFO:
		o->is_fifo = true;
		return 0;
	case OPT_COPIES:
		o->has_copies = true;
		return 0;
	case OPT_HELP:
		fputs(usage, stdout);
		exit(0);
	case OPT_VERSION:
		printf("bps-bench %s\n", bps_version());
		exit(0);
	default:
		fputs(usage, stderr);
		return -1;
	}
}

/* Refuse options of the sweep in a replay and options of the replay in a sweep, because such
 * options would have no effect. */
static int check_mode(const bool *given, bool is_replay)
{
	static const int of_sweep[] = {OPT_BYTES, OPT_TENSORS, OPT_DEPTH, OPT_COPIES, 0};
	static const int of_replay[] = {
		OPT_COMPUTE, OPT_BATCH, OPT_SHRINK, OPT_BARRIER, OPT_FIFO, 0};

	for (const int *other = is_replay ? of_sweep : of_replay; *other; other++)
		if (given[*other - OPT_BYTES]) {
			fprintf(stderr, "bps-bench: --%s has no effect %s --replay\n",
				longopts[*other - OPT_BYTES].name, is_replay ? "with" : "without");
			return -1;
		}
	return 0;
}

static int parse_options(int argc, char **argv, struct bench_options *o)
{
	bool given[OPT_VERSION - OPT_BYTES + 1] = {0};
	int c;

	parse_sizes("4KiB,64KiB,1MiB,16MiB,64MiB", o);
	o->dtype = BPS_F32;
	o->seconds = 2;
	o->batch = o->shrink = 1;
	while ((c = getopt_long(argc, argv, "", longopts, NULL)) != -1) {
		if (parse_option(c, optarg, o) < 0)
			return -1;
		given[c - OPT_BYTES] = true;
	}
	if (optind < argc) {
		fputs(usage, stderr);
		return -1;
	}
	if (check_mode(given, o->replay) < 0)
		return -1;
	if (o->op >= BPS_BAND && o->dtype >= BPS_F16) {
		fprintf(stderr, "bps-bench: --op %s needs --dtype i8, u8, i32 or i64\n",
			ops[o->op]);
		return -1;
	}
	if (o->dtype >= BPS_Q8 && o->op != BPS_SUM && o->op != BPS_AVG) {
		fprintf(stderr, "bps-bench: --dtype q8, q4 and sign need --op sum or avg\n");
		return -1;
	}
	if (given[OPT_ROUNDS - OPT_BYTES] && given[OPT_SECONDS - OPT_BYTES]) {
		fprintf(stderr, "bps-bench: --rounds and --seconds cannot be given together\n");
		return -1;
	}
	if (!o->depth)
		o->depth = o->tensors ? o->tensors : 1;
	if (!o->tensors)
		o->tensors = o->depth;
	if (o->depth > o->tensors) {
		fprintf(stderr,
			"bps-bench: --depth %u needs as many --tensors: each tensor has at "
			"most one push_pull in flight\n",
			o->depth);
		return -1;
	}
	if (o->has_copies && o->dtype < BPS_F16) {
		fprintf(stderr, "bps-bench: --copies needs a --dtype of fractional numbers\n");
		return -1;
	}
	for (unsigned i = 0; i < o->n_bytes; i++)
		if (o->bytes[i] % (o->has_copies || o->dtype >= BPS_Q8 ? sizeof(float)
								       : dtype_size(o->dtype))) {
			fprintf(stderr,
				"bps-bench: %llu bytes are not a whole number of elements\n",
				(unsigned long long)o->bytes[i]);
			return -1;
		}
	return 0;
}

/* ---- job ---- */

static void text_begin(const struct bench *bench, const char *dtype)
{
	if (bench->size > 1)
		printf("%d workers, %s, %s\n", bench->size, dtype, ops[bench->o.op]);
	else
		printf("1 worker, %s: nothing is summed, so only copying is measured\n", dtype);
}

static void json_begin(const struct bench *bench, const char *dtype)
{
	const struct bench_options *o = &bench->o;

	printf("{\"program\": \"bps-bench\", \"version\": \"%s\", \"workers\": %d, \"dtype\": "
	       "\"%s\", "
	       "\"op\": \"%s\", \"mode\": \"%s\",\n  \"results\": [",
		bps_version(), bench->size, dtype, ops[o->op], o->replay ? "replay" : "sweep");
}

static int run(struct bench *bench)
{
	const struct bench_options *o = &bench->o;
	bool says_json = o->is_json && bench->rank == 0;
	const char *dtype = "";
	int rc;

	if (o->is_checking && !pattern_is_exact(o->dtype, o->op, bench->size)) {
		fprintf(stderr,
			"bps-bench: cannot use --check: results of %d workers are inexact in "
			"this type\n",
			bench->size);
		return -1;
	}
	for (unsigned i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (dtypes[i].dtype == o->dtype)
			dtype = dtypes[i].name;
	if (says_json)
		json_begin(bench, dtype);
	else if (bench->rank == 0)
		text_begin(bench, dtype);
	rc = o->replay ? replay_run(bench) : sweep_run(bench);
	if (says_json)
		printf("],\n  \"bytes_moved\": %llu, \"is_complete\": %s}\n",
			(unsigned long long)bench->bytes_moved, rc < 0 ? "false" : "true");
	return rc;
}

int main(int argc, char **argv)
{
	struct bench bench = {0};
	int rc;

	if (parse_options(argc, argv, &bench.o) < 0)
		return EX_USAGE;
	rc = bps_open(NULL, &bench.b);
	if (rc < 0) {
		bench_fail(rc, "cannot join the job");
		return EXIT_FAILURE;
	}
	bench.rank = bps_rank(bench.b);
	bench.size = bps_size(bench.b);
	bench.has_progress = bench.rank == 0 && isatty(STDERR_FILENO);
	if (run(&bench) < 0) {
		bps_abort(bench.b);
		return EXIT_FAILURE;
	}
	rc = bps_close(bench.b, 0);
	if (rc < 0)
		bench_fail(rc, "cannot leave the job");
	return rc < 0 ? EXIT_FAILURE : 0;
}
