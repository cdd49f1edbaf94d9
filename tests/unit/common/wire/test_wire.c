/* Data messages between agents and servers: golden bytes of each type, corrupted bytes, fields with
 * invalid values. One thread, no I/O. */
#include "common/wire/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/hex.h"

#define ROOM 512

/* Fields that are the same in all golden messages about a partition. */
#define KEY                                                                                        \
	.cookie = 0x0102030405060708, .pgen = 0x1112131415161718, .round = 0x2122232425262728,     \
	.job = 0x31323334, .tensor = 0x35363738, .part = 0x41424344, .member = 0x4546
#define CREDITS     .credits = 0x5758
#define HEX_COOKIE  " 0807060504030201"
#define HEX_PGEN    " 1817161514131211"
#define HEX_ROUND   " 2827262524232221"
#define HEX_JOB     " 34333231 38373635"
#define HEX_PART    " 44434241 4645"
#define HEX_KEY     HEX_COOKIE HEX_PGEN HEX_ROUND HEX_JOB HEX_PART
#define HEX_CREDITS " 5857"
#define HEX_8       " 0000000000000000"
#define HEX_4       " 00000000"
#define HEX_2       " 0000"
/* Fields of an offer, in the order crc, priority, len, segment, credits, offset. */
#define OFFER                                                                                      \
	.crc = 0xc1c2c3c4, .priority = 0x4748, .len = 0x51525354, .segment = 0x5556, CREDITS,      \
	.offset = 0x6162636465666768
#define HEX_CRC   " c4c3c2c1"
#define HEX_OFFER " 4847 54535251 5655" HEX_CREDITS " 6867666564636261"
/* Fields of a message that has five bytes inline in place of an offer. */
#define INLINE                                                                                     \
	.flags = WIRE_INLINE, .crc = 0xc1c2c3c4, .priority = 0x4748, .len = 5, CREDITS,            \
	.payload = "hello"
#define HEX_INLINE  " 4847 05000000 0000" HEX_CREDITS HEX_8
#define HEX_HELLO   " 68656c6c6f 000000"
#define CONTRIB_    .contrib = {.crc_prev = 0xd1d2d3d4, .op = 0xe2, .workers = 8}
#define HEX_CONTRIB " d4d3d2d1 e2 000000 08000000 00000000"
#define RESULT_MEMBERS                                                                             \
	{                                                                                          \
		{                                                                                  \
			0x8000000000000001, 4                                                      \
		}                                                                                  \
	}
#define RESULT_                                                                                    \
	.result = {.workers = 9,                                                                   \
		.n_members = 67,                                                                   \
		.last = 66,                                                                        \
		.wait_us = 0xb1b2b3b4,                                                             \
		.sum_us = 5,                                                                       \
		.version = 0xa1a2a3a4a5a6a7a8,                                                     \
		.contributors = RESULT_MEMBERS}
#define HEX_RESULT                                                                                 \
	" 09000000 4300 4200 b4b3b2b1 05000000 a8a7a6a5a4a3a2a1 0100000000000080 0400000000000000"

