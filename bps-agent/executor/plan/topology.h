#ifndef BPS_AGENT_EXECUTOR_PLAN_TOPOLOGY_H
#define BPS_AGENT_EXECUTOR_PLAN_TOPOLOGY_H
/* Topology of this machine's PCI buses: its GPUs, its network cards, and the uplinks that they
 * share. strategy.h uses it to choose how gradients travel.
 *
 *   pci0000:15 (host bridge) ── 0000:15:01.0 (root port) ── switch ─┬─ GPU    these share one
 *                                                                   ├─ GPU    uplink, the port
 *                                                                   └─ card   0000:15:01.0
 *                            └─ 0000:15:02.0 (root port) ── GPU               one of its own
 *
 * An uplink is the root port above a device, however many switches are between: all devices below
 * it share its bandwidth. A device directly on a host bridge has none. Many virtual machines show
 * no tree, so none of their devices has one.
 *
 * The first reading is of sysfs, without any driver. The report of the CUDA executor refines it:
 * only the driver knows UUIDs, NVLink, and MIG instances.
 *
 * Pure, except that it reads files below a given root. All input is checked and bounded. Invalid
 * input is left out and counted. Thread: any, no state of its own. */
#include <stdbool.h>
#include <stdint.h>

#include "common/base/error.h"

#define TOPO_SYSFS      "/sys"
#define TOPO_GPUS_MAX   64 /* a bit mask of GPUs fits one word */
#define TOPO_NICS_MAX   64
#define TOPO_PORTS_MAX  128
#define TOPO_PCI_BYTES  20 /* of "0000:15:01.0", the domain with up to 8 digits */
#define TOPO_NAME_BYTES 64
#define TOPO_NONE       UINT32_MAX
#define TOPO_NO_PCI     UINT64_MAX

/* A root port with GPUs or cards below it. */
struct topo_uplink {
	uint64_t pci;
	bool has_switch;
	char bridge[TOPO_PCI_BYTES]; /* its host bridge, "pci0000:15" */
	unsigned n_gpus, n_nics;     /* n_nics: those that are up */
};

struct topo_gpu {
	uint64_t pci;    /* as returned by topo_pci_parse */
	uint32_t uplink; /* index, or TOPO_NONE */
	int32_t numa;    /* node, -1: not known */
	uint16_t device; /* PCI device number of the vendor; 0: not known */
	/* a part of a GPU: reaches no other GPU; two entries with one address are parts */
	bool is_mig;
	bool has_uuid;
	uint8_t uuid[16];
	char name[TOPO_NAME_BYTES]; /* "": not known */
	uint64_t links;             /* bit i: NVLink to gpus[i], direct or through an NVSwitch */
	uint64_t peers; /* bit i: can copy to gpus[i] directly; not known before topology_refine */
};

struct topo_nic {
	uint64_t pci;
	uint32_t uplink;
	int32_t numa;
	uint32_t mbps;              /* 0: not known */
	bool is_up;                 /* false: known to be down */
	char name[TOPO_NAME_BYTES]; /* of its interface; "": it has none */
};

struct topology {
	bool is_refined; /* refined by the executor's report */
	unsigned n_gpus, n_nics, n_uplinks;
	unsigned n_nvswitches;
	unsigned n_odd; /* devices and attributes that were invalid, or too many */
	struct topo_gpu gpus[TOPO_GPUS_MAX];
	struct topo_nic nics[TOPO_NICS_MAX];
	struct topo_uplink uplinks[TOPO_PORTS_MAX];
};

/* A GPU as the CUDA driver sees it, from the executor's probe. */
struct topo_report {
	char pci[TOPO_PCI_BYTES]; /* terminated */
	uint8_t uuid[16];
	int32_t numa; /* -1: not known */
	bool is_mig;
	char name[TOPO_NAME_BYTES]; /* terminated */
	uint64_t links, peers;      /* bits are indexes of reports */
};

/* Read sysfs, mounted at root. GPUs and cards are in the order of their addresses. If the machine
 * has NVSwitches, its GPUs are assumed to be linked. A machine without devices is no error. Errors:
 * -ENOENT and similar, with a text: there is no list of PCI devices. */
int topology_read(const char *root, struct topology *ret, struct err_text *err);

/* Refine t with the executor's report: the GPUs become those of the reports, in their order; their
 * places come from sysfs. A report with an invalid address is kept as a GPU without a place.
 * Errors: -E2BIG, with a text; t is unchanged. */
int topology_refine(
	struct topology *t, const struct topo_report *reports, unsigned n, struct err_text *err);

/* Parse "0000:15:01.0", in lower or upper case; the domain has 4 to 8 digits. Returns false if
 * invalid. */
bool topo_pci_parse(const char *s, uint64_t *ret);
/* Write the address in lower case; "-" for TOPO_NO_PCI. */
void topo_pci_text(uint64_t pci, char ret[TOPO_PCI_BYTES]);
#endif
