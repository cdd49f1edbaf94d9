#ifndef BPS_AGENT_IO_IO_IMPL_H
#define BPS_AGENT_IO_IO_IMPL_H
/* Structures that the files of bps-agent/io share.
 *   io_xport.c   the core's side: functions of struct xport_ops
 *   io_core.c    the core's side: events for the core
 *   io_cards.c   chooses the network cards of connections
 *   io_load.c    decides whether the threads run
 *   io_owner.c   the side of the thread that owns a transport: records, events of the transport
 *   io_thread.c  the loop of an I/O thread
 *   io_queue.c   the queues between the data thread and an I/O thread */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>

#include "bps-agent/io/io_queue.h"
#include "bps-agent/io/io_threads.h"
#include "common/loop/dataloop.h"
#include "common/wire/ticket.h"

/* Limit of the messages that wait for the I/O thread of a connection, in bytes. Bytes that an offer
 * sends eagerly count against ahead_bytes instead. */
#define IO_QUEUED_MAX (UINT32_C(128) << 10)
/* Limit of eager bytes that wait, if the connection's transport names none. */
#define IO_AHEAD_MAX (UINT32_C(2) << 20)
#define IO_ADDR_MAX  64
#define IO_WHY_MAX   192

enum io_kind {
	/* records for the I/O thread */
	IO_CONNECT,
	IO_SEND, /* also with a task */
	IO_READ,
	IO_CLOSE,
	IO_DECIDED,
	IO_RUN,
	IO_FORGET, /* the last record about a connection */
	/* records for the data thread */
	IO_UP,
	IO_DOWN,
	IO_MESSAGE,
	IO_READ_DONE,
	IO_SENT, /* messages have left the queue of the connection */
	IO_TASK_DONE,
	IO_FORGOTTEN, /* the answer to IO_FORGET */
};

struct io_record {
	struct io_head head;
	uint8_t kind; /* enum io_kind */
	/* IO_READ_DONE: the status of the read. IO_TASK_DONE: 1 after IO_RUN, else 0 */
	int status;
	struct io_conn *conn;
	uint64_t body[];
};

/* Bodies of records. IO_READ, IO_READ_DONE, IO_RUN and IO_TASK_DONE have a pointer, IO_DECIDED has
 * a number, IO_CLOSE and IO_DOWN have a text. */
struct io_connect {
	char addr[IO_ADDR_MAX];
	uint16_t port, thread;
	uint8_t key[TICKET_KEY_BYTES];
};
struct io_up {
	bool is_same_host;
	uint32_t ahead_bytes;
};
struct io_sent {
	uint32_t queued, ahead; /* bytes that have left */
	uint32_t ahead_bytes;   /* present limit of the connection's transport */
};
/* IO_SEND and IO_MESSAGE */
struct io_message {
	struct xport_task *task; /* must run before the message leaves; NULL: there is none */
	bool is_eager;
	struct wire_msg m;
	uint8_t payload[];
};

/* A message that waits because the transport has no room. */
struct io_deferred {
	STAILQ_ENTRY(io_deferred) link;
	struct io_message *msg;
};

/* A connection as the core sees it. */
struct io_conn {
	struct xconn pub; /* the first field, so that a struct xconn can be cast */
	struct io_thread *t;

	/* Fields of the data thread. */
	bool is_up, is_closing;
	bool is_down;           /* the connection is down, but reads have not ended yet */
	bool wants_writable;    /* a send was refused */
	uint32_t queued, ahead; /* bytes that wait for the I/O thread, see IO_QUEUED_MAX */
	uint32_t ahead_bytes;   /* limit of `ahead`; 0: IO_AHEAD_MAX */
	unsigned n_reads;
	bool is_moving;                /* io_conn_lose has closed it */
	uint64_t begun_ns;             /* time of the connect */
	struct sockaddr_storage peer;  /* address of the server; family 0: unknown */
	LIST_ENTRY(io_conn) all;       /* entry in x->conns */
	uint64_t n_handled, n_decided; /* messages that the core has handled; the number told */
	LIST_ENTRY(io_conn) undecided; /* entry in x->undecided if n_decided < n_handled */
	TAILQ_ENTRY(io_conn) gone;
	char why[IO_WHY_MAX];

	/* Fields of the owner of the thread's transport. */
	struct xconn *real; /* NULL: not connected yet, or down */
	STAILQ_HEAD(, io_deferred) deferred;
	uint32_t sent_queued, sent_ahead; /* bytes that have left since the last IO_SENT */
	bool is_dirty;                    /* IO_SENT is due; the connection is on t->dirty */
	LIST_ENTRY(io_conn) dirty;
	LIST_ENTRY(io_conn) of_thread; /* entry in t->conns while `real` is set */

	_Atomic uint64_t heard_ns; /* the owner stores it; relaxed, no other data depends on it */
};

