#ifndef BPS_SCHEDULER_BPSCTL_SUBPROCESS_H
#define BPS_SCHEDULER_BPSCTL_SUBPROCESS_H
/* Running programs and reading their output, several at once, bounded in time and size.
 * Blocking. */
#include <stddef.h>
#include <stdint.h>

#define SUBPROCESS_TEXT_BYTES 16384

struct subprocess {
	const char *argv[8]; /* argv[0]: a path; NULL after the last argument */
	/* The result. status: of waitpid(2), or -errno: it could not be run, -ETIMEDOUT: it was
	 * killed. text: its stdout and stderr, cut to the room. */
	int status;
	char text[SUBPROCESS_TEXT_BYTES];
};

/* Run all n. Returns when they have ended, or after timeout_ms. */
void subprocess_run_all(struct subprocess *children, size_t n, uint32_t timeout_ms);
#endif
