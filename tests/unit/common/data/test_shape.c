/* Shapes of tensors: which shapes are equal, which are refused, their sizes and their text. */
#include "common/data/shape.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/error.h"

static void equal_shapes_have_equal_fields(void **state)
{
	const struct tensor_shape a = {DTYPE_F32, 1, 2, 3, 4, 5};
	struct tensor_shape other[6];

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		other[i] = a;
	assert_true(shape_is_equal(&a, &other[0]));
	other[0].dtype++;
	other[1].mode++;
	other[2].owner++;
	other[3].stale++;
	other[4].n_values++;
	other[5].digest = 0; /* no digest differs from every digest */
	for (unsigned i = 0; i < 6; i++) {
		assert_false(shape_is_equal(&a, &other[i]));
		assert_false(shape_is_equal(&other[i], &a));
	}
}

static void a_shape_that_cannot_be_summed_is_refused_with_the_reason(void **state)
{
	static const struct {
		struct tensor_shape s;
		int code;
		const char *text;
	} cases[] = {
		{{DTYPE_F32, 0, 0, 0, 4, 0}, 0, NULL},
		{{DTYPE_F32, 0, 0, 0, 4, 9}, 0, NULL},
		{{3, 0, 0, 0, 4, 0}, -EINVAL, "3 is not an element type"},
		{{DTYPE_F32, 0, 0, 0, 0, 0}, -EINVAL, "has no values"},
		{{DTYPE_F32, MODE_VALUE, 0, 0, 4, 0}, 0, NULL},
		{{DTYPE_F64, MODE_VALUE, 0, STALE_UNBOUNDED, 2, 0}, 0, NULL},
		{{DTYPE_I32, MODE_VALUE, 0, 0, 4, 0}, -EINVAL,
			"a value must be f32 or f64, not i32"},
		{{DTYPE_F32, 2, 0, 0, 4, 0}, -EINVAL, "mode 2, owner 0 and staleness 0"},
		{{DTYPE_F32, 0, OWNER_SHARDS, 0, 4, 0}, 0, NULL},
		{{DTYPE_F32, 0, 2, 0, 4, 0}, -EINVAL, "mode 0, owner 2 and staleness 0"},
		{{DTYPE_F32, MODE_VALUE, OWNER_SHARDS, 0, 4, 0}, -EINVAL,
			"a value cannot be cut into shards"},
		{{DTYPE_F32, 0, 0, 1, 4, 0}, -EINVAL, "mode 0, owner 0 and staleness 1"},
		{{DTYPE_F32, 0, 0, 0, 5, 0}, BPS_EQUOTA, "f32 x 5 is larger than"},
		{{DTYPE_F32, 0, 0, 0, UINT64_MAX, 0}, BPS_EQUOTA, "is larger than"},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct err_text err = {""};

		assert_int_equal(shape_check(&cases[i].s, 16, &err), cases[i].code);
		if (cases[i].text)
			assert_non_null(strstr(err.s, cases[i].text));
	}
}

static void a_number_that_is_no_type_stays_unknown(void **state)
{
	static const unsigned numbers[] = {3, UINT8_MAX, UINT8_MAX + 1 + DTYPE_F32, UINT32_MAX};
	struct err_text err;

	(void)state;
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct tensor_shape s = shape_from_dtype_and_count(numbers[i], 1);

		assert_int_equal(shape_check(&s, 16, &err), -EINVAL);
	}
}

static void partitions_cover_the_elements(void **state)
{
	(void)state;
	for (uint64_t n = 1; n < 40; n++) {
		struct tensor_shape s = shape_from_dtype_and_count(DTYPE_F64, n);

		assert_int_equal(shape_bytes(&s), 8 * n);
		for (uint32_t each = 1; each < 45; each++) {
			uint64_t n_parts = shape_partition_count(&s, 1, each), sum = 0;

			for (uint32_t i = 0; i < n_parts; i++) {
				uint32_t elems = shape_part_elems(&s, 1, each, i);

				assert_true(elems && (elems == each || i == n_parts - 1));
				sum += elems;
			}
			assert_int_equal(sum, n);
		}
	}
}

