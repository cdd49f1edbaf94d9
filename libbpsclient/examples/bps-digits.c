/* bps-digits: softmax regression on 8x8 digits, data-parallel. Every worker holds all samples and
 * takes its share of each global batch. push_pull sums the gradients of all workers, so all workers
 * always hold the same weights.
 *
 * With the same global batch, a run with W workers and a run with one worker give the same weights,
 * except for the rounding of f32. The program prints a bound on this difference as its tolerance.
 * The bound follows in three steps. u = 2^-24 is the relative rounding error of f32, and |.| is the
 * 2-norm of a vector.
 *
 * 1. Sum of the gradients g_s of all samples s. Each worker adds its gradients in double and rounds
 *    the sum once to f32. The W sums are then added in f32, in any order. So an element of the
 *    total has an error of at most W u sum_s |g_s|, and the two runs differ by at most
 *    (W + 1) u sum_s |g_s|. The gradient of a sample is (p - y) x^T with |p - y| <= sqrt 2 and
 *    |x| <= X. So the mean gradients of the two runs differ by at most (W + 1) u sqrt(2) X.
 * 2. Step w - lr g. Each run computes the new weights in double and rounds them to f32. The
 *    roundings of the two runs add a difference of at most 2 u |w|.
 * 3. T steps. The loss is convex, and its gradient has the Lipschitz constant L <= X^2 / 2, because
 *    the Hessian of the softmax has a norm of at most 1/2. With lr <= 2 / L a gradient step does
 *    not increase the distance between two points (Nesterov, Introductory Lectures on Convex
 *    Optimization, theorem 2.1.5). So the errors of the steps only add up, to at most
 *        T u (lr (W + 1) sqrt(2) X + 2 max |w|). */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libbpsclient/bps.h"

#define PIXELS    64
#define CLASSES   10
#define WEIGHTS   (PIXELS * CLASSES)
#define SAMPLES   4096 /* maximum number of samples that are read */
#define TEST_EACH 5    /* every fifth sample is for the test */
#define U         0x1p-24

struct sample {
	double x[PIXELS]; /* grey values of the pixels, 0 to 1 */
	unsigned label;
};

struct digits_options {
	unsigned epochs, batch, seed;
	double lr;
	const char *data, *weights_out;
};

struct digits_trainer {
	struct digits_options o;
	struct bps *b;
	int rank, size;
	struct sample *train, *test;
	size_t n_train, n_test;
	uint64_t random;
	float weight[WEIGHTS], bias[CLASSES]; /* weight: stored class by class */
	/* largest norm of weights and biases, over all steps */
	double max_norm;
	unsigned steps;
	struct bps_tensor *t_weight, *t_bias, *t_loss;
};

static int print_bps_last_error(const char *what)
{
	fprintf(stderr, "bps-digits: %s: %s\n", what, bps_last_error());
	return -1;
}

/* ---- data ---- */

static int parse_sample_line(char *line, struct sample *s)
{
	char *p = line, *end;
	long v;

	for (int i = 0; i <= PIXELS; i++, p = end + 1) {
		v = strtol(p, &end, 10);
		if (end == p || v < 0 || v > (i < PIXELS ? 16 : CLASSES - 1) ||
			(i < PIXELS && *end != ','))
			return -1;
		if (i < PIXELS)
			s->x[i] = (double)v / 16;
		else
			s->label = (unsigned)v;
	}
	return 0;
}

/* Open the file of samples. If path is NULL, try three paths. The first path leads to the file in
 * the source tree, if the working directory is the top of this tree. The second path leads to the
 * same file, but starts at the program's folder. The third path leads from the program's folder to
 * the installed file. */
