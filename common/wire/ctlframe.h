#ifndef BPS_COMMON_WIRE_CTLFRAME_H
#define BPS_COMMON_WIRE_CTLFRAME_H
/* Parse and write frames of the control channel. The functions are pure. The control channel and
 * the fuzzer share them. A frame starts with a u32 length and a u16 type, both little-endian. The
 * body follows. The length counts the bytes of the type and of the body. */
#include <stddef.h>
#include <stdint.h>

#define CTLFRAME_HEAD_BYTES 6
/* Largest number of bytes of type and body together, from a peer that has authenticated */
#define CTLFRAME_MAX_BYTES ((size_t)1 << 20)
/* Largest number of bytes of type and body together, from a peer that has not authenticated */
#define CTLFRAME_UNTRUSTED_BYTES ((size_t)4096)

struct ctlframe {
	uint16_t type;
	const uint8_t *body; /* points into the parsed buffer */
	size_t n_body;
};

/* Parse the frame at the start of buf. The type and the body together may have at most max_bytes.
 * Returns 1: the frame is complete, and takes *ret_bytes of buf. Returns 0: the frame is
 * incomplete. *ret_bytes is set to the size of the head, or of the whole frame if the head is
 * complete. Before the next call, the caller must read until buf holds *ret_bytes. Returns
 * BPS_EPROTO: the length is invalid, and nothing is written. */
int ctlframe_parse(const uint8_t *buf, size_t n_bytes, size_t max_bytes, struct ctlframe *ret_frame,
	size_t *ret_bytes);

/* Write the head of a frame with a body of n_body bytes (at most CTLFRAME_MAX_BYTES - 2). */
void ctlframe_write_head(
	uint8_t ret_head[static CTLFRAME_HEAD_BYTES], uint16_t type, size_t n_body);
#endif
