/* The thread that allocates shared memory, with a real event loop. */
#include "bps-agent/memory/memory_thread.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"

#define MIB         ((size_t)1 << 20)
#define MANY        24
#define DEADLINE_NS UINT64_C(20000000000)

struct memory_world {
	struct dataloop *loop;
	struct memory_thread *memory_thread;
	struct memory_request large, small, many[MANY];
	_Atomic unsigned n_done;
	/* position of each request in the order of completion; 1: the request completed first */
	unsigned large_place, small_place;
};

static uint64_t tick(void *ctx, uint64_t now_ns)
{
	(void)ctx;
	(void)now_ns;
	return UINT64_MAX;
}

static bool work(void *ctx)
{
	(void)ctx;
	return false;
}

static const struct dataloop_ops ops = {.tick = tick, .work = work};

static void done(struct memory_request *m)
{
	struct memory_world *w = m->user;
	unsigned place = w->n_done + 1;

	if (m == &w->large)
		w->large_place = place;
	else if (m == &w->small)
		w->small_place = place;
	w->n_done = place;
}

static void setup(struct memory_world *w)
{
	struct err_text err;

	memset(w, 0, sizeof(*w));
	assert_int_equal(dataloop_new("data0", 0, 16, &ops, w, &w->loop, &err), 0);
	assert_int_equal(memory_thread_new(w->loop, &w->memory_thread, &err), 0);
	assert_int_equal(dataloop_start(w->loop, &err), 0);
	w->large = w->small = (struct memory_request){.name = "test", .done = done, .user = w};
	w->large.bytes = 512 * MIB;
	w->small.bytes = MIB;
	w->small.more_seals = arena_seals_of_kind(&(struct arena_set){0}, ARENA_OUTPUT);
}

static void teardown(struct memory_world *w)
{
	memory_thread_stop(w->memory_thread);
	dataloop_free(w->loop);
	memory_thread_free(w->memory_thread);
}

static void await(struct memory_world *w, unsigned n_done)
{
	uint64_t end_ns = clock_now_ns() + DEADLINE_NS;

	while (w->n_done < n_done) {
		assert_true(clock_now_ns() < end_ns);
		sched_yield();
	}
}

static void small_request_does_not_wait_for_the_large_one_before_it(void **state)
{
	struct memory_world w;

	(void)state;
	setup(&w);
	assert_int_equal(memory_thread_make(w.memory_thread, &w.large), 0);
	assert_int_equal(memory_thread_make(w.memory_thread, &w.small), 0);
	await(&w, 2);
	assert_int_equal(w.small_place, 1);
	assert_int_equal(w.large_place, 2);
	assert_int_equal(w.large.rc, 0);
	assert_int_equal(w.large.memory.n_made, 512 * MIB);
	assert_int_equal(((char *)w.large.memory.mem)[512 * MIB - 1], 0);
	memory_thread_drop(w.memory_thread, &w.large.memory);
	memory_thread_drop(w.memory_thread, &w.small.memory);
	teardown(&w);
}

static void user_does_not_wait_for_the_many_requests_of_two_others(void **state)
{
	struct memory_world w;

	(void)state;
	setup(&w);
	for (unsigned i = 0; i < MANY; i++) {
		w.many[i] = (struct memory_request){.name = "test",
			.bytes = 16 * MIB,
			.uid = 1 + i % 2,
			.done = done,
			.user = &w};
		assert_int_equal(memory_thread_make(w.memory_thread, &w.many[i]), 0);
	}
	w.small.uid = 3;
	assert_int_equal(memory_thread_make(w.memory_thread, &w.small), 0);
	await(&w, MANY + 1);
	assert_true(w.small_place < MANY / 3);
	memory_thread_drop(w.memory_thread, &w.small.memory);
	for (unsigned i = 0; i < MANY; i++) {
		assert_int_equal(w.many[i].rc, 0);
		memory_thread_drop(w.memory_thread, &w.many[i].memory);
	}
	teardown(&w);
}

static void missing_memory_is_reported_with_a_sentence(void **state)
{
	struct memory_world w;

	(void)state;
	setup(&w);
	w.large.bytes = SIZE_MAX / 4;
	assert_int_equal(memory_thread_make(w.memory_thread, &w.large), 0);
	await(&w, 1);
	assert_true(w.large.rc < 0);
	assert_non_null(strstr(w.large.err.s, "shared memory"));
	teardown(&w);
}

static void stop_cancels_what_waits_and_what_comes_behind_it(void **state)
{
	struct memory_world w;

	(void)state;
	setup(&w);
	/* Allocating all of this memory would need more than a second. The stop ends the allocation
	 * after one piece. */
	w.large.bytes = 1024 * MIB;
	assert_int_equal(memory_thread_make(w.memory_thread, &w.large), 0);
	memory_thread_stop(w.memory_thread);
	await(&w, 1);
	assert_int_equal(w.large.rc, -ECANCELED);
	assert_int_equal(memory_thread_make(w.memory_thread, &w.small), 0);
	await(&w, 2);
	assert_int_equal(w.small.rc, -ECANCELED);
	assert_null(w.small.memory.mem);
	teardown(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_request_does_not_wait_for_the_large_one_before_it),
		cmocka_unit_test(user_does_not_wait_for_the_many_requests_of_two_others),
		cmocka_unit_test(missing_memory_is_reported_with_a_sentence),
		cmocka_unit_test(stop_cancels_what_waits_and_what_comes_behind_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
