/* End silent connections to the data port of libfabric's provider tcp. Our own transport
 * over TCP, common/transport/sockets, closes silent connections itself (tcp_listener.c).
 * TCP_DEFER_ACCEPT hides silent connections from the provider for a few seconds only. After that
 * time, the provider accepts silent connections and waits without end for a handshake. So each
 * silent connection costs a descriptor (libfabric 1.17). libfabric has no call to list or close
 * these connections. A valid peer sends its handshake at once, so an accepted socket without a
 * received byte does not belong to a valid peer. When this file shuts down such a socket, the
 * provider reads an end of stream and closes the socket. Between the check and the shutdown, the
 * number of the descriptor may be reused for a data connection. Then the data connection is lost
 * and opened again. */
#include "common/transport/fabric/fabric_impl.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/addr.h"
#include "common/base/log.h"

#define SWEEP_EVERY_NS UINT64_C(200000000)

/* Start of the kernel's struct tcp_info (linux/tcp.h). netinet/tcp.h has an older version of the
 * struct. */
struct tcp_info_head {
	struct tcp_info old;
	uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
};

/* Smallest size of the kernel's struct tcp_info that includes bytes_received (Linux 4.1). */
#define TCP_INFO_NEEDED sizeof(struct tcp_info_head)

static bool socket_is_silent_stranger(int fd, uint16_t port)
{
	struct tcp_info_head info;
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss), info_len = sizeof(info);

	if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0 ||
		sockaddr_port((struct sockaddr *)&ss) != port ||
		getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_len) < 0)
		return false;
	return info_len >= TCP_INFO_NEEDED && info.old.tcpi_state == TCP_ESTABLISHED &&
	       info.bytes_received == 0;
}

void fabric_sweep_silent(struct fabric *f)
{
	uint64_t now = clock_now_ns();
	struct dirent *e;
	unsigned n = 0;
	DIR *d;

	if (!f->base.cfg.is_listener || strcmp(f->base.cfg.provider, "tcp") != 0 ||
		now - f->swept_ns < SWEEP_EVERY_NS)
		return;
	f->swept_ns = now;
	d = opendir("/proc/self/fd");
	if (!d)
		return;
	while ((e = readdir(d))) {
		int fd = atoi(e->d_name);

		if (e->d_name[0] == '.' || fd == dirfd(d) ||
			!socket_is_silent_stranger(fd, f->base.port))
			continue;
		shutdown(fd, SHUT_RDWR);
		n++;
	}
	closedir(d);
	if (!n)
		return;
	atomic_fetch_add_explicit(&f->base.silent, n, memory_order_relaxed);
	log_rated(LOG_WARN, "closed data connections, because they sent nothing: count=%u", n);
}
