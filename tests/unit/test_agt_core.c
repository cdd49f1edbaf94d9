#include "bps-agent/core.h"
#include "bps-agent/core_impl.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "tests/unit/fake_xport.h"
#include "tests/unit/half.h"

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

struct arena {
	unsigned char in[WORKERS_MAX][PARTS_MAX * BYTES_MAX];
	unsigned char staging[PARTS_MAX * BYTES_MAX];
	unsigned char out[2][PARTS_MAX * BYTES_MAX];
	unsigned char sum[PARTS_MAX * BYTES_MAX]; /* the server's, segment 1 there */
};

struct world {
	struct agt_core *core;
	struct fake_xport x;
	struct agt_job *job;
	struct agt_tensor *t[TENSORS_MAX];
	struct arena *a;
	struct fake_conn *conn[3]; /* newest to server 0, 1, 2 */
	unsigned n_tensors, n_workers, n_members, n_connects, n_done, n_fails, n_releases;
	uint32_t n_elems, n_parts, done_workers, flags;
	uint8_t dtype;
	uint64_t pgen, now_ns, done_round, jitter;
	int connect_rc, done_status, fail_code;
	char fail_text[512];
	bool submits_again;
	/* Of device tensors: what the core asked for, and which sums it has given out. */
	bool is_device;
	uint32_t n_in;
	uint64_t staged_round;
	unsigned n_unstaged;
	struct agt_config cfg;
	struct agt_kept_part kept[TENSORS_MAX][KEPT_MAX]; /* outlives the core */
};

static int do_connect(
	void *ctx, uint32_t server, uint16_t thread, void *link, struct xconn **ret_conn)
{
	struct world *w = ctx;

	(void)thread;
	w->n_connects++;
	if (w->connect_rc < 0)
		return w->connect_rc;
	w->conn[server] = fake_connect(&w->x, server, link);
	w->conn[server]->peer[1] = (struct fake_segment){w->a->sum, sizeof(w->a->sum)};
	*ret_conn = &w->conn[server]->base;
	return 0;
}

static void round_done(void *ctx, void *user, uint64_t round, int status, uint32_t workers)
{
	struct world *w = ctx;

	assert_true(user >= (void *)w->t && user < (void *)(w->t + TENSORS_MAX));
	w->n_done++;
	w->done_round = round;
	w->done_status = status;
	w->done_workers = workers;
	if (w->submits_again) {
		w->submits_again = false;
		assert_int_equal(agt_submit(w->t[0], 0, round + 1, OP_SUM, 0), 0);
	}
}

static void do_stage(void *ctx, void *user, uint64_t round, uint8_t op, uint16_t priority)
{
	struct world *w = ctx;

	(void)user;
	(void)op;
	(void)priority;
	w->staged_round = round;
}

static void do_unstage(void *ctx, void *user, uint32_t part, uint64_t round)
{
	struct world *w = ctx;

	(void)user;
	assert_true(part < w->n_parts);
	assert_int_equal(round, w->staged_round);
	w->n_unstaged++;
}

static void job_failed(void *ctx, uint32_t job, int code, const char *text)
{
	struct world *w = ctx;

	assert_int_equal(job, JOB);
	w->n_fails++;
	w->fail_code = code;
	snprintf(w->fail_text, sizeof(w->fail_text), "%s", text);
}

static struct agt_kept_part *keep(
	void *ctx, void *user, uint32_t id, uint32_t part_elems, uint32_t n_parts)
{
	struct world *w = ctx;

	(void)id;
	assert_true(part_elems > 0 && n_parts <= KEPT_MAX);
	return w->kept[(struct agt_tensor **)user - w->t];
}

static uint64_t jitter(void *ctx)
{
	const struct world *w = ctx;

	return w->jitter;
}

static void released(void *ctx)
{
	((struct world *)ctx)->n_releases++;
}

