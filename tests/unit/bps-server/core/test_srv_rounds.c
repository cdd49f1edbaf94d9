/* Tests of rounds in a server's core, from the first contribution to the sum. The tests also check
 * which members a round waits for. */
#include "tests/unit/srv_world.h"

/* ---- rounds ---- */

static void small_round_completes_when_all_have_contributed(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	work(w);
	for (unsigned i = 0; i < 3; i++)
		expect_nothing(w, i);
	say_contrib(w, 2, 1);
	work(w);
	for (unsigned i = 0; i < 3; i++) {
		struct wire_msg m = expect_sum(w, i, 1);

		assert_true(m.flags & WIRE_INLINE);
	}
	assert_int_equal(stats(w).rounds, 1);
	assert_int_equal(stats(w).contributions, 3);
	world_free(w);
}

static void large_round_is_read_and_its_sum_offered(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	for (uint64_t r = 1; r <= 5; r++) {
		contribute_all(w, r);
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = expect_sum(w, i, r);

			assert_false(m.flags & WIRE_INLINE);
		}
	}
	assert_int_equal(stats(w).retired, 0);
	world_free(w);
}

static void bytes_and_times_of_rounds_are_counted(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct srv_stats s;

	(void)state;
	for (uint64_t r = 1; r <= 2; r++) {
		say_contrib(w, 0, r);
		tick(w, 7);
		say_contrib(w, 1, r);
		end_reads(w);
		tick(w, 16);
		settle(w);
	}
	s = stats(w);
	assert_int_equal(s.rounds, 2);
	assert_int_equal(s.bytes_summed, 2 * 3 * bytes_of(w)); /* two operands and the sum */
	assert_int_equal(s.offered_bytes, 2 * 2 * bytes_of(w));
	assert_int_equal(histogram_count(&s.wait), 2);
	assert_int_equal(s.wait.sum_ns, 2 * 7 * MS);
	/* the moving mean over about 8 sums begins with 0 */
	assert_int_equal(s.sum_ns, 2 * MS + 2 * MS - 2 * MS / 8);
	world_free(w);
}

static void duplicate_before_the_sum_is_ignored_and_after_it_answered_again(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 0, 1);
	expect_nothing(w, 0);
	say_contrib(w, 1, 1);
	say_contrib(w, 0, 1); /* the contribution is repeated before the sum is complete */
	work(w);
	expect_sum(w, 0, 1);
	expect_nothing(w, 0);
	say_contrib(w, 0, 1);
	expect_sum(w, 0, 1);
	assert_int_equal(stats(w).duplicates, 3);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void second_offer_while_the_first_is_read_is_ignored(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 0, 1);
	assert_int_equal(w->m[0].conn->n_reads, 1);
	end_read(w, 0, 0, 0);
	say_contrib(w, 0, 1);
	assert_int_equal(w->m[0].conn->n_reads, 0);
	say_contrib(w, 1, 1);
	settle(w);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void message_of_an_older_pgen_is_dropped_and_counted(void **state)
{
	static const enum wire_type types[] = {
		WIRE_CONTRIB, WIRE_HAVE, WIRE_DONATE, WIRE_GOT, WIRE_BAD_CRC};
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	for (unsigned k = 0; k < 5; k++) {
		struct wire_msg m = types[k] == WIRE_CONTRIB  ? contrib_msg(w, 0, 1, 0)
				    : types[k] == WIRE_DONATE ? donate_msg(w, 0, 1)
							      : key_msg(w, 0, types[k], 1);

		m.pgen--;
		say(w, 0, &m);
		expect_nothing(w, 0);
		assert_int_equal(stats(w).fenced_old, k + 1);
	}
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void message_of_a_newer_pgen_or_unknown_partition_is_told_to_come_again(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);
	const struct wire_msg *a;

	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		m = k == 0 ? contrib_msg(w, 0, 1, 0) : key_msg(w, 0, WIRE_HAVE, 1);
		if (k < 2)
			m.pgen++;
		if (k == 2)
			m.part = 99;
		if (k == 3)
			m.job = 99;
		say(w, 0, &m);
		a = fake_take(w->m[0].conn);
		assert_non_null(a);
		assert_int_equal(a->type, WIRE_AGAIN);
		assert_int_equal(a->pgen, m.pgen);
		assert_int_equal(a->job, m.job);
		assert_int_equal(a->part, m.part);
		assert_int_equal(a->round, 1);
	}
	m = key_msg(w, 0, WIRE_GOT, 1);
	m.pgen++;
	say(w, 0, &m);
	expect_nothing(w, 0);
	assert_int_equal(stats(w).fenced_new, 5);
	world_free(w);
}

