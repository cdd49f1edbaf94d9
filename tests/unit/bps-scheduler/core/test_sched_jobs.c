/* Tests jobs in the scheduler's core, from the join of the first worker to the end of the job. */
#include "tests/unit/sched_world.h"

static void job_forms_when_all_ranks_are_there(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	clear(&w);
	join(&w, 22, 0, 4, 20);
	join(&w, 22, 3, 4, 21);
	join(&w, 21, 2, 4, 10);
	NOT_SAID(&w, " JOB ");
	join(&w, 21, CTL_NO_ID, 4, 11);
	SAID(&w, "21 JOINED code=0 job=1 rank=1");
	SAID(&w, "11 JOB job=1 x size=4 m0(3:0,3) m1(2:1,2)\n");
	SAID(&w, "21 JOB job=1 x size=4 m0(3:0,3) m1(2:1,2)\n");
	SAID(&w, "22 JOB job=1 x size=4 m0(3:0,3) m1(2:1,2)\n");
	world_fini(&w);
}

static void repeated_join_gets_the_same_rank(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, CTL_NO_ID, 3, 10);
	join(&w, 21, CTL_NO_ID, 3, 11);
	clear(&w);
	close_conn(&w, 21);
	agent(&w, 22, "a", 201);
	join(&w, 22, CTL_NO_ID, 3, 11); /* the agent repeats JOIN, since the answer was lost */
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	join(&w, 22, 0, 3, 10);
	SAID(&w, "22 JOINED code=0 job=1 rank=0");
	join(&w, 22, 2, 3, 12);
	join(&w, 22, 2, 3, 12); /* the same JOIN again, after the JOB message */
	NOT_SAID(&w, "code=10017");
	world_fini(&w);
}

/* When the scheduler dies, the ranks that a forming job has assigned are lost. Workers join again,
 * and the first one gets rank 0. */
static void assigned_ranks_are_assigned_anew_after_a_restart(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, CTL_NO_ID, 2, 10);
	kill_scheduler(&w);
	agent(&w, 22, "b", 202);
	join(&w, 22, CTL_NO_ID, 2, 20);
	agent(&w, 21, "a", 201);
	clear(&w);
	join(&w, 21, CTL_NO_ID, 2, 10);
	SAID(&w, "21 JOINED code=0 job=1025 rank=1");
	SAID(&w, "21 JOB job=1025 x size=2 m0(2:0) m1(1:1)");
	world_fini(&w);
}

static void repeated_join_of_a_running_job_gets_the_job_behind_its_answer(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, CTL_NO_ID, 2, 10);
	join(&w, 21, CTL_NO_ID, 2, 11);
	kill_scheduler(&w);
	agent(&w, 22, "a", 201);
	clear(&w);
	join(&w, 22, CTL_NO_ID, 2, 11);
	SAID(&w, "22 JOINED code=0 job=1 rank=1 \n22 JOB job=1 x size=2 m0(1:0,1)\n");
	world_fini(&w);
}

static void duplicate_rank_is_refused_with_the_holder(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 1, 3, 10);
	join(&w, 22, 1, 3, 20);
	SAID(&w, "22 JOINED code=10017 job=4294967295 rank=4294967295 rank 1 of job 'x' is already"
		 " taken by pid 10 on host a");
	world_fini(&w);
}

static void workers_that_disagree_are_both_named(void **state)
{
	struct sched_world w;
	struct ctl_msg msg;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 0, 3, 10);
	join(&w, 22, 1, 4, 20);
	SAID(&w, "job 'x': rank 0 (host a, pid 10) requested 3 workers, but this worker (host b, "
		 "pid 20) requests 4");
	msg = (struct ctl_msg){.type = CTL_JOIN,
		.join = {1, 1000, "x", 1, 3, JOB_DETERMINISTIC, 20, 0, .token = no_token}};
	send_msg(&w, 22, &msg);
	SAID(&w, "rank 0 (host a, pid 10) requested 0 option flags, but this worker (host b, pid "
		 "20) requests 1");
	msg.join.flags = 0;
	msg.join.part_bytes = 4096;
	send_msg(&w, 22, &msg);
	SAID(&w, "rank 0 (host a, pid 10) requested 0 partition bytes, but this worker (host b, "
		 "pid 20) requests 4096");
	world_fini(&w);
}

