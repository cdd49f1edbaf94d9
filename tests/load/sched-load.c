/* Tests a real bps-scheduler with many members. This program simulates the members. Servers and
 * agents send HELLO, join one job, declare thousands of tensors and send heartbeats. One server
 * becomes silent. There is no cluster key, and all connections are on loopback.
 *
 *   sched-load build/release/bps-scheduler/bps-scheduler [agents servers tensors]
 *
 * Prints how long each phase took, the scheduler's processor time and memory, and each fault. The
 * exit status is 1 when a live member was declared dead, or the silent member was not declared dead
 * in time. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/data/dtype.h"
#include "common/wire/ctlframe.h"
#include "common/wire/ctlmsg.h"

#define S  UINT64_C(1000000000)
#define MS UINT64_C(1000000)
/* Largest number of connections that wait for WELCOME at the same time. The listener accepts up to
 * 16 unauthenticated connections from one host. */
#define PENDING_MAX 12
#define BEAT_MS     500
#define PHASE_S     120
#define SERVER_DEAD "3s"
#define DEAD_S      3.0 /* SERVER_DEAD in seconds */
#define LATE_S      1.0
/* Longest silence of the scheduler, in seconds, with which the test passes. After a longer silence
 * an agent would declare the scheduler lost. The limit is long, because this program simulates all
 * members (1,000 by default) in one process. Therefore it handles messages more slowly than real
 * members would. */
#define QUIET_S      5.0
#define TENSOR_ELEMS 65536u
#define DECLARE_MAX  1000 /* tensors in one message */

struct bytes {
	uint8_t *v;
	size_t n, at, room;
};

enum state { STATE_CLOSED, STATE_HELLO, STATE_UP };
struct load_member {
	int fd;
	enum state state;
	enum role role;
	uint32_t idx, id;
	uint64_t instance, view, beat_seq, heard_seq, next_beat, heard_ns, synced_ns, job_ns,
		planned_ns, dead_ns;
	uint32_t n_planned;
	bool is_silent, has_declared;
	struct bytes in, out;
};

struct load_generator {
	struct load_member *members;
	uint32_t n_members, n_agents, n_servers, n_tensors, next, n_pending, n_synced, n_jobs,
		n_planned, n_dead, job;
	uint32_t silent; /* id of the silent server */
	int epoll, port;
	pid_t pid;
	char dir[256];
	bool has_failed;
	/* quiet_ns: the longest time between two heartbeats of the scheduler */
	uint64_t rx_bytes, quiet_ns;
};

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("sched-load: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(1);
}

static void room(struct bytes *b, size_t n)
{
	if (b->at == b->n)
		b->at = b->n = 0;
	if (b->n + n <= b->room)
		return;
	b->room = 2 * (b->n + n);
	b->v = realloc(b->v, b->room);
	if (!b->v)
		die("out of memory");
}

/* ---- the scheduler's process ---- */

/* Wait until the scheduler notifies its service manager that it is ready. This program is the
 * service manager. */
static void wait_ready(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char text[512];
	ssize_t n;

	do {
		if (poll(&p, 1, 10000) <= 0)
			die("the scheduler did not report READY=1 within 10 s");
		n = recv(fd, text, sizeof(text) - 1, 0);
		text[n > 0 ? n : 0] = 0;
	} while (!strstr(text, "READY=1"));
}

static void start_scheduler(struct load_generator *l, const char *program)
{
	char listen[32], state[sizeof(l->dir) + 8];
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (!mkdtemp(l->dir))
		die("cannot create a temporary folder: %s", strerror(errno));
	if ((size_t)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/notify", l->dir) >=
		sizeof(sa.sun_path))
		die("the path %s is too long for a Unix socket", l->dir);
	snprintf(state, sizeof(state), "%s/state", l->dir);
	snprintf(listen, sizeof(listen), "127.0.0.1:%d", l->port);
	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || mkdir(state, 0700) < 0 ||
		setenv("NOTIFY_SOCKET", sa.sun_path, 1) < 0)
		die("cannot create the notify socket or the state folder: %s", strerror(errno));
	l->pid = fork();
	if (l->pid < 0)
		die("cannot fork: %s", strerror(errno));
	if (l->pid > 0) {
		wait_ready(fd);
		close(fd);
		return;
	}
	execl(program, program, "--listen", listen, "--http", "127.0.0.1:0", "--state-dir", state,
		"--log-level", "warn", "--server-dead", SERVER_DEAD, (char *)NULL);
	die("cannot run %s: %s", program, strerror(errno));
}

