/* Placement when servers are drained, leave or join, and when cards have different speeds: which
 * server gets which partitions, and when. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-scheduler/model/model.h"
#include "bps-scheduler/placement/balance.h"
#include "bps-scheduler/placement/drain.h"
#include "bps-scheduler/placement/speed.h"
#include "common/base/log.h"
#include "common/base/nicspeed.h"
#include "common/data/dtype.h"
#include "tests/invariants/invariants.h"
#include "tests/unit/fake_sched.h"

#define MS        UINT64_C(1000000)
#define CONNS     64
#define MEMBERS   16
#define PART      (64u << 10)
#define N_PARTS   96
#define GIB       (UINT64_C(1) << 30)
#define BEAT_MS   500
#define RECORDS   256
#define WAIT_MS   10000
#define SETTLE_MS (BALANCE_SETTLE_NS / MS)

/* A scheduler's core and its members. An open member sends heartbeats that confirm the last view
 * that it received. While is_deaf is set, the member sends no heartbeats. */
struct drain_world {
	struct sched_core *core;
	struct sched_config cfg;
	uint64_t now, next_beat;
	struct {
		bool is_open, is_deaf;
		uint64_t view; /* the last view that the member received */
		uint64_t mbps; /* the speed that the member has measured for its card */
		uint32_t plans, left_code;
		bool has_left;
		uint32_t n_left; /* number of LEFT messages to the connection's member */
	} conns[CONNS];
	uint64_t set_mbps;       /* card speed that the next HELLO states */
	const char *host;        /* the host in the next HELLO; NULL: the member's name */
	const char *addr;        /* the server's address in the next HELLO; NULL: 10.0.0.1 */
	uint64_t memory_bytes;   /* memory of `host` in the next HELLO; 0: unknown */
	uint32_t noise, n_beats; /* noise: random error of measured speeds, +- percent */
	uint32_t joined_code, job;
	char text[CTL_TEXT_MAX + 1];
	struct {
		void *bytes;
		size_t n;
	} records[RECORDS];
	size_t n_records;
	int persist_error;
};

static void env_send(void *ctx, uint32_t conn, const struct ctl_msg *m)
{
	struct drain_world *w = ctx;

	assert_true(conn < CONNS);
	switch (m->type) {
	case CTL_PLAN:
		w->conns[conn].plans++;
		w->conns[conn].view = m->plan.view;
		break;
	case CTL_BEAT:
		w->conns[conn].view = m->beat.view;
		break;
	case CTL_LEFT:
		w->conns[conn].has_left = true;
		w->conns[conn].n_left++;
		w->conns[conn].left_code = m->left.code;
		break;
	case CTL_JOINED:
		w->joined_code = m->joined.code;
		if (!m->joined.code)
			w->job = m->joined.job;
		snprintf(w->text, sizeof(w->text), "%s", m->joined.text);
		break;
	default:
		break;
	}
}

static void env_drop(void *ctx, uint32_t conn, const char *why)
{
	struct drain_world *w = ctx;

	(void)why;
	w->conns[conn].is_open = false;
}

static int env_persist(void *ctx, const struct state_record *rec)
{
	struct drain_world *w = ctx;
	size_t n = codec_encoded_size(state_record_layout(), rec);

	if (w->persist_error)
		return w->persist_error;
	assert_true(n && w->n_records < RECORDS);
	w->records[w->n_records].bytes = malloc(n);
	w->records[w->n_records].n =
		codec_encode(state_record_layout(), rec, w->records[w->n_records].bytes);
	w->n_records++;
	return 0;
}

static void core_start(struct drain_world *w)
{
	struct sched_env env = {.ctx = w,
		.send = env_send,
		.drop = env_drop,
		.persist = env_persist,
		.random = fake_sched_random,
		.pair_key = fake_sched_pair_key};

	w->core = sched_new(&w->cfg, &env);
	for (size_t i = 0; i < w->n_records; i++) {
		struct state_record rec;
		struct err_text err = {""};
		void *mem = NULL;

		assert_int_equal(codec_decode(state_record_layout(), w->records[i].bytes,
					 w->records[i].n, 1 << 24, &rec, &mem, &err),
			0);
		if (sched_restore(w->core, &rec, &err) < 0)
			fail_msg("record %zu: %s", i, err.s);
		free(mem);
	}
	assert_int_equal(sched_start(w->core, w->now), 0);
}

static void world_init(struct drain_world *w)
{
	memset(w, 0, sizeof(*w));
	log_set_level(LOG_ERROR);
	sched_config_default(&w->cfg);
	w->now = 1000 * MS;
	core_start(w);
}

static void world_fini(struct drain_world *w)
{
	sched_free(w->core);
	for (size_t i = 0; i < w->n_records; i++)
		free(w->records[i].bytes);
}

static void check(struct drain_world *w)
{
	struct err_text err = {""};

	if (sched_check(w->core, &err) < 0)
		fail_msg("%s", err.s);
}

static void send_msg(struct drain_world *w, uint32_t conn, const struct ctl_msg *msg)
{
	sched_receive_message(w->core, conn, msg, w->now);
}

