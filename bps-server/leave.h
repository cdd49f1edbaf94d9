#ifndef BPS_SERVER_LEAVE_H
#define BPS_SERVER_LEAVE_H
/* Before a server stops on request, its partitions move to other servers, so that no round waits
 * for the server. The server sends LEAVE to the scheduler, continues to sum, and ends when it has
 * no partitions left.
 *
 *   IDLE --stop--> ASKED --LEFT--> EMPTYING --no partitions, no reads--> the end
 *                    `--refused, no scheduler, or too late----------------^
 *
 * EMPTYING: the scheduler has moved all partitions. Agents may still read their last results from
 * this server, for at most a second.
 *
 * If leaving fails, the process ends anyway. In that case, the scheduler moves the partitions when
 * the server's connection closes, as after a crash.
 *
 * All functions run on the control loop's thread. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"
#include "common/wire/ctlmsg.h"

struct event;
struct loop;
struct member;

enum leave_state { LEAVE_IDLE, LEAVE_ASKED, LEAVE_EMPTYING, LEAVE_STATES };

struct leave_ops {
	/* Return the number of partitions on this server plus the number of results that may still
	 * be read. The total may be a fraction of a second old. */
	uint64_t (*busy)(void *ctx);
	/* End the process now. Called at most once. */
	void (*over)(void *ctx);
};

struct leave {
	enum leave_state state;
	const struct leave_ops *ops;
	void *ctx;
	struct member *member;
	struct event *timer;
	uint64_t bound_ms, deadline_ns, begun_ns;
	/* used in EMPTYING: from this time on, the result of ops->busy includes the effect of the
	 * most recent plan */
	uint64_t trusted_ns;
	unsigned n_asked;
	bool is_over;
};

/* Initialize l, which must be zeroed. member and ops must outlive l. Errors: -ENOMEM; err has the
 * text. */
int leave_init(struct leave *l, struct loop *loop, struct member *member,
	const struct leave_ops *ops, void *ctx, struct err_text *err);
/* Free what leave_init created. l may be zeroed or partly initialized. */
void leave_fini(struct leave *l);

/* Begin to stop the server: send LEAVE. The process ends within bound_ms. May call ops->over at
 * once. */
void leave_begin(struct leave *l, uint64_t bound_ms);
/* Handle a WELCOME after a reconnect: send LEAVE again. */
void leave_welcomed(struct leave *l);
/* Handle LEFT, the scheduler's answer to LEAVE. */
void leave_answered(struct leave *l, const struct ctl_left *msg);
static inline bool leave_is_begun(const struct leave *l)
{
	return l->state != LEAVE_IDLE;
}
#endif
