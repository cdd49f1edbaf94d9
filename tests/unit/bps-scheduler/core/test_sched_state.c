/* The durable records of the scheduler's core, and its state after a restart. */
#include "tests/unit/sched_world.h"

#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/place.h"

static void restarted_scheduler_knows_its_members_and_jobs(void **state)
{
	struct sched_world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	/* s1 restarts, which gives the tensor's partitions a newer pgen */
	server(&w, 31, "s1", 111);
	view = sched_current_view(w.core);
	kill_scheduler(&w);
	assert_int_equal(sched_current_term(w.core), 2);
	assert_true(sched_current_view(w.core) > view);
	clear(&w);
	server(&w, 11, "s1", 111);
	SAID(&w, "11 WELCOME id=1 term=2");
	SAID(&w, "11 PLAN job=1 0=w");
	agent(&w, 21, "a", 201);
	SAID(&w, "21 JOB job=1 x size=2 m0(3:0) m1(4:1)");
	SAID(&w, "21 PLAN job=1 0=w");
	SAID(&w, "i111]");
	SAID(&w, "i102]");
	join(&w, 21, 0, 2, 10);
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	world_fini(&w);
}

static void no_member_is_declared_dead_in_the_grace_after_a_restart(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	clear(&w);
	pass(&w, 2 * w.cfg.agent_dead_ms - 10, NULL);
	agent(&w, 21, "a", 201);
	NOT_SAID(&w, "down");
	NOT_SAID(&w, "JOB_END");
	pass(&w, 20, (const uint32_t[]){21, 0});
	SAID(&w,
		"21 JOB_END job=1 code=10008 agent 'b' (host b) of job 'x' is lost: did not return "
		"after the scheduler's restart");
	world_fini(&w);
}

/* After a restart, let a time of `ms` milliseconds pass. Agents a and b are connected, but server
 * s1 (member 1) is not. Whenever the scheduler asks agent a about s1, agent a answers that it has
 * received nothing from s1 for `quiet_ms` milliseconds. */
static void pass_without_s1(struct sched_world *w, uint32_t ms, uint32_t quiet_ms)
{
	const struct ctl_msg seen = {CTL_SEEN, .sight = {1, 101, quiet_ms}};

	for (uint32_t at = 0; at < ms; at += 100) {
		char *asked;

		pass(w, 100, (const uint32_t[]){12, 21, 22, 0});
		asked = strstr(w->log, "21 SIGHT");
		if (!asked)
			continue;
		asked[0] = '-';
		send_msg(w, 21, &seen);
	}
}

static void restart_without_s1(struct sched_world *w)
{
	running_job(w);
	kill_scheduler(w);
	server(w, 12, "s2", 102);
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
	clear(w);
}

