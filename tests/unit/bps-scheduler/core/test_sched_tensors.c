/* Tensors in the scheduler's core: which declarations must agree, and where partitions are
 * placed. */
#include "tests/unit/sched_world.h"

static void tensor_is_planned_when_all_agents_agree(void **state)
{
	struct sched_world w;
	const char *server_plan, *agent_plan;

	(void)state;
	running_job(&w);
	server_plan = strstr(w.log, "11 PLAN job=1 0=w");
	agent_plan = strstr(w.log, "21 PLAN job=1 0=w");
	assert_non_null(server_plan);
	assert_non_null(agent_plan);
	assert_true(server_plan < agent_plan);
	SAID(&w, "12 PLAN job=1 0=w");
	SAID(&w, "22 PLAN job=1 0=w");
	clear(&w);
	/* declared again, because the answer was lost */
	declare(&w, 22, 1, "w", DTYPE_F32, 400000);
	SAID(&w, "22 PLAN job=1 0=w [0:");
	NOT_SAID(&w, "21 ");
	world_fini(&w);
}

static void tensors_of_one_message_share_a_plan_and_a_view(void **state)
{
	struct sched_world w;
	struct ctl_decl d[2] = {{0, "v1", shape_from_dtype_and_count(DTYPE_F16, 100), 0},
		{0, "v2", shape_from_dtype_and_count(DTYPE_F16, 200), 0}};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, 2}};
	uint64_t view;

	(void)state;
	running_job(&w);
	send_msg(&w, 21, &msg);
	view = sched_current_view(w.core);
	clear(&w);
	d[0].rank = d[1].rank = 1;
	send_msg(&w, 22, &msg);
	SAID(&w, "21 PLAN job=1 1=v1 2=v2 [1:0+1");
	assert_true(sched_current_view(w.core) == view + 1);
	world_fini(&w);
}

/* Declare n tensors of f32 on both machines of a job that has no tensors yet. */
static void declare_all(
	struct sched_world *w, const char *const *names, const uint64_t *n_elems, uint32_t n)
{
	struct ctl_decl d[4];
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, n}};

	world_init(w);
	server(w, 11, "s1", 101);
	server(w, 12, "s2", 102);
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
	for (uint32_t rank = 0; rank < 2; rank++)
		join(w, 21 + rank, rank, 2, 10 + rank);
	for (uint32_t rank = 0; rank < 2; rank++) {
		for (uint32_t i = 0; i < n; i++)
			d[i] = (struct ctl_decl){rank, names[i],
				shape_from_dtype_and_count(DTYPE_F32, n_elems[i]), 0};
		send_msg(w, 21 + rank, &msg);
	}
}

static void largest_tensor_of_one_message_is_placed_first(void **state)
{
	struct sched_world w;

	(void)state;
	declare_all(&w, (const char *[]){"p", "q", "r"}, (uint64_t[]){8192, 8192, 16384}, 3);
	SAID(&w, "21 PLAN job=1 0=p 1=q 2=r [0:0+1 s2 i102] [1:0+1 s2 i102] [2:0+1 s1 i101]");
	world_fini(&w);
}

static void equal_tensors_of_one_message_are_placed_one_after_the_other(void **state)
{
	struct sched_world w;

	(void)state;
	declare_all(&w, (const char *[]){"p", "q"}, (uint64_t[]){32768, 32768}, 2);
	SAID(&w, "21 PLAN job=1 0=p 1=q [0:0+1 s1 i101] [0:1+1 s2 i102] [1:0+1 s1 i101] [1:1+1 "
		 "s2 i102]");
	world_fini(&w);
}

/* A machine that is admitted late receives the places of the existing tensors only in the answer to
 * its DECLARE. */
static void placed_tensor_that_is_declared_beside_a_new_one_is_planned_too(void **state)
{
	struct sched_world w;
	struct ctl_decl d[2] = {{1, "v", shape_from_dtype_and_count(DTYPE_F16, 100), 0},
		{1, "w", shape_from_dtype_and_count(DTYPE_F32, 400000), 0}};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, 2}};

	(void)state;
	running_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F16, 100);
	clear(&w);
	send_msg(&w, 22, &msg);
	SAID(&w, "21 PLAN job=1 1=v [1:0+1");
	SAID(&w, "22 PLAN job=1 1=v [1:0+1");
	SAID(&w, "22 PLAN job=1 0=w [0:0+");
	NOT_SAID(&w, "21 PLAN job=1 0=w");
	clear(&w);
	/* Agent 22 declares v again. The previous answer already had the plan of w, so this answer
	 * must not repeat it. */
	declare(&w, 22, 1, "v", DTYPE_F16, 100);
	NOT_SAID(&w, "0=w");
	world_fini(&w);
}

