/* Tests of a loop's queue, of how long a data loop pauses its spinning, and of messages to the
 * service manager. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/daemon/notify.h"
#include "common/loop/dataloop.h"
#include "common/loop/loop.h"

#define DEADLINE_S 5
#define N_POSTS    1000

struct gate {
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	bool is_open;
};

static struct gate gate_make(void)
{
	return (struct gate){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
}

static void gate_open(void *arg)
{
	struct gate *g = arg;

	pthread_mutex_lock(&g->mutex);
	g->is_open = true;
	pthread_cond_signal(&g->cond);
	pthread_mutex_unlock(&g->mutex);
}

static bool gate_pass(struct gate *g)
{
	struct timespec until;
	bool is_open;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += DEADLINE_S;
	pthread_mutex_lock(&g->mutex);
	while (!g->is_open && !rc)
		rc = pthread_cond_timedwait(&g->cond, &g->mutex, &until);
	is_open = g->is_open;
	pthread_mutex_unlock(&g->mutex);
	return is_open;
}

static void *run_loop(void *arg)
{
	loop_run(arg);
	return NULL;
}

static struct loop *start_loop(unsigned queue_count, pthread_t *ret_thread)
{
	struct err_text err;
	struct loop *l;

	assert_int_equal(loop_new(&l, "test", queue_count, &err), 0);
	assert_non_null(loop_base(l));
	assert_int_equal(pthread_create(ret_thread, NULL, run_loop, l), 0);
	return l;
}

static void stop_loop(struct loop *l, pthread_t thread)
{
	loop_quit(l);
	pthread_join(thread, NULL);
}

static void wait_at_gate(void *arg)
{
	gate_pass(arg);
}

struct counting {
	unsigned next, out_of_order;
};

struct numbered {
	struct counting *counting;
	unsigned number;
};

static void count(void *arg)
{
	struct numbered *n = arg;

	n->counting->out_of_order += n->number != n->counting->next;
	n->counting->next++;
}

static void posts_run_in_order_and_all_before_the_stop(void **state)
{
	struct counting counting = {0, 0};
	struct numbered *numbers = calloc(N_POSTS, sizeof(*numbers));
	pthread_t thread;
	struct loop *l = start_loop(N_POSTS, &thread);

	(void)state;
	for (unsigned i = 0; i < N_POSTS; i++) {
		numbers[i] = (struct numbered){&counting, i};
		assert_int_equal(loop_post(l, count, &numbers[i]), 0);
	}
	stop_loop(l, thread);
	assert_int_equal(counting.next, N_POSTS);
	assert_int_equal(counting.out_of_order, 0);
	assert_int_equal(loop_post(l, count, &numbers[0]), BPS_ECLOSED);
	loop_free(l);
	free(numbers);
}

static void full_queue_refuses_and_recovers(void **state)
{
	struct gate entered = gate_make(), hold = gate_make(), done = gate_make();
	struct counting counting = {0, 0};
	struct numbered number = {&counting, 0};
	pthread_t thread;
	struct loop *l = start_loop(2, &thread);

	(void)state;
	assert_int_equal(loop_post(l, gate_open, &entered), 0);
	assert_true(gate_pass(&entered));
	assert_int_equal(loop_post(l, wait_at_gate, &hold), 0);
	while (loop_post(l, count, &number) == 0)
		;
	assert_int_equal(loop_post(l, count, &number), -EAGAIN);
	gate_open(&hold);
	while (loop_post(l, gate_open, &done) == -EAGAIN)
		sched_yield();
	assert_true(gate_pass(&done));
	stop_loop(l, thread);
	loop_free(l);
	assert_true(counting.next >= 1);
}

static void loop_in_the_callers_thread_ends_on_quit(void **state)
{
	struct gate ran = gate_make();
	struct err_text err;
	struct loop *l;

	(void)state;
	assert_int_equal(loop_new(&l, "test", 4, &err), 0);
	assert_int_equal(loop_post(l, gate_open, &ran), 0);
	loop_quit(l);
	loop_run(l);
	assert_true(ran.is_open);
	loop_free(l);
}

static void pause_of_a_spinning_loop_doubles_only_under_load(void **state)
{
	const uint64_t ms = 1000000, min = DATALOOP_REST_MIN_NS, max = DATALOOP_REST_MAX_NS;
	uint64_t rest = dataloop_rest_ns(0, 5 * ms);

	(void)state;
	assert_true(rest == min);
	/* On an idle machine, 200 ms pass between the end of a pause and the next slow sched_yield.
	 * The pause stays at its minimum. */
	for (unsigned i = 0; i < 50; i++)
		assert_true((rest = dataloop_rest_ns(rest, 200 * ms)) == min);
	/* On a busy machine, only 1 ms passes between the end of a pause and the next slow
	 * sched_yield. The pause doubles each time, up to its maximum. */
	for (uint64_t want = 2 * min; want < max; want *= 2)
		assert_true((rest = dataloop_rest_ns(rest, ms)) == want);
	for (unsigned i = 0; i < 5; i++)
		assert_true((rest = dataloop_rest_ns(rest, ms)) == max);
	/* When the load is over, the pause returns to its minimum. */
	assert_true(dataloop_rest_ns(max, 2 * max) == max);
	assert_true(dataloop_rest_ns(max, 2 * max + 1) == min);
}

