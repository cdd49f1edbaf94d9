/* The executor's loop: handles the agent's socket and rings, chooses the route with choose.h,
 * starts the engine, and ends the process. A diagram of the states is in exec.h. Trainers are in
 * exec_trainer.c, tensors in exec_tensor.c. Thread: the executor's only thread. */
#include "bps-agent/executor/exec.h"

#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/state.h"

#define START_MS 10000 /* time limit for START, in ms; the agent sends START at once */
#define DRAIN_NS (2000 * NS_PER_MS)
#define IDLE_MS  1000
/* While there is work, the sockets are polled at this interval and not in each iteration of the
 * loop, because polling is a system call. */
#define SOCKETS_NS (200 * UINT64_C(1000))
/* Pauses of the loop while it waits for GPUs. In the first SPIN_TURNS iterations without progress
 * there is no pause. Then each pause is PAUSE_NS. After LONG_NS without progress, each pause is
 * PAUSE_LONG_NS. */
#define SPIN_TURNS    50
#define PAUSE_NS      20000
#define LONG_NS       (5 * NS_PER_MS)
#define PAUSE_LONG_NS 200000
/* Alarms (SIGALRM) that end this process if its loop hangs. A running agent kills an executor whose
 * loop has hung for 20 s. If the agent has ended, the process ends itself after ALARMS_MAX alarms
 * (25 s) without an iteration of the loop. While the process is stopped (by a debugger, or in a
 * frozen container), all alarms count as one. The alarm is set again every ALARM_SET_NS and not in
 * each iteration, because setting the alarm is a system call. */
#define ALARM_S      5
#define ALARMS_MAX   5
#define ALARM_SET_NS (1000 * NS_PER_MS)

static const struct state_row exec_states[] = {
	[EXEC_STARTING] = {"starting", 1u << EXEC_MEETING | 1u << EXEC_ENDING},
	[EXEC_MEETING] = {"meeting", 1u << EXEC_RUNNING | 1u << EXEC_ENDING},
	[EXEC_RUNNING] = {"running", 1u << EXEC_ENDING},
	[EXEC_ENDING] = {"ending", 0},
};

static void exec_set_state(struct exec *x, enum exec_state state)
{
	assert(exec_states[x->state].next >> state & 1);
	log_trace("executor changes from %s to %s: job=%s", exec_states[x->state].name,
		exec_states[state].name, x->job);
	x->state = state;
}

/* ---- the end ---- */

static void exec_send_text_message(struct exec *x, uint16_t type, int code, const char *text)
{
	struct local_msg m = {.type = type};

	m.gpu_text = (struct gpu_text){.code = (uint32_t)-code, .text = text};
	if (x->agent_sock >= 0 && local_send(x->agent_sock, &m, NULL, 0, 0) < 0)
		log_debug("cannot send a message to the agent: text='%s'", text);
	for (uint32_t w = 0; type == GPU_FAILED && x->trainers && w < x->n_workers; w++)
		if (x->trainers[w].sock >= 0 && local_send(x->trainers[w].sock, &m, NULL, 0, 0) < 0)
			log_debug(
				"cannot report a failure to a trainer: pid=%u", x->trainers[w].pid);
}

/* Set the state ENDING: no new work begins, and queued work has DRAIN_NS to end. */
static void exec_begin_ending(struct exec *x, int status)
{
	if (x->state == EXEC_ENDING)
		return;
	log_debug("executor ends: job=%s status=%d", x->job, status);
	exec_set_state(x, EXEC_ENDING);
	x->exit_status = status;
	x->end_ns = clock_now_ns() + DRAIN_NS;
}

void exec_fail(struct exec *x, int code, const char *text)
{
	if (x->state == EXEC_ENDING)
		return;
	log_warn("releasing the job's GPUs after a failure: job=%s err=%s: %s", x->job,
		err_str(code), text);
	exec_send_text_message(x, GPU_FAILED, code, text);
	exec_begin_ending(x, 3);
	if (x->engine)
		engine_fail(x->engine, code, "%s", text);
}

static void on_engine_failed(void *ctx, int code, const char *text)
{
	exec_fail(ctx, code, text);
}

/* ---- engine ---- */

