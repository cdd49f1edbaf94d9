/* Encode and decode messages of the data plane with a table of types and a table of fields. The
 * decoder checks every length, flag and reserved bit, but not the meaning of numbers. The functions
 * keep no state and may be called on any thread. */
#include "common/wire/wire.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#define HDR_WORDS   (WIRE_HDR_BYTES / 8)
#define ALIGN_BYTES 8

/* Position of each field in the header's eight little-endian words: X(a, b, field, word, shift,
 * bits). a and b are arguments that WIRE_FIELDS passes on to X. Type, version, flags, cookie and
 * credits belong to every message and are not listed. FLAG_X takes the known flags, and X the
 * members of struct wire_msg. */
#define WIRE_FIELDS(X, FLAG_X, a, b)                                                               \
	FLAG_X(a, b, inline, 0, 16, 1)                                                             \
	FLAG_X(a, b, eager, 0, 17, 1)                                                              \
	FLAG_X(a, b, late, 0, 18, 1)                                                               \
	X(a, b, crc, 0, 32, 32)                                                                    \
	X(a, b, pgen, 2, 0, 64)                                                                    \
	X(a, b, round, 3, 0, 64)                                                                   \
	X(a, b, job, 4, 0, 32)                                                                     \
	X(a, b, tensor, 4, 32, 32)                                                                 \
	X(a, b, part, 5, 0, 32)                                                                    \
	X(a, b, member, 5, 32, 16)                                                                 \
	X(a, b, priority, 5, 48, 16)                                                               \
	X(a, b, len, 6, 0, 32)                                                                     \
	X(a, b, segment, 6, 32, 16)                                                                \
	X(a, b, offset, 7, 0, 64)

enum {
#define X(a, b, field, word, shift, bits) IDX_##field,
	WIRE_FIELDS(X, X, , )
#undef X
};
enum {
#define X(a, b, field, word, shift, bits) USE_##field = 1 << IDX_##field,
	WIRE_FIELDS(X, X, , )
#undef X
};

#define NO_FLAG(a, b, flag, word, shift, bits)
#define BITS(n) (UINT64_MAX >> (64 - (n)))

