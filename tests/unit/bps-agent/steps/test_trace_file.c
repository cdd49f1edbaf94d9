/* The file of a trace (bps-agent/steps/trace_file.h): valid JSON whose slices nest. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>
#include <jansson.h>

#include "bps-agent/steps/trace_file.h"

#define EPOCH INT64_C(1700000000000000000)

static char two[] = "layer \"two\"\n", latin[] = "caf\xe9", s2[] = "s2";
static struct trace_tensor tensors[] = {{7, two, 400}, {3, latin, 800}};
static struct trace_server servers[] = {{2, s2}};
static struct trace_machine machines[] = {{"node00", "a0"}, {"node00", "a1"}};

/* Write the trace of n records, and parse it. */
static json_t *trace_of(struct round_record *records, size_t n)
{
	struct trace_content c = {.job = "j\\1",
		.here = &machines[0],
		.pid = 99,
		.epoch_ns = EPOCH,
		.records = records,
		.n_records = n,
		.n_lost = 4,
		.tensors = tensors,
		.n_tensors = 2,
		.servers = servers,
		.n_servers = 1,
		.machines = machines,
		.n_machines = 2};
	char *text = NULL;
	size_t n_text = 0;
	FILE *out = open_memstream(&text, &n_text);
	json_error_t error;
	json_t *root;

	assert_non_null(out);
	assert_int_equal(trace_file_write(out, &c), 0);
	assert_int_equal(fclose(out), 0);
	root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		fail_msg("line %d: %s", error.line, error.text);
	free(text);
	return root;
}

/* Return the n-th slice with this category and name (NULL: any); NULL: there is none. */
static json_t *slice(json_t *root, const char *kind, const char *name, unsigned n)
{
	json_t *e;
	size_t i;

	json_array_foreach (json_object_get(root, "traceEvents"), i, e) {
		const char *cat = json_string_value(json_object_get(e, "cat"));

		if (cat && strcmp(cat, kind) == 0 &&
			(!name ||
				strcmp(json_string_value(json_object_get(e, "name")), name) == 0) &&
			n-- == 0)
			return e;
	}
	return NULL;
}

static double number(json_t *e, const char *key)
{
	return json_number_value(json_object_get(e, key));
}

static void expect_slice(json_t *e, double ts, double dur)
{
	assert_non_null(e);
	assert_true(number(e, "ts") > ts - 1e-6 && number(e, "ts") < ts + 1e-6);
	assert_true(number(e, "dur") > dur - 1e-6 && number(e, "dur") < dur + 1e-6);
	assert_int_equal(number(e, "pid"), 99);
}

static struct round_record round_at(uint64_t us, uint64_t round, uint32_t tensor)
{
	return (struct round_record){.began_ns = 1000 * us + 250,
		.round = round,
		.tensor = tensor,
		.server = 2,
		.part = 5,
		.waited_us = 30,
		.submitted_us = 10,
		.pushed_us = 20,
		.offered_us = 50,
		.done_us = 60,
		.wait_us = 10,
		.sum_us = 10,
		.last_member = 2};
}

static void round_has_its_phases_and_names(void **state)
{
	struct round_record r = round_at(100, 1, 7);
	json_t *root = trace_of(&r, 1), *e;

	(void)state;
	assert_int_equal(
		json_integer_value(json_object_get(root, "baseTimeNanoseconds")), EPOCH + 100250);
	e = slice(root, "round", "layer \"two\"\n", 0);
	expect_slice(e, 0, 60);
	assert_int_equal(number(json_object_get(e, "args"), "bytes"), 400);
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(e, "args"), "server")), "s2");
	expect_slice(slice(root, "wait", "local", 0), 0, 10);
	expect_slice(slice(root, "work", "queue", 0), 10, 10);
	expect_slice(slice(root, "work", "push", 0), 20, 10);
	e = slice(root, "wait", "wait", 0);
	expect_slice(e, 30, 10);
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(e, "args"), "for")), "node00");
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(e, "args"), "agent")), "a1");
	expect_slice(slice(root, "work", "sum", 0), 40, 10);
	expect_slice(slice(root, "work", "pull", 0), 50, 10);
	expect_slice(slice(root, "wait", "layer \"two\"\n", 0), 30, 30);
	assert_null(slice(root, "step", NULL, 0));
	json_decref(root);
}

