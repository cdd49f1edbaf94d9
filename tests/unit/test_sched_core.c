#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-scheduler/core.h"
#include "bps-scheduler/events.h"
#include "bps-scheduler/status.h"
#include "common/dtype.h"
#include "common/log.h"
#include "common/wire.h"

#define MS        UINT64_C(1000000)
#define RECORDS   16384
#define LOG_BYTES (4u << 20)
#define FRAME_MAX ((1u << 20) - 2) /* of the control channel */

/* The world around one core: every message becomes a line, every record is kept for a restart. */
struct world {
	struct sched_core *core;
	struct sched_config cfg;
	uint64_t now, random;
	char *log;
	size_t n_log;
	struct {
		void *bytes;
		size_t n;
	} records[RECORDS];
	size_t n_records;
	int persist_error;
	uint64_t kept_view; /* largest in any record */
	uint32_t last_job;
	uint32_t flags, max_size; /* of jobs that are joined */
	bool is_probe_done;
	uint32_t probe_workers, probe_answers;
	json_t *status; /* of the job, with what the probe told */
	struct events *events;
};

static void note(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct world *w, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(w->log + w->n_log, LOG_BYTES - w->n_log, fmt, ap);
	va_end(ap);
	assert_true(n >= 0 && w->n_log + (size_t)n < LOG_BYTES);
	w->n_log += (size_t)n;
}

static void clear(struct world *w)
{
	w->n_log = 0;
	w->log[0] = 0;
}

static void note_plan(struct world *w, const struct ctl_plan *p)
{
	note(w, " job=%u", p->job);
	for (uint32_t i = 0; i < p->n_tensors; i++)
		note(w, " %u=%s", p->tensors[i].tensor, p->tensors[i].name);
	for (uint32_t i = 0; i < p->n_runs; i++) {
		const struct ctl_run *r = &p->runs[i];

		if (r->server == CTL_NO_ID)
			note(w, " [%u:%u+%u none]", r->tensor, r->first, r->n);
		else
			note(w, " [%u:%u+%u s%u i%llu]", r->tensor, r->first, r->n, r->server,
				(unsigned long long)r->instance);
		assert_true(r->pgen <= w->kept_view);
	}
}

static void note_body(struct world *w, const struct ctl_msg *m)
{
	switch (m->type) {
	case CTL_WELCOME:
		note(w, " id=%u term=%u", m->welcome.member_id, m->welcome.term);
		break;
	case CTL_REFUSE:
		note(w, " code=%u %s", m->refuse.code, m->refuse.text);
		break;
	case CTL_PEERS:
		for (uint32_t i = 0; i < m->peers.n_peers; i++)
			note(w, " %s:%s:i%llu", m->peers.peers[i].name,
				m->peers.peers[i].state == PEER_UP ? "up" : "down",
				(unsigned long long)m->peers.peers[i].instance);
		break;
	case CTL_JOINED:
		note(w, " code=%u job=%u rank=%u %s", m->joined.code, m->joined.job, m->joined.rank,
			m->joined.text);
		if (!m->joined.code)
			w->last_job = m->joined.job;
		break;
	case CTL_JOB:
		note(w, " job=%u %s size=%u", m->job.job, m->job.name, m->job.size);
		for (uint32_t i = 0; i < m->job.n_members; i++) {
			note(w, " m%u(%u:", i, m->job.members[i].agent);
			for (uint32_t r = 0; r < m->job.members[i].n_ranks; r++)
				note(w, "%s%u", r ? "," : "", m->job.members[i].ranks[r].rank);
			note(w, ")%s", m->job.members[i].is_gone ? " gone" : "");
		}
		if (m->job.barrier)
			note(w, " barrier=%llu", (unsigned long long)m->job.barrier);
		if (m->job.border)
			note(w, " border");
		break;
	case CTL_JOB_END:
		note(w, " job=%u code=%u %s", m->job_end.job, m->job_end.code, m->job_end.text);
		break;
	case CTL_PLAN:
		note_plan(w, &m->plan);
		break;
	case CTL_TENSOR_FAIL:
		note(w, " %s code=%u %s", m->tensor_fail.name, m->tensor_fail.code,
			m->tensor_fail.text);
		break;
	case CTL_WHY_TEXT:
		note(w, " seq=%u %s", m->why_text.seq, m->why_text.text);
		break;
	case CTL_PROBE:
		note(w, " seq=%u job=%u", m->probe.seq, m->probe.job);
		break;
	default:
		break;
	}
}

static uint64_t view_of(const struct ctl_msg *m)
{
	switch (m->type) {
	case CTL_WELCOME:
		return m->welcome.view;
	case CTL_BEAT:
		return m->beat.view;
	case CTL_PEERS:
		return m->peers.view;
	case CTL_JOB:
		return m->job.view;
	case CTL_PLAN:
		return m->plan.view;
	default:
		return 0;
	}
}

static void on_send(void *ctx, uint32_t conn, const struct ctl_msg *m)
{
	struct world *w = ctx;
	size_t n = codec_size(ctl_layout(m->type), &m->hello);

	assert_true(n > 0);                      /* every message can be encoded */
	assert_true(view_of(m) <= w->kept_view); /* I10 */
	if (m->type == CTL_BEAT)
		return;
	note(w, "%u %s", conn, ctl_type_name(m->type));
	note_body(w, m);
	note(w, "\n");
}

static void on_drop(void *ctx, uint32_t conn, const char *why)
{
	note(ctx, "%u DROP %s\n", conn, why);
}

static int on_persist(void *ctx, const struct state_record *rec)
{
	struct world *w = ctx;
	size_t n = codec_size(state_layout(), rec);

	if (w->persist_error)
		return w->persist_error;
	assert_true(n > 0 && w->n_records < RECORDS);
	assert_true(rec->view > w->kept_view); /* I6 */
	w->records[w->n_records].bytes = malloc(n);
	w->records[w->n_records].n =
		codec_encode(state_layout(), rec, w->records[w->n_records].bytes);
	w->n_records++;
	w->kept_view = rec->view;
	return 0;
}

static void on_random(void *ctx, void *ret, size_t n)
{
	struct world *w = ctx;

	memset(ret, (int)++w->random, n);
}

static void on_pair_key(
	void *ctx, const uint8_t *secret, uint64_t agent, uint64_t server, uint8_t *ret)
{
	(void)ctx;
	memset(ret, (int)(secret[0] + agent + server), CTL_KEY_BYTES);
}

static void on_probe_done(void *ctx, uint64_t token, const struct sched_probe *p)
{
	struct world *w = ctx;

	assert_int_equal(token, 77);
	w->is_probe_done = true;
	w->probe_workers = p->n_workers;
	for (uint32_t i = 0; i < p->n_members; i++)
		w->probe_answers += p->has_answered[i];
	json_decref(w->status);
	w->status = status_job(w->core, &(struct status_info){.now_ns = w->now}, p->job, p);
}

static void on_event(void *ctx, const struct sched_event *e)
{
	struct world *w = ctx;

	events_add(w->events, e, 1.5);
}

static void core_new(struct world *w)
{
	struct sched_env env = {
		w, on_send, on_drop, on_persist, on_random, on_pair_key, on_probe_done, on_event};

	if (!w->events)
		w->events = events_new();
	w->core = sched_new(&w->cfg, &env);
}

static void world_init(struct world *w)
{
	log_set_level(LOG_ERROR);
	memset(w, 0, sizeof(*w));
	w->log = malloc(LOG_BYTES);
	clear(w);
	sched_config_default(&w->cfg);
	w->now = 1000 * MS;
	core_new(w);
	assert_int_equal(sched_start(w->core, w->now), 0);
}

static void world_fini(struct world *w)
{
	sched_free(w->core);
	free(w->log);
	json_decref(w->status);
	events_free(w->events);
	for (size_t i = 0; i < w->n_records; i++)
		free(w->records[i].bytes);
}

static void check(const struct world *w)
{
	struct err_text err = {""};

	if (sched_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static void kill_scheduler(struct world *w)
{
	w->persist_error = 0;
	sched_free(w->core);
	core_new(w);
	for (size_t i = 0; i < w->n_records; i++) {
		struct state_record rec;
		struct err_text err = {""};
		void *mem;

		assert_int_equal(codec_decode(state_layout(), w->records[i].bytes, w->records[i].n,
					 1 << 24, &rec, &mem, &err),
			0);
		if (sched_restore(w->core, &rec, &err) < 0)
			fail_msg("record %zu: %s", i, err.s);
		free(mem);
	}
	assert_int_equal(sched_start(w->core, w->now), 0);
	check(w);
}

/* Let ms pass; the members on conns (0-terminated) beat meanwhile. */
static void pass(struct world *w, uint64_t ms, const uint32_t *conns)
{
	uint64_t end = w->now + ms * MS, next_beat = w->now;
	struct ctl_msg msg = {.type = CTL_BEAT};

	while (w->now < end) {
		uint64_t at = sched_next_deadline(w->core);

		if (at <= w->now) {
			sched_tick(w->core, w->now);
			assert_true(sched_next_deadline(w->core) > w->now);
			continue;
		}
		if (next_beat <= w->now) {
			for (size_t i = 0; conns && conns[i]; i++)
				sched_message(w->core, conns[i], &msg, w->now);
			next_beat = w->now + 100 * MS;
		}
		if (at > next_beat)
			at = next_beat;
		w->now = at < end ? at : end;
	}
	if (sched_next_deadline(w->core) <= w->now)
		sched_tick(w->core, w->now);
	check(w);
}

static void send_msg(struct world *w, uint32_t conn, const struct ctl_msg *msg)
{
	sched_message(w->core, conn, msg, w->now);
	check(w);
}

static struct ctl_msg hello_of(
	enum role role, const char *name, const char *host, uint64_t instance)
{
	return (struct ctl_msg){.type = CTL_HELLO,
		.hello = {.proto = CTL_PROTO,
			.role = (uint8_t)role,
			.instance = instance,
			.name = name,
			.host = host,
			.version = "1",
			.pid = (uint32_t)instance,
			.addr = role == ROLE_SERVER ? "10.0.0.1" : "",
			.port = role == ROLE_SERVER ? 7400 : 0,
			.threads = 2}};
}

static void hello(struct world *w, uint32_t conn, enum role role, const char *name,
	const char *host, uint64_t instance)
{
	struct ctl_msg msg = hello_of(role, name, host, instance);

	sched_conn_open(w->core, conn, w->now);
	send_msg(w, conn, &msg);
}

static void server(struct world *w, uint32_t conn, const char *name, uint64_t instance)
{
	hello(w, conn, ROLE_SERVER, name, name, instance);
}

static void agent(struct world *w, uint32_t conn, const char *name, uint64_t instance)
{
	hello(w, conn, ROLE_AGENT, name, name, instance);
}

static void close_conn(struct world *w, uint32_t conn)
{
	sched_conn_closed(w->core, conn, w->now);
	check(w);
}

static const struct blob token = {"0123456789abcdef0123456789abcdef", CTL_TOKEN_BYTES};
static const struct blob other_token = {"0123456789abcdef0123456789abcdeF", CTL_TOKEN_BYTES};
static const struct blob no_token = {NULL, 0};

static void join(struct world *w, uint32_t conn, uint32_t rank, uint32_t size, uint32_t pid)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = pid,
			.uid = 1000,
			.job = "x",
			.rank = rank,
			.size = size,
			.flags = w->flags,
			.max_size = w->max_size,
			.pid = pid}};

	send_msg(w, conn, &msg);
}

static void declare(
	struct world *w, uint32_t conn, uint32_t rank, const char *name, uint8_t dtype, uint64_t n)
{
	struct ctl_decl d = {rank, name, dtype, n};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {w->last_job, &d, 1}};

	send_msg(w, conn, &msg);
}

