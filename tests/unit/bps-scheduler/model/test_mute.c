/* Muted problems: how long they stay muted, also across restarts, and what muting changes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "bps-scheduler/core/core.h"
#include "bps-scheduler/model/mute.h"
#include "bps-scheduler/status/status.h"
#include "common/base/log.h"
#include "tests/unit/fake_sched.h"

#define S    UINT64_C(1000000000)
#define H_MS UINT64_C(3600000)

/* A scheduler's core and its latest durable state, for restarts. */
struct mute_world {
	struct sched_core *core;
	struct sched_config cfg;
	uint64_t now;
	void *bytes;
	size_t n_bytes;
	int persist_error;
};

static void env_drop(void *ctx, uint32_t conn, const char *why)
{
	(void)ctx;
	fail_msg("%u was dropped: %s", conn, why);
}

static int env_persist(void *ctx, const struct state_record *rec)
{
	struct mute_world *w = ctx;

	if (w->persist_error)
		return w->persist_error;
	free(w->bytes);
	w->n_bytes = codec_encoded_size(state_record_layout(), rec);
	w->bytes = malloc(w->n_bytes);
	assert_non_null(w->bytes);
	codec_encode(state_record_layout(), rec, w->bytes);
	return 0;
}

static void start(struct mute_world *w)
{
	struct sched_env env = {.ctx = w,
		.send = fake_sched_send,
		.drop = env_drop,
		.persist = env_persist,
		.random = fake_sched_random,
		.pair_key = fake_sched_pair_key};
	struct state_record rec;
	struct err_text err = {""};
	void *mem = NULL;

	w->core = sched_new(&w->cfg, &env);
	if (w->bytes) {
		assert_int_equal(codec_decode(state_record_layout(), w->bytes, w->n_bytes, 1 << 20,
					 &rec, &mem, &err),
			0);
		if (sched_restore(w->core, &rec, &err) < 0)
			fail_msg("%s", err.s);
		free(mem);
	}
	assert_int_equal(sched_start(w->core, w->now), 0);
	assert_int_equal(sched_snapshot(w->core, env_persist, w), 0);
}

static void restart(struct mute_world *w)
{
	sched_free(w->core);
	start(w);
}

static void world_init(struct mute_world *w)
{
	*w = (struct mute_world){.now = 1000 * S};
	log_set_level(LOG_ERROR);
	sched_config_default(&w->cfg);
	memset(w->cfg.boot_id, 1, sizeof(w->cfg.boot_id));
	w->cfg.unix_offset_s = 1700000000;
	start(w);
}

static void world_fini(struct mute_world *w)
{
	sched_free(w->core);
	free(w->bytes);
}

static bool is_muted(struct mute_world *w, const char *code)
{
	return mute_find_active(w->core, code, w->now) != NULL;
}

static void mute_ends_at_its_time_or_by_an_order(void **state)
{
	struct mute_world w;

	(void)state;
	world_init(&w);
	assert_int_equal(sched_mute(w.core, "SERVER_DOWN", H_MS, "", "me", w.now), 0);
	assert_int_equal(sched_mute(w.core, "STRAGGLER", 2 * H_MS, "", "me", w.now), 0);
	assert_true(is_muted(&w, "SERVER_DOWN"));
	w.now += 3600 * S;
	assert_false(is_muted(&w, "SERVER_DOWN"));
	assert_true(is_muted(&w, "STRAGGLER"));
	assert_int_equal(sched_unmute(w.core, "STRAGGLER", w.now), 0);
	assert_false(is_muted(&w, "STRAGGLER"));
	assert_int_equal(sched_unmute(w.core, "STRAGGLER", w.now), BPS_ENOTFOUND);
	assert_int_equal(sched_unmute(w.core, "SERVER_DOWN", w.now), BPS_ENOTFOUND);
	world_fini(&w);
}

static void muting_again_sets_a_new_end(void **state)
{
	struct mute_world w;

	(void)state;
	world_init(&w);
	assert_int_equal(sched_mute(w.core, "STRAGGLER", H_MS, "", "me", w.now), 0);
	assert_int_equal(sched_mute(w.core, "STRAGGLER", 1000, "b", "me", w.now), 0);
	assert_string_equal(mute_find_active(w.core, "STRAGGLER", w.now)->reason, "b");
	w.now += 1 * S;
	assert_false(is_muted(&w, "STRAGGLER"));
	world_fini(&w);
}

static void restart_of_the_scheduler_changes_neither_mute_nor_end(void **state)
{
	struct mute_world w;

	(void)state;
	world_init(&w);
	assert_int_equal(sched_mute(w.core, "STRAGGLER", H_MS, "old node", "me", w.now), 0);
	w.now += 1800 * S;
	w.cfg.unix_offset_s += 86400; /* changing the wall clock has no effect */
	restart(&w);
	restart(&w); /* the second restart reads a snapshot */
	assert_true(is_muted(&w, "STRAGGLER"));
	assert_string_equal(mute_find_active(w.core, "STRAGGLER", w.now)->reason, "old node");
	assert_string_equal(mute_find_active(w.core, "STRAGGLER", w.now)->who, "me");
	w.now += 1800 * S - 1;
	assert_true(is_muted(&w, "STRAGGLER"));
	w.now += 1;
	assert_false(is_muted(&w, "STRAGGLER"));
	world_fini(&w);
}

