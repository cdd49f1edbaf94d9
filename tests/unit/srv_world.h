#ifndef BPS_TESTS_SRV_WORLD_H
#define BPS_TESTS_SRV_WORLD_H
/* A test world for the core of one data thread of a server (bps-server/core/core.h). The core has
 * one job. The test acts as the scheduler, which sends plans, and as the members, which send
 * messages over tests/unit/fake_xport.h. After each step the core's invariants are checked.
 * Everything runs in one thread, and the test sets the time. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bps-server/core/core.h"
#include "bps-server/core/job.h"
#include "common/data/crc32c.h"
#include "tests/invariants/invariants.h"
#include "tests/unit/fake_xport.h"

#define MEMBERS_MAX 12
#define SMALL       4u    /* number of elements: few enough for one message */
#define LARGE       8192u /* number of elements: too many for one message; 32 KiB of f32 */
#define BYTES_MAX   (32u << 10)
#define PARTS_MAX   20
#define SEGMENT     (128u << 10)
#define JOB         7
#define SERVER      3
#define INSTANCE    11
#define MS          UINT64_C(1000000)
#define GRACE_MS    20

/* A member and its two segments, which the server reads. `contrib` holds the member's
 * contributions, one array per partition. `result` holds a sum that the member donates. */
struct srv_test_member {
	struct fake_conn *conn;
	uint32_t workers;
	unsigned char contrib[PARTS_MAX][BYTES_MAX];
	unsigned char result[BYTES_MAX];
};

struct srv_world {
	struct srv_core *core;
	struct fake_xport x;
	struct srv_test_member m[MEMBERS_MAX];
	unsigned n_members;
	uint32_t n_elems, flags;
	uint16_t backup;
	const char *tensor;
	uint8_t dtype, mode, owner;
	uint32_t stale;
	uint64_t view, pgen;
	void *segments[FAKE_SEGMENTS];
	unsigned n_segments, n_fails;
	int fail_code;
	char fail_text[512];
	uint64_t now_ns;
};

static inline int make_segment(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct srv_world *w = ctx;

	*ret_mem = w->segments[w->n_segments++] = aligned_alloc(4096, bytes);
	assert_non_null(*ret_mem);
	return w->x.base.ops->seg_add(&w->x.base, *ret_mem, bytes, ret_segment);
}

static inline void job_failed(void *ctx, uint32_t job, int code, const char *text)
{
	struct srv_world *w = ctx;

	assert_int_equal(job, JOB);
	w->n_fails++;
	w->fail_code = code;
	snprintf(w->fail_text, sizeof(w->fail_text), "%s", text);
}

