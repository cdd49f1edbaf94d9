/* Starts a job's nodes on other hosts: runs bpsrun there through a command such as ssh, and gives
 * it the order over its standard input (remote.c). The nodes then find each other as if a user had
 * started bpsrun on each. This bpsrun only shows their output, and ends when all have ended. When
 * it ends for any reason, the nodes lose their standard input, and end. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "libbpsclient/tools/nodes/address.h"
#include "libbpsclient/tools/nodes/hostlist.h"
#include "libbpsclient/tools/process/guard.h"

#define ENV_MAX   1024
#define RSH_WORDS 32
/* Time for the other nodes to end after the first has failed. They stop their workers after
 * PEER_FAILED_MS, and have LOST_GRACE_MS for it. */
#define FAILED_MS (PEER_FAILED_MS + LOST_GRACE_MS + 2000)
/* Time in which a node must end after its standard input is closed */
#define CLOSED_MS 15000

struct job_host {
	const struct hostlist_entry *entry;
	int stdin_fd; /* the other end is the standard input of bpsrun there; -1: closed */
	struct bpsrun_child child;
};

struct host_run {
	struct bpsrun *r;
	struct hostlist_entry *entries;
	struct job_host *hosts;
	unsigned n_hosts;
	char head[ADDR_TEXT_BYTES], key_hex[KEY_HEX_BYTES], folder[PATH_MAX];
	const char *env[ENV_MAX + 1];
	bool is_stopped; /* the nodes were asked to stop their workers */
	unsigned n_well;
	uint64_t close_ms, kill_ms; /* when to close standard inputs, and to send KILL; 0: never */
};

/* Return the host without the user's name that ssh accepts in front of it. */
static const char *host_without_user(const char *name)
{
	const char *at = strrchr(name, '@');

	return at ? at + 1 : name;
}

/* Choose the address of the head: --head, else the first host. */
static int choose_head(struct host_run *h)
{
	const char *first = host_without_user(h->entries[0].name);
	struct place p;

	if (place_find(h->n_hosts, 0, h->r->o.head ? h->r->o.head : first, true, &p) < 0)
		return -EINVAL;
	if (h->n_hosts > 1 && !h->r->o.head && strncmp(first, "localhost", 9) == 0) {
		output_print_message("'%s' is another machine on each host: write its name", first);
		return -EINVAL;
	}
	addr_format(&p.head, h->head);
	return 0;
}

/* ---- the order ---- */

static bool is_passed_variable(const char *text)
{
	static const char *const whole[] = {
		"PATH=", "LD_LIBRARY_PATH=", "PYTHONPATH=", "VIRTUAL_ENV=", NULL};
	static const char *const own[] = {
		"BPS_CLUSTER_KEY=", "BPS_AGENT_SOCKET=", "BPS_KEY_FILE=", "BPS_CAUSE_FILE=", NULL};

	for (unsigned i = 0; own[i]; i++)
		if (strncmp(text, own[i], strlen(own[i])) == 0)
			return false;
	for (unsigned i = 0; whole[i]; i++)
		if (strncmp(text, whole[i], strlen(whole[i])) == 0)
			return true;
	return strncmp(text, "BPS_", 4) == 0;
}

/* Return whether the variable was named with -x. */
static bool is_exported_variable(const struct bpsrun_options *o, const char *text)
{
	for (unsigned i = 0; i < o->n_exports; i++) {
		size_t n = strcspn(o->exports[i], "=");

		if (strncmp(text, o->exports[i], n) == 0 && text[n] == '=')
			return true;
	}
	return false;
}

static void choose_variables(struct host_run *h)
{
	unsigned n = 0;

	for (char **e = environ; *e && n < ENV_MAX; e++)
		if (is_passed_variable(*e) || is_exported_variable(&h->r->o, *e))
			h->env[n++] = *e;
	h->env[n] = NULL;
}

/* Choose a key if the user has none and the job has several nodes. */
static int choose_key(struct host_run *h)
{
	struct bpsrun *r = h->r;

	if (!r->has_key && h->n_hosts > 1) {
		if (key_generate_random(&r->key) < 0) {
			output_print_message("cannot get random bytes for the cluster's key");
			return -EIO;
		}
		r->has_key = true;
	}
	if (r->has_key)
		key_format_hex(&r->key, h->key_hex);
	return 0;
}

/* Return the number of words up to NULL. */
static unsigned count_words(char *const *words)
{
	unsigned n = 0;

	while (words[n])
		n++;
	return n;
}

