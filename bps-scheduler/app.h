#ifndef BPS_SCHEDULER_APP_H
#define BPS_SCHEDULER_APP_H
/* The process bps-scheduler around its core: main.c has the settings, the state's file and the
 * start, conns.c the members' connections, web.c HTTP. One thread, the control loop's.
 *
 * Every entry from outside (a frame, a request, a timer, a reload) gives the core its event and
 * ends with app_after_event. */
#include <stdint.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/statelog.h"
#include "bps-scheduler/status/events.h"
#include "bps-scheduler/status/health_watch.h"
#include "bps-scheduler/status/status.h"
#include "bps-scheduler/steer.h"
#include "common/control/ctlchan.h"
#include "common/daemon/daemon.h"

#define STATUS_WAIT_MAX 64 /* HTTP requests that wait for agents */

struct sched_opts {
	struct daemon_opts daemon;
	struct addr listen;
	const char *state_dir, *name;
	uint64_t server_dead_us, agent_dead_us, server_window_us, agent_window_us, beat_us,
		server_slow_us, stalled_after_us, forming_after_us;
	int64_t user_jobs, job_tensors, user_share, job_share, small_reserve;
};

struct sched_app_conn; /* conns.c */

struct sched_app {
	struct sched_opts opts;
	struct daemon daemon;
	struct ctllisten *listen;
	struct sched_core *core;
	struct statelog *log; /* NULL: the state is in memory */
	struct event_ring *events;
	struct steer steer;
	unsigned n_closed;          /* connections, by the last change of keys */
	struct event *timer, *look; /* look: at the health */
	struct health_watch *health;
	struct sched_app_conn **conns; /* by the core's number; NULL: free */
	uint32_t n_conns;
	struct { /* requests that wait for a probe; the token is the index */
		struct httpd_request *req;
		uint32_t job;
	} waiting[STATUS_WAIT_MAX];
};

/* ---- main.c ---- */
/* Do what is due, shorten the state's file when it is long, set the timer. */
void app_after_event(struct sched_app *app);

/* ---- conns.c ---- */
extern const struct ctlchan_ops conns_ops; /* of app.listen; its argument is the app */
/* struct sched_env's send and drop. */
void conns_send(void *app, uint32_t id, const struct ctl_msg *msg);
void conns_drop(void *app, uint32_t id, const char *why);
/* The channel of the core's connection id; lent. */
struct ctlchan *conns_chan(void *app, uint32_t id);
/* Hold members whose key is revoked for dead, also those that are away just now: what servers hear
 * of them must not keep them alive. */
void conns_expel_revoked(struct sched_app *app);

/* ---- web.c ---- */
extern const struct httpd_ops web_ops; /* their argument is the app */
/* Fill in the part of the status that the core does not know. */
void web_info(struct sched_app *app, struct status_info *ret);
/* struct sched_env's probe_done: answer the request that waits for it. */
void web_probe_done(void *app, uint64_t token, const struct sched_probe *p);
#endif
