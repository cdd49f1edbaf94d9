/* The common parts of bps-server and bps-agent: open the daemon, the membership and the data plane;
 * measure the network card; watch the data threads; report health. bps-server and bps-agent
 * themselves create the data threads. Thread: the control loop's, which is the main thread. */
#include "common/daemon/node.h"

#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/daemon/explanations.h"
#include "common/daemon/metrics.h"
#include "common/daemon/name_claim.h"
#include "common/os/cgroup.h"
#include "common/os/limits.h"
#include "common/os/machine.h"

/* A data thread counts as hung when its loop completes no iteration for this time. */
#define STUCK_NS           UINT64_C(1500000000)
#define LOOK_US            250000
#define CONNECT_TIMEOUT_MS 3000

static void node_fill_names(struct node *n, const struct node_opts *o)
{
	machine_host_name(n->host, n->domain);
	snprintf(n->name, sizeof(n->name), "%s", *o->name ? o->name : n->host);
	if (!*o->host)
		return;
	snprintf(n->host, sizeof(n->host), "%s", o->host);
	n->domain[0] = '\0';
}

_Static_assert(MACHINE_NAME_BYTES == CTL_NAME_MAX + 1 && MACHINE_BOOT_ID_BYTES == CTL_BOOT_ID_BYTES,
	"the machine's names and boot id fit into HELLO");

/* Without a cluster key, only a loopback address of the scheduler can work. Refuse any other
 * address at once, instead of trying to connect without end. Accept a name that cannot be resolved
 * now, because the name may later resolve to a loopback address. */
static int node_check_scheduler_address(
	const struct node *n, const struct node_opts *o, struct err_text *err)
{
	struct sockaddr_storage sa;
	struct err_text why;
	socklen_t len;

	if (!tls_conf_is_empty(&n->daemon.auth) ||
		addr_resolve_host(&o->scheduler, &sa, &len, &why) < 0 ||
		sockaddr_is_loopback((struct sockaddr *)&sa))
		return 0;
	return err_set(err, -EPERM,
		"cannot join the scheduler at '%s': without a cluster key only a loopback address "
		"is allowed (set --key-file; `bpsctl key derive` makes the key)",
		o->scheduler.host);
}

/* Claim the name on this machine, because two daemons with the same name would replace each other
 * in the cluster again and again. */
static int claim_our_name(
	struct node *n, const char *program, const struct node_opts *o, struct err_text *err)
{
	char text[ADDR_TEXT_BYTES + CTL_NAME_MAX + 32], at[ADDR_TEXT_BYTES], pid[32];
	pid_t holder = 0;
	int rc;

	snprintf(text, sizeof(text), "%s/%s/%s", program, n->name, addr_format(&o->scheduler, at));
	rc = name_claim(text, &n->claim_fd, &holder);
	if (holder)
		snprintf(pid, sizeof(pid), "pid %d", (int)holder);
	else
		snprintf(pid, sizeof(pid), "in another container");
	if (rc == -EADDRINUSE)
		return err_set(err, rc,
			"another %s with the name '%s' already runs on this machine (%s; this one "
			"is pid %d): stop it, or choose another --name",
			program, n->name, pid, (int)getpid());
	if (rc == 0 && n->claim_fd < 0)
		log_warn(
			"a process of another user has claimed the name of %s '%s' on this "
			"machine; starting anyway, because that process is perhaps not a daemon: "
			"if it is a daemon, stop that daemon or this one, or choose another --name",
			program, n->name);
	if (rc < 0) {
		log_warn("cannot check whether another %s has the name '%s': %s", program, n->name,
			strerror(-rc));
		n->claim_fd = -1;
	}
	return 0;
}

const char *const node_same_host_words[] = {"auto", "off", NULL};

/* Make the same-host sockets of all data threads before this server reports to the scheduler. So
 * the sockets exist when an agent looks for them. If a socket cannot be made, its thread tries
 * again later and reports the error. */
