/* Sockets of the libfabric transport's connections: windows, pacing, congestion control, and how
 * many bytes must arrive before the kernel wakes the thread. Only provider tcp has sockets, and
 * only libfabric 2.2 and later show them (has_get_fd in fabric_gates.h). With other versions the
 * functions do nothing. The sockets belong to libfabric. Thread: the data thread. */
#include "common/transport/fabric/fabric_socket.h"

#include <string.h>
#include <sys/socket.h>

#include "common/base/log.h"

/* Value of FI_GET_FD in libfabric 2.2. The headers of libfabric 1.17 do not define this value. */
#define CONTROL_GET_FD (FI_EXPORT_FID + 1)

int fabric_socket_of(const struct fabric *f, struct fid_ep *ep)
{
	int fd = -1;

	return f->gates.has_get_fd && !fi_control(&ep->fid, CONTROL_GET_FD, &fd) ? fd : -1;
}

void fabric_socket_set_windows(struct fabric_xport *x)
{
	int rc = 0;

	if (x->f->gates.has_eager)
		x->base.pub.ahead_bytes = socket_window_ahead(&x->window);
	for (unsigned i = 0; i < FABRIC_CONNS_MAX * N_CHANNELS; i++) {
		const struct fabric_conn *c = x->conns[i / N_CHANNELS];
		int fd = c ? c->fds[i % N_CHANNELS] : -1;

		if (fd >= 0 && !rc)
			rc = socket_window_set(&x->window, fd);
		/* If this call fails, the previous limit of unsent bytes stays in force, which does
		 * no harm */
		if (fd >= 0)
			socket_window_pace(&x->window, fd);
	}
	if (rc && !x->window.bytes)
		/* socket_window_set failed for the first socket, so no socket has changed */
		recv_window_refused(&x->window);
}

void fabric_socket_measure(struct fabric_conn *c, enum channel channel, size_t n)
{
	struct fabric_xport *x = fabric_xport_of(c);
	struct socket_meter *m = &c->arrivals[channel].meter;
	int fd = c->fds[channel];

	recv_rtt_flowed(&m->rtt, x->base.now_ns);
	if (fd >= 0 && socket_window_measure(&x->window, m, fd, n, x->base.now_ns))
		fabric_socket_set_windows(x);
}

void fabric_socket_set_lowat(struct fabric_conn *c)
{
	const struct fabric_arrivals *a = &c->arrivals[fabric_arrival_channel(c)];
	uint64_t most = socket_window_lowat(&fabric_xport_of(c)->window);
	/* libfabric may have received most of one operation, and FABRIC_PREFETCH bytes more. */
	uint64_t taken = a->longest + FABRIC_PREFETCH;
	int fd = c->fds[fabric_arrival_channel(c)], want = 1;

	if (fd < 0)
		return;
	if (a->expected > taken)
		want = (int)(a->expected - taken < most ? a->expected - taken : most);
	if (want != c->lowat && !setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &want, sizeof(want)))
		c->lowat = want;
}

void fabric_socket_tune(struct fabric_conn *c, enum channel channel)
{
	const struct fabric_xport *x = fabric_xport_of(c);
	int fd = fabric_socket_of(x->f, c->eps[channel]), rc;

	c->fds[channel] = fd;
	if (fd < 0)
		return;
	congestion_set_or_warn(fd, x->f->congestion);
	rc = socket_window_begin(&x->window, fd);
	if (!rc)
		rc = socket_window_pace(&x->window, fd);
	if (rc)
		log_rated(LOG_WARN, "cannot set the window or the pacing of a data connection: %s",
			strerror(-rc));
}
