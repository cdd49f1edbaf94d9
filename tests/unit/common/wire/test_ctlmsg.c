/* Control messages: golden bytes of each type, random messages in both directions, corrupted bytes,
 * limits on sizes and memory. One thread, no I/O. */
#include "common/wire/ctlmsg.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/error.h"
#include "tests/unit/hex.h"

#define N_ROUND_TRIPS 200
#define SEED          0x9e3779b97f4a7c15

/* Golden messages, each with the bytes of its frame in hex below. Spaces separate fields. */
static const struct ctl_msg hello = {CTL_HELLO,
	.hello = {1, ROLE_AGENT, 0x0102030405060708, "n1", "h", "0.1", 7, "10.0.0.1", 99, 2, 1000,
		{"0123456789abcdef", 16}, 5, 6, 7, "tcp", {"0123456789abcdef", 16}, "d.e", "*:80"}};
static const struct ctl_msg welcome = {CTL_WELCOME,
	.welcome = {{"0123456789abcdef", 16}, 1, 0x100000002, 3, 500, 2000, 4, 1000, 1}};
static const struct ctl_msg refuse = {CTL_REFUSE, .refuse = {10014, "old"}};
static struct ctl_beat_late one_late[] = {{21, 22, 23}};
static struct ctl_beat_job one_beat_job[] = {{13, 14, 15, 16, 17, 18, 19, one_late, 1}};
static struct ctl_beat_link one_beat_link[] = {{24, 25}};
static const struct ctl_msg beat = {
	CTL_BEAT, .beat = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, one_beat_job, 1, 3, 12, 13, 2, 14,
			  one_beat_link, 1, 26, 27, 28}};
static struct ctl_peer one_peer[] = {
	{1, PEER_UP, 2, "a", "b", "::1", 80, 4, {"0123456789abcdef0123456789abcdef", 32}}};
static const struct ctl_msg peers = {CTL_PEERS, .peers = {9, one_peer, 1}};
static const struct ctl_msg join = {
	CTL_JOIN, .join = {1, 1000, "mnist", CTL_NO_ID, 4, 1, 77, 0,
			  {"0123456789abcdef0123456789abcdef", 32}, 1, 20, 6, 2}};
static const struct ctl_msg joined = {CTL_JOINED, .joined = {1, 0, "", 3, 2}};
static struct ctl_rank two_ranks[] = {{0}, {1}};
static struct ctl_job_member two_members[] = {
	{4, "h1", two_ranks, 2, 0, "", 5, "a4"}, {5, "h2", NULL, 0, 1, "off", 5, "a5"}};
static const struct ctl_msg job = {
	CTL_JOB, .job = {6, 3, 1000, "mnist", 4, 1, two_members, 2, 5, 1, 20, 2, 3, 1}};
static const struct ctl_msg job_end = {CTL_JOB_END, .job_end = {3, 10008, "x", {1, "h"}}};
static struct ctl_decl one_decl[] = {{0, "w", {7, 0, 0, 0, 1024, 77}, 12}};
static const struct ctl_msg declare = {CTL_DECLARE, .declare = {3, one_decl, 1}};
static struct ctl_tensor one_tensor[] = {{8, "w", {7, 0, 0, 0, 1024, 77}, 512}};
static struct ctl_run one_run[] = {{8, 0, 2, 1, 9, 1, 6}};
static const struct ctl_msg plan = {CTL_PLAN, .plan = {6, 3, one_tensor, 1, one_run, 1}};
static const struct ctl_msg tensor_fail = {
	CTL_TENSOR_FAIL, .tensor_fail = {3, "w", 10003, "no", {1, "h"}}};