static void server_that_agents_do_not_receive_from_is_dead_in_the_grace(void **state)
{
	struct sched_world w;

	(void)state;
	restart_without_s1(&w);
	pass_without_s1(&w, w.cfg.server_dead_ms - 200, 3000);
	NOT_SAID(&w, "down");
	pass_without_s1(&w, 400, 3000);
	SAID(&w, "s1:down:i101");
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void server_that_agents_receive_from_or_never_met_has_the_whole_grace(void **state)
{
	struct sched_world w;

	(void)state;
	restart_without_s1(&w);
	pass_without_s1(&w, 2 * w.cfg.agent_dead_ms - 200, 100);
	NOT_SAID(&w, "down");
	pass_without_s1(&w, 400, 100);
	SAID(&w, "s1:down:i101");
	world_fini(&w);
	restart_without_s1(&w);
	pass(&w, 2 * w.cfg.agent_dead_ms - 200, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "22 SIGHT");
	NOT_SAID(&w, "down");
	world_fini(&w);
}

static void silent_server_is_dead_in_the_grace_of_another_member(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s2", 102);
	agent(&w, 21, "a", 201); /* agent b does not reconnect */
	clear(&w);
	for (uint32_t at = 0; at < w.cfg.server_dead_ms + 300; at += 100) {
		const struct ctl_msg seen = {CTL_SEEN, .sight = {1, 101, 200 + at}};

		pass(&w, 100, (const uint32_t[]){12, 21, 0});
		send_msg(&w, 21, &seen);
	}
	SAID(&w, "s1:down:i101");
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void grace_also_covers_members_that_leave_again(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s2", 102);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	clear(&w);
	close_conn(&w, 11);
	/* server s2 is silent */
	pass(&w, 2 * w.cfg.agent_dead_ms - 10, (const uint32_t[]){21, 22, 0});
	NOT_SAID(&w, "down");
	pass(&w, 20, (const uint32_t[]){21, 22, 0});
	SAID(&w, "s1:down:i101");
	SAID(&w, "12 DROP silent");
	world_fini(&w);
}

/* The server hangs, so its connection stays open. */
static void silent_server_dies_in_time_once_all_members_are_back(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s2", 102);
	agent(&w, 21, "a", 201);
	pass(&w, w.cfg.server_dead_ms + 500, (const uint32_t[]){11, 21, 0});
	NOT_SAID(&w, "down"); /* server s2 is not dead yet, because agent b has not reconnected */
	agent(&w, 22, "b", 202);
	pass(&w, 20, (const uint32_t[]){11, 21, 22, 0});
	SAID(&w, "12 DROP silent");
	clear(&w);
	pass(&w, w.cfg.server_dead_ms - 500, (const uint32_t[]){11, 21, 22, 0});
	NOT_SAID(&w, "down");
	world_fini(&w);
}

static void server_that_restarted_meanwhile_gets_a_new_pgen(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	clear(&w);
	server(&w, 11, "s1", 111);
	SAID(&w, "21 PLAN job=1");
	SAID(&w, "i111]");
	world_fini(&w);
}

static bool has_problem(struct sched_world *w, const char *code)
{
	json_t *doc = status_cluster(w->core, &(struct status_info){.now_ns = w->now}), *p;
	bool found = false;
	size_t i;

	json_array_foreach (json_object_get(doc, "problems"), i, p)
		found |= strcmp(json_string_value(json_object_get(p, "code")), code) == 0;
	json_decref(doc);
	return found;
}

static void server_that_restarted_with_fewer_threads_is_restored_with_these(void **state)
{
	struct ctl_msg msg = hello_of(ROLE_SERVER, "s1", "s1", 111);
	struct sched_world w;

	(void)state;
	running_job(&w);
	msg.hello.threads = 1;
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	kill_scheduler(&w); /* checks that each partition is on a thread that exists */
	clear(&w);
	sched_conn_open(w.core, 32, w.now);
	send_msg(&w, 32, &msg);
	SAID(&w, "32 PLAN job=1 0=w [0:");
	SAID(&w, "i111]");
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void log_without_its_last_record_ends_the_jobs_that_it_has(void **state)
{
	struct sched_world w;
	uint64_t before, view;
	size_t n;

	(void)state;
	running_job(&w);
	n = w.n_records;
	before = sched_current_view(w.core);
	server(&w, 31, "s1", 111); /* partitions move, but the record of the move will be lost */
	view = sched_current_view(w.core);
	assert_true(view > before);
	lose_records(&w, n, before);
	kill_scheduler(&w);
	clear(&w);
	/* agent b was not connected during the move, so it has not received `view` */
	agent(&w, 22, "b", 202);
	NOT_SAID(&w, "JOB_END");
	assert_false(has_problem(&w, "STATE_BEHIND"));
	hello_seen(&w, 21, ROLE_AGENT, "a", 201, view);
	SAID(&w, "22 JOB_END job=1 code=10021 the scheduler's state is older than that of agent "
		 "'a'");
	SAID(&w, "21 JOB_END job=1 code=10021");
	assert_true(has_problem(&w, "STATE_BEHIND"));
	clear(&w);
	join(&w, 21, 0, 2, 30);
	join(&w, 22, 1, 2, 31);
	hello_seen(&w, 11, ROLE_SERVER, "s1", 111, view);
	/* the job was formed in this term, so none of the job's records are lost */
	SAID(&w, "11 JOB job=1025");
	NOT_SAID(&w, "JOB_END job=1025");
	world_fini(&w);
}

static void older_copy_of_the_state_is_detected_within_a_term(void **state)
{
	struct sched_world w;
	uint64_t before, view;
	size_t n;

	(void)state;
	running_job(&w);
	n = w.n_records;
	before = sched_current_view(w.core);
	kill_scheduler(&w);
	server(&w, 12, "s2", 112);
	view = sched_current_view(w.core);
	lose_records(&w, n, before);
	kill_scheduler(&w);
	assert_int_equal(sched_current_term(w.core), view >> 32);
	agent(&w, 22, "b", 212);
	server(&w, 12, "s2", 122);
	server(&w, 13, "s3", 103);
	assert_true(sched_current_view(w.core) > view);
	clear(&w);
	hello_seen(&w, 11, ROLE_SERVER, "s1", 101, view);
	SAID(&w, "22 JOB_END job=1 code=10021");
	world_fini(&w);
}

static void members_without_newer_state_end_no_job(void **state)
{
	struct sched_world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_current_view(w.core);
	kill_scheduler(&w);
	clear(&w);
	hello_seen(&w, 21, ROLE_AGENT, "a", 201, view);
	server(&w, 11, "s1", 111);
	close_conn(&w, 21);
	hello_seen(&w, 23, ROLE_AGENT, "a", 201, sched_current_view(w.core));
	hello_seen(&w, 24, ROLE_AGENT, "renamed", 203, sched_current_view(w.core));
	NOT_SAID(&w, "JOB_END");
	assert_false(has_problem(&w, "STATE_BEHIND"));
	world_fini(&w);
}

static void forming_job_can_be_joined_again_after_a_restart(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 1, 2, 10);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	NOT_SAID(&w, "JOB");
	join(&w, 21, 1, 2, 10);
	/* job id 1 was assigned before, so the new job has another id */
	SAID(&w, "21 JOINED code=0 job=1025 rank=1");
	world_fini(&w);
}

static void end_of_a_job_is_sent_to_members_that_missed_it(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 21);
	worker(&w, 22, 1, WORKER_LOST);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "21 JOB_END job=1 code=10007 rank 1");
	world_fini(&w);
}

