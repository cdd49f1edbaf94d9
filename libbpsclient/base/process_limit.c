#include "libbpsclient/base/process_limit.h"

#include <errno.h>
#include <sys/resource.h>

#include "common/base/error.h"

int process_limit_explain(int code, const char *what, struct err_text *err)
{
	int resource = code == -EMFILE ? RLIMIT_NOFILE : RLIMIT_AS;
	struct rlimit limit;

	if ((code != -EMFILE && code != -ENOMEM) || getrlimit(resource, &limit) < 0 ||
		limit.rlim_cur == RLIM_INFINITY)
		return err_set(err, code, "%s: %s", what, err_str(code));
	return err_set(err, code,
		"%s: %s; the limit %s of this process is %llu: raise it (ulimit -%c)", what,
		err_str(code), code == -EMFILE ? "RLIMIT_NOFILE" : "RLIMIT_AS",
		(unsigned long long)limit.rlim_cur, code == -EMFILE ? 'n' : 'v');
}
