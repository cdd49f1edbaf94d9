/* Encode and decode structs by field tables. The decoder checks lengths, strings, counts and
 * memory, but not the meaning of values. The functions keep no state and may be called on any
 * thread. */
#include "common/wire/codec.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/error.h"

/* Greatest depth of nested lists. The limit matters only for a field table that contains itself.
 * Without the limit, a peer would choose the depth, and so the size of the stack. */
#define DEPTH_MAX    4
#define PREFIX_BYTES 4
#define LIST_ALIGN   8

static size_t field_int_bytes(enum field_kind kind)
{
	return (size_t)1 << (kind - FIELD_U8);
}

static uint64_t field_int_load(enum field_kind kind, const void *from)
{
	uint8_t u8;
	uint16_t u16;
	uint32_t u32;
	uint64_t u64;

	switch (field_int_bytes(kind)) {
	case 1:
		memcpy(&u8, from, sizeof(u8));
		return u8;
	case 2:
		memcpy(&u16, from, sizeof(u16));
		return u16;
	case 4:
		memcpy(&u32, from, sizeof(u32));
		return u32;
	default:
		memcpy(&u64, from, sizeof(u64));
		return u64;
	}
}

static void field_int_store(enum field_kind kind, void *to, uint64_t v)
{
	uint8_t u8 = (uint8_t)v;
	uint16_t u16 = (uint16_t)v;
	uint32_t u32 = (uint32_t)v;

	switch (field_int_bytes(kind)) {
	case 1:
		memcpy(to, &u8, sizeof(u8));
		break;
	case 2:
		memcpy(to, &u16, sizeof(u16));
		break;
	case 4:
		memcpy(to, &u32, sizeof(u32));
		break;
	default:
		memcpy(to, &v, sizeof(v));
	}
}

/* Load n <= 8 little-endian bytes. */
static uint64_t codec_load_little_endian(const uint8_t *from, size_t n)
{
	uint64_t v = 0;

	memcpy(&v, from, n);
	return le64toh(v);
}

static void codec_store_little_endian(uint8_t *to, size_t n, uint64_t v)
{
	v = htole64(v);
	memcpy(to, &v, n);
}

static uint32_t field_list_count(const struct field *f, const uint8_t *msg)
{
	return (uint32_t)field_int_load(FIELD_U32, msg + f->count_offset);
}

static const uint8_t *field_pointer_at(const uint8_t *msg, uint32_t offset)
{
	const uint8_t *p;

	memcpy(&p, msg + offset, sizeof(p));
	return p;
}

/* Get the bytes of a string or blob. Returns false when the value is longer than the field's
 * max. */
static bool field_get_bytes(
	const struct field *f, const uint8_t *msg, const uint8_t **ret_data, uint32_t *ret_bytes)
{
	struct blob b;

	if (f->kind == FIELD_STR) {
		b.data = field_pointer_at(msg, f->offset);
		b.bytes = b.data ? (uint32_t)strnlen(b.data, (size_t)f->max + 1) : 0;
	} else {
		memcpy(&b, msg + f->offset, sizeof(b));
		if (b.bytes && !b.data)
			return false;
	}
	if (b.bytes > f->max)
		return false;
	*ret_data = b.data;
	*ret_bytes = b.bytes;
	return true;
}

/* The functions that compute sizes return 0 for a value that cannot be encoded. Every other value
 * takes at least one byte. */
static uint64_t codec_struct_size(const struct layout *l, const uint8_t *msg, unsigned depth);

static uint64_t codec_list_size(const struct field *f, const uint8_t *msg, unsigned depth)
{
	const uint8_t *items = field_pointer_at(msg, f->offset);
	uint32_t n = field_list_count(f, msg);
	uint64_t sum = PREFIX_BYTES;

	if (n > f->max || (n && (!items || depth == DEPTH_MAX)))
		return 0;
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = codec_struct_size(f->sub, items + i * f->sub->bytes, depth + 1);

		if (!bytes || bytes > UINT32_MAX - sum)
			return 0;
		sum += bytes;
	}
	return sum;
}