static void check(struct world *w)
{
	struct err_text err = {""};

	if (agt_core_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static void work(struct world *w)
{
	while (agt_core_work(w->core))
		check(w);
	check(w);
}

static void tick(struct world *w, uint64_t ms)
{
	w->now_ns += ms * MS;
	agt_core_tick(w->core, w->now_ns);
	check(w);
	work(w);
}

static struct agt_stats stats(struct world *w)
{
	struct agt_stats s;

	agt_core_stats(w->core, &s);
	return s;
}

/* ---- the scheduler's words ---- */

static void tell_runs(struct world *w, uint32_t server, uint64_t pgen)
{
	for (unsigned t = 0; t < w->n_tensors; t++) {
		struct ctl_run run = {
			.tensor = 10 + t, .n = w->n_parts, .server = server, .pgen = pgen};

		agt_job_runs(w->job, &run, 1);
	}
	w->pgen = pgen > w->pgen ? pgen : w->pgen;
	check(w);
}

static void tell_plan(struct world *w, unsigned t)
{
	struct ctl_tensor plan = {.tensor = 10 + t,
		.name = "t",
		.dtype = w->dtype,
		.n_elems = (uint64_t)w->n_elems * w->n_parts,
		.part_elems = w->n_elems};

	assert_int_equal(agt_tensor_plan(w->t[t], &plan), 0);
	check(w);
}

static void add_tensor(struct world *w)
{
	struct agt_mem in[WORKERS_MAX], staging = {w->a->staging, 1 << 20, SEGMENT}, out[2];

	for (unsigned i = 0; i < WORKERS_MAX; i++)
		in[i] = (struct agt_mem){w->a->in[i], i * sizeof(w->a->in[0]), SEGMENT};
	for (unsigned i = 0; i < 2; i++)
		out[i] = (struct agt_mem){
			w->a->out[i], (uint64_t)(w->a->out[i] - (unsigned char *)w->a), SEGMENT};
	if (w->is_device)
		assert_int_equal(
			agt_tensor_new_device(w->job, w->dtype, (uint64_t)w->n_elems * w->n_parts,
				in, w->n_in, w->n_in > 1 ? &staging : NULL, out,
				&w->t[w->n_tensors], &w->t[w->n_tensors]),
			0);
	else
		assert_int_equal(agt_tensor_new(w->job, w->dtype, (uint64_t)w->n_elems * w->n_parts,
					 in, w->n_workers > 1 ? &staging : NULL, out,
					 &w->t[w->n_tensors], &w->t[w->n_tensors]),
			0);
	w->n_tensors++;
	check(w);
}

struct shape {
	uint32_t n_elems, n_parts, flags;
	unsigned n_workers, n_members, n_tensors;
	uint8_t dtype; /* enum dtype + 1, 0: f32 */
	size_t window, job_inflight;
	bool is_unplanned;
	uint32_t n_in; /* not 0: the tensors lie on devices */
};

/* A core, the first or a successor, with its job. */
static void core_make(struct world *w)
{
	struct agt_env env = {.ctx = w,
		.connect = do_connect,
		.done = round_done,
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
		ranks[i].rank = 20 + i;
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

/* The process dies, and a successor has its memory. */
static void restart(struct world *w)
{
	fake_fini(&w->x);
	agt_core_free(w->core);
	core_make(w);
	w->n_tensors = 0;
	add_tensor(w);
	tell_plan(w, 0); /* as it has kept it */
}

static struct world *world_new(struct shape s)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	w->a = calloc(1, sizeof(*w->a));
	w->n_workers = s.n_workers ? s.n_workers : 1;
	w->is_device = s.n_in > 0;
	w->n_in = s.n_in;
	w->n_members = s.n_members ? s.n_members : 3;
	w->n_elems = s.n_elems;
	w->flags = s.flags;
	w->n_parts = s.n_parts ? s.n_parts : 1;
	w->dtype = s.dtype ? (uint8_t)(s.dtype - 1) : DTYPE_F32;
	w->cfg = (struct agt_config){.window_bytes = s.window ? s.window : 1u << 20,
		.job_inflight_bytes = s.job_inflight,
		.retry_ns = RETRY_MS * MS,
		.again_ns = AGAIN_MS * MS};
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

#define world(...) world_new((struct shape){__VA_ARGS__})

static void world_free(struct world *w)
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

static float input(unsigned worker, uint64_t r, size_t e)
{
	return (float)((worker + 1) * 100 + r * 10 + e % 7);
}

static void submit(struct world *w, unsigned t, unsigned worker, uint64_t r, uint16_t priority)
{
	float *v = (float *)w->a->in[worker];

	for (size_t e = 0; w->dtype == DTYPE_F32 && e < (size_t)w->n_elems * w->n_parts; e++)
		v[e] = input(worker, r, e);
	assert_int_equal(agt_submit(w->t[t], worker, r, OP_SUM, priority), 0);
	check(w);
}

static void submit_all(struct world *w, uint64_t r)
{
	for (unsigned i = 0; i < w->n_workers; i++)
		submit(w, 0, i, r, 0);
	work(w);
}

static struct wire_msg expect_msg(struct world *w, unsigned s, enum wire_type type, uint64_t r)
{
	const struct wire_msg *m = fake_take(w->conn[s]);

	if (!m)
		fail_msg("server %u got nothing, not %s", s, wire_type_name(type));
	if (m->type != type)
		fail_msg("server %u got %s, not %s", s, wire_type_name(m->type),
			wire_type_name(type));
	assert_int_equal(m->round, r);
	assert_int_equal(m->member, MEMBER);
	assert_int_equal(m->job, JOB);
	return *m;
}

static void expect_nothing(struct world *w, unsigned s)
{
	const struct wire_msg *m = fake_take(w->conn[s]);

	if (m)
		fail_msg("server %u got %s", s, wire_type_name(m->type));
}

static struct wire_msg key_msg(struct world *w, enum wire_type type, uint64_t r)
{
	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = w->pgen,
		.round = r,
		.job = JOB,
		.tensor = 10,
		.member = MEMBER};
}

static uint32_t bytes_of(const struct world *w)
{
	return (uint32_t)(w->n_elems * dtype_bytes(w->dtype));
}

/* The sum that the server made up for round r: bytes that tell the round. */
static struct wire_msg result_msg(struct world *w, uint64_t r, uint32_t part)
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
	for (unsigned i = 0; i < w->n_members; i++)
		member_set_add(&m.result.contributors, i);
	return m;
}

static void say(struct world *w, unsigned s, const struct wire_msg *m)
{
	fake_deliver(w->conn[s], m);
	check(w);
	work(w);
}

static void say_key(struct world *w, unsigned s, enum wire_type type, uint64_t r)
{
	struct wire_msg m = key_msg(w, type, r);

	say(w, s, &m);
}

static void say_result(struct world *w, unsigned s, uint64_t r)
{
	struct wire_msg m = result_msg(w, r, 0);

	say(w, s, &m);
}

static void end_read(struct world *w, unsigned s, int status)
{
	fake_end_read(w->conn[s], 0, status);
	check(w);
	work(w);
}

static void expect_delivered(struct world *w, uint64_t r, unsigned n_done)
{
	const unsigned char *out = w->a->out[r & 1];

	assert_int_equal(w->n_done, n_done);
	assert_int_equal(w->done_round, r);
	assert_int_equal(w->done_status, 0);
	assert_int_equal(w->done_workers, w->n_members * w->n_workers);
	for (uint32_t i = 0; i < bytes_of(w); i++)
		assert_int_equal(out[i], (unsigned char)(r * 31 + i));
}

static void one_round(struct world *w, unsigned s, uint64_t r)
{
	submit_all(w, r);
	expect_msg(w, s, WIRE_CONTRIB, r);
	say_result(w, s, r);
	if (w->conn[s]->n_reads)
		end_read(w, s, 0);
}

static void cut(struct world *w, unsigned s)
{
	fake_down(w->conn[s], "cut");
	check(w);
	tick(w, 0);
}

/* ---- rounds ---- */

static void small_round_goes_and_comes_inline(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	for (uint64_t r = 1; r <= 4; r++) {
		struct wire_msg m;

		submit_all(w, r);
		m = expect_msg(w, 0, WIRE_CONTRIB, r);
		assert_true(m.flags & WIRE_INLINE);
		assert_memory_equal(m.payload, w->a->in[0], m.len);
		assert_int_equal(m.crc, crc32c(0, w->a->in[0], m.len));
		assert_int_equal(m.contrib.workers, 1);
		say_result(w, 0, r);
		expect_delivered(w, r, (unsigned)r);
		expect_nothing(w, 0);
	}
	assert_int_equal(agt_tensor_round(w->t[0]), 4);
	world_free(w);
}

static void large_round_is_offered_and_its_sum_read(void **state)
{
	struct world *w = world(.n_elems = LARGE);

	(void)state;
	for (uint64_t r = 1; r <= 4; r++) {
		struct wire_msg m;

		submit_all(w, r);
		m = expect_msg(w, 0, WIRE_CONTRIB, r);
		assert_false(m.flags & WIRE_INLINE);
		assert_memory_equal(
			fake_own(&w->x, m.segment, m.offset, m.len), w->a->in[0], m.len);
		say_result(w, 0, r);
		assert_int_equal(w->n_done, r - 1);
		end_read(w, 0, 0);
		expect_delivered(w, r, (unsigned)r);
		expect_nothing(w, 0);
	}
	world_free(w);
}

static void crc_of_the_delivered_sum_is_echoed(void **state)
{
	struct world *w = world(.n_elems = SMALL);
	uint32_t crc;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).contrib.crc_prev, 0);
	crc = result_msg(w, 1, 0).crc;
	say_result(w, 0, 1);
	submit_all(w, 2);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 2).contrib.crc_prev, crc);
	world_free(w);
}

static void round_is_done_when_all_its_partitions_are(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_parts = 3);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	for (unsigned p = 3; p-- > 0;) {
		assert_int_equal(w->n_done, 0);
		m = result_msg(w, 1, p);
		say(w, 0, &m);
	}
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void next_round_may_be_submitted_inside_done(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	w->submits_again = true;
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 2);
	world_free(w);
}

static void workers_of_the_machine_are_summed_once_before_the_push(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_workers = 11);
	struct wire_msg m;
	const float *v;

	(void)state;
	for (unsigned i = 0; i < 10; i++)
		submit(w, 0, i, 1, 0);
	work(w);
	expect_nothing(w, 0);
	submit(w, 0, 10, 1, 0);
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	v = (const float *)w->a->staging;
	assert_int_equal(m.contrib.workers, 11);
	assert_int_equal(m.crc, crc32c(0, v, m.len));
	for (size_t e = 0; e < LARGE; e++) {
		float want = 0;

		for (unsigned i = 0; i < 11; i++)
			want += input(i, 1, e);
		assert_true(v[e] == want);
	}
	world_free(w);
}

static void half_precision_of_many_workers_is_rounded_once(void **state)
{
	struct world *w = world(.n_elems = 1, .n_workers = 12, .dtype = 1 + DTYPE_F16);
	const uint16_t one = half_round(1);
	const uint16_t tiny = half_round(0.0004); /* vanishes beside 1 when added alone */
	struct wire_msg m;
	uint16_t got;

	(void)state;
	for (unsigned i = 0; i < 12; i++) {
		memcpy(w->a->in[i], i ? &tiny : &one, 2);
		assert_int_equal(agt_submit(w->t[0], i, 1, OP_SUM, 0), 0);
	}
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	memcpy(&got, m.payload, 2);
	assert_int_equal(got, half_round(1 + 11 * half_value(tiny)));
	assert_int_not_equal(got, one);
	world_free(w);
}

static void job_of_one_machine_needs_no_server(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 4, .n_members = 1, .n_workers = 2);
	const float *out = (const float *)w->a->out[1];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		float *v = (float *)w->a->in[i];

		for (size_t e = 0; e < 4 * LARGE; e++)
			v[e] = input(i, 1, e);
		assert_int_equal(agt_submit(w->t[0], i, 1, OP_AVG, 0), 0);
	}
	work(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_workers, 2);
	assert_int_equal(w->n_connects, 0);
	for (size_t e = 0; e < 4 * LARGE; e++)
		assert_true(out[e] == (input(0, 1, e) + input(1, 1, e)) / 2);
	world_free(w);
}

