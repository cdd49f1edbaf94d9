#include "common/recvwindow.h"

/* The kernel takes the time from timestamps that count milliseconds: 1000 is "at once". Four peers'
 * windows take 4 ms at 1 Gbit/s; at 300 Mbit/s (14 ms) and below halves of them were better. */
#define FAST_US 1000
#define LONG_US 9000
/* Samples in a row: FAST_TIMES short ones double a small window, LONG_TIMES long ones halve it. The
 * kernel chooses after FAST_TIMES << n_limited: twice as many each time that went wrong. */
#define FAST_TIMES  32u
#define LONG_TIMES  8u
#define LIMITED_MAX 10u

void recv_window_init(struct recv_window *w)
{
	*w = (struct recv_window){.bytes = RECV_WINDOW_MAX};
}

static bool set(struct recv_window *w, int bytes)
{
	w->n_fast = w->n_long = 0;
	w->bytes = bytes;
	return true;
}

bool recv_window_measured(struct recv_window *w, uint32_t rtt_us)
{
	bool is_long, is_fast;

	w->n_fast = rtt_us > FAST_US ? 0 : w->n_fast + 1;
	w->n_long = rtt_us > LONG_US ? w->n_long + 1 : 0;
	is_fast = w->n_fast >= FAST_TIMES;
	is_long = w->n_long >= LONG_TIMES;
	if (!w->bytes && is_long) {
		w->n_limited += w->n_limited < LIMITED_MAX;
		return set(w, RECV_WINDOW_MAX);
	}
	if (w->bytes == RECV_WINDOW_MAX && w->n_fast >= FAST_TIMES << w->n_limited)
		return set(w, 0);
	if (w->bytes > RECV_WINDOW_MIN && is_long)
		return set(w, w->bytes / 2);
	if (w->bytes && w->bytes < RECV_WINDOW_MAX && is_fast)
		return set(w, w->bytes * 2);
	return false;
}

void recv_window_refused(struct recv_window *w)
{
	w->n_limited = LIMITED_MAX; /* do not ask for it again soon */
	set(w, RECV_WINDOW_MAX);
}
