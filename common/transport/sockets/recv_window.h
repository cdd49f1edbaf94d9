#ifndef BPS_COMMON_TRANSPORT_SOCKETS_RECV_WINDOW_H
#define BPS_COMMON_TRANSPORT_SOCKETS_RECV_WINDOW_H
/* The receive window of a data thread's sockets for bytes, one for all of them.
 *
 * What all peers send waits in one queue before our link, and of the link each gets the share that
 * its window has of all windows: so windows are equal, and no larger than keeps the link busy. With
 * more connections they are smaller, in few steps, so that hosts whose numbers differ by one mostly
 * have the same: windows that each host chose by its own queue were unequal for a sender, and its
 * connections with small ones fell behind. Where the link is fast for them, and was for a while, the
 * kernel chooses (it grows them, each for itself), until the queue is long.
 *
 * Where the link is slow what we send is paced as well: bursts make a queue now long, now empty. It
 * is not elsewhere, where pacing's timers cost more than that. Pure. */
#include <stdbool.h>
#include <stdint.h>

/* Measured with 2 to 8 connections at 100 Mbit/s to 1 Gbit/s (docs/explanation/performance.md,
 * points 1 and 7); with more they follow from that, and were not. */
#define RECV_ROOM       (208 << 10) /* SO_RCVBUF, which the kernel doubles, for its own needs */
#define RECV_WINDOW_MAX (384 << 10) /* what it then lets be on the way */
#define RECV_WINDOW_MIN (48 << 10)

struct recv_window {
	int bytes;     /* that may be on the way; 0: the kernel chooses */
	int share;     /* what it is for that many connections, if it is not the kernel's */
	bool is_paced; /* new sockets, and those that were there when it became true */
	bool is_quick; /* round trips are short: what waits to leave does so soon */
	unsigned n_fast, n_quick, n_tardy, n_slow, n_long, n_limited, n_bounded;
	uint64_t bounded_ns; /* when the first of the n_bounded was */
};

/* The kernel's average of one connection, of a sample per window with a weight of an eighth: so a
 * pause of the sender is in it for an eighth of its length, which later samples decay. */
struct recv_rtt {
	uint64_t heard_ns, decayed_ns; /* last bytes; until when pause_us has decayed */
	uint32_t us;                   /* the average, from window to window */
	uint32_t pause_us;             /* how much of it may be pauses */
};

void recv_window_init(struct recv_window *w);
/* There are so many connections. True: w->bytes has changed. */
bool recv_window_shared(struct recv_window *w, unsigned n_conns);
/* rtt_us: the time from window to window of one connection, in microseconds, as recv_rtt_measured
 * found it good. True: w->bytes, w->is_paced or w->is_quick has changed. */
bool recv_window_measured(struct recv_window *w, uint32_t rtt_us);
/* It found that much of it may be pauses: the time is at most that, in microseconds, which is all
 * that processes of a busy machine ever tell. That is no news of a slow link; but short ones in a
 * row make w->is_quick true while more comes than would over one. A sample is for 1 MiB of all
 * connections. True: w->is_quick has changed. */
bool recv_window_bounded(struct recv_window *w, uint32_t most_us, uint64_t now_ns);
/* It was to choose, and cannot (kernels before 5.14). */
void recv_window_refused(struct recv_window *w);

/* Bytes are here. */
void recv_rtt_heard(struct recv_rtt *r, uint64_t now_ns);
/* us: tcpi_rcv_rtt. False: half of it or more may be pauses, so that it says nothing. */
bool recv_rtt_measured(struct recv_rtt *r, uint32_t us, uint64_t now_ns);
#endif
