/* libfabric transport: the process-wide object, the object of each data thread, the listener's
 * setup, statistics. Connections, messages and polling are in fabric_*.c. Setup runs on the main
 * thread. The object of a data thread belongs to that thread. */
#include "common/transport/fabric/fabric.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/addr.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/transport/fabric/fabric_eager.h"
#include "common/transport/fabric/fabric_impl.h"
#include "common/transport/fabric/libfabric.h"

#define LISTEN_BACKLOG 1024
/* Longest time, in microseconds, that a client with an incomplete handshake may block the
 * connection-management thread. */
#define LISTEN_RECV_US     20000
#define LISTEN_DEFER_S     3
#define LISTEN_USER_MS     10000
#define LISTEN_KEEPIDLE_S  5
#define LISTEN_KEEPINTVL_S 1
#define LISTEN_KEEPCNT     5

static struct fi_info *fabric_make_hints(const struct net_config *cfg, int mr_mode)
{
	struct fi_info *h = fi_allocinfo();

	if (!h)
		return NULL;
	h->ep_attr->type = FI_EP_MSG;
	h->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	h->caps = FI_MSG | FI_RMA;
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
	h->domain_attr->mr_mode = mr_mode;
	h->domain_attr->threading = FI_THREAD_SAFE;
	h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	h->tx_attr->size = FABRIC_TX_DEPTH;
	h->fabric_attr->prov_name = strdup(cfg->provider);
	if (!h->fabric_attr->prov_name) {
		fi_freeinfo(h);
		return NULL;
	}
	return h;
}

static int fabric_query_info(struct fabric *f, const struct fi_info *hints, uint16_t port)
{
	char service[8];

	snprintf(service, sizeof(service), "%u", port);
	return fi_getinfo(
		FI_VERSION(1, 17), f->base.cfg.bind_addr, service, FI_SOURCE, hints, &f->info);
}

static int fabric_explain_listen_error(const struct fabric *f, int rc, struct err_text *err)
{
	bool is_other = rc == -EADDRINUSE && fabric_is_verbs(f);

	return err_set(err, rc, "cannot listen for data connections on %s port %u: %s%s",
		f->base.cfg.bind_addr, f->base.cfg.port, fi_strerror(-rc),
		is_other ? " (another program listens on this port: `rdma resource show cm_id` "
			   "shows the program; stop it, or choose another port)"
			 : addr_bind_hint(rc));
}

static int fabric_init_provider_info(struct fabric *f, int mr_mode, struct err_text *err)
{
	struct fi_info *hints = fabric_make_hints(&f->base.cfg, mr_mode);
	uint16_t port = f->base.cfg.is_listener ? f->base.cfg.port : 0;
	bool is_taken = false;
	int rc;

	if (!hints)
		return err_set(err, -ENOMEM, "out of memory");
	rc = fabric_query_info(f, hints, port);
	/* The provider `verbs` tries to bind the port, and returns FI_ENODATA when the port is in
	 * use. If the same request succeeds without a port, the port was the cause. */
	if (rc == -FI_ENODATA && port)
		is_taken = fabric_query_info(f, hints, 0) == 0;
	fi_freeinfo(hints);
	if (is_taken)
		return fabric_explain_listen_error(f, -EADDRINUSE, err);
	if (rc)
		return fabric_explain(&f->base.cfg, rc, err);
	f->mr_mode = (uint64_t)f->info->domain_attr->mr_mode;
	if (f->mr_mode == FABRIC_MR_BASIC)
		f->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	f->tx_max = FABRIC_TX_MAX;
	if (f->info->tx_attr->size && f->info->tx_attr->size < FABRIC_TX_DEPTH)
		f->tx_max = (uint32_t)(f->info->tx_attr->size * FABRIC_TX_MAX / FABRIC_TX_DEPTH);
	if (!f->tx_max)
		return err_set(err, -EINVAL,
			"the send queue of libfabric provider '%s' is too small",
			f->base.cfg.provider);
	return fabric_check_lockable(f, err);
}

static void fabric_set_socket_option(int fd, int level, int name, int value)
{
	if (setsockopt(fd, level, name, &value, sizeof(value)))
		log_warn("cannot set a socket option that protects the data port: option=%d: %s",
			name, strerror(errno));
}

