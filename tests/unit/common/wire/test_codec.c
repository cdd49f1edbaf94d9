/* The codec of structs and lists in control messages: golden bytes, missing and unknown fields,
 * corrupted bytes, limits on memory and nesting. One thread, no I/O. */
#include "common/wire/codec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/error.h"

#define NO_LIMIT SIZE_MAX

struct leaf {
	uint16_t id;
	const char *name;
};
static const struct field leaf_fields[] = {
	FIELD_U16_(leaf, id),
	FIELD_STR_(leaf, name, 8),
};
static const struct layout leaf_layout = LAYOUT_(leaf, leaf_fields);

struct all {
	uint8_t a;
	uint16_t b;
	uint32_t c;
	uint64_t d;
	const char *s;
	struct blob x;
	struct leaf *leaves;
	uint32_t n_leaves;
	uint32_t last;
	struct leaf inner;
};
static const struct field all_fields[] = {
	FIELD_U8_(all, a),
	FIELD_U16_(all, b),
	FIELD_U32_(all, c),
	FIELD_U64_(all, d),
	FIELD_STR_(all, s, 10),
	FIELD_BLOB_(all, x, 4),
	FIELD_LIST_(all, leaves, 3, &leaf_layout),
	FIELD_U32_(all, last),
	FIELD_STRUCT_(all, inner, &leaf_layout),
};
static const struct layout all_layout = LAYOUT_(all, all_fields);

/* An older version of `struct all`, with fewer fields. */
struct old {
	uint8_t a;
	uint16_t b;
};
static const struct field old_fields[] = {
	FIELD_U8_(old, a),
	FIELD_U16_(old, b),
};
static const struct layout old_layout = LAYOUT_(old, old_fields);

/* A struct that contains a list of itself, to reach the limit of nesting. */
struct tree {
	struct tree *kids;
	uint32_t n_kids;
};
static const struct layout tree_layout;
static const struct field tree_fields[] = {
	FIELD_LIST_(tree, kids, 2, &tree_layout),
};
static const struct layout tree_layout = LAYOUT_(tree, tree_fields);

static struct leaf sample_leaves[2] = {{5, "hi"}, {6, NULL}};
static const struct all sample = {
	.a = 0x11,
	.b = 0x2122,
	.c = 0x31323334,
	.d = 0x0102030405060708,
	.s = "abc",
	.x = {"\0\xff", 2},
	.leaves = sample_leaves,
	.n_leaves = 2,
	.last = 4,
	.inner = {7, "z"},
};
/* clang-format off */
static const uint8_t golden[] = {
	69, 0, 0, 0,                            /* number of bytes of the struct */
	0x11,                                   /* a */
	0x22, 0x21,                             /* b */
	0x34, 0x33, 0x32, 0x31,                 /* c */
	8, 7, 6, 5, 4, 3, 2, 1,                 /* d */
	3, 0, 0, 0, 'a', 'b', 'c',              /* s */
	2, 0, 0, 0, 0, 0xff,                    /* x */
	2, 0, 0, 0,                             /* leaves */
	8, 0, 0, 0, 5, 0, 2, 0, 0, 0, 'h', 'i', /* the first leaf */
	6, 0, 0, 0, 6, 0, 0, 0, 0, 0,           /* the second leaf, without a name */
	4, 0, 0, 0,                             /* last */
	7, 0, 0, 0, 7, 0, 1, 0, 0, 0, 'z',      /* inner */
};
/* clang-format on */
#define AT_S      19
#define AT_X      26
#define AT_LEAVES 32
#define AT_LEAF   36

/* Decode a copy of the bytes. The copy is exactly as large as its content, so that a sanitizer
 * detects each access beyond the end of the copy. */
static int decode(const struct layout *l, const void *bytes, size_t n, size_t mem_limit,
	void *ret_msg, void **ret_mem, struct err_text *err)
{
	uint8_t *copy = malloc(n + !n);
	int rc;

	assert_non_null(copy);
	if (n)
		memcpy(copy, bytes, n);
	rc = codec_decode(l, copy, n, mem_limit, ret_msg, ret_mem, err);
	free(copy);
	return rc;
}

