#ifndef BPS_TESTS_AGT_WORLD_H
#define BPS_TESTS_AGT_WORLD_H
/* A test world for one agent's core (bps-agent/core/core.h) with a job. The test submits rounds
 * in place of the trainers, and sends plans in place of the scheduler. The test also sends the
 * messages of up to three servers over tests/unit/fake_xport.h. After each step the core's
 * invariants are checked. Everything runs in one thread, and the test sets the time. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bps-agent/core/core.h"
#include "bps-agent/core/core_impl.h"
#include "bps-agent/core/lockstep.h"
#include "common/data/crc32c.h"
#include "tests/invariants/invariants.h"
#include "tests/unit/fake_xport.h"

#define SMALL       4u
#define LARGE       8192u
#define BYTES_MAX   (32u << 10)
#define PARTS_MAX   8
#define KEPT_MAX    64
#define WORKERS_MAX 12
#define TENSORS_MAX 4
#define JOB         7
#define MEMBER      1
#define SEGMENT     0
#define MS          UINT64_C(1000000)
#define RETRY_MS    1000
#define AGAIN_MS    50

struct agt_test_arena {
	unsigned char in[WORKERS_MAX][PARTS_MAX * BYTES_MAX];
	unsigned char staging[PARTS_MAX * BYTES_MAX];
	unsigned char out[2][PARTS_MAX * BYTES_MAX];
	unsigned char sum[PARTS_MAX * BYTES_MAX]; /* the server's memory: its segment 1 */
};

struct agt_world {
	struct agt_core *core;
	struct fake_xport x;
	struct agt_job *job;
	struct agt_tensor *t[TENSORS_MAX];
	struct agt_test_arena *a;
	struct fake_conn *conn[3]; /* newest connection to servers 0, 1 and 2 */
	unsigned n_tensors, n_workers, n_members, n_connects, n_done, n_fails, n_releases;
	uint32_t n_elems, n_parts, done_workers, flags;
	uint8_t dtype, owner;
	uint64_t pgen, now_ns, done_round, jitter;
	int connect_rc, done_status, fail_code;
	char fail_text[512];
	bool submits_again;
	struct round_record record; /* of the last round */
	unsigned n_records, n_begun;
	/* Fields for tensors on devices. staged_round: last round whose inputs the core requested
	 * with do_stage. n_unstaged: number of sums that the core delivered with do_unstage. */
	bool is_device;
	uint32_t n_in;
	uint64_t staged_round;
	unsigned n_unstaged;
	struct agt_config cfg;
	struct agt_kept_part kept[TENSORS_MAX][KEPT_MAX]; /* survives a restart of the core */
};

static inline int do_connect(
	void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn)
{
	struct agt_world *w = ctx;

	(void)thread;
	w->n_connects++;
	if (w->connect_rc < 0)
		return w->connect_rc;
	w->conn[server] = fake_connect(&w->x, server, link);
	w->conn[server]->peer[1] = (struct fake_segment){w->a->sum, sizeof(w->a->sum)};
	*ret_conn = &w->conn[server]->base;
	return 0;
}

static inline void round_done(void *ctx, void *user, uint64_t round, int status, uint32_t workers)
{
	struct agt_world *w = ctx;

	assert_true(user >= (void *)w->t && user < (void *)(w->t + TENSORS_MAX));
	w->n_done++;
	w->done_round = round;
	w->done_status = status;
	w->done_workers = workers;
	if (w->submits_again) {
		w->submits_again = false;
		assert_int_equal(agt_tensor_submit(w->t[0], 0, round + 1, OP_SUM, 0, false), 0);
	}
}

static inline void round_recorded(void *ctx, void *user, const struct round_record *record)
{
	struct agt_world *w = ctx;

	(void)user;
	w->record = *record;
	w->n_records++;
}

