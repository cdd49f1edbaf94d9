#include "bps-server/core.h"
#include "bps-server/core_impl.h"

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

#define MEMBERS_MAX 12
#define SMALL       4u    /* elements: inline */
#define LARGE       8192u /* elements: offered, 32 KiB of f32 */
#define BYTES_MAX   (32u << 10)
#define PARTS_MAX   16
#define SEGMENT     (128u << 10)
#define JOB         7
#define SERVER      3
#define INSTANCE    11
#define MS          UINT64_C(1000000)
#define GRACE_MS    20

/* A member's memory that the server reads: contributions (by partition), and results that it has
 * (behind them). */
struct member {
	struct fake_conn *conn;
	uint32_t workers;
	unsigned char contrib[PARTS_MAX][BYTES_MAX];
	unsigned char result[BYTES_MAX];
};

struct world {
	struct srv_core *core;
	struct fake_xport x;
	struct member m[MEMBERS_MAX];
	unsigned n_members;
	uint32_t n_elems, flags;
	uint16_t backup;
	uint8_t dtype;
	uint64_t view, pgen;
	void *segments[FAKE_SEGMENTS];
	unsigned n_segments, n_fails;
	int fail_code;
	char fail_text[512];
	uint64_t now_ns;
};

static int make_segment(void *ctx, size_t bytes, void **ret_mem, uint16_t *ret_segment)
{
	struct world *w = ctx;

	*ret_mem = w->segments[w->n_segments++] = aligned_alloc(4096, bytes);
	assert_non_null(*ret_mem);
	return w->x.base.ops->seg_add(&w->x.base, *ret_mem, bytes, ret_segment);
}

static void job_failed(void *ctx, uint32_t job, int code, const char *text)
{
	struct world *w = ctx;

	assert_int_equal(job, JOB);
	w->n_fails++;
	w->fail_code = code;
	snprintf(w->fail_text, sizeof(w->fail_text), "%s", text);
}

static void check(struct world *w)
{
	struct err_text err = {""};

	if (srv_core_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static struct srv_stats stats(struct world *w)
{
	struct srv_stats s;

	srv_core_stats(w->core, &s);
	return s;
}

/* ---- the scheduler's words ---- */

static void tell_job(struct world *w)
{
	struct ctl_job_member members[MEMBERS_MAX];
	struct ctl_rank ranks[64] = {{0}};
	struct ctl_job job = {.view = w->view,
		.job = JOB,
		.name = "j",
		.flags = w->flags,
		.members = members,
		.n_members = w->n_members,
		.backup = w->backup,
		.grace_ms = GRACE_MS};

	for (unsigned i = 0; i < w->n_members; i++)
		members[i] = (struct ctl_job_member){
			.agent = 100 + i, .host = "h", .ranks = ranks, .n_ranks = w->m[i].workers};
	assert_int_equal(srv_core_job(w->core, &job), 0);
}

static void tell_plan(struct world *w, uint32_t n_parts, uint32_t server, uint64_t pgen)
{
	struct ctl_tensor t = {.tensor = 0,
		.name = "t",
		.dtype = w->dtype,
		.n_elems = (uint64_t)w->n_elems * n_parts,
		.part_elems = w->n_elems};
	struct ctl_run run = {.tensor = 0,
		.n = n_parts,
		.server = server,
		.instance = INSTANCE,
		.thread = 0,
		.pgen = pgen};
	struct ctl_plan plan = {
		.view = pgen, .job = JOB, .tensors = &t, .n_tensors = 1, .runs = &run, .n_runs = 1};

	srv_core_plan(w->core, &plan);
	w->pgen = pgen;
	check(w);
}

static void connect_member(struct world *w, unsigned i)
{
	struct fake_conn *c = fake_accept(&w->x, 100 + i, 1000 + i);

	c->peer[1] = (struct fake_segment){w->m[i].contrib[0], sizeof(w->m[i].contrib)};
	c->peer[2] = (struct fake_segment){w->m[i].result, sizeof(w->m[i].result)};
	w->m[i].conn = c;
	check(w);
}

struct shape {
	unsigned n_members;
	uint32_t n_elems, n_parts, flags;
	uint8_t dtype; /* enum dtype + 1, 0: f32 */
	size_t sums, staging, window;
	uint16_t backup;
};

static struct world *world_new(struct shape s)
{
	struct world *w = calloc(1, sizeof(*w));
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
	w->dtype = s.dtype ? (uint8_t)(s.dtype - 1) : DTYPE_F32;
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

#define world(...) world_new((struct shape){__VA_ARGS__})

/* Everything is given back when connections and the job are gone. */
static void world_free(struct world *w)
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
	assert_int_equal(s.limbo, 0);
	assert_int_equal(w->x.n_loans, 0);
	fake_fini(&w->x);
	srv_core_free(w->core);
	for (unsigned i = 0; i < w->n_segments; i++)
		free(w->segments[i]);
	free(w);
}

/* ---- the members' words ---- */

static uint32_t bytes_of(const struct world *w)
{
	return (uint32_t)(w->n_elems * dtype_bytes(w->dtype));
}

/* Whole numbers, so that sums are exact: element e of member i in round r. */
static float input(unsigned i, uint64_t r, size_t e)
{
	return (float)((i + 1) * 100 + r * 10 + e % 7);
}

static void fill(struct world *w, unsigned i, unsigned part, uint64_t r)
{
	float *v = (float *)w->m[i].contrib[part];

	for (size_t e = 0; w->dtype == DTYPE_F32 && e < w->n_elems; e++)
		v[e] = input(i, r, e);
}

static struct wire_msg key_msg(struct world *w, unsigned i, enum wire_type type, uint64_t r)
{
	return (struct wire_msg){.type = (uint8_t)type,
		.pgen = w->pgen,
		.round = r,
		.job = JOB,
		.tensor = 0,
		.part = 0,
		.member = (uint16_t)i};
}

static struct wire_msg payload_msg(struct world *w, unsigned i, enum wire_type type, uint64_t r,
	unsigned segment, unsigned part)
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

/* The crc of the sum of round r of inputs by fill, of all members. */
static uint32_t sum_crc(struct world *w, uint64_t r)
{
	float v[LARGE];

	for (size_t e = 0; e < w->n_elems; e++) {
		v[e] = 0;
		for (unsigned i = 0; i < w->n_members; i++)
			v[e] += input(i, r, e);
	}
	return crc32c(0, v, w->n_elems * sizeof(float));
}

static struct wire_msg contrib_msg(struct world *w, unsigned i, uint64_t r, unsigned part)
{
	struct wire_msg m;

	fill(w, i, part, r);
	m = payload_msg(w, i, WIRE_CONTRIB, r, 1, part);
	m.contrib.workers = w->m[i].workers;
	m.contrib.crc_prev = r > 1 && w->dtype == DTYPE_F32 ? sum_crc(w, r - 1) : 0;
	return m;
}

static struct wire_msg donate_msg(struct world *w, unsigned i, uint64_t r)
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

static void say(struct world *w, unsigned i, const struct wire_msg *m)
{
	fake_deliver(w->m[i].conn, m);
	check(w);
}

static void say_contrib(struct world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = contrib_msg(w, i, r, 0);

	say(w, i, &m);
}

static void say_key(struct world *w, unsigned i, enum wire_type type, uint64_t r)
{
	struct wire_msg m = key_msg(w, i, type, r);

	say(w, i, &m);
}

static void end_read(struct world *w, unsigned i, unsigned k, int status)
{
	fake_end_read(w->m[i].conn, k, status);
	check(w);
}

static void end_reads(struct world *w)
{
	for (unsigned i = 0; i < w->n_members; i++)
		while (w->m[i].conn && w->m[i].conn->n_reads)
			end_read(w, i, 0, 0);
}

static void work(struct world *w)
{
	while (srv_core_work(w->core))
		check(w);
	check(w);
}

static void tick(struct world *w, uint64_t ms)
{
	w->now_ns += ms * MS;
	srv_core_tick(w->core, w->now_ns);
	check(w);
}

static bool is_reading(const struct world *w)
{
	for (unsigned i = 0; i < w->n_members; i++)
		if (w->m[i].conn && w->m[i].conn->n_reads)
			return true;
	return false;
}

/* All do all that is under way. */
static void settle(struct world *w)
{
	do {
		end_reads(w);
		work(w);
	} while (is_reading(w));
}

static void contribute_all(struct world *w, uint64_t r)
{
	for (unsigned i = 0; i < w->n_members; i++)
		say_contrib(w, i, r);
	settle(w);
}

/* ---- the server's words ---- */

static struct wire_msg expect_msg(struct world *w, unsigned i, enum wire_type type, uint64_t r)
{
	const struct wire_msg *m = fake_take(w->m[i].conn);

	if (!m)
		fail_msg("member %u got nothing, not %s", i, wire_type_name(type));
	if (m->type != type)
		fail_msg("member %u got %s, not %s", i, wire_type_name(m->type),
			wire_type_name(type));
	assert_int_equal(m->round, r);
	assert_int_equal(m->pgen, w->pgen);
	assert_int_equal(m->member, i);
	return *m;
}

static void expect_nothing(struct world *w, unsigned i)
{
	const struct wire_msg *m = fake_take(w->m[i].conn);

	if (m)
		fail_msg("member %u got %s", i, wire_type_name(m->type));
}

static const void *bytes_at(struct world *w, const struct wire_msg *m)
{
	return m->flags & WIRE_INLINE ? m->payload : fake_own(&w->x, m->segment, m->offset, m->len);
}

/* The exact sum of round r of all members. */
static struct wire_msg expect_sum(struct world *w, unsigned i, uint64_t r)
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

static void expect_closed(struct world *w, unsigned i)
{
	assert_true(w->m[i].conn->is_closed);
	for (unsigned k = 0; k < w->n_members; k++)
		assert_true(k == i || !w->m[k].conn->is_closed);
	assert_int_equal(stats(w).protocol_errors, 1);
	w->m[i].conn = NULL;
}

/* ---- rounds ---- */

static void small_round_completes_when_all_have_contributed(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	work(w);
	for (unsigned i = 0; i < 3; i++)
		expect_nothing(w, i);
	say_contrib(w, 2, 1);
	work(w);
	for (unsigned i = 0; i < 3; i++) {
		struct wire_msg m = expect_sum(w, i, 1);

		assert_true(m.flags & WIRE_INLINE);
	}
	assert_int_equal(stats(w).rounds, 1);
	assert_int_equal(stats(w).contributions, 3);
	world_free(w);
}

static void large_round_is_read_and_its_sum_offered(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	for (uint64_t r = 1; r <= 5; r++) {
		contribute_all(w, r);
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = expect_sum(w, i, r);

			assert_false(m.flags & WIRE_INLINE);
		}
	}
	assert_int_equal(stats(w).limbo, 0);
	world_free(w);
}

static void duplicate_before_the_sum_is_ignored_and_after_it_answered_again(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 0, 1);
	expect_nothing(w, 0);
	say_contrib(w, 1, 1);
	say_contrib(w, 0, 1); /* SUMMING */
	work(w);
	expect_sum(w, 0, 1);
	expect_nothing(w, 0);
	say_contrib(w, 0, 1);
	expect_sum(w, 0, 1);
	assert_int_equal(stats(w).duplicates, 3);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void second_offer_while_the_first_is_read_is_ignored(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 0, 1);
	assert_int_equal(w->m[0].conn->n_reads, 1);
	end_read(w, 0, 0, 0);
	say_contrib(w, 0, 1);
	assert_int_equal(w->m[0].conn->n_reads, 0);
	say_contrib(w, 1, 1);
	settle(w);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void message_of_an_older_pgen_is_dropped_and_counted(void **state)
{
	static const enum wire_type types[] = {
		WIRE_CONTRIB, WIRE_HAVE, WIRE_DONATE, WIRE_GOT, WIRE_BAD_CRC};
	struct world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	for (unsigned k = 0; k < 5; k++) {
		struct wire_msg m = types[k] == WIRE_CONTRIB  ? contrib_msg(w, 0, 1, 0)
				    : types[k] == WIRE_DONATE ? donate_msg(w, 0, 1)
							      : key_msg(w, 0, types[k], 1);

		m.pgen--;
		say(w, 0, &m);
		expect_nothing(w, 0);
		assert_int_equal(stats(w).fenced_old, k + 1);
	}
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void message_of_a_newer_pgen_or_unknown_partition_is_told_to_come_again(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);
	const struct wire_msg *a;

	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		m = k == 0 ? contrib_msg(w, 0, 1, 0) : key_msg(w, 0, WIRE_HAVE, 1);
		if (k < 2)
			m.pgen++;
		if (k == 2)
			m.part = 99;
		if (k == 3)
			m.job = 99;
		say(w, 0, &m);
		a = fake_take(w->m[0].conn);
		assert_non_null(a);
		assert_int_equal(a->type, WIRE_AGAIN);
		assert_int_equal(a->pgen, m.pgen);
		assert_int_equal(a->job, m.job);
		assert_int_equal(a->part, m.part);
		assert_int_equal(a->round, 1);
	}
	m = key_msg(w, 0, WIRE_GOT, 1);
	m.pgen++;
	say(w, 0, &m);
	expect_nothing(w, 0);
	assert_int_equal(stats(w).fenced_new, 5);
	world_free(w);
}

