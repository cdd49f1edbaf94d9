/* The side of the meeting at every node but the head: connects until the head answers, then keeps
 * the connection. */
#include "libbpsclient/tools/nodes/meeting.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "libbpsclient/tools/nodes/place.h"
#include "libbpsclient/tools/process/child.h"
#include "libbpsclient/tools/process/output.h"

#define RETRY_MS      50
#define CONNECT_MS    3000 /* the kernel's own time-out is minutes */
#define ANSWER_MS     30000
#define FIRST_WORD_MS 5000 /* then bpsrun prints what it waits for */

/* The state of meeting_member_join. */
struct joining {
	struct meeting_member *m;
	const struct addr *head;
	const struct cluster_key *key;
	const struct meeting_node *own;
	int signal_fd;
	struct err_text why; /* of the last try */
	struct meeting_answer *ret;
};

/* Wait for a descriptor. Returns 1, or 0 after timeout_ms. fd -1: only wait. Errors: -EINTR: a
 * signal has arrived. */
static int joining_wait(const struct joining *j, int fd, short events, int timeout_ms)
{
	struct pollfd p[] = {{.fd = j->signal_fd, .events = POLLIN}, {.fd = fd, .events = events}};

	if (poll(p, 2, timeout_ms) <= 0)
		return 0;
	return p[0].revents ? -EINTR : 1;
}

static int joining_connect(struct joining *j)
{
	struct sockaddr_storage sa;
	socklen_t len, error_len = sizeof(int);
	int rc = addr_resolve_host(j->head, &sa, &len, &j->why), error = 0;
	int fd = rc < 0 ? -1 : socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (rc < 0)
		return -EAGAIN;
	j->m->lines = (struct meeting_lines){.fd = fd};
	if (fd < 0 || (connect(fd, (struct sockaddr *)&sa, len) < 0 && errno != EINPROGRESS))
		error = errno;
	if (!error) {
		rc = joining_wait(j, fd, POLLOUT, CONNECT_MS);
		if (rc < 0)
			return rc;
		error = rc ? 0 : ETIMEDOUT;
	}
	if (!error && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) < 0)
		error = errno;
	return error ? err_set(&j->why, -EAGAIN, "%s", strerror(error)) : 0;
}

/* Read one line of the head. Errors: -EINTR; -EAGAIN: the head does not answer. */
static int joining_read_line(struct joining *j, char ret[static MEETING_LINE_BYTES])
{
	uint64_t deadline = clock_now_ms() + ANSWER_MS;
	int rc = 0;

	while (!rc && clock_now_ms() < deadline) {
		rc = meeting_lines_read(&j->m->lines, ret);
		if (rc)
			break;
		rc = joining_wait(j, j->m->lines.fd, POLLIN, poll_timeout_left_ms(deadline));
		if (rc < 0)
			return rc;
		rc = 0;
	}
	if (rc > 0)
		return 0;
	return err_set(&j->why, -EAGAIN, "it does not answer");
}

/* Send "join". */
static int joining_send(struct joining *j, const char *head_nonce, const char *nonce)
{
	char line[MEETING_LINE_BYTES / 2], mac[KEY_HEX_BYTES];
	int rc;

	snprintf(line, sizeof(line), "join %u %u %u %u %s", j->own->nnodes, j->own->workers,
		j->own->rank, j->own->has_server, nonce);
	rc = meeting_sign_line(j->key, head_nonce, nonce, line, mac);
	return rc < 0 ? rc : meeting_text_send(j->m->lines.fd, "%s %s\n", line, mac);
}

/* Refuse an answer that does not come from this cluster's head. */
static int parse_answer(struct joining *j, char *line, const char *head_nonce, const char *nonce)
{
	char want[KEY_HEX_BYTES], *mac = strrchr(line, ' ');
	struct meeting_answer *a = j->ret;

	if (strncmp(line, "refused ", 8) == 0) {
		output_print_message(
			"the head at %s has refused this node: %s", j->head->host, line + 8);
		return -EACCES;
	}
	if (mac)
		*mac++ = 0;
	if (mac && meeting_sign_line(j->key, head_nonce, nonce, line, want) == 0 &&
		strcmp(mac, want) == 0 &&
		sscanf(line, "node %u %263s %263s %u", &a->rank, a->scheduler, a->http,
			&a->rendezvous_port) == 4)
		return 0;
	output_print_message(
		"the program at %s is not the head of this job: give the same "
		"BPS_CLUSTER_KEY to all nodes, or choose another port (--head HOST:PORT)",
		j->head->host);
	return -EACCES;
}

