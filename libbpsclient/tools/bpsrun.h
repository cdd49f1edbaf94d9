#ifndef BPS_TOOLS_BPSRUN_H
#define BPS_TOOLS_BPSRUN_H
/* Internals of bpsrun, which starts the workers of a job on this machine:
 *   bpsrun.c          a run from start to end
 *   options.c         the command line
 *   daemons.c         a private cluster, or the agent that runs already
 *   trainers.c        the workers and the loop over all children
 *   child.c           processes
 *   fdstore_server.c  descriptors that agents store, as with systemd's FDSTORE=1
 *   output.c          the output of the children and of bpsrun itself
 *
 * All code runs on one thread. The function that fails prints the error, once, on stderr; its
 * callers only return the code. */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "common/wire/ctlmsg.h"

#define TRAINERS_MAX   1024
#define DAEMONS_MAX    64
#define DAEMON_STOP_MS 5000
#define EXIT_OWN       125 /* exit code when bpsrun itself failed */

struct bpsrun_options {
	unsigned n; /* number of trainers on this node */
	unsigned servers, agents;
	unsigned nnodes, node_rank;
	bool has_servers, has_agents;
	bool wants_status, has_no_prefix;
	const char *on_agent_loss; /* "abort" or "shrink"; NULL: environment variables decide */
	const char *job, *agent;
	uint32_t timeout_ms; /* limit on the whole run; 0: none */
	uint32_t grace_ms;   /* time between the first signal to the workers and KILL */
	char **command;
};

/* A trainer's stdout or stderr, split into lines. fd: bpsrun's end of the pipe; to: descriptor to
 * which bpsrun writes the lines. */
struct output_stream {
	int fd, to;
	bool has_progress; /* the child writes '\r': print its text before the line is complete */
	bool has_return;   /* the last byte was '\r': the next text is printed over the line */
	size_t n;
	char buf[16384];
};

struct fdstore_server;

struct bpsrun_child {
	char name[32];
	bool is_daemon;
	unsigned rank;
	pid_t pid; /* 0: the process was not started, or has been reaped */
	int code;  /* trainers only: exit code of a process that has been reaped */
	int pidfd;
	char log[PATH_MAX];
	/* pipe from which bpsrun reads the ports of a daemon that is ready; -1: closed */
	int ready_fd;
	/* agent only: the server that stores this agent's descriptors for the agent's next
	 * process */
	struct fdstore_server *fdstore;
	unsigned n_lives;
	struct output_stream out, err;
};

struct bpsrun {
	struct bpsrun_options o;
	char dir[96]; /* folder of the private daemons; "": there are no private daemons */
	char exe_dir[PATH_MAX];
	char scheduler[32], scheduler_http[32]; /* HOST:PORT */
	char job[CTL_JOB_NAME_MAX + 1];
	char token[2 * CTL_TOKEN_BYTES + 1]; /* job token in hex; "": bpsrun sets no token */
	char meeting_port[8]; /* MASTER_PORT of the workers; "": bpsrun does not set it */
	int signal_fd;
	int cause_fd; /* file of common/local/cause_file.h; -1: none */
	char cause_path[40];
	struct rlimit worker_fd_limit; /* limit of open files with which bpsrun was started */
	struct bpsrun_child *daemons, *trainers;
	unsigned n_daemons;
	int result;      /* exit code of bpsrun; 0: no failure so far */
	bool may_shrink; /* the job continues when trainers fail */
	unsigned n_well; /* number of trainers that exited with code 0 */
	int failed;      /* if may_shrink: exit code of the trainer that failed last; 0: none */
	/* the trainer that failed first, unless may_shrink; NULL: none */
	const struct bpsrun_child *first_failed;
	uint64_t cause_deadline_ms; /* when to stop waiting for the trainer that made it fail */
	bool is_stopping;
	uint64_t kill_ms;    /* when to send KILL to processes that have not ended; 0: never */
	uint64_t timeout_at; /* when the run's time limit ends; 0: never */
	/* number of processes of the control group that were killed for lack of memory so far */
	uint64_t oom_kills;
};

/* ---- options.c ---- */
/* Parse the command line. Returns 0, or 1 if nothing is to be run (--help, --version). o->command
 * points into argv. Errors: -EINVAL. */
int bpsrun_options_parse(int argc, char **argv, struct bpsrun_options *o);

/* ---- horovod_options.c ---- */
/* If the first option in `word` is one of horovodrun that bpsrun does not have, print what to write
 * instead and return true. */
bool horovod_option_explain(const char *word);

/* ---- output.c ---- */
/* Print a line that begins with "bpsrun: " on stderr. */
void output_print_message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Create a pipe for a child's output. output_read_and_print writes the lines to the descriptor
 * `to`. *ret_write: the child's end of the pipe, which the caller closes. Errors: -errno. */
