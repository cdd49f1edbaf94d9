/* Quotas: what is charged and given back at each level, and the text of refusals. */
#include "bps-agent/quota/quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MIB      (UINT64_C(1) << 20)
#define NS_PER_S UINT64_C(1000000000)

static const struct quota_limits limits = {
	.of = {[QUOTA_MACHINE] = {[QUOTA_TRAINERS] = 5, [QUOTA_MEMORY] = 100 * MIB},
		[QUOTA_USER] = {[QUOTA_TRAINERS] = 3,
			[QUOTA_MEMORY] = 60 * MIB,
			[QUOTA_TENSORS] = 10,
			[QUOTA_DESCRIPTORS] = 8},
		[QUOTA_JOB] = {[QUOTA_MEMORY] = 40 * MIB, [QUOTA_TENSORS] = 6}},
	.requests_per_s = 10};

struct quota_world {
	struct quota *q;
	struct quota_account *alice, *bob, *job;
	struct err_text err;
};

static int setup(void **state)
{
	static struct quota_world w;

	w.q = quota_new(&limits, "node1");
	w.alice = quota_get_user_account(w.q, 1000);
	w.bob = quota_get_user_account(w.q, 1001);
	w.job = quota_new_job_account(w.alice, "train");
	quota_set_name(w.alice, "alice");
	*state = &w;
	return 0;
}

static int teardown(void **state)
{
	struct quota_world *w = *state;

	quota_account_release(w->job);
	quota_account_release(w->alice);
	quota_account_release(w->bob);
	quota_free(w->q);
	return 0;
}

static void take(struct quota_world *w, struct quota_account *a, enum quota_kind kind, uint64_t n)
{
	assert_int_equal(quota_take(a, kind, n, &w->err), 0);
}

static void assert_refused(struct quota_world *w, struct quota_account *a, enum quota_kind kind,
	uint64_t n, const char *text)
{
	uint64_t before = quota_used(a, kind);

	assert_int_equal(quota_take(a, kind, n, &w->err), BPS_EQUOTA);
	assert_string_equal(w->err.s, text);
	assert_int_equal(quota_used(a, kind), before);
}

static void refusal_names_the_limit_and_what_to_do(void **state)
{
	struct quota_world *w = *state;

	for (unsigned i = 0; i < 3; i++)
		take(w, w->alice, QUOTA_TRAINERS, 1);
	assert_refused(w, w->alice, QUOTA_TRAINERS, 1,
		"user alice (uid 1000) has 3 of 3 trainer connections on node1; see bps-agent's "
		"--user-trainers");
	take(w, w->bob, QUOTA_TRAINERS, 1);
	take(w, w->bob, QUOTA_TRAINERS, 1);
	assert_refused(w, w->bob, QUOTA_TRAINERS, 1,
		"all users together have 5 of 5 trainer connections on node1; see bps-agent's "
		"--max-trainers");
	quota_give(w->alice, QUOTA_TRAINERS, 3);
	take(w, w->bob, QUOTA_TRAINERS, 1);
	assert_refused(w, w->bob, QUOTA_TRAINERS, 1,
		"the user with uid 1001 has 3 of 3 trainer connections on node1; see bps-agent's "
		"--user-trainers");
	quota_give(w->bob, QUOTA_TRAINERS, 3);
}

#define KEPT                                                                                       \
	"a job keeps its tensors until it is closed, so close and open it between models (in "     \
	"Python: shutdown(), init()), or "

static void use_of_a_job_counts_for_its_user_and_the_machine(void **state)
{
	struct quota_world *w = *state;
	struct quota_account *second = quota_new_job_account(w->alice, "eval"),
			     *other = quota_new_job_account(w->bob, "x");

	take(w, w->job, QUOTA_MEMORY, 40 * MIB);
	assert_refused(w, w->job, QUOTA_MEMORY, 3 * MIB / 2,
		"job 'train' of user alice (uid 1000) has 40.0 MiB of 40.0 MiB shared memory on "
		"node1, and 1.50 MiB more is requested; " KEPT "see bps-agent's --job-memory");
	assert_int_equal(quota_room(second, QUOTA_MEMORY), 20 * MIB);
	take(w, second, QUOTA_MEMORY, 20 * MIB);
	assert_int_equal(quota_room(w->job, QUOTA_MEMORY), 0);
	assert_refused(w, second, QUOTA_MEMORY, 1,
		"user alice (uid 1000) has 60.0 MiB of 60.0 MiB shared memory on node1; " KEPT
		"see bps-agent's --user-memory");
	take(w, other, QUOTA_MEMORY, 40 * MIB);
	assert_refused(w, w->bob, QUOTA_MEMORY, 1,
		"all users together have 100.0 MiB of 100.0 MiB shared memory on node1; " KEPT
		"see bps-agent's --memory");
	assert_int_equal(quota_used(w->alice, QUOTA_MEMORY), 60 * MIB);
	quota_account_release(second); /* freeing the account ends its charges */
	assert_int_equal(quota_used(w->alice, QUOTA_MEMORY), 40 * MIB);
	take(w, w->bob, QUOTA_MEMORY, 20 * MIB);
	quota_give(w->bob, QUOTA_MEMORY, 20 * MIB);
	quota_account_release(other);
	assert_int_equal(quota_used(w->bob, QUOTA_MEMORY), 0);
}