/* Mask of the bits of word w that a message with these fields may use. */
#define X_MASK(uses, w, field, word, shift, bits)                                                  \
	| ((word) == (w) && (uses)&USE_##field ? BITS(bits) << (shift) : 0)
#define MASK(uses, w, always) ((always)WIRE_FIELDS(X_MASK, X_MASK, (uses), w))
#define MASKS(uses)                                                                                \
	{                                                                                          \
		MASK(uses, 0, BITS(16)), MASK(uses, 1, UINT64_MAX), MASK(uses, 2, 0),              \
			MASK(uses, 3, 0), MASK(uses, 4, 0), MASK(uses, 5, 0),                      \
			MASK(uses, 6, BITS(16) << 48), MASK(uses, 7, 0)                            \
	}

#define USE_KEY     (USE_pgen | USE_job | USE_tensor | USE_part | USE_member)
#define USE_PAYLOAD (USE_KEY | USE_round | USE_priority | USE_crc | USE_len)

enum tail { TAIL_NONE, TAIL_CONTRIB, TAIL_RESULT, TAIL_SEG, TAIL_HOLD };

#define TAIL_CONTRIB_BYTES 16
#define TAIL_RESULT_BYTES  24 /* size without the bitmap. The bitmap follows these bytes */
#define TAIL_SEG_BYTES     24
#define TAIL_HOLD_BYTES    8

static const struct rule {
	const char *name;
	uint8_t tail;        /* enum tail */
	uint8_t has_payload; /* 1: the type has a payload, inline or offered */
	uint8_t is_round;    /* 1: the round must be at least 1 */
	uint64_t mask[HDR_WORDS];
	uint64_t inline_mask[HDR_WORDS];
} rules[WIRE_TYPE_END] = {
#define PAYLOAD(name, tail, flags)                                                                 \
	{                                                                                          \
		name, tail, 1, 1,                                                                  \
			MASKS(USE_PAYLOAD | USE_segment | USE_offset | USE_eager | (flags)),       \
			MASKS(USE_PAYLOAD | USE_inline | (flags))                                  \
	}
#define PLAIN(name, tail, is_round, uses)                                                          \
	{                                                                                          \
		name, tail, 0, is_round, MASKS(uses), MASKS(uses)                                  \
	}
	[WIRE_CONTRIB] = PAYLOAD("CONTRIB", TAIL_CONTRIB, 0),
	[WIRE_RESULT] = PAYLOAD("RESULT", TAIL_RESULT, USE_late),
	[WIRE_HAVE] = PLAIN("HAVE", TAIL_NONE, 0, USE_KEY | USE_round),
	[WIRE_HAVE_OK] = PLAIN("HAVE_OK", TAIL_NONE, 0, USE_KEY | USE_round),
	[WIRE_DONATE_REQ] = PLAIN("DONATE_REQ", TAIL_NONE, 1, USE_KEY | USE_round),
	[WIRE_DONATE] = PAYLOAD("DONATE", TAIL_RESULT, 0),
	[WIRE_GOT] = PLAIN("GOT", TAIL_NONE, 1, USE_KEY | USE_round),
	[WIRE_AGAIN] = PLAIN("AGAIN", TAIL_NONE, 0, USE_KEY | USE_round),
	[WIRE_BAD_CRC] = PLAIN("BAD_CRC", TAIL_NONE, 1, USE_KEY | USE_round | USE_crc),
	[WIRE_CREDIT] = PLAIN("CREDIT", TAIL_NONE, 0, 0),
	[WIRE_PING] = PLAIN("PING", TAIL_NONE, 0, USE_round),
	[WIRE_PONG] = PLAIN("PONG", TAIL_NONE, 0, USE_round),
	[WIRE_SEG_ADD] = PLAIN("SEG_ADD", TAIL_SEG, 0, USE_segment),
	[WIRE_SEG_DEL] = PLAIN("SEG_DEL", TAIL_NONE, 0, USE_segment),
	[WIRE_HOLD] = PLAIN("HOLD", TAIL_HOLD, 0, USE_KEY | USE_round),
	[WIRE_DISCARDED] = PLAIN("DISCARDED", TAIL_NONE, 0, USE_segment | USE_offset),
#undef PAYLOAD
#undef PLAIN
};

static const struct rule *wire_rule_find(unsigned type)
{
	return type < WIRE_TYPE_END && rules[type].name ? &rules[type] : NULL;
}

struct wire_msg wire_make_answer(const struct wire_msg *m, enum wire_type type)
{
	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = m->pgen,
		.round = m->round,
		.job = m->job,
		.tensor = m->tensor,
		.part = m->part,
		.member = m->member,
		.segment = WIRE_NO_SEGMENT};
}

const char *wire_type_name(unsigned type)
{
	const struct rule *rule = wire_rule_find(type);

	return rule ? rule->name : "?";
}

static uint64_t wire_load_uint64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static void wire_store_uint64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}

static size_t wire_member_set_words(unsigned n_members)
{
	return ((size_t)n_members + 63) / 64;
}

/* Return a mask of the unused bits in the last word of a member set. No member has a number that
 * belongs to an unused bit. */
static uint64_t set_stray_mask(unsigned n_members)
{
	return n_members % 64 ? ~BITS(n_members % 64) : 0;
}