static void on_engine_part_staged(void *ctx, uint32_t tensor, uint32_t part, uint64_t round)
{
	struct exec *x = ctx;

	if (ring_pair_push(&x->pipe,
		    &(struct ring_pair_entry){
			    .type = RING_PAIR_STAGED, .id = tensor, .x = round, .y = part}) < 0)
		exec_fail(x, -ENOMEM, "out of memory");
}

static void on_engine_round_done(void *ctx, uint32_t tensor, uint64_t round)
{
	struct exec *x = ctx;

	if (ring_pair_push(&x->pipe, &(struct ring_pair_entry){
					     .type = RING_PAIR_DONE, .id = tensor, .x = round}) < 0)
		exec_fail(x, -ENOMEM, "out of memory");
}

static void on_engine_stream_late(void *ctx, uint32_t tensor, unsigned member)
{
	struct exec *x = ctx;

	/* Ignore a failure, because this event is only displayed. */
	(void)ring_pair_push(
		&x->pipe, &(struct ring_pair_entry){
				  .type = RING_PAIR_LATE, .b = (uint16_t)member, .id = tensor});
}

/* Choose the route for the trainers' GPUs. want: name of a route; "" or "auto": choose by the
 * location of the GPUs. */
static int exec_choose_route(struct exec *x, const char *want, struct err_text *err)
{
	int gpus[DEVICE_GPUS_MAX];

	for (uint32_t w = 0; w < x->n_workers; w++)
		gpus[w] = x->trainers[w].gpu;
	return choose_route(x->sysfs, x->dev, gpus, x->n_workers, want, &x->choice, err);
}

static int exec_open_engine(struct exec *x, struct err_text *err)
{
	struct engine_env env = {.ctx = x,
		.staged = on_engine_part_staged,
		.done = on_engine_round_done,
		.late = on_engine_stream_late,
		.failed = on_engine_failed};
	struct engine_member_desc members[DEVICE_GPUS_MAX];
	struct engine_config cfg = {.route = x->choice.route, .members = members};

	for (uint32_t w = 0; w < x->n_workers; w++)
		members[w] = (struct engine_member_desc){
			x->trainers[w].gpu, x->trainers[w].slots, x->n_slots};
	return engine_new(x->dev, &cfg, &env, &x->engine, err);
}

/* Choose the route and create the engine. If the route was chosen automatically and needs
 * collectives, but NCCL is missing, choose a route on which the processor sums. */
static int exec_choose_and_open_engine(struct exec *x, struct err_text *err)
{
	bool is_free = !*x->want || !strcmp(x->want, "auto");
	int rc = exec_choose_route(x, x->want, err);

	if (rc == 0)
		rc = exec_open_engine(x, err);
	if (rc != DEVICE_UNSUP || !is_free || !route_has_cliques(&x->choice.route))
		return rc;
	log_warn(
		"the GPUs cannot exchange data, so the processor sums their tensors: job=%s why=%s",
		x->job, err->s);
	rc = exec_choose_route(x, "ce", err);
	if (rc < 0)
		rc = exec_choose_route(x, "copy", err);
	return rc < 0 ? rc : exec_open_engine(x, err);
}

static int exec_send_route(struct exec *x)
{
	const struct choice *c = &x->choice;
	struct local_msg m = {.type = GPU_ROUTE};
	uint16_t workers[DEVICE_GPUS_MAX];

	for (unsigned g = 0; g < c->route.n_groups; g++)
		workers[g] = c->route.groups[g].n;
	m.gpu_route = (struct gpu_route){.route = c->route.name,
		.n_inputs = c->route.n_groups,
		.sum_node = c->sum_node,
		.input_nodes = {c->input_nodes, c->route.n_groups * sizeof(c->input_nodes[0])},
		.input_workers = {workers, c->route.n_groups * sizeof(workers[0])}};
	return local_send(x->agent_sock, &m, NULL, 0, 0);
}

/* Format NUMA nodes for display: the nodes of the inputs, then "/" and the node of the sums. "-"
 * means any node. */
