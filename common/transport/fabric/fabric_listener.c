#include "common/transport/fabric/fabric_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/failpoint.h"
#include "common/base/log.h"

/* Connection requests may fill half of a queue; the rest is for news of connections we have. */
#define CM_REQUESTS_MAX (FABRIC_CM_QUEUE / 2)
/* Events of one queue before the others get their turn. */
#define CM_BATCH   64
#define CM_IDLE_MS 1000

static bool cm_queue_push(struct cm_queue *q, const struct cm_event *ev)
{
	uint64_t one = 1;
	unsigned n;
	bool ok;

	pthread_mutex_lock(&q->lock);
	n = atomic_load_explicit(&q->n, memory_order_relaxed);
	ok = n < (ev->kind == CM_REQUEST ? CM_REQUESTS_MAX : FABRIC_CM_QUEUE);
	if (ok) {
		q->ev[(q->head + n) % FABRIC_CM_QUEUE] = *ev;
		atomic_store_explicit(&q->n, n + 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&q->lock);
	/* A full eventfd counter is a pending wake-up too. */
	if (ok && write(q->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_error("cannot wake a data thread: %s", strerror(errno));
	return ok;
}

bool cm_queue_pop(struct cm_queue *q, struct cm_event *ret)
{
	unsigned n;

	pthread_mutex_lock(&q->lock);
	n = atomic_load_explicit(&q->n, memory_order_relaxed);
	if (n) {
		*ret = q->ev[q->head];
		OPENSSL_cleanse(q->ev[q->head].key, TICKET_KEY_BYTES);
		q->head = (q->head + 1) % FABRIC_CM_QUEUE;
		atomic_store_explicit(&q->n, n - 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&q->lock);
	return n;
}

void cm_reject(struct fabric *f, struct fi_info *info, const char *code)
{
	fi_reject(f->pep, info->handle, code, strlen(code));
	fi_freeinfo(info);
}

static struct fabric_xport *find_xport(struct fabric *f, unsigned thread)
{
	struct fabric_xport *x;

	for (x = LIST_FIRST(&f->xports); x; x = LIST_NEXT(x, link))
		if (x->thread == thread)
			return x;
	return NULL;
}

static const char other_version[] = "another version of the data protocol";

/* The whole check of a ticket. Fills ev and the data thread; otherwise returns why not. */
static const char *check_ticket(struct fabric *f, const void *data, size_t n_bytes,
	struct cm_event *ev, struct fabric_xport **ret_x)
{
	int rc = ticket_parse(data, n_bytes, &ev->ticket);

	if (rc)
		return rc == BPS_EVERSION ? other_version : "malformed ticket";
	if (ev->ticket.channel >= N_CHANNELS)
		return "ticket of the same-host path";
	if (f->key_fn(f->key_ctx, ev->ticket.peer_id, ev->ticket.instance, ev->key))
		return "unknown or replaced instance";
	if (ticket_verify(data, ev->key))
		return "wrong key";
	/* Any number of others may have begun before the second channel of a connection, so its
	 * count is not held against the window: it is good for that one connection, once
	 * (conn_accept). */
	if (ev->ticket.channel == CHANNEL_OF_CONNECTING && replay_check(&f->replay, &ev->ticket))
		return "replayed ticket";
	*ret_x = find_xport(f, ev->ticket.thread);
	return *ret_x ? NULL : "no such data thread";
}

static void on_request(struct fabric *f, const struct fi_eq_cm_entry *e, size_t n_bytes)
{
	struct cm_event ev = {.kind = CM_REQUEST, .info = e->info};
	struct fabric_xport *x;
	const char *why = check_ticket(f, e->data, n_bytes, &ev, &x);

	if (!why && FAILPOINT(NET_ACCEPT))
		why = "a failpoint says so";
	if (!why && !cm_queue_push(&x->queue, &ev)) {
		log_rated(LOG_WARN, "data thread is behind, connect refused thread=%u", x->thread);
		cm_reject(f, e->info, REFUSED_BUSY);
	} else if (why) {
		atomic_fetch_add_explicit(&f->refused, 1, memory_order_relaxed);
		log_rated(LOG_WARN, "connect refused: %s peer=%u instance=%016lx", why,
			ev.ticket.peer_id, (unsigned long)ev.ticket.instance);
		cm_reject(f, e->info, why == other_version ? REFUSED_VERSION : REFUSED_TICKET);
	}
	OPENSSL_cleanse(&ev, sizeof(ev));
}

static void tell(struct fabric_xport *x, struct cm_event *ev)
{
	/* What is lost here a time-out, a ping or the completion queue will tell again. */
	if (!cm_queue_push(&x->queue, ev))
		log_rated(LOG_WARN, "connection event dropped, data thread is behind thread=%u",
			x->thread);
}

/* x is NULL for the listener's queue. */
static void on_event(struct fabric *f, struct fabric_xport *x, uint32_t event,
	const struct fi_eq_cm_entry *e, size_t n_bytes)
{
	struct cm_event ev = {.fid = e->fid};

	if (event == FI_CONNREQ) {
		on_request(f, e, n_bytes);
		return;
	}
	if (!x)
		return;
	if (event == FI_CONNECTED) {
		ev.kind = CM_CONNECTED;
		ev.data_bytes = (uint32_t)(n_bytes < PROOF_BYTES ? n_bytes : PROOF_BYTES);
		memcpy(ev.data, e->data, ev.data_bytes);
		tell(x, &ev);
	} else if (event == FI_SHUTDOWN) {
		ev.kind = CM_DOWN;
		tell(x, &ev);
	}
}

static void on_error(struct fabric_xport *x, struct fid_eq *eq)
{
	struct fi_eq_err_entry e = {0};
	struct cm_event ev = {.kind = CM_DOWN};
	uint8_t data[256];

	e.err_data = data;
	e.err_data_size = sizeof(data);
	if (fi_eq_readerr(eq, &e, 0) < 0 || !x)
		return;
	ev.fid = e.fid;
	ev.err = e.err > 0 ? e.err : EIO;
	if (e.err_data && e.err_data_size) {
		ev.data_bytes = (uint32_t)(e.err_data_size < 8 ? e.err_data_size : 8);
		memcpy(ev.data, e.err_data, ev.data_bytes);
	}
	tell(x, &ev);
}

/* Returns the number of events. */
static int drain_eq(struct fabric *f, struct fabric_xport *x, struct fid_eq *eq)
{
	union {
		struct fi_eq_cm_entry e;
		uint8_t room[sizeof(struct fi_eq_cm_entry) + 256];
	} u;

	int i;

	for (i = 0; i < CM_BATCH; i++) {
		uint32_t event;
		ssize_t n;

		/* Provider tcp 1.17 takes an old EAGAIN for the reason why a handshake is too
		 * short, waits for more of it for ever and so loses a descriptor to everybody who
		 * hangs up. */
		errno = 0;
		n = fi_eq_read(eq, &event, &u, sizeof(u), 0);

		if (n == -FI_EAVAIL)
			on_error(x, eq);
		else if (n < (ssize_t)sizeof(u.e))
			break;
		else
			on_event(f, x, event, &u.e, (size_t)n - sizeof(u.e));
	}
	return i;
}

static int drain_all(struct fabric *f)
{
	struct fabric_xport *x;
	int n = f->eq ? drain_eq(f, NULL, f->eq) : 0;

	for (x = LIST_FIRST(&f->xports); x; x = LIST_NEXT(x, link))
		n += drain_eq(f, x, x->eq);
	return n;
}

/* Read all event queues; true when it is safe to block on them. */
static bool cm_round(struct fabric *f)
{
	struct fabric_xport *x;
	struct fid *fid;
	bool ok = true;

	pthread_mutex_lock(&f->lock);
	drain_all(f);
	if (f->eq) {
		fid = &f->eq->fid;
		ok = fi_trywait(f->fabric, &fid, 1) == 0;
	}
	for (x = LIST_FIRST(&f->xports); x; x = LIST_NEXT(x, link)) {
		fid = &x->eq->fid;
		ok = fi_trywait(f->fabric, &fid, 1) == 0 && ok;
	}
	/* fi_trywait forgets the signal of an event that a data thread has queued since the
	 * drain. */
	ok = drain_all(f) == 0 && ok;
	pthread_mutex_unlock(&f->lock);
	return ok;
}

static bool must_stop(int fd)
{
	uint64_t n;

	return read(fd, &n, sizeof(n)) == sizeof(n);
}

void *cm_main(void *arg)
{
	struct fabric *f = arg;
	struct epoll_event ev[8];

	pthread_setname_np(pthread_self(), "bps-connect");
	while (!must_stop(f->stop_fd)) {
		if (cm_round(f))
			epoll_wait(f->epoll_fd, ev, 8, CM_IDLE_MS);
		strangers_sweep(f);
	}
	return NULL;
}