static void listen_same_host(struct node *n, unsigned n_threads)
{
	struct err_text unused;

	n->same_host.listen_fds = calloc(n_threads, sizeof(int));
	n->n_listen_fds = n->same_host.listen_fds ? n_threads : 0;
	for (unsigned i = 0; i < n->n_listen_fds; i++)
		n->same_host.listen_fds[i] = shm_listen(&n->same_host, i, &unused);
}

/* Set up the connections over shared memory with daemons of this host. A server listens on Unix
 * sockets in same_host_dir, and first checks that it can make them there. An agent looks for the
 * server's socket at each connect. */
static void open_same_host(
	struct node *n, bool is_server, unsigned n_threads, const struct node_opts *o)
{
	n->same_host_state = o->same_host ? SAME_HOST_OFF : SAME_HOST_NO_PLACE;
	if (o->same_host)
		return;
	if (is_server && shm_unlink_dead_sockets(o->same_host_dir) < 0) {
		log_info("no memory is shared with agents of this host: cannot make a socket in "
			 "'%s': %s (create the folder for this user, or choose another "
			 "--same-host-dir)",
			o->same_host_dir, strerror(errno));
		return;
	}
	n->same_host_state = SAME_HOST_ON;
	n->same_host = (struct shm_config){.dir = o->same_host_dir,
		.is_listener = is_server,
		.my_instance = n->instance,
		.connect_timeout_ms = CONNECT_TIMEOUT_MS,
		.ping_ms = (uint32_t)(o->ping_us / 1000),
		.dead_ms = (uint32_t)(o->ping_dead_us / 1000),
		.key_fn = member_peer_key,
		.key_ctx = &n->member,
		.counters = &n->same_host_counters};
	if (n->same_host.dead_ms < 2 * n->same_host.ping_ms)
		n->same_host.dead_ms = 2 * n->same_host.ping_ms;
	if (is_server)
		listen_same_host(n, n_threads);
}

const struct shm_config *node_same_host(const struct node *n)
{
	return n->same_host.dir ? &n->same_host : NULL;
}

void node_fill_beat_report(struct node *n, struct ctl_beat *b)
{
	name_claim_drain(n->claim_fd);
	cards_measure(&n->cards);
	b->nic_source = n->nic_source;
	b->measured_mbps = cards_measured_mbps(&n->cards);
	b->same_host = (uint8_t)n->same_host_state;
	b->same_host_connections = n->same_host_counters.connections;
	b->same_host_bytes = n->same_host_counters.received_bytes;
}

static int node_open_member(struct node *n, enum role role, const struct node_opts *o,
	unsigned n_threads, uint64_t quota_bytes, const struct member_ops *ops, void *ctx,
	struct err_text *err)
{
	bool is_server = role == ROLE_SERVER;
	struct member_config mc = {.role = role,
		.name = n->name,
		.host = n->host,
		.domain = n->domain,
		.boot_id = n->boot_id,
		.http = n->http,
		.scheduler = o->scheduler,
		.auth = n->daemon.auth,
		.data_addr = o->listen.host,
		.data_port = is_server ? net_port(node_net(n)) : 0,
		.instance = n->instance,
		.threads = (uint16_t)n_threads,
		.provider = net_provider(node_net(n)),
		.nic_mbps = n->cards.mbps,
		.quota_bytes = quota_bytes,
		.memory_bytes = 2 * node_half_memory_bytes(),
		.past = n->past};
	struct member *member;
	int rc = member_new(&member, n->daemon.loop, &mc, ops, ctx, err);

	keyring_wipe(&mc.auth.keys);
	if (rc == 0)
		n->member = member;
	return rc;
}

/* End the process when a data thread hangs. Peers wait for the thread's partitions until the
 * process ends and is restarted. A service manager's watchdog may end the process sooner than this
 * function. n_hung counts the successive checks that found a hung thread. The function counts
 * checks instead of measuring a time, because time also passes while the process is stopped. */