static void choice_format_nodes(const struct choice *c, char *ret, size_t room)
{
	unsigned n_inputs = c->route.n_groups;
	size_t n = 0;

	for (unsigned i = 0; i <= n_inputs && n < room; i++) {
		uint16_t node = i < n_inputs ? c->input_nodes[i] : c->sum_node;
		const char *before = i == 0 ? "" : i < n_inputs ? "," : "/";

		n += node ? (size_t)snprintf(ret + n, room - n, "%s%u", before, node - 1u)
			  : (size_t)snprintf(ret + n, room - n, "%s-", before);
	}
}

/* If all trainers have sent HELLO, choose the route, start the engine, and send WELCOME to the
 * trainers. */
static void start_when_met(struct exec *x)
{
	char nodes[5 * (DEVICE_GPUS_MAX + 1) + 1];
	struct err_text err = {""};

	for (uint32_t w = 0; w < x->n_workers; w++)
		if (!exec_trainer_waits(x, w))
			return;
	exec_trainers_met(x);
	if (exec_choose_and_open_engine(x, &err) < 0) {
		exec_fail(x, BPS_EDEVICE, err.s);
		return;
	}
	exec_set_state(x, EXEC_RUNNING);
	choice_format_nodes(&x->choice, nodes, sizeof(nodes));
	log_info("driving GPUs: job=%s backend=%s workers=%u route=%s nodes=%s why=%s", x->job,
		x->ops->name, x->n_workers, x->choice.route.name, nodes, x->choice.why);
	if (exec_send_route(x) < 0)
		exec_begin_ending(x, 1);
	/* WELCOME follows ROUTE, because the agent must know the route when a trainer declares a
	 * tensor */
	else
		exec_welcome_trainers(x);
}

/* ---- the agent ---- */

static int map_shared_memory(int fd, uint64_t bytes, void **ret)
{
	struct stat st;
	void *p;

	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < bytes || !bytes)
		return -EINVAL;
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	*ret = p;
	return 0;
}

static int check_start_message(
	struct exec *x, const struct gpu_start *m, unsigned n_fds, struct err_text *err)
{
	if (n_fds != 3 || !m->n_workers || m->n_workers > DEVICE_GPUS_MAX || !m->n_slots)
		return err_set(err, BPS_EPROTO,
			"the agent's START message is invalid: it names %u workers and carries %u "
			"descriptors",
			m->n_workers, n_fds);
	if (m->abi != LOCAL_ABI)
		return err_set(err, BPS_EVERSION,
			"bps-agent %s uses protocol version %u, but bps-agent-%s %s uses version "
			"%u: install both from one release",
			m->version, m->abi, x->ops->name, BPS_VERSION, LOCAL_ABI);
	return 0;
}

/* Map the rings from the descriptor fds[0], and take ownership of the eventfds in fds. Errors: a
 * negative code, and err gets the text. */
static int exec_attach_rings(struct exec *x, int *fds, struct err_text *err)
{
	void *page = NULL;
	int rc = map_shared_memory(fds[0], sizeof(*x->page), &page);

	if (rc < 0)
		return err_set(
			err, rc, "cannot map the memory of the agent's rings: %s", err_str(rc));
	x->page = page;
	x->wake_fd = fds[1];
	x->agent_fd = fds[2];
	fds[1] = fds[2] = -1;
	ring_pair_init(&x->pipe, x->page, x->agent_fd, false);
	return 0;
}

static void exec_detach_rings(struct exec *x)
{
	if (x->page) {
		ring_pair_fini(&x->pipe);
		munmap(x->page, sizeof(*x->page));
	}
	if (x->wake_fd >= 0)
		close(x->wake_fd);
	if (x->agent_fd >= 0)
		close(x->agent_fd);
	x->wake_fd = x->agent_fd = -1;
	x->page = NULL;
}

static int on_start_message(
	struct exec *x, const struct gpu_start *m, int *fds, unsigned n_fds, struct err_text *err)
{
	int rc = check_start_message(x, m, n_fds, err);

