#ifndef BPS_TESTS_GPU_CUDA_TWO_H
#define BPS_TESTS_GPU_CUDA_TWO_H
/* Tests of two processes. The program starts itself again in a role, and both talk over a socket
 * that also carries the descriptors of device memory. Every wait has a deadline. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bps-agent/executor/device/device.h"

#define TWO_FD        3 /* the child's end of the socket */
#define TWO_TIMEOUT_S 10

struct two_message {
	struct device_desc desc;
	uint64_t word;
	int32_t n_fds;
	int32_t fds[DEVICE_FDS_MAX]; /* numbers in the receiver, which closes them */
};

struct two {
	pid_t pid;
	int fd;
};

/* Start this program with the argument role. */
struct two two_start(const char *role);
/* Send or receive in either process. False when the other one is gone; any other failure ends the
 * process. */
bool two_send(int fd, const struct two_message *m);
bool two_receive(int fd, struct two_message *ret);
/* Wait for the child's end. Returns its exit status, or 128 + signal. */
int two_end(struct two *t);
/* Kill the child as the kernel does when memory is short, and wait for its end. */
void two_kill(struct two *t);

/* Run a program with additional environment settings ("NAME=value", NULL at the end). Returns its
 * exit status and its output on stdout and stderr. */
int two_run(const char *path, const char *const *env, char *ret_out, size_t out_bytes);

/* Return the number of open descriptors of this process. */
unsigned two_count_fds(void);
#endif