static void worker(struct world *w, uint32_t conn, uint32_t rank, enum worker_event event)
{
	struct ctl_msg msg = {.type = CTL_WORKER,
		.worker = {w->last_job, rank, (uint8_t)event, "killed by signal 9"}};

	send_msg(w, conn, &msg);
}

#define SAID(w, s)                                                                                 \
	do {                                                                                       \
		if (!strstr((w)->log, (s)))                                                        \
			fail_msg("'%s' was not said in:\n%s", (s), (w)->log);                      \
	} while (0)
#define NOT_SAID(w, s)                                                                             \
	do {                                                                                       \
		if (strstr((w)->log, (s)))                                                         \
			fail_msg("'%s' was said in:\n%s", (s), (w)->log);                          \
	} while (0)

/* Servers s1 (conn 11), s2 (12); agents a (21), b (22); job x of two workers; tensor w. */
static const uint32_t everybody[] = {11, 12, 21, 22, 0};
static void running_job(struct world *w)
{
	world_init(w);
	server(w, 11, "s1", 101);
	server(w, 12, "s2", 102);
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
	join(w, 21, 0, 2, 10);
	join(w, 22, 1, 2, 20);
	declare(w, 21, 0, "w", DTYPE_F32, 400000);
	declare(w, 22, 1, "w", DTYPE_F32, 400000);
}

/* ---- members ---- */

static void hello_is_welcomed_and_told_of_the_other_side(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	SAID(&w, "11 WELCOME id=1 term=1\n11 PEERS\n");
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "11 PEERS a:up:i201\n");
	SAID(&w, "21 WELCOME id=2 term=1\n21 PEERS s1:up:i101\n21 PEERS\n");
	world_fini(&w);
}

static void wrong_hello_is_refused_with_a_sentence(void **state)
{
	struct world w;
	struct ctl_msg msg;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	msg = hello_of(ROLE_SERVER, "s2", "h", 5);
	msg.hello.proto = 9;
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	SAID(&w, "31 REFUSE code=10014 's2' on h");
	SAID(&w, "31 DROP");
	msg = hello_of(ROLE_SERVER, "s2", "h", 5);
	msg.hello.cluster_id = (struct blob){"another cluster.", 16};
	sched_conn_open(w.core, 32, w.now);
	send_msg(&w, 32, &msg);
	SAID(&w, "32 REFUSE code=10003 server 's2' on h belongs to another cluster");
	msg = hello_of(ROLE_SERVER, "s2", "h", 5);
	msg.hello.port = 0;
	sched_conn_open(w.core, 33, w.now);
	send_msg(&w, 33, &msg);
	SAID(&w, "33 REFUSE code=10013");
	world_fini(&w);
}

static void first_message_must_be_hello_and_must_come(void **state)
{
	struct world w;
	struct ctl_msg msg = {.type = CTL_BEAT};

	(void)state;
	world_init(&w);
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	SAID(&w, "31 DROP its first message is not HELLO");
	sched_conn_open(w.core, 32, w.now);
	pass(&w, w.cfg.hello_ms + 10, NULL);
	SAID(&w, "32 DROP no HELLO in time");
	world_fini(&w);
}

static void same_name_on_another_host_is_refused_while_the_holder_lives(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	hello(&w, 11, ROLE_SERVER, "s1", "h1", 101);
	hello(&w, 12, ROLE_SERVER, "s1", "h2", 102);
	SAID(&w, "12 REFUSE code=10017 the name 's1' is held by a live server on h1 (pid 101,"
		 " 10.0.0.1:7400)");
	close_conn(&w, 11);
	pass(&w, w.cfg.server_window_ms + 10, NULL);
	clear(&w);
	hello(&w, 13, ROLE_SERVER, "s1", "h2", 102);
	SAID(&w, "13 WELCOME id=1");
	world_fini(&w);
}

static void shorter_dead_time_counts_from_now_on(void **state)
{
	struct world w;
	struct sched_config cfg;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	cfg = w.cfg;
	pass(&w, 1000, NULL); /* silent, and not dead for long yet */
	NOT_SAID(&w, "11 DROP");
	cfg.server_dead_ms = 800;
	sched_set_times(w.core, &cfg, w.now);
	pass(&w, 10, NULL);
	SAID(&w, "11 DROP silent for 1.0 s");
	world_fini(&w);
}

static void longer_window_is_for_the_losses_to_come(void **state)
{
	struct world w;
	struct sched_config cfg;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s2", 102);
	close_conn(&w, 11);
	cfg = w.cfg;
	cfg.server_window_ms = 2 * w.cfg.server_window_ms;
	sched_set_times(w.core, &cfg, w.now);
	close_conn(&w, 12);
	clear(&w);
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){21, 0});
	SAID(&w, "21 PEERS s1:down");
	NOT_SAID(&w, "s2:down");
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){21, 0});
	SAID(&w, "s2:down");
	world_fini(&w);
}

static void new_instance_on_the_same_host_replaces_the_old_at_once(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	server(&w, 11, "s1", 101);
	clear(&w);
	server(&w, 12, "s1", 102);
	SAID(&w, "11 DROP replaced");
	SAID(&w, "21 PEERS s1:up:i102\n");
	SAID(&w, "12 WELCOME id=2");
	world_fini(&w);
}

static void replaced_instance_does_not_take_its_name_back(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s1", 102);
	clear(&w);
	server(&w, 13, "s1", 101);
	SAID(&w, "13 REFUSE code=10017 the name 's1' is held by a live server on s1 (pid 102");
	NOT_SAID(&w, "12 DROP");
	close_conn(&w, 12);
	pass(&w, w.cfg.server_window_ms + 10, NULL);
	clear(&w);
	server(&w, 14, "s1", 101);
	SAID(&w, "14 WELCOME id=1");
	world_fini(&w);
}

static void reconnect_of_the_same_instance_changes_no_view(void **state)
{
	struct world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_view(w.core);
	close_conn(&w, 11);
	close_conn(&w, 21);
	pass(&w, 300, (const uint32_t[]){12, 22, 0});
	clear(&w);
	server(&w, 31, "s1", 101);
	agent(&w, 41, "a", 201);
	SAID(&w, "31 WELCOME id=1");
	SAID(&w, "31 JOB job=1");
	SAID(&w, "31 PLAN job=1 0=w");
	SAID(&w, "41 WELCOME id=3");
	SAID(&w, "41 PLAN job=1 0=w");
	NOT_SAID(&w, "22 ");
	assert_true(sched_view(w.core) == view);
	world_fini(&w);
}

static void half_open_connection_gives_way_to_the_new_one(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "a", 201);
	SAID(&w, "21 DROP reconnected");
	SAID(&w, "22 WELCOME id=1");
	world_fini(&w);
}

static void silent_server_is_declared_dead_after_its_time(void **state)
{
	struct world w;
	const uint32_t others[] = {12, 21, 22, 0};

	(void)state;
	running_job(&w);
	clear(&w);
	pass(&w, w.cfg.server_dead_ms - 50, others);
	NOT_SAID(&w, "down");
	pass(&w, 100, others);
	SAID(&w, "21 PEERS s1:down:i101\n");
	SAID(&w, "11 DROP silent for 3.0 s");
	world_fini(&w);
}

static void scheduler_that_hears_nobody_gives_nobody_up(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	pass(&w, 10 * w.cfg.agent_dead_ms, NULL);
	NOT_SAID(&w, "DROP");
	NOT_SAID(&w, "JOB_END");
	/* The first that is heard has not come back sooner than others could. */
	pass(&w, w.cfg.server_dead_ms - 200, (const uint32_t[]){12, 21, 0});
	NOT_SAID(&w, "DROP");
	pass(&w, w.cfg.agent_dead_ms, (const uint32_t[]){12, 21, 0});
	SAID(&w, "21 PEERS s1:down:i101\n");
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b' (host b) of job 'x' is lost: silent for ");
	world_fini(&w);
}

static void late_tick_extends_the_deadlines(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	pass(&w, 1000, everybody);
	clear(&w);
	w.now += 10000 * MS; /* this process was stopped */
	sched_tick(w.core, w.now);
	check(&w);
	NOT_SAID(&w, "DROP");
	pass(&w, 4000, everybody);
	NOT_SAID(&w, "DROP");
	world_fini(&w);
}

static void evicted_instance_that_returns_relearns_what_it_has(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	pass(&w, 4000, (const uint32_t[]){12, 21, 22, 0});
	clear(&w);
	server(&w, 31, "s1", 101); /* the stopped process goes on */
	SAID(&w, "31 WELCOME id=1");
	SAID(&w, "31 JOB job=1");
	NOT_SAID(&w, "31 PLAN");
	SAID(&w, "21 PEERS s1:up:i101\n");
	world_fini(&w);
}

/* ---- jobs ---- */

static void job_forms_when_all_ranks_are_there(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	server(&w, 11, "s1", 101);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	clear(&w);
	join(&w, 22, 0, 4, 20);
	join(&w, 22, 3, 4, 21);
	join(&w, 21, 2, 4, 10);
	NOT_SAID(&w, " JOB ");
	join(&w, 21, CTL_NO_ID, 4, 11);
	SAID(&w, "21 JOINED code=0 job=1 rank=1");
	SAID(&w, "11 JOB job=1 x size=4 m0(3:0,3) m1(2:1,2)\n");
	SAID(&w, "21 JOB job=1 x size=4 m0(3:0,3) m1(2:1,2)\n");
	SAID(&w, "22 JOB job=1 x size=4 m0(3:0,3) m1(2:1,2)\n");
	world_fini(&w);
}

static void repeated_join_gets_the_same_rank(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, CTL_NO_ID, 3, 10);
	join(&w, 21, CTL_NO_ID, 3, 11);
	clear(&w);
	close_conn(&w, 21);
	agent(&w, 22, "a", 201);
	join(&w, 22, CTL_NO_ID, 3, 11); /* its answer was lost */
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	join(&w, 22, 0, 3, 10);
	SAID(&w, "22 JOINED code=0 job=1 rank=0");
	join(&w, 22, 2, 3, 12);
	join(&w, 22, 2, 3, 12); /* after JOB */
	NOT_SAID(&w, "code=10017");
	world_fini(&w);
}

/* The ranks of a forming job are lost with the scheduler; whoever comes first gets the first. */
static void assigned_ranks_are_assigned_anew_after_a_restart(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, CTL_NO_ID, 2, 10);
	kill_scheduler(&w);
	agent(&w, 22, "b", 202);
	join(&w, 22, CTL_NO_ID, 2, 20);
	agent(&w, 21, "a", 201);
	clear(&w);
	join(&w, 21, CTL_NO_ID, 2, 10);
	SAID(&w, "21 JOINED code=0 job=1025 rank=1");
	SAID(&w, "21 JOB job=1025 x size=2 m0(2:0) m1(1:1)");
	world_fini(&w);
}

static void repeated_join_of_a_running_job_gets_the_job_behind_its_answer(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, CTL_NO_ID, 2, 10);
	join(&w, 21, CTL_NO_ID, 2, 11);
	kill_scheduler(&w);
	agent(&w, 22, "a", 201);
	clear(&w);
	join(&w, 22, CTL_NO_ID, 2, 11);
	SAID(&w, "22 JOINED code=0 job=1 rank=1 \n22 JOB job=1 x size=2 m0(1:0,1)\n");
	world_fini(&w);
}

static void duplicate_rank_is_refused_with_the_holder(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 1, 3, 10);
	join(&w, 22, 1, 3, 20);
	SAID(&w, "22 JOINED code=10017 job=4294967295 rank=4294967295 rank 1 of job 'x' is held by"
		 " pid 10 on host a");
	world_fini(&w);
}

