/* Stops a server without delaying jobs. The scheduler first moves the server's partitions to other
 * servers. Then this file calls ops->over, which ends the process. A diagram of the states is in
 * leave.h. All functions run on the control loop's thread. */
#include "bps-server/leave.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/state.h"
#include "common/control/member.h"
#include "common/loop/loop.h"

#define LOOK_MS  20
#define LAST_MS  1000 /* longest time in the state EMPTYING, in milliseconds */
#define STALE_MS 250  /* greatest age of the counts that ops->busy returns, in milliseconds */
/* After this time without a connection to the scheduler, the server stops waiting for the answer to
 * LEAVE. */
#define AWAY_MS 2000
/* Largest number of LEAVE messages to send. A scheduler of an older release closes the connection
 * when it receives LEAVE. Without this maximum, the server would reconnect and send LEAVE
 * repeatedly until bound_ms has passed. */
#define ASKS_MAX 3

static const struct state_row states[LEAVE_STATES] = {
	[LEAVE_IDLE] = {"idle", 1u << LEAVE_ASKED},
	[LEAVE_ASKED] = {"asked", 1u << LEAVE_EMPTYING},
	[LEAVE_EMPTYING] = {"emptying", 0},
};

static void leave_set_state(struct leave *l, enum leave_state to, const char *why)
{
	assert(states[l->state].next >> to & 1);
	log_info("stopping the server: %s -> %s, %s", states[l->state].name, states[to].name, why);
	l->state = to;
}

static void leave_complete_stop(struct leave *l, const char *why)
{
	if (l->is_over)
		return;
	l->is_over = true;
	event_del(l->timer);
	log_info("ending the server: %s: partitions_and_results=%llu stopping_time=%.3fs", why,
		(unsigned long long)l->ops->busy(l->ctx),
		(double)(clock_now_ns() - l->begun_ns) / 1e9);
	l->ops->over(l->ctx);
}

static void on_leave_timer(evutil_socket_t fd, short what, void *arg)
{
	struct leave *l = arg;

	(void)fd;
	(void)what;
	if (clock_now_ns() >= l->deadline_ns)
		leave_complete_stop(l, "the time limit has passed");
	else if (l->state == LEAVE_EMPTYING && clock_now_ns() >= l->trusted_ns &&
		 !l->ops->busy(l->ctx))
		leave_complete_stop(l, "no partition is left");
	else if (l->state == LEAVE_ASKED && member_down_ms(l->member) > AWAY_MS)
		leave_complete_stop(l, "the scheduler cannot be reached");
}

int leave_init(struct leave *l, struct loop *loop, struct member *member,
	const struct leave_ops *ops, void *ctx, struct err_text *err)
{
	l->ops = ops;
	l->ctx = ctx;
	l->member = member;
	l->timer = event_new(loop_base(loop), -1, EV_PERSIST, on_leave_timer, l);
	return l->timer ? 0 : err_set(err, -ENOMEM, "out of memory");
}

void leave_fini(struct leave *l)
{
	if (l->timer)
		event_free(l->timer);
	l->timer = NULL;
}

static void leave_send_request(struct leave *l)
{
	struct ctl_msg msg = {.type = CTL_LEAVE, .leave = {.bound_ms = (uint32_t)l->bound_ms}};

	l->n_asked++;
	/* if there is no connection, leave_welcomed sends LEAVE again after the next WELCOME */
	member_send(l->member, &msg);
}

void leave_begin(struct leave *l, uint64_t bound_ms)
{
	const struct timeval tv = {.tv_usec = LOOK_MS * 1000};

	if (leave_is_begun(l))
		return;
	leave_set_state(l, LEAVE_ASKED, "stop requested");
	l->begun_ns = clock_now_ns();
	l->bound_ms = bound_ms;
	l->deadline_ns = l->begun_ns + bound_ms * NS_PER_MS;
	if (!member_view(l->member)) {
		leave_complete_stop(l, "the scheduler has not accepted this server yet");
		return;
	}
	event_add(l->timer, &tv);
	leave_send_request(l);
}

void leave_welcomed(struct leave *l)
{
	if (!leave_is_begun(l) || l->is_over)
		return;
	if (l->n_asked >= ASKS_MAX)
		leave_complete_stop(l, "the scheduler does not answer");
	else
		leave_send_request(l);
}

void leave_answered(struct leave *l, const struct ctl_left *msg)
{
	if (!leave_is_begun(l) || l->is_over)
		return;
	if (msg->code) {
		leave_complete_stop(l, msg->text);
		return;
	}
	if (l->state == LEAVE_EMPTYING)
		return;
	leave_set_state(l, LEAVE_EMPTYING, "all partitions have moved");
	l->trusted_ns = clock_now_ns() + STALE_MS * NS_PER_MS;
	if (l->deadline_ns > clock_now_ns() + LAST_MS * NS_PER_MS)
		l->deadline_ns = clock_now_ns() + LAST_MS * NS_PER_MS;
}
