/* Tests of problems that the scheduler derives from its state: two machines with one host name. */
#include "bps-scheduler/model/model.h"
#include "tests/unit/sched_world.h"

/* Send HELLO from one of two machines with the host name "node". */
static void hello_from_node(struct sched_world *w, uint32_t conn, enum role role, const char *name,
	uint64_t instance, const char *boot_id)
{
	hello_from(w, conn, role, name, instance, "node", "", boot_id);
}

/* Return the text of the problem HOST_DUPLICATE with this subject; "": there is none. The caller
 * frees the text. */
static char *duplicate(const struct sched_world *w, const char *subject)
{
	const struct status_info info = {.now_ns = w->now};
	json_t *root = status_cluster(w->core, &info), *p;
	char *text = strdup("");
	size_t i;

	json_array_foreach (json_object_get(root, "problems"), i, p) {
		if (strcmp(json_string_value(json_object_get(p, "code")), "HOST_DUPLICATE") != 0 ||
			strcmp(json_string_value(json_object_get(p, "subject")), subject) != 0)
			continue;
		assert_string_equal(text, "");
		free(text);
		text = strdup(json_string_value(json_object_get(p, "what")));
	}
	json_decref(root);
	return text;
}

static void expect(const struct sched_world *w, const char *subject, const char *want)
{
	char *text = duplicate(w, subject);

	assert_string_equal(text, want);
	free(text);
}

static void refused_machine_is_a_problem_for_a_minute_after_its_last_attempt(void **state)
{
	static const char text[] =
		"two machines have the host name node: agent node is pid 201 on node at 10.0.0.1, "
		"and pid 203 on node at 10.0.0.2 is refused";
	static const uint32_t conns[] = {21, 0};
	struct sched_world w;

	(void)state;
	world_init(&w);
	hello_from_node(&w, 21, ROLE_AGENT, "node", 201, BOOT_1);
	expect(&w, "agent node", "");
	hello_from_node(&w, 22, ROLE_AGENT, "node", 202, BOOT_2);
	pass(&w, 30000, conns);
	hello_from_node(&w, 23, ROLE_AGENT, "node", 203, BOOT_2);
	pass(&w, 59900, conns);
	expect(&w, "agent node", text);
	pass(&w, 200, conns);
	expect(&w, "agent node", "");
	world_fini(&w);
}

static void machine_that_is_accepted_at_last_is_no_problem(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	hello_from_node(&w, 21, ROLE_AGENT, "node", 201, BOOT_1);
	close_conn(&w, 21);
	hello_from_node(&w, 22, ROLE_AGENT, "node", 202, BOOT_2);
	pass(&w, w.cfg.agent_window_ms + 10, NULL);
	expect(&w, "agent node", "");
	hello_from_node(&w, 23, ROLE_AGENT, "node", 203, BOOT_2);
	SAID(&w, "23 WELCOME");
	expect(&w, "agent node", "");
	world_fini(&w);
}

static void members_of_two_machines_with_one_host_name_are_a_problem(void **state)
{
	struct sched_world w;

	(void)state;
	world_init(&w);
	hello_from_node(&w, 21, ROLE_AGENT, "node", 201, BOOT_1);
	hello_from_node(&w, 11, ROLE_SERVER, "s1", 101, BOOT_1);
	expect(&w, "host node", "");
	hello_from_node(&w, 12, ROLE_SERVER, "s2", 102, BOOT_2);
	hello_from_node(&w, 13, ROLE_SERVER, "s3", 103, BOOT_2);
	expect(&w, "host node",
		"two machines have the host name node: agent node is on node at 10.0.0.1, and "
		"server s2 is on node at 10.0.0.2:7400");
	close_conn(&w, 12);
	close_conn(&w, 13);
	expect(&w, "host node", "");
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused_machine_is_a_problem_for_a_minute_after_its_last_attempt),
		cmocka_unit_test(machine_that_is_accepted_at_last_is_no_problem),
		cmocka_unit_test(members_of_two_machines_with_one_host_name_are_a_problem),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
