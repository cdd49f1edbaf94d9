/* Results that the agent's core accepts, and what it does about damaged bytes and results without a
 * CRC. */
#include "tests/unit/agt_world.h"

/* ---- servers on the same host ---- */

static void round_within_one_host_takes_no_crc(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct agt_world *w = world(.n_elems = k ? LARGE : SMALL);

		w->conn[0]->base.is_same_host = true;
		for (uint64_t r = 1; r <= 3; r++) {
			struct wire_msg m;

			submit_all(w, r);
			m = expect_msg(w, 0, WIRE_CONTRIB, r);
			assert_int_equal(m.crc, 0);
			assert_int_equal(m.contrib.crc_prev, 0);
			m = result_msg(w, r, 0);
			m.crc = 0;
			say(w, 0, &m);
			if (k)
				end_read(w, 0, 0);
			expect_delivered(w, r, (unsigned)r);
		}
		assert_int_equal(stats(w).crc_errors, 0);
		world_free(w);
	}
}

static void large_reads_bypass_the_caches(void **state)
{
	static const struct {
		uint64_t job_bytes;
		uint32_t n_elems, n_in;
		bool want;
	} cases[] = {{AGT_MUCH_BYTES, LARGE, 0, true}, {AGT_MUCH_BYTES - 1, LARGE, 0, false},
		{AGT_MUCH_BYTES, LARGE - 1, 0, false}, {AGT_MUCH_BYTES, LARGE, 1, false}};

	(void)state;
	assert_int_equal(LARGE * sizeof(float), AGT_MUCH_PART_BYTES);
	for (unsigned k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		struct agt_world *w = world(.n_elems = cases[k].n_elems, .n_in = cases[k].n_in);

		assert_int_equal(w->job->tensor_bytes, cases[k].n_elems * sizeof(float));
		w->job->tensor_bytes = cases[k].job_bytes;
		submit_all(w, 1);
		if (cases[k].n_in)
			assert_int_equal(agt_part_staged(w->t[0], 0, 1), 0);
		say_result(w, 0, 1);
		assert_int_equal(fake_read_at(w->conn[0], 0)->is_past_caches, cases[k].want);
		end_read(w, 0, 0);
		world_free(w);
	}
}

static void job_that_may_shrink_takes_a_crc_within_one_host_too(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .flags = JOB_SHRINK);
	struct wire_msg m;

	(void)state;
	w->conn[0]->base.is_same_host = true;
	submit_all(w, 1);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.crc, crc32c(0, w->a->in[0], m.len));
	world_free(w);
}

static void local_sum_is_computed_once_even_when_the_network_takes_over(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_workers = 2);
	const float *staged;
	struct wire_msg m;

	(void)state;
	w->conn[0]->base.is_same_host = true;
	submit_all(w, 1);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	staged = (const float *)w->a->staging;
	assert_float_equal(staged[0], input(0, 1, 0) + input(1, 1, 0), 0);
	/* The server may still read the local sum. If the agent computed the sum a second time from
	 * the changed inputs, the server would read bytes that differ from the first sum. */
	memset(w->a->in[0], 0, m.len);
	cut(w, 0);
	fake_up(w->conn[0]);
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_float_equal(staged[0], input(0, 1, 0) + input(1, 1, 0), 0);
	assert_int_equal(m.crc, crc32c(0, staged, m.len));
	world_free(w);
}

static void sum_that_came_without_crc_is_donated_with_one(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	w->conn[0]->base.is_same_host = true;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m = result_msg(w, 1, 0);
	m.crc = 0;
	say(w, 0, &m);
	end_read(w, 0, 0);
	say_key(w, 0, WIRE_DONATE_REQ, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_DONATE, 1).crc, result_msg(w, 1, 0).crc);
	world_free(w);
}

/* ---- A4, B4: which results count ---- */

