/* Tests of jobs in which no round completes. The tests check when the scheduler probes such jobs,
 * and what the scheduler then reports. */
#include "tests/unit/sched_world.h"

#include "bps-scheduler/core/stalls.h"
#include "common/wire/name_hash.h"

static void report(struct sched_world *w, uint32_t conn, uint32_t job, uint32_t seq,
	struct ctl_report_worker *workers, uint32_t n)
{
	struct ctl_msg msg = {.type = CTL_REPORT, .report = {seq, job, "", workers, n}};

	send_msg(w, conn, &msg);
}

/* Report that the first server has completed n rounds of the job's partitions. */
static void rounds(struct sched_world *w, uint64_t n)
{
	struct ctl_beat_job job = {.job = w->last_job, .round = n, .rounds = n};
	struct ctl_msg msg = {.type = CTL_BEAT, .beat = {.jobs = &job, .n_jobs = 1}};

	send_msg(w, 11, &msg);
}

/* Advance the simulated time by `ms` milliseconds. During this time the number of completed rounds
 * stays n. */
static void stand(struct sched_world *w, uint64_t ms, uint64_t n)
{
	for (uint64_t at = 0; at < ms; at += 100) {
		rounds(w, n);
		pass(w, 100, (const uint32_t[]){12, 21, 22, 23, 0});
	}
	rounds(w, n);
}

/* Run the simulation until the probe with number `seq` is sent. Returns how many ms this took.
 * Fails after 8 s. */
static uint64_t stand_until_probe(struct sched_world *w, uint32_t seq, uint64_t n)
{
	uint64_t start = w->now;
	char line[32];

	snprintf(line, sizeof(line), "PROBE seq=%u ", seq);
	while (!strstr(w->log, line)) {
		assert_true(w->now < start + 8000 * MS);
		stand(w, 100, n);
	}
	return (w->now - start) / MS;
}

static uint32_t count(const struct sched_world *w, const char *text)
{
	uint32_t n = 0;

	for (const char *at = w->log; (at = strstr(at, text)); at++)
		n++;
	return n;
}

/* Return how many problems in the cluster's status have the given code and a subject that contains
 * `what`. */
static uint32_t count_problems(const struct sched_world *w, const char *code, const char *what)
{
	json_t *root = status_cluster(w->core, &(struct status_info){.now_ns = w->now}), *p;
	uint32_t n = 0;
	size_t i;

	json_array_foreach (json_object_get(root, "problems"), i, p)
		n += strcmp(json_string_value(json_object_get(p, "code")), code) == 0 &&
		     strstr(json_string_value(json_object_get(p, "what")), what);
	json_decref(root);
	return n;
}

static void health_is(const struct sched_world *w, bool is_well, const char *text)
{
	struct err_text err;

	assert_int_equal(
		status_health(w->core, &(struct status_info){.now_ns = w->now}, &err), is_well);
	assert_string_equal(err.s, text);
}

/* Return a report of rank 0. Rank 0 waits for round 3 of tensor 0, because rank 1 has submitted no
 * round after round 2. */
static struct ctl_report_worker waits(uint32_t ms)
{
	return (struct ctl_report_worker){.rank = 0,
		.pid = 10,
		.submitted = 3,
		.calls = 3,
		.completed = 2,
		.oldest_round = 3,
		.oldest_ms = ms,
		.is_attached = 1};
}

static struct ctl_report_worker hangs(uint32_t ms)
{
	return (struct ctl_report_worker){.rank = 1,
		.pid = 20,
		.submitted = 2,
		.calls = 2,
		.completed = 2,
		.quiet_ms = ms,
		.oldest_tensor = CTL_NO_ID,
		.is_attached = 1};
}

/* Answer the two steps of a probe for both ranks. The steps have the numbers seq and seq + 1. The
 * second step asks about the tensor for which rank 0 waits. */
static void answer_both(struct sched_world *w, uint32_t seq, uint32_t ms)
{
	struct ctl_report_worker a = waits(ms), b = hangs(ms);

	for (uint32_t i = 0; i < 2; i++) {
		report(w, 21, w->last_job, seq + i, &a, 1);
		report(w, 22, w->last_job, seq + i, &b, 1);
	}
}

static void job_that_completes_rounds_is_not_probed(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	for (uint64_t n = 1; n <= 10; n++)
		stand(&w, 3000, n);
	NOT_SAID(&w, "PROBE");
	health_is(&w, true, "");
	world_fini(&w);
}

