/* bps-agent: the daemon of a machine that trains. Trainers submit tensors to the agent. The agent
 * and the servers sum the tensors, and the agent returns the sums to the trainers. The main thread
 * runs the control loop (scheduler, HTTP, signals). The data thread serves trainers and exchanges
 * data with servers (agent.h). A third thread manages the transport's connections, and a fourth
 * thread creates shared memory (memory_thread.h). */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "bps-agent/agent.h"
#include "bps-agent/app.h"
#include "bps-agent/carrier.h"
#include "bps-agent/gpu/gpu_probe.h"
#include "bps-agent/gpu/topology_report.h"
#include "bps-agent/io/io_threads.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/daemon/notify.h"
#include "common/local/local.h"
#include "common/os/cgroup.h"
#include "common/os/limits.h"

/* Threads of libuv's pool, and all threads besides the data thread: these, the memory thread and
 * the resolver. */
#define POOL_THREADS   "4"
#define MORE_THREADS   6
#define AGAIN_NS       UINT64_C(2000000)
#define SILENT_MORE_US 300000
#define LEAVE_US       200000 /* longest wait for the answer to LEAVE, in microseconds */

enum { GPU_AUTO, GPU_OFF, GPU_CUDA };
static const char *const gpu_words[] = {"auto", "off", "cuda", NULL};

