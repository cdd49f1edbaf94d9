#ifndef BPS_COMMON_DATAPATH_CARDS_H
#define BPS_COMMON_DATAPATH_CARDS_H
/* The network cards of a daemon that carry data: addresses, speeds, and a network transport for
 * each. A server has one card. Thread: the control loop's. Other threads may read what no longer
 * changes after cards_open_nets: all fields but `nic`, of which they may read the name. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/addr.h"
#include "common/base/nicspeed.h"
#include "common/datapath/net_open.h"

struct event;
struct event_base;

#define CARDS_MAX 8

struct card {
	char host[ADDR_HOST_BYTES]; /* numeric address */
	struct net *net;
	/* Interface with this address. If the setting nic-speed is not 0, only its name is set */
	struct nic nic;
	/* Address, and mask of its subnet; family 0: unknown */
	struct sockaddr_storage addr, mask;
	uint64_t mbps;  /* speed from the setting or the driver; 0: unknown */
	cpu_set_t cpus; /* processors near the card, set by the program; empty: unknown */
};
struct cards {
	struct card of[CARDS_MAX];
	unsigned n;
	uint64_t mbps;        /* speed of all cards together, if all are known; 0: unknown */
	struct event *sample; /* timer that samples the cards' counters while there is load */
	uint32_t n_idle_samples;
};

/* Make the list of cards from the setting listen, and from the setting cards if it is not NULL.
 * is_keyless: without a cluster key, only loopback addresses are allowed. Errors: a negative code;
 * err gets the text. */
int cards_list(struct cards *cards, const char *listen, const char *more, bool is_keyless,
	struct err_text *err);
/* Find the interfaces and the speeds of the cards. set_mbps: the setting nic-speed.
 * Errors: -ENOMEM; -EINVAL: two addresses are of one interface; err gets the text. */
int cards_find_speeds(
	struct cards *cards, struct event_base *base, uint64_t set_mbps, struct err_text *err);
/* Open the network transport of each card. cfg: the configuration without address and device.
 * Errors: those of net_open. */
int cards_open_nets(struct cards *cards, const struct net_config *cfg, net_key_fn key_fn,
	void *key_ctx, struct err_text *err);
/* Measure the cards for a while, if they have load. Call this function often, such as with each
 * heartbeat: a timer of its own would wake an idle daemon. */
void cards_measure(struct cards *cards);
/* Return the measured speed of all cards together; 0: a card has no speed yet, or no card needs to
 * be measured. */
uint64_t cards_measured_mbps(const struct cards *cards);
/* Read the counters of all cards together. */
void cards_net_stats(const struct cards *cards, struct net_stats *ret);
/* Close the transports, and what measures the cards. */
void cards_close(struct cards *cards);
#endif