static void job_without_progress_is_probed_at_half_of_the_limit_and_again(void **state)
{
	struct ctl_report_worker a = waits(0), b = hangs(0);
	struct sched_world w;
	uint64_t ms;

	(void)state;
	a.oldest_tensor = CTL_NO_ID; /* no worker waits: both ranks compute for a long time */
	running_job(&w);
	stand(&w, 1500, 1);
	ms = stand_until_probe(&w, 1, 1);
	assert_true(ms >= 3000 && ms <= 5500);
	SAID(&w, "21 PROBE seq=1 job=1");
	SAID(&w, "22 PROBE seq=1 job=1");
	report(&w, 21, 1, 1, &a, 1);
	report(&w, 22, 1, 1, &b, 1);
	ms = stand_until_probe(&w, 2, 1);
	assert_true(ms >= 5000 && ms <= 5600);
	assert_int_equal(count(&w, "PROBE"), 4);
	health_is(&w, true, "");
	world_fini(&w);
}

static void hung_trainer_is_reported_until_a_round_completes(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	stand_until_probe(&w, 1, 1);
	answer_both(&w, 1, 6000);
	assert_int_equal(
		count_problems(&w, "STRAGGLER", "job x: rank 1 (host b, pid 20) has not "), 1);
	health_is(&w, true, "WARN STRAGGLER");
	stand_until_probe(&w, 3, 1);
	answer_both(&w, 3, 11000);
	assert_int_equal(count_problems(&w, "STRAGGLER", ""), 0);
	assert_int_equal(count_problems(&w, "TRAINER_STALLED",
				 "job x: rank 1 (host b, pid 20) has not submitted 'w', round 3"),
		1);
	health_is(&w, true, "WARN TRAINER_STALLED");
	stand(&w, 2000, 2);
	health_is(&w, true, "");
	world_fini(&w);
}

/* Answer both steps of a probe: rank 0 waits for round 3 of the tensor, and rank 1 lacks it. */
static void answer_waiting(struct sched_world *w, uint32_t seq, uint32_t tensor, bool is_waiting)
{
	struct ctl_report_worker a = waits(600), b = hangs(600);

	a.oldest_tensor = tensor;
	a.is_waiting = is_waiting;
	for (uint32_t i = 0; i < 2; i++) {
		report(w, 21, w->last_job, seq + i, &a, 1);
		report(w, 22, w->last_job, seq + i, &b, 1);
	}
}

/* Run a job of two workers until rank 1 has finished. */
static void job_that_rank_1_has_left(struct sched_world *w)
{
	running_job(w);
	stand(w, 1000, 1);
	worker(w, 22, 1, WORKER_FINISHED);
}

static void worker_that_has_finished_is_lost_when_a_round_waits_for_it(void **state)
{
	struct sched_world w;

	(void)state;
	job_that_rank_1_has_left(&w);
	assert_true(stand_until_probe(&w, 1, 1) <= 1100);
	answer_waiting(&w, 1, 0, true);
	SAID(&w, "rank 1 (host b, pid 20) has left job 'x' (it has closed the job or exited), but "
		 "rank 0 waits for tensor 'w', round 3, and rank 1 has submitted 2");
	SAID(&w, "CAUSE rank=1 host=b");
	world_fini(&w);
}

static void round_that_no_call_waits_for_loses_no_worker(void **state)
{
	struct sched_world w;

	(void)state;
	job_that_rank_1_has_left(&w);
	stand_until_probe(&w, 1, 1);
	answer_waiting(&w, 1, 0, false);
	NOT_SAID(&w, "has left job");
	assert_true(stand_until_probe(&w, 3, 1) <= 1100); /* the next probe comes soon */
	answer_waiting(&w, 3, 0, true);
	SAID(&w, "has left job");
	world_fini(&w);
}

static void answers_from_before_a_worker_finished_prove_nothing(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	stand_until_probe(&w, 1, 1);
	report(&w, 21, w.last_job, 1, (struct ctl_report_worker[]){waits(600)}, 1);
	report(&w, 22, w.last_job, 1, (struct ctl_report_worker[]){hangs(600)}, 1);
	/* the second step has begun; rank 1 submits round 3 and finishes */
	worker(&w, 22, 1, WORKER_FINISHED);
	answer_waiting(&w, 2, 0, true);
	NOT_SAID(&w, "has left job");
	world_fini(&w);
}

