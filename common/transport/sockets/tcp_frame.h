#ifndef BPS_COMMON_TRANSPORT_SOCKETS_TCP_FRAME_H
#define BPS_COMMON_TRANSPORT_SOCKETS_TCP_FRAME_H
/* Frame of the TCP transport. A connection has two sockets (common/transport/sockets/tcp_impl.h).
 * LANE_MESSAGES is the socket for messages. There, a message follows each frame of type
 * FRAME_MESSAGE. No bytes follow a frame of another type. LANE_BULK is the socket for bytes of
 * segments. There, a frame (head) precedes the bytes, and another frame (trailer) follows the
 * bytes.
 * Frames are little-endian, like the whole wire protocol. The lengths of frames and of the data
 * after them are multiples of 8 bytes. */
#include <stdint.h>

#include "common/wire/wire.h"

enum tcp_frame_type {
	FRAME_MESSAGE = 1, /* LANE_MESSAGES: one wire message of len bytes follows */
	/* On LANE_MESSAGES: request to read. The receiver answers with len bytes of its segment.
	 * The first of these bytes is at `offset` */
	FRAME_READ,
	/* On LANE_BULK: trailer after the bytes. Its fields len and offset repeat those of the head
	 * before the bytes */
	FRAME_BYTES,
	/* On LANE_BULK: head of an answer. Its fields len and offset repeat those of the request */
	FRAME_ANSWER,
	/* On LANE_MESSAGES: announces an eager offer. The next message is the offer. The sender
	 * sends the offered bytes without a request (eager bytes).
	 * On LANE_BULK: head of the eager bytes of one offer. `offset` is the number of eager
	 * offers that the sender made before that offer. */
	FRAME_EAGER,
};
struct tcp_frame {
	uint8_t type;
	/* In FRAME_BYTES: 1 if zeros were sent instead of requested or offered bytes, because the
	 * segment does not contain these bytes or was removed; else 0. In other frames: 0 */
	uint8_t status;
	uint16_t segment;
	uint32_t len;
	uint64_t offset;
};
_Static_assert(sizeof(struct tcp_frame) == 16, "frame layout");

#define TCP_FRAME_MAX (sizeof(struct tcp_frame) + ((WIRE_SEND_MAX + 7) & ~7))
#endif
