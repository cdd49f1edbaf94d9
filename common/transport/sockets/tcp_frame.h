#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_FRAME_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_FRAME_H
/* Frame of the TCP transport. A connection has two sockets (common/transport/sockets/tcp_impl.h).
 * LANE_MESSAGES is the socket for messages. On it, a frame precedes each message; frames of other
 * types are complete in themselves. LANE_BULK is the socket for bytes of segments. On it, a frame
 * precedes the bytes (head) and another frame follows them (trailer). Little-endian, like the whole
 * wire protocol. The lengths of frames and of the data after them are multiples of 8 bytes. */
#include <stdint.h>

#include "common/wire/wire.h"

enum tcp_frame_type {
	FRAME_MESSAGE = 1, /* LANE_MESSAGES: one wire message of len bytes follows */
	/* LANE_MESSAGES: request to read; the receiver answers with len bytes at offset of its
	 * segment */
	FRAME_READ,
	/* LANE_BULK: trailer after bytes; len and offset are those of the head before the bytes */
	FRAME_BYTES,
	FRAME_ANSWER, /* LANE_BULK: head of an answer; len and offset are those of the request */
	/* LANE_MESSAGES: the bytes that the next message offers are sent without a request (eager).
	 * LANE_BULK: head of these bytes; offset is the number of eager offers before this offer */
	FRAME_EAGER,
};
struct tcp_frame {
	uint8_t type;
	/* In FRAME_BYTES: 1 if the segment does not exist and zeros were sent instead, else 0. In
	 * other frames: 0 */
	uint8_t status;
	uint16_t segment;
	uint32_t len;
	uint64_t offset;
};
_Static_assert(sizeof(struct tcp_frame) == 16, "frame layout");

#define TCP_FRAME_MAX (sizeof(struct tcp_frame) + ((WIRE_SEND_MAX + 7) & ~7))
#endif
