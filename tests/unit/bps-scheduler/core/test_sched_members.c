/* Tests of the members in the scheduler's core: how members connect, are recognised, and are
 * declared dead. */
#include "bps-scheduler/model/model.h"
#include "tests/unit/sched_world.h"

static void hello_is_answered_with_welcome_and_the_other_members(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	SAID(&w, "11 WELCOME id=1 term=1\n11 PEERS\n");
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "11 PEERS a:up:i201\n");
	SAID(&w, "21 WELCOME id=2 term=1\n21 PEERS s1:up:i101\n21 PEERS\n");
	world_fini(&w);
}

static void member_with_another_provider_is_refused_and_both_are_named(void **state)
{
	struct sched_world w;
	struct ctl_msg msg;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	msg = hello_of(ROLE_AGENT, "a", "h", 201);
	msg.hello.provider = "tcp";
	sched_conn_open(w.core, 21, w.now);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 REFUSE code=22 agent 'a' on h uses provider 'tcp', but server 's1' on s1 uses "
		 "'sockets': set `provider` to the same value");
	SAID(&w, "21 DROP");
	/* A member whose connection is lost still determines the cluster's provider. */
	close_conn(&w, 11);
	sched_conn_open(w.core, 22, w.now);
	send_msg(&w, 22, &msg);
	SAID(&w, "22 REFUSE code=22");
	/* After server 's1', the only member, has died, the agent with the provider 'tcp' is
	 * accepted. From then on the cluster's provider is 'tcp'. */
	pass(&w, 60000, NULL);
	clear(&w);
	sched_conn_open(w.core, 23, w.now);
	send_msg(&w, 23, &msg);
	SAID(&w, "23 WELCOME");
	server(&w, 12, "s1", 102);
	SAID(&w, "12 REFUSE code=22 server 's1' on s1 uses provider 'sockets', but agent 'a' on h "
		 "uses 'tcp'");
	world_fini(&w);
}

static void restarted_scheduler_remembers_the_provider(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = hello_of(ROLE_AGENT, "a", "h", 201);

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	kill_scheduler(&w);
	clear(&w);
	msg.hello.provider = "tcp";
	sched_conn_open(w.core, 21, w.now);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 REFUSE code=22");
	world_fini(&w);
}

static void wrong_hello_is_refused_with_a_sentence(void **state)
{
	struct sched_world w;
	struct ctl_msg msg;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	msg = hello_of(ROLE_SERVER, "s2", "h", 5);
	msg.hello.proto = 9;
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	SAID(&w, "31 REFUSE code=10014 's2' on h");
	SAID(&w, "31 DROP");
	msg = hello_of(ROLE_SERVER, "s2", "h", 5);
	msg.hello.cluster_id = (struct blob){"another cluster.", 16};
	sched_conn_open(w.core, 32, w.now);
	send_msg(&w, 32, &msg);
	SAID(&w, "32 REFUSE code=10003 server 's2' on h belongs to another cluster");
	msg = hello_of(ROLE_SERVER, "s2", "h", 5);
	msg.hello.port = 0;
	sched_conn_open(w.core, 33, w.now);
	send_msg(&w, 33, &msg);
	SAID(&w, "33 REFUSE code=10013");
	world_fini(&w);
}

static void hello_with_an_invalid_field_is_refused(void **state)
{
	const struct ctl_msg server = hello_of(ROLE_SERVER, "s", "h", 5);
	struct ctl_msg bad[11];
	struct sched_world w;

	(void)state;
	for (unsigned k = 0; k < 11; k++)
		bad[k] = server;
	bad[0].hello.role = ROLE_AGENT + ROLE_SERVER;
	bad[1].hello.instance = 0;
	bad[2].hello.name = "";
	bad[3].hello.host = "";
	bad[4].hello.cluster_id = (struct blob){"short", 5};
	bad[5].hello.view = UINT64_MAX;
	bad[6].hello.addr = "";
	bad[7].hello.port = 0;
	bad[8].hello.threads = 0;
	bad[9].hello.threads = 1025;
	bad[10] = hello_of(ROLE_AGENT, "", "h", 5);
	world_init(&w);
	for (unsigned k = 0; k < 11; k++) {
		clear(&w);
		sched_conn_open(w.core, 31 + k, w.now);
		send_msg(&w, 31 + k, &bad[k]);
		SAID(&w, " REFUSE code=10013");
	}
	clear(&w);
	bad[9].hello.threads = 1024;
	sched_conn_open(w.core, 61, w.now);
	send_msg(&w, 61, &bad[9]);
	SAID(&w, "61 WELCOME");
	world_fini(&w);
}