static bool is_listener_on(int fd, const struct sockaddr_storage *addr, socklen_t addr_len)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss), vlen = sizeof(int);
	int v = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &v, &vlen) || !v)
		return false;
	return !getsockname(fd, (struct sockaddr *)&ss, &len) && len == addr_len &&
	       memcmp(&ss, addr, len) == 0;
}

/* Protect the listening socket of libfabric's provider tcp. libfabric does not give access to this
 * socket, and reads the handshake of each client with a blocking receive. So find the socket among
 * this process's descriptors, and set options that accepted sockets inherit. With these options,
 * the kernel passes a connection to the provider only after the first byte has arrived or
 * LISTEN_DEFER_S seconds have passed. The receive of an incomplete handshake ends after
 * LISTEN_RECV_US microseconds. The kernel detects dead peers. */
static void harden_listener(
	const struct fabric *f, const struct sockaddr_storage *addr, size_t addr_len)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	bool found = false;

	if (!d)
		goto out;
	while ((e = readdir(d))) {
		int fd = atoi(e->d_name);

		if (e->d_name[0] == '.' || fd == dirfd(d) ||
			!is_listener_on(fd, addr, (socklen_t)addr_len))
			continue;
		found = true;
		if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO,
			    &(struct timeval){.tv_usec = LISTEN_RECV_US}, sizeof(struct timeval)))
			log_warn("cannot set a time limit for handshakes on the data port: %s",
				strerror(errno));
		/* A socket that is accepted with BBR stays paced after a change of its congestion
		 * control. A failure is logged when the accepted socket is tuned. */
		(void)congestion_set(fd, f->congestion);
		fabric_set_socket_option(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, LISTEN_DEFER_S);
		fabric_set_socket_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
		fabric_set_socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, LISTEN_KEEPIDLE_S);
		fabric_set_socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, LISTEN_KEEPINTVL_S);
		fabric_set_socket_option(fd, IPPROTO_TCP, TCP_KEEPCNT, LISTEN_KEEPCNT);
		fabric_set_socket_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, LISTEN_USER_MS);
	}
	closedir(d);
out:
	if (!found)
		log_warn("cannot find the socket of the data port, so the port is not protected "
			 "against silent clients");
}

/* Open an event queue, and add its descriptor to epoll_fd of the thread that reads the queue. */
static int fabric_open_event_queue(const struct fabric *f, int epoll_fd, struct fid_eq **ret)
{
	struct fi_eq_attr attr = {.size = 1024, .wait_obj = FI_WAIT_FD};
	struct epoll_event ev = {.events = EPOLLIN};
	int fd, rc;

	rc = fi_eq_open(f->fabric, &attr, ret, NULL);
	if (rc)
		return rc;
	rc = fi_control(&(*ret)->fid, FI_GETWAIT, &fd);
	if (!rc && epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev))
		rc = -errno;
	if (rc) {
		fi_close(&(*ret)->fid);
		*ret = NULL;
	}
	return rc;
}

static int fabric_start_listening(struct fabric *f, struct err_text *err)
{
	struct sockaddr_storage ss;
	size_t len = sizeof(ss);
	int backlog = LISTEN_BACKLOG, rc;

	rc = fabric_open_event_queue(f, f->epoll_fd, &f->eq);
	if (!rc)
		rc = fi_passive_ep(f->fabric, f->info, &f->pep, NULL);
	if (!rc)
		rc = fi_pep_bind(f->pep, &f->eq->fid, 0);
	if (!rc) {
		fi_control(&f->pep->fid, FI_BACKLOG, &backlog);
		rc = fi_listen(f->pep);
	}
	if (!rc)
		rc = fi_getname(&f->pep->fid, &ss, &len);
	if (rc)
		return fabric_explain_listen_error(f, rc, err);
	f->base.port = sockaddr_port((struct sockaddr *)&ss);
	if (strcmp(f->base.cfg.provider, "tcp") == 0)
		harden_listener(f, &ss, len);
	return 0;
}

static int fabric_start_cm_thread(struct fabric *f)
{
	struct epoll_event ev = {.events = EPOLLIN};

	if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->stop_fd, &ev))
		return -errno;
	return -pthread_create(&f->thread, NULL, fabric_cm_main, f);
}

