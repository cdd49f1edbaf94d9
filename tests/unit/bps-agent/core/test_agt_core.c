/* The agent's core: rounds from the submission to the sum, descriptions of waits, rounds that end
 * with an error, and random messages from servers. */
#include "tests/unit/agt_world.h"
#include "tests/unit/half.h"

/* ---- rounds ---- */

static void small_round_goes_and_comes_inline(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	for (uint64_t r = 1; r <= 4; r++) {
		struct wire_msg m;

		submit_all(w, r);
		m = expect_msg(w, 0, WIRE_CONTRIB, r);
		assert_true(m.flags & WIRE_INLINE);
		assert_memory_equal(m.payload, w->a->in[0], m.len);
		assert_int_equal(m.crc, crc32c(0, w->a->in[0], m.len));
		assert_int_equal(m.contrib.workers, 1);
		say_result(w, 0, r);
		expect_delivered(w, r, (unsigned)r);
		expect_nothing(w, 0);
	}
	assert_int_equal(agt_tensor_round(w->t[0]), 4);
	world_free(w);
}

static void large_round_is_offered_and_its_sum_read(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);

	(void)state;
	for (uint64_t r = 1; r <= 4; r++) {
		struct wire_msg m;

		submit_all(w, r);
		m = expect_msg(w, 0, WIRE_CONTRIB, r);
		assert_false(m.flags & WIRE_INLINE);
		assert_memory_equal(
			fake_own(&w->x, m.segment, m.offset, m.len), w->a->in[0], m.len);
		say_result(w, 0, r);
		assert_int_equal(w->n_done, r - 1);
		end_read(w, 0, 0);
		expect_delivered(w, r, (unsigned)r);
		expect_nothing(w, 0);
	}
	world_free(w);
}

static void bytes_and_times_of_rounds_are_counted(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);
	struct agt_stats s;

	(void)state;
	tick(w, 1); /* the time 0 would mean that no contribution was sent */
	for (uint64_t r = 1; r <= 2; r++) {
		submit_all(w, r);
		tick(w, 30);
		assert_int_equal(stats(w).pulled_bytes, (r - 1) * bytes_of(w));
		say_result(w, 0, r);
		tick(w, 5);
		end_read(w, 0, 0);
	}
	s = stats(w);
	assert_int_equal(s.rounds, 2);
	assert_int_equal(s.pushed_bytes, 2 * bytes_of(w));
	assert_int_equal(s.offered_bytes, 2 * bytes_of(w));
	assert_int_equal(s.pulled_bytes, 2 * bytes_of(w));
	assert_int_equal(histogram_count(&s.push), 2);
	assert_int_equal(s.push.sum_ns, 2 * 30 * MS);
	assert_int_equal(histogram_count(&s.pull), 2);
	assert_int_equal(s.pull.sum_ns, 2 * 5 * MS);
	world_free(w);
}

static void crc_of_the_delivered_sum_is_echoed(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);
	uint32_t crc;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).contrib.crc_prev, 0);
	crc = result_msg(w, 1, 0).crc;
	say_result(w, 0, 1);
	submit_all(w, 2);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 2).contrib.crc_prev, crc);
	world_free(w);
}

static void round_is_done_when_all_its_partitions_are(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_parts = 3);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	for (unsigned p = 3; p-- > 0;) {
		assert_int_equal(w->n_done, 0);
		m = result_msg(w, 1, p);
		say(w, 0, &m);
	}
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void next_round_may_be_submitted_inside_done(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	w->submits_again = true;
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 2);
	world_free(w);
}

static void workers_of_the_machine_are_summed_once_before_the_push(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_workers = 11);
	struct wire_msg m;
	const float *v;

	(void)state;
	for (unsigned i = 0; i < 10; i++)
		submit(w, 0, i, 1, 0);
	work(w);
	expect_nothing(w, 0);
	submit(w, 0, 10, 1, 0);
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	v = (const float *)w->a->staging;
	assert_int_equal(m.contrib.workers, 11);
	assert_int_equal(m.crc, crc32c(0, v, m.len));
	for (size_t e = 0; e < LARGE; e++) {
		float want = 0;

		for (unsigned i = 0; i < 11; i++)
			want += input(i, 1, e);
		assert_true(v[e] == want);
	}
	world_free(w);
}

