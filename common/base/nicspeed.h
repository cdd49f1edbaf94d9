#ifndef BPS_COMMON_BASE_NICSPEED_H
#define BPS_COMMON_BASE_NICSPEED_H
/* The speed of the network card that carries this daemon's data: what its driver tells, and where
 * that tells nothing (veth, most clouds), what was seen to pass.
 *
 * What is seen are the counters of the interface, both ways, and not those of our own connections:
 * a server and an agent of one machine share its card, each would see only its own half of it, and
 * what they exchange by the loopback must not count.
 *
 * The measure is a lower bound that rises at once and sinks slowly. It takes windows of
 * NIC_WINDOW_NS, and of those only NIC_PLATEAU in a row that agree within NIC_SPREAD: then the link
 * was busy all of that time, or evenly in use. A burst that a token bucket lets through, counters
 * that a driver updates seldom, and rounds shorter than that, of which a window sees a part, agree
 * with nothing: they tell nothing, rather than something wrong.
 *
 * Why a server that was given less does not look slower for it: within a round all agents have
 * something for every server at first, so a card that has less to carry carries it as fast, and is
 * idle for the rest; a mean would see that, the best plateau does not. Where agents keep their
 * connections in step no card is idle, if shares are what the cards can do; where they are equal since
 * nothing is known, one round of some is left free for this (bps-agent/core/lockstep.c). Where no
 * plateau comes about the measure stays what it was.
 *
 * struct nic_meter is pure; struct nic reads files and belongs to one thread. */
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#define NIC_SYSFS     "/sys"
#define NIC_WINDOW_NS UINT64_C(20000000)
#define NIC_PLATEAU   3
#define NIC_SPREAD    1.25
#define NIC_MIN_MBPS  50 /* less is no load that tells anything */
#define NIC_MAX_MBPS  10000000

/* One direction. */
struct nic_way {
	uint64_t bytes;              /* at the last sample */
	double rates[NIC_PLATEAU];   /* bytes/s of the last windows, in turn */
	unsigned n_rates, next_rate; /* how many there are; where the next one goes */
};

/* Zeroed is new. */
struct nic_meter {
	uint64_t at_ns; /* of the last sample, 0: none */
	struct nic_way ways[2];
	double rate; /* bytes/s, the measure */
};

/* The interface's counters at that time. Returns whether the window since the last sample has seen
 * some load. A span much longer than a window is none. */
bool nic_meter_add(struct nic_meter *m, uint64_t now_ns, uint64_t rx_bytes, uint64_t tx_bytes);
/* 0: not known. */
uint64_t nic_meter_mbps(const struct nic_meter *m);

/* What the driver tells, in Mbit/s; 0: nothing. An interface counts that has a device, or stands on
 * nothing but such (bond, VLAN); others tell made-up figures. */
uint64_t nic_driver_mbps(const char *sysfs, const char *name);

struct nic {
	char name[IF_NAMESIZE]; /* "": not known, or the loopback */
	uint64_t driver_mbps;   /* 0: not told */
	int rx_fd, tx_fd;       /* its counters, -1: nothing to measure */
	struct nic_meter meter;
	uint64_t looked_bytes; /* by nic_has_load, both ways */
};

/* Find the interface that has this numeric address (host of struct addr); open its counters unless
 * its driver tells the speed. Never fails: what cannot be found is not known. */
void nic_open(struct nic *nic, const char *sysfs, const char *host);
/* As nic_open, by name. */
void nic_open_name(struct nic *nic, const char *sysfs, const char *name);
/* Also of a zeroed one, that was never opened. */
void nic_close(struct nic *nic);
static inline bool nic_is_measured(const struct nic *nic)
{
	return nic->name[0] && nic->rx_fd >= 0;
}
/* Take a sample. Returns what nic_meter_add does, false when there is nothing to measure. */
bool nic_sample(struct nic *nic, uint64_t now_ns);
/* Has enough passed since the last call for a plateau? */
bool nic_has_load(struct nic *nic);
#endif