static inline bool round_begun(void *ctx, void *user, uint64_t round, uint64_t now_ns)
{
	struct agt_world *w = ctx;

	(void)user;
	(void)round;
	assert_int_equal(now_ns, w->now_ns);
	w->n_begun++;
	return true;
}

static inline void do_stage(void *ctx, void *user, uint64_t round, uint8_t op, uint16_t priority)
{
	struct agt_world *w = ctx;

	(void)user;
	(void)op;
	(void)priority;
	w->staged_round = round;
}

static inline void do_unstage(void *ctx, void *user, uint32_t part, uint64_t round)
{
	struct agt_world *w = ctx;

	(void)user;
	assert_true(part < w->n_parts);
	assert_int_equal(round, w->staged_round);
	w->n_unstaged++;
}

static inline void job_failed(void *ctx, uint32_t job, int code, const char *text)
{
	struct agt_world *w = ctx;

	assert_int_equal(job, JOB);
	w->n_fails++;
	w->fail_code = code;
	snprintf(w->fail_text, sizeof(w->fail_text), "%s", text);
}

static inline struct agt_kept_part *keep(
	void *ctx, void *user, uint32_t id, uint32_t part_elems, uint32_t n_parts)
{
	struct agt_world *w = ctx;

	(void)id;
	assert_true(part_elems > 0 && n_parts <= KEPT_MAX);
	return w->kept[(struct agt_tensor **)user - w->t];
}

static inline uint64_t jitter(void *ctx)
{
	const struct agt_world *w = ctx;

	return w->jitter;
}

static inline void released(void *ctx)
{
	((struct agt_world *)ctx)->n_releases++;
}

