#ifndef BPS_COMMON_TRANSPORT_FLOW_CONGESTION_H
#define BPS_COMMON_TRANSPORT_FLOW_CONGESTION_H
/* The congestion control of data sockets.
 *
 * BBR measures the minimum round trip time. For this measurement, a connection that was busy for
 * ten seconds keeps only four packets in flight for 200 ms. All connections of a data thread do so
 * at the same time. BBR also paces each connection with a timer. Our receive windows are small and
 * equal (common/transport/flow/recv_window.h), so queues are short under any congestion control.
 * BBR therefore has no benefit here, only costs. BBR needs more processor time, and at 1 Gbit/s BBR
 * reduces the throughput by 4 to 7 % (docs/explanation/performance.md, point 7). */
#include "common/base/error.h"

/* Largest length of a name in bytes, without the NUL byte. The kernel's TCP_CA_NAME_MAX includes
 * the NUL byte */
#define CONGESTION_NAME_MAX 15

/* Choose the congestion control to set on each data socket.
 * system: name of the kernel's default.
 * wanted: "system", "auto" or a name:
 * - "system": keep the kernel's default;
 * - "auto": keep the kernel's default, unless the default is a version of BBR. Instead of BBR,
 *   choose the first of cubic and reno that this process may use. If there is none, keep BBR;
 * - a name, which the kernel must know: choose this name.
 * may_use(ctx, name): returns 0 when this process may use the name, else -errno.
 * Returns the chosen name, or "" to keep the kernel's default. Returns NULL, with err set, when the
 * kernel does not know or does not allow the wanted name. Pure. */
const char *congestion_choose(const char *wanted, const char *system,
	int (*may_use)(void *ctx, const char *name), void *ctx, struct err_text *err);

/* Call congestion_choose to choose the congestion control for data sockets, and log the choice. The
 * kernel's default is the default of the caller's network namespace. Writes the name or "" to
 * `ret`, which must have room for CONGESTION_NAME_MAX + 1 bytes.
 * Errors: -EINVAL, or the -errno of socket(). */
int congestion_find(const char *wanted, char *ret, struct err_text *err);
/* Set the congestion control of a socket. name: as congestion_find returned it; "" changes nothing.
 * Errors: -errno. */
int congestion_set(int fd, const char *name);
/* Set the congestion control of a data connection's socket. If that fails, log a warning: the
 * connection then uses the system's default. A failure is unexpected, because congestion_find has
 * tried the name. */
void congestion_set_or_warn(int fd, const char *name);
#endif