/* A network card. Thread: the data thread. */
struct io_card {
	bool has_carrier;
	bool is_lost; /* its connections must begin again on other cards */
	/* No connection uses the card before unused_until_ns. unused_ns: length of the last such
	 * time after the card's connections had been silent */
	uint64_t unused_until_ns, unused_ns;
	uint32_t silent_peer; /* the server whose silence has shown that the card is lost */
	unsigned n_conns;     /* connections, without those within this host */
};
/* The cards over which connections to a server have ended without having been up. */
struct io_peer {
	uint32_t id;
	uint32_t unreachable; /* bit for each card */
	uint64_t until_ns;    /* when a new connection may use these cards again */
};

struct io_thread {
	struct io_xport *x;
	unsigned index, card;
	struct dataloop *loop;
	struct xport *real;      /* the transport */
	struct io_queue in, out; /* in: records for the thread; out: records for the data thread */
	uv_poll_t in_poll;

	/* The thread runs: events become records in `out`, and the core's calls records in `in`.
	 * Only the data thread changes it, while the thread is parked. */
	bool is_running;
	bool has_ended; /* the thread has been joined */
	/* Parking. wants_park is also read without the lock. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic bool wants_park;
	bool is_parked; /* guarded by the lock */

	/* Fields of the owner. */
	LIST_HEAD(, io_conn) dirty, conns;
	uint64_t heard_due_ns;

	/* Fields of the data thread. */
	unsigned n_conns, n_tasks; /* connections; tasks of xport_run */
	unsigned n_near;           /* connections within this host; they have no events */
	bool wants_poll;           /* while the thread is parked: the transport may have work */
	uint64_t look_busy_ns;     /* dataloop_busy_ns at the last look at the load */
	unsigned n_parks;          /* how often the thread was parked and not resumed */
};

struct io_xport {
	struct xport pub; /* the first field, so that a struct xport can be cast */
	struct io_config cfg;
	unsigned n_threads;
	bool is_running; /* the threads run */
	int epoll_fd;
	bool is_stopping; /* no thread may run again */
	bool is_armed;    /* may_sleep has armed the queues */
	uint64_t now_ns;
	/* Time in which the data thread had work; its value at the last look at the load (load_ns),
	 * and at the last look whether the threads are needed (look_ns). load_cpu_ns: the thread's
	 * processor time at the former. n_busy: how many times in a row the thread was busy */
	uint64_t busy_ns, load_busy_ns, look_busy_ns, load_ns, look_ns, load_cpu_ns, n_runs;
	unsigned n_busy;
	bool has_worked; /* there was work since the last poll */
	LIST_HEAD(, io_conn) undecided, conns;
	TAILQ_HEAD(, io_conn) gone; /* freed in the next poll */
	struct io_card cards[CARDS_MAX];
	struct io_peer *peers;
	unsigned n_peers;
	uint64_t balance_ns; /* when the division of the connections is looked at */
	bool has_speeds;     /* the speeds of all cards are known */
	/* When the threads began to run; 0: they are parked. Other threads may read it; relaxed. */
	_Atomic uint64_t run_at_ns;
	struct io_thread threads[IO_THREADS_MAX];
};

static inline struct io_xport *io_xport_of(struct xport *x)
{
	return (struct io_xport *)x;
}
static inline struct io_conn *io_conn_of(struct xconn *c)
{
	return (struct io_conn *)c;
}

/* ---- io_core.c. Thread: the data thread. ---- */
void io_core_up(struct io_conn *c, bool is_same_host, uint32_t ahead_bytes);
void io_core_down(struct io_conn *c, const char *why);
void io_core_message(struct io_conn *c, const struct wire_msg *m);
void io_core_read_done(struct io_conn *c, struct xport_read *r, int status);
void io_core_sent(struct io_conn *c, uint32_t queued, uint32_t ahead, uint32_t ahead_bytes);
void io_core_task_done(struct io_thread *t, struct xport_task *task);

/* Deliver the events that the thread has recorded. Returns how many there were. */
unsigned io_core_deliver(struct io_thread *t);
/* Return how many eager bytes may wait for the connection's thread. */
uint32_t io_conn_ahead_limit(const struct io_conn *c);
/* Take the connection off x->undecided. */
void io_conn_stop_deciding(struct io_conn *c);

/* ---- io_cards.c. Thread: the data thread. ---- */
/* Set c->peer from the text addr, choose the card of a new connection, and count the connection.
 * Returns the I/O thread. */
struct io_thread *io_cards_assign(struct io_xport *x, struct io_conn *c, const char *addr);
/* The connection is up. */
void io_cards_note_up(struct io_conn *c);
/* The connection is down, or could not begin. */
void io_cards_note_down(struct io_conn *c);
/* Let connections begin again on other cards, if their card is lost or has too many. */
void io_cards_balance(struct io_xport *x);
/* Return when io_cards_balance is due. */
static inline uint64_t io_cards_due_ns(const struct io_xport *x)
{
	return x->cfg.cards->n > 1 ? x->balance_ns : UINT64_MAX;
}

