#ifndef BPS_TESTS_SCHED_WORLD_H
#define BPS_TESTS_SCHED_WORLD_H
/* A test world for the scheduler's core (bps-scheduler/core/core.h). Connections are numbers.
 * Messages from the core become lines of text, which SAID checks. The core's records are stored, so
 * a test can restart the core from them. After each step the core's invariants are checked.
 * Everything runs in one thread, and the test sets the time. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/status/events.h"
#include "bps-scheduler/status/status.h"
#include "common/base/log.h"
#include "common/data/dtype.h"
#include "common/wire/wire.h"
#include "tests/invariants/invariants.h"

#define MS        UINT64_C(1000000)
#define RECORDS   16384
#define LOG_BYTES (4u << 20)

/* The world around one core. It stores every message as a line of text. It stores every record, so
 * that a test can restart the core from the records. */
struct sched_world {
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
	uint64_t kept_view; /* largest view in any record */
	uint32_t last_job;
	uint32_t flags, max_size; /* flags and max_size in each JOIN */
	bool has_beats;           /* write the core's heartbeats into the log, too */
	bool is_probe_done;
	uint32_t probe_workers, probe_answers;
	json_t *status; /* the job's status, with the results of a probe */
	struct event_ring *events;
};

static inline void note(struct sched_world *w, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static inline void note(struct sched_world *w, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(w->log + w->n_log, LOG_BYTES - w->n_log, fmt, ap);
	va_end(ap);
	assert_true(n >= 0 && w->n_log + (size_t)n < LOG_BYTES);
	w->n_log += (size_t)n;
}

static inline void clear(struct sched_world *w)
{
	w->n_log = 0;
	w->log[0] = 0;
}

static inline void note_plan(struct sched_world *w, const struct ctl_plan *p)
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

/* Write the cause of a failure, if it is known, into a separate line. */
static inline void note_cause(struct sched_world *w, const struct ctl_cause *cause)
{
	if (ctl_has_cause(cause))
		note(w, "\nCAUSE rank=%d host=%s", (int)cause->rank, cause->host);
}

static inline void note_body(struct sched_world *w, const struct ctl_msg *m)
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
		note_cause(w, &m->job_end.cause);
		break;
	case CTL_PLAN:
		note_plan(w, &m->plan);
		break;
	case CTL_TENSOR_FAIL:
		note(w, " %s code=%u %s", m->tensor_fail.name, m->tensor_fail.code,
			m->tensor_fail.text);
		note_cause(w, &m->tensor_fail.cause);
		break;
	case CTL_WHY_TEXT:
		note(w, " seq=%u %s", m->why_text.seq, m->why_text.text);
		break;
	case CTL_BEAT:
		note(w, " seq=%llu echo=%llu", (unsigned long long)m->beat.seq,
			(unsigned long long)m->beat.echo);
		break;
	case CTL_PROBE:
		note(w, " seq=%u job=%u", m->probe.seq, m->probe.job);
		break;
	default:
		break;
	}
}

static inline uint64_t view_of(const struct ctl_msg *m)
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

static inline void on_send(void *ctx, uint32_t conn, const struct ctl_msg *m)
{
	struct sched_world *w = ctx;
	size_t n = codec_encoded_size(ctl_layout(m->type), &m->hello);

	assert_true(n > 0);                      /* every message can be encoded */
	assert_true(view_of(m) <= w->kept_view); /* I10: the view is durable */
	if (m->type == CTL_BEAT && !w->has_beats)
		return;
	note(w, "%u %s", conn, ctl_type_name(m->type));
	note_body(w, m);
	note(w, "\n");
}

static inline void on_drop(void *ctx, uint32_t conn, const char *why)
{
	note(ctx, "%u DROP %s\n", conn, why);
}

static inline int on_persist(void *ctx, const struct state_record *rec)
{
	struct sched_world *w = ctx;
	size_t n = codec_encoded_size(state_record_layout(), rec);

	if (w->persist_error)
		return w->persist_error;
	assert_true(n > 0 && w->n_records < RECORDS);
	assert_true(rec->view > w->kept_view); /* I6: the view grows */
	w->records[w->n_records].bytes = malloc(n);
	w->records[w->n_records].n =
		codec_encode(state_record_layout(), rec, w->records[w->n_records].bytes);
	w->n_records++;
	w->kept_view = rec->view;
	return 0;
}

