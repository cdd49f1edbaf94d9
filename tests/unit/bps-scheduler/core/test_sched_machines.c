/* Tests of machines with equal host names in the scheduler's core (rule C6): which process may
 * replace a member, and which is refused because it runs on another machine. */
#include "bps-scheduler/model/model.h"
#include "tests/unit/sched_world.h"

#define UNKNOWN ""

static void agent_from(
	struct sched_world *w, uint32_t conn, const char *name, uint64_t instance, const char *boot)
{
	hello_from(w, conn, ROLE_AGENT, name, instance, name, "", boot);
}

static void server_from(
	struct sched_world *w, uint32_t conn, const char *name, uint64_t instance, const char *boot)
{
	hello_from(w, conn, ROLE_SERVER, name, instance, name, "", boot);
}

/* Start servers "s1" (connection 11) and "s2" (12), agents "a" (21) and "b" (22), and a job of the
 * two agents. All processes report the boot id BOOT_1. */
static void job_on_known_machines(struct sched_world *w)
{
	world_init(w);
	server_from(w, 11, "s1", 101, BOOT_1);
	server_from(w, 12, "s2", 102, BOOT_1);
	agent_from(w, 21, "a", 201, BOOT_1);
	agent_from(w, 22, "b", 202, BOOT_1);
	join(w, 21, 0, 2, 1);
	join(w, 22, 1, 2, 2);
	declare(w, 21, 0, "w", DTYPE_F32, 4096);
	declare(w, 22, 1, "w", DTYPE_F32, 4096);
	SAID(w, "22 JOB job=1");
	clear(w);
}

static void agent_of_another_machine_is_refused_and_the_job_goes_on(void **state)
{
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	agent_from(&w, 31, "b", 301, BOOT_2);
	SAID(&w, "31 REFUSE code=10017 two machines have the host name 'b': give one of the "
		 "machines another host name, or set `name` and `host` of its daemons; agent 'b' "
		 "is pid 202 on b at 10.0.0.1, and the refused process is pid 301 on b at "
		 "10.0.0.2; a machine");
	SAID(&w, "31 DROP refused");
	/* the holder is away, but has time to return */
	close_conn(&w, 22);
	pass(&w, w.cfg.agent_window_ms - 100, (const uint32_t[]){11, 12, 21, 0});
	agent_from(&w, 32, "b", 302, BOOT_2);
	SAID(&w, "32 REFUSE code=10017");
	agent_from(&w, 23, "b", 203, BOOT_1);
	SAID(&w, "23 WELCOME id=4");
	SAID(&w, "23 JOB job=1");
	NOT_SAID(&w, "JOB_END");
	NOT_SAID(&w, "22 DROP");
	world_fini(&w);
}

static void server_of_another_machine_is_refused_and_partitions_stay(void **state)
{
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	server_from(&w, 31, "s1", 301, BOOT_2);
	SAID(&w, "31 REFUSE code=10017 two machines have the host name 's1'");
	SAID(&w, "server 's1' is pid 101 on s1 at 10.0.0.1:7400, and the refused process is pid "
		 "301 on s1 at 10.0.0.2:7400");
	NOT_SAID(&w, "PLAN");
	NOT_SAID(&w, "PEERS");
	server_from(&w, 13, "s1", 103, BOOT_1);
	SAID(&w, "11 DROP replaced");
	SAID(&w, "13 WELCOME id=1");
	world_fini(&w);
}

static void machine_that_was_booted_again_returns_after_the_window(void **state)
{
	static const uint32_t others[] = {12, 21, 0};
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	close_conn(&w, 11);
	close_conn(&w, 22);
	server_from(&w, 31, "s1", 301, BOOT_2);
	agent_from(&w, 32, "b", 302, BOOT_2);
	SAID(&w, "31 REFUSE");
	SAID(&w, "32 REFUSE");
	pass(&w, w.cfg.server_window_ms + 10, others);
	server_from(&w, 33, "s1", 303, BOOT_2);
	SAID(&w, "33 WELCOME id=1");
	pass(&w, w.cfg.agent_window_ms + 10, (const uint32_t[]){12, 21, 33, 0});
	SAID(&w, "21 JOB_END job=1 code=10008");
	agent_from(&w, 34, "b", 304, BOOT_2);
	SAID(&w, "34 WELCOME id=4");
	/* From now on, the machine of the first boot is the other machine. */
	agent_from(&w, 35, "b", 202, BOOT_1);
	SAID(&w, "35 REFUSE code=10017 two machines");
	world_fini(&w);
}