static void patch_u32(uint8_t *at, uint32_t v)
{
	for (unsigned i = 0; i < 4; i++)
		at[i] = (uint8_t)(v >> 8 * i);
}

/* Replace the u32 at the offset `at` of the golden bytes by v, and decode the changed bytes. */
static int decode_patched(size_t at, uint32_t v, struct err_text *err)
{
	uint8_t bytes[sizeof(golden)];
	struct all m;
	void *mem = NULL;
	int rc;

	memcpy(bytes, golden, sizeof(bytes));
	patch_u32(bytes + at, v);
	rc = decode(&all_layout, bytes, sizeof(bytes), NO_LIMIT, &m, &mem, err);
	free(mem);
	return rc;
}

static void all_kinds_have_the_documented_bytes(void **state)
{
	uint8_t buf[sizeof(golden)];

	(void)state;
	assert_int_equal(codec_encoded_size(&all_layout, &sample), sizeof(golden));
	assert_int_equal(codec_encode(&all_layout, &sample, buf), sizeof(golden));
	assert_memory_equal(buf, golden, sizeof(golden));
}

static void decode_gives_back_what_was_encoded(void **state)
{
	struct all m;
	void *mem = NULL;

	(void)state;
	assert_int_equal(decode(&all_layout, golden, sizeof(golden), NO_LIMIT, &m, &mem, NULL), 0);
	assert_non_null(mem);
	assert_int_equal(m.a, 0x11);
	assert_int_equal(m.b, 0x2122);
	assert_int_equal(m.c, 0x31323334);
	assert_true(m.d == 0x0102030405060708);
	assert_string_equal(m.s, "abc");
	assert_int_equal(m.x.bytes, 2);
	assert_memory_equal(m.x.data, "\0\xff", 2);
	assert_int_equal(m.n_leaves, 2);
	assert_int_equal((uintptr_t)m.leaves % 8, 0);
	assert_int_equal(m.leaves[0].id, 5);
	assert_string_equal(m.leaves[0].name, "hi");
	assert_int_equal(m.leaves[1].id, 6);
	assert_string_equal(m.leaves[1].name, "");
	assert_int_equal(m.last, 4);
	assert_int_equal(m.inner.id, 7);
	assert_string_equal(m.inner.name, "z");
	free(mem);
}

/* Shorten the struct to each length. If the struct ends at the border of a field, the later fields
 * are missing. If the struct ends inside a field, this field is cut. */
static void missing_trailing_fields_are_zero_and_cut_fields_are_refused(void **state)
{
	static const size_t borders[] = {4, 5, 7, 11, AT_S, AT_X, AT_LEAVES, 58, 62, 73};
	size_t next = 0;

	(void)state;
	for (size_t n = 4; n <= sizeof(golden); n++) {
		bool is_border = n == borders[next];
		uint8_t bytes[sizeof(golden)];
		struct all m;
		void *mem = NULL;
		int rc;

		memcpy(bytes, golden, sizeof(golden));
		patch_u32(bytes, (uint32_t)n - 4);
		rc = decode(&all_layout, bytes, n, NO_LIMIT, &m, &mem, NULL);
		assert_int_equal(rc, is_border ? 0 : BPS_EPROTO);
		if (!is_border)
			continue;
		next++;
		assert_int_equal(m.a, n > 4 ? 0x11 : 0);
		assert_int_equal(m.b, n > 5 ? 0x2122 : 0);
		assert_int_equal(m.c, n > 7 ? 0x31323334 : 0);
		assert_true(m.d == (n > 11 ? 0x0102030405060708 : 0));
		assert_string_equal(m.s, n > AT_S ? "abc" : "");
		assert_non_null(m.x.data);
		assert_int_equal(m.x.bytes, n > AT_X ? 2 : 0);
		assert_int_equal(m.n_leaves, n > AT_LEAVES ? 2 : 0);
		assert_int_equal(m.last, n > 58 ? 4 : 0);
		assert_int_equal(m.inner.id, n > 62 ? 7 : 0);
		assert_string_equal(m.inner.name, n > 62 ? "z" : "");
		free(mem);
	}
	assert_int_equal(next, sizeof(borders) / sizeof(borders[0]));
}