static const struct golden {
	struct wire_msg m;
	const char *hex;
} goldens[] = {
	{{.type = WIRE_CONTRIB, KEY, OFFER, CONTRIB_},
		"01 04 0000" HEX_CRC HEX_KEY HEX_OFFER HEX_CONTRIB},
	{{.type = WIRE_CONTRIB, .flags = WIRE_EAGER, KEY, OFFER, CONTRIB_},
		"01 04 0200" HEX_CRC HEX_KEY HEX_OFFER HEX_CONTRIB},
	{{.type = WIRE_CONTRIB, KEY, INLINE, CONTRIB_},
		"01 04 0100" HEX_CRC HEX_KEY HEX_INLINE HEX_CONTRIB HEX_HELLO},
	{{.type = WIRE_RESULT, KEY, OFFER, RESULT_},
		"02 04 0000" HEX_CRC HEX_KEY HEX_OFFER HEX_RESULT},
	{{.type = WIRE_RESULT, KEY, INLINE, RESULT_},
		"02 04 0100" HEX_CRC HEX_KEY HEX_INLINE HEX_RESULT HEX_HELLO},
	{{.type = WIRE_RESULT, .flags = WIRE_LATE, KEY, OFFER, RESULT_},
		"02 04 0400" HEX_CRC HEX_KEY HEX_OFFER HEX_RESULT},
	{{.type = WIRE_HAVE, KEY, CREDITS}, "03 04 0000" HEX_4 HEX_KEY HEX_8 HEX_CREDITS HEX_8},
	{{.type = WIRE_HAVE_OK, KEY, CREDITS}, "04 04 0000" HEX_4 HEX_KEY HEX_8 HEX_CREDITS HEX_8},
	{{.type = WIRE_DONATE_REQ, KEY, CREDITS},
		"05 04 0000" HEX_4 HEX_KEY HEX_8 HEX_CREDITS HEX_8},
	{{.type = WIRE_DONATE, KEY, OFFER, RESULT_},
		"06 04 0000" HEX_CRC HEX_KEY HEX_OFFER HEX_RESULT},
	{{.type = WIRE_DONATE, KEY, INLINE, RESULT_},
		"06 04 0100" HEX_CRC HEX_KEY HEX_INLINE HEX_RESULT HEX_HELLO},
	{{.type = WIRE_GOT, KEY, CREDITS}, "07 04 0000" HEX_4 HEX_KEY HEX_8 HEX_CREDITS HEX_8},
	{{.type = WIRE_AGAIN, KEY, CREDITS}, "08 04 0000" HEX_4 HEX_KEY HEX_8 HEX_CREDITS HEX_8},
	{{.type = WIRE_BAD_CRC, KEY, CREDITS, .crc = 0xc1c2c3c4},
		"09 04 0000" HEX_CRC HEX_KEY HEX_8 HEX_CREDITS HEX_8},
	{{.type = WIRE_CREDIT, .cookie = 0x0102030405060708, CREDITS},
		"0a 04 0000" HEX_4 HEX_COOKIE HEX_8 HEX_8 HEX_8 HEX_8 HEX_4 HEX_2 HEX_CREDITS
			HEX_8},
	{{.type = WIRE_PING, .cookie = 0x0102030405060708, .round = 0x2122232425262728, CREDITS},
		"0b 04 0000" HEX_4 HEX_COOKIE HEX_8 HEX_ROUND HEX_8 HEX_8 HEX_4 HEX_2 HEX_CREDITS
			HEX_8},
	{{.type = WIRE_PONG, .cookie = 0x0102030405060708, .round = 0x2122232425262728, CREDITS},
		"0c 04 0000" HEX_4 HEX_COOKIE HEX_8 HEX_ROUND HEX_8 HEX_8 HEX_4 HEX_2 HEX_CREDITS
			HEX_8},
	{{.type = WIRE_SEG_ADD,
		 .cookie = 0x0102030405060708,
		 .segment = 0x5556,
		 CREDITS,
		 .seg = {0x7172737475767778, 0x8182838485868788, 0x0192939495969798}},
		"0d 04 0000" HEX_4 HEX_COOKIE HEX_8 HEX_8 HEX_8 HEX_8 HEX_4
		" 5655" HEX_CREDITS HEX_8 " 7877767574737271 8887868584838281 9897969594939201"},
	{{.type = WIRE_SEG_DEL, .cookie = 0x0102030405060708, .segment = 0x5556, CREDITS},
		"0e 04 0000" HEX_4 HEX_COOKIE HEX_8 HEX_8 HEX_8 HEX_8 HEX_4
		" 5655" HEX_CREDITS HEX_8},
	{{.type = WIRE_DISCARDED,
		 .cookie = 0x0102030405060708,
		 .segment = 0x5556,
		 CREDITS,
		 .offset = 0x6162636465666768},
		"0f 04 0000" HEX_4 HEX_COOKIE HEX_8 HEX_8 HEX_8 HEX_8 HEX_4 " 5655" HEX_CREDITS
		" 6867666564636261"},
	{{.type = WIRE_HOLD, KEY, CREDITS, .hold = {.version = 0xa1a2a3a4a5a6a7a8}},
		"10 04 0000" HEX_4 HEX_KEY HEX_8 HEX_CREDITS HEX_8 " a8a7a6a5a4a3a2a1"},
	/* a machine whose workers all abstain */
	{{.type = WIRE_CONTRIB,
		 .flags = WIRE_INLINE,
		 KEY,
		 .priority = 0x4748,
		 CREDITS,
		 .contrib = {.crc_prev = 0xd1d2d3d4, .op = 0xe2}},
		"01 04 0100" HEX_4 HEX_KEY " 4847" HEX_4 HEX_2 HEX_CREDITS HEX_8
		" d4d3d2d1 e2 000000 00000000 00000000"},
};
#define N_GOLDEN (sizeof(goldens) / sizeof(goldens[0]))