static void tensor_that_is_declared_while_the_state_cannot_be_written_is_planned_then(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F16, 100);
	w.persist_error = -ENOSPC;
	declare(&w, 22, 1, "v", DTYPE_F16, 100);
	clear(&w);
	declare(&w, 22, 1, "w", DTYPE_F32, 400000);
	NOT_SAID(&w, "PLAN");
	w.persist_error = 0;
	pass(&w, 1000, everybody);
	SAID(&w, "22 PLAN job=1 0=w 1=v [0:0+");
	world_fini(&w);
}

static void mismatched_declaration_fails_that_tensor_for_all(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 1000);
	declare(&w, 22, 1, "v", DTYPE_F32, 1001);
	SAID(&w, "21 TENSOR_FAIL v code=10003 tensor 'v' of job 'x': rank 0 (host a) declares f32 x"
		 " 1000, rank 1 (host b) declares f32 x 1001\nCAUSE rank=1 host=b\n");
	SAID(&w, "22 TENSOR_FAIL v code=10003");
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 1000);
	SAID(&w, "21 TENSOR_FAIL v code=10003");
	/* "w" is already placed, and this declaration of "w" differs from the first one */
	declare(&w, 21, 0, "w", DTYPE_F16, 400000);
	SAID(&w, "21 TENSOR_FAIL w code=10003");
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

/* The hosts, the job and the tensor have the longest names. */
static void mismatch_is_described_up_to_the_longest_text(void **state)
{
	char job[CTL_JOB_NAME_MAX + 1], tensor[CTL_TENSOR_NAME_MAX + 1], host[CTL_NAME_MAX + 1];
	struct ctl_msg msg = {.type = CTL_JOIN, .join = {.job = job, .size = 2}};
	struct sched_world w;
	const char *text;

	(void)state;
	snprintf(job, sizeof(job), "%0*d", CTL_JOB_NAME_MAX, 0);
	snprintf(tensor, sizeof(tensor), "%0*d", CTL_TENSOR_NAME_MAX, 1);
	world_init(&w);
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(host, sizeof(host), "%0*u", CTL_NAME_MAX, i);
		agent(&w, 21 + i, host, 201 + i);
		msg.join.rank = msg.join.pid = i;
		send_msg(&w, 21 + i, &msg);
	}
	declare(&w, 21, 0, tensor, DTYPE_F32, 1000);
	declare(&w, 22, 1, tensor, DTYPE_F32, 1001);
	text = strstr(w.log, "code=10003 tensor '0000");
	assert_non_null(text);
	assert_int_equal(strcspn(text + strlen("code=10003 "), "\n"), CTL_TEXT_MAX);
	world_fini(&w);
}

/* The workers end because a tensor has failed. The text for the end of the job must therefore name
 * the failed tensor as the first cause, not only the worker that was lost first. */
static void job_that_ends_after_a_failed_tensor_names_it(void **state)
{
	struct ctl_msg lost = {.type = CTL_WORKER,
		.worker = {
			.job = 1, .rank = 1, .event = WORKER_LOST, .text = "it closed its socket"}};
	struct sched_world w;

	(void)state;
	running_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 1000);
	declare(&w, 22, 1, "v", DTYPE_F32, 1001);
	declare(&w, 21, 0, "u", 99, 10);
	clear(&w);
	send_msg(&w, 22, &lost);
	SAID(&w, "was lost: it closed its socket; first: tensor 'v' of job 'x': rank 0 (host a)"
		 " declares f32 x 1000, rank 1 (host b) declares f32 x 1001\n");
	world_fini(&w);
}

/* The agent of machine b declares two shapes, because its workers disagree. The worker of machine a
 * declares one of these shapes. */
static void workers_of_one_machine_that_disagree_fail_it_for_all(void **state)
{
	struct ctl_decl d[2] = {{1, "v", shape_from_dtype_and_count(DTYPE_F32, 1000), 0},
		{1, "v", shape_from_dtype_and_count(DTYPE_F32, 500), 0}};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, 2}};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct sched_world w;

		running_job(&w);
		clear(&w);
		declare(&w, 21, 0, "v", DTYPE_F32, i ? 500 : 1000);
		send_msg(&w, 22, &msg);
		SAID(&w, "21 TENSOR_FAIL v code=10003");
		SAID(&w, "22 TENSOR_FAIL v code=10003");
		NOT_SAID(&w, "PLAN job=1 1=v");
		world_fini(&w);
	}
}

