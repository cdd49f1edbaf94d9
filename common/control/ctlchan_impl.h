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
	TAILQ_ENTRY(ctlchan) link; /* in one list of the listener */
	struct chan_list *list;    /* NULL at the connector */
	struct ctllisten *listener;
	struct event_base *base;
	struct bufferevent *bev;
	struct event *timer; /* deadline of the state; in DEAD it fires at once and frees */
	struct event *dial;  /* DIALING: fires when the connect has finished */
	struct tls *tls;
	const struct ctlchan_ops *ops;
	void *arg;
	void *data;
	enum chan_state state;
	bool has_opened, is_expelled;
	bool has_heard; /* a frame was received */
	struct tls_peer who;
	char peer[ADDR_TEXT_BYTES];
	struct sockaddr_storage peer_sa;
	uint64_t born_ms;
	size_t stranger_bytes; /* bytes of frames received before it was trusted */
	char reason[ERR_TEXT_BYTES];
};

struct ctllisten {
	struct event_base *base;
	struct evconnlistener *listener;
	struct event *resume; /* ends a pause of accepting */
	bool is_full;         /* too many strangers: accepting pauses */
	struct tls *tls;
	struct ctllisten_conf conf;
	const struct ctlchan_ops *ops;
	void *arg;
	struct chan_list untrusted; /* oldest first */
	struct chan_list trusted;
	struct chan_list dying;
	struct ctllisten_stats stats;
	struct ctllisten_refusal refusals[CTLLISTEN_REFUSALS_KEPT];
	unsigned next_refusal; /* the oldest */
	uint64_t next_log_ms;
	unsigned n_unlogged;
};

static inline void chan_arm(struct event *timer, uint32_t ms)
{
	struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000};

	evtimer_add(timer, &tv);
}

/* Functions of ctlchan.c. */
/* Make a connection in its first state, on no list. NULL: out of memory. */
struct ctlchan *chan_new(struct event_base *base, const struct sockaddr *sa, socklen_t sa_len,
	enum chan_state state, const struct ctlchan_ops *ops, void *arg);
/* Start with a connected socket; owns fd, also on failure.
 * Errors: -ENOMEM. */
int chan_start(struct ctlchan *c, int fd);
/* Mark the connection open: frames may be sent, and the owner's opened() runs. */
void chan_opened(struct ctlchan *c);
/* End the connection now. The callback and the freeing wait for the loop's next turn, because the
 * caller may be a callback of this very connection. */
void chan_fail(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Report the end to the owner, and free the connection. */
void chan_reap(struct ctlchan *c);
/* Return -EPERM with a sentence unless sa is a loopback address. */
int chan_refuse_without_key(
	const struct sockaddr *sa, const char *verb, const char *option, struct err_text *err);

/* Functions of ctllisten.c. */
/* Move a listener's connection to one of its lists; NULL: none. Does nothing at a connector. */
void listen_move(struct ctlchan *c, struct chan_list *list);
/* Record the failed handshake of a peer that claimed this identity ("": none). */
void listen_note_refusal(struct ctllisten *l, const char *identity);
/* Log that a stranger was refused: one line a minute. */
void listen_log_refusal(struct ctllisten *l, const struct ctlchan *c);
#endif
