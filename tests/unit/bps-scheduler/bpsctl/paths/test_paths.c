/* The measurement of paths for `bpsctl check`, against listeners on 127.0.0.2 that answer, answer
 * in part, or do not answer. Each listener has a thread, which serves one connection. */
#include "bps-scheduler/bpsctl/paths/path_text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/wire/path_probe.h"

#define RECV_LIMIT_S 10
#define PROBES_FROM  "127.0.0.3"

enum probe_reply {
	REPLY_ALL,
	REPLY_PART,    /* a part of the answer, then a correct end */
	REPLY_ECHO,    /* the head comes back, and the large message is received */
	REPLY_NO_READ, /* the head comes back, and the large message is not received */
	REPLY_REFUSAL, /* the word of a release that does not know path probes */
	REPLY_NONE,
	REPLY_CLOSED, /* nothing listens */
};

/* Listener of one test. conn_fd: the accepted connection; -1: none. */
struct fake_listener {
	enum probe_reply reply;
	bool is_control;
	int listen_fd, conn_fd;
	uint16_t port;
	char peer[INET_ADDRSTRLEN];
	pthread_t thread;
};

static void reply(const struct fake_listener *f)
{
	static uint8_t bytes[PATH_PROBE_BYTES]; /* the contents do not matter */
	uint8_t head[PATH_PROBE_HEAD_BYTES];

	if (recv(f->conn_fd, head, sizeof(head), MSG_WAITALL) != sizeof(head))
		return;
	if (f->reply == REPLY_REFUSAL || f->is_control)
		send(f->conn_fd, "NO", 2, MSG_NOSIGNAL);
	if (f->reply >= REPLY_REFUSAL || f->is_control)
		return;
	send(f->conn_fd, head, sizeof(head), MSG_NOSIGNAL);
	if (f->reply == REPLY_NO_READ)
		return;
	recv(f->conn_fd, bytes, sizeof(bytes), MSG_WAITALL | MSG_TRUNC);
	if (f->reply != REPLY_ECHO)
		send(f->conn_fd, bytes, f->reply == REPLY_ALL ? sizeof(bytes) : 1000, MSG_NOSIGNAL);
}