static void first_message_must_be_hello_and_must_come(void **state)
{
	struct sched_world w;
	struct ctl_msg msg = {.type = CTL_BEAT};

	(void)state;
	world_init(&w);
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	SAID(&w, "31 DROP its first message is not HELLO");
	sched_conn_open(w.core, 32, w.now);
	pass(&w, w.cfg.hello_ms + 10, NULL);
	SAID(&w, "32 DROP no HELLO in time");
	world_fini(&w);
}

static void same_name_on_another_host_is_refused_while_the_holder_lives(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	hello(&w, 11, ROLE_SERVER, "s1", "h1", 101);
	hello(&w, 12, ROLE_SERVER, "s1", "h2", 102);
	SAID(&w, "12 REFUSE code=10017 the name 's1' is already used by a live server on h1 at "
		 "10.0.0.1:7400 (pid 101)");
	close_conn(&w, 11);
	pass(&w, w.cfg.server_window_ms + 10, NULL);
	clear(&w);
	hello(&w, 13, ROLE_SERVER, "s1", "h2", 102);
	SAID(&w, "13 WELCOME id=1");
	world_fini(&w);
}

static void all_times_can_be_set_while_the_scheduler_runs(void **state)
{
	struct sched_world w;
	struct sched_config cfg;

	(void)state;
	world_init(&w);
	cfg = w.cfg;
	cfg.server_dead_ms++;
	cfg.agent_dead_ms++;
	cfg.server_window_ms++;
	cfg.agent_window_ms++;
	cfg.stall_ms++;
	cfg.forming_ms++;
	cfg.server_slow_ms++;
	sched_reconfigure(w.core, &cfg, w.now);
	assert_int_equal(w.core->cfg.server_dead_ms, cfg.server_dead_ms);
	assert_int_equal(w.core->cfg.agent_dead_ms, cfg.agent_dead_ms);
	assert_int_equal(w.core->cfg.server_window_ms, cfg.server_window_ms);
	assert_int_equal(w.core->cfg.agent_window_ms, cfg.agent_window_ms);
	assert_int_equal(w.core->cfg.stall_ms, cfg.stall_ms);
	assert_int_equal(w.core->cfg.forming_ms, cfg.forming_ms);
	assert_int_equal(w.core->cfg.server_slow_ms, cfg.server_slow_ms);
	world_fini(&w);
}

static void shorter_dead_time_counts_from_now_on(void **state)
{
	struct sched_world w;
	struct sched_config cfg;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	cfg = w.cfg;
	pass(&w, 1000, NULL); /* the server is silent, but not long enough to be dead */
	NOT_SAID(&w, "11 DROP");
	cfg.server_dead_ms = 800;
	sched_reconfigure(w.core, &cfg, w.now);
	pass(&w, 10, NULL);
	SAID(&w, "11 DROP silent for 1.0 s");
	world_fini(&w);
}

static void longer_window_holds_for_later_losses(void **state)
{
	struct sched_world w;
	struct sched_config cfg;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s2", 102);
	close_conn(&w, 11);
	cfg = w.cfg;
	cfg.server_window_ms = 2 * w.cfg.server_window_ms;
	sched_reconfigure(w.core, &cfg, w.now);
	close_conn(&w, 12);
	clear(&w);
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){21, 0});
	SAID(&w, "21 PEERS s1:down");
	NOT_SAID(&w, "s2:down");
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){21, 0});
	SAID(&w, "s2:down");
	world_fini(&w);
}

static void new_instance_on_the_same_host_replaces_the_old_at_once(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	server(&w, 11, "s1", 101);
	clear(&w);
	server(&w, 12, "s1", 102);
	SAID(&w, "11 DROP replaced");
	SAID(&w, "21 PEERS s1:up:i102\n");
	SAID(&w, "12 WELCOME id=2");
	world_fini(&w);
}

