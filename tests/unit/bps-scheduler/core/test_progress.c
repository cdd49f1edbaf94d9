/* Servers report their results in heartbeats. From these reports the scheduler computes rates, and
 * finds the agent that delays a job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/core/progress.h"
#include "bps-scheduler/model/find.h"
#include "bps-scheduler/status/status.h"
#include "common/base/log.h"
#include "tests/unit/fake_sched.h"

#define MS     UINT64_C(1000000)
#define AGENTS 4 /* agents are on connections 21, 22, ...; the servers are on 11 and 12 */

struct progress_world {
	struct sched_core *core;
	uint64_t now;
	uint32_t job, agents[AGENTS]; /* the job's id, the agents' ids */
	/* Numbers of events about stragglers. n_told: an agent has become a straggler. n_over: the
	 * agent is no longer a straggler. */
	uint32_t n_members, n_told, n_over;
	uint64_t steps; /* steps that seconds_of has reported */
};

static void env_send(void *ctx, uint32_t conn, const struct ctl_msg *msg)
{
	struct progress_world *w = ctx;

	if (msg->type == CTL_WELCOME && conn >= 21)
		w->agents[conn - 21] = msg->welcome.member_id;
	if (msg->type == CTL_JOINED && !msg->joined.code)
		w->job = msg->joined.job;
}

static void env_drop(void *ctx, uint32_t conn, const char *why)
{
	(void)ctx;
	fail_msg("%u was dropped: %s", conn, why);
}

static void env_event(void *ctx, const struct sched_event *e)
{
	struct progress_world *w = ctx;

	w->n_told += strstr(e->text, "is last in") != NULL;
	w->n_over += strstr(e->text, "no longer") != NULL;
}

static void hello(struct progress_world *w, uint32_t conn, enum role role, const char *name)
{
	struct ctl_msg msg = {.type = CTL_HELLO,
		.hello = {.proto = CTL_PROTO,
			.role = (uint8_t)role,
			.instance = conn,
			.name = name,
			.host = name,
			.version = "1",
			.addr = role == ROLE_SERVER ? "10.0.0.1" : "",
			.port = role == ROLE_SERVER ? 7400 : 0,
			.threads = 1,
			.quota_bytes = role == ROLE_SERVER ? 1000 : 0,
			.provider = "sockets"}};

	sched_conn_open(w->core, conn, w->now);
	sched_receive_message(w->core, conn, &msg, w->now);
}

static void world_init(struct progress_world *w)
{
	static const char *const names[AGENTS] = {"a", "b", "c", "d"};
	struct sched_env env = {.ctx = w,
		.send = env_send,
		.drop = env_drop,
		.persist = fake_sched_persist,
		.random = fake_sched_random,
		.pair_key = fake_sched_pair_key,
		.event = env_event};
	struct sched_config cfg;

	*w = (struct progress_world){.now = 1000 * MS};
	log_set_level(LOG_ERROR);
	sched_config_default(&cfg);
	cfg.cluster = "test";
	w->core = sched_new(&cfg, &env);
	assert_int_equal(sched_start(w->core, w->now), 0);
	hello(w, 11, ROLE_SERVER, "s1");
	hello(w, 12, ROLE_SERVER, "s2");
	for (uint32_t i = 0; i < AGENTS; i++) {
		struct ctl_msg join = {.type = CTL_JOIN,
			.join = {.seq = 1, .job = "x", .rank = i, .size = AGENTS, .pid = i}};

		hello(w, 21 + i, ROLE_AGENT, names[i]);
		sched_receive_message(w->core, 21 + i, &join, w->now);
	}
}

static void beat_agents(struct progress_world *w)
{
	struct ctl_msg msg = {.type = CTL_BEAT};

	for (uint32_t i = 0; i < AGENTS; i++)
		sched_receive_message(w->core, 21 + i, &msg, w->now);
}

/* Advance the time by one second. Both servers report that the agent with the index `last` was the
 * last contributor in `of_100` percent of the rounds, with a delay of `lag_us`. */