static void join_is_accepted_up_to_its_limits_and_refused_beyond(void **state)
{
	enum { ELASTIC = JOB_ELASTIC | JOB_SHRINK, MOST = CTL_WORKERS_MAX };
	static const struct {
		struct ctl_join q;
		const char *answer;
	} cases[] = {
		{{.job = "", .size = 1}, "code=22 job=4294967295 rank=4294967295 the name of the "
					 "job is empty"},
		{{.job = "a", .size = 0}, "code=22 job=4294967295 rank=4294967295 job 'a': 0 "
					  "workers requested, but only 1 to 65536 are possible"},
		{{.job = "a", .size = MOST + 1}, "65537 workers requested, but only 1 to 65536"},
		{{.job = "a", .size = 2, .rank = 2}, "rank 2 is too large for at most 2 workers"},
		{{.job = "a", .size = MOST, .rank = MOST - 1}, "code=0 job=1 rank=65535"},
		{{.job = "b", .size = 2, .rank = CTL_NO_ID}, "code=0 job=2 rank=0"},
		{{.job = "c", .size = 2, .flags = ELASTIC, .max_size = 1},
			"code=22 job=4294967295 rank=4294967295 job 'c' has 2 workers: the largest "
			"number of workers must be from 2 to 65536, not 1"},
		{{.job = "c", .size = 2, .flags = ELASTIC, .max_size = MOST + 1}, "not 65537"},
		{{.job = "c", .size = 2, .flags = ELASTIC, .max_size = 3, .rank = 3},
			"rank 3 is too large for at most 3 workers"},
		{{.job = "c", .size = 2, .flags = ELASTIC, .max_size = 2, .rank = 1},
			"code=0 job=3 rank=1"},
		{{.job = "d", .size = 2, .flags = ELASTIC, .max_size = MOST, .rank = MOST - 1},
			"code=0 job=4 rank=65535"},
		/* the largest number of workers counts only for elastic jobs */
		{{.job = "e", .size = 2, .max_size = 1, .rank = 1}, "code=0 job=5 rank=1"},
		{{.job = "f", .size = 2, .max_size = 3, .rank = 2}, "rank 2 is too large"},
		{{.job = "f", .size = 1, .flags = 1u << 31},
			"code=10014 job=4294967295 rank=4294967295 job 'f': the scheduler does not "
			"support the option flags 0x80000000"},
		{{.job = "f", .size = 2, .flags = JOB_DETERMINISTIC, .backup = 1},
			"deterministic sums wait for all machines"},
		{{.job = "f", .size = 2, .backup = 1}, "code=0 job=6 rank=0"},
	};
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ctl_msg msg = {.type = CTL_JOIN, .join = cases[i].q};

		msg.join.seq = msg.join.pid = i + 1;
		clear(&w);
		send_msg(&w, 21, &msg);
		SAID(&w, cases[i].answer);
	}
	world_fini(&w);
}

static void same_job_name_of_another_user_is_another_job(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {1, 1001, "x", 0, 2, 0, 30, 0, .token = no_token}};

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0 job=2 rank=0");
	world_fini(&w);
}

static void join_as(struct sched_world *w, uint32_t conn, uint32_t uid, uint32_t rank, uint32_t pid,
	struct blob with)
{
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {pid, uid, "x", rank, 2, 0, pid, 0, .token = with}};

	clear(w);
	send_msg(w, conn, &msg);
}

static void agents_a_and_b(struct sched_world *w)
{
	world_init(w);
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
}

static void process_that_opens_a_rank_twice_is_refused_the_second_time(void **state)
{
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {1, 1000, "x", 0, 2, 0, 10, 0, .token = no_token}};
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	clear(&w);
	send_msg(&w, 21, &msg); /* the same JOIN again */
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	msg.join.seq = 2;
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "code=10017 job=4294967295 rank=4294967295 rank 0 of job 'x' is already taken by "
		 "pid 10");
	world_fini(&w);
}

static void worker_of_another_user_joins_with_the_token(void **state)
{
	struct sched_world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	join_as(&w, 22, 2000, 1, 20, token);
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	SAID(&w, "22 JOB job=1 x size=2 m0(1:0) m1(2:1)");
	world_fini(&w);
}

