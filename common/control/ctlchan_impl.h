#ifndef BPS_COMMON_CONTROL_CTLCHAN_IMPL_H
#define BPS_COMMON_CONTROL_CTLCHAN_IMPL_H
/* Internal declarations of the control channel, shared by ctlchan.c (one connection) and
 * ctllisten.c (the listener with its limits for strangers). */
#include <stdbool.h>
#include <sys/queue.h>

#include <event2/event.h>

#include "common/control/ctlchan.h"

enum chan_state { DIALING, HANDSHAKE, UNTRUSTED, TRUSTED, FLUSHING, DEAD };

TAILQ_HEAD(chan_list, ctlchan);

struct ctlchan {
	TAILQ_ENTRY(ctlchan) link; /* link in the list that `list` points to */
	struct chan_list *list;    /* the listener's list that holds this connection, or NULL */
	struct ctllisten *listener;
	struct event_base *base;
	struct bufferevent *bev;
	/* Fires at the deadline of the state. In state DEAD the timer fires at once, and its
	 * callback frees the connection */
	struct event *timer;
	struct event *dial; /* DIALING: fires when the connect has finished */
	struct tls *tls;
	const struct ctlchan_ops *ops;
	void *arg;
	void *data;
	enum chan_state state;
	bool has_opened, is_expelled;
	bool has_heard; /* at least one frame was received */
	struct tls_peer who;
	char peer[ADDR_TEXT_BYTES];
	struct sockaddr_storage peer_sa;
	uint64_t born_ms;
	size_t stranger_bytes; /* bytes of frames received before the peer was trusted */
	char reason[ERR_TEXT_BYTES];
};

struct ctllisten {
	struct event_base *base;
	struct evconnlistener *listener;
	struct event *resume; /* timer that ends a pause of the listener */
	bool is_full;         /* the listener is paused, because there are too many strangers */
	struct tls *tls;
	struct ctllisten_conf conf;
	const struct ctlchan_ops *ops;
	void *arg;
	struct chan_list untrusted; /* untrusted connections, oldest first */
	struct chan_list trusted;
	struct chan_list dying;
	struct ctllisten_stats stats;
	struct ctllisten_refusal refusals[CTLLISTEN_REFUSALS_KEPT];
	unsigned next_refusal; /* index of the oldest refusal, which the next refusal replaces */
	uint64_t next_log_ms;
	unsigned n_unlogged;
};

static inline void chan_timer_start(struct event *timer, uint32_t ms)
{
	struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};

	evtimer_add(timer, &tv);
}

/* Functions of ctlchan.c. */
/* Make a connection that is in the given state and in no list. Returns NULL when out of memory. */
struct ctlchan *chan_new(struct event_base *base, const struct sockaddr *sa, socklen_t sa_len,
	enum chan_state state, const struct ctlchan_ops *ops, void *arg);
/* Start to receive frames on a connected socket, with TLS if there is a key. Takes ownership of fd,
 * also when the function fails.
 * Errors: -ENOMEM. */
int chan_start_bufferevent(struct ctlchan *c, int fd);
/* Mark the connection as open, so that frames may be sent, and call the owner's opened(). */
void chan_complete_opening(struct ctlchan *c);
/* End the connection now, with the reason. The caller may be inside a callback of this connection.
 * So only the next iteration of the event loop runs closed() and frees c. */
void chan_fail(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Free the connection. If the owner must be notified of the end, call closed() first. */
void chan_reap(struct ctlchan *c);
/* Check an address that is used without a cluster key. Returns 0 if sa is a loopback address. Else
 * returns -EPERM, and err gets a text that contains `verb` and `option`. `verb`: the action that is
 * refused, such as "listen on". `option`: advice for the user, such as "set a key file". */
int chan_refuse_without_key(
	const struct sockaddr *sa, const char *verb, const char *option, struct err_text *err);

/* Functions of ctllisten.c. */
/* Move a connection to one of its listener's lists. If list is NULL, only remove the connection
 * from its present list. Does nothing for a connection made by ctlchan_connect. */
void listen_move_chan(struct ctlchan *c, struct chan_list *list);
/* Record the failed handshake of a peer that claimed this identity. Does nothing if the identity
 * is empty. */
void listen_note_refusal(struct ctllisten *l, const char *identity);
/* Log that a stranger was refused, at most one line per minute. */
void listen_log_refusal(struct ctllisten *l, const struct ctlchan *c);
#endif