static void bytes_of_a_newer_peer_are_skipped(void **state)
{
	struct old m;
	void *mem = &m;

	(void)state;
	assert_int_equal(decode(&old_layout, golden, sizeof(golden), NO_LIMIT, &m, &mem, NULL), 0);
	assert_int_equal(m.a, 0x11);
	assert_int_equal(m.b, 0x2122);
	assert_null(mem);
}

static void bytes_of_a_newer_peer_are_skipped_in_list_items(void **state)
{
	/* clang-format off */
	static const uint8_t bytes[] = {
		62, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		2, 0, 0, 0,
		9, 0, 0, 0, 5, 0, 0, 0, 0, 0, 1, 2, 3,
		14, 0, 0, 0, 6, 0, 1, 0, 0, 0, 'x', 1, 2, 3, 4, 5, 6, 7,
		9, 0, 0, 0,
	};
	/* clang-format on */
	struct all m;
	void *mem = NULL;

	(void)state;
	assert_int_equal(bytes[0], sizeof(bytes) - 4);
	assert_int_equal(decode(&all_layout, bytes, sizeof(bytes), NO_LIMIT, &m, &mem, NULL), 0);
	assert_int_equal(m.leaves[0].id, 5);
	assert_int_equal(m.leaves[1].id, 6);
	assert_string_equal(m.leaves[1].name, "x");
	assert_int_equal(m.last, 9);
	free(mem);
}

static void truncation_at_every_length_is_refused(void **state)
{
	struct all m;
	void *mem = NULL;

	(void)state;
	for (size_t n = 0; n < sizeof(golden); n++)
		assert_int_equal(
			decode(&all_layout, golden, n, NO_LIMIT, &m, &mem, NULL), BPS_EPROTO);
	assert_null(mem);
}

