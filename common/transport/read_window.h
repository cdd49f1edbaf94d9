#ifndef BPS_COMMON_TRANSPORT_READ_WINDOW_H
#define BPS_COMMON_TRANSPORT_READ_WINDOW_H
/* Window of bytes being read on one connection. The bytes that both sides request queue behind the
 * bytes that both sides send, in the same stream. With too much in flight, no result is requested
 * before the last contribution has left. So the window follows the time from request to arrival,
 * between bounds (the lower one is a millisecond of 1 Gbit/s). Reads are split into halves of the
 * window. Reads that the window does not take yet are queued. Where all bytes are requested, only
 * as many reads are queued as keep the window filled. Pure; the transport and the simulator of
 * bandwidth (tests/scale) share it. */
#include <stdbool.h>
#include <stdint.h>

#define READ_WINDOW_MIN   (UINT32_C(128) << 10)
#define READ_WINDOW_FIRST (UINT32_C(1) << 20)
#define READ_WINDOW_MAX   (UINT32_C(8) << 20)
#define READ_WINDOW_QUEUE 2 /* reads that wait for the window */
#define READ_FAST_NS      UINT64_C(1000000)
#define READ_SLOW_NS      UINT64_C(4000000)
#define READS_MAX         16 /* per connection */

struct read_window {
	uint32_t bytes; /* requested and not arrived yet */
	uint32_t limit; /* READ_WINDOW_FIRST at first */
};

/* Return the length of the next piece of a read with `left` bytes not requested yet. */
static inline uint32_t read_window_piece(const struct read_window *w, uint32_t left)
{
	return left < w->limit / 2 ? left : w->limit / 2;
}

/* Return whether the window takes len more bytes; one piece is always allowed. */
static inline bool read_window_takes(const struct read_window *w, uint32_t len)
{
	return !w->bytes || w->bytes + len <= w->limit;
}

/* Account for a piece that arrived took_ns after its request. has_more: others wait for the
 * window. */
static inline void read_window_arrived(
	struct read_window *w, uint32_t len, uint64_t took_ns, bool has_more)
{
	uint32_t step = w->limit / 8;

	w->bytes -= len;
	if (took_ns > READ_SLOW_NS && w->limit - step >= READ_WINDOW_MIN)
		w->limit -= step;
	else if (took_ns < READ_FAST_NS && has_more && w->limit + step <= READ_WINDOW_MAX)
		w->limit += step;
}
#endif