static void contribution_says_that_the_round_before_is_here(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	contribute_all(w, 1);
	assert_int_equal(w->core->jobs.tqh_first->tensors[0].parts[0]->slots[1].n_offered, 2);
	say_contrib(w, 0, 2);
	assert_int_equal(w->core->jobs.tqh_first->tensors[0].parts[0]->slots[1].n_offered, 1);
	say_contrib(w, 1, 2);
	assert_int_equal(w->core->jobs.tqh_first->tensors[0].parts[0]->slots[1].n_offered, 0);
	world_free(w);
}

static void round_ahead_of_the_others_closes_the_peer(void **state)
{
	static const struct {
		uint64_t before, jump;
		enum wire_type type;
	} cases[] = {{0, 3, WIRE_CONTRIB}, {0, 3, WIRE_HAVE}, {1, 4, WIRE_CONTRIB},
		{1, 5, WIRE_HAVE}, {2, 5, WIRE_CONTRIB}, {2, 6, WIRE_HAVE}};

	(void)state;
	for (unsigned k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		struct world *w = world(.n_members = 3, .n_elems = SMALL);

		for (uint64_t r = 1; r <= cases[k].before; r++)
			contribute_all(w, r);
		say_contrib(w, 1, cases[k].before + 1); /* under way */
		if (cases[k].type == WIRE_CONTRIB)
			say_contrib(w, 0, cases[k].jump);
		else
			say_key(w, 0, WIRE_HAVE, cases[k].jump);
		expect_closed(w, 0);
		world_free(w);
	}
}

static void nobody_has_a_sum_that_is_being_made(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 4; k++) {
		struct world *w = world(.n_members = 2, .n_elems = SMALL);

		say_contrib(w, 0, 1);
		if (k < 2)
			say_contrib(w, 1, 1); /* SUMMING */
		else
			say_key(w, 1, WIRE_HAVE, 1); /* DONATING */
		if (k % 2)
			say_contrib(w, 0, 2);
		else
			say_key(w, 0, WIRE_HAVE, 1);
		expect_closed(w, 0);
		world_free(w);
	}
}

static void slot_is_empty_again_for_a_new_pgen(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	say_contrib(w, 1, 1);
	work(w);
	expect_nothing(w, 1);
	say_contrib(w, 0, 1);
	work(w);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void plan_told_twice_changes_nothing(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	say_contrib(w, 0, 1);
	tell_job(w);
	tell_plan(w, 1, SERVER, 5);
	tell_plan(w, 1, SERVER, 4); /* older: never */
	w->pgen = 5;
	say_contrib(w, 1, 1);
	work(w);
	expect_sum(w, 0, 1);
	assert_int_equal(stats(w).parts, 1);
	world_free(w);
}

static void partition_moves_away_and_back(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	tell_plan(w, 1, SERVER + 1, 6);
	assert_int_equal(stats(w).parts, 0);
	end_read(w, 0, 0, 0); /* of the old time: only given back */
	assert_int_equal(stats(w).staging_used, 0);
	say_contrib(w, 0, 1);
	expect_msg(w, 0, WIRE_AGAIN, 1);
	tell_plan(w, 1, SERVER, 7);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void another_instance_of_this_server_is_another_server(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);
	struct ctl_run run = {.n = 1, .server = SERVER, .instance = INSTANCE + 1, .pgen = 9};
	struct ctl_plan plan = {.job = JOB, .runs = &run, .n_runs = 1};

	(void)state;
	srv_core_plan(w->core, &plan);
	assert_int_equal(stats(w).parts, 0);
	world_free(w);
}

static void plan_that_does_not_fit_fails_the_job(void **state)
{
	static const struct ctl_run bad[] = {
		{.tensor = 0, .first = 0, .n = 2, .server = SERVER, .pgen = 9},
		{.tensor = 0, .first = 1, .n = 1, .server = SERVER, .pgen = 9},
		{.tensor = 4096, .first = 0, .n = 1, .server = SERVER, .pgen = 9},
	};

	(void)state;
	for (unsigned k = 0; k < 3; k++) {
		struct world *w = world(.n_members = 2, .n_elems = SMALL);
		struct ctl_run run = bad[k];
		struct ctl_plan plan = {.job = JOB, .runs = &run, .n_runs = 1};

		srv_core_plan(w->core, &plan);
		assert_int_equal(w->fail_code, BPS_EPROTO);
		world_free(w);
	}
}

static void job_that_needs_too_much_memory_fails_with_quota(void **state)
{
	struct world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .sums = 2 * SEGMENT);

	(void)state;
	assert_int_equal(w->n_fails, 1);
	assert_int_equal(w->fail_code, BPS_EQUOTA);
	assert_non_null(strstr(w->fail_text, "memory for sums"));
	world_free(w);
}