static double ended_s(struct sched_world *w)
{
	json_t *doc = status_cluster(w->core, &(struct status_info){.now_ns = w->now});
	json_t *job = json_array_get(json_object_get(doc, "ended"), 0);
	double s = json_real_value(json_object_get(job, "state_s"));

	json_decref(doc);
	return s;
}

static void ended_job_keeps_its_age_over_restarts_and_boots(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.cfg.unix_offset_s = 1700000000;
	kill_scheduler(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	w.now += 100000 * MS;
	worker(&w, 22, 1, WORKER_LOST);
	w.now += 30000 * MS;
	kill_scheduler(&w);
	assert_in_range((uint64_t)(ended_s(&w) * 10), 299, 311);
	w.cfg.unix_offset_s +=
		(int64_t)(w.now / (1000 * MS)) + 60; /* the machine takes a minute to boot */
	w.now = 2000 * MS;
	kill_scheduler(&w);
	assert_in_range((uint64_t)(ended_s(&w) * 10), 909, 931);
	world_fini(&w);
}

static void scheduler_without_state_takes_a_term_above_its_members(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = hello_of(ROLE_AGENT, "a", "a", 201);

	(void)state;
	world_init(&w);
	msg.hello.cluster_id = (struct blob){"the old cluster.", 16};
	msg.hello.view = UINT64_C(7) << 32 | 55;
	sched_conn_open(w.core, 21, w.now);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 WELCOME id=1 term=8");
	assert_true(sched_current_view(w.core) > msg.hello.view);
	world_fini(&w);
}

static void nothing_is_sent_that_is_not_durable(void **state)
{
	struct sched_world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_current_view(w.core);
	w.persist_error = -ENOSPC;
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 100);
	declare(&w, 22, 1, "v", DTYPE_F32, 100);
	join(&w, 21, CTL_NO_ID, 2, 99);
	SAID(&w, "21 JOINED code=10020");
	agent(&w, 23, "c", 203);
	SAID(&w, "23 REFUSE code=10020");
	close_conn(&w, 11);
	/* Server s2 is silent, too. The scheduler declares no server lost, because it cannot make
	 * a record of the loss durable. */
	pass(&w, 8000, (const uint32_t[]){21, 22, 0});
	NOT_SAID(&w, "PLAN");
	NOT_SAID(&w, "down");
	assert_true(sched_current_view(w.core) == view);
	assert_false(sched_is_durable(w.core));
	w.persist_error = 0;
	clear(&w);
	pass(&w, 600, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "21 PLAN job=1 1=v [1:");
	NOT_SAID(&w, "down");
	assert_true(sched_is_durable(w.core));
	pass(&w, 2 * w.cfg.agent_dead_ms, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "21 PEERS s1:down");
	world_fini(&w);
}

