#ifndef BPS_TESTS_UNIT_TOPO_FIXTURE_H
#define BPS_TESTS_UNIT_TOPO_FIXTURE_H
/* A folder that describes a machine of tests/topologies. The folder has the layout of sysfs. */
#include "bps-agent/executor/plan/strategy.h"
#include "bps-agent/executor/plan/topology.h"

struct topo_fixture {
	char root[64]; /* a temporary folder */
	unsigned n_devices, n_reports, n_odd;
	enum strategy expect;
	struct topo_report reports[TOPO_GPUS_MAX];
};

/* The names of all machines. The list ends with NULL. */
extern const char *const topo_fixture_names[];

/* Make the folder of a machine. Fails the test when that is not possible. */
void topo_fixture_make(struct topo_fixture *f, const char *name);
/* Make a machine without devices. The test describes devices by calls of topo_fixture_line. */
void topo_fixture_empty(struct topo_fixture *f);
void topo_fixture_line(struct topo_fixture *f, const char *line);
/* Read the folder with topology_read. If the machine's description has `report` lines, refine the
 * result with these reports (topology_refine). */
void topo_fixture_read(struct topo_fixture *f, struct topology *ret);
void topo_fixture_remove(struct topo_fixture *f);
#endif