static void workers_that_disagree_are_both_named(void **state)
{
	struct world w;
	struct ctl_msg msg;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 0, 3, 10);
	join(&w, 22, 1, 4, 20);
	SAID(&w, "job 'x': rank 0 (host a, pid 10) has 3 workers, this worker (host b, pid 20) 4");
	msg = (struct ctl_msg){
		.type = CTL_JOIN, .join = {1, 1000, "x", 1, 3, JOB_DETERMINISTIC, 20, 0, no_token}};
	send_msg(&w, 22, &msg);
	SAID(&w, "rank 0 (host a, pid 10) has 0 option flags, this worker (host b, pid 20) 1");
	msg.join.flags = 0;
	msg.join.part_bytes = 4096;
	send_msg(&w, 22, &msg);
	SAID(&w,
		"rank 0 (host a, pid 10) has 0 partition bytes, this worker (host b, pid 20) 4096");
	world_fini(&w);
}

static void same_job_name_of_another_user_is_another_job(void **state)
{
	struct world w;
	struct ctl_msg msg = {.type = CTL_JOIN, .join = {1, 1001, "x", 0, 2, 0, 30, 0, no_token}};

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0 job=2 rank=0");
	world_fini(&w);
}

static void join_as(
	struct world *w, uint32_t conn, uint32_t uid, uint32_t rank, uint32_t pid, struct blob with)
{
	struct ctl_msg msg = {.type = CTL_JOIN, .join = {pid, uid, "x", rank, 2, 0, pid, 0, with}};

	clear(w);
	send_msg(w, conn, &msg);
}

static void agents_a_and_b(struct world *w)
{
	world_init(w);
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
}

static void process_that_opens_a_rank_twice_is_refused_the_second_time(void **state)
{
	struct ctl_msg msg = {.type = CTL_JOIN, .join = {1, 1000, "x", 0, 2, 0, 10, 0, no_token}};
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	clear(&w);
	send_msg(&w, 21, &msg); /* said again */
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	msg.join.seq = 2;
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "code=10017 job=4294967295 rank=4294967295 rank 0 of job 'x' is held by pid 10");
	world_fini(&w);
}

static void worker_of_another_user_joins_with_the_token(void **state)
{
	struct world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	join_as(&w, 22, 2000, 1, 20, token);
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	SAID(&w, "22 JOB job=1 x size=2 m0(1:0) m1(2:1)");
	world_fini(&w);
}

static void worker_of_the_same_user_without_the_right_token_is_refused(void **state)
{
	struct world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	join_as(&w, 22, 1000, 1, 20, other_token);
	SAID(&w, "22 JOINED code=10015 job=4294967295 rank=4294967295 job 'x' of uid 1000 has "
		 "another job token than this worker (BPS_JOB_TOKEN); its rank 0 is pid 10 on host "
		 "a");
	join_as(&w, 22, 1000, 1, 20, no_token);
	SAID(&w, "code=10015");
	SAID(&w, "has a job token, and this worker has none");
	join_as(&w, 22, 1000, 1, 20, (struct blob){token.data, 31});
	SAID(&w, "code=22");
	join_as(&w, 22, 1000, 1, 20, token);
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	world_fini(&w);
}

static void token_does_not_open_a_job_that_has_none(void **state)
{
	struct world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, no_token);
	join_as(&w, 22, 1000, 1, 20, token);
	SAID(&w, "code=10015");
	SAID(&w, "was opened without a job token, and this worker has one");
	world_fini(&w);
}

static void worker_of_another_user_without_the_token_gets_a_job_of_its_own(void **state)
{
	struct world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	join_as(&w, 22, 2000, 1, 20, no_token);
	SAID(&w, "22 JOINED code=0 job=2 rank=1");
	join_as(&w, 22, 3000, 1, 30, other_token);
	SAID(&w, "22 JOINED code=0 job=3 rank=1");
	join_as(&w, 22, 4000, 1, 40, token); /* nobody can keep a name from others */
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	world_fini(&w);
}

static void token_outlives_the_scheduler(void **state)
{
	struct world w;

	(void)state;
	agents_a_and_b(&w);
	join_as(&w, 21, 1000, 0, 10, token);
	join_as(&w, 22, 2000, 1, 20, token);
	kill_scheduler(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join_as(&w, 22, 2000, 1, 20, token); /* its JOB had not come */
	SAID(&w, "22 JOINED code=0 job=1 rank=1");
	SAID(&w, "22 JOB job=1 x size=2");
	join_as(&w, 22, 1000, 1, 21, other_token);
	SAID(&w, "code=10015");
	world_fini(&w);
}

static void user_with_too_many_jobs_is_refused_and_another_one_is_not(void **state)
{
	struct world w;
	struct ctl_msg msg = {.type = CTL_JOIN, .join = {1, 1000, "", 0, 2, 0, 30, 0, no_token}};
	static const char *const names[] = {"a", "b", "c", "d"};

	(void)state;
	world_init(&w);
	w.cfg.user_jobs = 3;
	sched_set_quotas(w.core, &w.cfg);
	agent(&w, 21, "a", 201);
	for (unsigned i = 0; i < 4; i++) {
		msg.join.seq = msg.join.pid = i + 1;
		msg.join.job = names[i];
		clear(&w);
		send_msg(&w, 21, &msg);
		if (i < 3)
			SAID(&w, "21 JOINED code=0");
	}
	SAID(&w, "code=10012 job=4294967295 rank=4294967295 job 'd': the user with uid 1000 has 3 "
		 "of "
		 "3 jobs; see bps-scheduler's --user-jobs");
	msg.join.uid = 1001;
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0");
	msg.join.uid = 1000;
	msg.join.job = "a"; /* more workers of a job that is there */
	msg.join.rank = 1;
	msg.join.pid = msg.join.seq = 9;
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOINED code=0");
	world_fini(&w);
}

/* Two servers of 1 MiB; a job of two workers, one on each agent. */
static void world_with_memory(struct world *w, uint32_t job_share, uint32_t user_share)
{
	struct ctl_msg msg;

	world_init(w);
	w->cfg.job_share = job_share;
	w->cfg.user_share = user_share;
	sched_set_quotas(w->core, &w->cfg);
	for (uint32_t i = 0; i < 2; i++) {
		msg = hello_of(ROLE_SERVER, i ? "s2" : "s1", i ? "s2" : "s1", 101 + i);
		msg.hello.quota_bytes = 1 << 20;
		sched_conn_open(w->core, 11 + i, w->now);
		send_msg(w, 11 + i, &msg);
	}
	agent(w, 21, "a", 201);
	agent(w, 22, "b", 202);
	join(w, 21, 0, 2, 10);
	join(w, 22, 1, 2, 20);
}

static void tensor_beyond_the_jobs_share_of_the_servers_is_refused_everywhere(void **state)
{
	struct world w;

	(void)state;
	world_with_memory(&w, 50, 0);
	declare(&w, 21, 0, "w", DTYPE_F32, 150000);
	clear(&w);
	declare(&w, 21, 0, "x", DTYPE_F32, 150000);
	SAID(&w, "21 TENSOR_FAIL x code=10012 tensor 'x' of job 'x': it takes 0.6 MiB of the "
		 "servers' memory, of which the job has 0.6 of 1.0 MiB (50% of all); see "
		 "bps-scheduler's --job-share");
	declare(&w, 21, 0, "y", DTYPE_F32, 100000);
	declare(&w, 22, 1, "w", DTYPE_F32, 150000);
	declare(&w, 22, 1, "y", DTYPE_F32, 100000);
	w.cfg.job_share = 0; /* does not change what was said */
	sched_set_quotas(w.core, &w.cfg);
	declare(&w, 22, 1, "x", DTYPE_F32, 150000);
	SAID(&w, "22 TENSOR_FAIL x code=10012");
	SAID(&w, "22 PLAN job=1 0=w");
	SAID(&w, "22 PLAN job=1 1=y");
	world_fini(&w);
}

static void tensors_of_all_jobs_of_a_user_count_for_its_share(void **state)
{
	struct ctl_msg msg = {
		.type = CTL_JOIN, .join = {1, 1000, "second", 0, 2, 0, 30, 0, no_token}};
	struct world w;

	(void)state;
	world_with_memory(&w, 0, 50);
	declare(&w, 21, 0, "w", DTYPE_F32, 150000);
	for (uint32_t i = 0; i < 2; i++) {
		msg.join.rank = i;
		msg.join.pid = msg.join.seq = 30 + i;
		send_msg(&w, 21 + i, &msg);
	}
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 150000);
	SAID(&w, "code=10012 tensor 'v' of job 'second': it takes 0.6 MiB of the servers' memory, "
		 "of "
		 "which the user with uid 1000 has 0.6 of 1.0 MiB");
	msg.join.uid = 1001; /* another user's job */
	for (uint32_t i = 0; i < 2; i++) {
		msg.join.rank = i;
		msg.join.pid = msg.join.seq = 40 + i;
		send_msg(&w, 21 + i, &msg);
	}
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 150000);
	declare(&w, 22, 1, "v", DTYPE_F32, 150000);
	NOT_SAID(&w, "TENSOR_FAIL");
	SAID(&w, "21 PLAN");
	world_fini(&w);
}

static void worker_that_leaves_a_forming_job_frees_its_rank(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	join(&w, 21, 0, 2, 11);
	SAID(&w, "held by pid 10");
	w.last_job = 1;
	worker(&w, 21, 0, WORKER_LOST);
	clear(&w);
	join(&w, 21, 0, 2, 11);
	SAID(&w, "21 JOINED code=0 job=2 rank=0"); /* the empty job went with it */
	world_fini(&w);
}

static void job_ends_well_when_all_have_finished(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 21, 0, WORKER_FINISHED); /* said again */
	NOT_SAID(&w, "JOB_END");
	worker(&w, 22, 1, WORKER_FINISHED);
	SAID(&w, "11 JOB_END job=1 code=0 \n");
	SAID(&w, "21 JOB_END job=1 code=0 \n");
	SAID(&w, "22 JOB_END job=1 code=0 \n");
	clear(&w);
	join(&w, 21, 0, 2, 10);
	SAID(&w, "21 JOINED code=0 job=2 rank=0");
	world_fini(&w);
}

static void numbers_of_jobs_are_never_used_twice(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	for (uint32_t i = 1; i <= 1100; i++) { /* more than one record reserves */
		join(&w, 21, 0, 2, 10);
		assert_int_equal(w.last_job, i);
		worker(&w, 21, 0, WORKER_LOST);
		clear(&w);
	}
	kill_scheduler(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	assert_true(w.last_job > 1100);
	world_fini(&w);
}

static void only_the_last_ended_jobs_are_kept(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	for (int i = 0; i < 70; i++) {
		join(&w, 21, 0, 1, 10);
		worker(&w, 21, 0, WORKER_FINISHED);
	}
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	NOT_SAID(&w, "JOB_END job=6 ");
	SAID(&w, "JOB_END job=7 code=0");
	SAID(&w, "JOB_END job=70 code=0");
	world_fini(&w);
}

static void lost_worker_ends_the_job_and_is_named(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 22, 1, WORKER_LOST);
	SAID(&w,
		"21 JOB_END job=1 code=10007 rank 1 (host b, pid 20) of job 'x' was lost: killed by"
		" signal 9\n");
	world_fini(&w);
}