static void contribution_states_that_the_previous_result_arrived(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	contribute_all(w, 1);
	assert_int_equal(w->core->jobs.tqh_first->tensors[0].parts[0]->slots[1].n_offered, 2);
	say_contrib(w, 0, 2);
	assert_int_equal(w->core->jobs.tqh_first->tensors[0].parts[0]->slots[1].n_offered, 1);
	say_contrib(w, 1, 2);
	assert_int_equal(w->core->jobs.tqh_first->tensors[0].parts[0]->slots[1].n_offered, 0);
	world_free(w);
}

static void sum_reuses_the_memory_of_a_result_that_all_members_have(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg first;

	(void)state;
	contribute_all(w, 1);
	first = expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	for (uint64_t r = 2; r <= 6; r++) {
		contribute_all(w, r);
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = expect_sum(w, i, r);

			assert_int_equal(m.segment, first.segment);
			assert_int_equal(m.offset, first.offset);
		}
	}
	world_free(w);
}

/* In one pass, the core can add at most REDUCE_MAX_SRC contributions. The job has more members. */
static void sum_of_many_passes_stays_where_it_began(void **state)
{
	struct srv_world *w = world(.n_members = MEMBERS_MAX, .n_elems = LARGE);

	(void)state;
	assert_true(MEMBERS_MAX > REDUCE_MAX_SRC);
	for (uint64_t r = 1; r <= 4; r++) {
		contribute_all(w, r);
		for (unsigned i = 0; i < MEMBERS_MAX; i++)
			expect_sum(w, i, r);
	}
	world_free(w);
}

static void sum_is_made_while_the_memory_of_a_result_is_retired(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	for (uint64_t r = 1; r <= 6; r++) {
		if (r == 3)
			/* a new pgen, while the members can still read the result of round 2 */
			tell_plan(w, 1, SERVER, 6);
		contribute_all(w, r);
		for (unsigned i = 0; i < 2; i++)
			expect_sum(w, i, r);
	}
	world_free(w);
}

static void round_ahead_of_the_others_closes_the_peer(void **state)
{
	static const struct {
		uint64_t before, jump;
		enum wire_type type;
	} cases[] = {{0, 3, WIRE_CONTRIB}, {0, 3, WIRE_HAVE}, {1, 4, WIRE_CONTRIB},
		{1, 5, WIRE_HAVE}, {2, 5, WIRE_CONTRIB}, {2, 6, WIRE_HAVE}};

	(void)state;
	for (unsigned k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);

		for (uint64_t r = 1; r <= cases[k].before; r++)
			contribute_all(w, r);
		say_contrib(w, 1, cases[k].before + 1); /* member 1 starts the next round */
		if (cases[k].type == WIRE_CONTRIB)
			say_contrib(w, 0, cases[k].jump);
		else
			say_key(w, 0, WIRE_HAVE, cases[k].jump);
		expect_closed(w, 0);
		world_free(w);
	}
}