static void every_limit_is_exact(void **state)
{
	struct quota_world *w = *state;
	struct quota_account *of[QUOTA_SCOPES] = {[QUOTA_USER] = w->alice, [QUOTA_JOB] = w->job};

	for (unsigned s = QUOTA_USER; s < QUOTA_SCOPES; s++) {
		for (unsigned k = 0; k < QUOTA_KINDS; k++) {
			enum quota_kind kind = (enum quota_kind)k;
			uint64_t limit = limits.of[s][k];

			assert_true(!limit || quota_setting_name((enum quota_scope)s, kind));
			if (!limit)
				continue;
			take(w, of[s], kind, limit);
			assert_int_equal(quota_take(of[s], kind, 1, &w->err), BPS_EQUOTA);
			quota_give(of[s], kind, 1);
			take(w, of[s], kind, 1);
			assert_int_equal(quota_take(of[s], kind, UINT64_MAX, &w->err), BPS_EQUOTA);
			assert_non_null(
				strstr(w->err.s, quota_setting_name((enum quota_scope)s, kind)));
			quota_give(of[s], kind, limit);
			assert_int_equal(quota_used(w->alice, kind), 0);
		}
	}
}

static void lowered_limit_lets_nothing_more_in_and_takes_nothing_away(void **state)
{
	struct quota_world *w = *state;
	struct quota_limits lower = limits;

	take(w, w->alice, QUOTA_TRAINERS, 3);
	lower.of[QUOTA_USER][QUOTA_TRAINERS] = 2;
	quota_set_limits(w->q, &lower);
	assert_int_equal(quota_room(w->alice, QUOTA_TRAINERS), 0);
	assert_int_equal(quota_take(w->alice, QUOTA_TRAINERS, 1, &w->err), BPS_EQUOTA);
	assert_int_equal(quota_used(w->alice, QUOTA_TRAINERS), 3);
	quota_give(w->alice, QUOTA_TRAINERS, 2);
	take(w, w->alice, QUOTA_TRAINERS, 1);
	quota_give(w->alice, QUOTA_TRAINERS, 2);
}

static void kind_without_a_limit_is_only_counted(void **state)
{
	struct quota_world *w = *state;

	take(w, w->job, QUOTA_TRAINERS, 1);
	assert_int_equal(quota_used(w->alice, QUOTA_TRAINERS), 1);
	quota_give(w->job, QUOTA_TRAINERS, 1);
}

static void users_that_have_left_keep_their_name_and_at_most_some_are_kept(void **state)
{
	struct quota_world *w = *state;
	struct quota_account *a;

	for (uid_t uid = 2000; uid < 4000; uid++) {
		a = quota_get_user_account(w->q, uid);
		assert_non_null(a);
		if (uid == 3999)
			quota_set_name(a, "last");
		quota_account_release(a);
	}
	a = quota_get_user_account(w->q, 3999);
	assert_true(quota_is_named(a));
	quota_account_release(a);
	a = quota_get_user_account(w->q, 2000);
	assert_false(quota_is_named(a));
	assert_true(quota_is_named(a)); /* the first request of a user looks the user's name up */
	quota_account_release(a);
	assert_true(quota_is_named(w->alice));
}

static void burst_is_served_at_once_and_then_the_rate_holds(void **state)
{
	struct quota_world *w = *state;
	struct quota_pace pace = {0}, other = {0};
	uint64_t now = 5 * NS_PER_S;

	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(quota_pace_request(w->alice, &pace, now, &w->err), 0);
	assert_int_equal(quota_pace_request(w->alice, &pace, now, &w->err), NS_PER_S / 10);
	assert_int_equal(quota_pace_request(w->alice, &pace, now, &w->err), 2 * NS_PER_S / 10);
	assert_int_equal(quota_pace_request(w->bob, &other, now, &w->err), 0);
	now += NS_PER_S;
	assert_int_equal(quota_pace_request(w->alice, &pace, now, &w->err), 0);
	assert_int_equal(pace.n_slowed, 0);
}

static void connections_of_one_user_share_its_rate(void **state)
{
	struct quota_world *w = *state;
	struct quota_pace one = {0}, two = {0};

	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(quota_pace_request(w->alice, &one, NS_PER_S, &w->err), 0);
		assert_int_equal(quota_pace_request(w->alice, &two, NS_PER_S, &w->err), 0);
	}
	assert_true(quota_pace_request(w->alice, &one, NS_PER_S, &w->err) > 0);
	assert_true(quota_pace_request(w->alice, &two, NS_PER_S, &w->err) > 0);
}