static void worker_lost_after_it_finished_harms_nobody(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 22, 1, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_LOST);
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void agent_cannot_speak_for_ranks_of_another(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	worker(&w, 22, 0, WORKER_LOST);
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void dead_agent_ends_its_jobs_and_is_named(void **state)
{
	struct world w;
	const uint32_t others[] = {11, 12, 21, 0};

	(void)state;
	running_job(&w);
	clear(&w);
	pass(&w, w.cfg.agent_dead_ms - 50, others);
	NOT_SAID(&w, "JOB_END");
	pass(&w, 100, others);
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b' (host b) of job 'x' is lost: silent for "
		 "5.0 s");
	SAID(&w, "11 PEERS b:down:i202\n");
	clear(&w);
	agent(&w, 32, "b", 202); /* it learns what happened */
	SAID(&w, "32 JOB_END job=1 code=10008");
	world_fini(&w);
}

/* ---- jobs that shrink ---- */

/* As running_job, of three workers on as many agents (21, 22, 23). */
static void shrinking_job(struct world *w)
{
	world_init(w);
	w->flags = JOB_SHRINK;
	server(w, 11, "s1", 101);
	for (uint32_t i = 0; i < 3; i++) {
		const char name[] = {(char)('a' + i), 0};

		agent(w, 21 + i, name, 201 + i);
		join(w, 21 + i, i, 3, 10 + i);
	}
	for (uint32_t i = 0; i < 3; i++)
		declare(w, 21 + i, i, "w", DTYPE_F32, 400000);
	clear(w);
}

static void lost_machine_leaves_a_job_that_may_shrink(void **state)
{
	const uint32_t others[] = {11, 21, 23, 0};
	struct world w;

	(void)state;
	shrinking_job(&w);
	pass(&w, w.cfg.agent_dead_ms + 50, others);
	NOT_SAID(&w, "JOB_END");
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) gone m2(4:2)\n11 PLAN job=1 0=w [0:0+");
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) gone m2(4:2)\n21 PLAN job=1 0=w [0:0+");
	clear(&w);
	agent(&w, 32, "b", 202);
	SAID(&w, "32 JOB_END job=1 code=10009 agent 'b' (host b) is no longer part of job 'x', "
		 "which "
		 "went on without it: agent 'b' (host b) of job 'x' is lost: silent for 5.0 s");
	NOT_SAID(&w, "32 JOB ");
	declare(&w, 32, 1, "v", DTYPE_F32, 10);
	NOT_SAID(&w, "DROP");
	worker(&w, 21, 0, WORKER_FINISHED);
	NOT_SAID(&w, "JOB_END job=1 code=0");
	worker(&w, 23, 2, WORKER_FINISHED);
	SAID(&w, "21 JOB_END job=1 code=0");
	NOT_SAID(&w, "32 JOB_END job=1 code=0");
	world_fini(&w);
}

static void lost_worker_takes_its_machine_out_of_a_job_that_may_shrink(void **state)
{
	struct world w;

	(void)state;
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone");
	SAID(&w, "23 JOB_END job=1 code=10009");
	NOT_SAID(&w, "23 JOB ");
	clear(&w);
	join(&w, 23, 2, 3, 12);
	SAID(&w, "23 JOINED code=10009");
	world_fini(&w);
}

static void last_machine_of_a_job_that_may_shrink_ends_it(void **state)
{
	struct world w;

	(void)state;
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_LOST);
	SAID(&w, "21 JOB_END job=1 code=0"); /* whoever is left had finished */
	world_fini(&w);
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	worker(&w, 21, 0, WORKER_LOST);
	worker(&w, 22, 1, WORKER_LOST);
	SAID(&w, "22 JOB_END job=1 code=10007 rank 1");
	world_fini(&w);
}

static void tensor_that_only_the_lost_has_not_declared_is_placed(void **state)
{
	struct world w;

	(void)state;
	shrinking_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	declare(&w, 22, 1, "v", DTYPE_F32, 10);
	NOT_SAID(&w, "1=v");
	worker(&w, 23, 2, WORKER_LOST);
	SAID(&w, "21 PLAN job=1 0=w 1=v");
	world_fini(&w);
}

static void who_has_left_a_job_is_known_after_a_restart(void **state)
{
	struct world w;

	(void)state;
	shrinking_job(&w);
	worker(&w, 23, 2, WORKER_LOST);
	kill_scheduler(&w);
	clear(&w);
	server(&w, 11, "s1", 101);
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone");
	agent(&w, 23, "c", 203);
	SAID(&w, "23 JOB_END job=1 code=10009");
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_FINISHED);
	SAID(&w, "22 JOB_END job=1 code=0");
	world_fini(&w);
}

static void at_barrier(struct world *w, uint32_t conn, uint32_t rank, uint64_t n)
{
	const struct ctl_msg msg = {
		.type = CTL_WORKER, .worker = {w->last_job, rank, WORKER_AT_BARRIER, "", n}};

	send_msg(w, conn, &msg);
}

static void barrier_is_passed_when_all_that_are_left_are_there_in_one_view(void **state)
{
	struct world w;

	(void)state;
	shrinking_job(&w);
	at_barrier(&w, 21, 0, 1);
	at_barrier(&w, 22, 1, 1);
	at_barrier(&w, 22, 1, 1);
	NOT_SAID(&w, "JOB job=1");
	worker(&w, 23, 2, WORKER_LOST);
	clear(&w);
	at_barrier(&w, 21, 0, 1);
	NOT_SAID(&w, "21 JOB "); /* the other has not said so since */
	at_barrier(&w, 22, 1, 1);
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone barrier=1");
	NOT_SAID(&w, "PLAN");
	kill_scheduler(&w);
	server(&w, 11, "s1", 101);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	clear(&w);
	at_barrier(&w, 22, 1, 1); /* it had not heard */
	SAID(&w, "22 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) gone barrier=1");
	world_fini(&w);
}

/* Agents a and b have the workers of an elastic job that may have three; c comes later. */
static void elastic_job(struct world *w)
{
	world_init(w);
	w->flags = JOB_SHRINK | JOB_ELASTIC;
	w->max_size = 3;
	server(w, 11, "s1", 101);
	for (uint32_t i = 0; i < 3; i++) {
		const char name[] = {(char)('a' + i), 0};

		agent(w, 21 + i, name, 201 + i);
	}
	join(w, 21, 0, 2, 10);
	join(w, 22, 1, 2, 11);
	declare(w, 21, 0, "w", DTYPE_F32, 400000);
	declare(w, 22, 1, "w", DTYPE_F32, 400000);
	clear(w);
}

static void newcomers_are_let_in_at_a_barrier_and_told_of_everything(void **state)
{
	struct world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, CTL_NO_ID, 2, 12);
	SAID(&w, "23 JOINED code=0 job=4294967295");
	w.last_job = 1;
	at_barrier(&w, 21, 0, 1);
	NOT_SAID(&w, "23 JOB ");
	at_barrier(&w, 22, 1, 1);
	SAID(&w, "23 JOINED code=0 job=1 rank=2 \n23 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) "
		 "barrier=1 "
		 "border\n23 PLAN job=1 0=w [0:0+");
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) barrier=1 border\n11 PLAN job=1 "
		 "0=w [");
	clear(&w);
	join(&w, 23, CTL_NO_ID, 2, 12); /* it has not heard */
	SAID(&w, "23 JOINED code=0 job=1 rank=2");
	join(&w, 23, CTL_NO_ID, 2, 13);
	SAID(&w, "23 JOINED code=10017"); /* a second worker of a machine that is in */
	kill_scheduler(&w);
	clear(&w);
	server(&w, 11, "s1", 101);
	SAID(&w, "11 JOB job=1 x size=3 m0(2:0) m1(3:1) m2(4:2) barrier=1 border");
	world_fini(&w);
}

static void lost_machines_rank_and_number_go_to_who_joins(void **state)
{
	struct world w;

	(void)state;
	elastic_job(&w);
	worker(&w, 22, 1, WORKER_LOST);
	join(&w, 23, CTL_NO_ID, 2, 12);
	w.last_job = 1;
	clear(&w);
	at_barrier(&w, 21, 0, 1);
	SAID(&w, "21 JOB job=1 x size=3 m0(2:0) m1(3:) gone m2(4:1) barrier=1 border");
	join(&w, 22, CTL_NO_ID, 2, 20); /* back */
	SAID(&w, "22 JOINED code=0 job=4294967295");
	w.last_job = 1;
	at_barrier(&w, 21, 0, 2);
	clear(&w);
	at_barrier(&w, 23, 1, 2);
	SAID(&w, "22 JOB job=1 x size=3 m0(2:0) m1(3:2) m2(4:1) barrier=2 border");
	world_fini(&w);
}

static void machines_that_wait_count_for_the_limit_of_machines(void **state)
{
	struct world w;
	char name[16];

	(void)state;
	elastic_job(&w);
	for (uint32_t n = 2; n < WIRE_MEMBERS_MAX - 1; n++) { /* one leaves, one comes */
		uint32_t conn = n == 2 ? 22 : 998 + n;

		worker(&w, conn, 1, WORKER_LOST);
		snprintf(name, sizeof(name), "m%u", n);
		agent(&w, 999 + n, name, 1000 + n);
		join(&w, 999 + n, 1, 2, n);
		w.last_job = 1;
		at_barrier(&w, 21, 0, n - 1);
		clear(&w);
	}
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(name, sizeof(name), "new%u", i);
		agent(&w, 5001 + i, name, 7001 + i);
	}
	worker(&w, 998 + WIRE_MEMBERS_MAX - 1, 1, WORKER_LOST);
	join(&w, 5001, CTL_NO_ID, 2, 7001);
	SAID(&w, "5001 JOINED code=0");
	join(&w, 5002, CTL_NO_ID, 2, 7002);
	w.last_job = 1;
	clear(&w);
	at_barrier(&w, 21, 0, WIRE_MEMBERS_MAX - 2);
	SAID(&w, "5001 JOINED code=0 job=1 rank=1");
	SAID(&w, "5002 JOINED code=10012");
	NOT_SAID(&w, "m1024(");
	world_fini(&w);
}

static void unjoin(struct world *w, uint32_t conn, uint32_t seq)
{
	const struct ctl_msg msg = {CTL_UNJOIN, .unjoin = {seq}};

	send_msg(w, conn, &msg);
}

static void place_of_a_newcomer_that_has_left_is_free_at_once(void **state)
{
	struct world w;

	(void)state;
	elastic_job(&w);
	agent(&w, 24, "d", 204);
	join(&w, 23, CTL_NO_ID, 2, 12);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=10017"); /* three at most */
	unjoin(&w, 24, 12);               /* not its own */
	unjoin(&w, 23, 14);
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=10017");
	unjoin(&w, 23, 12);
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=0 job=4294967295");
	w.last_job = 1;
	at_barrier(&w, 21, 0, 1);
	clear(&w);
	at_barrier(&w, 22, 1, 1);
	SAID(&w, "24 JOINED code=0 job=1 rank=2");
	NOT_SAID(&w, "23 JOINED");
	clear(&w);
	unjoin(&w, 24, 14); /* it had not heard that it is in */
	NOT_SAID(&w, "JOB");
	world_fini(&w);
}

static void newcomers_of_an_agent_that_reconnects_join_again(void **state)
{
	struct world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, CTL_NO_ID, 2, 12);
	w.last_job = 1;
	agent(&w, 33, "c", 203); /* meanwhile its worker has left */
	agent(&w, 24, "d", 204);
	clear(&w);
	join(&w, 24, CTL_NO_ID, 2, 14);
	SAID(&w, "24 JOINED code=0 job=4294967295");
	world_fini(&w);
}

static void newcomers_hear_that_the_job_has_ended(void **state)
{
	struct world w;

	(void)state;
	elastic_job(&w);
	join(&w, 23, CTL_NO_ID, 2, 12);
	w.last_job = 1;
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_FINISHED);
	SAID(&w, "23 JOINED code=10018");
	world_fini(&w);
}

