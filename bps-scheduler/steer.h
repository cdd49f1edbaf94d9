#ifndef BPS_SCHEDULER_STEER_H
#define BPS_SCHEDULER_STEER_H
/* Requests of operators over the control port: STEER, answered by STEERED (common/wire/ctlmsg.h).
 * HTTP only reads. Who may steer is decided by the key: identity `ctl:NAME`, or any process on
 * loopback when the cluster has no key. The user that STEER names is recorded, not checked.
 *
 * A verb is a row of the table in steer.c and a function that acts at once: it may change the core,
 * and must not wait. To add one:
 *   - `int my_verb(struct steer *s, const struct steer_call *call, struct steer_reply *reply)`,
 *     here or in a file of its own, with what it needs as a member of struct steer, set in main.c;
 *   - its row: name, whether it wants a target, the arguments that it knows, whether it changes
 *     anything (then an event "who did what" is kept, whatever came of it);
 *   - a row in docs/reference/protocol.md, a word of bpsctl that calls steer_call, bpsctl(8), a
 *     test.
 *
 * Thread: the control loop's. */
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/status/events.h"
#include "common/control/tls.h"

struct ctlchan;

/* The objects that verbs act on; main.c fills them in. */
struct steer {
	void *ctx;
	struct sched_core *core;
	struct event_ring *events;
	/* Return the channel of the connection that has this number in the core. */
	struct ctlchan *(*chan)(void *ctx, uint32_t conn);
	const struct tls_conf *auth; /* in force */
	/* Read the key file again. Returns 1 when it has changed, else 0; errors with a sentence.
	 * ret_closed: connections that are not accepted any more. */
	int (*reload_keys)(void *ctx, unsigned *ret_closed, struct err_text *err);
};

struct steer_call {
	const struct ctl_steer *msg;
	const char *target; /* msg's */
	const char *who;    /* "alice (uid 1000) on login1" */
	bool has_master;    /* the operator has the master key, or there is no key at all */
	uint64_t now_ns;
};

#define STEER_WHO_BYTES (2 * CTL_NAME_MAX + 32)

struct steer_reply {
	struct err_text text; /* what was done, or why not */
	json_t *json;         /* NULL: none; a verb's new reference */
};

/* keys.c */
int keys_status(struct steer *s, const struct steer_call *call, struct steer_reply *reply);
int keys_reload(struct steer *s, const struct steer_call *call, struct steer_reply *reply);

/* Carry out what came on chan, answer and close it. */
void steer_handle(
	struct steer *s, struct ctlchan *chan, const struct ctl_steer *msg, uint64_t now_ns);
#endif
