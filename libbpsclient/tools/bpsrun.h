#ifndef BPS_TOOLS_BPSRUN_H
#define BPS_TOOLS_BPSRUN_H
/* Internals of bpsrun, which starts the workers of a job on this node, and the daemons of a cluster
 * for that job if no agent runs:
 *   bpsrun.c          a run from start to end
 *   options.c, options_check.c, horovod_options.c   the command line
 *   job_place.c, job_nodes.c  this node among the nodes of the job, and the head
 *   daemons.c         the daemons of the job's cluster, or the agent that runs already
 *   daemon_start.c    one daemon: its process, and its report that it is ready
 *   trainers.c        the loop over all children until the workers have ended
 *   trainer_start.c   one worker: its environment and output, and its restarts
 *   remote.c, hosts.c starting nodes on other hosts, over ssh
 *   check_build.c     what this build has
 *   process/          processes, output, and the guard, which ends everything
 *   nodes/            hosts, addresses, the key, and the meeting of the nodes
 *
 *   guard                      what the user has started (process/guard.h)
 *    └─ runner                 everything below; its own process group
 *        ├─ bps-scheduler      on the head only
 *        ├─ bps-server, bps-agent
 *        ├─ workers ── their children
 *        └─ ssh HOST bpsrun    with -H: one for each host, and no daemons or workers here
 *
 * A job on one node is the special case without other nodes: its daemons are on the loopback. All
 * code runs on one thread. The function that fails prints the error, once, on stderr; its callers
 * only return the code. */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "common/wire/ctlmsg.h"
#include "libbpsclient/tools/nodes/cluster_key.h"
#include "libbpsclient/tools/nodes/meeting.h"
#include "libbpsclient/tools/nodes/place.h"
#include "libbpsclient/tools/process/child.h"
#include "libbpsclient/tools/process/output.h"
#include "libbpsclient/tools/process/private_folder.h"

#define TRAINERS_MAX 1024
#define DAEMONS_MAX  64
#define EXPORTS_MAX  256
/* Time in which the workers of other nodes get the error of a job whose machine was killed: the
 * scheduler waits 5 s for the agent. Then bpsrun stops workers that still run. */
#define PEER_FAILED_MS 7000
/* Longest time between the first signal and KILL when another node has failed, or when the one that
 * started this node is gone: nothing may be left after 15 s. */
#define LOST_GRACE_MS 3000

struct bpsrun_options {
	unsigned n; /* number of workers on this node; with hosts: on all hosts */
	unsigned servers, agents;
	unsigned nnodes;    /* 0: not given */
	uint32_t node_rank; /* PLACE_RANK_UNKNOWN: not given */
	bool has_servers, has_agents;
	bool wants_status, has_no_prefix;
	bool daemons_only; /* --daemons: run the command once, with the agent but without a rank */
	bool from_stdin; /* a node that another bpsrun has started: it ends when stdin is closed */
	bool wants_check_build;
	const char *on_agent_loss; /* "abort" or "shrink"; NULL: environment variables decide */
	const char *job, *agent;
	const char *head, *interface, *key_file;
	const char *servers_on;           /* "all", "head" or a list of hosts */
	const char *hosts;                /* start the nodes on these hosts, HOST[:SLOTS],... */
	const char *rsh;                  /* the command that runs a program on a host */
	const char *log_dir;              /* NULL: none */
	const char *exports[EXPORTS_MAX]; /* NAME or NAME=VALUE */
	unsigned n_exports;
	unsigned first_rank, size; /* of --ranks; size 0: not given */
	unsigned restarts;
	uint32_t timeout_ms; /* limit on the whole run; 0: none */
	uint32_t grace_ms;   /* time between the first signal to the workers and KILL */
	uint32_t start_timeout_ms;
	/* options that bpsrun passes on to the nodes that it starts on other hosts */
	const char *passed[64];
	unsigned n_passed;
	char **command;
};