static void second(
	struct progress_world *w, uint64_t step, unsigned last, uint32_t of_100, uint32_t lag_us)
{
	struct ctl_beat_late late[2] = {{w->agents[last], of_100, lag_us},
		{w->agents[(last + 1) % AGENTS], 100 - of_100, 100}};
	struct ctl_beat_job job = {.job = w->job,
		.round = step,
		.rounds = 100,
		.bytes = step * 1000,
		.window_rounds = 100,
		.wait_p50_us = lag_us,
		.wait_p99_us = 2 * lag_us,
		.late = late,
		.n_late = 2};
	struct ctl_msg msg = {.type = CTL_BEAT,
		.beat = {.rx_bytes = step * 1000, .mem_bytes = 600, .jobs = &job, .n_jobs = 1}};

	w->now += 1000 * MS;
	beat_agents(w);
	sched_receive_message(w->core, 11, &msg, w->now);
	job.wait_p50_us = 0;
	sched_receive_message(w->core, 12, &msg, w->now);
	memset(late, 0xee, sizeof(late)); /* the core must have copied what it needs */
	memset(&job, 0xee, sizeof(job));
	sched_tick(w->core, w->now);
}

/* Figures that server s1 reports each second. Agent c was last in `last` of `rounds` rounds, by
 * lag_us. The job completes `steps` steps. */
struct figures {
	uint32_t rounds, last, lag_us, steps;
};

static void seconds_of(struct progress_world *w, unsigned n, struct figures f)
{
	struct ctl_beat_late late = {w->agents[2], f.last, f.lag_us};
	struct ctl_beat_job job = {
		.job = w->job, .window_rounds = f.rounds, .late = &late, .n_late = 1};
	struct ctl_msg msg = {.type = CTL_BEAT, .beat = {.jobs = &job, .n_jobs = 1}};
	const struct ctl_msg other = {.type = CTL_BEAT};

	while (n--) {
		w->now += 1000 * MS;
		job.round = w->steps += f.steps;
		beat_agents(w);
		sched_receive_message(w->core, 11, &msg, w->now);
		sched_receive_message(w->core, 12, &other, w->now);
		sched_tick(w->core, w->now);
	}
}

static json_t *status(struct progress_world *w)
{
	struct status_info info = {.now_ns = w->now};
	json_t *root = status_cluster(w->core, &info);

	assert_non_null(root);
	return root;
}

static json_t *pace_of(json_t *root)
{
	return json_object_get(json_array_get(json_object_get(root, "jobs"), 0), "pace");
}

static bool has_problem(struct progress_world *w, const char *code)
{
	json_t *root = status(w), *p;
	bool is_there = false;
	size_t i;

	json_array_foreach (json_object_get(root, "problems"), i, p)
		is_there |= strcmp(json_string_value(json_object_get(p, "code")), code) == 0;
	json_decref(root);
	return is_there;
}

static bool is_straggling(struct progress_world *w)
{
	return has_problem(w, "STRAGGLER");
}

/* Advance the time by one second. Each server then reports that it has completed `rounds` rounds
 * since its start. The first server also reports that each sum took `sum_us` microseconds. */
static void sums(struct progress_world *w, uint64_t rounds, uint32_t sum_us)
{
	struct ctl_msg msg = {.type = CTL_BEAT, .beat = {.rounds = rounds, .sum_us = sum_us}};

	w->now += 1000 * MS;
	beat_agents(w);
	sched_receive_message(w->core, 11, &msg, w->now);
	msg.beat = (struct ctl_beat){.rounds = rounds};
	sched_receive_message(w->core, 12, &msg, w->now);
	sched_tick(w->core, w->now);
}

