#ifndef BPS_COMMON_TRANSPORT_FLOW_RECV_WINDOW_H
#define BPS_COMMON_TRANSPORT_FLOW_RECV_WINDOW_H
/* The receive window of the sockets on which a data thread receives bytes of tensors: one value for
 * all these sockets. It depends on the number of connections of all data threads over the network
 * card, because they share its link.
 *
 * The bytes that all peers send to this host wait in one queue in front of this host's link. A
 * peer's share of the link is its window divided by the sum of all windows. Therefore all windows
 * are equal, and only as large as needed to keep the link busy. The more connections there are, the
 * smaller the windows. The size of the windows changes in few steps. Therefore two hosts whose
 * numbers of connections differ by one usually have windows of the same size. In an earlier version
 * each host chose its windows by the length of its own queue. Then a sender saw unequal windows,
 * and its connections with small windows fell behind.
 *
 * On a slow link this side's sends are paced as well, because bursts make the queue alternate
 * between long and empty. On a fast link the timers of pacing cost more than they save. When the
 * link has been fast for a while, the kernel chooses each window, until the queue gets long.
 *
 * The functions do no I/O and read no clock. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values below were measured with 2 to 8 connections at 100 Mbit/s to 1 Gbit/s
 * (docs/explanation/performance.md, points 1 and 7). Values for more connections are derived, not
 * measured. */
/* Value for SO_RCVBUF, which the kernel doubles for the kernel's own needs */
#define RECV_ROOM       (208 << 10)
#define RECV_WINDOW_MAX (384 << 10) /* bytes in flight that the kernel allows with RECV_ROOM */
#define RECV_WINDOW_MIN (48 << 10)

struct recv_window {
	int bytes; /* size of the window: limit of the bytes in flight; 0: the kernel chooses */
	/* Window size in bytes, chosen for the current number of connections. This size is used
	 * unless the kernel chooses the window size. */
	int share;
	/* Whether sends are paced. When is_paced becomes true, pacing is turned on for all open
	 * sockets. While is_paced is true, pacing is also turned on for new sockets. */
	bool is_paced;
	bool is_quick; /* round trips are short, so queued bytes are sent soon */
	/* is_quick is true only while the kernel chooses the window. The owner sets this once. With
	 * libfabric's tcp, a link of 1 Gbit/s stays quick for up to 20 s before it is paced, and
	 * SOCKET_AHEAD then delays urgent bytes by 20 ms. */
	bool is_quick_if_fast;
	unsigned n_fast, n_quick, n_tardy, n_slow, n_long, n_limited, n_bounded;
	uint64_t bounded_ns;  /* time of the first of the n_bounded samples */
	bool is_bounded_fast; /* all of these samples are fast */
	size_t unmeasured;    /* bytes that all sockets have received since the last measurement */
};

/* State for judging the kernel's average round trip time of one connection. The kernel takes one
 * sample per window, with a weight of an eighth. So a pause of the sender adds an eighth of the
 * pause to the average. Later samples reduce this error. */
struct recv_rtt {
	/* heard_ns: time when the last bytes arrived. decayed_ns: point in time until which the
	 * reductions of pause_us have been applied */
	uint64_t heard_ns, decayed_ns;
	/* The kernel's last average of the time in which the bytes of one window arrive, in
	 * microseconds */
	uint32_t us;
	/* Part of the average `us` that may be due to pauses of the sender, in microseconds */
	uint32_t pause_us;
};

void recv_window_init(struct recv_window *w);
/* Set the number of connections over the card. Returns whether w->bytes has changed. */
bool recv_window_shared(struct recv_window *w, unsigned n_conns);
/* Add a sample that recv_rtt_measured accepted. The sample measures one connection. rtt_us: the
 * average time that the bytes of one window take to arrive, as measured by the kernel, in
 * microseconds. Returns whether w->bytes, w->is_paced or w->is_quick has changed. */
bool recv_window_add_rtt_sample(struct recv_window *w, uint32_t rtt_us);
/* Add a sample that recv_rtt_measured rejected. That function rejects a sample if more than half of
 * the measured time may be pauses of the sender. most_us: the measured time in microseconds, an
 * upper bound of the true time. On a busy machine recv_rtt_measured rejects all samples. A rejected
 * sample cannot show that a link is slow, but a time above QUICK_US ends the count of fast samples
 * in a row. Rejected samples with short times form a series. If the bytes of a series arrived
 * faster than a slow link could carry them, each sample of the series counts as quick, and as fast
 * if all of them are fast. The caller takes one sample for each MiB that all connections together
 * have received. Returns whether w->bytes or w->is_quick has changed. */
bool recv_window_bounded(struct recv_window *w, uint32_t most_us, uint64_t now_ns);
/* Record that the kernel is unable to choose the window (Linux before 5.14). After that, the window
 * stays fixed for a long time. */
void recv_window_refused(struct recv_window *w);

/* Record that bytes have arrived at now_ns, or begin to arrive. A long time since the last call may
 * be a pause of the sender. */
void recv_rtt_heard(struct recv_rtt *r, uint64_t now_ns);
/* Record that bytes have arrived until now_ns, without a pause since the last call. */
void recv_rtt_flowed(struct recv_rtt *r, uint64_t now_ns);
/* Add a time that the kernel has measured. us: the kernel's tcpi_rcv_rtt, in microseconds. Returns
 * false if more than half of the measured time may be pauses of the sender. In that case the
 * measured time does not show the round trip time. */
bool recv_rtt_measured(struct recv_rtt *r, uint32_t us, uint64_t now_ns);
#endif