static void machine_that_was_booted_again_waits_until_the_old_connection_is_dead(void **state)
{
	static const uint32_t others[] = {11, 12, 21, 0};
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	pass(&w, w.cfg.agent_dead_ms - 100, others);
	agent_from(&w, 31, "b", 301, BOOT_2);
	SAID(&w, "31 REFUSE");
	pass(&w, 200, others);
	SAID(&w, "22 DROP");
	agent_from(&w, 32, "b", 302, BOOT_2);
	SAID(&w, "32 WELCOME id=4");
	world_fini(&w);
}

/* The only training machine has lost its power. All members are silent, as if the scheduler's host
 * were cut off, until the machine reports again. */
static void only_machine_that_was_booted_again_returns(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	server_from(&w, 11, "n", 101, BOOT_1);
	agent_from(&w, 21, "n", 201, BOOT_1);
	pass(&w, 5 * w.cfg.agent_dead_ms, NULL);
	NOT_SAID(&w, "DROP");
	server_from(&w, 12, "n", 102, BOOT_2);
	agent_from(&w, 22, "n", 202, BOOT_2);
	SAID(&w, "12 REFUSE");
	SAID(&w, "22 REFUSE");
	pass(&w, w.cfg.agent_dead_ms + w.cfg.server_dead_ms, NULL);
	server_from(&w, 13, "n", 103, BOOT_2);
	agent_from(&w, 23, "n", 203, BOOT_2);
	SAID(&w, "13 WELCOME id=1");
	SAID(&w, "23 WELCOME id=2");
	world_fini(&w);
}

/* A claimed member whose heartbeats arrive shows that the scheduler's host is not cut off. */
static void claimed_member_does_not_delay_the_death_of_silent_members(void **state)
{
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	for (uint32_t i = 0; i < 40; i++) {
		server_from(&w, 31 + i, "s1", 301 + i, BOOT_2);
		pass(&w, w.cfg.agent_dead_ms / 20, (const uint32_t[]){11, 0});
	}
	SAID(&w, "70 REFUSE");
	SAID(&w, "12 DROP silent");
	SAID(&w, "21 DROP silent");
	SAID(&w, "22 DROP silent");
	world_fini(&w);
}

static void warning_about_silent_members_counts_claimed_ones(void **state)
{
	struct log_capture log;
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	server_from(&w, 31, "s1", 301, BOOT_2);
	SAID(&w, "31 REFUSE");
	log = log_capture_begin();
	pass(&w, w.cfg.agent_dead_ms, NULL);
	assert_true(log_capture_has(&log, "until one reports again: members=4"));
	world_fini(&w);
}