static void hello(struct drain_world *w, uint32_t conn, enum role role, const char *name,
	uint64_t instance, uint64_t quota)
{
	struct ctl_msg msg = {.type = CTL_HELLO,
		.hello = {.proto = CTL_PROTO,
			.role = (uint8_t)role,
			.instance = instance,
			.name = name,
			.host = w->host ? w->host : name,
			.version = "1",
			.pid = 1,
			.addr = role == ROLE_AGENT ? ""
				: w->addr          ? w->addr
						   : "10.0.0.1",
			.port = role == ROLE_SERVER ? 7400 : 0,
			.threads = 2,
			.nic_mbps = w->set_mbps,
			.quota_bytes = quota,
			.memory_bytes = w->memory_bytes,
			.provider = "sockets"}};

	w->conns[conn].is_open = true;
	w->conns[conn].view = 0;
	w->conns[conn].mbps = 0;
	w->conns[conn].has_left = false;
	w->conns[conn].n_left = 0;
	sched_conn_open(w->core, conn, w->now);
	send_msg(w, conn, &msg);
}

static void server(struct drain_world *w, uint32_t conn, const char *name, uint64_t instance)
{
	hello(w, conn, ROLE_SERVER, name, instance, 0);
}

static void join(
	struct drain_world *w, uint32_t conn, const char *job, uint32_t rank, uint32_t size)
{
	struct ctl_msg msg = {.type = CTL_JOIN,
		.join = {.seq = rank + 1,
			.uid = 1000,
			.job = job,
			.rank = rank,
			.size = size,
			.pid = rank + 10,
			.part_bytes = PART}};

	send_msg(w, conn, &msg);
}

static void declare(struct drain_world *w, uint32_t conn, uint32_t rank, uint64_t bytes)
{
	struct ctl_decl d = {rank, "w", shape_from_dtype_and_count(DTYPE_F32, bytes / 4), 0};
	struct ctl_msg msg = {.type = CTL_DECLARE, .declare = {w->job, &d, 1}};

	send_msg(w, conn, &msg);
}

/* Return the measured speed of member i with added noise. The noise has a different phase and
 * period for each member, but is the same in every run. */
static uint64_t noisy(struct drain_world *w, uint32_t i)
{
	double wave = ((w->n_beats * 7919u + i * 104729u) % (101 + i)) / (50.0 + i / 2.0) - 1;

	return (uint64_t)((double)w->conns[i].mbps * (1 + wave * w->noise / 100));
}

static void tick(struct drain_world *w)
{
	struct ctl_msg msg = {.type = CTL_BEAT};

	if (w->now >= w->next_beat) {
		w->next_beat = w->now + BEAT_MS * MS;
		w->n_beats++;
		for (uint32_t i = 0; i < CONNS; i++) {
			msg.beat.view = w->conns[i].view;
			msg.beat.measured_mbps = noisy(w, i);
			if (w->conns[i].is_open && !w->conns[i].is_deaf)
				send_msg(w, i, &msg);
		}
	}
	while (sched_next_deadline(w->core) <= w->now)
		sched_tick(w->core, w->now);
	check(w);
}

static void pass(struct drain_world *w, uint64_t ms)
{
	for (uint64_t i = 0; i < ms / 10; i++) {
		tick(w);
		w->now += 10 * MS;
	}
	tick(w);
}

static uint64_t parts(struct drain_world *w, const char *name)
{
	struct sched_member *m = NULL;
	struct err_text err;
	char target[64];

	snprintf(target, sizeof(target), "server:%s", name);
	assert_int_equal(drain_find_member(w->core, target, &m, &err), 0);
	return drain_count_parts(w->core, m);
}

static int drain(struct drain_world *w, const char *name)
{
	struct err_text text;
	int rc = sched_drain(w->core, name, "disk", "alice", w->now, &text);

	snprintf(w->text, sizeof(w->text), "%s", text.s);
	check(w);
	return rc;
}

static int undrain(struct drain_world *w, const char *name)
{
	struct err_text text;
	int rc = sched_undrain(w->core, name, w->now, &text);

	snprintf(w->text, sizeof(w->text), "%s", text.s);
	check(w);
	return rc;
}

/* Make servers s1 and s2 (connections 1, 2), agents a, b and c (21 to 23), and a job of 96
 * partitions on all three agents. */
static void running_job(struct drain_world *w)
{
	world_init(w);
	server(w, 1, "s1", 101);
	server(w, 2, "s2", 102);
	hello(w, 21, ROLE_AGENT, "a", 201, 0);
	hello(w, 22, ROLE_AGENT, "b", 202, 0);
	hello(w, 23, ROLE_AGENT, "c", 203, 0);
	for (uint32_t i = 0; i < 3; i++)
		join(w, 21 + i, "x", i, 3);
	for (uint32_t i = 0; i < 3; i++)
		declare(w, 21 + i, i, N_PARTS * PART);
	pass(w, SETTLE_MS + 1000);
	assert_int_equal(parts(w, "s1") + parts(w, "s2"), N_PARTS);
	assert_int_equal(parts(w, "s1"), N_PARTS / 2);
}

static void drained_server_loses_its_partitions_some_at_a_time(void **state)
{
	struct drain_world w;
	uint64_t before, now, n_batches = 0;

	(void)state;
	running_job(&w);
	assert_int_equal(drain(&w, "s1"), 0);
	assert_non_null(strstr(w.text, "48 partitions move to 1 other server"));
	before = parts(&w, "s1");
	for (uint64_t end = w.now + WAIT_MS * MS; before && w.now < end; pass(&w, 10)) {
		now = parts(&w, "s1");
		assert_true(before - now <= BALANCE_BATCH_MIN);
		n_batches += now < before;
		before = now;
	}
	assert_int_equal(parts(&w, "s2"), N_PARTS);
	assert_int_equal(n_batches, N_PARTS / 2 / BALANCE_BATCH_MIN);
	assert_int_equal(w.core->n_planned, N_PARTS / 2);
	world_fini(&w);
}

