/* The client library with a fake agent: several workers, declarations, push_pull, and a job of one
 * worker. Each thread of the test is a worker. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "common/base/clock.h"
#include "tests/unit/client_rig.h"

/* ---- several workers ---- */

struct client_worker {
	struct fake_agent *f;
	int rank, size;
	void (*body)(struct client_worker *w, struct bps *b);
	int rc;
	char text[512];
};

static void *worker_main(void *arg)
{
	struct client_worker *w = arg;
	struct bps_options o = options_of(w->f, w->rank, w->size);
	struct bps *b;

	w->rc = bps_open(&o, &b);
	if (!w->rc) {
		w->body(w, b);
		if (w->rc)
			bps_abort(b);
		else
			w->rc = bps_close(b, 0);
	}
	snprintf(w->text, sizeof(w->text), "%s", bps_last_error());
	return NULL;
}

static void run_workers(
	struct fake_agent *f, int size, void (*body)(struct client_worker *, struct bps *))
{
	struct client_worker w[TRAINERS_MAX];
	pthread_t threads[TRAINERS_MAX];

	for (int i = 0; i < size; i++) {
		w[i] = (struct client_worker){.f = f, .rank = i, .size = size, .body = body};
		assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &w[i]), 0);
	}
	for (int i = 0; i < size; i++) {
		pthread_join(threads[i], NULL);
		if (w[i].rc)
			fail_msg("rank %d: %d %s", i, w[i].rc, w[i].text);
	}
}

static void sum_rounds(struct client_worker *w, struct bps *b)
{
	struct bps_tensor *t;
	const float *out;
	float *in;

	if ((w->rc = bps_declare(b, "w", BPS_F32, 1000, &t)))
		return;
	in = bps_input(t);
	for (int r = 1; r <= 50 && !w->rc; r++) {
		for (int i = 0; i < 1000; i++)
			in[i] = (float)(i * r * (w->rank + 1));
		if ((w->rc = bps_push_pull(t, BPS_SUM, BPS_PRIORITY_AUTO)) ||
			(w->rc = bps_wait(t, 0)))
			return;
		out = bps_output(t);
		for (int i = 0; i < 1000; i++)
			if (out[i] != (float)(i * r * 10))
				w->rc = -ERANGE;
	}
	if (bps_contributors(t) != 4)
		w->rc = -ERANGE;
}

static void four_workers_sum_over_many_rounds(void **state)
{
	struct fake_agent *f = fake_agent_new();

	(void)state;
	fake_agent_start(f);
	run_workers(f, 4, sum_rounds);
	fake_agent_free(f);
}

static void collect_all(struct client_worker *w, struct bps *b)
{
	size_t n = 70000;
	char *data = calloc(4, n), *mine = calloc(1, n);

	for (size_t i = 0; i < n; i++) {
		mine[i] = (char)(i * 7 + (size_t)w->rank);
		data[i] = w->rank == 2 ? (char)(i * 3) : 'x';
	}
	if ((w->rc = bps_barrier(b, 0)) || (w->rc = bps_broadcast(b, data, n, 2, 0)))
		goto out;
	for (size_t i = 0; i < n; i++)
		if (data[i] != (char)(i * 3))
			w->rc = -ERANGE;
	if (w->rc || (w->rc = bps_allgather(b, mine, n, data, 0)))
		goto out;
	for (size_t r = 0; r < 4; r++)
		for (size_t i = 0; i < n; i++)
			if (data[r * n + i] != (char)(i * 7 + r))
				w->rc = -ERANGE;
out:
	free(mine);
	free(data);
}

static void barrier_broadcast_and_allgather_reach_all(void **state)
{
	struct fake_agent *f = fake_agent_new();

	(void)state;
	fake_agent_start(f);
	run_workers(f, 4, collect_all);
	fake_agent_free(f);
}

static void expect_rc(struct client_worker *w, int is, int want)
{
	if (!w->rc && is != want)
		w->rc = is ? is : -ERANGE;
}

