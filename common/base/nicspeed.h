#ifndef BPS_COMMON_BASE_NICSPEED_H
#define BPS_COMMON_BASE_NICSPEED_H
/* Speed of the network card that carries this daemon's data: the figure of the driver, or, where
 * the driver has none (veth, most clouds), a measurement of the traffic.
 *
 * The measurement reads the interface's counters, both directions, and not those of our own
 * connections. A server and an agent of one machine share its card, so each would see only its own
 * half. Traffic between the two on the loopback must not count.
 *
 * The measure is a lower bound that rises at once and falls slowly. It uses windows of
 * NIC_WINDOW_NS, and only NIC_PLATEAU windows in a row that agree within NIC_SPREAD: then the link
 * was busy, or evenly used, all that time. Three patterns never agree and so yield no figure
 * instead of a wrong one: a burst that a token bucket lets through, counters that a driver updates
 * seldom, and rounds shorter than a window.
 *
 * A server with a smaller share does not measure slower. At the start of a round all agents have
 * bytes for every server, so each card runs at full speed, and is idle later. A mean would count
 * the idle time; the best plateau does not. Where agents keep their connections in step, no card is
 * idle, provided that shares match the cards. Where shares are equal because no speed is known,
 * some rounds run out of step for this measurement (bps-agent/core/lockstep.c). Without a plateau
 * the measure stays as it was.
 *
 * struct nic_meter is pure; struct nic reads files and belongs to one thread. */
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#define NIC_SYSFS     "/sys"
#define NIC_WINDOW_NS UINT64_C(20000000)
#define NIC_PLATEAU   3
#define NIC_SPREAD    1.25
#define NIC_MIN_MBPS  50 /* lower rates do not count as load */
#define NIC_MAX_MBPS  10000000

/* Direction: received or sent. */
struct nic_way {
	uint64_t bytes;              /* counter at the last sample */
	double rates[NIC_PLATEAU];   /* bytes/s of the last windows, a ring */
	unsigned n_rates, next_rate; /* number of valid rates; index of the next */
};

/* Measurement of one interface; new when zeroed. */
struct nic_meter {
	uint64_t at_ns; /* time of the last sample; 0: none */
	struct nic_way ways[2];
	double rate; /* the measure, bytes/s */
};

/* Add the interface's counters at now_ns. Returns whether the window since the last sample had
 * load. A span much longer than a window does not count. */
bool nic_meter_add(struct nic_meter *m, uint64_t now_ns, uint64_t rx_bytes, uint64_t tx_bytes);
/* Return the measure in Mbit/s; 0 when it is unknown. */
uint64_t nic_meter_mbps(const struct nic_meter *m);

/* Return the driver's speed in Mbit/s; 0 when unknown. Only an interface with a device counts, or
 * one on top of such interfaces (bond, VLAN); others report made-up figures. */
uint64_t nic_driver_mbps(const char *sysfs, const char *name);

struct nic {
	char name[IF_NAMESIZE]; /* "": unknown, or the loopback */
	uint64_t driver_mbps;   /* 0: unknown */
	int rx_fd, tx_fd;       /* counter files; -1: nothing to measure */
	struct nic_meter meter;
	uint64_t looked_bytes; /* both directions, at the last call of nic_has_load */
};

/* Name the interface that has this numeric address (host of struct addr). False: none, or the
 * loopback. */
bool nic_find(const char *host, char ret_name[IF_NAMESIZE]);
/* Find the interface that has this numeric address (host of struct addr). Open its counters unless
 * the driver reports the speed. Never fails: without an interface the speed is unknown. */
void nic_open(struct nic *nic, const char *sysfs, const char *host);
/* Open like nic_open, by the name of the interface. */
void nic_open_name(struct nic *nic, const char *sysfs, const char *name);
/* Close; also allowed on a zeroed one that was never opened. */
void nic_close(struct nic *nic);
static inline bool nic_is_measured(const struct nic *nic)
{
	return nic->name[0] && nic->rx_fd >= 0;
}
/* Take a sample. Returns the same as nic_meter_add; false when there is nothing to measure. */
bool nic_sample(struct nic *nic, uint64_t now_ns);
/* Return whether enough bytes for a plateau passed since the last call. */
bool nic_has_load(struct nic *nic);
#endif