static void have_for_a_sum_in_progress_closes_the_peer(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

		say_contrib(w, 0, 1);
		if (k < 2)
			say_contrib(w, 1, 1); /* the partition enters the state SUMMING */
		else
			/* the partition enters the state DONATING */
			say_key(w, 1, WIRE_HAVE, 1);
		if (k % 2)
			say_contrib(w, 0, 2);
		else
			say_key(w, 0, WIRE_HAVE, 1);
		expect_closed(w, 0);
		world_free(w);
	}
}

static void slot_is_empty_again_for_a_new_pgen(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	say_contrib(w, 1, 1);
	work(w);
	expect_nothing(w, 1);
	say_contrib(w, 0, 1);
	work(w);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void repeated_plan_changes_nothing(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	tell_job(w);
	tell_plan(w, 1, SERVER, 5);
	tell_plan(w, 1, SERVER, 4); /* an older pgen is never applied */
	w->pgen = 5;
	say_contrib(w, 1, 1);
	work(w);
	expect_sum(w, 0, 1);
	assert_int_equal(stats(w).parts, 1);
	world_free(w);
}

static void partition_moves_away_and_back(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	tell_plan(w, 1, SERVER + 1, 6);
	assert_int_equal(stats(w).parts, 0);
	end_read(w, 0, 0, 0); /* the end of a read of the old pgen only frees the read's memory */
	assert_int_equal(stats(w).staging_used, 0);
	say_contrib(w, 0, 1);
	expect_msg(w, 0, WIRE_AGAIN, 1);
	tell_plan(w, 1, SERVER, 7);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void another_instance_of_this_server_is_another_server(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct ctl_run run = {.n = 1, .server = SERVER, .instance = INSTANCE + 1, .pgen = 9};
	struct ctl_plan plan = {.job = JOB, .runs = &run, .n_runs = 1};

	(void)state;
	srv_core_apply_plan(w->core, &plan);
	assert_int_equal(stats(w).parts, 0);
	world_free(w);
}

static void plan_that_does_not_fit_fails_the_job(void **state)
{
	static const struct ctl_run bad[] = {
		{.tensor = 0, .first = 0, .n = 2, .server = SERVER, .pgen = 9},
		{.tensor = 0, .first = 1, .n = 1, .server = SERVER, .pgen = 9},
		{.tensor = 0, .first = UINT32_MAX, .n = 1, .server = SERVER, .pgen = 9},
		/* the table of tensors has 64 entries */
		{.tensor = 64, .first = 0, .n = 1, .server = SERVER, .pgen = 9},
		{.tensor = 4096, .first = 0, .n = 1, .server = SERVER, .pgen = 9},
	};

	(void)state;
	for (unsigned k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
		struct ctl_run run = bad[k];
		struct ctl_plan plan = {.job = JOB, .runs = &run, .n_runs = 1};

		srv_core_apply_plan(w->core, &plan);
		assert_int_equal(w->fail_code, BPS_EPROTO);
		world_free(w);
	}
}

static void tensor_that_cannot_exist_fails_the_job(void **state)
{
	static const struct ctl_tensor bad[] = {
		{1, "u", {.dtype = UINT8_MAX, .n_values = 4}, 4},
		{1, "u", {.dtype = DTYPE_F32, .n_values = 0}, 4},
		{1, "u", {.dtype = DTYPE_F32, .n_values = 4}, 0},
		{1, "u", {.dtype = DTYPE_F32, .n_values = 4}, UINT32_MAX / 4 + 1},
		{1, "u", {.dtype = DTYPE_F32, .n_values = UINT64_C(1) << 32}, 1},
		{1, "u", {.dtype = DTYPE_F32, .n_values = 4, .mode = 2}, 4},
		{1, "u", {.dtype = DTYPE_F32, .n_values = 4, .owner = 1}, 4},
		{1, "u", {.dtype = DTYPE_F32, .n_values = 4, .stale = 1}, 4},
		{CTL_TENSORS_MAX, "u", {.dtype = DTYPE_F32, .n_values = 4}, 4},
	};

	(void)state;
	for (unsigned k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
		struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
		struct ctl_tensor t = bad[k];
		struct ctl_plan plan = {.job = JOB, .tensors = &t, .n_tensors = 1};

		srv_core_apply_plan(w->core, &plan);
		assert_int_equal(w->fail_code, BPS_EPROTO);
		world_free(w);
	}
}

static void job_that_needs_too_much_memory_fails_with_quota(void **state)
{
	struct srv_world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .sums = 2 * SEGMENT);

	(void)state;
	assert_int_equal(w->n_fails, 1);
	assert_int_equal(w->fail_code, BPS_EQUOTA);
	assert_non_null(strstr(w->fail_text, "memory for sums"));
	world_free(w);
}

static void failure_is_reported_again_with_the_job(void **state)
{
	struct srv_world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .sums = 2 * SEGMENT);

	(void)state;
	w->fail_code = 0;
	w->fail_text[0] = '\0';
	srv_core_resync_begin(w->core);
	tell_job(w);
	assert_int_equal(w->n_fails, 2);
	assert_int_equal(w->fail_code, BPS_EQUOTA);
	assert_non_null(strstr(w->fail_text, "memory for sums"));
	world_free(w);
}