static const struct ctl_msg worker = {CTL_WORKER, .worker = {3, 2, WORKER_LOST, "gone", 4}};
static const struct ctl_msg fail_ = {CTL_FAIL, .fail = {3, 10010, "w", {1, "h"}}};
static const struct ctl_msg why = {CTL_WHY, .why = {1, 3, CTL_NO_ID, 12}};
static const struct ctl_msg why_text = {CTL_WHY_TEXT, .why_text = {1, "rank 3"}};
static const struct ctl_msg probe = {CTL_PROBE, .probe = {1, 3, 8}};
static struct ctl_report_worker one_worker[] = {
	{2, 77, 12, 24, 23, 100, 8, 12, 90, 1, 2, 70, 1, 5}};
static const struct ctl_msg report = {CTL_REPORT,
	.report = {1, 3, "s", one_worker, 1, {10, 900, 400, {1, 2, 3, 4, 5, 385}, 7, 9, 11}}};

static struct ctl_steer_arg one_arg[] = {{"reason", "late"}};
static const struct ctl_msg steer = {
	CTL_STEER, .steer = {"job kill", "mnist", one_arg, 1, 1000, "u", "h"}};
static const struct ctl_msg sight = {CTL_SIGHT, .sight = {5, 9, 0}};
static const struct ctl_msg seen = {CTL_SEEN, .sight = {5, 9, 120}};
static const struct ctl_msg leave = {CTL_LEAVE, .leave = {20000}};
static const struct ctl_msg left = {CTL_LEFT, .left = {10004, "no"}};
static const struct ctl_msg unjoin = {CTL_UNJOIN, .unjoin = {7}};
static const struct ctl_msg steered = {CTL_STEERED, .steered = {10016, "no", "{}"}};

#define HEX_ID16  " 10000000 30313233343536373839616263646566"
#define HEX_KEY32 " 20000000 3031323334353637383961626364656630313233343536373839616263646566"
static const struct golden {
	const struct ctl_msg *m;
	const char *hex;
} goldens[] = {
	{&hello, "8f000000 0100 02 0807060504030201 02000000 6e31 01000000 68 03000000 302e31"
		 " 07000000 08000000 31302e302e302e31 6300 0200 e803000000000000" HEX_ID16
		 " 0500000000000000 0600000000000000 0700000000000000 03000000 746370" HEX_ID16
		 " 03000000 642e65 04000000 2a3a3830"},
	{&welcome, "35000000" HEX_ID16
		   " 01000000 0200000001000000 03000000 f4010000 d0070000 04000000 e8030000 01"},
	{&refuse, "0b000000 1e270000 03000000 6f6c64"},
	{&beat, "b9000000 0100000000000000 0200000000000000 0300000000000000 0400000000000000"
		" 0500000000000000 0600000000000000 0700000000000000 0800000000000000"
		" 09000000 0a000000 0b000000 01000000"
		" 3c000000 0d000000 0e00000000000000 0f00000000000000 1000000000000000"
		" 11000000 12000000 13000000 01000000 0c000000 15000000 16000000 17000000"
		" 03 0c000000 0d00000000000000 02 0e00000000000000"
		" 01000000 08000000 18000000 19000000 1a 1b 1c"},
	{&peers, "56000000 0900000000000000 01000000"
		 " 46000000 01000000 01 0200000000000000 01000000 61 01000000 62 03000000 3a3a31"
		 " 5000 0400" HEX_KEY32},
	{&join, "57000000 01000000 e8030000 05000000 6d6e697374 ffffffff 04000000 01000000"
		" 4d000000 00000000" HEX_KEY32 " 0100 14000000"
		" 06000000 02000000"},
	{&joined, "14000000 01000000 00000000 00000000 03000000 02000000"},
	{&job, "a8000000 0600000000000000 03000000 e8030000 05000000 6d6e697374 04000000 01000000"
	       " 02000000"
	       " 31000000 04000000 02000000 6831 02000000 04000000 00000000 04000000 01000000"
	       " 00 00000000 0500000000000000 02000000 6134"
	       " 24000000 05000000 02000000 6832 00000000 01 03000000 6f6666 0500000000000000"
	       " 02000000 6135"
	       " 0500000000000000 0100 14000000 0200000000000000 0300000000000000 "
	       "0100000000000000"},
	{&job_end, "16000000 03000000 18270000 01000000 78 01000000 01000000 68"},
	{&declare, "34000000 03000000 01000000 28000000 00000000 01000000 77 17000000 07 00 00"
		   " 00000000 0004000000000000 4d00000000000000 0c000000"},
	{&plan, "66000000 0600000000000000 03000000"
		" 01000000 28000000 08000000 01000000 77 17000000 07 00 00 00000000"
		" 0004000000000000 4d00000000000000 00020000"
		" 01000000 22000000 08000000 00000000 02000000 01000000 0900000000000000 0100"
		" 0600000000000000"},
	{&tensor_fail, "1c000000 03000000 01000000 77 13270000 02000000 6e6f"
		       " 01000000 01000000 68"},
	{&worker, "19000000 03000000 02000000 02 04000000 676f6e65 0400000000000000"},
	{&fail_, "16000000 03000000 1a270000 01000000 77 01000000 01000000 68"},
	{&why, "14000000 01000000 03000000 ffffffff 0c00000000000000"},
	{&why_text, "0e000000 01000000 06000000 72616e6b2033"},
	{&probe, "0c000000 01000000 03000000 08000000"},
	{&report, "8e000000 01000000 03000000 01000000 73 01000000"
		  " 43000000 02000000 4d000000 0c00000000000000 1800000000000000 1700000000000000"
		  " 64000000 08000000 0c00000000000000 5a000000 01 02 46000000 01"
		  " 0500000000000000 32000000 0a000000 84030000 90010000 01000000 02000000"
		  " 03000000 04000000 05000000 81010000 0700 09000000"
		  " 0b00000000000000"},
	{&steer, "3d000000 08000000 6a6f62206b696c6c 05000000 6d6e697374 01000000"
		 " 12000000 06000000 726561736f6e 04000000 6c617465"
		 " e8030000 01000000 75 01000000 68"},
	{&steered, "10000000 20270000 02000000 6e6f 02000000 7b7d"},
	{&sight, "10000000 05000000 0900000000000000 00000000"},
	{&seen, "10000000 05000000 0900000000000000 78000000"},
	{&leave, "04000000 204e0000"},
	{&left, "0a000000 14270000 02000000 6e6f"},
	{&unjoin, "04000000 07000000"},
};
#define N_GOLDEN (sizeof(goldens) / sizeof(goldens[0]))

