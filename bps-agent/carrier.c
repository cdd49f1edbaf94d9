/* Watches the carriers of network interfaces. It neither sets an interface up or down, nor reads
 * anything else about it. Thread: the control loop's. */
#include "bps-agent/carrier.h"

#include <errno.h>
#include <event2/event.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct carrier_watch {
	struct event *readable;
	int netlink_fd, query_fd;
	carrier_fn fn;
	void *ctx;
	unsigned n;
	char names[CARRIER_NAMES_MAX][IF_NAMESIZE];
	uint32_t seen;
};

/* Return whether the interface is up and has a carrier. An interface that is gone has none. */
static bool interface_has_carrier(int fd, const char *name)
{
	struct ifreq r = {0};

	if (!*name)
		return true;
	snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
	return ioctl(fd, SIOCGIFFLAGS, &r) == 0 && r.ifr_flags & IFF_UP &&
	       r.ifr_flags & IFF_RUNNING;
}

uint32_t carrier_watch_read(const struct carrier_watch *w)
{
	uint32_t cards = 0;

	for (unsigned i = 0; i < w->n; i++)
		if (interface_has_carrier(w->query_fd, w->names[i]))
			cards |= UINT32_C(1) << i;
	return cards;
}

/* Something about an interface has changed. The flags are read again, so it does no harm if the
 * kernel has dropped messages. */
static void on_netlink_readable(evutil_socket_t fd, short what, void *arg)
{
	struct carrier_watch *w = arg;
	char dropped[4096];
	uint32_t cards;

	(void)what;
	while (recv(fd, dropped, sizeof(dropped), MSG_DONTWAIT) >= 0 || errno == ENOBUFS)
		continue;
	cards = carrier_watch_read(w);
	if (cards == w->seen)
		return;
	w->seen = cards;
	w->fn(w->ctx, cards);
}

int carrier_watch_new(struct event_base *base, const char *const *names, unsigned n, carrier_fn fn,
	void *ctx, struct carrier_watch **ret, struct err_text *err)
{
	struct sockaddr_nl all = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
	struct carrier_watch *w = calloc(1, sizeof(*w));

	if (!w)
		return err_set(err, -ENOMEM, "out of memory");
	w->fn = fn;
	w->ctx = ctx;
	w->n = n < CARRIER_NAMES_MAX ? n : CARRIER_NAMES_MAX;
	for (unsigned i = 0; i < w->n; i++)
		snprintf(w->names[i], IF_NAMESIZE, "%s", names[i]);
	w->netlink_fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	w->query_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (w->netlink_fd >= 0 && w->query_fd >= 0 &&
		bind(w->netlink_fd, (struct sockaddr *)&all, sizeof(all)) == 0)
		w->readable = event_new(
			base, w->netlink_fd, EV_READ | EV_PERSIST, on_netlink_readable, w);
	if (!w->readable || event_add(w->readable, NULL) < 0) {
		int rc = errno ? -errno : -ENOMEM;

		carrier_watch_free(w);
		return err_set(err, rc, "cannot watch the network cards: %s", strerror(-rc));
	}
	w->seen = carrier_watch_read(w);
	*ret = w;
	return 0;
}

void carrier_watch_free(struct carrier_watch *w)
{
	if (!w)
		return;
	if (w->readable)
		event_free(w->readable);
	if (w->netlink_fd >= 0)
		close(w->netlink_fd);
	if (w->query_fd >= 0)
		close(w->query_fd);
	free(w);
}