/* Answer a probe: rank 0 waits for a tensor of this name that has no plan. */
static void answer_waiting_for_plan(struct sched_world *w, uint32_t seq, const char *name)
{
	struct ctl_report_worker a = waits(600), b = hangs(600);

	a.oldest_tensor = CTL_NO_ID;
	a.oldest_name = name_hash(name);
	a.is_waiting = 1;
	report(w, 21, w->last_job, seq, &a, 1);
	report(w, 22, w->last_job, seq, &b, 1);
}

static void tensor_that_a_finished_worker_never_declared_is_named(void **state)
{
	struct sched_world w;

	(void)state;
	job_that_rank_1_has_left(&w);
	stand_until_probe(&w, 1, 1);
	answer_waiting_for_plan(&w, 1, "v");
	NOT_SAID(&w, "has left job"); /* all have declared all tensors */
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	stand_until_probe(&w, 2, 1);
	answer_waiting_for_plan(&w, 2, "u");
	NOT_SAID(&w, "has left job"); /* rank 0 does not wait for 'v' */
	stand_until_probe(&w, 3, 1);
	answer_waiting_for_plan(&w, 3, "v");
	SAID(&w, "has left job 'x' (it has closed the job or exited), but other workers wait for "
		 "it to declare tensor 'v'");
	world_fini(&w);
}

static void barrier_without_a_worker_that_has_finished_is_named(void **state)
{
	struct sched_world w;
	struct ctl_msg at = {
		.type = CTL_WORKER, .worker = {.event = WORKER_AT_BARRIER, .text = ""}};

	(void)state;
	running_job(&w);
	at.worker.job = w.last_job;
	at.worker.barrier = 1;
	send_msg(&w, 21, &at);
	stand(&w, 1000, 1);
	NOT_SAID(&w, "has left job");
	worker(&w, 22, 1, WORKER_FINISHED);
	stand(&w, 600, 1);
	SAID(&w, "but other workers wait for it at a barrier");
	world_fini(&w);
}

static void limit_is_a_setting(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.cfg.stall_ms = 2000;
	sched_reconfigure(w.core, &w.cfg, w.now);
	assert_true(stand_until_probe(&w, 1, 1) <= 3100);
	answer_both(&w, 1, 2500);
	health_is(&w, true, "WARN TRAINER_STALLED");
	world_fini(&w);
}

static void answers_that_come_after_a_round_are_dropped(void **state)
{
	struct ctl_report_worker a = waits(6000), b = hangs(6000);
	struct sched_world w;

	(void)state;
	running_job(&w);
	stand_until_probe(&w, 1, 1);
	report(&w, 21, 1, 1, &a, 1);
	stand(&w, 900, 2);
	report(&w, 22, 1, 1, &b, 1);
	report(&w, 21, 1, 2, &a, 1);
	report(&w, 22, 1, 2, &b, 1);
	stand(&w, 1100, 2);
	health_is(&w, true, "");
	world_fini(&w);
}

static void silent_agent_is_reported_until_it_answers(void **state)
{
	struct ctl_report_worker a = waits(6000), b = waits(6000);
	struct sched_world w;

	(void)state;
	running_job(&w);
	b.rank = 1;
	stand_until_probe(&w, 1, 1);
	report(&w, 21, 1, 1, &a, 1);
	stand(&w, 1500, 1);
	assert_int_equal(count_problems(&w, "NO_ANSWER", "agent b on b: no answer"), 1);
	health_is(&w, true, "WARN NO_ANSWER");
	stand_until_probe(&w, 3, 1);
	for (uint32_t seq = 3; seq <= 4; seq++) {
		report(&w, 21, 1, seq, &a, 1);
		report(&w, 22, 1, seq, &b, 1);
	}
	health_is(&w, true, "");
	world_fini(&w);
}

/* Make a running job of three workers, one on each of the agents a, b and c (21 to 23), with the
 * tensors w and v. */
static void job_of_three(struct sched_world *w)
{
	world_init(w);
	server(w, 11, "s1", 101);
	server(w, 12, "s2", 102);
	for (uint32_t i = 0; i < 3; i++) {
		const char name[] = {(char)('a' + i), 0};

		agent(w, 21 + i, name, 201 + i);
		join(w, 21 + i, i, 3, 10 * (i + 1));
	}
	for (uint32_t i = 0; i < 3; i++)
		declare(w, 21 + i, i, "w", DTYPE_F32, 400000);
	for (uint32_t i = 0; i < 3; i++)
		declare(w, 21 + i, i, "v", DTYPE_F32, 400000);
	clear(w);
}

