#ifndef BPS_COMMON_CONTROL_CTLCHAN_IMPL_H
#define BPS_COMMON_CONTROL_CTLCHAN_IMPL_H
/* What the two files of the control channel share: ctlchan.c one connection, ctllisten.c the
 * listener with its limits for strangers. */
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
	struct event *timer; /* the state's deadline; in DEAD it runs at once and frees */
	struct event *dial;  /* DIALING: writable means connected */
	struct tls *tls;
	const struct ctlchan_ops *ops;
	void *arg;
	void *data;
	enum chan_state state;
	bool has_opened, is_expelled;
	bool has_heard; /* a frame came */
	struct tls_peer who;
	char peer[ADDR_TEXT_BYTES];
	struct sockaddr_storage peer_sa;
	uint64_t born_ms;
	size_t stranger_bytes; /* of frames, before it was trusted */
	char reason[ERR_TEXT_BYTES];
};

struct ctllisten {
	struct event_base *base;
	struct evconnlistener *listener;
	struct event *resume; /* ends a pause of accepting */
	bool is_full;         /* of strangers: it pauses */
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

/* ctlchan.c */
/* A connection in its first state, on no list. NULL: out of memory. */
struct ctlchan *chan_new(struct event_base *base, const struct sockaddr *sa, socklen_t sa_len,
	enum chan_state state, const struct ctlchan_ops *ops, void *arg);
/* The TCP connection stands; fd is taken, also on failure. Errors: -ENOMEM. */
int chan_start(struct ctlchan *c, int fd);
/* Frames may go; the owner is told. */
void chan_opened(struct ctlchan *c);
/* End the connection now. The callback and the freeing wait for the loop's next turn, because the
 * caller may be a callback of this very connection. */
void chan_fail(struct ctlchan *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Tell the owner of its end, and free it. */
void chan_reap(struct ctlchan *c);
/* -EPERM with a sentence unless sa is a loopback address. */
int chan_refuse_without_key(
	const struct sockaddr *sa, const char *verb, const char *option, struct err_text *err);

/* ctllisten.c */
/* Put a connection of a listener onto one of its lists, NULL: none. Nothing at a connector. */
void listen_move(struct ctlchan *c, struct chan_list *list);
/* A handshake of a peer that claimed this identity ("": none) has failed. */
void listen_note_refusal(struct ctllisten *l, const char *identity);
/* A stranger was turned away: one line a minute. */
void listen_log_refusal(struct ctllisten *l, const struct ctlchan *c);
#endif