static void half_precision_of_many_workers_is_rounded_once(void **state)
{
	struct agt_world *w = world(.n_elems = 1, .n_workers = 12, .dtype = 1 + DTYPE_F16);
	const uint16_t one = half_round(1);
	/* a value that changes nothing when added to 1 in half precision */
	const uint16_t tiny = half_round(0.0004);
	struct wire_msg m;
	uint16_t got;

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		memcpy(w->a->in[i], i ? &tiny : &one, 2);
		assert_int_equal(agt_tensor_submit(w->t[0], i, 1, OP_SUM, 0, false), 0);
	}
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	memcpy(&got, m.payload, 2);
	assert_int_equal(got, half_round(1 + 11 * half_value(tiny)));
	assert_int_not_equal(got, one);
	world_free(w);
}

static void job_of_one_machine_needs_no_server(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 4, .n_members = 1, .n_workers = 2);
	const float *out = (const float *)w->a->out[1];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		float *v = (float *)w->a->in[i];

		for (size_t e = 0; e < 4 * LARGE; e++)
			v[e] = input(i, 1, e);
		assert_int_equal(agt_tensor_submit(w->t[0], i, 1, OP_AVG, 0, false), 0);
	}
	work(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_workers, 2);
	assert_int_equal(w->n_connects, 0);
	for (size_t e = 0; e < 4 * LARGE; e++)
		assert_true(out[e] == (input(0, 1, e) + input(1, 1, e)) / 2);
	world_free(w);
}

static void put_half(unsigned char *p, double v)
{
	uint16_t h = half_round(v);

	memcpy(p, &h, 2);
}

static double get_half(const unsigned char *p)
{
	uint16_t h;

	memcpy(&h, p, 2);
	return half_value(h);
}

static void average_of_f16_sends_the_mean_of_the_machine(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 12, .dtype = 1 + DTYPE_F16);
	struct wire_msg m;

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		put_half(w->a->in[i], 60000);
		put_half(w->a->in[i] + 2, i % 2 ? 65504 : -65504);
		assert_int_equal(agt_tensor_submit(w->t[0], i, 1, OP_AVG, 0, false), 0);
	}
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.contrib.workers, 12);
	assert_true(get_half(m.payload) == 60000);
	assert_true(get_half((const unsigned char *)m.payload + 2) == 0);
	agt_job_fail(w->job, BPS_EPROTO);
	world_free(w);
}

/* Two inputs hold the means of three GPUs and of one GPU. */
static void average_of_f16_weights_groups_of_gpus(void **state)
{
	for (unsigned n_members = 1; n_members <= 3; n_members += 2) {
		struct agt_world *w = world(.n_elems = SMALL, .n_workers = 4, .n_in = 2,
			.n_members = n_members, .dtype = 1 + DTYPE_F16);
		double got;

		(void)state;
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(agt_tensor_submit(w->t[0], i, 1, OP_AVG, 0, false), 0);
		put_half(w->a->in[0], 60000);
		put_half(w->a->in[1], 40000);
		assert_int_equal(agt_part_staged(w->t[0], 0, 1), 0);
		work(w);
		got = get_half(
			n_members > 1 ? expect_msg(w, 0, WIRE_CONTRIB, 1).payload : w->a->out[1]);
		assert_true(got == half_value(half_round((3 * 60000 + 40000) / 4.0)));
		agt_job_fail(w->job, BPS_EPROTO);
		world_free(w);
	}
}

static void tensor_may_be_submitted_before_its_plan(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .is_unplanned = true);

	(void)state;
	submit_all(w, 1);
	tell_plan(w, 0);
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void plan_that_does_not_fit_is_refused(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .is_unplanned = true);
	struct ctl_tensor good = {.tensor = 10,
		.name = "t",
		.shape = shape_from_dtype_and_count(DTYPE_F32, SMALL),
		.part_elems = SMALL};
	struct ctl_tensor bad[4] = {good, good, good, good};

	(void)state;
	bad[0].shape.n_values++;
	bad[1].shape.dtype = DTYPE_F64;
	bad[2].part_elems = 0;
	bad[3].tensor = CTL_TENSORS_MAX;
	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(agt_tensor_plan(w->t[0], &bad[k]), BPS_EPROTO);
	assert_int_equal(agt_tensor_id(w->t[0]), CTL_NO_ID);
	assert_int_equal(agt_tensor_plan(w->t[0], &good), 0);
	/* a second plan with other values is ignored */
	assert_int_equal(agt_tensor_plan(w->t[0], &bad[0]), 0);
	world_free(w);
}