static void silent_agent_does_not_hide_the_worker_of_rank_0_that_is_late(void **state)
{
	struct ctl_report_worker a = hangs(2000), b = waits(2000);
	struct sched_world w;

	(void)state;
	job_of_three(&w);
	a.rank = 0;
	a.pid = 10;
	b.rank = 1;
	b.pid = 20;
	stand_until_probe(&w, 1, 1);
	report(&w, 21, 1, 1, &a, 1);
	report(&w, 22, 1, 1, &b, 1);
	stand_until_probe(&w, 2, 1); /* the second step, without agent c */
	report(&w, 21, 1, 2, &a, 1);
	report(&w, 22, 1, 2, &b, 1);
	assert_int_equal(count_problems(&w, "NO_ANSWER", "agent c on c: no answer"), 1);
	assert_int_equal(
		count_problems(&w, "STRAGGLER", "job x: rank 0 (host a, pid 10) has not "), 1);
	world_fini(&w);
}

/* The agents of ranks 0 and 1 answer, and the agents of the other ranks do not. Rank 0 waits for
 * rank 1, but the list of findings is full of silent agents. */
static void findings_of_a_job_are_limited(void **state)
{
	const uint32_t n = SCHED_FINDINGS_MAX + 2;

	(void)state;
	for (uint32_t extra = 0; extra < 2; extra++) {
		struct ctl_report_worker a = waits(2000), b = hangs(2000);
		uint32_t conns[SCHED_FINDINGS_MAX + 5] = {11};
		struct sched_world w;
		char name[16];

		world_init(&w);
		server(&w, 11, "s1", 101);
		for (uint32_t i = 0; i < n + extra; i++) {
			snprintf(name, sizeof(name), "a%u", i);
			agent(&w, 21 + i, name, 201 + i);
			join(&w, 21 + i, i, n + extra, 10 * (i + 1));
			conns[1 + i] = 21 + i;
		}
		for (uint32_t i = 0; i < n + extra; i++)
			declare(&w, 21 + i, i, "w", DTYPE_F32, 400000);
		clear(&w);
		while (!strstr(w.log, "PROBE seq=1 "))
			pass(&w, 100, conns);
		for (uint32_t seq = 1; seq <= 2; seq++) {
			report(&w, 21, 1, seq, &a, 1);
			report(&w, 22, 1, seq, &b, 1);
			pass(&w, w.cfg.probe_ms + 10, conns);
		}
		assert_int_equal(count_problems(&w, "NO_ANSWER", ""), SCHED_FINDINGS_MAX);
		assert_int_equal(count_problems(&w, "STRAGGLER", ""), 0);
		world_fini(&w);
	}
}

/* Rank 0 waits for tensor w, and rank 2 for tensor v, because rank 1 has submitted neither. */
static void worker_that_two_tensors_wait_for_is_reported_once_with_the_longer_wait(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		bool is_second_first = k & 1, is_w_longer = k & 2;
		struct ctl_report_worker r[3] = {waits(2000), hangs(4000), waits(3000)};
		struct sched_world w;

		r[2].rank = 2;
		r[2].pid = 30;
		r[2].oldest_tensor = 1;
		r[0].oldest_ms = is_w_longer ? 4000 : 2000;
		job_of_three(&w);
		stand_until_probe(&w, 1, 1);
		for (uint32_t i = 0; i < 3; i++)
			report(&w, 21 + i, 1, 1, &r[i], 1);
		/* The probe with number 2 is about the tensor with the longer wait. The order in
		 * which the answers about the two tensors arrive does not matter. */
		for (uint32_t step = 0; step < 2; step++)
			for (uint32_t i = 0; i < 3; i++)
				report(&w, 21 + i, 1, (step == 0) == is_second_first ? 3 : 2, &r[i],
					1);
		assert_int_equal(count_problems(&w, "STRAGGLER", ""), 1);
		assert_int_equal(
			count_problems(&w, "STRAGGLER",
				is_w_longer ? "rank 1 (host b, pid 20) has not submitted 'w'"
					    : "rank 1 (host b, pid 20) has not submitted 'v'"),
			1);
		world_fini(&w);
	}
}

static void calls_show_the_progress_of_a_job_that_servers_do_not_report(void **state)
{
	struct ctl_report_worker a = waits(900), b = hangs(900);
	struct sched_world w;

	(void)state;
	running_job(&w);
	for (uint32_t seq = 1; seq <= 7; seq += 2) {
		stand_until_probe(&w, seq, 0);
		a.completed++;
		for (uint32_t i = 0; i < 2; i++) {
			report(&w, 21, 1, seq + i, &a, 1);
			report(&w, 22, 1, seq + i, &b, 1);
		}
		health_is(&w, true, seq == 1 ? "WARN STRAGGLER" : "");
	}
	world_fini(&w);
}

