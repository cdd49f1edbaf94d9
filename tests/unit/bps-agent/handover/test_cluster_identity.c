/* The identity of the cluster that an agent belongs to. The agent stores the identity in its
 * service manager, which returns the identity to the agent's next process. */
#include "bps-agent/handover/cluster_identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bps-agent/handover/ledger.h"
#include "common/daemon/notify.h"

#define FDS_MAX 8

/* A service manager that stores descriptors. A descriptor is stored when the test reads the
 * socket. */
struct manager {
	int sock, fds[FDS_MAX];
	size_t n;
};

static void manager_start(struct manager *m)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	char path[64];
	int n = snprintf(path, sizeof(path), "@bps-past-%d", (int)getpid());

	*m = (struct manager){.sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)};
	assert_true(m->sock >= 0);
	memcpy(sun.sun_path + 1, path + 1, (size_t)n - 1);
	assert_int_equal(bind(m->sock, (struct sockaddr *)&sun,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)),
		0);
	setenv("NOTIFY_SOCKET", path, 1);
}

static void forget_all(struct manager *m)
{
	while (m->n)
		close(m->fds[--m->n]);
}

static void manager_stop(struct manager *m)
{
	forget_all(m);
	close(m->sock);
	unsetenv("NOTIFY_SOCKET");
}

/* Fill the service manager's socket, as if the service manager had stopped reading. */
static void stand_still(void)
{
	while (notify_status("x") == 0)
		;
}

static void read_all(struct manager *m)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char lines[600];
	ssize_t n;

	for (;;) {
		struct iovec iov = {lines, sizeof(lines) - 1};
		struct msghdr msg = {.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control)};
		const struct cmsghdr *c;

		n = recvmsg(m->sock, &msg, 0);
		if (n < 0)
			break;
		lines[n] = '\0';
		if (strstr(lines, "FDSTOREREMOVE=1"))
			forget_all(m);
		for (c = CMSG_FIRSTHDR(&msg); c; c = NULL) {
			assert_true(m->n < FDS_MAX);
			memcpy(&m->fds[m->n++], CMSG_DATA(c), sizeof(int));
		}
	}
	assert_int_equal(errno, EAGAIN);
}

/* Return what the agent's next process gets: all kept descriptors. If has_job is true, the next
 * process also gets the ledger of a job. */
static struct fdstore successor(const struct manager *m, bool has_job)
{
	struct fdstore s = {.fds = calloc(m->n + 1, sizeof(*s.fds)), .n = m->n + has_job};

	assert_non_null(s.fds);
	for (size_t i = 0; i < m->n; i++) {
		s.fds[i].fd = fcntl(m->fds[i], F_DUPFD_CLOEXEC, 0);
		snprintf(s.fds[i].name, sizeof(s.fds[i].name), "cluster");
	}
	if (!has_job)
		return s;
	s.fds[m->n].fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	snprintf(s.fds[m->n].name, sizeof(s.fds[m->n].name), "j1.l");
	return s;
}

static struct member_past of_cluster(char id)
{
	struct member_past p = {
		.member_id = (uint32_t)id, .term = 1, .view = UINT64_C(1) << 32 | 7};

	memset(p.cluster_id, id, sizeof(p.cluster_id));
	return p;
}

static void note(struct cluster_identity *p, char id)
{
	struct member_past now = of_cluster(id);

	cluster_identity_note(p, &now);
}

static void take(struct cluster_identity *p, const struct manager *m, bool has_job)
{
	struct fdstore s = successor(m, has_job);

	*p = (struct cluster_identity){0};
	cluster_identity_take(p, &s);
	fdstore_fini(&s);
}

static void restarted_agent_with_jobs_keeps_its_cluster(void **state)
{
	struct member_past want = of_cluster('a');
	struct manager m;
	struct cluster_identity p = {0};

	(void)state;
	manager_start(&m);
	note(&p, 'a');
	cluster_identity_fini(&p);
	read_all(&m);
	take(&p, &m, true);
	assert_int_equal(p.known.member_id, 'a');
	assert_int_equal(p.known.view, want.view);
	assert_memory_equal(p.known.cluster_id, want.cluster_id, sizeof(want.cluster_id));
	cluster_identity_fini(&p);
	manager_stop(&m);
}

static void restarted_agent_ignores_a_cluster_that_was_to_be_forgotten(void **state)
{
	struct manager m;
	struct cluster_identity p = {0};

	(void)state;
	manager_start(&m);
	note(&p, 'a');
	cluster_identity_fini(&p);
	read_all(&m);
	assert_int_equal(m.n, 1);
	stand_still();
	take(&p, &m, false);
	assert_int_equal(p.known.member_id, 0);
	note(&p, 'b');
	read_all(&m);
	note(&p, 'b');
	cluster_identity_fini(&p);
	read_all(&m);
	assert_int_equal(m.n, 1);
	take(&p, &m, true);
	assert_int_equal(p.known.member_id, 'b');
	cluster_identity_fini(&p);
	manager_stop(&m);
}

/* Try ledgers that are damaged or of another kind. */
static void damaged_identity_is_rejected(void **state)
{
	static const struct {
		unsigned type;
		size_t n_fixed, n_live;
		uint32_t member_id;
	} bad[] = {{2, 24, 16, 1}, {1, 20, 16, 1}, {1, 24, 8, 1}, {1, 24, 16, 0}};
	struct manager m;

	(void)state;
	manager_start(&m);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint32_t fixed[6] = {[4] = bad[i].member_id};
		struct ledger *l;
		struct err_text err;
		struct cluster_identity p;
		void *live;

		assert_int_equal(ledger_new(&l, &err), 0);
		assert_int_equal(
			ledger_add(l, bad[i].type, fixed, bad[i].n_fixed, bad[i].n_live, &live), 0);
		m.fds[m.n++] = fcntl(ledger_fd(l), F_DUPFD_CLOEXEC, 0);
		ledger_free(l);
		take(&p, &m, true);
		assert_int_equal(p.known.member_id, 0);
		assert_null(p.ledger);
		read_all(&m);
		assert_int_equal(m.n, 0);
	}
	m.fds[m.n++] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	{
		struct cluster_identity p;

		take(&p, &m, true);
		assert_int_equal(p.known.member_id, 0);
	}
	manager_stop(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(restarted_agent_with_jobs_keeps_its_cluster),
		cmocka_unit_test(restarted_agent_ignores_a_cluster_that_was_to_be_forgotten),
		cmocka_unit_test(damaged_identity_is_rejected),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