static void result_of_another_round_or_pgen_is_declined(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	one_round(w, 0, 1);
	submit_all(w, 2);
	expect_msg(w, 0, WIRE_CONTRIB, 2);
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_GOT, 1);
	m = result_msg(w, 2, 0);
	m.pgen--;
	say(w, 0, &m);
	assert_int_equal(expect_msg(w, 0, WIRE_GOT, 2).pgen, m.pgen);
	assert_int_equal(w->conn[0]->n_reads, 0);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(stats(w).stale, 2);
	say_result(w, 0, 2);
	end_read(w, 0, 0);
	expect_delivered(w, 2, 2);
	world_free(w);
}

static void result_is_delivered_once(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	say_result(w, 0, 1);
	say_result(w, 0, 1); /* the repeated result causes no second read and no GOT */
	assert_int_equal(w->conn[0]->n_reads, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	expect_nothing(w, 0);
	end_read(w, 0, 0);
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_GOT, 1);
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void result_read_while_the_pgen_changes_is_discarded(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	tell_runs(w, 0, 6);
	work(w);
	expect_nothing(w, 0); /* GOT is sent only when the read has ended */
	end_read(w, 0, 0);
	assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).pgen, 6);
	assert_int_equal(w->n_done, 0);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void damaged_result_is_requested_again_and_then_fails_the_job(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct agt_world *w = world(.n_elems = k ? LARGE : SMALL);
		struct wire_msg m;

		submit_all(w, 1);
		for (unsigned n = 0; n < 5; n++) {
			assert_int_equal(w->n_fails, 0);
			m = result_msg(w, 1, 0);
			m.crc ^= 1;
			say(w, 0, &m);
			if (k)
				end_read(w, 0, 0);
			tick(w, 20 * RETRY_MS);
			assert_true(n == 4 || w->conn[0]->n_sent >= n + 2);
		}
		assert_int_equal(w->n_fails, 1);
		assert_int_equal(w->fail_code, BPS_EPROTO);
		assert_int_equal(w->n_done, 1);
		assert_int_equal(w->done_status, BPS_EPROTO);
		world_free(w);
	}
}

/* The server repeats the offer when it gets the contribution again. The first repeats come soon. If
 * their offers are invalid too, further repeats would only load the network. */