static void after_another_boot_the_wall_clock_gives_the_end(void **state)
{
	struct mute_world w;

	(void)state;
	world_init(&w);
	assert_int_equal(sched_mute(w.core, "STRAGGLER", H_MS, "", "me", w.now), 0);
	/* The machine was off for ten minutes. Its monotonic clock starts at 0 again. */
	memset(w.cfg.boot_id, 2, sizeof(w.cfg.boot_id));
	w.cfg.unix_offset_s += 1000 + 600;
	w.now = 0;
	restart(&w);
	w.now = 2999 * S;
	assert_true(is_muted(&w, "STRAGGLER"));
	w.now = 3000 * S;
	assert_false(is_muted(&w, "STRAGGLER"));
	world_fini(&w);
}

static void mute_that_cannot_be_written_holds_and_is_written_later(void **state)
{
	struct mute_world w;

	(void)state;
	world_init(&w);
	w.persist_error = -EIO;
	assert_int_equal(sched_mute(w.core, "STRAGGLER", H_MS, "", "me", w.now), -EIO);
	assert_true(is_muted(&w, "STRAGGLER"));
	w.persist_error = 0;
	w.now += S;
	sched_tick(w.core, w.now);
	assert_true(sched_is_durable(w.core));
	restart(&w);
	assert_true(is_muted(&w, "STRAGGLER"));
	world_fini(&w);
}

/* An operator repeats an order that failed until it succeeds. */
static void unmute_that_is_repeated_fails_until_it_is_written(void **state)
{
	struct mute_world w;

	(void)state;
	world_init(&w);
	assert_int_equal(sched_mute(w.core, "STRAGGLER", H_MS, "", "me", w.now), 0);
	w.persist_error = -EIO;
	assert_int_equal(sched_unmute(w.core, "STRAGGLER", w.now), -EIO);
	assert_int_equal(sched_unmute(w.core, "STRAGGLER", w.now), BPS_ENOTDURABLE);
	w.persist_error = 0;
	restart(&w);
	assert_true(is_muted(&w, "STRAGGLER"));
	assert_int_equal(sched_unmute(w.core, "STRAGGLER", w.now), 0);
	assert_int_equal(sched_unmute(w.core, "STRAGGLER", w.now), BPS_ENOTFOUND);
	world_fini(&w);
}

static void number_of_mutes_is_limited(void **state)
{
	struct mute_world w;
	char code[16];

	(void)state;
	world_init(&w);
	for (unsigned i = 0; i <= MUTES_MAX; i++) {
		snprintf(code, sizeof(code), "C%u", i);
		assert_int_equal(sched_mute(w.core, code, 1000, "", "me", w.now),
			i < MUTES_MAX ? 0 : BPS_EQUOTA);
	}
	w.now += S;
	assert_int_equal(sched_mute(w.core, "LATER", 1000, "", "me", w.now), 0);
	world_fini(&w);
}

static void muted_problem_leaves_the_health_but_not_the_list(void **state)
{
	struct mute_world w;
	struct status_info info = {.now_ns = 0};
	json_t *root, *p;

	(void)state;
	world_init(&w);
	w.persist_error = -EIO;
	/* the scheduler cannot save its state, so it reports the problem STATE_NOT_DURABLE */
	sched_mute(w.core, "STRAGGLER", H_MS, "", "me", w.now);
	info.now_ns = w.now;
	root = status_cluster(w.core, &info);
	assert_string_equal(json_string_value(json_object_get(root, "health")), "ERR");
	json_decref(root);
	sched_mute(w.core, "STATE_NOT_DURABLE", H_MS, "disk is on its way", "me", w.now);
	root = status_cluster(w.core, &info);
	assert_string_equal(json_string_value(json_object_get(root, "health")), "OK");
	p = json_array_get(json_object_get(root, "problems"), 0);
	assert_string_equal(json_string_value(json_object_get(p, "code")), "STATE_NOT_DURABLE");
	assert_true(json_is_true(json_object_get(p, "muted")));
	p = json_array_get(json_object_get(root, "muted"), 1);
	assert_string_equal(json_string_value(json_object_get(p, "reason")), "disk is on its way");
	assert_int_equal((int)json_real_value(json_object_get(p, "left_s")), 3600);
	json_decref(root);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mute_ends_at_its_time_or_by_an_order),
		cmocka_unit_test(muting_again_sets_a_new_end),
		cmocka_unit_test(restart_of_the_scheduler_changes_neither_mute_nor_end),
		cmocka_unit_test(after_another_boot_the_wall_clock_gives_the_end),
		cmocka_unit_test(mute_that_cannot_be_written_holds_and_is_written_later),
		cmocka_unit_test(unmute_that_is_repeated_fails_until_it_is_written),
		cmocka_unit_test(number_of_mutes_is_limited),
		cmocka_unit_test(muted_problem_leaves_the_health_but_not_the_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
