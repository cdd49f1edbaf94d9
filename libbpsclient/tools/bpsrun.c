/* bpsrun: start the workers of a job on this machine, and where no agent runs also the daemons, for
 * as long as the job lasts. One process, one loop: poll over the signals, the children's pidfds and
 * their output.
 *
 *   START ── READY (daemons serve) ── RUN (trainers) ── STOP (TERM, after the grace KILL) ── exit
 *
 * A child is in a process group of its own, so that a signal from the terminal reaches it once,
 * through here, and is killed by the kernel when bpsrun dies, however it dies. See bpsrun(1). */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/local.h"
#include "common/log.h"

#define TRAINERS_MAX   1024
#define DAEMONS_MAX    64
#define READY_MS       20000 /* for a daemon to serve */
#define GRACE_MS       10000 /* between TERM and KILL */
#define DAEMON_STOP_MS 5000
#define STATUS_MS      10000
#define TAIL_BYTES     4096
#define TAIL_LINES     12
#define TOKEN_BYTES    32
#define EXIT_TIMEOUT   124
#define EXIT_OWN       125 /* bpsrun itself failed */

struct options {
	unsigned n; /* trainers on this node */
	unsigned servers, agents;
	unsigned nnodes, node_rank;
	bool has_servers, has_agents;
	bool wants_status, has_no_prefix;
	const char *job, *agent;
	uint32_t timeout_ms; /* 0: none */
	char **command;
};

/* One direction of a trainer's output, cut into lines. */
struct stream {
	int fd, to;
	size_t n;
	char buf[16384];
};

struct child {
	char name[32];
	bool is_daemon;
	unsigned rank;
	pid_t pid; /* 0: not started or reaped */
	int pidfd;
	char log[PATH_MAX];
	int ready_fd; /* where a daemon says that it serves, -1: it has */
	struct stream out, err;
};

struct run {
	struct options o;
	char dir[96]; /* "": no daemons of our own */
	char exe_dir[PATH_MAX];
	char scheduler[32], scheduler_http[32]; /* HOST:PORT */
	char job[128];
	char token[2 * TOKEN_BYTES + 1]; /* hex; "": the job has none */
	int signal_fd;
	struct child *daemons, *trainers;
	unsigned n_daemons;
	int result; /* exit code so far */
	bool is_stopping;
	uint64_t kill_ms;    /* when what is left gets KILL; 0: not stopping */
	uint64_t timeout_at; /* 0: never */
};

static int left_ms(uint64_t deadline_ms)
{
	uint64_t now = clock_now_ms();

	if (!deadline_ms)
		return -1;
	return deadline_ms > now ? (int)(deadline_ms - now > INT_MAX ? INT_MAX : deadline_ms - now)
				 : 0;
}

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	dprintf(STDERR_FILENO, "bpsrun: %s\n", line);
}

/* ---- options ---- */

static const char usage[] =
	"usage: bpsrun -n N [--job NAME] [--agent SOCKET | [--servers K] [--agents M]]\n"
	"              [--nnodes K --node-rank R] [--timeout TIME] [--status] [--no-prefix]\n"
	"              -- COMMAND [ARG...]\n";

static int parse_count(
	const char *what, const char *text, unsigned min, unsigned max, unsigned *ret)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || v < min || v > max) {
		say("%s '%s' is not a number from %u to %u", what, text, min, max);
		return -EINVAL;
	}
	*ret = (unsigned)v;
	return 0;
}

static int parse_time(const char *text, uint32_t *ret_ms)
{
	static const struct {
		const char *suffix;
		unsigned factor;
	} units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}};
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	for (unsigned i = 0; i < 4; i++)
		if (end != text && text[0] != '-' && !strcmp(end, units[i].suffix) && v &&
			v <= INT32_MAX / units[i].factor) {
			*ret_ms = (uint32_t)(v * units[i].factor);
			return 0;
		}
	say("time '%s' is not a number with a unit, such as 30s or 5min", text);
	return -EINVAL;
}

