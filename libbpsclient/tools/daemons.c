/* The daemons of a job's cluster. They run in a folder of their own, and choose their ports. Those
 * of a job on one node listen on loopback; those of several nodes on each node's address, and only
 * the head has a scheduler. This file also finds an agent that runs already. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/local/local.h"
#include "common/os/cgroup.h"
#include "libbpsclient/tools/process/fdstore_server.h"

/* Largest number of times that one agent is started. An agent that has ended this often would
 * probably end again. */
#define LIVES_MAX 20

/* The options of a daemon. */
struct daemon_args {
	char *words[40];
	unsigned n;
	char listen[ADDR_TEXT_BYTES], key_file[160], memory[32];
};

static void daemon_args_add(struct daemon_args *a, const char *option, char *value)
{
	a->words[a->n++] = ARG(option);
	a->words[a->n++] = value;
	a->words[a->n] = NULL;
}

static struct bpsrun_child *daemons_append_child(
	struct bpsrun *r, enum child_kind kind, const char *name, unsigned i)
{
	struct bpsrun_child *c = &r->daemons[r->n_daemons++];

	c->rank = i;
	c->kind = kind;
	c->pidfd = c->ready_fd = c->out.fd = c->err.fd = -1;
	if (kind != CHILD_SCHEDULER)
		snprintf(c->name, sizeof(c->name), "%s-%u", name, i);
	else
		snprintf(c->name, sizeof(c->name), "%s", name);
	return c;
}

/* Write "host:port". host: an IPv6 address has no brackets. */
static void write_host_port(const char *host, unsigned port, char ret[static ADDR_TEXT_BYTES])
{
	struct addr a = {.port = (uint16_t)port};

	snprintf(a.host, sizeof(a.host), "%s", host);
	addr_format(&a, ret);
}

/* Write the key of a daemon into the private folder. role: "server" or "agent"; NULL: the
 * scheduler, which needs the cluster key. */
static int daemon_args_add_key(const struct bpsrun *r, const char *role, struct daemon_args *a)
{
	char identity[CTL_NAME_MAX + 16];

	if (!r->has_key)
		return 0;
	snprintf(a->key_file, sizeof(a->key_file), "%s/%s.key", r->dir, role ? role : "cluster");
	snprintf(identity, sizeof(identity), "%s:%s", role ? role : "", r->node_name);
	daemon_args_add(a, "--key-file", a->key_file);
	if (access(a->key_file, F_OK) == 0)
		return 0; /* the daemon is started again */
	return cluster_key_write_file(&r->key, role ? identity : NULL, a->key_file);
}

/* The scheduler of several nodes listens on the head's address, for HTTP too, so that all nodes can
 * look at the job. */