static const struct setting rows[] = {
	NODE_SETTINGS("127.0.0.1:7304", "127.0.0.1:0",
		"numeric address of the network to push over (the port is not used)"),
	{"cards", SET_STRING, SETTING_AT(struct agent_opts, node.cards), .def = "", .max = 1023,
		.help = "numeric addresses of further network cards to push over, separated by "
			"commas"},
	{"socket", SET_STRING, SETTING_AT(struct agent_opts, socket), .def = LOCAL_SOCKET,
		.max = (int64_t)sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
		.help = "UNIX socket that trainers connect to"},
	{"socket-group", SET_STRING, SETTING_AT(struct agent_opts, group), .def = "", .max = 63,
		.help = "group whose users may connect to the socket (mode 0660); empty: the "
			"agent's own group"},
	{"keep-trainers", SET_BOOL, SETTING_AT(struct agent_opts, keeps_trainers), .def = "yes",
		.help = "continue the trainers' jobs after a restart, if the service manager keeps "
			"descriptors"},
	{"threads", SET_INT, SETTING_AT(struct agent_opts, io_threads), .def = "0",
		.max = IO_THREADS_MAX,
		.help = "I/O threads that send, receive and sum under load; 1: the data thread "
			"does this itself; 0: as many as the network cards need"},
	{"gpu", SET_ENUM, SETTING_AT(struct agent_opts, gpu), .def = "auto", .words = gpu_words,
		.help = "back-end for GPUs; auto: cuda, if it is installed; off: no GPUs"},
	{"gpu-program", SET_STRING, SETTING_AT(struct agent_opts, gpu_program), .def = "",
		.max = PATH_MAX - 1,
		.help = "program that drives GPUs; empty: bps-agent-cuda in the folder of "
			"bps-agent"},
	{"window", SET_SIZE, SETTING_AT(struct agent_opts, window_bytes), .def = "0",
		.max = 1024 * SETTING_GIB, .is_live = true,
		.help = "limit of bytes in flight to one data thread of a server; 0: no limit"},
	{"memory", SET_SIZE, SETTING_AT(struct agent_opts, max_bytes), .def = "0", .is_live = true,
		.help = "limit of the memory shared with all trainers; 0: half of the memory "
			"of the machine or its control group"},
	{"job-inflight", SET_SIZE, SETTING_AT(struct agent_opts, job_inflight_bytes), .def = "4GiB",
		.max = 1024 * SETTING_GIB, .is_live = true,
		.help = "limit of bytes in flight of one job; further bytes wait; 0: no limit"},
	{"user-memory", SET_SIZE, SETTING_AT(struct agent_opts, user_bytes), .def = "0",
		.is_live = true,
		.help = "limit of the memory shared with one user's trainers; 0: half of --memory"},
	{"job-memory", SET_SIZE, SETTING_AT(struct agent_opts, job_bytes), .def = "0",
		.is_live = true,
		.help = "limit of the memory shared with one job; 0: the same as --user-memory"},
	{"max-trainers", SET_INT, SETTING_AT(struct agent_opts, max_trainers), .def = "256",
		.min = 1, .max = 4096, .is_live = true, .help = "limit of connected trainers"},
	{"user-trainers", SET_INT, SETTING_AT(struct agent_opts, user_trainers), .def = "64",
		.min = 1, .max = 4096, .is_live = true,
		.help = "limit of connected trainers of one user"},
	{"max-tensors", SET_INT, SETTING_AT(struct agent_opts, max_tensors), .def = "16384",
		.min = 16, .max = 1 << 20, .is_live = true,
		.help = "limit of tensors that one trainer may declare"},
	{"job-tensors", SET_INT, SETTING_AT(struct agent_opts, job_tensors), .def = "100000",
		.min = 16, .max = 1 << 24, .is_live = true,
		.help = "limit of tensors of one job on this machine"},
	{"user-tensors", SET_INT, SETTING_AT(struct agent_opts, user_tensors), .def = "100000",
		.min = 16, .max = 1 << 24, .is_live = true,
		.help = "limit of tensors of one user's jobs on this machine"},
	{"user-executors", SET_INT, SETTING_AT(struct agent_opts, user_executors), .def = "16",
		.min = 1, .max = 4096, .is_live = true,
		.help = "limit of executors of one user; each job with GPUs has one executor "
			"process"},
	{"user-requests", SET_INT, SETTING_AT(struct agent_opts, user_requests), .def = "1000",
		.max = 1000000, .is_live = true,
		.help = "limit of messages per second of one user's trainers; further messages "
			"wait; 0: no limit"},
	{"user-descriptors", SET_INT, SETTING_AT(struct agent_opts, user_descriptors), .def = "0",
		.max = 1 << 20, .is_live = true,
		.help = "limit of descriptors that the agent keeps open for one user; 0: a quarter "
			"of the agent's own limit"},
	{"stranded-after", SET_DURATION, SETTING_AT(struct agent_opts, stranded_us),
		.is_live = true, .def = "10s", .min = 0, .max = 3600 * SETTING_S,
		.help = "time without any server after which waiting calls end with "
			"BPS_ENOSERVER or BPS_EISOLATED; 0: never"},
	{"gpu-strategy", SET_ENUM, SETTING_AT(struct agent_opts, gpu_strategy), .def = "auto",
		.words = strategy_words,
		.help = "how the gradients of several GPUs are gathered; auto: according to the "
			"GPUs' places on the buses"},
	{"sysfs", SET_STRING, SETTING_AT(struct agent_opts, sysfs), .def = TOPO_SYSFS, .max = 255,
		.help = "folder in which the kernel describes this machine's devices"},
};
static const struct settings_spec spec = {.program = "bps-agent",
	.about = "exchanges the tensors of this machine's trainers with the servers",
	.config_path = "/etc/bps/agent.conf",
	.rows = rows,
	.n_rows = sizeof(rows) / sizeof(rows[0]),
	.failpoints = FP_AGENT};

/* ---- scheduler ---- */

static void app_post_to_data_thread(
	struct agent_app *app, enum agent_event event, struct member_msg *m)
{
	if (app->agent && agent_post_event(app->agent, event, m, NULL) == 0)
		return;
	log_error("restarting, because the data thread no longer accepts messages");
	daemon_quit(&app->node.daemon, EX_TEMPFAIL);
}

/* Convert options to limits. If an option for memory or for descriptors is 0, the limit gets its
 * default. A window of 0 becomes SIZE_MAX, which means no limit. Any other option that is 0 means
 * no limit. */
static struct agent_limits agent_limits_of_options(const struct agent_opts *o)
{
	uint64_t all = o->max_bytes ? o->max_bytes : node_half_memory_bytes();
	uint64_t user = o->user_bytes ? o->user_bytes : all / 2;
	struct agent_limits l = {.window_bytes = o->window_bytes ? o->window_bytes : SIZE_MAX};
	struct quota_limits *q = &l.quotas;

