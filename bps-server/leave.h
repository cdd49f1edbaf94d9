#ifndef BPS_SERVER_LEAVE_H
#define BPS_SERVER_LEAVE_H
/* A server that is told to stop has its partitions moved to others first, so that no round waits
 * for it: it says LEAVE to the scheduler, goes on summing, and ends when nothing is here any more.
 *
 *   IDLE --stop--> ASKED --LEFT--> EMPTYING --nothing here, nobody reads--> the end
 *                    `--refused, no scheduler, or too late--------------------^
 *
 * EMPTYING: the scheduler has moved all, and agents may just be reading their last results here; a
 * second at most. Whatever goes wrong costs what a crash costs: the scheduler moves the partitions
 * when the connection is closed.
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
	/* Partitions and results that may still be read here, as of a moment ago. */
	uint64_t (*busy)(void *ctx);
	/* Now end. Once. */
	void (*over)(void *ctx);
};

struct leave {
	enum leave_state state;
	const struct leave_ops *ops;
	void *ctx;
	struct member *member;
	struct event *timer;
	uint64_t bound_ms, deadline_ns, begun_ns;
	uint64_t trusted_ns; /* EMPTYING: from then on ops->busy knows of the last plan */
	unsigned n_asked;
	bool is_over;
};

/* l: zeroed. member and ops outlive it. Errors: -ENOMEM with a sentence. */
int leave_init(struct leave *l, struct loop *loop, struct member *member,
	const struct leave_ops *ops, void *ctx, struct err_text *err);
/* NULL or half-built is fine. */
void leave_fini(struct leave *l);

/* The process is to end, within bound_ms. ops->over may run inside. */
void leave_begin(struct leave *l, uint64_t bound_ms);
/* The scheduler knows us again: it has to be asked anew. */
void leave_welcomed(struct leave *l);
/* LEFT has come. */
void leave_answered(struct leave *l, const struct ctl_left *msg);
static inline bool leave_is_begun(const struct leave *l)
{
	return l->state != LEAVE_IDLE;
}
#endif