/* Return an aligned copy that is exactly as large as its content, so that a sanitizer detects each
 * access beyond it. */
static uint8_t *exact_dup(const void *bytes, size_t n)
{
	uint8_t *p = malloc(n + !n);

	assert_non_null(p);
	if (n)
		memcpy(p, bytes, n);
	return p;
}

static int decode(const void *bytes, size_t n, struct wire_msg *ret, struct err_text *err)
{
	uint8_t *copy = exact_dup(bytes, n);
	int rc = wire_decode(copy, n, ret, err);

	if (rc >= 0 && ret->payload)
		ret->payload = (const uint8_t *)bytes + ((const uint8_t *)ret->payload - copy);
	free(copy);
	return rc;
}

static void assert_same(const struct wire_msg *a, const struct wire_msg *b)
{
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->crc, b->crc);
	assert_true(a->cookie == b->cookie);
	assert_true(a->pgen == b->pgen);
	assert_true(a->round == b->round);
	assert_int_equal(a->job, b->job);
	assert_int_equal(a->tensor, b->tensor);
	assert_int_equal(a->part, b->part);
	assert_int_equal(a->member, b->member);
	assert_int_equal(a->priority, b->priority);
	assert_int_equal(a->len, b->len);
	assert_int_equal(a->segment, b->segment);
	assert_int_equal(a->credits, b->credits);
	assert_true(a->offset == b->offset);
	assert_int_equal(!a->payload, !b->payload);
	if (a->payload)
		assert_memory_equal(a->payload, b->payload, a->len);
	if (a->type == WIRE_CONTRIB) {
		assert_int_equal(a->contrib.crc_prev, b->contrib.crc_prev);
		assert_int_equal(a->contrib.op, b->contrib.op);
		assert_int_equal(a->contrib.workers, b->contrib.workers);
	}
	if (a->type == WIRE_RESULT || a->type == WIRE_DONATE) {
		assert_int_equal(a->result.workers, b->result.workers);
		assert_int_equal(a->result.n_members, b->result.n_members);
		assert_int_equal(a->result.last, b->result.last);
		assert_int_equal(a->result.wait_us, b->result.wait_us);
		assert_int_equal(a->result.sum_us, b->result.sum_us);
		assert_true(a->result.version == b->result.version);
		assert_memory_equal(&a->result.contributors, &b->result.contributors,
			sizeof(a->result.contributors));
	}
	if (a->type == WIRE_HOLD)
		assert_true(a->hold.version == b->hold.version);
	if (a->type == WIRE_SEG_ADD) {
		assert_true(a->seg.base == b->seg.base);
		assert_true(a->seg.key == b->seg.key);
		assert_true(a->seg.bytes == b->seg.bytes);
	}
}

/* Encode golden message i. Tests change bytes of the result. */
static size_t golden_encode(size_t i, uint8_t *buf)
{
	assert_in_range(wire_size(&goldens[i].m), WIRE_HDR_BYTES, ROOM);
	return wire_encode(&goldens[i].m, buf);
}

static size_t golden_find(unsigned type, unsigned flags)
{
	for (size_t i = 0; i < N_GOLDEN; i++)
		if (goldens[i].m.type == type && goldens[i].m.flags == flags)
			return i;
	fail();
	return 0;
}

static void every_type_has_the_documented_bytes(void **state)
{
	uint8_t want[ROOM], got[ROOM];

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		size_t n = hex_parse(goldens[i].hex, want, ROOM);

		memset(got, 0x5a, sizeof(got));
		assert_int_equal(wire_size(&goldens[i].m), n);
		assert_int_equal(wire_encode(&goldens[i].m, got), n);
		assert_memory_equal(got, want, n);
		assert_int_equal(got[n], 0x5a);
	}
	for (unsigned type = 1; type < WIRE_TYPE_END; type++)
		golden_find(type, 0);
}

