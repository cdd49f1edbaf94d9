/* Starts one daemon of the job's cluster, and waits until it reports that it is ready. daemons.c
 * chooses the daemons and their options. One thread. */
#include "libbpsclient/tools/bpsrun.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/os/limits.h"
#include "libbpsclient/tools/process/fdstore_server.h"

#define READY_MS 20000 /* time limit for a daemon to become ready */
#define ARGS_MAX 40

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

int daemon_await_ready(
	struct bpsrun *r, struct bpsrun_child *c, unsigned *ret_port, unsigned *ret_http)
{
	struct pollfd p[] = {{.fd = c->ready_fd, .events = POLLIN},
		{.fd = r->signal_fd, .events = POLLIN},
		{.fd = job_nodes_descriptor(r), .events = POLLIN}};
	uint64_t deadline = clock_now_ms() + READY_MS;
	char text[128] = "";
	size_t n = 0;
	ssize_t got = 1;

	while (got && n < sizeof(text) - 1) {
		if (poll(p, 3, poll_timeout_left_ms(deadline)) == 0) {
			output_print_message("%s is not ready after %d s; its log ends with:",
				c->name, READY_MS / 1000);
			output_print_log_tail(c->name, c->log, LOG_TRACE);
			return -ETIMEDOUT;
		}
		if (p[1].revents)
			return -EINTR;
		if (p[2].revents) {
			job_nodes_serve(r);
			p[2].fd = job_nodes_descriptor(r);
		}
		if (!p[0].revents)
			continue;
		got = read(c->ready_fd, text + n, sizeof(text) - 1 - n);
		n += got > 0 ? (size_t)got : 0;
	}
	close(c->ready_fd);
	c->ready_fd = -1;
	if (parse_daemon_ports(text, ret_port, ret_http))
		return 0;
	output_print_message("%s did not start; its log ends with:", c->name);
	output_print_log_tail(c->name, c->log, LOG_TRACE);
	return -ECHILD;
}

void daemons_notify(const struct bpsrun *r, const struct bpsrun_child *c, char *ret, size_t room)
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

/* Choose the file of a daemon's log. The nodes may share the folder of --log-dir. */
static void write_log_path(const struct bpsrun *r, struct bpsrun_child *c)
{
	snprintf(c->log, sizeof(c->log), "%s/%s%s%s.log", r->o.log_dir ? r->o.log_dir : r->dir,
		r->node_name, *r->node_name ? "." : "", c->name);
}

int daemon_start_process(
	struct bpsrun *r, struct bpsrun_child *c, const char *program, char *const *args)
{
	char notify[160];
	const char *env[] = {"NOTIFY_SOCKET", notify, NULL};
	char *names = NULL;
	int *fds = NULL;
	char path[PATH_MAX + 64], fd_text[16], *argv[ARGS_MAX + 4];
	struct spawn_plan sp = {.argv = argv};
	int ready[2] = {-1, -1}, log_fd, rc;
	struct err_text err;
	char what[48];
	unsigned n = 0;

	daemons_program(r, program, path, sizeof(path));
	write_log_path(r, c);
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
	while (*args && n < ARGS_MAX + 3)
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
