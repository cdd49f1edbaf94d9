#ifndef BPS_COMMON_BASE_NICSPEED_H
#define BPS_COMMON_BASE_NICSPEED_H
/* Speed of the network card that carries this daemon's data. The card's driver reports the speed.
 * If the driver reports no speed (veth, most clouds), the speed is measured from the traffic.
 *
 * The measurement reads the interface's counters of both directions. It does not use the counters
 * of the daemon's own connections. A server and an agent of one machine share its card, so the
 * connections of one daemon have only part of the traffic. The traffic between that server and that
 * agent uses the loopback, so the interface's counters do not include it.
 *
 * The measured rate is a lower bound, which rises at once and falls slowly. The rate is updated
 * only from a plateau: NIC_PLATEAU windows in a row, each NIC_WINDOW_NS long, whose rates agree
 * within the factor NIC_SPREAD. In that case the link was busy, or evenly used, during all these
 * windows. None of the following forms a plateau, so none of them can produce a wrong rate:
 *   - a burst that a token bucket lets through;
 *   - counters that a driver updates seldom;
 *   - rounds shorter than a window.
 *
 * A server that sums fewer of a job's bytes than other servers still measures its full speed. At
 * the start of a round all agents have bytes for every server, so each card first runs at full
 * speed, and is idle later. A mean would include the idle time, but the best plateau does not.
 * Agents can keep their connections in step. Then no card is idle if each server's part of the
 * bytes matches the speed of its card. But while no speed is known, all servers sum equal parts,
 * and fast cards are idle at times. Therefore agents run some rounds out of step for this
 * measurement (bps-agent/core/lockstep.c). Without a plateau the measured rate stays as it was.
 *
 * struct nic_meter is pure; struct nic reads files and belongs to one thread. */
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define NIC_SYSFS     "/sys"
#define NIC_WINDOW_NS UINT64_C(20000000)
#define NIC_PLATEAU   3
#define NIC_SPREAD    1.25
#define NIC_MIN_MBPS  50 /* smallest rate that counts as load */
#define NIC_MAX_MBPS  10000000

/* Counter and rates of one direction: received or sent. */
struct nic_way {
	uint64_t bytes;            /* value of the interface's counter at the last sample */
	double rates[NIC_PLATEAU]; /* ring of the rates of the latest windows, in bytes/s */
	/* number of valid rates, and index of the entry for the next rate */
	unsigned n_rates, next_rate;
};

/* Measurement of one interface. A zeroed struct is a new measurement. */
struct nic_meter {
	uint64_t at_ns; /* time of the last sample; 0: there is no sample yet */
	struct nic_way ways[2];
	double rate; /* the measured rate, in bytes/s; 0: unknown */
};

/* Add a sample: the interface's counters at now_ns. Returns whether there was load since the
 * previous sample. If the time since the previous sample is much longer than one window, the
 * measurement starts from scratch, and the function returns false. */
bool nic_meter_add_sample(
	struct nic_meter *m, uint64_t now_ns, uint64_t rx_bytes, uint64_t tx_bytes);
/* Return the measured rate in Mbit/s; 0: unknown. */
uint64_t nic_meter_mbps(const struct nic_meter *m);

/* Return the speed in Mbit/s that the driver reports, or 0 if the speed is unknown. Only interfaces
 * with a device, and interfaces built only on such interfaces (bond, VLAN), have a known speed. The
 * drivers of other interfaces report made-up figures. */
uint64_t nic_driver_mbps(const char *sysfs, const char *name);

/* Read the processors that are near the interface's device, from its local_cpulist. Without a
 * device or a list, the set is empty. */
void nic_local_cpus(const char *sysfs, const char *name, cpu_set_t *ret);

struct nic {
	/* name of the interface that has the address; "": there is none, or it is the loopback */
	char name[IF_NAMESIZE];
	uint64_t driver_mbps; /* speed that the driver reports; 0: unknown */
	int rx_fd, tx_fd;     /* open files of the counters; -1: nothing to measure */
	struct nic_meter meter;
	uint64_t looked_bytes; /* sum of the two byte counters at the last call of nic_has_load */
};

/* Find the interface whose numeric address is `host` (as in struct addr): its name, this address,
 * and the mask of the address's subnet (both may be NULL). Returns false if there is no such
 * interface, or if it is the loopback. */
bool nic_find_by_host(const char *host, char ret_name[IF_NAMESIZE],
	struct sockaddr_storage *ret_addr, struct sockaddr_storage *ret_mask);
/* Find the interface whose numeric address is `host` (as in struct addr). Open its counters unless
 * the driver reports the speed. Never fails: if there is no interface, the speed is unknown. */
void nic_open_by_host(struct nic *nic, const char *sysfs, const char *host);
/* Open an interface by its name. Open its counters unless the driver reports the speed. */
void nic_open_by_name(struct nic *nic, const char *sysfs, const char *name);
/* Close the counters. A zeroed struct that was never opened is allowed. */
void nic_close(struct nic *nic);
/* Return whether the speed is measured. nic_open_by_host opens the counters only if the driver
 * reports no speed. */
static inline bool nic_is_measured(const struct nic *nic)
{
	return nic->name[0] && nic->rx_fd >= 0;
}
/* Read the counters and add a sample. Returns the result of nic_meter_add_sample, or false when
 * there is nothing to measure. */
bool nic_sample(struct nic *nic, uint64_t now_ns);
/* Return whether the bytes since the last call, sent and received together, are enough for a
 * plateau. */
bool nic_has_load(struct nic *nic);
#endif
