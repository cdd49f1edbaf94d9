#ifndef BPS_TOOLS_BPSRUN_H
#define BPS_TOOLS_BPSRUN_H
/* Inside of bpsrun:
 *   bpsrun.c          a run from start to end
 *   options.c         the command line
 *   daemons.c         a private cluster, or the agent that is there
 *   trainers.c        the workers and the loop over all children
 *   child.c           processes
 *   fdstore_server.c  descriptors that agents store, as systemd's FDSTORE=1
 *   output.c          the output of the children and of bpsrun itself
 *
 * One thread. The function that fails reports it, once, on stderr; callers only return the code. */
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
	const char *on_agent_loss; /* "abort", "shrink"; NULL: of the environment */
	const char *job, *agent;
	uint32_t timeout_ms; /* 0: none */
	char **command;
};

/* One direction of a trainer's output, cut into lines. */
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
	int ready_fd;                   /* where a daemon says that it serves, -1: it has */
	struct fdstore_server *fdstore; /* of an agent */
	unsigned n_lives;
	struct output_stream out, err;
};

struct bpsrun {
	struct bpsrun_options o;
	char dir[96]; /* "": no daemons of our own */
	char exe_dir[PATH_MAX];
	char scheduler[32], scheduler_http[32]; /* HOST:PORT */
	char job[CTL_JOB_NAME_MAX + 1];
	char token[2 * CTL_TOKEN_BYTES + 1]; /* hex; "": the job has none */
	int signal_fd;
	struct bpsrun_child *daemons, *trainers;
	unsigned n_daemons;
	int result;      /* exit code so far */
	bool may_shrink; /* the job goes on when trainers fail */
	unsigned n_well; /* trainers that ended well */
	int failed;      /* exit code of one that did not, in a job that goes on */
	bool is_stopping;
	uint64_t kill_ms;    /* when what is left gets KILL; 0: not stopping */
	uint64_t timeout_at; /* 0: never */
};

/* ---- options.c ---- */
/* Returns 1 when there is nothing more to do (--help). o->command is lent from argv. Errors:
 * -EINVAL. */
int bpsrun_options_parse(int argc, char **argv, struct bpsrun_options *o);

/* ---- output.c ---- */
/* A line on stderr. */
void output_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Make a stream whose lines go to the descriptor to. ret_write: the child's end, the caller's to
 * close. Errors: -errno. */
int output_open(struct output_stream *s, int to, int *ret_write);
/* Pass on what there is; does not wait. False when there is nothing more now. */
bool output_read(const struct bpsrun_child *c, struct output_stream *s);
void output_close(const struct bpsrun_child *c, struct output_stream *s);
/* Show the end of a daemon's log: of its last lines those that are at least as urgent as least, an
 * enum log_level. */
void output_tail(const struct bpsrun_child *c, int least);

/* ---- child.c ---- */
#define ARG(s)    ((char *)(uintptr_t)(s)) /* exec's argv is not written to */
#define CHILD_FDS 32 /* descriptors below this and those handed over are the child's */
struct spawn_plan {
	char *const *argv;
	const char *const *env; /* name, value, ..., NULL */
	int out, err;           /* -1: as they are */
	int keep;               /* descriptor to inherit, -1: none */
	/* To be handed over as by a service manager, from 3 on; keep is above. names: by ':'. */
	const int *fds;
	unsigned n_fds;
	const char *fd_names;
};
/* Start a process in a group of its own, which the kernel kills when bpsrun dies. Errors:
 * -errno. */
int child_spawn(struct bpsrun_child *c, const struct spawn_plan *sp);
/* Nothing when it does not run. */
void child_signal(const struct bpsrun_child *c, int sig);
/* Reap c if it has ended; its exit code as a shell counts, -1 when it still runs. */
int child_reap(struct bpsrun_child *c);
/* Send TERM to n children, and KILL to those that are left at the end of the grace; waits. */
void child_stop_all(struct bpsrun_child *c, unsigned n, uint64_t grace_ms);
/* For poll(2): until the point deadline_ms of the monotonic clock, 0: no deadline. */
int child_left_ms(uint64_t deadline_ms);

/* ---- daemons.c ---- */
/* The agent to use, NULL: start daemons of our own. */
const char *daemons_choose(const struct bpsrun_options *o);
/* Start them and wait until they serve, READY_MS each at most. Errors: negative; daemons_stop all
 * the same. */
int daemons_start(struct bpsrun *r);
/* No trainer is left: what agents say is not heard any more, and nothing is kept. */
void daemons_let_go(struct bpsrun *r);
/* In the reverse order of starting: agents, servers, the scheduler last; and remove their
 * folder. */
void daemons_stop(struct bpsrun *r);
/* An agent has ended by itself: start another in its place, with what it had kept. False: it is no
 * agent, or ends all the time. */
bool daemons_revive(struct bpsrun *r, struct bpsrun_child *c, int code);
/* Where bpsrun's own programs are: beside it (build tree and installed tree), else left to PATH. */
void daemons_program(const struct bpsrun *r, const char *name, char *ret, size_t room);
/* The socket of the i-th agent. */
void daemons_socket(const struct bpsrun *r, unsigned i, char *ret, size_t room);

/* ---- fdstore_server.c ---- */
/* path: of the socket, for $NOTIFY_SOCKET. Errors: -ENOMEM, -errno. */
int fdstore_server_open(const char *path, struct fdstore_server **ret);
/* NULL is allowed. */
void fdstore_server_close(struct fdstore_server *k);
/* For poll(2); -1: there is none. */
int fdstore_server_socket(const struct fdstore_server *k);
/* Do what has come; does not wait. */
void fdstore_server_receive(struct fdstore_server *k);
/* What is kept: as many descriptors, lent in an array, and their names with ':' between; both the
 * caller's to free, unless it is 0. */
unsigned fdstore_server_fds(const struct fdstore_server *k, int **ret_fds, char **ret_names);

/* ---- trainers.c ---- */
int trainers_start(struct bpsrun *r, unsigned i);
/* End them by this signal; the second time by KILL. */
void trainers_stop(struct bpsrun *r, int sig);
/* Until the last one has ended. Errors: -ENOMEM. */
int trainers_run(struct bpsrun *r);
#endif
