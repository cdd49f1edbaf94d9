/* A transport that combines shared memory and the network. datapath_connect_peer uses shared memory
 * if possible, else the network. Later calls go directly to the transport of the connection.
 * Thread: the data thread that owns the transport. */
#include "common/datapath/datapath.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/base/log.h"

/* Maximum number of server threads for which failures of shared memory are recorded. When all
 * records are in use, a new record replaces the oldest record. */
#define TROUBLES_MAX 64
/* Number of failures in a row after which the network is used. The first failures may only mean
 * that the server has not yet received this agent's key from the scheduler. */
#define TRIES 3

struct trouble {
	uint64_t instance;
	uint16_t thread;
	unsigned n;
};
/* A connection through shared memory whose handshake has not ended. */
struct attempt {
	const struct xconn *conn; /* NULL: this element is free */
	uint16_t thread;
};

struct datapath {
	struct xport pub; /* must be first, because the code casts &pub to struct datapath * */
	struct xport *net, *shm;
	struct shm_config cfg;
	int epoll_fd;
	struct attempt attempts[SHM_CONNS_MAX];
	struct trouble troubles[TROUBLES_MAX];
	unsigned next_trouble;
};

static struct datapath *datapath_of_xport(struct xport *x)
{
	return (struct datapath *)x;
}

/* Return the record of the failures to connect to the given server thread through shared memory, or
 * NULL when no failure is recorded. */
static struct trouble *datapath_find_trouble(struct datapath *d, uint64_t instance, uint16_t thread)
{
	for (unsigned i = 0; i < TROUBLES_MAX; i++)
		if (d->troubles[i].instance == instance && d->troubles[i].thread == thread)
			return &d->troubles[i];
	return NULL;
}

static void datapath_record_trouble(
	struct datapath *d, uint32_t peer_id, uint64_t instance, uint16_t thread, const char *why)
{
	struct trouble *t = datapath_find_trouble(d, instance, thread);

	if (!t) {
		t = &d->troubles[d->next_trouble++ % TROUBLES_MAX];
		*t = (struct trouble){.instance = instance, .thread = thread};
	}
	if (++t->n == TRIES)
		log_warn("cannot share memory with a server on this host, using the network "
			 "instead: server=%u thread=%u why=%s",
			peer_id, thread, why);
}

static void forget_trouble(struct datapath *d, uint64_t instance, uint16_t thread)
{
	struct trouble *t = datapath_find_trouble(d, instance, thread);

	if (t)
		*t = (struct trouble){0};
}

static struct attempt *datapath_find_attempt(struct datapath *d, const struct xconn *c)
{
	for (unsigned i = 0; i < SHM_CONNS_MAX; i++)
		if (d->attempts[i].conn == c)
			return &d->attempts[i];
	return NULL;
}

/* Start to connect through shared memory. Returns 0 or an error. After -EAGAIN, try again later.
 * After any other error, use the network. */
static int datapath_connect_shm(struct datapath *d, const char *addr, uint16_t port,
	uint16_t thread, uint32_t peer_id, uint64_t instance, const void *key, void *user,
	struct xconn **ret)
{
	const struct trouble *t = datapath_find_trouble(d, instance, thread);
	struct attempt *a = datapath_find_attempt(d, NULL);
	int rc;

	if ((t && t->n >= TRIES) || !shm_peer_is_on_host(&d->cfg, instance, thread))
		return -ENOENT;
	rc = a ? d->shm->ops->connect(d->shm, addr, port, thread, peer_id, instance, key, user, ret)
	       : -EMFILE;
	if (rc < 0) {
		datapath_record_trouble(d, peer_id, instance, thread, err_str(rc));
		return -EAGAIN;
	}
	*a = (struct attempt){*ret, thread};
	return 0;
}

static int datapath_connect_peer(struct xport *x, const char *addr, uint16_t port, uint16_t thread,
	uint32_t peer_id, uint64_t instance, const void *key, void *user, struct xconn **ret)
{
	struct datapath *d = datapath_of_xport(x);
	int rc = datapath_connect_shm(d, addr, port, thread, peer_id, instance, key, user, ret);

	if (rc == 0 || rc == -EAGAIN)
		return rc;
	return d->net->ops->connect(d->net, addr, port, thread, peer_id, instance, key, user, ret);
}

/* Pass the events of the shared-memory transport to the core, and record whether connection
 * attempts succeed. */
static void on_shm_conn_up(void *ctx, struct xconn *c, uint32_t peer_id, uint64_t peer_instance)
{
	struct datapath *d = ctx;
	struct attempt *a = datapath_find_attempt(d, c);

	if (a) {
		forget_trouble(d, peer_instance, a->thread);
		a->conn = NULL;
	}
	d->pub.ev->up(d->pub.ctx, c, peer_id, peer_instance);
}

static void on_shm_conn_down(void *ctx, struct xconn *c, const char *why)
{
	struct datapath *d = ctx;
	struct attempt *a = datapath_find_attempt(d, c);

	if (a) {
		datapath_record_trouble(d, c->peer_id, c->peer_instance, a->thread, why);
		a->conn = NULL;
	}
	d->pub.ev->down(d->pub.ctx, c, why);
}

static void on_shm_conn_message(void *ctx, struct xconn *c, const struct wire_msg *m)
{
	struct datapath *d = ctx;

	d->pub.ev->message(d->pub.ctx, c, m);
}

static void on_shm_read_done(void *ctx, struct xport_read *r, int status)
{
	struct datapath *d = ctx;

	d->pub.ev->read_done(d->pub.ctx, r, status);
}

static void on_shm_conn_writable(void *ctx, struct xconn *c)
{
	struct datapath *d = ctx;

	d->pub.ev->writable(d->pub.ctx, c);
}