/* A server answers every question about agent 4, 'b', which it has not heard for quiet_ms. */
static void pass_seen(struct world *w, uint32_t ms, uint32_t quiet_ms)
{
	const struct ctl_msg seen = {CTL_SEEN, .sight = {4, 202, quiet_ms}};
	const uint32_t others[] = {11, 12, 21, 0};

	for (uint32_t at = 0; at < ms; at += 100) {
		char *asked;

		pass(w, 100, others);
		asked = strstr(w->log, "11 SIGHT");
		if (!asked)
			continue;
		asked[0] = '-';
		send_msg(w, 11, &seen);
	}
}

static void agent_that_only_the_scheduler_does_not_hear_lives(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	pass_seen(&w, 4 * w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	SAID(&w, "22 DROP silent, but servers hear it");
	agent(&w, 32, "b", 202);
	clear(&w);
	pass(&w, 1000, (const uint32_t[]){11, 12, 21, 32, 0});
	NOT_SAID(&w, "DROP");
	pass_seen(&w, w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	pass(&w, 2 * w.cfg.agent_dead_ms,
		(const uint32_t[]){11, 12, 21, 0}); /* no server hears it */
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b'");
	world_fini(&w);
}

static void agent_that_nobody_hears_is_dead_in_time_whatever_servers_say(void **state)
{
	struct world w;
	const struct ctl_msg unasked = {CTL_SEEN, .sight = {4, 202, 0}};
	const struct ctl_msg other_instance = {CTL_SEEN, .sight = {4, 201, 0}};

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 11, &unasked);
	pass_seen(&w, w.cfg.agent_dead_ms - 400,
		4500); /* heard by the server when it was last heard here */
	send_msg(&w, 11, &other_instance);
	NOT_SAID(&w, "JOB_END");
	pass_seen(&w, 600, 4800);
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b'");
	world_fini(&w);
}

static void agent_whose_job_changed_behind_its_back_is_not_kept(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	pass_seen(&w, 2 * w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	server(&w, 13, "s2", 112); /* a new process: its partitions move */
	pass_seen(&w, 800, 100);
	SAID(&w, "21 JOB_END job=1 code=10008 agent 'b'");
	world_fini(&w);
}

static void agent_that_restarts_within_its_window_keeps_its_job(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 22);
	pass(&w, 900, (const uint32_t[]){11, 12, 21, 0});
	clear(&w);
	agent(&w, 32, "b", 203);
	SAID(&w, "11 PEERS b:up:i203\n");
	SAID(&w, "32 JOB job=1");
	SAID(&w, "32 PLAN job=1 0=w");
	NOT_SAID(&w, "JOB_END");
	NOT_SAID(&w, "21 PLAN"); /* no pgen changed */
	world_fini(&w);
}

static void fail_ends_the_job_with_its_code_and_text(void **state)
{
	struct world w;
	struct ctl_msg msg = {.type = CTL_FAIL, .fail = {1, 10011, "results differ"}};

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 11, &msg);
	SAID(&w, "21 JOB_END job=1 code=10011 results differ\n");
	send_msg(&w, 21, &msg);
	world_fini(&w);
}

static void killed_job_ends_with_the_text_for_all_its_agents(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	assert_int_equal(sched_job_kill(w.core, 1, "killed by u: late", w.now), 0);
	SAID(&w, "11 JOB_END job=1 code=10021 killed by u: late\n");
	SAID(&w, "21 JOB_END job=1 code=10021 killed by u: late\n");
	assert_int_equal(sched_job_kill(w.core, 1, "again", w.now), BPS_ENOTFOUND);
	world_fini(&w);
}

static void expelled_agent_is_dead_at_once_unless_it_is_connected(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	sched_expel(w.core, ROLE_AGENT, "b", w.now);
	sched_expel(w.core, ROLE_AGENT, "nobody", w.now);
	sched_expel(w.core, ROLE_SERVER, "b", w.now);
	NOT_SAID(&w, "JOB_END");
	close_conn(&w, 22);
	sched_expel(w.core, ROLE_AGENT, "b", w.now);
	SAID(&w, "21 JOB_END job=1 code=10008");
	SAID(&w, "11 PEERS b:down:");
	world_fini(&w);
}

static void expelled_agent_dies_when_the_state_can_be_written_again(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	w.persist_error = -ENOSPC;
	agent(&w, 23, "c", 203);
	assert_false(sched_is_durable(w.core));
	close_conn(&w, 22);
	sched_expel(w.core, ROLE_AGENT, "b", w.now);
	clear(&w);
	pass_seen(&w, 2 * w.cfg.agent_dead_ms, 100);
	NOT_SAID(&w, "JOB_END");
	w.persist_error = 0;
	pass_seen(&w, 4 * w.cfg.agent_dead_ms, 100);
	SAID(&w, "21 JOB_END job=1 code=10008");
	world_fini(&w);
}

static void message_about_an_unknown_job_is_answered(void **state)
{
	struct world w;
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {99, NULL, 0}};

	(void)state;
	running_job(&w);
	clear(&w);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 JOB_END job=99 code=10021");
	world_fini(&w);
}

/* ---- tensors and placement ---- */

static void tensor_is_planned_when_all_agents_agree(void **state)
{
	struct world w;
	const char *server_plan, *agent_plan;

	(void)state;
	running_job(&w);
	server_plan = strstr(w.log, "11 PLAN job=1 0=w");
	agent_plan = strstr(w.log, "21 PLAN job=1 0=w");
	assert_non_null(server_plan);
	assert_non_null(agent_plan);
	assert_true(server_plan < agent_plan);
	SAID(&w, "12 PLAN job=1 0=w");
	SAID(&w, "22 PLAN job=1 0=w");
	clear(&w);
	declare(&w, 22, 1, "w", DTYPE_F32, 400000); /* again, after a lost answer */
	SAID(&w, "22 PLAN job=1 0=w [0:");
	NOT_SAID(&w, "21 ");
	world_fini(&w);
}

static void tensors_of_one_message_share_a_plan_and_a_view(void **state)
{
	struct world w;
	struct ctl_decl d[2] = {{0, "v1", DTYPE_F16, 100}, {0, "v2", DTYPE_F16, 200}};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, 2}};
	uint64_t view;

	(void)state;
	running_job(&w);
	send_msg(&w, 21, &msg);
	view = sched_view(w.core);
	clear(&w);
	d[0].rank = d[1].rank = 1;
	send_msg(&w, 22, &msg);
	SAID(&w, "21 PLAN job=1 1=v1 2=v2 [1:0+1");
	assert_true(sched_view(w.core) == view + 1);
	world_fini(&w);
}

static void mismatched_declaration_fails_that_tensor_for_all(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 1000);
	declare(&w, 22, 1, "v", DTYPE_F32, 1001);
	SAID(&w, "21 TENSOR_FAIL v code=10003 tensor 'v' of job 'x': rank 0 (host a) declares f32 x"
		 " 1000, rank 1 (host b) f32 x 1001\n");
	SAID(&w, "22 TENSOR_FAIL v code=10003");
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 1000);
	SAID(&w, "21 TENSOR_FAIL v code=10003");
	declare(&w, 21, 0, "w", DTYPE_F16, 400000); /* against a placed one */
	SAID(&w, "21 TENSOR_FAIL w code=10003");
	NOT_SAID(&w, "JOB_END");
	world_fini(&w);
}

static void impossible_declarations_are_refused(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	declare(&w, 21, 0, "v", 99, 10);
	SAID(&w, "21 TENSOR_FAIL v code=22");
	declare(&w, 21, 0, "v", DTYPE_F64, UINT64_MAX / 4);
	SAID(&w, "21 TENSOR_FAIL v code=10012");
	declare(&w, 21, 1, "v", DTYPE_F32, 10); /* not its rank */
	SAID(&w, "21 DROP");
	world_fini(&w);
}

static void job_of_one_member_needs_no_server(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 2, 10);
	join(&w, 21, 1, 2, 11);
	clear(&w);
	declare(&w, 21, 0, "w", DTYPE_F32, 1 << 20);
	SAID(&w, "21 PLAN job=1 0=w\n");
	world_fini(&w);
}

static void long_plans_are_sent_in_frames(void **state)
{
	struct world w;
	struct ctl_decl *d = calloc(CTL_LIST_MAX, sizeof(*d));
	char(*names)[CTL_TENSOR_NAME_MAX + 1] = calloc(CTL_LIST_MAX, sizeof(*names));
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {1, d, CTL_LIST_MAX}};

	(void)state;
	running_job(&w);
	for (uint32_t i = 0; i < CTL_LIST_MAX; i++) {
		memset(names[i], 'n', CTL_TENSOR_NAME_MAX);
		snprintf(names[i], sizeof(names[i]), "%0200u", i);
		d[i] = (struct ctl_decl){0, names[i], DTYPE_F32, 5000};
	}
	send_msg(&w, 21, &msg);
	for (uint32_t i = 0; i < CTL_LIST_MAX; i++)
		d[i].rank = 1;
	clear(&w);
	send_msg(&w, 22, &msg);
	SAID(&w, "[4096:0+1 s"); /* "w" was tensor 0 */
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "[4096:0+1 s");
	free(names);
	free(d);
	world_fini(&w);
}

static void partitions_of_a_dead_server_move_to_the_others(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	clear(&w);
	close_conn(&w, 11);
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "12 PLAN job=1 0=w [0:");
	SAID(&w, "21 PLAN job=1 0=w [0:");
	NOT_SAID(&w, " s1 ");
	SAID(&w, " s2 ");
	world_fini(&w);
}

static void restarted_server_keeps_its_partitions_under_a_new_pgen(void **state)
{
	struct world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_view(w.core);
	clear(&w);
	server(&w, 31, "s1", 111);
	assert_true(sched_view(w.core) == view + 1);
	SAID(&w, "31 PLAN job=1 0=w [0:");
	SAID(&w, "s1 i111]");
	SAID(&w, "21 PLAN job=1 0=w [0:");
	NOT_SAID(&w, "s2");
	world_fini(&w);
}

static void restarted_server_may_have_fewer_threads(void **state)
{
	struct world w;
	struct ctl_msg msg = hello_of(ROLE_SERVER, "s1", "s1", 111);

	(void)state;
	running_job(&w);
	msg.hello.threads = 1;
	sched_conn_open(w.core, 31, w.now);
	send_msg(&w, 31, &msg);
	kill_scheduler(&w);
	world_fini(&w);
}

static void partitions_wait_while_there_is_no_server(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 11);
	close_conn(&w, 12);
	clear(&w);
	pass(&w, w.cfg.server_window_ms + 10, (const uint32_t[]){21, 22, 0});
	SAID(&w, "none]");
	clear(&w);
	declare(&w, 21, 0, "late", DTYPE_F32, 100);
	declare(&w, 22, 1, "late", DTYPE_F32, 100);
	SAID(&w, "21 PLAN job=1 1=late [1:0+1 none]");
	clear(&w);
	server(&w, 31, "s3", 301);
	SAID(&w, "s5 i301]");
	NOT_SAID(&w, "none]");
	SAID(&w, "31 PLAN job=1 0=w 1=late");
	world_fini(&w);
}

/* ---- durability ---- */

