#ifndef BPS_COMMON_TRANSPORT_FLOW_SOCKET_WINDOW_H
#define BPS_COMMON_TRANSPORT_FLOW_SOCKET_WINDOW_H
/* Options of the TCP sockets that carry the bytes of tensors: the receive window (recv_window.h),
 * pacing, and the limit of unsent bytes. The functions set and measure sockets, and keep no state
 * of their own. Thread: the data thread. */
#include <stddef.h>

#include "common/transport/flow/recv_window.h"

/* Values of ahead_bytes in struct xport. The kernel may hold up to this number of unsent bytes.
 * These bytes keep the link busy until the data thread wakes up. Bytes that are more urgent and are
 * offered meanwhile must wait until the unsent bytes are sent. A connection may also get ahead of
 * another connection by this number of bytes. SOCKET_AHEAD is used when round trips are quick,
 * because the wait is short then. With SOCKET_AHEAD, one call sends the bytes of several offers. */
#define SOCKET_AHEAD_SLOW (64 << 10)
#define SOCKET_AHEAD      (512 << 10)

/* Measurements of one connection. */
struct socket_meter {
	struct recv_rtt rtt;
	size_t unclamped; /* number of bytes received since this socket's window was set */
};

static inline uint32_t socket_window_ahead(const struct recv_window *w)
{
	return w->is_quick ? SOCKET_AHEAD : SOCKET_AHEAD_SLOW;
}

/* The kernel wakes the thread when all expected bytes, or SOCKET_LOWAT_MAX of them, have arrived.
 * If the window is fixed, a quarter of the window replaces SOCKET_LOWAT_MAX. This is a compromise:
 * each wake-up costs time, but while bytes wait in the kernel, the thread could already copy
 * them. */
#define SOCKET_LOWAT_MAX (UINT32_C(128) << 10)

static inline uint32_t socket_window_lowat(const struct recv_window *w)
{
	return w->bytes ? (uint32_t)w->bytes / 4 : SOCKET_LOWAT_MAX;
}

/* Set the receive window of a new socket. If the window has no room for two TCP segments of the
 * peer, set a larger window. Errors: -errno. */
int socket_window_begin(const struct recv_window *w, int fd);
/* Set the receive window of a socket again. Errors: -errno. */
int socket_window_set(const struct recv_window *w, int fd);
/* Turn on pacing if the window requires it, and limit the number of unsent bytes in the kernel. A
 * paced socket stays paced, because the kernel cannot turn pacing off.
 * Errors: -errno. */
int socket_window_pace(const struct recv_window *w, int fd);
/* Count n received bytes, and check the window at intervals. Returns whether w has changed. The
 * caller then sets the windows of all its sockets. The caller also records in m->rtt when bytes
 * arrive. */
bool socket_window_measure(
	struct recv_window *w, struct socket_meter *m, int fd, size_t n, uint64_t now_ns);
#endif