static void repeated_order_does_not_hurry_the_next_batch(void **state)
{
	struct drain_world w;
	uint64_t n;

	(void)state;
	running_job(&w);
	drain(&w, "s1");
	pass(&w, 10);
	n = parts(&w, "s1");
	assert_int_equal(n, N_PARTS / 2 - BALANCE_BATCH_MIN);
	for (unsigned i = 0; i < 8; i++) {
		w.next_beat = w.now; /* every agent confirms the batch at once */
		drain(&w, "s1");
		pass(&w, 10);
		assert_int_equal(parts(&w, "s1"), n);
	}
	pass(&w, 100);
	assert_int_equal(parts(&w, "s1"), n - BALANCE_BATCH_MIN);
	world_fini(&w);
}

static void next_batch_waits_until_every_agent_has_the_last_one(void **state)
{
	struct drain_world w;
	uint64_t n;

	(void)state;
	running_job(&w);
	drain(&w, "s1");
	w.conns[22].is_deaf = true;
	pass(&w, 3000);
	/* only the first batch has moved, because the deaf agent has not confirmed that batch */
	n = parts(&w, "s1");
	assert_true(n >= N_PARTS / 2 - BALANCE_BATCH_MIN && n <= N_PARTS / 2);
	w.conns[22].is_deaf = false;
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	world_fini(&w);
}

static void last_server_is_not_drained(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	assert_int_equal(drain(&w, "s1"), 0);
	assert_int_equal(drain(&w, "s2"), -EBUSY);
	assert_non_null(strstr(w.text, "'s2' is the last server that accepts partitions"));
	assert_int_equal(undrain(&w, "s1"), 0);
	assert_int_equal(drain(&w, "s2"), 0);
	assert_int_equal(undrain(&w, "s1"), 0); /* there is nothing to undo */
	assert_string_equal(w.text, "server s1 is not drained");
	assert_int_equal(drain(&w, "s3"), BPS_ENOTFOUND);
	world_fini(&w);
}

/* An operator repeats an order that failed until it succeeds. */
static void undrain_that_is_repeated_fails_until_it_is_written(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	assert_int_equal(drain(&w, "s1"), 0);
	w.persist_error = -EIO;
	assert_int_equal(undrain(&w, "s1"), -EIO);
	assert_int_equal(undrain(&w, "s1"), BPS_ENOTDURABLE);
	assert_non_null(strstr(w.text, "the scheduler cannot store this change"));
	assert_int_equal(undrain(&w, "s2"), 0); /* the order changes nothing */
	w.persist_error = 0;
	pass(&w, WAIT_MS);
	assert_int_equal(undrain(&w, "s1"), 0);
	assert_string_equal(w.text, "server s1 is not drained");
	world_fini(&w);
}

/* A server that accepts partitions again may be the first of several, so the scheduler waits before
 * it moves partitions. No event precedes the order for 90 ms. */
static void partitions_return_to_an_undrained_server_when_the_servers_have_settled(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	assert_int_equal(drain(&w, "s1"), 0);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	w.now += 90 * MS;
	assert_int_equal(undrain(&w, "s1"), 0);
	pass(&w, SETTLE_MS - 10);
	assert_int_equal(parts(&w, "s1"), 0);
	pass(&w, 20);
	assert_int_equal(parts(&w, "s1"), BALANCE_BATCH_MIN);
	world_fini(&w);
}

static void server_is_not_drained_when_the_others_lack_memory(void **state)
{
	struct drain_world w;

	(void)state;
	world_init(&w);
	hello(&w, 1, ROLE_SERVER, "s1", 101, GIB);
	hello(&w, 2, ROLE_SERVER, "s2", 102, GIB);
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, 448u << 20); /* sums need twice the tensor's size: 896 MiB */
	declare(&w, 22, 1, 448u << 20);
	assert_int_equal(drain(&w, "s1"), -EBUSY);
	assert_non_null(strstr(w.text, "no memory for the sums of server 's1'"));
	hello(&w, 3, ROLE_SERVER, "s3", 103, GIB);
	assert_int_equal(drain(&w, "s1"), 0);
	world_fini(&w);
}

/* A suspect server may be lost together with its memory. So this memory does not count as room for
 * the sums of a drained server. */
static void memory_of_a_suspect_server_is_no_room_for_a_drain(void **state)
{
	struct drain_world w;

	(void)state;
	world_init(&w);
	for (uint32_t i = 0; i < 3; i++)
		hello(&w, 1 + i, ROLE_SERVER, (const char *[]){"s1", "s2", "s3"}[i], 101 + i, GIB);
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, 640u << 20); /* sums need twice the tensor's size: 1,280 MiB */
	declare(&w, 22, 1, 640u << 20);
	sched_conn_closed(w.core, 3, w.now);
	w.conns[3].is_open = false;
	assert_int_equal(drain(&w, "s1"), -EBUSY);
	assert_non_null(strstr(w.text, "no memory for the sums of server 's1'"));
	hello(&w, 4, ROLE_SERVER, "s3", 103, GIB);
	assert_int_equal(drain(&w, "s1"), 0);
	world_fini(&w);
}

