#ifndef BPS_TESTS_GPU_CUDA_TWO_H
#define BPS_TESTS_GPU_CUDA_TWO_H
/* Tests with two processes. The program starts itself again with a role as its argument. The two
 * processes communicate over a socket, which also carries descriptors of device memory. Each wait
 * has a deadline. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bps-agent/executor/device/device.h"

#define TWO_FD        3 /* file descriptor of the socket in the child */
#define TWO_TIMEOUT_S 10

struct two_message {
	struct device_desc desc;
	uint64_t word;
	int32_t n_fds;
	int32_t fds[DEVICE_FDS_MAX]; /* valid in the receiver, which has to close them */
};

struct two {
	pid_t pid;
	int fd;
};

/* Start this program again as a child, with the argument `role`. */
struct two two_start(const char *role);
/* Send or receive a message, in either process. Returns false when the other process has ended. Any
 * other failure ends this process. */
bool two_send(int fd, const struct two_message *m);
bool two_receive(int fd, struct two_message *ret);
/* Wait until the child ends. Returns its exit status, or 128 + the number of its signal. */
int two_end(struct two *t);
/* Kill the child with SIGKILL, and wait until it has ended. */
void two_kill(struct two *t);

/* Run a program with additional variables in its environment ("NAME=value", NULL at the end).
 * Returns its exit status, and what it printed on stdout and stderr. */
int two_run(const char *path, const char *const *env, char *ret_out, size_t out_bytes);

/* Return the number of descriptors that this process has open. */
unsigned two_count_fds(void);
#endif