static void tensor_may_be_submitted_before_its_plan(void **state)
{
	struct world *w = world(.n_elems = SMALL, .is_unplanned = true);

	(void)state;
	submit_all(w, 1);
	tell_plan(w, 0);
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void plan_that_does_not_fit_is_refused(void **state)
{
	struct world *w = world(.n_elems = SMALL, .is_unplanned = true);
	struct ctl_tensor good = {.tensor = 10,
		.name = "t",
		.dtype = DTYPE_F32,
		.n_elems = SMALL,
		.part_elems = SMALL};
	struct ctl_tensor bad[4] = {good, good, good, good};

	(void)state;
	bad[0].n_elems++;
	bad[1].dtype = DTYPE_F64;
	bad[2].part_elems = 0;
	bad[3].tensor = CTL_TENSORS_MAX;
	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(agt_tensor_plan(w->t[0], &bad[k]), BPS_EPROTO);
	assert_int_equal(agt_tensor_id(w->t[0]), CTL_NO_ID);
	assert_int_equal(agt_tensor_plan(w->t[0], &good), 0);
	assert_int_equal(agt_tensor_plan(w->t[0], &bad[0]), 0); /* told again: the first counts */
	world_free(w);
}

static void submissions_out_of_order_are_refused(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_workers = 2);

	(void)state;
	assert_int_equal(agt_submit(w->t[0], 0, 2, OP_SUM, 0), BPS_EBUSY);
	assert_int_equal(agt_submit(w->t[0], 0, 0, OP_SUM, 0), BPS_EBUSY);
	submit(w, 0, 0, 1, 0);
	assert_int_equal(agt_submit(w->t[0], 0, 1, OP_SUM, 0), BPS_EBUSY);
	assert_int_equal(agt_submit(w->t[0], 0, 2, OP_SUM, 0), BPS_EBUSY);
	assert_int_equal(agt_submit(w->t[0], 1, 1, OP_MAX, 0), BPS_EMISMATCH);
	assert_int_equal(agt_tensor_submitted(w->t[0], 0), 1);
	assert_int_equal(agt_tensor_submitted(w->t[0], 1), 0);
	submit(w, 0, 1, 1, 0);
	assert_int_equal(agt_submit(w->t[0], 1, 2, OP_SUM, 0), BPS_EBUSY);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

/* ---- window and priority ---- */

static void pushes_stay_within_the_window(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 6, .window = 2 * BYTES_MAX);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 2);
	for (unsigned p = 0; p < 6; p++) {
		assert_true(stats(w).inflight_bytes <= 2 * BYTES_MAX);
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		end_read(w, 0, 0);
		assert_int_equal(w->conn[0]->n_sent, p < 4 ? p + 3 : 6);
	}
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void partition_larger_than_the_window_goes_alone(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 2, .window = 1);

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	world_free(w);
}

static void pushes_of_a_job_stay_within_what_it_may_have_under_way(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 6, .job_inflight = 2 * BYTES_MAX);
	struct wire_msg m;
	char text[256];

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 2);
	assert_true(agt_job_network(w->job, text, sizeof(text)));
	assert_non_null(strstr(text, "4 partitions wait because the job has"));
	for (unsigned p = 0; p < 6; p++) {
		assert_true(agt_job_inflight(w->job) <= 2 * BYTES_MAX);
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		end_read(w, 0, 0);
		assert_int_equal(w->conn[0]->n_sent, p < 4 ? p + 3 : 6);
	}
	assert_int_equal(w->n_done, 1);
	assert_true(agt_job_network(w->job, text, sizeof(text)));
	assert_string_equal(text, "");
	world_free(w);
}

static void other_jobs_go_on_while_one_has_all_under_way_that_it_may(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 3, .job_inflight = BYTES_MAX);
	struct agt_job *mine = w->job, *other;
	struct ctl_rank ranks[1] = {{0}};
	struct ctl_job_member members[] = {{0, "h", ranks, 1, 0, "", 1},
		{1, "h", ranks, 1, 0, "", 1}, {2, "h", ranks, 1, 0, "", 1}};
	struct ctl_job msg = {.job = JOB + 1, .size = 3, .members = members, .n_members = 3};

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	assert_int_equal(agt_job_new(w->core, &msg, MEMBER, &other), 0);
	w->job = other;
	add_tensor(w);
	tell_plan(w, 1);
	agt_job_runs(other, &(struct ctl_run){.tensor = 11, .n = 3, .server = 0, .pgen = 5}, 1);
	submit(w, 1, 0, 1, 0);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 2);
	assert_int_equal(fake_take(w->conn[0])->job, JOB);
	assert_int_equal(fake_take(w->conn[0])->job, JOB + 1);
	w->job = mine;
	agt_job_free(other, NULL, NULL);
	world_free(w);
}

/* w has room for one of its two partitions at a time; frees it. */
static void check_unanswered_push_leaves_room(struct world *w)
{
	submit_all(w, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 0);
	expect_nothing(w, 0);
	tick(w, RETRY_MS);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 0);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).part, 1);
	world_free(w);
}

static void push_that_stays_unanswered_leaves_its_jobs_bytes_to_others(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 2, .job_inflight = BYTES_MAX);

	(void)state;
	check_unanswered_push_leaves_room(w);
}

static void larger_limit_lets_waiting_pushes_go(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 4, .job_inflight = BYTES_MAX);

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	agt_core_set_job_inflight(w->core, 3 * BYTES_MAX);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 3);
	agt_core_set_job_inflight(w->core, 0);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 4);
	world_free(w);
}

static void partition_that_never_fits_is_refused(void **state)
{
	struct world *w = world(.n_elems = LARGE, .is_unplanned = true, .job_inflight = 1000);
	struct ctl_tensor plan = {.tensor = 10,
		.name = "t",
		.dtype = w->dtype,
		.n_elems = w->n_elems,
		.part_elems = w->n_elems};

	(void)state;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), BPS_EQUOTA);
	plan.part_elems = 250;
	w->n_parts = (w->n_elems + 249) / 250;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), 0);
	world_free(w);
}

static void urgent_tensor_overtakes_what_is_not_pushed_yet(void **state)
{
	struct world *w =
		world(.n_elems = LARGE, .n_parts = 3, .n_tensors = 2, .window = BYTES_MAX);
	static const unsigned want[] = {10, 11, 11, 11, 10, 10};

	(void)state;
	submit(w, 0, 0, 1, 1);
	work(w); /* one partition is out */
	submit(w, 1, 0, 1, 2);
	for (unsigned k = 0; k < 6; k++) {
		const struct wire_msg *c;
		struct wire_msg m;

		work(w);
		c = fake_take(w->conn[0]);
		assert_non_null(c);
		assert_int_equal(c->tensor, want[k]);
		assert_int_equal(c->priority, want[k] - 9);
		m = result_msg(w, 1, c->part);
		m.tensor = c->tensor;
		say(w, 0, &m);
		end_read(w, 0, 0);
	}
	assert_int_equal(w->n_done, 2);
	world_free(w);
}

static void pushes_wait_for_credit(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_parts = 3);

	(void)state;
	w->conn[0]->credit = 1;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	fake_grant(w->conn[0], 1);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 2);
	fake_grant(w->conn[0], 9);
	work(w);
	assert_int_equal(w->conn[0]->n_sent, 3);
	world_free(w);
}

static void offers_wait_for_room_to_read(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 3);
	struct wire_msg m;

	(void)state;
	w->conn[0]->read_limit = 1;
	submit_all(w, 1);
	for (unsigned p = 0; p < 3; p++) {
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		assert_int_equal(w->conn[0]->n_reads, 1);
	}
	for (unsigned p = 0; p < 3; p++)
		end_read(w, 0, 0);
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

/* ---- servers on the same host ---- */

static void round_within_one_host_takes_no_crc(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct world *w = world(.n_elems = k ? LARGE : SMALL);

		w->conn[0]->base.is_same_host = true;
		for (uint64_t r = 1; r <= 3; r++) {
			struct wire_msg m;

			submit_all(w, r);
			m = expect_msg(w, 0, WIRE_CONTRIB, r);
			assert_int_equal(m.crc, 0);
			assert_int_equal(m.contrib.crc_prev, 0);
			m = result_msg(w, r, 0);
			m.crc = 0;
			say(w, 0, &m);
			if (k)
				end_read(w, 0, 0);
			expect_delivered(w, r, (unsigned)r);
		}
		assert_int_equal(stats(w).crc_errors, 0);
		world_free(w);
	}
}