	l.max_tensors = (uint32_t)o->max_tensors;
	l.stranded_ns = o->stranded_us * 1000;
	q->requests_per_s = (uint32_t)o->user_requests;
	q->of[QUOTA_MACHINE][QUOTA_TRAINERS] = (uint64_t)o->max_trainers;
	q->of[QUOTA_USER][QUOTA_TRAINERS] = (uint64_t)o->user_trainers;
	q->of[QUOTA_MACHINE][QUOTA_MEMORY] = all;
	q->of[QUOTA_USER][QUOTA_MEMORY] = user;
	q->of[QUOTA_JOB][QUOTA_MEMORY] = o->job_bytes ? o->job_bytes : user;
	q->of[QUOTA_USER][QUOTA_TENSORS] = (uint64_t)o->user_tensors;
	q->of[QUOTA_JOB][QUOTA_TENSORS] = (uint64_t)o->job_tensors;
	q->of[QUOTA_USER][QUOTA_EXECUTORS] = (uint64_t)o->user_executors;
	q->of[QUOTA_USER][QUOTA_DESCRIPTORS] =
		o->user_descriptors ? (uint64_t)o->user_descriptors : limits_open_files() / 4;
	q->of[QUOTA_JOB][QUOTA_INFLIGHT] = o->job_inflight_bytes;
	return l;
}

/* Return the settings of the executors. By default, their program is in the folder of this
 * program. */
static struct gpu_config gpu_config_of_options(struct agent_opts *o)
{
	char self[PATH_MAX] = "";
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (o->gpu == GPU_OFF)
		return (struct gpu_config){.program = "", .route = "", .sysfs = ""};
	if (*o->gpu_program)
		snprintf(o->gpu_path, sizeof(o->gpu_path), "%s", o->gpu_program);
	else
		snprintf(o->gpu_path, sizeof(o->gpu_path), "%.*s/bps-agent-cuda", PATH_MAX - 32,
			n > 0 ? dirname(self) : ".");
	return (struct gpu_config){.program = o->gpu_path,
		.route = strategy_words[o->gpu_strategy],
		.sysfs = o->sysfs};
}

/* Start a process that looks for GPUs. Only agent_http_status uses the result, because each
 * executor finds the GPUs itself. */
static void app_start_gpu_probe(struct agent_app *app)
{
	struct gpu_config cfg = gpu_config_of_options(&app->opts);
	struct err_text err = {""};

	if (!*cfg.program)
		return;
	if (access(cfg.program, X_OK) < 0 && app->opts.gpu == GPU_AUTO)
		return; /* the executor's program is not installed, and no setting requires GPUs */
	if (gpu_probe_start(loop_base(app->node.daemon.loop), cfg.program, &app->gpu_probe, &err) <
		0)
		log_warn("%s", err.s);
}

_Static_assert(CARDS_MAX <= CARRIER_NAMES_MAX, "the watch of carriers has room for all cards");

/* Return after which time a connection counts as silent: a healthy one receives something in each
 * interval of pings, and the agent learns of it up to a tenth of a second later. */
static uint64_t silent_ns(const struct node_opts *o)
{
	uint64_t dead_us = o->ping_dead_us < 2 * o->ping_us ? 2 * o->ping_us : o->ping_dead_us;
	uint64_t silent_us = dead_us / 2 + SILENT_MORE_US;

	return (silent_us < dead_us ? silent_us : dead_us) * 1000;
}

static struct io_config app_io_config(struct agent_app *app)
{
	const struct node_opts *o = &app->opts.node;
	struct cards *cards = &app->node.cards;

	for (unsigned i = 0; i < cards->n; i++)
		nic_local_cpus(app->opts.sysfs, cards->of[i].nic.name, &cards->of[i].cpus);
	return (struct io_config){.n_threads = app->io_threads,
		.cards = cards,
		.spin_us = (uint32_t)o->spin_us,
		.same_host = node_same_host(&app->node),
		.silent_ns = silent_ns(o)};
}

static void on_carriers_change(void *ctx, uint32_t cards)
{
	struct agent_app *app = ctx;

	/* If the data thread's queue is full, the next heartbeat tries again. */
	app->carriers_due = app->agent && agent_post_carriers(app->agent, cards) < 0;
}

/* Start the data thread. id: member number of this agent. Errors: a negative code; the error is
 * logged. */
