#ifndef BPS_SCHEDULER_BPSCTL_CHECKS_H
#define BPS_SCHEDULER_BPSCTL_CHECKS_H
/* bpsctl check: is this host ready for the daemons that are to run on it? The result is a list of
 * lines, each ok, warn or bad with the action to take. checks.c checks our daemons and the
 * scheduler, check_host.c the machine. Nothing is changed, started or bound for longer than a
 * moment. Blocking, bounded. */
#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "common/base/addr.h"

enum check_level { CHECK_OK, CHECK_WARN, CHECK_BAD };

/* The needs of the host, from the daemons that are to run there. */
struct host_needs {
	bool has_verbs;     /* a daemon's settings select RDMA */
	bool has_libfabric; /* a daemon's settings select a provider of libfabric */
	/* runs a server or agent, which needs many descriptors and locked memory */
	bool has_server;
	int pid; /* one of our daemons, whose limits count; 0: none, use this process's limits */
};

/* Append a line. action: what to do, "" for nothing. */
void check_add(json_t *list, enum check_level level, const char *name, const char *action,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* check_host.c */
void check_host(json_t *list, const struct host_needs *needs);
/* Return the document for bpsctl(8), a new reference; NULL: out of memory. config_dir: folder of
 * the daemons' settings.
 * schema host checks[{name state("ok"|"warn"|"bad") what action}] ok warn bad */
json_t *checks_json(const char *config_dir, const struct addr *scheduler_http);
/* Print the checks. Returns 0: no findings, 1: warnings, 2: something is bad. */
int screen_check(FILE *out, json_t *root);
#endif