static inline void check(struct agt_world *w)
{
	struct err_text err = {""};

	if (agt_core_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static inline void work(struct agt_world *w)
{
	while (agt_core_run_queued_work(w->core))
		check(w);
	check(w);
}

static inline void tick(struct agt_world *w, uint64_t ms)
{
	w->now_ns += ms * MS;
	agt_core_run_timers(w->core, w->now_ns);
	check(w);
	work(w);
}

static inline struct agt_stats stats(struct agt_world *w)
{
	struct agt_stats s;

	agt_core_stats(w->core, &s);
	return s;
}

/* ---- messages from the scheduler ---- */

static inline void tell_runs(struct agt_world *w, uint32_t server, uint64_t pgen)
{
	for (unsigned t = 0; t < w->n_tensors; t++) {
		struct ctl_run run = {
			.tensor = 10 + t, .n = w->n_parts, .server = server, .pgen = pgen};

		agt_job_apply_placement(w->job, &run, 1);
	}
	w->pgen = pgen > w->pgen ? pgen : w->pgen;
	check(w);
}

static inline void tell_plan(struct agt_world *w, unsigned t)
{
	struct ctl_tensor plan = {.tensor = 10 + t,
		.name = "t",
		.shape = shape_from_dtype_and_count(w->dtype, (uint64_t)w->n_elems * w->n_parts),
		.part_elems = w->n_elems};

	plan.shape.owner = w->owner;
	assert_int_equal(agt_tensor_plan(w->t[t], &plan), 0);
	check(w);
}

static inline void add_tensor(struct agt_world *w)
{
	/* the first input holds the values of the workers that have no input of their own */
	uint16_t in_workers[WORKERS_MAX] = {(uint16_t)(w->n_workers - w->n_in + 1)};
	struct tensor_shape shape =
		shape_from_dtype_and_count(w->dtype, (uint64_t)w->n_elems * w->n_parts);
	struct agt_mem in[WORKERS_MAX], staging = {w->a->staging, 1 << 20, SEGMENT}, out[2];

	shape.owner = w->owner;
	for (unsigned i = 0; i < WORKERS_MAX; i++) {
		in[i] = (struct agt_mem){w->a->in[i], i * sizeof(w->a->in[0]), SEGMENT};
		if (i > 0)
			in_workers[i] = 1;
	}
	for (unsigned i = 0; i < 2; i++)
		out[i] = (struct agt_mem){
			w->a->out[i], (uint64_t)(w->a->out[i] - (unsigned char *)w->a), SEGMENT};
	if (w->is_device)
		assert_int_equal(agt_tensor_new_device(w->job, &shape, in, in_workers, w->n_in,
					 w->n_in > 1 ? &staging : NULL, out, &w->t[w->n_tensors],
					 &w->t[w->n_tensors]),
			0);
	else
		assert_int_equal(
			agt_tensor_new(w->job, &shape, in, w->n_workers > 1 ? &staging : NULL, out,
				&w->t[w->n_tensors], &w->t[w->n_tensors]),
			0);
	w->n_tensors++;
	check(w);
}

struct agt_shape {
	uint32_t n_elems, n_parts, flags;
	unsigned n_workers, n_members, n_tensors;
	uint8_t dtype; /* 0: f32; otherwise the value of enum dtype plus 1 */
	uint8_t owner; /* enum tensor_owner; the ranks of member m then follow those of m - 1 */
	size_t window, job_inflight;
	bool is_unplanned;
	/* number of inputs of each device tensor; 0: the tensors are in host memory */
	uint32_t n_in;
};

/* Make a core and its job, at the start of the test or after a restart of the agent. */
static inline void core_make(struct agt_world *w)
{
	struct agt_env env = {.ctx = w,
		.connect = do_connect,
		.done = round_done,
		.record = round_recorded,
		.begun = round_begun,
		.stage = do_stage,
		.unstage = do_unstage,
		.fail = job_failed,
		.random = jitter,
		.keep = keep};
	struct ctl_rank ranks[WORKERS_MAX] = {{0}};
	struct ctl_job_member members[3];
	struct ctl_job job = {.job = JOB, .flags = w->flags, .members = members};
	uint16_t seg;

	for (unsigned i = 0; i < WORKERS_MAX; i++)
		ranks[i].rank = (w->owner ? MEMBER * w->n_workers : 20) + i;
	for (unsigned i = 0; i < 3; i++)
		members[i] = (struct ctl_job_member){
			.agent = i, .host = "h", .ranks = ranks, .n_ranks = w->n_workers};
	job.n_members = w->n_members;
	job.size = w->n_members * w->n_workers;
	assert_int_equal(agt_core_new(&w->cfg, &env, NULL, &w->core), 0);
	fake_init(&w->x, &agt_core_events, w->core);
	agt_core_set_xport(w->core, &w->x.base);
	assert_int_equal(w->x.base.ops->seg_add(&w->x.base, w->a, sizeof(*w->a), &seg), 0);
	assert_int_equal(agt_job_new(w->core, &job, w->n_members > 1 ? MEMBER : 0, &w->job), 0);
}

/* End the agent's process and start the next one, which has the same memory. */
static inline void restart(struct agt_world *w)
{
	fake_fini(&w->x);
	agt_core_free(w->core);
	core_make(w);
	w->n_tensors = 0;
	add_tensor(w);
	tell_plan(w, 0); /* the agent's shell stores the plan across restarts */
}

static inline struct agt_world *world_new(struct agt_shape s)
{
	struct agt_world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	w->a = calloc(1, sizeof(*w->a));
	w->n_workers = s.n_workers ? s.n_workers : 1;
	w->is_device = s.n_in > 0;
	w->n_in = s.n_in;
	w->n_members = s.n_members ? s.n_members : 3;
	w->n_elems = s.n_elems;
	w->flags = s.flags;
	w->owner = s.owner;
	w->n_parts = s.n_parts ? s.n_parts : 1;
	w->dtype = s.dtype ? (uint8_t)(s.dtype - 1) : DTYPE_F32;
	w->cfg = (struct agt_config){.window_bytes = s.window ? s.window : 1u << 20,
		.job_inflight_bytes = s.job_inflight,
		.retry_ns = RETRY_MS * MS,
		.again_ns = AGAIN_MS * MS,
		.lead_bytes = AGT_LEAD_BYTES};
	core_make(w);
	for (unsigned t = 0; t < (s.n_tensors ? s.n_tensors : 1); t++) {
		add_tensor(w);
		if (!s.is_unplanned)
			tell_plan(w, t);
	}
	if (!s.is_unplanned && w->n_members > 1) {
		tell_runs(w, 0, 5);
		tick(w, 0);
		fake_up(w->conn[0]);
		work(w);
	}
	return w;
}

#define world(...) world_new((struct agt_shape){__VA_ARGS__})

static inline void world_free(struct agt_world *w)
{
	check(w);
	fake_fini(&w->x);
	check(w);
	agt_job_free(w->job, released, w);
	check(w);
	assert_true(w->n_releases <= 1);
	assert_int_equal(stats(w).inflight_bytes, 0);
	agt_core_free(w->core);
	free(w->a);
	free(w);
}

/* ---- trainers and servers ---- */

static inline float input(unsigned worker, uint64_t r, size_t e)
{
	return (float)((worker + 1) * 100 + r * 10 + e % 7);
}

/* Add a second job with one worker on each of three machines. The caller must end this job. */
static inline struct agt_job *second_job(struct agt_world *w)
{
	struct ctl_rank ranks[1] = {{0}};
	struct ctl_job_member members[] = {{0, "h", ranks, 1, 0, "", 1, "a0"},
		{1, "h", ranks, 1, 0, "", 1, "a1"}, {2, "h", ranks, 1, 0, "", 1, "a2"}};
	struct ctl_job msg = {.job = JOB + 1, .size = 3, .members = members, .n_members = 3};
	struct agt_job *job;

	assert_int_equal(agt_job_new(w->core, &msg, MEMBER, &job), 0);
	return job;
}

static inline void submit(
	struct agt_world *w, unsigned t, unsigned worker, uint64_t r, uint16_t priority)
{
	float *v = (float *)w->a->in[worker];

	for (size_t e = 0; w->dtype == DTYPE_F32 && e < (size_t)w->n_elems * w->n_parts; e++)
		v[e] = input(worker, r, e);
	assert_int_equal(agt_tensor_submit(w->t[t], worker, r, OP_SUM, priority, false), 0);
	check(w);
}

static inline void submit_all(struct agt_world *w, uint64_t r)
{
	for (unsigned i = 0; i < w->n_workers; i++)
		submit(w, 0, i, r, 0);
	work(w);
}

static inline struct wire_msg expect_msg(
	struct agt_world *w, unsigned s, enum wire_type type, uint64_t r)
{
	const struct wire_msg *m = fake_take(w->conn[s]);

	if (!m)
		fail_msg("server %u got no message, not %s", s, wire_type_name(type));
	if (m->type != type)
		fail_msg("server %u got %s, not %s", s, wire_type_name(m->type),
			wire_type_name(type));
	assert_int_equal(m->round, r);
	assert_int_equal(m->member, MEMBER);
	assert_int_equal(m->job, JOB);
	return *m;
}

static inline void expect_nothing(struct agt_world *w, unsigned s)
{
	const struct wire_msg *m = fake_take(w->conn[s]);

	if (m)
		fail_msg("server %u got %s", s, wire_type_name(m->type));
}

static inline struct wire_msg key_msg(struct agt_world *w, enum wire_type type, uint64_t r)
{
	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = w->pgen,
		.round = r,
		.job = JOB,
		.tensor = 10,
		.member = MEMBER};
}

static inline uint32_t bytes_of(const struct agt_world *w)
{
	return (uint32_t)(w->n_elems * dtype_bytes(w->dtype));
}

/* Return the result of round r as the server sends it. The bytes depend on the round. */
static inline struct wire_msg result_msg(struct agt_world *w, uint64_t r, uint32_t part)
{
	struct wire_msg m = key_msg(w, WIRE_RESULT, r);
	unsigned char *sum = w->a->sum + part * BYTES_MAX;

	m.part = part;
	m.len = bytes_of(w);
	for (uint32_t i = 0; i < m.len; i++)
		sum[i] = (unsigned char)(r * 31 + part * 7 + i);
	m.crc = crc32c(0, sum, m.len);
	if (m.len <= WIRE_INLINE_MAX) {
		m.flags = WIRE_INLINE;
		m.payload = sum;
	} else {
		m.segment = 1;
		m.offset = part * BYTES_MAX;
	}
	m.result.n_members = (uint16_t)w->n_members;
	m.result.workers = w->n_members * w->n_workers;
	m.result.last = (uint16_t)w->n_members;
	m.result.wait_us = 17;
	m.result.sum_us = 18;
	for (unsigned i = 0; i < w->n_members; i++)
		member_set_add(&m.result.contributors, i);
	return m;
}

static inline void say(struct agt_world *w, unsigned s, const struct wire_msg *m)
{
	fake_deliver(w->conn[s], m);
	check(w);
	work(w);
}

static inline void say_key(struct agt_world *w, unsigned s, enum wire_type type, uint64_t r)
{
	struct wire_msg m = key_msg(w, type, r);

	say(w, s, &m);
}

static inline void say_result(struct agt_world *w, unsigned s, uint64_t r)
{
	struct wire_msg m = result_msg(w, r, 0);

	say(w, s, &m);
}

static inline void end_read(struct agt_world *w, unsigned s, int status)
{
	fake_end_read(w->conn[s], 0, status);
	check(w);
	work(w);
}

static inline void expect_delivered(struct agt_world *w, uint64_t r, unsigned n_done)
{
	const unsigned char *out = w->a->out[r & 1];

	assert_int_equal(w->n_done, n_done);
	assert_int_equal(w->done_round, r);
	assert_int_equal(w->done_status, 0);
	assert_int_equal(w->done_workers, w->n_members * w->n_workers);
	for (uint32_t i = 0; i < bytes_of(w); i++)
		assert_int_equal(out[i], (unsigned char)(r * 31 + i));
}

static inline void one_round(struct agt_world *w, unsigned s, uint64_t r)
{
	submit_all(w, r);
	expect_msg(w, s, WIRE_CONTRIB, r);
	say_result(w, s, r);
	if (w->conn[s]->n_reads)
		end_read(w, s, 0);
}

static inline void cut(struct agt_world *w, unsigned s)
{
	fake_down(w->conn[s], "cut");
	check(w);
	tick(w, 0);
}

/* ---- states of a partition ---- */

/* States of partition 0 in which a test can begin. */
enum agt_scene {
	SCENE_READY,
	SCENE_SENT,
	SCENE_WAITING,
	SCENE_OFFERED,
	SCENE_FETCHING,
	SCENE_COUNT
};

static inline struct agt_world *make_scene(enum agt_scene scene)
{
	struct agt_world *w = world(.n_elems = LARGE, .n_parts = 2);
	struct wire_msg m = result_msg(w, 1, 1);

	if (scene == SCENE_READY)
		w->conn[0]->credit = 0;
	w->conn[0]->read_limit = 1;
	submit_all(w, 1);
	if (scene == SCENE_WAITING)
		say_key(w, 0, WIRE_AGAIN, 1);
	/* The connection accepts only one read. Partition 1's result uses that read, so partition
	 * 0's result waits. */
	if (scene == SCENE_OFFERED)
		say(w, 0, &m);
	if (scene >= SCENE_OFFERED)
		say_result(w, 0, 1);
	while (fake_take(w->conn[0]))
		;
	return w;
}

static inline void finish_scene(struct agt_world *w, unsigned s)
{
	struct wire_msg m = result_msg(w, 1, 1);

	say_result(w, s, 1);
	end_read(w, s, 0);
	say(w, s, &m);
	end_read(w, s, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}
#endif