static void job_end_ends_its_findings(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	stand_until_probe(&w, 1, 1);
	answer_both(&w, 1, 6000);
	health_is(&w, true, "WARN STRAGGLER");
	stand_until_probe(&w, 3, 1);
	worker(&w, 21, 0, WORKER_LOST);
	health_is(&w, true, "");
	stand(&w, 2000, 1); /* wait for the probe's time limit */
	health_is(&w, true, "");
	world_fini(&w);
}

static void join_alone(struct sched_world *w, unsigned i)
{
	char name[16];
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {.seq = i + 1, .job = name, .size = 1, .pid = i + 1}};

	snprintf(name, sizeof(name), "j%u", i);
	send_msg(w, 21, &msg);
}

static void sixteen_jobs_are_probed_at_a_time_and_all_in_turn(void **state)
{
	struct sched_world w;
	char line[32];

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	for (unsigned i = 0; i < 20; i++)
		join_alone(&w, i);
	clear(&w);
	pass(&w, 5900, (const uint32_t[]){21, 0});
	assert_int_equal(count(&w, "PROBE"), STALLS_PROBES_MAX);
	pass(&w, 1600, (const uint32_t[]){21, 0});
	for (unsigned i = 1; i <= 20; i++) {
		snprintf(line, sizeof(line), " job=%u\n", i);
		assert_int_equal(count(&w, line), 1);
	}
	/* one problem for the agent, and not one per job */
	assert_int_equal(count_problems(&w, "NO_ANSWER", "agent a"), 1);
	/* A probe for an operator does not count against the limit of the probes above. */
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	world_fini(&w);
}

static void calls_show_the_progress_of_a_job_on_one_machine(void **state)
{
	struct ctl_report_worker two[2] = {waits(0), hangs(0)};
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	join(&w, 21, 1, 2, 20);
	/* rank 0 has no round in flight, since no server has the tensor */
	two[0].oldest_tensor = CTL_NO_ID;
	for (uint32_t seq = 1; seq <= 4; seq++) { /* rank 1 is always late, but rounds complete */
		pass(&w, 5600, (const uint32_t[]){21, 0});
		two[0].calls++;
		two[0].completed++;
		report(&w, 21, 1, seq, two, 2);
		health_is(&w, true, "");
	}
	for (uint32_t seq = 5; seq <= 6; seq++) {
		health_is(&w, true, "");
		pass(&w, 5600, (const uint32_t[]){21, 0});
		report(&w, 21, 1, seq, two, 2);
	}
	health_is(&w, true, "WARN TRAINER_STALLED");
	assert_int_equal(
		count_problems(&w, "TRAINER_STALLED", "pid 20) has not submitted its call"), 1);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(job_that_completes_rounds_is_not_probed),
		cmocka_unit_test(job_without_progress_is_probed_at_half_of_the_limit_and_again),
		cmocka_unit_test(hung_trainer_is_reported_until_a_round_completes),
		cmocka_unit_test(worker_that_has_finished_is_lost_when_a_round_waits_for_it),
		cmocka_unit_test(round_that_no_call_waits_for_loses_no_worker),
		cmocka_unit_test(answers_from_before_a_worker_finished_prove_nothing),
		cmocka_unit_test(tensor_that_a_finished_worker_never_declared_is_named),
		cmocka_unit_test(barrier_without_a_worker_that_has_finished_is_named),
		cmocka_unit_test(limit_is_a_setting),
		cmocka_unit_test(answers_that_come_after_a_round_are_dropped),
		cmocka_unit_test(silent_agent_is_reported_until_it_answers),
		cmocka_unit_test(silent_agent_does_not_hide_the_worker_of_rank_0_that_is_late),
		cmocka_unit_test(findings_of_a_job_are_limited),
		cmocka_unit_test(
			worker_that_two_tensors_wait_for_is_reported_once_with_the_longer_wait),
		cmocka_unit_test(calls_show_the_progress_of_a_job_that_servers_do_not_report),
		cmocka_unit_test(job_end_ends_its_findings),
		cmocka_unit_test(sixteen_jobs_are_probed_at_a_time_and_all_in_turn),
		cmocka_unit_test(calls_show_the_progress_of_a_job_on_one_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
