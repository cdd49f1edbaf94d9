#ifndef BPS_COMMON_TRANSPORT_FLOW_READ_WINDOW_H
#define BPS_COMMON_TRANSPORT_FLOW_READ_WINDOW_H
/* The read window: the limit of the bytes that are requested and not yet received on one
 * connection. In each direction, requested bytes and bytes sent without a request share one stream.
 * With too many bytes in flight, the answer to a new request waits behind all these bytes. So the
 * limit depends on the time from request to arrival. The limit shrinks when this time is long, and
 * grows when this time is short. The transport chooses the smallest limit. READ_WINDOW_MIN is the
 * number of bytes that 1 Gbit/s carries in a millisecond. A read is split into pieces of half the
 * limit. Reads that do not yet fit into the limit are queued. A transport without eager bytes
 * queues only READ_WINDOW_QUEUE reads, which suffice to keep the window full. Pure: no I/O, clock
 * or threads. The transports and the simulator of bandwidth (tests/scale) share this code. */
#include <stdbool.h>
#include <stdint.h>

#define READ_WINDOW_MIN   (UINT32_C(128) << 10)
#define READ_WINDOW_FIRST (UINT32_C(1) << 20)
#define READ_WINDOW_MAX   (UINT32_C(8) << 20)
/* Largest number of reads that wait for the window, in a transport without eager bytes */
#define READ_WINDOW_QUEUE 2
#define READ_FAST_NS      UINT64_C(1000000)
#define READ_SLOW_NS      UINT64_C(4000000)
#define READS_MAX         16 /* largest number of reads per connection */

struct read_window {
	uint32_t bytes; /* bytes requested and not yet received */
	uint32_t limit; /* limit of the bytes in flight; initially READ_WINDOW_FIRST */
	uint32_t least; /* smallest limit */
};

/* Return the length of the next piece of a read with `left` bytes not requested yet. */
static inline uint32_t read_window_piece(const struct read_window *w, uint32_t left)
{
	return left < w->limit / 2 ? left : w->limit / 2;
}

/* Return whether len more bytes may be requested. When nothing is in flight, a piece of any length
 * may be requested. */
static inline bool read_window_takes(const struct read_window *w, uint32_t len)
{
	return !w->bytes || w->bytes + len <= w->limit;
}

/* Account for a received piece of a read, and adapt the limit. len: bytes of the piece. took_ns:
 * time from the request to the arrival. has_more: other reads wait for room in the window. */
static inline void read_window_arrived(
	struct read_window *w, uint32_t len, uint64_t took_ns, bool has_more)
{
	uint32_t step = w->limit / 8;

	w->bytes -= len;
	if (took_ns > READ_SLOW_NS && w->limit - step >= w->least)
		w->limit -= step;
	else if (took_ns < READ_FAST_NS && has_more && w->limit + step <= READ_WINDOW_MAX)
		w->limit += step;
}
#endif