/* Server s1 has its own host. Servers s2 and s3 share a host. The memory of this host is less than
 * the sum of the quotas of s2 and s3. */
static void check_shared_memory(uint64_t quota)
{
	struct drain_world w;
	bool lacks_memory;

	world_init(&w);
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	hello(&w, 1, ROLE_SERVER, "s1", 101, GIB);
	w.host = "both";
	w.memory_bytes = GIB;
	hello(&w, 2, ROLE_SERVER, "s2", 102, quota);
	hello(&w, 3, ROLE_SERVER, "s3", 103, quota);
	w.host = NULL;
	w.memory_bytes = 0;
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, 640u << 20); /* sums need twice the tensor's size: 1,280 MiB */
	declare(&w, 22, 1, 640u << 20);
	assert_int_equal(drain(&w, "s1"), -EBUSY);
	assert_non_null(strstr(w.text, "no memory for the sums of server 's1'"));
	assert_int_equal(drain_tolerated_losses(w.core, &lacks_memory), 0);
	assert_true(lacks_memory);
	hello(&w, 4, ROLE_SERVER, "s4", 104, GIB);
	assert_int_equal(drain_tolerated_losses(w.core, &lacks_memory), 1);
	assert_true(lacks_memory);
	assert_int_equal(drain(&w, "s1"), 0);
	world_fini(&w);
}

static void servers_of_one_host_share_its_memory(void **state)
{
	(void)state;
	check_shared_memory(GIB);
	check_shared_memory(UINT64_C(1) << 63); /* 64 bits are too few for the sum of the quotas */
}

static void losses_that_are_tolerated_count_the_servers_that_a_drain_counts(void **state)
{
	struct drain_world w;
	bool lacks_memory;

	(void)state;
	world_init(&w);
	for (uint32_t i = 0; i < 3; i++)
		hello(&w, 1 + i, ROLE_SERVER, (const char *[]){"s1", "s2", "s3"}[i], 101 + i, GIB);
	assert_int_equal(drain_tolerated_losses(w.core, &lacks_memory), 2);
	assert_false(lacks_memory);
	sched_conn_closed(w.core, 3, w.now);
	w.conns[3].is_open = false;
	assert_int_equal(drain_tolerated_losses(w.core, &lacks_memory), 1);
	assert_int_equal(drain(&w, "s1"), 0);
	assert_int_equal(drain_tolerated_losses(w.core, &lacks_memory), 0);
	assert_false(lacks_memory);
	world_fini(&w);
}

static void drain_outlives_server_and_scheduler(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	drain(&w, "s1");
	sched_conn_closed(w.core, 1, w.now);
	w.conns[1].is_open = false;
	server(&w, 3, "s1", 111);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	sched_free(w.core);
	core_start(&w);
	server(&w, 4, "s1", 111);
	server(&w, 5, "s2", 102);
	for (uint32_t i = 0; i < 3; i++)
		hello(&w, 31 + i, ROLE_AGENT, (const char *[]){"a", "b", "c"}[i], 201 + i, 0);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	assert_string_equal(sched_member_by_id(w.core, 1)->drain_reason, "disk");
	assert_string_equal(sched_member_by_id(w.core, 1)->drain_who, "alice");
	assert_int_equal(undrain(&w, "s1"), 0);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), N_PARTS / 2);
	world_fini(&w);
}

static void interrupted_drain_goes_on_after_a_restart_of_the_scheduler(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	drain(&w, "s1");
	pass(&w, 200);
	assert_true(parts(&w, "s1") > 0);
	sched_free(w.core);
	core_start(&w);
	server(&w, 4, "s1", 101);
	server(&w, 5, "s2", 102);
	for (uint32_t i = 0; i < 3; i++)
		hello(&w, 31 + i, ROLE_AGENT, (const char *[]){"a", "b", "c"}[i], 201 + i, 0);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	world_fini(&w);
}

static void new_server_gets_its_share_and_then_nothing_moves(void **state)
{
	struct drain_world w;
	uint32_t plans;

	(void)state;
	running_job(&w);
	server(&w, 3, "s3", 103);
	pass(&w, SETTLE_MS - 200);
	assert_int_equal(parts(&w, "s3"), 0);
	pass(&w, WAIT_MS);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t n = parts(&w, (const char *[]){"s1", "s2", "s3"}[i]);

		assert_true(n + 1 >= N_PARTS / 3 && n <= N_PARTS / 3 + 1);
	}
	plans = w.conns[21].plans;
	pass(&w, WAIT_MS);
	/* the same process reconnects below, so nothing moves */
	sched_conn_closed(w.core, 3, w.now);
	w.conns[3].is_open = false;
	server(&w, 4, "s3", 103);
	pass(&w, WAIT_MS);
	assert_int_equal(w.conns[21].plans, plans);
	world_fini(&w);
}

static void servers_that_join_together_get_equal_shares(void **state)
{
	static const char *const names[] = {"s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"};
	struct drain_world w;

	(void)state;
	running_job(&w);
	for (uint32_t n = 5; n <= 9; n += 4) {
		for (uint32_t i = n == 5 ? 2 : 5; i < n; i++)
			server(&w, 1 + i, names[i], 101 + i);
		pass(&w, WAIT_MS);
		for (uint32_t i = 0; i < n; i++)
			assert_in_range(parts(&w, names[i]), N_PARTS / n, N_PARTS / n + 1);
	}
	world_fini(&w);
}