static void rates_and_waits_are_added_up_over_the_servers(void **state)
{
	struct progress_world w;
	json_t *root, *pace, *slowest;

	(void)state;
	world_init(&w);
	for (unsigned i = 1; i <= 10; i++)
		second(&w, 3 * i, 2, 90, 40000);
	root = status(&w);
	pace = pace_of(root);
	assert_int_equal(json_integer_value(json_object_get(pace, "round")), 30);
	assert_true(json_real_value(json_object_get(pace, "steps_s")) > 2.9);
	assert_true(json_real_value(json_object_get(pace, "steps_s")) < 3.1);
	/* Each of the two servers receives 3,000 bytes of contributions per second. */
	assert_true(json_real_value(json_object_get(pace, "push_bytes_s")) > 5900);
	assert_true(json_real_value(json_object_get(pace, "push_bytes_s")) < 6100);
	assert_true(json_real_value(json_object_get(pace, "wait_p50_s")) > 0.0199);
	assert_true(json_real_value(json_object_get(pace, "wait_p50_s")) < 0.0201);
	slowest = json_object_get(pace, "slowest");
	assert_string_equal(json_string_value(json_object_get(slowest, "agent")), "c");
	assert_true(json_real_value(json_object_get(slowest, "share")) > 0.89);
	assert_int_equal(json_integer_value(json_object_get(
				 json_array_get(json_object_get(root, "members"), 0), "id")),
		1);
	json_decref(root);
	sched_free(w.core);
}

static void lists_of_a_heartbeat_are_cut_to_their_limits(void **state)
{
	struct ctl_beat_late late[CTL_BEAT_LATE_MAX + 1] = {{0}};
	struct ctl_beat_job jobs[CTL_BEAT_JOBS_MAX + 1] = {{0}};
	struct ctl_msg msg = {
		.type = CTL_BEAT, .beat = {.jobs = jobs, .n_jobs = CTL_BEAT_JOBS_MAX + 1}};
	const struct sched_member *m;
	struct progress_world w;

	(void)state;
	for (unsigned i = 0; i <= CTL_BEAT_JOBS_MAX; i++)
		jobs[i] = (struct ctl_beat_job){.late = late, .n_late = CTL_BEAT_LATE_MAX + 1};
	world_init(&w);
	sched_receive_message(w.core, 11, &msg, w.now);
	m = sched_member_by_id(w.core, 1);
	assert_int_equal(m->n_reports, CTL_BEAT_JOBS_MAX);
	for (uint32_t i = 0; i < m->n_reports; i++)
		assert_int_equal(m->reports[i].job.n_late, CTL_BEAT_LATE_MAX);
	sched_free(w.core);
}

static void server_whose_sums_take_long_is_named_until_it_recovers(void **state)
{
	struct progress_world w;
	uint64_t rounds = 0;

	(void)state;
	world_init(&w);
	for (unsigned i = 1; i <= PROGRESS_SURE; i++) {
		assert_false(has_problem(&w, "SERVER_SLOW"));
		sums(&w, ++rounds, 600000);
	}
	assert_true(has_problem(&w, "SERVER_SLOW"));
	/* sums that are only slightly faster than before do not end the problem */
	for (unsigned i = 0; i < 10; i++)
		sums(&w, ++rounds, 450000);
	assert_true(has_problem(&w, "SERVER_SLOW"));
	for (unsigned i = 0; i < PROGRESS_SURE; i++)
		sums(&w, ++rounds, 1000);
	assert_false(has_problem(&w, "SERVER_SLOW"));
	/* a heartbeat without new rounds never counts as slow, whatever time it reports */
	for (unsigned i = 0; i < 10; i++)
		sums(&w, rounds, 600000);
	assert_false(has_problem(&w, "SERVER_SLOW"));
	sched_free(w.core);
}

static void straggler_is_raised_after_seconds_and_cleared_after_seconds(void **state)
{
	struct progress_world w;
	unsigned step = 0, n;

	(void)state;
	world_init(&w);
	for (n = 0; n < 20 && !is_straggling(&w); n++)
		second(&w, step += 3, 2, 90, 40000);
	assert_in_range(n, PROGRESS_SURE, 3 * PROGRESS_SURE);
	assert_int_equal(w.n_told, 1);
	/* The agent is now late in fewer rounds and by less time, but remains the straggler. */
	for (unsigned i = 0; i < 10; i++)
		second(&w, step += 3, 2, 60, 6000);
	assert_true(is_straggling(&w));
	for (n = 0; n < 20 && is_straggling(&w); n++)
		second(&w, step += 3, 2, 30, 40000);
	assert_in_range(n, PROGRESS_SURE, PROGRESS_SURE + 1);
	assert_int_equal(w.n_told, 1);
	assert_int_equal(w.n_over, 1);
	sched_free(w.core);
}