static void job_that_may_shrink_takes_a_crc_within_one_host_too(void **state)
{
	struct world *w = world(.n_elems = LARGE, .flags = JOB_SHRINK);
	struct wire_msg m;

	(void)state;
	w->conn[0]->base.is_same_host = true;
	submit_all(w, 1);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.crc, crc32c(0, w->a->in[0], m.len));
	world_free(w);
}

static void local_sum_is_made_once_also_when_the_network_takes_over(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_workers = 2);
	const float *staged;
	struct wire_msg m;

	(void)state;
	w->conn[0]->base.is_same_host = true;
	submit_all(w, 1);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	staged = (const float *)w->a->staging;
	assert_float_equal(staged[0], input(0, 1, 0) + input(1, 1, 0), 0);
	/* A second sum of other inputs would show in memory that a server may be reading. */
	memset(w->a->in[0], 0, m.len);
	cut(w, 0);
	fake_up(w->conn[0]);
	work(w);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_float_equal(staged[0], input(0, 1, 0) + input(1, 1, 0), 0);
	assert_int_equal(m.crc, crc32c(0, staged, m.len));
	world_free(w);
}

static void sum_that_came_without_crc_is_donated_with_one(void **state)
{
	struct world *w = world(.n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	w->conn[0]->base.is_same_host = true;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m = result_msg(w, 1, 0);
	m.crc = 0;
	say(w, 0, &m);
	end_read(w, 0, 0);
	say_key(w, 0, WIRE_DONATE_REQ, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_DONATE, 1).crc, result_msg(w, 1, 0).crc);
	world_free(w);
}

/* ---- repetition ---- */

static void unanswered_push_is_repeated_with_the_same_bytes(void **state)
{
	struct world *w = world(.n_elems = LARGE);
	struct wire_msg first, again;

	(void)state;
	submit_all(w, 1);
	first = expect_msg(w, 0, WIRE_CONTRIB, 1);
	tick(w, RETRY_MS - 1);
	expect_nothing(w, 0);
	tick(w, 1);
	again = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(again.crc, first.crc);
	assert_int_equal(again.offset, first.offset);
	tick(w, 2 * RETRY_MS - 1); /* more slowly */
	expect_nothing(w, 0);
	tick(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(stats(w).repushes, 2);
	world_free(w);
}

static void server_that_is_not_ready_is_asked_after_a_pause(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_key(w, 0, WIRE_AGAIN, 1);
	assert_int_equal(stats(w).inflight_bytes, 0);
	tick(w, 2 * AGAIN_MS - 1);
	expect_nothing(w, 0);
	tick(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_key(w, 0, WIRE_AGAIN, 2); /* of another round: nothing */
	say_result(w, 0, 1);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void result_that_comes_while_waiting_or_before_a_repetition_counts(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct world *w = world(.n_elems = k & 1 ? LARGE : SMALL);

		submit_all(w, 1);
		if (k & 2) {
			say_key(w, 0, WIRE_AGAIN, 1);
		} else {
			w->conn[0]->credit = 0;
			tick(w, RETRY_MS); /* READY again */
		}
		say_result(w, 0, 1);
		if (k & 1)
			end_read(w, 0, 0);
		expect_delivered(w, 1, 1);
		world_free(w);
	}
}

/* Two partitions, of which 0 is in the given state. */
enum scene { SCENE_READY, SCENE_SENT, SCENE_WAITING, SCENE_OFFERED, SCENE_FETCHING, SCENE_COUNT };

static struct world *make_scene(enum scene scene)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 2);
	struct wire_msg m = result_msg(w, 1, 1);

	if (scene == SCENE_READY)
		w->conn[0]->credit = 0;
	w->conn[0]->read_limit = 1;
	submit_all(w, 1);
	if (scene == SCENE_WAITING)
		say_key(w, 0, WIRE_AGAIN, 1);
	if (scene == SCENE_OFFERED) /* the other is read first */
		say(w, 0, &m);
	if (scene >= SCENE_OFFERED)
		say_result(w, 0, 1);
	while (fake_take(w->conn[0]))
		;
	return w;
}