static void restarted_scheduler_knows_its_members_and_jobs(void **state)
{
	struct world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	server(&w, 31, "s1", 111); /* a pgen that is newer than the tensor */
	view = sched_view(w.core);
	kill_scheduler(&w);
	assert_int_equal(sched_term(w.core), 2);
	assert_true(sched_view(w.core) > view);
	clear(&w);
	server(&w, 11, "s1", 111);
	SAID(&w, "11 WELCOME id=1 term=2");
	SAID(&w, "11 PLAN job=1 0=w");
	agent(&w, 21, "a", 201);
	SAID(&w, "21 JOB job=1 x size=2 m0(3:0) m1(4:1)");
	SAID(&w, "21 PLAN job=1 0=w");
	SAID(&w, "i111]");
	SAID(&w, "i102]");
	join(&w, 21, 0, 2, 10);
	SAID(&w, "21 JOINED code=0 job=1 rank=0");
	world_fini(&w);
}

static void nobody_dies_in_the_grace_after_a_restart(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	clear(&w);
	pass(&w, 2 * w.cfg.agent_dead_ms - 10, NULL);
	agent(&w, 21, "a", 201);
	NOT_SAID(&w, "down");
	NOT_SAID(&w, "JOB_END");
	pass(&w, 20, (const uint32_t[]){21, 0});
	SAID(&w, "21 JOB_END job=1 code=10008");
	world_fini(&w);
}

static void grace_also_covers_members_that_leave_again(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	server(&w, 11, "s1", 101);
	server(&w, 12, "s2", 102);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	clear(&w);
	close_conn(&w, 11);
	pass(&w, 2 * w.cfg.agent_dead_ms - 10, (const uint32_t[]){21, 22, 0}); /* s2 is silent */
	NOT_SAID(&w, "down");
	pass(&w, 20, (const uint32_t[]){21, 22, 0});
	SAID(&w, "s1:down:i101");
	SAID(&w, "12 DROP silent");
	world_fini(&w);
}

static void server_that_restarted_meanwhile_gets_a_new_pgen(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	clear(&w);
	server(&w, 11, "s1", 111);
	SAID(&w, "21 PLAN job=1");
	SAID(&w, "i111]");
	world_fini(&w);
}

static void forming_job_can_be_joined_again_after_a_restart(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 1, 2, 10);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	NOT_SAID(&w, "JOB");
	join(&w, 21, 1, 2, 10);
	SAID(&w, "21 JOINED code=0 job=1025 rank=1"); /* the number 1 was given out */
	world_fini(&w);
}

static void ended_job_is_told_to_members_that_missed_it(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	close_conn(&w, 21);
	worker(&w, 22, 1, WORKER_LOST);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "21 JOB_END job=1 code=10007 rank 1");
	world_fini(&w);
}

static void scheduler_without_state_goes_above_its_members(void **state)
{
	struct world w;
	struct ctl_msg msg = hello_of(ROLE_AGENT, "a", "a", 201);

	(void)state;
	world_init(&w);
	msg.hello.cluster_id = (struct blob){"the old cluster.", 16};
	msg.hello.view = UINT64_C(7) << 32 | 55;
	sched_conn_open(w.core, 21, w.now);
	send_msg(&w, 21, &msg);
	SAID(&w, "21 WELCOME id=1 term=8");
	assert_true(sched_view(w.core) > msg.hello.view);
	world_fini(&w);
}

static void nothing_is_told_that_is_not_durable(void **state)
{
	struct world w;
	uint64_t view;

	(void)state;
	running_job(&w);
	view = sched_view(w.core);
	w.persist_error = -ENOSPC;
	clear(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 100);
	declare(&w, 22, 1, "v", DTYPE_F32, 100);
	join(&w, 21, CTL_NO_ID, 2, 99);
	SAID(&w, "21 JOINED code=10020");
	agent(&w, 23, "c", 203);
	SAID(&w, "23 REFUSE code=10020");
	close_conn(&w, 11);
	pass(&w, 8000, (const uint32_t[]){21, 22, 0}); /* s2 is silent, too */
	NOT_SAID(&w, "PLAN");
	NOT_SAID(&w, "down");
	assert_true(sched_view(w.core) == view);
	assert_false(sched_is_durable(w.core));
	w.persist_error = 0;
	clear(&w);
	pass(&w, 600, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "21 PLAN job=1 1=v [1:");
	NOT_SAID(&w, "down");
	assert_true(sched_is_durable(w.core));
	pass(&w, 2 * w.cfg.agent_dead_ms, (const uint32_t[]){12, 21, 22, 0});
	SAID(&w, "21 PEERS s1:down");
	world_fini(&w);
}

static void member_that_cannot_be_kept_is_refused(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	w.persist_error = -EIO;
	clear(&w);
	agent(&w, 23, "c", 203);
	SAID(&w, "23 REFUSE code=10020");
	NOT_SAID(&w, "WELCOME");
	w.persist_error = 0;
	pass(&w, 600, everybody);
	agent(&w, 24, "c", 203);
	SAID(&w, "24 WELCOME id=5");
	world_fini(&w);
}

static void known_member_is_not_refused_while_the_state_cannot_be_written(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	w.persist_error = -EIO;
	clear(&w);
	server(&w, 31, "s1", 111); /* restarted: would change the view */
	SAID(&w, "31 DROP the state cannot be written");
	agent(&w, 41, "a", 201);
	SAID(&w, "41 DROP the state cannot be written");
	declare(&w, 22, 1, "w", DTYPE_F32, 400000); /* would be answered by the new place */
	NOT_SAID(&w, "REFUSE");
	NOT_SAID(&w, "PLAN");
	w.persist_error = 0;
	pass(&w, 600, (const uint32_t[]){12, 22, 0});
	SAID(&w, "22 PLAN job=1 0=w [0:");
	SAID(&w, "i111]");
	server(&w, 32, "s1", 111);
	SAID(&w, "32 PLAN job=1 0=w [0:");
	world_fini(&w);
}

static int keep_snapshot(void *ctx, const struct state_record *rec)
{
	struct world *w = ctx;
	size_t n = codec_size(state_layout(), rec);

	for (size_t i = 0; i < w->n_records; i++)
		free(w->records[i].bytes);
	w->records[0].bytes = malloc(n);
	w->records[0].n = codec_encode(state_layout(), rec, w->records[0].bytes);
	w->n_records = 1;
	return 0;
}

static void snapshot_holds_everything(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	assert_int_equal(sched_snapshot(w.core, keep_snapshot, &w), 0);
	kill_scheduler(&w);
	clear(&w);
	agent(&w, 21, "a", 201);
	SAID(&w, "21 WELCOME id=3 term=2");
	SAID(&w, "21 PLAN job=1 0=w [0:");
	world_fini(&w);
}

static void contradicting_record_is_refused(void **state)
{
	struct world w;
	struct state_member m = {
		.id = 7, .role = ROLE_AGENT, .name = "n", .host = "h", .addr = "", .version = ""};
	struct state_record rec = {.cluster_id = {"0123456789abcdef", 16},
		.secret = {"0123456789abcdef0123456789abcdef", 32},
		.term = 1,
		.view = 1,
		.job_id_limit = 1,
		.members = &m,
		.n_members = 1};
	struct err_text err = {""};

	(void)state;
	memset(&w, 0, sizeof(w));
	sched_config_default(&w.cfg);
	core_new(&w);
	assert_int_equal(sched_restore(w.core, &rec, &err), -EINVAL);
	assert_non_null(strstr(err.s, "member 7"));
	world_fini(&w);
}

/* ---- questions ---- */

static void why(struct world *w, uint32_t conn, uint32_t tensor, uint64_t round)
{
	struct ctl_msg msg = {.type = CTL_WHY, .why = {5, w->last_job, tensor, round}};

	send_msg(w, conn, &msg);
}

static void report(struct world *w, uint32_t conn, uint32_t seq, struct ctl_report_worker *workers,
	uint32_t n, const char *text)
{
	struct ctl_msg msg = {.type = CTL_REPORT, .report = {seq, w->last_job, text, workers, n}};

	send_msg(w, conn, &msg);
}

static void end_that_is_not_durable_is_told_to_nobody(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	w.persist_error = -ENOSPC;
	clear(&w);
	worker(&w, 21, 0, WORKER_FINISHED);
	worker(&w, 22, 1, WORKER_FINISHED);
	why(&w, 21, CTL_NO_ID, 0);
	NOT_SAID(&w, "JOB_END");
	w.persist_error = 0;
	pass(&w, 600, (const uint32_t[]){11, 12, 21, 22, 0});
	SAID(&w, "21 JOB_END job=1 code=0");
	SAID(&w, "22 JOB_END job=1 code=0");
	world_fini(&w);
}

static void why_of_a_forming_job_names_the_missing(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 4, 10);
	join(&w, 21, 1, 4, 11);
	join(&w, 21, 3, 4, 12);
	pass(&w, 5000, (const uint32_t[]){21, 0});
	why(&w, 21, CTL_NO_ID, 0);
	SAID(&w, "21 WHY_TEXT seq=5 job 'x': 3 of 4 workers have joined, missing rank 2; waiting "
		 "5.0 s\n");
	world_fini(&w);
}

static void why_of_what_is_not_durable_names_the_disk(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	w.persist_error = -ENOSPC;
	join(&w, 21, 0, 1, 10);
	NOT_SAID(&w, "21 JOB");
	clear(&w);
	why(&w, 21, CTL_NO_ID, 0);
	SAID(&w, "21 WHY_TEXT seq=5 the scheduler cannot write its state");
	world_fini(&w);
}

static void why_of_a_large_forming_job_names_eight_ranks(void **state)
{
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	join(&w, 21, 0, 100, 10);
	why(&w, 21, CTL_NO_ID, 0);
	SAID(&w, "missing ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more;");
	world_fini(&w);
}

static void why_of_a_round_names_who_is_late(void **state)
{
	struct world w;
	struct ctl_report_worker a = {.rank = 0, .pid = 10, .submitted = 7, .is_attached = 1};
	struct ctl_report_worker b = {
		.rank = 1, .pid = 20, .submitted = 6, .quiet_ms = 5200, .is_attached = 1};

	(void)state;
	running_job(&w);
	clear(&w);
	why(&w, 21, 0, 7);
	SAID(&w, "21 PROBE seq=1 job=1");
	SAID(&w, "22 PROBE seq=1 job=1");
	report(&w, 21, 1, &a, 1, "");
	report(&w, 21, 1, &a, 1, ""); /* a second answer does not count */
	NOT_SAID(&w, "WHY_TEXT");
	report(&w, 22, 1, &b, 1, "");
	SAID(&w,
		"21 WHY_TEXT seq=5 waiting for rank 1 (host b, pid 20), which submitted up to round"
		" 6, quiet for 5.2 s\n");
	world_fini(&w);
}

static void why_ends_in_half_a_second_and_names_the_mute(void **state)
{
	struct world w;
	struct ctl_report_worker a = {.rank = 0, .pid = 10, .submitted = 7, .is_attached = 1};

	(void)state;
	running_job(&w);
	close_conn(&w, 12);
	pass(&w, w.cfg.server_window_ms + 100, (const uint32_t[]){11, 21, 22, 0});
	clear(&w);
	why(&w, 21, 0, 7);
	report(&w, 21, 1, &a, 1, "");
	pass(&w, w.cfg.probe_ms + 10, (const uint32_t[]){11, 21, 22, 0});
	SAID(&w, "21 WHY_TEXT seq=5 agent b (host b) did not answer within 0.5 s; server s2 (host "
		 "s2)"
		 " is down since 0.6 s\n");
	world_fini(&w);
}

static void why_names_a_tensor_that_not_all_declare(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	clear(&w);
	why(&w, 21, CTL_NO_ID, 0);
	report(&w, 21, 1, NULL, 0, "");
	report(&w, 22, 1, NULL, 0, "");
	SAID(&w, "WHY_TEXT seq=5 tensor 'v' not declared yet by rank 1 (host b)\n");
	world_fini(&w);
}

