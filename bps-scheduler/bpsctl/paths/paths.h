#ifndef BPS_SCHEDULER_BPSCTL_PATHS_PATHS_H
#define BPS_SCHEDULER_BPSCTL_PATHS_PATHS_H
/* Measures whether the paths from this host pass large messages: to the scheduler's control port,
 * and to the ports for data connections of servers. A path with a wrong MTU passes small packets,
 * such as heartbeats, and drops large ones. All paths are measured at once. The functions block for
 * a limited time. */
#include <stdbool.h>
#include <stddef.h>

#include "common/base/addr.h"

/* Largest number of paths that are measured, and time limit of their measurement. */
#define PATHS_MAX      64
#define PATHS_LIMIT_MS 1500

enum path_result {
	PATH_PASSES, /* the large message was answered */
	/* the other end is of an earlier release, which cannot answer a large message */
	PATH_UNSUPPORTED,
	PATH_UNREACHABLE, /* the connection failed; `error` has the reason, an errno */
	PATH_SILENT,      /* a small message got no answer */
	/* Small messages pass, but the large message was not acknowledged */
	PATH_DROPS_SENT,
	/* The large message was acknowledged, but its answer did not arrive completely */
	PATH_DROPS_ANSWER,
	/* control: this host's OpenSSL makes no TLS message */
	PATH_NOT_MEASURED,
};

struct checked_path {
	char name[48];    /* of the other end: "scheduler", or "server NAME" */
	struct addr addr; /* for texts; sa is the address that it was resolved to */
	struct sockaddr_storage sa;
	socklen_t sa_len;
	/* The other end is the scheduler's control port. It receives a TLS message of a few
	 * kilobytes. A server's port answers a path probe (common/wire/path_probe.h). */
	bool is_control;
	enum path_result result;
	int error;
	size_t n_bytes; /* length of the large message */
};
struct path_list {
	struct checked_path paths[PATHS_MAX];
	size_t n, n_left_out; /* n_left_out: number of paths that the full list did not take */
	/* Address of this host for data connections, "" for any. Probes of servers come from it, as
	 * the agent's connections do. */
	char from[ADDR_HOST_BYTES];
	bool has_loopback; /* for tests: measure addresses in the loopback, too */
};

/* Append a path. `a` was resolved to sa, because the resolver would not keep the time limit of the
 * measurement. Only counts the path if the list is full. Does nothing if the list has the
 * address already, or if the address is in the loopback, which has no path to measure. */
void path_list_add(struct path_list *l, const char *name, const struct addr *a,
	const struct sockaddr_storage *sa, socklen_t sa_len, bool is_control);
/* Measure all paths, and write their results. Returns after PATHS_LIMIT_MS at the latest. */
void path_list_measure(struct path_list *l);
#endif
