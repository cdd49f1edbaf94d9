#ifndef BPS_SCHEDULER_BPSCTL_CHECKS_H
#define BPS_SCHEDULER_BPSCTL_CHECKS_H
/* bpsctl check: is this host fit for what is to run on it? A list of lines, each ok, warn or bad
 * with what to do. checks.c looks at our daemons and the scheduler, check_host.c at the machine. It
 * only looks: nothing is changed, started or bound for longer than a moment. Blocking, bounded. */
#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "common/base/addr.h"

enum check_level { CHECK_OK, CHECK_WARN, CHECK_BAD };

/* What the host needs depends on what is to run there. */
struct host_needs {
	bool has_verbs;  /* a daemon is told to use RDMA */
	bool has_server; /* or agent: it needs many descriptors, and memory that stays */
	int pid; /* a daemon of ours, whose limits count; 0: none, then those of this process */
};

/* Append a line. action: what to do, "" for nothing. */
void check_add(json_t *list, enum check_level level, const char *name, const char *action,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* check_host.c */
void check_host(json_t *list, const struct host_needs *needs);
/* Documents for bpsctl(8):
 *   schema host checks[{name state("ok"|"warn"|"bad") what action}] ok warn bad
 * config_dir: where the daemons' files are. A new reference, NULL out of memory. */
json_t *checks_json(const char *config_dir, const struct addr *scheduler_http);
/* 0 all is well, 1 warnings, 2 something is bad. */
int screen_check(FILE *out, json_t *root);
#endif
