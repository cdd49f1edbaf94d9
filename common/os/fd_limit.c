#include "common/os/fd_limit.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#define FDS_MAX ((rlim_t)1 << 20)

uint64_t fd_limit(void)
{
	struct rlimit r = {.rlim_cur = 1024}; /* the limit to report if getrlimit fails */

	getrlimit(RLIMIT_NOFILE, &r);
	return r.rlim_cur;
}

uint64_t fd_limit_raise(void)
{
	struct rlimit r;
	rlim_t want;

	if (getrlimit(RLIMIT_NOFILE, &r) < 0)
		return fd_limit();
	want = r.rlim_max < FDS_MAX ? r.rlim_max : FDS_MAX;
	if (r.rlim_cur < want) {
		r.rlim_cur = want;
		setrlimit(RLIMIT_NOFILE, &r);
	}
	return fd_limit();
}

int fd_limit_explain(int rc, const char *what, struct err_text *err)
{
	if (rc != -EMFILE)
		return err_set(err, rc, "%s: %s", what, strerror(-rc));
	return err_set(err, rc,
		"%s: the limit of open files is %llu: raise it (LimitNOFILE= of systemd, ulimit "
		"-n, --ulimit nofile= of docker run)",
		what, (unsigned long long)fd_limit());
}

void memlock_limit_raise(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_MEMLOCK, &r) < 0 || r.rlim_cur == r.rlim_max)
		return;
	r.rlim_cur = r.rlim_max;
	setrlimit(RLIMIT_MEMLOCK, &r);
}