static void finish_scene(struct world *w, unsigned s)
{
	struct wire_msg m = result_msg(w, 1, 1);

	say_result(w, s, 1);
	end_read(w, s, 0);
	say(w, s, &m);
	end_read(w, s, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void reconnect_says_all_again(void **state)
{
	(void)state;
	for (unsigned scene = 0; scene < SCENE_COUNT; scene++) {
		struct world *w = make_scene(scene);

		cut(w, 0);
		assert_int_equal(stats(w).inflight_bytes, 0);
		assert_int_equal(w->n_connects, 2);
		fake_up(w->conn[0]);
		work(w);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		expect_nothing(w, 0);
		finish_scene(w, 0);
	}
}

static void reconnects_come_at_once_then_ever_later(void **state)
{
	static const uint64_t delays_ms[] = {100, 300, 400, 400};
	struct world *w = world(.n_elems = SMALL);
	char text[200];

	(void)state;
	cut(w, 0);
	assert_int_equal(w->n_connects, 2);
	assert_false(agt_job_network(w->job, text, sizeof(text)));
	assert_non_null(strstr(text, "server 0 thread 0"));
	for (unsigned k = 0; k < 4; k++) {
		fake_down(w->conn[0], "refused");
		tick(w, delays_ms[k] - 1);
		assert_int_equal(w->n_connects, k + 2);
		tick(w, 1);
		assert_int_equal(w->n_connects, k + 3);
	}
	fake_up(w->conn[0]);
	check(w);
	assert_true(agt_job_network(w->job, text, sizeof(text)));
	assert_string_equal(text, "");
	world_free(w);
}

/* FM-S-reject: a server that can be reached again is found within that time. */
static void reconnects_are_never_more_than_a_second_apart(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	cut(w, 0);
	w->jitter = UINT64_C(599999999);
	for (unsigned k = 0; k < 6; k++) {
		fake_down(w->conn[0], "refused");
		tick(w, 1000);
		assert_int_equal(w->n_connects, k + 3);
	}
	world_free(w);
}

static void server_that_has_changed_is_connected_at_once(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	w->connect_rc = -ENOTCONN; /* its address is not known */
	cut(w, 0);
	tick(w, 100);
	assert_int_equal(w->n_connects, 3);
	w->connect_rc = 0;
	agt_core_server_changed(w->core, 0);
	check(w);
	tick(w, 0);
	assert_int_equal(w->n_connects, 4);
	fake_up(w->conn[0]);
	agt_core_server_changed(w->core, 0);
	assert_int_equal(w->conn[0]->is_closed, true);
	tick(w, 0);
	assert_int_equal(w->n_connects, 5);
	world_free(w);
}

/* ---- A4, B4: which results count ---- */

static void result_of_another_round_or_pgen_is_declined(void **state)
{
	struct world *w = world(.n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	one_round(w, 0, 1);
	submit_all(w, 2);
	expect_msg(w, 0, WIRE_CONTRIB, 2);
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_GOT, 1);
	m = result_msg(w, 2, 0);
	m.pgen--;
	say(w, 0, &m);
	assert_int_equal(expect_msg(w, 0, WIRE_GOT, 2).pgen, m.pgen);
	assert_int_equal(w->conn[0]->n_reads, 0);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(stats(w).stale, 2);
	say_result(w, 0, 2);
	end_read(w, 0, 0);
	expect_delivered(w, 2, 2);
	world_free(w);
}

static void result_is_delivered_once(void **state)
{
	struct world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	say_result(w, 0, 1);
	say_result(w, 0, 1); /* while it is read: one read, no GOT */
	assert_int_equal(w->conn[0]->n_reads, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	expect_nothing(w, 0);
	end_read(w, 0, 0);
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_GOT, 1);
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void result_read_across_a_new_pgen_is_thrown_away(void **state)
{
	struct world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	tell_runs(w, 0, 6);
	work(w);
	expect_nothing(w, 0); /* not before the read has ended */
	end_read(w, 0, 0);
	assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).pgen, 6);
	assert_int_equal(w->n_done, 0);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void damaged_result_is_asked_for_again_and_then_fails(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct world *w = world(.n_elems = k ? LARGE : SMALL);
		struct wire_msg m;

		submit_all(w, 1);
		for (unsigned n = 0; n < 5; n++) {
			assert_int_equal(w->n_fails, 0);
			m = result_msg(w, 1, 0);
			m.crc ^= 1;
			say(w, 0, &m);
			if (k)
				end_read(w, 0, 0);
			tick(w, 20 * RETRY_MS);
			assert_true(n == 4 || w->conn[0]->n_sent >= n + 2);
		}
		assert_int_equal(w->n_fails, 1);
		assert_int_equal(w->fail_code, BPS_EPROTO);
		assert_int_equal(w->n_done, 1);
		assert_int_equal(w->done_status, BPS_EPROTO);
		world_free(w);
	}
}

static void offer_from_no_segment_is_asked_for_again(void **state)
{
	struct world *w = world(.n_elems = LARGE);
	struct wire_msg m = result_msg(w, 1, 0);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m.segment = 9;
	say(w, 0, &m);
	assert_int_equal(w->conn[0]->n_reads, 0);
	tick(w, 4 * RETRY_MS);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void result_that_does_not_fit_closes_the_connection(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 5; k++) {
		struct world *w = world(.n_elems = SMALL);
		struct fake_conn *c = w->conn[0];
		struct wire_msg m = result_msg(w, 1, 0);

		submit_all(w, 1);
		if (k == 0)
			m.len--;
		if (k == 1)
			m.result.n_members++;
		if (k == 2)
			m.result.workers = 0;
		if (k == 3)
			m.result.workers = 4;
		if (k == 4)
			m = key_msg(w, WIRE_HAVE, 1);
		fake_deliver(c, &m);
		check(w);
		assert_true(c->is_closed);
		assert_int_equal(w->n_done, 0);
		tick(w, 0);
		fake_up(w->conn[0]);
		work(w);
		expect_msg(w, 0, WIRE_CONTRIB, 1);
		world_free(w);
	}
}

static void message_for_another_is_counted_and_dropped(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	submit_all(w, 1);
	for (unsigned k = 0; k < 4; k++) {
		struct wire_msg m = result_msg(w, 1, 0);

		m.job += k == 0;
		m.tensor += k == 1;
		m.part += k == 2;
		m.member = (uint16_t)(m.member + (k == 3));
		say(w, 0, &m);
		assert_int_equal(stats(w).stale, k + 1);
	}
	assert_int_equal(w->n_done, 0);
	world_free(w);
}

/* ---- BAD_CRC ---- */

static void say_bad_crc(struct world *w, uint32_t crc)
{
	struct wire_msg m = key_msg(w, WIRE_BAD_CRC, 1);

	m.crc = crc;
	say(w, 0, &m);
}

static void input_that_changes_in_flight_ends_the_job(void **state)
{
	(void)state;
	for (unsigned n_workers = 1; n_workers <= 2; n_workers++) {
		struct world *w = world(.n_elems = LARGE, .n_workers = n_workers);
		uint32_t crc, was;

		submit_all(w, 1);
		was = expect_msg(w, 0, WIRE_CONTRIB, 1).crc;
		((float *)w->a->in[0])[3] = 9999;
		say_bad_crc(w, was);
		crc = expect_msg(w, 0, WIRE_CONTRIB, 1).crc;
		assert_int_not_equal(crc, was);
		assert_int_equal(w->n_fails, 0);
		say_bad_crc(w, was); /* of the older offer */
		expect_nothing(w, 0);
		((float *)w->a->in[0])[3] = 8888;
		say_bad_crc(w, crc);
		assert_int_equal(w->fail_code, BPS_EINPUT_CHANGED);
		assert_non_null(strstr(w->fail_text, "rank 20"));
		assert_int_equal(w->done_status, BPS_EINPUT_CHANGED);
		world_free(w);
	}
}

static void push_damaged_on_its_way_is_repeated_a_few_times(void **state)
{
	struct world *w = world(.n_elems = LARGE);
	uint32_t crc = 0;

	(void)state;
	submit_all(w, 1);
	for (unsigned n = 0; n < 5; n++) {
		assert_int_equal(w->n_fails, 0);
		crc = expect_msg(w, 0, WIRE_CONTRIB, 1).crc;
		say_bad_crc(w, crc);
	}
	assert_int_equal(w->fail_code, BPS_EPROTO);
	world_free(w);
}

/* ---- new placements ---- */

static void connect_to(struct world *w, unsigned s)
{
	tick(w, 0);
	fake_up(w->conn[s]);
	work(w);
}

static void push_goes_to_the_new_server_at_once(void **state)
{
	(void)state;
	for (unsigned scene = 0; scene < SCENE_COUNT; scene++) {
		struct world *w = make_scene(scene);
		unsigned n_reads = (unsigned)w->conn[0]->n_reads;

		tell_runs(w, 1, 6);
		connect_to(w, 1);
		assert_int_equal(w->conn[1]->n_sent, 2 - n_reads); /* not while it is read */
		if (scene == SCENE_OFFERED) /* an offer that is not read is given back */
			assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
		if (n_reads) {
			end_read(w, 0, 0);
			assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
		}
		expect_nothing(w, 0);
		for (unsigned p = 0; p < 2; p++)
			assert_int_equal(expect_msg(w, 1, WIRE_CONTRIB, 1).pgen, 6);
		finish_scene(w, 1);
	}
}

static void smaller_pgen_is_never_applied(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	tell_runs(w, 1, 4);
	tell_runs(w, 1, 5);
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void partition_without_a_server_waits(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	tell_runs(w, CTL_NO_ID, 6);
	submit_all(w, 1);
	expect_nothing(w, 0);
	tell_runs(w, 0, 7);
	work(w);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void idle_partition_says_what_it_has_until_it_is_heard(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	one_round(w, 0, 1);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	tick(w, RETRY_MS);
	expect_msg(w, 1, WIRE_HAVE, 1);
	cut(w, 1);
	fake_up(w->conn[1]);
	work(w);
	expect_msg(w, 1, WIRE_HAVE, 1);
	say_key(w, 1, WIRE_AGAIN, 1);
	tick(w, 2 * AGAIN_MS);
	expect_msg(w, 1, WIRE_HAVE, 1);
	say_key(w, 1, WIRE_HAVE_OK, 1);
	tick(w, 100 * RETRY_MS);
	expect_nothing(w, 1);
	cut(w, 1);
	fake_up(w->conn[1]);
	work(w);
	expect_nothing(w, 1);
	world_free(w);
}

static void partition_that_never_had_a_round_says_nothing(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	tick(w, 100 * RETRY_MS);
	expect_nothing(w, 1);
	world_free(w);
}

static void next_contribution_does_not_wait_for_an_unheard_have(void **state)
{
	struct world *w = world(.n_elems = SMALL);

	(void)state;
	one_round(w, 0, 1);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	submit_all(w, 2);
	expect_msg(w, 1, WIRE_CONTRIB, 2);
	say_result(w, 1, 2); /* it implied HAVE */
	expect_delivered(w, 2, 2);
	tick(w, 100 * RETRY_MS);
	expect_nothing(w, 1);
	world_free(w);
}

static void parked_push_moves_with_its_partition(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 3, .job_inflight = BYTES_MAX);

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->conn[0]->n_sent, 1);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	assert_int_equal(w->conn[1]->n_sent, 1);
	agt_job_fail(w->job, BPS_EQUOTA);
	check(w);
	assert_int_equal(w->done_status, BPS_EQUOTA);
	world_free(w);
}

static void have_is_said_also_while_the_contribution_waits_for_the_window(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 2, .window = BYTES_MAX);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	for (unsigned p = 0; p < 2; p++) {
		m = result_msg(w, 1, p);
		say(w, 0, &m);
		end_read(w, 0, 0);
	}
	assert_int_equal(w->n_done, 1);
	submit_all(w, 2);
	tell_runs(w, 1, 6);
	connect_to(w, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	expect_msg(w, 1, WIRE_HAVE, 1);
	expect_msg(w, 1, WIRE_CONTRIB, 2);
	expect_nothing(w, 1);
	world_free(w);
}

static void push_that_stays_unanswered_leaves_the_window_to_others(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 2, .window = BYTES_MAX);

	(void)state;
	check_unanswered_push_leaves_room(w);
}

