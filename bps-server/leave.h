#ifndef BPS_SERVER_LEAVE_H
#define BPS_SERVER_LEAVE_H
/* A server that is stopped moves its partitions to other servers first, so that no round waits for
 * it. It sends LEAVE to the scheduler, goes on summing, and ends when it has no partitions left.
 *
 *   IDLE --stop--> ASKED --LEFT--> EMPTYING --no partitions, no reads--> the end
 *                    `--refused, no scheduler, or too late----------------^
 *
 * EMPTYING: the scheduler has moved all partitions. Agents may still read their last results here,
 * for at most a second. A failure on the way costs no more than a crash: the scheduler moves the
 * partitions when the connection closes.
 *
 * Thread: the control loop's. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/wire/ctlmsg.h"

struct event;
struct loop;
struct member;

enum leave_state { LEAVE_IDLE, LEAVE_ASKED, LEAVE_EMPTYING, LEAVE_STATES };

struct leave_ops {
	/* Return the number of partitions and results here that may still be read, as of a moment
	 * ago. */
	uint64_t (*busy)(void *ctx);
	/* End the process now. Called once. */
	void (*over)(void *ctx);
};

struct leave {
	enum leave_state state;
	const struct leave_ops *ops;
	void *ctx;
	struct member *member;
	struct event *timer;
	uint64_t bound_ms, deadline_ns, begun_ns;
	/* EMPTYING: from this time on, ops->busy includes the effect of the last plan */
	uint64_t trusted_ns;
	unsigned n_asked;
	bool is_over;
};

/* l: zeroed. member and ops outlive it. Errors: -ENOMEM with a text. */
int leave_init(struct leave *l, struct loop *loop, struct member *member,
	const struct leave_ops *ops, void *ctx, struct err_text *err);
/* l may be NULL or partly initialized. */
void leave_fini(struct leave *l);

/* Start to leave; the process ends within bound_ms. May call ops->over. */
void leave_begin(struct leave *l, uint64_t bound_ms);
/* The scheduler has welcomed the server again: send LEAVE again. */
void leave_welcomed(struct leave *l);
/* LEFT has arrived. */
void leave_answered(struct leave *l, const struct ctl_left *msg);
static inline bool leave_is_begun(const struct leave *l)
{
	return l->state != LEAVE_IDLE;
}
#endif
