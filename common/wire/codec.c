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

/* Position of the n low bytes of a uint64_t in memory. */
#define LOW_BYTES_AT(n) (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? sizeof(uint64_t) - (n) : 0)

static uint64_t field_int_load(enum field_kind kind, const void *from)
{
	size_t n = field_int_bytes(kind);
	uint64_t v = 0;

	memcpy((uint8_t *)&v + LOW_BYTES_AT(n), from, n);
	return v;
}

static void field_int_store(enum field_kind kind, void *to, uint64_t v)
{
	size_t n = field_int_bytes(kind);

	memcpy(to, (const uint8_t *)&v + LOW_BYTES_AT(n), n);
}

/* Load n <= 8 little-endian bytes. */
static uint64_t codec_load_little_endian(const uint8_t *from, size_t n)
{
	uint64_t v = 0;

	memcpy(&v, from, n);
	return le64toh(v);
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

/* The encoder passes over the struct twice with the same code. In the first pass, `to` is NULL: the
 * pass counts the bytes and checks the values. The second pass writes. */
struct writer {
	uint8_t *to;
	uint64_t n;      /* bytes counted or written */
	bool is_invalid; /* a value exceeds its limit */
};

static void writer_put_bytes(struct writer *w, const void *data, size_t n)
{
	if (w->to && n)
		memcpy(w->to + w->n, data, n);
	w->n += n;
}

static void writer_put_int(struct writer *w, size_t n, uint64_t v)
{
	v = htole64(v);
	writer_put_bytes(w, &v, n);
}

static void writer_put_struct(
	struct writer *w, const struct layout *l, const uint8_t *msg, unsigned depth);

static void writer_put_list(
	struct writer *w, const struct field *f, const uint8_t *msg, unsigned depth)
{
	const uint8_t *items = field_pointer_at(msg, f->offset);
	uint32_t n = field_list_count(f, msg);

	if (n > f->max || (n && (!items || depth == DEPTH_MAX))) {
		w->is_invalid = true;
		return;
	}
	writer_put_int(w, PREFIX_BYTES, n);
	for (size_t i = 0; i < n; i++)
		writer_put_struct(w, f->sub, items + i * f->sub->bytes, depth + 1);
}

static void writer_put_field(
	struct writer *w, const struct field *f, const uint8_t *msg, unsigned depth)
{
	const uint8_t *data = NULL;
	uint32_t n = 0;

	switch (f->kind) {
	case FIELD_U8:
	case FIELD_U16:
	case FIELD_U32:
	case FIELD_U64:
		writer_put_int(
			w, field_int_bytes(f->kind), field_int_load(f->kind, msg + f->offset));
		break;
	case FIELD_STR:
	case FIELD_BLOB:
		w->is_invalid |= !field_get_bytes(f, msg, &data, &n);
		writer_put_int(w, PREFIX_BYTES, n);
		writer_put_bytes(w, data, n);
		break;
	case FIELD_LIST:
		writer_put_list(w, f, msg, depth);
		break;
	case FIELD_STRUCT:
		writer_put_struct(w, f->sub, msg + f->offset, depth);
		break;
	}
}

static void writer_put_struct(
	struct writer *w, const struct layout *l, const uint8_t *msg, unsigned depth)
{
	struct writer prefix = *w;

	w->n += PREFIX_BYTES;
	for (uint32_t i = 0; i < l->n_fields; i++)
		writer_put_field(w, &l->fields[i], msg, depth);
	writer_put_int(&prefix, PREFIX_BYTES, w->n - prefix.n - PREFIX_BYTES);
}

size_t codec_encoded_size(const struct layout *l, const void *msg)
{
	struct writer w = {.to = NULL};

	writer_put_struct(&w, l, msg, 0);
	return w.is_invalid || w.n > UINT32_MAX ? 0 : (size_t)w.n;
}

size_t codec_encode(const struct layout *l, const void *msg, void *buf)
{
	size_t n_bytes = codec_encoded_size(l, msg);
	struct writer w = {.to = buf};

	if (n_bytes)
		writer_put_struct(&w, l, msg, 0);
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
