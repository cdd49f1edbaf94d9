/* Sets and measures the receive window, pacing and the limit of unsent bytes of TCP sockets. */
#include "common/transport/flow/socket_window.h"

#include <errno.h>
#include <limits.h>
#include <linux/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Number of bytes received between two checks of the window. */
#define MEASURE_BYTES (UINT32_C(1) << 20)

/* Return whether the window has room for fewer than two TCP segments of the peer. The peer's kernel
 * fills such a window only when a timer expires, after 200 ms. Segments are up to 64 KiB long on a
 * loopback device. */
static bool recv_window_is_too_small(int fd, int window)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	return window && window < RECV_WINDOW_MAX &&
	       !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) &&
	       info.tcpi_advmss > (uint32_t)window / 2;
}

/* Limit the window that the kernel advertises. Do not reduce SO_RCVBUF instead, because then the
 * kernel would drop bytes in the buffer. */
static int socket_clamp_recv_window(int fd, int bytes)
{
	return setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &bytes, sizeof(bytes)) ? -errno : 0;
}

/* Lock the size of the receive buffer, or let the kernel choose the size. Kernels before 5.14 have
 * no option for this. With these kernels the size is fixed, because socket_window_begin has set it.
 * Errors: -errno. */
static int socket_lock_recv_buffer(int fd, bool is_locked)
{
#ifdef SO_BUF_LOCK
	int locks = is_locked ? SOCK_RCVBUF_LOCK : 0;

	return setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &locks, sizeof(locks)) ? -errno : 0;
#else
	(void)fd, (void)is_locked;
	return -ENOPROTOOPT;
#endif
}

int socket_window_pace(const struct recv_window *w, int fd)
{
	/* Largest pacing rate in bytes per second. No link reaches this value, so the congestion
	 * control alone decides */
	uint64_t most = UINT64_MAX - 1;
	int ahead = (int)socket_window_ahead(w);

	if (w->is_paced && setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &most, sizeof(most)))
		return -errno;
	return setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &ahead, sizeof(ahead)) ? -errno : 0;
}

int socket_window_set(const struct recv_window *w, int fd)
{
	int window = w->bytes, rc = socket_lock_recv_buffer(fd, window != 0);

	if (rc && !window)
		return rc;
	if (recv_window_is_too_small(fd, window))
		window = RECV_WINDOW_MAX;
	return socket_clamp_recv_window(fd, window ? window : INT_MAX);
}

int socket_window_begin(const struct recv_window *w, int fd)
{
	int room = RECV_ROOM;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)))
		return -errno;
	return socket_window_set(w, fd);
}

/* Adapt w to rtt_us, the average time that the bytes of one window take to arrive. The kernel has
 * measured this time. Returns whether w has changed. */
static bool recv_window_adapt_to_rtt(
	struct recv_window *w, struct recv_rtt *rtt, uint32_t rtt_us, uint64_t now_ns)
{
	if (recv_rtt_measured(rtt, rtt_us, now_ns))
		return recv_window_add_rtt_sample(w, rtt_us);
	return recv_window_bounded(w, rtt_us, now_ns);
}

bool socket_window_measure(
	struct recv_window *w, struct socket_meter *m, int fd, size_t n, uint64_t now_ns)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	m->unclamped += n;
	if (m->unclamped >= MEASURE_BYTES) {
		/* Set the window again, because the kernel discards this setting when it learns how
		 * much memory a TCP segment takes. */
		m->unclamped = 0;
		if (w->bytes)
			socket_window_set(w, fd);
	}
	w->unmeasured += n;
	if (w->unmeasured < MEASURE_BYTES)
		return false;
	w->unmeasured = 0;
	return !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) && info.tcpi_rcv_rtt &&
	       recv_window_adapt_to_rtt(w, &m->rtt, info.tcpi_rcv_rtt, now_ns);
}
