#ifndef BPS_AGENT_EXECUTOR_PLAN_TOPOLOGY_H
#define BPS_AGENT_EXECUTOR_PLAN_TOPOLOGY_H
/* Topology of this machine's PCI buses: its GPUs, its network cards, and the uplinks that they
 * share. strategy.h chooses by the topology how gradients are copied and summed.
 *
 *   pci0000:15 (host bridge) ── 0000:15:01.0 (root port) ── switch ─┬─ GPU    share an
 *                                                                   ├─ GPU    uplink, port
 *                                                                   └─ card   0000:15:01.0
 *                            └─ 0000:15:02.0 (root port) ── GPU               own uplink
 *
 * An uplink is the root port above a device, even if there are switches between the two. All
 * devices below a root port share its bandwidth. A device directly on a host bridge has no uplink.
 * Many virtual machines show no tree of buses, so their devices have no uplink.
 *
 * topology_read reads sysfs, which needs no driver. topology_refine adds UUIDs, NVLinks and MIG
 * instances. Only the CUDA driver can provide them, and the executor reports them.
 *
 * Reads files below a given root, and has no state. All input is checked and bounded. Invalid input
 * is left out and counted. Thread: any. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

#define TOPO_SYSFS "/sys"
/* maximum number of GPUs; a mask with one bit per GPU must fit into 64 bits */
#define TOPO_GPUS_MAX  64
#define TOPO_NICS_MAX  64
#define TOPO_PORTS_MAX 128
/* room for an address such as "0000:15:01.0" with a domain of up to 8 digits */
#define TOPO_PCI_BYTES  20
#define TOPO_NAME_BYTES 64
#define TOPO_NONE       UINT32_MAX
#define TOPO_NO_PCI     UINT64_MAX

/* A root port with GPUs or cards below it. */
struct topo_uplink {
	uint64_t pci;
	bool has_switch;
	/* name of the host bridge above the uplink, such as "pci0000:15" */
	char bridge[TOPO_PCI_BYTES];
	unsigned n_gpus, n_nics; /* n_nics: number of cards that are up */
};

struct topo_gpu {
	uint64_t pci;    /* PCI address as a number, see topo_pci_parse */
	uint32_t uplink; /* index of the GPU's uplink in the array `uplinks`, or TOPO_NONE */
	int32_t numa;    /* NUMA node, -1: not known */
	uint16_t device; /* device id that the vendor gave to this type of GPU; 0: not known */
	/* The entry is a part of a GPU (MIG instance), which cannot copy to other GPUs. All parts
	 * of one GPU have the same address. */
	bool is_mig;
	bool has_uuid;
	uint8_t uuid[16];
	char name[TOPO_NAME_BYTES]; /* name for display; "": not known */
	/* bit i: there is an NVLink to gpus[i], direct or through an NVSwitch */
	uint64_t links;
	/* bit i: the GPU can copy to gpus[i] directly; not known before topology_refine */
	uint64_t peers;
};

struct topo_nic {
	uint64_t pci;
	uint32_t uplink;
	int32_t numa;
	uint32_t mbps; /* speed of the card, in Mbit/s; 0: not known */
	/* false: the card is down; true: the card is up, or its state is not known */
	bool is_up;
	char name[TOPO_NAME_BYTES]; /* name of the card's network interface; "": there is none */
};

struct topology {
	bool is_refined; /* topology_refine has added the executor's report */
	unsigned n_gpus, n_nics, n_uplinks;
	unsigned n_nvswitches;
	unsigned n_odd; /* number of devices and attributes that were invalid or beyond a limit */
	struct topo_gpu gpus[TOPO_GPUS_MAX];
	struct topo_nic nics[TOPO_NICS_MAX];
	struct topo_uplink uplinks[TOPO_PORTS_MAX];
};

/* Properties of a GPU. The executor's program reads them from the CUDA driver and reports them. */
struct topo_report {
	char pci[TOPO_PCI_BYTES]; /* PCI address, zero-terminated */
	uint8_t uuid[16];
	int32_t numa; /* NUMA node; -1: not known */
	bool is_mig;
	char name[TOPO_NAME_BYTES]; /* name for display, zero-terminated */
	/* links: GPUs that have an NVLink to this GPU. peers: GPUs that this GPU can copy to
	 * directly. Bit i stands for reports[i]. */
	uint64_t links, peers;
};

/* Read the topology from sysfs. root: mount point of sysfs. GPUs and cards are sorted by address.
 * If the machine has NVSwitches, all its GPUs are assumed to be linked. A machine without devices
 * is not an error. Errors: -errno, such as -ENOENT, if the PCI devices cannot be listed; err gets
 * the text. */
int topology_read(const char *root, struct topology *ret, struct err_text *err);

/* Replace the GPUs of `t` by the GPUs of the executor's reports, in the order of the reports. The
 * uplink of a new GPU is the uplink of the old GPU with the same address. The NUMA node is that of
 * the report. If the report has no valid node, the node of the old GPU is kept. A report with an
 * invalid address becomes a GPU without an uplink. Errors: -E2BIG, -ENOMEM; err gets the text, and
 * `t` is unchanged. */
int topology_refine(
	struct topology *t, const struct topo_report *reports, unsigned n, struct err_text *err);

/* Parse a PCI address such as "0000:15:01.0". Upper and lower case are allowed. The domain, which
 * is the first field, has 4 to 8 digits. Returns false if the text is invalid. */
bool topo_pci_parse(const char *s, uint64_t *ret);
/* Write the address `pci` as text, in lower case. TOPO_NO_PCI is written as "-". */
void topo_pci_format(uint64_t pci, char ret[TOPO_PCI_BYTES]);
#endif
