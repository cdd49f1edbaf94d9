/* Tests of the scheduler core's answers to why-stuck requests, and of the events that it keeps. */
#include "tests/unit/sched_world.h"

#include <unistd.h>

#include "common/base/log.h"

/* ---- why-stuck ---- */

static void why(struct sched_world *w, uint32_t conn, uint32_t tensor, uint64_t round)
{
	struct ctl_msg msg = {.type = CTL_WHY, .why = {5, w->last_job, tensor, round}};

	send_msg(w, conn, &msg);
}

static void report(struct sched_world *w, uint32_t conn, uint32_t seq,
	struct ctl_report_worker *workers, uint32_t n, const char *text)
{
	struct ctl_msg msg = {.type = CTL_REPORT, .report = {seq, w->last_job, text, workers, n}};

	send_msg(w, conn, &msg);
}

static void end_that_is_not_durable_is_not_sent(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.persist_error = -ENOSPC;
	clear(&w);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_FINISHED);
	why(&w, 21, CTL_NO_ID, 0);
	NOT_SAID(&w, "JOB_END");
	w.persist_error = 0;
	pass(&w, 600, (const uint32_t[]){11, 12, 21, 22, 0});
	SAID(&w, "21 JOB_END job=1 code=0");
	SAID(&w, "22 JOB_END job=1 code=0");
	world_fini(&w);
}

static void why_of_a_forming_job_names_the_missing(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 4, 10);
	join(&w, 21, 1, 4, 11);
	join(&w, 21, 3, 4, 12);
	pass(&w, 5000, (const uint32_t[]){21, 0});
	why(&w, 21, CTL_NO_ID, 0);
	SAID(&w, "21 WHY_TEXT seq=5 job 'x': 3 of 4 workers have joined, missing rank 2; waiting "
		 "5.0 s\n");
	world_fini(&w);
}

static void why_of_a_job_that_is_not_durable_names_the_disk(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	w.persist_error = -ENOSPC;
	join(&w, 21, 0, 1, 10);
	NOT_SAID(&w, "21 JOB");
	clear(&w);
	why(&w, 21, CTL_NO_ID, 0);
	SAID(&w, "21 WHY_TEXT seq=5 the scheduler cannot write its state");
	world_fini(&w);
}

static void why_of_a_large_forming_job_names_eight_ranks(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 100, 10);
	why(&w, 21, CTL_NO_ID, 0);
	SAID(&w, "missing ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more;");
	world_fini(&w);
}

static json_t *first_wait(const struct sched_world *w)
{
	assert_non_null(w->status);
	return json_array_get(json_object_get(w->status, "waits"), 0);
}

/* Check what a user reads about a forming job that has waited for two minutes: the answer to WHY,
 * the problem in the cluster's status, and the ranks in the job's status. missing: the first rank
 * that is missing, or -1 if the job has enough workers. */
static void forming_reads(struct sched_world *w, const char *why_text, const char *problem,
	int missing, unsigned n_waiting)
{
	json_t *root, *wait, *p;
	bool has_problem = false;
	size_t i;

	clear(w);
	why(w, 21, CTL_NO_ID, 0);
	SAID(w, why_text);
	root = status_cluster(w->core, &(struct status_info){.now_ns = w->now});
	json_array_foreach (json_object_get(root, "problems"), i, p)
		has_problem |=
			strstr(json_string_value(json_object_get(p, "what")), problem) != NULL;
	json_decref(root);
	assert_true(has_problem);
	json_decref(w->status);
	w->status = status_job_json(w->core, &(struct status_info){.now_ns = w->now}, 1, NULL);
	wait = first_wait(w);
	assert_int_equal(json_integer_value(json_object_get(wait, "n_waiting")), n_waiting);
	p = json_array_get(json_object_get(wait, "missing"), 0);
	assert_int_equal(p ? json_integer_value(json_object_get(p, "rank")) : -1, missing);
	p = json_array_get(json_object_get(json_object_get(w->status, "job"), "missing_ranks"), 0);
	assert_int_equal(p ? json_integer_value(p) : -1, missing);
}

/* The ranks of an elastic job need not be the lowest ones. The job also waits for all workers of
 * each machine, so it may have more than `size` workers while it forms. */