static void nothing_moves_for_a_small_gain(void **state)
{
	struct drain_world w;
	uint32_t plans;

	(void)state;
	world_init(&w);
	for (uint32_t i = 0; i < 12; i++)
		server(&w, 1 + i,
			(const char *[]){"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9",
				"sa", "sb"}[i],
			101 + i);
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, 20 * N_PARTS * PART);
	declare(&w, 22, 1, 20 * N_PARTS * PART);
	pass(&w, WAIT_MS);
	plans = w.conns[21].plans;
	/* a 13th server would take only 8 % from each of the 12 servers, so nothing moves */
	server(&w, 13, "sc", 113);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "sc"), 0);
	assert_int_equal(w.conns[21].plans, plans);
	world_fini(&w);
}

/* ---- cards ---- */

/* Set the measured card speeds: s2_mbps for server s2, and 1000 for all other members. */
static void measure(struct drain_world *w, uint64_t s2_mbps)
{
	for (uint32_t i = 0; i < CONNS; i++)
		w->conns[i].mbps = i == 2 ? s2_mbps : 1000;
}

/* Check that s2 has a third of the partitions, because its card is half as fast as the card of s1.
 * Servers on hosts without agents get partitions in proportion to the speed of their cards. */
static void assert_third_is_on_s2(struct drain_world *w)
{
	uint64_t n = parts(w, "s2");

	assert_int_equal(parts(w, "s1") + n, N_PARTS);
	assert_in_range(n, N_PARTS / 3 - 1, N_PARTS / 3 + 1);
}

static void server_with_a_slow_card_gets_less_when_that_is_measured(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, 500);
	pass(&w, SPEED_SETTLE_NS / MS - 200);
	assert_int_equal(parts(&w, "s2"), N_PARTS / 2);
	pass(&w, WAIT_MS);
	assert_third_is_on_s2(&w);
	assert_int_equal(w.core->speeds.count, 1);
	world_fini(&w);
}

static void speed_that_is_set_is_not_measured(void **state)
{
	struct drain_world w;
	uint32_t plans;

	(void)state;
	world_init(&w);
	w.set_mbps = 1000;
	sched_free(w.core);
	core_start(&w);
	server(&w, 1, "s1", 101);
	server(&w, 2, "s2", 102);
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, N_PARTS * PART);
	declare(&w, 22, 1, N_PARTS * PART);
	pass(&w, WAIT_MS);
	plans = w.conns[21].plans;
	measure(&w, 500);
	pass(&w, 2 * WAIT_MS);
	assert_int_equal(parts(&w, "s2"), N_PARTS / 2);
	assert_int_equal(w.conns[21].plans, plans);
	assert_string_equal(speed_source(sched_member_by_id(w.core, 1)), "set");
	world_fini(&w);
}

/* Servers s2 and s3 share a host. Check that each of the three servers gets as many partitions as
 * the test wants, with an agent on this host or without. */
static void check_shared_host(
	const char *addr_of_s3, const char *agents_host, uint64_t s1, uint64_t s3)
{
	struct drain_world w;

	world_init(&w);
	w.set_mbps = 1000;
	server(&w, 1, "s1", 101);
	w.host = "both";
	server(&w, 2, "s2", 102);
	w.addr = addr_of_s3;
	server(&w, 3, "s3", 103);
	w.host = agents_host;
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	w.host = NULL;
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, N_PARTS * PART);
	declare(&w, 22, 1, N_PARTS * PART);
	pass(&w, SETTLE_MS + 1000);
	assert_int_equal(parts(&w, "s1"), s1);
	assert_int_equal(parts(&w, "s3"), s3);
	assert_int_equal(parts(&w, "s2"), N_PARTS - s1 - s3);
	world_fini(&w);
}

static void server_process_per_card_counts_as_a_machine(void **state)
{
	(void)state;
	check_shared_host("10.0.1.1", "a", N_PARTS / 3, N_PARTS / 3);
	check_shared_host("10.0.0.1", "a", N_PARTS / 2, N_PARTS / 4); /* they share a card */
	/* The agent uses all cards of its machine, so the addresses do not matter. */
	check_shared_host("10.0.1.1", "both", N_PARTS / 3, N_PARTS / 3);
	check_shared_host("10.0.0.1", "both", N_PARTS / 3, N_PARTS / 3);
}

static void noise_moves_nothing(void **state)
{
	static const uint64_t s2_mbps[] = {1000, 500, 850};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct drain_world w;
		uint64_t count;
		uint32_t plans;

		running_job(&w);
		w.noise = 10;
		measure(&w, s2_mbps[i]);
		pass(&w, 3 * WAIT_MS);
		plans = w.conns[21].plans;
		count = w.core->speeds.count;
		w.n_beats = 0;
		while (w.n_beats < 1000)
			pass(&w, BEAT_MS);
		assert_int_equal(w.conns[21].plans, plans);
		assert_int_equal(w.core->speeds.count, count);
		if (s2_mbps[i] == 500)
			assert_third_is_on_s2(&w);
		else
			assert_in_range(parts(&w, "s2"), N_PARTS / 2 - 1, N_PARTS / 2);
		world_fini(&w);
	}
}