static void failure_is_told_again_with_the_job(void **state)
{
	struct world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .sums = 2 * SEGMENT);

	(void)state;
	w->fail_code = 0;
	w->fail_text[0] = '\0';
	srv_core_resync_begin(w->core);
	tell_job(w);
	assert_int_equal(w->n_fails, 2);
	assert_int_equal(w->fail_code, BPS_EQUOTA);
	assert_non_null(strstr(w->fail_text, "memory for sums"));
	world_free(w);
}

/* After a scheduler lost its state: nothing of the former job of that number may be left, be it of
 * the same size. */
static void job_that_gets_a_number_again_starts_anew(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m;
	int32_t sum[SMALL];

	(void)state;
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	srv_core_resync_begin(w->core);
	w->view = 9;
	w->dtype = DTYPE_I32;
	w->m[0].workers = 5;
	tell_job(w);
	tell_plan(w, 1, SERVER, 10);
	srv_core_resync_end(w->core);
	for (unsigned i = 0; i < 2; i++) {
		memcpy(w->m[i].contrib[0], (int32_t[SMALL]){1, 2, 3 + (int32_t)i, INT32_MAX},
			sizeof(sum));
		m = contrib_msg(w, i, 1, 0);
		say(w, i, &m);
	}
	work(w);
	for (unsigned i = 0; i < 2; i++) {
		m = expect_msg(w, i, WIRE_RESULT, 1);
		memcpy(sum, bytes_at(w, &m), sizeof(sum));
		assert_int_equal(m.result.workers, 7);
		assert_int_equal(sum[0], 2);
		assert_int_equal(sum[2], 7);
		assert_int_equal(sum[3], -2);
	}
	world_free(w);
}

static void job_end_waits_for_running_reads_only_with_their_memory(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	srv_core_job_end(w->core, JOB);
	check(w);
	assert_true(stats(w).staging_used > 0);
	end_read(w, 0, 0, 0);
	assert_int_equal(stats(w).staging_used, 0);
	world_free(w);
}

/* ---- B1: reads ---- */