static void replaced_instance_does_not_take_its_name_back(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s1", 102);
	clear(&w);
	server(&w, 13, "s1", 101);
	SAID(&w, "13 REFUSE code=10017 the name 's1' is already used by a live server on s1 at "
		 "10.0.0.1:7400 (pid 102)");
	NOT_SAID(&w, "12 DROP");
	world_fini(&w);
}

/* Instance 102 was killed. The HELLO of instance 102 arrives after the HELLO of instance 103. */
static void late_hello_of_a_dead_instance_does_not_lock_out_the_next(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	server(&w, 13, "s1", 103);
	server(&w, 12, "s1", 102);
	close_conn(&w, 12);
	clear(&w);
	server(&w, 14, "s1", 103);
	SAID(&w, "14 WELCOME id=1");
	server(&w, 15, "s1", 102);
	SAID(&w, "15 REFUSE code=10017");
	NOT_SAID(&w, "14 DROP");
	world_fini(&w);
}

static void reconnect_of_the_same_instance_changes_no_view(void **state)
{
	struct sched_world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_current_view(w.core);
	close_conn(&w, 11);
	close_conn(&w, 21);
	pass(&w, 300, (const uint32_t[]){12, 22, 0});
	clear(&w);
	server(&w, 31, "s1", 101);
	agent(&w, 41, "a", 201);
	SAID(&w, "31 WELCOME id=1");
	SAID(&w, "31 JOB job=1");
	SAID(&w, "31 PLAN job=1 0=w");
	SAID(&w, "41 WELCOME id=3");
	SAID(&w, "41 PLAN job=1 0=w");
	NOT_SAID(&w, "22 ");
	assert_true(sched_current_view(w.core) == view);
	world_fini(&w);
}

static void half_open_connection_gives_way_to_the_new_one(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "a", 201);
	SAID(&w, "21 DROP reconnected");
	SAID(&w, "22 WELCOME id=1");
	world_fini(&w);
}

static unsigned count(const struct sched_world *w, const char *text)
{
	unsigned n = 0;

	for (const char *at = w->log; (at = strstr(at, text)); at++)
		n++;
	return n;
}

static void each_connected_member_receives_heartbeats(void **state)
{
	static const struct ctl_msg beat = {.type = CTL_BEAT, .beat = {.seq = 7}};
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.has_beats = true;
	clear(&w);
	for (unsigned i = 0; i < 10; i++)
		pass(&w, w.cfg.beat_ms, everybody);
	assert_in_range(count(&w, "11 BEAT"), 9, 11);
	assert_in_range(count(&w, "12 BEAT"), 9, 11);
	assert_in_range(count(&w, "21 BEAT"), 9, 11);
	assert_in_range(count(&w, "22 BEAT"), 9, 11);
	clear(&w);
	send_msg(&w, 22, &beat);
	pass(&w, w.cfg.beat_ms, NULL);
	SAID(&w, "22 BEAT seq=12 echo=7\n");
	SAID(&w, "21 BEAT seq=12 echo=0\n");
	close_conn(&w, 22);
	clear(&w);
	pass(&w, w.cfg.beat_ms, NULL);
	SAID(&w, "21 BEAT");
	NOT_SAID(&w, "22 BEAT");
	world_fini(&w);
}

/* Let server s1 connect on a new connection as process `instance`. Return whether the log has the
 * warning that a new process replaces one that is still connected. */
static bool logs_a_replacement(struct sched_world *w, uint32_t conn, uint64_t instance)
{
	struct log_capture log = log_capture_begin();

	server(w, conn, "s1", instance);
	return log_capture_has(&log, "replaces a process that is still connected");
}

static void only_a_new_process_beside_a_connected_one_is_logged_as_its_replacement(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	assert_false(logs_a_replacement(&w, 12, 101)); /* the same process */
	assert_true(logs_a_replacement(&w, 13, 102));
	close_conn(&w, 13);
	assert_false(logs_a_replacement(&w, 14, 103)); /* the former process has ended */
	world_fini(&w);
}