	if (rc < 0)
		return rc;
	snprintf(x->job, sizeof(x->job), "%s", m->job);
	snprintf(x->want, sizeof(x->want), "%s", m->route);
	snprintf(x->sysfs, sizeof(x->sysfs), "%s", *m->sysfs ? m->sysfs : TOPO_SYSFS);
	x->n_slots = m->n_slots;
	rc = x->ops->open(x->job, &x->dev, err);
	if (rc < 0)
		return rc;
	rc = exec_attach_rings(x, fds, err);
	if (rc < 0)
		return rc;
	x->trainers = calloc(m->n_workers, sizeof(*x->trainers));
	if (!x->trainers)
		return err_set(err, -ENOMEM, "out of memory");
	x->n_workers = m->n_workers;
	for (uint32_t w = 0; w < m->n_workers; w++) {
		x->trainers[w].sock = x->trainers[w].second = x->trainers[w].page_fd =
			x->trainers[w].gpu = -1;
		TAILQ_INIT(&x->trainers[w].regions);
	}
	exec_set_state(x, EXEC_MEETING);
	return 0;
}

static bool exec_pop_ring_entries(struct exec *x)
{
	struct ring_pair_entry e;
	bool any = false;

	for (unsigned i = 0; x->page && i < RING_PAIR_ENTRIES && ring_pair_pop(&x->pipe, &e); i++) {
		exec_apply_ring_entry(x, &e);
		any = true;
	}
	return any;
}

/* Handle the START of the next agent process after a restart of the agent. The new process has no
 * information about the executor's state yet. */
static void on_successor_start(struct exec *x, const struct gpu_start *m, int *fds, unsigned n_fds)
{
	struct err_text err = {""};
	int rc = check_start_message(x, m, n_fds, &err);

	if (rc == 0 && (strcmp(m->job, x->job) != 0 || m->n_workers != x->n_workers))
		rc = err_set(
			&err, BPS_EPROTO, "the restarted agent's START message names another job");
	if (rc == 0) {
		exec_pop_ring_entries(x);
		exec_entries_end(x);
		exec_detach_rings(x);
		rc = exec_attach_rings(x, fds, &err);
	}
	if (rc < 0) {
		exec_fail(x, rc, err.s);
		return;
	}
	log_info("a restarted agent has taken over the executor: job=%s", x->job);
	exec_send_text_message(x, GPU_READY, 0, x->ops->name);
	if (x->engine)
		engine_mute_reports(x->engine);
	if (x->state == EXEC_RUNNING && exec_send_route(x) < 0)
		exec_begin_ending(x, 1);
}

static void on_arena_message(struct exec *x, const struct gpu_arena *m, int fd)
{
	struct exec_arena *a = calloc(1, sizeof(*a));
	int rc = a ? map_shared_memory(fd, m->bytes, &a->map) : -ENOMEM;
	struct err_text err;

	err_set(&err, rc, "%llu bytes of staging memory cannot be mapped: %s",
		(unsigned long long)m->bytes, err_str(rc));
	if (rc == 0) {
		a->id = m->id;
		a->bytes = m->bytes;
		rc = x->ops->pin(x->dev, a->map, a->bytes, &a->mem);
		err_set(&err, rc, "%llu bytes of staging memory cannot be pinned: %s",
			(unsigned long long)m->bytes, x->dev->why.s);
		if (rc < 0)
			munmap(a->map, a->bytes);
	}
	if (rc < 0) {
		free(a);
		exec_fail(x, rc, err.s);
		return;
	}
	TAILQ_INSERT_HEAD(&x->arenas, a, link);
}

struct device_mem *exec_arena_memory(const struct exec *x, uint32_t id)
{
	const struct exec_arena *a;

	TAILQ_FOREACH (a, &x->arenas, link)
		if (a->id == id)
			return a->mem;
	return NULL;
}

