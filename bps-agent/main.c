/* bps-agent: the daemon of a machine that trains. Trainers submit tensors to the agent. The agent
 * and the servers sum the tensors, and the agent returns the sums to the trainers. The main thread
 * runs the control loop (scheduler, HTTP, signals). The data thread serves trainers and exchanges
 * data with servers (agent.h). A third thread manages the transport's connections, and a fourth
 * thread creates shared memory (memory_thread.h). */
#include <event2/buffer.h>
#include <event2/event.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "bps-agent/agent.h"
#include "bps-agent/carrier.h"
#include "bps-agent/figures.h"
#include "bps-agent/gpu/gpu_probe.h"
#include "bps-agent/gpu/topology_report.h"
#include "bps-agent/handover/cluster_identity.h"
#include "bps-agent/io/io_threads.h"
#include "bps-agent/io_count.h"
#include "bps-agent/listen_socket.h"
#include "bps-agent/quota/quota_report.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/daemon/fdstore.h"
#include "common/daemon/metrics.h"
#include "common/daemon/node.h"
#include "common/daemon/notify.h"
#include "common/local/local.h"
#include "common/os/cgroup.h"
#include "common/os/limits.h"

/* Number of data threads. One thread owns all trainers, rings and partitions. Its work per
 * partition is small; I/O threads can take the work per byte (io/io_threads.h). */
#define AGENT_THREADS 1
/* Threads of libuv's pool, and all threads besides the data thread: these, the memory thread and
 * the resolver. */
#define POOL_THREADS   "4"
#define MORE_THREADS   6
#define AGAIN_NS       UINT64_C(2000000)
#define SILENT_MORE_US 300000
#define LEAVE_US       200000 /* longest wait for the answer to LEAVE, in microseconds */

struct agent_opts {
	struct node_opts node;
	const char *socket, *group, *sysfs;
	unsigned gpu_strategy; /* enum strategy */
	bool keeps_trainers;
	int64_t io_threads;
	unsigned gpu;
	const char *gpu_program;
	char gpu_path[PATH_MAX];
	int64_t max_trainers, max_tensors, user_trainers, user_tensors, user_executors, job_tensors;
	int64_t user_descriptors, user_requests;
	uint64_t stranded_us;
	uint64_t window_bytes, max_bytes, user_bytes, job_bytes, job_inflight_bytes;
};

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

struct agent_app {
	/* must be the first field: on_member_refused and node_auth_changed convert its address to a
	 * struct agent_app */
	struct node node;
	struct agent_opts opts;
	struct gpu_probe *gpu_probe; /* NULL: no probe was started */
	struct agent *agent;         /* NULL until this agent's id is known */
	struct fdstore inherited;
	struct cluster_identity identity;
	/* timer that limits the wait for the scheduler's answer to LEAVE */
	struct event *stop;
	struct listen_socket listener;
	/* true if the setting keep-trainers is on and a service manager keeps descriptors for the
	 * next process */
	bool can_hand_over;
	char scheduler[ADDR_TEXT_BYTES];
	struct carrier_watch *carriers;      /* NULL: there is one network card */
	bool carriers_due;                   /* the data thread does not know of the last change */
	unsigned n_cpus, io_threads;         /* processors of this process; number of I/O threads */
	unsigned more_threads, busy_percent; /* of the last look, busy_more_threads */
	struct busy_look busy;               /* last look at how busy the threads are */
	struct ctl_beat_link beat_links[CTL_BEAT_LINKS_MAX]; /* list of the next heartbeat */
};

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

/* ---- HTTP ---- */

static struct node_health app_read_health(struct agent_app *app, struct agent_figures *ret)
{
	agent_read_figures(app->agent, ret);
	return (struct node_health){.beat_ns = ret->beat_ns,
		.is_agent = true,
		.is_isolated = ret->stranded == BPS_EISOLATED};
}

static bool agent_http_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct agent_app *app = arg;
	struct agent_figures f;
	struct node_health health = app_read_health(app, &f);

	return node_probe_has_passed(&app->node, probe, &health, err);
}

static void agent_http_metrics(void *arg, struct evbuffer *out)
{
	struct agent_app *app = arg;
	struct agent_figures f;
	struct quota_view quotas;
	struct net_stats net;
	struct node_health health = app_read_health(app, &f);

	cards_net_stats(&app->node.cards, &net);
	node_write_metrics(&app->node, &health, out);
	metric_append_single(out, "bps_agent_restarts_total",
		"restarts of the agent of this name that the scheduler has counted",
		member_restarts(app->node.member));
	agent_figures_write_metrics(&f, &net, out);
	agent_read_quotas(app->agent, &quotas);
	quota_write_metrics(&quotas, out);
}

struct waits_request {
	struct agent_app *app;
	struct httpd_request *req;
};