static uint64_t codec_field_size(const struct field *f, const uint8_t *msg, unsigned depth)
{
	const uint8_t *data;
	uint32_t n_bytes;

	switch (f->kind) {
	case FIELD_U8:
	case FIELD_U16:
	case FIELD_U32:
	case FIELD_U64:
		return field_int_bytes(f->kind);
	case FIELD_STR:
	case FIELD_BLOB:
		return field_get_bytes(f, msg, &data, &n_bytes) ? (uint64_t)PREFIX_BYTES + n_bytes
								: 0;
	case FIELD_LIST:
		return codec_list_size(f, msg, depth);
	case FIELD_STRUCT:
		return codec_struct_size(f->sub, msg + f->offset, depth);
	}
	return 0;
}

static uint64_t codec_struct_size(const struct layout *l, const uint8_t *msg, unsigned depth)
{
	uint64_t sum = PREFIX_BYTES;

	for (uint32_t i = 0; i < l->n_fields; i++) {
		uint64_t bytes = codec_field_size(&l->fields[i], msg, depth);

		if (!bytes || bytes > UINT32_MAX - sum)
			return 0;
		sum += bytes;
	}
	return sum;
}

size_t codec_encoded_size(const struct layout *l, const void *msg)
{
	return (size_t)codec_struct_size(l, msg, 0);
}

static uint8_t *codec_write_struct(const struct layout *l, const uint8_t *msg, uint8_t *to);

static uint8_t *codec_write_field(const struct field *f, const uint8_t *msg, uint8_t *to)
{
	const uint8_t *data = NULL;
	uint32_t n = 0;

	switch (f->kind) {
	case FIELD_U8:
	case FIELD_U16:
	case FIELD_U32:
	case FIELD_U64:
		codec_store_little_endian(
			to, field_int_bytes(f->kind), field_int_load(f->kind, msg + f->offset));
		return to + field_int_bytes(f->kind);
	case FIELD_STR:
	case FIELD_BLOB:
		field_get_bytes(f, msg, &data, &n);
		codec_store_little_endian(to, PREFIX_BYTES, n);
		to += PREFIX_BYTES;
		if (n)
			memcpy(to, data, n);
		return to + n;
	case FIELD_LIST:
		data = field_pointer_at(msg, f->offset);
		n = field_list_count(f, msg);
		codec_store_little_endian(to, PREFIX_BYTES, n);
		to += PREFIX_BYTES;
		for (size_t i = 0; i < n; i++)
			to = codec_write_struct(f->sub, data + i * f->sub->bytes, to);
		return to;
	case FIELD_STRUCT:
		return codec_write_struct(f->sub, msg + f->offset, to);
	}
	return to;
}

/* Write the struct and return the end of the written bytes. codec_struct_size must have checked
 * every value before. */
static uint8_t *codec_write_struct(const struct layout *l, const uint8_t *msg, uint8_t *to)
{
	uint8_t *body = to + PREFIX_BYTES;
	uint8_t *end = body;

	for (uint32_t i = 0; i < l->n_fields; i++)
		end = codec_write_field(&l->fields[i], msg, end);
	codec_store_little_endian(to, PREFIX_BYTES, (uint64_t)(end - body));
	return end;
}

size_t codec_encode(const struct layout *l, const void *msg, void *buf)
{
	size_t n_bytes = codec_encoded_size(l, msg);

	if (n_bytes)
		codec_write_struct(l, msg, buf);
	return n_bytes;
}

/* The decoder reads the bytes twice with the same code. In the first pass, the field `mem` and all
 * outputs are NULL. The first pass checks everything and counts the memory that is needed. In the
 * second pass, `mem` is a block of that size, which the pass fills. The second pass repeats all
 * checks, so the pass cannot write outside the block, even if the bytes have changed meanwhile. */