static void silent_server_is_declared_dead_after_its_time(void **state)
{
	struct sched_world w;
	const uint32_t others[] = {12, 21, 22, 0};

	(void)state;
	running_job(&w);
	clear(&w);
	pass(&w, w.cfg.server_dead_ms - 50, others);
	NOT_SAID(&w, "down");
	pass(&w, 100, others);
	SAID(&w, "21 PEERS s1:down:i101\n");
	SAID(&w, "11 DROP silent for 3.0 s");
	world_fini(&w);
}

static void scheduler_that_receives_nothing_declares_no_member_dead(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	pass(&w, 10 * w.cfg.agent_dead_ms, NULL);
	NOT_SAID(&w, "DROP");
	NOT_SAID(&w, "JOB_END");
	/* When some members send again, the time limits of all silent members restart. */
	pass(&w, w.cfg.server_dead_ms - 200, (const uint32_t[]){12, 21, 0});
	NOT_SAID(&w, "DROP");
	pass(&w, w.cfg.agent_dead_ms, (const uint32_t[]){12, 21, 0});
	SAID(&w, "21 PEERS s1:down:i101\n");
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b' (host b) of job 'x' is lost: silent for ");
	world_fini(&w);
}

static void late_tick_extends_the_deadlines(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	pass(&w, 1000, everybody);
	clear(&w);
	w.now += 10000 * MS; /* as if the scheduler's process had been stopped for 10 s */
	sched_tick(w.core, w.now);
	check(&w);
	NOT_SAID(&w, "DROP");
	pass(&w, 4000, everybody);
	NOT_SAID(&w, "DROP");
	world_fini(&w);
}

static void evicted_instance_that_returns_relearns_what_it_has(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	pass(&w, 4000, (const uint32_t[]){12, 21, 22, 0});
	clear(&w);
	server(&w, 31, "s1", 101); /* the stopped process of s1 continues */
	SAID(&w, "31 WELCOME id=1");
	SAID(&w, "31 JOB job=1");
	NOT_SAID(&w, "31 PLAN");
	SAID(&w, "21 PEERS s1:up:i101\n");
	world_fini(&w);
}

/* Let `ms` milliseconds pass. Whenever the scheduler asks server 1 about agent 4 ('b'), the server
 * answers that it received nothing from the agent for quiet_ms. */
static void pass_seen(struct sched_world *w, uint32_t ms, uint32_t quiet_ms)
{
	const struct ctl_msg seen = {CTL_SEEN, .sight = {4, 202, quiet_ms}};
	const uint32_t others[] = {11, 12, 21, 0};

	for (uint32_t at = 0; at < ms; at += 100) {
		char *asked;

		pass(w, 100, others);
		asked = strstr(w->log, "11 SIGHT");
		if (!asked)
			continue;
		asked[0] = '-';
		send_msg(w, 11, &seen);
	}
}

static void agent_cut_off_only_from_the_scheduler_stays_alive(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	pass_seen(&w, 4 * w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	SAID(&w, "22 DROP silent, but servers receive from it");
	agent(&w, 32, "b", 202);
	clear(&w);
	pass(&w, 1000, (const uint32_t[]){11, 12, 21, 32, 0});
	NOT_SAID(&w, "DROP");
	pass_seen(&w, w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	pass(&w, 2 * w.cfg.agent_dead_ms,
		(const uint32_t[]){11, 12, 21, 0}); /* no server receives from the agent */
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b' (host b) of job 'x' is lost: silent for "
		 "5.0 s, and the servers receive nothing from it\n");
	world_fini(&w);
}

static void agent_that_no_member_receives_from_is_dead_in_time(void **state)
{
	struct sched_world w;
	const struct ctl_msg unasked = {CTL_SEEN, .sight = {4, 202, 0}};
	const struct ctl_msg other_instance = {CTL_SEEN, .sight = {4, 201, 0}};

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 11, &unasked);
	/* server 1 and the scheduler received the agent's last messages at the same time */
	pass_seen(&w, w.cfg.agent_dead_ms - 400, 4500);
	send_msg(&w, 11, &other_instance);
	NOT_SAID(&w, "JOB_END");
	pass_seen(&w, 600, 4800);
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b'");
	world_fini(&w);
}