static char pattern(size_t i, size_t key)
{
	return (char)(i * 7 + i / 251 + 31 * key + 1);
}

/* Broadcast and gather n bytes, and check the results. The calls reuse tensors of earlier calls,
 * whose inputs still contain old values. These values must not appear in the results. */
static void collect_bytes(struct client_worker *w, struct bps *b, size_t n, int root)
{
	char *data = malloc(2 * n), *mine = malloc(n);

	for (size_t i = 0; i < n; i++) {
		mine[i] = pattern(i, (size_t)w->rank);
		data[i] = w->rank == root ? pattern(i, n) : 'x';
	}
	expect_rc(w, bps_broadcast(b, data, n, root, 0), 0);
	for (size_t i = 0; !w->rc && i < n; i++)
		if (data[i] != pattern(i, n))
			w->rc = -ERANGE;
	expect_rc(w, bps_allgather(b, mine, n, data, 0), 0);
	for (size_t i = 0; !w->rc && i < 2 * n; i++)
		if (data[i] != pattern(i % n, i / n))
			w->rc = -ERANGE;
	free(mine);
	free(data);
}

static void collect_sizes(struct client_worker *w, struct bps *b)
{
	static const size_t sizes[] = {1, 64, 65, 4097, 65536, 65537, 1 << 20, (1 << 20) + 1,
		(9 << 20) + 65537, 600001, (9 << 20) + 100, 3 << 20, 17};

	for (size_t i = 0; !w->rc && i < sizeof(sizes) / sizeof(sizes[0]); i++)
		collect_bytes(w, b, sizes[i], (int)(i & 1));
}

static void collectives_of_any_size_follow_each_other(void **state)
{
	struct fake_agent *f = fake_agent_new();

	(void)state;
	fake_agent_start(f);
	run_workers(f, 2, collect_sizes);
	fake_agent_free(f);
}

static void pieces_of_a_collective_are_in_flight_together(void **state)
{
	struct fake_agent *f = fake_agent_new();
	size_t n = 20 << 20;
	char *data = calloc(1, n);
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_broadcast(b, data, n, 0, 100), BPS_ETIMEDOUT);
	assert_int_equal(atomic_load(&f->submissions), 8);
	assert_int_equal(bps_broadcast(b, data, n, 0, 100), BPS_EBUSY);
	assert_int_equal(atomic_load(&f->submissions), 8);
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_broadcast(b, data, n, 0, 0), 0);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
	free(data);
}

static sem_t has_given_up;

static void collect_in_vain(struct client_worker *w, struct bps *b)
{
	char byte = 'a';

	if (w->rank == 0) {
		expect_rc(w, bps_broadcast(b, &byte, 1, 0, 1), BPS_ETIMEDOUT);
		byte = 'b';
		expect_rc(w, bps_broadcast(b, &byte, 1, 0, 1), BPS_EBUSY);
		sem_post(&has_given_up);
	} else {
		sem_wait(&has_given_up);
		expect_rc(w, bps_broadcast(b, &byte, 1, 0, 0), 0);
		expect_rc(w, byte, 'a');
	}
	expect_rc(w, bps_barrier(b, 0), 0);
}

static void collective_behind_one_in_flight_does_not_touch_its_bytes(void **state)
{
	struct fake_agent *f = fake_agent_new();

	(void)state;
	sem_init(&has_given_up, 0, 0);
	fake_agent_start(f);
	run_workers(f, 2, collect_in_vain);
	fake_agent_free(f);
	sem_destroy(&has_given_up);
}

/* Each worker has four threads, and each thread has its own tensors. */
struct client_lane {
	struct bps *b;
	int lane, rank, rc;
};

