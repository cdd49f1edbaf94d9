/* The exact bits of the sums that a server's core computes. */
#include "bps-server/core/sums.h"
#include "tests/unit/half.h"
#include "tests/unit/srv_world.h"

static void average_divides_by_workers(void **state)
{
	struct srv_world *w = world(.n_members = 3, .n_elems = SMALL);
	struct wire_msg r;
	const float *v;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct wire_msg m = contrib_msg(w, i, 1, 0);

		m.contrib.op = OP_AVG;
		say(w, i, &m);
	}
	work(w);
	r = expect_msg(w, 0, WIRE_RESULT, 1);
	v = r.payload;
	assert_int_equal(r.result.workers, 6); /* the members have 1 + 2 + 3 workers */
	for (size_t e = 0; e < SMALL; e++)
		assert_true(v[e] == (input(0, 1, e) + input(1, 1, e) + input(2, 1, e)) / 6);
	world_free(w);
}

/* Fill the inputs with values of very different magnitudes, so that the bits of the sum depend on
 * the order of the additions. */
static void fill_wild(struct srv_world *w, unsigned seed)
{
	srand(seed);
	for (unsigned i = 0; i < w->n_members; i++)
		for (size_t e = 0; e < w->n_elems; e++) {
			float f = (float)(rand() % 2000 - 1000) * (rand() % 3 ? 1.0f : 1e-4f);
			uint16_t h = half_round(f);

			if (w->dtype == DTYPE_F16)
				memcpy(w->m[i].contrib[0] + 2 * e, &h, 2);
			else
				memcpy(w->m[i].contrib[0] + 4 * e, &f, 4);
		}
}

/* Return the CRC of the members' sum, computed by a simple loop in the order of the members. */
static uint32_t ordered_crc(struct srv_world *w)
{
	unsigned char out[BYTES_MAX];
	size_t elem = dtype_bytes(w->dtype);

	for (size_t e = 0; e < w->n_elems; e++) {
		float acc = 0;
		uint16_t h;

		for (unsigned i = 0; i < w->n_members; i++) {
			float f;

			memcpy(&h, w->m[i].contrib[0] + 2 * e, 2);
			if (w->dtype == DTYPE_F16)
				f = (float)half_value(h);
			else
				memcpy(&f, w->m[i].contrib[0] + 4 * e, 4);
			acc = i == 0 ? f : acc + f;
		}
		h = half_round(acc);
		if (w->dtype == DTYPE_F16)
			memcpy(out + 2 * e, &h, 2);
		else
			memcpy(out + 4 * e, &acc, 4);
	}
	return crc32c(0, out, w->n_elems * elem);
}

static void ordered_sum_has_the_same_bits_in_every_order(void **state)
{
	(void)state;
	for (unsigned n = 3; n <= MEMBERS_MAX; n++)
		for (unsigned k = 0; k < 8; k++) {
			struct srv_world *w = world(.n_members = n, .n_elems = k & 2 ? LARGE : 100,
				.dtype = 1 + (k & 1 ? DTYPE_F16 : DTYPE_F32),
				.flags = JOB_DETERMINISTIC, .staging = k & 4 ? 4 * SEGMENT : 0);
			unsigned order[MEMBERS_MAX];
			uint32_t want;

			fill_wild(w, n * 10 + k);
			want = ordered_crc(w);
			for (unsigned i = 0; i < n; i++)
				order[i] = i;
			for (unsigned i = n - 1; i > 0; i--) {
				unsigned j = (unsigned)rand() % (i + 1), t = order[i];

				order[i] = order[j];
				order[j] = t;
			}
			for (unsigned i = 0; i < n; i++) {
				struct wire_msg m = payload_msg(w, order[i], WIRE_CONTRIB, 1, 1, 0);

				m.contrib.workers = w->m[order[i]].workers;
				say(w, order[i], &m);
				if (rand() % 2)
					end_reads(w);
				if (rand() % 3 == 0) {
					sums_queue_foldable_slots(w->core);
					work(w);
				}
			}
			settle(w);
			assert_int_equal(expect_msg(w, 0, WIRE_RESULT, 1).crc, want);
			world_free(w);
		}
}

/* Contributions are means of 1, 2 and 3 workers. The sum of their values is too large for f16.
 * Passes of their own give the same bits as one pass. */
static void averages_of_f16_are_weighted_means(void **state)
{
	static const double means[] = {60000, 40000, 65504};
	const uint16_t want = half_round((60000 + 2 * 40000.0 + 3 * 65504.0) / 6);

	(void)state;
	for (unsigned has_passes = 0; has_passes < 2; has_passes++) {
		struct srv_world *w = world(.n_members = 3, .n_elems = 1, .dtype = 1 + DTYPE_F16);
		uint16_t got;

		for (unsigned i = 0; i < 3; i++) {
			uint16_t mean = half_round(means[i]);
			struct wire_msg m;

			memcpy(w->m[i].contrib[0], &mean, 2);
			m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);
			m.contrib.workers = w->m[i].workers;
			m.contrib.op = OP_AVG;
			say(w, i, &m);
			if (has_passes)
				sums_queue_foldable_slots(w->core);
			work(w);
		}
		memcpy(&got, expect_msg(w, 0, WIRE_RESULT, 1).payload, 2);
		assert_int_equal(got, want);
		world_free(w);
	}
}

static void half_precision_is_rounded_once(void **state)
{
	struct srv_world *w = world(.n_members = MEMBERS_MAX, .n_elems = 1, .dtype = 1 + DTYPE_F16);
	const uint16_t one = half_round(1);
	/* in half precision, the sum of 1 and this value is 1 */
	const uint16_t tiny = half_round(0.0004);
	struct wire_msg r;
	uint16_t got;

	(void)state;
	for (unsigned i = 0; i < MEMBERS_MAX; i++) {
		struct wire_msg m;

		memcpy(w->m[i].contrib[0], i ? &tiny : &one, 2);
		m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);
		m.contrib.workers = w->m[i].workers;
		say(w, i, &m);
		/* Make the core add each contribution in a pass of its own. All passes must add to
		 * one f32 accumulator. */
		sums_queue_foldable_slots(w->core);
		work(w);
	}
	r = expect_msg(w, 0, WIRE_RESULT, 1);
	memcpy(&got, r.payload, 2);
	assert_int_equal(got, half_round(1 + 11 * half_value(tiny)));
	assert_int_not_equal(got, one);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(average_divides_by_workers),
		cmocka_unit_test(ordered_sum_has_the_same_bits_in_every_order),
		cmocka_unit_test(averages_of_f16_are_weighted_means),
		cmocka_unit_test(half_precision_is_rounded_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