static double cpu_s(const struct load_generator *l)
{
	char path[64], text[1024];
	unsigned long user = 0, kernel = 0;
	const char *p;
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", l->pid);
	f = fopen(path, "r");
	if (!f)
		die("the scheduler has ended");
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = 0;
	p = strrchr(text, ')');
	if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			  &kernel) != 2)
		die("cannot read %s", path);
	return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double memory_mb(const struct load_generator *l, const char *what)
{
	char path[64], line[256];
	unsigned long kb = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", l->pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, what, strlen(what)) == 0)
			kb = strtoul(line + strlen(what) + 1, NULL, 10);
	if (f)
		fclose(f);
	return (double)kb / 1024;
}

static int free_port(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&sa, n) < 0 ||
		getsockname(fd, (struct sockaddr *)&sa, &n) < 0)
		die("no port: %s", strerror(errno));
	close(fd);
	return ntohs(sa.sin_port);
}

/* ---- members ---- */

static void watch(struct load_generator *l, struct load_member *m, int op)
{
	struct epoll_event e = {
		.events = EPOLLIN | (m->out.n > m->out.at ? EPOLLOUT : 0u), .data.ptr = m};

	if (epoll_ctl(l->epoll, op, m->fd, &e) < 0)
		die("epoll: %s", strerror(errno));
}

static void flush(struct load_generator *l, struct load_member *m)
{
	while (m->out.at < m->out.n) {
		ssize_t n = send(m->fd, m->out.v + m->out.at, m->out.n - m->out.at, MSG_NOSIGNAL);

		if (n < 0)
			/* Send the rest when the socket is writable. The next read detects a lost
			 * connection. */
			break;
		m->out.at += (size_t)n;
	}
	watch(l, m, EPOLL_CTL_MOD);
}

static void send_msg(struct load_generator *l, struct load_member *m, const struct ctl_msg *msg)
{
	const struct layout *layout = ctl_layout(msg->type);
	size_t n = codec_encoded_size(layout, &msg->hello);

	room(&m->out, CTLFRAME_HEAD_BYTES + n);
	ctlframe_write_head(m->out.v + m->out.n, msg->type, n);
	codec_encode(layout, &msg->hello, m->out.v + m->out.n + CTLFRAME_HEAD_BYTES);
	m->out.n += CTLFRAME_HEAD_BYTES + n;
	flush(l, m);
}

static void say_hello(struct load_generator *l, struct load_member *m)
{
	char name[32];
	struct ctl_msg msg = {.type = CTL_HELLO};

	snprintf(name, sizeof(name), "%s%u", m->role == ROLE_SERVER ? "c" : "m", m->idx);
	msg.hello = (struct ctl_hello){.proto = CTL_PROTO,
		.role = (uint8_t)m->role,
		.instance = m->instance,
		.name = name,
		.host = name,
		.version = "load",
		.pid = 1,
		.addr = m->role == ROLE_SERVER ? "127.0.0.1" : "",
		.port = m->role == ROLE_SERVER ? 1 : 0,
		.threads = m->role == ROLE_SERVER ? 4 : 0,
		.nic_mbps = 100000,
		.quota_bytes = UINT64_C(1) << 40,
		.provider = "sockets"};
	send_msg(l, m, &msg);
}

