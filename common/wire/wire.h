#ifndef BPS_COMMON_WIRE_WIRE_H
#define BPS_COMMON_WIRE_WIRE_H
/* Messages of the data plane between an agent and a server. A message is a 64-byte little-endian
 * header, a tail whose length depends on the type, and for small partitions the payload itself
 * (WIRE_INLINE). Several messages, each padded to 8 bytes, may share one send.
 * docs/reference/protocol-data.md has the table of messages and fields. docs/reference/faults.md
 * has the rules of the round protocol. The functions are pure and may be called on any thread.
 *
 * For each partition and round an agent sends one CONTRIB, and the server answers with one RESULT.
 * With more than WIRE_INLINE_MAX bytes of payload, a message only offers its bytes (segment,
 * offset). The receiver reads the bytes when it has memory for them. A peer can never write memory
 * of this process. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/error.h"

#define WIRE_VERSION   4
#define WIRE_HDR_BYTES 64
#define WIRE_TAIL_MAX  (24 + WIRE_MEMBERS_MAX / 8)
#ifndef WIRE_INLINE_MAX /* largest inline payload in bytes; the simulator defines a smaller value */
#define WIRE_INLINE_MAX (16 * 1024)
#endif
/* Size of the largest message in bytes. Buffers for receiving messages have this size. */
#define WIRE_SEND_MAX (WIRE_HDR_BYTES + WIRE_TAIL_MAX + WIRE_INLINE_MAX)
/* Largest number of agents of one job. The size of the contributor bitmap depends on this
 * number. */
#define WIRE_MEMBERS_MAX 1024
#define WIRE_NO_SEGMENT  UINT16_MAX

/* Types of messages. Each comment begins with the sender; r is the round in the message. */
enum wire_type {
	/* Agent: contribution to round r, inline or offered, or the report that all of the
	 * machine's workers abstain from round r */
	WIRE_CONTRIB = 1,
	WIRE_RESULT, /* server: the sum of round r */
	/* Agent: the newest result that the agent has is the one of round r. The agent has sent no
	 * contribution to a round after r. */
	WIRE_HAVE,
	WIRE_HAVE_OK, /* server: received HAVE(r) */
	/* Server: asks the agent to offer result r, because other agents need the result */
	WIRE_DONATE_REQ,
	WIRE_DONATE, /* sent by an agent: the result of round r, inline or offered */
	/* Agent: no longer needs this RESULT; the server may reuse the memory of the result */
	WIRE_GOT,
	/* Server: does not know the partition or the pgen yet; the agent must send its CONTRIB or
	 * HAVE again soon */
	WIRE_AGAIN,
	/* Server: the bytes that it has read do not match the crc in the CONTRIB */
	WIRE_BAD_CRC,
	WIRE_CREDIT, /* agent or server: grants credits for more messages */
	/* Agent or server: checks that the peer responds; the peer answers with PONG */
	WIRE_PING,
	WIRE_PONG,
	WIRE_SEG_ADD, /* agent or server: adds a segment, to which later offers may refer */
	WIRE_SEG_DEL, /* agent or server: removes a segment */
	/* Agent or server: has discarded the bytes that were sent with the offer of this memory */
	WIRE_DISCARDED,
	/* Agent: HAVE for a partition of a value: the agent has the answer to its round r, which is
	 * the version `version` of the value; both are 0 if it has no answer */
	WIRE_HOLD,
	WIRE_TYPE_END
};

enum wire_flags {
	WIRE_INLINE = 1 << 0, /* `len` bytes of payload follow the tail */
	/* The offered bytes are sent too, without a request. The transport sets and clears this
	 * flag. */
	WIRE_EAGER = 1 << 1,
	/* RESULT: the sum was being made, or was complete, when the member's contribution or
	 * abstention arrived */
	WIRE_LATE = 1 << 2,
};

/* Set of a job's members. */
struct member_set {
	uint64_t w[WIRE_MEMBERS_MAX / 64];
};

/* Decoded message. Fields that a type does not use are zero on the wire; the decoder rejects other
 * values of these fields. */
struct wire_msg {
	uint8_t type;
	uint16_t flags;
	/* CRC-32C of the payload, inline or offered. In BAD_CRC: CRC-32C of the rejected payload */
	uint32_t crc;
	uint64_t cookie; /* cookie of the connection, set by the transport */
	uint64_t pgen;   /* view in which the partition got its server and members */
	/* Number of the round, from 1. In HAVE and the answers to HAVE, 0 means that the agent has
	 * no result yet */
	uint64_t round;
	uint32_t job;
	uint32_t tensor;
	uint32_t part;
	uint16_t member;   /* the agent's number in the job */
	uint16_t priority; /* priority of the message: larger values are sent first */
	uint32_t len;      /* length of the payload in bytes */
	uint16_t segment;
	uint16_t credits; /* credits granted with this message, set by the transport */
	uint64_t offset;  /* offset of the offered bytes in the segment */
	union {
		struct { /* CONTRIB */
			/* Crc of the result that the agent delivered for the previous round;
			 * 0 in round 1 */
			uint32_t crc_prev;
			uint8_t op;
			/* Number of workers whose gradients are in this contribution; 0: all of the
			 * machine's workers abstain, and the message has no bytes (`len` 0) */
			uint32_t workers;
		} contrib;
		struct {                    /* RESULT, DONATE */
			uint32_t workers;   /* number of workers whose gradients are in the sum */
			uint16_t n_members; /* number of members that the bitmap covers */
			/* Figures of the round (T3); 0: not known, and always in DONATE. last:
			 * number plus 1 of the member whose contribution came last. */
			uint16_t last;
			/* time from the arrival of the receiving member's contribution to that of
			 * the last one */
			uint32_t wait_us;
			/* time from the moment at which the server has all bytes to the sum */
			uint32_t sum_us;
			/* Number of contributions that had been added to the value; 0: the result
			 * is a sum */
			uint64_t version;
			/* members whose values are in the sum; for a value, those of which an odd
			 * number of contributions had been added */
			struct member_set contributors;
		} result;
		struct { /* HOLD */
			uint64_t version;
		} hold;
		struct {               /* SEG_ADD */
			uint64_t base; /* address that RDMA reads use for the segment's start */
			uint64_t key;
			uint64_t bytes;
		} seg;
	};
	/* Inline payload; NULL: there is none. The payload of a received message lies in the
	 * receive buffer. The payload of a message to be sent lies in memory of the caller */
	const void *payload;
};

/* Return the number of bytes that wire_encode writes for m: a multiple of 8, including the inline
 * payload. */
size_t wire_size(const struct wire_msg *m);

/* Write m (header, tail, inline payload, zero padding) to buf, which has room for wire_size(m)
 * bytes. Fields that the type does not use are written as zero, whatever their value in m. Returns
 * wire_size(m). */
size_t wire_encode(const struct wire_msg *m, void *buf);

/* Decode the message at the start of buf (8-byte aligned). Returns the length of the message (> 0).
 * The next message starts after that length. Errors: BPS_EPROTO; err gets the text. Checks every
 * length, flag, reserved field and type; the core checks the meaning of numbers (job, round, ...).
 * ret->payload points into buf. Writes ret only on success. */
int wire_decode(const void *buf, size_t n_bytes, struct wire_msg *ret, struct err_text *err);

/* Return a message of the type `type`, without tail or payload. The job, tensor, part, pgen, round
 * and member are copied from `m`. */
struct wire_msg wire_make_answer(const struct wire_msg *m, enum wire_type type);

/* Return the name of a type, such as "CONTRIB"; "?" for an unknown type. */
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