static void worker_of_the_same_user_without_the_right_token_is_refused(void **state)
{
	struct sched_world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	join_as(&w, 22, 1000, 1, 20, other_token);
	SAID(&w, "22 JOINED code=10015 job=4294967295 rank=4294967295 job 'x' of uid 1000 has "
		 "a job token that differs from this worker's (BPS_JOB_TOKEN must be the same for "
		 "all "
		 "workers); the job's rank 0 is pid 10 on host a");
	join_as(&w, 22, 1000, 1, 20, no_token);
	SAID(&w, "code=10015");
	SAID(&w, "has a job token, and this worker has none");
	join_as(&w, 22, 1000, 1, 20, (struct blob){token.data, 31});
	SAID(&w, "code=22");
	join_as(&w, 22, 1000, 1, 20, token);
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	world_fini(&w);
}

static void refusal_for_a_token_names_the_lowest_rank_that_has_joined(void **state)
{
	struct sched_world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 22, 1000, 1, 20, token);
	join_as(&w, 21, 1000, 0, 10, no_token);
	SAID(&w, "21 JOINED code=10015");
	SAID(&w, "the job's rank 1 is pid 20 on host b");
	world_fini(&w);
}

static void token_does_not_open_a_job_that_has_none(void **state)
{
	struct sched_world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, no_token);
	join_as(&w, 22, 1000, 1, 20, token);
	SAID(&w, "code=10015");
	SAID(&w, "was opened without a job token, and this worker has one");
	world_fini(&w);
}

static void worker_of_another_user_without_the_token_gets_a_job_of_its_own(void **state)
{
	struct sched_world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	join_as(&w, 22, 2000, 1, 20, no_token);
	SAID(&w, "22 JOINED code=0 job=2 rank=1");
	join_as(&w, 22, 3000, 1, 30, other_token);
	SAID(&w, "22 JOINED code=0 job=3 rank=1");
	/* a stranger without the token cannot keep others from using the job's name */
	join_as(&w, 22, 4000, 1, 40, token);
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	world_fini(&w);
}

static void token_outlives_the_scheduler(void **state)
{
	struct sched_world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	join_as(&w, 22, 2000, 1, 20, token);
	kill_scheduler(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	/* the job runs already, so JOB follows JOINED when the worker of agent b joins again */
	join_as(&w, 22, 2000, 1, 20, token);
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	SAID(&w, "22 JOB job=1 x size=2");
	join_as(&w, 22, 1000, 1, 21, other_token);
	SAID(&w, "code=10015");
	world_fini(&w);
}

static void user_with_too_many_jobs_is_refused_and_another_one_is_not(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {1, 1000, "", 0, 2, 0, 30, 0, .token = no_token}};
	static const char *const names[] = {"a", "b", "c", "d"};

	(void)state;
	world_init(&w);
	w.cfg.user_jobs = 3;
	sched_reconfigure(w.core, &w.cfg, w.now);
	agent(&w, 21, "a", 201);
	for (unsigned i = 0; i < 4; i++) {
		msg.join.seq = msg.join.pid = i + 1;
		msg.join.job = names[i];
		clear(&w);
		send_msg(&w, 21, &msg);
		if (i < 3)
			SAID(&w, "21 JOINED code=0");
	}
	SAID(&w, "code=10012 job=4294967295 rank=4294967295 job 'd': the user with uid 1000 has 3 "
		 "jobs, and the limit is 3; see bps-scheduler's --user-jobs");
	msg.join.uid = 1001;
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0");
	msg.join.uid = 1000;
	msg.join.job = "a"; /* a second worker does not count as a new job */
	msg.join.rank = 1;
	msg.join.pid = msg.join.seq = 9;
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0");
	world_fini(&w);
}

/* Make a world with two servers of 1 MiB each, two agents, and a job with one worker on each
 * agent. */
static void world_with_memory(struct sched_world *w, uint32_t job_share, uint32_t user_share)
{
	struct ctl_msg msg;

	world_init(w);
	w->cfg.job_share = job_share;
	w->cfg.user_share = user_share;
	sched_reconfigure(w->core, &w->cfg, w->now);
	for (uint32_t i = 0; i < 2; i++) {
		msg = hello_of(ROLE_SERVER, i ? "s2" : "s1", i ? "s2" : "s1", 101 + i);
		msg.hello.quota_bytes = 1 << 20;
		sched_conn_open(w->core, 11 + i, w->now);
		send_msg(w, 11 + i, &msg);
	}
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
	join(w, 21, 0, 2, 10);
	join(w, 22, 1, 2, 20);
}