static void requests_that_never_pause_are_refused_in_the_end(void **state)
{
	struct quota_world *w = *state;
	struct quota_pace pace = {0}, fresh = {0};
	uint64_t now = NS_PER_S;
	int64_t wait = 0;

	for (unsigned i = 0; i < 20 + 40; i++) {
		wait = quota_pace_request(w->alice, &pace, now, &w->err);
		assert_true(wait >= 0);
		now += (uint64_t)wait;
	}
	assert_int_equal(quota_pace_request(w->alice, &pace, now, &w->err), BPS_EQUOTA);
	assert_string_equal(w->err.s,
		"user alice (uid 1000) sends more than 10 requests a second on node1: 41 requests "
		"in a row exceeded this limit; send fewer, or raise bps-agent's --user-requests");
	/* requests of another connection of the user are counted separately */
	assert_true(quota_pace_request(w->alice, &fresh, now, &w->err) > 0);
}

static void rate_of_0_is_no_limit(void **state)
{
	struct quota_limits none = {.requests_per_s = 0};
	struct quota *q = quota_new(&none, "node1");
	struct quota_account *a = quota_get_user_account(q, 1);
	struct quota_pace pace = {0};
	struct err_text err;

	(void)state;
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(quota_pace_request(a, &pace, 1, &err), 0);
	quota_account_release(a);
	quota_free(q);
}

static void view_has_use_limits_refusals_and_a_bound(void **state)
{
	static struct quota_view v;
	struct quota_world *w = *state;
	struct quota_account *many[QUOTA_VIEW_MAX + 3];

	take(w, w->job, QUOTA_TENSORS, 3);
	assert_int_equal(quota_take(w->job, QUOTA_TENSORS, 4, &w->err), BPS_EQUOTA);
	quota_fill_view(w->q, &v);
	assert_int_equal(v.n_rows, 4); /* rows: the machine, alice, bob, the job */
	assert_int_equal(v.rows[0].scope, QUOTA_MACHINE);
	assert_string_equal(v.rows[1].user, "alice");
	assert_int_equal(v.rows[1].used[QUOTA_TENSORS], 3);
	assert_int_equal(v.rows[3].scope, QUOTA_JOB);
	assert_string_equal(v.rows[3].job, "train");
	assert_string_equal(v.rows[3].user, "alice");
	assert_int_equal(v.rows[3].refused, 1);
	assert_int_equal(v.refused[QUOTA_JOB][QUOTA_TENSORS], 1);
	assert_true(v.fullest[QUOTA_JOB][QUOTA_TENSORS] == 0.5);
	for (unsigned i = 0; i < QUOTA_VIEW_MAX + 3; i++)
		many[i] = quota_get_user_account(w->q, 5000 + i);
	quota_fill_view(w->q, &v);
	assert_int_equal(v.n_rows, QUOTA_VIEW_MAX);
	assert_int_equal(v.n_left_out, 4 + QUOTA_VIEW_MAX + 3 - QUOTA_VIEW_MAX);
	for (unsigned i = 0; i < QUOTA_VIEW_MAX + 3; i++)
		quota_account_release(many[i]);
	quota_fill_view(w->q, &v);
	assert_int_equal(v.n_rows, 4); /* users who use nothing are not listed */
}

static void bytes_are_written_as_people_read_them(void **state)
{
	char s[32];

	(void)state;
	quota_bytes_text(512, s);
	assert_string_equal(s, "512 bytes");
	quota_bytes_text(1536, s);
	assert_string_equal(s, "1.50 KiB");
	quota_bytes_text(UINT64_C(25) << 30, s);
	assert_string_equal(s, "25.0 GiB");
	quota_bytes_text(UINT64_MAX, s);
	assert_string_equal(s, "16777216.0 TiB");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(refusal_names_the_limit_and_what_to_do),
		TEST(use_of_a_job_counts_for_its_user_and_the_machine),
		TEST(every_limit_is_exact),
		TEST(lowered_limit_lets_nothing_more_in_and_takes_nothing_away),
		TEST(kind_without_a_limit_is_only_counted),
		TEST(users_that_have_left_keep_their_name_and_at_most_some_are_kept),
		TEST(burst_is_served_at_once_and_then_the_rate_holds),
		TEST(connections_of_one_user_share_its_rate),
		TEST(requests_that_never_pause_are_refused_in_the_end),
		cmocka_unit_test(rate_of_0_is_no_limit),
		TEST(view_has_use_limits_refusals_and_a_bound),
		cmocka_unit_test(bytes_are_written_as_people_read_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