static void *lane_main(void *arg)
{
	struct client_lane *l = arg;
	struct bps_tensor *t[4];
	char name[32];

	for (int i = 0; i < 4 && !l->rc; i++) {
		snprintf(name, sizeof(name), "t%d.%d", l->lane, i);
		l->rc = bps_declare(l->b, name, BPS_I32, 16, &t[i]);
	}
	for (int r = 0; r < 1000 && !l->rc; r++) {
		for (int i = 0; i < 4; i++)
			*(int32_t *)bps_input(t[i]) = r + i + l->rank;
		l->rc = bps_push_pull_group(t, 4, BPS_SUM, BPS_PRIORITY_AUTO);
		if (!l->rc)
			l->rc = bps_wait_group(t, 4, 0);
		for (int i = 0; i < 4 && !l->rc; i++)
			if (*(const int32_t *)bps_output(t[i]) != 2 * (r + i) + 1)
				l->rc = -ERANGE;
	}
	return NULL;
}

static void run_lanes(struct client_worker *w, struct bps *b)
{
	struct client_lane lanes[4];
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		lanes[i] = (struct client_lane){.b = b, .lane = i, .rank = w->rank};
		if (pthread_create(&threads[i], NULL, lane_main, &lanes[i]))
			abort();
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		w->rc = w->rc ? w->rc : lanes[i].rc;
	}
}

static void many_threads_share_one_job(void **state)
{
	struct fake_agent *f = fake_agent_new();

	(void)state;
	fake_agent_start(f);
	run_workers(f, 2, run_lanes);
	fake_agent_free(f);
}

/* ---- declare ---- */