static void submissions_out_of_order_are_refused(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 2);

	(void)state;
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 2, OP_SUM, 0, false), BPS_EBUSY);
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 0, OP_SUM, 0, false), BPS_EBUSY);
	submit(w, 0, 0, 1, 0);
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 1, OP_SUM, 0, false), BPS_EBUSY);
	assert_int_equal(agt_tensor_submit(w->t[0], 0, 2, OP_SUM, 0, false), BPS_EBUSY);
	assert_int_equal(agt_tensor_submit(w->t[0], 1, 1, OP_MAX, 0, false), BPS_EMISMATCH);
	assert_int_equal(w->t[0]->submitted[0], 1);
	assert_int_equal(w->t[0]->submitted[1], 0);
	submit(w, 0, 1, 1, 0);
	assert_int_equal(agt_tensor_submit(w->t[0], 1, 2, OP_SUM, 0, false), BPS_EBUSY);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

/* ---- waits ---- */

static void expect_stall(
	struct agt_world *w, enum agt_stall_kind kind, uint32_t part, uint32_t n_open, uint64_t ms)
{
	struct agt_stall s;

	check(w);
	assert_true(agt_tensor_find_stall(w->t[0], &s));
	assert_int_equal(s.kind, kind);
	assert_int_equal(s.part, part);
	assert_int_equal(s.n_parts, w->n_parts);
	assert_int_equal(s.n_open, n_open);
	assert_int_equal(s.server, kind == AGT_STALL_NOWHERE || kind == AGT_STALL_DEVICE ? 0 : 1);
	assert_int_equal(s.ns, ms * MS);
}

static void expect_no_stall(struct agt_world *w)
{
	struct agt_stall s;

	assert_false(agt_tensor_find_stall(w->t[0], &s));
}

static void longest_wait_of_a_round_is_described(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2, .is_unplanned = true);
	struct wire_msg m;

	(void)state;
	tick(w, 1);
	submit_all(w, 1);
	expect_no_stall(w); /* the tensor has no partitions yet */
	tell_plan(w, 0);
	expect_stall(w, AGT_STALL_NOWHERE, 0, 2, 0);
	tell_runs(w, 1, 5);
	tick(w, 4);
	expect_stall(w, AGT_STALL_LINK, 0, 2, 4);
	w->conn[1]->credit = 0;
	fake_up(w->conn[1]);
	work(w);
	expect_stall(w, AGT_STALL_QUEUE, 0, 2, 0);
	w->conn[1]->credit = SIZE_MAX;
	fake_grant(w->conn[1], 0);
	work(w);
	tick(w, 3);
	expect_stall(w, AGT_STALL_SENT, 0, 2, 3);
	say_result(w, 1, 1);
	tick(w, 2);
	expect_stall(w, AGT_STALL_SENT, 1, 2, 5);
	end_read(w, 1, 0);
	expect_stall(w, AGT_STALL_SENT, 1, 1, 5);
	m = result_msg(w, 1, 1);
	say(w, 1, &m);
	tick(w, 1);
	expect_stall(w, AGT_STALL_READ, 1, 1, 1);
	end_read(w, 1, 0);
	expect_no_stall(w);
	submit_all(w, 2);
	cut(w, 1);
	tick(w, 6);
	expect_stall(w, AGT_STALL_LINK, 0, 2, 6);
	world_free(w);
}

static void wait_for_a_device_is_described_and_a_local_job_waits_for_no_server(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_in = 1);

	(void)state;
	submit_all(w, 1);
	expect_stall(w, AGT_STALL_DEVICE, 0, 1, 0);
	world_free(w);
	w = world(.n_elems = LARGE, .n_members = 1);
	submit(w, 0, 0, 1, 0);
	expect_no_stall(w);
	world_free(w);
}

/* ---- ends ---- */

static void failed_tensor_ends_its_round_once_and_alone(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_tensors = 2);

	(void)state;
	submit(w, 0, 0, 1, 0);
	submit(w, 1, 0, 1, 0);
	work(w);
	agt_tensor_fail(w->t[0], BPS_EMISMATCH);
	check(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_status, BPS_EMISMATCH);
	agt_tensor_fail(w->t[0], BPS_EQUOTA);
	assert_int_equal(w->n_done, 1);
	say_result(w, 0, 1); /* the result arrives after the tensor has failed */
	assert_int_equal(w->n_done, 1);
	submit(w, 0, 0, 2, 0);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done_status, BPS_EMISMATCH);
	assert_int_equal(w->n_fails, 0);
	{
		struct wire_msg m = result_msg(w, 1, 0);

		m.tensor = 11;
		say(w, 0, &m);
	}
	assert_int_equal(w->n_done, 3);
	assert_int_equal(w->done_status, 0);
	world_free(w);
}

