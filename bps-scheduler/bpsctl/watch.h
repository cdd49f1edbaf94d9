#ifndef BPS_SCHEDULER_BPSCTL_WATCH_H
#define BPS_SCHEDULER_BPSCTL_WATCH_H
/* Showing something again and again until SIGINT or SIGTERM comes. A terminal is redrawn in place,
 * each frame with one write; anything else gets the screens below each other. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct watch {
	int signals;     /* signalfd */
	bool is_drawing; /* stdout is a terminal that can move its cursor */
	bool has_begun;
};

/* From now on the signals only end the waits. Errors: -errno. */
int watch_begin(struct watch *w);
/* Show one screen on stdout. */
void watch_show(struct watch *w, const char *text);
/* False when it is time to end. */
bool watch_wait(struct watch *w, uint32_t ms);
void watch_end(struct watch *w);

/* What draws text on a terminal of that many rows over the former frame; the last row counts what
 * did not fit. */
void watch_frame(FILE *out, const char *text, unsigned n_rows, bool is_first);
#endif