static void impossible_declarations_are_refused(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	declare(&w, 21, 0, "v", 99, 10);
	SAID(&w, "21 TENSOR_FAIL v code=22");
	declare(&w, 21, 0, "u", DTYPE_F64, UINT64_MAX / 4);
	SAID(&w, "21 TENSOR_FAIL u code=10012");
	declare(&w, 21, 1, "v", DTYPE_F32, 10); /* a rank that belongs to another agent */
	SAID(&w, "21 DROP");
	world_fini(&w);
}

/* A message declares a name in two shapes, and the scheduler refuses the first shape. If the
 * scheduler placed the second shape, servers would have a tensor for which the agent has no memory
 * (C9). */
static void name_of_a_refused_declaration_is_not_placed_in_another_shape(void **state)
{
	struct ctl_decl d[2] = {
		{0, "v", shape_from_dtype_and_count(DTYPE_F64, UINT64_C(1) << 38), 0},
		{0, "v", shape_from_dtype_and_count(DTYPE_U8, 1000), 0}};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, 2}};
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 TENSOR_FAIL v code=10012 tensor 'v' of job 'x': f64 x 274877906944 is larger "
		 "than the limit of 1024 GiB for one tensor");
	clear(&w);
	declare(&w, 22, 1, "v", DTYPE_U8, 1000);
	SAID(&w, "22 TENSOR_FAIL v code=10012");
	declare(&w, 21, 0, "v", DTYPE_U8, 1000);
	SAID(&w, "21 TENSOR_FAIL v code=10012");
	NOT_SAID(&w, "PLAN");
	world_fini(&w);
}

/* The refused declaration follows a valid one of the same name. */
static void unsound_declaration_of_a_name_that_is_declared_fails_it_for_all(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_U8, 1000);
	declare(&w, 22, 1, "v", DTYPE_F64, UINT64_C(1) << 38);
	SAID(&w, "21 TENSOR_FAIL v code=10003");
	SAID(&w, "22 TENSOR_FAIL v code=10003");
	NOT_SAID(&w, "PLAN");
	world_fini(&w);
}

/* A restart of the scheduler forgets that it refused a tensor to agent a. Agent a repeats the
 * refusal. */
static void refused_tensor_stays_refused_after_a_restart(void **state)
{
	static const char text[] = "TENSOR_FAIL v code=10012 tensor 'v' of job 'x' has failed on "
				   "host a already: a quota is exhausted; see the first error on "
				   "that host\n";

	(void)state;
	for (unsigned first = 0; first < 2; first++) {
		struct sched_world w;

		running_job(&w);
		kill_scheduler(&w);
		server(&w, 11, "s1", 111);
		agent(&w, 21, "a", 201);
		agent(&w, 22, "b", 202);
		clear(&w);
		if (first)
			declare(&w, 22, 1, "v", DTYPE_F32, 1000);
		declare_failed(&w, 21, 0, "v", DTYPE_F32, 1000, (uint32_t)-BPS_EQUOTA);
		SAID(&w, text);
		if (!first)
			declare(&w, 22, 1, "v", DTYPE_F32, 1000);
		SAID(&w, "22 TENSOR_FAIL v code=10012");
		declare(&w, 21, 0, "v", DTYPE_F32, 1000);
		NOT_SAID(&w, "PLAN job=1 1=v");
		NOT_SAID(&w, "JOB_END");
		world_fini(&w);
	}
}

/* An agent can report a code that is no error code. It must not reach trainers as a success. */
static void failed_tensor_with_an_impossible_code_is_refused(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	declare(&w, 22, 1, "v", DTYPE_F32, 1000);
	declare_failed(&w, 21, 0, "v", DTYPE_F32, 1000, UINT32_MAX);
	SAID(&w, "22 TENSOR_FAIL v code=10021");
	/* A tensor that has its place keeps it: all agents once declared it. */
	declare_failed(&w, 21, 0, "w", DTYPE_F32, 400000, ENOMEM);
	SAID(&w, "21 PLAN job=1 0=w");
	NOT_SAID(&w, "TENSOR_FAIL w");
	world_fini(&w);
}

static void job_of_one_member_needs_no_server(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	join(&w, 21, 1, 2, 11);
	clear(&w);
	declare(&w, 21, 0, "w", DTYPE_F32, 1 << 20);
	SAID(&w, "21 PLAN job=1 0=w\n");
	world_fini(&w);
}

