/* Tests of the daemons' HTTP server with real sockets, and of the text of metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/event.h>

#include "common/daemon/httpd.h"
#include "common/daemon/metrics.h"
#include "common/loop/loop.h"

/* The time for each wait. It is less than the 5 s after which the server closes silent connections
 * anyway. */
#define DEADLINE_S        3
#define STATUS_TIMEOUT_MS 200

enum answer_mode { ANSWER_NOW, ANSWER_LATER, ANSWER_NEVER };

struct httpd_fixture {
	struct loop *loop;
	pthread_t thread;
	struct httpd *httpd;
	struct sockaddr_in sin;
	bool is_well;       /* the health that the daemon reports */
	const char *remark; /* text that the daemon adds to its health report */
	enum answer_mode mode;
	struct httpd_request *held;
	struct event *later;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	/* protected by mutex; the handler has received a status request and delays the response */
	bool is_held;
};

static void on_metrics(void *arg, struct evbuffer *out)
{
	(void)arg;
	metric_append_header(out, "bps_up", "always one");
	metric_append_value(out, "bps_up", 1, NULL);
}

static bool on_probe(void *arg, enum httpd_probe probe, struct err_text *err)
{
	struct httpd_fixture *f = arg;

	if (f->is_well || probe == HTTPD_LIVE) {
		err_set(err, 0, "%s", f->remark ? f->remark : "");
		return true;
	}
	err_set(err, 0, "data thread 1 is stuck");
	return false;
}

static void answer(struct httpd_request *req)
{
	char verbose[8] = "no";

	httpd_read_query_parameter(req, "verbose", verbose, sizeof(verbose));
	httpd_reply_and_free(req, 200, json_pack("{s:i, s:s}", "schema", 1, "verbose", verbose));
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
	struct httpd_fixture *f = arg;

	(void)fd;
	(void)what;
	answer(f->held);
	f->held = NULL;
}

static void on_status(void *arg, struct httpd_request *req)
{
	struct timeval tv = {.tv_usec = 20000};
	struct httpd_fixture *f = arg;

	if (f->mode == ANSWER_NOW) {
		answer(req);
		return;
	}
	f->held = req;
	if (f->mode == ANSWER_LATER)
		evtimer_add(f->later, &tv);
	pthread_mutex_lock(&f->mutex);
	f->is_held = true;
	pthread_cond_signal(&f->cond);
	pthread_mutex_unlock(&f->mutex);
}

static const struct httpd_ops ops = {on_metrics, on_probe, on_status};

static void *run_loop(void *arg)
{
	loop_run(arg);
	return NULL;
}

static int fixture_start(void **state)
{
	struct addr addr = {.host = "127.0.0.1"};
	struct httpd_fixture *f = calloc(1, sizeof(*f));
	struct err_text err;

	pthread_mutex_init(&f->mutex, NULL);
	pthread_cond_init(&f->cond, NULL);
	f->is_well = true;
	if (loop_new(&f->loop, "http", 16, &err) ||
		httpd_new(&f->httpd, loop_base(f->loop), &addr, STATUS_TIMEOUT_MS, &ops, f, &err))
		return -1;
	f->later = evtimer_new(loop_base(f->loop), on_later, f);
	f->sin = (struct sockaddr_in){.sin_family = AF_INET,
		.sin_port = htons(httpd_port(f->httpd)),
		.sin_addr = {htonl(INADDR_LOOPBACK)}};
	*state = f;
	return pthread_create(&f->thread, NULL, run_loop, f->loop);
}

static int fixture_stop(void **state)
{
	struct httpd_fixture *f = *state;

	loop_quit(f->loop);
	pthread_join(f->thread, NULL);
	httpd_free(f->httpd);
	event_free(f->later);
	loop_free(f->loop);
	free(f);
	return 0;
}

static void wait_until_held(struct httpd_fixture *f)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += DEADLINE_S;
	pthread_mutex_lock(&f->mutex);
	while (!f->is_held && !pthread_cond_timedwait(&f->cond, &f->mutex, &until))
		;
	assert_true(f->is_held);
	pthread_mutex_unlock(&f->mutex);
}

