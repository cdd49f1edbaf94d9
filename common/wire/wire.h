#ifndef BPS_COMMON_WIRE_WIRE_H
#define BPS_COMMON_WIRE_WIRE_H
/* Messages of the data plane between an agent and a server: a 64-byte little-endian header, a tail
 * by type, and for small partitions the payload itself (WIRE_INLINE). Several messages, each padded
 * to 8 bytes, may share one send. docs/reference/protocol-data.md has the table; the rules are
 * those of the round protocol in docs/reference/faults.md. Pure functions, any thread.
 *
 * One push is one CONTRIB, its answer one RESULT. Above WIRE_INLINE_MAX bytes both only offer
 * (segment, offset) and the receiver reads when it has room. Nothing is ever remotely writable. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define WIRE_VERSION   1
#define WIRE_HDR_BYTES 64
#define WIRE_TAIL_MAX  (16 + WIRE_MEMBERS_MAX / 8)
#ifndef WIRE_INLINE_MAX /* smaller in the simulator */
#define WIRE_INLINE_MAX (16 * 1024)
#endif
/* The largest send: one message of the largest kind. Control receives are this big. */
#define WIRE_SEND_MAX (WIRE_HDR_BYTES + WIRE_TAIL_MAX + WIRE_INLINE_MAX)
/* Most agents of one job, for the contributor bitmap. */
#define WIRE_MEMBERS_MAX 1024
#define WIRE_NO_SEGMENT  UINT16_MAX

enum wire_type {
	WIRE_CONTRIB = 1, /* agent: my contribution to round r, here (inline) or there (offer) */
	WIRE_RESULT,      /* server: the sum of round r */
	WIRE_HAVE,        /* agent: idle, and I hold result r */
	WIRE_HAVE_OK,     /* server: heard HAVE(r) */
	WIRE_DONATE_REQ,  /* server: offer me result r, others lack it */
	WIRE_DONATE,      /* agent: result r, here or there */
	WIRE_GOT,         /* agent: I will not read this RESULT offer (any more) */
	WIRE_AGAIN, /* server: I do not know this partition or pgen yet, send CONTRIB or HAVE again soon */
	WIRE_BAD_CRC, /* server: what I read is not what the CONTRIB or DONATE described */
	WIRE_CREDIT,  /* either: more control receives are posted */
	WIRE_PING,    /* either: are you there; answered by PONG */
	WIRE_PONG,
	WIRE_SEG_ADD, /* either: a segment that I may offer from */
	WIRE_SEG_DEL, /* either: that segment is gone */
	WIRE_TYPE_END
};

enum wire_flags {
	WIRE_INLINE = 1 << 0, /* len bytes of payload follow the tail */
};

/* A set of a job's members. */
struct member_set {
	uint64_t w[WIRE_MEMBERS_MAX / 64];
};

/* One decoded message. Fields that a type does not use are zero on the wire and checked to be. */
struct wire_msg {
	uint8_t type;
	uint16_t flags;
	uint32_t crc;    /* crc32c of the payload, inline or offered; BAD_CRC: of what it refuses */
	uint64_t cookie; /* of the connection, set by the transport */
	uint64_t pgen;   /* view in which the partition got its server and members */
	uint64_t round;  /* from 1; HAVE and its answers: 0, no result yet */
	uint32_t job;
	uint32_t tensor;
	uint32_t part;
	uint16_t member;   /* the agent's number in the job */
	uint16_t priority; /* larger goes first */
	uint32_t len;      /* payload bytes */
	uint16_t segment;
	uint16_t credits; /* control receives granted with this message, set by the transport */
	uint64_t offset;  /* in the segment */
	union {
		struct {                   /* CONTRIB */
			uint32_t crc_prev; /* of delivered result round - 1, 0 when round is 1 */
			uint8_t codec;     /* 0: none */
			uint8_t op;
			uint16_t group;   /* 0: the whole job */
			uint32_t workers; /* behind this contribution */
		} contrib;
		struct {                    /* RESULT, DONATE */
			uint32_t workers;   /* behind the sum */
			uint16_t n_members; /* bits of contributors that count */
			struct member_set contributors;
		} result;
		struct {               /* SEG_ADD */
			uint64_t base; /* remote address of offset 0 */
			uint64_t key;
			uint64_t bytes;
		} seg;
	};
	const void *payload; /* inline payload, in the receive buffer or the caller's; else NULL */
};

/* Bytes that wire_encode writes for m, padded to 8, with its inline payload. */
size_t wire_size(const struct wire_msg *m);

/* Write m (header, tail, inline payload, zero padding) to buf, which has wire_size(m) bytes of
 * room. Fields that the type does not use are written as zero, whatever m has there.
 * Returns wire_size(m). */
size_t wire_encode(const struct wire_msg *m, void *buf);

/* Decode the message at the start of buf (8-byte aligned). Returns the bytes it takes (> 0), so
 * that the next one starts there, or BPS_EPROTO with a sentence in err. Checks every length, flag,
 * reserved field and type; what numbers mean (job, round, ...) is the core's to check. ret->payload
 * points into buf. Writes ret only on success. */
int wire_decode(const void *buf, size_t n_bytes, struct wire_msg *ret, struct err_text *err);

/* A message without tail or payload, about the partition, placement, round and member of m. */
struct wire_msg wire_answer(const struct wire_msg *m, enum wire_type type);

/* "CONTRIB", ...; "?" for what is none. */
const char *wire_type_name(unsigned type);

static inline bool member_set_has(const struct member_set *s, unsigned i)
{
	return s->w[i / 64] >> (i % 64) & 1;
}
static inline void member_set_add(struct member_set *s, unsigned i)
{
	s->w[i / 64] |= UINT64_C(1) << (i % 64);
}
static inline void member_set_del(struct member_set *s, unsigned i)
{
	s->w[i / 64] &= ~(UINT64_C(1) << (i % 64));
}
#endif