enum {
	OPT_SERVERS = 256,
	OPT_AGENTS,
	OPT_JOB,
	OPT_STATUS,
	OPT_TIMEOUT,
	OPT_AGENT,
	OPT_NNODES,
	OPT_NODE_RANK,
	OPT_NO_PREFIX,
	OPT_VERSION
};
static const struct option long_options[] = {
	{"servers", required_argument, NULL, OPT_SERVERS},
	{"agents", required_argument, NULL, OPT_AGENTS},
	{"job", required_argument, NULL, OPT_JOB},
	{"status", no_argument, NULL, OPT_STATUS},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"agent", required_argument, NULL, OPT_AGENT},
	{"nnodes", required_argument, NULL, OPT_NNODES},
	{"node-rank", required_argument, NULL, OPT_NODE_RANK},
	{"no-prefix", no_argument, NULL, OPT_NO_PREFIX},
	{"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

/* 0, negative on an error, 1 when there is nothing more to do. */
static int parse_option(int c, struct options *o)
{
	switch (c) {
	case 'n':
		return parse_count("-n", optarg, 1, TRAINERS_MAX, &o->n);
	case OPT_SERVERS:
		o->has_servers = true;
		return parse_count("--servers", optarg, 1, DAEMONS_MAX / 2 - 1, &o->servers);
	case OPT_AGENTS:
		o->has_agents = true;
		return parse_count("--agents", optarg, 1, DAEMONS_MAX / 2 - 1, &o->agents);
	case OPT_NNODES:
		return parse_count("--nnodes", optarg, 1, 65536, &o->nnodes);
	case OPT_NODE_RANK:
		return parse_count("--node-rank", optarg, 0, 65535, &o->node_rank);
	case OPT_TIMEOUT:
		return parse_time(optarg, &o->timeout_ms);
	case OPT_JOB:
		o->job = optarg;
		return 0;
	case OPT_AGENT:
		o->agent = optarg;
		return 0;
	case OPT_STATUS:
		o->wants_status = true;
		return 0;
	case OPT_NO_PREFIX:
		o->has_no_prefix = true;
		return 0;
	case OPT_VERSION:
		printf("bpsrun " BPS_VERSION "\n");
		return 1;
	case 'h':
		fputs(usage, stdout);
		return 1;
	default:
		fputs(usage, stderr);
		return -EINVAL;
	}
}

static int check_options(struct options *o)
{
	if (!o->n || !o->command[0]) {
		say("%s is missing", o->n ? "the command" : "-n, the number of workers,");
		fputs(usage, stderr);
		return -EINVAL;
	}
	if (o->node_rank >= o->nnodes) {
		say("--node-rank %u is not below --nnodes %u", o->node_rank, o->nnodes);
		return -EINVAL;
	}
	if (o->nnodes > 1 && !o->job) {
		say("a job on several nodes needs --job, the same everywhere");
		return -EINVAL;
	}
	if (o->job && (!*o->job || strlen(o->job) > 127)) {
		say("--job has 1 to 127 bytes");
		return -EINVAL;
	}
	if (o->agents > o->n) {
		say("--agents %u is more than the %u workers", o->agents, o->n);
		return -EINVAL;
	}
	if (o->agent && (o->has_agents || o->has_servers)) {
		say("--agent uses daemons that run; --agents and --servers start new ones");
		return -EINVAL;
	}
	return 0;
}

static int parse_options(int argc, char **argv, struct options *o)
{
	int c, rc;

	*o = (struct options){.servers = 1, .agents = 1, .nnodes = 1};
	while ((c = getopt_long(argc, argv, "+n:h", long_options, NULL)) >= 0) {
		rc = parse_option(c, o);
		if (rc)
			return rc;
	}
	o->command = argv + optind;
	return check_options(o);
}

/* ---- output ---- */

static void write_all(int fd, const char *p, size_t n)
{
	ssize_t done;

	while (n > 0) {
		done = write(fd, p, n);
		if (done < 0 && errno != EINTR)
			return; /* nobody reads: the job goes on */
		if (done > 0) {
			p += done;
			n -= (size_t)done;
		}
	}
}

static void emit(const struct child *c, int to, const char *line, size_t n)
{
	char whole[sizeof(c->out.buf) + 48];
	int head = snprintf(whole, sizeof(whole), "[%u] ", c->rank);

	memcpy(whole + head, line, n);
	whole[(size_t)head + n] = '\n';
	write_all(to, whole, (size_t)head + n + 1); /* one write a line: lines stay whole */
}

static void emit_lines(const struct child *c, struct stream *s)
{
	char *start = s->buf, *end = s->buf + s->n, *nl;

	while ((nl = memchr(start, '\n', (size_t)(end - start)))) {
		emit(c, s->to, start, (size_t)(nl - start));
		start = nl + 1;
	}
	s->n = (size_t)(end - start);
	memmove(s->buf, start, s->n);
	if (s->n == sizeof(s->buf)) { /* a line that long is cut */
		emit(c, s->to, s->buf, s->n);
		s->n = 0;
	}
}

static void stream_close(const struct child *c, struct stream *s)
{
	if (s->fd < 0)
		return;
	if (s->n)
		emit(c, s->to, s->buf, s->n);
	s->n = 0;
	close(s->fd);
	s->fd = -1;
}

/* Take what there is. False when there is nothing more now. */
static bool stream_read(const struct child *c, struct stream *s)
{
	ssize_t n;

	if (s->fd < 0)
		return false;
	n = read(s->fd, s->buf + s->n, sizeof(s->buf) - s->n);
	if (n < 0)
		return errno == EINTR;
	if (!n) {
		stream_close(c, s);
		return false;
	}
	s->n += (size_t)n;
	emit_lines(c, s);
	return true;
}

/* Show the end of a daemon's log: of its last lines those that are at least as urgent as
 * `least`. */
static void show_tail(const struct child *c, int least)
{
	char buf[TAIL_BYTES + 1], *line = buf, *p;
	int fd = open(c->log, O_RDONLY | O_CLOEXEC), lines = 0;
	off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
	ssize_t n = 0;
	bool has_level;

	if (size > 0)
		n = pread(fd, buf, TAIL_BYTES, size > TAIL_BYTES ? size - TAIL_BYTES : 0);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return;
	buf[n] = 0;
	for (p = buf + n - 1; p > buf && lines < TAIL_LINES; p--)
		if (p[-1] == '\n' && ++lines == TAIL_LINES)
			line = p;
	for (p = strtok(line, "\n"); p; p = strtok(NULL, "\n")) {
		has_level = p[0] == '<' && p[1] >= '0' && p[1] <= '9' && p[2] == '>';
		if (!has_level || p[1] - '0' <= least)
			say("%s: %s", c->name, has_level ? p + 3 : p);
	}
}

/* ---- children ---- */

#define ARG(s) ((char *)(uintptr_t)(s)) /* exec's argv is not written to */

struct spawn {
	char *const *argv;
	const char *const *env; /* name, value, ..., NULL */
	int out, err;           /* -1: as they are */
	int keep;               /* descriptor to inherit, -1: none */
};

static void run_child(const struct spawn *sp, pid_t parent)
{
	int null_fd = open("/dev/null", O_RDONLY);
	sigset_t none;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_OWN); /* it died before the line above */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	dup2(null_fd, STDIN_FILENO);
	if (sp->out >= 0)
		dup2(sp->out, STDOUT_FILENO);
	if (sp->err >= 0)
		dup2(sp->err, STDERR_FILENO);
	if (sp->keep >= 0)
		fcntl(sp->keep, F_SETFD, 0);
	for (const char *const *e = sp->env; e && *e; e += 2)
		setenv(e[0], e[1], 1);
	execvp(sp->argv[0], sp->argv);
	say("cannot run '%s': %s", sp->argv[0], strerror(errno));
	_exit(errno == ENOENT ? 127 : 126);
}