static void read_cut_by_a_lost_connection_leaves_no_trace(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	fake_down(w->m[0].conn, "cut");
	check(w);
	say_contrib(w, 1, 1);
	settle(w);
	expect_nothing(w, 1);
	connect_member(w, 0);
	say_contrib(w, 0, 1);
	settle(w);
	expect_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void contribution_survives_its_connection_once_it_is_read(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	end_read(w, 0, 0, 0);
	fake_down(w->m[0].conn, "cut");
	connect_member(w, 0);
	say_contrib(w, 1, 1);
	settle(w);
	expect_sum(w, 1, 1);
	expect_nothing(w, 0);
	say_contrib(w, 0, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void newer_connection_of_an_agent_replaces_the_older(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct fake_conn *old = w->m[0].conn;

	(void)state;
	say_contrib(w, 0, 1);
	connect_member(w, 0);
	assert_true(old->is_closed);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void connection_of_an_agent_that_is_gone_is_closed(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	srv_core_agent_gone(w->core, w->m[0].conn->base.peer_id);
	assert_true(w->m[0].conn->is_closed);
	assert_false(w->m[1].conn->is_closed);
	connect_member(w, 0); /* it was a mistake */
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void read_of_an_older_pgen_is_thrown_away(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	end_read(w, 0, 0, 0);
	assert_int_equal(stats(w).contributions, 0);
	assert_int_equal(stats(w).staging_used, 0);
	contribute_all(w, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void failed_read_waits_for_the_next_offer(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	say_contrib(w, 0, 1);
	end_read(w, 0, 0, -EIO);
	expect_nothing(w, 0);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void offer_from_no_segment_is_forgotten(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	m.segment = 50;
	say(w, 0, &m);
	m.segment = 1;
	m.offset = sizeof(w->m[0].contrib) - 1;
	say(w, 0, &m);
	assert_int_equal(w->m[0].conn->n_reads, 0);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

static void damaged_contribution_is_refused_with_its_crc(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct world *w = world(.n_members = 2, .n_elems = k ? LARGE : SMALL);
		struct wire_msg m = contrib_msg(w, 0, 1, 0), r;

		m.crc ^= 0x10;
		say(w, 0, &m);
		end_reads(w);
		r = expect_msg(w, 0, WIRE_BAD_CRC, 1);
		assert_int_equal(r.crc, m.crc);
		assert_int_equal(stats(w).contributions, 0);
		assert_int_equal(stats(w).crc_errors, 1);
		contribute_all(w, 1);
		expect_sum(w, 0, 1);
		world_free(w);
	}
}

/* ---- B3: offered sums ---- */

static void offered_sum_stays_unchanged_over_a_new_pgen(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg offer;

	(void)state;
	contribute_all(w, 1);
	offer = expect_sum(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(stats(w).limbo, 1);
	for (unsigned i = 0; i < 2; i++) { /* the same round of other bytes */
		struct wire_msg m;

		memset(w->m[i].contrib[0], 0x40, BYTES_MAX);
		m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);
		m.contrib.workers = w->m[i].workers;
		say(w, i, &m);
	}
	settle(w);
	assert_int_equal(stats(w).rounds, 2);
	assert_int_equal(crc32c(0, bytes_at(w, &offer), offer.len), offer.crc);
	world_free(w);
}

static uint32_t limbo_after(enum wire_type type, uint64_t r, bool is_old_pgen, bool is_down)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m;
	uint32_t n;

	contribute_all(w, 1);
	say_key(w, 1, WIRE_GOT, 1);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(stats(w).limbo, 1);
	m = type == WIRE_CONTRIB ? contrib_msg(w, 0, r, 0) : key_msg(w, 0, type, r);
	m.pgen -= is_old_pgen;
	if (is_down)
		fake_down(w->m[0].conn, "cut");
	else
		say(w, 0, &m);
	check(w);
	n = stats(w).limbo;
	world_free(w);
	return n;
}

static void offered_sum_is_kept_until_its_reader_has_it_or_is_gone(void **state)
{
	(void)state;
	assert_int_equal(limbo_after(WIRE_GOT, 1, true, false), 0);
	assert_int_equal(limbo_after(WIRE_GOT, 1, false, false), 1);
	assert_int_equal(limbo_after(WIRE_GOT, 2, true, false), 1);
	assert_int_equal(limbo_after(WIRE_HAVE, 1, false, false), 0);
	assert_int_equal(limbo_after(WIRE_HAVE, 2, false, false), 0);
	assert_int_equal(limbo_after(WIRE_CONTRIB, 1, false, false), 1);
	assert_int_equal(limbo_after(WIRE_CONTRIB, 2, false, false), 0);
	assert_int_equal(limbo_after(WIRE_CONTRIB, 2, true, false), 0);
	assert_int_equal(limbo_after(WIRE_GOT, 1, true, true), 0);
}

static void offered_sums_outlive_their_job(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg offer;

	(void)state;
	contribute_all(w, 1);
	offer = expect_sum(w, 0, 1);
	srv_core_job_end(w->core, JOB);
	check(w);
	assert_int_equal(stats(w).limbo, 1);
	assert_int_equal(crc32c(0, bytes_at(w, &offer), offer.len), offer.crc);
	say_key(w, 0, WIRE_GOT, 1);
	say_key(w, 1, WIRE_GOT, 1);
	assert_int_equal(stats(w).limbo, 0);
	assert_int_equal(stats(w).sums_used, 0);
	world_free(w);
}

static void sums_that_are_read_for_ever_end_the_job_when_memory_is_out(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .sums = SEGMENT);

	(void)state;
	for (uint64_t pgen = 6; pgen < 12 && !w->n_fails; pgen++) {
		contribute_all(w, 1);
		tell_plan(w, 1, SERVER, pgen);
	}
	assert_int_equal(w->fail_code, BPS_EQUOTA);
	world_free(w);
}

/* ---- B5 and windows ---- */

static void reads_go_by_priority(void **state)
{
	static const uint16_t priorities[] = {5, 1, 9, 5, 0, 60000};
	static const unsigned want[] = {0, 5, 2, 3, 1, 4};
	struct world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 6, .window = BYTES_MAX);

	(void)state;
	for (unsigned p = 0; p < 6; p++) {
		struct wire_msg m = contrib_msg(w, 0, 1, p);

		m.priority = priorities[p];
		say(w, 0, &m);
		assert_int_equal(w->m[0].conn->n_reads, 1);
	}
	for (unsigned k = 0; k < 6; k++) {
		const struct xport_read *r = fake_read_at(w->m[0].conn, 0);

		assert_non_null(r);
		assert_int_equal(r->offset / BYTES_MAX, want[k]);
		end_read(w, 0, 0, 0);
	}
	world_free(w);
}

static void reads_of_one_peer_stay_within_its_window(void **state)
{
	struct world *w =
		world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .window = 3 * BYTES_MAX + 1);

	(void)state;
	for (unsigned p = 0; p < 8; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
			assert_true(w->m[i].conn->n_reads <= 3);
		}
	assert_int_equal(w->m[0].conn->n_reads, 3);
	assert_int_equal(w->m[1].conn->n_reads, 3);
	settle(w);
	assert_int_equal(stats(w).rounds, 8);
	world_free(w);
}

static void transport_that_takes_few_reads_is_asked_again(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 8);

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		w->m[i].conn->read_limit = 2;
	for (unsigned p = 0; p < 8; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	settle(w);
	assert_int_equal(stats(w).rounds, 8);
	world_free(w);
}

static void answers_wait_for_credit(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 3);

	(void)state;
	w->m[0].conn->credit = 0;
	for (unsigned p = 0; p < 3; p++)
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	settle(w);
	assert_int_equal(w->m[0].conn->n_sent, 0);
	assert_int_equal(w->m[1].conn->n_sent, 3);
	fake_grant(w->m[0].conn, 2);
	check(w);
	assert_int_equal(w->m[0].conn->n_sent, 2);
	fake_grant(w->m[0].conn, 2);
	check(w);
	assert_int_equal(w->m[0].conn->n_sent, 3);
	world_free(w);
}

/* ---- staging ---- */

/* Members offer all partitions in random order, reads end in random order, AGAIN is answered by
 * the same offer; no member sends anything a second time of its own accord. All rounds must
 * complete. */
static void press(struct shape s, unsigned seed)
{
	struct world *w = world_new(s);
	bool has_offered[MEMBERS_MAX][PARTS_MAX] = {{false}};
	unsigned todo = s.n_members * s.n_parts, idle = 0;

	srand(seed);
	while (stats(w).rounds < s.n_parts && idle < 2000) {
		unsigned i = (unsigned)rand() % s.n_members, p = (unsigned)rand() % s.n_parts;
		struct fake_conn *c = w->m[i].conn;
		const struct wire_msg *m;

		idle++;
		if (todo && rand() % 2 && !has_offered[i][p]) {
			struct wire_msg offer = contrib_msg(w, i, 1, p);

			has_offered[i][p] = true;
			todo--;
			idle = 0;
			say(w, i, &offer);
		} else if (c->n_reads) {
			end_read(w, i, (unsigned)rand() % (unsigned)c->n_reads, 0);
			idle = 0;
		} else if (rand() % 4 == 0 && srv_core_work(w->core)) {
			idle = 0;
		}
		check(w);
		while ((m = fake_take(c)))
			if (m->type == WIRE_AGAIN) {
				has_offered[i][m->part] = false;
				todo++;
			}
	}
	if (stats(w).rounds < s.n_parts)
		fail_msg("seed %u: %u of %u rounds, then nothing", seed, (unsigned)stats(w).rounds,
			s.n_parts);
	world_free(w);
}

static void little_staging_is_enough_in_any_order(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 15; seed++)
		for (unsigned k = 0; k < 4; k++)
			press((struct shape){.n_members = 2 + seed % 4,
				      .n_elems = k & 1 ? LARGE : SMALL * 512,
				      .n_parts = PARTS_MAX,
				      .flags = k & 2 ? JOB_DETERMINISTIC : 0,
				      .staging = SEGMENT},
				seed);
}

/* Small partitions' contributions that came too early lie scattered over the staging, so that a
 * large one finds no room in one piece; those that the small ones wait for are queued behind it. */
static void scattered_staging_does_not_stop_ordered_sums(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 60; seed++) {
		struct world *w = world(.n_members = 3, .n_elems = 5000, .n_parts = PARTS_MAX,
			.flags = JOB_DETERMINISTIC, .staging = 2 * SEGMENT);
		struct ctl_tensor t = {.tensor = 1,
			.name = "u",
			.dtype = DTYPE_F32,
			.n_elems = 4 << 14,
			.part_elems = 1 << 14};
		struct ctl_run run = {
			.tensor = 1, .n = 4, .server = SERVER, .instance = INSTANCE, .pgen = 5};
		struct ctl_plan plan = {
			.job = JOB, .tensors = &t, .n_tensors = 1, .runs = &run, .n_runs = 1};
		bool has_offered[3][PARTS_MAX + 4] = {{false}};
		unsigned idle = 0;

		srv_core_plan(w->core, &plan);
		srand(seed);
		while (stats(w).rounds < PARTS_MAX + 4 && idle < 3000) {
			unsigned i = (unsigned)rand() % 3, p = (unsigned)rand() % (PARTS_MAX + 4);
			struct wire_msg m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);

			idle++;
			if (rand() % 2 && !has_offered[i][p]) {
				has_offered[i][p] = true;
				m.part = p % PARTS_MAX;
				m.tensor = p / PARTS_MAX;
				m.len = m.tensor ? 4 << 14 : m.len;
				m.crc = crc32c(0, w->m[i].contrib[0], m.len);
				m.priority = (uint16_t)((unsigned)rand() % 4 + 2 * m.tensor);
				m.contrib.workers = w->m[i].workers;
				say(w, i, &m);
				idle = 0;
			} else if (w->m[i].conn->n_reads) {
				end_read(w, i, (unsigned)rand() % (unsigned)w->m[i].conn->n_reads,
					0);
				idle = 0;
			} else if (rand() % 4 == 0) {
				srv_core_work(w->core);
			}
			check(w);
		}
		if (stats(w).rounds < PARTS_MAX + 4)
			fail_msg("seed %u: %u rounds, then nothing", seed,
				(unsigned)stats(w).rounds);
		world_free(w);
	}
}

static void reads_that_end_after_staging_ran_out_are_added_up(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .staging = SEGMENT);

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		for (unsigned p = 0; p < 8; p++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	assert_int_equal(w->m[0].conn->n_reads, 4); /* all of the staging */
	assert_int_equal(w->m[1].conn->n_reads, 0);
	settle(w);
	assert_int_equal(stats(w).rounds, 8);
	world_free(w);
}

static void ordered_contribution_that_was_early_goes_on_when_it_is_next(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 3,
		.flags = JOB_DETERMINISTIC, .staging = SEGMENT);

	(void)state;
	for (unsigned i = 0; i < 2; i++)
		for (unsigned p = 0; p < 3; p++) {
			struct wire_msg m = contrib_msg(w, i, 1, p);

			say(w, i, &m);
		}
	assert_int_equal(w->m[0].conn->n_reads, 3);
	assert_int_equal(w->m[1].conn->n_reads, 0); /* early, and more than half is used */
	for (unsigned p = 0; p < 3; p++)
		end_read(w, 0, 0, 0);
	assert_int_equal(w->m[1].conn->n_reads, 1);
	settle(w);
	assert_int_equal(stats(w).rounds, 3);
	world_free(w);
}

/* ---- S4: donation ---- */

static void sum_that_somebody_has_is_donated_to_the_rest(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct world *w = world(.n_members = 3, .n_elems = k ? LARGE : SMALL);
		struct wire_msg d;

		say_contrib(w, 0, 4); /* C(4), H(3) */
		say_key(w, 1, WIRE_HAVE, 4);
		expect_msg(w, 1, WIRE_HAVE_OK, 4);
		expect_nothing(w, 1);
		say_contrib(w, 2, 4);
		expect_msg(w, 1, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, 1, 4);
		say(w, 1, &d);
		settle(w);
		expect_sum(w, 0, 4);
		expect_sum(w, 2, 4);
		expect_nothing(w, 1);
		assert_int_equal(stats(w).donations, 1);
		assert_int_equal(stats(w).staging_used, 0);
		world_free(w);
	}
}

