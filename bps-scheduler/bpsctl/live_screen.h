#ifndef BPS_SCHEDULER_BPSCTL_LIVE_SCREEN_H
#define BPS_SCHEDULER_BPSCTL_LIVE_SCREEN_H
/* Prints screens repeatedly until SIGINT or SIGTERM. On a terminal, each screen is drawn over the
 * previous one, with one write per screen. A pipe or file gets the screens one after another. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct live_screen {
	int signals;     /* signalfd for SIGINT and SIGTERM */
	bool is_drawing; /* stdout is a terminal that can move its cursor */
	bool has_begun;
};

/* Begin to show screens. From now on, SIGINT and SIGTERM end live_screen_wait instead of the
 * process. Errors: -errno. */
int live_screen_begin(struct live_screen *w);
/* Show one screen on stdout. */
void live_screen_show(struct live_screen *w, const char *text);
/* Wait for ms milliseconds. Returns false if the program must end, because it received a signal. */
bool live_screen_wait(struct live_screen *w, uint32_t ms);
void live_screen_end(struct live_screen *w);

/* Write `text` with control characters, so that it replaces the previous frame on a terminal with
 * n_rows rows. If not all lines fit, the last row shows how many are missing. */
void live_screen_frame(FILE *out, const char *text, unsigned n_rows, bool is_first);
#endif