struct reader {
	const uint8_t *p;
	const uint8_t *end; /* end of the struct being read */
	uint8_t *mem;
	size_t mem_used;
	size_t mem_limit;
	struct err_text *err;
};

static size_t reader_bytes_left(const struct reader *r)
{
	return (size_t)(r->end - r->p);
}

static int reader_read_int(struct reader *r, enum field_kind kind, uint64_t *ret_v)
{
	if (field_int_bytes(kind) > reader_bytes_left(r))
		return BPS_EPROTO;
	*ret_v = codec_load_little_endian(r->p, field_int_bytes(kind));
	r->p += field_int_bytes(kind);
	return 0;
}

/* Take `n` bytes of the block, aligned to `align`. In the first pass, *ret_at is NULL. */
static int reader_take_memory(struct reader *r, size_t n, size_t align, uint8_t **ret_at)
{
	size_t at = r->mem_used + (align - r->mem_used % align) % align;

	if (at > r->mem_limit || n > r->mem_limit - at)
		return err_set(r->err, -E2BIG, "decoding needs more than %zu bytes of memory",
			r->mem_limit);
	r->mem_used = at + n;
	*ret_at = r->mem ? r->mem + at : NULL;
	return 0;
}

static int reader_read_bytes(
	struct reader *r, const struct layout *l, const struct field *f, uint8_t *out)
{
	uint64_t n;
	uint8_t *at;
	struct blob b;
	int rc;

	rc = reader_read_int(r, FIELD_U32, &n);
	if (rc || n > reader_bytes_left(r))
		return err_set(r->err, BPS_EPROTO, "%s.%s is cut short", l->name, f->name);
	if (n > f->max)
		return err_set(r->err, BPS_EPROTO, "%s.%s has %zu bytes, at most %u are allowed",
			l->name, f->name, (size_t)n, f->max);
	if (n == 0)
		return 0;
	if (f->kind == FIELD_STR && memchr(r->p, 0, n))
		return err_set(r->err, BPS_EPROTO, "%s.%s contains a NUL byte", l->name, f->name);
	rc = reader_take_memory(r, n + (f->kind == FIELD_STR), 1, &at);
	if (rc)
		return rc;
	if (out) {
		memcpy(at, r->p, n);
		if (f->kind == FIELD_STR) {
			at[n] = 0;
			memcpy(out + f->offset, &at, sizeof(at));
		} else {
			b = (struct blob){at, (uint32_t)n};
			memcpy(out + f->offset, &b, sizeof(b));
		}
	}
	r->p += n;
	return 0;
}

static int reader_read_struct(
	struct reader *r, const struct layout *l, uint8_t *out, unsigned depth);

static int reader_read_list(struct reader *r, const struct layout *l, const struct field *f,
	uint8_t *out, unsigned depth)
{
	uint64_t n;
	size_t n_bytes;
	uint8_t *items;
	int rc;

	rc = reader_read_int(r, FIELD_U32, &n);
	/* Each item has at least its length prefix, so at least n * PREFIX_BYTES bytes must
	 * follow. */
	if (rc || n > reader_bytes_left(r) / PREFIX_BYTES)
		return err_set(r->err, BPS_EPROTO, "%s.%s is cut short", l->name, f->name);
	if (n > f->max)
		return err_set(r->err, BPS_EPROTO, "%s.%s has %zu items, at most %u are allowed",
			l->name, f->name, (size_t)n, f->max);
	if (n == 0)
		return 0;
	if (depth == DEPTH_MAX)
		return err_set(r->err, BPS_EPROTO, "%s.%s is nested too deeply", l->name, f->name);
	if (__builtin_mul_overflow((size_t)n, (size_t)f->sub->bytes, &n_bytes))
		return err_set(r->err, -E2BIG, "%s.%s has too many items", l->name, f->name);
	rc = reader_take_memory(r, n_bytes, LIST_ALIGN, &items);
	if (rc)
		return rc;
	if (out) {
		memcpy(out + f->offset, &items, sizeof(items));
		field_int_store(FIELD_U32, out + f->count_offset, n);
	}
	for (size_t i = 0; i < n; i++) {
		rc = reader_read_struct(
			r, f->sub, out ? items + i * f->sub->bytes : NULL, depth + 1);
		if (rc)
			return rc;
	}
	return 0;
}