static void dial(struct load_generator *l, struct load_member *m)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)l->port)};
	int one = 1;

	m->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (m->fd < 0)
		die("socket: %s", strerror(errno));
	if (connect(m->fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		die("connect: %s", strerror(errno));
	fcntl(m->fd, F_SETFL, O_NONBLOCK);
	setsockopt(m->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	m->state = STATE_HELLO;
	m->in.n = m->in.at = m->out.n = m->out.at = 0;
	l->n_pending++;
	watch(l, m, EPOLL_CTL_ADD);
	say_hello(l, m);
}

static void join(struct load_generator *l, struct load_member *m)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = 1, .job = "load", .rank = m->idx, .size = l->n_agents, .pid = 1}};

	send_msg(l, m, &msg);
}

static void declare(struct load_generator *l, struct load_member *m)
{
	static struct ctl_decl decls[DECLARE_MAX];
	static char names[DECLARE_MAX][64];
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {.job = l->job, .tensors = decls}};

	for (uint32_t i = 0; i < l->n_tensors; i++) {
		uint32_t at = msg.declare.n_tensors++;

		snprintf(names[at], sizeof(names[at]), "model.layers.%u.attention.weight", i);
		decls[at] = (struct ctl_decl){
			m->idx, names[at], shape_from_dtype_and_count(DTYPE_F16, TENSOR_ELEMS), 0};
		if (msg.declare.n_tensors < DECLARE_MAX && i + 1 < l->n_tensors)
			continue;
		send_msg(l, m, &msg);
		msg.declare.n_tensors = 0;
	}
	m->has_declared = true;
}

static void on_beat(struct load_generator *l, struct load_member *m, const struct ctl_beat *b)
{
	uint64_t now = clock_now_ns(), quiet = m->heard_ns ? now - m->heard_ns : 0;

	m->heard_seq = b->seq;
	m->heard_ns = now;
	if (quiet > l->quiet_ns)
		l->quiet_ns = quiet;
}

static void on_peers(struct load_generator *l, struct load_member *m, const struct ctl_peers *p)
{
	if (!p->n_peers && !m->synced_ns) {
		m->synced_ns = clock_now_ns();
		l->n_synced++;
	}
	for (uint32_t i = 0; i < p->n_peers; i++) {
		if (p->peers[i].state == PEER_UP)
			continue;
		if (p->peers[i].id != l->silent) {
			fprintf(stderr, "sched-load: live member %u was declared dead\n",
				p->peers[i].id);
			l->has_failed = true;
		} else if (!m->dead_ns) {
			m->dead_ns = clock_now_ns();
			l->n_dead++;
		}
	}
}

static void on_plan(struct load_generator *l, struct load_member *m, const struct ctl_plan *p)
{
	m->n_planned += p->n_tensors;
	if (m->role != ROLE_AGENT || m->n_planned < l->n_tensors || m->planned_ns)
		return;
	m->planned_ns = clock_now_ns();
	l->n_planned++;
}

static void on_msg(struct load_generator *l, struct load_member *m, const struct ctl_msg *msg)
{
	switch (msg->type) {
	case CTL_WELCOME:
		m->id = msg->welcome.member_id;
		m->state = STATE_UP;
		m->next_beat = clock_now_ns() + BEAT_MS * MS * (m->idx % 16 + 1) / 16;
		l->n_pending--;
		break;
	case CTL_BEAT:
		on_beat(l, m, &msg->beat);
		break;
	case CTL_PEERS:
		on_peers(l, m, &msg->peers);
		break;
	case CTL_JOINED:
		if (msg->joined.code)
			die("a worker is refused: %s", msg->joined.text);
		break;
	case CTL_JOB:
		l->job = msg->job.job;
		if (m->role == ROLE_AGENT && !m->job_ns) {
			m->job_ns = clock_now_ns();
			l->n_jobs++;
		}
		break;
	case CTL_PLAN:
		on_plan(l, m, &msg->plan);
		break;
	case CTL_REFUSE:
		die("the scheduler refuses member %u: %s", m->idx, msg->refuse.text);
	case CTL_JOB_END:
		die("the job has ended: %s", msg->job_end.text);
	case CTL_TENSOR_FAIL:
		die("the scheduler refuses a tensor: %s", msg->tensor_fail.text);
	default:
		break;
	}
}