static void tensor_beyond_the_jobs_share_of_the_servers_is_refused_everywhere(void **state)
{
	struct sched_world w;

	(void)state;
	world_with_memory(&w, 50, 0);
	declare(&w, 21, 0, "w", DTYPE_F32, 150000);
	clear(&w);
	declare(&w, 21, 0, "x", DTYPE_F32, 150000);
	SAID(&w, "21 TENSOR_FAIL x code=10012 tensor 'x' of job 'x': the tensor takes 0.6 MiB of "
		 "the servers' memory; the job already takes 0.6 MiB, and the limit is 1.0 MiB "
		 "(50% of the servers' memory); see bps-scheduler's --job-share");
	declare(&w, 21, 0, "y", DTYPE_F32, 100000);
	declare(&w, 22, 1, "w", DTYPE_F32, 150000);
	declare(&w, 22, 1, "y", DTYPE_F32, 100000);
	w.cfg.job_share = 0; /* new limits do not end jobs that were accepted before */
	sched_reconfigure(w.core, &w.cfg, w.now);
	declare(&w, 22, 1, "x", DTYPE_F32, 150000);
	SAID(&w, "22 TENSOR_FAIL x code=10012");
	SAID(&w, "22 PLAN job=1 0=w");
	SAID(&w, "22 PLAN job=1 1=y");
	world_fini(&w);
}

/* Rule C10: of 2 MiB, 1 MiB is reserved for users who use at most an eighth of the reserve. */
static void only_users_with_little_get_the_reserve(void **state)
{
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {1, 1001, "other", 0, 2, 0, 40, 0, .token = no_token}};
	struct sched_world w;

	(void)state;
	world_with_memory(&w, 0, 0);
	w.cfg.small_reserve = 50;
	sched_reconfigure(w.core, &w.cfg, w.now);
	/* the tensor's two sums, 512 KiB each, fill the unreserved 1 MiB */
	declare(&w, 21, 0, "w", DTYPE_F32, 131072);
	declare(&w, 22, 1, "w", DTYPE_F32, 131072);
	clear(&w);
	declare(&w, 21, 0, "x", DTYPE_F32, 1);
	SAID(&w, "21 TENSOR_FAIL x code=10012 tensor 'x' of job 'x': the tensor's sums take 0.0 "
		 "MiB, but only 0.0 of the servers' 2.0 MiB are free for this user; 50% of the "
		 "servers' memory is reserved for users whose sums take at most 0.1 MiB; see "
		 "bps-scheduler's --small-user-reserve");
	for (uint32_t i = 0; i < 2; i++) {
		msg.join.rank = i;
		msg.join.pid = msg.join.seq = 40 + i;
		send_msg(&w, 21 + i, &msg);
	}
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 10000); /* two sums of 64 KiB each, from the reserve */
	declare(&w, 22, 1, "v", DTYPE_F32, 10000);
	NOT_SAID(&w, "TENSOR_FAIL");
	SAID(&w, "22 PLAN job=2 0=v");
	declare(&w, 21, 0, "u", DTYPE_F32, 1);
	SAID(&w, "21 TENSOR_FAIL u code=10012");
	world_fini(&w);
}

/* Tensors that are declared while there is no server are checked when the first server arrives. */
static void largest_job_that_waited_for_servers_ends_when_it_does_not_fit(void **state)
{
	struct ctl_msg msg;
	struct sched_world w;

	(void)state;
	world_init(&w);
	w.cfg.small_reserve = 50;
	sched_reconfigure(w.core, &w.cfg, w.now);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 0, 2, 10);
	join(&w, 22, 1, 2, 20);
	declare(&w, 21, 0, "w", DTYPE_F32, 1 << 20);
	declare(&w, 22, 1, "w", DTYPE_F32, 1 << 20);
	clear(&w);
	msg = hello_of(ROLE_SERVER, "s1", "s1", 101);
	msg.hello.quota_bytes = 1 << 20;
	sched_conn_open(w.core, 11, w.now);
	send_msg(&w, 11, &msg);
	SAID(&w, "21 JOB_END job=1 code=10012 job 'x' waited for servers, and its sums take 8.0 "
		 "MiB");
	world_fini(&w);
}

