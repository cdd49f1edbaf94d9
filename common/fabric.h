#ifndef BPS_COMMON_FABRIC_H
#define BPS_COMMON_FABRIC_H
/* libfabric back-end of common/xport.h: FI_EP_MSG endpoints of provider tcp or verbs, API 1.17.
 *
 * A process has one struct fabric (provider, address, connection-management thread with the event
 * queue and, for a server, the listener with its ticket check) and one struct fabric_xport per data
 * thread (domain, completion queue, shared receive context). Manual progress: the owner calls
 * fabric_poll from its loop and may block only after fabric_may_sleep said so, watching fabric_fd.
 *
 * Tickets: 48 bytes with (magic, version, thread, agent id, credits, agent instance, nonce) and
 * their HMAC under the key that the scheduler gave to exactly these two instances; checked before
 * fi_accept; the accept answers with a proof of its own. A stranger on the port gets nothing. A
 * ticket has no expiry: it is good as long as the key function knows the pair, and once, since the
 * nonce counts the connects of its fabric and the listener keeps a window over that count.
 *
 * A peer that passed is trusted code: provider tcp can be crashed by one. */
#include <stdint.h>

#include "common/xport.h"

struct fabric;
struct fabric_xport;

struct fabric_config {
	const char *provider;  /* "tcp" or "verbs" */
	const char *bind_addr; /* numeric address of the interface to use */
	uint16_t port;         /* of the listener; 0: any */
	uint32_t is_listener;  /* servers listen, agents connect */
	uint32_t my_id;        /* member id */
	uint64_t my_instance;
	uint32_t n_threads; /* data threads = xports */
	uint32_t credits;   /* control receives granted per connection, 0: 64; at least 4 */
	uint32_t connect_timeout_ms; /* 0: 3000 */
	uint32_t ping_ms;            /* quiet connections are pinged this often (0: never) ... */
	uint32_t dead_ms;            /* ... and dropped after this silence; at least 2 * ping_ms */
};

/* Ask (on the connection-management thread; the implementation locks, and must not call the
 * fabric): is peer_id with this instance known, and which key do we share? Returns 0 and writes 32
 * bytes, or BPS_ENOTFOUND. */
typedef int (*fabric_key_fn)(void *ctx, uint32_t peer_id, uint64_t peer_instance, void *ret_key);

/* Open provider and address; with is_listener, listen. err gets the sentence (missing provider,
 * port in use, what to do). Starts the connection-management thread. Sets two environment variables
 * of libfabric, so call it before other threads look at the environment. */
int fabric_open(const struct fabric_config *cfg, fabric_key_fn key_fn, void *key_ctx,
	struct fabric **ret, struct err_text *err);
/* Stop and free; all xports must be freed before. NULL is allowed. */
void fabric_close(struct fabric *f);
uint16_t fabric_port(const struct fabric *f);

/* Set our member id once the scheduler has told it; before the first connect. */
void fabric_set_id(struct fabric *f, uint32_t my_id);

/* The xport of data thread `thread`. Call on any thread before that thread starts using it. */
int fabric_xport_new(struct fabric *f, unsigned thread, const struct xport_events *ev, void *ctx,
	struct xport **ret, struct err_text *err);
/* Close its connections (their read_done and down run now), then free it. On its own thread, or
 * after that has ended. NULL is allowed. */
void fabric_xport_free(struct xport *x);

/* Make progress and run callbacks: completions, connection events, queued sends, pings. Returns the
 * number of things done; 0 means nothing was there. At most 256 connections are taken per data
 * thread. */
int fabric_poll(struct xport *x, uint64_t now_ns);
/* Flush queued sends; true when it is safe to block on fabric_fd (fi_trywait), false: poll
 * again. */
int fabric_may_sleep(struct xport *x);
/* Descriptor that becomes readable when fabric_poll has something to do (an epoll set: completion
 * queue and the queue from the connection-management thread). */
int fabric_fd(struct xport *x);
/* Time of the next ping or deadline, UINT64_MAX for none. */
uint64_t fabric_next_deadline(struct xport *x);

struct fabric_stats {
	uint64_t rx_bytes, tx_bytes, messages_in, messages_out, reads, protocol_errors,
		refused_tickets, silent_strangers;
	uint32_t connections;
};
void fabric_stats(struct fabric *f, struct fabric_stats *ret);
#endif