static void on_shm_task_done(void *ctx, struct xport_task *task)
{
	struct datapath *d = ctx;

	d->pub.ev->task_done(d->pub.ctx, task);
}

static const struct xport_events shm_events = {
	.up = on_shm_conn_up,
	.down = on_shm_conn_down,
	.message = on_shm_conn_message,
	.read_done = on_shm_read_done,
	.writable = on_shm_conn_writable,
	.task_done = on_shm_task_done,
};

static int datapath_segment_add(struct xport *x, void *mem, size_t bytes, uint16_t *ret_segment)
{
	struct datapath *d = datapath_of_xport(x);
	int rc = d->net->ops->seg_add(d->net, mem, bytes, ret_segment);

	if (rc == 0)
		shm_seg_set(d->shm, *ret_segment, mem, bytes);
	return rc;
}

static int datapath_segment_set(struct xport *x, uint16_t segment, void *mem, size_t bytes)
{
	struct datapath *d = datapath_of_xport(x);
	int rc = d->net->ops->seg_set(d->net, segment, mem, bytes);

	if (rc == 0)
		shm_seg_set(d->shm, segment, mem, bytes);
	return rc;
}

static int path_seg_share(struct xport *x, uint16_t segment, int fd)
{
	return datapath_of_xport(x)->shm->ops->seg_share(datapath_of_xport(x)->shm, segment, fd);
}

static void datapath_segment_del(struct xport *x, uint16_t segment)
{
	if (datapath_of_xport(x)
			->shm) /* datapath_free_xport sets shm to NULL before it frees net */
		datapath_of_xport(x)->shm->ops->seg_del(datapath_of_xport(x)->shm, segment);
	datapath_of_xport(x)->net->ops->seg_del(datapath_of_xport(x)->net, segment);
}

static int datapath_poll_both(struct xport *x, uint64_t now_ns)
{
	return datapath_of_xport(x)->shm->ops->poll(datapath_of_xport(x)->shm, now_ns) +
	       datapath_of_xport(x)->net->ops->poll(datapath_of_xport(x)->net, now_ns);
}

static int path_may_sleep(struct xport *x)
{
	/* Call may_sleep of both transports, even if the first call returns false, because
	 * may_sleep also sends queued messages. */
	int may_net = datapath_of_xport(x)->net->ops->may_sleep(datapath_of_xport(x)->net);

	return datapath_of_xport(x)->shm->ops->may_sleep(datapath_of_xport(x)->shm) && may_net;
}

static int datapath_poll_fd(struct xport *x)
{
	return datapath_of_xport(x)->epoll_fd;
}

static uint64_t path_next_deadline(struct xport *x)
{
	uint64_t net = datapath_of_xport(x)->net->ops->next_deadline(datapath_of_xport(x)->net);
	uint64_t shm = datapath_of_xport(x)->shm->ops->next_deadline(datapath_of_xport(x)->shm);

	return net < shm ? net : shm;
}

static void datapath_free_xport(struct xport *x)
{
	struct datapath *d = datapath_of_xport(x);

	xport_free(d->shm);
	/* xport_free(d->net) ends the reads of d->net. When a job's last read ends, the read's
	 * callback read_done calls datapath_segment_del. So set d->shm to NULL first:
	 * datapath_segment_del then does not use the freed transport. */
	d->shm = NULL;
	xport_free(d->net);
	if (d->epoll_fd >= 0)
		close(d->epoll_fd);
	free(d);
}

static const struct xport_ops path_ops = {
	.connect = datapath_connect_peer,
	.seg_add = datapath_segment_add,
	.seg_set = datapath_segment_set,
	.seg_share = path_seg_share,
	.seg_del = datapath_segment_del,
	.poll = datapath_poll_both,
	.may_sleep = path_may_sleep,
	.fd = datapath_poll_fd,
	.next_deadline = path_next_deadline,
	.free = datapath_free_xport,
};

static int datapath_watch_xport(struct datapath *d, struct xport *x)
{
	struct epoll_event ev = {.events = EPOLLIN};

	return epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, x->ops->fd(x), &ev) ? -errno : 0;
}

int datapath_new(struct net *net, const struct shm_config *same_host, unsigned thread,
	const struct xport_events *ev, void *ctx, struct xport **ret, struct err_text *err)
{
	struct datapath *d;
	struct err_text why;
	int rc;

	if (!same_host)
		return net_xport_new(net, thread, ev, ctx, ret, err);
	d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(err, -ENOMEM, "out of memory for the transport of a data thread");
	d->pub = (struct xport){.ops = &path_ops, .ev = ev, .ctx = ctx};
	d->cfg = *same_host;
	rc = net_xport_new(net, thread, ev, ctx, &d->net, err);
	if (rc < 0) {
		free(d);
		return rc;
	}
	if (shm_xport_new(same_host, thread, &shm_events, d, &d->shm, &why) < 0) {
		log_warn("cannot set up shared memory, so this thread uses the network for all "
			 "data: thread=%u: %s",
			thread, why.s);
		*ret = d->net;
		free(d);
		return 0;
	}
	d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	rc = d->epoll_fd < 0 ? -errno : datapath_watch_xport(d, d->net);
	if (rc == 0)
		rc = datapath_watch_xport(d, d->shm);
	if (rc < 0) {
		datapath_free_xport(&d->pub);
		return err_set(err, rc, "cannot watch the network and shared memory with epoll: %s",
			err_str(rc));
	}
	*ret = &d->pub;
	return 0;
}

bool datapath_is_shared(const struct xport *x)
{
	return x->ops->seg_share;
}