static void on_waits_report(void *arg, json_t *jobs)
{
	struct waits_request *w = arg;
	const struct node *n = &w->app->node;

	httpd_reply_and_free(w->req, 200,
		json_pack("{s:i, s:s, s:s, s:s, s:b, s:o}", "schema", 1, "role", "agent", "name",
			n->name, "host", n->host, "scheduler_up", member_is_up(n->member), "jobs",
			jobs ? jobs : json_array()));
	free(w);
}

static void agent_http_waits(struct agent_app *app, struct httpd_request *req)
{
	struct waits_request *w = app->agent ? malloc(sizeof(*w)) : NULL;

	if (w) {
		*w = (struct waits_request){app, req};
		if (agent_request_waits_report(
			    app->agent, app->node.daemon.loop, on_waits_report, w) == 0)
			return;
		free(w);
	}
	httpd_reply_and_free(req, 503,
		json_pack("{s:i, s:s}", "schema", 1, "error",
			app->agent ? "the data thread accepts no requests"
				   : "this agent has not joined a cluster yet"));
}

static void on_trace(void *arg, int fd)
{
	struct httpd_request *req = arg;

	if (fd >= 0)
		httpd_reply_file_and_free(req, fd);
	else
		httpd_reply_and_free(req, fd == BPS_ENOTFOUND ? 404 : 503,
			json_pack("{s:i, s:s}", "schema", 1, "error",
				fd == BPS_ENOTFOUND ? "this agent has no such job"
				: fd == -EBUSY ? "a trace of this job is being written; try again"
					       : "the agent cannot write the trace"));
}

/* Answer with the trace of a job (steps/trace_file.h). */
static void agent_http_trace(struct agent_app *app, struct httpd_request *req, const char *job)
{
	int rc = app->agent ? agent_request_trace(
				      app->agent, app->node.daemon.loop, job, on_trace, req)
			    : BPS_ENOTFOUND;

	if (rc < 0)
		on_trace(req, rc);
}

static void servers_append_peer(void *ctx, const struct member_peer *p)
{
	if (p->state == PEER_UP)
		json_array_append_new(
			ctx, json_pack("{s:s, s:s, s:s, s:i}", "name", p->name, "host", p->host,
				     "addr", p->addr, "port", p->port));
}

/* Return the servers that are up, so that `bpsctl check` can measure the paths to them. */
static json_t *servers_to_json(struct member *m)
{
	json_t *list = json_array();

	member_each_peer(m, servers_append_peer, list);
	return list;
}

static void agent_http_status(void *arg, struct httpd_request *req)
{
	struct agent_app *app = arg;
	struct strategy_ask ask = {.want = (enum strategy)app->opts.gpu_strategy};
	const struct topo_report *reports;
	unsigned n_reports = gpu_probe_reports(app->gpu_probe, &reports, &ask.has_collectives);
	struct agent_figures f;
	struct node_health health = app_read_health(app, &f);
	json_t *root = node_status_to_json(&app->node, "agent", &health);
	struct quota_view quotas;
	char wanted[8], traced[CTL_JOB_NAME_MAX + 1];

	if (httpd_read_query_parameter(req, "trace", traced, sizeof(traced))) {
		json_decref(root);
		agent_http_trace(app, req, traced);
		return;
	}
	if (httpd_read_query_parameter(req, "waits", wanted, sizeof(wanted))) {
		json_decref(root);
		agent_http_waits(app, req);
		return;
	}
	json_object_update_new(root,
		json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "threads", AGENT_THREADS,
			"executors", (json_int_t)f.executors, "trainers", (json_int_t)f.trainers,
			"jobs", (json_int_t)f.jobs, "rounds", (json_int_t)f.core.rounds,
			"inflight_bytes", (json_int_t)f.core.inflight_bytes, "repushes",
			(json_int_t)f.core.repushes, "shared_bytes", (json_int_t)f.shared_bytes));
	agent_read_quotas(app->agent, &quotas);
	json_object_set_new(root, "quotas", quota_view_to_json(&quotas));
	json_object_set_new(root, "servers", servers_to_json(app->node.member));
	/* while the probe has not finished, assume that collectives are possible */
	ask.has_collectives |= n_reports == 0;
	if (httpd_read_query_parameter(req, "topology", wanted, sizeof(wanted)))
		json_object_set_new(root, "topology",
			topology_report(app->opts.sysfs, &ask, reports, n_reports,
				gpu_probe_why(app->gpu_probe)));
	httpd_reply_and_free(req, 200, root);
}

static const struct httpd_ops http_ops = {
	.metrics = agent_http_metrics, .probe = agent_http_probe, .status = agent_http_status};

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
			&member_ops, &http_ops, &app, &err);
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
