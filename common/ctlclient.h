#ifndef BPS_COMMON_CTLCLIENT_H
#define BPS_COMMON_CTLCLIENT_H
/* The end of the control channel that connects, and comes back by itself: at 0, 100 and 300 ms
 * after a loss (100 and 300 when it had stood for less than a second), then at random times of up
 * to 2 s, so that a thousand agents do not return at once. Each attempt takes the next of the given
 * addresses, and the next of the numbers that a name stands for. There is no end to the attempts;
 * the owner gives up by freeing.
 *
 *   WAITING ──> RESOLVING ──> DIALING ──> UP ──> WAITING        (each failure leads to WAITING)
 *
 * Thread: that of the event loop. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/addr.h"
#include "common/error.h"
#include "common/key.h"

struct event_base;
struct ctlclient;

struct ctlclient_ops {
	/* The connection stands; say hello. */
	void (*up)(void *arg, struct ctlclient *c);
	/* One frame; body is lent for the call. */
	void (*frame)(
		void *arg, struct ctlclient *c, uint16_t type, const uint8_t *body, size_t n_body);
	/* was_up: the connection is lost; else: one more attempt failed. Attempts go on. */
	void (*down)(void *arg, struct ctlclient *c, const char *reason, bool was_up);
};

#define CTLCLIENT_MAX_ADDRS 8

struct ctlclient_conf {
	struct addr addrs[CTLCLIENT_MAX_ADDRS];
	size_t n_addrs;
	bool has_key; /* false: loopback addresses only */
	struct cluster_key key;
	const char *identity;        /* "server:node7"; lent for ctlclient_new */
	uint32_t attempt_timeout_ms; /* connect and handshake; 0: 2000 */
};

/* The first attempt is made at the loop's next turn. ops must outlive the client; conf is copied.
 * Errors: -EINVAL, -ENOMEM, -EIO with a sentence. No callback runs inside. */
int ctlclient_new(struct ctlclient **ret_client, struct event_base *base,
	const struct ctlclient_conf *conf, const struct ctlclient_ops *ops, void *arg,
	struct err_text *err);

/* As ctlchan_send; BPS_ECLOSED while it is not up. */
int ctlclient_send(struct ctlclient *c, uint16_t type, const void *body, size_t n_body);

/* Drop the connection (no heartbeat came, say); down() runs later, then the attempts begin. */
void ctlclient_drop(struct ctlclient *c, const char *reason);

/* Close without down(); what is still queued is dropped. Not from inside a callback. NULL is
 * allowed. */
void ctlclient_free(struct ctlclient *c);
#endif