static int start_scheduler(struct bpsrun *r)
{
	struct daemon_args a = {.n = 0};
	char state[128], http_at[ADDR_TEXT_BYTES];
	struct bpsrun_child *c = daemons_append_child(r, CHILD_SCHEDULER, "scheduler", 0);
	unsigned port = 0, http = 0;
	int rc;

	snprintf(state, sizeof(state), "%s/state", r->dir);
	if (mkdir(state, 0700) < 0) {
		rc = -errno;
		output_print_message("cannot create the folder '%s': %s", state, strerror(-rc));
		return rc;
	}
	write_host_port(r->own_host, 0, a.listen);
	write_host_port(r->own_host, r->has_nodes ? r->place.head.port + 1u : 0, http_at);
	daemon_args_add(&a, "--listen", a.listen);
	daemon_args_add(&a, "--http", http_at);
	daemon_args_add(&a, "--state-dir", state);
	if (r->has_nodes)
		daemon_args_add(&a, "--http-names", r->place.head.host);
	rc = daemon_args_add_key(r, NULL, &a);
	if (!rc)
		rc = daemon_start_process(r, c, "bps-scheduler", a.words);
	if (!rc)
		rc = daemon_await_ready(r, c, &port, &http);
	if (rc < 0)
		return rc;
	write_host_port(r->own_host, port, r->scheduler);
	write_host_port(r->own_host, http, r->scheduler_http);
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

/* Add the options that servers and agents have in common. listen_host: the daemon's address. */
static int daemon_args_add_member(struct bpsrun *r, const struct bpsrun_child *c,
	const char *listen_host, const char *role, struct daemon_args *a)
{
	write_host_port(listen_host, 0, a->listen);
	daemon_args_add(a, "--name", r->has_nodes ? r->node_name : ARG(c->name));
	if (r->has_nodes)
		daemon_args_add(a, "--host", r->node_name);
	daemon_args_add(a, "--scheduler", r->scheduler);
	daemon_args_add(a, "--listen", a->listen);
	daemon_args_add(a, "--http", ARG("127.0.0.1:0"));
	daemon_args_add(a, "--same-host-dir", r->dir);
	return daemon_args_add_key(r, role, a);
}

static int start_private_server(struct bpsrun *r, unsigned i)
{
	struct bpsrun_child *c = daemons_append_child(r, CHILD_SERVER, "server", i);
	struct daemon_args a = {.n = 0};
	int rc = daemon_args_add_member(r, c, r->own_host, "server", &a);

	memory_setting(r, "BPS_SUMS_MEMORY", a.memory, sizeof(a.memory));
	daemon_args_add(&a, "--sums-memory", a.memory);
	return rc < 0 ? rc : daemon_start_process(r, c, "bps-server", a.words);
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
	struct daemon_args a = {.n = 0};
	char host[ADDR_HOST_BYTES], path[128];
	int rc;

	/* on one node, each agent has its own loopback address, as if it ran on its own machine */
	if (r->has_nodes)
		snprintf(host, sizeof(host), "%s", r->own_host);
	else
		snprintf(host, sizeof(host), "127.0.0.%u", 1 + c->rank);
	rc = daemon_args_add_member(r, c, host, "agent", &a);
	memory_setting(r, "BPS_MEMORY", a.memory, sizeof(a.memory));
	daemons_socket(r, c->rank, path, sizeof(path));
	daemon_args_add(&a, "--socket", path);
	daemon_args_add(&a, "--memory", a.memory);
	return rc < 0 ? rc : daemon_start_process(r, c, "bps-agent", a.words);
}

static int start_private_agent(struct bpsrun *r, unsigned i)
{
	struct bpsrun_child *c = daemons_append_child(r, CHILD_AGENT, "agent", i);
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
	if (c->kind == CHILD_AGENT)
		return !r->may_shrink;
	if (c->kind == CHILD_SCHEDULER)
		return true;
	if (r->has_nodes) /* the servers of other nodes take over the partitions */
		return r->meeting && meeting_count_servers(r->meeting) == 1;
	if (r->o.agents == 1 && !is_distributed_forced())
		return false; /* all workers are on one machine, so no server takes part */
	for (unsigned i = 0; i < r->n_daemons; i++)
		if (r->daemons[i].kind == CHILD_SERVER && r->daemons[i].pid)
			return false; /* the other servers take over the partitions */
	return true;
}

/* Start the scheduler first, because the other daemons need its port. Then start the other daemons
 * in parallel, and wait until each daemon is ready. */
int daemons_start(struct bpsrun *r)
{
	unsigned port, http, first;
	int rc = job_nodes_begin(r);

	if (!rc && r->is_head)
		rc = start_scheduler(r);
	if (!rc)
		rc = job_nodes_meet(r);
	if (!rc && r->is_head)
		output_print_message("look: bpsctl --host %s status", r->scheduler_http);
	first = r->n_daemons;
	for (unsigned i = 0; !rc && r->has_server && i < r->o.servers; i++)
		rc = start_private_server(r, i);
	for (unsigned i = 0; !rc && i < r->o.agents; i++)
		rc = start_private_agent(r, i);
	for (unsigned i = first; !rc && i < r->n_daemons; i++)
		rc = daemon_await_ready(r, &r->daemons[i], &port, &http);
	return rc;
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
	unsigned with_scheduler = r->n_daemons && r->daemons[0].kind == CHILD_SCHEDULER;

	daemons_let_go(r);
	for (unsigned i = r->n_daemons; r->result && i > 0; i--)
		output_print_log_tail(r->daemons[i - 1].name, r->daemons[i - 1].log, LOG_WARN);
	if (r->n_daemons > with_scheduler)
		child_stop_all(
			r->daemons + with_scheduler, r->n_daemons - with_scheduler, DAEMON_STOP_MS);
	child_stop_all(r->daemons, with_scheduler, DAEMON_STOP_MS);
	for (unsigned i = 0; i < r->n_daemons; i++)
		if (r->daemons[i].ready_fd >= 0)
			close(r->daemons[i].ready_fd);
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

const char *daemons_choose(const struct bpsrun_options *o, bool has_head)
{
	const char *env = getenv("BPS_AGENT_SOCKET");
	int rc;

	if (o->agent || o->has_agents || o->has_servers || o->head || o->daemons_only)
		return o->agent;
	if (env && *env)
		return env;
	rc = probe_agent_socket(LOCAL_SOCKET);
	if (rc == -ENOENT && has_head)
		return NULL; /* the usual case of a job that brings its own cluster */
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
