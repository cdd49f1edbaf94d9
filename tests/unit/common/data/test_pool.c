/* The pool of buffers for large messages: segments, runs of pages, limits and reuse. The test
 * predicts each answer with a model, a map of used pages. The test has one thread and provides the
 * pool's memory. */
#include "common/data/pool.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGE         POOL_MIN_BYTES
#define SEGMENT      (8u * PAGE)
#define SEGMENTS_MAX 4
#define BUFS_MAX     64

struct pool_world {
	struct pool *pool;
	unsigned char *mem[SEGMENTS_MAX];
	unsigned n_segments, n_allowed;
};

static int make_segment(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct pool_world *w = ctx;

	if (w->n_segments == w->n_allowed)
		return -ENOMEM;
	w->mem[w->n_segments] = *ret_mem = aligned_alloc(PAGE, bytes);
	assert_non_null(*ret_mem);
	*ret_segment = (uint16_t)(w->n_segments++ + 10);
	return 0;
}

static void world_init(struct pool_world *w, size_t limit)
{
	*w = (struct pool_world){.n_allowed = SEGMENTS_MAX};
	w->pool = pool_new(SEGMENT, limit, make_segment, w);
	assert_non_null(w->pool);
}

static void world_fini(struct pool_world *w)
{
	pool_free(w->pool);
	for (unsigned i = 0; i < w->n_segments; i++)
		free(w->mem[i]);
}

static struct buf *get(struct pool_world *w, size_t bytes)
{
	struct buf *b = pool_get(w->pool, bytes);

	assert_non_null(b);
	assert_true(b->bytes >= bytes && b->offset + b->bytes <= SEGMENT);
	assert_true(b->offset % b->bytes == 0);
	assert_ptr_equal(b->mem, w->mem[b->segment - 10] + b->offset);
	return b;
}

static void sizes_are_rounded_up_to_powers_of_two(void **state)
{
	static const size_t sizes[][2] = {{1, PAGE}, {PAGE, PAGE}, {PAGE + 1, 2 * PAGE},
		{3 * PAGE, 4 * PAGE}, {SEGMENT, SEGMENT}};
	struct pool_world w;

	(void)state;
	world_init(&w, SEGMENT);
	for (unsigned i = 0; i < 5; i++) {
		struct buf *b = get(&w, sizes[i][0]);

		assert_int_equal(b->bytes, sizes[i][1]);
		assert_int_equal(pool_used_bytes(w.pool), sizes[i][1]);
		pool_put(w.pool, b);
	}
	assert_int_equal(w.n_segments, 1);
	assert_null(pool_get(w.pool, SEGMENT + 1));
	world_fini(&w);
}

static void halves_merge_again_in_any_order(void **state)
{
	struct buf *b[8];
	struct pool_world w;

	(void)state;
	world_init(&w, SEGMENT);
	srand(1);
	for (unsigned k = 0; k < 200; k++) {
		for (unsigned i = 0; i < 8; i++)
			b[i] = get(&w, PAGE);
		assert_null(pool_get(w.pool, 1));
		for (unsigned n = 8; n > 0; n--) {
			unsigned i = (unsigned)rand() % n;

			pool_put(w.pool, b[i]);
			b[i] = b[n - 1];
		}
		pool_put(w.pool, get(&w, SEGMENT));
	}
	assert_int_equal(pool_used_bytes(w.pool), 0);
	world_fini(&w);
}

static void scattered_buffers_leave_room_only_between_them(void **state)
{
	struct buf *b[8], *two;
	struct pool_world w;

	(void)state;
	world_init(&w, SEGMENT);
	for (unsigned i = 0; i < 8; i++)
		b[i] = get(&w, PAGE);
	for (unsigned i = 0; i < 8; i += 2)
		pool_put(w.pool, b[i]);
	assert_int_equal(pool_used_bytes(w.pool), 4 * PAGE);
	assert_null(pool_get(w.pool, 2 * PAGE));
	pool_put(w.pool, b[3]);
	two = get(&w, 2 * PAGE);
	assert_null(pool_get(w.pool, 2 * PAGE));
	pool_put(w.pool, two);
	for (unsigned i = 1; i < 8; i += 2)
		if (i != 3)
			pool_put(w.pool, b[i]);
	world_fini(&w);
}

