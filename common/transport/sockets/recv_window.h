#ifndef BPS_COMMON_TRANSPORT_SOCKETS_RECV_WINDOW_H
#define BPS_COMMON_TRANSPORT_SOCKETS_RECV_WINDOW_H
/* The receive window of the sockets on which a data thread receives bytes of tensors: one value for
 * all of them.
 *
 * The bytes of all peers wait in one queue before our link. A peer's share of the link is its
 * window divided by the sum of all windows. So all windows are equal, and only as large as needed
 * to keep the link busy. With more connections they are smaller. They shrink in few steps, so that
 * hosts whose numbers of connections differ by one mostly have equal windows. An earlier version
 * let each host choose by the length of its own queue. Then a sender saw unequal windows, and its
 * connections with small windows fell behind. When the link has been fast for a while, the kernel
 * chooses (it grows each window on its own), until the queue gets long.
 *
 * On a slow link this side's sends are paced as well, because bursts make the queue alternate
 * between long and empty. On a fast link the timers of pacing cost more than they save. Pure. */
#include <stdbool.h>
#include <stdint.h>

/* Measured with 2 to 8 connections at 100 Mbit/s to 1 Gbit/s (docs/explanation/performance.md,
 * points 1 and 7). Values for more connections are derived, not measured. */
/* Value for SO_RCVBUF; the kernel doubles it for its own needs */
#define RECV_ROOM       (208 << 10)
#define RECV_WINDOW_MAX (384 << 10) /* bytes in flight that the kernel allows with RECV_ROOM */
#define RECV_WINDOW_MIN (48 << 10)

struct recv_window {
	int bytes; /* bytes allowed in flight; 0: the kernel chooses */
	/* Bytes that fit the current number of connections; used unless the kernel chooses */
	int share;
	/* Pace sends: set on new sockets, and on those that were open when it became true */
	bool is_paced;
	bool is_quick; /* round trips are short, so queued bytes are sent soon */
	unsigned n_fast, n_quick, n_tardy, n_slow, n_long, n_limited, n_bounded;
	uint64_t bounded_ns; /* time of the first of the n_bounded samples */
};

/* Judges the kernel's average round trip time of one connection. The kernel takes one sample per
 * window, with a weight of an eighth. So a pause of the sender adds an eighth of its length to the
 * average, and later samples reduce that part again. */
struct recv_rtt {
	/* heard_ns: time of the last bytes. decayed_ns: time up to which pause_us was reduced */
	uint64_t heard_ns, decayed_ns;
	uint32_t us;       /* the kernel's last average of the time from window to window */
	uint32_t pause_us; /* part of that average that may be pauses of the sender */
};

void recv_window_init(struct recv_window *w);
/* Set the number of connections. Returns whether w->bytes has changed. */
bool recv_window_shared(struct recv_window *w, unsigned n_conns);
/* Add a sample of one connection that recv_rtt_measured accepted. rtt_us: time from window to
 * window, in microseconds. Returns whether w->bytes, w->is_paced or w->is_quick has changed. */
bool recv_window_measured(struct recv_window *w, uint32_t rtt_us);
/* Add a sample that recv_rtt_measured rejected because much of it may be pauses. most_us: the
 * sample, an upper bound of the true time, in microseconds. On a busy machine all samples are of
 * this kind. Such a sample cannot show that a link is slow. A row of short ones sets w->is_quick if
 * their bytes arrived faster than over a slow link. One sample is taken per MiB received on all
 * connections. Returns whether w->is_quick has changed. */
bool recv_window_bounded(struct recv_window *w, uint32_t most_us, uint64_t now_ns);
/* Record that the kernel cannot choose the window itself (before 5.14), so that it stays fixed. */
void recv_window_refused(struct recv_window *w);

/* Record that bytes have arrived at now_ns. */
void recv_rtt_heard(struct recv_rtt *r, uint64_t now_ns);
/* Add a measurement of the kernel; us: tcpi_rcv_rtt, in microseconds. Returns false when more than
 * half of it may be pauses of the sender, so that it does not show the round trip time. */
bool recv_rtt_measured(struct recv_rtt *r, uint32_t us, uint64_t now_ns);
#endif