static void bad_declarations_are_refused(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t, *same;
	char longest[257];
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	memset(longest, 'n', 256);
	longest[256] = 0;
	assert_int_equal(bps_declare(b, "", BPS_F32, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, NULL, BPS_F32, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, longest, BPS_F32, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "w", BPS_F32, 0, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "w", (enum bps_dtype)3, 1, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "w", BPS_F64, UINT64_MAX / 8, &t), -EINVAL);
	assert_int_equal(bps_declare(b, "__bps.w", BPS_F32, 1, &t), -EINVAL);
	assert_error_has("are reserved");
	longest[255] = 0;
	assert_int_equal(bps_declare(b, longest, BPS_F32, 1, &t), 0);
	assert_int_equal(bps_declare(b, longest, BPS_F32, 1, &same), 0);
	assert_ptr_equal(t, same);
	assert_int_equal(bps_declare(b, longest, BPS_F32, 2, &t), BPS_EMISMATCH);
	assert_error_has("f32 x 1");
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void more_tensors_than_a_frame_holds_are_declared_in_one_call(void **state)
{
	enum { N = 250 };
	struct fake_agent *f = fake_agent_new();
	struct bps_decl decls[N];
	struct bps_tensor *t[N];
	char names[N][8];
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "t%d", i % (N - 1));
		decls[i] = (struct bps_decl){.size = sizeof(decls[i]),
			.name = names[i],
			.dtype = BPS_F32,
			.n_values = 4};
	}
	assert_int_equal(bps_declare_group(b, decls, N, t), 0);
	assert_ptr_equal(t[0], t[N - 1]);
	for (int i = 0; i < N - 1; i++) {
		assert_string_equal(bps_name(t[i]), names[i]);
		assert_null(bps_output(t[i]));
		*(float *)bps_input(t[i]) = (float)i;
	}
	assert_int_equal(bps_push_pull_group(t, N - 1, BPS_SUM, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait_group(t, N - 1, 0), 0);
	for (int i = 0; i < N - 1; i++)
		assert_true(*(const float *)bps_output(t[i]) == (float)i);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void refused_tensor_is_reported_and_may_be_declared_again(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->refused_name = "big";
	fake_agent_start(f);
	b = open_one(f);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(bps_declare(b, "big", BPS_F32, 9, &t), BPS_EQUOTA);
		assert_error_has("tensor 'big' in job 'j': limit 1 MiB");
	}
	declare(b, "small", 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void slot_outside_of_its_arena_is_refused(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->misplaces_slots = true;
	fake_agent_start(f);
	b = open_one(f);
	assert_int_equal(bps_declare(b, "w", BPS_F32, 9, &t), BPS_EPROTO);
	assert_int_equal(bps_close(b, 0), BPS_EPROTO);
	fake_agent_free(f);
}

/* ---- push_pull ---- */

static void results_stay_until_the_round_after_the_next(void **state)
{
	struct fake_agent *f = fake_agent_new();
	const float *first, *second;
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	*(float *)bps_input(t) = 1;
	assert_int_equal(bps_push_pull(t, BPS_SUM, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	first = bps_output(t);
	*(float *)bps_input(t) = 2;
	assert_int_equal(bps_push_pull(t, BPS_AVG, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait(t, 0), 0);
	second = bps_output(t);
	assert_true(*first == 1 && *second == 2);
	assert_int_equal(bps_poll(t), 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void copies_are_taken_at_the_call_and_delivered_by_the_wait(void **state)
{
	struct fake_agent *f = fake_agent_new();
	float src[3] = {1, 2, 3}, dst[3] = {0};
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 3);
	assert_int_equal(bps_push_pull_copy(t, src, dst, BPS_SUM, 0), 0);
	src[0] = 99;
	assert_int_equal(bps_push_pull_copy(t, src, dst, BPS_SUM, 0), BPS_EBUSY);
	assert_int_equal(bps_poll(t), 0);
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait(t, 0), 0);
	assert_true(dst[0] == 1 && dst[1] == 2 && dst[2] == 3);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void second_push_pull_in_flight_is_busy_and_a_group_is_all_or_none(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t[3];
	struct bps *b;

	(void)state;
	f->is_mute = true;
	fake_agent_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	t[2] = t[0];
	assert_int_equal(bps_push_pull_group(t, 3, BPS_SUM, 0), BPS_EBUSY);
	assert_int_equal(bps_poll(t[0]), 1);
	assert_int_equal(bps_push_pull(t[1], BPS_SUM, 0), 0);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, 0), BPS_EBUSY);
	assert_error_has("tensor 'b'");
	assert_int_equal(bps_poll(t[0]), 1);
	assert_int_equal(bps_push_pull(t[0], (enum bps_op)5, 0), -EINVAL);
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait_group(t, 2, 0), 0);
	assert_int_equal(atomic_load(&f->submissions), 1);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void first_declared_goes_first_and_explicit_priorities_are_clamped(void **state)
{
	static const struct {
		int32_t priority;
		uint16_t wire;
	} cases[] = {{0, 32768}, {-1, 32767}, {INT32_MAX, 65535}, {-40000, 0}};
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t[2];
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, BPS_PRIORITY_AUTO), 0);
	assert_int_equal(bps_wait_group(t, 2, 0), 0);
	assert_int_equal(f->trainers[0].last_priority[0], 65535);
	assert_int_equal(f->trainers[0].last_priority[1], 65534);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(bps_push_pull(t[0], BPS_SUM, cases[i].priority), 0);
		assert_int_equal(bps_wait(t[0], 0), 0);
		assert_int_equal(f->trainers[0].last_priority[0], cases[i].wire);
	}
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

/* ---- waiting for the first of several operations ---- */

static void completed_tensors_are_reported_in_the_order_of_their_completion(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t[4];
	size_t idx[4];
	struct bps *b;

	(void)state;
	f->mute_name = "d";
	fake_agent_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	t[2] = declare(b, "c", 1);
	t[3] = declare(b, "d", 1);
	for (int i = 3; i >= 0; i--)
		assert_int_equal(bps_push_pull(t[(i + 1) % 4], BPS_SUM, 0), 0);
	assert_int_equal(bps_wait_group(t, 3, 0), 0);
	assert_int_equal(bps_wait_some(t, 4, 0, idx), 3);
	assert_int_equal(idx[0], 0);
	assert_int_equal(idx[1], 2);
	assert_int_equal(idx[2], 1);
	t[0] = t[1] = t[2] = NULL;
	assert_int_equal(bps_wait_some(t, 4, 20, idx), BPS_ETIMEDOUT);
	assert_error_has("tensor 'd'");
	f->mute_name = NULL;
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait_some(t, 4, 0, idx), 1);
	assert_int_equal(idx[0], 3);
	t[3] = NULL;
	assert_int_equal(bps_wait_some(t, 4, 0, idx), 0);
	assert_int_equal(bps_wait_some(NULL, 1, 0, idx), -EINVAL);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

static void *speak_main(void *arg)
{
	fake_agent_order(arg, FAKE_SPEAK);
	return NULL;
}

static void wait_for_some_ends_with_the_first_of_them(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct bps_tensor *t[2];
	pthread_t thread;
	size_t idx[2];
	struct bps *b;

	(void)state;
	f->is_mute = true;
	f->mute_name = "a";
	fake_agent_start(f);
	b = open_one(f);
	t[0] = declare(b, "a", 1);
	t[1] = declare(b, "b", 1);
	assert_int_equal(bps_push_pull_group(t, 2, BPS_SUM, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, speak_main, f), 0);
	assert_int_equal(bps_wait_some(t, 2, 0, idx), 1);
	assert_int_equal(idx[0], 1);
	pthread_join(thread, NULL);
	bps_abort(b);
	fake_agent_free(f);
}

static void on_signal(int number)
{
	(void)number;
}

static void interruptible_wait_ends_after_a_signal_and_goes_on(void **state)
{
	struct sigaction action = {.sa_handler = on_signal};
	struct itimerspec soon = {.it_value = {.tv_nsec = 1000000}, .it_interval = {0, 1000000}};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct fake_agent *f = fake_agent_new();
	uint64_t begun_ns = 0, first_ns;
	struct bps_tensor *t;
	timer_t timer;
	struct bps *b;

	(void)state;
	f->mute_name = "a";
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "a", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(bps_wait_intr(t, 60000, &begun_ns), -EINTR); /* after half a second */
	first_ns = begun_ns;
	assert_true(first_ns && clock_now_ns() - first_ns >= 400 * NS_PER_MS);
	assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
	assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	assert_int_equal(timer_settime(timer, 0, &soon, NULL), 0);
	for (int i = 0; i < 50; i++)
		assert_int_equal(bps_wait_intr(t, 60000, &begun_ns), -EINTR);
	timer_delete(timer);
	assert_true(begun_ns == first_ns);
	assert_int_equal(bps_wait_intr(t, 1, &begun_ns), BPS_ETIMEDOUT);
	assert_error_has("tensor 'a'");
	f->mute_name = NULL;
	fake_agent_order(f, FAKE_SPEAK);
	assert_int_equal(bps_wait_intr(t, 60000, &begun_ns), 0);
	assert_int_equal(bps_wait_intr(t, 60000, &begun_ns), 0);
	assert_int_equal(bps_wait_intr(t, 0, NULL), -EINVAL);
	assert_int_equal(bps_wait_intr(NULL, 0, &begun_ns), -EINVAL);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

struct other_rounds {
	struct bps_tensor *t;
	atomic_bool is_enough;
};

static void *complete_rounds(void *arg)
{
	struct other_rounds *o = arg;

	while (!o->is_enough)
		if (bps_push_pull(o->t, BPS_SUM, 0) || bps_wait(o->t, 0))
			return o;
	return NULL;
}

static void interruptible_wait_returns_while_other_rounds_complete(void **state)
{
	struct fake_agent *f = fake_agent_new();
	struct other_rounds others = {NULL};
	uint64_t begun_ns = 0;
	struct bps_tensor *t;
	pthread_t thread;
	void *failed;
	struct bps *b;

	(void)state;
	f->mute_name = "a";
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "a", 1);
	others.t = declare(b, "b", 1);
	assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
	assert_int_equal(pthread_create(&thread, NULL, complete_rounds, &others), 0);
	/* not BPS_ETIMEDOUT */
	assert_int_equal(bps_wait_intr(t, 20000, &begun_ns), -EINTR);
	others.is_enough = true;
	pthread_join(thread, &failed);
	assert_null(failed);
	bps_abort(b);
	fake_agent_free(f);
}

static void results_lie_at_the_two_addresses_in_turn(void **state)
{
	struct fake_agent *f = fake_agent_new();
	const void *out[2];
	struct bps_tensor *t;
	struct bps_info info;
	struct bps *b;

	(void)state;
	fake_agent_start(f);
	b = open_one(f);
	t = declare(b, "w", 1);
	assert_int_equal(bps_outputs(t, out), 0);
	for (int r = 1; r <= 3; r++) {
		*(float *)bps_input(t) = (float)r;
		assert_int_equal(bps_push_pull(t, BPS_SUM, 0), 0);
		assert_int_equal(bps_wait(t, 0), 0);
		assert_int_equal(bps_tensor_info(t, &info), 0);
		assert_ptr_equal(out[info.round & 1], bps_output(t));
		assert_true(*(const float *)out[r & 1] == (float)r);
	}
	assert_int_equal(bps_outputs(NULL, out), -EINVAL);
	assert_int_equal(bps_outputs(t, NULL), -EINVAL);
	assert_int_equal(bps_close(b, 0), 0);
	fake_agent_free(f);
}

/* ---- a job of one worker ---- */

static void job_of_one_worker_needs_no_agent(void **state)
{
	char data[8] = "abcdefg", all[8];
	uint64_t begun_ns = 0;
	struct bps_tensor *t;
	struct bps *b;

	(void)state;
	unsetenv("BPS_FORCE_DISTRIBUTED");
	assert_int_equal(bps_open(NULL, &b), 0);
	assert_int_equal(bps_rank(b), 0);
	assert_int_equal(bps_size(b), 1);
	t = declare(b, "w", 2);
	assert_int_equal(bps_push_pull(t, BPS_BOR, 0), -EINVAL);
	assert_string_equal(bps_last_error(),
		"push_pull: tensor 'w': bor is an operation on integers, not on f32");
	assert_int_equal(bps_push_pull(t, (enum bps_op)8, 0), -EINVAL);
	for (int op = BPS_SUM; op <= BPS_AVG; op++) {
		((float *)bps_input(t))[0] = (float)op + 1;
		assert_int_equal(bps_push_pull(t, (enum bps_op)op, 0), 0);
		assert_int_equal(bps_wait(t, 0), 0);
		assert_true(((const float *)bps_output(t))[0] == (float)op + 1);
	}
	assert_int_equal(bps_wait_intr(t, 0, &begun_ns), 0);
	assert_int_equal(bps_contributors(t), 1);
	assert_int_equal(bps_barrier(b, 0), 0);
	assert_int_equal(bps_broadcast(b, data, 8, 0, 0), 0);
	assert_int_equal(bps_broadcast(b, data, 8, 1, 0), -EINVAL);
	assert_int_equal(bps_allgather(b, data, 8, all, 0), 0);
	assert_string_equal(all, "abcdefg");
	assert_int_equal(bps_close(b, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(four_workers_sum_over_many_rounds),
		T(barrier_broadcast_and_allgather_reach_all),
		T(collectives_of_any_size_follow_each_other),
		T(pieces_of_a_collective_are_in_flight_together),
		T(collective_behind_one_in_flight_does_not_touch_its_bytes),
		T(many_threads_share_one_job),
		T(bad_declarations_are_refused),
		T(more_tensors_than_a_frame_holds_are_declared_in_one_call),
		T(refused_tensor_is_reported_and_may_be_declared_again),
		T(slot_outside_of_its_arena_is_refused),
		T(results_stay_until_the_round_after_the_next),
		T(copies_are_taken_at_the_call_and_delivered_by_the_wait),
		T(second_push_pull_in_flight_is_busy_and_a_group_is_all_or_none),
		T(first_declared_goes_first_and_explicit_priorities_are_clamped),
		T(completed_tensors_are_reported_in_the_order_of_their_completion),
		T(wait_for_some_ends_with_the_first_of_them),
		T(interruptible_wait_ends_after_a_signal_and_goes_on),
		T(interruptible_wait_returns_while_other_rounds_complete),
		T(results_lie_at_the_two_addresses_in_turn),
		T(job_of_one_worker_needs_no_agent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
