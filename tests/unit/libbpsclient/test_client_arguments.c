/* Tests of calls of the client library with invalid arguments. Each call must return an error that
 * names the argument, and must change nothing. No agent runs. */
#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "tests/unit/client_rig.h"

/* Open a job of one worker, which needs no agent. */
static struct bps *open_alone(void)
{
	struct bps *b = NULL;

	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	return b;
}

static void group_that_is_null_is_refused(void **state)
{
	struct bps *b = open_alone();
	struct bps_tensor *group[2] = {declare(b, "w", 2), NULL};

	(void)state;
	assert_int_equal(bps_push_pull_group(NULL, 2, BPS_SUM, 0), -EINVAL);
	assert_error_has("push_pull: the array of tensors is NULL");
	assert_int_equal(bps_wait_group(NULL, 2, 0), -EINVAL);
	assert_error_has("wait: the array of tensors is NULL");
	assert_int_equal(bps_wait_group(group, 2, 0), -EINVAL);
	assert_error_has("wait: the tensor at index 1 is NULL");
	assert_int_equal(bps_push_pull_group(group, 2, BPS_SUM, 0), -EINVAL);
	assert_int_equal(bps_push_pull_group(NULL, 0, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait_group(NULL, 0, 0), 0);
	assert_int_equal(bps_push_pull(group[0], BPS_SUM, 0), 0);
	assert_int_equal(bps_wait_group(group, 1, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
}

static void tensors_of_two_jobs_are_not_waited_for_together(void **state)
{
	struct bps *a = open_alone(), *b = open_alone();
	struct bps_tensor *group[2] = {declare(a, "w", 2), declare(b, "w", 2)};

	(void)state;
	assert_int_equal(bps_wait_group(group, 2, 0), -EINVAL);
	assert_error_has("wait: the tensor at index 1 is NULL or belongs to another job");
	assert_int_equal(bps_close(a, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
}

static void declaration_without_a_place_for_its_handle_is_refused(void **state)
{
	struct bps_decl d = {.size = sizeof(d), .name = "w", .dtype = BPS_F32, .n_values = 1};
	struct bps *b = open_alone();
	struct bps_tensor *t;

	(void)state;
	assert_int_equal(bps_declare(b, "w", BPS_F32, 1, NULL), -EINVAL);
	assert_error_has("declare: ret is NULL");
	assert_int_equal(bps_declare_group(b, &d, 1, NULL), -EINVAL);
	assert_int_equal(bps_declare_group(b, NULL, 1, &t), -EINVAL);
	assert_int_equal(bps_declare_group(b, NULL, 0, NULL), 0);
	/* the refused declaration has not used up the name */
	assert_int_equal(bps_declare(b, "w", BPS_F64, 1, &t), 0);
	assert_int_equal(bps_close(b, 0), 0);
}

/* A program of a later release has fields behind those of this one. */
static void declaration_of_another_size_is_read_as_far_as_it_is_known(void **state)
{
	struct later {
		struct bps_decl d;
		uint64_t field;
	} later[2] = {{{.size = sizeof(later[0]), .name = "a", .dtype = BPS_F32, .n_values = 1}, 0},
		{{.size = sizeof(later[0]), .name = "b", .dtype = BPS_F32, .n_values = 2}, 0}};
	struct bps *b = open_alone();
	struct bps_tensor *t[2];

	(void)state;
	assert_int_equal(bps_declare_group(b, &later[0].d, 2, t), 0);
	assert_int_equal(bps_count(t[1]), 2);
	later[1].field = 1;
	assert_int_equal(bps_declare_group(b, &later[0].d, 2, t), -EINVAL);
	assert_error_has("sets a field that this library does not have");
	later[1].field = 0;
	later[1].d.reserved = 1;
	assert_int_equal(bps_declare_group(b, &later[0].d, 2, t), -EINVAL);
	assert_error_has("sets a field that this library does not have");
	later[1].d.size--;
	assert_int_equal(bps_declare_group(b, &later[0].d, 2, t), -EINVAL);
	assert_error_has("`size` of declaration 1 is 63, but that of the first one is 64");
	later[0].d.size = offsetof(struct bps_decl, mode) - 1;
	assert_int_equal(bps_declare_group(b, &later[0].d, 1, t), -EINVAL);
	assert_error_has("must be sizeof(struct bps_decl), not 39");
	later[0].d.size = 4097;
	assert_int_equal(bps_declare_group(b, &later[0].d, 1, t), -EINVAL);
	assert_error_has("not 4097");
	assert_int_equal(bps_close(b, 0), 0);
}

static void questions_about_no_tensor_are_refused(void **state)
{
	struct bps *b = open_alone();
	struct bps_info info;

	(void)state;
	assert_int_equal(bps_tensor_info(NULL, &info), -EINVAL);
	assert_int_equal(bps_tensor_info(declare(b, "w", 1), NULL), -EINVAL);
	assert_error_has("tensor_info: ret is NULL");
	assert_int_equal(bps_contributors(NULL), -EINVAL);
	assert_error_has("contributors: the tensor is NULL");
	bps_options_init(NULL);
	assert_int_equal(bps_close(b, 0), 0);
}

static void collective_without_memory_or_of_too_much_is_refused(void **state)
{
	struct fake_agent *f = fake_agent_new();
	char data[8] = "abcdefg", all[8];
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_broadcast(b, NULL, 8, 0, 0), -EINVAL);
	assert_error_has("broadcast: data is NULL");
	assert_int_equal(bps_allgather(b, NULL, 8, all, 0), -EINVAL);
	assert_int_equal(bps_allgather(b, data, 8, NULL, 0), -EINVAL);
	assert_error_has("allgather: src or dst is NULL");
	assert_int_equal(bps_broadcast(b, data, SIZE_MAX, 0, 0), -EINVAL);
	assert_error_has("more than a process can address");
	assert_int_equal(bps_allgather(b, data, SIZE_MAX, all, 0), -EINVAL);
	assert_int_equal(bps_broadcast(b, NULL, 0, 0, 0), 0);
	assert_int_equal(bps_allgather(b, NULL, 0, NULL, 0), 0);
	assert_int_equal(bps_broadcast(b, data, 8, 0, 0), 0);
	assert_string_equal(data, "abcdefg");
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void every_int_has_a_text(void **state)
{
	(void)state;
	assert_string_equal(bps_strerror(INT_MIN), "unknown error -2147483648");
	assert_string_equal(bps_strerror(INT_MAX), "success");
	assert_true(strlen(bps_strerror(-INT_MAX)) > 0);
	assert_true(strlen(bps_strerror(-99999)) > 0);
}

static void sentence_is_one_line_without_control_characters(void **state)
{
	struct bps_options o;
	struct bps *b;

	(void)state;
	bps_options_init(&o);
	o.job = "a\n\033[2J\177\xc3\xa9";
	o.rank = 0;
	o.size = 2;
	o.agent_socket = "/nonexistent/\r\n.sock";
	assert_int_equal(bps_open(&o, &b), BPS_ENOAGENT);
	assert_error_has("cannot connect to '/nonexistent/?\?.sock': ");
	o.job = "\n\033[2J\177\xc3\xa9 "
		"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
		"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
	assert_int_equal(bps_open(&o, &b), -EINVAL);
	assert_error_has("job name '?\?[2J?\xc3\xa9 xx");
}

/* An option may be -1, which stands for the value from the environment. A number below -1 is an
 * error. */
static void option_below_minus_one_is_refused_by_name(void **state)
{
	struct bps_options o;
	struct bps *b;
	const struct {
		int32_t *member;
		const char *text;
	} cases[] = {
		{&o.rank, "rank -2 is below -1"},
		{&o.size, "size -2 is below -1"},
		{&o.local_rank, "local_rank -2 is below -1"},
		{&o.local_size, "local_size -2 is below -1"},
		{&o.deterministic, "deterministic -2 is below -1"},
		{&o.on_agent_loss, "on_agent_loss -2 is below -1"},
		{&o.backup, "backup -2 is below -1"},
		{&o.elastic, "elastic -2 is below -1"},
		{&o.max_size, "max_size -2 is below -1"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bps_options_init(&o);
		*cases[i].member = -2;
		assert_int_equal(bps_open(&o, &b), -EINVAL);
		assert_error_has(cases[i].text);
		assert_error_has("-1 takes the value from the environment");
	}
}

static void resume_with_a_rank_below_minus_one_is_refused(void **state)
{
	struct bps *b = open_alone();

	(void)state;
	assert_int_equal(bps_suspend(b, 0), 0);
	assert_int_equal(bps_resume(b, -2, 1), -EINVAL);
	assert_error_has("resume: rank -2 of 1 workers");
	assert_int_equal(bps_resume(b, -1, 1), 0);
	assert_int_equal(bps_close(b, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(group_that_is_null_is_refused),
		T(tensors_of_two_jobs_are_not_waited_for_together),
		T(declaration_without_a_place_for_its_handle_is_refused),
		T(declaration_of_another_size_is_read_as_far_as_it_is_known),
		T(questions_about_no_tensor_are_refused),
		T(collective_without_memory_or_of_too_much_is_refused),
		T(every_int_has_a_text),
		T(sentence_is_one_line_without_control_characters),
		T(option_below_minus_one_is_refused_by_name),
		T(resume_with_a_rank_below_minus_one_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