static int open_connection(const struct httpd_fixture *f)
{
	struct timeval tv = {.tv_sec = DEADLINE_S};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	assert_int_equal(connect(fd, (const struct sockaddr *)&f->sin, sizeof(f->sin)), 0);
	return fd;
}

/* Send `text` and return all bytes that the server sends until the connection ends. */
static const char *talk(const struct httpd_fixture *f, const char *text)
{
	static char reply[8192];
	size_t n = 0;
	ssize_t got;
	int fd = open_connection(f);

	/* The server may close the connection before reading all of `text`. */
	(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
	while ((got = recv(fd, reply + n, sizeof(reply) - 1 - n, 0)) > 0)
		n += (size_t)got;
	reply[n] = '\0';
	close(fd);
	return reply;
}

static const char *request(const struct httpd_fixture *f, const char *method, const char *path)
{
	char text[256];

	snprintf(text, sizeof(text),
		"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", method, path);
	return talk(f, text);
}

static void assert_status(const char *reply, const char *status)
{
	char start[32];

	snprintf(start, sizeof(start), "HTTP/1.1 %s ", status);
	assert_memory_equal(reply, start, strlen(start));
}

static const char *body_of(const char *reply)
{
	const char *body = strstr(reply, "\r\n\r\n");

	assert_non_null(body);
	return body + 4;
}

static void metrics_are_prometheus_text(void **state)
{
	const char *reply = request(*state, "GET", "/metrics");

	assert_status(reply, "200");
	assert_non_null(strstr(reply, "Content-Type: text/plain; version=0.0.4; charset=utf-8"));
	assert_string_equal(
		body_of(reply), "# HELP bps_up always one\n# TYPE bps_up gauge\nbps_up 1\n");
}

static void failed_probes_state_the_reason(void **state)
{
	struct httpd_fixture *f = *state;
	const char *reply = request(f, "GET", "/healthz");

	assert_status(reply, "200");
	assert_string_equal(body_of(reply), "ok\n");
	f->remark = "WARN SERVER_DOWN";
	reply = request(f, "GET", "/healthz");
	assert_status(reply, "200");
	assert_string_equal(body_of(reply), "WARN SERVER_DOWN\n");
	f->is_well = false;
	reply = request(f, "GET", "/healthz");
	assert_status(reply, "503");
	assert_string_equal(body_of(reply), "data thread 1 is stuck\n");
	assert_status(request(f, "GET", "/readyz"), "503");
	assert_status(request(f, "GET", "/livez"), "200");
}

static void status_is_json_with_its_query(void **state)
{
	const char *reply = request(*state, "GET", "/status?verbose=1&x=y");

	assert_status(reply, "200");
	assert_non_null(strstr(reply, "Content-Type: application/json"));
	assert_string_equal(body_of(reply), "{\"schema\":1,\"verbose\":\"1\"}\n");
	reply = request(*state, "GET", "/status?verbose=muchtoolong");
	assert_string_equal(body_of(reply), "{\"schema\":1,\"verbose\":\"no\"}\n");
}

static void status_may_be_answered_later(void **state)
{
	struct httpd_fixture *f = *state;
	const char *reply;

	f->mode = ANSWER_LATER;
	reply = request(f, "GET", "/status");
	assert_status(reply, "200");
	assert_string_equal(body_of(reply), "{\"schema\":1,\"verbose\":\"no\"}\n");
}

static void answer_held(void *arg)
{
	struct httpd_fixture *f = arg;

	answer(f->held);
	f->held = NULL;
}

static void unanswered_status_is_503_at_the_deadline(void **state)
{
	struct httpd_fixture *f = *state;
	const char *reply;

	f->mode = ANSWER_NEVER;
	reply = request(f, "GET", "/status");
	assert_status(reply, "503");
	assert_string_equal(
		body_of(reply), "{\"error\":\"no answer in time\",\"timeout_ms\":200}\n");
	/* the answer comes after the time-out, so it has no effect */
	assert_int_equal(loop_post(f->loop, answer_held, f), 0);
	assert_status(request(f, "GET", "/livez"), "200");
}

static void client_that_leaves_before_the_answer_does_no_harm(void **state)
{
	static const char text[] = "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n";
	struct linger reset = {.l_onoff = 1};
	struct httpd_fixture *f = *state;
	int fd = open_connection(f);

	f->mode = ANSWER_NEVER;
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	wait_until_held(f);
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
	assert_status(request(f, "GET", "/livez"), "200");
	assert_int_equal(loop_post(f->loop, answer_held, f), 0);
	assert_status(request(f, "GET", "/livez"), "200");
}

static void stop_with_a_waiting_request_frees_it(void **state)
{
	static const char text[] = "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n";
	struct httpd_fixture *f = *state;
	int fd = open_connection(f);

	f->mode = ANSWER_NEVER;
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	wait_until_held(f);
	close(fd);
}

static void other_paths_and_methods_are_refused(void **state)
{
	static const char *const methods[] = {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"};
	const char *reply;

	reply = request(*state, "GET", "/");
	assert_status(reply, "404");
	assert_non_null(strstr(reply, "no such page; this daemon has /metrics /status"));
	assert_non_null(strstr(reply, " /healthz /livez /readyz\n"));
	assert_status(request(*state, "GET", "/metrics/"), "404");
	assert_status(request(*state, "GET", "/../etc/passwd"), "404");
	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
		reply = request(*state, methods[i], "/status");
		assert_status(reply, "405");
		assert_non_null(strstr(reply, "Allow: GET, HEAD"));
	}
}

static const char *request_of(const struct httpd_fixture *f, const char *path, const char *host)
{
	char text[512];

	snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
		path, host);
	return talk(f, text);
}

