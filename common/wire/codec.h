#ifndef BPS_COMMON_WIRE_CODEC_H
#define BPS_COMMON_WIRE_CODEC_H
/* Encoding of plain C structs as little-endian bytes, driven by field tables. The control channel,
 * the trainers' socket and the scheduler's state log all use this encoding, so only one decoder
 * must be checked and fuzzed. The data plane has its own fixed header (common/wire/wire.h).
 *
 * An encoded struct is the length of its fields in bytes (u32), then the fields in the order of the
 * table. Later releases may append fields. So a decoder sets fields that are missing at the end to
 * zero, and skips bytes after the last field in its own table. A string or a blob is encoded as a
 * u32 length and then its bytes. A list is encoded as a u32 count and then its structs.
 *
 *   u8 u16 u32 u64   little-endian
 *   str              u32 length, bytes, no NUL inside; `const char *` in the struct, which
 *                    codec_decode never sets to NULL
 *   blob             u32 length, bytes; `struct blob` in the struct
 *   list             u32 count, structs; a pointer and a uint32_t count in the struct
 *   struct           a struct; the same struct as a member, not a pointer
 *
 * The decoder checks lengths against the buffer, strings for NUL bytes, and each field against the
 * limit `max` of its table row (longest string, largest blob, most list items). The decoder also
 * limits the depth of nested lists (at most 4) and the memory for decoding. The functions keep no
 * state, may be called on any thread, and need only libc. */
#include <stddef.h>
#include <stdint.h>

struct blob {
	const void *data;
	uint32_t bytes;
};

enum field_kind {
	FIELD_U8,
	FIELD_U16,
	FIELD_U32,
	FIELD_U64,
	FIELD_STR,
	FIELD_BLOB,
	FIELD_LIST,
	FIELD_STRUCT
};

struct layout;
struct field {
	const char *name;
	enum field_kind kind;
	/* offset of the value in the struct; for a list, offset of the pointer to the items */
	uint32_t offset;
	uint32_t count_offset; /* offset of a list's uint32_t count */
	/* maximum size of a string or blob in bytes, or maximum number of items of a list */
	uint32_t max;
	const struct layout *sub; /* layout of a list's items, or of a struct */
};
struct layout {
	const char *name;
	uint32_t bytes; /* sizeof the struct */
	uint32_t n_fields;
	const struct field *fields;
};

/* Macros for the rows of a field table. S is the tag of the struct, and m is a member of it. */
#define FIELD_(S, m, kind, count_at, max, L)                                                       \
	{                                                                                          \
#m, kind, offsetof(struct S, m), count_at, max, L                                  \
	}
#define FIELD_U8_(S, m)        FIELD_(S, m, FIELD_U8, 0, 0, NULL)
#define FIELD_U16_(S, m)       FIELD_(S, m, FIELD_U16, 0, 0, NULL)
#define FIELD_U32_(S, m)       FIELD_(S, m, FIELD_U32, 0, 0, NULL)
#define FIELD_U64_(S, m)       FIELD_(S, m, FIELD_U64, 0, 0, NULL)
#define FIELD_STR_(S, m, max)  FIELD_(S, m, FIELD_STR, 0, max, NULL)
#define FIELD_BLOB_(S, m, max) FIELD_(S, m, FIELD_BLOB, 0, max, NULL)
/* Row for a list `struct T *m; uint32_t n_m;` whose items have layout L. */
#define FIELD_LIST_(S, m, max, L) FIELD_(S, m, FIELD_LIST, offsetof(struct S, n_##m), max, L)
/* Row for a member `struct T m;` with layout L. */
#define FIELD_STRUCT_(S, m, L) FIELD_(S, m, FIELD_STRUCT, 0, 0, L)
#define LAYOUT_(S, table)                                                                          \
	{                                                                                          \
#S, sizeof(struct S), sizeof(table) / sizeof((table)[0]), table                    \
	}

/* Return the number of bytes that codec_encode will write for msg. Returns 0 when that number does
 * not fit in 32 bits, or when a field of msg exceeds the limit `max` of its table row. */
size_t codec_encoded_size(const struct layout *l, const void *msg);

/* Write codec_encoded_size(l, msg) bytes for msg into buf, and return codec_encoded_size(l, msg). A
 * NULL string is written as an empty string. Returns 0 and writes nothing when
 * codec_encoded_size(l, msg) is 0. */
size_t codec_encode(const struct layout *l, const void *msg, void *buf);

/* Decode the n_bytes bytes of buf into *ret_msg, whose size is l->bytes. Strings, blobs and lists
 * are copied into one block *ret_mem of at most mem_limit bytes. Nothing in *ret_msg points into
 * buf. *ret_mem is NULL when no block was needed. Writes *ret_msg and *ret_mem only on success.
 * Owns: the caller frees *ret_mem with free().
 * Errors: BPS_EPROTO when the bytes are malformed; -E2BIG when the strings, blobs and lists need
 * more than mem_limit bytes; -ENOMEM. The text in `err` names the field. */
struct err_text;
int codec_decode(const struct layout *l, const void *buf, size_t n_bytes, size_t mem_limit,
	void *ret_msg, void **ret_mem, struct err_text *err);
#endif