static void free_of_a_loop_that_never_ran_is_fine(void **state)
{
	struct err_text err;
	struct loop *l;

	(void)state;
	assert_int_equal(loop_new(&l, "test", 0, &err), 0);
	loop_free(l);
	loop_free(NULL);
}

/* Open the socket of a service manager. The argument `path` has the format of $NOTIFY_SOCKET. */
static int manager(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct timeval tv = {.tv_sec = DEADLINE_S};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	size_t n = strlen(path);

	memcpy(sun.sun_path, path, n);
	if (path[0] == '@')
		sun.sun_path[0] = '\0';
	assert_int_equal(bind(fd, (struct sockaddr *)&sun,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
		0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setenv("NOTIFY_SOCKET", path, 1);
	return fd;
}

static void assert_told(int fd, const char *text)
{
	char buf[1024] = "";

	assert_true(recv(fd, buf, sizeof(buf) - 1, 0) > 0);
	assert_string_equal(buf, text);
}

static void manager_is_notified_over_path_and_abstract_socket(void **state)
{
	char paths[2][64];

	(void)state;
	snprintf(paths[0], sizeof(paths[0]), "/tmp/bps-notify-%d", (int)getpid());
	snprintf(paths[1], sizeof(paths[1]), "@bps-notify-%d", (int)getpid());
	for (int i = 0; i < 2; i++) {
		int fd = manager(paths[i]);

		assert_int_equal(notify_ready("serving 3 agents"), 0);
		assert_told(fd, "READY=1\nSTATUS=serving 3 agents");
		assert_int_equal(notify_status("a\n7"), 0);
		assert_told(fd, "STATUS=a 7");
		assert_int_equal(notify_watchdog(), 0);
		assert_told(fd, "WATCHDOG=1");
		assert_int_equal(notify_stopping(), 0);
		assert_told(fd, "STOPPING=1");
		close(fd);
	}
	unlink(paths[0]);
	assert_int_equal(notify_ready("x"), -ECONNREFUSED);
	setenv("NOTIFY_SOCKET", "relative", 1);
	assert_int_equal(notify_ready("x"), -EINVAL);
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(notify_ready("x"), 0);
}

static void notification_carries_a_descriptor(void **state)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char path[64], buf[64];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	int fd, sent[2], got;

	(void)state;
	snprintf(path, sizeof(path), "@bps-notify-fd-%d", (int)getpid());
	fd = manager(path);
	assert_int_equal(pipe(sent), 0);
	assert_int_equal(notify_send("FDSTORE=1\nFDNAME=c0", sent[1], false), 0);
	assert_int_equal(recvmsg(fd, &msg, MSG_CMSG_CLOEXEC), 19);
	assert_int_equal(control.head.cmsg_type, SCM_RIGHTS);
	memcpy(&got, CMSG_DATA(&control.head), sizeof(got));
	assert_int_equal(write(got, "x", 1), 1);
	assert_int_equal(read(sent[0], buf, sizeof(buf)), 1);
	close(got);
	close(sent[0]);
	close(sent[1]);
	close(fd);
	unsetenv("NOTIFY_SOCKET");
}

static void watchdog_of_another_process_is_not_ours(void **state)
{
	char pid[16];

	(void)state;
	unsetenv("WATCHDOG_USEC");
	assert_int_equal(notify_watchdog_us(), 0);
	setenv("WATCHDOG_USEC", "2000000", 1);
	assert_int_equal(notify_watchdog_us(), 2000000);
	setenv("WATCHDOG_PID", "1", 1);
	assert_int_equal(notify_watchdog_us(), 0);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("WATCHDOG_PID", pid, 1);
	assert_int_equal(notify_watchdog_us(), 2000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(posts_run_in_order_and_all_before_the_stop),
		cmocka_unit_test(full_queue_refuses_and_recovers),
		cmocka_unit_test(loop_in_the_callers_thread_ends_on_quit),
		cmocka_unit_test(pause_of_a_spinning_loop_doubles_only_under_load),
		cmocka_unit_test(free_of_a_loop_that_never_ran_is_fine),
		cmocka_unit_test(manager_is_notified_over_path_and_abstract_socket),
		cmocka_unit_test(notification_carries_a_descriptor),
		cmocka_unit_test(watchdog_of_another_process_is_not_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