static void tensors_of_all_jobs_of_a_user_count_for_its_share(void **state)
{
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {1, 1000, "second", 0, 2, 0, 30, 0, .token = no_token}};
	struct sched_world w;

	(void)state;
	world_with_memory(&w, 0, 50);
	declare(&w, 21, 0, "w", DTYPE_F32, 150000);
	for (uint32_t i = 0; i < 2; i++) {
		msg.join.rank = i;
		msg.join.pid = msg.join.seq = 30 + i;
		send_msg(&w, 21 + i, &msg);
	}
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 150000);
	SAID(&w, "code=10012 tensor 'v' of job 'second': the tensor takes 0.6 MiB of the servers' "
		 "memory; the user with uid 1000 already takes 0.6 MiB, and the limit is 1.0 MiB");
	msg.join.uid = 1001; /* the job of another user */
	for (uint32_t i = 0; i < 2; i++) {
		msg.join.rank = i;
		msg.join.pid = msg.join.seq = 40 + i;
		send_msg(&w, 21 + i, &msg);
	}
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 150000);
	declare(&w, 22, 1, "v", DTYPE_F32, 150000);
	NOT_SAID(&w, "TENSOR_FAIL");
	SAID(&w, "21 PLAN");
	world_fini(&w);
}

static void worker_that_leaves_a_forming_job_frees_its_rank(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	join(&w, 21, 0, 2, 11);
	SAID(&w, "taken by pid 10");
	w.last_job = 1;
	worker(&w, 21, 0, WORKER_LOST);
	clear(&w);
	join(&w, 21, 0, 2, 11);
	/* the empty job ended together with the large one */
	SAID(&w, "21 JOINED code=0 job=2 rank=0");
	world_fini(&w);
}

static void job_ends_well_when_all_have_finished(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 21, 0, WORKER_FINISHED); /* send the message again */
	NOT_SAID(&w, "JOB_END");
	worker(&w, 22, 1, WORKER_FINISHED);
	SAID(&w, "11 JOB_END job=1 code=0 \n");
	SAID(&w, "21 JOB_END job=1 code=0 \n");
	SAID(&w, "22 JOB_END job=1 code=0 \n");
	clear(&w);
	join(&w, 21, 0, 2, 10);
	SAID(&w, "21 JOINED code=0 job=2 rank=0");
	world_fini(&w);
}

static void numbers_of_jobs_are_never_used_twice(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	for (uint32_t i = 1; i <= 1100; i++) { /* use more job numbers than one record reserves */
		join(&w, 21, 0, 2, 10);
		assert_int_equal(w.last_job, i);
		worker(&w, 21, 0, WORKER_LOST);
		clear(&w);
	}
	kill_scheduler(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	assert_true(w.last_job > 1100);
	world_fini(&w);
}

static void only_the_last_ended_jobs_are_kept(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	for (int i = 0; i < 70; i++) {
		join(&w, 21, 0, 1, 10);
		worker(&w, 21, 0, WORKER_FINISHED);
	}
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	NOT_SAID(&w, "JOB_END job=6 ");
	SAID(&w, "JOB_END job=7 code=0");
	SAID(&w, "JOB_END job=70 code=0");
	world_fini(&w);
}

static void lost_worker_ends_the_job_and_is_named(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 22, 1, WORKER_LOST);
	SAID(&w,
		"21 JOB_END job=1 code=10007 rank 1 (host b, pid 20) of job 'x' was lost: killed by"
		" signal 9\nCAUSE rank=1 host=b\n");
	clear(&w);
	kill_scheduler(&w); /* the restarted scheduler must still have the cause */
	agent(&w, 31, "a", 201);
	SAID(&w, "31 JOB_END job=1 code=10007");
	SAID(&w, "killed by signal 9\nCAUSE rank=1 host=b\n");
	world_fini(&w);
}

