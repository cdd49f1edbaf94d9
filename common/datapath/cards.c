/* Network cards: check their addresses, find or measure their speeds, open a transport for each.
 * Thread: the control loop's. */
#include "common/datapath/cards.h"

#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"

/* After this number of samples in a row without load, the timer stops. A heartbeat starts the timer
 * again when there is load. */
#define IDLE_SAMPLES 50

/* ---- addresses ---- */

/* Check at the start that the address exists on this machine. An agent uses the address only when
 * it connects to a server, which is too late to reject the setting. setting: its name. */
static int check_local_address(const char *setting, const char *host, struct err_text *err)
{
	struct sockaddr_storage sa;
	struct addr any_port = {.port = 0};
	socklen_t len;
	int fd, rc = 0;

	snprintf(any_port.host, sizeof(any_port.host), "%s", host);
	if (addr_resolve_numeric(&any_port, &sa, &len) < 0)
		return 0;
	fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && bind(fd, (struct sockaddr *)&sa, len) < 0)
		rc = err_set(err, -errno, "cannot use --%s %s: %s%s", setting, host,
			strerror(errno), addr_bind_hint(-errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

/* Check the address of a card, which a setting has. */
static int check_card_address(
	const char *setting, const char *host, bool is_keyless, struct err_text *err)
{
	struct addr addr = {.port = 0};
	struct sockaddr_storage sa;
	socklen_t len;

	snprintf(addr.host, sizeof(addr.host), "%s", host);
	if (addr_resolve_numeric(&addr, &sa, &len) < 0 || sockaddr_is_any((struct sockaddr *)&sa))
		return err_set(err, -EINVAL,
			"--%s needs the numeric address of this machine on the training network, "
			"not '%s'",
			setting, host);
	if (is_keyless && !sockaddr_is_loopback((struct sockaddr *)&sa))
		return err_set(err, -EPERM,
			"cannot use --%s '%s': without a cluster key only loopback addresses are "
			"allowed (set --key-file)",
			setting, host);
	return check_local_address(setting, host, err);
}

static bool is_same_address(const char *a, const char *b)
{
	struct sockaddr_storage of_a, of_b;
	struct addr at_a = {.port = 0}, at_b = {.port = 0};
	socklen_t len;

	snprintf(at_a.host, sizeof(at_a.host), "%s", a);
	snprintf(at_b.host, sizeof(at_b.host), "%s", b);
	return addr_resolve_numeric(&at_a, &of_a, &len) == 0 &&
	       addr_resolve_numeric(&at_b, &of_b, &len) == 0 &&
	       sockaddr_same_host((struct sockaddr *)&of_a, (struct sockaddr *)&of_b);
}

static int cards_add(struct cards *cards, const char *setting, const char *host, bool is_keyless,
	struct err_text *err)
{
	int rc = check_card_address(setting, host, is_keyless, err);

	if (rc < 0)
		return rc;
	if (cards->n == CARDS_MAX)
		return err_set(
			err, -EINVAL, "--%s has more than %d addresses", setting, CARDS_MAX - 1);
	for (unsigned i = 0; i < cards->n; i++)
		if (is_same_address(cards->of[i].host, host))
			return err_set(err, -EINVAL,
				"--%s names the address %s twice, or that of --listen", setting,
				host);
	snprintf(cards->of[cards->n++].host, ADDR_HOST_BYTES, "%s", host);
	return 0;
}

int cards_list(struct cards *cards, const char *listen, const char *more, bool is_keyless,
	struct err_text *err)
{
	char *list = strdup(more ? more : ""), *at = list, *word;
	int rc = list ? cards_add(cards, "listen", listen, is_keyless, err)
		      : err_set(err, -ENOMEM, "out of memory");

	while (rc == 0 && (word = strsep(&at, ", \t")))
		if (*word)
			rc = cards_add(cards, "cards", word, is_keyless, err);
	free(list);
	return rc;
}

/* ---- speeds ---- */

static void on_nic_sample_due(evutil_socket_t fd, short what, void *arg)
{
	struct cards *cards = arg;
	bool has_load = false;

	(void)fd;
	(void)what;
	for (unsigned i = 0; i < cards->n; i++)
		has_load |= nic_sample(&cards->of[i].nic, clock_now_ns());
	if (has_load)
		cards->n_idle_samples = 0;
	else if (++cards->n_idle_samples >= IDLE_SAMPLES)
		event_del(cards->sample);
}

void cards_measure(struct cards *cards)
{
	const struct timeval tv = {.tv_usec = NIC_WINDOW_NS / 1000};
	bool has_load = false;

	for (unsigned i = 0; i < cards->n && cards->sample; i++)
		has_load |= nic_has_load(&cards->of[i].nic);
	if (!has_load || event_pending(cards->sample, EV_TIMEOUT, NULL))
		return;
	cards->n_idle_samples = 0;
	if (event_add(cards->sample, &tv) < 0)
		log_rated(LOG_WARN, "cannot measure the network card: out of memory");
}

static void card_find_speed(struct card *c, uint64_t set_mbps)
{
	char name[IF_NAMESIZE];

	c->nic = (struct nic){.rx_fd = -1, .tx_fd = -1};
	c->mbps = set_mbps;
	if (!nic_find_by_host(c->host, name, &c->addr, &c->mask))
		return;
	if (set_mbps) {
		memcpy(c->nic.name, name, sizeof(name));
		return;
	}
	nic_open_by_name(&c->nic, NIC_SYSFS, name);
	c->mbps = c->nic.driver_mbps;
	if (c->mbps)
		log_info("the driver of network card %s reports %llu Mbit/s", c->nic.name,
			(unsigned long long)c->mbps);
}

/* Return a card before card number n that has the same interface, or NULL. */
static const struct card *cards_find_interface(const struct cards *cards, unsigned n)
{
	const char *name = cards->of[n].nic.name;

	for (unsigned i = 0; i < n && *name; i++)
		if (strcmp(cards->of[i].nic.name, name) == 0)
			return &cards->of[i];
	return NULL;
}

int cards_find_speeds(
	struct cards *cards, struct event_base *base, uint64_t set_mbps, struct err_text *err)
{
	bool is_known = true, is_measured = false;

	for (unsigned i = 0; i < cards->n; i++) {
		const struct card *other;

		card_find_speed(&cards->of[i], set_mbps);
		other = cards_find_interface(cards, i);
		if (other)
			return err_set(err, -EINVAL,
				"the addresses %s and %s are both of network card %s: leave one "
				"of them out of --cards",
				other->host, cards->of[i].host, other->nic.name);
		cards->mbps += cards->of[i].mbps;
		is_known &= cards->of[i].mbps > 0;
		is_measured |= !set_mbps && nic_is_measured(&cards->of[i].nic);
	}
	if (!is_known)
		cards->mbps = 0;
	if (!is_measured)
		return 0;
	cards->sample = event_new(base, -1, EV_PERSIST, on_nic_sample_due, cards);
	return cards->sample
		       ? 0
		       : err_set(err, -ENOMEM, "cannot measure the network card: out of memory");
}

uint64_t cards_measured_mbps(const struct cards *cards)
{
	uint64_t sum = 0;

	if (!cards->sample)
		return 0;
	for (unsigned i = 0; i < cards->n; i++) {
		uint64_t mbps = nic_meter_mbps(&cards->of[i].nic.meter);

		mbps = mbps ? mbps : cards->of[i].mbps;
		if (!mbps)
			return 0;
		sum += mbps;
	}
	return sum;
}

void cards_close(struct cards *cards)
{
	for (unsigned i = 0; i < cards->n; i++) {
		net_close(cards->of[i].net);
		nic_close(&cards->of[i].nic);
	}
	if (cards->sample)
		event_free(cards->sample);
}

/* ---- transports ---- */

int cards_open_nets(struct cards *cards, const struct net_config *cfg, net_key_fn key_fn,
	void *key_ctx, struct err_text *err)
{
	struct net_config of_card = *cfg;
	uint16_t first_tag = 0;

	/* Without a random number, the clock makes the tag differ from that of the last process. */
	if (getrandom(&first_tag, sizeof(first_tag), 0) != sizeof(first_tag))
		first_tag = (uint16_t)clock_now_ns();
	for (unsigned i = 0; i < cards->n; i++) {
		struct card *c = &cards->of[i];
		int rc;

		of_card.bind_addr = c->host;
		of_card.tag = (uint16_t)(1 + first_tag % (UINT16_MAX - CARDS_MAX) + i);
		of_card.device = cards->n > 1 && *c->nic.name ? c->nic.name : NULL;
		rc = net_open(&of_card, key_fn, key_ctx, &c->net, err);
		if (rc < 0)
			return rc;
		of_card.provider = net_provider(c->net); /* all cards have the same */
	}
	return 0;
}

void cards_net_stats(const struct cards *cards, struct net_stats *ret)
{
	*ret = (struct net_stats){0};
	for (unsigned i = 0; i < cards->n; i++) {
		struct net_stats f;

		net_stats(cards->of[i].net, &f);
		net_stats_add(ret, &f);
	}
}