/* Decode a copy of the n bytes, and free the copy. The copy is exactly as large as its content, so
 * a sanitizer detects each access beyond its end. A sanitizer also detects each use of a decoded
 * pointer that wrongly points into the freed copy. */
static int decode(unsigned type, const void *bytes, size_t n, struct ctl_msg *ret, void **ret_mem,
	struct err_text *err)
{
	uint8_t *copy = malloc(n + !n);
	int rc;

	assert_non_null(copy);
	if (n)
		memcpy(copy, bytes, n);
	rc = ctl_decode(type, copy, n, ret, ret_mem, err);
	free(copy);
	return rc;
}

/* Return the member of the union that the type of m selects. All members have the same address. */
static void *body(struct ctl_msg *m)
{
	return &m->hello;
}

static uint8_t *encode(const struct ctl_msg *m, size_t *ret_n)
{
	const struct layout *l = ctl_layout(m->type);
	uint8_t *buf;

	*ret_n = codec_encoded_size(l, &m->hello);
	assert_int_not_equal(*ret_n, 0);
	buf = malloc(*ret_n);
	assert_non_null(buf);
	assert_int_equal(codec_encode(l, &m->hello, buf), *ret_n);
	return buf;
}

static uint64_t value_of(const struct field *f, const uint8_t *msg)
{
	uint64_t v = 0;

	/* The copy and the test's generator are correct only on little-endian machines. */
	memcpy(&v, msg + f->offset, (size_t)1 << f->kind);
	return v;
}

