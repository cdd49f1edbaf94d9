#ifndef BPS_SCHEDULER_STEER_H
#define BPS_SCHEDULER_STEER_H
/* Handles the requests of operators. An operator sends STEER to the control port, and the scheduler
 * answers with STEERED (common/wire/ctlmsg.h). HTTP requests cannot change anything. The key of the
 * peer decides whether the peer may send STEER: the peer needs the identity `ctl:NAME`. In a
 * cluster without a key, any process on loopback may send STEER. The user that STEER names is
 * recorded, but not checked.
 *
 * A verb is a command, such as "drain". Each verb has a row in the table of steer.c and a function.
 * The function may change the core and must not wait. To add a verb:
 *   - write the function, `int my_verb(struct steer *s, const struct steer_call *call,
 *     struct steer_reply *reply)`, in steer.c or in a file of its own. If it needs more objects,
 *     add them to struct steer and set them in main.c;
 *   - add a row to the table: the verb's name, whether the verb needs a target, its arguments, and
 *     whether it changes anything. Each call of a verb that changes something is recorded as an
 *     event, even if the call fails;
 *   - add to bpsctl a command that calls steer_call, and add a test;
 *   - add a row to docs/reference/protocol.md, and add a section to bpsctl(8).
 *
 * All functions run on the control loop's thread. */
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
	/* Return the channel of the connection that has the id `conn` in the core. */
	struct ctlchan *(*chan)(void *ctx, uint32_t conn);
	const struct tls_conf *auth; /* keys or certificates that the control port uses */
	/* Read the key file again. Returns 1 if the file has changed, 0 if not, or a negative error
	 * with a sentence in err. *ret_closed: number of connections that were closed, because
	 * their keys are not accepted any more. */
	int (*reload_keys)(void *ctx, unsigned *ret_closed, struct err_text *err);
};

struct steer_call {
	const struct ctl_steer *msg;
	const char *target; /* name of the target; the string belongs to msg */
	const char *who;    /* the user, such as "alice (uid 1000) on login1" */
	bool has_master;    /* the operator has the master key, or the cluster has no key */
	uint64_t now_ns;
};

#define STEER_WHO_BYTES (2 * CTL_NAME_MAX + 32)

struct steer_reply {
	/* a sentence for the operator: what was done, or why nothing was done */
	struct err_text text;
	json_t *json; /* data for the operator, a new reference; NULL: no data */
};

/* Verbs in keys.c. */
int keys_status(struct steer *s, const struct steer_call *call, struct steer_reply *reply);
int keys_reload(struct steer *s, const struct steer_call *call, struct steer_reply *reply);

/* Carry out the request that came on chan, answer it, and close chan. */
void steer_receive_request(
	struct steer *s, struct ctlchan *chan, const struct ctl_steer *msg, uint64_t now_ns);
#endif
