/* Joining and leaving a job: bps_open, bps_close, bps_abort, and the checks of a handle. The
 * connection to the agent is in session.c. Thread: the caller's. */
#include "libbpsclient/bps.h"
#include "libbpsclient/client.h"
#include "libbpsclient/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libbpsclient/base/ignored.h"
#include "libbpsclient/last_error.h"
#include "libbpsclient/base/process_limit.h"

#include "common/base/failpoint.h"

int client_check_own(const struct bps *b)
{
	last_error_clear();
	if (!b)
		return last_error_set(-EINVAL, "the handle of the job is NULL");
	if (!*b->is_ours || (b->pid && b->pid != getpid()))
		return last_error_set(BPS_EFORKED,
			"this process was forked from rank %d of job '%s': open the job again",
			b->rank, b->options.job);
	return 0;
}

int client_check_is_open(const struct bps *b)
{
	int rc = client_check_own(b);

	if (!rc && b->is_suspended)
		return last_error_set(BPS_ECLOSED, "job '%s' is suspended: call bps_resume first",
			b->options.job);
	return rc;
}

static int make_fork_guard(struct bps *b)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return process_limit_explain(
			-errno, "bps_open: cannot map a page", last_error_text());
	if (madvise(p, page, MADV_WIPEONFORK) < 0)
		b->pid = getpid();
	b->is_ours = p;
	*b->is_ours = 1;
	return 0;
}

int client_join_job(struct bps *b)
{
	const struct client_options *o = &b->options;
	int rc;

	b->rank = 0;
	b->is_single = o->size == 1 && !o->is_forced && !o->is_elastic;
	if (b->is_single) {
		b->size = b->local_size = 1;
		return 0;
	}
	rc = session_open(&b->session, o, last_error_text());
	if (rc < 0)
		return rc;
	FAILPOINT(CLIENT_JOINED);
	b->rank = (int32_t)b->session.rank;
	b->size = (int32_t)b->session.size;
	b->barrier = b->session.barrier;
	b->is_new = b->session.is_new;
	b->root = (int32_t)b->session.root;
	b->local_rank = o->local_rank >= 0 ? o->local_rank : (int32_t)b->session.local_rank;
	b->local_size = o->local_size >= 0 ? o->local_size : (int32_t)b->session.local_size;
	return 0;
}

/* Free the handle and its tensors. The caller has closed the session. */
static void client_free(struct bps *b)
{
	struct bps_tensor *t, *next;

	for (unsigned i = 0; i < CLIENT_BUCKETS; i++)
		for (t = b->buckets[i]; t; t = next) {
			next = t->next;
			client_tensor_free(t);
		}
	if (b->is_ours)
		munmap(b->is_ours, (size_t)sysconf(_SC_PAGESIZE));
	pthread_mutex_destroy(&b->declare_mutex);
	pthread_mutex_destroy(&b->ring_mutex);
	pthread_mutex_destroy(&b->collect_mutex);
	free(b);
}

/* Set the failpoints (places where tests inject faults), once per process, because a second job
 * must not restart the failpoints' counters. */
static void failpoints_set_from_env(void)
{
	struct err_text err;

	failpoint_set(secure_getenv("BPS_FAULTS"),
		&err); /* failpoints_check_and_set has checked the text */
}

/* Set the failpoints that the environment variable BPS_FAULTS names. Errors: -EINVAL if BPS_FAULTS
 * is invalid. Sets bps_last_error. */
static int failpoints_check_and_set(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const char *text = secure_getenv("BPS_FAULTS");
	struct err_text err;

	if (!text)
		return 0;
	if (failpoint_check(text, &err) < 0)
		return last_error_set(-EINVAL, "BPS_FAULTS: %s", err.s);
	pthread_once(&once, failpoints_set_from_env);
	return 0;
}

int bps_open(const struct bps_options *opt, struct bps **ret)
{
	static pthread_once_t warned = PTHREAD_ONCE_INIT;
	struct bps *b;
	int rc;

	last_error_clear();
	if (!ret)
		return last_error_set(-EINVAL, "bps_open: ret is NULL");
	rc = failpoints_check_and_set();
	if (rc < 0)
		return rc;
	b = calloc(1, sizeof(*b));
	if (!b)
		return last_error_set(-ENOMEM, "bps_open: out of memory");
	pthread_mutex_init(&b->declare_mutex, NULL);
	pthread_mutex_init(&b->ring_mutex, NULL);
	pthread_mutex_init(&b->collect_mutex, NULL);
	rc = client_options_resolve(opt, &b->options);
	if (!rc)
		rc = make_fork_guard(b);
	if (!rc)
		rc = client_join_job(b);
	if (rc < 0) {
		client_free(b);
		return rc;
	}
	trace_plan_from_env(&b->trace, b->rank);
	if (bps_rank(b) == 0) /* one warning per job is enough, so rank 0 prints it */
		pthread_once(&warned, ignored_variables_warn);
	*ret = b;
	return 0;
}

int bps_close(struct bps *b, uint32_t timeout_ms)
{
	int rc = 0;

	if (!b)
		return 0;
	rc = client_check_own(b);
	if (rc < 0)
		return rc; /* this process is a forked child, and the job belongs to its parent */
	FAILPOINT(CLIENT_CLOSE);
	if (!b->is_suspended)
		trace_write_planned(b);
	if (!b->is_single && !b->is_suspended) {
		rc = session_failure(&b->session, last_error_text());
		if (!rc)
			rc = session_finish(&b->session,
				timeout_ms ? timeout_ms : b->options.timeout_ms, last_error_text());
		/* close the link before the session, because the link's watcher thread polls the
		 * session's socket */
		gpu_link_close(b->gpu);
		b->gpu = NULL;
		session_close(&b->session);
	}
	client_free(b);
	return rc;
}

void bps_abort(struct bps *b)
{
	if (!b || client_check_own(b) < 0)
		return;
	gpu_link_close(b->gpu);
	b->gpu = NULL;
	if (!b->is_single && !b->is_suspended)
		session_close(&b->session);
	client_free(b);
}

int bps_rank(const struct bps *b)
{
	return b->rank;
}

int bps_size(const struct bps *b)
{
	return b->size;
}

int bps_local_rank(const struct bps *b)
{
	return b->local_rank;
}

int bps_local_size(const struct bps *b)
{
	return b->local_size;
}