/* If the host name of a malicious page resolves to the daemon's address, a browser sends requests
 * for this host name to the daemon. */
static void requests_to_other_hosts_are_refused(void **state)
{
	static const char *const others[] = {"evil.example", "evil.example:7301",
		"localhost.evil.example", "10.9.8.7", "[2001:db8::1]:80", "*",
		"127.0.0.1.evil.example", "a b", ""};
	static const char *const paths[] = {
		"/status", "/metrics", "/config", "/healthz", "/livez", "/readyz", "/"};
	struct httpd_fixture *f = *state;
	const char *reply;

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_status(request_of(f, "/status", others[i]), "421");
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		assert_status(request_of(f, paths[i], "evil.example"), "421");
	reply = request_of(f, "http://evil.example/status", "localhost");
	assert_status(reply, "421");
	assert_non_null(strstr(body_of(reply), "http-names"));
}

static void requests_to_names_of_this_daemon_are_answered(void **state)
{
	struct httpd_fixture *f = *state;
	char name[256] = "";

	gethostname(name, sizeof(name) - 1);
	httpd_set_names(f->httpd, "bps.example, node3");
	assert_status(request_of(f, "/livez", "LocalHost:7301"), "200");
	assert_status(request_of(f, "/livez", "127.0.0.1:7301"), "200");
	assert_status(request_of(f, "/livez", "127.1.2.3"), "200");
	assert_status(request_of(f, "/livez", "[::1]:7301"), "200");
	assert_status(request_of(f, "/livez", name), "200");
	assert_status(request_of(f, "/livez", "bps.example:7301"), "200");
	assert_status(request_of(f, "/livez", "NODE3."), "200");
	assert_status(request_of(f, "/livez", "node"), "421");
	assert_non_null(strstr(talk(f, "GET /livez HTTP/1.0\r\n\r\n"), " 200 OK"));
}

static void head_has_the_length_but_no_body(void **state)
{
	const char *reply = request(*state, "HEAD", "/healthz");

	assert_status(reply, "200");
	assert_non_null(strstr(reply, "Content-Length: 3\r\n"));
	assert_string_equal(body_of(reply), "");
}

static void oversized_requests_are_refused(void **state)
{
	static char text[20000];
	size_t n;

	n = (size_t)snprintf(text, sizeof(text), "GET /livez HTTP/1.1\r\nX: ");
	memset(text + n, 'x', 9000);
	memcpy(text + n + 9000, "\r\n\r\n", 5);
	assert_status(talk(*state, text), "400");
	n = (size_t)snprintf(
		text, sizeof(text), "POST /livez HTTP/1.1\r\nContent-Length: 5000\r\n\r\n");
	memset(text + n, 'x', 5000);
	text[n + 5000] = '\0';
	assert_status(talk(*state, text), "413");
	assert_status(request(*state, "GET", "/livez"), "200");
}