static void missing_workers_of_a_forming_elastic_job_are_counted(void **state)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.job = "x",
			.size = 2,
			.flags = JOB_SHRINK | JOB_ELASTIC,
			.max_size = 12,
			.local_size = 2}};
	static const struct {
		uint32_t conn, rank;
		const char *why, *problem;
		int missing;
	} steps[] = {
		{21, 11, "1 of 2 workers have joined, missing rank 0; waiting",
			"job x: 1 of 2 workers have joined in 120 s; missing rank 0", 0},
		{22, 9,
			"2 of 2 workers have joined, but only 1 of 2 on host a, 1 of 2 on host b; "
			"waiting 240.0 s\n",
			"2 of 2 workers have joined in 240 s; missing other workers of a machine",
			-1},
		{21, 10, "3 of 2 workers have joined, but only 1 of 2 on host b; waiting 360.0 s\n",
			"3 of 2 workers have joined in 360 s; missing other workers of a machine",
			-1},
	};
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	for (uint32_t i = 0; i < 3; i++) {
		msg.join.rank = msg.join.pid = steps[i].rank;
		send_msg(&w, steps[i].conn, &msg);
		pass(&w, 120000, (const uint32_t[]){21, 22, 0});
		forming_reads(&w, steps[i].why, steps[i].problem, steps[i].missing, i + 1);
	}
	world_fini(&w);
}

static void why_of_a_forming_elastic_job_names_eight_machines(void **state)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.job = "x",
			.size = 2,
			.flags = JOB_SHRINK | JOB_ELASTIC,
			.max_size = 20,
			.local_size = 2}};
	struct sched_world w;

	(void)state;
	world_init(&w);
	for (uint32_t i = 0; i < 9; i++) {
		const char name[] = {(char)('a' + i), 0};

		agent(&w, 21 + i, name, 201 + i);
		msg.join.rank = msg.join.pid = i;
		send_msg(&w, 21 + i, &msg);
		if (i < 7)
			continue;
		clear(&w);
		why(&w, 21, CTL_NO_ID, 0);
		SAID(&w, i == 7 ? "1 of 2 on host h; waiting" : "host h and 1 more; waiting");
	}
	world_fini(&w);
}

static void why_of_a_round_names_who_is_late(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = {.rank = 0, .pid = 10, .submitted = 7, .is_attached = 1};
	struct ctl_report_worker b = {
		.rank = 1, .pid = 20, .submitted = 6, .quiet_ms = 5200, .is_attached = 1};

	(void)state;
	running_job(&w);
	clear(&w);
	why(&w, 21, 0, 7);
	SAID(&w, "21 PROBE seq=1 job=1");
	SAID(&w, "22 PROBE seq=1 job=1");
	report(&w, 21, 1, &a, 1, "");
	report(&w, 21, 1, &a, 1, ""); /* a second answer of the same agent does not count */
	NOT_SAID(&w, "WHY_TEXT");
	report(&w, 22, 1, &b, 1, "");
	SAID(&w,
		"21 WHY_TEXT seq=5 waiting for rank 1 (host b, pid 20), which submitted up to round"
		" 6, quiet for 5.2 s\n");
	world_fini(&w);
}

/* An agent may have 16 requests at a time. They count neither against the limit of another agent
 * nor against that of the probes for the status, which is 64. */
static void requests_are_limited_per_agent_and_for_the_status(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	for (unsigned i = 0; i < 16; i++)
		why(&w, 21, 0, 7);
	NOT_SAID(&w, "WHY_TEXT");
	why(&w, 21, 0, 7);
	SAID(&w, "21 WHY_TEXT seq=5 too many requests at once, retry\n");
	clear(&w);
	why(&w, 22, 0, 7);
	SAID(&w, "22 PROBE");
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), BPS_EBUSY);
	why(&w, 22, 0, 7);
	NOT_SAID(&w, "too many");
	pass(&w, w.cfg.probe_ms + 10, everybody);
	clear(&w);
	why(&w, 21, 0, 7);
	SAID(&w, "21 PROBE");
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	world_fini(&w);
}

static void why_ends_in_half_a_second_and_names_silent_agents(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = {.rank = 0, .pid = 10, .submitted = 7, .is_attached = 1};

	(void)state;
	running_job(&w);
	close_conn(&w, 12);
	pass(&w, w.cfg.server_window_ms + 100, (const uint32_t[]){11, 21, 22, 0});
	clear(&w);
	why(&w, 21, 0, 7);
	report(&w, 21, 1, &a, 1, "");
	pass(&w, w.cfg.probe_ms + 10, (const uint32_t[]){11, 21, 22, 0});
	SAID(&w, "21 WHY_TEXT seq=5 agent b (host b) did not answer within 0.5 s; server s2 (host "
		 "s2)"
		 " has been down for 0.6 s\n");
	world_fini(&w);
}