static void on_readable(struct load_generator *l, struct load_member *m)
{
	struct ctlframe frame;
	size_t used;
	ssize_t n;

	room(&m->in, 1u << 16);
	n = recv(m->fd, m->in.v + m->in.n, m->in.room - m->in.n, 0);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		close(m->fd);
		if (m->state == STATE_UP && m->id != l->silent) {
			fprintf(stderr, "sched-load: member %u lost its connection\n", m->id);
			l->has_failed = true;
		}
		l->n_pending -= m->state == STATE_HELLO;
		m->state = STATE_CLOSED;
		return;
	}
	m->in.n += (size_t)n;
	l->rx_bytes += (uint64_t)n;
	while (ctlframe_parse(m->in.v + m->in.at, m->in.n - m->in.at, CTLFRAME_MAX_BYTES, &frame,
		       &used) == 1) {
		struct err_text err;
		struct ctl_msg msg;
		void *mem = NULL;

		if (ctl_decode(frame.type, frame.body, frame.n_body, &msg, &mem, &err) < 0)
			die("a message from the scheduler cannot be decoded: %s", err.s);
		on_msg(l, m, &msg);
		free(mem);
		m->in.at += used;
	}
	if (m->in.at == m->in.n)
		m->in.at = m->in.n = 0;
}

static void beat(struct load_generator *l, uint64_t now)
{
	for (uint32_t i = 0; i < l->n_members; i++) {
		struct load_member *m = &l->members[i];
		struct ctl_msg msg = {.type = CTL_BEAT};

		if (m->state != STATE_UP || m->is_silent || now < m->next_beat)
			continue;
		m->next_beat = now + BEAT_MS * MS;
		msg.beat = (struct ctl_beat){
			.seq = ++m->beat_seq, .echo = m->heard_seq, .progress = m->beat_seq};
		send_msg(l, m, &msg);
	}
}

static void turn(struct load_generator *l)
{
	struct epoll_event ev[256];
	int n;

	while (l->next < l->n_members && l->n_pending < PENDING_MAX)
		dial(l, &l->members[l->next++]);
	beat(l, clock_now_ns());
	n = epoll_wait(l->epoll, ev, 256, 10);
	for (int i = 0; i < n; i++) {
		struct load_member *m = ev[i].data.ptr;

		if (ev[i].events & EPOLLOUT)
			flush(l, m);
		if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
			on_readable(l, m);
	}
}

/* ---- phases ---- */

struct phase {
	const char *name;
	uint64_t start;
	double cpu;
};

static struct phase phase_begin(const struct load_generator *l, const char *name)
{
	return (struct phase){name, clock_now_ns(), cpu_s(l)};
}

static double phase_end(const struct load_generator *l, const struct phase *p)
{
	double span = (double)(clock_now_ns() - p->start) / 1e9, cpu = cpu_s(l) - p->cpu;

	printf("| %s | %.3f | %.2f | %.0f %% | %.0f |\n", p->name, span, cpu, cpu / span * 100,
		memory_mb(l, "VmRSS:"));
	fflush(stdout);
	return span;
}

static void wait_for(
	struct load_generator *l, const uint32_t *count, uint32_t want, const char *what)
{
	uint64_t deadline = clock_now_ns() + PHASE_S * S;

	while (*count < want) {
		if (clock_now_ns() > deadline)
			die("%s: only %u of %u after %d s", what, *count, want, PHASE_S);
		turn(l);
	}
}

static void idle(struct load_generator *l, uint64_t span_ns)
{
	uint64_t until = clock_now_ns() + span_ns;

	while (clock_now_ns() < until)
		turn(l);
}

static void members_new(struct load_generator *l)
{
	l->n_members = l->n_agents + l->n_servers;
	l->members = calloc(l->n_members, sizeof(*l->members));
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (!l->members || l->epoll < 0)
		die("out of memory");
	for (uint32_t i = 0; i < l->n_members; i++) {
		struct load_member *m = &l->members[i];

		m->role = i < l->n_servers ? ROLE_SERVER : ROLE_AGENT;
		m->idx = i < l->n_servers ? i : i - l->n_servers;
		m->instance = i + 1;
	}
}