static void assert_same(const struct layout *l, const uint8_t *a, const uint8_t *b);

static void assert_same_list(const struct field *f, const uint8_t *a, const uint8_t *b)
{
	const uint8_t *x, *y;
	uint32_t n, n_b;

	memcpy(&x, a + f->offset, sizeof(x));
	memcpy(&y, b + f->offset, sizeof(y));
	memcpy(&n, a + f->count_offset, sizeof(n));
	memcpy(&n_b, b + f->count_offset, sizeof(n_b));
	assert_int_equal(n, n_b);
	for (uint32_t i = 0; i < n; i++)
		assert_same(f->sub, x + (size_t)i * f->sub->bytes, y + (size_t)i * f->sub->bytes);
}

static void assert_same(const struct layout *l, const uint8_t *a, const uint8_t *b)
{
	for (uint32_t i = 0; i < l->n_fields; i++) {
		const struct field *f = &l->fields[i];
		struct blob x, y;
		const char *s, *t;

		switch (f->kind) {
		case FIELD_STR:
			memcpy(&s, a + f->offset, sizeof(s));
			memcpy(&t, b + f->offset, sizeof(t));
			assert_string_equal(s, t);
			break;
		case FIELD_BLOB:
			memcpy(&x, a + f->offset, sizeof(x));
			memcpy(&y, b + f->offset, sizeof(y));
			assert_int_equal(x.bytes, y.bytes);
			assert_memory_equal(x.data, y.data, x.bytes);
			break;
		case FIELD_LIST:
			assert_same_list(f, a, b);
			break;
		case FIELD_STRUCT:
			assert_same(f->sub, a + f->offset, b + f->offset);
			break;
		default:
			assert_true(value_of(f, a) == value_of(f, b));
		}
	}
}

/* A generator of random messages from the tables of fields. The memory of a message is a list of
 * blocks, which the test frees. */
struct gen {
	uint64_t state;
	struct block {
		struct block *next;
		uint64_t bytes[];
	} * blocks;
};

static uint64_t gen_next(struct gen *g)
{
	g->state ^= g->state << 13;
	g->state ^= g->state >> 7;
	g->state ^= g->state << 17;
	return g->state;
}

/* Return a random count. Most counts are at most `small`; one in 16 is `max`, the limit. */
static uint32_t gen_count(struct gen *g, uint32_t max, uint32_t small)
{
	uint64_t r = gen_next(g);
	uint32_t n = (uint32_t)(r >> 8) % (small + 1);

	if (r % 16 == 0)
		n = max;
	return n < max ? n : max;
}

static void *gen_mem(struct gen *g, size_t n)
{
	struct block *b = calloc(1, sizeof(*b) + n);

	assert_non_null(b);
	b->next = g->blocks;
	g->blocks = b;
	return b->bytes;
}

static void gen_fini(struct gen *g)
{
	while (g->blocks) {
		struct block *b = g->blocks;

		g->blocks = b->next;
		free(b);
	}
}

static void gen_struct(struct gen *g, const struct layout *l, uint8_t *out);

static void gen_bytes(struct gen *g, const struct field *f, uint8_t *out)
{
	uint32_t n = gen_count(g, f->max, 12);
	uint8_t *s = gen_mem(g, (size_t)n + 1);
	struct blob b = {s, n};

	for (uint32_t i = 0; i < n; i++)
		s[i] = (uint8_t)(f->kind == FIELD_STR ? 1 + gen_next(g) % 255 : gen_next(g));
	if (f->kind == FIELD_STR)
		memcpy(out + f->offset, &s, sizeof(s));
	else
		memcpy(out + f->offset, &b, sizeof(b));
}

static void gen_list(struct gen *g, const struct field *f, uint8_t *out)
{
	uint32_t n = gen_count(g, f->max < 40 ? f->max : 40, 4);
	uint8_t *items = gen_mem(g, (size_t)n * f->sub->bytes);

	for (uint32_t i = 0; i < n; i++)
		gen_struct(g, f->sub, items + (size_t)i * f->sub->bytes);
	memcpy(out + f->offset, &items, sizeof(items));
	memcpy(out + f->count_offset, &n, sizeof(n));
}

