#ifndef BPS_TESTS_GPU_SIDES_H
#define BPS_TESTS_GPU_SIDES_H
/* A test with two processes, called sides. Each side is a child process, which loads the driver on
 * its own. A socket between the two sides carries words and descriptors. The parent never uses the
 * driver, because a process that has used the driver must not fork.
 *
 * A side that fails reports the reason (gpu_fail) and returns false. The other side then finds that
 * its peer has ended. At the time limit both sides are killed. The parent does not wait long for a
 * process that survives SIGKILL. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gpu_side {
	int sock;
	const char *item; /* name of the item of the run, printed in answers (gpu_answer) */
	uint64_t deadline_ns;
};
typedef bool (*side_fn)(struct gpu_side *s);

enum side_death { SIDE_NONE, SIDE_LEFT, SIDE_RIGHT };

struct gpu_pair {
	const char *item;
	side_fn left, right;
	unsigned limit_s;
	enum side_death dies; /* the side that the other side kills on purpose */
	bool is_stranger;     /* the side `right` has another user id (only root can start it) */
};

/* Run both sides until they end. Return false if a side failed or exceeded its time. In that case,
 * the reason has been reported. */
bool pair_run(const struct gpu_pair *p);

/* ---- between the sides; a call waits at most until the deadline and reports any failure ---- */
bool side_send(struct gpu_side *s, uint64_t word, const void *data, size_t n, int fd);
/* *ret_fd is -1 when no descriptor came. Pass NULL as ret_fd when no descriptor is expected. */
bool side_recv(struct gpu_side *s, uint64_t *ret_word, void *data, size_t n, int *ret_fd);
/* side_tell sends a word without data. side_await receives a word, which must be the given one. */
bool side_tell(struct gpu_side *s, uint64_t word);
bool side_await(struct gpu_side *s, uint64_t word);
/* Return at once whether the other side still exists. Call it in loops that do not wait for words
 * from the other side. */
bool side_is_there(struct gpu_side *s);
/* Kill the other side and wait until it has ended. pid: as the other side reported it. */
bool side_kill(struct gpu_side *s, pid_t pid);
/* Wait until the other side has ended. False: it did not end in time. */
bool side_await_end(struct gpu_side *s);
#endif