static inline void on_random(void *ctx, void *ret, size_t n)
{
	struct sched_world *w = ctx;

	memset(ret, (int)++w->random, n);
}

static inline void on_pair_key(
	void *ctx, const uint8_t *secret, uint64_t agent, uint64_t server, uint8_t *ret)
{
	(void)ctx;
	memset(ret, (int)(secret[0] + agent + server), CTL_KEY_BYTES);
}

static inline void on_probe_done(void *ctx, uint64_t token, const struct sched_probe *p)
{
	struct sched_world *w = ctx;

	assert_int_equal(token, 77);
	w->is_probe_done = true;
	w->probe_workers = p->n_workers;
	for (uint32_t i = 0; i < p->n_members; i++)
		w->probe_answers += p->has_answered[i];
	json_decref(w->status);
	w->status = status_job_json(w->core, &(struct status_info){.now_ns = w->now}, p->job, p);
}

static inline void on_event(void *ctx, const struct sched_event *e)
{
	struct sched_world *w = ctx;

	events_add(w->events, e, 1.5);
}

static inline void core_new(struct sched_world *w)
{
	struct sched_env env = {
		w, on_send, on_drop, on_persist, on_random, on_pair_key, on_probe_done, on_event};

	if (!w->events)
		w->events = events_new();
	w->core = sched_new(&w->cfg, &env);
}

static inline void world_init(struct sched_world *w)
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

static inline void world_fini(struct sched_world *w)
{
	sched_free(w->core);
	free(w->log);
	json_decref(w->status);
	events_free(w->events);
	for (size_t i = 0; i < w->n_records; i++)
		free(w->records[i].bytes);
}

static inline void check(const struct sched_world *w)
{
	struct err_text err = {""};

	if (sched_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static inline void kill_scheduler(struct sched_world *w)
{
	w->persist_error = 0;
	sched_free(w->core);
	core_new(w);
	for (size_t i = 0; i < w->n_records; i++) {
		struct state_record rec;
		struct err_text err = {""};
		void *mem;

		assert_int_equal(codec_decode(state_record_layout(), w->records[i].bytes,
					 w->records[i].n, 1 << 24, &rec, &mem, &err),
			0);
		if (sched_restore(w->core, &rec, &err) < 0)
			fail_msg("record %zu: %s", i, err.s);
		free(mem);
	}
	assert_int_equal(sched_start(w->core, w->now), 0);
	check(w);
}

/* Advance the time by ms milliseconds. The members on conns (a list that ends with 0) send
 * heartbeats. */
static inline void pass(struct sched_world *w, uint64_t ms, const uint32_t *conns)
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
				sched_receive_message(w->core, conns[i], &msg, w->now);
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

static inline void send_msg(struct sched_world *w, uint32_t conn, const struct ctl_msg *msg)
{
	sched_receive_message(w->core, conn, msg, w->now);
	check(w);
}

static inline struct ctl_msg hello_of(
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
			.threads = 2,
			.provider = "sockets"}};
}

static inline void hello(struct sched_world *w, uint32_t conn, enum role role, const char *name,
	const char *host, uint64_t instance)
{
	struct ctl_msg msg = hello_of(role, name, host, instance);

	sched_conn_open(w->core, conn, w->now);
	send_msg(w, conn, &msg);
}

/* Lines of the log from log_capture_begin to log_capture_has. Both work on stderr. */
struct log_capture {
	FILE *lines;
	int stderr_fd; /* copy of the former stderr */
};

static inline struct log_capture log_capture_begin(void)
{
	struct log_capture l = {tmpfile(), dup(STDERR_FILENO)};

	assert_non_null(l.lines);
	fflush(stderr);
	dup2(fileno(l.lines), STDERR_FILENO);
	log_set_level(LOG_WARN);
	return l;
}

/* End the capture. Return whether a captured line contains the text. */
static inline bool log_capture_has(struct log_capture *l, const char *text)
{
	char lines[4096];

	log_set_level(LOG_ERROR);
	dup2(l->stderr_fd, STDERR_FILENO);
	close(l->stderr_fd);
	rewind(l->lines);
	lines[fread(lines, 1, sizeof(lines) - 1, l->lines)] = '\0';
	fclose(l->lines);
	return strstr(lines, text);
}

/* Boot ids of two machines, each of CTL_BOOT_ID_BYTES */
#define BOOT_1 "first boot id 16"
#define BOOT_2 "other boot id 16"