static void delivered_sum_is_given_back_when_its_partition_leaves(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 3; k++) { /* IDLE; READY for the next; the job is over */
		struct world *w = world(.n_elems = LARGE);

		one_round(w, 0, 1);
		w->conn[0]->credit = 0; /* also when there is no credit at the moment */
		if (k == 1)
			submit_all(w, 2);
		if (k == 2) {
			agt_job_free(w->job, released, w);
			w->job = NULL;
			assert_int_equal(w->n_releases, 1);
		} else {
			tell_runs(w, 1, 6);
		}
		work(w);
		expect_nothing(w, 0);
		fake_grant(w->conn[0], 9);
		work(w);
		assert_int_equal(expect_msg(w, 0, WIRE_GOT, 1).pgen, 5);
		expect_nothing(w, 0);
		world_free(w);
	}
}

/* ---- donation ---- */

static void retained_sum_is_donated_on_request(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct world *w = world(.n_elems = k & 1 ? LARGE : SMALL);
		struct wire_msg m, sum;

		one_round(w, 0, 1);
		one_round(w, 0, 2);
		sum = result_msg(w, 2, 0);
		if (k & 2) { /* also while the next round is under way */
			submit_all(w, 3);
			expect_msg(w, 0, WIRE_CONTRIB, 3);
		}
		say_key(w, 0, WIRE_DONATE_REQ, 1); /* not retained any more */
		say_key(w, 0, WIRE_DONATE_REQ, 3); /* not there yet */
		expect_nothing(w, 0);
		say_key(w, 0, WIRE_DONATE_REQ, 2);
		m = expect_msg(w, 0, WIRE_DONATE, 2);
		assert_int_equal(m.crc, sum.crc);
		assert_int_equal(m.result.workers, 3);
		assert_int_equal(m.result.n_members, 3);
		assert_int_equal(m.result.contributors.w[0], 7);
		assert_memory_equal(m.flags & WIRE_INLINE
					    ? m.payload
					    : fake_own(&w->x, m.segment, m.offset, m.len),
			w->a->out[0], m.len);
		world_free(w);
	}
}

static void nothing_is_donated_to_an_older_pgen(void **state)
{
	struct world *w = world(.n_elems = SMALL);
	struct wire_msg m;

	(void)state;
	say_key(w, 0, WIRE_DONATE_REQ, 1); /* nothing there at all */
	one_round(w, 0, 1);
	m = key_msg(w, WIRE_DONATE_REQ, 1);
	m.pgen--;
	say(w, 0, &m);
	expect_nothing(w, 0);
	world_free(w);
}

/* ---- ends ---- */

static void failed_tensor_ends_its_round_once_and_alone(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_tensors = 2);

	(void)state;
	submit(w, 0, 0, 1, 0);
	submit(w, 1, 0, 1, 0);
	work(w);
	agt_tensor_fail(w->t[0], BPS_EMISMATCH);
	check(w);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done_status, BPS_EMISMATCH);
	agt_tensor_fail(w->t[0], BPS_EQUOTA);
	assert_int_equal(w->n_done, 1);
	say_result(w, 0, 1); /* late */
	assert_int_equal(w->n_done, 1);
	submit(w, 0, 0, 2, 0);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done_status, BPS_EMISMATCH);
	assert_int_equal(w->n_fails, 0);
	{
		struct wire_msg m = result_msg(w, 1, 0);

		m.tensor = 11;
		say(w, 0, &m);
	}
	assert_int_equal(w->n_done, 3);
	assert_int_equal(w->done_status, 0);
	world_free(w);
}

static void failed_job_ends_every_waiting_round_once(void **state)
{
	static const char *const names[] = {"unsubmitted", "half", "running", "unplanned"};

	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct world *w = world(.n_elems = LARGE, .n_workers = 2, .is_unplanned = k == 3);
		unsigned n = k != 0;

		if (k >= 1)
			submit(w, 0, 0, 1, 0);
		if (k >= 2)
			submit(w, 0, 1, 1, 0);
		work(w);
		agt_job_fail(w->job, BPS_EAGENT_LOST);
		check(w);
		agt_job_fail(w->job, BPS_EQUOTA);
		if (w->n_done != n)
			fail_msg("%s: %u done", names[k], w->n_done);
		assert_int_equal(w->done_status, n ? BPS_EAGENT_LOST : 0);
		/* Later rounds end at once, and a worker that comes late is told by the call. */
		if (k == 1)
			assert_int_equal(agt_submit(w->t[0], 1, 1, OP_SUM, 0), BPS_EAGENT_LOST);
		assert_int_equal(agt_submit(w->t[0], 0, n + 1, OP_SUM, 0), 0);
		assert_int_equal(w->n_done, n + 1);
		assert_int_equal(w->done_round, n + 1);
		assert_int_equal(agt_submit(w->t[0], 1, n + 1, OP_SUM, 0), BPS_EAGENT_LOST);
		assert_int_equal(w->n_done, n + 1);
		check(w);
		if (k != 3)
			say_result(w, 0, 1);
		assert_int_equal(w->n_done, n + 1);
		assert_int_equal(w->n_fails, 0);
		world_free(w);
	}
}

static void result_of_a_failed_job_is_given_back_unread(void **state)
{
	struct world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	agt_job_fail(w->job, BPS_EAGENT_LOST);
	say_result(w, 0, 1);
	expect_msg(w, 0, WIRE_GOT, 1);
	assert_int_equal(w->conn[0]->n_reads, 0);
	world_free(w);
}

static void read_that_ends_after_the_job_failed_changes_nothing(void **state)
{
	struct world *w = world(.n_elems = LARGE);

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	agt_job_fail(w->job, BPS_EAGENT_LOST);
	check(w);
	assert_int_equal(w->n_done, 1);
	end_read(w, 0, 0);
	expect_msg(w, 0, WIRE_GOT, 1);
	assert_int_equal(w->n_done, 1);
	world_free(w);
}

static void freed_job_is_released_once_no_read_runs(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) { /* the read ends, or its connection */
		struct world *w = world(.n_elems = LARGE, .n_parts = 2);
		struct wire_msg m;

		submit_all(w, 1);
		for (unsigned p = 0; p < 2; p++) {
			m = result_msg(w, 1, p);
			say(w, 0, &m);
		}
		agt_job_free(w->job, released, w);
		w->job = NULL;
		check(w);
		assert_int_equal(w->n_releases, 0);
		say_result(w, 0, 1); /* of a job that is not known any more */
		end_read(w, 0, 0);
		assert_int_equal(w->n_releases, 0);
		if (k)
			cut(w, 0);
		else
			end_read(w, 0, 0);
		assert_int_equal(w->n_releases, 1);
		assert_int_equal(w->n_done, 0);
		world_free(w);
	}
}

static void freed_job_is_released_at_once_when_nothing_runs(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_workers = 2);

	(void)state;
	submit(w, 0, 0, 1, 0);
	agt_job_free(w->job, released, w);
	w->job = NULL;
	check(w);
	assert_int_equal(w->n_releases, 1);
	assert_int_equal(w->n_done, 0);
	assert_int_equal(w->core->n_parts, 0);
	world_free(w);
}

/* ---- any talk ---- */

static void random_server(struct world *w, unsigned s)
{
	struct fake_conn *c = w->conn[s];
	uint64_t r = agt_tensor_round(w->t[0]) + (uint64_t)(rand() % 8 ? 1 : rand() % 3);
	struct wire_msg m;

	if (!c || c->is_closed || !c->is_up)
		return;
	switch (rand() % 12) {
	case 0:
		m = key_msg(w, (enum wire_type)(WIRE_HAVE_OK + rand() % 2), r ? r : 1);
		break;
	case 1:
		m = key_msg(w, WIRE_AGAIN, r ? r : 1);
		break;
	case 2:
		m = key_msg(w, WIRE_BAD_CRC, r ? r : 1);
		break;
	case 3:
		if (rand() % 6 == 0)
			fake_down(c, "cut");
		return;
	case 4:
		c->credit = 0;
		return;
	case 5:
		c->credit = SIZE_MAX;
		fake_grant(c, 0);
		return;
	case 6:
	case 7:
		if (c->n_reads)
			fake_end_read(c, 0, rand() % 8 ? 0 : -EIO);
		return;
	default:
		m = result_msg(w, r ? r : 1, (uint32_t)rand() % w->n_parts);
		m.crc ^= rand() % 64 == 0;
	}
	m.pgen -= rand() % 8 == 0;
	fake_deliver(c, &m);
}