/* Send the order to the i-th host. */
static int send_order(struct host_run *h, unsigned i)
{
	const struct bpsrun_options *o = &h->r->o;
	char n_text[16], nodes[16], rank[16], ranks[48];
	const char *const place[] = {"--nnodes", nodes, "--node-rank", rank, "--head", h->head};
	const char *const workers[] = {"-n", n_text, "--ranks", ranks};
	unsigned n_command = count_words(o->command), n = 0, first = 0;
	const char **args = calloc(o->n_passed + n_command + 16, sizeof(*args));
	int rc;

	if (!args)
		return -ENOMEM;
	for (unsigned j = 0; j < i; j++)
		first += h->entries[j].n;
	snprintf(n_text, sizeof(n_text), "%u", h->entries[i].n);
	snprintf(nodes, sizeof(nodes), "%u", h->n_hosts);
	snprintf(rank, sizeof(rank), "%u", i);
	snprintf(ranks, sizeof(ranks), "%u/%u", first, o->n);
	for (unsigned j = 0; j < o->n_passed; j++)
		args[n++] = o->passed[j];
	for (unsigned j = 0; !o->daemons_only && j < 4; j++)
		args[n++] = workers[j];
	for (unsigned j = 0; j < (h->n_hosts > 1 ? 6 : 2); j++)
		args[n++] = place[j];
	args[n++] = "--";
	for (unsigned j = 0; j < n_command; j++)
		args[n++] = o->command[j];
	rc = remote_order_send(h->hosts[i].stdin_fd,
		&(struct remote_order){
			.key_hex = h->key_hex, .folder = h->folder, .env = h->env, .args = args});
	free(args);
	return rc;
}

/* ---- processes ---- */

/* Write the command that runs bpsrun on a host: this program itself on this host. text: room for
 * the words of --rsh. */
static void write_host_command(const char *name, char *program, char *text, char **ret_argv)
{
	char *at = NULL;
	unsigned n = 0;

	if (!address_host_is_own(host_without_user(name))) {
		for (char *w = strtok_r(text, " ", &at); w && n < RSH_WORDS;
			w = strtok_r(NULL, " ", &at))
			ret_argv[n++] = w;
		ret_argv[n++] = ARG(name);
	}
	ret_argv[n++] = program;
	ret_argv[n++] = ARG("--stdin");
	ret_argv[n] = NULL;
}

static int start_host(struct host_run *h, unsigned i)
{
	struct job_host *host = &h->hosts[i];
	char program[PATH_MAX + 64], text[1024], *argv[RSH_WORDS + 4];
	struct spawn_plan sp = {
		.argv = argv, .out = -1, .err = -1, .keep = -1, .fd_limit = &h->r->worker_fd_limit};
	int in[2], rc;

	snprintf(program, sizeof(program), "%s/bpsrun", h->r->exe_dir);
	snprintf(text, sizeof(text), "%s", h->r->o.rsh);
	snprintf(host->child.name, sizeof(host->child.name), "%.31s", host->entry->name);
	host->child.kind = CHILD_COMMAND;
	write_host_command(host->entry->name, program, text, argv);
	if (pipe2(in, O_CLOEXEC) < 0)
		return -errno;
	sp.in = in[0];
	host->stdin_fd = in[1];
	rc = output_open(&host->child.out, STDOUT_FILENO, "", &sp.out);
	if (!rc)
		rc = output_open(&host->child.err, STDERR_FILENO, "", &sp.err);
	if (!rc)
		rc = child_spawn(&host->child, &sp);
	close(in[0]);
	if (sp.out >= 0)
		close(sp.out);
	if (sp.err >= 0)
		close(sp.err);
	if (!rc && send_order(h, i) < 0)
		output_print_message("%s has ended before it took its order", host->entry->name);
	return rc;
}

static void close_inputs(struct host_run *h)
{
	for (unsigned i = 0; i < h->n_hosts; i++) {
		if (h->hosts[i].stdin_fd >= 0)
			close(h->hosts[i].stdin_fd);
		h->hosts[i].stdin_fd = -1;
	}
	h->close_ms = 0;
	h->kill_ms = clock_now_ms() + CLOSED_MS;
}

/* Ask the nodes to stop their workers. A second call ends the nodes. */
static void stop_hosts(struct host_run *h)
{
	if (h->is_stopped) {
		close_inputs(h);
		return;
	}
	h->is_stopped = true;
	for (unsigned i = 0; i < h->n_hosts; i++)
		if (h->hosts[i].stdin_fd >= 0 && write(h->hosts[i].stdin_fd, "s", 1) != 1)
			output_print_message(
				"cannot stop %s: its standard input is closed", h->entries[i].name);
	h->close_ms = clock_now_ms() + h->r->o.grace_ms + FAILED_MS;
}

