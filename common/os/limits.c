/* Reads, raises and explains limits of this process. A thread that cannot be started gives the same
 * code for several limits. The text names the limit that was reached. The functions keep no
 * state. */
#include "common/os/limits.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/os/cgroup.h"

#define FILES_MAX     ((rlim_t)1 << 20)
#define SPARE_THREADS 4

/* ---- open files and locked memory ---- */

static void limits_raise_soft(int resource, rlim_t most)
{
	struct rlimit r;

	if (getrlimit((__rlimit_resource_t)resource, &r) < 0)
		return;
	if (most > r.rlim_max)
		most = r.rlim_max;
	if (r.rlim_cur >= most)
		return;
	r.rlim_cur = most;
	setrlimit((__rlimit_resource_t)resource, &r);
}

void limits_raise(void)
{
	limits_raise_soft(RLIMIT_NOFILE, FILES_MAX);
	limits_raise_soft(RLIMIT_MEMLOCK, RLIM_INFINITY);
}

uint64_t limits_open_files(void)
{
	struct rlimit r = {.rlim_cur = 1024}; /* the limit to report if getrlimit fails */

	getrlimit(RLIMIT_NOFILE, &r);
	return r.rlim_cur;
}

/* ---- threads ---- */

/* Threads wait here until all have started, so that all exist at the same time. */
struct thread_gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	bool is_open;
};

static void *thread_wait_at_gate(void *arg)
{
	struct thread_gate *g = arg;

	pthread_mutex_lock(&g->lock);
	while (!g->is_open)
		pthread_cond_wait(&g->opened, &g->lock);
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

int limits_try_threads(unsigned n, struct err_text *err)
{
	struct thread_gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
	pthread_t *threads = calloc(n + SPARE_THREADS, sizeof(*threads));
	unsigned started = 0;
	char what[64];
	int rc = threads ? 0 : -ENOMEM;

	n += SPARE_THREADS;
	while (rc == 0 && started < n) {
		rc = -pthread_create(&threads[started], NULL, thread_wait_at_gate, &g);
		started += rc == 0;
	}
	snprintf(what, sizeof(what), "cannot start %u threads", n);
	if (rc < 0)
		/* before the threads end, so that they count in the group */
		limits_explain(rc, what, err);
	pthread_mutex_lock(&g.lock);
	g.is_open = true;
	pthread_cond_broadcast(&g.opened);
	pthread_mutex_unlock(&g.lock);
	while (started)
		pthread_join(threads[--started], NULL);
	free(threads);
	return rc;
}

/* ---- errors ---- */

static int explain_threads(const char *what, struct err_text *err)
{
	struct rlimit user = {0, RLIM_INFINITY};
	uint64_t most, left;

	if (cgroup_pids(&most, &left) && left == 0)
		return err_set(err, -EAGAIN,
			"%s: the control group allows %llu processes and threads: raise pids.max "
			"(TasksMax= of systemd, --pids-limit of docker run)",
			what, (unsigned long long)most);
	if (getrlimit(RLIMIT_NPROC, &user) == 0 && user.rlim_cur != RLIM_INFINITY)
		return err_set(err, -EAGAIN,
			"%s: this user may have %llu processes and threads: raise the limit "
			"(LimitNPROC= of systemd, ulimit -u)",
			what, (unsigned long long)user.rlim_cur);
	return err_set(err, -EAGAIN, "%s: %s", what, strerror(EAGAIN));
}

int limits_explain(int rc, const char *what, struct err_text *err)
{
	if (rc == -EAGAIN)
		return explain_threads(what, err);
	if (rc != -EMFILE)
		return err_set(err, rc, "%s: %s", what, strerror(-rc));
	return err_set(err, rc,
		"%s: the limit of open files is %llu: raise it (LimitNOFILE= of systemd, ulimit "
		"-n, --ulimit nofile= of docker run)",
		what, (unsigned long long)limits_open_files());
}
