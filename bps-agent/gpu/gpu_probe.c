/* The probe for GPUs: runs the executor's program with --gpus and parses its output. The diagram of
 * the states is in gpu_probe.h. The agent itself loads no CUDA. Thread: the control thread. */
#include "bps-agent/gpu/gpu_probe.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bps-agent/executor/plan/report.h"
#include "bps-agent/gpu/spawn_child.h"
#include "common/base/log.h"

/* room for the child's output: a line for each of 64 GPUs, and messages of libraries */
#define TEXT_BYTES 32768
/* maximum number of checks whether the killed child has ended; there is one check per
 * millisecond */
#define END_TRIES 200
/* Time limit of the probe, in seconds. The limit is long because the driver takes several seconds
 * to start if no process uses the driver. */
#define LIMIT_S 20

struct gpu_probe {
	pid_t pid; /* process id of the child; 0: the child has ended */
	int fd;    /* reading end of the pipe with the child's output; -1: closed */
	struct event *readable;
	char text[TEXT_BYTES];
	size_t n_text;
	unsigned n_reports;
	bool has_cliques;
	struct topo_report reports[TOPO_GPUS_MAX];
	char why[256];
};

static void gpu_probe_stop_reading(struct gpu_probe *p)
{
	if (p->readable)
		event_free(p->readable);
	p->readable = NULL;
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
}

/* Kill the child and wait for its end, but at most END_TRIES ms, because the watchdog of this
 * thread allows no long wait. A child that hangs in the driver does not end in that time, and may
 * stay until the agent ends. */
static void gpu_probe_kill_child(struct gpu_probe *p)
{
	if (!p->pid)
		return;
	/* The kill is safe even if the child has ended, because the kernel does not reuse the pid
	 * before waitpid. */
	kill(p->pid, SIGKILL);
	for (unsigned i = 0; i < END_TRIES && waitpid(p->pid, NULL, WNOHANG) == 0; i++)
		poll(NULL, 0, 1);
	p->pid = 0;
}

/* Handle a line of the child's output. A line that does not describe a GPU is an error message.
 * Keep the last error, because it is usually the most precise. */
static void gpu_probe_parse_line(struct gpu_probe *p, const char *line)
{
	bool has_cliques;

	if (p->n_reports < TOPO_GPUS_MAX &&
		topo_report_parse(line, &p->reports[p->n_reports], &has_cliques)) {
		p->has_cliques = has_cliques && (p->n_reports == 0 || p->has_cliques);
		p->n_reports++;
	} else if (*line) {
		snprintf(p->why, sizeof(p->why), "%s", line);
	}
}

static void gpu_probe_finish(struct gpu_probe *p, const char *why)
{
	char *save = NULL;

	gpu_probe_stop_reading(p);
	gpu_probe_kill_child(p);
	p->text[p->n_text] = '\0';
	/* the dynamic loader writes this message if the library is missing */
	if (strstr(p->text, "loading shared libraries: libcuda.so.1"))
		why = "there is no CUDA driver (libcuda.so.1 was not found)";
	for (char *s = strtok_r(p->text, "\n", &save); s; s = strtok_r(NULL, "\n", &save))
		gpu_probe_parse_line(p, s);
	if (why || (p->n_reports == 0 && !*p->why))
		snprintf(p->why, sizeof(p->why), "%s",
			why ? why : "the probe for GPUs wrote no output");
	if (why)
		p->n_reports = 0;
	if (p->n_reports) {
		p->why[0] = '\0';
		log_info("found GPUs of this machine: n=%u", p->n_reports);
	} else {
		log_info("found no GPU, so tensors must be in host memory: %s", p->why);
	}
}

static void on_gpu_probe_output(evutil_socket_t fd, short what, void *arg)
{
	struct gpu_probe *p = arg;
	ssize_t n;

	if (what & EV_TIMEOUT) {
		gpu_probe_finish(p, "the probe for GPUs did not end within 20 s");
		return;
	}
	n = read(fd, p->text + p->n_text, sizeof(p->text) - 1 - p->n_text);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		p->n_text += (size_t)n;
	if (p->n_text == sizeof(p->text) - 1)
		gpu_probe_finish(p, "the probe for GPUs wrote too much output");
	else if (n <= 0)
		gpu_probe_finish(p, NULL);
}

static int gpu_probe_spawn(struct gpu_probe *p, const char *program, int out)
{
	posix_spawn_file_actions_t files;
	int rc;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&files, out, STDERR_FILENO);
	posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
	rc = spawn_child(program, "--gpus", &files, &p->pid);
	if (rc < 0)
		p->pid = 0;
	posix_spawn_file_actions_destroy(&files);
	return rc;
}

int gpu_probe_start(
	struct event_base *base, const char *program, struct gpu_probe **ret, struct err_text *err)
{
	struct gpu_probe *p = calloc(1, sizeof(*p));
	const struct timeval limit = {.tv_sec = LIMIT_S};
	int fds[2] = {-1, -1}, rc = -ENOMEM;

	if (!p)
		return err_set(err, -ENOMEM, "out of memory");
	p->fd = -1;
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
		rc = -errno;
		goto fail;
	}
	p->fd = fds[0];
	rc = gpu_probe_spawn(p, program, fds[1]);
	close(fds[1]);
	if (rc < 0)
		goto fail;
	rc = -ENOMEM;
	p->readable = event_new(base, p->fd, EV_READ | EV_PERSIST, on_gpu_probe_output, p);
	if (!p->readable || event_add(p->readable, &limit) < 0)
		goto fail;
	*ret = p;
	return 0;
fail:
	err_set(err, rc, "cannot run '%s' to find GPUs: %s", program, err_str(rc));
	gpu_probe_free(p);
	return rc;
}

void gpu_probe_free(struct gpu_probe *p)
{
	if (!p)
		return;
	gpu_probe_stop_reading(p);
	gpu_probe_kill_child(p);
	free(p);
}

unsigned gpu_probe_reports(
	const struct gpu_probe *p, const struct topo_report **ret, bool *ret_has_cliques)
{
	*ret = p ? p->reports : NULL;
	*ret_has_cliques = p && p->has_cliques;
	return p ? p->n_reports : 0;
}

const char *gpu_probe_why(const struct gpu_probe *p)
{
	return p ? p->why : "";
}