static size_t wire_padded_bytes(size_t n_bytes)
{
	return (n_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static size_t wire_tail_bytes(const struct rule *rule, unsigned n_members)
{
	switch ((enum tail)rule->tail) {
	case TAIL_NONE:
		return 0;
	case TAIL_CONTRIB:
		return TAIL_CONTRIB_BYTES;
	case TAIL_RESULT:
		return TAIL_RESULT_BYTES + 8 * wire_member_set_words(n_members);
	case TAIL_SEG:
		return TAIL_SEG_BYTES;
	case TAIL_HOLD:
		return TAIL_HOLD_BYTES;
	}
	return 0;
}

/* Return the rule of a message that this process sends. */
static const struct rule *wire_rule_of_message(const struct wire_msg *m)
{
	assert(wire_rule_find(m->type));
	return &rules[m->type];
}

size_t wire_size(const struct wire_msg *m)
{
	const struct rule *rule = wire_rule_of_message(m);
	bool is_inline = m->flags & WIRE_INLINE;

	assert(rule->has_payload || !is_inline);
	assert(!is_inline || m->len <= WIRE_INLINE_MAX);
	assert(rule->tail != TAIL_RESULT || m->result.n_members <= WIRE_MEMBERS_MAX);
	return WIRE_HDR_BYTES +
	       wire_tail_bytes(rule, rule->tail == TAIL_RESULT ? m->result.n_members : 0) +
	       (is_inline ? wire_padded_bytes(m->len) : 0);
}

static void wire_encode_member_set(const struct member_set *s, unsigned n_members, uint8_t *to)
{
	size_t n = wire_member_set_words(n_members);

	for (size_t i = 0; i < n; i++)
		wire_store_uint64(
			to + 8 * i, i + 1 < n ? s->w[i] : s->w[i] & ~set_stray_mask(n_members));
}

static void wire_encode_tail(const struct rule *rule, const struct wire_msg *m, uint8_t *to)
{
	switch ((enum tail)rule->tail) {
	case TAIL_NONE:
		break;
	case TAIL_CONTRIB:
		wire_store_uint64(
			to, (uint64_t)m->contrib.crc_prev | (uint64_t)m->contrib.op << 32);
		wire_store_uint64(to + 8, m->contrib.workers);
		break;
	case TAIL_RESULT:
		wire_store_uint64(to, (uint64_t)m->result.workers |
					      (uint64_t)m->result.n_members << 32 |
					      (uint64_t)m->result.last << 48);
		wire_store_uint64(
			to + 8, (uint64_t)m->result.wait_us | (uint64_t)m->result.sum_us << 32);
		wire_store_uint64(to + 16, m->result.version);
		wire_encode_member_set(
			&m->result.contributors, m->result.n_members, to + TAIL_RESULT_BYTES);
		break;
	case TAIL_SEG:
		wire_store_uint64(to, m->seg.base);
		wire_store_uint64(to + 8, m->seg.key);
		wire_store_uint64(to + 16, m->seg.bytes);
		break;
	case TAIL_HOLD:
		wire_store_uint64(to, m->hold.version);
		break;
	}
}

size_t wire_encode(const struct wire_msg *m, void *buf)
{
	size_t n_bytes = wire_size(m);
	const struct rule *rule = wire_rule_of_message(m);
	bool is_inline = m->flags & WIRE_INLINE;
	const uint64_t *mask = is_inline ? rule->inline_mask : rule->mask;
	uint8_t *to = buf;
	uint64_t w[HDR_WORDS] = {
		(uint64_t)m->type | (uint64_t)WIRE_VERSION << 8 | (uint64_t)m->flags << 16,
		m->cookie, [6] = (uint64_t)m->credits << 48};

#define X(a, b, field, word, shift, bits) w[word] |= (uint64_t)m->field << (shift);
	WIRE_FIELDS(X, NO_FLAG, , )
#undef X
	for (size_t i = 0; i < HDR_WORDS; i++)
		wire_store_uint64(to + 8 * i, w[i] & mask[i]);
	wire_encode_tail(rule, m, to + WIRE_HDR_BYTES);
	if (is_inline && m->len) {
		uint8_t *payload = to + n_bytes - wire_padded_bytes(m->len);

		wire_store_uint64(to + n_bytes - ALIGN_BYTES, 0);
		memcpy(payload, m->payload, m->len);
	}
	return n_bytes;
}

/* Return BPS_EPROTO, and write into err the name of a field that is set although the message's type
 * does not use the field. */
static int wire_reject_unused_field(
	const struct rule *rule, const uint64_t *w, const uint64_t *mask, struct err_text *err)
{
	const char *name = "flags";

#define X(a, b, field, word, shift, bits)                                                          \
	if (w[word] & ~mask[word] & BITS(bits) << (shift))                                         \
		name = #field;
	WIRE_FIELDS(X, X, , )
#undef X
	return err_set(err, BPS_EPROTO, "%s has %s set, which this message type does not use",
		rule->name, name);
}

/* Check the header first, because the lengths in the header are needed to read the rest of the
 * message. */
static int wire_check_header(
	const struct rule *rule, const uint64_t *w, bool is_inline, struct err_text *err)
{
	const uint64_t *mask = is_inline ? rule->inline_mask : rule->mask;
	uint32_t len = (uint32_t)w[6];
	uint16_t segment = (uint16_t)(w[6] >> 32);
	uint64_t unused = 0;

	for (size_t i = 0; i < HDR_WORDS; i++)
		unused |= w[i] & ~mask[i];
	if (unused)
		return wire_reject_unused_field(rule, w, mask, err);
	if (rule->is_round && w[3] == 0)
		return err_set(
			err, BPS_EPROTO, "%s has round 0, but rounds count from 1", rule->name);
	if (segment == WIRE_NO_SEGMENT)
		return err_set(err, BPS_EPROTO, "%s does not name a segment", rule->name);
	if (!rule->has_payload)
		return 0;
	if ((len == 0 && !is_inline) || (is_inline && len > WIRE_INLINE_MAX))
		return err_set(err, BPS_EPROTO, "%s has a payload of invalid length: %u bytes",
			rule->name, len);
	if (w[7] > UINT64_MAX - len)
		return err_set(err, BPS_EPROTO,
			"%s has a payload that ends beyond the largest 64-bit offset", rule->name);
	return 0;
}

static int wire_check_tail(const struct rule *rule, const uint8_t *tail, unsigned n_members,
	bool has_bytes, struct err_text *err)
{
	uint64_t base, n_bytes;

	switch ((enum tail)rule->tail) {
	case TAIL_NONE:
		return 0;
	case TAIL_CONTRIB:
		if (wire_load_uint64(tail) >> 40 || wire_load_uint64(tail + 8) >> 32)
			break;
		if (has_bytes != (wire_load_uint64(tail + 8) > 0))
			return err_set(err, BPS_EPROTO, "%s %s", rule->name,
				has_bytes ? "has bytes, but names no worker"
					  : "names workers, but has no bytes");
		return 0;
	case TAIL_RESULT:
		if (wire_load_uint64(
			    tail + TAIL_RESULT_BYTES + 8 * (wire_member_set_words(n_members) - 1)) &
			set_stray_mask(n_members))
			return err_set(err, BPS_EPROTO,
				"%s has a contributor that is not one of its %u members",
				rule->name, n_members);
		return 0;
	case TAIL_SEG:
		base = wire_load_uint64(tail);
		n_bytes = wire_load_uint64(tail + 16);
		if (n_bytes == 0 || n_bytes - 1 > UINT64_MAX - base)
			return err_set(
				err, BPS_EPROTO, "%s has an invalid segment size", rule->name);
		return 0;
	case TAIL_HOLD:
		return 0;
	}
	return err_set(err, BPS_EPROTO, "%s has a reserved field that is not 0", rule->name);
}

static void wire_decode_tail(const struct rule *rule, const uint8_t *tail, struct wire_msg *ret)
{
	uint64_t w;
	size_t n;

	switch ((enum tail)rule->tail) {
	case TAIL_NONE:
		break;
	case TAIL_CONTRIB:
		w = wire_load_uint64(tail);
		ret->contrib.crc_prev = (uint32_t)w;
		ret->contrib.op = (uint8_t)(w >> 32);
		ret->contrib.workers = (uint32_t)wire_load_uint64(tail + 8);
		break;
	case TAIL_RESULT:
		w = wire_load_uint64(tail);
		ret->result.workers = (uint32_t)w;
		ret->result.n_members = (uint16_t)(w >> 32);
		ret->result.last = (uint16_t)(w >> 48);
		w = wire_load_uint64(tail + 8);
		ret->result.wait_us = (uint32_t)w;
		ret->result.sum_us = (uint32_t)(w >> 32);
		ret->result.version = wire_load_uint64(tail + 16);
		n = wire_member_set_words(ret->result.n_members);
		for (size_t i = 0; i < WIRE_MEMBERS_MAX / 64; i++)
			ret->result.contributors.w[i] =
				i < n ? wire_load_uint64(tail + TAIL_RESULT_BYTES + 8 * i) : 0;
		break;
	case TAIL_SEG:
		ret->seg.base = wire_load_uint64(tail);
		ret->seg.key = wire_load_uint64(tail + 8);
		ret->seg.bytes = wire_load_uint64(tail + 16);
		break;
	case TAIL_HOLD:
		ret->hold.version = wire_load_uint64(tail);
		break;
	}
}

static void wire_decode_header(const uint64_t *w, struct wire_msg *ret)
{
	ret->type = (uint8_t)w[0];
	ret->flags = (uint16_t)(w[0] >> 16);
	ret->cookie = w[1];
	ret->credits = (uint16_t)(w[6] >> 48);
#define X(a, b, field, word, shift, bits)                                                          \
	ret->field = (__typeof__(ret->field))(w[word] >> (shift)&BITS(bits));
	WIRE_FIELDS(X, NO_FLAG, , )
#undef X
}

/* Return the number of members in a RESULT or DONATE. The length of the tail depends on this
 * number. Returns 0 for other types. */
static int wire_read_member_count(
	const struct rule *rule, const uint8_t *tail, size_t n_bytes, struct err_text *err)
{
	unsigned n;

	if (rule->tail != TAIL_RESULT)
		return 0;
	if (n_bytes < TAIL_RESULT_BYTES)
		return err_set(err, BPS_EPROTO, "%s is cut short in its tail", rule->name);
	n = (uint16_t)(wire_load_uint64(tail) >> 32);
	if (n == 0 || n > WIRE_MEMBERS_MAX)
		return err_set(
			err, BPS_EPROTO, "%s has an invalid number of members: %u", rule->name, n);
	return (int)n;
}

int wire_decode(const void *buf, size_t n_bytes, struct wire_msg *ret, struct err_text *err)
{
	const uint8_t *p = buf, *tail = p + WIRE_HDR_BYTES;
	uint64_t w[HDR_WORDS];
	const struct rule *rule;
	bool is_inline;
	size_t tail_bytes, len, need;
	int n_members, rc;

	if (n_bytes < WIRE_HDR_BYTES)
		return err_set(err, BPS_EPROTO, "%zu bytes are too few for a header", n_bytes);
	for (size_t i = 0; i < HDR_WORDS; i++)
		w[i] = wire_load_uint64(p + 8 * i);
	if ((uint8_t)(w[0] >> 8) != WIRE_VERSION)
		return err_set(err, BPS_EPROTO,
			"message has version %u, but only version %u is supported: install the "
			"same release at both ends",
			(unsigned)(uint8_t)(w[0] >> 8), WIRE_VERSION);
	rule = wire_rule_find((uint8_t)w[0]);
	if (!rule)
		return err_set(err, BPS_EPROTO, "unknown message type %u", (unsigned)(uint8_t)w[0]);
	is_inline = w[0] >> 16 & WIRE_INLINE;
	rc = wire_check_header(rule, w, is_inline, err);
	if (rc)
		return rc;
	n_members = wire_read_member_count(rule, tail, n_bytes - WIRE_HDR_BYTES, err);
	if (n_members < 0)
		return n_members;
	tail_bytes = wire_tail_bytes(rule, (unsigned)n_members);
	len = is_inline ? (uint32_t)w[6] : 0;
	need = WIRE_HDR_BYTES + tail_bytes + wire_padded_bytes(len);
	if (n_bytes < need)
		return err_set(err, BPS_EPROTO, "%s needs %zu bytes, only %zu were received",
			rule->name, need, n_bytes);
	rc = wire_check_tail(rule, tail, (unsigned)n_members, (uint32_t)w[6] > 0, err);
	if (rc)
		return rc;
	if (len % ALIGN_BYTES &&
		wire_load_uint64(p + need - ALIGN_BYTES) >> (len % ALIGN_BYTES * 8))
		return err_set(err, BPS_EPROTO, "%s has padding that is not zero", rule->name);
	wire_decode_header(w, ret);
	wire_decode_tail(rule, tail, ret);
	ret->payload = len ? tail + tail_bytes : NULL;
	return (int)need;
}
