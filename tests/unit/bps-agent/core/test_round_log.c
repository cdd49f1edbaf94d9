/* The ring of the last records of rounds (bps-agent/core/round_log.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bps-agent/core/round_log.h"

/* Add the rounds first to last. Round r begins at the time 10 r. */
static void add(struct round_log *log, uint64_t first, uint64_t last)
{
	for (uint64_t r = first; r <= last; r++) {
		const struct round_record record = {.round = r, .began_ns = 10 * r};

		round_log_add(log, &record);
	}
}

static void expect_rounds(const struct round_log *log, struct round_choice choice, uint64_t first,
	uint64_t last, uint64_t lost)
{
	uint64_t n_lost;
	size_t n;
	struct round_record *r;

	assert_int_equal(round_log_copy(log, &choice, &r, &n, &n_lost), 0);
	assert_int_equal(n, last < first ? 0 : last - first + 1);
	assert_int_equal(n_lost, lost);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(r[i].round, first + i);
	free(r);
}

static void records_come_in_their_order(void **state)
{
	struct round_log log = {0};

	(void)state;
	expect_rounds(&log, (struct round_choice){0}, 1, 0, 0);
	add(&log, 1, 100);
	expect_rounds(&log, (struct round_choice){0}, 1, 100, 0);
	expect_rounds(&log, (struct round_choice){.since_ns = 500}, 50, 100, 0);
	expect_rounds(&log, (struct round_choice){.first_round = 20, .last_round = 30}, 20, 30, 0);
	expect_rounds(&log, (struct round_choice){.first_round = 101}, 101, 100, 0);
	round_log_free(&log);
}

static void full_ring_loses_the_oldest_records(void **state)
{
	struct round_log log = {0};

	(void)state;
	add(&log, 1, ROUND_LOG_ROOM);
	expect_rounds(&log, (struct round_choice){0}, 1, ROUND_LOG_ROOM, 0);
	add(&log, ROUND_LOG_ROOM + 1, ROUND_LOG_ROOM + 7);
	expect_rounds(&log, (struct round_choice){0}, 8, ROUND_LOG_ROOM + 7, 7);
	add(&log, ROUND_LOG_ROOM + 8, 3 * ROUND_LOG_ROOM);
	expect_rounds(&log, (struct round_choice){0}, 2 * ROUND_LOG_ROOM + 1, 3 * ROUND_LOG_ROOM,
		2 * ROUND_LOG_ROOM);
	round_log_free(&log);
}

static void changed_members_are_forgotten(void **state)
{
	const struct round_record record = {.round = 1, .last_member = 3, .wait_us = 5};
	const struct round_choice all = {0};
	struct round_log log = {0};
	struct round_record *r;
	uint64_t n_lost;
	size_t n;

	(void)state;
	round_log_forget_members(&log);
	round_log_add(&log, &record);
	round_log_forget_members(&log);
	assert_int_equal(round_log_copy(&log, &all, &r, &n, &n_lost), 0);
	assert_int_equal(n, 1);
	assert_int_equal(r->last_member, 0);
	assert_int_equal(r->wait_us, 5);
	free(r);
	round_log_free(&log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_come_in_their_order),
		cmocka_unit_test(full_ring_loses_the_oldest_records),
		cmocka_unit_test(changed_members_are_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
