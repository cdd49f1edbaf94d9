#ifndef BPS_COMMON_TRANSPORT_SOCKETS_CONGESTION_H
#define BPS_COMMON_TRANSPORT_SOCKETS_CONGESTION_H
/* The congestion control of data sockets.
 *
 * BBR measures the least round trip: after ten seconds without an idle moment a connection has four
 * packets in flight for 200 ms, and all connections of a data thread do so at once. It also paces,
 * at a timer per connection. Our windows are small and equal
 * (common/transport/sockets/recv_window.h), so that queues are short under any congestion control.
 * So BBR brings only costs: at 1 Gbit/s 4 to 7 % of the throughput, and more processor time
 * (docs/explanation/performance.md, point 7). */
#include "common/base/error.h"

#define CONGESTION_NAME_MAX 15 /* letters of a name (TCP_CA_NAME_MAX includes its end) */

/* Choose what to set on each socket. wanted: "auto": nothing, except where the system's is a BBR:
 * then the first of cubic and reno that this process may use. "system": nothing. Else a name the
 * kernel knows. system: the kernel's default. may_use(ctx, name): 0 or -errno.
 * Returns a name, "" for nothing, or NULL (err is set): unknown to the kernel, or not allowed.
 * Pure. */
const char *congestion_choose(const char *wanted, const char *system,
	int (*may_use)(void *ctx, const char *name), void *ctx, struct err_text *err);

/* Choose with this kernel's answers, in the network namespace of the caller; logs the choice. ret:
 * room for CONGESTION_NAME_MAX + 1.
 * Errors: -EINVAL, or that of socket(). */
int congestion_find(const char *wanted, char *ret, struct err_text *err);
/* Set it on a socket. name: as congestion_find returned it.
 * Errors: -errno. */
int congestion_set(int fd, const char *name);
#endif