static void worker_lost_after_it_finished_does_not_fail_the_job(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 22, 1, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_LOST);
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void agent_cannot_send_for_ranks_of_another(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 22, 0, WORKER_LOST);
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void dead_agent_ends_its_jobs_and_is_named(void **state)
{
	struct sched_world w;
	const uint32_t others[] = {11, 12, 21, 0};

	(void)state;
	running_job(&w);
	clear(&w);
	pass(&w, w.cfg.agent_dead_ms - 50, others);
	NOT_SAID(&w, "JOB_END");
	pass(&w, 100, others);
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b' (host b) of job 'x' is lost: silent for "
		 "5.0 s");
	SAID(&w, "11 PEERS b:down:i202\n");
	clear(&w);
	agent(&w, 32, "b", 202); /* the agent that was away receives the reason, too */
	SAID(&w, "32 JOB_END job=1 code=10008");
	world_fini(&w);
}

static void fail_ends_the_job_with_its_code_and_text(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = {.type = CTL_FAIL, .fail = {1, 10011, "results differ"}};

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 11, &msg);
	SAID(&w, "21 JOB_END job=1 code=10011 results differ\n");
	send_msg(&w, 21, &msg);
	world_fini(&w);
}

static void killed_job_ends_with_the_text_for_all_its_agents(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	assert_int_equal(sched_job_kill(w.core, 1, "killed by u: late", w.now), 0);
	SAID(&w, "11 JOB_END job=1 code=10021 killed by u: late\n");
	SAID(&w, "21 JOB_END job=1 code=10021 killed by u: late\n");
	assert_int_equal(sched_job_kill(w.core, 1, "again", w.now), BPS_ENOTFOUND);
	world_fini(&w);
}

static void message_about_an_unknown_job_is_answered(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {99, NULL, 0}};

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOB_END job=99 code=10021");
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(job_forms_when_all_ranks_are_there),
		cmocka_unit_test(repeated_join_gets_the_same_rank),
		cmocka_unit_test(assigned_ranks_are_assigned_anew_after_a_restart),
		cmocka_unit_test(repeated_join_of_a_running_job_gets_the_job_behind_its_answer),
		cmocka_unit_test(duplicate_rank_is_refused_with_the_holder),
		cmocka_unit_test(workers_that_disagree_are_both_named),
		cmocka_unit_test(join_is_accepted_up_to_its_limits_and_refused_beyond),
		cmocka_unit_test(same_job_name_of_another_user_is_another_job),
		cmocka_unit_test(process_that_opens_a_rank_twice_is_refused_the_second_time),
		cmocka_unit_test(worker_of_another_user_joins_with_the_token),
		cmocka_unit_test(worker_of_the_same_user_without_the_right_token_is_refused),
		cmocka_unit_test(refusal_for_a_token_names_the_lowest_rank_that_has_joined),
		cmocka_unit_test(token_does_not_open_a_job_that_has_none),
		cmocka_unit_test(worker_of_another_user_without_the_token_gets_a_job_of_its_own),
		cmocka_unit_test(token_outlives_the_scheduler),
		cmocka_unit_test(user_with_too_many_jobs_is_refused_and_another_one_is_not),
		cmocka_unit_test(tensor_beyond_the_jobs_share_of_the_servers_is_refused_everywhere),
		cmocka_unit_test(only_users_with_little_get_the_reserve),
		cmocka_unit_test(largest_job_that_waited_for_servers_ends_when_it_does_not_fit),
		cmocka_unit_test(tensors_of_all_jobs_of_a_user_count_for_its_share),
		cmocka_unit_test(worker_that_leaves_a_forming_job_frees_its_rank),
		cmocka_unit_test(job_ends_well_when_all_have_finished),
		cmocka_unit_test(numbers_of_jobs_are_never_used_twice),
		cmocka_unit_test(only_the_last_ended_jobs_are_kept),
		cmocka_unit_test(lost_worker_ends_the_job_and_is_named),
		cmocka_unit_test(worker_lost_after_it_finished_does_not_fail_the_job),
		cmocka_unit_test(agent_cannot_send_for_ranks_of_another),
		cmocka_unit_test(dead_agent_ends_its_jobs_and_is_named),
		cmocka_unit_test(fail_ends_the_job_with_its_code_and_text),
		cmocka_unit_test(killed_job_ends_with_the_text_for_all_its_agents),
		cmocka_unit_test(message_about_an_unknown_job_is_answered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
