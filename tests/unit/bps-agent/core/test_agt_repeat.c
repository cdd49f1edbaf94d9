/* The agent's core sends messages again when a server does not answer, is not ready, or was
 * disconnected. */
#include <unistd.h>

#include "common/base/log.h"
#include "tests/unit/agt_world.h"

static void unanswered_push_is_repeated_with_the_same_bytes(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg first, again;

	(void)state;
	submit_all(w, 1);
	first = expect_msg(w, 0, WIRE_CONTRIB, 1);
	tick(w, RETRY_MS - 1);
	expect_nothing(w, 0);
	tick(w, 1);
	again = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(again.crc, first.crc);
	assert_int_equal(again.offset, first.offset);
	tick(w, 2 * RETRY_MS - 1); /* the second interval is twice as long as the first */
	expect_nothing(w, 0);
	tick(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(stats(w).repushes, 2);
	world_free(w);
}

static void push_is_repeated_after_a_pause_when_the_server_is_not_ready(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_key(w, 0, WIRE_AGAIN, 1);
	assert_int_equal(stats(w).inflight_bytes, 0);
	tick(w, AGAIN_MS - 1);
	expect_nothing(w, 0);
	tick(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_key(w, 0, WIRE_AGAIN, 2); /* an AGAIN for another round has no effect */
	say_result(w, 0, 1);
	expect_delivered(w, 1, 1);
	world_free(w);
}

/* A server that sent AGAIN was not silent. When the server becomes silent later, the agent
 * sends its first repetition after the usual time. */
static void pauses_requested_by_the_server_do_not_delay_later_repetitions(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	for (unsigned i = 0; i < 6; i++) {
		unsigned pause = AGAIN_MS << (i < 4 ? i : 4);

		expect_msg(w, 0, WIRE_CONTRIB, 1);
		say_key(w, 0, WIRE_AGAIN, 1);
		tick(w, pause - 1);
		expect_nothing(w, 0);
		tick(w, 1);
	}
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	tick(w, RETRY_MS - 1);
	expect_nothing(w, 0);
	tick(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void result_that_comes_while_waiting_or_before_a_repetition_counts(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct agt_world *w = world(.n_elems = k & 1 ? LARGE : SMALL);

		submit_all(w, 1);
		if (k & 2) {
			say_key(w, 0, WIRE_AGAIN, 1);
		} else {
			w->conn[0]->credit = 0;
			tick(w, RETRY_MS); /* the waiting push is sent again */
		}
		say_result(w, 0, 1);
		if (k & 1)
			end_read(w, 0, 0);
		expect_delivered(w, 1, 1);
		world_free(w);
	}
}

static void reconnection_repeats_all_messages(void **state)
{
	(void)state;
	for (unsigned scene = 0; scene < SCENE_COUNT; scene++) {
		struct agt_world *w = make_scene(scene);

		cut(w, 0);
		assert_int_equal(stats(w).inflight_bytes, 0);
		assert_int_equal(w->n_connects, 2);
		fake_up(w->conn[0]);
		work(w);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		expect_nothing(w, 0);
		finish_scene(w, 0);
	}
}

static void reconnections_start_at_once_and_become_rarer(void **state)
{
	static const uint64_t delays_ms[] = {100, 300, 400, 400};
	struct agt_world *w = world(.n_elems = SMALL);
	struct agt_job *other;
	char text[200];

	(void)state;
	cut(w, 0);
	assert_int_equal(w->n_connects, 2);
	assert_false(agt_job_describe_waits(w->job, text, sizeof(text)));
	assert_non_null(strstr(text, "server 0 thread 0"));
	/* the second job has no partitions on server 0, so the text about this job is empty */
	other = second_job(w);
	assert_true(agt_job_describe_waits(other, text, sizeof(text)));
	assert_string_equal(text, "");
	agt_job_free(other, NULL, NULL);
	for (unsigned k = 0; k < 4; k++) {
		fake_down(w->conn[0], "refused");
		tick(w, delays_ms[k] - 1);
		assert_int_equal(w->n_connects, k + 2);
		tick(w, 1);
		assert_int_equal(w->n_connects, k + 3);
	}
	fake_up(w->conn[0]);
	check(w);
	assert_true(agt_job_describe_waits(w->job, text, sizeof(text)));
	assert_string_equal(text, "");
	world_free(w);
}

/* A server that cannot decode the agent's messages closes each connection at once. */
static void connections_without_a_message_of_the_server_become_rarer(void **state)
{
	static const uint64_t delays_ms[] = {100, 300, 400, 400};
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	cut(w, 0);
	assert_int_equal(w->n_connects, 2);
	for (unsigned k = 0; k < 4; k++) {
		fake_up(w->conn[0]);
		fake_down(w->conn[0], "closed by the peer");
		tick(w, delays_ms[k] - 1);
		assert_int_equal(w->n_connects, k + 2);
		tick(w, 1);
		assert_int_equal(w->n_connects, k + 3);
	}
	fake_up(w->conn[0]);
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	cut(w, 0);
	assert_int_equal(w->n_connects, 7);
	world_free(w);
}

/* Let three attempts to connect fail: at once with connect_rc or, if connect_rc is 0, later. Return
 * whether the log has the reason. */
static bool logs_why_it_cannot_connect(struct agt_world *w)
{
	FILE *log = tmpfile();
	int saved = dup(STDERR_FILENO);
	char text[4096];

	fflush(stderr);
	dup2(fileno(log), STDERR_FILENO);
	log_set_level(LOG_INFO);
	if (w->connect_rc)
		cut(w, 0);
	for (unsigned k = 0; k < 3; k++) {
		tick(w, 1000);
		if (!w->connect_rc)
			fake_down(w->conn[0], "Network is unreachable");
	}
	dup2(saved, STDERR_FILENO);
	close(saved);
	rewind(log);
	text[fread(text, 1, sizeof(text) - 1, log)] = '\0';
	fclose(log);
	return strstr(text, "attempts=3 why=Network is unreachable");
}

static void third_failed_attempt_is_logged_whatever_came_before(void **state)
{
	(void)state;
	/* few cases, because the log writes only 5 such lines a minute */
	for (unsigned n_silent = 0; n_silent < 6; n_silent += 3) {
		struct agt_world *w = world(.n_elems = SMALL);

		for (unsigned k = 0; k < n_silent; k++) {
			cut(w, 0);
			tick(w, 1000);
			fake_up(w->conn[0]);
		}
		cut(w, 0);
		if (!logs_why_it_cannot_connect(w))
			fail_msg("no reason after %u connections without a message", n_silent);
		tick(w, 1000);
		world_free(w);
	}
}

static void third_attempt_that_fails_at_once_is_logged(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	w->connect_rc = -ENETUNREACH;
	assert_true(logs_why_it_cannot_connect(w));
	w->connect_rc = 0;
	tick(w, 1000);
	world_free(w);
}

/* Cell FM-S-reject of the fault matrix: when a server can be reached again, an agent must connect
 * to the server within 1 s. */
static void reconnects_are_never_more_than_a_second_apart(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	cut(w, 0);
	w->jitter = UINT64_C(599999999);
	for (unsigned k = 0; k < 6; k++) {
		fake_down(w->conn[0], "refused");
		tick(w, 1000);
		assert_int_equal(w->n_connects, k + 3);
	}
	world_free(w);
}

static void server_that_has_changed_is_connected_at_once(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	w->connect_rc = -ENOTCONN; /* the server's address is unknown */
	cut(w, 0);
	tick(w, 100);
	assert_int_equal(w->n_connects, 3);
	w->connect_rc = 0;
	agt_core_server_changed(w->core, 0);
	check(w);
	tick(w, 0);
	assert_int_equal(w->n_connects, 4);
	fake_up(w->conn[0]);
	agt_core_server_changed(w->core, 0);
	assert_int_equal(w->conn[0]->is_closed, true);
	tick(w, 0);
	assert_int_equal(w->n_connects, 5);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unanswered_push_is_repeated_with_the_same_bytes),
		cmocka_unit_test(push_is_repeated_after_a_pause_when_the_server_is_not_ready),
		cmocka_unit_test(pauses_requested_by_the_server_do_not_delay_later_repetitions),
		cmocka_unit_test(result_that_comes_while_waiting_or_before_a_repetition_counts),
		cmocka_unit_test(reconnection_repeats_all_messages),
		cmocka_unit_test(reconnections_start_at_once_and_become_rarer),
		cmocka_unit_test(connections_without_a_message_of_the_server_become_rarer),
		cmocka_unit_test(third_failed_attempt_is_logged_whatever_came_before),
		cmocka_unit_test(third_attempt_that_fails_at_once_is_logged),
		cmocka_unit_test(reconnects_are_never_more_than_a_second_apart),
		cmocka_unit_test(server_that_has_changed_is_connected_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