static void nothing_is_asked_for_when_all_have_the_sum(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		say_key(w, i, WIRE_HAVE, 4);
		expect_msg(w, i, WIRE_HAVE_OK, 4);
		expect_nothing(w, i);
	}
	contribute_all(w, 5);
	contribute_all(w, 6); /* takes the slot of round 4 */
	expect_sum(w, 0, 5);
	expect_sum(w, 0, 6);
	world_free(w);
}

static void have_that_comes_late_throws_the_sum_away(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	say_contrib(w, 0, 4);
	end_read(w, 0, 0, 0);
	say_contrib(w, 1, 4); /* its read runs on in vain */
	say_contrib(w, 2, 5); /* implies H(4) */
	assert_int_equal(w->m[1].conn->n_reads, 1);
	expect_msg(w, 2, WIRE_DONATE_REQ, 4);
	end_read(w, 1, 0, 0);
	d = donate_msg(w, 2, 4);
	say(w, 2, &d);
	settle(w);
	expect_sum(w, 0, 4);
	expect_sum(w, 1, 4);
	assert_int_equal(stats(w).contributions, 2); /* rounds 4 of member 0 and 5 of member 2 */
	world_free(w);
}

static void next_donor_is_asked_when_one_is_lost(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 3; k++) { /* before its answer; while it is read; by silence */
		struct world *w = world(.n_members = 3, .n_elems = LARGE);
		unsigned first, second;
		struct wire_msg d;

		say_key(w, 0, WIRE_HAVE, 4);
		say_key(w, 1, WIRE_HAVE, 4);
		say_contrib(w, 2, 4);
		expect_msg(w, 0, WIRE_HAVE_OK, 4);
		expect_msg(w, 1, WIRE_HAVE_OK, 4);
		first = w->m[0].conn->n_sent ? 0 : 1;
		second = 1 - first;
		expect_msg(w, first, WIRE_DONATE_REQ, 4);
		if (k == 1) {
			d = donate_msg(w, first, 4);
			say(w, first, &d);
			assert_int_equal(w->m[first].conn->n_reads, 1);
		}
		if (k == 2) {
			tick(w, 99);
			expect_nothing(w, second);
			tick(w, 1);
		} else {
			fake_down(w->m[first].conn, "cut");
			w->m[first].conn = NULL;
			check(w);
		}
		expect_msg(w, second, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, second, 4);
		say(w, second, &d);
		settle(w);
		expect_sum(w, 2, 4);
		world_free(w);
	}
}

static void idle_donor_is_asked_again_on_its_next_connection(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	say_key(w, 0, WIRE_HAVE, 4);
	fake_down(w->m[0].conn, "cut");
	say_contrib(w, 1, 4);
	connect_member(w, 0); /* HAVE was heard: it says nothing */
	tick(w, 100);
	expect_msg(w, 0, WIRE_DONATE_REQ, 4);
	d = donate_msg(w, 0, 4);
	say(w, 0, &d);
	settle(w);
	expect_sum(w, 1, 4);
	world_free(w);
}

static void damaged_donation_is_asked_for_again(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct world *w = world(.n_members = 2, .n_elems = k ? LARGE : SMALL);
		struct wire_msg d;

		say_key(w, 0, WIRE_HAVE, 4);
		expect_msg(w, 0, WIRE_HAVE_OK, 4);
		say_contrib(w, 1, 4);
		expect_msg(w, 0, WIRE_DONATE_REQ, 4);
		d = donate_msg(w, 0, 4);
		d.crc ^= 1;
		say(w, 0, &d);
		end_reads(w);
		expect_nothing(w, 1);
		tick(w, 100);
		expect_msg(w, 0, WIRE_DONATE_REQ, 4);
		d.crc ^= 1;
		say(w, 0, &d);
		settle(w);
		expect_sum(w, 1, 4);
		assert_int_equal(stats(w).crc_errors, 1);
		world_free(w);
	}
}

static void donation_waits_for_staging(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .n_parts = 8, .staging = SEGMENT);
	struct wire_msg m;

	(void)state;
	for (unsigned p = 1; p < 8; p++) {
		m = contrib_msg(w, 0, 1, p);
		say(w, 0, &m);
	}
	assert_int_equal(w->m[0].conn->n_reads, 4);
	say_key(w, 0, WIRE_HAVE, 4);
	say_contrib(w, 1, 4);
	m = donate_msg(w, 0, 4);
	say(w, 0, &m);
	assert_int_equal(w->m[0].conn->n_reads, 4);
	settle(w);
	while (w->m[1].conn->n_sent > 1)
		fake_take(w->m[1].conn);
	expect_sum(w, 1, 4);
	world_free(w);
}

static void donation_that_nobody_asked_for_is_dropped(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg d = donate_msg(w, 0, 1);

	(void)state;
	say(w, 0, &d);
	say_contrib(w, 1, 1);
	say(w, 0, &d);
	say_contrib(w, 0, 1);
	work(w);
	expect_sum(w, 1, 1);
	say(w, 0, &d);
	assert_int_equal(stats(w).duplicates, 3);
	world_free(w);
}

static void contribution_to_a_donated_round_gets_the_donation(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg d;

	(void)state;
	say_key(w, 0, WIRE_HAVE, 4);
	say_contrib(w, 1, 4);
	assert_int_equal(w->m[1].conn->n_reads, 0); /* the bytes are not needed */
	d = donate_msg(w, 0, 4);
	say(w, 0, &d);
	settle(w);
	expect_sum(w, 1, 4);
	say_contrib(w, 1, 4);
	expect_sum(w, 1, 4);
	world_free(w);
}

/* ---- what ends a job, and what closes a peer ---- */

static void different_results_of_the_round_before_are_found(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 2; k++) {
		struct world *w = world(.n_members = 2, .n_elems = SMALL);
		struct wire_msg m;

		if (k == 0)
			contribute_all(w, 1); /* else nobody knows the sum, only that they differ */
		say_contrib(w, 0, 2);
		assert_int_equal(w->n_fails, 0);
		m = contrib_msg(w, 1, 2, 0);
		m.contrib.crc_prev ^= 1;
		say(w, 1, &m);
		assert_int_equal(w->n_fails, 1);
		assert_int_equal(w->fail_code, BPS_EDIVERGED);
		assert_non_null(strstr(w->fail_text, "member 1 (agent 101, host h)"));
		world_free(w);
	}
}

/* ---- peers on the same host ---- */

static void bring_near(struct world *w, unsigned i)
{
	w->m[i].conn->base.is_same_host = true;
}

/* Within one host nobody takes a crc. */
static void say_near(struct world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = contrib_msg(w, i, r, 0);

	m.crc = m.contrib.crc_prev = 0;
	say(w, i, &m);
}

static void expect_near_sum(struct world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);

	assert_int_equal(crc32c(0, bytes_at(w, &m), m.len), sum_crc(w, r));
}

static void offer_of_a_peer_on_this_host_is_summed_where_it_lies(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = LARGE);

	(void)state;
	bring_near(w, 0);
	bring_near(w, 2);
	for (uint64_t r = 1; r <= 4; r++) {
		say_near(w, 0, r);
		say_near(w, 2, r);
		assert_int_equal(w->x.n_loans, 2);
		assert_int_equal(stats(w).staging_used, 0);
		assert_false(is_reading(w));
		say_contrib(w, 1, r);
		settle(w);
		assert_int_equal(w->x.n_loans, 0); /* before anybody is told of the sum */
		expect_near_sum(w, 0, r);
		expect_sum(w, 1, r); /* with its crc */
		expect_near_sum(w, 2, r);
	}
	assert_int_equal(stats(w).crc_errors, 0);
	world_free(w);
}

/* Whoever was put out and does not know may still be given sums of a round that the others have left
 * behind, with their inputs written. */
static void offer_within_one_host_is_read_and_checked_when_the_job_may_shrink(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE, .flags = JOB_SHRINK);

	(void)state;
	bring_near(w, 0);
	say_contrib(w, 0, 1);
	assert_int_equal(w->x.n_loans, 0);
	assert_true(is_reading(w));
	memset(w->m[0].contrib[0], 0xee, BYTES_MAX);
	end_read(w, 0, 0, 0);
	expect_msg(w, 0, WIRE_BAD_CRC, 1);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	settle(w);
	expect_near_sum(w, 0, 1);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void small_contribution_within_one_host_needs_no_crc(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);

	(void)state;
	bring_near(w, 0);
	bring_near(w, 1);
	for (uint64_t r = 1; r <= 3; r++) {
		say_near(w, 0, r);
		say_near(w, 1, r);
		work(w);
		expect_near_sum(w, 0, r);
		expect_near_sum(w, 1, r);
	}
	assert_int_equal(stats(w).crc_errors, 0);
	world_free(w);
}