/* With four agents, the limits are five of eight rounds, 5 ms, and 2% of the time of a step. With
 * fewer than eight rounds, no agent is a straggler. */
static void straggler_is_an_agent_whose_figures_reach_all_limits(void **state)
{
	static const struct {
		struct figures f;
		bool is_straggling;
	} cases[] = {
		{{8, 5, 5000, 4}, true},
		{{7, 5, 5000, 4}, false},
		{{16, 9, 5000, 4}, false},
		{{8, 5, 4999, 5}, false},
		{{8, 5, 5000, 3}, false},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct progress_world w;

		world_init(&w);
		seconds_of(&w, 10, cases[i].f);
		assert_int_equal(is_straggling(&w), cases[i].is_straggling);
		sched_free(w.core);
	}
}

static void straggler_stays_one_while_its_figures_reach_four_fifths_of_the_limits(void **state)
{
	static const struct {
		struct figures f;
		bool is_straggling;
	} cases[] = {
		{{16, 8, 4000, 4}, true},
		{{16, 7, 4000, 4}, false},
		{{16, 8, 3999, 5}, false},
		{{16, 8, 4000, 3}, false},
		{{8, 4, 4000, 4}, true},
		{{7, 7, 40000, 4}, false},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct progress_world w;

		world_init(&w);
		seconds_of(&w, 10, (struct figures){100, 90, 40000, 4});
		assert_true(is_straggling(&w));
		seconds_of(&w, 10, cases[i].f);
		assert_int_equal(is_straggling(&w), cases[i].is_straggling);
		sched_free(w.core);
	}
}

static void random_delays_make_no_straggler(void **state)
{
	struct progress_world w;
	unsigned step = 0;

	(void)state;
	world_init(&w);
	for (unsigned i = 0; i < 10; i++)
		second(&w, step += 3, 1, 90, 1000); /* the agent is late by only a millisecond */
	for (unsigned i = 0; i < 10; i++)
		second(&w, step += 3, 1, 55, 40000); /* the agent is late in 55% of the rounds */
	for (unsigned i = 0; i < 20; i++)
		second(&w, step += 3, i % 2, 90, 40000); /* the agents are late alternately */
	assert_false(is_straggling(&w));
	for (unsigned i = 0; i < 10; i++)
		second(&w, step, 1, 90, 40000); /* no round completes */
	assert_false(is_straggling(&w));
	sched_free(w.core);
}

static void new_straggler_is_named_only_after_seconds(void **state)
{
	struct progress_world w;
	unsigned step = 0, n;

	(void)state;
	world_init(&w);
	for (unsigned i = 0; i < 10; i++)
		second(&w, step += 3, 1, 90, 40000);
	assert_true(is_straggling(&w));
	for (n = 0; n < 20 && !w.n_over; n++)
		second(&w, step += 3, 2, 90, 40000);
	/* The first server's heartbeat triggers the update. At that time the second server's
	 * figures are one heartbeat old, so the scheduler may need one more second. */
	assert_in_range(n, PROGRESS_SURE, PROGRESS_SURE + 1);
	assert_false(is_straggling(&w));
	for (n = 0; n < 20 && !is_straggling(&w); n++)
		second(&w, step += 3, 2, 90, 40000);
	assert_in_range(n, PROGRESS_SURE, PROGRESS_SURE + 1);
	assert_int_equal(w.n_told, 2);
	sched_free(w.core);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates_and_waits_are_added_up_over_the_servers),
		cmocka_unit_test(lists_of_a_heartbeat_are_cut_to_their_limits),
		cmocka_unit_test(server_whose_sums_take_long_is_named_until_it_recovers),
		cmocka_unit_test(straggler_is_raised_after_seconds_and_cleared_after_seconds),
		cmocka_unit_test(straggler_is_an_agent_whose_figures_reach_all_limits),
		cmocka_unit_test(
			straggler_stays_one_while_its_figures_reach_four_fifths_of_the_limits),
		cmocka_unit_test(random_delays_make_no_straggler),
		cmocka_unit_test(new_straggler_is_named_only_after_seconds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