static void on_agent_message(struct exec *x, const struct local_msg *m, int *fds, unsigned n_fds)
{
	struct err_text err = {""};
	int rc;

	if (x->state == EXEC_STARTING && m->type == GPU_START) {
		rc = on_start_message(x, &m->gpu_start, fds, n_fds, &err);
		exec_send_text_message(x, GPU_READY, rc, rc < 0 ? err.s : x->ops->name);
		if (rc < 0)
			exec_begin_ending(x, 2);
	} else if (m->type == GPU_START && x->state != EXEC_ENDING) {
		on_successor_start(x, &m->gpu_start, fds, n_fds);
	} else if (m->type == GPU_TRAINER && n_fds == 1 &&
		   (x->state == EXEC_MEETING || x->state == EXEC_RUNNING)) {
		exec_trainer_add(x, m->gpu_trainer.worker, m->gpu_trainer.pid, fds[0]);
		fds[0] = -1;
	} else if (m->type == GPU_ARENA && n_fds == 1 && x->state == EXEC_RUNNING) {
		/* an agent that was restarted sends the existing arenas again */
		if (!exec_arena_memory(x, m->gpu_arena.id))
			on_arena_message(x, &m->gpu_arena, fds[0]);
	} else if (m->type == GPU_END) {
		exec_begin_ending(x, m->gpu_text.code ? 3 : 0);
		if (x->engine)
			engine_fail(x->engine,
				m->gpu_text.code ? -(int)m->gpu_text.code : BPS_ECLOSED, "%s",
				*m->gpu_text.text ? m->gpu_text.text : "the job is over");
	} else if (x->state != EXEC_ENDING) {
		log_rated(LOG_WARN, "ignoring an unexpected message from the agent: type=%s",
			local_type_name(m->type));
	}
}

/* Stop the executor, because no process holds the agent's side of the socket any more. The agent
 * has ended, and no restarted agent has inherited the agent's descriptor of the socket. So no
 * further sums can arrive. */
static void exec_end_without_agent(struct exec *x)
{
	close(x->agent_sock);
	x->agent_sock = -1;
	if (x->state != EXEC_ENDING && x->engine) {
		exec_send_text_message(x, GPU_FAILED, BPS_ENOAGENT, "bps-agent has ended");
		exec_begin_ending(x, 1);
		engine_fail(x->engine, BPS_ENOAGENT, "bps-agent has ended");
	}
	exec_begin_ending(x, 1);
}

void exec_read_agent(struct exec *x)
{
	int rc = 1;

	while (rc == 1 && x->agent_sock >= 0) {
		struct err_text err = {""};
		struct local_frame f;

		rc = local_recv(x->agent_sock, &f, 0, &err);
		if (rc == 1)
			on_agent_message(x, &f.msg, f.fds, f.n_fds);
		else if (rc != -EAGAIN)
			exec_end_without_agent(x);
		local_frame_free(&f);
	}
}

/* ---- the loop ---- */

/* Wait until a descriptor is readable, but at most wait_ns. Then handle the readable
 * descriptors. */
static void exec_poll_sockets(struct exec *x, uint64_t wait_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(wait_ns / 1000000000), .tv_nsec = (long)(wait_ns % 1000000000)};
	struct pollfd p[2 + 2 * DEVICE_GPUS_MAX];
	uint32_t n_workers = x->n_workers;
	nfds_t n = 0;
	uint64_t count;

	p[n++] = (struct pollfd){.fd = x->agent_sock, .events = POLLIN};
	p[n++] = (struct pollfd){.fd = x->wake_fd, .events = POLLIN};
	for (uint32_t w = 0; w < n_workers; w++) {
		p[n++] = (struct pollfd){.fd = x->trainers[w].sock, .events = POLLIN};
		p[n++] = (struct pollfd){.fd = x->trainers[w].second, .events = POLLIN};
	}
	if (ppoll(p, n, &ts, NULL) <= 0)
		return;
	if (p[1].revents)
		(void)!read(x->wake_fd, &count, sizeof(count));
	if (p[0].revents)
		exec_read_agent(x);
	for (uint32_t i = 0; i < 2 * n_workers; i++) {
		const struct exec_trainer *t = &x->trainers[i / 2];
		int fd = p[2 + i].fd;

		if (fd >= 0 && p[2 + i].revents && (fd == t->sock || fd == t->second))
			exec_trainer_read(x, i / 2, fd);
	}
	if (x->state == EXEC_MEETING)
		start_when_met(x);
}

struct exec_pace {
	uint64_t moved_ns, looked_ns, alarm_ns;
	unsigned n_quiet;
};

