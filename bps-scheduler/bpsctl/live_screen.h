#ifndef BPS_SCHEDULER_BPSCTL_LIVE_SCREEN_H
#define BPS_SCHEDULER_BPSCTL_LIVE_SCREEN_H
/* Showing something again and again until SIGINT or SIGTERM comes. A terminal is redrawn in place,
 * each frame with one write; anything else gets the screens below each other. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct live_screen {
	int signals;     /* signalfd */
	bool is_drawing; /* stdout is a terminal that can move its cursor */
	bool has_begun;
};

/* From now on the signals only end the waits. Errors: -errno. */
int live_screen_begin(struct live_screen *w);
/* Show one screen on stdout. */
void live_screen_show(struct live_screen *w, const char *text);
/* False when it is time to end. */
bool live_screen_wait(struct live_screen *w, uint32_t ms);
void live_screen_end(struct live_screen *w);

/* What draws text on a terminal of that many rows over the former frame; the last row counts what
 * did not fit. */
void live_screen_frame(FILE *out, const char *text, unsigned n_rows, bool is_first);
#endif
