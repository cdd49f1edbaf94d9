/* Tests of the scheduler's core: jobs that lose a machine and continue, and jobs that admit new
 * machines. */
#include "tests/unit/sched_world.h"

/* Make a running job of three workers on three agents (21, 22, 23). The job may shrink. */
static void shrinking_job(struct sched_world *w)
{
	world_init(w);
	w->flags = JOB_SHRINK;
	server(w, 11, "s1", 101);
	for (uint32_t i = 0; i < 3; i++) {
		const char name[] = {(char)('a' + i), 0};

		agent(w, 21 + i, name, 201 + i);
		join(w, 21 + i, i, 3, 10 + i);
	}
	for (uint32_t i = 0; i < 3; i++)
		declare(w, 21 + i, i, "w", DTYPE_F32, 400000);
	clear(w);
}

static void lost_machine_leaves_a_job_that_may_shrink(void **state)
{
	const uint32_t others[] = {11, 21, 23, 0};
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	pass(&w, w.cfg.agent_dead_ms + 50, others);
	NOT_SAID(&w, "JOB_END");
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) gone m2(4:2)\n11 PLAN job=1 0=w [0:0+");
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) gone m2(4:2)\n21 PLAN job=1 0=w [0:0+");
	clear(&w);
	agent(&w, 32, "b", 202);
	SAID(&w, "32 JOB_END job=1 code=10009 agent 'b' (host b) is no longer in job 'x', "
		 "which "
		 "went on without it: agent 'b' (host b) of job 'x' is lost: silent for 5.0 s");
	NOT_SAID(&w, "32 JOB ");
	declare(&w, 32, 1, "v", DTYPE_F32, 10);
	NOT_SAID(&w, "DROP");
	worker(&w, 21, 0, WORKER_FINISHED);
	NOT_SAID(&w, "JOB_END job=1 code=0");
	worker(&w, 23, 2, WORKER_FINISHED);
	SAID(&w, "21 JOB_END job=1 code=0");
	NOT_SAID(&w, "32 JOB_END job=1 code=0");
	world_fini(&w);
}

static void lost_worker_takes_its_machine_out_of_a_job_that_may_shrink(void **state)
{
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone");
	SAID(&w, "23 JOB_END job=1 code=10009");
	NOT_SAID(&w, "23 JOB ");
	clear(&w);
	join(&w, 23, 2, 3, 12);
	SAID(&w, "23 JOINED code=10009");
	world_fini(&w);
}

static void job_report_failure(struct sched_world *w, uint32_t conn, int code, const char *text)
{
	struct ctl_msg msg = {
		.type = CTL_FAIL, .fail = {w->last_job, (uint32_t)-code, .text = text}};

	send_msg(w, conn, &msg);
}

/* Rule J1: a machine whose GPUs fail leaves the job, which goes on. A wrong sum (BPS_EMISMATCH)
 * still ends the job. */
static void machine_whose_gpus_fail_leaves_a_job_that_may_shrink(void **state)
{
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	job_report_failure(&w, 23, BPS_EDEVICE, "an illegal address");
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone");
	SAID(&w, "23 JOB_END job=1 code=10009 agent 'c' (host c) is no longer in job 'x', "
		 "which went on without it: c (host c): an illegal address");
	clear(&w);
	/* the agent repeats the message after a reconnection */
	job_report_failure(&w, 23, BPS_EDEVICE, "an illegal address");
	SAID(&w, "23 JOB_END job=1 code=10009");
	NOT_SAID(&w, "21 JOB");
	job_report_failure(&w, 22, BPS_EMISMATCH, "results differ");
	SAID(&w, "21 JOB_END job=1 code=10003 results differ");
	world_fini(&w);
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	worker(&w, 22, 1, WORKER_LOST);
	job_report_failure(&w, 21, BPS_EDEVICE, "an illegal address");
	SAID(&w, "21 JOB_END job=1 code=10024 a (host a): an illegal address");
	world_fini(&w);
}

static void last_machine_of_a_job_that_may_shrink_ends_it(void **state)
{
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_LOST);
	/* the job ends with success, because all remaining workers had finished */
	SAID(&w, "21 JOB_END job=1 code=0");
	world_fini(&w);
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	worker(&w, 21, 0, WORKER_LOST);
	worker(&w, 22, 1, WORKER_LOST);
	SAID(&w, "22 JOB_END job=1 code=10007 rank 1");
	SAID(&w,
		"; first cause: it went on without agent c: rank 2 (host c, pid 12) of job 'x' was "
		"lost");
	world_fini(&w);
}

/* A tensor fails, so the workers end, machine by machine. The reasons for each machine's removal
 * and for the job's end must name the failed tensor. */