static void bytes_behind_the_struct_are_refused(void **state)
{
	uint8_t bytes[sizeof(golden) + 1] = {0};
	struct err_text err = {""};
	struct all m;
	void *mem = NULL;

	(void)state;
	memcpy(bytes, golden, sizeof(golden));
	assert_int_equal(
		decode(&all_layout, bytes, sizeof(bytes), NO_LIMIT, &m, &mem, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all has 1 bytes after its end");
}

static void corruption_of_any_byte_is_refused_or_decodes_to_a_valid_message(void **state)
{
	size_t n_valid = 0, n_refused = 0;

	(void)state;
	for (size_t at = 0; at < sizeof(golden); at++) {
		for (unsigned v = 0; v < 256; v++) {
			uint8_t bytes[sizeof(golden)];
			struct all m;
			void *mem = NULL;

			memcpy(bytes, golden, sizeof(bytes));
			bytes[at] = (uint8_t)v;
			if (decode(&all_layout, bytes, sizeof(bytes), NO_LIMIT, &m, &mem, NULL)) {
				n_refused++;
				continue;
			}
			n_valid++;
			assert_int_not_equal(codec_encoded_size(&all_layout, &m), 0);
			free(mem);
		}
	}
	assert_int_not_equal(n_valid, 0);
	assert_int_not_equal(n_refused, 0);
}

static void a_refusal_names_struct_and_field(void **state)
{
	struct err_text err;

	(void)state;
	assert_int_equal(decode_patched(AT_S, 11, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all.s has 11 bytes, at most 10 are allowed");
	assert_int_equal(decode_patched(AT_S, UINT32_MAX, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all.s is cut short");
	assert_int_equal(decode_patched(AT_X, 5, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all.x has 5 bytes, at most 4 are allowed");
	assert_int_equal(decode_patched(AT_LEAVES, 4, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all.leaves has 4 items, at most 3 are allowed");
	assert_int_equal(decode_patched(AT_LEAVES, UINT32_MAX, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all.leaves is cut short");
	assert_int_equal(decode_patched(AT_LEAF, 27, &err), BPS_EPROTO);
	assert_string_equal(err.s, "leaf is cut short");
}

static void a_nul_inside_a_string_is_refused(void **state)
{
	uint8_t bytes[sizeof(golden)];
	struct err_text err;
	struct all m;
	void *mem = NULL;

	(void)state;
	memcpy(bytes, golden, sizeof(bytes));
	bytes[AT_S + 5] = 0;
	assert_int_equal(
		decode(&all_layout, bytes, sizeof(bytes), NO_LIMIT, &m, &mem, &err), BPS_EPROTO);
	assert_string_equal(err.s, "all.s contains a NUL byte");
}

static void outputs_stay_untouched_when_decoding_fails(void **state)
{
	struct all m, before;
	void *mem = &m;

	(void)state;
	memset(&m, 0x5a, sizeof(m));
	memcpy(&before, &m, sizeof(m));
	assert_int_equal(decode(&all_layout, golden, sizeof(golden) - 1, NO_LIMIT, &m, &mem, NULL),
		BPS_EPROTO);
	assert_int_equal(decode(&all_layout, golden, sizeof(golden), 8, &m, &mem, NULL), -E2BIG);
	assert_memory_equal(&m, &before, sizeof(m));
	assert_ptr_equal(mem, &m);
}

/* The golden message needs memory for six things: "abc" with its NUL, two bytes of the blob, two
 * bytes of padding, two leaves, "hi" with its NUL, and "z" with its NUL. */
static void memory_is_exact_and_limited(void **state)
{
	const size_t need = 8 + 2 * sizeof(struct leaf) + 3 + 2;
	struct all m;
	void *mem = NULL;

	(void)state;
	for (size_t limit = 0; limit < need; limit++)
		assert_int_equal(
			decode(&all_layout, golden, sizeof(golden), limit, &m, &mem, NULL), -E2BIG);
	assert_int_equal(decode(&all_layout, golden, sizeof(golden), need, &m, &mem, NULL), 0);
	free(mem);
}

static void a_message_without_strings_and_lists_needs_no_memory(void **state)
{
	const struct all empty = {.a = 1, .last = 2};
	uint8_t buf[64];
	size_t n = codec_encode(&all_layout, &empty, buf);
	struct all m;
	void *mem = &m;

	(void)state;
	assert_int_equal(decode(&all_layout, buf, n, 0, &m, &mem, NULL), 0);
	assert_null(mem);
	assert_string_equal(m.s, "");
	assert_non_null(m.x.data);
	assert_int_equal(m.x.bytes, 0);
	assert_null(m.leaves);
	assert_int_equal(m.last, 2);
}

static void many_tiny_items_cost_no_more_than_the_limit(void **state)
{
	struct field f = {"leaves", FIELD_LIST, 0, 8, UINT32_MAX, &leaf_layout};
	const struct layout l = {"wide", 16, 1, &f};
	const uint32_t n_items = 1000;
	uint8_t *bytes = calloc(n_items + 2, 4);
	size_t n_bytes = (n_items + 2) * (size_t)4;
	uint64_t out[2];
	void *mem = NULL;

	(void)state;
	assert_non_null(bytes);
	patch_u32(bytes, (n_items + 1) * 4);
	patch_u32(bytes + 4, n_items);
	assert_int_equal(
		decode(&l, bytes, n_bytes, n_items * sizeof(struct leaf) - 1, out, &mem, NULL),
		-E2BIG);
	assert_int_equal(
		decode(&l, bytes, n_bytes, n_items * sizeof(struct leaf), out, &mem, NULL), 0);
	free(mem);
	patch_u32(bytes + 4, n_items + 1);
	assert_int_equal(decode(&l, bytes, n_bytes, NO_LIMIT, out, &mem, NULL), BPS_EPROTO);
	free(bytes);
}

static void message_beyond_a_maximum_is_not_encoded(void **state)
{
	struct leaf leaves[4] = {{1, "a"}, {2, "b"}, {3, "c"}, {4, "d"}};
	uint8_t buf[1] = {0x5a};
	struct all m = sample;

	(void)state;
	m.s = "elevenbytes";
	assert_int_equal(codec_encoded_size(&all_layout, &m), 0);
	assert_int_equal(codec_encode(&all_layout, &m, buf), 0);
	m = sample;
	m.x = (struct blob){"12345", 5};
	assert_int_equal(codec_encoded_size(&all_layout, &m), 0);
	m.x = (struct blob){NULL, 1};
	assert_int_equal(codec_encoded_size(&all_layout, &m), 0);
	m = sample;
	m.leaves = leaves;
	m.n_leaves = 4;
	assert_int_equal(codec_encoded_size(&all_layout, &m), 0);
	m.n_leaves = 3;
	assert_int_not_equal(codec_encoded_size(&all_layout, &m), 0);
	leaves[2].name = "ninebytes";
	assert_int_equal(codec_encoded_size(&all_layout, &m), 0);
	m.leaves = NULL;
	assert_int_equal(codec_encoded_size(&all_layout, &m), 0);
	assert_int_equal(buf[0], 0x5a);
}

static void message_at_a_maximum_is_encoded(void **state)
{
	struct all m = sample, back;
	uint8_t buf[128];
	void *mem = NULL;
	size_t n;

	(void)state;
	m.s = "tenletters";
	m.x = (struct blob){"1234", 4};
	n = codec_encode(&all_layout, &m, buf);
	assert_int_equal(decode(&all_layout, buf, n, NO_LIMIT, &back, &mem, NULL), 0);
	assert_string_equal(back.s, "tenletters");
	assert_int_equal(back.x.bytes, 4);
	free(mem);
}

/* Write a chain of n nested lists of one item each. The item of a list is a struct that contains
 * the next list. Only the item of the innermost list is a struct of 0 bytes. Returns the number of
 * bytes written. */
static size_t chain_bytes(uint8_t *buf, unsigned n)
{
	size_t at = 0;

	for (unsigned i = 0; i <= n; i++) {
		patch_u32(buf + at, i < n ? 8 * (n - i) : 0);
		at += 4;
		if (i < n) {
			patch_u32(buf + at, 1);
			at += 4;
		}
	}
	return at;
}

static void four_nested_lists_are_carried_and_five_refused(void **state)
{
	struct tree t[6] = {{NULL, 0}}, back;
	struct err_text err;
	uint8_t bytes[64], buf[64];
	void *mem = NULL;
	size_t n;

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		t[i] = (struct tree){&t[i + 1], 1};
	/* The encoder writes the empty list of the innermost item in 4 bytes. chain_bytes omits
	 * this list, so the encoder writes 4 bytes more than chain_bytes. */
	assert_int_equal(codec_encode(&tree_layout, t, buf), chain_bytes(bytes, 4) + 4);
	t[4] = (struct tree){&t[5], 1};
	assert_int_equal(codec_encoded_size(&tree_layout, t), 0);

	n = chain_bytes(bytes, 4);
	assert_int_equal(decode(&tree_layout, bytes, n, NO_LIMIT, &back, &mem, NULL), 0);
	assert_int_equal(back.kids->kids->kids->kids->n_kids, 0);
	free(mem);
	mem = NULL;
	n = chain_bytes(bytes, 5);
	assert_int_equal(decode(&tree_layout, bytes, n, NO_LIMIT, &back, &mem, &err), BPS_EPROTO);
	assert_string_equal(err.s, "tree.kids is nested too deeply");
	assert_null(mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_kinds_have_the_documented_bytes),
		cmocka_unit_test(decode_gives_back_what_was_encoded),
		cmocka_unit_test(missing_trailing_fields_are_zero_and_cut_fields_are_refused),
		cmocka_unit_test(bytes_of_a_newer_peer_are_skipped),
		cmocka_unit_test(bytes_of_a_newer_peer_are_skipped_in_list_items),
		cmocka_unit_test(truncation_at_every_length_is_refused),
		cmocka_unit_test(bytes_behind_the_struct_are_refused),
		cmocka_unit_test(corruption_of_any_byte_is_refused_or_decodes_to_a_valid_message),
		cmocka_unit_test(a_refusal_names_struct_and_field),
		cmocka_unit_test(a_nul_inside_a_string_is_refused),
		cmocka_unit_test(outputs_stay_untouched_when_decoding_fails),
		cmocka_unit_test(memory_is_exact_and_limited),
		cmocka_unit_test(a_message_without_strings_and_lists_needs_no_memory),
		cmocka_unit_test(many_tiny_items_cost_no_more_than_the_limit),
		cmocka_unit_test(message_beyond_a_maximum_is_not_encoded),
		cmocka_unit_test(message_at_a_maximum_is_encoded),
		cmocka_unit_test(four_nested_lists_are_carried_and_five_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