static void pool_grows_by_segments_up_to_its_limit(void **state)
{
	struct buf *b[3];
	struct pool_world w;

	(void)state;
	/* the limit is two segments and one page */
	world_init(&w, 2 * SEGMENT + PAGE);
	assert_int_equal(w.n_segments, 0);
	b[0] = get(&w, SEGMENT);
	b[1] = get(&w, SEGMENT);
	assert_int_equal(w.n_segments, 2);
	assert_int_not_equal(b[0]->segment, b[1]->segment);
	assert_null(pool_get(w.pool, PAGE));
	assert_int_equal(pool_peak_bytes(w.pool), 2 * SEGMENT);
	pool_put(w.pool, b[0]);
	pool_put(w.pool, b[1]);
	pool_put(w.pool, NULL);
	assert_int_equal(pool_used_bytes(w.pool), 0);
	assert_int_equal(pool_peak_bytes(w.pool), 2 * SEGMENT);
	assert_int_equal(pool_limit_bytes(w.pool), 2 * SEGMENT + PAGE);
	world_fini(&w);
}

static void segment_that_cannot_be_made_is_no_memory(void **state)
{
	struct pool_world w;
	struct buf *b;

	(void)state;
	world_init(&w, 4 * SEGMENT);
	w.n_allowed = 0;
	assert_null(pool_get(w.pool, 1));
	w.n_allowed = 1;
	b = get(&w, SEGMENT);
	assert_null(pool_get(w.pool, 1));
	pool_put(w.pool, b);
	pool_put(w.pool, get(&w, 1));
	world_fini(&w);
}

/* The model: a map of the used pages. The pool may refuse a request only if there is no aligned run
 * of free pages and no segment can be added. */
struct model {
	bool is_used[SEGMENTS_MAX][8];
	unsigned n_segments;
};

static bool model_has_room(const struct model *m, unsigned limit, unsigned n_pages)
{
	if (m->n_segments < limit)
		return true;
	for (unsigned s = 0; s < m->n_segments; s++)
		for (unsigned first = 0; first < 8; first += n_pages) {
			unsigned i = 0;

			while (i < n_pages && !m->is_used[s][first + i])
				i++;
			if (i == n_pages)
				return true;
		}
	return false;
}

static void model_set(struct model *m, const struct buf *b, bool is_used)
{
	for (size_t i = 0; i < b->bytes / PAGE; i++) {
		bool *page = &m->is_used[b->segment - 10][b->offset / PAGE + i];

		assert_true(*page != is_used);
		*page = is_used;
	}
}

static void pool_agrees_with_a_map_of_pages(void **state)
{
	(void)state;
	for (unsigned limit = 1; limit <= SEGMENTS_MAX; limit++) {
		struct buf *bufs[BUFS_MAX];
		struct model m = {0};
		unsigned n = 0, n_refused = 0;
		size_t used = 0;
		struct pool_world w;

		world_init(&w, limit * SEGMENT);
		srand(limit);
		for (unsigned k = 0; k < 20000; k++) {
			unsigned n_pages = 1u << (unsigned)rand() % 4;
			/* Two kinds of phase alternate. In one kind, most operations are requests.
			 * In the other kind, most operations are releases. */
			bool is_get = n == 0 || rand() % 5 < (k / 64 % 2 ? 2 : 3);

			if (is_get) {
				bool has_room = model_has_room(&m, limit, n_pages);
				struct buf *b =
					pool_get(w.pool, n_pages * PAGE - (size_t)rand() % 99);

				assert_true(has_room == (b != NULL));
				n_refused += !b;
				m.n_segments = w.n_segments;
				if (!b)
					continue;
				model_set(&m, b, true);
				/* AddressSanitizer checks that the segment holds the buffer */
				memset(b->mem, (int)n, b->bytes);
				used += b->bytes;
				bufs[n++] = b;
			} else {
				unsigned i = (unsigned)rand() % n;

				model_set(&m, bufs[i], false);
				used -= bufs[i]->bytes;
				pool_put(w.pool, bufs[i]);
				bufs[i] = bufs[--n];
			}
			assert_int_equal(pool_used_bytes(w.pool), used);
			assert_true(pool_peak_bytes(w.pool) >= used);
		}
		assert_true(n_refused > 0);
		while (n > 0)
			pool_put(w.pool, bufs[--n]);
		assert_int_equal(pool_used_bytes(w.pool), 0);
		for (unsigned i = 0; i < w.n_segments; i++)
			/* all buffers are free, so each segment is available in one piece */
			bufs[n++] = get(&w, SEGMENT);
		assert_int_equal(w.n_segments, n);
		world_fini(&w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_rounded_up_to_powers_of_two),
		cmocka_unit_test(halves_merge_again_in_any_order),
		cmocka_unit_test(scattered_buffers_leave_room_only_between_them),
		cmocka_unit_test(pool_grows_by_segments_up_to_its_limit),
		cmocka_unit_test(segment_that_cannot_be_made_is_no_memory),
		cmocka_unit_test(pool_agrees_with_a_map_of_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