static void probe_for_the_status_gathers_what_answers(void **state)
{
	struct world w;
	struct ctl_report_worker a = {.rank = 0, .pid = 10, .oldest_tensor = CTL_NO_ID};

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 99, 77, w.now), BPS_ENOTFOUND);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	assert_false(w.is_probe_done);
	pass(&w, w.cfg.probe_ms + 10, everybody);
	assert_true(w.is_probe_done);
	assert_int_equal(w.probe_workers, 1);
	assert_int_equal(w.probe_answers, 1);
	world_fini(&w);
}

/* A worker that waits for round 3 of tensor 0 since 2 s. */
#define WAITS(r, p)                                                                                \
	(struct ctl_report_worker)                                                                 \
	{                                                                                          \
		.rank = (r), .pid = (p), .submitted = 3, .calls = 3, .oldest_round = 3,            \
		.oldest_ms = 2000, .is_attached = 1                                                \
	}

static json_t *first_wait(const struct world *w)
{
	assert_non_null(w->status);
	return json_array_get(json_object_get(w->status, "waits"), 0);
}

static const char *text_of(json_t *o, const char *list, const char *key)
{
	json_t *v = list ? json_object_get(json_array_get(json_object_get(o, list), 0), key)
			 : json_object_get(o, key);

	return json_is_string(v) ? json_string_value(v) : "";
}

static void probe_for_the_status_asks_on_for_who_has_not_submitted(void **state)
{
	struct world w;
	struct ctl_report_worker a = WAITS(0, 10);
	struct ctl_report_worker b = {.rank = 1,
		.pid = 20,
		.calls = 2,
		.submitted = 2,
		.quiet_ms = 2500,
		.oldest_tensor = CTL_NO_ID,
		.is_attached = 1};

	(void)state;
	running_job(&w);
	clear(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	report(&w, 22, 1, &b, 1, "");
	assert_false(w.is_probe_done);
	SAID(&w, "21 PROBE seq=2 job=1");
	report(&w, 21, 2, &a, 1, "");
	report(&w, 22, 2, &b, 1, "");
	assert_true(w.is_probe_done);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "submit");
	assert_string_equal(text_of(first_wait(&w), NULL, "tensor"), "w");
	assert_string_equal(text_of(first_wait(&w), "missing", "host"), "b");
	assert_string_equal(text_of(first_wait(&w), "waiting", "host"), "a");
	assert_string_equal(text_of(w.status, "problems", "code"), "STRAGGLER");
	assert_non_null(strstr(text_of(w.status, "problems", "what"), "rank 1 (host b, pid 20)"));
	world_fini(&w);
}

static void probe_for_the_status_names_the_servers_of_a_complete_round(void **state)
{
	struct world w;
	struct ctl_report_worker a = WAITS(0, 10), b = WAITS(1, 20);

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	report(&w, 22, 1, &b, 1, "");
	report(&w, 21, 2, &a, 1, "");
	report(&w, 22, 2, &b, 1, "");
	assert_true(w.is_probe_done);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "sum");
	assert_string_equal(text_of(first_wait(&w), "servers", "state"), "up");
	assert_int_equal(json_array_size(json_object_get(w.status, "problems")), 0);
	world_fini(&w);
}

static void probe_for_the_status_ends_in_its_bound_and_names_the_mute(void **state)
{
	struct world w;
	struct ctl_report_worker a = WAITS(0, 10);

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	pass(&w, w.cfg.probe_ms + 10, everybody);
	assert_false(w.is_probe_done);
	pass(&w, w.cfg.probe_ms / 4 + 10, everybody);
	assert_true(w.is_probe_done);
	assert_non_null(strstr(text_of(w.status, NULL, "condition"), "agent b (host b) did not"));
	assert_string_equal(text_of(w.status, "problems", "code"), "NO_ANSWER");
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "unknown");
	world_fini(&w);
}

static void probe_for_the_status_outlives_its_job(void **state)
{
	struct world w;
	struct ctl_report_worker a = WAITS(0, 10);

	(void)state;
	running_job(&w);
	assert_int_equal(sched_probe_start(w.core, 1, 77, w.now), 0);
	report(&w, 21, 1, &a, 1, "");
	pass(&w, w.cfg.probe_ms + 10, everybody);
	report(&w, 22, 1, &a, 1, ""); /* late, the second question is out */
	worker(&w, 21, 0, WORKER_LOST);
	pass(&w, w.cfg.probe_ms / 4 + 10, everybody);
	assert_true(w.is_probe_done);
	assert_int_equal(json_array_size(json_object_get(w.status, "waits")), 0);
	world_fini(&w);
}

static void status_names_who_has_to_join_or_declare(void **state)
{
	struct status_info info = {0};
	struct world w;

	(void)state;
	world_init(&w);
	agent(&w, 21, "a", 201);
	agent(&w, 22, "b", 202);
	join(&w, 21, 0, 2, 10);
	w.status = status_job(w.core, &info, w.last_job, NULL);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "join");
	assert_string_equal(text_of(first_wait(&w), "waiting", "host"), "a");
	json_decref(w.status);
	join(&w, 22, 1, 2, 20);
	declare(&w, 21, 0, "v", DTYPE_F32, 10);
	w.status = status_job(w.core, &info, w.last_job, NULL);
	assert_string_equal(text_of(first_wait(&w), NULL, "why"), "declare");
	assert_string_equal(text_of(first_wait(&w), NULL, "tensor"), "v");
	assert_string_equal(text_of(first_wait(&w), "missing", "host"), "b");
	world_fini(&w);
}

/* ---- events ---- */

static bool has_event(const struct world *w, const char *kind, const char *text)
{
	json_t *root = events_json(w->events, 1, 0), *e;
	bool is_there = false;
	size_t i;

	json_array_foreach(json_object_get(root, "events"), i,
		e) if (strcmp(text_of(e, NULL, "kind"), kind) == 0 &&
		       strstr(text_of(e, NULL, "text"), text)) is_there = true;
	json_decref(root);
	return is_there;
}

static void events_tell_of_members_jobs_partitions_and_views(void **state)
{
	struct world w;

	(void)state;
	running_job(&w);
	assert_true(has_event(&w, "scheduler", "has started, term 1"));
	assert_true(has_event(&w, "member", "server s1 (host s1) is up: it is new"));
	assert_true(has_event(&w, "job", "'x' (2 workers, uid 1000) begins to form"));
	assert_true(has_event(&w, "job", "'x' (2 workers, uid 1000) runs"));
	assert_true(has_event(&w, "view", "1 tensor of job 'x' placed"));
	close_conn(&w, 12);
	assert_true(has_event(&w, "member", "s2 (host s2) is suspect: its connection closed"));
	pass(&w, w.cfg.server_window_ms + 100, (const uint32_t[]){11, 21, 22, 0});
	assert_true(has_event(&w, "member", "s2 (host s2) is down: gone for 1.0 s"));
	assert_true(has_event(&w, "partitions", "of job 'x' moved from server s2 to others"));
	assert_true(has_event(&w, "view", "server s2 is gone"));
	server(&w, 13, "s1", 111);
	assert_true(has_event(&w, "member", "server s1 (host s1) has restarted"));
	assert_true(has_event(&w, "partitions", "begin anew on the restarted server s1"));
	worker(&w, 21, 0, WORKER_LOST);
	assert_true(has_event(&w, "job", "has ended: rank 0 (host a, pid 10)"));
	world_fini(&w);
}

static void events_are_kept_and_answered_within_their_bounds(void **state)
{
	struct events *ev = events_new();
	struct sched_event e = {EVENT_VIEW, 7, "x"};
	json_t *root;

	(void)state;
	assert_non_null(ev);
	for (int i = 0; i < EVENTS_KEPT + 10; i++)
		events_add(ev, &e, i);
	root = events_json(ev, 1, 3);
	assert_int_equal(json_integer_value(json_object_get(root, "first")), 11);
	assert_int_equal(json_integer_value(json_object_get(root, "lost")), 7);
	assert_int_equal(json_array_size(json_object_get(root, "events")), EVENTS_ANSWER_MAX);
	assert_int_equal(json_integer_value(json_object_get(root, "next")), 10 + EVENTS_ANSWER_MAX);
	json_decref(root);
	root = events_json(ev, 1, UINT64_MAX);
	assert_int_equal(json_array_size(json_object_get(root, "events")), 0);
	assert_int_equal(json_integer_value(json_object_get(root, "next")), EVENTS_KEPT + 10);
	json_decref(root);
	root = events_json(ev, 1, EVENTS_KEPT + 9);
	assert_int_equal(json_array_size(json_object_get(root, "events")), 1);
	json_decref(root);
	events_free(ev);
}

/* Every state of a member by every event that concerns it, and no invariant breaks. */
static void every_member_state_takes_every_event(void **state)
{
	(void)state;
	for (int from = 0; from < 4; from++) {
		for (int event = 0; event < 6; event++) {
			struct world w;
			uint32_t conn = 12;

			running_job(&w);
			if (from == 1) {
				close_conn(&w, 12);
			} else if (from == 2) {
				close_conn(&w, 12);
				pass(&w, w.cfg.server_window_ms + 10,
					(const uint32_t[]){11, 21, 22, 0});
			} else if (from == 3) {
				kill_scheduler(&w);
			}
			switch (event) {
			case 0:
				server(&w, conn = 31, "s2", 102);
				break;
			case 1:
				server(&w, conn = 32, "s2", 103);
				break;
			case 2:
				hello(&w, 33, ROLE_SERVER, "s2", "elsewhere", 104);
				break;
			case 3:
				close_conn(&w, 12);
				break;
			case 4:
				pass(&w, 20000, NULL);
				break;
			default:
				w.persist_error = -EIO;
				server(&w, 34, "s2", 105);
				w.persist_error = 0;
				pass(&w, 20000, (const uint32_t[]){11, 21, 22, 0});
				break;
			}
			pass(&w, 100, (const uint32_t[]){conn, 0});
			kill_scheduler(&w);
			world_fini(&w);
		}
	}
}

/* ---- random histories ---- */

#define RANDOM_HISTORIES 150
#define RANDOM_EVENTS    120
#define MEMBERS          6 /* three servers, three agents */

struct chaos {
	struct world w;
	uint64_t seed;
	uint32_t conn[MEMBERS + 1], next_conn; /* 0-terminated */
	uint64_t instance[MEMBERS];
};

static uint32_t draw(struct chaos *h, uint32_t n)
{
	h->seed = h->seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(h->seed >> 33) % n;
}

static void chaos_hello(struct chaos *h, uint32_t i, bool is_new)
{
	static const char *const names[] = {"p", "q", "r", "p", "q", "r"};
	struct ctl_msg msg;

	if (is_new || !h->instance[i])
		h->instance[i] = ++h->w.random;
	msg = hello_of(i < 3 ? ROLE_SERVER : ROLE_AGENT, names[i], names[i], h->instance[i]);
	msg.hello.threads = (uint16_t)(1 + draw(h, 3));
	msg.hello.view = h->w.kept_view;
	h->conn[i] = ++h->next_conn;
	sched_conn_open(h->w.core, h->conn[i], h->w.now);
	sched_message(h->w.core, h->conn[i], &msg, h->w.now);
}