static int spawn(struct child *c, const struct spawn *sp)
{
	pid_t parent = getpid();

	c->pid = fork();
	if (c->pid < 0) {
		c->pid = 0;
		say("cannot fork: %s", strerror(errno));
		return -errno;
	}
	if (!c->pid)
		run_child(sp, parent);
	setpgid(c->pid, c->pid); /* whoever is first: a signal may follow at once */
	c->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0);
	if (c->pidfd < 0) {
		say("cannot watch a child: %s", strerror(errno));
		return -errno;
	}
	fcntl(c->pidfd, F_SETFD, FD_CLOEXEC);
	return 0;
}

static void signal_child(const struct child *c, int sig)
{
	if (c->pid)
		kill(-c->pid, sig);
}

/* Reap c if it has ended; its exit code as a shell counts, -1 when it still runs. */
static int reap(struct child *c)
{
	siginfo_t si = {.si_pid = 0};
	int status;

	if (!c->pid || waitid(P_PID, (id_t)c->pid, &si, WEXITED | WNOHANG | WNOWAIT) < 0 ||
		!si.si_pid)
		return -1;
	kill(-c->pid,
		SIGKILL); /* what it left behind; while it is not reaped its group is its own */
	if (waitpid(c->pid, &status, 0) != c->pid)
		return -1;
	close(c->pidfd);
	c->pidfd = -1;
	c->pid = 0;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void describe_exit(const char *who, int code)
{
	if (code > 128)
		say("%s was killed by signal %d (%s)", who, code - 128, strsignal(code - 128));
	else
		say("%s exited with code %d", who, code);
}

/* Send TERM to n children, and KILL to those that are left at the end of the grace. */
static void stop_all(struct child *c, unsigned n, uint64_t grace_ms)
{
	uint64_t deadline = clock_now_ms() + grace_ms;
	struct pollfd p;

	for (unsigned i = 0; i < n; i++)
		signal_child(&c[i], SIGTERM);
	for (unsigned i = 0; i < n; i++) {
		if (!c[i].pid)
			continue;
		p = (struct pollfd){.fd = c[i].pidfd, .events = POLLIN};
		if (poll(&p, 1, left_ms(deadline)) <= 0) {
			signal_child(&c[i], SIGKILL);
			poll(&p, 1, DAEMON_STOP_MS);
		}
		reap(&c[i]);
	}
}

/* ---- daemons ---- */

static bool is_program(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* Beside bpsrun (build tree and installed tree), else left to PATH. */
static void find_program(const struct run *r, const char *name, char *ret, size_t room)
{
	snprintf(ret, room, "%s/%s", r->exe_dir, name);
	if (is_program(ret))
		return;
	snprintf(ret, room, "%s/%s/%s", r->exe_dir, name, name);
	if (is_program(ret))
		return;
	snprintf(ret, room, "%s/../sbin/%s", r->exe_dir, name);
	if (!is_program(ret))
		snprintf(ret, room, "%s", name);
}

static bool parse_ports(const char *text, unsigned *ret_port, unsigned *ret_http)
{
	const char *port = strstr(text, "PORT="), *http = strstr(text, "HTTP=");

	return port && http && sscanf(port, "PORT=%u", ret_port) == 1 &&
	       sscanf(http, "HTTP=%u", ret_http) == 1 && *ret_port < 65536 && *ret_http < 65536;
}

/* Wait until a daemon serves: it writes its ports to its ready descriptor and closes it. */
static int await_ready(struct run *r, struct child *c, unsigned *ret_port, unsigned *ret_http)
{
	struct pollfd p[] = {
		{.fd = c->ready_fd, .events = POLLIN}, {.fd = r->signal_fd, .events = POLLIN}};
	uint64_t deadline = clock_now_ms() + READY_MS;
	char text[128] = "";
	size_t n = 0;
	ssize_t got = 1;

	while (got && n < sizeof(text) - 1) {
		if (poll(p, 2, left_ms(deadline)) == 0) {
			say("%s does not serve after %d s", c->name, READY_MS / 1000);
			show_tail(c, LOG_TRACE);
			return -ETIMEDOUT;
		}
		if (p[1].revents)
			return -EINTR;
		got = read(c->ready_fd, text + n, sizeof(text) - 1 - n);
		n += got > 0 ? (size_t)got : 0;
	}
	close(c->ready_fd);
	c->ready_fd = -1;
	if (parse_ports(text, ret_port, ret_http))
		return 0;
	say("%s did not start", c->name);
	show_tail(c, LOG_TRACE);
	return -ECHILD;
}

/* Start the daemon that name_daemon has named, without waiting for it. */
static int start_daemon(struct run *r, const char *program, char *const *args)
{
	struct child *c = &r->daemons[r->n_daemons++];
	char path[PATH_MAX + 64], fd_text[16], *argv[24];
	struct spawn sp = {.argv = argv};
	int ready[2], log_fd, rc;
	unsigned n = 0;

	find_program(r, program, path, sizeof(path));
	snprintf(c->log, sizeof(c->log), "%s/%s.log", r->dir, c->name);
	log_fd = open(c->log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
	if (log_fd < 0 || pipe2(ready, O_CLOEXEC) < 0) {
		rc = -errno;
		say("cannot start %s: %s", c->name, strerror(errno));
		if (log_fd >= 0)
			close(log_fd);
		return rc;
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
	rc = spawn(c, &sp);
	close(log_fd);
	close(ready[1]);
	c->ready_fd = ready[0];
	return rc;
}

static void name_daemon(struct run *r, const char *kind, unsigned i)
{
	struct child *c = &r->daemons[r->n_daemons];

	c->is_daemon = true;
	c->pidfd = c->ready_fd = c->out.fd = c->err.fd = -1;
	if (strcmp(kind, "scheduler") != 0)
		snprintf(c->name, sizeof(c->name), "%s-%u", kind, i);
	else
		snprintf(c->name, sizeof(c->name), "%s", kind);
}

static int start_scheduler(struct run *r)
{
	char state[128];
	char *args[] = {ARG("--listen"), ARG("127.0.0.1:0"), ARG("--http"), ARG("127.0.0.1:0"),
		ARG("--state-dir"), state, NULL};
	unsigned port = 0, http = 0;
	int rc;

	name_daemon(r, "scheduler", 0);
	snprintf(state, sizeof(state), "%s/state", r->dir);
	if (mkdir(state, 0700) < 0)
		return -errno;
	rc = start_daemon(r, "bps-scheduler", args);
	if (!rc)
		rc = await_ready(r, &r->daemons[0], &port, &http);
	if (rc < 0)
		return rc;
	snprintf(r->scheduler, sizeof(r->scheduler), "127.0.0.1:%u", port);
	snprintf(r->scheduler_http, sizeof(r->scheduler_http), "127.0.0.1:%u", http);
	return 0;
}

static int start_server(struct run *r, unsigned i)
{
	char *args[] = {ARG("--name"), NULL, ARG("--scheduler"), r->scheduler, ARG("--listen"),
		ARG("127.0.0.1:0"), ARG("--http"), ARG("127.0.0.1:0"), NULL};

	name_daemon(r, "server", i);
	args[1] = r->daemons[r->n_daemons].name;
	return start_daemon(r, "bps-server", args);
}

static void agent_socket(const struct run *r, unsigned i, char *ret, size_t room)
{
	if (r->dir[0])
		snprintf(ret, room, "%s/agent-%u.sock", r->dir, i);
	else
		snprintf(ret, room, "%s", r->o.agent);
}

static int start_agent(struct run *r, unsigned i)
{
	char listen[32], path[128];
	char *args[] = {ARG("--name"), NULL, ARG("--scheduler"), r->scheduler, ARG("--listen"),
		listen, ARG("--http"), ARG("127.0.0.1:0"), ARG("--socket"), path, NULL};

	name_daemon(r, "agent", i);
	args[1] = r->daemons[r->n_daemons].name;
	snprintf(listen, sizeof(listen), "127.0.0.%u:0", 1 + i); /* as if on a machine of its own */
	agent_socket(r, i, path, sizeof(path));
	return start_daemon(r, "bps-agent", args);
}

static int make_dir(struct run *r)
{
	const char *base = getenv("XDG_RUNTIME_DIR");

	/* Socket paths are short: a long base would not leave room. */
	if (!base || !*base || strlen(base) > 60 || access(base, W_OK) < 0)
		base = "/tmp";
	snprintf(r->dir, sizeof(r->dir), "%s/bpsrun-XXXXXX", base);
	if (!mkdtemp(r->dir)) {
		say("cannot make '%s': %s", r->dir, strerror(errno));
		r->dir[0] = 0;
		return -errno;
	}
	return 0;
}

/* The others need the scheduler's port; they start side by side. */
static int start_daemons(struct run *r)
{
	unsigned port, http;
	int rc = make_dir(r);

	if (!rc)
		rc = start_scheduler(r);
	for (unsigned i = 0; !rc && i < r->o.servers; i++)
		rc = start_server(r, i);
	for (unsigned i = 0; !rc && i < r->o.agents; i++)
		rc = start_agent(r, i);
	for (unsigned i = 1; !rc && i < r->n_daemons; i++)
		rc = await_ready(r, &r->daemons[i], &port, &http);
	return rc;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
	(void)st;
	(void)kind;
	(void)ftw;
	return remove(path);
}

/* In the reverse order of starting: agents, servers, the scheduler last. */
static void stop_daemons(struct run *r)
{
	for (unsigned i = r->n_daemons; r->result && i > 0; i--)
		show_tail(&r->daemons[i - 1], LOG_WARN);
	if (r->n_daemons > 1)
		stop_all(r->daemons + 1, r->n_daemons - 1, DAEMON_STOP_MS);
	stop_all(r->daemons, r->n_daemons, DAEMON_STOP_MS);
	for (unsigned i = 0; i < r->n_daemons; i++)
		if (r->daemons[i].ready_fd >= 0)
			close(r->daemons[i].ready_fd);
	if (r->dir[0])
		nftw(r->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static bool is_answering(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool ok;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	ok = fd >= 0 && !connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	if (fd >= 0)
		close(fd);
	return ok;
}

/* The agent to use, NULL: start daemons of our own. */
static const char *choose_agent(const struct options *o)
{
	const char *env = getenv("BPS_AGENT_SOCKET");

	if (o->agent || o->has_agents || o->has_servers)
		return o->agent;
	if (env && *env)
		return env;
	return is_answering(LOCAL_SOCKET) ? LOCAL_SOCKET : NULL;
}

/* ---- trainers ---- */

static int open_stream(struct stream *s, int to, int *ret_write)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	fcntl(p[0], F_SETFL, O_NONBLOCK);
	s->fd = p[0];
	s->to = to;
	*ret_write = p[1];
	return 0;
}

static int start_trainer(struct run *r, unsigned i)
{
	unsigned agents = r->dir[0] ? r->o.agents : 1, n = r->o.n, agent = i * agents / n;
	unsigned first = (agent * n + agents - 1) / agents,
		 next = ((agent + 1) * n + agents - 1) / agents;
	struct child *c = &r->trainers[i];
	struct spawn sp = {.argv = r->o.command, .out = -1, .err = -1, .keep = -1};
	char rank[16], size[16], local_rank[16], local_size[16], path[128];
	const char *env[] = {"BPS_RANK", rank, "BPS_SIZE", size, "BPS_LOCAL_RANK", local_rank,
		"BPS_LOCAL_SIZE", local_size, "BPS_JOB", r->job, "BPS_AGENT_SOCKET", path,
		r->token[0] ? "BPS_JOB_TOKEN" : NULL, r->token,
		r->dir[0] ? "BPS_SCHEDULER_HTTP" : NULL, r->scheduler_http, NULL};
	int rc = 0;

	c->rank = r->o.node_rank * n + i;
	snprintf(c->name, sizeof(c->name), "rank %u", c->rank);
	snprintf(rank, sizeof(rank), "%u", c->rank);
	snprintf(size, sizeof(size), "%u", r->o.nnodes * n);
	snprintf(local_rank, sizeof(local_rank), "%u", i - first);
	snprintf(local_size, sizeof(local_size), "%u", next - first);
	agent_socket(r, agent, path, sizeof(path));
	if (!r->o.has_no_prefix)
		rc = open_stream(&c->out, STDOUT_FILENO, &sp.out);
	if (!rc && !r->o.has_no_prefix)
		rc = open_stream(&c->err, STDERR_FILENO, &sp.err);
	sp.env = env;
	if (!rc)
		rc = spawn(c, &sp);
	if (sp.out >= 0)
		close(sp.out);
	if (sp.err >= 0)
		close(sp.err);
	return rc;
}

static void begin_stop(struct run *r, int sig)
{
	for (unsigned i = 0; i < r->o.n; i++)
		signal_child(&r->trainers[i], r->is_stopping ? SIGKILL : sig);
	if (!r->is_stopping)
		r->kill_ms = clock_now_ms() + GRACE_MS;
	r->is_stopping = true;
}

static void check_child(struct run *r, struct child *c)
{
	int code = reap(c);

	if (code < 0)
		return;
	if (c->is_daemon) {
		describe_exit(c->name, code);
		show_tail(c, LOG_TRACE);
		return;
	}
	if (!code)
		return;
	if (!r->is_stopping) {
		describe_exit(c->name, code);
		r->result = code;
		begin_stop(r, SIGTERM);
	}
}

static void take_signal(struct run *r)
{
	struct signalfd_siginfo si;

	if (read(r->signal_fd, &si, sizeof(si)) != sizeof(si))
		return;
	if (!r->result)
		r->result = 128 + (int)si.ssi_signo;
	begin_stop(r, (int)si.ssi_signo);
}

static void check_deadlines(struct run *r)
{
	uint64_t now = clock_now_ms();

	if (r->timeout_at && now >= r->timeout_at && !r->is_stopping) {
		say("the job is not done after %u ms", r->o.timeout_ms);
		r->result = EXIT_TIMEOUT;
		begin_stop(r, SIGTERM);
	}
	if (r->kill_ms && now >= r->kill_ms) {
		begin_stop(r, SIGKILL);
		r->kill_ms = 0;
	}
}

static unsigned fill_poll(const struct run *r, struct pollfd *p)
{
	unsigned n = 0;

	p[n++] = (struct pollfd){.fd = r->signal_fd, .events = POLLIN};
	for (unsigned i = 0; i < r->n_daemons; i++)
		p[n++] = (struct pollfd){.fd = r->daemons[i].pidfd, .events = POLLIN};
	for (unsigned i = 0; i < r->o.n; i++) {
		p[n++] = (struct pollfd){.fd = r->trainers[i].pidfd, .events = POLLIN};
		p[n++] = (struct pollfd){.fd = r->trainers[i].out.fd, .events = POLLIN};
		p[n++] = (struct pollfd){.fd = r->trainers[i].err.fd, .events = POLLIN};
	}
	return n;
}

static bool has_trainers(const struct run *r)
{
	for (unsigned i = 0; i < r->o.n; i++)
		if (r->trainers[i].pid)
			return true;
	return false;
}

static int run_trainers(struct run *r)
{
	struct pollfd *p = calloc(1 + DAEMONS_MAX + 3 * r->o.n, sizeof(*p));
	uint64_t due;

	if (!p)
		return -ENOMEM;
	while (has_trainers(r)) {
		due = r->kill_ms       ? r->kill_ms
		      : r->is_stopping ? clock_now_ms() + 1000
				       : r->timeout_at;
		poll(p, fill_poll(r, p), left_ms(due));
		if (p[0].revents)
			take_signal(r);
		for (unsigned i = 0; i < r->o.n; i++) {
			stream_read(&r->trainers[i], &r->trainers[i].out);
			stream_read(&r->trainers[i], &r->trainers[i].err);
			check_child(r, &r->trainers[i]);
		}
		for (unsigned i = 0; i < r->n_daemons; i++)
			check_child(r, &r->daemons[i]);
		check_deadlines(r);
	}
	for (unsigned i = 0; i < r->o.n; i++) {
		while (stream_read(&r->trainers[i], &r->trainers[i].out))
			;
		while (stream_read(&r->trainers[i], &r->trainers[i].err))
			;
		stream_close(&r->trainers[i], &r->trainers[i].out);
		stream_close(&r->trainers[i], &r->trainers[i].err);
	}
	free(p);
	return 0;
}

static void show_status(struct run *r)
{
	char path[PATH_MAX + 64];
	char *argv[] = {path, ARG("status"), NULL};
	const char *env[] = {"BPS_SCHEDULER_HTTP", r->scheduler_http, NULL};
	struct spawn sp = {
		.argv = argv, .env = r->dir[0] ? env : NULL, .out = -1, .err = -1, .keep = -1};
	struct child c = {.pidfd = -1};
	struct pollfd p;

	find_program(r, "bpsctl", path, sizeof(path));
	if (spawn(&c, &sp) < 0)
		return;
	p = (struct pollfd){.fd = c.pidfd, .events = POLLIN};
	if (poll(&p, 1, STATUS_MS) == 0)
		say("bpsctl does not answer");
	stop_all(&c, 1, 0);
}

/* The token of the environment, which is the same on all nodes of a job, or one of our own: then
 * nobody else can join the job. Of several nodes none can know what another one made. */
static int make_token(struct run *r)
{
	const char *given = getenv("BPS_JOB_TOKEN");
	unsigned char bytes[TOKEN_BYTES];

	if (given && *given) {
		if (strlen(given) != 2 * TOKEN_BYTES) {
			say("BPS_JOB_TOKEN has %zu characters, not %d hex digits", strlen(given),
				2 * TOKEN_BYTES);
			return -EINVAL;
		}
		snprintf(r->token, sizeof(r->token), "%s", given);
		return 0;
	}
	if (r->o.nnodes > 1)
		return 0;
	if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
		say("no randomness for a job token: %s", strerror(errno));
		return -EIO;
	}
	for (unsigned i = 0; i < TOKEN_BYTES; i++)
		snprintf(r->token + (size_t)2 * i, 3, "%02x", bytes[i]);
	return 0;
}

/* ---- main ---- */

static int run_init(struct run *r)
{
	ssize_t n = readlink("/proc/self/exe", r->exe_dir, sizeof(r->exe_dir) - 1);
	sigset_t set;

	r->exe_dir[n > 0 ? n : 0] = 0;
	if (strrchr(r->exe_dir, '/'))
		*strrchr(r->exe_dir, '/') = 0;
	if (r->o.job)
		snprintf(r->job, sizeof(r->job), "%s", r->o.job);
	else
		snprintf(r->job, sizeof(r->job), "bpsrun-%d", (int)getpid());
	if (make_token(r) < 0)
		return -EINVAL;
	r->daemons = calloc(DAEMONS_MAX, sizeof(*r->daemons));
	r->trainers = calloc(r->o.n, sizeof(*r->trainers));
	if (!r->daemons || !r->trainers)
		return -ENOMEM;
	for (unsigned i = 0; i < r->o.n; i++)
		r->trainers[i].pidfd = r->trainers[i].out.fd = r->trainers[i].err.fd = -1;
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	r->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return r->signal_fd < 0 ? -errno : 0;
}

static int run_job(struct run *r)
{
	int rc = 0;

	r->o.agent = choose_agent(&r->o);
	if (!r->o.agent && r->o.nnodes > 1) {
		say("a job on several nodes needs an agent on each (--agent, or BPS_AGENT_SOCKET)");
		return -EINVAL;
	}
	if (!r->o.agent)
		rc = start_daemons(r);
	if (r->o.timeout_ms)
		r->timeout_at = clock_now_ms() + r->o.timeout_ms;
	for (unsigned i = 0; !rc && i < r->o.n; i++)
		rc = start_trainer(r, i);
	if (rc < 0) {
		r->result = EXIT_OWN;
		begin_stop(r, SIGTERM);
	}
	run_trainers(r);
	if (r->o.wants_status && !rc)
		show_status(r);
	return rc;
}

int main(int argc, char **argv)
{
	struct run r = {.signal_fd = -1};
	int rc = parse_options(argc, argv, &r.o);

	if (rc)
		return rc < 0 ? EXIT_OWN : 0;
	rc = run_init(&r);
	if (!rc)
		rc = run_job(&r);
	if (rc < 0 && !r.result)
		r.result = EXIT_OWN;
	if (r.daemons)
		stop_daemons(&r);
	free(r.daemons);
	free(r.trainers);
	return r.result;
}
