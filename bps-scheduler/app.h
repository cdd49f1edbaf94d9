#ifndef BPS_SCHEDULER_APP_H
#define BPS_SCHEDULER_APP_H
/* Declares the parts of bps-scheduler that surround its core. main.c reads the settings, opens the
 * state log and starts the process. conns.c handles the connections of members and operators. web.c
 * serves HTTP. All functions run on the control loop's thread.
 *
 * Events from outside (a message, an HTTP request, a timer, a reload) are passed to the core. The
 * function that passes an event must then call app_after_event. */
#include <stdint.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/statelog.h"
#include "bps-scheduler/status/events.h"
#include "bps-scheduler/status/health_watch.h"
#include "bps-scheduler/status/status.h"
#include "bps-scheduler/steer.h"
#include "common/control/ctlchan.h"
#include "common/daemon/daemon.h"

/* largest number of HTTP requests that wait for answers from agents at the same time */
#define STATUS_WAIT_MAX 64

struct sched_opts {
	struct daemon_opts daemon;
	struct addr listen;
	const char *state_dir, *name;
	uint64_t server_dead_us, agent_dead_us, server_window_us, agent_window_us, beat_us,
		server_slow_us, stalled_after_us, forming_after_us;
	int64_t user_jobs, job_tensors, user_share, job_share, small_reserve;
};

struct sched_app_conn; /* defined in conns.c */

struct sched_app {
	struct sched_opts opts;
	struct daemon daemon;
	struct ctllisten *listen;
	struct sched_core *core;
	struct statelog *log; /* state log on disk; NULL: the state is only in memory */
	struct event_ring *events;
	struct steer steer;
	/* number of connections that the most recent change of keys has closed */
	unsigned n_closed;
	/* The event `timer` fires at the core's next deadline. The event `look` fires every LOOK_S
	 * seconds, to check the cluster's health. */
	struct event *timer, *look;
	struct health_watch *health;
	/* indexed by the connection's number in the core; NULL: the number is free */
	struct sched_app_conn **conns;
	uint32_t n_conns;
	/* HTTP requests that wait for a probe; the token of a probe is the index of its request */
	struct {
		struct httpd_request *req;
		uint32_t job;
	} waiting[STATUS_WAIT_MAX];
};

/* ---- main.c ---- */
/* Let the core handle the deadlines that have passed, compact the state log if it is long, and set
 * the timer. Must be called after each event. */
void app_after_event(struct sched_app *app);

/* ---- conns.c ---- */
extern const struct ctlchan_ops conns_ops; /* callbacks for app.listen; arg: struct sched_app */
/* Implement the callbacks `send` and `drop` of struct sched_env. */
void conns_send_message(void *app, uint32_t id, const struct ctl_msg *msg);
void conns_drop(void *app, uint32_t id, const char *why);
/* Return the channel of the connection that has the number `id` in the core. The channel stays
 * owned by conns.c. */
struct ctlchan *conns_get_channel(void *app, uint32_t id);
/* Declare dead each member whose key is revoked, even if the member is not connected. Without this
 * call, a revoked agent would count as alive while servers still receive data from it. */
void conns_expel_revoked(struct sched_app *app);

/* ---- web.c ---- */
extern const struct httpd_ops web_ops; /* callbacks for HTTP; arg: struct sched_app */
/* Fill in the status values that the core does not have. */
void web_fill_status_info(struct sched_app *app, struct status_info *ret);
/* Implement the callback probe_done of struct sched_env: answer the HTTP request that waits for the
 * probe. */
void web_probe_done(void *app, uint64_t token, const struct sched_probe *p);
#endif
