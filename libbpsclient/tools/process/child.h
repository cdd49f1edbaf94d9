#ifndef BPS_TOOLS_CHILD_H
#define BPS_TOOLS_CHILD_H
/* A process that bpsrun or bps-keep has started: a daemon, a worker, or a command. Its functions
 * start, signal and reap it. They run on the program's only thread. */
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "libbpsclient/tools/process/output.h"

#define EXIT_OWN 125 /* exit code when bpsrun itself failed */
/* Time limit for a process to end after KILL, and for a daemon to end after TERM */
#define DAEMON_STOP_MS 5000

struct fdstore_server;

enum child_kind { CHILD_WORKER, CHILD_SCHEDULER, CHILD_SERVER, CHILD_AGENT, CHILD_COMMAND };

struct bpsrun_child {
	char name[32];
	enum child_kind kind;
	unsigned rank;
	pid_t pid; /* 0: the process was not started, or has been reaped */
	int code;  /* workers only: exit code of a process that has been reaped */
	int pidfd;
	char log[PATH_MAX];
	/* pipe from which bpsrun reads the ports of a daemon that is ready; -1: closed */
	int ready_fd;
	/* agent only: the server that stores this agent's descriptors for the agent's next
	 * process */
	struct fdstore_server *fdstore;
	unsigned n_lives;
	bool is_due; /* workers only: it has failed, and will be started again */
	struct output_stream out, err;
};

/* Cast a constant string to the type of exec's arguments. exec does not write to the string. */
#define ARG(s) ((char *)(uintptr_t)(s))
/* Besides stdin, stdout, stderr and sp->fds, a child may inherit other descriptors. The values of
 * these other descriptors are below CHILD_FDS + sp->n_fds. */
#define CHILD_FDS 32
struct spawn_plan {
	char *const *argv;
	/* environment variables to set: name, value, ..., NULL; a value NULL: not set */
	const char *const *env;
	int in;       /* stdin of the child; 0: /dev/null */
	int out, err; /* stdout and stderr of the child; -1: those of bpsrun */
	int keep;     /* one more descriptor that the child inherits; -1: none */
	/* Descriptors that the child receives in the same way as from a service manager
	 * (sd_listen_fds(3)). In the child, these descriptors have the values 3, 4, and so on.
	 * The descriptor `keep` has a larger value. fd_names: names of the descriptors, separated
	 * by ':'. */
	const int *fds;
	unsigned n_fds;
	const char *fd_names;
	const struct rlimit *fd_limit; /* limit of open files of the child; NULL: that of bpsrun */
};
/* Start a process in its own process group. The kernel kills the process when bpsrun dies. Errors:
 * -errno. */
int child_spawn(struct bpsrun_child *c, const struct spawn_plan *sp);
/* Send a signal to the process group of c. Does nothing if c does not run. */
void child_signal_group(const struct bpsrun_child *c, int sig);
/* Reap c if it has ended, and kill the processes that it has left behind in its group. Returns its
 * exit code (128 + the number of the signal that killed it), or -1 if it still runs. */
int child_reap_if_ended(struct bpsrun_child *c);
/* Do the same, but let the other processes of its group live on. */
int child_reap_alone_if_ended(struct bpsrun_child *c);
/* Send TERM to n children, and KILL to those that still run after grace_ms. Returns when all have
 * ended. */
void child_stop_all(struct bpsrun_child *c, unsigned n, uint64_t grace_ms);
/* Return the time-out for poll(2) in ms, so that poll ends at deadline_ms of the monotonic clock.
 * deadline_ms 0: there is no deadline, so returns -1. */
int poll_timeout_left_ms(uint64_t deadline_ms);
#endif