static void member_that_cannot_be_recorded_is_refused(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.persist_error = -EIO;
	clear(&w);
	agent(&w, 23, "c", 203);
	SAID(&w, "23 REFUSE code=10020");
	NOT_SAID(&w, "WELCOME");
	w.persist_error = 0;
	pass(&w, 600, everybody);
	agent(&w, 24, "c", 203);
	SAID(&w, "24 WELCOME id=5");
	world_fini(&w);
}

static void known_member_is_not_refused_while_the_state_cannot_be_written(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.persist_error = -EIO;
	clear(&w);
	/* A restarted server would change the view. The scheduler cannot write the new view. */
	server(&w, 31, "s1", 111);
	SAID(&w, "31 DROP the state cannot be written");
	agent(&w, 41, "a", 201);
	SAID(&w, "41 DROP the state cannot be written");
	/* The scheduler sends no PLAN, because it cannot make a record of the placement durable */
	declare(&w, 22, 1, "w", DTYPE_F32, 400000);
	NOT_SAID(&w, "REFUSE");
	NOT_SAID(&w, "PLAN");
	w.persist_error = 0;
	pass(&w, 600, (const uint32_t[]){12, 22, 0});
	SAID(&w, "22 PLAN job=1 0=w [0:");
	SAID(&w, "i111]");
	server(&w, 32, "s1", 111);
	SAID(&w, "32 PLAN job=1 0=w [0:");
	world_fini(&w);
}

static int keep_snapshot(void *ctx, const struct state_record *rec)
{
	struct sched_world *w = ctx;
	size_t n = codec_encoded_size(state_record_layout(), rec);

	for (size_t i = 0; i < w->n_records; i++)
		free(w->records[i].bytes);
	w->records[0].bytes = malloc(n);
	w->records[0].n = codec_encode(state_record_layout(), rec, w->records[0].bytes);
	w->n_records = 1;
	return 0;
}

static void snapshot_holds_everything(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	assert_int_equal(sched_snapshot(w.core, keep_snapshot, &w), 0);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "21 WELCOME id=3 term=2");
	SAID(&w, "21 PLAN job=1 0=w [0:");
	world_fini(&w);
}

struct kept_record {
	void *bytes;
	size_t n;
};

static int keep_record(void *ctx, const struct state_record *rec)
{
	struct kept_record *ret = ctx;

	ret->n = codec_encoded_size(state_record_layout(), rec);
	ret->bytes = malloc(ret->n);
	codec_encode(state_record_layout(), rec, ret->bytes);
	return 0;
}

static struct kept_record snapshot_of(const struct sched_core *c)
{
	struct kept_record ret;

	assert_int_equal(sched_snapshot(c, keep_record, &ret), 0);
	return ret;
}

/* Restore n records into a new core that does not start, and return its snapshot. */
static struct kept_record snapshot_restored_from(
	struct sched_world *w, const void *bytes[], const size_t *n_bytes, size_t n)
{
	struct sched_world other = {.cfg = w->cfg};
	struct kept_record ret;