static void decode_gives_back_what_was_encoded(void **state)
{
	uint8_t buf[ROOM];

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		size_t n = golden_encode(i, buf);
		struct wire_msg m;

		memset(&m, 0x5a, sizeof(m));
		assert_int_equal(decode(buf, n, &m, NULL), n);
		assert_same(&m, &goldens[i].m);
	}
}

static void messages_that_share_a_send_are_found_one_after_the_other(void **state)
{
	static uint64_t buf[N_GOLDEN * ROOM / 8];
	size_t n = 0, at = 0;

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++)
		n += golden_encode(i, (uint8_t *)buf + n);
	for (size_t i = 0; i < N_GOLDEN; i++) {
		struct wire_msg m;
		int rc = wire_decode((uint8_t *)buf + at, n - at, &m, NULL);

		assert_true(rc > 0);
		assert_int_equal(rc % 8, 0);
		assert_same(&m, &goldens[i].m);
		assert_int_equal((uintptr_t)m.payload % 8, 0);
		at += (size_t)rc;
	}
	assert_int_equal(at, n);
}

static void truncation_at_every_length_is_refused(void **state)
{
	uint8_t buf[ROOM];

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		size_t n = golden_encode(i, buf);
		struct wire_msg m;

		for (size_t cut = 0; cut < n; cut++)
			assert_int_equal(decode(buf, cut, &m, NULL), BPS_EPROTO);
	}
}

/* Change each byte of each message. Every valid message has exactly one encoding, so no byte is
 * ignored. */
static void corruption_of_any_byte_is_refused_or_seen_in_the_message(void **state)
{
	uint8_t buf[ROOM], again[ROOM];
	size_t n_valid = 0, n_refused = 0;

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		size_t n = golden_encode(i, buf);

		for (size_t at = 0; at < n; at++) {
			uint8_t was = buf[at];

			for (unsigned v = 0; v < 256; v++) {
				struct wire_msg m;
				int rc;

				buf[at] = (uint8_t)v;
				rc = decode(buf, n, &m, NULL);
				if (rc < 0) {
					n_refused++;
					continue;
				}
				n_valid++;
				assert_int_equal(wire_encode(&m, again), rc);
				assert_memory_equal(again, buf, (size_t)rc);
			}
			buf[at] = was;
		}
	}
	assert_int_not_equal(n_valid, 0);
	assert_int_not_equal(n_refused, 0);
}

/* For each field of the header: its offset, its width, and the message types that use the field.
 * The table omits the fields `type`, `version`, `cookie` and `credits`. */
#define T(type) (1u << WIRE_##type)
#define T_OFFER (T(CONTRIB) | T(RESULT) | T(DONATE))
#define T_PARTITION                                                                                \
	(T_OFFER | T(HAVE) | T(HAVE_OK) | T(DONATE_REQ) | T(GOT) | T(AGAIN) | T(BAD_CRC) | T(HOLD))
static const struct {
	const char *name;
	size_t at, n_bytes;
	unsigned types;
	bool is_inline_too;
} uses[] = {
	{"crc", 4, 4, T_OFFER | T(BAD_CRC), true},
	{"pgen", 16, 8, T_PARTITION, true},
	{"round", 24, 8, T_PARTITION | T(PING) | T(PONG), true},
	{"job", 32, 4, T_PARTITION, true},
	{"tensor", 36, 4, T_PARTITION, true},
	{"part", 40, 4, T_PARTITION, true},
	{"member", 44, 2, T_PARTITION, true},
	{"priority", 46, 2, T_OFFER, true},
	{"len", 48, 4, T_OFFER, true},
	{"segment", 52, 2, T_OFFER | T(SEG_ADD) | T(SEG_DEL) | T(DISCARDED), false},
	{"offset", 56, 8, T_OFFER | T(DISCARDED), false},
};

static void a_field_that_a_type_does_not_use_is_refused_by_name(void **state)
{
	uint8_t buf[ROOM];

	(void)state;
	for (size_t i = 0; i < N_GOLDEN; i++) {
		const struct wire_msg *g = &goldens[i].m;

		for (size_t u = 0; u < sizeof(uses) / sizeof(uses[0]); u++) {
			bool is_used = (uses[u].types & 1u << g->type) &&
				       (!(g->flags & WIRE_INLINE) || uses[u].is_inline_too);
			struct wire_msg m;
			struct err_text err, want;

			err_set(&want, 0, "%s has %s set, which this message type does not use",
				wire_type_name(g->type), uses[u].name);
			for (size_t b = 0; b < uses[u].n_bytes && !is_used; b++) {
				size_t n = golden_encode(i, buf);

				buf[uses[u].at + b] = 0x80;
				assert_int_equal(decode(buf, n, &m, &err), BPS_EPROTO);
				assert_string_equal(err.s, want.s);
			}
		}
	}
}