/* ---- tensors on devices ---- */

static void stage(struct world *w, uint32_t part, uint64_t r)
{
	assert_int_equal(agt_part_staged(w->t[0], part, r), 0);
	check(w);
	work(w);
}

static void one_device_round(struct world *w, uint64_t r)
{
	submit_all(w, r);
	stage(w, 0, r);
	expect_msg(w, 0, WIRE_CONTRIB, r);
	say_result(w, 0, r);
	end_read(w, 0, 0);
	assert_int_equal(agt_tensor_unstaged(w->t[0], r), 0);
	check(w);
}

static void device_partition_is_pushed_when_its_own_bytes_are_staged(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_parts = 3, .n_workers = 2, .n_in = 1);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->staged_round, 1);
	expect_nothing(w, 0);
	stage(w, 1, 1);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.part, 1);
	assert_int_equal(m.contrib.workers, 2); /* one input, two workers behind it */
	expect_nothing(w, 0);
	assert_int_equal(agt_part_staged(w->t[0], 1, 1), -EINVAL);
	assert_int_equal(agt_part_staged(w->t[0], 0, 2), -EINVAL);
	assert_int_equal(agt_part_staged(w->t[0], 3, 1), -EINVAL);
	stage(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	world_free(w);
}

static void device_round_is_done_when_its_sums_are_on_the_devices(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_parts = 2, .n_in = 2);
	struct wire_msg m;

	(void)state;
	for (uint64_t r = 1; r <= 3; r++) {
		submit_all(w, r);
		for (uint32_t part = 0; part < 2; part++) {
			stage(w, part, r);
			expect_msg(w, 0, WIRE_CONTRIB, r);
			m = result_msg(w, r, part);
			say(w, 0, &m);
			assert_int_equal(w->n_unstaged, 2 * (r - 1) + part + 1);
		}
		assert_int_equal(w->n_done, r - 1);
		assert_int_equal(agt_submit(w->t[0], 0, r + 1, OP_SUM, 0), BPS_EBUSY);
		assert_int_equal(agt_tensor_unstaged(w->t[0], r + 1), -EINVAL);
		assert_int_equal(agt_tensor_unstaged(w->t[0], r), 0);
		check(w);
		expect_delivered(w, r, (unsigned)r);
		assert_int_equal(agt_tensor_unstaged(w->t[0], r), -EINVAL);
	}
	world_free(w);
}

static void device_inputs_are_summed_as_workers_are(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_workers = 3, .n_in = 2);
	const float *sum = (const float *)w->a->staging;

	(void)state;
	submit_all(w, 1);
	stage(w, 0, 1);
	assert_int_equal(expect_msg(w, 0, WIRE_CONTRIB, 1).contrib.workers, 3);
	for (size_t e = 0; e < SMALL; e++)
		assert_true(sum[e] == input(0, 1, e) + input(1, 1, e));
	world_free(w);
}

static void result_does_not_overwrite_what_is_being_staged(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_in = 1);

	(void)state;
	submit_all(w, 1);
	say_result(w, 0, 1); /* the others went on without us */
	expect_nothing(w, 0);
	assert_int_equal(w->n_unstaged, 0);
	stage(w, 0, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	say_result(w, 0, 1);
	end_read(w, 0, 0);
	assert_int_equal(w->n_unstaged, 1);
	world_free(w);
}

static void staging_goes_on_over_a_new_placement(void **state)
{
	struct world *w = world(.n_elems = LARGE, .n_in = 1);

	(void)state;
	one_device_round(w, 1);
	submit_all(w, 2);
	tell_runs(w, 1, 6);
	tick(w, 0);
	fake_up(w->conn[1]);
	work(w);
	expect_msg(w, 1, WIRE_HAVE, 1); /* others may wait for this word */
	expect_nothing(w, 1);
	stage(w, 0, 2);
	expect_msg(w, 1, WIRE_CONTRIB, 2);
	world_free(w);
}

static void device_tensor_of_one_machine_needs_no_server(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_workers = 2, .n_members = 1, .n_in = 2);
	const float *sum = (const float *)w->a->out[1];

	(void)state;
	submit_all(w, 1);
	assert_int_equal(w->n_unstaged, 0);
	stage(w, 0, 1);
	assert_int_equal(w->n_unstaged, 1);
	for (size_t e = 0; e < SMALL; e++)
		assert_true(sum[e] == input(0, 1, e) + input(1, 1, e));
	assert_int_equal(agt_tensor_unstaged(w->t[0], 1), 0);
	assert_int_equal(w->done_workers, 2);
	world_free(w);
}

static void failed_job_stages_nothing_any_more(void **state)
{
	(void)state;
	for (unsigned when = 0; when < 3; when++) {
		struct world *w = world(.n_elems = SMALL, .n_in = 1);

		submit_all(w, 1);
		if (when > 0) {
			stage(w, 0, 1);
			expect_msg(w, 0, WIRE_CONTRIB, 1);
		}
		if (when > 1)
			say_result(w, 0, 1);
		agt_job_fail(w->job, BPS_EWORKER_LOST);
		check(w);
		assert_int_equal(w->done_status, BPS_EWORKER_LOST);
		assert_int_equal(agt_part_staged(w->t[0], 0, 1), -EINVAL);
		assert_int_equal(agt_tensor_unstaged(w->t[0], 1), -EINVAL);
		world_free(w);
	}
}

static void random_talk_keeps_the_invariants(void **state)
{
	unsigned n_done = 0;

	(void)state;
	for (unsigned seed = 1; seed <= 40; seed++) {
		struct world *w = world(.n_elems = seed & 1 ? LARGE : SMALL, .n_parts = 3,
			.window = seed & 2 ? BYTES_MAX : 0,
			.job_inflight = seed & 8 ? BYTES_MAX : 0, .n_workers = 1 + (seed & 4) / 4,
			.n_in = seed & 16 ? 1 + (seed & 1) : 0);

		srand(seed);
		for (unsigned k = 0; k < 4000 && !w->n_fails; k++) {
			unsigned worker = (unsigned)rand() % w->n_workers;

			switch (rand() % 8) {
			case 0:
				if (rand() % 8 == 0)
					tell_runs(w, (uint32_t)rand() % 3, w->pgen + 1);
				break;
			case 1:
				tick(w, (uint64_t)rand() % 2000);
				break;
			case 2:
				agt_submit(w->t[0], worker,
					agt_tensor_submitted(w->t[0], worker) + 1, OP_SUM, 0);
				break;
			case 3:
				agt_core_work(w->core);
				if (!w->is_device)
					break;
				agt_part_staged(w->t[0], (uint32_t)rand() % 3, w->staged_round);
				agt_tensor_unstaged(w->t[0], w->staged_round);
				break;
			default:
				random_server(w, (unsigned)rand() % 3);
			}
			check(w);
			for (unsigned s = 0; s < 3; s++)
				if (w->conn[s] && !w->conn[s]->is_closed && !w->conn[s]->is_up &&
					rand() % 2)
					fake_up(w->conn[s]);
			check(w);
		}
		n_done += w->n_done;
		world_free(w);
	}
	assert_true(n_done > 400); /* the talk gets somewhere */
}

/* ---- restart ---- */

static void come_back(struct world *w)
{
	w->pgen = 0;
	tell_runs(w, 0, 5);
	tick(w, 0);
	fake_up(w->conn[0]);
	work(w);
}

static void successor_sends_the_same_contribution_and_echo(void **state)
{
	struct world *w = world(.n_elems = LARGE);
	struct wire_msg was, is;

	(void)state;
	one_round(w, 0, 1);
	submit_all(w, 2);
	was = expect_msg(w, 0, WIRE_CONTRIB, 2);
	restart(w);
	assert_int_equal(agt_tensor_round(w->t[0]), 1);
	assert_int_equal(agt_tensor_submitted(w->t[0], 0), 1);
	assert_int_equal(agt_submit(w->t[0], 0, 2, OP_SUM, 0), 0);
	come_back(w);
	expect_msg(w, 0, WIRE_HAVE, 1);
	is = expect_msg(w, 0, WIRE_CONTRIB, 2);
	assert_int_equal(is.crc, was.crc);
	assert_int_equal(is.len, was.len);
	assert_int_equal(is.contrib.crc_prev, was.contrib.crc_prev);
	assert_int_not_equal(is.contrib.crc_prev, 0);
	say_result(w, 0, 2);
	end_read(w, 0, 0);
	expect_delivered(w, 2, 2);
	world_free(w);
}