/* A scheduler that lost its state assigns the id of an old job again. Nothing of the old job may be
 * left, even if the new one has the same size. */
static void job_with_a_reused_number_starts_from_scratch(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m;
	int32_t sum[SMALL];

	(void)state;
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	srv_core_resync_begin(w->core);
	w->view = 9;
	w->dtype = DTYPE_I32;
	w->m[0].workers = 5;
	tell_job(w);
	tell_plan(w, 1, SERVER, 10);
	srv_core_resync_end(w->core);
	for (unsigned i = 0; i < 2; i++) {
		memcpy(w->m[i].contrib[0], (int32_t[SMALL]){1, 2, 3 + (int32_t)i, INT32_MAX},
			sizeof(sum));
		m = contrib_msg(w, i, 1, 0);
		say(w, i, &m);
	}
	work(w);
	for (unsigned i = 0; i < 2; i++) {
		m = expect_msg(w, i, WIRE_RESULT, 1);
		memcpy(sum, bytes_at(w, &m), sizeof(sum));
		assert_int_equal(m.result.workers, 7);
		assert_int_equal(sum[0], 2);
		assert_int_equal(sum[2], 7);
		assert_int_equal(sum[3], -2);
	}
	world_free(w);
}

static void job_end_waits_for_running_reads_only_with_their_memory(void **state)
{
	struct srv_world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	srv_core_job_end(w->core, JOB);
	check(w);
	assert_true(stats(w).staging_used > 0);
	end_read(w, 0, 0, 0);
	assert_int_equal(stats(w).staging_used, 0);
	world_free(w);
}

/* ---- rounds that do not wait for all members ---- */

/* Let all members send HAVE for the result of round r. If r is 0, the messages report that the
 * members have no result. */
static void say_have_all(struct srv_world *w, uint64_t r)
{
	for (unsigned i = 0; i < w->n_members; i++) {
		say_key(w, i, WIRE_HAVE, r);
		expect_msg(w, i, WIRE_HAVE_OK, r);
	}
}

/* Expect that member i gets the sum of the inputs of members 0 and 1 in round r. */
static void expect_sum_without_third(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);
	const float *v = bytes_at(w, &m);

	for (size_t e = 0; e < w->n_elems; e++)
		assert_true(v[e] == input(0, r, e) + input(1, r, e));
	assert_int_equal(m.result.workers, w->m[0].workers + w->m[1].workers);
	assert_int_equal(m.result.contributors.w[0], 3);
}