static void long_plans_are_sent_in_frames(void **state)
{
	struct sched_world w;
	struct ctl_decl *d = calloc(CTL_LIST_MAX, sizeof(*d));
	char(*names)[CTL_TENSOR_NAME_MAX + 1] = calloc(CTL_LIST_MAX, sizeof(*names));
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, CTL_LIST_MAX}};

	(void)state;
	running_job(&w);
	for (uint32_t i = 0; i < CTL_LIST_MAX; i++) {
		memset(names[i], 'n', CTL_TENSOR_NAME_MAX);
		snprintf(names[i], sizeof(names[i]), "%0200u", i);
		d[i] = (struct ctl_decl){
			0, names[i], shape_from_dtype_and_count(DTYPE_F32, 5000), 0};
	}
	send_msg(&w, 21, &msg);
	for (uint32_t i = 0; i < CTL_LIST_MAX; i++)
		d[i].rank = 1;
	clear(&w);
	send_msg(&w, 22, &msg);
	SAID(&w, "[4096:0+1 s"); /* tensor "w" has id 0, so the new ids start at 1 */
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "[4096:0+1 s");
	free(names);
	free(d);
	world_fini(&w);
}

static void partitions_of_a_dead_server_move_to_the_others(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	close_conn(&w, 11);
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "12 PLAN job=1 0=w [0:");
	SAID(&w, "21 PLAN job=1 0=w [0:");
	NOT_SAID(&w, " s1 ");
	SAID(&w, " s2 ");
	world_fini(&w);
}

static void restarted_server_keeps_its_partitions_under_a_new_pgen(void **state)
{
	struct sched_world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_current_view(w.core);
	clear(&w);
	server(&w, 31, "s1", 111);
	assert_true(sched_current_view(w.core) == view + 1);
	SAID(&w, "31 PLAN job=1 0=w [0:");
	SAID(&w, "s1 i111]");
	SAID(&w, "21 PLAN job=1 0=w [0:");
	NOT_SAID(&w, "s2");
	world_fini(&w);
}

static void restarted_server_may_have_fewer_threads(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = hello_of(ROLE_SERVER, "s1", "s1", 111);

	(void)state;
	running_job(&w);
	msg.hello.threads = 1;
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	kill_scheduler(&w);
	world_fini(&w);
}

static void partitions_wait_while_there_is_no_server(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 11);
	close_conn(&w, 12);
	clear(&w);
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){21, 22, 0});
	SAID(&w, "none]");
	clear(&w);
	declare(&w, 21, 0, "late", DTYPE_F32, 100);
	declare(&w, 22, 1, "late", DTYPE_F32, 100);
	SAID(&w, "21 PLAN job=1 1=late [1:0+1 none]");
	clear(&w);
	server(&w, 31, "s3", 301);
	SAID(&w, "s5 i301]");
	NOT_SAID(&w, "none]");
	SAID(&w, "31 PLAN job=1 0=w 1=late");
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensor_is_planned_when_all_agents_agree),
		cmocka_unit_test(tensors_of_one_message_share_a_plan_and_a_view),
		cmocka_unit_test(largest_tensor_of_one_message_is_placed_first),
		cmocka_unit_test(equal_tensors_of_one_message_are_placed_one_after_the_other),
		cmocka_unit_test(placed_tensor_that_is_declared_beside_a_new_one_is_planned_too),
		cmocka_unit_test(
			tensor_that_is_declared_while_the_state_cannot_be_written_is_planned_then),
		cmocka_unit_test(mismatched_declaration_fails_that_tensor_for_all),
		cmocka_unit_test(mismatch_is_described_up_to_the_longest_text),
		cmocka_unit_test(job_that_ends_after_a_failed_tensor_names_it),
		cmocka_unit_test(workers_of_one_machine_that_disagree_fail_it_for_all),
		cmocka_unit_test(impossible_declarations_are_refused),
		cmocka_unit_test(name_of_a_refused_declaration_is_not_placed_in_another_shape),
		cmocka_unit_test(unsound_declaration_of_a_name_that_is_declared_fails_it_for_all),
		cmocka_unit_test(refused_tensor_stays_refused_after_a_restart),
		cmocka_unit_test(failed_tensor_with_an_impossible_code_is_refused),
		cmocka_unit_test(job_of_one_member_needs_no_server),
		cmocka_unit_test(long_plans_are_sent_in_frames),
		cmocka_unit_test(partitions_of_a_dead_server_move_to_the_others),
		cmocka_unit_test(restarted_server_keeps_its_partitions_under_a_new_pgen),
		cmocka_unit_test(restarted_server_may_have_fewer_threads),
		cmocka_unit_test(partitions_wait_while_there_is_no_server),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