static int app_start_data_thread(struct agent_app *app, uint32_t id)
{
	const struct agent_opts *o = &app->opts;
	struct agent_config cfg = {.id = id,
		.instance = app->node.instance,
		.listen_fd = app->listener.fd,
		.io = app_io_config(app),
		.limits = agent_limits_of_options(o),
		.name = app->node.name,
		.host = app->node.host,
		.scheduler = app->scheduler,
		.can_hand_over = app->can_hand_over,
		.inherited = &app->inherited,
		.gpu = gpu_config_of_options(&app->opts),
		.core = {.retry_ns = NODE_RETRY_NS,
			.again_ns = AGAIN_NS,
			.lead_bytes = AGT_LEAD_BYTES,
			.turn_bytes = AGT_TURN_BYTES}};
	struct err_text err;
	int rc = agent_new(app->node.member, &cfg, &app->agent, &err);

	if (rc < 0) {
		log_error("%s", err.s);
		return rc;
	}
	fdstore_fini(&app->inherited);
	if (app->carriers)
		on_carriers_change(app, carrier_watch_read(app->carriers));
	daemon_announce_ready(&app->node.daemon, 0, "accepting trainers");
	daemon_report_status_line(&app->node.daemon);
	return 0;
}

/* Record the cluster and this agent's member number for the next process. */
static void app_record_identity(struct agent_app *app)
{
	struct member_past now;

	if (app->can_hand_over && member_snapshot_state(app->node.member, &now))
		cluster_identity_note(&app->identity, &now);
}

static void on_agent_member_up(void *ctx, uint32_t id)
{
	struct agent_app *app = ctx;
	int rc = node_accept_member_id(&app->node, id);

	if (rc < 0) {
		cluster_identity_forget(&app->identity);
		app_post_to_data_thread(app, AGENT_FORGOTTEN, NULL);
		return;
	}
	app_record_identity(app);
	if (rc > 0 && app_start_data_thread(app, id) < 0)
		daemon_quit(&app->node.daemon, EX_TEMPFAIL);
	else
		app_post_to_data_thread(app, AGENT_RESYNC_BEGIN, NULL);
}

/* Continue the jobs that ran before the restart, without waiting for the scheduler. */
static int app_resume_kept_jobs(struct agent_app *app, struct err_text *err)
{
	uint32_t id = app->identity.known.member_id;
	int rc;

	if (!id)
		return 0;
	node_accept_member_id(&app->node, id);
	rc = app_start_data_thread(app, id);
	return rc < 0 ? err_set(err, rc, "cannot continue the jobs of the previous process") : 0;
}

/* End the process, because the scheduler has not answered LEAVE within LEAVE_US. */
static void on_leave_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct agent_app *app = arg;

	(void)fd;
	(void)what;
	daemon_quit(&app->node.daemon, EX_OK);
}

static bool app_is_stopping(const struct agent_app *app)
{
	return app->stop && event_pending(app->stop, EV_TIMEOUT, NULL);
}

static void on_agent_stop_request(void *ctx)
{
	const struct timeval tv = {.tv_usec = LEAVE_US};
	const struct ctl_msg m = {.type = CTL_LEAVE};
	struct agent_app *app = ctx;

	if (!app->can_hand_over || member_send(app->node.member, &m) < 0 ||
		event_add(app->stop, &tv) < 0)
		daemon_quit(&app->node.daemon, EX_OK);
}

static void on_agent_member_down(void *ctx, const char *why)
{
	struct agent_app *app = ctx;

	(void)why;
	if (app_is_stopping(app))
		daemon_quit(&app->node.daemon, EX_OK);
	daemon_report_status_line(&app->node.daemon);
}

static void on_agent_member_message(void *ctx, struct member_msg *m)
{
	struct agent_app *app = ctx;

	if (m->msg.type == CTL_LEFT && app_is_stopping(app)) {
		daemon_quit(&app->node.daemon, EX_OK);
		return;
	}
	app_record_identity(ctx);
	app_post_to_data_thread(ctx, AGENT_MESSAGE, m);
}

static void on_agent_member_resynced(void *ctx)
{
	app_post_to_data_thread(ctx, AGENT_RESYNC_END, NULL);
}