/* Send HELLO from a machine. boot_id: "": the machine's boot id is not known. The machine of BOOT_2
 * has the address 10.0.0.2, each other machine 10.0.0.1. */
static inline void hello_from(struct sched_world *w, uint32_t conn, enum role role,
	const char *name, uint64_t instance, const char *host, const char *domain,
	const char *boot_id)
{
	struct ctl_msg msg = hello_of(role, name, host, instance);

	msg.hello.boot_id = (struct blob){boot_id, (uint32_t)strlen(boot_id)};
	msg.hello.domain = domain;
	msg.hello.addr = strcmp(boot_id, BOOT_2) == 0 ? "10.0.0.2" : "10.0.0.1";
	sched_conn_open(w->core, conn, w->now);
	send_msg(w, conn, &msg);
}

/* Cut the log after its first n records. view: the view of the last record that stays. */
static inline void lose_records(struct sched_world *w, size_t n, uint64_t view)
{
	while (w->n_records > n)
		free(w->records[--w->n_records].bytes);
	w->kept_view = view;
}

/* Send HELLO as a member that has already seen the given view. */
static inline void hello_seen(struct sched_world *w, uint32_t conn, enum role role,
	const char *name, uint64_t instance, uint64_t view)
{
	struct ctl_msg msg = hello_of(role, name, name, instance);

	msg.hello.view = view;
	sched_conn_open(w->core, conn, w->now);
	send_msg(w, conn, &msg);
}

static inline void server(struct sched_world *w, uint32_t conn, const char *name, uint64_t instance)
{
	hello(w, conn, ROLE_SERVER, name, name, instance);
}

static inline void agent(struct sched_world *w, uint32_t conn, const char *name, uint64_t instance)
{
	hello(w, conn, ROLE_AGENT, name, name, instance);
}

static inline void close_conn(struct sched_world *w, uint32_t conn)
{
	sched_conn_closed(w->core, conn, w->now);
	check(w);
}

static const struct blob token = {"0123456789abcdef0123456789abcdef", CTL_TOKEN_BYTES};
static const struct blob other_token = {"0123456789abcdef0123456789abcdeF", CTL_TOKEN_BYTES};
static const struct blob no_token = {NULL, 0};

static inline void join(
	struct sched_world *w, uint32_t conn, uint32_t rank, uint32_t size, uint32_t pid)
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

/* Declare a tensor that has failed with `code` on the machine of rank `rank`, or one that has not
 * failed (code 0). */
static inline void declare_failed(struct sched_world *w, uint32_t conn, uint32_t rank,
	const char *name, uint8_t dtype, uint64_t n, uint32_t code)
{
	struct ctl_decl d = {rank, name, shape_from_dtype_and_count(dtype, n), code};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {w->last_job, &d, 1}};

	send_msg(w, conn, &msg);
}

static inline void declare(struct sched_world *w, uint32_t conn, uint32_t rank, const char *name,
	uint8_t dtype, uint64_t n)
{
	declare_failed(w, conn, rank, name, dtype, n, 0);
}

static inline void worker(
	struct sched_world *w, uint32_t conn, uint32_t rank, enum worker_event event)
{
	struct ctl_msg msg = {.type = CTL_WORKER,
		.worker = {w->last_job, rank, (uint8_t)event, .text = "killed by signal 9"}};

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

/* running_job makes two servers and two agents with these connections; 0: end of the list */
static const uint32_t everybody[] = {11, 12, 21, 22, 0};
/* Make servers "s1" (connection 11) and "s2" (12), agents "a" (21) and "b" (22), a job of two
 * workers, and the job's tensor "w". */
static inline void running_job(struct sched_world *w)
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

static inline void at_barrier(struct sched_world *w, uint32_t conn, uint32_t rank, uint64_t n)
{
	const struct ctl_msg msg = {
		.type = CTL_WORKER, .worker = {w->last_job, rank, WORKER_AT_BARRIER, "", n}};

	send_msg(w, conn, &msg);
}

/* Make an elastic job of at most max_size workers. Agents a and b have workers; agent c joins
 * later. */
static inline void elastic_job_of(struct sched_world *w, uint32_t max_size)
{
	world_init(w);
	w->flags = JOB_SHRINK | JOB_ELASTIC;
	w->max_size = max_size;
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

static inline void elastic_job(struct sched_world *w)
{
	elastic_job_of(w, 3);
}
#endif
