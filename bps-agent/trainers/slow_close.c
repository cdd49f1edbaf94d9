/* Closes sockets of trainers on the threads of libuv's pool, because closing them may take long.
 * Thread: slow_close runs on the data thread, drain_and_close_socket on a thread of the pool. */
#include "bps-agent/trainers/slow_close.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bps-agent/model/agent.h"

/* Largest number of unread messages that are discarded before closing. The queue of a socket always
 * has fewer than DRAIN_MAX messages. */
#define DRAIN_MAX 4096
/* Interval, in ns, between two signals to a thread that closes a socket. A trainer can hardly
 * create lingering sockets faster than one per interval. */
#define HURRY_NS     50000
#define HURRY_SIGNAL SIGUSR2

#ifndef sigev_notify_thread_id /* glibc before 2.40 lacks this name */
#define sigev_notify_thread_id _sigev_un._tid
#endif

struct slow_close {
	uv_work_t work;
	int sock; /* a socket that has been shut down, but not closed */
};

/* Discard unread messages. If they remained, close would reset the connection, and the trainer
 * could not read why it was disconnected. */
static void socket_drain_messages(int sock)
{
	char c;

	for (unsigned i = 0; i < DRAIN_MAX && recv(sock, &c, sizeof(c), MSG_DONTWAIT) > 0; i++)
		;
}

static void on_hurry_signal(int sig)
{
	(void)sig; /* no work: the signal only interrupts a blocking call */
}

/* Start a timer that interrupts this thread again and again. An interrupted close of a lingering
 * socket stops waiting. Without the timer, a trainer could block all threads of the pool with a few
 * lingering sockets, for as long as the trainer chooses. Then all other sockets would stay open,
 * and the agent could not end. */
static bool hurry_timer_start(timer_t *ret)
{
	struct sigaction act = {.sa_handler = on_hurry_signal};
	struct sigevent ev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = HURRY_SIGNAL};
	struct itimerspec every = {.it_value.tv_nsec = HURRY_NS, .it_interval.tv_nsec = HURRY_NS};
	sigset_t set;

	ev.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
	sigemptyset(&set);
	sigaddset(&set, HURRY_SIGNAL);
	if (sigaction(HURRY_SIGNAL, &act, NULL) < 0 || timer_create(CLOCK_MONOTONIC, &ev, ret) < 0)
		return false;
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
	timer_settime(*ret, 0, &every, NULL);
	return true;
}

static void hurry_timer_stop(timer_t timer)
{
	sigset_t set;

	timer_delete(timer);
	sigemptyset(&set);
	sigaddset(&set, HURRY_SIGNAL);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void drain_and_close_socket(uv_work_t *w)
{
	const struct slow_close *c = w->data;
	timer_t timer;
	bool is_hurried = hurry_timer_start(&timer);

	socket_drain_messages(c->sock);
	close(c->sock);
	if (is_hurried)
		hurry_timer_stop(timer);
}

static void on_slow_close_done(uv_work_t *w, int status)
{
	(void)status;
	free(w->data);
}

void slow_close_socket(struct agent *a, int sock)
{
	struct slow_close *c = malloc(sizeof(*c));

	shutdown(sock, SHUT_RDWR); /* the trainer sees the end of the connection at once */
	if (c) {
		c->sock = sock;
		c->work.data = c;
	}
	if (!c || uv_queue_work(dataloop_uv(a->loop), &c->work, drain_and_close_socket,
			  on_slow_close_done) < 0) {
		free(c);
		close(sock);
	}
}