static void agent_whose_job_changed_while_it_was_away_is_not_kept(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	pass_seen(&w, 2 * w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	server(&w, 13, "s2", 112); /* partitions of a new server process get a new pgen */
	pass_seen(&w, 800, 100);
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b'");
	world_fini(&w);
}

static void agent_that_restarts_within_its_window_keeps_its_job(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 22);
	pass(&w, 900, (const uint32_t[]){11, 12, 21, 0});
	clear(&w);
	agent(&w, 32, "b", 203);
	SAID(&w, "11 PEERS b:up:i203\n");
	SAID(&w, "32 JOB job=1");
	SAID(&w, "32 PLAN job=1 0=w");
	NOT_SAID(&w, "JOB_END");
	NOT_SAID(&w, "21 PLAN"); /* no pgen has changed */
	world_fini(&w);
}

static void expelled_agent_is_dead_at_once_unless_it_is_connected(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	clear(&w);
	sched_expel(w.core, ROLE_AGENT, "b", w.now);
	sched_expel(w.core, ROLE_AGENT, "nobody", w.now);
	sched_expel(w.core, ROLE_SERVER, "b", w.now);
	NOT_SAID(&w, "JOB_END");
	close_conn(&w, 22);
	sched_expel(w.core, ROLE_AGENT, "b", w.now);
	SAID(&w, "21 JOB_END job=1 code=10008");
	SAID(&w, "11 PEERS b:down:");
	world_fini(&w);
}

static void expelled_agent_dies_when_the_state_can_be_written_again(void **state)
{
	struct sched_world w;

	(void)state;
	running_job(&w);
	w.persist_error = -ENOSPC;
	agent(&w, 23, "c", 203);
	assert_false(sched_is_durable(w.core));
	close_conn(&w, 22);
	sched_expel(w.core, ROLE_AGENT, "b", w.now);
	clear(&w);
	pass_seen(&w, 2 * w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	w.persist_error = 0;
	pass_seen(&w, 4 * w.cfg.agent_dead_ms, 100);
	SAID(&w, "21 JOB_END job=1 code=10008");
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_is_answered_with_welcome_and_the_other_members),
		cmocka_unit_test(wrong_hello_is_refused_with_a_sentence),
		cmocka_unit_test(member_with_another_provider_is_refused_and_both_are_named),
		cmocka_unit_test(restarted_scheduler_remembers_the_provider),
		cmocka_unit_test(hello_with_an_invalid_field_is_refused),
		cmocka_unit_test(first_message_must_be_hello_and_must_come),
		cmocka_unit_test(same_name_on_another_host_is_refused_while_the_holder_lives),
		cmocka_unit_test(all_times_can_be_set_while_the_scheduler_runs),
		cmocka_unit_test(shorter_dead_time_counts_from_now_on),
		cmocka_unit_test(longer_window_holds_for_later_losses),
		cmocka_unit_test(new_instance_on_the_same_host_replaces_the_old_at_once),
		cmocka_unit_test(replaced_instance_does_not_take_its_name_back),
		cmocka_unit_test(late_hello_of_a_dead_instance_does_not_lock_out_the_next),
		cmocka_unit_test(reconnect_of_the_same_instance_changes_no_view),
		cmocka_unit_test(half_open_connection_gives_way_to_the_new_one),
		cmocka_unit_test(each_connected_member_receives_heartbeats),
		cmocka_unit_test(
			only_a_new_process_beside_a_connected_one_is_logged_as_its_replacement),
		cmocka_unit_test(silent_server_is_declared_dead_after_its_time),
		cmocka_unit_test(scheduler_that_receives_nothing_declares_no_member_dead),
		cmocka_unit_test(late_tick_extends_the_deadlines),
		cmocka_unit_test(evicted_instance_that_returns_relearns_what_it_has),
		cmocka_unit_test(agent_cut_off_only_from_the_scheduler_stays_alive),
		cmocka_unit_test(agent_that_no_member_receives_from_is_dead_in_time),
		cmocka_unit_test(agent_whose_job_changed_while_it_was_away_is_not_kept),
		cmocka_unit_test(agent_that_restarts_within_its_window_keeps_its_job),
		cmocka_unit_test(expelled_agent_is_dead_at_once_unless_it_is_connected),
		cmocka_unit_test(expelled_agent_dies_when_the_state_can_be_written_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