	core_new(&other);
	for (size_t i = 0; i < n; i++) {
		struct state_record rec;
		struct err_text err = {""};
		void *mem;

		assert_int_equal(codec_decode(state_record_layout(), bytes[i], n_bytes[i], 1 << 24,
					 &rec, &mem, &err),
			0);
		if (sched_restore(other.core, &rec, &err) < 0)
			fail_msg("record %zu: %s", i, err.s);
		free(mem);
	}
	ret = snapshot_of(other.core);
	world_fini(&other);
	return ret;
}

static void assert_same_record(const struct kept_record *a, const struct kept_record *b)
{
	assert_int_equal(a->n, b->n);
	assert_memory_equal(a->bytes, b->bytes, a->n);
}

/* The job is elastic, has passed barriers, has let a machine in, and has lost one. Another job has
 * ended with a cause, and has all options. */
static void rich_state(struct sched_world *w)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = 1,
			.uid = 2000,
			.job = "ended",
			.size = 1,
			.flags = JOB_SHRINK,
			.pid = 77,
			.part_bytes = 65536,
			.token = token,
			.backup = 1,
			.grace_ms = 300}};
	struct err_text text;

	elastic_job_of(w, 4);
	at_barrier(w, 21, 0, 1);
	at_barrier(w, 22, 1, 1);
	join(w, 23, CTL_NO_ID, 2, 12);
	w->last_job = 1;
	at_barrier(w, 21, 0, 2);
	at_barrier(w, 22, 1, 2);
	at_barrier(w, 21, 0, 3);
	at_barrier(w, 22, 1, 3);
	at_barrier(w, 23, 2, 3);
	worker(w, 22, 1, WORKER_LOST);
	send_msg(w, 21, &msg);
	worker(w, 21, 0, WORKER_LOST);
	assert_int_equal(sched_drain(w->core, "agent:c", "disk", "alice", w->now, &text), 0);
	assert_int_equal(sched_mute(w->core, "STRAGGLER", 1000, "known", "bob", w->now), 0);
	w->last_job = 1;
}

static void records_and_snapshot_restore_the_same_state(void **state)
{
	static const void *bytes[RECORDS];
	static size_t n_bytes[RECORDS];
	struct kept_record live, from_records, from_snapshot;
	struct sched_world w;

	(void)state;
	rich_state(&w);
	live = snapshot_of(w.core);
	for (size_t i = 0; i < w.n_records; i++) {
		bytes[i] = w.records[i].bytes;
		n_bytes[i] = w.records[i].n;
	}
	from_records = snapshot_restored_from(&w, bytes, n_bytes, w.n_records);
	bytes[0] = live.bytes;
	n_bytes[0] = live.n;
	from_snapshot = snapshot_restored_from(&w, bytes, n_bytes, 1);
	assert_same_record(&from_records, &live);
	assert_same_record(&from_snapshot, &live);
	free(live.bytes);
	free(from_records.bytes);
	free(from_snapshot.bytes);
	world_fini(&w);
}

static void snapshot_holds_the_barriers_that_a_job_has_passed(void **state)
{
	struct sched_world w;

	(void)state;
	rich_state(&w);
	assert_int_equal(sched_snapshot(w.core, keep_snapshot, &w), 0);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "21 JOB job=1 x size=4 m0(2:0) m1(3:1) gone m2(4:2) barrier=3 border\n");
	world_fini(&w);
}

static void contradicting_record_is_refused(void **state)
{
	struct sched_world w;
	struct state_member m = {.id = 7, .hello = {.role = ROLE_AGENT, .name = "n", .host = "h"}};
	struct state_record rec = {.cluster_id = {"0123456789abcdef", 16},
		.secret = {"0123456789abcdef0123456789abcdef", 32},
		.term = 1,
		.view = 1,
		.job_id_limit = 1,
		.members = &m,
		.n_members = 1};
	struct err_text err = {""};

	(void)state;
	memset(&w, 0, sizeof(w));
	sched_config_default(&w.cfg);
	core_new(&w);
	assert_int_equal(sched_restore(w.core, &rec, &err), -EINVAL);
	assert_non_null(strstr(err.s, "member 7"));
	world_fini(&w);
}