static void restarted_scheduler_remembers_the_machine(void **state)
{
	struct sched_world w;

	(void)state;
	job_on_known_machines(&w);
	kill_scheduler(&w);
	clear(&w);
	agent_from(&w, 31, "b", 301, BOOT_2);
	server_from(&w, 32, "s1", 302, BOOT_2);
	SAID(&w, "31 REFUSE code=10017 two machines have the host name 'b'");
	SAID(&w, "agent 'b' is pid 202 on b at 10.0.0.1, and");
	SAID(&w, "32 REFUSE code=10017 two machines");
	agent_from(&w, 23, "b", 203, BOOT_1);
	server_from(&w, 11, "s1", 101, BOOT_1);
	SAID(&w, "23 WELCOME id=4");
	SAID(&w, "11 WELCOME id=1");
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void host_name_alone_decides_about_a_member_without_a_boot_id(void **state)
{
	static const char zeros[CTL_BOOT_ID_BYTES];
	struct ctl_msg msg = hello_of(ROLE_AGENT, "a", "a", 203);
	struct sched_world w;

	(void)state;
	world_init(&w);
	agent_from(&w, 21, "a", 201, UNKNOWN);
	agent_from(&w, 22, "a", 202, BOOT_1);
	SAID(&w, "22 WELCOME id=1");
	msg.hello.boot_id = (struct blob){zeros, sizeof(zeros)};
	sched_conn_open(w.core, 23, w.now);
	send_msg(&w, 23, &msg);
	SAID(&w, "23 WELCOME id=1");
	agent_from(&w, 24, "a", 204, BOOT_2);
	SAID(&w, "24 WELCOME id=1");
	agent_from(&w, 25, "a", 205, "short");
	SAID(&w, "25 REFUSE code=10013");
	world_fini(&w);
}

/* Two containers on one kernel have equal boot ids. */
static void domains_tell_containers_of_one_kernel_apart(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	hello_from(&w, 21, ROLE_AGENT, "a", 201, "a", "rack1.example", BOOT_1);
	hello_from(&w, 22, ROLE_AGENT, "a", 202, "a", "rack2.example", BOOT_1);
	SAID(&w, "22 REFUSE code=10017 two machines have the host name 'a'");
	SAID(&w, "agent 'a' is pid 201 on a.rack1.example at 10.0.0.1, and the refused process is "
		 "pid 202 on a.rack2.example at 10.0.0.1");
	hello_from(&w, 23, ROLE_AGENT, "a", 203, "a", "rack1.example", BOOT_1);
	SAID(&w, "23 WELCOME id=1");
	/* The domain was not known when this process started. */
	hello_from(&w, 24, ROLE_AGENT, "a", 204, "a", "", BOOT_1);
	SAID(&w, "24 WELCOME id=1");
	world_fini(&w);
}

static void old_claim_does_not_end_the_jobs_of_a_scheduler_that_is_cut_off(void **state)
{
	static const uint32_t all[] = {11, 21, 22, 0};
	struct sched_world w;

	(void)state;
	world_init(&w);
	hello_from(&w, 11, ROLE_SERVER, "s1", 101, "s1", "", BOOT_1);
	hello_from(&w, 21, ROLE_AGENT, "a", 201, "a", "", BOOT_1);
	hello_from(&w, 22, ROLE_AGENT, "b", 202, "b", "", BOOT_1);
	join(&w, 21, 0, 2, 1);
	join(&w, 22, 1, 2, 2);
	hello_from(&w, 31, ROLE_AGENT, "a", 301, "a", "", BOOT_2);
	hello_from(&w, 32, ROLE_AGENT, "b", 302, "b", "", BOOT_2);
	pass(&w, 2000, all); /* the members report after the claims */
	clear(&w);
	pass(&w, 3 * w.cfg.agent_dead_ms, NULL);
	NOT_SAID(&w, "JOB_END");
	NOT_SAID(&w, "DROP");
	world_fini(&w);
}

/* The text has CTL_TEXT_MAX bytes at most, and its end is cut off. */
static void advice_of_the_refusal_is_never_cut_off(void **state)
{
	static const char advice[] =
		": give one of the machines another host name, or set `name` and `host` of its "
		"daemons;";
	char host[CTL_NAME_MAX + 1], domain[2][CTL_NAME_MAX + 1];
	struct sched_world w;

	(void)state;
	world_init(&w);
	memset(host, 'h', sizeof(host));
	memset(domain[0], 'd', sizeof(domain[0]));
	memset(domain[1], 'e', sizeof(domain[1]));
	host[CTL_NAME_MAX] = domain[0][CTL_NAME_MAX] = domain[1][CTL_NAME_MAX] = '\0';
	hello_from(&w, 11, ROLE_SERVER, host, UINT32_MAX, host, domain[0], BOOT_1);
	hello_from(&w, 12, ROLE_SERVER, host, UINT32_MAX - 1, host, domain[1], BOOT_2);
	SAID(&w, advice);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agent_of_another_machine_is_refused_and_the_job_goes_on),
		cmocka_unit_test(server_of_another_machine_is_refused_and_partitions_stay),
		cmocka_unit_test(machine_that_was_booted_again_returns_after_the_window),
		cmocka_unit_test(
			machine_that_was_booted_again_waits_until_the_old_connection_is_dead),
		cmocka_unit_test(only_machine_that_was_booted_again_returns),
		cmocka_unit_test(claimed_member_does_not_delay_the_death_of_silent_members),
		cmocka_unit_test(warning_about_silent_members_counts_claimed_ones),
		cmocka_unit_test(old_claim_does_not_end_the_jobs_of_a_scheduler_that_is_cut_off),
		cmocka_unit_test(restarted_scheduler_remembers_the_machine),
		cmocka_unit_test(host_name_alone_decides_about_a_member_without_a_boot_id),
		cmocka_unit_test(domains_tell_containers_of_one_kernel_apart),
		cmocka_unit_test(advice_of_the_refusal_is_never_cut_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
