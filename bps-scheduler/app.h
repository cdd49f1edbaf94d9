#ifndef BPS_SCHEDULER_APP_H
#define BPS_SCHEDULER_APP_H
/* The parts of the process bps-scheduler around its core: main.c has the settings, the state file
 * and the start, conns.c the members' connections, web.c HTTP. All of them run on the control
 * loop's thread.
 *
 * Each input from outside (a message, an HTTP request, a timer, a reload) is passed to the core.
 * Then app_after_event is called. */
#include <stdint.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/statelog.h"
#include "bps-scheduler/status/events.h"
#include "bps-scheduler/status/health_watch.h"
#include "bps-scheduler/status/status.h"
#include "bps-scheduler/steer.h"
#include "common/control/ctlchan.h"
#include "common/daemon/daemon.h"

/* largest number of HTTP requests that wait for answers of agents at a time */
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
	/* number of connections that the last change of keys has closed */
	unsigned n_closed;
	struct event *timer, *look; /* look: checks the health regularly */
	struct health_watch *health;
	/* indexed by the connection's number in the core; NULL: the number is free */
	struct sched_app_conn **conns;
	uint32_t n_conns;
	struct { /* HTTP requests that wait for a probe; the probe's token is the index */
		struct httpd_request *req;
		uint32_t job;
	} waiting[STATUS_WAIT_MAX];
};

/* ---- main.c ---- */
/* Let the core handle the deadlines that have passed, compact the state file if it is long, and set
 * the timer. Must be called after each event. */
void app_after_event(struct sched_app *app);

/* ---- conns.c ---- */
extern const struct ctlchan_ops conns_ops; /* callbacks for app.listen; their argument is the app */
/* The callbacks send and drop of struct sched_env. */
void conns_send(void *app, uint32_t id, const struct ctl_msg *msg);
void conns_drop(void *app, uint32_t id, const char *why);
/* Return the channel of the connection with this number in the core. The channel stays owned by
 * conns.c. */
struct ctlchan *conns_chan(void *app, uint32_t id);
/* Declare all members dead whose key is revoked, including those that are not connected. Otherwise
 * an agent would count as alive while servers still receive data from it. */
void conns_expel_revoked(struct sched_app *app);

/* ---- web.c ---- */
extern const struct httpd_ops web_ops; /* callbacks for HTTP; their argument is the app */
/* Fill in the values for the status that the core does not have. */
void web_info(struct sched_app *app, struct status_info *ret);
/* The callback probe_done of struct sched_env: answer the HTTP request that waits for the probe. */
void web_probe_done(void *app, uint64_t token, const struct sched_probe *p);
#endif