struct bpsrun {
	struct bpsrun_options o;
	/* the received order (remote.c), to which options and environment point: freed by exit */
	char *order_text, **order_words;
	struct place place;
	char dir[PRIVATE_FOLDER_BYTES]; /* folder of the job's daemons; "": an agent runs already */
	char exe_dir[PATH_MAX];
	char scheduler[ADDR_TEXT_BYTES], scheduler_http[ADDR_TEXT_BYTES];
	char job[CTL_JOB_NAME_MAX + 1];
	char token[2 * CTL_TOKEN_BYTES + 1]; /* job token in hex; "": bpsrun sets no token */
	/* MASTER_ADDR and MASTER_PORT of the workers; port "": bpsrun does not set them */
	char meeting_host[ADDR_HOST_BYTES], meeting_port[8];
	/* ---- a cluster on several nodes; job_nodes.c ---- */
	bool has_nodes; /* the job's own cluster has a head at an address of the network */
	bool is_head, has_server;
	bool has_key;
	struct cluster_key key;
	char own_host[ADDR_HOST_BYTES];   /* this node's address as a number */
	char node_name[CTL_NAME_MAX + 1]; /* of this node's daemons */
	struct node_meeting *meeting;     /* at the head */
	struct meeting_member member;     /* at the other nodes */
	uint64_t join_deadline_ms;        /* when all nodes must have joined; 0: they have */
	uint64_t peer_deadline_ms; /* when the workers end because of another node; 0: never */
	/* ---- */
	int signal_fd;
	int adopted_fd; /* readable when a child has ended, also an adopted one (process/guard.h) */
	bool is_lost;   /* the guard, or the bpsrun that started this node, is gone */
	int cause_fd;   /* file of common/local/cause_file.h; -1: none */
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
	/* when to send KILL to the workers for which one that starts again waits; 0: none waits */
	uint64_t restart_kill_ms;
	uint64_t kill_ms;    /* when to send KILL to processes that have not ended; 0: never */
	uint64_t timeout_at; /* when the run's time limit ends; 0: never */
	/* number of processes of the control group that were killed for lack of memory so far */
	uint64_t oom_kills;
};

/* ---- options.c ---- */
/* Parse the command line. Returns 0, or 1 if nothing is to be run (--help, --version). o->command
 * points into argv. Errors: -EINVAL. */
int bpsrun_options_parse(int argc, char **argv, struct bpsrun_options *o);

/* ---- options_check.c ---- */
/* Check the options against each other. With --daemons, sets the number of workers to 1. Errors:
 * -EINVAL; the error was printed. */
int bpsrun_options_check(struct bpsrun_options *o);

/* ---- horovod_options.c ---- */
/* If the first option in `word` is one of horovodrun that bpsrun does not have, print what to write
 * instead and return true. */
bool horovod_option_explain(const char *word);
/* Return the option of bpsrun that has the meaning of `word`, an option of horovodrun with a single
 * hyphen and several letters; else `word`. */
char *horovod_option_translate(char *word);

/* ---- check_build.c ---- */
/* Print which programs and Python front-ends are there. Returns 0, or 1 if a program is missing. */
int check_build_print(const struct bpsrun *r);

/* ---- job_place.c ---- */
/* Decide whether the job gets a cluster of its own on several nodes, and check that there is what
 * this needs. Called before the guard. Errors: -EINVAL. */
int job_nodes_plan(struct bpsrun *r);
/* Find the address of this node, and whether it is the head. The head listens for the others.
 * Errors: a negative value. */
int job_nodes_begin(struct bpsrun *r);
/* Choose the name of this node's daemons, whose rank is known. */
void job_nodes_name_daemons(struct bpsrun *r);
/* Return what this node says of itself to the head. */
struct meeting_node job_nodes_describe(const struct bpsrun *r);

/* ---- job_nodes.c ---- */
/* At the head: answer the other nodes from now on, because the scheduler is ready. At the others:
 * wait for that answer. Errors: a negative value. */
int job_nodes_meet(struct bpsrun *r);
/* Return the descriptor on which other nodes report; -1: none. */
int job_nodes_descriptor(const struct bpsrun *r);
/* Handle what the other nodes have sent, and the deadlines. Does not wait. */
void job_nodes_serve(struct bpsrun *r);
/* Return when job_nodes_serve must run again; 0: never. */
uint64_t job_nodes_deadline_ms(const struct bpsrun *r);
/* At the head: wait until the other nodes have left. */
void job_nodes_await_leave(struct bpsrun *r);
/* At the other nodes: leave. */
void job_nodes_leave(struct bpsrun *r);

/* ---- daemons.c ---- */
/* Return the socket of the agent to use. NULL: start private daemons. */
const char *daemons_choose(const struct bpsrun_options *o, bool has_head);
/* Start the private daemons, and wait until they are ready. The function waits at most READY_MS for
 * each daemon. Errors: a negative value. The caller must call daemons_stop even after an error. */