static void partitions_of_a_shard_stay_in_the_shard(void **state)
{
	(void)state;
	for (uint32_t n_shards = 1; n_shards < 5; n_shards++)
		for (uint32_t shard = 1; shard < 20; shard++)
			for (uint32_t each = 1; each < 25; each++) {
				struct tensor_shape s =
					shape_from_dtype_and_count(DTYPE_F32, n_shards * shard);
				uint64_t n = shape_partition_count(&s, n_shards, each), at = 0;

				for (uint32_t i = 0; i < n; i++) {
					uint32_t elems = shape_part_elems(&s, n_shards, each, i);
					uint32_t mine = shape_part_shard(&s, n_shards, each, i);

					assert_int_equal(
						shape_part_first(&s, n_shards, each, i), at);
					assert_in_range(elems, 1, each);
					assert_int_equal(at / shard, mine);
					assert_int_equal((at + elems - 1) / shard, mine);
					at += elems;
				}
				assert_int_equal(at, shape_elems(&s));
			}
}

static void only_equal_shards_are_accepted(void **state)
{
	struct tensor_shape s = shape_from_dtype_and_count(DTYPE_F32, 12);
	struct err_text err = {""};

	(void)state;
	assert_int_equal(shape_shards(&s, 5), 1);
	assert_int_equal(shape_check_shards(&s, 5, &err), 0);
	s.owner = OWNER_SHARDS;
	assert_int_equal(shape_shards(&s, 4), 4);
	assert_int_equal(shape_check_shards(&s, 4, &err), 0);
	assert_int_equal(shape_check_shards(&s, 5, &err), -EINVAL);
	assert_string_equal(err.s,
		"f32 x 12 (in shards) cannot be cut into 5 equal shards, one for "
		"each worker: add values until their number is a multiple of 5");
	s = shape_from_dtype_and_count(DTYPE_Q4, 128);
	s.owner = OWNER_SHARDS;
	assert_int_equal(shape_check_shards(&s, 2, &err), 0);
	s.n_values = 126; /* the last block is not full, and belongs to one shard */
	assert_int_equal(shape_check_shards(&s, 2, &err), -EINVAL);
	assert_non_null(strstr(err.s, "a multiple of 128"));
	assert_int_equal(shape_check_shards(&s, 0, &err), -EINVAL); /* a job without workers */
}

static void options_of_a_job_exclude_values_and_shards(void **state)
{
	static const struct {
		struct shape_job job;
		const char *of_value, *of_shards; /* the option; NULL: the tensor is accepted */
	} cases[] = {
		{{0}, NULL, NULL},
		{{.is_deterministic = true}, "deterministic", NULL},
		{{.is_elastic = true}, "elastic", "elastic"},
		{{.may_shrink = true}, NULL, "on_agent_loss=shrink"},
		{{.has_backup = true}, "backup", "backup"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (int kind = 0; kind < 3; kind++) {
			const char *option = kind == 1   ? cases[i].of_value
					     : kind == 2 ? cases[i].of_shards
							 : NULL;
			struct tensor_shape s = shape_from_dtype_and_count(DTYPE_F32, 4);
			struct err_text err = {.s = ""};

			s.mode = kind == 1 ? MODE_VALUE : MODE_SUM;
			s.owner = kind == 2 ? OWNER_SHARDS : OWNER_ALL;
			assert_int_equal(
				shape_check_job(&s, &cases[i].job, &err), option ? -EINVAL : 0);
			if (option)
				assert_non_null(strstr(err.s, option));
			else
				assert_string_equal(err.s, "");
		}
}

static void the_text_names_type_count_and_digest(void **state)
{
	struct tensor_shape s = shape_from_dtype_and_count(DTYPE_BF16, UINT64_MAX);

	(void)state;
	assert_string_equal(shape_text(&s).s, "bf16 x 18446744073709551615");
	s.digest = UINT64_MAX;
	assert_string_equal(
		shape_text(&s).s, "bf16 x 18446744073709551615 (layout ffffffffffffffff)");
	s.mode = s.owner = UINT8_MAX;
	s.stale = UINT32_MAX;
	assert_string_equal(shape_text(&s).s,
		"bf16 x 18446744073709551615 (mode 255, owner 255, stale 4294967295) "
		"(layout ffffffffffffffff)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_shapes_have_equal_fields),
		cmocka_unit_test(a_shape_that_cannot_be_summed_is_refused_with_the_reason),
		cmocka_unit_test(a_number_that_is_no_type_stays_unknown),
		cmocka_unit_test(partitions_cover_the_elements),
		cmocka_unit_test(partitions_of_a_shard_stay_in_the_shard),
		cmocka_unit_test(only_equal_shards_are_accepted),
		cmocka_unit_test(options_of_a_job_exclude_values_and_shards),
		cmocka_unit_test(the_text_names_type_count_and_digest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