static void record_of_a_tensor_is_refused_beyond_its_limits(void **state)
{
	const struct state_tensor good = {.job = 1,
		.tensor = 1,
		.name = "v",
		.shape = shape_from_dtype_and_count(DTYPE_F32, 9),
		.part_elems = 9};
	struct state_tensor t[9];
	struct state_record rec = {.cluster_id = {"0123456789abcdef", 16},
		.secret = {"0123456789abcdef0123456789abcdef", 32},
		.n_tensors = 1};
	struct sched_world w;
	struct err_text err;

	(void)state;
	for (unsigned i = 0; i < 9; i++)
		t[i] = good;
	t[0].job = 2;
	t[1].tensor = 2;
	t[2].name = "w"; /* the job has a tensor of this name */
	t[3].shape.dtype = 99;
	t[4].shape.n_values = 0;
	t[5].part_elems = 0;
	t[6].shape.n_values = PLACE_PARTS_MAX * UINT64_C(9) + 1; /* one partition too many */
	t[7].shape.n_values = SCHED_TENSOR_BYTES_MAX + 1;
	t[7].part_elems = UINT32_MAX;
	t[8].shape.n_values = PLACE_PARTS_MAX * UINT64_C(9);
	running_job(&w);
	rec.term = sched_current_term(w.core);
	rec.view = sched_current_view(w.core);
	rec.job_id_limit = UINT32_MAX;
	for (unsigned i = 0; i < 9; i++) {
		rec.tensors = &t[i];
		assert_int_equal(sched_restore(w.core, &rec, &err), i < 8 ? -EINVAL : 0);
		if (i < 8)
			assert_non_null(strstr(err.s, "is invalid or contradicts earlier records"));
	}
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(restarted_scheduler_knows_its_members_and_jobs),
		cmocka_unit_test(no_member_is_declared_dead_in_the_grace_after_a_restart),
		cmocka_unit_test(silent_server_dies_in_time_once_all_members_are_back),
		cmocka_unit_test(server_that_agents_do_not_receive_from_is_dead_in_the_grace),
		cmocka_unit_test(server_that_agents_receive_from_or_never_met_has_the_whole_grace),
		cmocka_unit_test(silent_server_is_dead_in_the_grace_of_another_member),
		cmocka_unit_test(grace_also_covers_members_that_leave_again),
		cmocka_unit_test(server_that_restarted_meanwhile_gets_a_new_pgen),
		cmocka_unit_test(server_that_restarted_with_fewer_threads_is_restored_with_these),
		cmocka_unit_test(log_without_its_last_record_ends_the_jobs_that_it_has),
		cmocka_unit_test(older_copy_of_the_state_is_detected_within_a_term),
		cmocka_unit_test(members_without_newer_state_end_no_job),
		cmocka_unit_test(forming_job_can_be_joined_again_after_a_restart),
		cmocka_unit_test(end_of_a_job_is_sent_to_members_that_missed_it),
		cmocka_unit_test(ended_job_keeps_its_age_over_restarts_and_boots),
		cmocka_unit_test(scheduler_without_state_takes_a_term_above_its_members),
		cmocka_unit_test(nothing_is_sent_that_is_not_durable),
		cmocka_unit_test(member_that_cannot_be_recorded_is_refused),
		cmocka_unit_test(known_member_is_not_refused_while_the_state_cannot_be_written),
		cmocka_unit_test(snapshot_holds_everything),
		cmocka_unit_test(records_and_snapshot_restore_the_same_state),
		cmocka_unit_test(snapshot_holds_the_barriers_that_a_job_has_passed),
		cmocka_unit_test(contradicting_record_is_refused),
		cmocka_unit_test(record_of_a_tensor_is_refused_beyond_its_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
