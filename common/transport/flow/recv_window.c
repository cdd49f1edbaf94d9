/* Choose the receive window of a data thread's sockets. The choice depends on the number of
 * connections over the card, and on the round trip times of the thread's connections. The caller
 * passes measured times; socket_window.c sets the options of the sockets. The functions do no I/O.
 * Thread: the data thread. */
#include "common/transport/flow/recv_window.h"

#include <limits.h>
#include <stddef.h>

/* Round trip times up to FAST_US are fast. The kernel measures with timestamps in whole
 * milliseconds, and reports a time below 1000 us as 1000 us. Round trip times above LONG_US show
 * that the kernel's windows make the queue too long. At 1 Gbit/s, a round trip time of LONG_US
 * means a queue that is five times as long as with our windows. */
#define FAST_US 1000
#define LONG_US 30000
/* Round trip times above SLOW_US are slow. Between processes of one busy machine, the measured
 * times are up to 1.6 ms. With four peers at 1 Gbit/s, the measured times are 2 to 5 ms. */
#define SLOW_US 2000
/* Round trip times up to QUICK_US are quick. With a dozen processes on two processors, the measured
 * times are up to 4 ms. With two peers at 300 Mbit/s, the measured times are 20 ms. Even a slow
 * link gives quick samples in two cases: the link is not yet full, or its connections send at
 * different times. So a link counts as quick only after QUICK_TIMES quick samples in a row. In a
 * test with 8 agent hosts and 8 server hosts at 100 Mbit/s, a limit of 8 samples was too low. */
#define QUICK_US    5000
#define QUICK_TIMES 32u
#define TARDY_TIMES 4u
/* Numbers of samples in a row. The kernel may choose the window after FAST_TIMES << n_limited fast
 * samples. n_limited grows by 1 each time the kernel's windows have made the queue too long. */
#define FAST_TIMES  32u
#define SLOW_TIMES  64u
#define LONG_TIMES  8u
#define LIMITED_MAX 10u
/* When BOUNDED_TIMES samples of recv_window_bounded arrive within BOUNDED_NS, these samples count
 * as quick. Each sample stands for 1 MiB, so the bytes then arrive at 200 MB/s or more. */
#define BOUNDED_TIMES 8u
#define BOUNDED_NS    (BOUNDED_TIMES * QUICK_US * UINT64_C(1000))
/* The kernel averages the round trip times of a connection. Each sample changes the average by
 * (sample - average) / PAUSE_SHARE. */
#define PAUSE_SHARE 8

/* Window by number of connections. The windows of up to 32 connections add up to 3.5 MiB at most.
 * With more connections, each window is RECV_WINDOW_MIN, and the windows may add up to more. A
 * sender's kernel fills a window with segments of 64 KiB (TSO), and waits until there is room for a
 * whole segment. A window of 384 KiB holds five segments and the bytes that wait to be read. A
 * window of 224 KiB holds three segments, a window of 96 KiB one segment. 192 KiB would sometimes
 * hold three segments and sometimes two. */
static const struct {
	unsigned n_conns;
	int bytes;
} steps[] = {{8, RECV_WINDOW_MAX}, {16, 224 << 10}, {32, 96 << 10}, {UINT_MAX, RECV_WINDOW_MIN}};

void recv_window_init(struct recv_window *w)
{
	*w = (struct recv_window){.bytes = RECV_WINDOW_MAX, .share = RECV_WINDOW_MAX};
}

/* Set the size of the window. If `bytes` is 0, the kernel chooses the size. Returns true, because
 * the window has changed. */
static bool recv_window_set_bytes(struct recv_window *w, int bytes)
{
	w->n_fast = w->n_slow = w->n_long = 0;
	w->bytes = bytes;
	return true;
}

bool recv_window_shared(struct recv_window *w, unsigned n_conns)
{
	size_t i = 0;

	while (n_conns > steps[i].n_conns)
		i++;
	w->share = steps[i].bytes;
	if (!w->bytes || w->bytes == w->share)
		return false;
	/* Keep the counts of samples, because disconnected peers usually connect again soon. */
	w->bytes = w->share;
	return true;
}

static bool recv_window_set_paced(struct recv_window *w)
{
	w->is_paced = true;
	w->is_quick = false;
	return true;
}

/* Update is_quick. Returns whether it has changed. */
static bool judge_quickness(struct recv_window *w)
{
	bool was_quick = w->is_quick;

	if (w->n_quick >= QUICK_TIMES && !w->is_paced && !w->is_quick_if_fast)
		w->is_quick = true;
	if (w->n_tardy >= TARDY_TIMES)
		w->is_quick = false;
	return w->is_quick != was_quick;
}

