#ifndef BPS_SCHEDULER_BPSCTL_CHECKS_H
#define BPS_SCHEDULER_BPSCTL_CHECKS_H
/* Implements the command `bpsctl check`, which checks whether this host is ready for the daemons
 * that will run on it. The result is a list of lines. Each line has a state (ok, warn or bad) and
 * the action to take. checks.c checks this host's daemons and the scheduler. check_host.c checks
 * the machine. The checks change nothing. Before checks_run_all_json returns, it ends the programs
 * that it has started and closes the sockets that it has opened. The functions block for a limited
 * time. */
#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "common/base/addr.h"

enum check_level { CHECK_OK, CHECK_WARN, CHECK_BAD };

/* Features that the daemons on this host will need. */
struct host_needs {
	bool has_verbs;     /* a daemon's settings select RDMA */
	bool has_libfabric; /* a daemon's settings select a provider of libfabric */
	/* pid of a running daemon whose limits are checked; 0: no daemon runs, so the limits of
	 * this process are checked */
	int pid;
};

/* Append a line to list. action: what the operator should do, "" for nothing. */
void check_result_append(json_t *list, enum check_level level, const char *name, const char *action,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Check the machine, and append the results to list (check_host.c). */
void check_host(json_t *list, const struct host_needs *needs);
/* Check which network cards of this machine its agent uses (check_host.c). agent: its /status. */
void check_cards(json_t *list, json_t *agent);
/* Run all checks. Returns a new reference to a document with the results, or NULL when out of
 * memory. config_dir: folder of the daemons' settings. scheduler_http: address of the scheduler's
 * HTTP port; NULL: the address in the scheduler's settings. Fields of the document:
 *  schema host version commit checks[{name state("ok"|"warn"|"bad") what action}]
 *  ok, warn, bad: three fields, each with the number of checks in the state of that name */
json_t *checks_run_all_json(const char *config_dir, const struct addr *scheduler_http);
/* Print the results of the checks. Returns 2 if a result is bad, 1 if a result is a warning, else
 * 0. */
int screen_check(FILE *out, json_t *root);
#endif