static void encode_leaves_unused_fields_zero(void **state)
{
	struct wire_msg m = goldens[golden_find(WIRE_CONTRIB, WIRE_INLINE)].m, back;
	uint8_t buf[ROOM];

	(void)state;
	m.segment = WIRE_NO_SEGMENT;
	m.offset = 77;
	assert_int_equal(decode(buf, wire_encode(&m, buf), &back, NULL), wire_size(&m));
	assert_int_equal(back.segment, 0);
	assert_true(back.offset == 0);
	m = goldens[golden_find(WIRE_RESULT, 0)].m;
	m.type = WIRE_HAVE_OK;
	assert_int_equal(decode(buf, wire_encode(&m, buf), &back, NULL), WIRE_HDR_BYTES);
	assert_int_equal(back.len, 0);
}

/* Encode the golden message that has this type and these flags. Overwrite n bytes at the offset
 * `at` with the lowest n bytes of v, in little-endian order. Returns the result of decoding the
 * changed message. */
static int decode_patched(
	unsigned type, unsigned flags, size_t at, size_t n, uint64_t v, struct err_text *err)
{
	uint8_t buf[ROOM];
	size_t n_bytes = golden_encode(golden_find(type, flags), buf);
	struct wire_msg m;

	for (size_t i = 0; i < n; i++)
		buf[at + i] = (uint8_t)(v >> 8 * i);
	return decode(buf, n_bytes, &m, err);
}