static void failed_job_ends_every_waiting_round_once(void **state)
{
	static const char *const names[] = {"unsubmitted", "half", "running", "unplanned"};

	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct agt_world *w =
			world(.n_elems = LARGE, .n_workers = 2, .is_unplanned = k == 3);
		unsigned n = k != 0;

		if (k >= 1)
			submit(w, 0, 0, 1, 0);
		if (k >= 2)
			submit(w, 0, 1, 1, 0);
		work(w);
		agt_job_fail(w->job, BPS_EAGENT_LOST);
		check(w);
		agt_job_fail(w->job, BPS_EQUOTA);
		if (w->n_done != n)
			fail_msg("%s: %u done", names[k], w->n_done);
		assert_int_equal(w->done_status, n ? BPS_EAGENT_LOST : 0);
		/* If a call submits a round that has already ended, the call returns the job's
		 * error. The first call that submits a new round returns 0, and the new round ends
		 * at once. */
		if (k == 1)
			assert_int_equal(agt_tensor_submit(w->t[0], 1, 1, OP_SUM, 0, false),
				BPS_EAGENT_LOST);
		assert_int_equal(agt_tensor_submit(w->t[0], 0, n + 1, OP_SUM, 0, false), 0);
		assert_int_equal(w->n_done, n + 1);
		assert_int_equal(w->done_round, n + 1);
		assert_int_equal(
			agt_tensor_submit(w->t[0], 1, n + 1, OP_SUM, 0, false), BPS_EAGENT_LOST);
		assert_int_equal(w->n_done, n + 1);
		check(w);
		if (k != 3)
			say_result(w, 0, 1);
		assert_int_equal(w->n_done, n + 1);
		assert_int_equal(w->n_fails, 0);
		world_free(w);
	}
}

static void result_of_a_failed_job_is_released_without_a_read(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	agt_job_fail(w->job, BPS_EAGENT_LOST);
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_GOT, 1);
	assert_int_equal(w->conn[0]->n_reads, 0);
	world_free(w);
}

static void read_that_ends_after_the_job_failed_changes_nothing(void **state)
{
	struct agt_world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	agt_job_fail(w->job, BPS_EAGENT_LOST);
	check(w);
	assert_int_equal(w->n_done, 1);
	end_read(w, 0, 0);
	expect_msg(w, 0, WIRE_GOT, 1);
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void freed_job_is_released_once_no_read_runs(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) { /* k = 0: the read ends; k = 1: its connection ends */
		struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2);
		struct wire_msg m;

		submit_all(w, 1);
		for (unsigned p = 0; p < 2; p++) {
			m = result_msg(w, 1, p);
			say(w, 0, &m);
		}
		agt_job_free(w->job, released, w);
		w->job = NULL;
		check(w);
		assert_int_equal(w->n_releases, 0);
		say_result(w, 0, 1); /* the job was removed already */
		end_read(w, 0, 0);
		assert_int_equal(w->n_releases, 0);
		if (k)
			cut(w, 0);
		else
			end_read(w, 0, 0);
		assert_int_equal(w->n_releases, 1);
		assert_int_equal(w->n_done, 0);
		world_free(w);
	}
}

static void freed_job_is_released_at_once_when_nothing_runs(void **state)
{
	struct agt_world *w = world(.n_elems = SMALL, .n_workers = 2);

	(void)state;
	submit(w, 0, 0, 1, 0);
	agt_job_free(w->job, released, w);
	w->job = NULL;
	check(w);
	assert_int_equal(w->n_releases, 1);
	assert_int_equal(w->n_done, 0);
	assert_int_equal(w->core->n_parts, 0);
	world_free(w);
}

/* ---- random messages ---- */