static FILE *open_sample_file(const char *path)
{
	static const char *const places[] = {"libbpsclient/examples/digits.csv",
		"../../libbpsclient/examples/digits.csv", "../share/bps/digits.csv"};
	char exe[2048], full[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	FILE *f = fopen(path ? path : places[0], "r");

	exe[n > 0 ? n : 0] = 0;
	if (strrchr(exe, '/'))
		*strrchr(exe, '/') = 0;
	for (unsigned i = 1; !f && !path && i < 3; i++) {
		snprintf(full, sizeof(full), "%s/%s", exe, places[i]);
		f = fopen(full, "r");
	}
	return f;
}

static int read_sample_file(struct digits_trainer *t)
{
	FILE *f = open_sample_file(t->o.data);
	char line[1024];
	unsigned n;
	int rc = 0;

	t->train = calloc(SAMPLES, sizeof(*t->train));
	t->test = calloc(SAMPLES, sizeof(*t->test));
	if (!f || !t->train || !t->test) {
		fprintf(stderr, "bps-digits: cannot read %s: %s\n",
			t->o.data ? t->o.data : "digits.csv (see --data)", strerror(errno));
		if (f)
			fclose(f);
		return -1;
	}
	for (n = 0; !rc && n < SAMPLES && fgets(line, sizeof(line), f); n++) {
		if (n % TEST_EACH == TEST_EACH - 1)
			rc = parse_sample_line(line, &t->test[t->n_test++]);
		else
			rc = parse_sample_line(line, &t->train[t->n_train++]);
	}
	fclose(f);
	if (rc || !t->n_train || !t->n_test) {
		fprintf(stderr,
			"bps-digits: line %u of the samples does not have 64 pixels and a label\n",
			n);
		return -1;
	}
	return 0;
}

/* xorshift64*: Vigna, An experimental exploration of Marsaglia's xorshift generators, 2016. */
static uint64_t generate_random_number(struct digits_trainer *t)
{
	t->random ^= t->random >> 12;
	t->random ^= t->random << 25;
	t->random ^= t->random >> 27;
	return t->random * 2685821657736338717ull;
}

static void shuffle_sample_order(struct digits_trainer *t, unsigned *order)
{
	unsigned j, swap;

	for (unsigned i = (unsigned)t->n_train - 1; i > 0; i--) {
		j = (unsigned)(generate_random_number(t) % (i + 1));
		swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
}

/* ---- model ---- */

/* Compute the probability p[c] of each class c for a sample. Returns the sample's loss. */
static double compute_class_probabilities(
	const struct digits_trainer *t, const struct sample *s, double *p)
{
	double max = -INFINITY, sum = 0;

	for (unsigned c = 0; c < CLASSES; c++) {
		p[c] = (double)t->bias[c];
		for (unsigned i = 0; i < PIXELS; i++)
			p[c] += (double)t->weight[c * PIXELS + i] * s->x[i];
		max = fmax(max, p[c]);
	}
	for (unsigned c = 0; c < CLASSES; c++)
		sum += p[c] = exp(p[c] - max);
	for (unsigned c = 0; c < CLASSES; c++)
		p[c] /= sum;
	return -log(fmax(p[s->label], 1e-300));
}

struct gradient {
	double weight[WEIGHTS], bias[CLASSES], loss;
};

static void gradient_add_sample(
	const struct digits_trainer *t, const struct sample *s, struct gradient *g)
{
	double p[CLASSES], d;

	g->loss += compute_class_probabilities(t, s, p);
	for (unsigned c = 0; c < CLASSES; c++) {
		d = p[c] - (c == s->label);
		g->bias[c] += d;
		for (unsigned i = 0; i < PIXELS; i++)
			g->weight[c * PIXELS + i] += d * s->x[i];
	}
}

static void write_rounded_tensor_input(struct bps_tensor *t, const double *values, unsigned n)
{
	float *in = bps_input(t);

	for (unsigned i = 0; i < n; i++)
		in[i] = (float)values[i];
}

/* Do one gradient step on n weights: w -= rate * sum, in double, rounded once to float. Returns the
 * sum of the squares of the new weights. */
static double update_weights_by_gradient(float *w, const float *sum, unsigned n, double rate)
{
	double squares = 0;

	for (unsigned i = 0; i < n; i++) {
		w[i] = (float)((double)w[i] - rate * (double)sum[i]);
		squares += (double)w[i] * (double)w[i];
	}
	return squares;
}

/* Do one step on a global batch of n samples. This worker computes the gradients of its share of
 * the samples. Adds the batch's loss to *loss. */
static int train_global_batch(
	struct digits_trainer *t, const unsigned *batch, unsigned n, double *loss)
{
	struct bps_tensor *tensors[] = {t->t_weight, t->t_bias, t->t_loss};
	unsigned first = (unsigned)((uint64_t)n * (unsigned)t->rank / (unsigned)t->size);
	unsigned end = (unsigned)((uint64_t)n * ((unsigned)t->rank + 1) / (unsigned)t->size);
	struct gradient g = {.loss = 0};
	double rate = t->o.lr / n, norm;

	for (unsigned i = first; i < end; i++)
		gradient_add_sample(t, &t->train[batch[i]], &g);
	write_rounded_tensor_input(t->t_weight, g.weight, WEIGHTS);
	write_rounded_tensor_input(t->t_bias, g.bias, CLASSES);
	*(double *)bps_input(t->t_loss) = g.loss;
	if (bps_push_pull_group(tensors, 3, BPS_SUM, BPS_PRIORITY_AUTO) < 0 ||
		bps_wait_group(tensors, 3, 0) < 0)
		return print_bps_last_error("cannot sum the gradients");
	norm = update_weights_by_gradient(t->weight, bps_output(t->t_weight), WEIGHTS, rate);
	norm += update_weights_by_gradient(t->bias, bps_output(t->t_bias), CLASSES, rate);
	t->max_norm = fmax(t->max_norm, sqrt(norm));
	t->steps++;
	*loss += *(const double *)bps_output(t->t_loss);
	return 0;
}

static void print_epoch_progress(const struct digits_trainer *t, unsigned epoch, double loss)
{
	bool is_tty = isatty(STDOUT_FILENO);

	if (t->rank || (!is_tty && epoch % 5 && epoch != t->o.epochs))
		return;
	printf("%sepoch %u of %u, loss %.4f%s", is_tty ? "\r" : "", epoch, t->o.epochs, loss,
		is_tty && epoch < t->o.epochs ? "" : "\n");
	fflush(stdout);
}

static int train_all_epochs(struct digits_trainer *t, double *ret_loss)
{
	unsigned *order = calloc(t->n_train, sizeof(*order)), n;
	double loss = 0;
	int rc = order ? 0 : -1;

	for (unsigned i = 0; order && i < t->n_train; i++)
		order[i] = i;
	for (unsigned e = 1; !rc && e <= t->o.epochs; e++) {
		shuffle_sample_order(t, order);
		loss = 0;
		for (unsigned at = 0; !rc && at < t->n_train; at += n) {
			n = (unsigned)t->n_train - at < t->o.batch ? (unsigned)t->n_train - at
								   : t->o.batch;
			rc = train_global_batch(t, order + at, n, &loss);
		}
		loss /= (double)t->n_train;
		if (!rc)
			print_epoch_progress(t, e, loss);
	}
	*ret_loss = loss;
	free(order);
	return rc;
}

static unsigned count_correct_test_samples(const struct digits_trainer *t)
{
	double p[CLASSES];
	unsigned right = 0, best;

	for (size_t s = 0; s < t->n_test; s++) {
		compute_class_probabilities(t, &t->test[s], p);
		best = 0;
		for (unsigned c = 1; c < CLASSES; c++)
			best = p[c] > p[best] ? c : best;
		right += best == t->test[s].label;
	}
	return right;
}

/* Return the largest norm of all input vectors. The opening comment calls this value X. Each vector
 * also has the element 1 for the bias. */
static double compute_largest_input_norm(const struct digits_trainer *t)
{
	double largest = 0, squares;

	for (size_t s = 0; s < t->n_train; s++) {
		squares = 1;
		for (unsigned i = 0; i < PIXELS; i++)
			squares += t->train[s].x[i] * t->train[s].x[i];
		largest = fmax(largest, squares);
	}
	return sqrt(largest);
}

/* ---- program ---- */

static int init_weights_and_tensors(struct digits_trainer *t)
{
	const size_t size = sizeof(struct bps_decl);
	const struct bps_decl decls[] = {
		{.size = size, .name = "digits.weight", .dtype = BPS_F32, .n_values = WEIGHTS},
		{.size = size, .name = "digits.bias", .dtype = BPS_F32, .n_values = CLASSES},
		{.size = size, .name = "digits.loss", .dtype = BPS_F64, .n_values = 1}};
	struct bps_tensor *tensors[3];

	t->random = 0x9e3779b97f4a7c15ull ^ t->o.seed;
	for (unsigned i = 0; i < WEIGHTS; i++)
		t->weight[i] =
			(float)(((double)(generate_random_number(t) >> 11) * 0x1p-53 - 0.5) * 0.1);
	if (bps_declare_group(t->b, decls, 3, tensors) < 0)
		return print_bps_last_error("cannot declare the tensors");
	t->t_weight = tensors[0];
	t->t_bias = tensors[1];
	t->t_loss = tensors[2];
	if (bps_broadcast(t->b, t->weight, sizeof(t->weight), 0, 0) < 0)
		return print_bps_last_error("cannot broadcast the weights");
	return 0;
}

static int write_weights_file(const struct digits_trainer *t)
{
	FILE *f;
	bool ok;

	if (t->rank || !t->o.weights_out)
		return 0;
	f = fopen(t->o.weights_out, "wb");
	ok = f && fwrite(t->weight, sizeof(float), WEIGHTS, f) == WEIGHTS &&
	     fwrite(t->bias, sizeof(float), CLASSES, f) == CLASSES;
	if (f && fclose(f))
		ok = false;
	if (!ok)
		fprintf(stderr, "bps-digits: cannot write '%s': %s\n", t->o.weights_out,
			strerror(errno));
	return ok ? 0 : -1;
}

static void print_training_result(const struct digits_trainer *t, double loss)
{
	double x = compute_largest_input_norm(t);
	unsigned right = count_correct_test_samples(t);

	if (t->rank)
		return;
	printf("workers %d, steps %u, loss %.6f, test accuracy %.2f %% (%u of %zu)\n", t->size,
		t->steps, loss, 100.0 * right / (double)t->n_test, right, t->n_test);
	if (t->o.lr <= 4 / (x * x))
		printf("tolerance %.3g\n",
			t->steps * U * (t->o.lr * (t->size + 1) * sqrt(2) * x + 2 * t->max_norm));
	else
		printf("tolerance none: the learning rate is above %.3g\n", 4 / (x * x));
}

static int run_training_job(struct digits_trainer *t)
{
	double loss;

	if (bps_open(NULL, &t->b) < 0)
		return print_bps_last_error("cannot join the job");
	t->rank = bps_rank(t->b);
	t->size = bps_size(t->b);
	if (init_weights_and_tensors(t) < 0 || train_all_epochs(t, &loss) < 0) {
		bps_abort(t->b);
		return -1;
	}
	print_training_result(t, loss);
	if (write_weights_file(t) < 0) {
		bps_abort(t->b);
		return -1;
	}
	return bps_close(t->b, 0) < 0 ? print_bps_last_error("cannot leave the job") : 0;
}

static const char usage[] =
	"usage: bps-digits [--epochs N] [--batch N] [--lr RATE] [--seed N] [--data FILE]\n"
	"                  [--weights-out FILE]\n";

static int parse_digits_options(int argc, char **argv, struct digits_options *o)
{
	static const struct option names[] = {{"epochs", required_argument, NULL, 'e'},
		{"batch", required_argument, NULL, 'b'}, {"lr", required_argument, NULL, 'l'},
		{"seed", required_argument, NULL, 's'}, {"data", required_argument, NULL, 'd'},
		{"weights-out", required_argument, NULL, 'w'}, {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}};
	int c;

	while ((c = getopt_long(argc, argv, "h", names, NULL)) >= 0) {
		if (c == 'e')
			o->epochs = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'b')
			o->batch = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'l')
			o->lr = strtod(optarg, NULL);
		else if (c == 's')
			o->seed = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'd')
			o->data = optarg;
		else if (c == 'w')
			o->weights_out = optarg;
		else
			return -1;
	}
	if (!o->epochs || !o->batch || !(o->lr > 0)) {
		fputs("bps-digits: --epochs, --batch and --lr must be numbers above 0\n", stderr);
		return -1;
	}
	return optind == argc ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct digits_trainer *t = calloc(1, sizeof(*t));
	int rc = -1;

	if (!t)
		return 1;
	t->o = (struct digits_options){.epochs = 30, .batch = 64, .seed = 1, .lr = 0.15};
	if (parse_digits_options(argc, argv, &t->o) < 0) {
		fputs(usage, stderr);
		free(t);
		return 2;
	}
	if (read_sample_file(t) == 0)
		rc = run_training_job(t);
	free(t->test);
	free(t->train);
	free(t);
	return rc ? 1 : 0;
}