/* Try once. Errors: -EAGAIN: try again; j->why gets the text. */
static int joining_try(struct joining *j)
{
	char line[MEETING_LINE_BYTES], head_nonce[MEETING_NONCE_BYTES], nonce[MEETING_NONCE_BYTES];
	int rc = joining_connect(j), version = 0;

	if (rc < 0)
		return rc;
	rc = joining_read_line(j, line);
	if (rc < 0)
		return rc;
	if (sscanf(line, "bpsrun %d %32[0-9a-f]", &version, head_nonce) != 2 ||
		version != MEETING_VERSION) {
		output_print_message(
			"the program at %s is no bpsrun of this release: choose another "
			"port (--head HOST:PORT)",
			j->head->host);
		return -EACCES;
	}
	rc = meeting_make_nonce(nonce);
	if (!rc)
		rc = joining_send(j, head_nonce, nonce);
	if (!rc)
		rc = joining_read_line(j, line);
	return rc < 0 ? rc : parse_answer(j, line, head_nonce, nonce);
}

static void joining_print_failure(const struct joining *j)
{
	char text[ADDR_TEXT_BYTES];

	output_print_message("cannot reach the head at %s: %s; does --head name the node with rank "
			     "0, and does bpsrun run there? --start-timeout sets how long to wait",
		addr_format(j->head, text), j->why.s);
}

int meeting_member_join(struct meeting_member *m, const struct addr *head,
	const struct cluster_key *key, const struct meeting_node *own, uint64_t deadline_ms,
	int signal_fd, struct meeting_answer *ret)
{
	struct joining j = {
		.m = m, .head = head, .key = key, .own = own, .signal_fd = signal_fd, .ret = ret};
	uint64_t word_ms = clock_now_ms() + FIRST_WORD_MS;
	char text[ADDR_TEXT_BYTES];
	int rc;

	m->lines.fd = -1;
	for (;;) {
		rc = joining_try(&j);
		if (rc == 0) {
			meeting_watch_peer(m->lines.fd);
			return 0;
		}
		if (m->lines.fd >= 0)
			close(m->lines.fd);
		m->lines.fd = -1;
		if (rc != -EAGAIN)
			return rc;
		if (clock_now_ms() >= deadline_ms) {
			joining_print_failure(&j);
			return -ETIMEDOUT;
		}
		if (word_ms && clock_now_ms() >= word_ms) {
			output_print_message(
				"waiting for the head at %s: %s", addr_format(head, text), j.why.s);
			word_ms = 0;
		}
		if (joining_wait(&j, -1, 0, RETRY_MS) < 0)
			return -EINTR;
	}
}

void meeting_member_serve(struct meeting_member *m)
{
	struct meeting_failure f = {.has_failed = true, .code = -1};
	char line[MEETING_LINE_BYTES];
	int rc = 0;

	while (m->lines.fd >= 0 && (rc = meeting_lines_read(&m->lines, line)) > 0)
		if (sscanf(line, "failed %u %d", &f.rank, &f.code) == 2 && !m->failure.has_failed)
			m->failure = f;
	if (rc >= 0)
		return;
	/* the head has ended */
	close(m->lines.fd);
	m->lines.fd = -1;
	f.rank = 0;
	f.code = -1;
	if (!m->failure.has_failed)
		m->failure = f;
}

void meeting_member_leave(struct meeting_member *m, int code)
{
	if (m->lines.fd < 0)
		return;
	meeting_text_send(m->lines.fd, "end %d\n", code);
	close(m->lines.fd);
	m->lines.fd = -1;
}