static void gen_struct(struct gen *g, const struct layout *l, uint8_t *out)
{
	for (uint32_t i = 0; i < l->n_fields; i++) {
		const struct field *f = &l->fields[i];
		uint64_t v = gen_next(g) >> gen_next(g) % 64;

		if (f->kind == FIELD_LIST)
			gen_list(g, f, out);
		else if (f->kind == FIELD_STRUCT)
			gen_struct(g, f->sub, out + f->offset);
		else if (f->kind == FIELD_STR || f->kind == FIELD_BLOB)
			gen_bytes(g, f, out);
		else
			memcpy(out + f->offset, &v, (size_t)1 << f->kind);
	}
}

static void every_type_has_the_documented_bytes(void **state)
{
	(void)state;
	assert_int_equal(N_GOLDEN, CTL_TYPE_END - 1);
	for (size_t i = 0; i < N_GOLDEN; i++) {
		uint8_t want[256];
		size_t n = hex_parse(goldens[i].hex, want, sizeof(want)), n_got;
		uint8_t *got = encode(goldens[i].m, &n_got);

		assert_int_equal(goldens[i].m->type, i + 1);
		assert_int_equal(n_got, n);
		assert_memory_equal(got, want, n);
		free(got);
	}
}

static void every_type_decodes_to_what_was_encoded(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		uint8_t bytes[256];
		size_t n = hex_parse(goldens[i].hex, bytes, sizeof(bytes));
		unsigned type = goldens[i].m->type;
		struct ctl_msg want = *goldens[i].m, m;
		void *mem = NULL;

		assert_int_equal(decode(type, bytes, n, &m, &mem, NULL), 0);
		assert_int_equal(m.type, type);
		assert_same(ctl_layout(type), body(&want), body(&m));
		free(mem);
	}
}

static void random_messages_of_every_type_survive_a_round_trip(void **state)
{
	struct gen g = {SEED, NULL};

	(void)state;
	for (unsigned i = 0; i < N_ROUND_TRIPS * (CTL_TYPE_END - 1u); i++) {
		struct ctl_msg m, back;
		const struct layout *l;
		void *mem = NULL;
		uint8_t *bytes;
		size_t n;

		memset(&m, 0, sizeof(m));
		m.type = (uint16_t)(1 + i % (CTL_TYPE_END - 1u));
		l = ctl_layout(m.type);
		gen_struct(&g, l, body(&m));
		bytes = encode(&m, &n);
		assert_int_equal(decode(m.type, bytes, n, &back, &mem, NULL), 0);
		assert_same(l, body(&m), body(&back));
		free(mem);
		free(bytes);
		gen_fini(&g);
	}
}

static void truncation_at_every_length_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		uint8_t bytes[256];
		size_t n = hex_parse(goldens[i].hex, bytes, sizeof(bytes));
		struct ctl_msg m;
		void *mem = NULL;

		for (size_t cut = 0; cut < n; cut++)
			assert_int_equal(
				decode(goldens[i].m->type, bytes, cut, &m, &mem, NULL), BPS_EPROTO);
		assert_null(mem);
	}
}

static void corruption_of_any_byte_is_refused_or_decodes_to_a_valid_message(void **state)
{
	size_t n_valid = 0, n_refused = 0;

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		uint8_t bytes[256];
		size_t n = hex_parse(goldens[i].hex, bytes, sizeof(bytes));

		for (size_t at = 0; at < n; at++) {
			uint8_t was = bytes[at];

			for (unsigned flip = 1; flip < 256; flip++) {
				struct ctl_msg m;
				void *mem = NULL;

				bytes[at] = (uint8_t)(was ^ flip);
				if (decode(goldens[i].m->type, bytes, n, &m, &mem, NULL)) {
					n_refused++;
					continue;
				}
				n_valid++;
				assert_int_not_equal(
					codec_encoded_size(ctl_layout(m.type), body(&m)), 0);
				free(mem);
			}
			bytes[at] = was;
		}
	}
	assert_int_not_equal(n_valid, 0);
	assert_int_not_equal(n_refused, 0);
}

