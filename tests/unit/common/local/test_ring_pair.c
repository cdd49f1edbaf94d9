/* The pair of rings between agent and executor. */
#include "common/local/ring_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

struct ring_rig {
	struct ring_pair_page *page;
	struct ring_pair agent, executor;
	int agent_fd, executor_fd;
};

static struct ring_rig rig_new(void)
{
	struct ring_rig r = {
		.agent_fd = eventfd(0, EFD_NONBLOCK), .executor_fd = eventfd(0, EFD_NONBLOCK)};

	r.page = aligned_alloc(64, sizeof(*r.page));
	assert_non_null(r.page);
	memset(r.page, 0, sizeof(*r.page));
	ring_pair_init(&r.agent, r.page, r.executor_fd, true);
	ring_pair_init(&r.executor, r.page, r.agent_fd, false);
	return r;
}

static void rig_free(struct ring_rig *r)
{
	ring_pair_fini(&r->agent);
	ring_pair_fini(&r->executor);
	close(r->agent_fd);
	close(r->executor_fd);
	free(r->page);
}

static void push(struct ring_pair *p, uint64_t x)
{
	assert_int_equal(
		ring_pair_push(p, &(struct ring_pair_entry){.type = RING_PAIR_RUN, .x = x}), 0);
}

static bool was_woken(int fd)
{
	uint64_t n;

	return read(fd, &n, sizeof(n)) == sizeof(n);
}

static void entries_come_in_order_both_ways(void **state)
{
	struct ring_rig r = rig_new();
	struct ring_pair_entry e;

	(void)state;
	for (uint64_t i = 0; i < 3 * RING_PAIR_ENTRIES; i++) {
		push(&r.agent, i);
		push(&r.executor, i + 7);
		ring_pair_flush(&r.agent);
		ring_pair_flush(&r.executor);
		assert_true(ring_pair_pop(&r.executor, &e));
		assert_int_equal(e.x, i);
		assert_true(ring_pair_pop(&r.agent, &e));
		assert_int_equal(e.x, i + 7);
		assert_false(ring_pair_pop(&r.agent, &e));
	}
	rig_free(&r);
}

static void entries_that_do_not_fit_come_later_in_order(void **state)
{
	uint64_t n = 5 * RING_PAIR_ENTRIES + 3, next = 0;
	struct ring_rig r = rig_new();
	struct ring_pair_entry e;

	(void)state;
	for (uint64_t i = 0; i < n; i++)
		push(&r.agent, i);
	while (next < n) {
		ring_pair_flush(&r.agent);
		for (unsigned k = 0; k < 1000 && ring_pair_pop(&r.executor, &e); k++)
			assert_int_equal(e.x, next++);
	}
	assert_false(ring_pair_flush(&r.agent));
	assert_false(ring_pair_pop(&r.executor, &e));
	rig_free(&r);
}

static void only_a_sleeping_end_is_woken(void **state)
{
	struct ring_rig r = rig_new();
	struct ring_pair_entry e;

	(void)state;
	push(&r.agent, 1);
	ring_pair_flush(&r.agent);
	assert_false(was_woken(r.executor_fd));     /* the executor is awake and needs no wake-up */
	assert_false(ring_pair_sleep(&r.executor)); /* refused, because an item is ready */
	assert_true(ring_pair_pop(&r.executor, &e));
	assert_true(ring_pair_sleep(&r.executor));
	push(&r.agent, 2);
	assert_false(was_woken(r.executor_fd)); /* the wake-up is sent only at the flush */
	ring_pair_flush(&r.agent);
	assert_true(was_woken(r.executor_fd));
	ring_pair_awake(&r.executor);
	push(&r.agent, 3);
	ring_pair_flush(&r.agent);
	assert_false(was_woken(r.executor_fd));
	rig_free(&r);
}

static void invalid_counters_in_the_page_are_not_followed(void **state)
{
	struct ring_rig r = rig_new();
	struct ring_pair_entry e;

	(void)state;
	atomic_store(&r.page->rings[0].tail, RING_PAIR_ENTRIES + 1);
	assert_false(ring_pair_pop(&r.executor, &e));
	atomic_store(&r.page->rings[1].head, 77);
	/* the ring counts as full, so the entry is kept and not written out of bounds */
	push(&r.executor, 1);
	assert_true(ring_pair_flush(&r.executor));
	rig_free(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_come_in_order_both_ways),
		cmocka_unit_test(entries_that_do_not_fit_come_later_in_order),
		cmocka_unit_test(only_a_sleeping_end_is_woken),
		cmocka_unit_test(invalid_counters_in_the_page_are_not_followed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