static void bad_values_are_refused_with_a_sentence(void **state)
{
	static const struct {
		unsigned type, flags;
		size_t at, n;
		uint64_t v;
		const char *text;
	} rows[] = {
		{WIRE_HAVE, 0, 0, 1, 0, "unknown message type 0"},
		{WIRE_HAVE, 0, 0, 1, WIRE_TYPE_END, "unknown message type 17"},
		{WIRE_HAVE, 0, 0, 1, 255, "unknown message type 255"},
		{WIRE_HAVE, 0, 1, 1, 0,
			"message has version 0, but only version 4 is supported: install the same "
			"release at both ends"},
		{WIRE_HAVE, 0, 1, 1, 1,
			"message has version 1, but only version 4 is supported: install the same "
			"release at both ends"},
		{WIRE_HAVE, 0, 2, 2, 1,
			"HAVE has inline set, which this message type does not use"},
		{WIRE_HAVE, 0, 2, 2, 2, "HAVE has eager set, which this message type does not use"},
		{WIRE_CONTRIB, WIRE_INLINE, 2, 2, 3,
			"CONTRIB has eager set, which this message type does not use"},
		{WIRE_CONTRIB, 0, 2, 2, 4,
			"CONTRIB has late set, which this message type does not use"},
		{WIRE_DONATE, 0, 2, 2, 4,
			"DONATE has late set, which this message type does not use"},
		{WIRE_RESULT, 0, 2, 2, 8,
			"RESULT has flags set, which this message type does not use"},
		{WIRE_CONTRIB, 0, 2, 2, 0x8000,
			"CONTRIB has flags set, which this message type does not use"},
		{WIRE_CONTRIB, 0, 24, 8, 0, "CONTRIB has round 0, but rounds count from 1"},
		{WIRE_RESULT, 0, 24, 8, 0, "RESULT has round 0, but rounds count from 1"},
		{WIRE_DONATE_REQ, 0, 24, 8, 0, "DONATE_REQ has round 0, but rounds count from 1"},
		{WIRE_DONATE, 0, 24, 8, 0, "DONATE has round 0, but rounds count from 1"},
		{WIRE_GOT, 0, 24, 8, 0, "GOT has round 0, but rounds count from 1"},
		{WIRE_BAD_CRC, 0, 24, 8, 0, "BAD_CRC has round 0, but rounds count from 1"},
		{WIRE_CONTRIB, 0, 48, 4, 0, "CONTRIB has a payload of invalid length: 0 bytes"},
		{WIRE_RESULT, 0, 48, 4, 0, "RESULT has a payload of invalid length: 0 bytes"},
		{WIRE_CONTRIB, WIRE_INLINE, 48, 4, 0, "CONTRIB names workers, but has no bytes"},
		{WIRE_CONTRIB, WIRE_INLINE, 72, 4, 0, "CONTRIB has bytes, but names no worker"},
		{WIRE_CONTRIB, 0, 72, 4, 0, "CONTRIB has bytes, but names no worker"},
		{WIRE_DONATE, 0, 48, 4, 0, "DONATE has a payload of invalid length: 0 bytes"},
		{WIRE_CONTRIB, WIRE_INLINE, 48, 4, WIRE_INLINE_MAX + 1,
			"CONTRIB has a payload of invalid length: 16385 bytes"},
		{WIRE_CONTRIB, WIRE_INLINE, 48, 4, UINT32_MAX,
			"CONTRIB has a payload of invalid length: 4294967295 bytes"},
		{WIRE_CONTRIB, WIRE_INLINE, 48, 4, 9,
			"CONTRIB needs 96 bytes, only 88 were received"},
		{WIRE_CONTRIB, 0, 52, 2, WIRE_NO_SEGMENT, "CONTRIB does not name a segment"},
		{WIRE_DONATE, 0, 52, 2, WIRE_NO_SEGMENT, "DONATE does not name a segment"},
		{WIRE_SEG_ADD, 0, 52, 2, WIRE_NO_SEGMENT, "SEG_ADD does not name a segment"},
		{WIRE_SEG_DEL, 0, 52, 2, WIRE_NO_SEGMENT, "SEG_DEL does not name a segment"},
		{WIRE_RESULT, 0, 56, 8, UINT64_MAX,
			"RESULT has a payload that ends beyond the largest 64-bit offset"},
		{WIRE_CONTRIB, 0, 69, 3, 1, "CONTRIB has a reserved field that is not 0"},
		{WIRE_CONTRIB, 0, 76, 4, 1, "CONTRIB has a reserved field that is not 0"},
		{WIRE_RESULT, 0, 68, 2, 0, "RESULT has an invalid number of members: 0"},
		{WIRE_DONATE, 0, 68, 2, 1025, "DONATE has an invalid number of members: 1025"},
		{WIRE_RESULT, 0, 68, 2, 66,
			"RESULT has a contributor that is not one of its 66 members"},
		{WIRE_RESULT, 0, 68, 2, 129, "RESULT needs 112 bytes, only 104 were received"},
		{WIRE_CONTRIB, WIRE_INLINE, 85, 1, 1, "CONTRIB has padding that is not zero"},
		{WIRE_CONTRIB, WIRE_INLINE, 87, 1, 1, "CONTRIB has padding that is not zero"},
		{WIRE_SEG_ADD, 0, 80, 8, 0, "SEG_ADD has an invalid segment size"},
		{WIRE_SEG_ADD, 0, 80, 8, UINT64_MAX, "SEG_ADD has an invalid segment size"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err_text err = {""};

		assert_int_equal(decode_patched(rows[i].type, rows[i].flags, rows[i].at, rows[i].n,
					 rows[i].v, &err),
			BPS_EPROTO);
		assert_string_equal(err.s, rows[i].text);
	}
}

static void a_ping_of_number_zero_is_a_ping(void **state)
{
	(void)state;
	assert_int_equal(decode_patched(WIRE_PING, 0, 24, 8, 0, NULL), WIRE_HDR_BYTES);
	assert_int_equal(decode_patched(WIRE_PONG, 0, 24, 8, 0, NULL), WIRE_HDR_BYTES);
}

static void the_largest_message_fits_the_largest_send(void **state)
{
	static uint8_t payload[WIRE_INLINE_MAX];
	struct wire_msg m = goldens[golden_find(WIRE_RESULT, WIRE_INLINE)].m, back;
	uint8_t *buf;
	size_t n;

	(void)state;
	m.len = sizeof(payload);
	m.payload = payload;
	m.result.n_members = WIRE_MEMBERS_MAX;
	for (unsigned i = 0; i < WIRE_MEMBERS_MAX; i++)
		member_set_add(&m.result.contributors, i);
	n = wire_size(&m);
	assert_in_range(n, WIRE_INLINE_MAX, WIRE_SEND_MAX);
	buf = malloc(n);
	assert_non_null(buf);
	assert_int_equal(wire_encode(&m, buf), n);
	assert_int_equal(wire_decode(buf, n, &back, NULL), n);
	assert_same(&back, &m);
	free(buf);
}

static void every_size_of_a_job_has_its_bitmap(void **state)
{
	struct wire_msg m = goldens[golden_find(WIRE_RESULT, 0)].m, back;
	uint8_t buf[ROOM];

	(void)state;
	for (unsigned n = 1; n <= WIRE_MEMBERS_MAX; n++) {
		memset(&m.result.contributors, 0xff, sizeof(m.result.contributors));
		m.result.n_members = (uint16_t)n;
		assert_int_equal(wire_size(&m), WIRE_HDR_BYTES + 24 + (n + 63) / 64 * 8);
		assert_int_equal(decode(buf, wire_encode(&m, buf), &back, NULL), wire_size(&m));
		for (unsigned i = 0; i < WIRE_MEMBERS_MAX; i++)
			assert_int_equal(member_set_has(&back.result.contributors, i), i < n);
	}
}

static void every_inline_length_is_padded_with_zeros(void **state)
{
	struct wire_msg m = goldens[golden_find(WIRE_CONTRIB, WIRE_INLINE)].m, back;
	uint8_t payload[64], buf[ROOM];

	(void)state;
	memset(payload, 0xff, sizeof(payload));
	m.payload = payload;
	for (uint32_t len = 1; len <= sizeof(payload); len++) {
		size_t n = WIRE_HDR_BYTES + 16 + (len + 7) / 8 * 8;

		memset(buf, 0x5a, sizeof(buf));
		m.len = len;
		assert_int_equal(wire_encode(&m, buf), n);
		for (size_t i = WIRE_HDR_BYTES + 16 + len; i < n; i++)
			assert_int_equal(buf[i], 0);
		assert_int_equal(buf[n], 0x5a);
		assert_int_equal(decode(buf, n, &back, NULL), n);
		assert_same(&back, &m);
	}
}

static void the_output_stays_untouched_when_decoding_fails(void **state)
{
	uint8_t buf[ROOM];
	size_t n = golden_encode(golden_find(WIRE_CONTRIB, WIRE_INLINE), buf);
	struct wire_msg m, before;

	(void)state;
	memset(&m, 0x5a, sizeof(m));
	memcpy(&before, &m, sizeof(m));
	buf[n - 1] = 1;
	assert_int_equal(decode(buf, n, &m, NULL), BPS_EPROTO);
	assert_memory_equal(&m, &before, sizeof(m));
}

static void every_type_has_a_name(void **state)
{
	(void)state;
	assert_string_equal(wire_type_name(WIRE_CONTRIB), "CONTRIB");
	assert_string_equal(wire_type_name(WIRE_DISCARDED), "DISCARDED");
	for (unsigned type = 1; type < WIRE_TYPE_END; type++)
		assert_string_not_equal(wire_type_name(type), "?");
	assert_string_equal(wire_type_name(0), "?");
	assert_string_equal(wire_type_name(WIRE_TYPE_END), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_type_has_the_documented_bytes),
		cmocka_unit_test(decode_gives_back_what_was_encoded),
		cmocka_unit_test(messages_that_share_a_send_are_found_one_after_the_other),
		cmocka_unit_test(truncation_at_every_length_is_refused),
		cmocka_unit_test(corruption_of_any_byte_is_refused_or_seen_in_the_message),
		cmocka_unit_test(a_field_that_a_type_does_not_use_is_refused_by_name),
		cmocka_unit_test(encode_leaves_unused_fields_zero),
		cmocka_unit_test(bad_values_are_refused_with_a_sentence),
		cmocka_unit_test(a_ping_of_number_zero_is_a_ping),
		cmocka_unit_test(the_largest_message_fits_the_largest_send),
		cmocka_unit_test(every_size_of_a_job_has_its_bitmap),
		cmocka_unit_test(every_inline_length_is_padded_with_zeros),
		cmocka_unit_test(the_output_stays_untouched_when_decoding_fails),
		cmocka_unit_test(every_type_has_a_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
