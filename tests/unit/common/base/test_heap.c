/* Tests of the heap that orders timers and priorities. The tests check the order, equal keys and
 * removal. They compare the heap's results with a scan of all nodes. */
#include "common/base/heap.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define N 64

static void smallest_key_comes_first(void **state)
{
	struct heap_node n[5] = {{.key = 5}, {.key = 1}, {.key = 4}, {.key = 1}, {.key = 0}};
	static const uint64_t want[] = {0, 1, 1, 4, 5};
	struct heap h = {0};

	(void)state;
	assert_null(heap_min(&h));
	assert_int_equal(heap_reserve(&h, 5), 0);
	for (unsigned i = 0; i < 5; i++)
		heap_push(&h, &n[i]);
	for (unsigned i = 0; i < 5; i++) {
		struct heap_node *min = heap_min(&h);

		assert_int_equal(min->key, want[i]);
		assert_true(heap_node_is_queued(min));
		heap_remove(&h, min);
		assert_false(heap_node_is_queued(min));
	}
	assert_null(heap_min(&h));
	heap_fini(&h);
}

static void larger_priority_goes_first_and_equal_ones_in_order(void **state)
{
	(void)state;
	assert_true(heap_key(UINT16_MAX, UINT64_MAX) < heap_key(UINT16_MAX - 1, 0));
	assert_true(heap_key(1, 7) < heap_key(0, 0));
	assert_true(heap_key(3, 7) < heap_key(3, 8));
	/* heap_key uses only the lower 48 bits of seq */
	assert_int_equal(heap_key(UINT16_MAX, UINT64_C(1) << 48), 0);
	assert_true(heap_key_of_partition(3, 7, UINT16_MAX) < heap_key_of_partition(3, 8, 0));
	assert_true(heap_key_of_partition(3, 7, 1) < heap_key_of_partition(3, 7, 2));
	assert_true(heap_key_of_partition(4, 8, 1) < heap_key_of_partition(3, 7, 0));
}

static void reserve_keeps_what_is_there_and_never_shrinks(void **state)
{
	struct heap_node n[2] = {{.key = 2}, {.key = 1}};
	struct heap h = {0};
	size_t cap;

	(void)state;
	assert_int_equal(heap_reserve(&h, 1), 0);
	heap_push(&h, &n[0]);
	heap_push(&h, &n[1]);
	assert_int_equal(heap_reserve(&h, 1000), 0);
	cap = h.cap;
	assert_true(cap >= 1000);
	assert_int_equal(heap_reserve(&h, 1), 0);
	assert_int_equal(h.cap, cap);
	assert_ptr_equal(heap_min(&h), &n[1]);
	heap_fini(&h);
	assert_int_equal(h.cap, 0);
}

/* Check that the heap holds exactly the nodes that are marked in `is_in`. Find the least key of
 * these nodes with a scan, and check that the heap returns the same key. */
static void check(const struct heap *h, const struct heap_node *n, const bool *is_in)
{
	const struct heap_node *min = NULL;
	size_t count = 0;

	for (unsigned i = 0; i < N; i++) {
		assert_true(heap_node_is_queued(&n[i]) == is_in[i]);
		if (!is_in[i])
			continue;
		count++;
		assert_ptr_equal(h->v[n[i].pos - 1], &n[i]);
		if (!min || n[i].key < min->key)
			min = &n[i];
	}
	assert_int_equal(h->n, count);
	if (min)
		assert_int_equal(heap_min(h)->key, min->key);
	else
		assert_null(heap_min(h));
}

static void heap_agrees_with_a_plain_search(void **state)
{
	struct heap_node n[N] = {{0}};
	bool is_in[N] = {false};
	struct heap h = {0};

	(void)state;
	srand(1);
	assert_int_equal(heap_reserve(&h, N), 0);
	for (unsigned k = 0; k < 20000; k++) {
		unsigned i = (unsigned)rand() % N;

		if (is_in[i]) {
			heap_remove(&h, &n[i]);
		} else {
			n[i].key = (uint64_t)rand() % 100;
			heap_push(&h, &n[i]);
		}
		is_in[i] = !is_in[i];
		check(&h, n, is_in);
	}
	heap_fini(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(smallest_key_comes_first),
		cmocka_unit_test(larger_priority_goes_first_and_equal_ones_in_order),
		cmocka_unit_test(reserve_keeps_what_is_there_and_never_shrinks),
		cmocka_unit_test(heap_agrees_with_a_plain_search),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