/* Return how long the loop may sleep after an iteration without progress. */
static uint64_t exec_choose_pause_ns(struct exec *x, struct exec_pace *p, uint64_t now_ns)
{
	bool is_busy = x->engine && engine_is_busy(x->engine);

	if (!is_busy && x->state != EXEC_ENDING && x->page && ring_pair_sleep(&x->pipe))
		return IDLE_MS * NS_PER_MS;
	if (!is_busy)
		return x->page ? PAUSE_NS : IDLE_MS * NS_PER_MS;
	if (++p->n_quiet < SPIN_TURNS)
		return 0;
	return now_ns - p->moved_ns > LONG_NS ? PAUSE_LONG_NS : PAUSE_NS;
}

/* volatile, because the signal handler increments the variable */
static volatile sig_atomic_t n_alarms;

static void on_loop_hang_alarm(int sig)
{
	static const char text[] = "<3>ending a hung GPU executor whose agent has ended\n";

	(void)sig;
	if (++n_alarms < ALARMS_MAX)
		return;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(EX_SOFTWARE);
}

/* Clear the count of alarms, and set a timer that sends SIGALRM every `seconds` seconds; 0: stop
 * the timer. */
static void exec_set_hang_alarm(time_t seconds)
{
	struct itimerval t = {{seconds, 0}, {seconds, 0}};

	n_alarms = 0;
	setitimer(ITIMER_REAL, &t, NULL);
}

static void exec_run_iteration(struct exec *x, struct exec_pace *p)
{
	uint64_t now_ns = clock_now_ns(), wait_ns = 0;
	bool any = exec_pop_ring_entries(x);

	if (now_ns - p->alarm_ns > ALARM_SET_NS) {
		exec_set_hang_alarm(ALARM_S);
		p->alarm_ns = now_ns;
	}
	if (x->engine)
		any |= engine_poll(x->engine, now_ns);
	if (x->page)
		any |= ring_pair_flush(&x->pipe);
	if (any) {
		p->n_quiet = 0;
		p->moved_ns = now_ns;
	} else {
		wait_ns = exec_choose_pause_ns(x, p, now_ns);
	}
	if (wait_ns || now_ns - p->looked_ns > SOCKETS_NS) {
		exec_poll_sockets(x, wait_ns);
		p->looked_ns = now_ns;
	}
	if (x->page) {
		ring_pair_awake(&x->pipe);
		atomic_fetch_add_explicit(&x->page->beat, 1, memory_order_relaxed);
	}
}

static bool exec_is_finished(const struct exec *x)
{
	if (x->state != EXEC_ENDING)
		return false;
	return !x->engine || engine_is_quiet(x->engine) || clock_now_ns() > x->end_ns;
}

static void exec_free_resources(struct exec *x)
{
	struct exec_arena *a;

	/* Free nothing while work runs on a GPU, because the work may use any of the memory. The
	 * end of the process frees the memory. */
	if (x->engine && !engine_is_quiet(x->engine))
		return;
	engine_free(x->engine);
	for (uint32_t w = 0; w < x->n_workers; w++)
		exec_trainer_free(x, w);
	free(x->trainers);
	while ((a = TAILQ_FIRST(&x->arenas))) {
		TAILQ_REMOVE(&x->arenas, a, link);
		x->ops->drop(a->mem);
		munmap(a->map, a->bytes);
		free(a);
	}
	exec_detach_rings(x);
	if (x->dev)
		x->ops->close(x->dev);
	if (x->agent_sock >= 0)
		close(x->agent_sock);
}

int exec_main(const struct device_ops *ops, int agent_sock)
{
	struct exec x = {.ops = ops, .agent_sock = agent_sock, .wake_fd = -1, .agent_fd = -1};
	uint64_t deadline_ns = clock_now_ns() + START_MS * NS_PER_MS;
	struct sigaction alarm = {.sa_handler = on_loop_hang_alarm, .sa_flags = SA_RESTART};
	struct exec_pace pace = {0};

	TAILQ_INIT(&x.arenas);
	sigaction(SIGALRM, &alarm, NULL);
	while (!exec_is_finished(&x)) {
		exec_run_iteration(&x, &pace);
		if (x.state == EXEC_STARTING && clock_now_ns() > deadline_ns)
			exec_begin_ending(&x, 1);
	}
	exec_set_hang_alarm(ALARM_S);
	exec_free_resources(&x);
	exec_set_hang_alarm(0);
	return x.exit_status;
}