static void on_thread_check_due(evutil_socket_t fd, short what, void *arg)
{
	struct node *n = arg;
	struct err_text err;

	(void)fd;
	(void)what;
	if (n->http_ops->probe(n->ctx, HTTPD_LIVE, &err)) {
		n->n_hung = 0;
		return;
	}
	if (++n->n_hung < n->n_looks_dead)
		return;
	log_write(LOG_AS(LOG_ERROR, STUCK),
		"ending this process, so that the service manager restarts it: %s", err.s);
	_exit(EX_SOFTWARE);
}

static int node_start_thread_watchdog(struct node *n, uint64_t dead_us, const struct httpd_ops *ops,
	void *ctx, struct err_text *err)
{
	const struct timeval tv = {.tv_usec = LOOK_US};
	uint64_t found_us = STUCK_NS / 1000;

	if (!dead_us)
		return 0;
	n->http_ops = ops;
	n->ctx = ctx;
	n->n_looks_dead = 1 + (uint32_t)(dead_us > found_us ? (dead_us - found_us) / LOOK_US : 0);
	n->look = event_new(loop_base(n->daemon.loop), -1, EV_PERSIST, on_thread_check_due, n);
	if (!n->look || event_add(n->look, &tv) < 0)
		return err_set(err, -ENOMEM, "cannot watch the data threads: out of memory");
	return 0;
}

int node_open(struct node *n, const char *program, enum role role, const struct node_opts *o,
	unsigned n_threads, unsigned n_more_threads, uint64_t quota_bytes,
	const struct member_ops *ops, const struct httpd_ops *http_ops, void *ctx,
	struct err_text *err)
{
	struct net_config fc = {.provider = net_provider_words[o->provider],
		.congestion = o->congestion,
		.port = role == ROLE_SERVER ? o->listen.port : 0,
		.is_listener = role == ROLE_SERVER,
		.n_threads = n_threads,
		.connect_timeout_ms = CONNECT_TIMEOUT_MS,
		.ping_ms = (uint32_t)(o->ping_us / 1000),
		.dead_ms = (uint32_t)(o->ping_dead_us / 1000)};
	int rc;

	n->claim_fd = -1;
	node_fill_names(n, o);
	machine_boot_id(n->boot_id);
	n->instance = fc.my_instance = daemon_instance();
	rc = daemon_init(&n->daemon, program, &o->daemon, err);
	if (rc < 0)
		return rc;
	rc = limits_try_threads(n_threads + n_more_threads, err);
	if (rc == 0)
		rc = cards_list(&n->cards, o->listen.host, o->cards,
			tls_conf_is_empty(&n->daemon.auth), err);
	if (rc == 0)
		rc = node_check_scheduler_address(n, o, err);
	if (rc == 0)
		rc = claim_our_name(n, program, o, err);
	if (rc < 0)
		return rc;
	rc = cards_find_speeds(&n->cards, loop_base(n->daemon.loop), (uint64_t)o->nic_mbps, err);
	if (rc < 0)
		return rc;
	n->nic_source = o->nic_mbps ? NIC_SET : n->cards.mbps ? NIC_DRIVER : NIC_UNTOLD;
	open_same_host(n, role == ROLE_SERVER, n_threads, o);
	/* The listener gets peers' keys from n->member, which is still NULL here. Until n->member
	 * is set, member_peer_key finds no key, and tickets are refused. */
	rc = cards_open_nets(&n->cards, &fc, member_peer_key, &n->member, err);
	if (rc < 0)
		return rc;
	rc = daemon_start_http_server(&n->daemon, http_ops, ctx, err);
	if (rc < 0)
		return rc;
	daemon_http_address(&n->daemon, n->http);
	rc = node_open_member(n, role, o, n_threads, quota_bytes, ops, ctx, err);
	return rc < 0 ? rc : node_start_thread_watchdog(n, o->thread_dead_us, http_ops, ctx, err);
}