int output_open(struct output_stream *s, int to, int *ret_write);
/* Write the child's available output to s->to, without waiting. Returns false if no more output is
 * available at present. */
bool output_read_and_print(const struct bpsrun_child *c, struct output_stream *s);
void output_close(const struct bpsrun_child *c, struct output_stream *s);
/* Read the last lines of a daemon's log. Print those whose level is `least` (enum log_level) or
 * more urgent, and those without a level. */
void output_print_log_tail(const struct bpsrun_child *c, int least);

/* ---- child.c ---- */
/* Cast a constant string to the type of exec's arguments. exec does not write to the string. */
#define ARG(s) ((char *)(uintptr_t)(s))
/* Besides stdin, stdout, stderr and sp->fds, a child may inherit other descriptors. The values of
 * these other descriptors are below CHILD_FDS + sp->n_fds. */
#define CHILD_FDS 32
struct spawn_plan {
	char *const *argv;
	/* environment variables to set: name, value, ..., NULL; a value NULL: not set */
	const char *const *env;
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
/* Reap c if it has ended. Returns its exit code (128 + the number of the signal that killed it), or
 * -1 if it still runs. */
int child_reap_if_ended(struct bpsrun_child *c);
/* Send TERM to n children, and KILL to those that still run after grace_ms. Returns when all have
 * ended. */
void child_stop_all(struct bpsrun_child *c, unsigned n, uint64_t grace_ms);
/* Return the time-out for poll(2) in ms, so that poll ends at deadline_ms of the monotonic clock.
 * deadline_ms 0: there is no deadline, so returns -1. */
int poll_timeout_left_ms(uint64_t deadline_ms);

/* ---- daemons.c ---- */
/* Return the socket of the agent to use. NULL: start private daemons. */
const char *daemons_choose(const struct bpsrun_options *o);
/* Start the private daemons, and wait until they are ready. The function waits at most READY_MS for
 * each daemon. Errors: a negative value. The caller must call daemons_stop even after an error. */
int daemons_start(struct bpsrun *r);
/* Stop serving the agents' requests to store descriptors, and close the stored descriptors. Called
 * after the last trainer has ended. */
void daemons_let_go(struct bpsrun *r);
/* Stop the daemons: agents and servers first, then the scheduler. Removes their folder. */
void daemons_stop(struct bpsrun *r);
/* Handle a daemon that has ended by itself with the exit code `code`. An agent is started again,
 * with the descriptors that it had stored. Returns false if the daemon is no agent, has ended too
 * often, or cannot start. */
bool daemons_revive(struct bpsrun *r, struct bpsrun_child *c, int code);
/* Return whether the job must end because the daemon has ended and does not run again. */
bool daemon_is_needed(const struct bpsrun *r, const struct bpsrun_child *c);
/* Write the path of a program, such as a daemon, to ret. Looks in the folder of bpsrun, in the
 * build tree and in the installation. If no such file exists, writes only the name, which exec
 * searches in PATH. */
void daemons_program(const struct bpsrun *r, const char *name, char *ret, size_t room);
/* Write the path of the i-th agent's socket to ret. */
void daemons_socket(const struct bpsrun *r, unsigned i, char *ret, size_t room);

/* ---- fdstore_server.c ---- */
/* Create the server. path: path at which the server creates its socket. The agent gets this path as
 * $NOTIFY_SOCKET. Errors: -ENOMEM, -errno. */
int fdstore_server_open(const char *path, struct fdstore_server **ret);
/* Close the server and all stored descriptors. k may be NULL. */
void fdstore_server_close(struct fdstore_server *k);
/* Return the server's socket, for use with poll(2). Returns -1 if k is NULL. */
int fdstore_server_socket(const struct fdstore_server *k);
/* Handle the messages that have arrived. Does not wait. */
void fdstore_server_receive(struct fdstore_server *k);
/* Return the number of stored descriptors. *ret_fds: the descriptors, which the server still owns.
 * *ret_names: their names, separated by ':'. The caller frees both arrays unless the result is 0. k
 * may be NULL. */
unsigned fdstore_server_fds(const struct fdstore_server *k, int **ret_fds, char **ret_names);

/* ---- trainers.c ---- */
/* Choose the port at which rank 0 may listen for the other workers of a job on one node, unless the
 * environment has MASTER_ADDR or MASTER_PORT. Errors: -errno. */
int trainers_choose_port(struct bpsrun *r);
int trainers_start(struct bpsrun *r, unsigned i);
/* Send sig to all trainers. A second call sends KILL instead. */
void trainers_stop(struct bpsrun *r, int sig);
/* Serve all children until the last trainer has ended. Errors: -ENOMEM. */
int trainers_run_until_end(struct bpsrun *r);
#endif