static void fields_that_a_newer_peer_appends_are_skipped(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		uint8_t bytes[256];
		size_t n = hex_parse(goldens[i].hex, bytes, sizeof(bytes));
		struct ctl_msg want = *goldens[i].m, m;
		void *mem = NULL;

		assert_in_range(bytes[0], 0, 200);
		assert_int_equal(bytes[1], 0);
		bytes[0] = (uint8_t)(bytes[0] + 9);
		memset(bytes + n, 0xee, 9);
		assert_int_equal(decode(want.type, bytes, n + 9, &m, &mem, NULL), 0);
		assert_same(ctl_layout(want.type), body(&want), body(&m));
		free(mem);
	}
}

static void fields_that_an_older_peer_lacks_are_zero(void **state)
{
	static const uint8_t empty[4];
	static const char *const no_text = "";

	(void)state;
	for (unsigned type = 1; type < CTL_TYPE_END; type++) {
		struct ctl_msg zero = {.type = 0}, m;
		const struct layout *l = ctl_layout(type);
		uint8_t *want = body(&zero);
		void *mem = &m;

		for (uint32_t i = 0; i < l->n_fields; i++)
			if (l->fields[i].kind == FIELD_STR)
				memcpy(want + l->fields[i].offset, &no_text, sizeof(no_text));
		memset(&m, 0x5a, sizeof(m));
		assert_int_equal(decode(type, empty, sizeof(empty), &m, &mem, NULL), 0);
		assert_same(l, want, body(&m));
		assert_null(mem);
	}
}

static void an_unknown_type_is_refused(void **state)
{
	static const uint8_t empty[4];
	struct err_text err;
	struct ctl_msg m;
	void *mem;

	(void)state;
	assert_int_equal(decode(0, empty, 4, &m, &mem, &err), BPS_EPROTO);
	assert_string_equal(err.s, "unknown control message type 0");
	assert_int_equal(decode(CTL_TYPE_END, empty, 4, &m, &mem, NULL), BPS_EPROTO);
	assert_int_equal(decode(UINT32_MAX, empty, 4, &m, &mem, NULL), BPS_EPROTO);
	assert_null(ctl_layout(0));
	assert_null(ctl_layout(CTL_TYPE_END));
	assert_null(ctl_type_name(0));
	assert_null(ctl_type_name(CTL_TYPE_END));
}

static void every_type_has_a_name_and_a_layout(void **state)
{
	(void)state;
	assert_string_equal(ctl_type_name(CTL_HELLO), "HELLO");
	assert_string_equal(ctl_type_name(CTL_TENSOR_FAIL), "TENSOR_FAIL");
	assert_string_equal(ctl_type_name(CTL_REPORT), "REPORT");
	assert_string_equal(ctl_layout(CTL_JOB_END)->name, "ctl_job_end");
	for (unsigned type = 1; type < CTL_TYPE_END; type++) {
		assert_non_null(ctl_type_name(type));
		assert_non_null(ctl_layout(type));
		assert_in_range(ctl_layout(type)->bytes, 1,
			sizeof(struct ctl_msg) - offsetof(struct ctl_msg, hello));
	}
}

static void names_and_keys_longer_than_their_limit_are_not_sent(void **state)
{
	static char name[CTL_JOB_NAME_MAX + 2];
	struct ctl_join j = join.join;
	struct ctl_peer p = one_peer[0];
	struct ctl_peers ps = {1, &p, 1};

	(void)state;
	memset(name, 'x', CTL_JOB_NAME_MAX);
	j.job = name;
	assert_int_not_equal(codec_encoded_size(ctl_layout(CTL_JOIN), &j), 0);
	name[CTL_JOB_NAME_MAX] = 'x';
	assert_int_equal(codec_encoded_size(ctl_layout(CTL_JOIN), &j), 0);
	p.key.bytes = CTL_KEY_BYTES + 1;
	assert_int_equal(codec_encoded_size(ctl_layout(CTL_PEERS), &ps), 0);
}

