/* The daemons of a private cluster. They run in a folder of their own, listen on loopback, and
 * choose their ports. This file also finds an agent that runs already. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/local/local.h"
#include "common/os/cgroup.h"
#include "common/os/limits.h"

#define READY_MS 20000 /* time limit for a daemon to become ready */
/* Largest number of times that one agent is started. An agent that has ended this often would
 * probably end again. */
#define LIVES_MAX 20

static bool is_executable_file(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

void daemons_program(const struct bpsrun *r, const char *name, char *ret, size_t room)
{
	snprintf(ret, room, "%s/%s", r->exe_dir, name);
	if (is_executable_file(ret))
		return;
	snprintf(ret, room, "%s/%s/%s", r->exe_dir, name, name);
	if (is_executable_file(ret))
		return;
	snprintf(ret, room, "%s/../sbin/%s", r->exe_dir, name);
	if (!is_executable_file(ret))
		snprintf(ret, room, "%s", name);
}

static bool parse_daemon_ports(const char *text, unsigned *ret_port, unsigned *ret_http)
{
	const char *port = strstr(text, "PORT="), *http = strstr(text, "HTTP=");

	return port && http && sscanf(port, "PORT=%u", ret_port) == 1 &&
	       sscanf(http, "HTTP=%u", ret_http) == 1 && *ret_port < 65536 && *ret_http < 65536;
}

/* Wait until a daemon is ready: it writes its ports to its ready descriptor, and then closes the
 * descriptor. Errors: -ETIMEDOUT; -ECHILD: the daemon ended or wrote no valid ports; -EINTR: bpsrun
 * has received a signal. */
static int daemon_await_ready(
	struct bpsrun *r, struct bpsrun_child *c, unsigned *ret_port, unsigned *ret_http)
{
	struct pollfd p[] = {
		{.fd = c->ready_fd, .events = POLLIN}, {.fd = r->signal_fd, .events = POLLIN}};
	uint64_t deadline = clock_now_ms() + READY_MS;
	char text[128] = "";
	size_t n = 0;
	ssize_t got = 1;

	while (got && n < sizeof(text) - 1) {
		if (poll(p, 2, poll_timeout_left_ms(deadline)) == 0) {
			output_print_message("%s is not ready after %d s; its log ends with:",
				c->name, READY_MS / 1000);
			output_print_log_tail(c, LOG_TRACE);
			return -ETIMEDOUT;
		}
		if (p[1].revents)
			return -EINTR;
		got = read(c->ready_fd, text + n, sizeof(text) - 1 - n);
		n += got > 0 ? (size_t)got : 0;
	}
	close(c->ready_fd);
	c->ready_fd = -1;
	if (parse_daemon_ports(text, ret_port, ret_http))
		return 0;
	output_print_message("%s did not start; its log ends with:", c->name);
	output_print_log_tail(c, LOG_TRACE);
	return -ECHILD;
}

/* Write the path of the socket to which the agent sends its descriptors (fdstore_server.c). */
static void daemons_notify(
	const struct bpsrun *r, const struct bpsrun_child *c, char *ret, size_t room)
{
	snprintf(ret, room, "%s/%s.notify", r->dir, c->name);
}

/* Create the pipe on which a daemon reports that it is ready. The daemon inherits n_fds
 * descriptors. The pipe's write end gets a number above the numbers of these descriptors. Errors:
 * -errno. */
static int create_ready_pipe(unsigned n_fds, int ret[2])
{
	int fd, rc;

	if (pipe2(ret, O_CLOEXEC) < 0)
		return -errno;
	fd = fcntl(ret[1], F_DUPFD_CLOEXEC, CHILD_FDS / 2 + (int)n_fds);
	rc = fd >= 0 ? 0 : errno == EINVAL ? -EMFILE : -errno; /* EINVAL: it is above the limit */
	close(ret[1]);
	ret[1] = fd;
	if (rc < 0)
		close(ret[0]);
	return rc;
}

/* Start a daemon, and do not wait until it is ready. */
static int start_daemon(
	struct bpsrun *r, struct bpsrun_child *c, const char *program, char *const *args)
{
	char notify[160];
	const char *env[] = {"NOTIFY_SOCKET", notify, NULL};
	char *names = NULL;
	int *fds = NULL;
	char path[PATH_MAX + 64], fd_text[16], *argv[24];
	struct spawn_plan sp = {.argv = argv};
	int ready[2] = {-1, -1}, log_fd, rc;
	struct err_text err;
	char what[48];
	unsigned n = 0;

	daemons_program(r, program, path, sizeof(path));
	snprintf(c->log, sizeof(c->log), "%s/%s.log", r->dir, c->name);
	sp.n_fds = fdstore_server_fds(c->fdstore, &fds, &names);
	sp.fds = fds;
	sp.fd_names = names;
	log_fd = open(c->log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
	rc = log_fd < 0 ? -errno : create_ready_pipe(sp.n_fds, ready);
	if (rc < 0) {
		snprintf(what, sizeof(what), "cannot start %s", c->name);
		limits_explain(rc, what, &err);
		output_print_message("%s", err.s);
		goto out;
	}
	snprintf(fd_text, sizeof(fd_text), "%d", ready[1]);
	argv[n++] = path;
	argv[n++] = ARG("--ready-fd");
	argv[n++] = fd_text;
	while (*args)
		argv[n++] = *args++;
	argv[n] = NULL;
	sp.out = sp.err = log_fd;
	sp.keep = ready[1];
	if (c->fdstore) {
		daemons_notify(r, c, notify, sizeof(notify));
		sp.env = env;
	}
	rc = child_spawn(c, &sp);
	close(ready[1]);
	c->ready_fd = ready[0];
out:
	free(fds);
	free(names);
	if (log_fd >= 0)
		close(log_fd);
	return rc;
}

static struct bpsrun_child *daemons_append_child(struct bpsrun *r, const char *kind, unsigned i)
{
	struct bpsrun_child *c = &r->daemons[r->n_daemons++];

	c->rank = i;
	c->is_daemon = true;
	c->pidfd = c->ready_fd = c->out.fd = c->err.fd = -1;
	if (strcmp(kind, "scheduler") != 0)
		snprintf(c->name, sizeof(c->name), "%s-%u", kind, i);
	else
		snprintf(c->name, sizeof(c->name), "%s", kind);
	return c;
}

static int start_scheduler(struct bpsrun *r)
{
	char state[128];
	char *args[] = {ARG("--listen"), ARG("127.0.0.1:0"), ARG("--http"), ARG("127.0.0.1:0"),
		ARG("--state-dir"), state, NULL};
	struct bpsrun_child *c = daemons_append_child(r, "scheduler", 0);
	unsigned port = 0, http = 0;
	int rc;

	snprintf(state, sizeof(state), "%s/state", r->dir);
	if (mkdir(state, 0700) < 0) {
		rc = -errno;
		output_print_message("cannot create the folder '%s': %s", state, strerror(-rc));
		return rc;
	}
	rc = start_daemon(r, c, "bps-scheduler", args);
	if (!rc)
		rc = daemon_await_ready(r, &r->daemons[0], &port, &http);
	if (rc < 0)
		return rc;
	snprintf(r->scheduler, sizeof(r->scheduler), "127.0.0.1:%u", port);
	snprintf(r->scheduler_http, sizeof(r->scheduler_http), "127.0.0.1:%u", http);
	return 0;
}

/* Write how many bytes each server or agent may use. This is the value of the environment variable,
 * if it is set. Otherwise each server and each agent gets an equal share of 15/16 of the memory of
 * the machine, or of its control group. The default of a single daemon is half of the memory, which
 * would be too much for three daemons. 1/16 is left over, because the kernel's figure for all
 * memory may change by some pages while the daemons start. */
static void memory_setting(const struct bpsrun *r, const char *variable, char *ret, size_t room)
{
	uint64_t all = cgroup_memory_bytes();
	const char *wanted = getenv(variable);
	unsigned n = r->o.servers + r->o.agents;

	if (wanted)
		snprintf(ret, room, "%s", wanted);
	else
		snprintf(ret, room, "%llu",
			(unsigned long long)((all - all / 16) / (n < 2 ? 2 : n)));
}

static int start_private_server(struct bpsrun *r, unsigned i)
{
	char memory[32];
	char *args[] = {ARG("--name"), NULL, ARG("--scheduler"), r->scheduler, ARG("--listen"),
		ARG("127.0.0.1:0"), ARG("--http"), ARG("127.0.0.1:0"), ARG("--same-host-dir"),
		r->dir, ARG("--sums-memory"), memory, NULL};
	struct bpsrun_child *c = daemons_append_child(r, "server", i);

	memory_setting(r, "BPS_SUMS_MEMORY", memory, sizeof(memory));
	args[1] = c->name;
	return start_daemon(r, c, "bps-server", args);
}

void daemons_socket(const struct bpsrun *r, unsigned i, char *ret, size_t room)
{
	if (r->dir[0])
		snprintf(ret, room, "%s/agent-%u.sock", r->dir, i);
	else
		snprintf(ret, room, "%s", r->o.agent);
}

static int start_agent_process(struct bpsrun *r, struct bpsrun_child *c)
{
	char listen[32], path[128], memory[32];
	char *args[] = {ARG("--name"), NULL, ARG("--scheduler"), r->scheduler, ARG("--listen"),
		listen, ARG("--http"), ARG("127.0.0.1:0"), ARG("--socket"), path,
		ARG("--same-host-dir"), r->dir, ARG("--memory"), memory, NULL};

	memory_setting(r, "BPS_MEMORY", memory, sizeof(memory));
	args[1] = c->name;
	/* each agent has its own loopback address, as if it ran on its own machine */
	snprintf(listen, sizeof(listen), "127.0.0.%u:0", 1 + c->rank);
	daemons_socket(r, c->rank, path, sizeof(path));
	return start_daemon(r, c, "bps-agent", args);
}

static int start_private_agent(struct bpsrun *r, unsigned i)
{
	struct bpsrun_child *c = daemons_append_child(r, "agent", i);
	char notify[160];
	int rc;

	daemons_notify(r, c, notify, sizeof(notify));
	rc = fdstore_server_open(notify, &c->fdstore);
	return rc < 0 ? rc : start_agent_process(r, c);
}

bool daemons_revive(struct bpsrun *r, struct bpsrun_child *c, int code)
{
	if (!c->fdstore || ++c->n_lives >= LIVES_MAX || code == EX_USAGE || code == EX_CONFIG)
		return false;
	if (c->ready_fd >= 0)
		close(c->ready_fd);
	c->ready_fd = -1;
	fdstore_server_receive(c->fdstore); /* handle messages that the ended agent has sent */
	return start_agent_process(r, c) == 0;
}

/* Return whether the environment asks for servers even for a job on one machine. */
static bool is_distributed_forced(void)
{
	const char *bps = getenv("BPS_FORCE_DISTRIBUTED"),
		   *byteps = getenv("BYTEPS_FORCE_DISTRIBUTED");

	return (bps && *bps && *bps != '0') || (byteps && *byteps && *byteps != '0');
}

bool daemon_is_needed(const struct bpsrun *r, const struct bpsrun_child *c)
{
	if (c->fdstore) /* an agent */
		return !r->may_shrink;
	if (c != r->daemons && r->o.agents == 1 && !is_distributed_forced())
		return false; /* all workers are on one machine, so no server takes part */
	for (unsigned i = 1; c != r->daemons && i <= r->o.servers; i++)
		if (r->daemons[i].pid)
			return false; /* the other servers take over the partitions */
	return true;
}

static int daemons_create_dir(struct bpsrun *r)
{
	const char *base = getenv("XDG_RUNTIME_DIR");

	/* The path of a Unix socket has at most 107 bytes, so this folder's path must be short. */
	if (!base || !*base || strlen(base) > 60 || access(base, W_OK) < 0)
		base = "/tmp";
	snprintf(r->dir, sizeof(r->dir), "%s/bpsrun-XXXXXX", base);
	if (!mkdtemp(r->dir)) {
		output_print_message("cannot create the folder '%s': %s", r->dir, strerror(errno));
		r->dir[0] = 0;
		return -errno;
	}
	return 0;
}

/* Start the scheduler first, because the other daemons need its port. Then start the other daemons
 * in parallel, and wait until each daemon is ready. */
int daemons_start(struct bpsrun *r)
{
	unsigned port, http;
	int rc = daemons_create_dir(r);

	if (!rc)
		rc = start_scheduler(r);
	for (unsigned i = 0; !rc && i < r->o.servers; i++)
		rc = start_private_server(r, i);
	for (unsigned i = 0; !rc && i < r->o.agents; i++)
		rc = start_private_agent(r, i);
	for (unsigned i = 1; !rc && i < r->n_daemons; i++)
		rc = daemon_await_ready(r, &r->daemons[i], &port, &http);
	return rc;
}

static int remove_tree_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

void daemons_let_go(struct bpsrun *r)
{
	for (unsigned i = 0; i < r->n_daemons; i++) {
		fdstore_server_close(r->daemons[i].fdstore);
		r->daemons[i].fdstore = NULL;
	}
}

void daemons_stop(struct bpsrun *r)
{
	daemons_let_go(r);
	for (unsigned i = r->n_daemons; r->result && i > 0; i--)
		output_print_log_tail(&r->daemons[i - 1], LOG_WARN);
	if (r->n_daemons > 1)
		child_stop_all(r->daemons + 1, r->n_daemons - 1, DAEMON_STOP_MS);
	child_stop_all(r->daemons, r->n_daemons, DAEMON_STOP_MS);
	for (unsigned i = 0; i < r->n_daemons; i++)
		if (r->daemons[i].ready_fd >= 0)
			close(r->daemons[i].ready_fd);
	if (r->dir[0])
		nftw(r->dir, remove_tree_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Return 0 if a process accepts connections at the socket with this path; otherwise -errno. */
static int probe_agent_socket(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	rc = fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	if (fd >= 0)
		close(fd);
	return rc;
}

const char *daemons_choose(const struct bpsrun_options *o)
{
	const char *env = getenv("BPS_AGENT_SOCKET");
	int rc;

	if (o->agent || o->has_agents || o->has_servers)
		return o->agent;
	if (env && *env)
		return env;
	rc = probe_agent_socket(LOCAL_SOCKET);
	/* Print the error, because the user may expect that the job uses this host's agent. */
	if (rc < 0)
		output_print_message(
			"cannot connect to the agent at %s: %s%s; starting a separate cluster "
			"for the job",
			LOCAL_SOCKET, strerror(-rc),
			rc == -EACCES || rc == -EPERM ? " (is this user in the socket's group?)"
						      : "");
	return rc == 0 ? LOCAL_SOCKET : NULL;
}
