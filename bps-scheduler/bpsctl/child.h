#ifndef BPS_SCHEDULER_BPSCTL_CHILD_H
#define BPS_SCHEDULER_BPSCTL_CHILD_H
/* Programs that are run for what they print, several at once, bounded in time and size.
 * Blocking. */
#include <stddef.h>
#include <stdint.h>

#define CHILD_TEXT_BYTES 16384

struct child {
	const char *argv[8]; /* argv[0]: a path; NULL behind the last one */
	/* What came of it. status: of waitpid(2), or -errno: it could not be run, -ETIMEDOUT it was
	 * killed. text: its stdout and stderr, as far as there is room. */
	int status;
	char text[CHILD_TEXT_BYTES];
};

/* Run all n; returns when they have ended, or after timeout_ms. */
void child_run_all(struct child *children, size_t n, uint32_t timeout_ms);
#endif