static void garbage_does_not_stop_the_server(void **state)
{
	struct httpd_fixture *f = *state;
	int fd = open_connection(f);

	assert_int_equal(write(fd, "\x16\x03\x01\xff\xff\r\n\r\n", 9), 9);
	close(fd);
	assert_status(request(f, "GET", "/livez"), "200");
}

static void silent_connections_give_way_to_a_scrape(void **state)
{
	struct httpd_fixture *f = *state;
	int fds[HTTPD_MAX_CONNECTIONS + 6];
	size_t n = sizeof(fds) / sizeof(fds[0]);
	char byte;

	for (size_t i = 0; i < n; i++)
		fds[i] = open_connection(f);
	assert_status(request(f, "GET", "/metrics"), "200");
	for (size_t i = 0; i < 6; i++) /* the oldest connections were closed */
		assert_int_equal(recv(fds[i], &byte, 1, 0), 0);
	/* the newest connection is open */
	assert_true(recv(fds[n - 1], &byte, 1, MSG_DONTWAIT) < 0);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

static void address_in_use_is_reported(void **state)
{
	struct httpd_fixture *f = *state;
	struct addr addr = {.host = "127.0.0.1", .port = httpd_port(f->httpd)};
	struct event_base *base = event_base_new();
	struct httpd *second;
	struct err_text err;

	assert_true(httpd_new(&second, base, &addr, 0, &ops, f, &err) < 0);
	assert_non_null(strstr(err.s, "cannot listen for HTTP on 127.0.0.1:"));
	assert_non_null(strstr(err.s, "Address already in use"));
	event_base_free(base);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void assert_text(struct evbuffer *out, const char *want)
{
	evbuffer_add(out, "", 1);
	assert_string_equal((char *)evbuffer_pullup(out, -1), want);
	evbuffer_free(out);
}

static void labels_are_escaped(void **state)
{
	struct evbuffer *out = evbuffer_new();

	(void)state;
	metric_append_header(out, "bps_x_total", "one\\two\nthree");
	metric_append_value(out, "bps_x_total", 1, "job", "a\"b\\c\nd", "user", "\x01\xff{}", NULL);
	assert_text(out, "# HELP bps_x_total one\\\\two\\nthree\n# TYPE bps_x_total counter\n"
			 "bps_x_total{job=\"a\\\"b\\\\c\\nd\",user=\"??{}\"} 1\n");
}

static void values_are_exact(void **state)
{
	struct evbuffer *out = evbuffer_new();

	(void)state;
	metric_append_value(out, "a", 9007199254740991.0, NULL);
	metric_append_value(out, "a", 0.5, NULL);
	metric_append_value(out, "a", -3, NULL);
	metric_append_value(out, "a", NAN, NULL);
	metric_append_value(out, "a", INFINITY, NULL);
	metric_append_value(out, "a", -INFINITY, NULL);
	metric_append_value(out, "a", 1e300, NULL);
	assert_text(out, "a 9007199254740991\na 0.5\na -3\na NaN\na +Inf\na -Inf\n"
			 "a 1.0000000000000001e+300\n");
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, fixture_start, fixture_stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(metrics_are_prometheus_text),
		WITH_SERVER(failed_probes_state_the_reason),
		WITH_SERVER(status_is_json_with_its_query),
		WITH_SERVER(status_may_be_answered_later),
		WITH_SERVER(unanswered_status_is_503_at_the_deadline),
		WITH_SERVER(client_that_leaves_before_the_answer_does_no_harm),
		WITH_SERVER(stop_with_a_waiting_request_frees_it),
		WITH_SERVER(other_paths_and_methods_are_refused),
		WITH_SERVER(requests_to_other_hosts_are_refused),
		WITH_SERVER(requests_to_names_of_this_daemon_are_answered),
		WITH_SERVER(head_has_the_length_but_no_body),
		WITH_SERVER(oversized_requests_are_refused),
		WITH_SERVER(garbage_does_not_stop_the_server),
		WITH_SERVER(silent_connections_give_way_to_a_scrape),
		WITH_SERVER(address_in_use_is_reported),
		cmocka_unit_test(labels_are_escaped),
		cmocka_unit_test(values_are_exact),
	};

	alarm(60); /* deadline for waits without a time limit of their own */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