static void loan_outlives_its_connection_and_still_counts(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	bring_near(w, 0);
	say_near(w, 0, 1);
	fake_down(w->m[0].conn, "cut");
	check(w);
	assert_int_equal(w->x.n_loans, 1);
	connect_member(w, 0); /* through the network now */
	say_contrib(w, 1, 1);
	settle(w);
	assert_int_equal(w->x.n_loans, 0);
	expect_sum(w, 1, 1);
	say_contrib(w, 0, 1);
	expect_sum(w, 0, 1);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void loan_ends_when_its_slot_is_cleared(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);

	(void)state;
	bring_near(w, 0);
	say_near(w, 0, 1);
	tell_plan(w, 1, SERVER, 6);
	assert_int_equal(w->x.n_loans, 0);
	say_near(w, 0, 1);
	assert_int_equal(w->x.n_loans, 1);
	say_key(w, 1, WIRE_HAVE, 1); /* it must not be summed again */
	assert_int_equal(w->x.n_loans, 0);
	world_free(w);
}

static void sum_without_crc_gets_one_for_who_takes_it_through_a_network(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m;

	(void)state;
	bring_near(w, 0);
	bring_near(w, 1);
	say_near(w, 0, 1);
	say_near(w, 1, 1);
	fake_down(w->m[1].conn, "cut");
	bring_near(w, 0);
	work(w);
	fake_take(w->m[0].conn);
	connect_member(w, 1);
	say_contrib(w, 1, 1);
	expect_sum(w, 1, 1);
	/* Its echo has a crc, that of the other has none: nothing to compare. */
	say_near(w, 0, 2);
	m = contrib_msg(w, 1, 2, 0);
	say(w, 1, &m);
	settle(w);
	expect_near_sum(w, 0, 2);
	expect_sum(w, 1, 2);
	assert_int_equal(w->n_fails, 0);
	world_free(w);
}

static void nonsense_offer_within_one_host_is_forgotten(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = LARGE);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	bring_near(w, 0);
	m.segment = 9;
	say(w, 0, &m);
	m.segment = 1;
	m.offset = sizeof(w->m[0].contrib) - 8;
	say(w, 0, &m);
	assert_int_equal(w->x.n_loans, 0);
	say_near(w, 0, 1);
	say_contrib(w, 1, 1);
	settle(w);
	expect_sum(w, 1, 1);
	world_free(w);
}

static void different_operations_are_found(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);
	struct wire_msg m = contrib_msg(w, 1, 1, 0);

	(void)state;
	say_contrib(w, 0, 1);
	m.contrib.op = OP_MAX;
	say(w, 1, &m);
	assert_int_equal(w->fail_code, BPS_EMISMATCH);
	assert_non_null(strstr(w->fail_text, "max"));
	say_contrib(w, 1, 1); /* nothing more happens in a failed job */
	work(w);
	expect_nothing(w, 0);
	assert_int_equal(w->n_fails, 1);
	world_free(w);
}

static void message_that_makes_no_sense_closes_only_its_sender(void **state)
{
	(void)state;
	for (unsigned k = 0; k < 12; k++) {
		struct world *w = world(.n_members = 3, .n_elems = k == 6 ? LARGE : SMALL);
		struct wire_msg m = contrib_msg(w, 1, 1, 0);
		bool is_harmless = false;

		if (k == 10 || k == 11) { /* a donation is due */
			say_key(w, 1, WIRE_HAVE, 1);
			say_contrib(w, 0, 1);
			say_contrib(w, 2, 1);
			m = donate_msg(w, 1, 1);
		}
		switch (k) {
		case 0:
			m.len = 4;
			break;
		case 1:
			m.contrib.op = OP_COUNT;
			break;
		case 2:
			m.contrib.codec = 1;
			break;
		case 3:
			m.contrib.group = 1;
			break;
		case 4:
			m.contrib.workers++;
			break;
		case 5: /* small, but offered */
			m.flags = 0;
			m.segment = 1;
			break;
		case 6: /* another's seat */
			m.member = 0;
			break;
		case 7:
			m.member = 3;
			break;
		case 8:
			m = key_msg(w, 1, WIRE_RESULT, 1);
			m.len = 1;
			m.result.n_members = 3;
			break;
		case 9:
			m = key_msg(w, 1, WIRE_AGAIN, 1);
			break;
		case 10:
			m.result.n_members = 2;
			member_set_del(&m.result.contributors, 2);
			break;
		case 11:
			m.result.workers = 0;
			break;
		default:
			is_harmless = true;
		}
		assert_false(is_harmless);
		say(w, 1, &m);
		expect_closed(w, 1);
		connect_member(w, 1);
		world_free(w);
	}
}

static void stranger_gets_nothing_into_a_job(void **state)
{
	struct world *w = world(.n_members = 2, .n_elems = SMALL);
	struct fake_conn *c = fake_accept(&w->x, 999, 1);
	struct wire_msg m = contrib_msg(w, 0, 1, 0);

	(void)state;
	fake_deliver(c, &m);
	assert_true(c->is_closed);
	check(w);
	contribute_all(w, 1);
	expect_sum(w, 0, 1);
	world_free(w);
}

/* ---- sums ---- */

static void average_divides_by_workers(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = SMALL);
	struct wire_msg r;
	const float *v;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct wire_msg m = contrib_msg(w, i, 1, 0);

		m.contrib.op = OP_AVG;
		say(w, i, &m);
	}
	work(w);
	r = expect_msg(w, 0, WIRE_RESULT, 1);
	v = r.payload;
	assert_int_equal(r.result.workers, 6); /* 1 + 2 + 3 */
	for (size_t e = 0; e < SMALL; e++)
		assert_true(v[e] == (input(0, 1, e) + input(1, 1, e) + input(2, 1, e)) / 6);
	world_free(w);
}

/* Inputs of wild size, so that another order gives other bits. */
static void fill_wild(struct world *w, unsigned seed)
{
	srand(seed);
	for (unsigned i = 0; i < w->n_members; i++)
		for (size_t e = 0; e < w->n_elems; e++) {
			float f = (float)(rand() % 2000 - 1000) * (rand() % 3 ? 1.0f : 1e-4f);
			uint16_t h = half_round(f);

			if (w->dtype == DTYPE_F16)
				memcpy(w->m[i].contrib[0] + 2 * e, &h, 2);
			else
				memcpy(w->m[i].contrib[0] + 4 * e, &f, 4);
		}
}

/* The same by the plainest loop, in order of the members. */
static uint32_t ordered_crc(struct world *w)
{
	unsigned char out[BYTES_MAX];
	size_t elem = dtype_bytes(w->dtype);

	for (size_t e = 0; e < w->n_elems; e++) {
		float acc = 0;
		uint16_t h;

		for (unsigned i = 0; i < w->n_members; i++) {
			float f;

			memcpy(&h, w->m[i].contrib[0] + 2 * e, 2);
			if (w->dtype == DTYPE_F16)
				f = (float)half_value(h);
			else
				memcpy(&f, w->m[i].contrib[0] + 4 * e, 4);
			acc = i == 0 ? f : acc + f;
		}
		h = half_round(acc);
		if (w->dtype == DTYPE_F16)
			memcpy(out + 2 * e, &h, 2);
		else
			memcpy(out + 4 * e, &acc, 4);
	}
	return crc32c(0, out, w->n_elems * elem);
}

static void ordered_sum_has_the_same_bits_in_every_order(void **state)
{
	(void)state;
	for (unsigned n = 3; n <= MEMBERS_MAX; n++)
		for (unsigned k = 0; k < 8; k++) {
			struct world *w = world(.n_members = n, .n_elems = k & 2 ? LARGE : 100,
				.dtype = 1 + (k & 1 ? DTYPE_F16 : DTYPE_F32),
				.flags = JOB_DETERMINISTIC, .staging = k & 4 ? 2 * SEGMENT : 0);
			unsigned order[MEMBERS_MAX];
			uint32_t want;

			fill_wild(w, n * 10 + k);
			want = ordered_crc(w);
			for (unsigned i = 0; i < n; i++)
				order[i] = i;
			for (unsigned i = n - 1; i > 0; i--) {
				unsigned j = (unsigned)rand() % (i + 1), t = order[i];

				order[i] = order[j];
				order[j] = t;
			}
			for (unsigned i = 0; i < n; i++) {
				struct wire_msg m = payload_msg(w, order[i], WIRE_CONTRIB, 1, 1, 0);

				m.contrib.workers = w->m[order[i]].workers;
				say(w, order[i], &m);
				if (rand() % 2)
					end_reads(w);
				if (rand() % 3 == 0) {
					sums_relieve(w->core);
					work(w);
				}
			}
			settle(w);
			assert_int_equal(expect_msg(w, 0, WIRE_RESULT, 1).crc, want);
			world_free(w);
		}
}