static void fabric_free(struct fabric *f)
{
	if (f->pep)
		fi_close(&f->pep->fid);
	if (f->eq)
		fi_close(&f->eq->fid);
	if (f->domain)
		fi_close(&f->domain->fid);
	if (f->fabric)
		fi_close(&f->fabric->fid);
	if (f->info)
		fi_freeinfo(f->info);
	if (f->epoll_fd >= 0)
		close(f->epoll_fd);
	if (f->stop_fd >= 0)
		close(f->stop_fd);
	pthread_mutex_destroy(&f->memory_lock);
	net_fini(&f->base);
	free(f);
}

static void fabric_stop_and_free(struct net *n)
{
	struct fabric *f = (struct fabric *)n;
	uint64_t one = 1;

	if (write(f->stop_fd, &one, sizeof(one)) != sizeof(one))
		log_error("cannot stop the connection thread: %s", strerror(errno));
	pthread_join(f->thread, NULL);
	fabric_free(f);
}

static int fabric_xport_new(struct net *n, unsigned thread, const struct xport_events *ev,
	void *ctx, struct xport **ret, struct err_text *err);

/* Choose the congestion control, if this version of libfabric can set it. If `wanted` is NULL, the
 * choice is "auto". */
static int choose_congestion(struct fabric *f, const char *wanted, struct err_text *err)
{
	bool is_auto = !wanted || strcmp(wanted, "auto") == 0 || strcmp(wanted, "system") == 0;

	if (f->gates.has_get_fd)
		return congestion_find(wanted ? wanted : "auto", f->congestion, err);
	if (!is_auto && !fabric_is_verbs(f))
		return err_set(err, -EINVAL,
			"with provider tcp, congestion-control '%s' needs libfabric 2.2 or newer, "
			"and the loaded libfabric is %u.%u: set congestion-control to auto, or use "
			"provider sockets",
			wanted, FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	return 0;
}

static const struct net_ops net_ops = {
	.close = fabric_stop_and_free,
	.xport_new = fabric_xport_new,
};

/* Set the environment that libfabric reads. Turn off the cache of memory registrations: with the
 * cache, the provider `verbs` does not revoke the peer's key when a registration is closed. The
 * second variable sets the size of a buffer that fabric_socket_set_lowat depends on. The third
 * variable is for libinfinipath, which libfabric loads: then libinfinipath does not handle SIGSEGV
 * and SIGABRT of this process. */
static void fabric_set_environment(void)
{
	char prefetch[16];

	setenv("FI_MR_CACHE_MAX_COUNT", "0", 1);
	snprintf(prefetch, sizeof(prefetch), "%d", FABRIC_PREFETCH);
	setenv("FI_TCP_PREFETCH_RBUF_SIZE", prefetch, 1);
	setenv("IPATH_NO_BACKTRACE", "1", 1);
}

int fabric_open_mr(const struct net_config *cfg, int mr_mode, net_key_fn key_fn, void *key_ctx,
	struct net **ret, struct err_text *err)
{
	struct fabric *f;
	int rc;

	fabric_set_environment();
	rc = libfabric_load(err);
	if (rc)
		return rc;

	f = calloc(1, sizeof(*f));
	if (!f)
		return err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&f->memory_lock, NULL);
	LIST_INIT(&f->regions);
	rc = net_init(&f->base, &net_ops, cfg, key_fn, key_ctx);
	if (!cfg->credits)
		f->base.cfg.credits = FABRIC_CREDITS;
	else if (cfg->credits < TICKET_CREDITS_MIN)
		f->base.cfg.credits = TICKET_CREDITS_MIN;
	f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (rc || f->epoll_fd < 0 || f->stop_fd < 0) {
		rc = err_set(
			err, -ENOMEM, "cannot set up libfabric: no memory or descriptors left");
		goto fail;
	}
	f->gates = fabric_gates_of(fi_version(), fabric_is_verbs(f));
	f->base.can_take_eager = f->gates.has_eager;
	rc = choose_congestion(f, cfg->congestion, err);
	if (!rc)
		rc = fabric_init_provider_info(f, mr_mode, err);
	if (rc)
		goto fail;
	rc = fi_fabric(f->info->fabric_attr, &f->fabric, NULL);
	if (rc) {
		err_set(err, rc, "cannot open libfabric provider '%s': %s", cfg->provider,
			fi_strerror(-rc));
		goto fail;
	}
	if (cfg->is_listener)
		rc = fabric_start_listening(f, err);
	if (rc)
		goto fail;
	rc = fabric_start_cm_thread(f);
	if (rc) {
		err_set(err, rc, "cannot start the connection thread: %s", strerror(-rc));
		goto fail;
	}
	log_info("opened libfabric: version=%u.%u provider=%s", FI_MAJOR(fi_version()),
		FI_MINOR(fi_version()), cfg->provider);
	*ret = &f->base;
	return 0;
fail:
	fabric_free(f);
	return rc;
}

