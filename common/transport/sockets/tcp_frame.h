#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_FRAME_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_FRAME_H
/* Frame of our own TCP (common/transport/sockets/tcp_impl.h): it starts everything on
 * LANE_MESSAGES, and is head and trailer on LANE_BULK. Little-endian, like the whole wire protocol.
 * Frames and the data after them are multiples of 8 bytes. */
#include <stdint.h>

#include "common/wire/wire.h"

enum tcp_frame_type {
	FRAME_MESSAGE = 1, /* one wire message of len bytes follows */
	FRAME_READ,        /* answer with len bytes at offset of the segment */
	FRAME_BYTES,       /* LANE_BULK: trailer after bytes, same fields as their head */
	FRAME_ANSWER,      /* LANE_BULK: head of an answer, same fields as its request */
	/* LANE_MESSAGES: the offer in the next message is eager. LANE_BULK: head of its bytes;
	 * offset is the number of eager offers before it */
	FRAME_EAGER,
};
struct tcp_frame {
	uint8_t type;
	uint8_t status; /* FRAME_BYTES: 0, or 1: no such segment exists, the bytes are zeros */
	uint16_t segment;
	uint32_t len;
	uint64_t offset;
};
_Static_assert(sizeof(struct tcp_frame) == 16, "frame layout");

#define TCP_FRAME_MAX (sizeof(struct tcp_frame) + ((WIRE_SEND_MAX + 7) & ~7))
#endif
