#ifndef BPS_TOOLS_BPSRUN_H
#define BPS_TOOLS_BPSRUN_H
/* Internals of bpsrun:
 *   bpsrun.c          a run from start to end
 *   options.c         the command line
 *   daemons.c         a private cluster, or the agent that runs already
 *   trainers.c        the workers and the loop over all children
 *   child.c           processes
 *   fdstore_server.c  descriptors that agents store, as systemd's FDSTORE=1
 *   output.c          the output of the children and of bpsrun itself
 *
 * One thread. The function that fails reports the error, once, on stderr; its callers only return
 * the code. */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/wire/ctlmsg.h"

#define TRAINERS_MAX   1024
#define DAEMONS_MAX    64
#define DAEMON_STOP_MS 5000
#define EXIT_OWN       125 /* bpsrun itself failed */

struct bpsrun_options {
	unsigned n; /* trainers on this node */
	unsigned servers, agents;
	unsigned nnodes, node_rank;
	bool has_servers, has_agents;
	bool wants_status, has_no_prefix;
	const char *on_agent_loss; /* "abort", "shrink"; NULL: from the environment */
	const char *job, *agent;
	uint32_t timeout_ms; /* 0: none */
	char **command;
};

/* A trainer's stdout or stderr, cut into lines. */
struct output_stream {
	int fd, to;
	size_t n;
	char buf[16384];
};

struct fdstore_server;

struct bpsrun_child {
	char name[32];
	bool is_daemon;
	unsigned rank;
	pid_t pid; /* 0: not started or reaped */
	int pidfd;
	char log[PATH_MAX];
	int ready_fd;                   /* a daemon reports there that it serves; -1: it has */
	struct fdstore_server *fdstore; /* for an agent */
	unsigned n_lives;
	struct output_stream out, err;
};

struct bpsrun {
	struct bpsrun_options o;
	char dir[96]; /* "": no private daemons */
	char exe_dir[PATH_MAX];
	char scheduler[32], scheduler_http[32]; /* HOST:PORT */
	char job[CTL_JOB_NAME_MAX + 1];
	char token[2 * CTL_TOKEN_BYTES + 1]; /* hex; "": the job has none */
	int signal_fd;
	struct bpsrun_child *daemons, *trainers;
	unsigned n_daemons;
	int result;      /* exit code so far */
	bool may_shrink; /* the job continues when trainers fail */
	unsigned n_well; /* trainers that ended without an error */
	int failed;      /* exit code of a failed trainer, in a job that continues */
	bool is_stopping;
	uint64_t kill_ms;    /* when remaining processes get KILL; 0: not stopping */
	uint64_t timeout_at; /* 0: never */
};

/* ---- options.c ---- */
/* Parse the command line. Returns 1 if there is nothing more to do (--help). o->command is borrowed
 * from argv. Errors: -EINVAL. */
int bpsrun_options_parse(int argc, char **argv, struct bpsrun_options *o);

/* ---- output.c ---- */
/* Print a line on stderr. */
void output_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Create a stream whose lines go to the descriptor to. ret_write: the child's end, which the caller
 * closes. Errors: -errno. */
int output_open(struct output_stream *s, int to, int *ret_write);
/* Pass on the available output without waiting. False: nothing more at present. */
bool output_read(const struct bpsrun_child *c, struct output_stream *s);
void output_close(const struct bpsrun_child *c, struct output_stream *s);
/* Show the end of a daemon's log: those of its last lines that have at least the urgency `least`,
 * an enum log_level. */
void output_tail(const struct bpsrun_child *c, int least);

/* ---- child.c ---- */
#define ARG(s) ((char *)(uintptr_t)(s)) /* exec's argv is not written to */
/* The child's descriptors are below CHILD_FDS plus the number of those passed on. */
#define CHILD_FDS 32
struct spawn_plan {
	char *const *argv;
	const char *const *env; /* name, value, ..., NULL */
	int out, err;           /* -1: inherited unchanged */
	int keep;               /* descriptor to inherit, -1: none */
	/* Descriptors passed on as by a service manager, from 3 on; keep is above them. names:
	 * separated by ':'. */
	const int *fds;
	unsigned n_fds;
	const char *fd_names;
};
/* Start a process in its own process group. The kernel kills it when bpsrun dies. Errors:
 * -errno. */
int child_spawn(struct bpsrun_child *c, const struct spawn_plan *sp);
/* Send a signal. No effect if the process does not run. */
void child_signal(const struct bpsrun_child *c, int sig);
/* Reap c if it has ended. Returns its exit code as a shell counts, or -1 if it still runs. */
int child_reap(struct bpsrun_child *c);
/* Send TERM to n children, and KILL to those that remain after the grace. Waits. */
void child_stop_all(struct bpsrun_child *c, unsigned n, uint64_t grace_ms);
/* Return a time-out for poll(2): until deadline_ms of the monotonic clock; 0: no deadline. */
int child_left_ms(uint64_t deadline_ms);

/* ---- daemons.c ---- */
/* Choose the agent to use. NULL: start private daemons. */
const char *daemons_choose(const struct bpsrun_options *o);
/* Start the daemons and wait until they serve, READY_MS each at most. Errors: negative; call
 * daemons_stop in any case. */
int daemons_start(struct bpsrun *r);
/* End the use of the agents after the last trainer: their messages are ignored, and their
 * descriptors are dropped. */
void daemons_let_go(struct bpsrun *r);
/* Stop the daemons in reverse order: agents, servers, then the scheduler. Removes their folder. */
void daemons_stop(struct bpsrun *r);
/* Handle a child that has ended by itself. Starts an agent again with its stored descriptors.
 * Returns false if the child is no agent, or ends too often. */
bool daemons_revive(struct bpsrun *r, struct bpsrun_child *c, int code);
/* Return the path of one of bpsrun's own programs: beside bpsrun (build tree and installed tree),
 * else its name, for PATH. */
void daemons_program(const struct bpsrun *r, const char *name, char *ret, size_t room);
/* Return the path of the i-th agent's socket. */
void daemons_socket(const struct bpsrun *r, unsigned i, char *ret, size_t room);

/* ---- fdstore_server.c ---- */
/* Create the server. path: of the socket, for $NOTIFY_SOCKET. Errors: -ENOMEM, -errno. */
int fdstore_server_open(const char *path, struct fdstore_server **ret);
/* Close the server; k may be NULL. */
void fdstore_server_close(struct fdstore_server *k);
/* Return the descriptor for poll(2); -1: there is none. */
int fdstore_server_socket(const struct fdstore_server *k);
/* Handle the messages that have arrived. Does not wait. */
void fdstore_server_receive(struct fdstore_server *k);
/* Return the number of stored descriptors. *ret_fds: the descriptors, which stay the server's.
 * *ret_names: their names, separated by ':'. The caller frees both arrays unless the result is
 * 0. */
unsigned fdstore_server_fds(const struct fdstore_server *k, int **ret_fds, char **ret_names);

/* ---- trainers.c ---- */
int trainers_start(struct bpsrun *r, unsigned i);
/* Send this signal to the trainers; the second call sends KILL. */
void trainers_stop(struct bpsrun *r, int sig);
/* Run until the last trainer has ended. Errors: -ENOMEM. */
int trainers_run(struct bpsrun *r);
#endif
