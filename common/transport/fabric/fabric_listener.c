/* The connection-management thread of the libfabric transport: read the listener's event queue,
 * check tickets, refuse clients without a valid ticket, pass connection requests to the data
 * threads. Unless has_own_events is set (fabric_gates.h), the thread also reads the event queues of
 * the data threads. The thread never accesses a struct fabric_conn. Thread: the
 * connection-management thread; fabric_read_events and the functions that it calls may also run on
 * a data thread. */
#include "common/transport/fabric/fabric_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "common/base/log.h"

/* Connection requests may fill half of a data thread's queue. The other half is for events of the
 * thread's connections. */
#define CM_REQUESTS_MAX (FABRIC_CM_QUEUE / 2)
/* Number of events of one queue after which the next queue is handled. */
#define CM_BATCH   64
#define CM_IDLE_MS 1000

void fabric_cm_reject(struct fabric *f, struct fi_info *info, const char *word)
{
	uint8_t out[REFUSED_BYTES];

	ticket_format_refusal(word, out);
	fi_reject(f->pep, info->handle, out, sizeof(out));
	fi_freeinfo(info);
}

static void on_fabric_conn_request(struct fabric *f, const struct fi_eq_cm_entry *e, size_t n_bytes)
{
	struct fabric_cm_event ev = {.kind = CM_REQUEST, .info = e->info};
	const char *why = net_check_ticket(&f->base, e->data, n_bytes, &ev.ticket, ev.key);
	struct net_thread *t = NULL;

	if (!why && !(t = net_find_thread(&f->base, ev.ticket.thread)))
		why = "its data thread does not exist";
	if (why) {
		fabric_cm_reject(f, e->info, net_record_refusal(&f->base, &ev.ticket, why));
	} else if (handover_queue_push(&t->queue, &ev, CM_REQUESTS_MAX)) {
		log_rated(LOG_WARN,
			"refused a data connection, because its data thread is overloaded: "
			"thread=%u",
			ev.ticket.thread);
		fabric_cm_reject(f, e->info, REFUSED_BUSY);
	}
	OPENSSL_cleanse(&ev, sizeof(ev));
}

static void fabric_queue_cm_event(struct fabric_xport *x, struct fabric_cm_event *ev)
{
	/* If the queue is full, drop the event. A timeout, a ping or the completion queue reports
	 * the end of the connection later. */
	if (handover_queue_push(&x->shared.queue, ev, FABRIC_CM_QUEUE))
		log_rated(LOG_WARN,
			"dropped the report of an opened or closed connection, because the data "
			"thread is overloaded: thread=%u",
			x->base.thread);
}

/* Handle one event; x is NULL for the listener's queue. */
static void on_fabric_cm_event(struct fabric *f, struct fabric_xport *x, uint32_t event,
	const struct fi_eq_cm_entry *e, size_t n_bytes)
{
	struct fabric_cm_event ev = {.fid = e->fid};

	if (event == FI_CONNREQ) {
		on_fabric_conn_request(f, e, n_bytes);
		return;
	}
	if (!x)
		return;
	if (event == FI_CONNECTED) {
		ev.kind = CM_CONNECTED;
		ev.data_bytes = (uint32_t)(n_bytes < PROOF_BYTES ? n_bytes : PROOF_BYTES);
		memcpy(ev.data, e->data, ev.data_bytes);
		fabric_queue_cm_event(x, &ev);
	} else if (event == FI_SHUTDOWN) {
		ev.kind = CM_DOWN;
		fabric_queue_cm_event(x, &ev);
	}
}

static void on_fabric_cm_error(struct fabric_xport *x, struct fid_eq *eq)
{
	struct fi_eq_err_entry e = {0};
	struct fabric_cm_event ev = {.kind = CM_DOWN};
	uint8_t data[256];

	e.err_data = data;
	e.err_data_size = sizeof(data);
	if (fi_eq_readerr(eq, &e, 0) < 0 || !x)
		return;
	ev.fid = e.fid;
	ev.err = e.err > 0 ? e.err : EIO;
	if (e.err_data && e.err_data_size) {
		ev.data_bytes = (uint32_t)(e.err_data_size < REFUSED_BYTES ? e.err_data_size
									   : REFUSED_BYTES);
		memcpy(ev.data, e.err_data, ev.data_bytes);
	}
	fabric_queue_cm_event(x, &ev);
}

/* Handle the events in a queue. Returns the number of handled events. */
static int fabric_drain_event_queue(struct fabric *f, struct fabric_xport *x, struct fid_eq *eq)
{
	union {
		struct fi_eq_cm_entry e;
		uint8_t room[sizeof(struct fi_eq_cm_entry) + 256];
	} u;

	int i;

	for (i = 0; i < CM_BATCH; i++) {
		uint32_t event;
		ssize_t n;

		/* Reset errno, because provider tcp 1.17 reads errno even when no call has set it.
		 * When a peer closes in the middle of its handshake, an EAGAIN that is still in
		 * errno makes the provider wait without end. Then each such peer would cost a
		 * descriptor. */
		errno = 0;
		n = fi_eq_read(eq, &event, &u, sizeof(u), 0);

		if (n == -FI_EAVAIL)
			on_fabric_cm_error(x, eq);
		else if (n < (ssize_t)sizeof(u.e))
			break;
		else
			on_fabric_cm_event(f, x, event, &u.e, (size_t)n - sizeof(u.e));
	}
	return i;
}

int fabric_read_events(struct fabric_xport *x)
{
	return fabric_drain_event_queue(x->f, x, x->eq);
}

static int fabric_drain_all_queues(struct fabric *f)
{
	struct net_thread *t;
	int n = f->eq ? fabric_drain_event_queue(f, NULL, f->eq) : 0;

	if (f->gates.has_own_events)
		return n;
	LIST_FOREACH (t, &f->base.threads, link)
		n += fabric_read_events((struct fabric_xport *)t->x);
	return n;
}

/* Read all event queues of this thread. Returns true when the thread may block on them. */
static bool fabric_cm_drain_may_block(struct fabric *f)
{
	struct net_thread *t;
	struct fid *fid;
	bool ok = true;

	pthread_mutex_lock(&f->base.lock);
	fabric_drain_all_queues(f);
	if (f->eq) {
		fid = &f->eq->fid;
		ok = fi_trywait(f->fabric, &fid, 1) == 0;
	}
	if (!f->gates.has_own_events)
		LIST_FOREACH (t, &f->base.threads, link) {
			fid = &((struct fabric_xport *)t->x)->eq->fid;
			ok = fi_trywait(f->fabric, &fid, 1) == 0 && ok;
		}
	/* Read again, because fi_trywait clears the signal of an event that a data thread has
	 * queued since the first drain. */
	ok = fabric_drain_all_queues(f) == 0 && ok;
	pthread_mutex_unlock(&f->base.lock);
	return ok;
}

static bool stop_event_is_set(int fd)
{
	uint64_t n;

	return read(fd, &n, sizeof(n)) == sizeof(n);
}

void *fabric_cm_main(void *arg)
{
	struct fabric *f = arg;
	struct epoll_event ev[8];

	pthread_setname_np(pthread_self(), "bps-connect");
	while (!stop_event_is_set(f->stop_fd)) {
		if (fabric_cm_drain_may_block(f))
			epoll_wait(f->epoll_fd, ev, 8, CM_IDLE_MS);
		fabric_sweep_silent(f);
	}
	return NULL;
}