static void half_precision_is_rounded_once(void **state)
{
	struct world *w = world(.n_members = MEMBERS_MAX, .n_elems = 1, .dtype = 1 + DTYPE_F16);
	const uint16_t one = half_round(1);
	const uint16_t tiny = half_round(0.0004); /* vanishes beside 1 when added alone */
	struct wire_msg r;
	uint16_t got;

	(void)state;
	for (unsigned i = 0; i < MEMBERS_MAX; i++) {
		struct wire_msg m;

		memcpy(w->m[i].contrib[0], i ? &tiny : &one, 2);
		m = payload_msg(w, i, WIRE_CONTRIB, 1, 1, 0);
		m.contrib.workers = w->m[i].workers;
		say(w, i, &m);
		sums_relieve(w->core); /* many passes, each into the f32 accumulator */
		work(w);
	}
	r = expect_msg(w, 0, WIRE_RESULT, 1);
	memcpy(&got, r.payload, 2);
	assert_int_equal(got, half_round(1 + 11 * half_value(tiny)));
	assert_int_not_equal(got, one);
	world_free(w);
}

/* ---- every message in every state ---- */

enum scene {
	SCENE_EMPTY,
	SCENE_WANT_READ, /* no staging is left for it */
	SCENE_READING,
	SCENE_STAGED,
	SCENE_SUMMING,
	SCENE_DONE,
	SCENE_DONATING,
	SCENE_DONATION_READ,
	SCENE_ALL_HAVE,
	SCENE_PARKED,
	SCENE_FENCED,
	SCENE_COUNT
};

/* Member 0 is the one that speaks next; the round in hand is 4. */
static struct world *make_scene(enum scene scene, uint32_t n_elems)
{
	struct world *w = world(.n_members = 3, .n_elems = n_elems, .n_parts = 6,
		.staging = SEGMENT, .flags = scene == SCENE_PARKED ? JOB_DETERMINISTIC : 0);
	struct wire_msg m;

	switch (scene) {
	case SCENE_WANT_READ:
		for (unsigned p = 1; p < 6; p++) {
			m = contrib_msg(w, 1, 4, p);
			say(w, 1, &m);
		}
		say_contrib(w, 0, 4);
		break;
	case SCENE_PARKED: /* its member number comes after those that have not come yet */
		for (unsigned p = 1; p < 4; p++) {
			m = contrib_msg(w, 0, 4, p);
			say(w, 0, &m);
		}
		say_contrib(w, 2, 4);
		break;
	case SCENE_READING:
		say_contrib(w, 0, 4);
		break;
	case SCENE_STAGED:
		say_contrib(w, 0, 4);
		end_reads(w);
		break;
	case SCENE_SUMMING:
	case SCENE_DONE:
	case SCENE_FENCED:
		for (unsigned i = 0; i < 3; i++)
			say_contrib(w, i, 4);
		end_reads(w);
		if (scene != SCENE_SUMMING)
			settle(w);
		if (scene == SCENE_FENCED)
			tell_plan(w, 6, SERVER, 6);
		break;
	case SCENE_DONATING:
	case SCENE_DONATION_READ:
		say_key(w, 0, WIRE_HAVE, 4);
		say_contrib(w, 1, 4);
		say_contrib(w, 2, 4);
		m = donate_msg(w, 0, 4);
		if (scene == SCENE_DONATION_READ)
			say(w, 0, &m);
		break;
	case SCENE_ALL_HAVE:
		for (unsigned i = 0; i < 3; i++)
			say_key(w, i, WIRE_HAVE, 4);
		break;
	case SCENE_EMPTY:
	case SCENE_COUNT:
		break;
	}
	return w;
}

/* Whatever is said, by whomever: invariants hold and at most the speaker is closed. */
static void every_message_in_every_state_keeps_the_invariants(void **state)
{
	static const enum wire_type types[] = {WIRE_CONTRIB, WIRE_HAVE, WIRE_DONATE, WIRE_GOT,
		WIRE_RESULT, WIRE_HAVE_OK, WIRE_AGAIN};

	(void)state;
	for (unsigned scene = 0; scene < SCENE_COUNT; scene++)
		for (unsigned t = 0; t < sizeof(types) / sizeof(types[0]); t++)
			for (uint64_t r = 2; r <= 7; r++)
				for (unsigned who = 0; who < 6; who++) {
					struct world *w =
						make_scene(scene, who < 3 ? LARGE : SMALL);
					unsigned i = who % 3;
					struct wire_msg m =
						types[t] == WIRE_CONTRIB ? contrib_msg(w, i, r, 0)
						: types[t] == WIRE_DONATE || types[t] == WIRE_RESULT
							? donate_msg(w, i, r)
							: key_msg(w, i, types[t], r);

					m.type = (uint8_t)types[t];
					say(w, i, &m);
					for (unsigned k = 0; k < 3; k++)
						assert_true(k == i || !w->m[k].conn->is_closed);
					if (w->m[i].conn->is_closed) {
						assert_int_equal(stats(w).protocol_errors, 1);
						connect_member(w, i);
					} else {
						say(w, i, &m);
					}
					settle(w);
					tick(w, 1000);
					world_free(w);
				}
}

/* The crc of the round before that the server expects, so that talk does not end as DIVERGED at
 * once. */
static uint32_t expected_echo(struct world *w, uint64_t r, unsigned part)
{
	const struct part *p = srv_part_find(srv_job_find(w->core, JOB), 0, part);
	const struct slot *prev = p ? &p->slots[(r - 1) & 1] : NULL;
	const struct slot *slot = p ? &p->slots[r & 1] : NULL;

	if (prev && prev->state == SLOT_DONE && prev->round == r - 1)
		return prev->crc;
	return slot && slot->round == r && slot->crc_prev_known ? slot->crc_prev : 0;
}

/* A long random talk, mostly nonsense, with losses and new placements. */
static void random_talk_keeps_the_invariants(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 24; seed++) {
		struct world *w = world(.n_members = 3, .n_elems = seed & 1 ? LARGE : SMALL,
			.n_parts = 4, .flags = seed & 2 ? JOB_DETERMINISTIC : 0, .staging = SEGMENT,
			.dtype = 1 + (seed & 4 ? DTYPE_F16 : DTYPE_F32));
		uint64_t base = 1;

		srand(seed);
		for (unsigned k = 0; k < 1500; k++) {
			unsigned i = (unsigned)rand() % 3, part = (unsigned)rand() % 4;
			uint64_t r = base + (uint64_t)(rand() % 3);
			struct fake_conn *c = w->m[i].conn;
			struct wire_msg m = key_msg(w, i, WIRE_HAVE, r);

			if (c->is_closed) {
				connect_member(w, i);
				c = w->m[i].conn;
			}
			switch (rand() % 16) {
			case 0:
				fake_down(c, "cut");
				break;
			case 1:
				tell_plan(w, 4, rand() % 3 ? SERVER : SERVER + 1, w->pgen + 1);
				break;
			case 2:
				c->credit = 0;
				break;
			case 3:
				c->credit = SIZE_MAX;
				fake_grant(c, 0);
				break;
			case 4:
				tick(w, 60);
				break;
			case 5:
				base += (uint64_t)(rand() % 8 == 0);
				break;
			case 6:
				m = donate_msg(w, i, r);
				say(w, i, &m);
				break;
			case 7:
				m.type = rand() % 2 ? WIRE_GOT : WIRE_HAVE;
				m.part = part;
				say(w, i, &m);
				break;
			case 8:
			case 9:
				srv_core_work(w->core);
				break;
			case 10:
			case 11:
				if (c->n_reads)
					end_read(w, i, (unsigned)rand() % (unsigned)c->n_reads,
						rand() % 8 ? 0 : -EIO);
				break;
			default:
				m = payload_msg(w, i, WIRE_CONTRIB, r, 1, part);
				m.contrib.workers = w->m[i].workers;
				m.crc ^= rand() % 16 == 0;
				m.contrib.crc_prev = expected_echo(w, r, part);
				say(w, i, &m);
			}
			check(w);
		}
		assert_int_equal(w->n_fails, 0);
		world_free(w);
	}
}

/* ---- rounds that do not wait for everybody ---- */

/* Members say that they have the result of round r; 0: none. */
static void say_have_all(struct world *w, uint64_t r)
{
	for (unsigned i = 0; i < w->n_members; i++) {
		say_key(w, i, WIRE_HAVE, r);
		expect_msg(w, i, WIRE_HAVE_OK, r);
	}
}

