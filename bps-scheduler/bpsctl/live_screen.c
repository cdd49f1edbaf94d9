/* Prints one screen after another to a terminal or a pipe (live_screen.h). Handles signals between
 * two screens. This file formats no documents. One thread. */
#include "bps-scheduler/bpsctl/live_screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define ROWS_DEFAULT 24

int live_screen_begin(struct live_screen *w)
{
	const char *term = getenv("TERM");
	sigset_t set;

	*w = (struct live_screen){.signals = -1};
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	w->signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (w->signals < 0)
		return -errno;
	w->is_drawing = isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
	return 0;
}

void live_screen_end(struct live_screen *w)
{
	if (w->signals >= 0)
		close(w->signals);
}

static size_t count_text_lines(const char *s)
{
	size_t n = 0;

	for (; (s = strchr(s, '\n')); s++)
		n++;
	return n;
}

void live_screen_frame(FILE *out, const char *text, unsigned n_rows, bool is_first)
{
	size_t lines = count_text_lines(text), shown = lines < n_rows ? lines : n_rows - 2;

	/* Move the cursor to the top left, rewrite each line up to its end, then clear the rows
	 * below the text. So the terminal never shows a blank screen between two frames. */
	fputs(is_first ? "\033[2J\033[H" : "\033[H", out);
	for (size_t i = 0; i < shown; i++) {
		const char *end = strchr(text, '\n');

		fwrite(text, 1, (size_t)(end - text), out);
		fputs("\033[K\r\n", out);
		text = end + 1;
	}
	if (lines > shown)
		fprintf(out, "(%zu more lines)\033[K", lines - shown);
	fputs("\033[J", out);
}

static void live_screen_draw(struct live_screen *w, const char *text)
{
	struct winsize size = {.ws_row = 0};
	char *frame = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&frame, &n);

	if (!out)
		return;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row < 4)
		size.ws_row = ROWS_DEFAULT;
	live_screen_frame(out, text, size.ws_row, !w->has_begun);
	if (fclose(out) == 0)
		fwrite(frame, 1, n, stdout);
	free(frame);
}

void live_screen_show(struct live_screen *w, const char *text)
{
	char when[32] = "";
	time_t now = time(NULL);
	struct tm tm;

	if (w->is_drawing) {
		live_screen_draw(w, text);
	} else {
		if (localtime_r(&now, &tm))
			strftime(when, sizeof(when), "%F %T", &tm);
		printf("--- %s\n%s", when, text);
	}
	w->has_begun = true;
	fflush(stdout);
}

bool live_screen_wait(struct live_screen *w, uint32_t ms)
{
	struct pollfd p = {w->signals, POLLIN, 0};

	return !ferror(stdout) && poll(&p, 1, (int)ms) == 0;
}
