#ifndef BPS_COMMON_WIRE_PATH_PROBE_H
#define BPS_COMMON_WIRE_PATH_PROBE_H
/* A path probe: a connection to a server's port for data connections that measures whether the path
 * passes large packets in both directions. `bpsctl check` connects, sends a head in place of a
 * ticket, and gets the same head back. These messages are small. Then it sends PATH_PROBE_BYTES
 * zeros, gets as many zeros back, and closes the connection. The server sends no more than it has
 * received, needs no ticket for this, and reads no byte of its own memory. The functions are
 * pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Length of the head. All releases so far send tickets of this length, and a server that does not
 * know path probes refuses the head as a ticket. Tickets of later versions may be longer. */
#define PATH_PROBE_HEAD_BYTES 48
#define PATH_PROBE_BYTES      ((size_t)64 << 10)
#define PATH_PROBE_MAGIC      "BPSPATH"

/* Write the head of a probe. No ticket begins with the same bytes. */
static inline void path_probe_head(uint8_t ret[PATH_PROBE_HEAD_BYTES])
{
	memset(ret, 0, PATH_PROBE_HEAD_BYTES);
	memcpy(ret, PATH_PROBE_MAGIC, sizeof(PATH_PROBE_MAGIC));
}

static inline bool path_probe_is_head(const uint8_t head[PATH_PROBE_HEAD_BYTES])
{
	uint8_t expected[PATH_PROBE_HEAD_BYTES];

	path_probe_head(expected);
	return memcmp(head, expected, PATH_PROBE_HEAD_BYTES) == 0;
}
#endif