static void failed_tensor_is_named_by_each_machine_that_leaves_and_by_the_end(void **state)
{
	static const char cause[] = "; first: tensor 'v' of job 'x': rank 0 (host a) declares ";
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 1000);
	declare(&w, 22, 1, "v", DTYPE_F32, 1001);
	clear(&w);
	worker(&w, 22, 1, WORKER_LOST);
	SAID(&w, "22 JOB_END job=1 code=10009 agent 'b' (host b) is no longer in job 'x'");
	SAID(&w, "went on without it: rank 1 (host b, pid 11) of job 'x' was lost: killed by "
		 "signal 9; first: tensor 'v' of job 'x'");
	worker(&w, 21, 0, WORKER_LOST);
	clear(&w);
	worker(&w, 23, 2, WORKER_LOST);
	SAID(&w, "23 JOB_END job=1 code=10007 rank 2");
	SAID(&w, cause);
	NOT_SAID(&w, "it went on without");
	world_fini(&w);
}

static void tensor_that_only_the_lost_machine_had_not_declared_is_placed(void **state)
{
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	declare(&w, 22, 1, "v", DTYPE_F32, 10);
	NOT_SAID(&w, "1=v");
	worker(&w, 23, 2, WORKER_LOST);
	SAID(&w, "21 PLAN job=1 0=w 1=v");
	world_fini(&w);
}

static void machines_that_left_a_job_are_known_after_a_restart(void **state)
{
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	kill_scheduler(&w);
	clear(&w);
	server(&w, 11, "s1", 101);
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone");
	agent(&w, 23, "c", 203);
	SAID(&w, "23 JOB_END job=1 code=10009");
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_FINISHED);
	SAID(&w, "22 JOB_END job=1 code=0");
	world_fini(&w);
}

static void barrier_is_passed_when_all_remaining_members_confirm_one_view(void **state)
{
	struct sched_world w;

	(void)state;
	shrinking_job(&w);
	at_barrier(&w, 21, 0, 1);
	at_barrier(&w, 22, 1, 1);
	at_barrier(&w, 22, 1, 1);
	NOT_SAID(&w, "JOB job=1");
	worker(&w, 23, 2, WORKER_LOST);
	clear(&w);
	at_barrier(&w, 21, 0, 1);
	NOT_SAID(&w, "21 JOB "); /* agent b has not yet confirmed the view */
	at_barrier(&w, 22, 1, 1);
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone barrier=1");
	NOT_SAID(&w, "PLAN");
	kill_scheduler(&w);
	server(&w, 11, "s1", 101);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	clear(&w);
	at_barrier(&w, 22, 1, 1); /* the agent has not received the change yet */
	SAID(&w, "22 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone barrier=1");
	world_fini(&w);
}

static void rank_beyond_an_elastic_jobs_range_is_refused_with_its_maximum(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, 3, 2, 12);
	SAID(&w, "23 JOINED code=22");
	SAID(&w, "rank 3 is too large for at most 3 workers");
	world_fini(&w);
}

static void elastic_job_is_refused_with_the_condition_that_it_breaks(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	w.max_size = 1;
	join(&w, 23, 0, 2, 12);
	SAID(&w, "has 2 workers: the largest number of workers must be from 2 to 65536, not 1");
	clear(&w);
	w.max_size = 3;
	w.flags &= ~(uint32_t)JOB_SHRINK;
	join(&w, 23, 0, 2, 13);
	SAID(&w, "an elastic job must be able to shrink");
	world_fini(&w);
}

/* Join as one of `beside` workers of the elastic job "x" on the agent's machine. */
static void join_beside(
	struct sched_world *w, uint32_t conn, uint32_t rank, uint32_t size, uint32_t beside)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = rank,
			.job = "x",
			.rank = rank,
			.size = size,
			.flags = JOB_SHRINK | JOB_ELASTIC,
			.max_size = 8,
			.pid = rank,
			.local_size = beside}};

	send_msg(w, conn, &msg);
}

/* Make agents a, b and c (21 to 23), whose ids are 1 to 3. */
static void three_agents(struct sched_world *w)
{
	world_init(w);
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
	agent(w, 23, "c", 203);
}

static void elastic_job_starts_with_all_workers_of_each_machine(void **state)
{
	struct sched_world w;

	(void)state;
	three_agents(&w);
	join_beside(&w, 21, 0, 2, 2);
	join_beside(&w, 22, 2, 2, 2);
	join_beside(&w, 21, 1, 2, 2);
	NOT_SAID(&w, " JOB ");
	join_beside(&w, 22, 3, 2, 2);
	SAID(&w, "22 JOB job=1 x size=8 m0(1:0,1) m1(2:2,3)\n");
	world_fini(&w);
}