/* Let the kernel choose the window after enough fast samples. Returns whether it may choose from
 * now on. */
static bool judge_fastness(struct recv_window *w)
{
	if (!w->bytes || w->n_fast < FAST_TIMES << w->n_limited)
		return false;
	w->is_paced = false;
	w->is_quick = true;
	return recv_window_set_bytes(w, 0);
}

bool recv_window_add_rtt_sample(struct recv_window *w, uint32_t rtt_us)
{
	bool is_long, has_changed;

	w->n_quick = rtt_us > QUICK_US ? 0 : w->n_quick + 1;
	w->n_tardy = rtt_us > QUICK_US ? w->n_tardy + 1 : 0;
	w->n_bounded = rtt_us > QUICK_US ? 0 : w->n_bounded;
	w->n_fast = rtt_us > FAST_US ? 0 : w->n_fast + 1;
	w->n_slow = rtt_us > SLOW_US ? w->n_slow + 1 : 0;
	w->n_long = rtt_us > LONG_US ? w->n_long + 1 : 0;
	is_long = w->n_long >= LONG_TIMES;
	has_changed = judge_quickness(w);
	if (!w->bytes && is_long) {
		w->n_limited += w->n_limited < LIMITED_MAX;
		w->is_quick &= !w->is_quick_if_fast;
		return recv_window_set_bytes(w, w->share);
	}
	if (judge_fastness(w))
		return true;
	if (w->bytes && !w->is_paced && w->n_slow >= SLOW_TIMES)
		return recv_window_set_paced(w);
	return has_changed;
}

bool recv_window_bounded(struct recv_window *w, uint32_t most_us, uint64_t now_ns)
{
	bool is_first = !w->n_bounded, came_soon, were_fast;

	if (most_us > QUICK_US) {
		w->n_bounded = w->n_quick = w->n_fast = 0;
		return false;
	}
	if (!is_first && w->n_bounded < BOUNDED_TIMES) {
		w->n_bounded++;
		w->is_bounded_fast &= most_us <= FAST_US;
		return false;
	}
	came_soon = !is_first && now_ns - w->bounded_ns <= BOUNDED_NS;
	were_fast = came_soon && w->is_bounded_fast;
	w->n_bounded = 1;
	w->bounded_ns = now_ns;
	w->is_bounded_fast = most_us <= FAST_US;
	if (!came_soon)
		return false;
	w->n_quick += BOUNDED_TIMES;
	w->n_fast += were_fast ? BOUNDED_TIMES : 0;
	w->n_tardy = 0;
	return judge_fastness(w) || judge_quickness(w);
}

void recv_window_refused(struct recv_window *w)
{
	/* Set a high value, so that much time passes before the kernel may choose the window
	 * again */
	w->n_limited = LIMITED_MAX;
	w->is_quick &= !w->is_quick_if_fast;
	recv_window_set_bytes(w, w->share);
}

void recv_rtt_heard(struct recv_rtt *r, uint64_t now_ns)
{
	uint64_t gap_us = r->heard_ns ? (now_ns - r->heard_ns) / 1000 : 0;

	r->heard_ns = now_ns;
	/* A peer that has bytes to send is silent for at most the average round trip time. So only
	 * a longer gap counts as a pause. */
	if (gap_us <= r->us || gap_us <= FAST_US)
		return;
	gap_us = r->pause_us + gap_us / PAUSE_SHARE;
	r->pause_us = gap_us < UINT32_MAX ? (uint32_t)gap_us : UINT32_MAX;
	r->decayed_ns = now_ns;
}

void recv_rtt_flowed(struct recv_rtt *r, uint64_t now_ns)
{
	r->heard_ns = now_ns;
}

bool recv_rtt_measured(struct recv_rtt *r, uint32_t us, uint64_t now_ns)
{
	uint64_t half_ns = (us > FAST_US ? us : FAST_US) * UINT64_C(500);

	r->us = us;
	/* Estimate how many round trip times the kernel has sampled since decayed_ns. Each sample
	 * reduces pause_us by an eighth. The kernel reports the average of its samples. half_ns is
	 * half of this average, but at least half of FAST_US. The estimate is one sample per
	 * half_ns. If pauses make up at least half of the average, the true round trip time is at
	 * most half_ns. In this case the kernel takes at least one sample per half_ns, so the
	 * estimate is not too high. */
	for (; r->pause_us && now_ns - r->decayed_ns >= half_ns; r->decayed_ns += half_ns)
		r->pause_us -= (r->pause_us + PAUSE_SHARE - 1) / PAUSE_SHARE;
	if (!r->pause_us)
		r->decayed_ns = now_ns;
	return r->pause_us <= us / 2;
}
