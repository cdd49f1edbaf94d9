/* Tests the agent's shared memory. A fake transport (fake_xport.h) replaces the real transport. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bps-agent/memory/arena.h"
#include "tests/unit/fake_xport.h"

#define MIB ((size_t)1 << 20)

static void large_memory_is_allocated_in_pieces_and_completely(void **state)
{
	struct memory m;
	struct err_text err;
	struct stat st;
	unsigned n = 1;

	(void)state;
	assert_int_equal(memory_create_mapping(&m, "test", 40 * MIB,
				 arena_seals_of_kind(&(struct arena_set){0}, ARENA_INPUT), &err),
		0);
	while (memory_allocate_piece(&m, &err) == 1)
		n++;
	assert_int_equal(n, 3); /* three pieces: 16 + 16 + 8 MiB */
	assert_int_equal(fstat(m.fd, &st), 0);
	assert_int_equal(st.st_size, 40 * MIB);
	/* every page is allocated before its first use */
	assert_true((size_t)st.st_blocks * 512 >= 40 * MIB);
	assert_int_equal(fcntl(m.fd, F_GET_SEALS) & F_SEAL_SHRINK, F_SEAL_SHRINK);
	assert_int_equal(((char *)m.mem)[0], 0);
	assert_int_equal(((char *)m.mem)[40 * MIB - 1], 0);
	memory_unmap_and_close(&m);
	assert_int_equal(m.fd, -1);
}

struct account {
	size_t bytes, limit;
	unsigned n_fds;
};

static int admit(void *ctx, size_t bytes, unsigned n_fds, struct err_text *err)
{
	struct account *a = ctx;

	if (a->bytes + bytes > a->limit)
		return err_set(err, BPS_EQUOTA, "full");
	a->bytes += bytes;
	a->n_fds += n_fds;
	return 0;
}

static void release(void *ctx, size_t bytes, unsigned n_fds)
{
	struct account *a = ctx;

	assert_true(a->bytes >= bytes && a->n_fds >= n_fds);
	a->bytes -= bytes;
	a->n_fds -= n_fds;
}

static size_t room(void *ctx)
{
	const struct account *a = ctx;

	return a->limit - a->bytes;
}

static void drop(void *ctx, const struct memory *m)
{
	struct memory mine = *m;

	(void)ctx;
	memory_unmap_and_close(&mine);
}

static const struct arena_owner owner = {
	.admit = admit, .release = release, .room = room, .drop = drop};

static void arena_is_requested_allocated_elsewhere_and_adopted(void **state)
{
	const struct xport_events events = {0};
	struct account account = {.limit = 30 * MIB};
	struct fake_xport x;
	struct arena_set set = {.x = &x.base, .owner = &owner, .owner_ctx = &account};
	struct arena *a = NULL;
	struct agt_mem mem;
	struct memory m;
	struct err_text err;

	(void)state;
	fake_init(&x, &events, NULL);
	assert_int_equal(arena_alloc(&set, ARENA_INPUT, NULL, 4096, &a, &mem, &err), -EINPROGRESS);
	assert_int_equal(set.want_bytes, MIB);
	assert_int_equal(account.bytes, MIB);
	assert_int_equal(
		memory_make_sealed(&m, "test", MIB, arena_seals_of_kind(&set, ARENA_INPUT), &err),
		0);
	assert_int_equal(arena_adopt(&set, ARENA_INPUT, &m, &a, &err), 0);
	assert_int_equal(arena_alloc(&set, ARENA_INPUT, a, 4096, &a, &mem, &err), 0);
	assert_int_equal(arena_alloc(&set, ARENA_INPUT, a, 20 * MIB, &a, &mem, &err), -EINPROGRESS);
	assert_int_equal(set.want_kind, ARENA_INPUT);
	assert_int_equal(set.want_bytes, 20 * MIB);
	assert_int_equal(account.bytes, 21 * MIB);
	assert_int_equal(memory_make_sealed(&m, "test", set.want_bytes,
				 arena_seals_of_kind(&set, set.want_kind), &err),
		0);
	assert_int_equal(arena_adopt(&set, set.want_kind, &m, &a, &err), 0);
	assert_int_equal(arena_alloc(&set, ARENA_INPUT, a, 20 * MIB, &a, &mem, &err), 0);
	assert_ptr_equal(mem.mem, a->mem);
	assert_int_equal(account.n_fds, 2);
	assert_int_equal(arena_alloc(&set, ARENA_INPUT, a, 10 * MIB, &a, &mem, &err), BPS_EQUOTA);
	assert_int_equal(
		arena_alloc(&set, ARENA_PRIVATE, NULL, 5 * MIB, &a, &mem, &err), -EINPROGRESS);
	arena_release_charge(&set, set.want_kind, set.want_bytes);
	assert_int_equal(account.bytes, 21 * MIB);
	arena_set_fini(&set);
	assert_int_equal(account.bytes, 0);
	assert_int_equal(account.n_fds, 0);
	fake_fini(&x);
}

static void missing_memory_is_an_error_and_leaves_nothing(void **state)
{
	struct memory m;
	struct err_text err = {""};

	(void)state;
	assert_true(memory_make_sealed(&m, "test", SIZE_MAX / 4, 0, &err) < 0);
	assert_non_null(strstr(err.s, "shared memory"));
	assert_null(m.mem);
	assert_int_equal(m.fd, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_memory_is_allocated_in_pieces_and_completely),
		cmocka_unit_test(arena_is_requested_allocated_elsewhere_and_adopted),
		cmocka_unit_test(missing_memory_is_an_error_and_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
