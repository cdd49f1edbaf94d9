/* The agent's shared memory, with a transport that does nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bps-agent/arena.h"
#include "tests/unit/fake_xport.h"

#define MIB ((size_t)1 << 20)

static void count(void *ctx)
{
	++*(unsigned *)ctx;
}

static void much_memory_is_made_in_pieces_that_show_progress(void **state)
{
	const struct xport_events events = {0};
	struct fake_xport x;
	unsigned n = 0;
	struct arena_set set = {.x = &x.base, .progress = count, .progress_ctx = &n};
	struct arena *a;
	struct agt_mem mem;
	struct err_text err;
	struct stat st;

	(void)state;
	fake_init(&x, &events, NULL);
	assert_int_equal(arena_alloc(&set, ARENA_INPUT, NULL, 40 * MIB, &a, &mem, &err), 0);
	assert_int_equal(n, 3); /* 16 + 16 + 8 */
	assert_int_equal(fstat(a->fd, &st), 0);
	assert_int_equal(st.st_size, 40 * MIB);
	assert_true((size_t)st.st_blocks * 512 >= 40 * MIB); /* no page is missing */
	assert_int_equal(fcntl(a->fd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
	assert_int_equal(((char *)mem.mem)[0], 0);
	assert_int_equal(((char *)mem.mem)[40 * MIB - 1], 0);
	arena_set_fini(&set);
	fake_fini(&x);
}

static void memory_that_is_not_there_is_an_error_and_leaves_nothing(void **state)
{
	const struct xport_events events = {0};
	struct fake_xport x;
	struct arena_set set = {.x = &x.base};
	struct arena *a;
	struct agt_mem mem;
	struct err_text err = {""};

	(void)state;
	fake_init(&x, &events, NULL);
	assert_true(arena_alloc(&set, ARENA_INPUT, NULL, SIZE_MAX / 4, &a, &mem, &err) < 0);
	assert_non_null(strstr(err.s, "shared memory"));
	assert_null(set.head);
	assert_int_equal(set.bytes, 0);
	fake_fini(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(much_memory_is_made_in_pieces_that_show_progress),
		cmocka_unit_test(memory_that_is_not_there_is_an_error_and_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
