/* The links of the agent's core: losses of their connections. */
#include "tests/unit/agt_world.h"

static uint32_t losses_of(struct agt_world *w, struct ctl_beat_link ret[CTL_BEAT_LINKS_MAX])
{
	return agt_core_losses(w->core, w->now_ns, ret);
}

/* Lose the connection to server 0 and connect again. */
static void lose(struct agt_world *w)
{
	cut(w, 0);
	tick(w, 2000);
	fake_up(w->conn[0]);
	tick(w, 0);
}

static void losses_of_one_process_are_counted_for_five_minutes(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);
	struct ctl_beat_link links[CTL_BEAT_LINKS_MAX];

	(void)state;
	submit_all(w, 1);
	assert_int_equal(losses_of(w, links), 0);
	for (unsigned i = 1; i <= LINK_LOSSES_KEPT + 1; i++) {
		lose(w);
		assert_int_equal(losses_of(w, links), 1);
		assert_int_equal(links[0].server, 0);
		assert_int_equal(links[0].losses, i < LINK_LOSSES_KEPT ? i : LINK_LOSSES_KEPT);
	}
	tick(w, 300000);
	assert_int_equal(losses_of(w, links), 0);
	lose(w);
	assert_int_equal(losses_of(w, links), 1);
	assert_int_equal(links[0].losses, 1);
	world_free(w);
}

static void losses_do_not_count_when_the_server_has_restarted(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);
	struct ctl_beat_link links[CTL_BEAT_LINKS_MAX];

	(void)state;
	submit_all(w, 1);
	lose(w);
	assert_int_equal(losses_of(w, links), 1);
	cut(w, 0);
	tick(w, 2000);
	w->conn[0]->base.peer_instance++;
	fake_up(w->conn[0]);
	assert_int_equal(losses_of(w, links), 0);
	world_free(w);
}

/* Add a server with this number of losses. */
static uint32_t list_server(
	struct ctl_beat_link list[CTL_BEAT_LINKS_MAX], uint32_t n, uint32_t server, unsigned losses)
{
	/* the losses were at the time 0 */
	const struct agt_link link = {.server = server, .n_losses = losses};

	return link_list_losses(&link, 1, list, n);
}

static void full_list_keeps_the_servers_with_the_most_losses(void **state)
{
	struct ctl_beat_link list[CTL_BEAT_LINKS_MAX];
	uint32_t n = 0;

	(void)state;
	for (uint32_t server = 0; server < CTL_BEAT_LINKS_MAX; server++)
		n = list_server(list, n, server, server == 5 ? 2 : 3);
	n = list_server(list, n, 100, 2); /* no more than the fewest */
	n = list_server(list, n, 101, 0);
	n = list_server(list, n, 7, 4);
	n = list_server(list, n, 7, 1); /* another data thread of the server */
	assert_int_equal(n, CTL_BEAT_LINKS_MAX);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(list[i].server, i);
		assert_int_equal(list[i].losses, i == 5 ? 2 : i == 7 ? 4 : 3);
	}
	n = list_server(list, n, 102, 8);
	assert_int_equal(n, CTL_BEAT_LINKS_MAX);
	assert_int_equal(list[5].server, 102);
	assert_int_equal(list[5].losses, 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(losses_of_one_process_are_counted_for_five_minutes),
		cmocka_unit_test(losses_do_not_count_when_the_server_has_restarted),
		cmocka_unit_test(full_list_keeps_the_servers_with_the_most_losses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