static void handle_host_exit(struct host_run *h, struct job_host *host)
{
	int code = child_reap_if_ended(&host->child);

	if (code < 0)
		return;
	if (host->stdin_fd >= 0)
		close(host->stdin_fd);
	host->stdin_fd = -1;
	trainer_close_output(&host->child);
	h->n_well += code == 0;
	if (!code)
		return;
	output_print_message("%s: bpsrun has ended with exit code %d%s", host->entry->name, code,
		code == 255 ? " (if it did not start there, that of --rsh)" : "");
	if (h->r->may_shrink && !h->is_stopped) {
		h->r->failed = code;
		return;
	}
	if (!h->r->result)
		h->r->result = code;
	if (!h->close_ms && !h->kill_ms)
		h->close_ms = clock_now_ms() + FAILED_MS;
}

static void handle_signal(struct host_run *h)
{
	struct signalfd_siginfo si;

	if (read(h->r->signal_fd, &si, sizeof(si)) != sizeof(si) || si.ssi_signo == SIGUSR1 ||
		si.ssi_signo == SIGUSR2)
		return;
	if (!h->r->result)
		h->r->result = (int)si.ssi_signo == GUARD_DIED ? EXIT_OWN : 128 + (int)si.ssi_signo;
	if ((int)si.ssi_signo == GUARD_DIED)
		close_inputs(h);
	else
		stop_hosts(h);
}

static void check_host_deadlines(struct host_run *h)
{
	uint64_t now = clock_now_ms();

	if (h->close_ms && now >= h->close_ms)
		close_inputs(h);
	if (!h->kill_ms || now < h->kill_ms)
		return;
	h->kill_ms = 0;
	for (unsigned i = 0; i < h->n_hosts; i++)
		child_signal_group(&h->hosts[i].child, SIGKILL);
}

static unsigned count_running_hosts(const struct host_run *h)
{
	unsigned n = 0;

	for (unsigned i = 0; i < h->n_hosts; i++)
		n += h->hosts[i].child.pid != 0;
	return n;
}

static int await_hosts(struct host_run *h)
{
	struct pollfd *p = calloc(1 + 3 * (size_t)h->n_hosts, sizeof(*p));
	unsigned n;

	if (!p)
		return -ENOMEM;
	while (count_running_hosts(h)) {
		n = 0;
		p[n++] = (struct pollfd){.fd = h->r->signal_fd, .events = POLLIN};
		for (unsigned i = 0; i < h->n_hosts; i++) {
			struct bpsrun_child *c = &h->hosts[i].child;

			p[n++] = (struct pollfd){.fd = c->pidfd, .events = POLLIN};
			p[n++] = (struct pollfd){.fd = c->out.fd, .events = POLLIN};
			p[n++] = (struct pollfd){.fd = c->err.fd, .events = POLLIN};
		}
		poll(p, n, poll_timeout_left_ms(h->close_ms ? h->close_ms : h->kill_ms));
		if (p[0].revents)
			handle_signal(h);
		for (unsigned i = 0; i < h->n_hosts; i++) {
			output_read_and_print(&h->hosts[i].child.out);
			output_read_and_print(&h->hosts[i].child.err);
			handle_host_exit(h, &h->hosts[i]);
		}
		check_host_deadlines(h);
	}
	free(p);
	return 0;
}

/* Find the hosts, and what each gets. */
static int plan_hosts(struct host_run *h)
{
	struct bpsrun *r = h->r;
	int rc = hostlist_parse(r->o.hosts, &h->entries, &h->n_hosts);

	if (!rc)
		rc = hostlist_divide(h->entries, &h->n_hosts, r->o.daemons_only, &r->o.n);
	if (!rc)
		rc = choose_head(h);
	if (!rc)
		rc = choose_key(h);
	if (!rc && !getcwd(h->folder, sizeof(h->folder))) {
		rc = -errno;
		output_print_message("cannot find the present folder: %s", strerror(-rc));
	}
	choose_variables(h);
	h->hosts = rc < 0 ? NULL : calloc(h->n_hosts, sizeof(*h->hosts));
	for (unsigned i = 0; h->hosts && i < h->n_hosts; i++) {
		struct job_host *host = &h->hosts[i];

		host->entry = &h->entries[i];
		host->stdin_fd = host->child.pidfd = host->child.out.fd = host->child.err.fd = -1;
	}
	return !rc && !h->hosts ? -ENOMEM : rc;
}

int hosts_run(struct bpsrun *r)
{
	struct host_run h = {.r = r};
	int rc = plan_hosts(&h);

	r->may_shrink = trainers_may_be_lost(&r->o);
	for (unsigned i = 0; !rc && i < h.n_hosts; i++)
		rc = start_host(&h, i);
	if (h.hosts && rc < 0)
		close_inputs(&h);
	if (h.hosts)
		await_hosts(&h);
	explicit_bzero(h.key_hex, sizeof(h.key_hex));
	free(h.hosts);
	free(h.entries);
	if (rc < 0)
		return EXIT_OWN;
	return r->result || h.n_well ? r->result : r->failed;
}