static void run_phases(struct load_generator *l)
{
	struct phase p = phase_begin(l, "register");
	double dead_s;

	wait_for(l, &l->n_synced, l->n_members, "registered members");
	phase_end(l, &p);
	p = phase_begin(l, "idle, 5 s");
	idle(l, 5 * S);
	phase_end(l, &p);
	p = phase_begin(l, "job forms");
	for (uint32_t i = l->n_servers; i < l->n_members; i++)
		join(l, &l->members[i]);
	wait_for(l, &l->n_jobs, l->n_agents, "agents with the job");
	phase_end(l, &p);
	p = phase_begin(l, "tensors declared and placed");
	for (uint32_t i = l->n_servers; i < l->n_members; i++)
		declare(l, &l->members[i]);
	wait_for(l, &l->n_planned, l->n_agents, "agents with all plans");
	phase_end(l, &p);
	p = phase_begin(l, "idle, 5 s");
	idle(l, 5 * S);
	phase_end(l, &p);
	l->members[0].is_silent = true;
	l->silent = l->members[0].id;
	p = phase_begin(l, "a silent server is declared dead, its partitions moved");
	wait_for(l, &l->n_dead, l->n_agents, "agents notified of the death");
	dead_s = phase_end(l, &p);
	if (dead_s < DEAD_S - BEAT_MS / 1e3 || dead_s > DEAD_S + LATE_S) {
		fprintf(stderr, "sched-load: agents were notified of the death after %.2f s\n",
			dead_s);
		l->has_failed = true;
	}
	p = phase_begin(l, "idle, 5 s");
	idle(l, 5 * S);
	phase_end(l, &p);
}

static int remove_file(const char *path, const struct stat *sb, int flag, struct FTW *ftw)
{
	(void)sb, (void)flag, (void)ftw;
	return remove(path);
}

int main(int argc, char **argv)
{
	struct load_generator l = {.n_agents = 500,
		.n_servers = 500,
		.n_tensors = 10000,
		.dir = "/tmp/sched-load-XXXXXX"};
	int status;

	if (argc != 2 && argc != 5) {
		fputs("usage: sched-load PATH-OF-BPS-SCHEDULER [AGENTS SERVERS TENSORS]\n", stderr);
		return 2;
	}
	if (argc == 5) {
		l.n_agents = (uint32_t)strtoul(argv[2], NULL, 10);
		l.n_servers = (uint32_t)strtoul(argv[3], NULL, 10);
		l.n_tensors = (uint32_t)strtoul(argv[4], NULL, 10);
	}
	snprintf(l.dir, sizeof(l.dir), "%s/sched-load-XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	signal(SIGPIPE, SIG_IGN);
	l.port = free_port();
	members_new(&l);
	start_scheduler(&l, argv[1]);
	printf("%u agents, %u servers, %u tensors of %u KiB\n\n", l.n_agents, l.n_servers,
		l.n_tensors, TENSOR_ELEMS * 2 / 1024);
	puts("| phase | s | CPU s of the scheduler | CPU | MB |\n|---|---|---|---|---|");
	run_phases(&l);
	printf("\nlargest memory of the scheduler %.0f MB, %.0f MB sent to members\n",
		memory_mb(&l, "VmHWM:"), (double)l.rx_bytes / 1e6);
	printf("longest time between two heartbeats of the scheduler %.2f s\n",
		(double)l.quiet_ns / 1e9);
	l.has_failed |= (double)l.quiet_ns / 1e9 > QUIET_S;
	kill(l.pid, SIGTERM);
	waitpid(l.pid, &status, 0);
	if (nftw(l.dir, remove_file, 8, FTW_DEPTH | FTW_PHYS) < 0)
		die("cannot remove %s: %s", l.dir, strerror(errno));
	return l.has_failed ? 1 : 0;
}