static void random_server(struct agt_world *w, unsigned s)
{
	struct fake_conn *c = w->conn[s];
	uint64_t r = agt_tensor_round(w->t[0]) + (uint64_t)(rand() % 8 ? 1 : rand() % 3);
	struct wire_msg m;

	if (!c || c->is_closed || !c->is_up)
		return;
	switch (rand() % 12) {
	case 0:
		m = key_msg(w, (enum wire_type)(WIRE_HAVE_OK + rand() % 2), r ? r : 1);
		break;
	case 1:
		m = key_msg(w, WIRE_AGAIN, r ? r : 1);
		break;
	case 2:
		m = key_msg(w, WIRE_BAD_CRC, r ? r : 1);
		break;
	case 3:
		if (rand() % 6 == 0)
			fake_down(c, "cut");
		return;
	case 4:
		c->credit = 0;
		return;
	case 5:
		c->credit = SIZE_MAX;
		fake_grant(c, 0);
		return;
	case 6:
	case 7:
		if (c->n_reads)
			fake_end_read(c, 0, rand() % 8 ? 0 : -EIO);
		return;
	default:
		m = result_msg(w, r ? r : 1, (uint32_t)rand() % w->n_parts);
		m.crc ^= rand() % 64 == 0;
	}
	m.pgen -= rand() % 8 == 0;
	fake_deliver(c, &m);
}

static void random_messages_keep_the_invariants(void **state)
{
	unsigned n_done = 0;

	(void)state;
	for (unsigned seed = 1; seed <= 40; seed++) {
		struct agt_world *w = world(.n_elems = seed & 1 ? LARGE : SMALL, .n_parts = 3,
			.window = seed & 2 ? BYTES_MAX : 0,
			.job_inflight = seed & 8 ? BYTES_MAX : 0, .n_workers = 1 + (seed & 4) / 4,
			.n_in = seed & 16 ? 1 + (seed & 1) : 0);

		srand(seed);
		for (unsigned k = 0; k < 4000 && !w->n_fails; k++) {
			unsigned worker = (unsigned)rand() % w->n_workers;

			switch (rand() % 8) {
			case 0:
				if (rand() % 8 == 0)
					tell_runs(w, (uint32_t)rand() % 3, w->pgen + 1);
				break;
			case 1:
				tick(w, (uint64_t)rand() % 2000);
				break;
			case 2:
				agt_tensor_submit(w->t[0], worker, w->t[0]->submitted[worker] + 1,
					OP_SUM, 0, false);
				break;
			case 3:
				agt_core_run_queued_work(w->core);
				if (!w->is_device)
					break;
				agt_part_staged(w->t[0], (uint32_t)rand() % 3, w->staged_round);
				agt_tensor_unstaged(w->t[0], w->staged_round);
				break;
			default:
				random_server(w, (unsigned)rand() % 3);
			}
			check(w);
			for (unsigned s = 0; s < 3; s++)
				if (w->conn[s] && !w->conn[s]->is_closed && !w->conn[s]->is_up &&
					rand() % 2)
					fake_up(w->conn[s]);
			check(w);
		}
		n_done += w->n_done;
		world_free(w);
	}
	/* enough rounds must complete in spite of the random messages */
	assert_true(n_done > 400);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_round_goes_and_comes_inline),
		cmocka_unit_test(large_round_is_offered_and_its_sum_read),
		cmocka_unit_test(bytes_and_times_of_rounds_are_counted),
		cmocka_unit_test(crc_of_the_delivered_sum_is_echoed),
		cmocka_unit_test(round_is_done_when_all_its_partitions_are),
		cmocka_unit_test(next_round_may_be_submitted_inside_done),
		cmocka_unit_test(workers_of_the_machine_are_summed_once_before_the_push),
		cmocka_unit_test(half_precision_of_many_workers_is_rounded_once),
		cmocka_unit_test(job_of_one_machine_needs_no_server),
		cmocka_unit_test(average_of_f16_sends_the_mean_of_the_machine),
		cmocka_unit_test(average_of_f16_weights_groups_of_gpus),
		cmocka_unit_test(tensor_may_be_submitted_before_its_plan),
		cmocka_unit_test(plan_that_does_not_fit_is_refused),
		cmocka_unit_test(submissions_out_of_order_are_refused),
		cmocka_unit_test(longest_wait_of_a_round_is_described),
		cmocka_unit_test(
			wait_for_a_device_is_described_and_a_local_job_waits_for_no_server),
		cmocka_unit_test(failed_tensor_ends_its_round_once_and_alone),
		cmocka_unit_test(failed_job_ends_every_waiting_round_once),
		cmocka_unit_test(result_of_a_failed_job_is_released_without_a_read),
		cmocka_unit_test(read_that_ends_after_the_job_failed_changes_nothing),
		cmocka_unit_test(freed_job_is_released_once_no_read_runs),
		cmocka_unit_test(freed_job_is_released_at_once_when_nothing_runs),
		cmocka_unit_test(random_messages_keep_the_invariants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
