/* A ledger is memory that outlives a process. The next process reads all records again, and rejects
 * damaged records. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "bps-agent/handover/ledger.h"

#define HEAD_BYTES 64

static struct ledger *made(void)
{
	struct ledger *l;
	struct err_text err;

	assert_int_equal(ledger_new(&l, &err), 0);
	return l;
}

/* Reopen the ledger from its descriptor, which is all that the next process gets. */
static int reopen(struct ledger **l, struct err_text *err)
{
	int fd = dup(ledger_fd(*l));

	assert_true(fd >= 0);
	ledger_free(*l);
	*l = NULL;
	return ledger_open(fd, l, err);
}

static void records_are_found_by_the_next_process(void **state)
{
	struct ledger *l = made();
	struct ledger_record r;
	struct err_text err = {""};
	uint64_t *live = NULL;
	size_t at = 0;

	(void)state;
	assert_int_equal(ledger_add(l, 7, "hello", 6, 24, (void **)&live), 0);
	assert_int_equal((uintptr_t)live % LEDGER_ALIGN, 0);
	assert_int_equal(live[2], 0);
	live[2] = 42;
	assert_int_equal(ledger_add(l, 8, "x", 1, 0, NULL), 0);
	assert_int_equal(reopen(&l, &err), 0);
	assert_int_equal(ledger_next(l, &at, &r, &err), 1);
	assert_int_equal(r.type, 7);
	assert_string_equal(r.fixed, "hello");
	assert_int_equal(r.n_live, 24);
	assert_int_equal(((uint64_t *)r.live)[2], 42);
	assert_int_equal(ledger_next(l, &at, &r, &err), 1);
	assert_int_equal(r.type, 8);
	assert_int_equal(r.n_live, 0);
	assert_int_equal(ledger_next(l, &at, &r, &err), 0);
	/* a refused record leaves the ledger usable */
	assert_int_equal(ledger_add(l, 9, NULL, 0, 8, (void **)&live), 0);
	assert_int_equal(ledger_next(l, &at, &r, &err), 1);
	assert_int_equal(r.type, 9);
	ledger_free(l);
}

static void live_parts_stay_where_they_are_while_it_grows(void **state)
{
	struct ledger *l = made();
	unsigned char *first, *big;

	(void)state;
	assert_int_equal(ledger_add(l, 1, "a", 1, 1, (void **)&first), 0);
	*first = 5;
	assert_int_equal(ledger_add(l, 2, "b", 1, 3 << 20, (void **)&big), 0);
	memset(big, 0xff, 3 << 20);
	assert_int_equal(*first, 5);
	assert_int_equal(ledger_add(l, 3, "c", 1, (size_t)2 << 30, (void **)&big), -EFBIG);
	ledger_free(l);
}

static void any_flipped_byte_of_fixed_content_is_detected(void **state)
{
	static const char fixed[] = "what was written once";
	(void)state;
	for (size_t i = 0; i < 32 + sizeof(fixed); i++) {
		struct ledger *l = made();
		struct ledger_record r;
		struct err_text err = {""};
		unsigned char c;
		size_t at = 0;

		assert_int_equal(ledger_add(l, 1, fixed, sizeof(fixed), 100, NULL), 0);
		assert_int_equal(pread(ledger_fd(l), &c, 1, (off_t)(HEAD_BYTES + i)), 1);
		c ^= 0x10;
		assert_int_equal(pwrite(ledger_fd(l), &c, 1, (off_t)(HEAD_BYTES + i)), 1);
		assert_int_equal(reopen(&l, &err), 0);
		if (i >= 28 && i < 32) /* the record head does not use these bytes */
			assert_int_equal(ledger_next(l, &at, &r, &err), 1);
		else
			assert_int_equal(ledger_next(l, &at, &r, &err), BPS_EPROTO);
		ledger_free(l);
	}
}

static void memory_that_is_no_ledger_is_refused(void **state)
{
	struct ledger *l = made();
	struct err_text err = {""};
	uint64_t used = 1 << 20;
	uint32_t version = LEDGER_VERSION + 1;
	int fd = memfd_create("test", MFD_CLOEXEC);

	(void)state;
	assert_int_equal(ledger_add(l, 1, "a", 1, 1, NULL), 0);
	assert_int_equal(pwrite(ledger_fd(l), &used, sizeof(used), 8), sizeof(used));
	assert_int_equal(reopen(&l, &err), BPS_EPROTO);
	assert_non_null(strstr(err.s, "truncated"));
	assert_int_equal(ledger_open(fd, &l, &err), BPS_EPROTO);
	l = made();
	assert_int_equal(pwrite(ledger_fd(l), &version, sizeof(version), 4), sizeof(version));
	assert_int_equal(reopen(&l, &err), BPS_EVERSION);
}

static void random_bytes_are_rejected(void **state)
{
	(void)state;
	srand(1);
	for (unsigned i = 0; i < 300; i++) {
		struct ledger *l = made();
		struct ledger_record r;
		struct err_text err;
		size_t at = 0;
		int rc;

		for (unsigned k = 0; k < 5; k++)
			assert_int_equal(ledger_add(l, k, "abcdefgh", k + 1, 8 * k, NULL), 0);
		for (unsigned k = 0; k < 4; k++) {
			unsigned char c = (unsigned char)rand();

			assert_int_equal(pwrite(ledger_fd(l), &c, 1, 8 + rand() % 600), 1);
		}
		rc = reopen(&l, &err);
		while (rc == 0 && ledger_next(l, &at, &r, &err) == 1)
			assert_true(r.n_fixed <= 8 && r.n_live <= 32);
		ledger_free(l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_are_found_by_the_next_process),
		cmocka_unit_test(live_parts_stay_where_they_are_while_it_grows),
		cmocka_unit_test(any_flipped_byte_of_fixed_content_is_detected),
		cmocka_unit_test(memory_that_is_no_ledger_is_refused),
		cmocka_unit_test(random_bytes_are_rejected),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