int fabric_open(const struct net_config *cfg, net_key_fn key_fn, void *key_ctx, struct net **ret,
	struct err_text *err)
{
	return fabric_open_mr(cfg, FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
		key_fn, key_ctx, ret, err);
}

/* ---- data threads ---- */

/* Add the descriptor of the completion queue to those that wake the data thread. Errors: -errno. */
static int fabric_watch_cq(const struct fabric_xport *x)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int fd, rc = fi_control(&x->cq->fid, FI_GETWAIT, &fd);

	if (rc)
		return rc;
	return epoll_ctl(x->base.epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* If the thread reads its own events, the descriptor of the event queue wakes it for everything
 * that arrives. The completion queue then has no descriptor: libfabric would write to it for each
 * completion, although the thread itself has made the completion. */
static int fabric_open_cq(struct fabric_xport *x)
{
	bool is_watched = !x->f->gates.has_own_events;
	struct fi_cq_attr attr = {.size = FABRIC_CQ_DEPTH,
		.format = FI_CQ_FORMAT_MSG,
		.wait_obj = is_watched ? FI_WAIT_FD : FI_WAIT_NONE};
	struct fi_rx_attr rx = *x->f->info->rx_attr;
	int rc;

	rc = fi_cq_open(x->domain, &attr, &x->cq, NULL);
	if (!rc && is_watched)
		rc = fabric_watch_cq(x);
	if (rc)
		return rc;
	rx.size = FABRIC_CQ_DEPTH;
	rc = fi_srx_context(x->domain, &rx, &x->srx, NULL);
	/* The device may allow fewer than FABRIC_CQ_DEPTH receives. Retry with 4096, which all
	 * current adapters allow. */
	if (rc)
		rc = (rx.size = 4096, fi_srx_context(x->domain, &rx, &x->srx, NULL));
	if (rc)
		return rc;
	/* With the provider `tcp`, the completion queue must be bound to the receive context. With
	 * the provider `verbs`, this call may fail, because that provider uses the queue of each
	 * endpoint. */
	rc = fi_ep_bind(x->srx, &x->cq->fid, FI_RECV);
	return rc && x->is_verbs ? 0 : rc;
}

static void fabric_close_cq(struct fabric_xport *x)
{
	if (x->srx)
		fi_close(&x->srx->fid);
	if (x->cq)
		fi_close(&x->cq->fid);
	x->srx = NULL;
	x->cq = NULL;
}

static void fabric_close_conns(struct fabric_xport *x, const char *why)
{
	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++) {
		if (x->conns[i] && x->conns[i]->base.state != CONN_FREE)
			fabric_conn_down(&x->conns[i]->base.pub, why);
	}
}

void fabric_mark_spoiled(struct fabric_xport *x)
{
	x->is_spoiled = x->f->gates.is_spoiled_by_cut_reads;
}

void fabric_reset_connections(struct fabric_xport *x)
{
	int rc;

	log_info("a connection ended during a read, so all connections of the data thread are "
		 "opened again: thread=%u connections=%u",
		x->base.thread, x->base.n_conns);
	fabric_close_conns(
		x, "all connections of the data thread restart after an incomplete read");
	fabric_close_cq(x);
	rc = fabric_open_cq(x);
	if (!rc)
		rc = fabric_io_renew(x);
	if (rc) {
		log_error("cannot reopen libfabric's completion queue, ending this process: %s",
			fi_strerror(-rc));
		abort(); /* after abort(), the service manager restarts this process */
	}
	x->is_spoiled = false;
}

static void fabric_reject_requests(struct fabric_xport *x)
{
	struct fabric_cm_event ev;

	while (handover_queue_pop(&x->shared.queue, &ev))
		if (ev.kind == CM_REQUEST)
			fabric_cm_reject(x->f, ev.info, REFUSED_TICKET);
}