int daemons_start(struct bpsrun *r);
/* Stop serving the agents' requests to store descriptors, and close the stored descriptors. Called
 * after the last trainer has ended. */
void daemons_let_go(struct bpsrun *r);
/* Stop the daemons: agents and servers first, then the scheduler. */
void daemons_stop(struct bpsrun *r);
/* Handle a daemon that has ended by itself with the exit code `code`. An agent is started again,
 * with the descriptors that it had stored. Returns false if the daemon is no agent, has ended too
 * often, or cannot start. */
bool daemons_revive(struct bpsrun *r, struct bpsrun_child *c, int code);
/* Return whether the job must end because the daemon has ended and does not run again. */
bool daemon_is_needed(const struct bpsrun *r, const struct bpsrun_child *c);
/* Write the path of the i-th agent's socket to ret. */
void daemons_socket(const struct bpsrun *r, unsigned i, char *ret, size_t room);

/* ---- daemon_start.c ---- */
/* Write the path of a program, such as a daemon, to ret. Looks in the folder of bpsrun, in the
 * build tree and in the installation. If no such file exists, writes only the name, which exec
 * searches in PATH. */
void daemons_program(const struct bpsrun *r, const char *name, char *ret, size_t room);
/* Write the path of the socket to which the agent sends its descriptors (fdstore_server.c). */
void daemons_notify(const struct bpsrun *r, const struct bpsrun_child *c, char *ret, size_t room);
/* Start a daemon, and do not wait until it is ready. args: its options, up to NULL; at most 40.
 * Errors: a negative value. */
int daemon_start_process(
	struct bpsrun *r, struct bpsrun_child *c, const char *program, char *const *args);
/* Wait until a daemon is ready: it writes its ports to its ready descriptor, and then closes the
 * descriptor. Errors: -ETIMEDOUT; -ECHILD: the daemon ended or wrote no valid ports; -EINTR: bpsrun
 * has received a signal. */
int daemon_await_ready(
	struct bpsrun *r, struct bpsrun_child *c, unsigned *ret_port, unsigned *ret_http);

/* ---- trainer_start.c ---- */
/* Choose the port at which rank 0 may listen for the other workers, unless the environment has
 * MASTER_ADDR or MASTER_PORT. Does nothing if the head of the job has chosen it. Errors: -errno. */
int trainers_choose_port(struct bpsrun *r);
/* Return whether an option or the environment lets the job continue when a machine is lost. */
bool trainers_may_be_lost(const struct bpsrun_options *o);
int trainers_start(struct bpsrun *r, unsigned i);
/* Print what a worker has written, and close the pipes. */
void trainer_close_output(struct bpsrun_child *c);
/* Return whether a worker that has failed may be started again (--restart). */
bool trainers_may_restart(const struct bpsrun *r, const struct bpsrun_child *c);
/* Let a worker that has failed start again. If the workers of its machine leave the job together,
 * end the others, so that all start again together. */
void trainers_restart(struct bpsrun *r, struct bpsrun_child *c);
/* Start the workers that start again and wait for no other. Errors: -errno. */
int trainers_start_due(struct bpsrun *r);

/* ---- trainers.c ---- */
/* Send sig to all trainers. A second call sends KILL instead. */
void trainers_stop(struct bpsrun *r, int sig);
/* Serve all children until the last trainer has ended. Errors: -ENOMEM. */
int trainers_run_until_end(struct bpsrun *r);

/* ---- hosts.c ---- */
/* Start the nodes of the job on the hosts of -H or --hostfile, and wait until they have ended.
 * Returns the exit code of bpsrun. */
int hosts_run(struct bpsrun *r);

/* ---- remote.c ---- */
/* The order that a bpsrun sends to the standard input of one that it starts on another host. */
struct remote_order {
	const char *key_hex, *folder;
	const char *const *env;  /* NAME=VALUE, up to NULL */
	const char *const *args; /* the command line behind the program's name, up to NULL */
};
/* Send the order. Errors: -errno. */
int remote_order_send(int fd, const struct remote_order *order);
/* Receive the order from standard input: take over its folder, environment, options and key.
 * Returns 0. Errors: a negative value; the error was printed. */
int remote_take_order(struct bpsrun *r);
#endif