/* Look at intervals whether the threads that move bytes are full while processors are idle. */
static void app_look_at_threads(struct agent_app *app, const struct agent_figures *f)
{
	struct busy_look now = {.at_ns = clock_now_ns(), .busy_ns = f->data_busy_ns};

	if (now.at_ns - app->busy.at_ns < BUSY_LOOK_NS)
		return;
	if (f->io.n_threads) {
		now.busy_ns = 0;
		for (unsigned i = 0; i < f->io.n_threads; i++)
			now.busy_ns += f->io.busy_ns[i];
	}
	now.idle_ns = busy_read_idle_ns();
	app->more_threads = busy_more_threads(
		&app->busy, &now, app->io_threads, app->n_cpus, &app->busy_percent);
	app->busy = now;
}

static void agent_fill_heartbeat(void *ctx, struct ctl_beat *b)
{
	struct agent_app *app = ctx;
	struct agent_figures f;
	struct net_stats net;

	if (!app->agent)
		return;
	agent_read_figures(app->agent, &f);
	cards_net_stats(&app->node.cards, &net);
	node_fill_beat_report(&app->node, b);
	app_look_at_threads(app, &f);
	if (app->carriers_due)
		on_carriers_change(app, carrier_watch_read(app->carriers));
	b->threads = (uint8_t)app->io_threads;
	b->more_threads = (uint8_t)app->more_threads;
	b->busy_percent = (uint8_t)app->busy_percent;
	b->progress = f.beat_ns;
	b->rounds = f.core.rounds;
	b->rx_bytes = net.rx_bytes;
	b->tx_bytes = agent_sent_bytes(&f.core, &net);
	b->mem_bytes = f.shared_bytes;
	b->connections = net.connections;
	b->trainers = f.trainers;
	memcpy(app->beat_links, f.links, sizeof(app->beat_links));
	b->links = app->beat_links;
	b->n_links = f.n_links;
}

static const struct member_ops member_ops = {.up = on_agent_member_up,
	.told = on_agent_member_resynced,
	.down = on_agent_member_down,
	.message = on_agent_member_message,
	.beat = agent_fill_heartbeat,
	.refused = on_member_refused};

/* ---- service manager ---- */

static void agent_format_status_line(void *ctx, char *ret, size_t room)
{
	struct agent_app *app = ctx;
	struct agent_figures f;

	if (!node_is_up_else_write_status(&app->node, ret, room))
		return;
	agent_read_figures(app->agent, &f);
	snprintf(ret, room,
		"accepting trainers: %u connected, %u jobs, %llu MiB shared, %llu rounds",
		f.trainers, f.jobs, (unsigned long long)f.shared_bytes >> 20,
		(unsigned long long)f.core.rounds);
}

/* ---- reload ---- */

static void on_agent_settings_changed(void *ctx)
{
	struct agent_app *app = ctx;
	struct agent_limits limits = agent_limits_of_options(&app->opts);

	if (app->agent && agent_post_event(app->agent, AGENT_LIMITS, NULL, &limits) < 0)
		log_error("the data thread did not accept the new limits: reload bps-agent again");
}

static const struct daemon_reload_ops reload_ops = {
	.changed = on_agent_settings_changed, .auth_changed = node_auth_changed};

/* ---- start ---- */

/* Take what the previous process has stored with the service manager, and open the socket. */
static int app_open_listener(struct agent_app *app, struct err_text *err)
{
	int rc = fdstore_inherit(&app->inherited, err);

	if (rc < 0)
		return rc;
	app->can_hand_over = notify_has_manager() && app->opts.keeps_trainers;
	cluster_identity_take(&app->identity, &app->inherited);
	app->node.past = app->identity.known.member_id ? &app->identity.known : NULL;
	return listen_socket_open(&app->listener, app->opts.socket, app->opts.group,
		&app->inherited, app->can_hand_over, err);
}