static void elastic_job_does_not_wait_for_a_machine_that_left_while_it_formed(void **state)
{
	struct sched_world w;

	(void)state;
	three_agents(&w);
	join_beside(&w, 21, 0, 3, 2);
	join_beside(&w, 22, 2, 3, 1);
	join_beside(&w, 23, 3, 3, 2);
	worker(&w, 23, 3, WORKER_LOST);
	NOT_SAID(&w, " JOB ");
	join_beside(&w, 21, 1, 3, 2);
	SAID(&w, "21 JOB job=1 x size=8 m0(1:0,1) m1(2:2)\n");
	world_fini(&w);
}

static void newcomer_that_joins_again_keeps_its_place(void **state)
{
	struct ctl_msg msg;
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	agent(&w, 24, "d", 204);
	join(&w, 23, CTL_NO_ID, 2, 12);
	clear(&w);
	join(&w, 23, CTL_NO_ID, 2, 12); /* the answer was lost */
	SAID(&w, "23 JOINED code=0 job=4294967295");
	/* The JOINs of other workers are no repetitions, and the job's three places are taken. */
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 12);
	SAID(&w, "24 JOINED code=10017");
	msg = (struct ctl_msg){.type = CTL_JOIN,
		.join = {.seq = 13,
			.uid = 1000,
			.job = "x",
			.rank = CTL_NO_ID,
			.size = 2,
			.flags = w.flags,
			.max_size = 3,
			.pid = 12}};
	send_msg(&w, 23, &msg);
	SAID(&w, "23 JOINED code=10017 job=4294967295 rank=4294967295 job 'x' already has all its "
		 "3 workers");
	msg.join.seq = 12;
	msg.join.pid = 13;
	clear(&w);
	send_msg(&w, 23, &msg);
	SAID(&w, "23 JOINED code=10017");
	world_fini(&w);
}

static void newcomer_that_asks_for_a_taken_rank_is_refused_with_the_holder(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job_of(&w, 9);
	worker(&w, 22, 1, WORKER_FINISHED);
	join(&w, 23, 0, 2, 12);
	SAID(&w, "23 JOINED code=10017 job=4294967295 rank=4294967295 rank 0 of job 'x' is already "
		 "taken by pid 10 on host a");
	join(&w, 23, 1, 2, 12);
	SAID(&w, "rank 1 of job 'x' is already taken by pid 11 on host b");
	NOT_SAID(&w, "code=0");
	world_fini(&w);
}

/* Rank 1 had a worker, ranks 5 and 8 had none. The table of workers has 8 ranks until rank 8 is
 * let in. */
static void newcomers_get_the_ranks_that_they_ask_for_while_these_are_free(void **state)
{
	static const uint32_t asked[] = {8, 1, 5, 8};
	struct sched_world w;

	(void)state;
	elastic_job_of(&w, 9);
	worker(&w, 22, 1, WORKER_LOST);
	for (uint32_t i = 0; i < 4; i++) {
		const char name[] = {(char)('m' + i), 0};

		agent(&w, 31 + i, name, 301 + i);
		clear(&w);
		join(&w, 31 + i, asked[i], 2, 40 + i);
		SAID(&w, "JOINED code=0 job=4294967295");
	}
	w.last_job = 1;
	clear(&w);
	at_barrier(&w, 21, 0, 1);
	SAID(&w, "31 JOINED code=0 job=1 rank=8");
	SAID(&w, "32 JOINED code=0 job=1 rank=1");
	SAID(&w, "33 JOINED code=0 job=1 rank=5");
	SAID(&w, "34 JOINED code=0 job=1 rank=2"); /* rank 8 has just been given away */
	world_fini(&w);
}

static void newcomers_are_admitted_at_a_barrier_with_all_state(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, CTL_NO_ID, 2, 12);
	SAID(&w, "23 JOINED code=0 job=4294967295");
	w.last_job = 1;
	at_barrier(&w, 21, 0, 1);
	NOT_SAID(&w, "23 JOB ");
	at_barrier(&w, 22, 1, 1);
	SAID(&w, "23 JOINED code=0 job=1 rank=2 \n23 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) "
		 "barrier=1 "
		 "border\n23 PLAN job=1 0=w [0:0+");
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) barrier=1 border\n11 PLAN job=1 "
		 "0=w [");
	clear(&w);
	join(&w, 23, CTL_NO_ID, 2, 12); /* the agent has not received the change yet */
	SAID(&w, "23 JOINED code=0 job=1 rank=2");
	join(&w, 23, CTL_NO_ID, 2, 13);
	SAID(&w, "23 JOINED code=10017"); /* a second worker on a machine that is a member */
	kill_scheduler(&w);
	clear(&w);
	server(&w, 11, "s1", 101);
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) barrier=1 border");
	world_fini(&w);
}