static void successor_has_what_landed_and_asks_for_the_rest(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_parts = 2);
	struct wire_msg m;

	(void)state;
	submit_all(w, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	expect_msg(w, 0, WIRE_CONTRIB, 1);
	m = result_msg(w, 1, 0);
	say(w, 0, &m);
	restart(w);
	assert_int_equal(agt_tensor_round(w->t[0]), 0);
	assert_int_equal(agt_submit(w->t[0], 0, 1, OP_SUM, 0), 0);
	come_back(w);
	m = expect_msg(w, 0, WIRE_HAVE, 1);
	assert_int_equal(m.part, 0);
	m = expect_msg(w, 0, WIRE_CONTRIB, 1);
	assert_int_equal(m.part, 1);
	expect_nothing(w, 0);
	m = result_msg(w, 1, 1);
	say(w, 0, &m);
	expect_delivered(w, 1, 1);
	world_free(w);
}

static void successor_donates_what_its_predecessor_got(void **state)
{
	struct world *w = world(.n_elems = SMALL);
	struct member_set members;
	uint32_t least, most;
	struct wire_msg m;

	(void)state;
	one_round(w, 0, 1);
	restart(w);
	agt_tensor_contributors(w->t[0], &members, &least, &most);
	assert_int_equal(least, 3);
	come_back(w);
	expect_msg(w, 0, WIRE_HAVE, 1);
	say_key(w, 0, WIRE_DONATE_REQ, 1);
	m = expect_msg(w, 0, WIRE_DONATE, 1);
	assert_int_equal(m.result.workers, 3);
	assert_true(member_set_has(&m.result.contributors, 2));
	assert_int_equal(m.crc, crc32c(0, m.payload, m.len));
	world_free(w);
}

static void what_contradicts_itself_is_not_taken_for_kept(void **state)
{
	struct world *w = world(.n_elems = SMALL, .n_parts = 2, .is_unplanned = true);
	struct ctl_tensor plan = {.tensor = 10,
		.name = "t",
		.dtype = DTYPE_F32,
		.n_elems = (uint64_t)2 * w->n_elems,
		.part_elems = w->n_elems};

	(void)state;
	w->kept[0][0].landed = 3;
	w->kept[0][1].landed = 1;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), BPS_EPROTO);
	w->kept[0][1].landed = 2;
	assert_int_equal(agt_tensor_plan(w->t[0], &plan), 0);
	assert_int_equal(agt_tensor_round(w->t[0]), 2);
	check(w);
	assert_int_equal(agt_submit(w->t[0], 0, 3, OP_SUM, 0), 0);
	check(w);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_round_goes_and_comes_inline),
		cmocka_unit_test(large_round_is_offered_and_its_sum_read),
		cmocka_unit_test(round_within_one_host_takes_no_crc),
		cmocka_unit_test(job_that_may_shrink_takes_a_crc_within_one_host_too),
		cmocka_unit_test(local_sum_is_made_once_also_when_the_network_takes_over),
		cmocka_unit_test(sum_that_came_without_crc_is_donated_with_one),
		cmocka_unit_test(crc_of_the_delivered_sum_is_echoed),
		cmocka_unit_test(round_is_done_when_all_its_partitions_are),
		cmocka_unit_test(next_round_may_be_submitted_inside_done),
		cmocka_unit_test(workers_of_the_machine_are_summed_once_before_the_push),
		cmocka_unit_test(half_precision_of_many_workers_is_rounded_once),
		cmocka_unit_test(job_of_one_machine_needs_no_server),
		cmocka_unit_test(successor_sends_the_same_contribution_and_echo),
		cmocka_unit_test(successor_has_what_landed_and_asks_for_the_rest),
		cmocka_unit_test(successor_donates_what_its_predecessor_got),
		cmocka_unit_test(what_contradicts_itself_is_not_taken_for_kept),
		cmocka_unit_test(tensor_may_be_submitted_before_its_plan),
		cmocka_unit_test(plan_that_does_not_fit_is_refused),
		cmocka_unit_test(submissions_out_of_order_are_refused),
		cmocka_unit_test(pushes_stay_within_the_window),
		cmocka_unit_test(partition_larger_than_the_window_goes_alone),
		cmocka_unit_test(pushes_of_a_job_stay_within_what_it_may_have_under_way),
		cmocka_unit_test(other_jobs_go_on_while_one_has_all_under_way_that_it_may),
		cmocka_unit_test(push_that_stays_unanswered_leaves_its_jobs_bytes_to_others),
		cmocka_unit_test(larger_limit_lets_waiting_pushes_go),
		cmocka_unit_test(parked_push_moves_with_its_partition),
		cmocka_unit_test(partition_that_never_fits_is_refused),
		cmocka_unit_test(urgent_tensor_overtakes_what_is_not_pushed_yet),
		cmocka_unit_test(pushes_wait_for_credit),
		cmocka_unit_test(offers_wait_for_room_to_read),
		cmocka_unit_test(unanswered_push_is_repeated_with_the_same_bytes),
		cmocka_unit_test(server_that_is_not_ready_is_asked_after_a_pause),
		cmocka_unit_test(result_that_comes_while_waiting_or_before_a_repetition_counts),
		cmocka_unit_test(reconnect_says_all_again),
		cmocka_unit_test(reconnects_come_at_once_then_ever_later),
		cmocka_unit_test(reconnects_are_never_more_than_a_second_apart),
		cmocka_unit_test(server_that_has_changed_is_connected_at_once),
		cmocka_unit_test(result_of_another_round_or_pgen_is_declined),
		cmocka_unit_test(result_is_delivered_once),
		cmocka_unit_test(result_read_across_a_new_pgen_is_thrown_away),
		cmocka_unit_test(damaged_result_is_asked_for_again_and_then_fails),
		cmocka_unit_test(offer_from_no_segment_is_asked_for_again),
		cmocka_unit_test(result_that_does_not_fit_closes_the_connection),
		cmocka_unit_test(message_for_another_is_counted_and_dropped),
		cmocka_unit_test(input_that_changes_in_flight_ends_the_job),
		cmocka_unit_test(push_damaged_on_its_way_is_repeated_a_few_times),
		cmocka_unit_test(push_goes_to_the_new_server_at_once),
		cmocka_unit_test(smaller_pgen_is_never_applied),
		cmocka_unit_test(partition_without_a_server_waits),
		cmocka_unit_test(idle_partition_says_what_it_has_until_it_is_heard),
		cmocka_unit_test(partition_that_never_had_a_round_says_nothing),
		cmocka_unit_test(next_contribution_does_not_wait_for_an_unheard_have),
		cmocka_unit_test(have_is_said_also_while_the_contribution_waits_for_the_window),
		cmocka_unit_test(push_that_stays_unanswered_leaves_the_window_to_others),
		cmocka_unit_test(delivered_sum_is_given_back_when_its_partition_leaves),
		cmocka_unit_test(retained_sum_is_donated_on_request),
		cmocka_unit_test(nothing_is_donated_to_an_older_pgen),
		cmocka_unit_test(failed_tensor_ends_its_round_once_and_alone),
		cmocka_unit_test(failed_job_ends_every_waiting_round_once),
		cmocka_unit_test(result_of_a_failed_job_is_given_back_unread),
		cmocka_unit_test(read_that_ends_after_the_job_failed_changes_nothing),
		cmocka_unit_test(freed_job_is_released_once_no_read_runs),
		cmocka_unit_test(freed_job_is_released_at_once_when_nothing_runs),
		cmocka_unit_test(device_partition_is_pushed_when_its_own_bytes_are_staged),
		cmocka_unit_test(device_round_is_done_when_its_sums_are_on_the_devices),
		cmocka_unit_test(device_inputs_are_summed_as_workers_are),
		cmocka_unit_test(result_does_not_overwrite_what_is_being_staged),
		cmocka_unit_test(staging_goes_on_over_a_new_placement),
		cmocka_unit_test(device_tensor_of_one_machine_needs_no_server),
		cmocka_unit_test(failed_job_stages_nothing_any_more),
		cmocka_unit_test(random_talk_keeps_the_invariants),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