/* Choose the number of I/O threads, after the network card was opened. */
static void app_choose_threads(struct agent_app *app)
{
	const struct agent_opts *o = &app->opts;
	const struct node *n = &app->node;
	bool is_verbs = strcmp(net_provider(node_net(n)), "verbs") == 0;

	app->io_threads = o->io_threads ? (unsigned)o->io_threads
					: count_io_threads(n->cards.mbps, is_verbs, app->n_cpus);
	if (n->cards.n > 1 && strcmp(net_provider(node_net(n)), "sockets") != 0)
		log_warn("with provider %s, the routes choose the network card: let them choose it "
			 "by the source address (`ip rule add from ADDRESS`)",
			net_provider(node_net(n)));
	if (app->io_threads < n->cards.n)
		app->io_threads = n->cards.n; /* each thread has one card */
	if (app->io_threads > 1)
		log_info("has %u I/O threads: why=%s card=%llu Mbit/s processors=%u",
			app->io_threads, o->io_threads ? "as set by threads" : "default",
			(unsigned long long)n->cards.mbps, app->n_cpus);
}

static int app_watch_carriers(struct agent_app *app, struct err_text *err)
{
	const struct node *n = &app->node;
	const char *names[CARDS_MAX];

	for (unsigned i = 0; i < n->cards.n; i++)
		names[i] = n->cards.of[i].nic.name;
	return n->cards.n == 1 ? 0
			       : carrier_watch_new(loop_base(app->node.daemon.loop), names,
					 n->cards.n, on_carriers_change, app, &app->carriers, err);
}

/* Return the largest number of threads that the process may start besides the data thread. */
static unsigned app_more_threads(const struct agent_app *app)
{
	const struct node_opts *o = &app->opts.node;
	uint64_t mbps = (uint64_t)o->nic_mbps;
	unsigned n_io = (unsigned)app->opts.io_threads;
	struct nic nic;

	if (!n_io && !mbps) {
		nic_open_by_host(&nic, NIC_SYSFS, o->listen.host);
		mbps = nic.driver_mbps;
		nic_close(&nic);
	}
	if (!n_io)
		n_io = count_io_threads(*o->cards ? CARDS_MAX * mbps : mbps, false, app->n_cpus);
	return MORE_THREADS + (n_io > 1 ? n_io : 0) + (*o->cards ? CARDS_MAX : 0);
}

int main(int argc, char **argv)
{
	struct agent_app app = {.listener.fd = -1};
	struct agent_opts *o = &app.opts;
	struct err_text err = {0};
	struct settings *settings = NULL;
	enum settings_verdict v;
	int rc, status;

	setenv("UV_THREADPOOL_SIZE", POOL_THREADS, 1); /* before any thread can read it */
	daemon_begin();
	v = settings_load(&settings, &spec, argc, argv, o, &err);
	if (v != SETTINGS_RUN)
		return settings_exit_status(v, &err);
	daemon_on_reload(&app.node.daemon, settings, &reload_ops, &app);
	addr_format(&o->node.scheduler, app.scheduler);
	app.n_cpus = cgroup_cpu_count();
	rc = app_open_listener(&app, &err);
	if (rc == 0)
		rc = node_open(&app.node, "bps-agent", ROLE_AGENT, &o->node, AGENT_THREADS,
			app_more_threads(&app),
			agent_limits_of_options(o).quotas.of[QUOTA_MACHINE][QUOTA_MEMORY],
			&member_ops, &agent_web_ops, &app, &err);
	if (rc == 0)
		rc = daemon_start_status_reports(
			&app.node.daemon, agent_format_status_line, &app, &err);
	if (rc == 0)
		rc = app_watch_carriers(&app, &err);
	if (rc == 0) {
		app_choose_threads(&app);
		app.stop = evtimer_new(loop_base(app.node.daemon.loop), on_leave_timeout, &app);
		rc = app.stop ? 0 : err_set(&err, -ENOMEM, "out of memory");
	}
	if (rc == 0) {
		daemon_on_stop(&app.node.daemon, on_agent_stop_request, &app);
		rc = app_resume_kept_jobs(&app, &err);
	}
	if (rc < 0)
		log_error("%s", err.s);
	else
		app_start_gpu_probe(&app);
	status = rc < 0 ? daemon_exit_status(rc) : daemon_run(&app.node.daemon);
	agent_free(app.agent);
	cluster_identity_fini(&app.identity);
	if (app.stop)
		event_free(app.stop);
	gpu_probe_free(app.gpu_probe);
	carrier_watch_free(app.carriers);
	node_close(&app.node);
	listen_socket_close(&app.listener, o->socket, app.can_hand_over);
	fdstore_fini(&app.inherited);
	settings_free(settings);
	return daemon_delay_exit(status);
}