static void card_of_a_restarted_server_is_as_fast_as_before_until_it_is_measured_anew(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, 500);
	pass(&w, WAIT_MS);
	assert_third_is_on_s2(&w);
	server(&w, 4, "s2", 112); /* the new server has no measurement yet */
	pass(&w, 3 * WAIT_MS);
	assert_third_is_on_s2(&w);
	/* the speed rises, for example because other load on the card has ended */
	w.conns[4].mbps = 1000;
	pass(&w, 2 * WAIT_MS);
	assert_in_range(parts(&w, "s2"), N_PARTS / 2 - 1, N_PARTS / 2);
	w.conns[4].mbps = 500;
	pass(&w, 3 * WAIT_MS);
	assert_third_is_on_s2(&w);
	world_fini(&w);
}

static void measured_speed_is_forgotten_when_a_server_returns_on_another_host(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, 500);
	pass(&w, WAIT_MS);
	server(&w, 4, "s2", 112);
	assert_int_equal(speed_mbps(sched_member_by_id(w.core, 2)), 500);
	assert_string_equal(speed_source(sched_member_by_id(w.core, 2)), "measured");
	w.conns[4].is_open = false;
	sched_conn_closed(w.core, 4, w.now);
	pass(&w, WAIT_MS);
	w.host = "elsewhere";
	server(&w, 5, "s2", 122);
	assert_true(w.conns[5].is_open);
	assert_int_equal(speed_mbps(sched_member_by_id(w.core, 2)), 0);
	assert_string_equal(speed_source(sched_member_by_id(w.core, 2)), "unknown");
	world_fini(&w);
}

static void member_that_keeps_restarting_does_not_delay_measured_speeds(void **state)
{
	const uint32_t n_most = 2 * SPEED_WAIT_NS / MS / 2000;
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, 500);
	for (uint32_t i = 0; i < n_most && !w.core->speeds.count; i++) {
		hello(&w, 24 + i, ROLE_AGENT, "d", 300 + i, 0);
		w.conns[24 + i].mbps = 1000;
		pass(&w, 2000);
	}
	assert_int_equal(w.core->speeds.count, 1);
	world_fini(&w);
}

/* Other members usually make their first measurements soon after a new member. */
static void speed_of_a_new_member_is_used_some_time_after_its_first_measurement(void **state)
{
	struct drain_world w;
	struct sched_member *m;
	struct err_text err;

	(void)state;
	running_job(&w);
	for (uint32_t i = 0; i < 2; i++) {
		char name[] = {(char)('d' + i), 0};

		measure(&w, 1000);
		pass(&w, 3 * WAIT_MS);
		hello(&w, 24 + i, ROLE_AGENT, name, 300 + i, 0);
		w.conns[24 + i].mbps = 1000;
		assert_int_equal(drain_find_member(w.core, name, &m, &err), 0);
		pass(&w, SPEED_SETTLE_NS / MS - 50);
		assert_string_equal(speed_source(m), "unknown");
		pass(&w, 50 + BEAT_MS);
		assert_string_equal(speed_source(m), "measured");
	}
	world_fini(&w);
}

/* Only the first update delays the balance of jobs. A later update may be due for a long time,
 * because updates have a minimum distance. */
static void new_server_gets_its_share_while_a_later_update_of_speeds_is_due(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, 1000);
	pass(&w, SPEED_SETTLE_NS / MS + BEAT_MS);
	assert_int_equal(w.core->speeds.count, 1);
	w.conns[1].mbps = w.conns[2].mbps = 2000;
	server(&w, 3, "s3", 103);
	pass(&w, SETTLE_MS + 4000);
	assert_int_equal(w.core->speeds.count, 1);
	assert_in_range(parts(&w, "s3"), N_PARTS / 3 - 1, N_PARTS / 3 + 1);
	pass(&w, WAIT_MS);
	assert_int_equal(w.core->speeds.count, 2);
	world_fini(&w);
}

static void impossible_measured_speed_is_capped(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, UINT64_C(1) << 62);
	pass(&w, WAIT_MS);
	assert_int_equal(sched_member_by_id(w.core, 2)->beat.measured_mbps, NIC_MAX_MBPS);
	assert_int_equal(speed_mbps(sched_member_by_id(w.core, 2)), NIC_MAX_MBPS);
	world_fini(&w);
}

static void restart_of_the_scheduler_moves_nothing_back(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	measure(&w, 500);
	pass(&w, WAIT_MS);
	assert_third_is_on_s2(&w);
	sched_free(w.core);
	core_start(&w);
	server(&w, 1, "s1", 101);
	server(&w, 2, "s2", 102);
	for (uint32_t i = 0; i < 3; i++)
		hello(&w, 21 + i, ROLE_AGENT, (const char *[]){"a", "b", "c"}[i], 201 + i, 0);
	measure(&w, 500);
	for (unsigned i = 0; i < 2 * WAIT_MS / 10; i++) {
		pass(&w, 10);
		assert_third_is_on_s2(&w);
	}
	world_fini(&w);
}

static void speeds_are_used_seldom_however_they_change(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	for (unsigned i = 0; i < 60; i++) { /* for two minutes, the speed changes every 2 s */
		measure(&w, i % 2 ? 1000 : 100);
		pass(&w, 2000);
	}
	assert_true(w.core->speeds.count <= 1 + 120000 * MS / SPEED_GAP_NS);
	world_fini(&w);
}

static const struct ctl_msg leave = {CTL_LEAVE, .leave = {20000}};

