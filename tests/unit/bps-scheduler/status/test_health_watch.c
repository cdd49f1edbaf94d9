/* The health watch, which turns changes of the cluster's problems into events. */
#include "bps-scheduler/status/health_watch.h"

#include "bps-scheduler/model/find.h"
#include "tests/unit/sched_world.h"

struct health_log {
	struct sched_world w;
	struct health_watch *watch;
	char text[4096];
};

static void on_health(void *ctx, const struct sched_event *e)
{
	struct health_log *l = ctx;
	size_t n = strlen(l->text);

	assert_int_equal(e->kind, EVENT_HEALTH);
	snprintf(l->text + n, sizeof(l->text) - n, "%s\n", e->text);
}

/* Let the watch check the problems once. Returns the new events as text. */
static const char *look(struct health_log *l)
{
	l->text[0] = '\0';
	health_watch_check(l->watch, l->w.core, &(struct status_info){.now_ns = l->w.now});
	return l->text;
}

static void problem_is_an_event_when_it_comes_and_when_it_is_over(void **state)
{
	static const uint32_t others[] = {11, 21, 22, 0};
	struct health_log l;

	(void)state;
	running_job(&l.w);
	l.watch = health_watch_new(on_health, &l);
	assert_string_equal(look(&l), "");
	close_conn(&l.w, 12);
	assert_string_equal(
		look(&l), "CONTROL_SILENT: server s2 on s2: connection lost for 0.0 s\n");
	pass(&l.w, 500, others);
	assert_string_equal(look(&l), ""); /* no event for a problem that merely continues */
	pass(&l.w, l.w.cfg.server_window_ms, others);
	assert_string_equal(look(&l), "SERVER_DOWN: s2 on s2: down for 0 s (gone for 1.0 s)\n"
				      "CONTROL_SILENT is over: server s2\n");
	server(&l.w, 13, "s2", 112);
	assert_string_equal(look(&l), "SERVER_DOWN is over: server s2\n");
	l.w.persist_error = -ENOSPC;
	worker(&l.w, 21, 0, WORKER_LOST);
	assert_non_null(strstr(look(&l), "STATE_NOT_DURABLE: the scheduler cannot write"));
	l.w.persist_error = 0;
	pass(&l.w, 600, (const uint32_t[]){11, 13, 21, 22, 0});
	assert_string_equal(look(&l), "STATE_NOT_DURABLE is over\n");
	health_watch_free(l.watch);
	world_fini(&l.w);
}

static void connection_that_is_lost_again_and_again_is_a_problem(void **state)
{
	struct ctl_beat_link links[] = {{0, 2}, {0, 9}, {99, 9}};
	struct ctl_msg msg = {.type = CTL_BEAT, .beat = {.links = links, .n_links = 1}};
	struct health_log l;

	(void)state;
	running_job(&l.w);
	l.watch = health_watch_new(on_health, &l);
	links[0].server = sched_member_find(l.w.core, ROLE_SERVER, "s1")->id;
	links[1].server = sched_member_find(l.w.core, ROLE_SERVER, "s2")->id;
	send_msg(&l.w, 21, &msg);
	assert_string_equal(look(&l), "");
	links[0].losses = 3;
	send_msg(&l.w, 21, &msg);
	assert_non_null(strstr(look(&l), "a data connection to server s1 on s1 was lost at least 3 "
					 "times in the last five minutes"));
	msg.beat.n_links = 3; /* member 99 does not exist */
	send_msg(&l.w, 21, &msg);
	assert_string_equal(look(&l), "");
	msg.beat.n_links = 0;
	send_msg(&l.w, 21, &msg);
	assert_non_null(strstr(look(&l), "CONNECTION_UNSTABLE is over: agent "));
	health_watch_free(l.watch);
	world_fini(&l.w);
}

static void full_threads_of_an_agent_are_a_problem(void **state)
{
	struct ctl_msg msg = {.type = CTL_BEAT, .beat = {.threads = 1, .busy_percent = 40}};
	struct health_log l;

	(void)state;
	running_job(&l.w);
	l.watch = health_watch_new(on_health, &l);
	send_msg(&l.w, 21, &msg);
	assert_string_equal(look(&l), "");
	msg.beat.busy_percent = 97;
	msg.beat.more_threads = 2;
	send_msg(&l.w, 21, &msg);
	assert_non_null(strstr(look(&l), "THREADS_FEW: agent "));
	assert_non_null(strstr(l.text, "its 1 thread that moves bytes had work for 97 % of 10 s, "
				       "while processors were idle; 2 would carry more"));
	msg.beat.more_threads = 0;
	send_msg(&l.w, 21, &msg);
	assert_non_null(strstr(look(&l), "THREADS_FEW is over: agent "));
	health_watch_free(l.watch);
	world_fini(&l.w);
}

static void two_servers_are_two_problems(void **state)
{
	struct health_log l;

	(void)state;
	running_job(&l.w);
	l.watch = health_watch_new(on_health, &l);
	close_conn(&l.w, 11);
	close_conn(&l.w, 12);
	assert_non_null(strstr(look(&l), "CONTROL_SILENT: server s1"));
	assert_non_null(strstr(l.text, "CONTROL_SILENT: server s2"));
	server(&l.w, 13, "s2", 102);
	assert_string_equal(look(&l), "CONTROL_SILENT is over: server s2\n");
	health_watch_free(l.watch);
	health_watch_free(NULL);
	world_fini(&l.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(problem_is_an_event_when_it_comes_and_when_it_is_over),
		cmocka_unit_test(connection_that_is_lost_again_and_again_is_a_problem),
		cmocka_unit_test(full_threads_of_an_agent_are_a_problem),
		cmocka_unit_test(two_servers_are_two_problems),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