/* The sum of round r of members 0 and 1 of three. */
static void expect_sum_without_third(struct world *w, unsigned i, uint64_t r)
{
	struct wire_msg m = expect_msg(w, i, WIRE_RESULT, r);
	const float *v = bytes_at(w, &m);

	for (size_t e = 0; e < w->n_elems; e++)
		assert_true(v[e] == input(0, r, e) + input(1, r, e));
	assert_int_equal(m.result.workers, w->m[0].workers + w->m[1].workers);
	assert_int_equal(m.result.contributors.w[0], 3);
}

static void round_goes_on_without_who_is_late_and_answers_it_with_the_result(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

	(void)state;
	say_have_all(w, 0);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	tick(w, GRACE_MS - 1);
	settle(w);
	expect_nothing(w, 0);
	tick(w, 1);
	settle(w);
	expect_sum_without_third(w, 0, 1);
	expect_sum_without_third(w, 1, 1);
	assert_int_equal(stats(w).late, 1);
	say_contrib(w, 2, 1);
	settle(w);
	expect_sum_without_third(w, 2, 1);
	assert_int_equal(stats(w).contributions, 2);
	world_free(w);
}

static void contribution_within_the_grace_is_part_of_the_sum(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = LARGE, .backup = 1);

	(void)state;
	say_have_all(w, 0);
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	end_reads(w);
	say_contrib(w, 2, 1); /* it takes longer to read than the grace lasts */
	tick(w, 2 * GRACE_MS);
	work(w);
	expect_nothing(w, 0);
	settle(w);
	for (unsigned i = 0; i < 3; i++)
		expect_sum(w, i, 1);
	assert_int_equal(stats(w).late, 0);
	world_free(w);
}

static void round_waits_for_who_has_said_nothing_under_this_pgen(void **state)
{
	struct world *w = world(.n_members = 3, .n_elems = SMALL, .backup = 1);

	(void)state;
	say_contrib(w, 0, 1);
	say_contrib(w, 1, 1);
	tick(w, 10 * GRACE_MS);
	settle(w);
	expect_nothing(w, 0); /* the third may have the sum, from before */
	say_key(w, 2, WIRE_HAVE, 0);
	expect_msg(w, 2, WIRE_HAVE_OK, 0);
	tick(w, GRACE_MS);
	settle(w);
	expect_sum_without_third(w, 0, 1);
	world_free(w);
}

static void nobody_is_more_than_two_rounds_ahead_of_who_is_late(void **state)
{
	struct world *w =
		world(.n_members = 3, .n_elems = SMALL, .backup = 1, .dtype = DTYPE_I32 + 1);

	(void)state;
	say_have_all(w, 0);
	for (uint64_t r = 1; r <= 2; r++) {
		for (unsigned i = 0; i < 2; i++) {
			struct wire_msg m = contrib_msg(w, i, r, 0);

			m.contrib.crc_prev =
				r > 1 ? crc32c(0, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16) : 0;
			say(w, i, &m);
		}
		tick(w, GRACE_MS);
		settle(w);
		expect_msg(w, 0, WIRE_RESULT, r);
		expect_msg(w, 1, WIRE_RESULT, r);
	}
	say_contrib(w, 0, 3);
	expect_msg(w, 0, WIRE_AGAIN, 3); /* the third would never get the first */
	say_contrib(w, 2, 1);
	expect_msg(w, 2, WIRE_RESULT, 1);
	say_key(w, 2, WIRE_HAVE, 1);
	expect_msg(w, 2, WIRE_HAVE_OK, 1);
	say_contrib(w, 0, 3);
	expect_nothing(w, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_round_completes_when_all_have_contributed),
		cmocka_unit_test(large_round_is_read_and_its_sum_offered),
		cmocka_unit_test(duplicate_before_the_sum_is_ignored_and_after_it_answered_again),
		cmocka_unit_test(second_offer_while_the_first_is_read_is_ignored),
		cmocka_unit_test(message_of_an_older_pgen_is_dropped_and_counted),
		cmocka_unit_test(
			message_of_a_newer_pgen_or_unknown_partition_is_told_to_come_again),
		cmocka_unit_test(contribution_says_that_the_round_before_is_here),
		cmocka_unit_test(round_ahead_of_the_others_closes_the_peer),
		cmocka_unit_test(connection_of_an_agent_that_is_gone_is_closed),
		cmocka_unit_test(nobody_has_a_sum_that_is_being_made),
		cmocka_unit_test(slot_is_empty_again_for_a_new_pgen),
		cmocka_unit_test(plan_told_twice_changes_nothing),
		cmocka_unit_test(partition_moves_away_and_back),
		cmocka_unit_test(another_instance_of_this_server_is_another_server),
		cmocka_unit_test(plan_that_does_not_fit_fails_the_job),
		cmocka_unit_test(job_that_needs_too_much_memory_fails_with_quota),
		cmocka_unit_test(failure_is_told_again_with_the_job),
		cmocka_unit_test(job_that_gets_a_number_again_starts_anew),
		cmocka_unit_test(job_end_waits_for_running_reads_only_with_their_memory),
		cmocka_unit_test(read_cut_by_a_lost_connection_leaves_no_trace),
		cmocka_unit_test(contribution_survives_its_connection_once_it_is_read),
		cmocka_unit_test(newer_connection_of_an_agent_replaces_the_older),
		cmocka_unit_test(read_of_an_older_pgen_is_thrown_away),
		cmocka_unit_test(failed_read_waits_for_the_next_offer),
		cmocka_unit_test(offer_from_no_segment_is_forgotten),
		cmocka_unit_test(damaged_contribution_is_refused_with_its_crc),
		cmocka_unit_test(offered_sum_stays_unchanged_over_a_new_pgen),
		cmocka_unit_test(offered_sum_is_kept_until_its_reader_has_it_or_is_gone),
		cmocka_unit_test(offered_sums_outlive_their_job),
		cmocka_unit_test(sums_that_are_read_for_ever_end_the_job_when_memory_is_out),
		cmocka_unit_test(reads_go_by_priority),
		cmocka_unit_test(reads_of_one_peer_stay_within_its_window),
		cmocka_unit_test(transport_that_takes_few_reads_is_asked_again),
		cmocka_unit_test(answers_wait_for_credit),
		cmocka_unit_test(little_staging_is_enough_in_any_order),
		cmocka_unit_test(scattered_staging_does_not_stop_ordered_sums),
		cmocka_unit_test(reads_that_end_after_staging_ran_out_are_added_up),
		cmocka_unit_test(ordered_contribution_that_was_early_goes_on_when_it_is_next),
		cmocka_unit_test(sum_that_somebody_has_is_donated_to_the_rest),
		cmocka_unit_test(nothing_is_asked_for_when_all_have_the_sum),
		cmocka_unit_test(have_that_comes_late_throws_the_sum_away),
		cmocka_unit_test(next_donor_is_asked_when_one_is_lost),
		cmocka_unit_test(idle_donor_is_asked_again_on_its_next_connection),
		cmocka_unit_test(damaged_donation_is_asked_for_again),
		cmocka_unit_test(donation_waits_for_staging),
		cmocka_unit_test(donation_that_nobody_asked_for_is_dropped),
		cmocka_unit_test(contribution_to_a_donated_round_gets_the_donation),
		cmocka_unit_test(different_results_of_the_round_before_are_found),
		cmocka_unit_test(offer_of_a_peer_on_this_host_is_summed_where_it_lies),
		cmocka_unit_test(offer_within_one_host_is_read_and_checked_when_the_job_may_shrink),
		cmocka_unit_test(small_contribution_within_one_host_needs_no_crc),
		cmocka_unit_test(loan_outlives_its_connection_and_still_counts),
		cmocka_unit_test(loan_ends_when_its_slot_is_cleared),
		cmocka_unit_test(sum_without_crc_gets_one_for_who_takes_it_through_a_network),
		cmocka_unit_test(nonsense_offer_within_one_host_is_forgotten),
		cmocka_unit_test(different_operations_are_found),
		cmocka_unit_test(message_that_makes_no_sense_closes_only_its_sender),
		cmocka_unit_test(stranger_gets_nothing_into_a_job),
		cmocka_unit_test(average_divides_by_workers),
		cmocka_unit_test(ordered_sum_has_the_same_bits_in_every_order),
		cmocka_unit_test(half_precision_is_rounded_once),
		cmocka_unit_test(every_message_in_every_state_keeps_the_invariants),
		cmocka_unit_test(random_talk_keeps_the_invariants),
		cmocka_unit_test(round_goes_on_without_who_is_late_and_answers_it_with_the_result),
		cmocka_unit_test(contribution_within_the_grace_is_part_of_the_sum),
		cmocka_unit_test(round_waits_for_who_has_said_nothing_under_this_pgen),
		cmocka_unit_test(nobody_is_more_than_two_rounds_ahead_of_who_is_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