static void leaving_server_receives_left_when_it_is_empty(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	w.conns[22].is_deaf = true; /* the scheduler must not wait for this agent */
	send_msg(&w, 1, &leave);
	tick(&w);
	assert_false(w.conns[1].has_left);
	pass(&w, 1000);
	assert_int_equal(parts(&w, "s1"), 0);
	assert_true(w.conns[1].has_left);
	assert_int_equal(w.conns[1].left_code, 0);
	sched_conn_closed(w.core, 1, w.now);
	w.conns[1].is_open = w.conns[22].is_deaf = false;
	/* the old s1 has left, so a new server with the name s1 is an ordinary server */
	server(&w, 3, "s1", 111);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), N_PARTS / 2);
	world_fini(&w);
}

/* Whether the server has partitions or not, it ends only after LEFT. */
static void server_that_joined_last_receives_left(void **state)
{
	(void)state;
	for (int is_empty = 0; is_empty < 2; is_empty++) {
		struct drain_world w;

		running_job(&w);
		server(&w, 3, "s3", 103);
		if (!is_empty)
			pass(&w, WAIT_MS);
		assert_true((parts(&w, "s3") == 0) == is_empty);
		send_msg(&w, 3, &leave);
		assert_true(is_empty || !w.conns[3].has_left);
		pass(&w, 3000);
		assert_int_equal(parts(&w, "s3"), 0);
		assert_true(w.conns[3].has_left);
		assert_int_equal(w.conns[3].left_code, 0);
		assert_int_equal(w.conns[3].n_left, 1);
		world_fini(&w);
	}
}

static void last_server_that_leaves_need_not_wait(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	send_msg(&w, 2, &leave);
	pass(&w, 1000);
	send_msg(&w, 1, &leave);
	assert_true(w.conns[1].has_left);
	assert_int_equal(w.conns[1].left_code, -BPS_ENOSERVER);
	assert_int_equal(parts(&w, "s1"), N_PARTS);
	world_fini(&w);
}

static void server_whose_sums_no_other_can_hold_need_not_wait(void **state)
{
	struct drain_world w;

	(void)state;
	world_init(&w);
	hello(&w, 1, ROLE_SERVER, "s1", 101, GIB);
	hello(&w, 2, ROLE_SERVER, "s2", 102, GIB);
	hello(&w, 21, ROLE_AGENT, "a", 201, 0);
	hello(&w, 22, ROLE_AGENT, "b", 202, 0);
	join(&w, 21, "x", 0, 2);
	join(&w, 22, "x", 1, 2);
	declare(&w, 21, 0, 448u << 20); /* sums need twice the tensor's size: 896 MiB */
	declare(&w, 22, 1, 448u << 20);
	send_msg(&w, 1, &leave);
	assert_true(w.conns[1].has_left);
	assert_int_equal(w.conns[1].left_code, -BPS_EQUOTA);
	assert_true(parts(&w, "s1") > 0);
	world_fini(&w);
}

static void server_that_leaves_need_not_wait_for_a_scheduler_that_cannot_write(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	w.persist_error = -ENOSPC;
	server(&w, 3, "s3", 103);
	send_msg(&w, 1, &leave);
	assert_true(w.conns[1].has_left);
	assert_int_equal(w.conns[1].left_code, -BPS_ENOTDURABLE);
	assert_true(parts(&w, "s1") > 0);
	world_fini(&w);
}

static void drained_server_is_better_than_none(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	drain(&w, "s1");
	pass(&w, WAIT_MS);
	sched_conn_closed(w.core, 2, w.now);
	w.conns[2].is_open = false;
	pass(&w, 2000);
	assert_int_equal(parts(&w, "s1"), N_PARTS);
	server(&w, 3, "s3", 103);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	assert_int_equal(parts(&w, "s3"), N_PARTS);
	world_fini(&w);
}

/* A server that has received LEFT, but has not ended yet, gets partitions if there is no other
 * server. */
static void server_that_has_left_is_better_than_none(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	send_msg(&w, 1, &leave);
	pass(&w, WAIT_MS);
	assert_true(w.conns[1].has_left);
	assert_int_equal(w.conns[1].left_code, 0);
	assert_int_equal(parts(&w, "s1"), 0);
	sched_conn_closed(w.core, 2, w.now);
	w.conns[2].is_open = false;
	pass(&w, 2000);
	assert_int_equal(parts(&w, "s1"), N_PARTS);
	server(&w, 3, "s3", 103);
	pass(&w, WAIT_MS);
	assert_int_equal(parts(&w, "s1"), 0);
	assert_int_equal(parts(&w, "s3"), N_PARTS);
	world_fini(&w);
}

static void drained_agent_gets_no_new_job_and_keeps_those_it_has(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	join(&w, 21, "forming", 0, 3);
	assert_int_equal(w.joined_code, 0);
	assert_int_equal(drain(&w, "agent:a"), 0);
	assert_non_null(strstr(w.text, "accepts no new jobs; its 2 running jobs go on"));
	join(&w, 21, "y", 0, 2);
	assert_int_equal(w.joined_code, -BPS_EDRAINED);
	assert_non_null(strstr(w.text, "drained and accepts no new jobs: disk (by alice)"));
	join(&w, 21, "forming", 1, 3);
	assert_int_equal(w.joined_code, 0);
	join(&w, 22, "forming", 2, 3);
	assert_int_equal(w.joined_code, 0);
	pass(&w, 1000);
	assert_int_equal(undrain(&w, "a"), 0);
	join(&w, 21, "y", 0, 2);
	assert_int_equal(w.joined_code, 0);
	world_fini(&w);
}