static void round_completes_without_a_late_member_and_answers_it_later(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

	(void)state;
	say_have_all(w, 0);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	tick(w, GRACE_MS - 1);
	settle(w);
	expect_nothing(w, 0);
	tick(w, 1);
	settle(w);
	expect_sum_without_third(w, 0, 1);
	expect_sum_without_third(w, 1, 1);
	assert_int_equal(stats(w).late, 1);
	say_contrib(w, 2, 1);
	settle(w);
	expect_sum_without_third(w, 2, 1);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void sum_does_not_overwrite_results_that_a_late_member_lacks(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = LARGE, .backup = 1);

	(void)state;
	say_have_all(w, 0);
	for (uint64_t r = 1; r <= 2; r++) {
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, r, 0);

			/* The sums do not contain the input of the third member. So the CRC that
			 * contrib_msg has computed is wrong. */
			m.contrib.crc_prev = 0;
			say(w, i, &m);
		}
		settle(w);
		tick(w, GRACE_MS);
		settle(w);
		for (unsigned i = 0; i < 2; i++)
			expect_sum_without_third(w, i, r);
	}
	say_contrib(w, 2, 1);
	settle(w);
	expect_sum_without_third(w, 2, 1);
	world_free(w);
}

static void collective_waits_for_all_members_even_with_backup_machines(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1,
		.tensor = CTL_OWN_TENSORS "bytes");

	(void)state;
	say_have_all(w, 0);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	tick(w, 10 * GRACE_MS);
	settle(w);
	expect_nothing(w, 0);
	say_contrib(w, 2, 1);
	settle(w);
	for (unsigned i = 0; i < 3; i++)
		expect_sum(w, i, 1);
	assert_int_equal(stats(w).late, 0);
	world_free(w);
}

static void contribution_within_the_grace_is_part_of_the_sum(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = LARGE, .backup = 1);

	(void)state;
	say_have_all(w, 0);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	end_reads(w);
	/* the read of the third contribution takes longer than the grace period */
	say_contrib(w, 2, 1);
	tick(w, 2 * GRACE_MS);
	work(w);
	expect_nothing(w, 0);
	settle(w);
	for (unsigned i = 0; i < 3; i++)
		expect_sum(w, i, 1);
	assert_int_equal(stats(w).late, 0);
	world_free(w);
}

static void round_waits_for_members_silent_under_this_pgen(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	tick(w, 10 * GRACE_MS);
	settle(w);
	/* the round waits for the third member, because this member may already have the sum */
	expect_nothing(w, 0);
	say_key(w, 2, WIRE_HAVE, 0);
	expect_msg(w, 2, WIRE_HAVE_OK, 0);
	tick(w, GRACE_MS);
	settle(w);
	expect_sum_without_third(w, 0, 1);
	world_free(w);
}

static void no_member_is_more_than_two_rounds_ahead_of_a_late_one(void **state)
{
	struct srv_world *w =
		world(.n_members = 3, .n_elems = SMALL, .backup = 1, .dtype = DTYPE_I32 + 1);

	(void)state;
	say_have_all(w, 0);
	for (uint64_t r = 1; r <= 2; r++) {
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, r, 0);

			m.contrib.crc_prev =
				r > 1 ? crc32c(0, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16) : 0;
			say(w, i, &m);
		}
		tick(w, GRACE_MS);
		settle(w);
		expect_msg(w, 0, WIRE_RESULT, r);
		expect_msg(w, 1, WIRE_RESULT, r);
	}
	say_contrib(w, 0, 3);
	/* round 3 must wait, because otherwise the third member could not get the sum of round 1 */
	expect_msg(w, 0, WIRE_AGAIN, 3);
	say_contrib(w, 2, 1);
	expect_msg(w, 2, WIRE_RESULT, 1);
	say_key(w, 2, WIRE_HAVE, 1);
	expect_msg(w, 2, WIRE_HAVE_OK, 1);
	say_contrib(w, 0, 3);
	expect_nothing(w, 0);
	world_free(w);
}

/* Cases 0 and 1: the sum of round 1 is in progress, so no member has it. Cases 2 and 3: round 1 is
 * the server's last round. Round 3 may follow on its slot, but not round 5. */