static void rank_and_number_of_a_lost_machine_go_to_a_newcomer(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	worker(&w, 22, 1, WORKER_LOST);
	join(&w, 23, CTL_NO_ID, 2, 12);
	w.last_job = 1;
	clear(&w);
	at_barrier(&w, 21, 0, 1);
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:) gone m2(4:1) barrier=1 border");
	join(&w, 22, CTL_NO_ID, 2, 20); /* the removed machine joins again */
	SAID(&w, "22 JOINED code=0 job=4294967295");
	w.last_job = 1;
	at_barrier(&w, 21, 0, 2);
	clear(&w);
	at_barrier(&w, 23, 1, 2);
	SAID(&w, "22 JOB job=1 x size=3 m0(2:0) m1(3:2) m2(4:1) barrier=2 border");
	world_fini(&w);
}

static void unjoin(struct sched_world *w, uint32_t conn, uint32_t seq)
{
	const struct ctl_msg msg = {CTL_UNJOIN, .unjoin = {seq}};

	send_msg(w, conn, &msg);
}

static void place_of_a_newcomer_that_has_left_is_free_at_once(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	agent(&w, 24, "d", 204);
	join(&w, 23, CTL_NO_ID, 2, 12);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=10017"); /* the limit is three workers */
	unjoin(&w, 24, 12);               /* refused, since the place belongs to another worker */
	unjoin(&w, 23, 14);
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=10017");
	unjoin(&w, 23, 12);
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=0 job=4294967295");
	w.last_job = 1;
	at_barrier(&w, 21, 0, 1);
	clear(&w);
	at_barrier(&w, 22, 1, 1);
	SAID(&w, "24 JOINED code=0 job=1 rank=2");
	NOT_SAID(&w, "23 JOINED");
	clear(&w);
	unjoin(&w, 24, 14); /* the agent was not notified yet that the worker is admitted */
	NOT_SAID(&w, "JOB");
	world_fini(&w);
}

static void newcomers_of_an_agent_that_reconnects_join_again(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, CTL_NO_ID, 2, 12);
	w.last_job = 1;
	agent(&w, 33, "c", 203); /* the agent's worker left before the reconnection */
	agent(&w, 24, "d", 204);
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=0 job=4294967295");
	world_fini(&w);
}

static void newcomers_receive_the_end_of_the_job(void **state)
{
	struct sched_world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, CTL_NO_ID, 2, 12);
	w.last_job = 1;
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_FINISHED);
	SAID(&w, "23 JOINED code=10018");
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_machine_leaves_a_job_that_may_shrink),
		cmocka_unit_test(lost_worker_takes_its_machine_out_of_a_job_that_may_shrink),
		cmocka_unit_test(machine_whose_gpus_fail_leaves_a_job_that_may_shrink),
		cmocka_unit_test(last_machine_of_a_job_that_may_shrink_ends_it),
		cmocka_unit_test(failed_tensor_is_named_by_each_machine_that_leaves_and_by_the_end),
		cmocka_unit_test(tensor_that_only_the_lost_machine_had_not_declared_is_placed),
		cmocka_unit_test(machines_that_left_a_job_are_known_after_a_restart),
		cmocka_unit_test(barrier_is_passed_when_all_remaining_members_confirm_one_view),
		cmocka_unit_test(rank_beyond_an_elastic_jobs_range_is_refused_with_its_maximum),
		cmocka_unit_test(elastic_job_is_refused_with_the_condition_that_it_breaks),
		cmocka_unit_test(elastic_job_starts_with_all_workers_of_each_machine),
		cmocka_unit_test(elastic_job_does_not_wait_for_a_machine_that_left_while_it_formed),
		cmocka_unit_test(newcomer_that_joins_again_keeps_its_place),
		cmocka_unit_test(newcomer_that_asks_for_a_taken_rank_is_refused_with_the_holder),
		cmocka_unit_test(newcomers_get_the_ranks_that_they_ask_for_while_these_are_free),
		cmocka_unit_test(newcomers_are_admitted_at_a_barrier_with_all_state),
		cmocka_unit_test(rank_and_number_of_a_lost_machine_go_to_a_newcomer),
		cmocka_unit_test(place_of_a_newcomer_that_has_left_is_free_at_once),
		cmocka_unit_test(newcomers_of_an_agent_that_reconnects_join_again),
		cmocka_unit_test(newcomers_receive_the_end_of_the_job),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