static void rounds_at_the_same_time_are_in_different_rows(void **state)
{
	/* the records are not in the order of their starts */
	struct round_record r[] = {round_at(200, 2, 3), round_at(100, 1, 7), round_at(130, 1, 3),
		round_at(300, 3, 7), round_at(260, 2, 7)};
	json_t *root = trace_of(r, 5);
	double row, first_end = -1;

	(void)state;
	/* a name that is not UTF-8 has a ? in place of each such byte */
	assert_non_null(slice(root, "round", "caf?", 1));
	row = number(slice(root, "round", NULL, 0), "tid");
	assert_true(number(slice(root, "round", NULL, 1), "tid") == row + 1);
	for (unsigned i = 0; slice(root, "round", NULL, i); i++) {
		json_t *e = slice(root, "round", NULL, i);

		if (number(e, "tid") != row)
			continue;
		assert_true(number(e, "ts") >= first_end);
		first_end = number(e, "ts") + number(e, "dur");
	}
	json_decref(root);
}

/* A second model begins with round 1 again. Its steps follow those of the first one. */
static void steps_of_a_second_model_follow(void **state)
{
	static const char *const names[] = {"step 8", "step 9", "step 1", "step 2"};
	struct round_record r[] = {round_at(100, 8, 7), round_at(200, 9, 7), round_at(300, 1, 3),
		round_at(310, 9, 9), round_at(400, 2, 3), round_at(500, 3, 3)};
	json_t *root;

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		r[i].is_first_of_step = i != 3;
	root = trace_of(r, 6);
	for (unsigned i = 0; i < 4; i++) {
		json_t *e = slice(root, "step", NULL, i);

		expect_slice(e, 100 * i, 100);
		assert_string_equal(json_string_value(json_object_get(e, "name")), names[i]);
	}
	assert_null(slice(root, "step", NULL, 4));
	json_decref(root);
}

/* The times of a trainer may be anything. */
static void wait_is_not_longer_than_its_round(void **state)
{
	struct round_record r = round_at(100, 1, 9);
	json_t *root;

	(void)state;
	r.waited_us = UINT32_MAX;
	r.last_member = 3;
	root = trace_of(&r, 1);
	expect_slice(slice(root, "wait", "?", 0), 0, 60);
	assert_null(json_object_get(slice(root, "wait", "wait", 0), "args"));
	json_decref(root);
}

static void trace_without_rounds_is_valid(void **state)
{
	json_t *root = trace_of(NULL, 0), *bps = json_object_get(root, "bps");

	(void)state;
	assert_int_equal(number(bps, "records"), 0);
	assert_int_equal(number(bps, "lost"), 4);
	assert_string_equal(json_string_value(json_object_get(bps, "job")), "j\\1");
	assert_string_equal(json_string_value(json_object_get(bps, "agent")), "a0");
	json_decref(root);
}

static void trace_that_cannot_be_written_is_an_error(void **state)
{
	static struct round_record many[200];
	struct trace_content c = {
		.job = "j", .here = &machines[0], .records = many, .n_records = 200};
	struct rlimit old, small = {8192, RLIM_INFINITY};
	FILE *out = tmpfile();

	(void)state;
	assert_non_null(out);
	/* The first bytes can be written, and the last buffer is empty. */
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small.rlim_max = old.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	for (unsigned i = 0; i < 200; i++)
		many[i] = (struct round_record){.began_ns = 1000, .round = i + 1, .done_us = 5};
	assert_int_equal(trace_file_write(out, &c), -EIO);
	setrlimit(RLIMIT_FSIZE, &old);
	fclose(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_has_its_phases_and_names),
		cmocka_unit_test(rounds_at_the_same_time_are_in_different_rows),
		cmocka_unit_test(steps_of_a_second_model_follow),
		cmocka_unit_test(wait_is_not_longer_than_its_round),
		cmocka_unit_test(trace_without_rounds_is_valid),
		cmocka_unit_test(trace_that_cannot_be_written_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