static void fabric_xport_destroy(struct fabric_xport *x)
{
	fabric_close_conns(x, "this process shuts down");
	fabric_reject_requests(x);
	fabric_close_cq(x);
	for (unsigned i = 0; x->segs && i < FABRIC_SEGS_MAX; i++)
		if (x->segs[i].region)
			fabric_region_drop(x->f, x->segs[i].region);
	fabric_io_free(x);
	if (x->eq)
		fi_close(&x->eq->fid);
	fabric_close_domain(x);
	for (unsigned i = 0; i < FABRIC_CONNS_MAX; i++)
		free(x->conns[i]);
	if (x->base.epoll_fd >= 0)
		close(x->base.epoll_fd);
	handover_queue_fini(&x->shared.queue);
	free(x->segs);
	free(x->sink);
	free(x);
}

static void fabric_xport_free(struct xport *xp)
{
	struct fabric_xport *x = (struct fabric_xport *)xp;
	int fd;

	pthread_mutex_lock(&x->f->base.lock);
	net_remove_thread(&x->f->base, &x->shared);
	if (!x->f->gates.has_own_events && !fi_control(&x->eq->fid, FI_GETWAIT, &fd))
		epoll_ctl(x->f->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	pthread_mutex_unlock(&x->f->base.lock);
	fabric_xport_destroy(x);
}

static const struct xport_ops fabric_ops = {
	.connect = fabric_conn_connect,
	.send = fabric_io_send,
	.send_eager = fabric_eager_send,
	.read = fabric_io_read,
	.close = fabric_conn_down,
	.seg_add = fabric_seg_add,
	.seg_set = fabric_seg_set,
	.seg_del = fabric_seg_del,
	.decided = fabric_eager_decided,
	.heard_ns = peer_last_received_ns,
	.poll = fabric_poll,
	.may_sleep = fabric_may_sleep,
	.fd = peer_xport_poll_fd,
	.next_deadline = peer_next_deadline,
	.free = fabric_xport_free,
};

static int fabric_xport_new(struct net *n, unsigned thread, const struct xport_events *ev,
	void *ctx, struct xport **ret, struct err_text *err)
{
	struct fabric *f = (struct fabric *)n;
	struct fabric_xport *x = calloc(1, sizeof(*x));
	int rc;

	if (!x)
		return err_set(err, -ENOMEM, "out of memory");
	peer_xport_init(&x->base, &fabric_ops, ev, ctx, thread, net_peer_times(&f->base));
	x->shared.x = &x->base;
	x->f = f;
	recv_window_init(&x->window);
	x->window.is_quick_if_fast = true;
	x->base.pub.ahead_bytes = f->gates.has_eager ? socket_window_ahead(&x->window) : 0;
	x->is_verbs = strstr(f->info->fabric_attr->prov_name, "verbs") != NULL;
	TAILQ_INIT(&x->busy);
	TAILQ_INIT(&x->stuck);
	TAILQ_INIT(&x->tx_free);
	TAILQ_INIT(&x->rop_free);
	TAILQ_INIT(&x->orphans);
	x->base.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	rc = handover_queue_init(&x->shared.queue, FABRIC_CM_QUEUE, sizeof(struct fabric_cm_event));
	x->segs = calloc(FABRIC_SEGS_MAX, sizeof(*x->segs));
	if (x->base.epoll_fd < 0 || !x->segs)
		rc = -ENOMEM;
	if (rc)
		goto fail;
	rc = epoll_ctl(x->base.epoll_fd, EPOLL_CTL_ADD, x->shared.queue.wake_fd,
		     &(struct epoll_event){.events = EPOLLIN})
		     ? -errno
		     : fabric_open_domain(x);
	if (!rc)
		rc = fabric_open_cq(x);
	pthread_mutex_lock(&f->base.lock);
	if (!rc)
		rc = fabric_open_event_queue(
			f, f->gates.has_own_events ? x->base.epoll_fd : f->epoll_fd, &x->eq);
	if (!rc)
		LIST_INSERT_HEAD(&f->base.threads, &x->shared, link);
	pthread_mutex_unlock(&f->base.lock);
	if (rc)
		goto fail;
	*ret = &x->base.pub;
	return 0;
fail:
	err_set(err, rc, "cannot set up a data thread with provider '%s': %s", f->base.cfg.provider,
		fi_strerror(-rc));
	fabric_xport_destroy(x);
	return rc;
}