static void why_names_a_tensor_that_not_all_declare(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	clear(&w);
	why(&w, 21, CTL_NO_ID, 0);
	report(&w, 21, 1, NULL, 0, "");
	report(&w, 22, 1, NULL, 0, "");
	SAID(&w, "WHY_TEXT seq=5 tensor 'v' not declared yet by rank 1 (host b)\n");
	world_fini(&w);
}

static void probe_for_the_status_gathers_what_answers(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = {.rank = 0, .pid = 10, .oldest_tensor = CTL_NO_ID};

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 99, 77, w.now), BPS_ENOTFOUND);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	assert_false(w.is_probe_done);
	pass(&w, w.cfg.probe_ms + 10, everybody);
	assert_true(w.is_probe_done);
	assert_int_equal(w.probe_workers, 1);
	assert_int_equal(w.probe_answers, 1);
	world_fini(&w);
}

/* The report of a worker that has waited for round 3 of tensor 0 for 2 s. */
#define WAITS(r, p)                                                                                \
	(struct ctl_report_worker)                                                                 \
	{                                                                                          \
		.rank = (r), .pid = (p), .submitted = 3, .calls = 3, .oldest_round = 3,            \
		.oldest_ms = 2000, .is_attached = 1                                                \
	}

static const char *text_of(json_t *o, const char *list, const char *key)
{
	json_t *v = list ? json_object_get(json_array_get(json_object_get(o, list), 0), key)
			 : json_object_get(o, key);

	return json_is_string(v) ? json_string_value(v) : "";
}

static void probe_for_the_status_finds_workers_that_have_not_submitted(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = WAITS(0, 10);
	struct ctl_report_worker b = {.rank = 1,
		.pid = 20,
		.calls = 2,
		.submitted = 2,
		.quiet_ms = 2500,
		.oldest_tensor = CTL_NO_ID,
		.is_attached = 1};

	(void)state;
	running_job(&w);
	clear(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	report(&w, 22, 1, &b, 1, "");
	assert_false(w.is_probe_done);
	SAID(&w, "21 PROBE seq=2 job=1");
	report(&w, 21, 2, &a, 1, "");
	report(&w, 22, 2, &b, 1, "");
	assert_true(w.is_probe_done);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "submit");
	assert_string_equal(text_of(first_wait(&w), NULL, "tensor"), "w");
	assert_string_equal(text_of(first_wait(&w), "missing", "host"), "b");
	assert_string_equal(text_of(first_wait(&w), "waiting", "host"), "a");
	assert_string_equal(text_of(w.status, "problems", "code"), "STRAGGLER");
	assert_non_null(strstr(text_of(w.status, "problems", "what"), "rank 1 (host b, pid 20)"));
	world_fini(&w);
}

static void probe_for_the_status_names_the_servers_of_a_complete_round(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = WAITS(0, 10), b = WAITS(1, 20);

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	report(&w, 22, 1, &b, 1, "");
	report(&w, 21, 2, &a, 1, "");
	report(&w, 22, 2, &b, 1, "");
	assert_true(w.is_probe_done);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "sum");
	assert_string_equal(text_of(first_wait(&w), "servers", "state"), "up");
	assert_int_equal(json_array_size(json_object_get(w.status, "problems")), 0);
	world_fini(&w);
}

static void probe_for_the_status_ends_in_its_bound_and_names_silent_members(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = WAITS(0, 10);

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	pass(&w, w.cfg.probe_ms + 10, everybody);
	assert_false(w.is_probe_done);
	pass(&w, w.cfg.probe_ms / 4 + 10, everybody);
	assert_true(w.is_probe_done);
	assert_non_null(strstr(text_of(w.status, NULL, "condition"), "agent b (host b) did not"));
	assert_string_equal(text_of(w.status, "problems", "code"), "NO_ANSWER");
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "unknown");
	world_fini(&w);
}

static void probe_for_the_status_ends_at_once_without_connected_agents(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 21);
	close_conn(&w, 22);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	pass(&w, 1, (const uint32_t[]){11, 12, 0});
	assert_true(w.is_probe_done);
	assert_int_equal(w.probe_workers, 0);
	world_fini(&w);
}