int node_auth_changed(void *ctx, struct err_text *err)
{
	struct node *n = ctx;

	return member_set_auth(n->member, &n->daemon.auth, err);
}

void node_close(struct node *n)
{
	/* Close the transport before the member, because the transport's thread reads keys from the
	 * member */
	cards_close(&n->cards);
	member_free(n->member);
	shm_unlisten(&n->same_host, n->n_listen_fds);
	free(n->same_host.listen_fds);
	if (n->look)
		event_free(n->look);
	if (n->instance && n->claim_fd >= 0)
		close(n->claim_fd);
	daemon_fini(&n->daemon);
}

int node_accept_member_id(struct node *n, uint32_t id)
{
	if (n->id && n->id != id) {
		log_error("the scheduler assigned another member id, so this process ends and "
			  "must be restarted: id=%u was=%u",
			id, n->id);
		daemon_quit(&n->daemon, EX_TEMPFAIL);
		return BPS_EDUP;
	}
	if (n->id)
		return 0;
	n->id = n->same_host.my_id = id;
	for (unsigned i = 0; i < n->cards.n; i++)
		net_set_id(n->cards.of[i].net, id);
	return 1;
}

void on_member_refused(void *ctx, int code, const char *text)
{
	struct node *n = ctx;

	(void)text;
	daemon_quit(&n->daemon, code == BPS_EVERSION ? EX_CONFIG : EX_TEMPFAIL);
}

uint64_t node_half_memory_bytes(void)
{
	return cgroup_memory_bytes() / 2;
}

bool node_is_up_else_write_status(const struct node *n, char *ret, size_t room)
{
	uint64_t away_s = member_down_ms(n->member) / 1000;

	if (member_is_up(n->member))
		return true;
	snprintf(ret, room, "%s for %llu s: %s",
		n->id ? "running jobs go on; the scheduler cannot be reached"
		      : "waiting for the scheduler",
		(unsigned long long)away_s, member_get_down_reason(n->member));
	return false;
}

/* Return for how many nanoseconds a data thread has been hung. 0: no data thread hangs, or no data
 * thread runs yet. */
static uint64_t thread_stuck_duration_ns(uint64_t beat_ns)
{
	uint64_t now = clock_now_ns();

	return beat_ns && now > beat_ns && now - beat_ns > STUCK_NS ? now - beat_ns : 0;
}

/* Return the next problem of this daemon after e, or the first one if e is NULL. Return NULL if
 * there is none. The problems stand in /healthz, in the metric bps_health and in /status. */
static const struct explanation *node_next_problem(
	const struct explanation *e, const struct node_health *h)
{
	for (e = e ? e + 1 : explanations; e->code; e++)
		if (e->reporter & (h->is_agent ? BY_AGENT : BY_SERVER))
			return e;
	return NULL;
}

static bool node_has_problem(
	const struct node *n, const struct explanation *e, const struct node_health *h)
{
	if (strcmp(e->code, "SCHEDULER_UNREACHABLE") == 0)
		return !member_is_up(n->member);
	if (strcmp(e->code, "MEMBER_STUCK") == 0)
		return thread_stuck_duration_ns(h->beat_ns) > 0;
	return h->is_isolated;
}

/* Write all present problems in one line. Returns the number of problems. */
static unsigned node_format_problems(
	const struct node *n, const struct node_health *h, struct err_text *ret_text)
{
	const struct explanation *e = NULL;
	unsigned n_found = 0;
	size_t used = 0;

	while ((e = node_next_problem(e, h)))
		if (node_has_problem(n, e, h) && used < sizeof(ret_text->s))
			used += (size_t)snprintf(ret_text->s + used, sizeof(ret_text->s) - used,
				"%s%s (%s)", n_found++ ? "; " : "", e->what, e->code);
	return n_found;
}

