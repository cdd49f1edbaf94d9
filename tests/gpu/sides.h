#ifndef BPS_TESTS_GPU_SIDES_H
#define BPS_TESTS_GPU_SIDES_H
/* A test of two processes: each side is a child of its own, which loads the driver itself, and the
 * two have a socket between them, for words and descriptors. The parent never touches the driver: a
 * process that did must not fork.
 *
 * A side that fails says why (gpu_fail) and returns false, and the other finds it gone; when their
 * time is over both are killed. What even that does not end is left behind. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct gpu_side {
	int sock;
	const char *item; /* its name, for answers */
	uint64_t deadline_ns;
};
typedef bool (*side_fn)(struct gpu_side *s);

enum side_death { SIDE_NONE, SIDE_LEFT, SIDE_RIGHT };

struct gpu_pair {
	const char *item;
	side_fn left, right;
	unsigned limit_s;
	enum side_death dies; /* is killed by the other on purpose */
	bool is_stranger;     /* right has another user id (only root can have that) */
};

/* Run both to their end. false: one failed, or was not ready in time, which is told. */
bool pair_run(const struct gpu_pair *p);

/* ---- between the sides; each waits until the deadline at most, and says why when it fails ---- */
bool side_send(struct gpu_side *s, uint64_t word, const void *data, size_t n, int fd);
/* fd: -1 when none came; NULL when none is expected. */
bool side_recv(struct gpu_side *s, uint64_t *ret_word, void *data, size_t n, int *ret_fd);
/* Nothing but a word, which must be this one. */
bool side_tell(struct gpu_side *s, uint64_t word);
bool side_await(struct gpu_side *s, uint64_t word);
/* Is the other still there? For who waits for something else than its words; at once. */
bool side_is_there(struct gpu_side *s);
/* Kill the other and wait until it is gone. pid: as it said. */
bool side_kill(struct gpu_side *s, pid_t pid);
/* Is the other gone? Waits for it. */
bool side_await_end(struct gpu_side *s);
#endif