/* Return when the connection was last heard, or when it began. */
uint64_t io_conn_heard_ns(const struct io_conn *c);
/* End a connection as if the peer had closed it. */
void io_conn_lose(struct io_conn *c, const char *why);

/* ---- io_load.c. Thread: the data thread. ---- */
/* Let the threads run, or park them, as the load demands. */
void io_load_choose_owners(struct io_xport *x);
/* Return whether the threads must run. span_ns: time since the last look; busy_ns and cpu_ns: time
 * in which the data thread had work, and a processor. *n_busy: how many times in a row it was busy,
 * from the last call. */
bool io_load_is_high(uint64_t span_ns, uint64_t busy_ns, uint64_t cpu_ns, unsigned *n_busy);
/* Return when the load must be looked at while the threads run. */
uint64_t io_load_next_look_ns(const struct io_xport *x);
/* Own all transports until the data thread is busy again. */
void io_load_park(struct io_xport *x);
/* Empty both queues of a thread that does not run: this thread plays both sides. */
void io_load_drain(struct io_thread *t);
/* Set for which events of the thread's transport the data thread wakes up: EPOLLIN or 0. op: as for
 * epoll_ctl. Errors: -errno. */
int io_load_watch(struct io_thread *t, int op, uint32_t events);

/* ---- io_owner.c. Thread: the owner of the thread's transport. ---- */
extern const struct xport_events io_owner_events; /* their ctx is the struct io_thread */
/* Connect c. Errors: those of `connect` of struct xport_ops. */
int io_owner_connect(
	struct io_conn *c, const char *addr, uint16_t port, uint16_t thread, const void *key);
/* Run the task of the message, and send the message, now or when the transport has room. */
void io_owner_send(struct io_conn *c, struct io_message *msg);
/* Execute the records in t->in. Returns how many there were; at most `most`. */
unsigned io_owner_execute(struct io_thread *t, unsigned most);
/* Put the due IO_SENT into t->out. */
void io_owner_report_sent(struct io_thread *t);
/* Store when each connection last received anything. */
void io_owner_note_heard(struct io_thread *t);

/* ---- io_thread.c ---- */
/* Start the thread, parked. Errors: a negative code; err gets the text. */
int io_thread_start(struct io_thread *t, struct err_text *err);
/* Park the thread, and wait until it is parked. Then the caller owns the transport. */
void io_thread_park(struct io_thread *t);
/* Let a parked thread own the transport again. */
void io_thread_resume(struct io_thread *t);
/* End the thread. Afterwards the caller owns the transport. */
void io_thread_stop(struct io_thread *t);

/* ---- records ---- */
/* Add a record with a body of n_bytes bytes. */
static inline struct io_record *io_put(
	struct io_queue *q, enum io_kind kind, struct io_conn *c, size_t n_bytes)
{
	struct io_record *r = io_queue_put(q, sizeof(*r) + n_bytes);

	r->kind = (uint8_t)kind;
	r->status = 0;
	r->conn = c;
	return r;
}
static inline struct io_record *io_put_pointer(
	struct io_queue *q, enum io_kind kind, struct io_conn *c, void *p)
{
	struct io_record *r = io_put(q, kind, c, sizeof(p));

	memcpy(r->body, &p, sizeof(p));
	return r;
}
static inline void *io_pointer(const struct io_record *r)
{
	void *p;

	memcpy(&p, r->body, sizeof(p));
	return p;
}
static inline void io_put_text(
	struct io_queue *q, enum io_kind kind, struct io_conn *c, const char *text)
{
	struct io_record *r = io_put(q, kind, c, IO_WHY_MAX);

	snprintf((char *)r->body, IO_WHY_MAX, "%s", text);
}
static inline size_t io_message_bytes(const struct wire_msg *m)
{
	return sizeof(struct io_message) + (m->flags & WIRE_INLINE ? m->len : 0);
}
/* Copy m, its payload and its task to `to`, which has io_message_bytes(m) bytes. */
static inline void io_message_store(
	struct io_message *to, const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	to->task = task;
	to->is_eager = is_eager;
	to->m = *m;
	if (m->flags & WIRE_INLINE)
		to->m.payload = memcpy(to->payload, m->payload, m->len);
}
static inline void io_put_message(struct io_queue *q, enum io_kind kind, struct io_conn *c,
	const struct wire_msg *m, struct xport_task *task, bool is_eager)
{
	struct io_record *r = io_put(q, kind, c, io_message_bytes(m));

	io_message_store((struct io_message *)(void *)r->body, m, task, is_eager);
}
/* Return the message of a record. The record may have moved since it was written. */
static inline struct io_message *io_message_of(struct io_record *r)
{
	struct io_message *msg = (struct io_message *)(void *)r->body;

	if (msg->m.flags & WIRE_INLINE)
		msg->m.payload = msg->payload;
	return msg;
}
#endif