static int reader_read_field(struct reader *r, const struct layout *l, const struct field *f,
	uint8_t *out, unsigned depth)
{
	uint64_t v;

	switch (f->kind) {
	case FIELD_U8:
	case FIELD_U16:
	case FIELD_U32:
	case FIELD_U64:
		if (reader_read_int(r, f->kind, &v))
			break;
		if (out)
			field_int_store(f->kind, out + f->offset, v);
		return 0;
	case FIELD_STR:
	case FIELD_BLOB:
		return reader_read_bytes(r, l, f, out);
	case FIELD_LIST:
		return reader_read_list(r, l, f, out, depth);
	case FIELD_STRUCT:
		return reader_read_struct(r, f->sub, out ? out + f->offset : NULL, depth);
	}
	return err_set(r->err, BPS_EPROTO, "%s.%s is cut short", l->name, f->name);
}

/* Set numbers to zero, lists to empty, and strings and blobs to empty values whose pointers are not
 * NULL. */
static void codec_clear_struct(const struct layout *l, uint8_t *out)
{
	static const char *const empty = "";

	memset(out, 0, l->bytes);
	for (uint32_t i = 0; i < l->n_fields; i++) {
		const struct field *f = &l->fields[i];

		if (f->kind == FIELD_STR)
			memcpy(out + f->offset, &empty, sizeof(empty));
		if (f->kind == FIELD_BLOB)
			memcpy(out + f->offset + offsetof(struct blob, data), &empty,
				sizeof(empty));
		if (f->kind == FIELD_STRUCT)
			codec_clear_struct(f->sub, out + f->offset);
	}
}

static int reader_read_struct(
	struct reader *r, const struct layout *l, uint8_t *out, unsigned depth)
{
	const uint8_t *outer_end = r->end;
	uint64_t n_bytes;
	int rc;

	rc = reader_read_int(r, FIELD_U32, &n_bytes);
	if (rc || n_bytes > reader_bytes_left(r))
		return err_set(r->err, BPS_EPROTO, "%s is cut short", l->name);
	r->end = r->p + n_bytes;
	if (out)
		codec_clear_struct(l, out);
	for (uint32_t i = 0; i < l->n_fields && reader_bytes_left(r); i++) {
		rc = reader_read_field(r, l, &l->fields[i], out, depth);
		if (rc)
			return rc;
	}
	/* Skip the remaining bytes: they are fields that a newer release has appended. */
	r->p = r->end;
	r->end = outer_end;
	return 0;
}

int codec_decode(const struct layout *l, const void *buf, size_t n_bytes, size_t mem_limit,
	void *ret_msg, void **ret_mem, struct err_text *err)
{
	const uint8_t *p = buf;
	struct reader count = {.p = p, .end = p + n_bytes, .mem_limit = mem_limit, .err = err};
	struct reader fill = {.p = p, .end = p + n_bytes, .err = err};
	int rc;

	rc = reader_read_struct(&count, l, NULL, 0);
	if (rc)
		return rc;
	if (reader_bytes_left(&count))
		return err_set(err, BPS_EPROTO, "%s has %zu bytes after its end", l->name,
			reader_bytes_left(&count));
	if (count.mem_used) {
		fill.mem = malloc(count.mem_used);
		if (!fill.mem)
			return err_set(err, -ENOMEM, "no memory for %zu bytes of %s",
				count.mem_used, l->name);
		fill.mem_limit = count.mem_used;
	}
	rc = reader_read_struct(&fill, l, ret_msg, 0);
	if (rc) {
		free(fill.mem);
		return rc;
	}
	*ret_mem = fill.mem;
	return 0;
}
