#ifndef BPS_COMMON_TRANSPORT_SOCKETS_RECV_WINDOW_H
#define BPS_COMMON_TRANSPORT_SOCKETS_RECV_WINDOW_H
/* The receive window of a data thread's bulk sockets, one value for all of them.
 *
 * All peers' bytes wait in one queue before our link. Each peer gets the share of the link that its
 * window has of all windows. So windows are equal, and only as large as needed to keep the link
 * busy. With more connections they are smaller, in few steps, so that hosts whose numbers differ by
 * one mostly have the same. Windows that each host chose by its own queue were unequal for a
 * sender, and its connections with small ones fell behind. Where the link is fast, and was for a
 * while, the kernel chooses (it grows each window on its own), until the queue is long.
 *
 * Where the link is slow, our sends are paced as well: bursts make the queue alternate between long
 * and empty. On fast links the timers of pacing cost more than that. Pure. */
#include <stdbool.h>
#include <stdint.h>

/* Measured with 2 to 8 connections at 100 Mbit/s to 1 Gbit/s (docs/explanation/performance.md,
 * points 1 and 7). Values for more connections are derived, not measured. */
#define RECV_ROOM       (208 << 10) /* SO_RCVBUF; the kernel doubles it for its own needs */
#define RECV_WINDOW_MAX (384 << 10) /* bytes in flight that the kernel allows with RECV_ROOM */
#define RECV_WINDOW_MIN (48 << 10)

struct recv_window {
	int bytes;     /* bytes allowed in flight; 0: the kernel chooses */
	int share;     /* bytes for the current number of connections, unless the kernel chooses */
	bool is_paced; /* applies to new sockets, and to those open when it became true */
	bool is_quick; /* round trips are short: queued bytes leave soon */
	unsigned n_fast, n_quick, n_tardy, n_slow, n_long, n_limited, n_bounded;
	uint64_t bounded_ns; /* time of the first of the n_bounded */
};

/* The kernel's average round trip of one connection, from one sample per window with a weight of an
 * eighth. So a pause of the sender enters with an eighth of its length, and later samples decay
 * it. */
struct recv_rtt {
	/* Time of the last bytes; time up to which pause_us has decayed */
	uint64_t heard_ns, decayed_ns;
	uint32_t us;       /* the average time from window to window */
	uint32_t pause_us; /* part of it that may be pauses */
};

void recv_window_init(struct recv_window *w);
/* Set the number of connections. True: w->bytes has changed. */
bool recv_window_shared(struct recv_window *w, unsigned n_conns);
/* Add a sample of one connection that recv_rtt_measured accepted. rtt_us: time from window to
 * window, in microseconds. True: w->bytes, w->is_paced or w->is_quick has changed. */
bool recv_window_measured(struct recv_window *w, uint32_t rtt_us);
/* Add a sample that recv_rtt_measured rejected because much of it may be pauses. most_us: upper
 * bound of the time, in microseconds; processes of a busy machine provide only such samples. It
 * does not show a slow link. Short ones in a row make w->is_quick true when more bytes come than
 * over a slow link. A sample is for 1 MiB of all connections. True: w->is_quick has changed. */
bool recv_window_bounded(struct recv_window *w, uint32_t most_us, uint64_t now_ns);
/* The kernel refused to tune the window (before 5.14). Keep the fixed one. */
void recv_window_refused(struct recv_window *w);

/* Record that bytes have arrived. */
void recv_rtt_heard(struct recv_rtt *r, uint64_t now_ns);
/* Add a kernel measurement; us: tcpi_rcv_rtt. False: half of it or more may be pauses, so it is no
 * evidence. */
bool recv_rtt_measured(struct recv_rtt *r, uint32_t us, uint64_t now_ns);
#endif