static void offer_in_an_unknown_segment_is_requested_again(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg m = result_msg(w, 1, 0);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m.segment = 9;
	for (unsigned i = 0; i < 4; i++) {
		say(w, 0, &m);
		assert_int_equal(w->conn[0]->n_reads, 0);
		tick(w, AGAIN_MS << i);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
	}
	for (unsigned i = 0; i < 2; i++) {
		say(w, 0, &m);
		tick(w, RETRY_MS - 1);
		expect_nothing(w, 0);
		tick(w, 1);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
	}
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void agains_do_not_delay_the_repeat_of_an_offer(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg m = result_msg(w, 1, 0);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	for (unsigned i = 0; i < 5; i++) {
		say_key(w, 0, WIRE_AGAIN, 1);
		tick(w, AGAIN_MS << (i < 4 ? i : 4));
		expect_msg(w, 0, WIRE_CONTRIB, 1);
	}
	m.segment = 9; /* unknown, so that the offer cannot be read */
	say(w, 0, &m);
	tick(w, AGAIN_MS);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void result_that_does_not_fit_closes_the_connection(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 6; k++) {
		struct agt_world *w = world(.n_elems = SMALL);
		struct fake_conn *c = w->conn[0];
		struct wire_msg m = result_msg(w, 1, 0);

		submit_all(w, 1);
		if (k == 0)
			m.len--;
		if (k == 1)
			m.result.n_members++;
		if (k == 2)
			m.result.workers = 0;
		if (k == 3)
			m.result.workers = 4;
		if (k == 4)
			m.result.last++; /* a member that the job does not have */
		if (k == 5)
			m = key_msg(w, WIRE_HAVE, 1);
		fake_deliver(c, &m);
		check(w);
		assert_true(c->is_closed);
		assert_int_equal(w->n_done, 0);
		tick(w, 0);
		fake_up(w->conn[0]);
		work(w);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		world_free(w);
	}
}

static void message_for_another_job_tensor_partition_or_member_is_dropped(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	for (unsigned k = 0; k < 4; k++) {
		struct wire_msg m = result_msg(w, 1, 0);

		m.job += k == 0;
		m.tensor += k == 1;
		m.part += k == 2;
		m.member = (uint16_t)(m.member + (k == 3));
		say(w, 0, &m);
		assert_int_equal(stats(w).stale, k + 1);
	}
	assert_int_equal(w->n_done, 0);
	world_free(w);
}

/* ---- BAD_CRC ---- */

static void say_bad_crc(struct agt_world *w, uint32_t crc)
{
	struct wire_msg m = key_msg(w, WIRE_BAD_CRC, 1);

	m.crc = crc;
	say(w, 0, &m);
}

static void input_that_changes_in_flight_ends_the_job(void **state)
{
	(void)state;
	for (unsigned n_workers = 1; n_workers <= 2; n_workers++) {
		struct agt_world *w = world(.n_elems = LARGE, .n_workers = n_workers);
		uint32_t crc, was;

		submit_all(w, 1);
		was = expect_msg(w, 0, WIRE_CONTRIB, 1).crc;
		((float *)w->a->in[0])[3] = 9999;
		say_bad_crc(w, was);
		crc = expect_msg(w, 0, WIRE_CONTRIB, 1).crc;
		assert_int_not_equal(crc, was);
		assert_int_equal(w->n_fails, 0);
		say_bad_crc(w, was); /* no effect: this is the CRC of the first offer */
		expect_nothing(w, 0);
		((float *)w->a->in[0])[3] = 8888;
		say_bad_crc(w, crc);
		assert_int_equal(w->fail_code, BPS_EINPUT_CHANGED);
		assert_non_null(strstr(w->fail_text, "rank 20"));
		assert_int_equal(w->done_status, BPS_EINPUT_CHANGED);
		world_free(w);
	}
}

static void push_damaged_on_its_way_is_repeated_a_few_times(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	uint32_t crc = 0;

	(void)state;
	submit_all(w, 1);
	for (unsigned n = 0; n < 5; n++) {
		assert_int_equal(w->n_fails, 0);
		crc = expect_msg(w, 0, WIRE_CONTRIB, 1).crc;
		say_bad_crc(w, crc);
	}
	assert_int_equal(w->fail_code, BPS_EPROTO);
	world_free(w);
}

/* The agent has found that its own input is undamaged, so another member caused the bad sum. A new
 * connection would bring the same sum again, and would break the rounds of other jobs. */
static void impossible_sum_ends_the_job_when_it_is_repeated(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m = result_msg(w, 1, 0);
	m.result.workers = 99;
	say(w, 0, &m);
	assert_int_equal(w->n_fails, 0);
	assert_true(w->conn[0]->is_closed);
	fake_down(w->conn[0], "closed");
	tick(w, 5000);
	fake_up(w->conn[0]);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say(w, 0, &m);
	assert_int_equal(w->n_fails, 1);
	assert_int_equal(w->fail_code, BPS_EPROTO);
	assert_non_null(strstr(w->fail_text, "99 workers"));
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_within_one_host_takes_no_crc),
		cmocka_unit_test(large_reads_bypass_the_caches),
		cmocka_unit_test(job_that_may_shrink_takes_a_crc_within_one_host_too),
		cmocka_unit_test(local_sum_is_computed_once_even_when_the_network_takes_over),
		cmocka_unit_test(sum_that_came_without_crc_is_donated_with_one),
		cmocka_unit_test(result_of_another_round_or_pgen_is_declined),
		cmocka_unit_test(result_is_delivered_once),
		cmocka_unit_test(result_read_while_the_pgen_changes_is_discarded),
		cmocka_unit_test(damaged_result_is_requested_again_and_then_fails_the_job),
		cmocka_unit_test(offer_in_an_unknown_segment_is_requested_again),
		cmocka_unit_test(agains_do_not_delay_the_repeat_of_an_offer),
		cmocka_unit_test(result_that_does_not_fit_closes_the_connection),
		cmocka_unit_test(message_for_another_job_tensor_partition_or_member_is_dropped),
		cmocka_unit_test(impossible_sum_ends_the_job_when_it_is_repeated),
		cmocka_unit_test(input_that_changes_in_flight_ends_the_job),
		cmocka_unit_test(push_damaged_on_its_way_is_repeated_a_few_times),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
