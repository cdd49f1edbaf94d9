#ifndef BPS_TOOLS_HOSTLIST_H
#define BPS_TOOLS_HOSTLIST_H
/* The hosts of -H, and how many workers each of them gets. The functions keep no state. */
#include <stdbool.h>

#include "common/base/addr.h"

#define HOSTLIST_MAX 1024

struct hostlist_entry {
	char name[ADDR_HOST_BYTES]; /* as the user has written it, perhaps with "user@" */
	unsigned slots, n;          /* number of workers: at most, and to start */
};

/* Read a file with one host in each line, as "HOST", "HOST:N" or "HOST slots=N", and return the
 * list for -H, which the caller frees. Returns NULL after an error, which was printed. */
char *hostlist_read_file(const char *path);
/* Parse a list such as "a:8,n[1-4]:2". The caller frees *ret.
 * Errors: -EINVAL, -ENOMEM; the error was printed. */
int hostlist_parse(const char *list, struct hostlist_entry **ret, unsigned *ret_n);
/* Divide the workers among the hosts, in the order of the list. Hosts behind the last worker leave
 * the list. is_one_each: one for each host. *n_workers: 0: as many as the hosts have room for.
 * Errors: -EINVAL; the error was printed. */
int hostlist_divide(
	struct hostlist_entry *hosts, unsigned *n_hosts, bool is_one_each, unsigned *n_workers);
#endif