/* An agent that will restart and an agent that will not restart send the same message when they
 * stop. Only the operator's drain shows that the agent will not restart. */
static void only_a_drained_agent_that_stops_is_dead_at_once(void **state)
{
	(void)state;
	for (int is_drained = 0; is_drained < 2; is_drained++) {
		struct drain_world w;

		running_job(&w);
		if (is_drained)
			assert_int_equal(drain(&w, "agent:a"), 0);
		send_msg(&w, 21, &leave);
		assert_true(w.conns[21].has_left);
		pass(&w, 500);
		assert_non_null(sched_job_by_id(w.core, w.job));
		w.conns[21].is_open = false;
		sched_conn_closed(w.core, 21, w.now);
		tick(&w);
		assert_true((sched_job_by_id(w.core, w.job) == NULL) == is_drained);
		world_fini(&w);
	}
}

static void second_drain_without_a_reason_keeps_the_first_ones(void **state)
{
	struct drain_world w;
	struct err_text text = {""};
	struct sched_member *m;

	(void)state;
	running_job(&w);
	assert_int_equal(drain(&w, "s1"), 0);
	assert_int_equal(sched_drain(w.core, "s1", "", "bob", w.now, &text), 0);
	assert_int_equal(drain_find_member(w.core, "s1", &m, &text), 0);
	assert_string_equal(m->drain_reason, "disk");
	assert_string_equal(m->drain_who, "alice");
	assert_int_equal(sched_drain(w.core, "s1", "fan", "bob", w.now, &text), 0);
	assert_string_equal(m->drain_reason, "fan");
	assert_string_equal(m->drain_who, "bob");
	world_fini(&w);
}

static void name_of_two_members_needs_a_role(void **state)
{
	struct drain_world w;

	(void)state;
	running_job(&w);
	hello(&w, 24, ROLE_AGENT, "s1", 204, 0);
	assert_int_equal(drain(&w, "s1"), -EINVAL);
	assert_non_null(strstr(w.text, "use server:s1 or agent:s1"));
	assert_int_equal(drain(&w, "server:s1"), 0);
	assert_int_equal(drain(&w, "agent:s1"), 0);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drained_server_loses_its_partitions_some_at_a_time),
		cmocka_unit_test(repeated_order_does_not_hurry_the_next_batch),
		cmocka_unit_test(next_batch_waits_until_every_agent_has_the_last_one),
		cmocka_unit_test(last_server_is_not_drained),
		cmocka_unit_test(undrain_that_is_repeated_fails_until_it_is_written),
		cmocka_unit_test(
			partitions_return_to_an_undrained_server_when_the_servers_have_settled),
		cmocka_unit_test(server_is_not_drained_when_the_others_lack_memory),
		cmocka_unit_test(memory_of_a_suspect_server_is_no_room_for_a_drain),
		cmocka_unit_test(servers_of_one_host_share_its_memory),
		cmocka_unit_test(losses_that_are_tolerated_count_the_servers_that_a_drain_counts),
		cmocka_unit_test(drain_outlives_server_and_scheduler),
		cmocka_unit_test(interrupted_drain_goes_on_after_a_restart_of_the_scheduler),
		cmocka_unit_test(new_server_gets_its_share_and_then_nothing_moves),
		cmocka_unit_test(servers_that_join_together_get_equal_shares),
		cmocka_unit_test(nothing_moves_for_a_small_gain),
		cmocka_unit_test(server_with_a_slow_card_gets_less_when_that_is_measured),
		cmocka_unit_test(speed_that_is_set_is_not_measured),
		cmocka_unit_test(measured_speed_is_forgotten_when_a_server_returns_on_another_host),
		cmocka_unit_test(member_that_keeps_restarting_does_not_delay_measured_speeds),
		cmocka_unit_test(
			speed_of_a_new_member_is_used_some_time_after_its_first_measurement),
		cmocka_unit_test(new_server_gets_its_share_while_a_later_update_of_speeds_is_due),
		cmocka_unit_test(impossible_measured_speed_is_capped),
		cmocka_unit_test(server_process_per_card_counts_as_a_machine),
		cmocka_unit_test(noise_moves_nothing),
		cmocka_unit_test(
			card_of_a_restarted_server_is_as_fast_as_before_until_it_is_measured_anew),
		cmocka_unit_test(restart_of_the_scheduler_moves_nothing_back),
		cmocka_unit_test(speeds_are_used_seldom_however_they_change),
		cmocka_unit_test(leaving_server_receives_left_when_it_is_empty),
		cmocka_unit_test(server_that_joined_last_receives_left),
		cmocka_unit_test(last_server_that_leaves_need_not_wait),
		cmocka_unit_test(server_whose_sums_no_other_can_hold_need_not_wait),
		cmocka_unit_test(
			server_that_leaves_need_not_wait_for_a_scheduler_that_cannot_write),
		cmocka_unit_test(server_that_has_left_is_better_than_none),
		cmocka_unit_test(drained_server_is_better_than_none),
		cmocka_unit_test(only_a_drained_agent_that_stops_is_dead_at_once),
		cmocka_unit_test(drained_agent_gets_no_new_job_and_keeps_those_it_has),
		cmocka_unit_test(second_drain_without_a_reason_keeps_the_first_ones),
		cmocka_unit_test(name_of_two_members_needs_a_role),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