/* The memory limit of one decoded message is a protection against peers without a key. The limit
 * must still allow the largest messages of a job of 65,536 workers. */
static void the_largest_report_and_job_fit_in_the_memory_limit(void **state)
{
	struct ctl_report_worker *workers = calloc(CTL_WORKERS_MAX, sizeof(*workers));
	struct ctl_rank *ranks = calloc(CTL_WORKERS_MAX, sizeof(*ranks));
	struct ctl_job_member members[2] = {{0, "a", ranks, CTL_WORKERS_MAX, 0, "", 1, "a0"},
		{1, "b", NULL, 0, 0, "", 1, "a1"}};
	const struct ctl_msg big[] = {
		{CTL_REPORT, .report = {1, 1, "t", workers, CTL_WORKERS_MAX}},
		{CTL_JOB, .job = {1, 1, 1, "j", CTL_WORKERS_MAX, 0, members, 2, 1, 0, 0, 0, 0, 0}},
	};

	(void)state;
	assert_non_null(workers);
	assert_non_null(ranks);
	for (size_t i = 0; i < 2; i++) {
		struct ctl_msg m;
		void *mem = NULL;
		size_t n;
		uint8_t *bytes = encode(&big[i], &n);

		assert_int_equal(decode(big[i].type, bytes, n, &m, &mem, NULL), 0);
		free(mem);
		free(bytes);
	}
	free(workers);
	free(ranks);
}

/* A message has 1,024 members of 65,536 ranks each. Each list obeys its limit, but memory for all
 * lists together must not be allocated. */
static void a_job_of_too_many_ranks_in_all_is_refused(void **state)
{
	struct ctl_rank *ranks = calloc(CTL_WORKERS_MAX, sizeof(*ranks));
	struct ctl_job_member members[40];
	const struct ctl_msg big = {
		CTL_JOB, .job = {1, 1, 1, "j", 1, 0, members, 40, 1, 0, 0, 0, 0, 0}};
	struct err_text err;
	struct ctl_msg m;
	void *mem = NULL;
	uint8_t *bytes;
	size_t n;

	(void)state;
	assert_non_null(ranks);
	for (size_t i = 0; i < 40; i++)
		members[i] =
			(struct ctl_job_member){1, "h", ranks, CTL_WORKERS_MAX, 0, "", 1, "a0"};
	bytes = encode(&big, &n);
	assert_int_equal(decode(CTL_JOB, bytes, n, &m, &mem, &err), -E2BIG);
	assert_string_equal(err.s, "decoding needs more than 8388608 bytes of memory");
	free(bytes);
	free(ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_type_has_the_documented_bytes),
		cmocka_unit_test(every_type_decodes_to_what_was_encoded),
		cmocka_unit_test(random_messages_of_every_type_survive_a_round_trip),
		cmocka_unit_test(truncation_at_every_length_is_refused),
		cmocka_unit_test(corruption_of_any_byte_is_refused_or_decodes_to_a_valid_message),
		cmocka_unit_test(fields_that_a_newer_peer_appends_are_skipped),
		cmocka_unit_test(fields_that_an_older_peer_lacks_are_zero),
		cmocka_unit_test(an_unknown_type_is_refused),
		cmocka_unit_test(every_type_has_a_name_and_a_layout),
		cmocka_unit_test(names_and_keys_longer_than_their_limit_are_not_sent),
		cmocka_unit_test(the_largest_report_and_job_fit_in_the_memory_limit),
		cmocka_unit_test(a_job_of_too_many_ranks_in_all_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