static void chaos_message(struct chaos *h)
{
	static const char *const names[] = {"x", "y"};
	static const char *const tensors[] = {"t0", "t1", "t2", "t3"};
	bool is_sane = draw(h, 10) > 0;
	uint32_t i = is_sane ? 3 + draw(h, 3) : draw(h, MEMBERS);
	uint32_t job = is_sane ? h->w.last_job : draw(h, 4), rank = is_sane ? i - 3 : draw(h, 4);
	struct ctl_decl d[2] = {{rank, tensors[draw(h, 4)], DTYPE_F32, draw(h, 20) ? 400000 : 1000},
		{rank, tensors[draw(h, 4)], DTYPE_F32, 400000}};
	struct ctl_report_worker rw = {.rank = rank};
	struct ctl_msg msg = {.type = CTL_BEAT};

	switch (draw(h, 12)) {
	case 0:
	case 1:
	case 2:
		msg = (struct ctl_msg){.type = CTL_JOIN,
			.join = {draw(h, 9), 1, names[draw(h, 12) == 0],
				draw(h, 6) ? rank : CTL_NO_ID, is_sane ? 3 : 2, 0, 100 + rank, 0,
				draw(h, 9) ? no_token : token}};
		break;
	case 3:
	case 4:
	case 5:
	case 6:
	case 7:
		msg = (struct ctl_msg){.type = CTL_DECLARE, .declare = {job, d, 1 + draw(h, 2)}};
		break;
	case 8:
		msg = (struct ctl_msg){.type = CTL_WORKER,
			.worker = {job, rank, (uint8_t)(draw(h, 4) ? WORKER_FINISHED : WORKER_LOST),
				""}};
		break;
	case 9:
		msg = (struct ctl_msg){.type = CTL_WHY, .why = {1, job, CTL_NO_ID, 1}};
		break;
	case 10:
		msg = (struct ctl_msg){.type = CTL_REPORT, .report = {draw(h, 9), job, "", &rw, 1}};
		break;
	default:
		if (draw(h, 10) == 0)
			msg = (struct ctl_msg){.type = CTL_FAIL, .fail = {job, 0, ""}};
		break;
	}
	sched_message(h->w.core, h->conn[i], &msg, h->w.now);
}

static void chaos_pass(struct chaos *h)
{
	uint32_t i = draw(h, MEMBERS), conn = h->conn[i];
	uint64_t ms = draw(h, 4) ? 200 : 4000;

	if (draw(h, 4) == 0) /* one is silent, and those behind it */
		h->conn[i] = 0;
	pass(&h->w, ms, h->conn);
	h->conn[i] = conn;
	if (draw(h, 20) == 0) { /* this process was stopped */
		h->w.now += 3000 * MS;
		sched_tick(h->w.core, h->w.now);
	}
}

static void chaos_event(struct chaos *h)
{
	uint32_t i = draw(h, MEMBERS), what = draw(h, 40);

	clear(&h->w);
	if (what == 0) {
		sched_conn_closed(h->w.core, h->conn[i], h->w.now);
	} else if (what < 5) {
		chaos_hello(h, i, what == 1);
	} else if (what == 5) {
		h->w.persist_error = draw(h, 3) ? 0 : -EIO;
	} else if (what == 6 && draw(h, 4) == 0) {
		kill_scheduler(&h->w);
		for (uint32_t k = 0; k < MEMBERS; k++)
			if (draw(h, 8))
				chaos_hello(h, k, draw(h, 8) == 0);
	} else if (what < 10) {
		chaos_pass(h);
	} else {
		chaos_message(h);
	}
}

/* Nothing that members say and suffer breaks an invariant, and every state can be restored. */
static void random_histories_break_no_invariant(void **state)
{
	struct chaos *h = calloc(1, sizeof(*h));

	(void)state;
	for (uint64_t seed = 1; seed <= RANDOM_HISTORIES; seed++) {
		world_init(&h->w);
		h->seed = seed;
		h->next_conn = 0;
		memset(h->conn, 0, sizeof(h->conn));
		memset(h->instance, 0, sizeof(h->instance));
		for (uint32_t i = 0; i < MEMBERS; i++)
			chaos_hello(h, i, true);
		for (int k = 0; k < RANDOM_EVENTS; k++) {
			chaos_event(h);
			check(&h->w);
		}
		h->w.persist_error = 0;
		kill_scheduler(&h->w);
		world_fini(&h->w);
	}
	free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_is_welcomed_and_told_of_the_other_side),
		cmocka_unit_test(wrong_hello_is_refused_with_a_sentence),
		cmocka_unit_test(first_message_must_be_hello_and_must_come),
		cmocka_unit_test(same_name_on_another_host_is_refused_while_the_holder_lives),
		cmocka_unit_test(shorter_dead_time_counts_from_now_on),
		cmocka_unit_test(longer_window_is_for_the_losses_to_come),
		cmocka_unit_test(new_instance_on_the_same_host_replaces_the_old_at_once),
		cmocka_unit_test(replaced_instance_does_not_take_its_name_back),
		cmocka_unit_test(reconnect_of_the_same_instance_changes_no_view),
		cmocka_unit_test(half_open_connection_gives_way_to_the_new_one),
		cmocka_unit_test(silent_server_is_declared_dead_after_its_time),
		cmocka_unit_test(scheduler_that_hears_nobody_gives_nobody_up),
		cmocka_unit_test(late_tick_extends_the_deadlines),
		cmocka_unit_test(evicted_instance_that_returns_relearns_what_it_has),
		cmocka_unit_test(job_forms_when_all_ranks_are_there),
		cmocka_unit_test(repeated_join_gets_the_same_rank),
		cmocka_unit_test(assigned_ranks_are_assigned_anew_after_a_restart),
		cmocka_unit_test(repeated_join_of_a_running_job_gets_the_job_behind_its_answer),
		cmocka_unit_test(duplicate_rank_is_refused_with_the_holder),
		cmocka_unit_test(workers_that_disagree_are_both_named),
		cmocka_unit_test(same_job_name_of_another_user_is_another_job),
		cmocka_unit_test(process_that_opens_a_rank_twice_is_refused_the_second_time),
		cmocka_unit_test(worker_of_another_user_joins_with_the_token),
		cmocka_unit_test(worker_of_the_same_user_without_the_right_token_is_refused),
		cmocka_unit_test(token_does_not_open_a_job_that_has_none),
		cmocka_unit_test(worker_of_another_user_without_the_token_gets_a_job_of_its_own),
		cmocka_unit_test(token_outlives_the_scheduler),
		cmocka_unit_test(user_with_too_many_jobs_is_refused_and_another_one_is_not),
		cmocka_unit_test(tensor_beyond_the_jobs_share_of_the_servers_is_refused_everywhere),
		cmocka_unit_test(tensors_of_all_jobs_of_a_user_count_for_its_share),
		cmocka_unit_test(worker_that_leaves_a_forming_job_frees_its_rank),
		cmocka_unit_test(job_ends_well_when_all_have_finished),
		cmocka_unit_test(numbers_of_jobs_are_never_used_twice),
		cmocka_unit_test(only_the_last_ended_jobs_are_kept),
		cmocka_unit_test(lost_worker_ends_the_job_and_is_named),
		cmocka_unit_test(worker_lost_after_it_finished_harms_nobody),
		cmocka_unit_test(agent_cannot_speak_for_ranks_of_another),
		cmocka_unit_test(dead_agent_ends_its_jobs_and_is_named),
		cmocka_unit_test(agent_that_only_the_scheduler_does_not_hear_lives),
		cmocka_unit_test(agent_that_nobody_hears_is_dead_in_time_whatever_servers_say),
		cmocka_unit_test(agent_whose_job_changed_behind_its_back_is_not_kept),
		cmocka_unit_test(agent_that_restarts_within_its_window_keeps_its_job),
		cmocka_unit_test(fail_ends_the_job_with_its_code_and_text),
		cmocka_unit_test(killed_job_ends_with_the_text_for_all_its_agents),
		cmocka_unit_test(expelled_agent_is_dead_at_once_unless_it_is_connected),
		cmocka_unit_test(expelled_agent_dies_when_the_state_can_be_written_again),
		cmocka_unit_test(message_about_an_unknown_job_is_answered),
		cmocka_unit_test(tensor_is_planned_when_all_agents_agree),
		cmocka_unit_test(tensors_of_one_message_share_a_plan_and_a_view),
		cmocka_unit_test(mismatched_declaration_fails_that_tensor_for_all),
		cmocka_unit_test(impossible_declarations_are_refused),
		cmocka_unit_test(job_of_one_member_needs_no_server),
		cmocka_unit_test(long_plans_are_sent_in_frames),
		cmocka_unit_test(partitions_of_a_dead_server_move_to_the_others),
		cmocka_unit_test(restarted_server_keeps_its_partitions_under_a_new_pgen),
		cmocka_unit_test(restarted_server_may_have_fewer_threads),
		cmocka_unit_test(partitions_wait_while_there_is_no_server),
		cmocka_unit_test(restarted_scheduler_knows_its_members_and_jobs),
		cmocka_unit_test(nobody_dies_in_the_grace_after_a_restart),
		cmocka_unit_test(grace_also_covers_members_that_leave_again),
		cmocka_unit_test(server_that_restarted_meanwhile_gets_a_new_pgen),
		cmocka_unit_test(forming_job_can_be_joined_again_after_a_restart),
		cmocka_unit_test(ended_job_is_told_to_members_that_missed_it),
		cmocka_unit_test(scheduler_without_state_goes_above_its_members),
		cmocka_unit_test(nothing_is_told_that_is_not_durable),
		cmocka_unit_test(member_that_cannot_be_kept_is_refused),
		cmocka_unit_test(known_member_is_not_refused_while_the_state_cannot_be_written),
		cmocka_unit_test(snapshot_holds_everything),
		cmocka_unit_test(contradicting_record_is_refused),
		cmocka_unit_test(end_that_is_not_durable_is_told_to_nobody),
		cmocka_unit_test(why_of_a_forming_job_names_the_missing),
		cmocka_unit_test(why_of_what_is_not_durable_names_the_disk),
		cmocka_unit_test(why_of_a_large_forming_job_names_eight_ranks),
		cmocka_unit_test(why_of_a_round_names_who_is_late),
		cmocka_unit_test(why_ends_in_half_a_second_and_names_the_mute),
		cmocka_unit_test(why_names_a_tensor_that_not_all_declare),
		cmocka_unit_test(probe_for_the_status_gathers_what_answers),
		cmocka_unit_test(probe_for_the_status_asks_on_for_who_has_not_submitted),
		cmocka_unit_test(probe_for_the_status_names_the_servers_of_a_complete_round),
		cmocka_unit_test(probe_for_the_status_ends_in_its_bound_and_names_the_mute),
		cmocka_unit_test(probe_for_the_status_outlives_its_job),
		cmocka_unit_test(status_names_who_has_to_join_or_declare),
		cmocka_unit_test(lost_machine_leaves_a_job_that_may_shrink),
		cmocka_unit_test(lost_worker_takes_its_machine_out_of_a_job_that_may_shrink),
		cmocka_unit_test(last_machine_of_a_job_that_may_shrink_ends_it),
		cmocka_unit_test(tensor_that_only_the_lost_has_not_declared_is_placed),
		cmocka_unit_test(who_has_left_a_job_is_known_after_a_restart),
		cmocka_unit_test(barrier_is_passed_when_all_that_are_left_are_there_in_one_view),
		cmocka_unit_test(newcomers_are_let_in_at_a_barrier_and_told_of_everything),
		cmocka_unit_test(lost_machines_rank_and_number_go_to_who_joins),
		cmocka_unit_test(machines_that_wait_count_for_the_limit_of_machines),
		cmocka_unit_test(place_of_a_newcomer_that_has_left_is_free_at_once),
		cmocka_unit_test(newcomers_of_an_agent_that_reconnects_join_again),
		cmocka_unit_test(newcomers_hear_that_the_job_has_ended),
		cmocka_unit_test(events_tell_of_members_jobs_partitions_and_views),
		cmocka_unit_test(events_are_kept_and_answered_within_their_bounds),
		cmocka_unit_test(every_member_state_takes_every_event),
		cmocka_unit_test(random_histories_break_no_invariant),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