bool node_probe_has_passed(const struct node *n, enum httpd_probe probe,
	const struct node_health *h, struct err_text *err)
{
	uint64_t stuck = thread_stuck_duration_ns(h->beat_ns);

	if (stuck) {
		err_set(err, -EIO, "a data thread has been hung for %.1f s (MEMBER_STUCK)",
			(double)stuck / 1e9);
		return false;
	}
	if (probe != HTTPD_LIVE && !h->beat_ns) {
		err_set(err, -EIO, "the scheduler has not accepted this member yet");
		return false;
	}
	return probe != HTTPD_HEALTH || !node_format_problems(n, h, err);
}

void node_write_metrics(const struct node *n, const struct node_health *h, struct evbuffer *out)
{
	const struct explanation *e = NULL;

	metrics_append_process(out, n->daemon.started_unix);
	metric_append_single(out, "bps_view", "number of the current view (members and placement)",
		(double)member_view(n->member));
	metric_append_single(
		out, "bps_term", "starts of this cluster's schedulers", member_term(n->member));
	metric_append_single(out, "bps_same_host_received_bytes_total",
		"bytes read from the memory of daemons on this host; not included in the network "
		"metrics",
		(double)n->same_host_counters.received_bytes);
	metric_append_single(out, "bps_same_host_connections",
		"data connections through shared memory", n->same_host_counters.connections);
	metric_append_single(out, "bps_same_host_refused_total",
		"same-host connection attempts without a valid ticket",
		(double)n->same_host_counters.refused);
	metric_append_header(out, "bps_health", "1: this problem is present");
	while ((e = node_next_problem(e, h)))
		metric_append_value(
			out, "bps_health", node_has_problem(n, e, h), "code", e->code, NULL);
}

static json_t *node_problems_to_json(const struct node *n, const struct node_health *h)
{
	const struct explanation *e = NULL;
	json_t *list = json_array();

	while ((e = node_next_problem(e, h)))
		if (node_has_problem(n, e, h))
			json_array_append_new(list,
				json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:b}", "code",
					e->code, "severity", "WARN", "subject", "", "what", e->what,
					"effect", e->effect, "action", e->action, "see",
					json_sprintf("bpsctl explain %s", e->code), "muted", 0));
	return list;
}

static json_t *cards_to_json(const struct cards *cards)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < cards->n; i++) {
		const struct card *c = &cards->of[i];
		struct net_stats f;

		net_stats(c->net, &f);
		json_array_append_new(list,
			json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "name", c->nic.name,
				"address", c->host, "told_mbps", (json_int_t)c->mbps,
				"measured_mbps", (json_int_t)nic_meter_mbps(&c->nic.meter),
				"connections", (json_int_t)f.connections, "received_bytes",
				(json_int_t)f.rx_bytes, "sent_bytes", (json_int_t)f.tx_bytes));
	}
	return list;
}

json_t *node_status_to_json(const struct node *n, const char *role, const struct node_health *h)
{
	json_t *root, *problems = node_problems_to_json(n, h);
	struct net_stats f;

	cards_net_stats(&n->cards, &f);
	root = json_pack("{s:i, s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:b, s:s, s:I, s:I, s:I}",
		"schema", 1, "role", role, "pid", (int)getpid(), "commit", bps_commit(), "name",
		n->name, "host", n->host, "version", BPS_VERSION, "id", (json_int_t)n->id,
		"scheduler_up", member_is_up(n->member), "provider", net_provider(node_net(n)),
		"received_bytes", (json_int_t)f.rx_bytes, "sent_bytes", (json_int_t)f.tx_bytes,
		"connections", (json_int_t)f.connections);
	json_object_set_new(root, "health", json_string(json_array_size(problems) ? "WARN" : "OK"));
	json_object_set_new(root, "problems", problems);
	json_object_set_new(root, "same_host",
		json_pack("{s:s, s:I, s:I}", "state", ctl_same_host_name(n->same_host_state),
			"connections", (json_int_t)n->same_host_counters.connections,
			"received_bytes", (json_int_t)n->same_host_counters.received_bytes));
	json_object_set_new(root, "cards", cards_to_json(&n->cards));
	return root;
}