static inline void check(struct srv_world *w)
{
	struct err_text err = {""};

	if (srv_core_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static inline struct srv_stats stats(struct srv_world *w)
{
	struct srv_stats s;

	srv_core_stats(w->core, &s);
	return s;
}

/* ---- messages from the scheduler ---- */

static inline void tell_job(struct srv_world *w)
{
	struct ctl_job_member members[MEMBERS_MAX];
	struct ctl_rank ranks[MEMBERS_MAX * (MEMBERS_MAX + 1) / 2];
	struct ctl_job job = {.view = w->view,
		.job = JOB,
		.name = "j",
		.flags = w->flags,
		.members = members,
		.n_members = w->n_members,
		.backup = w->backup,
		.grace_ms = GRACE_MS};

	for (unsigned i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
		ranks[i].rank = i;
	for (unsigned i = 0; i < w->n_members; i++) {
		members[i] = (struct ctl_job_member){.agent = 100 + i,
			.host = "h",
			.ranks = ranks + job.size,
			.n_ranks = w->m[i].workers};
		job.size += w->m[i].workers;
	}
	assert_int_equal(srv_core_apply_job(w->core, &job), 0);
}

static inline void tell_plan(struct srv_world *w, uint32_t n_parts, uint32_t server, uint64_t pgen)
{
	struct ctl_tensor t = {.tensor = 0,
		.name = w->tensor,
		.shape = shape_from_dtype_and_count(w->dtype, (uint64_t)w->n_elems * n_parts),
		.part_elems = w->n_elems};
	struct ctl_run run = {.tensor = 0,
		.n = n_parts,
		.server = server,
		.instance = INSTANCE,
		.thread = 0,
		.pgen = pgen};
	struct ctl_plan plan = {
		.view = pgen, .job = JOB, .tensors = &t, .n_tensors = 1, .runs = &run, .n_runs = 1};

	t.shape.mode = w->mode;
	t.shape.owner = w->owner;
	t.shape.stale = w->stale;
	srv_core_apply_plan(w->core, &plan);
	w->pgen = pgen;
	check(w);
}

static inline void connect_member(struct srv_world *w, unsigned i)
{
	struct fake_conn *c = fake_accept(&w->x, 100 + i, 1000 + i);

	c->peer[1] = (struct fake_segment){w->m[i].contrib[0], sizeof(w->m[i].contrib)};
	c->peer[2] = (struct fake_segment){w->m[i].result, sizeof(w->m[i].result)};
	w->m[i].conn = c;
	check(w);
}

struct srv_shape {
	unsigned n_members;
	uint32_t n_elems, n_parts, flags;
	uint8_t dtype; /* 0: f32; else enum dtype + 1 */
	size_t sums, staging, window;
	uint16_t backup;
	const char *tensor; /* the tensor's name */
	uint8_t mode;       /* enum tensor_mode */
	uint8_t owner;      /* enum tensor_owner */
	uint32_t stale;
};

static inline struct srv_world *world_new(struct srv_shape s)
{
	struct srv_world *w = calloc(1, sizeof(*w));
	struct srv_config cfg = {.server_id = SERVER,
		.instance = INSTANCE,
		.sums_bytes = s.sums ? s.sums : 4u << 20,
		.staging_bytes = s.staging ? s.staging : 1u << 20,
		.segment_bytes = SEGMENT,
		.peer_window_bytes = s.window ? s.window : 1u << 20,
		.retry_ns = 100 * MS};
	struct srv_env env = {.ctx = w, .segment = make_segment, .fail = job_failed};

	assert_non_null(w);
	w->n_members = s.n_members;
	w->n_elems = s.n_elems;
	w->view = 1;
	w->flags = s.flags;
	w->backup = s.backup;
	w->tensor = s.tensor ? s.tensor : "t";
	w->dtype = s.dtype ? (uint8_t)(s.dtype - 1) : DTYPE_F32;
	w->mode = s.mode;
	w->owner = s.owner;
	w->stale = s.stale;
	assert_int_equal(srv_core_new(&cfg, &env, &w->core), 0);
	fake_init(&w->x, &srv_core_events, w->core);
	for (unsigned i = 0; i < s.n_members; i++)
		w->m[i].workers = i + 1;
	tell_job(w);
	for (unsigned i = 0; i < s.n_members; i++)
		connect_member(w, i);
	tell_plan(w, s.n_parts ? s.n_parts : 1, SERVER, 5);
	return w;
}

#define world(...) world_new((struct srv_shape){__VA_ARGS__})

/* Close the connections and end the job. Afterwards all memory must be free. */
static inline void world_free(struct srv_world *w)
{
	struct srv_stats s;

	check(w);
	for (unsigned i = 0; i < w->n_members; i++)
		if (w->m[i].conn)
			fake_down(w->m[i].conn, "end");
	check(w);
	srv_core_job_end(w->core, JOB);
	check(w);
	s = stats(w);
	assert_int_equal(s.sums_used, 0);
	assert_int_equal(s.staging_used, 0);
	assert_int_equal(s.parts, 0);
	assert_int_equal(s.retired, 0);
	assert_int_equal(w->x.n_loans, 0);
	fake_fini(&w->x);
	srv_core_free(w->core);
	for (unsigned i = 0; i < w->n_segments; i++)
		free(w->segments[i]);
	free(w);
}

/* ---- messages from the members ---- */

static inline uint32_t bytes_of(const struct srv_world *w)
{
	return (uint32_t)(w->n_elems * dtype_bytes(w->dtype));
}

/* Return element e of member i's input in round r. Inputs are whole numbers, so that sums are
 * exact. */
static inline float input(unsigned i, uint64_t r, size_t e)
{
	return (float)((i + 1) * 100 + r * 10 + e % 7);
}

static inline void fill(struct srv_world *w, unsigned i, unsigned part, uint64_t r)
{
	float *v = (float *)w->m[i].contrib[part];

	for (size_t e = 0; w->dtype == DTYPE_F32 && e < w->n_elems; e++)
		v[e] = input(i, r, e);
}

static inline struct wire_msg key_msg(
	struct srv_world *w, unsigned i, enum wire_type type, uint64_t r)
{
	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = w->pgen,
		.round = r,
		.job = JOB,
		.tensor = 0,
		.part = 0,
		.member = (uint16_t)i};
}

static inline struct wire_msg payload_msg(struct srv_world *w, unsigned i, enum wire_type type,
	uint64_t r, unsigned segment, unsigned part)
{
	struct wire_msg m = key_msg(w, i, type, r);
	const unsigned char *from = segment == 1 ? w->m[i].contrib[part] : w->m[i].result;

	m.part = part;
	m.len = bytes_of(w);
	m.crc = crc32c(0, from, m.len);
	if (m.len <= WIRE_INLINE_MAX) {
		m.flags = WIRE_INLINE;
		m.payload = from;
	} else {
		m.segment = (uint16_t)segment;
		m.offset = segment == 1 ? part * BYTES_MAX : 0;
	}
	return m;
}

/* Return the CRC of the sum of round r over all members. The inputs come from input(). */
static inline uint32_t sum_crc(struct srv_world *w, uint64_t r)
{
	float v[LARGE];

	for (size_t e = 0; e < w->n_elems; e++) {
		v[e] = 0;
		for (unsigned i = 0; i < w->n_members; i++)
			v[e] += input(i, r, e);
	}
	return crc32c(0, v, w->n_elems * sizeof(float));
}

static inline struct wire_msg contrib_msg(
	struct srv_world *w, unsigned i, uint64_t r, unsigned part)
{
	struct wire_msg m;

	fill(w, i, part, r);
	m = payload_msg(w, i, WIRE_CONTRIB, r, 1, part);
	m.contrib.workers = w->m[i].workers;
	m.contrib.crc_prev = r > 1 && w->dtype == DTYPE_F32 ? sum_crc(w, r - 1) : 0;
	return m;
}

static inline struct wire_msg donate_msg(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m;
	float *v = (float *)w->m[i].result;

	for (size_t e = 0; e < w->n_elems; e++) {
		v[e] = 0;
		for (unsigned k = 0; k < w->n_members; k++)
			v[e] += input(k, r, e);
	}
	m = payload_msg(w, i, WIRE_DONATE, r, 2, 0);
	m.result.n_members = (uint16_t)w->n_members;
	for (unsigned k = 0; k < w->n_members; k++) {
		m.result.workers += w->m[k].workers;
		member_set_add(&m.result.contributors, k);
	}
	return m;
}

static inline void say(struct srv_world *w, unsigned i, const struct wire_msg *m)
{
	fake_deliver(w->m[i].conn, m);
	check(w);
}

static inline void say_contrib(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = contrib_msg(w, i, r, 0);

	say(w, i, &m);
}

static inline void say_key(struct srv_world *w, unsigned i, enum wire_type type, uint64_t r)
{
	struct wire_msg m = key_msg(w, i, type, r);

	say(w, i, &m);
}

static inline void end_read(struct srv_world *w, unsigned i, unsigned k, int status)
{
	fake_end_read(w->m[i].conn, k, status);
	check(w);
}

static inline void end_reads(struct srv_world *w)
{
	for (unsigned i = 0; i < w->n_members; i++)
		while (w->m[i].conn && w->m[i].conn->n_reads)
			end_read(w, i, 0, 0);
}

static inline void work(struct srv_world *w)
{
	while (srv_core_sum_slice(w->core))
		check(w);
	check(w);
}

static inline void tick(struct srv_world *w, uint64_t ms)
{
	w->now_ns += ms * MS;
	srv_core_run_deadlines(w->core, w->now_ns);
	check(w);
}

static inline bool is_reading(const struct srv_world *w)
{
	for (unsigned i = 0; i < w->n_members; i++)
		if (w->m[i].conn && w->m[i].conn->n_reads)
			return true;
	return false;
}

/* Complete the reads and run the core, in turn, until no reads and no work are left. */
static inline void settle(struct srv_world *w)
{
	do {
		end_reads(w);
		work(w);
	} while (is_reading(w));
}

static inline void contribute_all(struct srv_world *w, uint64_t r)
{
	for (unsigned i = 0; i < w->n_members; i++)
		say_contrib(w, i, r);
	settle(w);
}

/* ---- messages from the server ---- */

static inline struct wire_msg expect_msg(
	struct srv_world *w, unsigned i, enum wire_type type, uint64_t r)
{
	const struct wire_msg *m = fake_take(w->m[i].conn);

	if (!m)
		fail_msg("member %u got no message, not %s", i, wire_type_name(type));
	if (m->type != type)
		fail_msg("member %u got %s, not %s", i, wire_type_name(m->type),
			wire_type_name(type));
	assert_int_equal(m->round, r);
	assert_int_equal(m->pgen, w->pgen);
	assert_int_equal(m->member, i);
	return *m;
}

static inline void expect_nothing(struct srv_world *w, unsigned i)
{
	const struct wire_msg *m = fake_take(w->m[i].conn);

	if (m)
		fail_msg("member %u got %s", i, wire_type_name(m->type));
}

static inline const void *bytes_at(struct srv_world *w, const struct wire_msg *m)
{
	return m->flags & WIRE_INLINE ? m->payload : fake_own(&w->x, m->segment, m->offset, m->len);
}

/* Expect that member i gets the exact sum of round r over all members. */
static inline struct wire_msg expect_sum(struct srv_world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);
	const float *v = bytes_at(w, &m);
	uint32_t workers = 0;

	assert_int_equal(m.len, bytes_of(w));
	assert_int_equal(m.crc, sum_crc(w, r));
	assert_int_equal(crc32c(0, v, m.len), m.crc);
	for (unsigned k = 0; k < w->n_members; k++) {
		workers += w->m[k].workers;
		assert_true(member_set_has(&m.result.contributors, k));
	}
	assert_int_equal(m.result.workers, workers);
	assert_int_equal(m.result.n_members, w->n_members);
	return m;
}

static inline void expect_closed(struct srv_world *w, unsigned i)
{
	assert_true(w->m[i].conn->is_closed);
	for (unsigned k = 0; k < w->n_members; k++)
		assert_true(k == i || !w->m[k].conn->is_closed);
	assert_int_equal(stats(w).protocol_errors, 1);
	w->m[i].conn = NULL;
}
#endif