/* Nine workers wait for nine tensors, and the probe asks about the eight with the longest waits. */
static void probe_for_the_status_asks_about_eight_tensors(void **state)
{
	struct ctl_report_worker r[9];
	struct sched_world w;
	char name[] = "t0";

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	agent(&w, 21, "a", 201);
	for (uint32_t i = 0; i < 9; i++) {
		join(&w, 21, i, 9, 10 + i);
		r[i] = WAITS(i, 10 + i);
		r[i].oldest_tensor = i;
		r[i].oldest_ms = 1000 - i;
	}
	for (uint32_t i = 0; i < 9; i++, name[1]++)
		declare(&w, 21, 0, name, DTYPE_F32, 10);
	clear(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, r, 9, "");
	SAID(&w, "21 PROBE seq=9 job=1");
	NOT_SAID(&w, "21 PROBE seq=10");
	for (uint32_t seq = 2; seq <= 9; seq++) {
		assert_false(w.is_probe_done);
		report(&w, 21, seq, r, 9, "");
	}
	assert_true(w.is_probe_done);
	assert_int_equal(json_array_size(json_object_get(w.status, "waits")), 8);
	world_fini(&w);
}

static void probe_for_the_status_outlives_its_job(void **state)
{
	struct sched_world w;
	struct ctl_report_worker a = WAITS(0, 10);

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	pass(&w, w.cfg.probe_ms + 10, everybody);
	report(&w, 22, 1, &a, 1, ""); /* too late for the probe's first step */
	worker(&w, 21, 0, WORKER_LOST);
	pass(&w, w.cfg.probe_ms / 4 + 10, everybody);
	assert_true(w.is_probe_done);
	assert_int_equal(json_array_size(json_object_get(w.status, "waits")), 0);
	world_fini(&w);
}

static void status_names_who_has_to_join_or_declare(void **state)
{
	struct status_info info = {0};
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 0, 2, 10);
	w.status = status_job_json(w.core, &info, w.last_job, NULL);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "join");
	assert_string_equal(text_of(first_wait(&w), "waiting", "host"), "a");
	json_decref(w.status);
	join(&w, 22, 1, 2, 20);
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	w.status = status_job_json(w.core, &info, w.last_job, NULL);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "declare");
	assert_string_equal(text_of(first_wait(&w), NULL, "tensor"), "v");
	assert_string_equal(text_of(first_wait(&w), "missing", "host"), "b");
	world_fini(&w);
}

/* ---- events ---- */

static bool has_event(const struct sched_world *w, const char *kind, const char *text)
{
	json_t *root = events_json(w->events, 1, 0), *e;
	bool is_there = false;
	size_t i;

	json_array_foreach (json_object_get(root, "events"), i, e)
		if (strcmp(text_of(e, NULL, "kind"), kind) == 0 &&
			strstr(text_of(e, NULL, "text"), text))
			is_there = true;
	json_decref(root);
	return is_there;
}

static void events_tell_of_members_jobs_partitions_and_views(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	assert_true(has_event(&w, "scheduler", "has started, term 1"));
	assert_true(has_event(&w, "member", "server s1 (host s1) is up: new member"));
	assert_true(has_event(&w, "job", "'x' (2 workers, uid 1000) begins to form"));
	assert_true(has_event(&w, "job", "'x' (2 workers, uid 1000) runs"));
	assert_true(has_event(&w, "view", "placed 1 tensor of job 'x'"));
	close_conn(&w, 12);
	assert_true(has_event(&w, "member", "s2 (host s2) is suspect: its connection closed"));
	pass(&w, w.cfg.server_window_ms + 100, (const uint32_t[]){11, 21, 22, 0});
	assert_true(has_event(&w, "member", "s2 (host s2) is down: gone for 1.0 s"));
	assert_true(has_event(&w, "partitions", "of job 'x' moved from server s2 to others"));
	assert_true(has_event(&w, "view", "server s2 is down"));
	server(&w, 13, "s1", 111);
	assert_true(has_event(&w, "member", "server s1 (host s1) has restarted"));
	assert_true(has_event(&w, "partitions", "start again on the restarted server s1"));
	worker(&w, 21, 0, WORKER_LOST);
	assert_true(has_event(&w, "job", "has ended: rank 0 (host a, pid 10)"));
	world_fini(&w);
}

/* The test reopens the file twice. The first time, a crash has cut off the file's last line. The
 * second time, the ring has received more than EVENTS_KEPT events. */
