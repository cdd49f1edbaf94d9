#ifndef BPS_TESTS_GPU_SIDES_H
#define BPS_TESTS_GPU_SIDES_H
/* A test of two processes. Each side is a child that loads the driver itself; a socket between them
 * carries words and descriptors. The parent never uses the driver, since a process that did must
 * not fork.
 *
 * A side that fails reports why (gpu_fail) and returns false, and the other finds it gone. At the
 * time limit both are killed. A process that survives even that is left. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gpu_side {
	int sock;
	const char *item; /* name of the item, for answers */
	uint64_t deadline_ns;
};
typedef bool (*side_fn)(struct gpu_side *s);

enum side_death { SIDE_NONE, SIDE_LEFT, SIDE_RIGHT };

struct gpu_pair {
	const char *item;
	side_fn left, right;
	unsigned limit_s;
	enum side_death dies; /* killed by the other side on purpose */
	bool is_stranger;     /* right has another user id (only root can do that) */
};

/* Run both sides to their end. False: one failed or missed its time, which is reported. */
bool pair_run(const struct gpu_pair *p);

/* ---- between the sides; each waits until the deadline at most, and reports a failure ---- */
bool side_send(struct gpu_side *s, uint64_t word, const void *data, size_t n, int fd);
/* fd: -1 when none came; NULL when none is expected. */
bool side_recv(struct gpu_side *s, uint64_t *ret_word, void *data, size_t n, int *ret_fd);
/* Receive a word without data, which must be this one. */
bool side_tell(struct gpu_side *s, uint64_t word);
bool side_await(struct gpu_side *s, uint64_t word);
/* Return at once whether the other side still exists. For waits for anything else than its
 * words. */
bool side_is_there(struct gpu_side *s);
/* Kill the other side and wait for its end. pid: as it reported. */
bool side_kill(struct gpu_side *s, pid_t pid);
/* Wait for the end of the other side. Returns false when it does not end in time. */
bool side_await_end(struct gpu_side *s);
#endif
