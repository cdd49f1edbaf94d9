#ifndef BPS_SCHEDULER_BPSCTL_SUBPROCESS_H
#define BPS_SCHEDULER_BPSCTL_SUBPROCESS_H
/* Runs several programs at once and reads their output, with limits on time and size. The function
 * blocks. */
#include <stddef.h>
#include <stdint.h>

#define SUBPROCESS_TEXT_BYTES 16384

struct subprocess {
	/* argv[0] is the path of the program; NULL follows the last argument */
	const char *argv[8];
	/* The result. `status` is the status from waitpid(2). It is -ETIMEDOUT if the program was
	 * killed because the time was over, and a different -errno if the program could not be
	 * started. `text` holds the program's stdout and stderr, as much as fits. */
	int status;
	char text[SUBPROCESS_TEXT_BYTES];
};

/* Run all n programs at once. Returns when all programs have ended. After timeout_ms, the programs
 * that still run are killed. */
void subprocess_run_all(struct subprocess *children, size_t n, uint32_t timeout_ms);
#endif