static void *fake_listener_main(void *arg)
{
	const struct timeval limit = {.tv_sec = RECV_LIMIT_S};
	struct fake_listener *f = arg;
	struct sockaddr_in sa;
	socklen_t len = sizeof(sa);

	f->conn_fd = accept(f->listen_fd, (struct sockaddr *)&sa, &len);
	if (f->conn_fd < 0)
		return NULL;
	inet_ntop(AF_INET, &sa.sin_addr, f->peer, sizeof(f->peer));
	setsockopt(f->conn_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	reply(f);
	if (f->reply == REPLY_PART || f->reply == REPLY_REFUSAL)
		shutdown(f->conn_fd, SHUT_WR);
	return NULL;
}

static void fake_listener_open(struct fake_listener *f)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	const struct timeval limit = {.tv_sec = RECV_LIMIT_S};
	socklen_t len = sizeof(sa);
	const int small = 4096;

	f->conn_fd = -1;
	inet_pton(AF_INET, "127.0.0.2", &sa.sin_addr);
	f->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (f->reply == REPLY_NO_READ)
		setsockopt(f->listen_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	setsockopt(f->listen_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	assert_int_equal(bind(f->listen_fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(getsockname(f->listen_fd, (struct sockaddr *)&sa, &len), 0);
	f->port = ntohs(sa.sin_port);
	if (f->reply == REPLY_CLOSED)
		return; /* a bound socket keeps others from the port */
	assert_int_equal(listen(f->listen_fd, 1), 0);
	assert_int_equal(pthread_create(&f->thread, NULL, fake_listener_main, f), 0);
}

static void fake_listener_close(struct fake_listener *f)
{
	if (f->reply != REPLY_CLOSED)
		pthread_join(f->thread, NULL);
	if (f->conn_fd >= 0)
		close(f->conn_fd);
	close(f->listen_fd);
}

/* Add a path to the port on 127.0.0.2, whose name the resolver does not find any more. */
static void add_path(struct path_list *l, uint16_t port, bool is_control)
{
	struct addr a = {.host = "127.0.0.2", .port = port};
	struct sockaddr_storage sa;
	socklen_t len;

	assert_int_equal(addr_resolve_numeric(&a, &sa, &len), 0);
	strcpy(a.host, "peer.invalid");
	path_list_add(l, "peer", &a, &sa, len, is_control);
}

static void result_names_what_the_other_end_did(void **state)
{
	static const struct {
		enum probe_reply reply;
		bool is_control;
		enum path_result result;
		const char *what;
	} cases[] = {
		{REPLY_ALL, false, PATH_PASSES, "passes 64 KiB in both directions"},
		{REPLY_PART, false, PATH_UNREACHABLE, "failed: Connection reset by peer"},
		{REPLY_ECHO, false, PATH_DROPS_ANSWER, "large packets from it are dropped"},
		{REPLY_NO_READ, false, PATH_DROPS_SENT, "large packets to it are dropped"},
		{REPLY_REFUSAL, false, PATH_UNSUPPORTED, "cannot answer a large message"},
		{REPLY_NONE, false, PATH_SILENT, "does not answer within 1.5 s"},
		{REPLY_CLOSED, false, PATH_UNREACHABLE, "failed: Connection refused"},
		{REPLY_REFUSAL, true, PATH_PASSES, "passes 3 KiB to it"},
	};
	struct fake_listener listeners[sizeof(cases) / sizeof(cases[0])];
	struct path_list *l = calloc(1, sizeof(*l));
	const size_t n = sizeof(cases) / sizeof(cases[0]);
	struct path_text text;

	(void)state;
	assert_non_null(l);
	l->has_loopback = true;
	strcpy(l->from, PROBES_FROM);
	for (size_t i = 0; i < n; i++) {
		listeners[i] = (struct fake_listener){
			.reply = cases[i].reply, .is_control = cases[i].is_control};
		fake_listener_open(&listeners[i]);
		add_path(l, listeners[i].port, cases[i].is_control);
	}
	path_list_measure(l);
	for (size_t i = 0; i < n; i++) {
		fake_listener_close(&listeners[i]);
		path_describe(&l->paths[i], &text);
		if (l->paths[i].result != cases[i].result || !strstr(text.what, cases[i].what))
			fail_msg("case %zu: result %u, '%s'", i, l->paths[i].result, text.what);
		if (cases[i].reply != REPLY_CLOSED && !cases[i].is_control)
			assert_string_equal(listeners[i].peer, PROBES_FROM);
	}
	free(l);
}

static void loopback_has_no_path(void **state)
{
	struct path_list *l = calloc(1, sizeof(*l));

	(void)state;
	assert_non_null(l);
	add_path(l, 1, false);
	assert_int_equal(l->n, 0);
	free(l);
}

static void full_list_counts_further_servers_and_takes_the_scheduler(void **state)
{
	struct path_list *l = calloc(1, sizeof(*l));
	uint16_t port = 1;

	(void)state;
	assert_non_null(l);
	l->has_loopback = true;
	while (port <= PATHS_MAX + 3)
		add_path(l, port++, false);
	add_path(l, port, true);
	add_path(l, port + 1, false);
	add_path(l, 1, false); /* again */
	assert_int_equal(l->n, PATHS_MAX);
	assert_true(l->paths[PATHS_MAX - 1].is_control);
	assert_int_equal(l->n_left_out, 5);
	free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(result_names_what_the_other_end_did),
		cmocka_unit_test(loopback_has_no_path),
		cmocka_unit_test(full_list_counts_further_servers_and_takes_the_scheduler),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