static void events_are_read_again_from_a_bounded_file(void **state)
{
	char dir[] = "/tmp/bps_events_XXXXXX", path[64];
	struct sched_event e = {EVENT_JOB, 7, "it is\nhere"};
	struct event_ring *ev = events_new();
	json_t *root, *first;
	FILE *f;
	int n_lines = 0, ch;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/events", dir);
	events_open(ev, dir);
	events_add(ev, &e, 1.5);
	events_free(ev);
	f = fopen(path, "a");
	fputs("nonsense\n2 1.5 7 job torn", f);
	fclose(f);
	ev = events_new();
	log_set_level(LOG_ERROR);
	events_open(ev, dir);
	root = events_json(ev, 2, 0);
	first = json_array_get(json_object_get(root, "events"), 0);
	assert_int_equal(json_integer_value(json_object_get(root, "restored")), 1);
	assert_int_equal(json_array_size(json_object_get(root, "events")), 1);
	assert_string_equal(json_string_value(json_object_get(first, "text")), "it is?here");
	assert_string_equal(json_string_value(json_object_get(first, "kind")), "job");
	assert_true(json_real_value(json_object_get(first, "time")) == 1.5);
	json_decref(root);
	for (int i = 0; i < 5 * EVENTS_KEPT; i++)
		events_add(ev, &e, i);
	events_free(ev);
	f = fopen(path, "r");
	while ((ch = fgetc(f)) != EOF)
		n_lines += ch == '\n';
	fclose(f);
	assert_true(n_lines >= EVENTS_KEPT && n_lines <= 2 * EVENTS_KEPT);
	ev = events_new();
	events_open(ev, dir);
	root = events_json(ev, 3, 0);
	assert_int_equal(json_integer_value(json_object_get(root, "last")), 5 * EVENTS_KEPT + 1);
	assert_int_equal(json_integer_value(json_object_get(root, "first")), 4 * EVENTS_KEPT + 2);
	json_decref(root);
	events_free(ev);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
}

static void events_are_kept_and_answered_within_their_bounds(void **state)
{
	struct event_ring *ev = events_new();
	struct sched_event e = {EVENT_VIEW, 7, "x"};
	json_t *root;

	(void)state;
	assert_non_null(ev);
	for (int i = 0; i < EVENTS_KEPT + 10; i++)
		events_add(ev, &e, i);
	root = events_json(ev, 1, 3);
	assert_int_equal(json_integer_value(json_object_get(root, "first")), 11);
	assert_int_equal(json_integer_value(json_object_get(root, "lost")), 7);
	assert_int_equal(json_array_size(json_object_get(root, "events")), EVENTS_ANSWER_MAX);
	assert_int_equal(json_integer_value(json_object_get(root, "next")), 10 + EVENTS_ANSWER_MAX);
	json_decref(root);
	root = events_json(ev, 1, UINT64_MAX);
	assert_int_equal(json_array_size(json_object_get(root, "events")), 0);
	assert_int_equal(json_integer_value(json_object_get(root, "next")), EVENTS_KEPT + 10);
	json_decref(root);
	root = events_json(ev, 1, EVENTS_KEPT + 9);
	assert_int_equal(json_array_size(json_object_get(root, "events")), 1);
	json_decref(root);
	events_free(ev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(end_that_is_not_durable_is_not_sent),
		cmocka_unit_test(why_of_a_forming_job_names_the_missing),
		cmocka_unit_test(why_of_a_job_that_is_not_durable_names_the_disk),
		cmocka_unit_test(why_of_a_large_forming_job_names_eight_ranks),
		cmocka_unit_test(missing_workers_of_a_forming_elastic_job_are_counted),
		cmocka_unit_test(why_of_a_forming_elastic_job_names_eight_machines),
		cmocka_unit_test(why_of_a_round_names_who_is_late),
		cmocka_unit_test(requests_are_limited_per_agent_and_for_the_status),
		cmocka_unit_test(why_ends_in_half_a_second_and_names_silent_agents),
		cmocka_unit_test(why_names_a_tensor_that_not_all_declare),
		cmocka_unit_test(probe_for_the_status_gathers_what_answers),
		cmocka_unit_test(probe_for_the_status_finds_workers_that_have_not_submitted),
		cmocka_unit_test(probe_for_the_status_names_the_servers_of_a_complete_round),
		cmocka_unit_test(probe_for_the_status_ends_in_its_bound_and_names_silent_members),
		cmocka_unit_test(probe_for_the_status_ends_at_once_without_connected_agents),
		cmocka_unit_test(probe_for_the_status_asks_about_eight_tensors),
		cmocka_unit_test(probe_for_the_status_outlives_its_job),
		cmocka_unit_test(status_names_who_has_to_join_or_declare),
		cmocka_unit_test(events_tell_of_members_jobs_partitions_and_views),
		cmocka_unit_test(events_are_read_again_from_a_bounded_file),
		cmocka_unit_test(events_are_kept_and_answered_within_their_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