static void round_out_of_order_closes_the_peer_even_with_backup_machines(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

		say_contrib(w, 0, 1);
		for (unsigned i = 0; i < 3; i++) {
			if (k < 2)
				say_contrib(w, i, 1);
			else
				say_key(w, i, WIRE_HAVE, k == 2 ? 3 : 1);
		}
		if (k == 1)
			say_key(w, 0, WIRE_HAVE, 1);
		else
			say_contrib(w, 0, k == 0 ? 2 : k == 2 ? 5 : 3);
		if (k == 3)
			assert_int_equal(stats(w).protocol_errors, 0);
		else
			expect_closed(w, 0);
		world_free(w);
	}
}

static void sum_that_a_member_has_is_donated_even_with_backup_machines(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

	(void)state;
	say_have_all(w, 1);
	say_key(w, 2, WIRE_HAVE, 3);
	expect_msg(w, 2, WIRE_HAVE_OK, 3);
	say_contrib(w, 0, 3);
	expect_msg(w, 2, WIRE_DONATE_REQ, 3);
	/* a contribution to a round before that is an old copy */
	say_contrib(w, 1, 1);
	expect_nothing(w, 1);
	assert_int_equal(stats(w).duplicates, 1);
	assert_int_equal(stats(w).protocol_errors, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_round_completes_when_all_have_contributed),
		cmocka_unit_test(large_round_is_read_and_its_sum_offered),
		cmocka_unit_test(bytes_and_times_of_rounds_are_counted),
		cmocka_unit_test(duplicate_before_the_sum_is_ignored_and_after_it_answered_again),
		cmocka_unit_test(second_offer_while_the_first_is_read_is_ignored),
		cmocka_unit_test(message_of_an_older_pgen_is_dropped_and_counted),
		cmocka_unit_test(
			message_of_a_newer_pgen_or_unknown_partition_is_told_to_come_again),
		cmocka_unit_test(contribution_states_that_the_previous_result_arrived),
		cmocka_unit_test(sum_reuses_the_memory_of_a_result_that_all_members_have),
		cmocka_unit_test(sum_of_many_passes_stays_where_it_began),
		cmocka_unit_test(sum_is_made_while_the_memory_of_a_result_is_retired),
		cmocka_unit_test(round_ahead_of_the_others_closes_the_peer),
		cmocka_unit_test(have_for_a_sum_in_progress_closes_the_peer),
		cmocka_unit_test(slot_is_empty_again_for_a_new_pgen),
		cmocka_unit_test(repeated_plan_changes_nothing),
		cmocka_unit_test(partition_moves_away_and_back),
		cmocka_unit_test(another_instance_of_this_server_is_another_server),
		cmocka_unit_test(plan_that_does_not_fit_fails_the_job),
		cmocka_unit_test(tensor_that_cannot_exist_fails_the_job),
		cmocka_unit_test(job_that_needs_too_much_memory_fails_with_quota),
		cmocka_unit_test(failure_is_reported_again_with_the_job),
		cmocka_unit_test(job_with_a_reused_number_starts_from_scratch),
		cmocka_unit_test(job_end_waits_for_running_reads_only_with_their_memory),
		cmocka_unit_test(round_completes_without_a_late_member_and_answers_it_later),
		cmocka_unit_test(sum_does_not_overwrite_results_that_a_late_member_lacks),
		cmocka_unit_test(collective_waits_for_all_members_even_with_backup_machines),
		cmocka_unit_test(contribution_within_the_grace_is_part_of_the_sum),
		cmocka_unit_test(round_waits_for_members_silent_under_this_pgen),
		cmocka_unit_test(no_member_is_more_than_two_rounds_ahead_of_a_late_one),
		cmocka_unit_test(round_out_of_order_closes_the_peer_even_with_backup_machines),
		cmocka_unit_test(sum_that_a_member_has_is_donated_even_with_backup_machines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
